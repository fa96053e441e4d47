//! Runs hostile recipes on a real server. Each is contained, its job ends with a fitting cause, and neither the host
//! nor the toolbox nor the next job is affected.
//!
//! A case that would hurt the test machine if its limit failed has an end of its own: it asks for a few times its
//! limit, or writes values that are already set.

use crate::support;
mod archives;
mod case;
mod descriptions;
mod host;
mod scripts;
mod site;

use futures::future::join_all;

use self::{case::Case, host::Host, site::Site};

#[test(threads = 2)]
async fn hostile_recipes_harm_nobody() {
    // Without root there are neither control groups nor disks of a fixed size.
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start().await;
    let before = Host::look(&site.kiln);

    let cases: Vec<Case> = [archives::cases(&site), descriptions::cases(), scripts::cases(&site)]
        .into_iter()
        .flatten()
        .collect();
    let mut jobs = Vec::new();
    for case in &cases {
        jobs.push(site.submit(case).await);
    }
    let ends = join_all(jobs.iter().map(|job| site.end_of(job))).await;
    let wrong: Vec<String> = cases
        .iter()
        .zip(&ends)
        .flat_map(|(case, end)| case.complaints(end))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));

    // The one after them finds the toolbox as it was, and builds.
    let next = scripts::next_job();
    let job = site.submit(&next).await;
    let complaints = next.complaints(&site.end_of(&job).await);
    assert!(complaints.is_empty(), "{complaints:?}");

    assert!(!site.was_reached(), "a sandbox reached a port of the host");
    let kiln = site.stop();
    kiln.assert_clean();
    jobs.push(job);
    assert_eq!(host::left_of(&jobs), Vec::<String>::new());
    before.assert_same(&Host::look(&kiln));
}

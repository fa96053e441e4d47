//! Verifies native twins: makes the root once more without them, and compares the two. Runs processes, and touches the
//! job's disk space.
//!
//! Both roots are made at the same path, since some files contain it. What differs may differ between any two builds of
//! the recipe: then the root is made a third time, with twins, and differences that two builds with twins have, too, are
//! only noted in the log. That time, twins keep a record of the files that they change, which names the writer of each
//! file that differs.

pub mod tree;
mod unlike;
mod writers;

use std::{collections::HashSet, io, path::PathBuf};

use kiln_records::{Code, Failure, TwinLevel};

pub use self::unlike::UNLIKE;
use self::{
    tree::{Difference, Tree},
    writers::Writers,
};
use crate::{building::Building, events::Events, process::blocking};

/// The most differences of each kind in the log.
const LOGGED: usize = 100;

/// The most differences in the failure.
const NAMED: usize = 3;

/// Verifies the root of a job, if twins helped to make it.
///
/// # Errors
///
/// `twins_differ`, with the first differences; the log has all. Also the failures of a build, as far as they are not of
/// the image's programs.
pub async fn verify(building: Building<'_>) -> Result<(), Failure> {
    if let Some(why) = why_not(building) {
        building.events.say(format!("nothing to verify: {why}")).await;
        return Ok(());
    }
    let outputs = building.outputs;
    fs_err::rename(outputs.root(), outputs.twinned())
        .map_err(|error| Failure::io("cannot put the root aside", &error))?;
    let compared = compare(building).await;
    let outputs = outputs.clone();
    let back = blocking(move || outputs.bring_back()).await;
    compared.and(back)
}

/// The reason why there is nothing to verify, if so.
fn why_not(building: Building<'_>) -> Option<&'static str> {
    let job = building.job;
    if job.emulator.is_none() {
        Some("the image's programs run natively")
    } else if job.twins == TwinLevel::Off {
        Some("the image's programs are all emulated, as was asked for")
    } else if building.outputs.facts.twins == 0 {
        Some("no program of the image ran as a native twin")
    } else if job.shell.is_some() {
        Some("a user may have changed the root in the job's shell")
    } else {
        None
    }
}

async fn compare(building: Building<'_>) -> Result<(), Failure> {
    let Building { outputs, events, .. } = building;
    events.say("the root is made once more, without native twins").await;
    building.without_twins().await.map_err(not_without)?;
    let twinned = read(outputs.twinned()).await?;
    let found = differences(outputs.root(), &twinned).await?;
    if found.is_empty() {
        let count = twinned.len();
        events
            .say(format!("verified: the roots are equal, {count} paths"))
            .await;
        return Ok(());
    }
    let count = found.len();
    let text =
        format!("{count} differences; the root is made once more with native twins, to see which of them are chance");
    events.say(text).await;
    let again = outputs.clone();
    blocking(move || again.remove_root()).await?;
    building.with_twins(Some(outputs.writers())).await.1?;
    let writers = writers(outputs.writers()).await?;
    let chance = differences(outputs.root(), &twinned).await?;
    let chance: HashSet<_> = chance.iter().map(Difference::likeness).collect();
    let (by_chance, of_twins): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|difference| chance.contains(&difference.likeness()));
    let told = |differences: &[Difference]| -> Vec<String> {
        let one = |difference: &Difference| match writers.of(&difference.path.to_string_lossy()) {
            Some(programs) => format!("{difference}, written by {programs}"),
            None => difference.to_string(),
        };
        differences.iter().map(one).collect()
    };
    let of_twins = told(&of_twins);
    log(events, "differs between any two builds", &told(&by_chance)).await;
    log(events, "differs without native twins", &of_twins).await;
    if of_twins.is_empty() {
        let text = format!(
            "verified: {} paths, of which {} differ between any two builds",
            twinned.len(),
            by_chance.len()
        );
        events.say(text).await;
        return Ok(());
    }
    Err(differ(&of_twins))
}

/// Reads a tree.
async fn read(top: PathBuf) -> Result<Tree, Failure> {
    blocking(move || tree::read(&top).map_err(|error| Failure::io("cannot compare the roots", &error))).await
}

/// What is different in `twinned` from the root at `top`.
async fn differences(top: PathBuf, twinned: &Tree) -> Result<Vec<Difference>, Failure> {
    let root = read(top).await?;
    Ok(tree::differences(&root, twinned, UNLIKE))
}

/// Logs differences.
async fn log(events: &Events, what: &str, differences: &[String]) {
    for difference in differences.iter().take(LOGGED) {
        events.say(format!("{what}: {difference}")).await;
    }
    if differences.len() > LOGGED {
        let more = differences.len() - LOGGED;
        events.say(format!("{what}: {more} more")).await;
    }
}

/// The record of writers, which is removed. There is none if no root was entered.
async fn writers(record: PathBuf) -> Result<Writers, Failure> {
    blocking(move || {
        let read = || -> io::Result<Writers> {
            if !record.exists() {
                return Ok(Writers::default());
            }
            let text = fs_err::read(&record)?;
            fs_err::remove_file(&record)?;
            Ok(Writers::read(&String::from_utf8_lossy(&text)))
        };
        read().map_err(|error| Failure::io("cannot read the record of writers", &error))
    })
    .await
}

fn differ(found: &[String]) -> Failure {
    let mut named: Vec<_> = found.iter().take(NAMED).cloned().collect();
    if found.len() > NAMED {
        named.push(format!("and {} more differences", found.len() - NAMED));
    }
    let named = named.join("; ");
    let detail = format!("the root that native twins helped to make is not that of plain emulation: {named}");
    Failure::new(Code::TwinsDiffer, detail).hint("the log has all differences; please report them")
}

/// The failure of a verification in which the root could not be made without twins.
fn not_without(failure: Failure) -> Failure {
    if !failure.code.may_be_of_twins() {
        return failure;
    }
    let detail = format!("a root could be made with native twins, and not by plain emulation: {failure}");
    Failure::new(Code::TwinsDiffer, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_of_the_images_programs_is_a_difference() {
        for (code, becomes) in [
            (Code::ScriptFailed, Code::TwinsDiffer),
            (Code::EmulatorFault, Code::TwinsDiffer),
            (Code::DiskFull, Code::DiskFull),
            (Code::ToolKilled, Code::ToolKilled),
        ] {
            let failure = not_without(Failure::new(code, "config.sh failed"));
            assert_eq!(failure.code, becomes);
            assert!(failure.detail.ends_with("config.sh failed"), "{failure}");
        }
    }

    #[test]
    fn a_failure_names_a_few_differences() {
        let found = ["/a is missing", "/b", "/c", "/d", "/e"].map(str::to_owned);
        let detail = differ(&found).detail;
        assert!(
            detail.ends_with(": /a is missing; /b; /c; and 2 more differences"),
            "{detail}"
        );
        assert!(differ(&found[..1]).detail.ends_with(": /a is missing"));
    }
}

//! Jobs in pods while their cluster or its node is away.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::{
    rig::{self, Rig},
    site::{Site, no_machine, until, until_settled},
};
use crate::support::{
    self, Recipe, cluster, eventually,
    gate::{Gate, Way},
    repository::Repository,
    tool,
};

/// How long the API is away in one of two ways.
const AWAY: Duration = Duration::from_mins(1);

#[test(threads = 4)]
async fn a_cluster_whose_api_is_away_for_two_minutes_costs_no_job() {
    needs!(cluster::lack(), no_machine(), support::no_namespaces());
    let site = Site::new().await;
    let api: SocketAddr = site
        .cluster
        .said("KILN_RIG_API")
        .strip_prefix("https://")
        .unwrap()
        .parse()
        .unwrap();
    let gate = Gate::start(api).await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = site
        .cluster
        .account(dir.path(), Some(&format!("https://{}", gate.address)));
    let server = site.server_with(&[("KILN__KUBERNETES__KUBECONFIG", kubeconfig.to_str().unwrap())]);
    server.make_key();
    let repository = Repository::native_at(site.cluster.address());
    let brief = server.recipe(&Recipe::with_script("sleep 30"), &repository, &[]);
    let endless = server.recipe(&Recipe::with_script("sleep 1000"), &repository, &[]);
    let (ends, is_cancelled) = (server.build(&brief, &[]), server.build(&endless, &[]));
    for job in [&ends, &is_cancelled] {
        until(&server, job, |status| status["step"] == "build");
    }

    let begun = Instant::now();
    gate.set(Way::Silent);
    let comes_late = server.build(&brief, &[]);
    server.run(&["jobs", "cancel", &is_cancelled]).ok();
    assert_eq!(server.status(&is_cancelled)["error"]["code"], "cancelled");
    // Users are told, and the job whose agent is heard goes on to its end.
    until(&server, &comes_late, |status| {
        let reason = status["reason"].as_str().unwrap_or_default();
        reason == "the place `kubernetes-x86_64` does not answer within 4s"
    });
    until(&server, &ends, |status| status["state"] == "success");
    // Each half of the outage has its length, whatever happens in it.
    std::thread::sleep(AWAY.saturating_sub(begun.elapsed()));
    gate.set(Way::Closed);
    std::thread::sleep((2 * AWAY).saturating_sub(begun.elapsed()));
    assert_eq!(
        server.status(&ends)["log"],
        Value::Null,
        "its pod is still to be removed"
    );
    gate.set(Way::Open);
    for job in [&ends, &comes_late] {
        let (status, _) = site.image_of(&server, job);
        assert_eq!(status["attempt"], 1, "{status:#}");
    }
    until_settled(&server, &is_cancelled);
    assert_eq!(site.left_of(&is_cancelled), "");
    server.stop();
}

#[test(threads = 4)]
async fn a_node_that_is_lost_costs_a_job_one_try() {
    needs!(rig::lack(), no_machine(), support::no_namespaces(), support::not_root());
    let rig = tokio::task::block_in_place(Rig::with_node);
    let cluster = &rig.cluster;
    let site = Site::with(cluster).await;
    let server = site.server_with(&[("KILN__WATCH__INTERRUPTIONS", "2"), ("KILN__WATCH__RETRY_PAUSE", "1s")]);
    server.make_key();
    let repository = Repository::native_at(cluster.address());
    let brief = server.recipe(&Recipe::with_script("sleep 10"), &repository, &[]);
    let endless = server.recipe(&Recipe::with_script("sleep 1000"), &repository, &[]);

    // A node that the cluster does not hear may go on with its work, and does.
    let job = server.build(&brief, &[]);
    until(&server, &job, |status| status["step"] == "build");
    let kubelet = cluster.process("kubelet");
    kill(kubelet, Signal::SIGSTOP).unwrap();
    let status = until_settled(&server, &job);
    assert_eq!(
        (&status["state"], &status["attempt"]),
        (&json!("success"), &json!(1)),
        "{status:#}"
    );
    let of_job = |job: &str| {
        cluster.kubectl(&[
            "get",
            "jobs,pods",
            "--selector",
            &format!("kiln.job={job}"),
            "--output",
            "name",
        ])
    };
    assert!(
        of_job(&job).starts_with("pod/"),
        "only its node could have ended the pod: {}",
        of_job(&job)
    );
    let next = server.build(&endless, &[]);
    until(&server, &next, |status| {
        status["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("no x86_64 node that is ready"))
    });
    kill(kubelet, Signal::SIGCONT).unwrap();
    until(&server, &next, |status| status["step"] == "build");
    eventually(|| {
        let left = of_job(&job);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });

    tool(".ci/kubernetes-rig", &["lose-node", rig.dir.to_str().unwrap()]);
    until(&server, &next, |status| status["attempt"] == 2);
    let log = server.run(&["jobs", "logs", &next]).ok().stdout;
    assert!(
        log.contains("try 1 ended: the pod's node went away: rig: Kubelet stopped posting node status"),
        "{log}"
    );
    until(&server, &next, |status| status["reason"].is_string());
    server.run(&["jobs", "cancel", &next]).ok();
    until_settled(&server, &next);
    server.stop();
}

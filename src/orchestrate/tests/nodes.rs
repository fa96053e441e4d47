//! Tests build nodes of another architecture than the server's, and nodes that do not answer.

use std::path::Path;

use futures::FutureExt;
use kiln_inside::emulation::probe::tiny_program;
use kiln_records::run::{How, LOCAL};

use super::*;
use crate::orchestrate::Lack;

const NODE: &str = "x3000c0s17b0n0";
const DEAF: &str = "x3000c0s19b0n0";

/// Another architecture than this host's.
fn foreign() -> Arch {
    if Arch::host() == Arch::Aarch64 {
        Arch::X86_64
    } else {
        Arch::Aarch64
    }
}

/// A server with this agent and these toolboxes. It knows a node of another architecture, and one that does not answer.
fn server(site: &Site, agent: &Path, toolboxes: &[Arch]) -> (Server, Arc<Place>) {
    let node = Place::new(Some(foreign()));
    let of_node = Arc::clone(&node);
    let node_driver: NodeDriver = Box::new(move |name| match name {
        NODE => of_node.clone(),
        DEAF => Place::new(None),
        _ => panic!("there is no {name}"),
    });
    let toolboxes = toolboxes.iter().map(|arch| toolbox(*arch));
    let equipment = Equipment::new(Agents::beside(agent.to_owned()), toolboxes);
    (site.server_with(WatchSettings::default(), equipment, node_driver), node)
}

impl Server {
    async fn looks(&self, nodes: &[&str]) {
        let nodes: Vec<_> = nodes.iter().map(|name| (*name).to_owned()).collect();
        join_all(self.orchestrator.places.looks(&nodes)).await;
    }

    /// Takes a job and finds a place for it.
    async fn accepts(&self, arch: Arch) -> JobId {
        let job = Job { arch, ..job() };
        let accepted = self.orchestrator.intake.accept(job, NewRun::default()).await.unwrap();
        // Only now is it worth finding out whether there are virtual machines here.
        self.looks(&[NODE]).await;
        self.orchestrator.launch.pass().await.unwrap();
        accepted.id
    }
}

#[tokio::test]
async fn a_node_of_another_architecture_gets_an_agent_and_a_toolbox_of_its_own() {
    let (site, dir) = (Site::new().await, tempfile::tempdir().unwrap());
    let own = dir.path().join("kiln-agent");
    let (server, node) = server(&site, &own, &[Arch::host()]);
    let plan = async |job| site.store.get_run(job).await.unwrap().unwrap().run.plan;

    // Without an agent for it, the node is passed over and the job is emulated here.
    let emulated = server.accepts(foreign()).await;
    let placed = plan(emulated).await;
    assert_eq!((placed.place.as_deref(), placed.how), (Some(LOCAL), How::Emulated));

    // With an agent, jobs for the node wait for its toolbox, and others do not.
    let agent = dir.path().join(foreign().name()).join("kiln-agent");
    fs_err::create_dir(agent.parent().unwrap()).unwrap();
    fs_err::write(&agent, tiny_program(foreign())).unwrap();
    server.looks(&[NODE]).await;
    let waits = server.accepts(foreign()).await;
    let (_, reason) = server.orchestrator.glance.waiting(waits).unwrap();
    let expected = format!("the toolbox for {} is being built", foreign());
    assert!(reason.starts_with(&expected), "{reason}");
    let equipment = &server.orchestrator.placing.equipment;
    assert_eq!(equipment.wanted().await, foreign());
    let native = server.accepts(Arch::host()).await;
    assert_eq!(plan(native).await.place.as_deref(), Some(LOCAL));
    assert_eq!(site.state(native).await, State::Launching);

    equipment.note(foreign(), Ok(toolbox(foreign())));
    server.looks(&[NODE]).await;
    server.orchestrator.launch.pass().await.unwrap();
    let placed = plan(waits).await;
    assert_eq!((placed.place.as_deref(), placed.how), (Some(NODE), How::Native));
    // Sandboxes are started in the background.
    let started = async |place: &Place, job: JobId| loop {
        if let Some((spec, _)) = place.sandboxes.lock().unwrap().get(&job) {
            break spec.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let spec = started(&node, waits).await;
    assert_eq!((spec.agent, spec.toolbox.facts.arch), (agent, foreign()));
    // This host's jobs have this host's agent and toolbox.
    let here = started(&server.place, emulated).await;
    assert_eq!((here.agent, here.toolbox.facts.arch), (own, Arch::host()));
}

#[tokio::test]
async fn a_toolbox_that_cannot_be_made_leaves_the_job_to_others() {
    let (site, dir) = (Site::new().await, tempfile::tempdir().unwrap());
    let (server, _) = server(&site, &dir.path().join("kiln-agent"), &[Arch::host()]);
    fs_err::create_dir(dir.path().join(foreign().name())).unwrap();
    let agent = dir.path().join(foreign().name()).join("kiln-agent");
    fs_err::write(agent, tiny_program(foreign())).unwrap();
    let equipment = &server.orchestrator.placing.equipment;
    equipment.note(foreign(), Err(Failure::new(Code::ToolboxBuild, "no mirror has it")));
    let job = server.accepts(foreign()).await;
    let placed = site.store.get_run(job).await.unwrap().unwrap().run.plan;
    assert_eq!((placed.place.as_deref(), placed.how), (Some(LOCAL), How::Emulated));
    // The toolbox is tried again.
    assert_eq!(equipment.wanted().await, foreign());
    assert!(matches!(equipment.of(foreign()), Err(Lack::Failed(_))));
}

#[tokio::test]
async fn a_node_that_does_not_answer_holds_up_no_news_of_others() {
    let (site, dir) = (Site::new().await, tempfile::tempdir().unwrap());
    let (server, _) = server(&site, &dir.path().join("kiln-agent"), &[]);
    let nodes = [DEAF.to_owned(), NODE.to_owned()];
    let mut looks = tokio::task::JoinSet::new();
    for look in server.orchestrator.places.looks(&nodes) {
        looks.spawn(look);
    }
    // The looks at this host and at the node that answers come to an end.
    for _ in 0..2 {
        let done = tokio::time::timeout(Duration::from_secs(30), looks.join_next()).await;
        done.unwrap().unwrap().unwrap();
    }
    assert_eq!(server.orchestrator.places.cpus(None), Some(2));
    // A look does not request a toolbox for this host: jobs do.
    let nothing_wanted = server.orchestrator.placing.equipment.wanted().now_or_never();
    assert_eq!(nothing_wanted, None);
    // A place with a look under way is not looked at twice.
    assert_eq!(server.orchestrator.places.looks(&nodes).len(), 2);
    looks.shutdown().await;
    assert_eq!(server.orchestrator.places.looks(&nodes).len(), 3);
}

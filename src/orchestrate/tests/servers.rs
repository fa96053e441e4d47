//! Tests several servers on the same records: one dies, and agents call any of them.

use kiln_inside::emulation::probe::tiny_program;
use kiln_records::run::{How, LOCAL};

use super::*;
use crate::orchestrate::settle::Tasks;
use kiln_records::{Shell, ShellTime, ShellWish, protocol::shell::GO, shell::Address};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A build node that all servers reach.
const NODE: &str = "x3000c0s17b0n0";

/// Another architecture than this host's.
fn foreign() -> Arch {
    if Arch::host() == Arch::Aarch64 {
        Arch::X86_64
    } else {
        Arch::Aarch64
    }
}

impl Site {
    /// A server whose host is of this architecture; `node` is a place that other servers reach, too.
    fn server_of(&self, arch: Arch, watch: WatchSettings, node: &Arc<Place>) -> Server {
        let toolboxes = [Arch::host(), foreign()].map(toolbox);
        let agent = self.dir.path().join("kiln-agent");
        let of_other = self.dir.path().join(foreign().name());
        fs_err::create_dir_all(&of_other).unwrap();
        fs_err::write(of_other.join("kiln-agent"), tiny_program(foreign())).unwrap();
        let equipment = Equipment::new(Agents::beside(agent), toolboxes);
        let node = Arc::clone(node);
        let node: NodeDriver = Box::new(move |_| node.clone());
        self.process(ServerId::new(), None, watch, equipment, arch, node)
    }
}

impl Server {
    async fn lives(&self) {
        self.orchestrator.life.pass().await.unwrap();
    }

    async fn takes_in(&self, arch: Arch) -> JobId {
        let job = Job { arch, ..job() };
        self.orchestrator
            .intake
            .accept(job, NewRun::default())
            .await
            .unwrap()
            .id
    }

    async fn launches(&self, job: JobId) {
        self.orchestrator.launch.pass().await.unwrap();
        self.has_started(job).await;
    }

    async fn looks_at(&self, nodes: &[&str]) {
        let nodes: Vec<_> = nodes.iter().map(|name| (*name).to_owned()).collect();
        join_all(self.orchestrator.places.looks(&nodes)).await;
    }

    /// Nobody but this server shows life for a minute.
    async fn finds_the_others_gone(&self) {
        self.lives().await;
        self.orchestrator.claim.leases.let_pass(Duration::from_mins(1));
        self.lives().await;
    }
}

#[tokio::test]
async fn a_sandbox_that_two_servers_reach_outlives_the_one_that_started_it() {
    let site = Site::new().await;
    let node = Place::shared(Some(Arch::host()), true);
    let watch = || WatchSettings {
        heartbeat: Period::seconds(1),
        ..WatchSettings::default()
    };
    let (first, second) = (
        site.server_of(Arch::host(), watch(), &node),
        site.server_of(Arch::host(), watch(), &node),
    );
    for server in [&first, &second] {
        server.lives().await;
        server.looks_at(&[NODE]).await;
    }
    let run = async |job| site.store.get_run(job).await.unwrap().unwrap().run;
    // The second job goes where there is none yet.
    let (here, job) = (first.takes_in(Arch::host()).await, first.takes_in(Arch::host()).await);
    assert_eq!(run(here).await.plan.host, Some(first.orchestrator.claim.id()));
    let plan = run(job).await.plan;
    assert_eq!((plan.place.as_deref(), plan.host), (Some(NODE), None));
    first.launches(job).await;
    let facts = node.facts(job);
    first.says_nothing(job, &facts.token).await.unwrap();

    // The other server leaves the job alone while the first one lives.
    second.lives().await;
    second.orchestrator.settle.pass().await.unwrap();
    assert_eq!(run(job).await.owner, Some(first.orchestrator.claim.id()));
    assert!(node.sandboxes.lock().unwrap().contains_key(&job));

    second.finds_the_others_gone().await;
    second.orchestrator.settle.pass().await.unwrap();
    let adopted = run(job).await;
    assert_eq!(
        (adopted.owner, adopted.attempt),
        (Some(second.orchestrator.claim.id()), 1)
    );
    // What was on the first one's own host is tried again.
    assert_eq!((run(here).await.state, run(here).await.attempt), (State::Queued, 2));
    second.says_nothing(job, &facts.token).await.unwrap();
    second.orchestrator.watch.pass().await.unwrap();
    assert_eq!(run(job).await.state, State::Launching);

    // The first one was only asleep: neither its clocks nor its sweeps harm the job.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    second.says_nothing(job, &facts.token).await.unwrap();
    first.orchestrator.watch.pass().await.unwrap();
    first.orchestrator.launch.pass().await.unwrap();
    first.orchestrator.settle.pass().await.unwrap();
    second.orchestrator.watch.pass().await.unwrap();
    let now = run(job).await;
    assert_eq!((now.owner, now.attempt), (Some(second.orchestrator.claim.id()), 1));
    assert_eq!(node.facts(job).token, facts.token);

    // Its end is the new owner's business, and nothing is left.
    let failure = Failure::new(Code::Cancelled, "enough");
    first.orchestrator.jobs.cancel(job, failure).await.unwrap();
    second.orchestrator.settle.pass().await.unwrap();
    assert!(node.sandboxes.lock().unwrap().is_empty() && run(job).await.settled);
}

#[tokio::test]
async fn a_place_that_hangs_costs_the_jobs_elsewhere_nothing() {
    let site = Site::new().await;
    let node = Place::shared(Some(Arch::host()), true);
    let watch = WatchSettings {
        silence: Period::seconds(2),
        attempts: 1,
        interruptions: 1,
        ..WatchSettings::default()
    };
    let server = site.server_of(Arch::host(), watch, &node);
    server.lives().await;
    server.looks_at(&[NODE]).await;
    let (here, there) = (server.takes_in(Arch::host()).await, server.takes_in(Arch::host()).await);
    server.launches(here).await;
    server.has_started(there).await;
    let run = async |job| site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!(run(there).await.plan.place.as_deref(), Some(NODE));
    for (job, node) in [(here, ""), (there, NODE)] {
        let record = site.store.get_run(job).await.unwrap().unwrap().job;
        assert_eq!(record.remote_build_node, node);
    }

    // The clocks of all jobs run, whatever the place says, and both have made no progress.
    server.orchestrator.watch.pass().await.unwrap();
    node.hangs.store(true, Ordering::Relaxed);
    let ended = async {
        while !run(here).await.state.is_final() || !run(there).await.state.is_final() {
            server.orchestrator.watch.pass().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap();
    for job in [here, there] {
        assert_eq!(run(job).await.failure().unwrap().code, Code::Silent);
    }

    // Nor do the others wait until that place has cleared away.
    let mut tasks = Tasks::new();
    server.orchestrator.settle.pass_soon(&mut tasks).await.unwrap();
    let settled = async |job| {
        while !run(job).await.settled {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = Duration::from_secs(20);
    tokio::time::timeout(in_time, settled(here)).await.unwrap();
    let swept = server.orchestrator.sweep.pass().await.unwrap_err();
    assert_eq!(swept.code, Code::PlaceSilent);
    assert!(!run(there).await.settled);
    node.hangs.store(false, Ordering::Relaxed);
    tokio::time::timeout(in_time, settled(there)).await.unwrap();
    assert!(node.sandboxes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_job_goes_to_the_server_whose_host_has_its_architecture() {
    let site = Site::new().await;
    let node = Place::shared(None, true);
    let (first, second) = (
        site.server_of(Arch::host(), WatchSettings::default(), &node),
        site.server_of(foreign(), WatchSettings::default(), &node),
    );
    for server in [&first, &second, &first] {
        server.lives().await;
        server.looks_at(&[]).await;
    }
    for server in [&second, &first] {
        server.lives().await;
    }
    let job = first.takes_in(foreign()).await;
    let run = async |job| site.store.get_run(job).await.unwrap().unwrap().run;
    let plan = run(job).await.plan;
    assert_eq!(
        (plan.place.as_deref(), plan.host),
        (Some(LOCAL), Some(second.orchestrator.claim.id()))
    );
    assert_eq!(plan.how, How::Native);
    assert!(plan.why.contains(" at "), "{}", plan.why);

    first.launches(job).await;
    assert_eq!(run(job).await.state, State::Queued);
    let (_, reason) = first.orchestrator.glance.waiting(job).unwrap();
    assert!(reason.starts_with("it waits for its turn at "), "{reason}");
    second.launches(job).await;
    assert_eq!(second.orchestrator.glance.waiting(job), None);
    assert_eq!(run(job).await.owner, Some(second.orchestrator.claim.id()));
    assert!(second.place.sandboxes.lock().unwrap().contains_key(&job));
    assert!(first.place.sandboxes.lock().unwrap().is_empty());

    // The next one has to do without that host.
    let next = first.takes_in(foreign()).await;
    assert_eq!(run(next).await.plan.host, Some(second.orchestrator.claim.id()));
    first.finds_the_others_gone().await;
    first.looks_at(&[]).await;
    first.launches(next).await;
    let run = run(next).await;
    assert_eq!(
        (run.plan.how, run.owner),
        (How::Emulated, Some(first.orchestrator.claim.id()))
    );
}

#[tokio::test]
async fn an_agent_is_alive_whichever_server_it_calls() {
    let site = Site::new().await;
    let node = Place::shared(None, true);
    let watch = || WatchSettings {
        heartbeat: Period::seconds(1),
        silence: Period::seconds(1),
        interruptions: 1,
        ..WatchSettings::default()
    };
    let (owner, other) = (
        site.server_of(Arch::host(), watch(), &node),
        site.server_of(Arch::host(), watch(), &node),
    );
    let job = site.launched(&owner).await;
    let token = owner.place.facts(job).token;
    let log = |n: u64| {
        let what = What::Log {
            stream: Stream::Stdout,
            text: format!("another line {}", "x".repeat(usize::try_from(n).unwrap())),
        };
        let events = vec![Event {
            time: jiff::Timestamp::now(),
            what,
        }];
        Call::PostEvents(EventBatch { first: n, events })
    };
    for n in 0..4 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        other.orchestrator.desk.answer(job, &token, log(n)).await.unwrap();
        owner.orchestrator.watch.pass().await.unwrap();
        assert!(!site.state(job).await.is_final(), "{n}");
    }
    // A sign of life is no progress.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    other.says_nothing(job, &token).await.unwrap();
    owner.orchestrator.watch.pass().await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::Silent);
}

#[tokio::test]
async fn a_line_is_passed_on_to_the_server_that_has_the_port() {
    let mut site = Site::new().await;
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    site.peer_url = Some(format!("http://{}", api.local_addr().unwrap()));
    let node = Place::shared(None, true);
    let (owner, other) = (
        site.server_of(Arch::host(), WatchSettings::default(), &node),
        site.server_of(Arch::host(), WatchSettings::default(), &node),
    );
    let routes = crate::api::agent::router(owner.orchestrator.desk.clone());
    tokio::spawn(async move { axum::serve(api, routes).await });
    let job = site.launched(&owner).await;
    let token = owner.place.facts(job).token;
    let shell = Shell::new(ShellWish {
        keys: String::new(),
        jail: false,
        when: ShellTime::Customize,
    });
    let shelled = owner.orchestrator.jobs.change(job, |run, _| {
        run.shell = Some(shell.clone());
        Ok(())
    });
    shelled.await.unwrap().unwrap().unwrap();
    let users = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = users.local_addr().unwrap().port();
    owner.orchestrator.shells.shells.serve(job, port, users);

    // Before the other one knows the owner, and to a third one, the line is closed.
    for (passed_on, lives) in [(false, false), (true, true)] {
        if lives {
            other.lives().await;
        }
        let (mut agent, line) = tokio::io::duplex(64);
        if passed_on {
            other
                .orchestrator
                .desk
                .lines
                .pass_on(ServerId::new(), job, &token, Box::new(line))
                .await;
        } else {
            other
                .orchestrator
                .desk
                .take_line(job, &token, Box::new(line), false)
                .await;
        }
        assert_eq!(agent.read(&mut [0]).await.unwrap(), 0);
    }
    owner.lives().await;
    other.lives().await;
    let (mut agent, line) = tokio::io::duplex(64);
    let calls = other.orchestrator.desk.clone();
    let passing = tokio::spawn(async move { calls.take_line(job, &token, Box::new(line), false).await });
    let mut user = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    user.write_all(b"hello").await.unwrap();
    let mut said = [0; 6];
    agent.read_exact(&mut said).await.unwrap();
    assert_eq!((said[0], &said[1..]), (GO, &b"hello"[..]));
    agent.write_all(b"welcome").await.unwrap();
    let mut answer = [0; 7];
    user.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"welcome");
    drop((agent, user));
    passing.await.unwrap();
}

/// Opens the shell of a job, as its agent does.
async fn opens_shell(server: &Server, job: JobId) {
    let shell = Shell::new(ShellWish {
        keys: String::new(),
        jail: false,
        when: ShellTime::Customize,
    });
    let opened = server.orchestrator.jobs.change(job, |run, now| {
        let mut shell = shell.clone();
        shell.open("ssh-ed25519 AAAA", now, now);
        run.shell = Some(shell);
        Ok(())
    });
    opened.await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn users_are_told_the_way_to_a_shell_that_its_place_has_made() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let job = site.launched(&server).await;
    opens_shell(&server, job).await;
    let told = async || {
        let shell = site.store.get_run(job).await.unwrap().unwrap().run.shell.unwrap();
        let text = |at: Address| format!("{}:{}", at.host, at.port);
        (text(shell.at.unwrap()), shell.inside.map(text))
    };
    let at = |host: &str| Address {
        host: host.to_owned(),
        port: 22,
    };
    let asked = || server.place.asked_for_way.lock().unwrap().len();
    let asks_again = || server.orchestrator.shells.shells.forget_when_asked(job);

    // A place that fails costs nobody the port, and is asked again after a while.
    *server.place.way.lock().unwrap() = Err(Failure::new(Code::ClusterGone, "away"));
    for _ in 0..3 {
        server.orchestrator.shells.pass().await.unwrap();
    }
    let port = server.orchestrator.shells.shells.port_of(job).unwrap();
    assert_eq!((told().await, asked()), ((format!("localhost:{port}"), None), 1));
    TcpStream::connect(("127.0.0.1", port)).await.unwrap();

    // So is one that has no address from outside yet.
    *server.place.way.lock().unwrap() = Ok(ShellWay::Elsewhere {
        outside: None,
        inside: at("shell.jobs.svc"),
    });
    asks_again();
    server.orchestrator.shells.pass().await.unwrap();
    let inside = Some("shell.jobs.svc:22".to_owned());
    assert_eq!(told().await, (format!("localhost:{port}"), inside.clone()));
    *server.place.way.lock().unwrap() = Ok(ShellWay::Elsewhere {
        outside: Some(at("198.51.100.4")),
        inside: at("shell.jobs.svc"),
    });
    asks_again();
    for _ in 0..3 {
        server.orchestrator.shells.pass().await.unwrap();
    }
    assert_eq!((told().await, asked()), (("198.51.100.4:22".to_owned(), inside), 3));

    // The next process listens where it can, and leads the way there.
    let next = site.server(WatchSettings::default());
    *next.place.way.lock().unwrap() = server.place.way.lock().unwrap().clone();
    let stored = site.store.get_run(job).await.unwrap().unwrap();
    let before = told().await;
    next.orchestrator.shells.open_port(&stored).await.unwrap();
    let other = next.orchestrator.shells.shells.port_of(job).unwrap();
    assert_eq!(*next.place.asked_for_way.lock().unwrap(), [other]);
    assert_eq!(told().await, before);

    // One that shall have no such way says its own port.
    let last = site.server(WatchSettings::default());
    last.orchestrator.shells.open_port(&stored).await.unwrap();
    let own = last.orchestrator.shells.shells.port_of(job).unwrap();
    assert_eq!(told().await, (format!("localhost:{own}"), None));
}

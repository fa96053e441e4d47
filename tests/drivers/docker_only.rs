//! Tests of what only an engine can do to a server: disappear, return, lack features, be shared, be remote.

use std::{sync::Arc, time::Duration};

use kiln::{
    config::DEFAULT_SOCKET,
    remote_nodes::RemoteNodeSettings,
    sandbox::{
        Driver, Network, Reach, SandboxState, Scratch,
        docker::{DockerDriver, EngineAddress},
    },
};
use kiln_records::{arch::Arch, run::Kernel};

use crate::drivers::{
    docker::{Containers, ContainersOf, installation, settings},
    place::{Kind, Place, own_address},
    podman::Podman,
};
use crate::support::{
    Kiln,
    engine::{Engine, KNOWN_NAME},
    eventually_async,
    sshd::Sshd,
};

#[test]
async fn an_engine_that_crashes_and_comes_back() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    // An engine of its own, since the test takes it away.
    let engine = Engine::start();
    let driver = DockerDriver::new(settings(&place.kiln, EngineAddress::Socket(engine.socket())));
    let spec = place.spec("ring ready; ring held-for-ever");
    driver.start(&spec).await.unwrap();
    place.wait_for(spec.job, "ready").await;

    engine.take_down();
    for code in [
        driver.look(spec.job).await.unwrap_err().code,
        driver.list().await.unwrap_err().code,
        driver.destroy(spec.job, Scratch::Remove).await.unwrap_err().code,
        driver.start(&place.spec("")).await.unwrap_err().code,
    ] {
        assert_eq!(code.name(), "engine_gone");
    }
    engine.bring_up();
    // When the engine returns, it ends its remaining containers. That is the place's fault, not the recipe's, so the
    // job is retried.
    eventually_async(|| async { driver.look(spec.job).await.unwrap() != SandboxState::Running }).await;
    let SandboxState::Ended(evidence) = driver.look(spec.job).await.unwrap() else {
        panic!("it is gone");
    };
    assert_eq!(evidence.failure.unwrap().code.name(), "sandbox_lost");
    driver.destroy(spec.job, Scratch::Remove).await.unwrap();
    assert_eq!(driver.list().await.unwrap(), []);
    // And goes on as if nothing had been.
    let spec = place.spec("exit 4");
    driver.start(&spec).await.unwrap();
    eventually_async(|| async { driver.look(spec.job).await.unwrap() != SandboxState::Running }).await;
    driver.destroy(spec.job, Scratch::Remove).await.unwrap();
}

#[test]
async fn what_the_engine_has_not() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    let nowhere = EngineAddress::Socket("/nowhere/engine.sock".into());
    let driver = DockerDriver::new(settings(&place.kiln, nowhere));
    let failure = driver.start(&place.spec("")).await.unwrap_err();
    assert_eq!(failure.code.name(), "engine_gone");
    assert!(
        failure.detail.contains("/nowhere/engine.sock") && failure.hint.is_some(),
        "{failure:?}"
    );
    assert_eq!(driver.shared_kernel().await.unwrap_err().code.name(), "engine_gone");

    // A virtual machine needs a runtime that makes some, by name or not, and the server's address.
    let mut spec = place.spec("");
    spec.kernel = Kernel::Own;
    assert_eq!(place.driver().start(&spec).await.unwrap_err().code.name(), "no_vm");
    let engine = || EngineAddress::Socket(Engine::shared().socket());
    let mut with_vms = settings(&place.kiln, engine());
    with_vms.vm_runtime = Some("kata-that-is-not-there".to_owned());
    let driver = DockerDriver::new(with_vms);
    let failure = driver.start(&spec).await.unwrap_err();
    assert_eq!(failure.code.name(), "runtime_unknown", "{failure:?}");
    assert_eq!(driver.own_kernel().await.unwrap_err().code.name(), "runtime_unknown");
    // Nothing is left of the failed start.
    driver.destroy(spec.job, Scratch::Remove).await.unwrap();
    assert_eq!(driver.list().await.unwrap(), []);

    // A runtime that calls itself one, and gives the host's own kernel.
    let mut pretends = settings(&place.kiln, engine());
    pretends.vm_runtime = Some("pretends".to_owned());
    let driver = DockerDriver::new(pretends);
    assert_eq!(driver.start(&spec).await.unwrap_err().code.name(), "no_server_url");
    let failure = driver.own_kernel().await.unwrap_err();
    assert_eq!(failure.code.name(), "no_vm", "{failure:?}");
    assert!(failure.detail.contains("own kernel"), "{failure:?}");
}

#[test]
async fn what_the_engine_has_is_tried_out() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    assert_eq!(place.driver().arch().await.unwrap(), Arch::host());
    place.driver().shared_kernel().await.unwrap();
    assert_eq!(place.driver().own_kernel().await.unwrap_err().code.name(), "no_vm");
    // The list of sandboxes shows nothing of that.
    assert_eq!(place.driver().list().await.unwrap(), []);
}

#[test]
async fn who_stops_a_container_stops_the_agent_first() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    let script = "trap 'ring told; exit 7' TERM; ring ready; while true; do sleep 0.1; done";
    let spec = place.spec(script);
    place.driver().start(&spec).await.unwrap();
    place.wait_for(spec.job, "ready").await;
    let name = format!("kiln-{}-{}", installation(&place.kiln), spec.job);
    // The bell must be answered meanwhile.
    let stopped = tokio::task::spawn_blocking(move || Engine::shared().docker(&["stop", &name]));
    place.wait_for(spec.job, "told").await;
    stopped.await.unwrap();
    let SandboxState::Ended(evidence) = place.driver().look(spec.job).await.unwrap() else {
        panic!("it goes on");
    };
    assert_eq!(evidence.exit_code, 7, "{evidence:?}");
    assert_eq!(evidence.failure.unwrap().code.name(), "sandbox_lost");
    place.destroy(spec.job).await;

    // One that does not listen is gone all the same, with a report, before the engine would kill its first process.
    let spec = place.spec("trap '' TERM; ring ready; while true; do sleep 0.1; done");
    place.driver().start(&spec).await.unwrap();
    place.wait_for(spec.job, "ready").await;
    let name = format!("kiln-{}-{}", installation(&place.kiln), spec.job);
    Engine::shared().docker(&["stop", &name]);
    let SandboxState::Ended(evidence) = place.driver().look(spec.job).await.unwrap() else {
        panic!("it goes on");
    };
    assert!(evidence.failure.unwrap().detail.contains("engine ended"));
    place.destroy(spec.job).await;
}

#[test]
async fn two_installations_on_one_engine_leave_each_others_sandboxes_alone() {
    needs!(Containers::lack());
    let (one, other) = (Place::<Containers>::new().await, Place::<Containers>::new().await);
    let job = one.start("").await;
    assert_eq!(other.driver().list().await.unwrap(), []);
    assert_eq!(other.driver().look(job).await.unwrap(), SandboxState::Absent);
    other.driver().destroy(job, Scratch::Remove).await.unwrap();
    assert_eq!(one.driver().look(job).await.unwrap(), SandboxState::Running);
    one.destroy(job).await;
}

#[test]
async fn who_may_ask_the_engine_learns_no_secret() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    let job = place.start("").await;
    let name = format!("kiln-{}-{job}", installation(&place.kiln));
    let seen = Engine::shared().docker(&["inspect", &name]);
    assert!(seen.contains(&job.to_string()), "the look was a blind one");
    assert!(!seen.contains("secret-of-the-job"));
    eventually_async(|| async { place.driver().usage(job).await.unwrap().memory_peak > 0 }).await;
    let logs = Engine::shared().docker(&["logs", &name]);
    assert!(logs.contains("usage") && !logs.contains("secret-of-the-job"), "{logs}");
    place.destroy(job).await;
}

/// Says of each address whether something there answers, or refuses, `reached`, or the way to it is none, `closed`.
const REACH: &str = r#"
reach() {
    python3 -c '
import errno, socket, sys
peer = socket.socket(); peer.settimeout(3)
code = peer.connect_ex((sys.argv[1], int(sys.argv[2])))
print("closed" if code in (errno.EACCES, errno.ENETUNREACH, errno.EHOSTUNREACH) else "reached", file=sys.stderr)
' "$@"
}
"#;

#[test]
async fn networks_that_are_denied_stay_out_of_reach_whatever_root_does() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    let neighbour = place
        .start("python3 -m http.server 8000 > /dev/null 2>&1 & sleep 1")
        .await;
    let name = format!("kiln-{}-{neighbour}", installation(&place.kiln));
    let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{.Gateway}}{{end}}";
    let addresses = Engine::shared().docker(&["inspect", "--format", format, &name]);
    let (neighbours, gateway) = addresses.trim().split_once(' ').unwrap();
    let own = own_address().unwrap();
    let script = format!(
        "{REACH}
        reach {neighbours} 8000
        reach {gateway} 22
        reach 169.254.169.254 80
        reach {own} 9
        ip route del prohibit 169.254.169.254 2> /dev/null && echo 'took it away' >&2
        ip link set eth0 down 2> /dev/null && echo 'took it down' >&2
        unshare --net true || echo 'no net' >&2
        python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)' 2> /dev/null && echo raw >&2
        reach 169.254.169.254 80"
    );
    let mut spec = place.spec(&script);
    spec.network = Network::Isolated(Reach {
        allow: Vec::new(),
        deny: vec!["169.254.0.0/16".parse().unwrap()],
    });
    let evidence = place.run(&spec).await;
    assert_eq!(
        evidence.last_words,
        ["closed", "closed", "closed", "reached", "closed"],
        "{evidence:?}"
    );
    place.driver().destroy(spec.job, Scratch::Remove).await.unwrap();

    // Only allowed networks, and names.
    let mut spec = place.spec(&format!(
        "{REACH}
        reach {own} 9
        reach 192.0.2.1 80
        python3 -c 'import socket; socket.gethostbyname(\"localhost\")' && ring names"
    ));
    spec.network = Network::Isolated(Reach {
        allow: vec![own.into()],
        deny: Vec::new(),
    });
    assert_eq!(place.run(&spec).await.last_words, ["reached", "closed"]);
    place.driver().destroy(spec.job, Scratch::Remove).await.unwrap();
    place.destroy(neighbour).await;
}

#[test]
async fn nothing_of_the_engines_host_is_within_reach() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    let outside = place.kiln.data().join("outside");
    fs_err::write(&outside, "untouched").unwrap();
    let script = format!(
        "says() {{ name=$1; shift; if \"$@\" > /dev/null 2>&1; then echo $name >&2; fi; }}
        says host-file test -e {outside}
        says volume test -e /kiln/volume
        says docker test -e /var/run/docker.sock
        says sysrq sh -c 'echo h > /proc/sysrq-trigger'
        says core_pattern sh -c 'echo x > /proc/sys/kernel/core_pattern'
        says host-binfmt sh -c 'echo 1 > /proc/sys/fs/binfmt_misc/status'
        says kmsg dmesg
        says module sh -c 'modprobe dummy || insmod /nowhere.ko'
        says mknod mknod /scratch/disk b 254 0
        says mount-disk mount /dev/vda /mnt
        says sysfs mount -t sysfs none /mnt
        says debugfs mount -t debugfs none /mnt
        says cgroup mount -t cgroup none /mnt
        says cgroup2 sh -c 'mount -t cgroup2 none /mnt && {{ mkdir /mnt/new || echo 1 > /mnt/cgroup.kill; }}'
        says time date -s @0
        says ptrace-entrance sh -c 'ls /proc/1/fd'
        says nsenter nsenter --target 1 --net true
        says keyring keyctl show
        says write-doors touch /run/kiln/x
        says write-agent sh -c 'echo x > /run/agent'
        says open-by-handle python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(304, 0, 0, 0) != -1 or 1)'
        ls -A /sys >&2
        echo $(ls -d /proc/[0-9]* | wc -l) | grep -qx '[1-9]' && echo alone >&2
        awk '{{ print $1, $2, $3 }}' /proc/self/uid_map >&2
        grep -c NoNewPrivs:.1 /proc/self/status >&2
        grep Seccomp: /proc/self/status | tr -d '\\t' >&2",
        outside = outside.display()
    );
    let spec = place.spec(&script);
    let evidence = place.run(&spec).await;
    assert_eq!(
        evidence.last_words,
        [
            "alone",
            "0 1879048192 65536",
            "65536 2147483648 2147483646",
            "1",
            "Seccomp:2"
        ],
        "{evidence:?}"
    );
    assert_eq!(fs_err::read_to_string(outside).unwrap(), "untouched");
    place.destroy(spec.job).await;
}

/// A driver that reaches an engine of the tests through `sshd`.
fn through(sshd: &Sshd, engine: &Engine, kiln: &Kiln, known: &str) -> DockerDriver {
    sshd.configure_client(known);
    let login = RemoteNodeSettings {
        user: Sshd::user(),
        identity_file: Some(sshd.at("identity").into()),
        known_hosts: Some(sshd.at("known_hosts").into()),
        ssh_config: Some(sshd.at("ssh_config").into()),
        connect_timeout: Duration::from_secs(10),
    };
    DockerDriver::new(settings(
        kiln,
        EngineAddress::Ssh {
            host: "here".to_owned(),
            socket: engine.socket(),
            login,
        },
    ))
}

#[test]
async fn an_engine_on_another_host_through_ssh() {
    needs!(Containers::lack(), Sshd::lack());
    assert_eq!(DEFAULT_SOCKET, "/var/run/docker.sock");
    let (sshd, place) = (Sshd::start(), Place::<Containers>::new().await);
    on_another_host(&sshd, Engine::shared(), &place).await;
    for entry in fs_err::read_dir("/run").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with(&format!("kiln-doors-{}", installation(&place.kiln))) {
            fs_err::remove_dir_all(entry.path()).unwrap();
        }
    }
}

#[test]
async fn a_podman_on_another_host_through_ssh() {
    needs!(ContainersOf::<Podman>::lack(), Sshd::lack());
    let sshd = Sshd::start_beside(Engine::podman().podman_pid());
    let place = Place::<ContainersOf<Podman>>::new().await;
    on_another_host(&sshd, Engine::podman(), &place).await;
}

async fn on_another_host<K: Kind>(sshd: &Sshd, engine: &Engine, place: &Place<K>) {
    let stranger = through(sshd, engine, &place.kiln, "other");
    let failure = stranger.list().await.unwrap_err();
    assert_eq!(failure.code.name(), "engine_gone", "{failure:?}");
    assert!(
        !sshd.read("log").contains("Accepted publickey"),
        "it logged in to a host that it does not know"
    );

    let driver = through(sshd, engine, &place.kiln, "host");
    // Its doors come along.
    let spec = place.spec("ring ready; while ! ring held-end; do sleep 0.1; done; exit 5");
    driver.start(&spec).await.unwrap();
    place.wait_for(spec.job, "held-end").await;
    // A connection that breaks is made again, and its doors; the sandbox does not mind. Another driver is as good.
    sshd.cut_connections();
    eventually_async(|| async { driver.look(spec.job).await == Ok(SandboxState::Running) }).await;
    place.bell.let_go(&spec.job.to_string(), "held-end");
    eventually_async(|| async { matches!(driver.look(spec.job).await, Ok(SandboxState::Ended(_))) }).await;
    let SandboxState::Ended(evidence) = driver.look(spec.job).await.unwrap() else {
        panic!("it is gone");
    };
    assert_eq!(evidence.exit_code, 5, "{evidence:?}");
    driver.destroy(spec.job, Scratch::Remove).await.unwrap();
}

#[test]
async fn a_machine_asks_the_name_servers_of_the_engines_host() {
    needs!(Containers::lack());
    let own = own_address().unwrap();
    let place = Place::<Containers>::new().await;
    // Its containers have no kernel of their own, but Kiln's side of one that has.
    let mut settings = settings(&place.kiln, EngineAddress::Socket(Engine::shared().socket()));
    settings.vm_runtime = Some("pretends".to_owned());
    let driver = DockerDriver::new(settings);
    let (name, address) = KNOWN_NAME;
    let mut spec = place.spec(&format!(
        "grep nameserver /etc/resolv.conf >&2
        python3 -c 'import socket; print(socket.gethostbyname(\"{name}\"))' >&2"
    ));
    spec.kernel = Kernel::Own;
    spec.server_url = Some(format!("http://{own}:9000"));
    driver.start(&spec).await.unwrap();
    assert_eq!(
        place.end_of(spec.job).await.last_words,
        ["nameserver 10.0.2.100", address],
        "{:?}",
        driver.look(spec.job).await
    );
    place.destroy(spec.job).await;
}

#[test]
async fn a_trial_ends_with_its_server() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    let mut settings = settings(&place.kiln, EngineAddress::Socket(Engine::shared().socket()));
    settings.vm_runtime = Some("slow".to_owned());
    let driver = Arc::new(DockerDriver::new(settings));
    let mark = format!("label=kiln.trial={}", installation(&place.kiln));
    let trials = || Engine::shared().docker(&["ps", "--all", "--filter", &mark, "--format", "{{.Names}}"]);
    let trying = tokio::spawn({
        let driver = Arc::clone(&driver);
        async move { driver.own_kernel().await }
    });
    eventually_async(async || !trials().is_empty()).await;
    trying.abort();
    let _ = trying.await;
    assert!(!trials().is_empty(), "it was over before");
    driver.close().await.unwrap();
    assert_eq!(trials(), "");
}

#[test]
async fn what_an_interrupted_trial_left_is_swept_whoever_left_it() {
    needs!(Containers::lack());
    let place = Place::<Containers>::new().await;
    // An engine of its own: no other test's trial is swept.
    let engine = Engine::start();
    let driver = DockerDriver::new(settings(&place.kiln, EngineAddress::Socket(engine.socket())));
    driver.shared_kernel().await.unwrap();
    let image = engine.docker(&["images", "--quiet", "kiln-probe"]);
    engine.docker(&[
        "create",
        "--name",
        "left",
        "--label",
        "kiln.trial=another",
        image.trim(),
        "/entrance",
    ]);
    let left = || engine.docker(&["ps", "--all", "--format", "{{.Names}}"]);
    driver.sweep_trials(Duration::from_mins(10)).await.unwrap();
    assert_eq!(left().trim(), "left", "it may still run");
    // It is as old as that some time later.
    eventually_async(async || {
        driver.sweep_trials(Duration::from_secs(1)).await.unwrap();
        left().trim().is_empty()
    })
    .await;
}

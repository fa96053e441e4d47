//! The tests of every driver.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use kiln::sandbox::{DiskLimit, Network, Reach, SandboxSpec, SandboxState, Scratch};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::drivers::place::{Kind, MIB, Place, own_address};
use crate::support::{self, Kiln, eventually_async};

/// Makes a test of each case for a kind of place.
macro_rules! conformance {
    ($kind:ty) => {
        $crate::drivers::cases::conformance!($kind:
            how_a_sandbox_ended_is_known,
            a_sandbox_outlives_the_process_that_started_it,
            a_sandbox_is_destroyed_while_it_runs,
            recipes_cannot_look_into_the_agent,
            the_hosts_loopback_is_out_of_reach_and_the_rest_is_not,
            disk_space_of_a_fixed_size_is_full_when_it_is,
            disk_space_that_was_kept_is_gone_on_with,
            disk_space_without_a_size_is_measured,
            more_processes_than_allowed,
            more_memory_than_allowed,
            names_are_resolved,
            what_the_place_has
        );

        /// Starts a sandbox, as a server does, says that and waits to be killed. Run by a test, in a process of its own.
        #[test]
        #[ignore = "a process that another test starts and kills"]
        async fn a_starter() {
            $crate::drivers::cases::a_starter::<$kind>().await;
        }
    };
    ($kind:ty: $($case:ident),+) => {
        $(
            #[test]
            async fn $case() {
                $crate::needs!(<$kind as $crate::drivers::place::Kind>::lack());
                $crate::drivers::cases::$case::<$kind>().await;
            }
        )+
    };
}
pub(crate) use conformance;

pub async fn how_a_sandbox_ended_is_known<K: Kind>() {
    let place = Place::<K>::new().await;
    let spec = place.spec(
        "cat >&2; echo out; dd if=/dev/zero of=/scratch/x bs=1M count=50 2>/dev/null; echo last words >&2; exit 7",
    );
    let evidence = place.run(&spec).await;
    assert_eq!(evidence.exit_code, 7, "{evidence:?}");
    assert_eq!((evidence.oom_kills, &evidence.failure), (0, &None), "{evidence:?}");
    // The program read its facts, and its standard output was discarded.
    let facts = serde_json::to_string(&place.kind.facts_inside(&spec)).unwrap();
    assert_eq!(evidence.last_words, [facts, "last words".to_owned()]);
    let usage = place.driver().usage(spec.job).await.unwrap();
    assert!(
        usage.memory_peak > 40 * MIB && usage.cpu > Duration::from_millis(5),
        "{usage:?}"
    );
    assert_eq!(place.driver().list().await.unwrap(), [(spec.job, false)]);
    place.destroy(spec.job).await;
    // Destroying can be repeated.
    place.destroy(spec.job).await;
}

/// The other process of [`a_sandbox_outlives_the_process_that_started_it`].
#[expect(clippy::print_stdout, reason = "the other test waits for it")]
pub async fn a_starter<K: Kind>() {
    let of = |name: &str| std::env::var(name).unwrap();
    // The directory is the other test's, which removes it.
    let place = Place::<K>::at(Kiln::at(Path::new(&of("DIR")))).await;
    let (doors, agent) = (of("DOORS"), of("AGENT"));
    let (job, port) = (of("JOB").parse().unwrap(), of("PORT").parse().unwrap());
    let spec = place.spec_of(job, Path::new(&doors), Path::new(&agent), port);
    place.driver().start(&spec).await.unwrap();
    println!("started {job}");
    // It is killed before that.
    std::thread::sleep(support::PATIENCE);
}

pub async fn a_sandbox_outlives_the_process_that_started_it<K: Kind>() {
    let place = Place::<K>::new().await;
    let spec = place.spec("ring ready; ring held-end; exit 9");
    let job = spec.job;
    let mut starter = support::Started::new({
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            // Killed, it would be listed as a test that did not end.
            .env_remove("KILN_TEST_TIMES")
            .args(["--ignored", "--exact", "--nocapture"])
            .arg(format!("drivers::{}::a_starter", K::NAME))
            .env("DIR", place.kiln.data().parent().unwrap())
            .env("DOORS", &spec.doors_dir)
            .env("AGENT", &spec.agent)
            .env("JOB", job.to_string())
            .env("PORT", place.bell.port.to_string())
            .envs(place.kind.environment())
            .stdin(Stdio::null());
        command
    });
    starter.wait_for("started ");
    place.wait_for(job, "ready").await;
    // As a terminal does when its window is closed, and then for good.
    kill(Pid::from_raw(-starter.pid().as_raw()), Signal::SIGHUP).unwrap();
    kill(Pid::from_raw(-starter.pid().as_raw()), Signal::SIGKILL).unwrap();
    starter.end();

    // A node may tell its cluster later than the sandbox rings.
    eventually_async(|| async { place.driver().look(job).await.unwrap() == SandboxState::Running }).await;
    assert_eq!(place.driver().list().await.unwrap(), [(job, false)]);
    let second = place.driver().start(&SandboxSpec { job, ..place.spec("") }).await;
    assert_eq!(second.unwrap_err().code.name(), "sandbox_exists");
    // The doors are those of a directory, not of the process that started it.
    place.wait_for(job, "held-end").await;
    place.bell.let_go(&job.to_string(), "held-end");
    assert_eq!(place.end_of(job).await.exit_code, 9);
    assert_eq!(place.end_of(job).await.exit_code, 9);
    place.destroy(job).await;
}

pub async fn a_sandbox_is_destroyed_while_it_runs<K: Kind>() {
    let place = Place::<K>::new().await;
    // A process that ignores signals, and never ends by itself.
    let job = place
        .start("trap '' TERM INT HUP; (while :; do sleep 600; done &)")
        .await;
    place.destroy(job).await;
}

pub async fn recipes_cannot_look_into_the_agent<K: Kind>() {
    let place = Place::<K>::new().await;
    needs!(place.kind.no_shield());
    let script = r"
        tries() { if cat $1 > /dev/null 2>&1; then echo $1 >&2; fi; }
        for pid in 1 $PPID; do
            for file in environ mem maps auxv fd/0 fd/1 fd/2 cwd/etc/hostname root/etc/hostname; do tries /proc/$pid/$file; done
            ls /proc/$pid/fd > /dev/null 2>&1 && echo /proc/$pid/fd >&2
        done
        tries /run/agent
        chmod 755 /run/agent 2> /dev/null && echo chmod >&2
        # Of itself it sees all, so that the look is no blind one.
        tries /proc/$$/environ
        readlink /proc/$$/cwd >&2
        id -u >&2";
    let spec = place.spec(script);
    let evidence = place.run(&spec).await;
    let own = evidence
        .last_words
        .iter()
        .filter(|line| line.ends_with("/environ"))
        .count();
    assert_eq!(own, 1, "{evidence:?}");
    assert_eq!(evidence.last_words[1..], ["/", "0"], "{evidence:?}");
    place.destroy(spec.job).await;
}

/// Tries to connect to `$1`, port `$2`; prints the answer, or `refused`.
const CONNECT: &str = r#"
connect() {
    python3 -c '
import socket, sys
try:
    peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
    print(peer.recv(100).decode(), file=sys.stderr)
except OSError as error:
    print("refused", file=sys.stderr)
' "$@"
}
"#;

pub async fn the_hosts_loopback_is_out_of_reach_and_the_rest_is_not<K: Kind>() {
    needs!(no_address());
    let place = Place::<K>::new().await;
    // A service on all addresses is reachable where other machines would reach it.
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::Write;
        for mut socket in listener.incoming().flatten() {
            let _ = socket.write_all(b"hello from the host");
        }
    });
    let address = own_address().unwrap();
    let script = format!(
        "{CONNECT}
        connect 127.0.0.1 {port}
        connect localhost {port}
        connect 10.0.2.2 {port}
        connect {address} {port}
        grep nameserver /etc/resolv.conf >&2
        ls /sys/class/net /proc/net/tcp > /dev/null 2>&1
        grep -c : /proc/net/dev >&2
        ring through-the-door && echo rang >&2"
    );
    let spec = place.spec(&script);
    let evidence = place.run(&spec).await;
    let resolver = format!("nameserver {}", place.kind.resolver());
    assert_eq!(
        evidence.last_words,
        [
            "refused",
            "refused",
            "refused",
            "hello from the host",
            &resolver,
            "2",
            "rang"
        ],
        "{evidence:?}"
    );
    assert!(place.bell.has_heard(&spec.job.to_string(), "through-the-door"));
    place.destroy(spec.job).await;

    // A sandbox on the host's network has all of it.
    needs!(place.kind.no_host_network());
    let mut spec = place.spec(&format!("{CONNECT}\nconnect 127.0.0.1 {port}"));
    spec.network = Network::Host;
    assert_eq!(place.run(&spec).await.last_words, ["hello from the host"]);
    place.destroy(spec.job).await;
}

/// Prints the address of a name.
fn resolve(name: &str) -> String {
    format!("python3 -c 'import socket; print(socket.gethostbyname(\"{name}\"))' >&2")
}

pub async fn names_are_resolved<K: Kind>() {
    let place = Place::<K>::new().await;
    let Some((name, address)) = place.kind.known_name() else {
        kiln_harness::skip("the tests do not know what the host's own resolver knows");
    };
    let spec = place.spec(&resolve(name));
    let evidence = place.run(&spec).await;
    assert_eq!(evidence.last_words, [address], "{evidence:?}");
    place.destroy(spec.job).await;

    // With a list of what may be reached, too.
    let mut spec = place.spec(&resolve(name));
    spec.network = Network::Isolated(Reach {
        allow: vec!["198.51.100.0/24".parse().unwrap()],
        deny: Vec::new(),
    });
    let evidence = place.run(&spec).await;
    assert_eq!(evidence.last_words, [address], "{evidence:?}");
    place.destroy(spec.job).await;
}

fn no_address() -> Option<String> {
    own_address()
        .is_none()
        .then(|| "this machine has no address but its loopback".to_owned())
}

pub async fn disk_space_of_a_fixed_size_is_full_when_it_is<K: Kind>() {
    let place = Place::<K>::new().await;
    needs!(place.kind.no_sized_disk());
    let script = "cd /scratch
        dd if=/dev/zero of=large bs=1M count=60 2>/dev/null && ring fits
        dd if=/dev/zero of=larger bs=1M count=60 2>&1 | grep -q 'No space' && ring full
        head -c 4M /dev/zero 2>/dev/null > /usr/changed || ring toolbox-full
        rm large larger
        i=0; while { true > small$i; } 2>/dev/null; do i=$((i+1)); done
        [ $i -gt 800 ] && [ $i -le 1100 ] && ring inodes || ring $i-inodes
        touch one-more 2>&1 | grep -q 'No space' && ring no-inodes
        sleep 600";
    let mut spec = place.spec(script);
    spec.limits.disk = Some(DiskLimit {
        bytes: 100 * MIB,
        inodes: 1000,
    });
    place.driver().start(&spec).await.unwrap();
    let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap();
    for word in ["fits", "full", "toolbox-full", "inodes", "no-inodes"] {
        place.wait_for(spec.job, word).await;
    }
    assert!(!mounts.contains(&spec.job.to_string()), "it shows on the host");
    // Its usage is measured while it runs, and deleted files free space on the host.
    eventually_async(|| async { place.driver().usage(spec.job).await.unwrap().inodes > 800 }).await;
    let usage = place.driver().usage(spec.job).await.unwrap();
    assert!(usage.disk <= 104 * MIB, "{usage:?}");
    place.driver().destroy(spec.job, Scratch::Keep).await.unwrap();
    let SandboxState::Absent = place.driver().look(spec.job).await.unwrap() else {
        panic!("it is there");
    };
    assert_eq!(place.driver().list().await.unwrap(), [(spec.job, true)]);
    place.destroy(spec.job).await;
}

pub async fn disk_space_that_was_kept_is_gone_on_with<K: Kind>() {
    let place = Place::<K>::new().await;
    let sized = Some(DiskLimit {
        bytes: 100 * MIB,
        inodes: 1000,
    });
    for disk in [None, sized] {
        let mut first =
            place.spec("echo first > /scratch/work; touch /usr/changed; mkdir /scratch/deep; kill -9 $PPID");
        first.limits.disk = disk;
        println!("{:?}", place.run(&first).await);
        place.driver().destroy(first.job, Scratch::Keep).await.unwrap();
        assert_eq!(place.driver().list().await.unwrap(), [(first.job, true)]);
        assert_eq!(place.driver().look(first.job).await.unwrap(), SandboxState::Absent);

        let mut second =
            place.spec("cat /scratch/work >&2; [ ! -e /usr/changed ] && rmdir /scratch/deep && echo fresh >&2");
        second.limits.disk = disk;
        second.scratch_from = Some(first.job);
        let evidence = place.run(&second).await;
        assert_eq!(evidence.last_words, ["first", "fresh"], "{evidence:?}");
        // A retry in place.
        place.driver().destroy(second.job, Scratch::Keep).await.unwrap();
        second.scratch_from = Some(second.job);
        place.driver().destroy(first.job, Scratch::Remove).await.unwrap();
        assert_eq!(place.driver().list().await.unwrap(), [(second.job, true)]);
        place.driver().start(&second).await.unwrap();
        place.end_of(second.job).await;
        place.destroy(second.job).await;

        second.scratch_from = Some(first.job);
        assert_eq!(
            place.driver().start(&second).await.unwrap_err().code.name(),
            "no_scratch"
        );
    }
    assert_eq!(place.driver().list().await.unwrap(), []);
}

pub async fn disk_space_without_a_size_is_measured<K: Kind>() {
    let place = Place::<K>::new().await;
    // A directory that another sandbox left stays one, whatever is asked for.
    let first = place.spec("dd if=/dev/zero of=/scratch/large bs=1M count=30 2>/dev/null");
    place.run(&first).await;
    place.driver().destroy(first.job, Scratch::Keep).await.unwrap();
    let mut second = place.spec("cd /scratch; dd if=/dev/urandom of=more bs=1M count=20 2>/dev/null; sync; sleep 600");
    second.scratch_from = Some(first.job);
    second.limits.disk = Some(DiskLimit {
        bytes: 10 * MIB,
        inodes: 1000,
    });
    place.driver().start(&second).await.unwrap();
    eventually_async(|| async { place.driver().usage(second.job).await.unwrap().disk > 48 * MIB }).await;
    let usage = place.driver().usage(second.job).await.unwrap();
    assert!(usage.disk < 60 * MIB && (2..40).contains(&usage.inodes), "{usage:?}");
    place.destroy(second.job).await;
}

pub async fn more_processes_than_allowed<K: Kind>() {
    needs!(support::not_root());
    let place = Place::<K>::new().await;
    let spec = place.spec("i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done; echo forked >&2");
    let evidence = place.run(&spec).await;
    assert!(!evidence.last_words.contains(&"forked".to_owned()), "{evidence:?}");
    place.destroy(spec.job).await;
}

pub async fn more_memory_than_allowed<K: Kind>() {
    needs!(support::not_root());
    let place = Place::<K>::new().await;
    let mut spec = place.spec(support::TAKES_ALL_MEMORY);
    spec.limits.memory = Some(100 * MIB);
    let evidence = place.run(&spec).await;
    assert!(evidence.oom_kills > 0, "{evidence:?}");
    let usage = place.driver().usage(spec.job).await.unwrap();
    assert!((90 * MIB..=100 * MIB).contains(&usage.memory_peak), "{usage:?}");
    place.destroy(spec.job).await;
}

pub async fn what_the_place_has<K: Kind>() {
    let place = Place::<K>::new().await;
    let capacity = place.driver().capacity().await.unwrap();
    assert!(capacity.cpus >= 1 && capacity.memory > 100 * MIB, "{capacity:?}");
    assert!(
        0 < capacity.disk_free && capacity.disk_free <= capacity.disk_total,
        "{capacity:?}"
    );
    assert!(capacity.inodes_free <= capacity.inodes_total, "{capacity:?}");
}

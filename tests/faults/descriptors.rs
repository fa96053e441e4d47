//! What connections that ask for nothing do to jobs and to users: nothing.

use std::{
    collections::VecDeque,
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use crate::faults::site::{Site, is_settled, rank};
use crate::support;

/// The server's limit of open files: far fewer than the connections of this test.
const FILES: usize = 512;

/// How many connections each address gets at a time.
const AT_ONCE: usize = 40;

/// How many such rounds are held. On a busy host the job takes longer than this process may have connections.
const HELD: usize = 40;

#[test(threads = 2)]
async fn silent_connections_take_no_descriptors_from_jobs_and_users() {
    needs!(support::no_namespaces());
    let site = Site::start_with_files(FILES).await;
    let recipe = site.small_recipe();
    let job = site.submit(&recipe).await;
    site.wait_until(&job, "running", |job| rank(job) >= 2).await;
    let agent = site.kiln.data().join("agents/doors").join(&job).join("agent.sock");
    assert!(agent.exists(), "{}", agent.display());
    let addresses = [site.address(), site.s3_address()];
    let (mut held, mut users) = (VecDeque::new(), 0);
    let ended = loop {
        let (open, of_agent) = tokio::task::block_in_place(|| silent(&addresses, &agent));
        held.push_back((open, of_agent));
        if held.len() > HELD {
            held.pop_front();
        }
        // A user who comes anew each time.
        let newcomer = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build();
        let answer = newcomer
            .unwrap()
            .get(format!("{}/kiln/v1/jobs/{job}", site.url))
            .timeout(support::PATIENCE);
        let answer = answer.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        users += 1;
        let progress = answer.json().await.unwrap();
        if is_settled(&progress) {
            break progress;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let files = fs_err::read_dir(format!("/proc/{}/fd", site.server_pid().unwrap())).unwrap();
    println!(
        "{users} answers; {} silent connections; {} files open in the end",
        held.len() * AT_ONCE * 3,
        files.count()
    );
    assert_eq!(ended["state"], "success", "{ended:#}");
    assert!(held.len() * AT_ONCE * 3 > FILES, "too few connections to show anything");
    drop(held);
    let ran = site.down(nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(!ran.stderr.contains("Too many open files"), "{}", ran.stderr);
}

/// Connections that say nothing. The last ones may be refused; that is as good.
fn silent(addresses: &[SocketAddr], agent: &std::path::Path) -> (Vec<TcpStream>, Vec<UnixStream>) {
    let tcp = addresses
        .iter()
        .flat_map(|address| (0..AT_ONCE).filter_map(move |_| TcpStream::connect(address).ok()));
    // The socket goes with its job.
    let unix = (0..AT_ONCE).filter_map(|_| {
        let stream = UnixStream::connect(agent).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    });
    (tcp.collect(), unix.collect())
}

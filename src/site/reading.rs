//! Reads a recipe in a sandbox on this host, by the agent and the toolbox of builds. Makes a sandbox and a directory for its socket,
//! listens on a port of the loopback, and leaves nothing.

mod marks;

use std::{
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Router, routing::get};
use bytes::Bytes;
use kiln_records::{Code, Failure, JobId, protocol::Reading};
use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::marks::Mark;
use super::{
    proxy,
    sandboxes::{agent, namespace_driver},
};
use crate::{
    api,
    config::Config,
    orchestrate::{
        agents::AgentCalls,
        reading::{ReadingDesk, Say, WantedReading},
        runner::Runners,
    },
    sandbox::{
        Driver, Evidence, SandboxSpec, SandboxState, Scratch,
        doors::{self, AGENT_SOCKET},
        namespace::NamespaceDriver,
        toolbox::Toolbox,
    },
};

/// How often this process looks whether the sandbox has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest time for one recipe. Repositories that do not answer take seconds.
const LONGEST: Duration = Duration::from_mins(10);

/// Reads a recipe. Lines of the log go to `say`. A recipe that a build would refuse is no error: the reading says so.
///
/// # Errors
///
/// When the sandbox cannot be made, or ends without a report.
pub async fn read_recipe(
    config: &Config,
    toolbox: Toolbox,
    wanted: WantedReading,
    say: Say,
    stop: &CancellationToken,
) -> Result<Reading, Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot make the sockets of this command", &error);
    let driver = namespace_driver(config)?.attached();
    let agent = agent()?;
    let marks = config.data_dir.join("readings");
    clear_up(&driver, &marks).await?;
    let runners = Runners::of(&config.data_dir);
    runners.sweep()?;
    // As long as it exists, no other process touches the sockets.
    let runner = runners.enter()?;
    let mut serving = JoinSet::new();
    let archive = wanted.archive.clone();
    let url = serve_archive(archive, &mut serving).await.map_err(failed)?;
    let (desk, secret) = ReadingDesk::new(wanted, url, say)?;
    let desk = Arc::new(desk);
    let doors = doors_in(runner.dir()).map_err(failed)?;
    serve_agent(&doors, Arc::clone(&desk) as _, &mut serving).map_err(failed)?;
    let proxy = match proxy::gate(&config.network) {
        Some(gate) => Some((gate.variables_here().await?, gate)),
        None => None,
    };
    let variables = proxy.as_ref().map(|(variables, _)| variables.clone());
    let sandbox = desk.sandbox(toolbox, agent, doors, secret, variables);
    let mark = Mark::new(&marks, sandbox.job).map_err(failed)?;
    let ended = tokio::select! {
        ended = run(&driver, &sandbox) => ended,
        () = stop.cancelled() => Err(Failure::new(Code::Interrupted, "the reading was interrupted")),
    };
    // Whatever has become of it.
    let destroyed = driver.destroy(sandbox.job, Scratch::Remove).await;
    if destroyed.is_err() {
        mark.leave();
    }
    let reading = desk.result(&ended?)?;
    destroyed.map(|()| reading)
}

/// Removes the sandboxes of readings whose processes were killed.
async fn clear_up(driver: &NamespaceDriver, marks: &Path) -> Result<(), Failure> {
    let left = Mark::left(marks).map_err(|error| Failure::io("cannot look for what was left", &error))?;
    for (job, mark) in left {
        if let Err(failure) = driver.destroy(job, Scratch::Remove).await {
            mark.leave();
            return Err(failure);
        }
    }
    Ok(())
}

/// Runs a sandbox to its end.
async fn run(driver: &NamespaceDriver, sandbox: &SandboxSpec) -> Result<Evidence, Failure> {
    driver.start(sandbox).await?;
    let ended = tokio::time::timeout(LONGEST, end_of(driver, sandbox.job)).await;
    ended.unwrap_or_else(|_| {
        let detail = format!("the recipe was not read after {} s", LONGEST.as_secs());
        Err(Failure::new(Code::WallLimit, detail).hint("`--verbose` shows where it stands"))
    })
}

async fn end_of(driver: &NamespaceDriver, job: JobId) -> Result<Evidence, Failure> {
    loop {
        match driver.look(job).await? {
            SandboxState::Ended(evidence) => return Ok(evidence),
            SandboxState::Absent => return Err(Failure::new(Code::SandboxLost, "the sandbox is gone")),
            SandboxState::Running | SandboxState::Waiting { .. } => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Makes the directory that the sandbox sees.
fn doors_in(dir: &Path) -> std::io::Result<PathBuf> {
    let doors = dir.join("doors");
    fs_err::create_dir(&doors)?;
    // Access is controlled by the directory above; the sandbox's ids differ from this user's.
    fs_err::set_permissions(&doors, PermissionsExt::from_mode(0o755))?;
    Ok(doors)
}

fn serve_agent(doors: &Path, desk: Arc<dyn AgentCalls>, serving: &mut JoinSet<()>) -> std::io::Result<()> {
    let listener = doors::listen(doors, AGENT_SOCKET).and_then(UnixListener::from_std)?;
    let calls = api::agent::router(desk);
    serving.spawn(async move {
        // The future only ends by being aborted.
        let _ = axum::serve(listener, calls).await;
    });
    Ok(())
}

/// Serves the archive at an address that nobody can guess. Returns the address.
async fn serve_archive(archive: Bytes, serving: &mut JoinSet<()>) -> std::io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let path = format!("/{}", hex::encode(rand::random::<[u8; 32]>()));
    let url = format!("http://{}{path}", listener.local_addr()?);
    let app = Router::new().route(&path, get(move || async move { archive }));
    serving.spawn(async move {
        // The future only ends by being aborted.
        let _ = axum::serve(listener, app).await;
    });
    Ok(url)
}

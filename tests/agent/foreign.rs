//! The agent for build nodes of another architecture, as far as a host of this one can tell: under an emulator.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use kiln::{orchestrate::agents::Refusal, sandbox::agents::Agents};
use kiln_records::arch::Arch;

use crate::agent::server::Server;
use crate::support;

#[test]
async fn an_agent_for_another_architecture_speaks_as_this_hosts_does() {
    let arch: Arch = support::foreign().parse().unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_kiln")).with_file_name(support::KILN_AGENT);
    let found = Agents::beside(own).of(arch);
    let lack = found.as_ref().err().and_then(|failure| failure.hint.clone());
    needs!(lack, support::no_namespaces());
    let agent = found.unwrap();

    let server = Server::scripted(|_| Err(Refusal::Over));
    let line = format!("{}\n", serde_json::to_string(&server.facts).unwrap());
    let emulator = support::toolbox_tree().join(format!("usr/bin/qemu-{arch}"));
    let ran = tokio::task::spawn_blocking(move || {
        // Static: nothing of its own architecture is here.
        let mut child = Command::new(emulator)
            .arg(agent)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    let output = ran.await.unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(
        words.starts_with("kiln-agent: ") && words.contains("job_over"),
        "{words}"
    );
}

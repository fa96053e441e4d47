//! Runs the blocks of the manual that say so (`<!-- run by tests/documents.rs -->`), as they stand, against one new server.
//!
//! That every other block says why it is not run, and that all commands parse, is checked beside the command line.

use std::process::Command;

use crate::support::{self, serve::Server};

/// The documents with such blocks, in the order of their commands: what one makes, the next ones use.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/operating.md", "docs/retention.md"];

/// The commands of the blocks of a document, as one script each.
fn scripts(document: &str) -> Vec<String> {
    let text = fs_err::read_to_string(support::source_dir().join(document)).unwrap();
    let blocks = text.split("<!-- run by tests/documents.rs -->\n```console\n").skip(1);
    let script = |block: &str| {
        let (session, _) = block.split_once("```\n").unwrap();
        let commands: Vec<_> = session.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
        commands.join("\n")
    };
    blocks.map(script).collect()
}

#[test]
fn sessions_of_the_manual_run_as_they_stand() {
    let server = Server::start(&[]);
    let ssh = server.kiln.data().join(".ssh");
    fs_err::create_dir(&ssh).unwrap();
    fs_err::write(
        ssh.join("id_ed25519.pub"),
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@here\n",
    )
    .unwrap();
    for document in DOCUMENTS {
        let scripts = scripts(document);
        assert!(!scripts.is_empty(), "{document} has no block that is run");
        for script in scripts {
            // The environment of a command of Kiln's, for the shell.
            let template = server.command(&[]);
            let mut shell = Command::new("bash");
            shell.args(["-euxc", &script]).current_dir(support::source_dir());
            for (name, value) in template.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            let path = std::env::var("PATH").unwrap();
            shell.env("PATH", format!("{}:{path}", support::programs().display()));
            let ran = support::run(shell);
            assert_eq!(ran.code, Some(0), "{document}:\n{script}\n{}{}", ran.stdout, ran.stderr);
        }
    }
    server.stop();
}

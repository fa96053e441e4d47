//! What the command line says, word by word.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use support::{Kiln, Ran, Recipe};

fn show(ran: &Ran) -> String {
    format!(
        "exit code {}\n--- stdout\n{}--- stderr\n{}",
        ran.code.unwrap_or(-1),
        ran.stdout,
        ran.stderr
    )
}

fn shown(args: &[&str]) -> String {
    let kiln = Kiln::bare();
    let ran = kiln.run(args);
    kiln.assert_clean();
    show(&ran).replace(kiln.data().to_str().unwrap(), "DATA")
}

#[test]
fn help() {
    insta::assert_snapshot!(shown(&["--help"]), @"");
}

#[test]
fn help_of_build() {
    insta::assert_snapshot!(shown(&["build", "--help"]), @"");
}

#[test]
fn help_of_artifacts() {
    insta::assert_snapshot!(shown(&["artifacts", "--help"]), @"");
}

#[test]
fn no_command() {
    assert!(shown(&[]).starts_with("exit code 2\n"));
}

#[test]
fn an_unknown_architecture() {
    let recipe = Recipe::copy_of("rpm-minimal");
    insta::assert_snapshot!(shown(&["build", recipe.path(), "--arch", "vax"]), @"");
}

#[test]
fn an_unknown_recipe_type() {
    let recipe = Recipe::copy_of("rpm-minimal");
    insta::assert_snapshot!(shown(&["build", recipe.path(), "--type", "packer"]), @"");
}

#[test]
fn a_recipe_that_is_not_there() {
    insta::assert_snapshot!(shown(&["build", "/nowhere/at/all"]), @"");
}

#[test]
fn values_and_names_that_are_none() {
    insta::assert_snapshot!(shown(&["build", "R", "--set", "no-value"]), @"");
    insta::assert_snapshot!(shown(&["build", "R", "--kernel-file-name", "../vmlinuz"]), @"");
}

#[test]
fn no_artifacts() {
    insta::assert_snapshot!(shown(&["artifacts", "list"]), @"");
    insta::assert_snapshot!(shown(&["artifacts", "list", "00000000-0000-4000-8000-000000000000"]), @"");
    insta::assert_snapshot!(shown(&["artifacts", "get", "00000000-0000-4000-8000-000000000000"]), @"");
}

#[test]
fn no_toolbox() {
    insta::assert_snapshot!(shown(&["toolbox", "show"]), @"");
}

#[test]
fn a_wrong_configuration() {
    let kiln = Kiln::bare();
    let file = kiln.data().join("kiln.toml");
    fs_err::write(&file, "data_dir = \"/x\"\ncolour = \"blue\"\n").unwrap();
    let ran = kiln.run(["--config", file.to_str().unwrap(), "artifacts", "list"]);
    insta::assert_snapshot!(show(&ran).replace(kiln.data().to_str().unwrap(), "DATA"), @"");
}

#[test]
fn completions() {
    for (shell, start) in [
        ("bash", "_kiln() {"),
        ("zsh", "#compdef kiln"),
        ("fish", "# Print an optspec"),
    ] {
        let script = Kiln::bare().run(["completions", shell]).ok().stdout;
        assert!(script.starts_with(start), "{}", &script[..script.len().min(200)]);
        assert!(script.contains("artifacts"));
    }
    // A reader that goes away is no failure.
    let kiln = Kiln::bare();
    let head = support::tool(
        "bash",
        &[
            "-c",
            &format!(
                "set -o pipefail; {} completions bash | head -1",
                support::kiln_program().display()
            ),
        ],
    );
    assert_eq!(head, "_kiln() {\n");
    kiln.assert_clean();
}

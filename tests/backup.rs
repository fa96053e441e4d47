//! `kiln backup` and `kiln restore` beside a server that writes.

use std::path::Path;

use crate::support::{Kiln, Ran, run, serve::Server, tool};
use serde_json::Value;

#[track_caller]
fn failed(ran: &Ran, with: &str) {
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains(with), "{}", ran.stderr);
}

fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    let mut names: Vec<_> = list.map(|key| key["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn records_come_back_as_they_were_while_a_server_wrote() {
    let server = Server::start(&[("KILN__JOBS__RUN", "false")]);
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("records.sqlite");
    let key = place.path().join("key.pub");
    fs_err::write(&key, "ssh-ed25519 AAAA me@here\n").unwrap();
    let make = |name: &str| {
        server.make(&[
            "public-keys",
            "create",
            "--name",
            name,
            "--public-key",
            key.to_str().unwrap(),
        ]);
    };
    for number in 0..5 {
        make(&format!("before-{number}"));
    }
    let to = place.path().to_str().unwrap();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for number in 0..5 {
                make(&format!("while-{number}"));
            }
        });
        server.kiln.run(["backup", to]).ok();
        writing.join().unwrap();
    });
    make("after");
    assert_eq!(tool("stat", &["-c", "%a", backup.to_str().unwrap()]).trim(), "600");
    failed(&server.kiln.run(["backup", to]), "exists already");

    // Not over a server's records; and elsewhere once only.
    failed(&server.kiln.run(["restore", to]), "exists already");
    let other = Kiln::bare();
    let said = other.run(["restore", to]).ok();
    assert!(said.stdout.contains("records "), "{}", said.stdout);
    failed(&other.run(["restore", to]), "exists already");
    let id = |kiln: &Kiln| fs_err::read_to_string(kiln.data().join("server-id")).unwrap();
    assert_eq!(id(&other), id(&server.kiln));
    server.stop();

    let restored = Server::start_in(other, &[("KILN__JOBS__RUN", "false")]);
    let there = names(&restored.json(&["public-keys", "list"]));
    let count = |start: &str| there.iter().filter(|name| name.starts_with(start)).count();
    assert_eq!(count("before"), 5);
    // What was written meanwhile is in it up to one moment.
    let meanwhile: Vec<_> = (0..count("while")).map(|number| format!("while-{number}")).collect();
    assert!(meanwhile.iter().all(|name| there.contains(name)), "{there:?}");
    assert_eq!(count("after"), 0);
    // It is no backup any more, but records.
    let again = place.path().join("again.sqlite");
    restored.kiln.run(["backup", again.to_str().unwrap()]).ok();
    restored.stop();
}

#[test]
fn what_is_no_backup_is_not_restored_and_leaves_nothing() {
    let kiln = Kiln::bare();
    let place = tempfile::tempdir().unwrap();
    failed(
        &kiln.run(["backup", place.path().to_str().unwrap()]),
        "there are no records",
    );
    let source = Kiln::bare();
    source.run(["tokens", "create", "--name", "me", "--role", "read"]).ok();
    let good = place.path().join("good.sqlite");
    source.run(["backup", good.to_str().unwrap()]).ok();
    let change = |name: &str, statement: &str| {
        let path = place.path().join(name);
        fs_err::copy(&good, &path).unwrap();
        let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.commit()";
        tool("python3", &["-c", script, path.to_str().unwrap(), statement]);
        path
    };
    let nonsense = place.path().join("nonsense");
    fs_err::write(&nonsense, "x".repeat(5000)).unwrap();
    let cut = place.path().join("cut");
    let whole = fs_err::read(&good).unwrap();
    fs_err::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let live = source.data().join("records.sqlite");
    let newer = change(
        "newer",
        "INSERT INTO _sqlx_migrations SELECT version + 1000, description, installed_on, success, checksum, execution_time \
         FROM _sqlx_migrations ORDER BY version DESC LIMIT 1",
    );
    let trigger = change(
        "trigger",
        "CREATE TRIGGER evil AFTER INSERT ON tokens BEGIN DELETE FROM tokens; END",
    );
    let elsewhere = change("elsewhere", "UPDATE kiln_backup SET server = '../../etc'");
    for (path, why) in [
        (nonsense.as_path(), "it is no backup by `kiln backup`"),
        (&cut, "cannot be restored"),
        (&live, "cannot be restored: it is no backup"),
        (&newer, "newer Kiln"),
        (&trigger, "its tables are not those of Kiln"),
        (&elsewhere, "names no server"),
        (Path::new("/nonexistent"), "cannot read the backup"),
    ] {
        failed(&kiln.run(["restore", path.to_str().unwrap()]), why);
        let left: Vec<_> = fs_err::read_dir(kiln.data())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(left.is_empty(), "{why}: {left:?}");
    }
    let mut command = kiln.command(["backup", "/nonexistent/file"]);
    command.env("KILN__STORE__URL", "postgresql://kiln@127.0.0.1:1/kiln");
    failed(&run(command), "pg_dump");
}

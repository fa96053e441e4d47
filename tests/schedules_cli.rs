//! Tests `kiln schedules`: the requests of each command, the display of the answers, and the errors.

use crate::support::fake_server;

use crate::support::{self, Kiln, Ran, Started};
use fake_server::{Answer, FakeServer};
use nix::sys::signal::Signal;
use serde_json::json;

const ID: &str = "6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11";
const RECIPE: &str = "a1b2c3d4-0000-4000-8000-000000000001";

/// Words of a line, with `'…'` around words that hold blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn run(kiln: &Kiln, url: &str, line: &str) -> Ran {
    let mut command = kiln.command(words(&format!("schedules {line}")));
    command.env("KILN_SERVER", url);
    support::run(command)
}

const COMMANDS: &str = "
list
list --name nightly --sort -name --limit 3
describe ID
create --recipe RECIPE --cron '0 2 * * *' --timezone Europe/Berlin --name nightly-{date}
create --recipe RECIPE --cron '0 2 * * *' --name nightly --image-name {recipe}-{n} --public-key-id ID --missed-runs all --missed-runs-limit 5 --overlap replace --build-env-size 15 --job-mem-size 4 --kernel-file-name vmlinuz --initrd-file-name initrd.img --kernel-parameters-file-name p --require-dkms no --twins shell --paused
update ID --cron '*/30 * * * *' --timezone UTC --name other --recipe RECIPE
create --recipe RECIPE --cron '0 2 * * *' --name nightly --image-set compute@{date} --non-voting aarch64 --time-limit 600,x86_64=60
update ID --image-set compute@24-{n} --recipe RECIPE
update ID --overlap queue --unset public-key-id,build-env-size
pause ID
resume ID
run-now ID
history ID
history ID --limit 3
delete ID
";

#[test]
fn what_each_command_sends() {
    let kiln = Kiln::bare();
    let server = FakeServer::start(|asked| match asked.method.as_str() {
        "GET" if asked.target.ends_with(&format!("/{RECIPE}")) => {
            Answer::json(200, &json!({"id": RECIPE, "arch": "aarch64"}))
        }
        "GET" if !asked.target.ends_with(ID) => Answer::json(200, &json!([])),
        "DELETE" => Answer::empty(),
        _ => Answer::json(200, &json!({})),
    });
    let mut table = String::new();
    for line in COMMANDS.lines().filter(|line| !line.is_empty()) {
        let full = line.replace("RECIPE", RECIPE).replace(" ID", &format!(" {ID}"));
        let ran = run(&kiln, &server.url(), &full);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        let asked = server.lines().join("\n  ").replace(ID, "ID").replace(RECIPE, "RECIPE");
        table.push_str(&format!("{line}\n  {asked}\n"));
    }
    insta::assert_snapshot!(table);
}

#[test]
fn answers_in_each_format() {
    let kiln = Kiln::bare();
    let server = FakeServer::start(|asked| {
        let schedule = json!({
            "id": ID, "created": "2026-11-20T13:53:42.680608", "name": "nightly", "recipe_id": RECIPE,
            "cron": "0 2 * * *", "timezone": "Europe/Berlin", "image_root_archive_name": "nightly-{date}",
            "public_key_id": null, "missed_runs": "once", "missed_runs_limit": 10, "overlap": "forbid",
            "paused": false, "next_run": "2026-11-22T01:00:00", "last_run": "2026-11-21T01:00:00.003411", "runs": 2,
            "description": "At 02:00.",
            "next_runs": ["2026-11-22T02:00:00+01:00", "2026-11-23T02:00:00+01:00"],
        });
        let ticks = json!([
            { "schedule_id": ID, "due": "2026-11-21T01:00:00", "fired": "2026-11-21T01:00:00.003411", "number": 2,
              "outcome": "made", "job_id": "77777777-0000-4000-8000-000000000003", "why": null },
            { "schedule_id": ID, "due": "2026-11-20T01:00:00", "fired": "2026-11-21T00:50:00.5", "number": 1,
              "outcome": "skipped", "job_id": null, "why": "No server ran at that time." },
        ]);
        let path = asked.target.split('?').next().unwrap();
        match path.strip_prefix("/kiln/v1/schedules") {
            Some("") => Answer::json(200, &json!([schedule])),
            Some(rest) if rest.ends_with("/history") => Answer::json(200, &ticks),
            Some(rest) if rest.ends_with("/run") => Answer::json(
                201,
                &json!({ "schedule_id": ID, "number": 3, "outcome": "failed", "job_id": null, "why": "There is no recipe." }),
            ),
            _ => Answer::json(200, &schedule),
        }
    });
    let mut shown = String::new();
    for format in ["toml", "json", "yaml", "table"] {
        for line in ["list", "describe nightly", "history nightly"] {
            let ran = run(&kiln, &server.url(), &format!("{line} --format {format}")).ok();
            shown.push_str(&format!("# kiln schedules {line} --format {format}\n{}\n", ran.stdout));
        }
    }
    let failed = run(&kiln, &server.url(), "run-now nightly");
    shown.push_str(&format!(
        "# kiln schedules run-now nightly: {}\n{}{}",
        failed.code.unwrap(),
        failed.stdout,
        failed.stderr
    ));
    insta::assert_snapshot!(shown);
}

#[test]
fn slips_are_recognised() {
    let kiln = Kiln::bare();
    let mut shown = String::new();
    for line in [
        "create --name n --cron '0 2 * * *'",
        "create --name n --recipe r --cron '0 2 * * *' --overlap allow",
        "create --name n --recipe r --cron '0 2 * * *' --missed-runs-limit 101",
        "create --name n --recipe r --recipe s --cron '0 2 * * *'",
        "create --name n --recipe r --cron '0 2 * * *' --image-set compute",
        "create --name n --recipe r --cron '0 2 * * *' --image-set compute@{n} --image-name x",
        "create --name n --recipe r --cron '0 2 * * *' --non-voting aarch64",
        "update x",
        "update x --unset name",
        "update x --image-set compute@{n}",
        "deleteall",
        "run x",
    ] {
        let ran = run(&kiln, "http://127.0.0.1:1", line);
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.stderr);
        shown.push_str(&format!("# kiln schedules {line}\n{}\n", ran.stderr));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn help_of_the_group() {
    let kiln = Kiln::bare();
    let mut shown = String::new();
    for line in ["", "create", "update", "history"] {
        let mut command = kiln.command(words(&format!("schedules {line} --help")));
        command.env_remove("KILN_DATA_DIR");
        let ran = support::run(command).ok();
        shown.push_str(&format!("# kiln schedules {line} --help\n{}\n", ran.stdout));
    }
    insta::assert_snapshot!(shown);
}

/// A `kiln serve` that only keeps records of jobs, and its address.
fn serve(kiln: &Kiln) -> (Started, String) {
    let mut command = kiln.command(["serve"]);
    command
        .env("KILN__SERVER__LISTEN", "127.0.0.1:0")
        .env("KILN__EMBEDDED_S3__LISTEN", "127.0.0.1:0")
        .env("KILN__JOBS__RUN", "false");
    let mut server = Started::new(command);
    let url = server.server_url();
    server.wait_until_ready();
    (server, url)
}

fn stop(server: Started) {
    server.signal(Signal::SIGTERM);
    let ran = server.end();
    assert_eq!(ran.code, Some(0), "{}", ran.last());
}

#[test]
fn the_example_works() {
    let kiln = Kiln::bare();
    let (server, url) = serve(&kiln);
    let mut command = std::process::Command::new(support::source_dir().join("examples/nightly.sh"));
    command
        .env("KILN", support::kiln_program())
        .env("KILN_SERVER", url)
        .env("HOME", kiln.data())
        .env_remove("XDG_CONFIG_HOME");
    let ran = support::run(command);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    for words in [
        "At 02:00, on Monday",
        "T02:00:00+0",
        "outcome = \"made\"",
        "30 3 * * *",
        "paused = true",
    ] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    stop(server);
}

/// The command of the documentation, and slips in it.
#[test]
fn a_nightly_build_from_its_recipe_to_its_history() {
    let kiln_of_server = Kiln::bare();
    let (server, url) = serve(&kiln_of_server);
    let kiln = |line: &str| kiln_of_server.run(words(&format!("--server {url} {line}")));
    let recipe = support::source_dir().join("recipes/debian-minimal");
    kiln(&format!(
        "recipes create --from {} --linux-distribution debian",
        recipe.display()
    ))
    .ok();
    let create = "schedules create --recipe debian-minimal --cron '0 2 * * *' --timezone Europe/Berlin";
    let made = kiln(&format!("{create} --name nightly-{{date}} --format json"))
        .ok()
        .stdout;
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["description"], "At 02:00.");
    let id = made["id"].as_str().unwrap();
    kiln("schedules run-now nightly-{date}").ok();
    let jobs = kiln("jobs list --format table").ok().stdout;
    assert!(jobs.contains("nightly-20"), "{jobs}");
    let history = kiln(&format!("schedules history {} --format table", &id[..8]))
        .ok()
        .stdout;
    assert!(history.contains("made"), "{history}");
    assert!(
        kiln(&format!("schedules pause {id}"))
            .ok()
            .stdout
            .contains("paused = true")
    );
    assert!(
        kiln(&format!("schedules resume {id}"))
            .ok()
            .stdout
            .contains("paused = false")
    );

    for (line, words) in [
        (format!("{create} --name x-{{day}}"), "There is no placeholder {day}"),
        (
            create.replace("Berlin", "Berln") + " --name n",
            "did you mean Europe/Berlin?",
        ),
        (create.replace("0 2 *", "0 25 *") + " --name n", "hour: `25` is not"),
        (create.replace("0 2 * * *", "@daily") + " --name n", "write `0 0 * * *`"),
        (
            create.replace("debian-minimal", "debian-minmal") + " --name n",
            "did you mean `debian-minimal`?",
        ),
        (
            "schedules describe nightly-{dat}".to_owned(),
            "did you mean `nightly-{date}`?",
        ),
    ] {
        let ran = kiln(&line);
        assert_eq!(ran.code, Some(2), "{line}");
        assert!(ran.stderr.contains(words), "{line}: {}", ran.stderr);
    }
    let deleted = kiln("schedules delete nightly-{date}").ok();
    assert!(
        deleted.stderr.contains("deleted schedule nightly-{date}"),
        "{}",
        deleted.stderr
    );
    stop(server);
}

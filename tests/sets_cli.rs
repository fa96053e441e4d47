//! Tests `kiln sets` and `kiln catalogue` on a real server that only keeps the records of jobs.

use crate::support::{Kiln, Ran, Started, source_dir};
use nix::sys::signal::Signal;

/// A server, and commands that talk to it.
struct Site {
    kiln: Kiln,
    server: Started,
    url: String,
}

impl Site {
    fn start() -> Self {
        let kiln = Kiln::bare();
        let mut command = kiln.command(["serve"]);
        command
            .env("KILN__SERVER__LISTEN", "127.0.0.1:0")
            .env("KILN__EMBEDDED_S3__LISTEN", "127.0.0.1:0")
            .env("KILN__JOBS__RUN", "false");
        let mut server = Started::new(command);
        let url = server.server_url();
        server.wait_until_ready();
        Self { kiln, server, url }
    }

    fn run(&self, line: &str) -> Ran {
        let words = ["--server", &self.url].into_iter().chain(line.split_whitespace());
        self.kiln.run(words.map(str::to_owned).collect::<Vec<_>>())
    }

    /// The id in an answer.
    fn id(&self, line: &str) -> String {
        let ran = self.run(&format!("{line} --format json")).ok();
        let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        answer["id"].as_str().unwrap().to_owned()
    }

    fn stop(self) {
        self.server.signal(Signal::SIGTERM);
        let ran = self.server.end();
        assert_eq!(ran.code, Some(0), "{}", ran.last());
    }
}

/// The text with ids, times and digests replaced by what they are, and single blanks.
fn plain(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.');
    let mut plain = String::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        for word in line.clone().split(|c| !is_part(c)) {
            let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
            let stands_for = match word.len() {
                36 if is_hex => "ID",
                64 if is_hex => "SHA256",
                19..=26 if word.as_bytes()[10] == b'T' && word.starts_with("20") => "TIME",
                _ => continue,
            };
            line = line.replace(word, stands_for);
        }
        while line.contains("   ") {
            line = line.replace("   ", "  ");
        }
        plain.push_str(line.trim_end());
        plain.push('\n');
    }
    plain
}

#[test(threads = 2)]
async fn from_a_recipe_for_two_architectures_to_a_channel() {
    let site = Site::start();
    let mut shown = String::new();
    let mut show = |line: &str| {
        let ran = site.run(line);
        let code = ran.code.unwrap();
        shown.push_str(&format!("$ kiln {line} → {code}\n{}{}\n", ran.stdout, ran.stderr));
    };
    let recipe = source_dir().join("recipes/debian-minimal");
    let made = site.run(&format!(
        "recipes create --from {} --name compute --linux-distribution debian --arch x86_64,aarch64,riscv64 --format json",
        recipe.display()
    ));
    let recipes: serde_json::Value = serde_json::from_str(&made.ok().stdout).unwrap();
    let archs: Vec<_> = recipes
        .as_array()
        .unwrap()
        .iter()
        .map(|recipe| recipe["arch"].as_str().unwrap())
        .collect();
    assert_eq!(archs, ["x86_64", "aarch64", "riscv64"]);

    show("sets create compute@24.11 --recipe compute --arch x86_64,aarch64 --time-limit aarch64=7200");
    show("sets create compute@24.11 --recipe compute");
    show("sets create compute@24.12 --recipe compute --arch s390x");
    show("sets create compute --recipe compute");
    show("sets add-arch compute@24.11 riscv64 --non-voting");
    show("sets describe compute@24.11");
    show("sets describe compute@24.10");
    show("sets rebuild compute@24.11");
    show("catalogue resolve compute --arch arm64");
    show("catalogue promote compute@24.11 stable");

    // The jobs of the first two end as another program ends them; the third fails.
    let jobs = site.run("jobs list --format json").ok();
    let jobs: serde_json::Value = serde_json::from_str(&jobs.stdout).unwrap();
    let http = crate::support::serve::client(None);
    for job in jobs.as_array().unwrap() {
        let (id, arch) = (job["id"].as_str().unwrap(), job["arch"].as_str().unwrap());
        let body = if arch == "riscv64" {
            serde_json::json!({"status": "error"})
        } else {
            let files = tempfile::tempdir().unwrap();
            fs_err::write(files.path().join("rootfs"), arch).unwrap();
            let create = format!("images create --name i --arch {arch} --from {}", files.path().display());
            let image = site.id(&create);
            serde_json::json!({"status": "success", "resultant_image_id": image})
        };
        let answer = http
            .patch(format!("{}/v3/jobs/{id}", site.url))
            .json(&body)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
    }
    show("sets describe compute@24.11");
    show("sets list --format table");
    show("catalogue list --format table");
    show("catalogue resolve compute:latest --arch arm64");
    show("catalogue resolve compute@24.11 --arch s390x");
    show("catalogue promote compute@24.11 stable");
    show("catalogue promote compute stable");
    show("catalogue channels --format table");
    show("catalogue rollback compute stable");
    show("sets rebuild --failed compute@24.11");
    show("sets delete compute@24.11");
    show("catalogue withdraw compute stable");
    show("catalogue history compute stable --format table");
    show("catalogue export openstack compute --arch aarch64");
    show("sets delete compute@24.11");
    insta::assert_snapshot!(plain(&shown));
    site.stop();
}

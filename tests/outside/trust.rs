//! Authorities, signing keys and mirrors of a site, and what is said of what fails.

use std::{
    fs::Permissions,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::support::{self, Kiln, Ran, Recipe, authority::Authority, foreign, repository::Repository, run, tool};

/// A web server for one directory, with a certificate.
struct Https {
    child: Child,
    port: u16,
}

impl Https {
    fn serve(dir: &Path, certificate: &Path, key: &Path) -> Self {
        // apt wants connections to end as TLS has it, which those of HTTP/1.0 do not.
        let program = "import functools, http.server, ssl, sys
http.server.SimpleHTTPRequestHandler.protocol_version = 'HTTP/1.1'
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .args([dir, certificate, key])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        Self { child, port }
    }
}

impl Drop for Https {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Signs files of a directory with a key of its own, and leaves that key and another one beside them.
fn sign(dir: &Path, script: &str) {
    let before = r#"cd "$1"
        mkdir -m 700 gnupg
        export GNUPGHOME="$PWD/gnupg"
        gpg() { command gpg --batch --quiet --yes --passphrase '' "$@"; }
        for name in Site Other; do gpg --quick-gen-key $name rsa2048 sign never; done
        gpg --armor --export Site > site.asc
        gpg --armor --export Other > other.asc
        sign() { gpg --default-key Site "$@"; }"#;
    let program = format!("{before}\n{script}\ngpgconf --kill all");
    tool("bash", &["-euc", &program, "bash", dir.to_str().unwrap()]);
}

/// Where Fedora's family has its authorities.
const BUNDLE: &str = "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem";

/// Where it has those of its site.
const ANCHORS: &str = "etc/pki/ca-trust/source/anchors";

/// The repository of `recipes/deb-tiny`.
const DEB_TINY: &str = "<repository type=\"apt-deb\" alias=\"tiny\" distribution=\"tiny\" components=\"main\" \
                        repository_gpgcheck=\"false\">\n    <source path=\"{{ deb_repo }}\"/>\n  </repository>";

/// The job that was not there before.
fn new_job(kiln: &Kiln, before: &[Value]) -> Value {
    kiln.jobs().into_iter().find(|job| !before.contains(job)).unwrap()
}

/// The RPM recipe, which wants its repository's index to be signed by the key at `{{ key }}`.
fn verifying() -> Recipe {
    Recipe::copy_of("rpm-minimal")
        .with_config("repository_gpgcheck=\"false\"", "repository_gpgcheck=\"true\"")
        .with_config(
            "<source path=\"{{ rpm_repo }}\"/>",
            "<source path=\"{{ rpm_repo }}\"><signing key=\"{{ key }}\"/></source>",
        )
}

fn build(kiln: &Kiln, recipe: &Recipe, sets: &[&str]) -> Ran {
    kiln.run([&["build", recipe.path()][..], sets].concat())
}

#[test]
fn a_recipes_key_is_fetched_and_is_the_only_one_that_counts() {
    needs!(support::no_namespaces());
    let (kiln, dir) = (Kiln::new(), tempfile::tempdir().unwrap());
    let repository = Repository::native_in(dir.path());
    // Whoever trusts the first key that a server hands out trusts this one.
    let script = "sign --armor --detach-sign repodata/repomd.xml; cp site.asc repodata/repomd.xml.key";
    sign(dir.path(), script);
    let by_http = format!("--set=key={}/site.asc", repository.url());
    for manager in ["--set=package_manager=zypper", "--set=package_manager=dnf4"] {
        build(&kiln, &verifying(), &[&repository.set(), manager, &by_http]).ok();
    }
    let other = fs_err::read_to_string(dir.path().join("other.asc")).unwrap();
    let pinned = verifying().with("keys/other.asc", &other);
    let before = kiln.jobs();
    build(&kiln, &pinned, &[&repository.set(), "--set=key=this://keys/other.asc"]).failed();
    let status = kiln.status(&new_job(&kiln, &before));
    assert_eq!(status["error"]["code"], "repo_signature", "{status:#}");
    kiln.assert_clean();
}

#[test]
fn a_sites_keys_and_authorities_hold_in_every_build_and_stay_only_where_asked() {
    needs!(support::no_namespaces());
    let (kiln, dir) = (Kiln::new(), tempfile::tempdir().unwrap());
    let repository = Repository::native_in(dir.path());
    sign(
        dir.path(),
        "sign --armor --detach-sign repodata/repomd.xml; mkdir keys; cp site.asc keys",
    );
    let (site, own) = (Authority::new().pem, Authority::new().pem);
    fs_err::create_dir(dir.path().join("ca")).unwrap();
    fs_err::write(dir.path().join("ca/site.pem"), &site).unwrap();
    let line = site.lines().nth(2).unwrap();
    let recipe = Recipe::copy_of("rpm-minimal")
        .with_config("repository_gpgcheck=\"false\"", "repository_gpgcheck=\"true\"")
        .with(&format!("root/{BUNDLE}"), &own)
        .with(
            "config.sh",
            &format!(
                "#!/bin/sh\nset -eu\n[ \"$SSL_CERT_FILE\" = /{BUNDLE} ]\ngrep -qF '{line}' \"$SSL_CERT_FILE\"\necho fact trusted\n"
            ),
        );
    let output = dir.path().join("out");
    // Builds, and returns the files with these paths of the image.
    let build = |recipe: &Recipe, keep: &str, files: &[&str]| {
        let set = repository.set();
        let output = output.to_str().unwrap();
        let mut command = kiln.command(["build", recipe.path(), &set, "--output", output]);
        command
            .env("KILN__TRUST__SIGNING_KEYS", dir.path().join("keys"))
            .env("KILN__TRUST__CA", dir.path().join("ca"))
            .env("KILN__TRUST__KEEP_CA", keep);
        run(command).ok();
        assert!(kiln.log(&kiln.jobs().pop().unwrap()).contains("fact trusted"));
        let rootfs = format!("{output}/{}/rootfs", support::HOST);
        tool("unsquashfs", &[&["-cat", &rootfs], files].concat())
    };
    assert_eq!(build(&recipe, "false", &[BUNDLE]), own);

    // An image keeps them where its distribution's tool takes them up.
    let program = "root/usr/bin/update-ca-trust";
    let kept = recipe
        .with(&format!("root/{ANCHORS}/README"), "Of the site.")
        .with(program, &format!("#!/bin/sh\ncat /{ANCHORS}/*.crt >> /{BUNDLE}\n"));
    let program = Path::new(kept.path()).join(program);
    fs_err::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
    let anchor = format!("{ANCHORS}/kiln-site-1.crt");
    assert_eq!(build(&kept, "true", &[&anchor, BUNDLE]), format!("{site}{own}{site}"));
    kiln.assert_clean();
}

#[test]
fn apt_in_the_root_trusts_the_site_and_a_frozen_mirror_is_accepted_on_purpose() {
    needs!(support::no_namespaces());
    let (kiln, dir) = (Kiln::new(), tempfile::tempdir().unwrap());
    let (repo, authority) = (dir.path().join("repo"), Authority::new());
    fs_err::create_dir(&repo).unwrap();
    let _http = Repository::debian_in(&repo);
    sign(
        &repo,
        "echo 'Valid-Until: Sat, 01 Jan 2022 00:00:00 UTC' | cat - dists/tiny/Release > late; mv late dists/tiny/Release
         sign --clearsign --output dists/tiny/InRelease dists/tiny/Release",
    );
    let file = |name: &str| dir.path().join(name);
    fs_err::write(file("ca.pem"), &authority.pem).unwrap();
    authority.write(&file("tls.pem"), &file("tls.key"));
    let https = Https::serve(&repo, &file("tls.pem"), &file("tls.key"));
    let key = fs_err::read_to_string(repo.join("site.asc")).unwrap();
    let tiny = |attributes: &str| {
        let repository = |alias: &str, attributes: &str| {
            format!(
                "<repository type=\"apt-deb\" alias=\"{alias}\" distribution=\"tiny\" components=\"main\" \
                 repository_gpgcheck=\"true\" {attributes}><source path=\"{{{{ deb_repo }}}}\"><signing key=\"this://site.asc\"/>\
                 </source></repository>"
            )
        };
        let both = repository("tiny", attributes) + &repository("again", &format!("priority=\"900\" {attributes}"));
        Recipe::copy_of("deb-tiny")
            .with("site.asc", &key)
            .with_config(DEB_TINY, &both)
    };
    let set = format!("--set=deb_repo=https://127.0.0.1:{}", https.port);
    let build = |recipe: &Recipe, more: &[&str]| {
        let mut command = kiln.command([&["build", recipe.path(), &set][..], more].concat());
        command.env("SSL_CERT_FILE", file("ca.pem"));
        run(command)
    };
    build(&tiny(""), &[]).failed();
    assert_eq!(kiln.failure_code(), "repo_expired");

    let output = file("out");
    let script = "#!/bin/bash\ncase $1 in *.sources) echo 'Check-Valid-Until: no' >> \"$1\" ;; esac\n";
    let before = kiln.jobs();
    let accepted = tiny("customize=\"frozen.sh\"").with("frozen.sh", script);
    build(&accepted, &["--output", output.to_str().unwrap()]).ok();
    let log = kiln.log(&new_job(&kiln, &before));
    assert!(
        log.contains("warning: the repositories of 127.0.0.1 have different priorities (900, none)"),
        "{log}"
    );
    let rootfs = output.join(support::HOST).join("rootfs");
    let files = tool("unsquashfs", &["-l", rootfs.to_str().unwrap()]);
    assert!(
        files.contains("/etc/tiny-installed-on") && !files.contains("/etc/ssl"),
        "{files}"
    );
    kiln.assert_clean();
}

#[test]
fn a_recipe_that_fails_is_told_so_at_once() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    let repository = Repository::shell().of(foreign());
    let script =
        "#!/bin/bash\necho 'a warning' >&2\nls / | sort > /dev/null\necho 'the disk is the wrong one' >&2\nexit 3\n";
    let own_exit = Recipe::copy_of("rpm-shell").with("config.sh", script);
    let no_command = Recipe::copy_of("rpm-shell").with("config.sh", "#!/bin/bash\nset -e\nno-such-command --now\n");
    let no_package = Recipe::copy_of("rpm-shell").with_config("\"shell-release\"", "\"shell-relaese\"");
    for (recipe, code, words) in [
        (
            own_exit,
            "script_failed",
            "config.sh failed with status 3: the disk is the wrong one",
        ),
        (no_command, "script_failed", "no-such-command: command not found"),
        (no_package, "package_not_found", "shell-relaese"),
    ] {
        let before = kiln.jobs();
        let said = build(&kiln, &recipe, &["--arch", foreign(), &repository.set()]).failed();
        assert!(said.contains(words), "{said}");
        let status = kiln.status(&new_job(&kiln, &before));
        assert_eq!(
            (&status["error"]["code"], &status["attempt"]),
            (&code.into(), &1.into()),
            "{status:#}"
        );
        assert!(status["twins_fallback"].is_null(), "{status:#}");
        if code == "script_failed" {
            assert!(status["execs"]["twins"].as_u64() > Some(0), "{status:#}");
        }
    }
    kiln.assert_clean();
}

#[test]
fn a_repository_without_the_architecture_is_named_before_the_build() {
    needs!(support::no_namespaces(), support::no_emulation());
    let (kiln, repository) = (Kiln::new(), Repository::debian());
    let recipe = Recipe::copy_of("deb-tiny");
    let set = format!("--set=deb_repo={}", repository.url());
    let said = build(&kiln, &recipe, &["--arch", "riscv64", &set]).failed();
    assert!(said.contains("has amd64, arm64"), "{said}");
    assert_eq!(kiln.failure_code(), "repo_without_arch");
    kiln.assert_clean();
}

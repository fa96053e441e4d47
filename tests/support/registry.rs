//! Debian's registry, on the loopback.

use std::{
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::support::{self, tool};

/// The account of the registry.
pub const ACCOUNT: (&str, &str) = ("me", "pass word");

/// Debian's registry with TLS.
pub struct Registry {
    pub dir: tempfile::TempDir,
    pub port: u16,
    child: Child,
}

impl Registry {
    /// One for callers without an account.
    pub fn start() -> Self {
        Self::of(tempfile::tempdir().unwrap(), "")
    }

    /// One that knows [`ACCOUNT`] only.
    pub fn with_account() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let accounts = dir.path().join("htpasswd");
        fs_err::write(&accounts, tool("htpasswd", &["-nbB", ACCOUNT.0, ACCOUNT.1])).unwrap();
        let accounts = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", accounts.display());
        Self::of(dir, &accounts)
    }

    fn of(dir: tempfile::TempDir, accounts: &str) -> Self {
        let at = dir.path().to_str().unwrap().to_owned();
        tool(
            "openssl",
            &[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=127.0.0.1",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
                "-keyout",
                &format!("{at}/key.pem"),
                "-out",
                &format!("{at}/ca.crt"),
            ],
        );
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: \
             {at}/store}}}}\n{accounts}http: {{addr: '127.0.0.1:{port}', secret: kept, tls: {{certificate: {at}/ca.crt, key: \
             {at}/key.pem}}}}\n"
        );
        fs_err::write(dir.path().join("config.yml"), text).unwrap();
        let child = Command::new("docker-registry")
            .args(["serve", &format!("{at}/config.yml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        support::eventually(|| TcpStream::connect(("127.0.0.1", port)));
        Self { dir, port, child }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why no registry can be asked, if so.
pub fn no_registry_tools() -> Option<String> {
    let missing = ["docker-registry", "skopeo", "jq", "htpasswd"]
        .into_iter()
        .find(|program| !Path::new("/usr/bin").join(program).exists());
    missing.map(|program| format!("{program} is not installed: `.ci/install-packages test`"))
}

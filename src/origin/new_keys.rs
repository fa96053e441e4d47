//! Makes keys for tests, as an operator makes them. Compiled for tests only; runs OpenSSL.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Runs OpenSSL, which must succeed.
pub fn openssl(arguments: &[&str]) {
    let ran = Command::new("openssl").args(arguments).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// The files of a new private key and of its public half. `kind` are the options of `openssl genpkey`.
pub fn key_pair(dir: &Path, name: &str, kind: &[&str]) -> (PathBuf, PathBuf) {
    let (secret, public) = (dir.join(name), dir.join(format!("{name}.pub")));
    let at = secret.to_str().unwrap();
    openssl(&[&["genpkey", "-out", at], kind].concat());
    openssl(&["pkey", "-in", at, "-pubout", "-out", public.to_str().unwrap()]);
    (secret, public)
}

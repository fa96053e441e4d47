//! Says to buildah where images come from: buildah's configuration in the sandbox, and the way to registries that the site reads
//! itself. Writes files of the sandbox, and opens a port of its loopback.

use std::{fmt::Write as _, io, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kiln_records::{
    Failure,
    protocol::{
        RecipeWork,
        registry::{USER, encoded, password},
    },
};

use crate::{building::Building, proxy};

/// Where images come from without a registry's name is what other tools do, too.
const CONFIGURATION: [(&str, &str); 2] = [
    (
        "/etc/containers/policy.json",
        "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n",
    ),
    (
        "/etc/containers/registries.conf",
        "unqualified-search-registries = [\"docker.io\"]\nshort-name-mode = \"permissive\"\n",
    ),
];

/// Further registries.
const OWN: &str = "/etc/containers/registries.conf.d/kiln.conf";

/// The file of logins. It is in no root.
const LOGINS: &str = "/run/kiln-registries.json";

/// What buildah was told of registries.
#[derive(Debug, Default)]
pub(super) struct Registries {
    /// The registries that are read by way of the server: what buildah calls them, and their names.
    known_as: Vec<(String, String)>,
}

impl Registries {
    /// Writes the configuration, for a Containerfile with these words.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or no port be opened.
    pub(super) async fn prepare(building: Building<'_>, work: &RecipeWork, words: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::io("cannot write the configuration of buildah", &error);
        let mut known_as = Vec::new();
        let mut rows = String::new();
        if !work.registries.is_empty() {
            let port = proxy::open_registries(building.channel).await?;
            let login = BASE64_STANDARD.encode(format!("{USER}:{}", password(building.channel.token())));
            let at = format!("127.0.0.1:{port}");
            let logins = serde_json::json!({ "auths": { &at: { "auth": login } } });
            write(LOGINS, &logins.to_string()).map_err(failed)?;
            for name in &work.registries {
                let location = format!("{at}/{}", encoded(name));
                let _ = write!(
                    rows,
                    "[[registry]]\nprefix = \"{name}\"\nlocation = \"{location}\"\ninsecure = true\n"
                );
                known_as.push((location, name.clone()));
            }
        }
        for host in loopback(words).iter().filter(|host| !work.registries.contains(host)) {
            let _ = write!(rows, "[[registry]]\nlocation = \"{host}\"\ninsecure = true\n");
        }
        for (path, text) in CONFIGURATION.into_iter().chain([(OWN, rows.as_str())]) {
            write(path, text).map_err(failed)?;
        }
        Ok(Self { known_as })
    }

    /// The options by which buildah finds the logins.
    pub(super) fn options(&self) -> &'static [&'static str] {
        if self.known_as.is_empty() {
            return &[];
        }
        &["--authfile", LOGINS]
    }

    /// What buildah says, with the names that its reader knows.
    pub(super) fn named(&self, text: &str) -> String {
        let mut named = text.to_owned();
        for (location, name) in &self.known_as {
            named = named.replace(location, name);
        }
        named
    }
}

fn write(path: &str, text: &str) -> io::Result<()> {
    let path = Path::new(path);
    if let Some(dir) = path.parent() {
        fs_err::create_dir_all(dir)?;
    }
    fs_err::write(path, text)
}

/// The registries on the loopback that these words name. They may speak plain HTTP, as container engines allow it.
fn loopback(words: &str) -> Vec<String> {
    let is_loopback = |host: &&str| {
        let name = host.split(':').next().unwrap_or_default();
        name == "localhost"
            || name
                .parse::<std::net::Ipv4Addr>()
                .is_ok_and(|address| address.is_loopback())
    };
    let host = |word: &'_ str| -> Option<String> {
        let (host, _) = word.trim_start_matches("docker://").split_once('/')?;
        Some(host).filter(is_loopback).map(str::to_owned)
    };
    let mut hosts: Vec<String> = words
        .split(|c: char| c.is_whitespace() || "=,\"'".contains(c))
        .filter_map(host)
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_on_the_loopback_are_found_in_every_place() {
        let words = "FROM 127.0.0.1:5000/a/b:1 AS x\nARG BASE=localhost:5001/c\nCOPY --from=docker://127.0.0.2/d /e /f\nFROM r.example/g";
        assert_eq!(loopback(words), ["127.0.0.1:5000", "127.0.0.2", "localhost:5001"]);
    }

    #[test]
    fn messages_have_the_names_of_the_file() {
        let registries = Registries {
            known_as: vec![("127.0.0.1:4/ab".to_owned(), "docker.io".to_owned())],
        };
        let said = "reading manifest 12 in 127.0.0.1:4/ab/library/debian: manifest unknown";
        assert_eq!(
            registries.named(said),
            "reading manifest 12 in docker.io/library/debian: manifest unknown"
        );
    }
}

//! Finds the address of a repository that is given as a list of mirrors. Talks HTTP to the server of the list.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reqwest::Client;
use tokio::{runtime::Handle, time::timeout};

/// How long an answer may take.
const ASKING: Duration = Duration::from_secs(20);

/// The most bytes of a list.
const LONGEST: usize = 1 << 20;

/// The end of an address in a metalink, which is that of the repository's index.
const INDEX: &str = "repodata/repomd.xml";

/// Asks for lists of mirrors, from a thread that is none of the runtime's.
#[derive(Debug, Clone)]
pub(super) struct Mirrors {
    web: Client,
    runtime: Handle,
    /// What was found: it is asked for again until the root has its keys.
    found: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Mirrors {
    pub(super) fn new(web: Client, runtime: Handle) -> Self {
        Self {
            web,
            runtime,
            found: Arc::default(),
        }
    }

    /// The address of the first repository in a list, if there is one.
    pub(super) fn first(&self, list: &str) -> Option<String> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = found.get(list) {
            return Some(first.clone());
        }
        let text = self.runtime.block_on(async { timeout(ASKING, self.get(list)).await });
        let first = first_in(&text.ok()??)?;
        found.insert(list.to_owned(), first.clone());
        Some(first)
    }

    async fn get(&self, list: &str) -> Option<String> {
        let answer = self.web.get(list).send().await.ok()?;
        let mut answer = answer.error_for_status().ok()?;
        let mut bytes = Vec::new();
        while let Some(piece) = answer.chunk().await.ok()? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > LONGEST {
                return None;
            }
        }
        String::from_utf8(bytes).ok()
    }
}

/// The first address in a list: a metalink, or one address in a line.
fn first_in(list: &str) -> Option<String> {
    let is_usable = |address: &&str| address.starts_with("http://") || address.starts_with("https://");
    if !list.trim_start().starts_with('<') {
        return list.lines().map(str::trim).find(is_usable).map(str::to_owned);
    }
    let metalink = roxmltree::Document::parse(list).ok()?;
    let addresses = metalink.descendants().filter(|node| node.tag_name().name() == "url");
    let mut addresses = addresses.filter_map(|node| node.text().map(str::trim));
    let index = addresses.find(|address| is_usable(address) && address.ends_with(INDEX))?;
    index.strip_suffix(INDEX).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_usable_address_of_a_list_is_taken() {
        let metalink = r#"<?xml version="1.0" encoding="utf-8"?>
            <metalink version="3.0" xmlns="http://www.metalinker.org/"><files><file name="repomd.xml">
            <verification><hash type="sha256">00</hash></verification><resources maxconnections="1">
            <url protocol="rsync" preference="100">rsync://a/linux/os/repodata/repomd.xml</url>
            <url protocol="https" preference="99">https://b/linux/os/repodata/repomd.xml</url>
            <url protocol="http" preference="98">http://c/linux/os/repodata/repomd.xml</url>
            </resources></file></files></metalink>"#;
        for (list, first) in [
            (metalink, Some("https://b/linux/os/")),
            (
                "# of a country\n\nftp://a/os\nhttps://b/$basearch/os/\nhttp://c/\n",
                Some("https://b/$basearch/os/"),
            ),
            ("<html>https://b/</html>", None),
            ("<metalink/>", None),
            ("", None),
        ] {
            assert_eq!(first_in(list).as_deref(), first, "{list}");
        }
    }
}

//! The address of a server. Pure: no I/O.

use std::fmt;

use kiln_records::{Code, Failure};
use reqwest::Url;
use url_host::is_loopback;

/// The base address of the API. A path, such as `/apis/ims` of a gateway, precedes the API's own paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server(Url);

impl Server {
    /// The server that is used unless another one is chosen.
    pub const DEFAULT: &'static str = "http://127.0.0.1:9000";

    /// Parses an address. Without a scheme it is `https`, or `http` on this machine.
    ///
    /// # Errors
    ///
    /// `server_address` when the text is not an address.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let invalid = |why: &dyn fmt::Display| {
            Failure::new(
                Code::ServerAddress,
                format!("`{text}` is no address of a server: {why}"),
            )
            .hint("an address looks like https://kiln.example.org or http://127.0.0.1:9000")
        };
        let full = if text.contains("://") {
            text.to_owned()
        } else {
            let guess = Url::parse(&format!("http://{text}")).map_err(|error| invalid(&error))?;
            let scheme = if is_loopback(&guess) { "http" } else { "https" };
            format!("{scheme}://{text}")
        };
        let mut url = Url::parse(&full).map_err(|error| invalid(&error))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid(&"only http and https are spoken"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            // The password would be visible in process lists and shell histories.
            return Err(
                Failure::new(Code::ServerAddress, "an address must not hold a name or password")
                    .hint("`kiln login` keeps a token in a file that only you can read"),
            );
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid(&"it has a query or a fragment"));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(Self(url))
    }

    /// Parses the address of a gateway in `cray`'s form: IMS is below `/apis/ims` there.
    ///
    /// # Errors
    ///
    /// `server_address` when the text is not an address.
    pub fn parse_gateway(text: &str) -> Result<Self, Failure> {
        let Self(mut url) = Self::parse(text)?;
        if url.path() == "/" {
            url.set_path("/apis/ims");
        }
        Ok(Self(url))
    }

    /// The address of the resource at `segments`. A segment must not be empty or consist of dots, see
    /// [`check_segment`].
    pub(super) fn address(&self, segments: &[&str]) -> Url {
        let mut url = self.0.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// The host and port of the server.
    pub fn host_and_port(&self) -> (String, u16) {
        let host = self.0.host_str().unwrap_or_default().trim_matches(['[', ']']);
        (host.to_owned(), self.0.port_or_known_default().unwrap_or_default())
    }

    /// Whether the server is on this machine.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.0)
    }

    pub(super) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether the connection is safe from eavesdroppers.
    pub fn keeps_secrets(&self) -> bool {
        self.is_https() || self.is_loopback()
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

/// Checks an id that becomes a segment of a path. `..` would be dropped, and the path would name the collection.
pub(super) fn check_segment(id: &str) -> Result<(), Failure> {
    if matches!(id, "" | "." | "..") {
        return Err(Failure::new(Code::Usage, format!("`{id}` is neither an id nor a name")));
    }
    Ok(())
}

mod url_host {
    use std::net::IpAddr;

    use reqwest::Url;

    /// Whether the host is this machine, by its address or as `localhost`, which resolvers must not redirect (RFC
    /// 6761).
    pub(super) fn is_loopback(url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        Server::parse(text).unwrap().to_string()
    }

    #[test]
    fn addresses_may_be_short() {
        assert_eq!(shown("http://127.0.0.1:9000/"), "http://127.0.0.1:9000");
        assert_eq!(shown("localhost:9000"), "http://localhost:9000");
        assert_eq!(shown("[::1]:9000"), "http://[::1]:9000");
        assert_eq!(shown("kiln.example.org:8443"), "https://kiln.example.org:8443");
        assert_eq!(shown("https://gw.local/apis/ims/"), "https://gw.local/apis/ims");
        assert_eq!(
            Server::parse_gateway("gw.local").unwrap().to_string(),
            "https://gw.local/apis/ims"
        );
        for wrong in ["", "ftp://x", "https://me:secret@x", "http://x/?a=b", "http://"] {
            assert_eq!(Server::parse(wrong).unwrap_err().code, Code::ServerAddress, "{wrong}");
        }
    }

    #[test]
    fn paths_are_put_together() {
        let server = Server::parse("https://gw.local/apis/ims").unwrap();
        let url = server.address(&["v3", "remote-build-nodes", "x1/../c#0?a"]);
        assert_eq!(
            url.as_str(),
            "https://gw.local/apis/ims/v3/remote-build-nodes/x1%2F..%2Fc%230%3Fa"
        );
        assert_eq!(
            Server::parse("http://[::1]:1")
                .unwrap()
                .address(&["v3", "jobs"])
                .as_str(),
            "http://[::1]:1/v3/jobs"
        );
    }

    #[test]
    fn secrets_stay_on_safe_ways() {
        for safe in [
            "https://x",
            "http://127.0.0.1:9000",
            "http://localhost",
            "http://[::1]",
            "http://127.9.9.9",
        ] {
            assert!(Server::parse(safe).unwrap().keeps_secrets(), "{safe}");
        }
        for open in [
            "http://x",
            "http://10.0.0.1",
            "http://localhost.example.org",
            "http://127.0.0.1.example.org",
        ] {
            assert!(!Server::parse(open).unwrap().keeps_secrets(), "{open}");
        }
    }
}

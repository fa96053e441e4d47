//! The address of an HTTP proxy in the configuration. Pure: no I/O.

use std::{fmt, str::FromStr};

use reqwest::Url;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The address of an HTTP proxy. It holds no login, since the configuration is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// The host: a name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for ProxyUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The text may hold a password, so no message repeats it.
        let wrong = || "it is no address of a proxy such as http://proxy.example.org:3128".to_owned();
        let url = Url::parse(text).map_err(|_| wrong())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a login for the proxy belongs into a file that `proxy_credentials` names".to_owned());
        }
        if url.scheme() == "https" {
            return Err(
                "a proxy that is itself reached by TLS is not supported; `https_proxy` is for what is asked of it, \
                        and its address begins with http://"
                    .to_owned(),
            );
        }
        let rest = url.path().trim_start_matches('/').is_empty() && url.query().is_none() && url.fragment().is_none();
        if url.scheme() != "http" || !rest {
            return Err(wrong());
        }
        let host = url.host_str().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().ok_or_else(wrong)?;
        Ok(Self { host, port })
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "http://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "http://{}:{}", self.host, self.port)
        }
    }
}

impl Serialize for ProxyUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProxyUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_proxy_has_no_login_and_no_message_repeats_one() {
        for (text, written) in [
            ("http://proxy.example.org:3128", "http://proxy.example.org:3128"),
            ("http://10.0.0.1:8080/", "http://10.0.0.1:8080"),
            ("http://[fd00::1]:8080", "http://[fd00::1]:8080"),
            ("http://proxy", "http://proxy:80"),
        ] {
            assert_eq!(text.parse::<ProxyUrl>().unwrap().to_string(), written);
        }
        for wrong in [
            "proxy:3128",
            "https://proxy:3128",
            "socks5://proxy:1080",
            "http://proxy/path",
            "http://",
            "http://kiln:hunter2@proxy:3128",
            "http://hunter2@proxy:3128",
            "http://kiln:hunter2@proxy:hunter2",
        ] {
            let message = wrong.parse::<ProxyUrl>().unwrap_err();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}

//! The login to OpenStack, from the environment variables of its own clients. Reads the environment and talks to Keystone.

use std::{path::Path, sync::Arc, time::Duration};

use kiln_addresses::Guard;
use kiln_records::{Code, Failure};
use reqwest::{Client, Url, header::HeaderValue, redirect::Policy};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Glance, accepted, json_of, send};

/// The most bytes of a file of authorities.
const MAX_AUTHORITIES: u64 = 16 << 20;

/// Environment variables by name.
type Read<'r> = &'r dyn Fn(&str) -> Option<String>;

/// How a user logs in.
#[derive(Debug)]
pub struct Login {
    way: Way,
    /// The address of Glance, if it is given.
    endpoint: Option<Url>,
    region: Option<String>,
    interface: String,
    authorities: Option<String>,
}

enum Way {
    /// The services ask for none.
    Without,
    Token(String),
    Keystone {
        url: Url,
        identity: Value,
        scope: Option<Value>,
    },
}

impl std::fmt::Debug for Way {
    // Tokens and passwords are nothing for a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Way::Without => "Without",
            Way::Token(_) => "Token",
            Way::Keystone { .. } => "Keystone",
        })
    }
}

#[derive(Debug, Deserialize)]
struct Answer {
    token: Catalog,
}

#[derive(Debug, Deserialize)]
struct Catalog {
    #[serde(default)]
    catalog: Vec<Service>,
}

#[derive(Debug, Deserialize)]
struct Service {
    #[serde(rename = "type")]
    kind: String,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    interface: String,
    #[serde(default)]
    region: Option<String>,
    url: String,
}

impl Login {
    /// The login that the environment describes.
    ///
    /// # Errors
    ///
    /// `glance_login` when something is missing or cannot be used.
    pub fn from_environment() -> Result<Self, Failure> {
        Self::read(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn read(read: Read<'_>) -> Result<Self, Failure> {
        let endpoint = read("OS_IMAGE_URL").or_else(|| read("OS_IMAGE_ENDPOINT_OVERRIDE"));
        let endpoint = endpoint.map(|url| address("OS_IMAGE_URL", &url)).transpose()?;
        let token = read("OS_TOKEN").or_else(|| read("OS_AUTH_TOKEN"));
        let way = if read("OS_AUTH_TYPE").as_deref() == Some("none") {
            Way::Without
        } else if let (Some(token), Some(_)) = (token, &endpoint) {
            Way::Token(token)
        } else {
            keystone(read)?
        };
        if matches!(way, Way::Without) && endpoint.is_none() {
            return Err(missing("OS_IMAGE_URL"));
        }
        let secret_to = match &way {
            Way::Without => None,
            Way::Token(_) => endpoint.as_ref(),
            Way::Keystone { url, .. } => Some(url),
        };
        secret_to.map_or(Ok(()), keeps_secrets)?;
        Ok(Self {
            way,
            endpoint,
            region: read("OS_REGION_NAME"),
            interface: read("OS_INTERFACE").unwrap_or_else(|| "public".to_owned()),
            authorities: read("OS_CACERT"),
        })
    }

    /// A client that trusts the right authorities and follows nobody elsewhere; with a guard, it goes where that lets it.
    fn http(&self, connect: Duration, guard: Option<Guard>) -> Result<Client, Failure> {
        let unusable = |error: String| Failure::new(Code::TlsUnusable, format!("TLS cannot be used: {error}"));
        let mut builder = Client::builder()
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect)
            .redirect(Policy::none());
        if let Some(guard) = guard {
            builder = builder.dns_resolver(Arc::new(guard));
        }
        if let Some(path) = &self.authorities {
            let pem = kiln_files::read_given(Path::new(path), MAX_AUTHORITIES)
                .map_err(|error| unusable(error.to_string()))?;
            let certificates =
                reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| unusable(error.to_string()))?;
            builder = builder.tls_certs_only(certificates);
        } else if self.endpoint.as_ref().is_some_and(|url| url.scheme() == "http") {
            // A machine without any authorities can still speak plain HTTP.
            builder = builder.tls_certs_only([]);
        }
        if self.endpoint.as_ref().is_some_and(is_loopback) {
            builder = builder.no_proxy();
        }
        builder.build().map_err(|error| unusable(error.to_string()))
    }

    /// Glance, as this login may use it.
    pub(super) async fn enter(self, connect: Duration) -> Result<Glance, Failure> {
        let http = self.http(connect, None)?;
        let (url, identity, scope) = match &self.way {
            Way::Without | Way::Token(_) => {
                let endpoint = self.endpoint.ok_or_else(|| missing("OS_IMAGE_URL"))?;
                let token = match self.way {
                    Way::Token(token) => Some(token),
                    _ => None,
                };
                return Ok(Glance { http, endpoint, token });
            }
            Way::Keystone { url, identity, scope } => (url, identity, scope),
        };
        let mut auth = json!({ "identity": identity });
        if let Some(scope) = scope {
            auth["scope"] = scope.clone();
        }
        let tokens = format!("{}/auth/tokens", url.as_str().trim_end_matches('/'));
        let request = http.post(tokens).timeout(super::ANSWER).json(&json!({ "auth": auth }));
        let response = accepted(send(request).await?).await?;
        let token = response
            .headers()
            .get("x-subject-token")
            .and_then(|value| value.to_str().ok());
        let token = token.map(str::to_owned);
        let token = token.ok_or_else(|| Failure::new(Code::GlanceRefused, "Keystone gives no token"))?;
        let answer: Answer = json_of(response).await?;
        let (endpoint, http) = if let Some(endpoint) = &self.endpoint {
            (endpoint.clone(), http)
        } else {
            let endpoint = answer.token.image(&self.interface, self.region.as_deref())?;
            let guard = Guard::of_site(url);
            guard.look().await;
            guard.check(&endpoint).map_err(|why| {
                let detail = format!("Keystone names an image service that is sent no token: {why}");
                Failure::new(Code::GlanceLogin, detail).hint("OS_IMAGE_URL names one")
            })?;
            (endpoint, self.http(connect, Some(guard))?)
        };
        keeps_secrets(&endpoint)?;
        Ok(Glance {
            http,
            endpoint,
            token: Some(token),
        })
    }
}

impl Catalog {
    fn image(self, interface: &str, region: Option<&str>) -> Result<Url, Failure> {
        let services = self.catalog.into_iter().filter(|service| service.kind == "image");
        let mut endpoints = services.flat_map(|service| service.endpoints);
        let found = endpoints.find(|endpoint| {
            endpoint.interface == interface && region.is_none_or(|region| endpoint.region.as_deref() == Some(region))
        });
        let found = found.ok_or_else(|| {
            Failure::new(
                Code::GlanceLogin,
                format!("Keystone knows no {interface} address of an image service"),
            )
            .hint("OS_REGION_NAME and OS_INTERFACE choose one; OS_IMAGE_URL names one")
        })?;
        address("the address of the image service", &found.url)
    }
}

/// A value that no log shows.
pub(super) fn secret(token: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(token).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

fn keystone(read: Read<'_>) -> Result<Way, Failure> {
    let needed = |name: &'static str| read(name).ok_or_else(|| missing(name));
    let mut url = address("OS_AUTH_URL", &needed("OS_AUTH_URL")?)?;
    if !url.path().contains("/v3") {
        url.set_path(&format!("{}/v3", url.path().trim_end_matches('/')));
    }
    if let Some(id) = read("OS_APPLICATION_CREDENTIAL_ID") {
        let secret = needed("OS_APPLICATION_CREDENTIAL_SECRET")?;
        let identity = json!({
            "methods": ["application_credential"],
            "application_credential": { "id": id, "secret": secret },
        });
        return Ok(Way::Keystone {
            url,
            identity,
            scope: None,
        });
    }
    let domain = |name: &str| json!({ "name": read(name).unwrap_or_else(|| "Default".to_owned()) });
    let user = json!({
        "name": needed("OS_USERNAME")?,
        "password": needed("OS_PASSWORD")?,
        "domain": domain("OS_USER_DOMAIN_NAME"),
    });
    let identity = json!({ "methods": ["password"], "password": { "user": user } });
    let project = match read("OS_PROJECT_ID") {
        Some(id) => json!({ "id": id }),
        None => json!({ "name": needed("OS_PROJECT_NAME")?, "domain": domain("OS_PROJECT_DOMAIN_NAME") }),
    };
    let scope = Some(json!({ "project": project }));
    Ok(Way::Keystone { url, identity, scope })
}

fn missing(name: &str) -> Failure {
    Failure::new(Code::GlanceLogin, format!("{name} is not set"))
        .hint("`source openrc` as for OpenStack's own clients, or OS_AUTH_TYPE=none and OS_IMAGE_URL for a Glance without logins")
}

fn address(name: &str, text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| {
        Failure::new(Code::GlanceLogin, format!("{name} is no address: {text}")).hint("http://… or https://…")
    })
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Secrets cross a network in TLS only.
fn keeps_secrets(url: &Url) -> Result<(), Failure> {
    if url.scheme() == "https" || is_loopback(url) {
        return Ok(());
    }
    let detail = format!("your login is not sent to {url}: anyone on the way could read it");
    Err(Failure::new(Code::TokenInsecure, detail).hint("use https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Login, Failure> {
        Login::read(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn what_is_missing_is_named() {
        let login = [
            ("OS_AUTH_URL", "https://k:5000"),
            ("OS_USERNAME", "u"),
            ("OS_PASSWORD", "p"),
            ("OS_PROJECT_NAME", "x"),
        ];
        for (at, (name, _)) in login.iter().enumerate() {
            let failure = read(&login[..at]).unwrap_err();
            assert_eq!(failure.detail, format!("{name} is not set"));
        }
        let Way::Keystone { url, .. } = read(&login).unwrap().way else {
            panic!("another way")
        };
        assert_eq!(url.as_str(), "https://k:5000/v3");
        assert_eq!(
            read(&[("OS_AUTH_TYPE", "none")]).unwrap_err().detail,
            "OS_IMAGE_URL is not set"
        );
    }

    #[test]
    fn secrets_are_not_sent_in_the_open() {
        for (url, code) in [
            ("http://glance.example.org:9292", Some(Code::TokenInsecure)),
            ("http://127.0.0.1:9292", None),
            ("https://glance.example.org", None),
            ("ftp://x", Some(Code::GlanceLogin)),
        ] {
            let login = read(&[("OS_IMAGE_URL", url), ("OS_TOKEN", "t")]);
            assert_eq!(login.err().map(|failure| failure.code), code, "{url}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let login = read(&[("OS_IMAGE_URL", "http://127.0.0.1:1"), ("OS_TOKEN", "swordfish")]).unwrap();
        assert!(!format!("{login:?}").contains("swordfish"));
    }

    #[tokio::test]
    async fn keystone_has_no_token_sent_to_this_host_or_its_surroundings() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let answer = async |uri: axum::http::Uri| {
            let place = uri.path().split('/').nth(1).unwrap_or_default();
            let url = format!("https://{place}:1/");
            let endpoints = json!([{ "interface": "public", "url": url }]);
            let catalog = json!({ "token": { "catalog": [{ "type": "image", "endpoints": endpoints }] } });
            ([("x-subject-token", "t")], axum::Json(catalog))
        };
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
        let enter = async |place: &str| {
            let url = format!("http://127.0.0.1:{port}/{place}");
            let login = read(&[
                ("OS_AUTH_URL", &url),
                ("OS_USERNAME", "u"),
                ("OS_PASSWORD", "p"),
                ("OS_PROJECT_NAME", "x"),
            ]);
            login.unwrap().enter(Duration::from_secs(5)).await
        };
        let glance = enter("10.0.0.1").await.unwrap();
        assert_eq!(glance.endpoint.as_str(), "https://10.0.0.1:1/");
        let refused = enter("169.254.169.254").await.unwrap_err();
        assert!(refused.detail.contains("the metadata service of a cloud"), "{refused}");
    }
}

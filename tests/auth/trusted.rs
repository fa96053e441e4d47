//! Tests the callers that need no token: those of a trusted listener, and those that ask for a configured name.

use super::REQUIRED;
use crate::support::serve::{Answer, Server, send};
use serde_json::json;

/// The variables of a listener for callers on this host's loopback network.
const TRUSTED: [(&str, &str); 3] = [
    ("KILN__SERVER__HOSTS", "['cray-ims']"),
    ("KILN__TRUSTED_LISTENER__LISTEN", "127.0.0.1:0"),
    ("KILN__TRUSTED_LISTENER__NETWORKS", "['127.0.0.0/8']"),
];

/// A server and the URL of its trusted listener.
struct Site {
    server: Server,
    url: String,
}

impl Site {
    fn start(variables: &[(&str, &str)]) -> Self {
        let mut server = Server::start(&[&TRUSTED[..], variables].concat());
        let line = server.started.wait_for("NO TOKENS");
        let url = line.split_whitespace().nth(2).unwrap();
        Self {
            url: url.trim_end_matches(':').to_owned(),
            server,
        }
    }

    /// A request as CFS makes it: to the name of IMS's service; mostly without a token.
    async fn ask(&self, host: &str, method: &str, path: &str, token: &str) -> Answer {
        let url = format!("{}{path}", self.url);
        let request = self.server.client.request(method.parse().unwrap(), url);
        let mut request = request.header("host", host);
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        if method == "POST" {
            request = request.json(&json!({ "name": "image" }));
        }
        send(request).await
    }
}

#[test]
async fn a_service_without_a_token_is_served_where_others_need_one() {
    let site = Site::start(&[REQUIRED]);
    assert_eq!(site.ask("cray-ims", "GET", "/v3/images", "").await.status, 200);
    assert_eq!(site.ask("cray-ims", "POST", "/v3/images", "").await.status, 201);
    assert_eq!(
        site.ask("10.92.100.71", "GET", "/apis/ims/v3/jobs", "").await.status,
        200
    );
    let refused = site.ask("cray-ims", "DELETE", "/v3/images", "").await.problem(403);
    assert_eq!(refused, "This needs the role `admin`; `trusted-network` has `write`.");
    // The other listener is as it was.
    site.server.ask("", "GET", "/v3/images", None).await.problem(401);
    // A token counts for what it is.
    let reader = site.server.token("read");
    let refused = site.ask("cray-ims", "POST", "/v3/images", &reader).await;
    assert_eq!(
        refused.problem(403),
        "This needs the role `write`; `read-er` has `read`."
    );
    site.ask("cray-ims", "GET", "/v3/images", "kiln_x").await.problem(401);
    let log = site.server.stop().stderr;
    assert!(log.contains("callers need no token there"), "{log}");
}

#[test]
async fn callers_without_a_token_count_by_their_addresses() {
    let mut site = Site::start(&[REQUIRED, ("KILN__LIMITS__RECORDS_OF_CALLER", "1")]);
    for address in ["127.0.0.2", "127.0.0.3"] {
        let builder = reqwest::Client::builder().no_proxy();
        site.server.client = builder.local_address(address.parse().ok()).build().unwrap();
        assert_eq!(site.ask("cray-ims", "POST", "/v3/images", "").await.status, 201);
        site.ask("cray-ims", "POST", "/v3/images", "").await.problem(409);
    }
    site.server.stop();
}

#[test]
async fn a_web_page_under_a_domain_of_its_own_is_refused_without_a_token() {
    let site = Site::start(&[REQUIRED]);
    let refused = site.ask("evil.example.org", "GET", "/v3/images", "").await;
    assert!(refused.problem(403).contains("[server] hosts"), "{refused:?}");
    site.server.stop();
}

#[test]
async fn a_caller_from_another_network_is_refused_with_a_token_too() {
    let networks = ("KILN__TRUSTED_LISTENER__NETWORKS", "['10.32.0.0/12']");
    let site = Site::start(&[networks, REQUIRED]);
    let admin = site.server.token("admin");
    for token in ["", admin.as_str()] {
        let refused = site.ask("cray-ims", "GET", "/v3/images", token).await;
        assert!(refused.problem(403).contains("other networks"), "{refused:?}");
    }
    site.server.stop();
}

#[test]
async fn a_proxy_on_this_host_may_ask_by_a_configured_name() {
    let site = Site::start(&[]);
    let by_name = async |host: &str| send(site.server.request("GET", "/v3/images").header("host", host)).await;
    assert_eq!(by_name("cray-ims").await.status, 200);
    assert!(
        by_name("cray-ims.example.org")
            .await
            .problem(403)
            .contains("[server] hosts")
    );
    // Without authentication, the trusted listener still gives its own role only.
    site.ask("cray-ims", "DELETE", "/v3/images", "").await.problem(403);
    site.server.stop();
}

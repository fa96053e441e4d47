//! S3 that fails, for a while or for good.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use kiln::artifacts::{S3Settings, embedded::EmbeddedS3};

use crate::{
    invariants::{Observer, check},
    needs,
    s3_proxy::{Fault, Rule, S3Proxy},
    site::Site,
    support::{self, Kiln, Recipe},
};

/// How long S3 fails when it does so for a while.
const A_WHILE: Duration = Duration::from_secs(4);

/// An image of several parts.
const LARGE: &str = "head -c 40000000 /dev/urandom > /var/large";

/// What a server is told of the S3 service behind the proxy.
fn variables(settings: &S3Settings, proxy: &S3Proxy) -> Vec<(&'static str, String)> {
    vec![
        ("KILN__S3__ENDPOINT", format!("http://{}", proxy.address)),
        ("KILN__S3__ACCESS_KEY", settings.access_key.clone().unwrap()),
        (
            "KILN__S3__SECRET_KEY",
            settings.secret_key.as_ref().unwrap().expose().to_owned(),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_s3_that_fails_for_a_while_costs_no_image() {
    needs!(support::no_namespaces());
    let dir = tempfile::tempdir().unwrap();
    let embedded = EmbeddedS3::start(dir.path(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let settings = embedded.settings();
    let address: SocketAddr = settings
        .endpoint
        .as_ref()
        .unwrap()
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    let proxy = S3Proxy::start(address).await;
    let own = variables(&settings, &proxy);
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let site = Arc::new(Site::start_in(Kiln::new(), &own).await.with_s3(dir.path(), settings));
    let observer = Observer::of(&site);
    let recipe = site.recipe("large", Recipe::with_script(LARGE));

    let rule = |fault, method, target, every| Rule {
        fault,
        method,
        target,
        every,
    };
    let rules = [
        rule(Fault::Status(500), "", "", 2),
        rule(Fault::Status(503), "", "", 1),
        rule(Fault::Slow(Duration::from_secs(2)), "", "", 1),
        rule(Fault::Cut(1 << 20), "PUT", "partNumber", 1),
        rule(Fault::Reset, "", "", 1),
        rule(Fault::Reset, "POST", "uploadId", 2),
        rule(Fault::Status(404), "PUT", "partNumber", 2),
    ];
    for rule in rules {
        let before = proxy.failed();
        let job = site.submit(&recipe).await;
        // As its artifacts are about to come.
        site.wait_until(&job, "building", |job| crate::site::rank(job) >= 7)
            .await;
        proxy.set(Some(rule));
        let failing = async {
            while proxy.failed() == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(A_WHILE).await;
            proxy.set(None);
        };
        let ((), ended) = tokio::join!(failing, site.end_of(&job));
        assert_eq!(ended["state"], "success", "{rule:?}: {ended:#}");
        println!(
            "{rule:?}: {} requests failed, {} tries",
            proxy.failed() - before,
            ended["attempt"]
        );
    }
    let ends = check(&site, &observer).await;
    assert_eq!(ends.success, rules.len(), "{ends:?}");
    embedded.shutdown().await;
}

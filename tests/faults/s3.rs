//! S3 that fails, for a while or for good.

use std::{sync::Arc, time::Duration};

use kiln::artifacts::S3Settings;
use kiln_s3::EmbeddedS3;
use serde_json::Value;
use tempfile::TempDir;

use crate::faults::{
    invariants::{Observer, check},
    s3_proxy::{Fault, Rule, S3Proxy},
    site::{Site, rank},
};
use crate::support::{self, Kiln, Recipe, eventually_async};

/// How long S3 fails when it does so for a while.
const A_WHILE: Duration = Duration::from_secs(4);

/// An image of several parts.
const LARGE: &str = "head -c 40000000 /dev/urandom > /var/large";

/// A site whose S3 is behind a proxy.
struct Behind {
    site: Arc<Site>,
    proxy: S3Proxy,
    embedded: EmbeddedS3,
    _dir: TempDir,
}

impl Behind {
    async fn start(more: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let embedded = EmbeddedS3::start(dir.path(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let settings = S3Settings::from(&embedded);
        let address = settings.endpoint.as_ref().unwrap().strip_prefix("http://").unwrap();
        let proxy = S3Proxy::start(address.parse().unwrap()).await;
        let endpoint = format!("http://{}", proxy.address);
        let own = [
            ("KILN__S3__ENDPOINT", endpoint.as_str()),
            ("KILN__S3__ACCESS_KEY", settings.access_key.as_deref().unwrap()),
            ("KILN__S3__SECRET_KEY", settings.secret_key.as_ref().unwrap().expose()),
        ];
        let site = Site::start_in(Kiln::new(), &[&own[..], more].concat()).await;
        let site = Arc::new(site.with_s3(dir.path(), settings.clone()));
        Self {
            site,
            proxy,
            embedded,
            _dir: dir,
        }
    }
}

#[test(threads = 4)]
async fn an_s3_that_fails_for_good_is_named_as_the_cause() {
    needs!(support::no_namespaces());
    let more = [
        ("KILN__WATCH__SILENCE", "60s"),
        ("KILN__WATCH__ATTEMPTS", "2"),
        ("KILN__WATCH__RETRY_PAUSE", "1s"),
    ];
    let Behind {
        site,
        proxy,
        embedded,
        _dir,
    } = Behind::start(&more).await;
    let observer = Observer::of(&site);
    let recipe = site.small_recipe();
    proxy.set(Some(Rule {
        fault: Fault::Status(500),
        method: "PUT",
        target: "partNumber",
        every: 1,
    }));
    let ended = site.end_of(&site.submit(&recipe).await).await;
    assert_eq!(ended["error"]["code"], "upload_failed", "{ended:#}");
    assert_eq!(ended["attempt"], 2, "{ended:#}");
    println!("{}", ended["error"]);
    let ends = check(&site, &observer).await;
    assert_eq!(ends.success, 0, "{ends:?}");
    embedded.shutdown().await;
}

#[test(threads = 4)]
async fn an_s3_that_fails_for_a_while_costs_no_image() {
    needs!(support::no_namespaces());
    let Behind {
        site,
        proxy,
        embedded,
        _dir,
    } = Behind::start(&[]).await;
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
        site.wait_until(&job, "building", |job| rank(job) >= 7).await;
        proxy.set(Some(rule));
        let failing = async {
            eventually_async(async || proxy.failed() > before).await;
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

#[test(threads = 4)]
async fn an_s3_that_fails_every_other_request_costs_no_image() {
    needs!(support::no_namespaces());
    let Behind {
        site,
        proxy,
        embedded,
        _dir,
    } = Behind::start(&[("KILN__WATCH__RETRY_PAUSE", "1s")]).await;
    let observer = Observer::of(&site);
    let recipe = site.recipe("large", Recipe::with_script(LARGE));
    for fault in [Fault::Status(500), Fault::Reset] {
        let job = site.submit(&recipe).await;
        proxy.set(Some(Rule {
            fault,
            method: "",
            target: "",
            every: 2,
        }));
        let ended = site.end_of(&job).await;
        proxy.set(None);
        assert_eq!(ended["state"], "success", "{fault:?}: {ended:#}");
        println!(
            "{fault:?}: {} requests failed, {} tries",
            proxy.failed(),
            ended["attempt"]
        );
    }
    let ends = check(&site, &observer).await;
    assert_eq!(ends.success, 2, "{ends:?}");
    embedded.shutdown().await;
}

/// A job that is done waits for its log and its manifest to be written, for longer than the client of S3 tries by itself.
#[test(threads = 4)]
async fn an_s3_that_is_overloaded_as_a_job_ends_costs_no_image() {
    needs!(support::no_namespaces());
    let Behind {
        site,
        proxy,
        embedded,
        _dir,
    } = Behind::start(&[]).await;
    let observer = Observer::of(&site);
    let recipe = site.small_recipe();
    let cases = [(503, "build.log"), (429, "manifest.json")];
    for (status, target) in cases {
        let before = proxy.failed();
        proxy.set(Some(Rule {
            fault: Fault::Status(status),
            method: "PUT",
            target,
            every: 1,
        }));
        let job = site.submit(&recipe).await;
        // Four tries are those of one request.
        let several_looks = |job: &Value| rank(job) > 10 || proxy.failed() - before >= 9;
        let waiting = site.wait_until(&job, "looked at", several_looks).await;
        assert_eq!(waiting["state"], "committing", "{status} {target}: {waiting:#}");
        proxy.set(None);
        let ended = site.end_of(&job).await;
        assert_eq!(ended["state"], "success", "{status} {target}: {ended:#}");
        assert_eq!(ended["attempt"], 1, "{status} {target}: {ended:#}");
    }
    let ends = check(&site, &observer).await;
    assert_eq!(ends.success, cases.len(), "{ends:?}");
    embedded.shutdown().await;
}

//! Lists the native twins that have failed on this site. Reads the store of records, if there is one.

use kiln_records::{FailedTwin, Failure, TwinPair};

use crate::{
    config::Config,
    doctor::{Finding, broken},
    site,
};

const AREA: &str = "twins";
const WHAT: &str = "native twins";

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    if config.store.url.is_none() && !config.records_file().exists() {
        return vec![Finding::ok(AREA, WHAT, "no job has run yet")];
    }
    match failed(config).await {
        Ok(failed) if failed.is_empty() => vec![Finding::ok(AREA, WHAT, "none has failed")],
        Ok(failed) => {
            let count = format!(
                "{} of them failed, and are not used until their packages change",
                failed.len()
            );
            let mut findings = vec![Finding::ok(AREA, WHAT, count)];
            findings.extend(failed.iter().map(finding));
            findings
        }
        Err(failure) => vec![broken(AREA, WHAT, &failure, "see [store] in `kiln config show`")],
    }
}

async fn failed(config: &Config) -> Result<Vec<FailedTwin>, Failure> {
    let store = site::open_store(config).await?;
    let failed = store.failed_twins(None).await;
    store.close().await;
    Ok(failed?)
}

fn finding(failed: &FailedTwin) -> Finding {
    let FailedTwin { pair, job, since, code } = failed;
    let detail = format!(
        "{} failed in job {job} ({code}), which succeeded without it at {since}",
        named(pair)
    );
    let next = format!("report it; `kiln doctor --use-twin {job}` has it used again");
    Finding::broken(AREA, "failed twin", detail, next)
}

/// A pair, for people.
fn named(pair: &TwinPair) -> String {
    let TwinPair {
        package,
        version,
        path,
        target,
        host,
    } = pair;
    format!("{path} of {package} {version}, {host} for {target}")
}

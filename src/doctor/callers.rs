//! Says which callers the configuration lets in without a token. Reads the configuration only.

use crate::{
    config::{Access, Config},
    doctor::Finding,
};

const AREA: &str = "callers";

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let hosts = config.server.hosts.join(", ");
    findings.push(match config.access() {
        Access::Authenticated => Finding::ok(AREA, "tokens", "every caller needs one"),
        Access::Open if hosts.is_empty() => Finding::ok(AREA, "tokens", "off: only this host can call"),
        Access::Open => Finding::ok(
            AREA,
            "tokens",
            format_args!("off: this host can call, and every caller that a proxy here lets ask for {hosts}"),
        ),
    });
    let trusted = &config.trusted_listener;
    for address in &trusted.listen.0 {
        let networks: Vec<String> = trusted.networks.iter().map(ToString::to_string).collect();
        findings.push(Finding::ok(
            AREA,
            "no tokens",
            format_args!(
                "http://{address} gives the role `{}` to every host in {}",
                trusted.role.name(),
                networks.join(", ")
            ),
        ));
    }
    findings
}

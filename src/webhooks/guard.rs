//! Which addresses a receiver may have. Resolves names; opens no connection.

use std::net::IpAddr;

use kiln_registry::AddressKind as Kind;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;

use crate::config::Receiver;

/// The rule for one receiver. It resolves names for connections, too: what was checked is what is connected to.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    /// Whether this host and the local link are allowed.
    allow_local: bool,
    /// The receiver's host. Other names that are resolved are those of a proxy, which the site chose.
    host: String,
}

/// An address that no receiver may have.
#[derive(Debug, thiserror::Error)]
#[error("it is at {address}, {noun}; `allow_local = true` in [webhooks] allows that for this receiver")]
pub(super) struct NotAllowed {
    address: IpAddr,
    noun: &'static str,
}

impl Guard {
    /// The rule for a receiver.
    pub(super) fn of(receiver: &Receiver) -> Self {
        Self {
            allow_local: receiver.allow_local,
            host: receiver.url.host_str().unwrap_or_default().to_owned(),
        }
    }

    fn check(&self, address: IpAddr) -> Result<(), NotAllowed> {
        match Kind::of(address) {
            Kind::Public | Kind::Private => Ok(()),
            Kind::Loopback | Kind::Link if self.allow_local => Ok(()),
            kind => Err(NotAllowed {
                address,
                noun: kind.noun(),
            }),
        }
    }

    /// Checks an address that is written as one: nothing resolves it.
    pub(super) fn check_written(&self) -> Result<(), NotAllowed> {
        match self.host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => self.check(address),
            Err(_) => Ok(()),
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found: Vec<_> = lookup_host((name.as_str(), 0)).await?.collect();
            if name.as_str().eq_ignore_ascii_case(&guard.host) {
                for address in &found {
                    guard.check(address.ip())?;
                }
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

//! Which addresses a receiver may have. Opens no connection.

use kiln_addresses::{Guard, Kind};

use crate::config::Receiver;

/// The kinds of addresses that every receiver may have.
const ALLOWED: [Kind; 2] = [Kind::Public, Kind::Private];

/// Those that it may have if its operator says so: this host, and what is near it.
const LOCAL: [Kind; 4] = [Kind::Loopback, Kind::Here, Kind::Link, Kind::Metadata];

/// The rule for a receiver.
pub(super) fn of(receiver: &Receiver) -> Guard {
    let local = LOCAL.into_iter().filter(|_| receiver.allow_local);
    Guard::within(
        &receiver.url,
        ALLOWED.into_iter().chain(local),
        "; `allow_local = true` in [webhooks] allows that for this receiver",
    )
}

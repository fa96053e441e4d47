//! Limits the rate of requests of each caller. Keeps its counts in memory: no I/O.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};
use kiln_records::{JobId, TokenId};

use super::problem::Problem;
use crate::config::LimitSettings;

/// The number of callers that are counted separately. In a flood from many addresses, the rest count as one.
const MOST_CALLERS: usize = 50_000;

/// The number of requests after which silent callers are forgotten.
const FORGET_EVERY: u32 = 4096;

/// The identity of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The holder of a token.
    Token(TokenId),
    /// A subject of the issuer.
    Subject(String),
    /// The agent of a job.
    Agent(JobId),
    /// An address of the network.
    Peer(IpAddr),
    /// All callers beyond the limit.
    Others,
}

impl Key {
    /// The key of an address.
    pub(super) fn peer(address: IpAddr) -> Self {
        Self::Peer(of_one_host(address))
    }
}

/// What the addresses of one host have in common: of IPv6, 2^64 belong to it.
pub(super) fn of_one_host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Counts requests, in memory of bounded size.
#[derive(Debug)]
pub(super) struct Rate {
    limiter: Option<DefaultKeyedRateLimiter<Key>>,
    since_forgetting: AtomicU32,
    /// Whether there were too many callers at the last census. A census costs more than a request should.
    crowded: AtomicBool,
}

impl Rate {
    /// The limit for all requests.
    pub(super) fn of_requests(settings: &LimitSettings) -> Self {
        let burst = NonZeroU32::new(settings.burst).unwrap_or(NonZeroU32::MIN);
        let quota =
            NonZeroU32::new(settings.requests_per_second).map(|rate| Quota::per_second(rate).allow_burst(burst));
        Self::new(quota)
    }

    /// The limit for wrong tokens.
    pub(super) fn of_failed_logins(settings: &LimitSettings) -> Self {
        Self::new(NonZeroU32::new(settings.failed_logins_per_minute).map(Quota::per_minute))
    }

    fn new(quota: Option<Quota>) -> Self {
        Self {
            limiter: quota.map(RateLimiter::dashmap),
            since_forgetting: AtomicU32::new(0),
            crowded: AtomicBool::new(false),
        }
    }

    /// Counts one request. When that exceeds the limit, the error is the time to wait.
    pub(super) fn count(&self, key: Key) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        if self.since_forgetting.fetch_add(1, Ordering::Relaxed) >= FORGET_EVERY {
            self.since_forgetting.store(0, Ordering::Relaxed);
            limiter.retain_recent();
            limiter.shrink_to_fit();
            self.crowded.store(limiter.len() >= MOST_CALLERS, Ordering::Relaxed);
        }
        let key = if self.crowded.load(Ordering::Relaxed) {
            Key::Others
        } else {
            key
        };
        limiter
            .check_key(&key)
            .map_err(|not_until| not_until.wait_time_from(DefaultClock::default().now()))
    }
}

/// 429: too many requests.
pub(super) fn too_often(what: &str, wait: Duration) -> Response {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let detail = format!("{what} Try again in {seconds} s.");
    let mut response = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).into_response();
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(requests_per_second: u32, burst: u32) -> LimitSettings {
        LimitSettings {
            requests_per_second,
            burst,
            ..LimitSettings::default()
        }
    }

    fn peer(number: u32) -> Key {
        Key::peer(IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn each_caller_has_a_budget_of_its_own() {
        let rate = Rate::of_requests(&settings(1, 3));
        for _ in 0..3 {
            assert_eq!(rate.count(peer(1)), Ok(()));
        }
        let wait = rate.count(peer(1)).unwrap_err();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        assert_eq!(rate.count(peer(2)), Ok(()));
        assert_eq!(rate.count(Key::Token(TokenId::new())), Ok(()));
    }

    #[test]
    fn zero_is_no_limit() {
        let rate = Rate::of_requests(&settings(0, 0));
        assert!((0..10_000).all(|_| rate.count(peer(1)).is_ok()));
    }

    #[test]
    fn a_flood_from_many_addresses_does_not_fill_the_memory() {
        let rate = Rate::of_requests(&settings(1, 100_000));
        for number in 0..120_000 {
            let _ = rate.count(peer(number));
        }
        assert!(rate.limiter.unwrap().len() <= MOST_CALLERS + FORGET_EVERY as usize + 1);
    }

    #[test]
    fn addresses_of_one_host_are_one_caller() {
        let key = |text: &str| Key::peer(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
    }
}

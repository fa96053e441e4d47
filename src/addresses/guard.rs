//! The rule for the clients of one host. Resolves names; opens no connection.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
};

use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

use crate::Kind;

/// The kinds of addresses that a host may have; `None`: any.
type Kinds = Option<BTreeSet<Kind>>;

/// The rule for the clients of one host, which was chosen by whoever may choose it.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The chosen host.
    host: String,
    /// The kinds of addresses that it may have.
    own: Kinds,
    /// Those of others.
    others: Others,
    /// What to say of an address that is not allowed.
    advice: &'static str,
    /// The hosts of the site's proxies, which clients find in the environment.
    proxies: Arc<BTreeSet<String>>,
}

#[derive(Debug, Clone)]
enum Others {
    /// Those that the chosen host names: public ones, and of the kinds that it has itself, as it was last seen.
    Named(Arc<RwLock<BTreeSet<Kind>>>),
    /// The same, and private ones; if the host is this machine, also this machine by any of its addresses.
    OfSite(Arc<RwLock<BTreeSet<Kind>>>),
    /// Of these kinds; there may be none.
    Of(BTreeSet<Kind>),
}

/// Why an address is not connected to.
#[derive(Debug, thiserror::Error)]
pub enum NotAllowed {
    /// It is of a kind that is not allowed.
    #[error("it is at {address}, {}{advice}", kind.noun())]
    Kind {
        /// The address.
        address: IpAddr,
        /// Its kind.
        kind: Kind,
        /// What to do about it.
        advice: &'static str,
    },
    /// Nobody knows whether it is one of this machine's own.
    #[error("the addresses of this machine are unknown: {0}")]
    Unknown(#[from] io::Error),
}

impl NotAllowed {
    /// What the address is.
    pub fn noun(&self) -> &'static str {
        match self {
            Self::Kind { kind, .. } => kind.noun(),
            Self::Unknown(_) => "an address that may be of this machine",
        }
    }
}

impl Guard {
    /// The rule for a host that may be anywhere and names others: these are public, or of the kinds that it has itself. Those are
    /// known from the first [`Guard::look`] on.
    pub fn of_namer(url: &Url) -> Self {
        Self {
            host: bare(url).to_owned(),
            own: None,
            others: Others::Named(Arc::default()),
            advice: "",
            proxies: proxies(),
        }
    }

    /// The rule for a host that its user chose, and that names other hosts of its site: besides, these may be private.
    pub fn of_site(url: &Url) -> Self {
        Self {
            others: Others::OfSite(Arc::default()),
            ..Self::of_namer(url)
        }
    }

    /// The rule for a host that may only have addresses of some kinds, and leads nowhere.
    pub fn within(url: &Url, kinds: impl IntoIterator<Item = Kind>, advice: &'static str) -> Self {
        Self {
            host: bare(url).to_owned(),
            own: Some(kinds.into_iter().collect()),
            others: Others::Of(BTreeSet::new()),
            advice,
            proxies: proxies(),
        }
    }

    /// The rule for what nobody on a network may read: this machine's loopback itself.
    pub fn loopback_only() -> Self {
        Self {
            host: String::new(),
            own: None,
            others: Others::Of(BTreeSet::from([Kind::Loopback])),
            advice: "",
            proxies: Arc::default(),
        }
    }

    /// Looks where the chosen host is. A name that only a proxy can resolve is taken to be public.
    pub async fn look(&self) {
        let (Others::Named(known) | Others::OfSite(known)) = &self.others else {
            return;
        };
        let found = match self.host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => match resolve(&self.host).await {
                Ok(all) => all.iter().map(SocketAddr::ip).collect(),
                Err(_) => return,
            },
        };
        let mut kinds: BTreeSet<Kind> = found.into_iter().filter_map(|address| Kind::of(address).ok()).collect();
        kinds.remove(&Kind::Nowhere);
        *known.write().unwrap_or_else(PoisonError::into_inner) = kinds;
    }

    /// Whether the chosen host is on this machine's loopback, as it was last seen.
    pub fn is_loopback(&self) -> bool {
        let Others::Named(known) = &self.others else {
            return false;
        };
        let kinds = known.read().unwrap_or_else(PoisonError::into_inner);
        !kinds.is_empty() && kinds.iter().all(|kind| *kind == Kind::Loopback)
    }

    /// Checks an address that is about to be asked, as far as it can be seen without resolving: connections check the rest.
    ///
    /// # Errors
    ///
    /// It is not allowed.
    pub fn check(&self, url: &Url) -> Result<(), NotAllowed> {
        let host = bare(url);
        match host.parse::<IpAddr>() {
            Ok(address) => self.admit(host, address),
            // RFC 6761: whatever a resolver says.
            Err(_) if host == "localhost" || host.ends_with(".localhost") => {
                self.admit(host, IpAddr::from([127, 0, 0, 1]))
            }
            Err(_) => Ok(()),
        }
    }

    fn admit(&self, host: &str, address: IpAddr) -> Result<(), NotAllowed> {
        let is_chosen = host.eq_ignore_ascii_case(&self.host);
        if is_chosen && self.own.is_none() || self.proxies.contains(&host.to_ascii_lowercase()) {
            return Ok(());
        }
        let kind = Kind::of(address)?;
        let is_allowed = match (&self.own, &self.others) {
            (Some(kinds), _) if is_chosen => kinds.contains(&kind),
            (_, Others::Of(kinds)) => kinds.contains(&kind),
            (_, Others::Named(known) | Others::OfSite(known)) => {
                let kinds = known.read().unwrap_or_else(PoisonError::into_inner);
                let of_site = matches!(self.others, Others::OfSite(_));
                let also = match kind {
                    // Who listens on the loopback is on this machine.
                    Kind::Here => kinds.contains(&Kind::Loopback),
                    Kind::Loopback => of_site && kinds.contains(&Kind::Here),
                    Kind::Private => of_site,
                    _ => false,
                };
                kind == Kind::Public || kinds.contains(&kind) || also
            }
        };
        is_allowed.then_some(()).ok_or(NotAllowed::Kind {
            address,
            kind,
            advice: self.advice,
        })
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let (mut allowed, mut refused) = (Vec::new(), None);
            for address in resolve(name.as_str()).await? {
                match guard.admit(name.as_str(), address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(why) => refused = Some(why),
                }
            }
            match refused {
                Some(why) if allowed.is_empty() => Err(why.into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

async fn resolve(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((host, 0)).await?.collect())
}

/// The hosts of the proxies in the environment.
fn proxies() -> Arc<BTreeSet<String>> {
    let names = [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ];
    let host = |value: String| {
        let url = Url::parse(&value).ok().filter(Url::has_host);
        let url = url.or_else(|| Url::parse(&format!("http://{value}")).ok())?;
        Some(bare(&url).to_ascii_lowercase())
    };
    let values = names.into_iter().filter_map(|name| std::env::var(name).ok());
    Arc::new(values.filter_map(host).collect())
}

fn bare(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own;

    fn url(host: &str) -> Url {
        Url::parse(&format!("https://{host}/v2/")).unwrap()
    }

    fn host_of(address: IpAddr) -> String {
        match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        }
    }

    #[tokio::test]
    async fn a_host_leads_only_to_public_places_and_its_own_kind() {
        let guards = ["9.9.9.9", "127.0.0.1:5000", "10.0.0.1"].map(|host| Guard::of_namer(&url(host)));
        for guard in &guards {
            guard.look().await;
        }
        let (public, loopback, private) = (&guards[0], &guards[1], &guards[2]);
        for (to, from_public, from_loopback, from_private) in [
            ("1.1.1.1", true, true, true),
            ("127.0.0.2", false, true, false),
            ("localhost", false, true, false),
            ("x.localhost", false, true, false),
            ("[::1]:9", false, true, false),
            ("[::ffff:7f00:1]", false, true, false),
            ("10.9.9.9", false, false, true),
            ("169.254.169.254", false, false, false),
            ("100.100.100.200", false, false, false),
            ("[fd00:ec2::254]", false, false, false),
            ("0.0.0.0", false, false, false),
            // Decimal and octal spellings of addresses are addresses.
            ("2130706433", false, true, false),
            ("0177.0.0.1", false, true, false),
        ] {
            let seen = [public, loopback, private].map(|guard| guard.check(&url(to)).is_ok());
            assert_eq!(seen, [from_public, from_loopback, from_private], "{to}");
        }
        assert!(loopback.is_loopback() && !private.is_loopback());
        for address in own().unwrap() {
            let seen = [public, loopback, private].map(|guard| guard.check(&url(&host_of(address))).is_ok());
            assert_eq!(seen, [false, true, false], "{address}");
        }
    }

    #[tokio::test]
    async fn a_site_is_public_or_private_and_not_this_machine() {
        let guards = ["9.9.9.9", "127.0.0.1:9000", "10.0.0.1"].map(|host| Guard::of_site(&url(host)));
        for guard in &guards {
            guard.look().await;
        }
        for (to, expected) in [
            ("1.1.1.1", [true, true, true]),
            ("10.9.9.9", [true, true, true]),
            ("127.0.0.2", [false, true, false]),
            ("localhost", [false, true, false]),
            ("169.254.169.254", [false, false, false]),
            ("[fd00:ec2::254]", [false, false, false]),
            ("169.254.1.1", [false, false, false]),
        ] {
            let seen = [0, 1, 2].map(|at| guards[at].check(&url(to)).is_ok());
            assert_eq!(seen, expected, "{to}");
        }
        for address in own().unwrap() {
            let own = url(&host_of(address));
            let seen = [0, 1, 2].map(|at| guards[at].check(&own).is_ok());
            assert_eq!(seen, [false, true, false], "{address}");
            // Seen from this machine, its server's objects are on the loopback.
            let here = Guard::of_site(&own);
            here.look().await;
            assert!(here.check(&url("127.0.0.1")).is_ok(), "{address}");
        }
    }

    #[tokio::test]
    async fn names_are_checked_when_they_are_resolved() {
        let public = Guard::of_namer(&url("9.9.9.9"));
        public.look().await;
        assert!(public.resolve("localhost".parse().unwrap()).await.is_err());
        let own = Guard::of_namer(&url("localhost"));
        assert!(own.resolve("localhost".parse().unwrap()).await.is_ok());
        let only = Guard::loopback_only();
        assert!(only.resolve("localhost".parse().unwrap()).await.is_ok());
    }

    #[test]
    fn credentials_for_the_loopback_go_nowhere_else() {
        let only = Guard::loopback_only();
        assert!(only.check(&url("127.0.0.1")).is_ok() && only.check(&url("[::1]")).is_ok());
        for other in ["192.0.2.2", "10.0.0.1", "0.0.0.0"] {
            assert!(only.check(&url(other)).is_err(), "{other}");
        }
        for address in own().unwrap() {
            assert!(only.check(&url(&host_of(address))).is_err(), "{address}");
        }
    }

    #[tokio::test]
    async fn a_host_within_kinds_is_of_these_and_proxies_are_the_sites_choice() {
        let guard = |host: &str| Guard::within(&url(host), [Kind::Public, Kind::Private], "; ask the site");
        assert!(guard("10.1.1.1").check(&url("10.1.1.1")).is_ok());
        let refused = guard("127.1").check(&url("127.1")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it is at 127.0.0.1, the loopback of this machine; ask the site"
        );
        for address in own().unwrap() {
            let host = host_of(address);
            let refused = guard(&host).check(&url(&host)).unwrap_err();
            assert_eq!(refused.noun(), "an address of this machine");
        }
        assert!(guard("localhost").resolve("localhost".parse().unwrap()).await.is_err());
        let proxied = Guard {
            proxies: Arc::new(BTreeSet::from(["localhost".to_owned()])),
            ..guard("hook.example")
        };
        assert!(proxied.resolve("localhost".parse().unwrap()).await.is_ok());
    }
}

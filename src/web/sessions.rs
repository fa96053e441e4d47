//! The sessions of people who signed in. In memory only: they end with the server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use kiln_records::{
    Clock, Secret,
    budget::{SESSIONS, SESSIONS_OF_CALLER},
};
use sha2::{Digest, Sha256};

use crate::{
    api::auth::sign_in::Held,
    store::{DroppedKind, SharedStore},
};

/// How long a session lasts.
const LONGEST: Duration = Duration::from_hours(12);

/// All sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Whether browsers reach the server over TLS.
    secure: bool,
    /// Makes the tokens of forms unguessable.
    secret: Secret,
    pub(super) clock: Clock,
    open: Mutex<HashMap<Key, Session>>,
}

/// A session, by the digest of its cookie: the time that a search takes says nothing about cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

/// A cookie of the pages.
#[derive(Debug)]
pub(super) struct Cookie {
    pub(super) name: &'static str,
    pub(super) same_site: &'static str,
}

/// The cookie of a session.
const SESSION: Cookie = Cookie {
    name: "kiln_session",
    same_site: "Strict",
};

/// The tokens of a session. Locked while the issuer replaces them, so that it is asked once.
pub(super) type Tokens = Arc<tokio::sync::Mutex<Held>>;

#[derive(Debug)]
struct Session {
    tokens: Tokens,
    /// Whose it is.
    caller: String,
    begun: Instant,
}

impl Sessions {
    pub(super) fn new(secure: bool, clock: Clock) -> Self {
        Self {
            secure,
            secret: hex::encode(rand::random::<[u8; 32]>()).into(),
            clock,
            open: Mutex::default(),
        }
    }

    /// Begins a session.
    pub(super) async fn begin(&self, held: Held, store: &SharedStore) -> (Key, HeaderValue) {
        let (begun, ended) = self.add(held);
        if let Some(caller) = ended {
            tracing::info!(
                caller,
                "the oldest session of the dashboard that a caller has ends before its time"
            );
            if let Err(error) = store.note_dropped(DroppedKind::Session, 1).await {
                tracing::warn!("nothing but the log says that a session has ended before its time: {error}");
            }
        }
        begun
    }

    /// Adds a session: its key and the header that gives the browser its cookie. Whoever has too many loses the oldest of
    /// their own; if there are too many in all, so does whoever has the most. Says who it was.
    fn add(&self, held: Held) -> ((Key, HeaderValue), Option<String>) {
        let cookie = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let key = Key::of(&cookie);
        let mut open = self.open();
        open.retain(|_, session| self.is_open(session));
        let caller = held.caller.clone();
        let own = open.values().filter(|session| session.caller == caller).count();
        let loser = match () {
            () if own >= SESSIONS_OF_CALLER => Some(caller.clone()),
            () if open.len() >= SESSIONS => Some(with_most(&open)),
            () => None,
        };
        if let Some(loser) = &loser {
            end_oldest(&mut open, loser);
        }
        let session = Session {
            tokens: Arc::new(tokio::sync::Mutex::new(held)),
            caller,
            begun: self.clock.instant(),
        };
        open.insert(key, session);
        ((key, self.cookie(&SESSION, &cookie, LONGEST)), loser)
    }

    fn is_open(&self, session: &Session) -> bool {
        self.clock.instant().duration_since(session.begun) < LONGEST
    }

    /// Ends a session. Returns the header that takes the cookie away.
    pub(super) fn end(&self, key: Option<Key>) -> HeaderValue {
        if let Some(key) = key {
            self.open().remove(&key);
        }
        self.cookie(&SESSION, "", Duration::ZERO)
    }

    /// The session of a request, with its tokens, if it is open.
    pub(super) fn of(&self, headers: &HeaderMap) -> Option<(Key, Tokens)> {
        let key = Key::of(self.value(&SESSION, headers)?);
        let open = self.open();
        let session = open.get(&key).filter(|session| self.is_open(session))?;
        Some((key, Arc::clone(&session.tokens)))
    }

    /// The value of a cookie that a request brings.
    pub(super) fn value<'a>(&self, cookie: &Cookie, headers: &'a HeaderMap) -> Option<&'a str> {
        let name = self.name(cookie);
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'));
        let mut named = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        named.find(|(given, _)| *given == name).map(|(_, value)| value)
    }

    /// The token that forms of a session carry, so that no page of another site can send them. Without sessions, all
    /// forms of a server have the same: other sites cannot read it either.
    pub(super) fn form_token(&self, key: Option<Key>) -> String {
        let mut digest = Sha256::new();
        digest.update(self.secret.expose());
        if let Some(Key(key)) = key {
            digest.update(key);
        }
        hex::encode(digest.finalize())
    }

    /// The header that gives the browser a cookie, or takes it away with an age of zero.
    pub(super) fn cookie(&self, cookie: &Cookie, value: &str, age: Duration) -> HeaderValue {
        let (name, same_site, age) = (self.name(cookie), cookie.same_site, age.as_secs());
        let secure = if self.secure { "; Secure" } else { "" };
        let cookie = format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite={same_site}{secure}");
        HeaderValue::from_str(&cookie).unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    /// Over TLS, the prefix keeps other hosts of the domain from setting the cookie.
    fn name(&self, cookie: &Cookie) -> String {
        let prefix = if self.secure { "__Host-" } else { "" };
        format!("{prefix}{}", cookie.name)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Key, Session>> {
        // Each change is one call.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the oldest session of a caller.
fn end_oldest(open: &mut HashMap<Key, Session>, caller: &str) {
    let own = open.iter().filter(|(_, session)| session.caller == caller);
    let oldest = own.min_by_key(|(_, session)| session.begun).map(|(key, _)| *key);
    if let Some(oldest) = oldest {
        open.remove(&oldest);
    }
}

/// The caller with the most sessions.
fn with_most(open: &HashMap<Key, Session>) -> String {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for session in open.values() {
        *counts.entry(&session.caller).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(caller, _)| caller.to_owned()).unwrap_or_default()
}

impl Key {
    fn of(cookie: &str) -> Self {
        Self(Sha256::digest(cookie).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(cookie: &HeaderValue) -> HeaderMap {
        let value = cookie.to_str().unwrap().split(';').next().unwrap();
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(&format!("a=b; {value}")).unwrap())])
    }

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_ends() {
        let clock = Clock::default();
        let sessions = Sessions::new(true, clock.clone());
        let (key, cookie) = sessions.add(held("a")).0;
        let headers = sent(&cookie);
        let (found, tokens) = sessions.of(&headers).unwrap();
        assert_eq!(found, key);
        assert_eq!(tokens.try_lock().unwrap().token.expose(), "kiln_x");
        assert!(
            cookie
                .to_str()
                .unwrap()
                .ends_with("; HttpOnly; SameSite=Strict; Secure")
        );
        let other = sent(&HeaderValue::from_static("__Host-kiln_session=x"));
        assert!(sessions.of(&other).is_none());
        assert_ne!(sessions.form_token(Some(key)), sessions.form_token(None));
        sessions.end(Some(key));
        assert!(sessions.of(&headers).is_none());
        // Nor does anybody stay signed in for ever.
        let (_, cookie) = sessions.add(held("a")).0;
        clock.forward(LONGEST / 2);
        assert!(sessions.of(&sent(&cookie)).is_some());
        clock.forward(LONGEST / 2);
        assert!(sessions.of(&sent(&cookie)).is_none());
        assert!(!format!("{sessions:?}").contains("kiln_x"));
    }

    fn held(caller: &str) -> Held {
        Held::plain("kiln_x", caller.to_owned())
    }

    #[test]
    fn whoever_signs_in_too_often_loses_their_own_session() {
        let (sessions, clock) = (Sessions::new(false, Clock::default()), Duration::from_millis(1));
        let other = sessions.add(held("other")).0.0;
        let first = sessions.add(held("often")).0.0;
        for _ in 0..SESSIONS {
            sessions.clock.forward(clock);
            sessions.add(held("often"));
        }
        let open = sessions.open();
        assert_eq!(open.len(), SESSIONS_OF_CALLER + 1);
        assert!(open.contains_key(&other) && !open.contains_key(&first));
    }

    #[test]
    fn sessions_of_many_end_where_one_has_the_most() {
        let sessions = Sessions::new(false, Clock::default());
        let kept: Vec<_> = (0..SESSIONS - 2)
            .map(|one| sessions.add(held(&one.to_string())).0.0)
            .collect();
        let (first, second) = (sessions.add(held("two")).0.0, sessions.add(held("two")).0.0);
        sessions.clock.forward(Duration::from_secs(1));
        assert_eq!(sessions.add(held("new")).1.as_deref(), Some("two"));
        let open = sessions.open();
        assert_eq!(open.len(), SESSIONS);
        assert!(kept.iter().all(|key| open.contains_key(key)));
        assert!(open.contains_key(&first) != open.contains_key(&second));
    }
}

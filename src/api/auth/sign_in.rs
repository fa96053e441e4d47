//! Signs people in at the issuer: the authorization code flow with PKCE (OpenID Connect Core 1.0, section 3.1; RFC 7636),
//! and fresh tokens for as long as the issuer gives them. Talks to the issuer, and reads the client's secret.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::future::BoxFuture;
use kiln_records::{Clock, Secret, failure::chain};
use oauth2::{
    AsyncHttpClient, AuthUrl, AuthorizationCode, Client, ClientId, ClientSecret, CsrfToken, EndpointNotSet,
    EndpointSet, ExtraTokenFields, HttpRequest, HttpResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl,
    RefreshToken, RequestTokenError, Scope, StandardRevocableToken, StandardTokenResponse, TokenResponse, TokenUrl,
    basic::{BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse, BasicTokenType},
};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Refusal,
    keys::{Endpoints, Ends, whole},
    oidc::{Oidc, RETRY},
};
use crate::config::OidcSettings;

/// A token is replaced this long before it expires, in seconds.
const EARLY: u64 = 30;

/// How long a person may take at the issuer.
pub const LONGEST_ATTEMPT: Duration = Duration::from_mins(10);

/// What the token endpoint answers, with the ID token.
type Answer = StandardTokenResponse<IdToken, BasicTokenType>;

/// The error that the token endpoint, or the way to it, answers.
type AskError = RequestTokenError<Unreachable, BasicErrorResponse>;

type IssuerClient = Client<
    BasicErrorResponse,
    Answer,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

#[derive(Debug, Serialize, Deserialize)]
struct IdToken {
    id_token: Option<Secret>,
}

impl ExtraTokenFields for IdToken {}

/// A request that did not reach the issuer, or whose answer did not come back.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unreachable(String);

/// The way to the issuer.
#[derive(Debug)]
struct Issuer(reqwest::Client);

/// The dashboard's client at an issuer.
#[derive(Debug)]
pub struct SignIn {
    oidc: Arc<Oidc>,
    client_id: String,
    secret_file: Option<PathBuf>,
    scopes: Vec<String>,
    /// The address to which the issuer sends people back.
    callback: Url,
    /// Makes the parts of attempts of the browsers' secrets.
    key: hmac::Key,
}

/// A person's way to the issuer and back, by a secret that only their browser keeps. Nothing is kept here, so nobody can
/// use up the room for attempts.
#[derive(Debug)]
struct Attempt {
    state: String,
    nonce: String,
    verifier: String,
}

/// What the issuer sends a person back with.
#[derive(Debug)]
pub struct Return {
    /// The secret of the browser.
    pub secret: String,
    /// The code that tokens are made of.
    pub code: String,
    /// The state of the attempt.
    pub state: String,
    /// The issuer, if it names itself (RFC 9207).
    pub issuer: Option<String>,
}

/// The tokens of a person who is signed in.
#[derive(Debug)]
pub struct Held {
    /// The token for requests to the API.
    pub token: Secret,
    /// Whose it is, as [`caller`](super::Principal::caller) says it.
    pub caller: String,
    /// The time at which that token expires, in seconds since 1970.
    expires: Option<u64>,
    refresh: Option<Secret>,
    /// The issuer is not asked before this, since it did not answer.
    not_before: Option<Instant>,
}

/// The reason why a person is not signed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSignedIn {
    /// The issuer, or this server's secret for it, cannot be had now.
    Unavailable,
    /// The issuer signs nobody in.
    NotOffered,
    /// The issuer, or the person, said no.
    Refused,
    /// The issuer's answer is not one to this attempt.
    Wrong,
    /// The issuer gives the person no role that Kiln knows.
    NoRole,
}

impl SignIn {
    /// The client of the settings, if they name one. `public_url` is where browsers reach this server.
    pub fn new(oidc: &Arc<Oidc>, settings: &OidcSettings, public_url: Option<&str>) -> Option<Self> {
        let client_id = settings.client_id.clone()?;
        // The configuration is refused without such an address.
        let callback = format!("{}/ui/login/callback", public_url?.trim_end_matches('/'));
        Some(Self {
            oidc: Arc::clone(oidc),
            client_id,
            secret_file: settings.client_secret_file.clone(),
            scopes: settings.scopes.clone(),
            callback: Url::parse(&callback).ok()?,
            key: hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>()),
        })
    }

    /// The issuer's host, for people.
    pub fn name(&self) -> String {
        let host = Url::parse(self.oidc.issuer()).ok();
        let host = host.and_then(|url| url.host_str().map(str::to_owned));
        host.unwrap_or_else(|| self.oidc.issuer().to_owned())
    }

    /// A secret for an attempt that begins now, to be kept by the person's browser alone.
    pub fn new_secret() -> String {
        let random = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        format!("{}-{random}", now())
    }

    /// The address at the issuer where the attempt with this secret begins.
    ///
    /// # Errors
    ///
    /// When the issuer cannot be asked where people sign in.
    pub async fn begin(&self, secret: &str) -> Result<Url, NotSignedIn> {
        let client = self.client().await?;
        let attempt = self.attempt(secret);
        let verifier = PkceCodeVerifier::new(attempt.verifier);
        let (address, _) = client
            .authorize_url(|| CsrfToken::new(attempt.state))
            .add_scope(Scope::new("openid".to_owned()))
            .add_scopes(self.scopes.iter().cloned().map(Scope::new))
            .add_extra_param("nonce", &attempt.nonce)
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
            .url();
        Ok(address)
    }

    /// Makes tokens of the code with which the issuer sent a person back.
    ///
    /// # Errors
    ///
    /// When the issuer refuses, cannot be asked, or answers something that is not about this attempt.
    pub async fn finish(&self, back: Return) -> Result<Held, NotSignedIn> {
        let attempt = self.attempt(&back.secret);
        let is_of_issuer = back.issuer.is_none_or(|issuer| issuer == self.oidc.issuer());
        if attempt.state != back.state || !is_of_issuer || !is_recent(&back.secret) {
            return Err(NotSignedIn::Wrong);
        }
        let client = self.client().await?;
        let ask = client
            .exchange_code(AuthorizationCode::new(back.code))
            .set_pkce_verifier(PkceCodeVerifier::new(attempt.verifier));
        let answer = ask.request_async(&self.issuer()).await.map_err(|error| noted(&error))?;
        let id_token = answer.extra_fields().id_token.as_ref().ok_or(NotSignedIn::Wrong)?;
        let claims = self.oidc.claims(id_token.expose(), &self.client_id).await;
        let claims = claims.map_err(|refusal| not_signed_in(&refusal))?;
        if text(&claims, "nonce") != Some(&attempt.nonce) {
            tracing::warn!("the issuer's ID token is of another sign-in");
            return Err(NotSignedIn::Wrong);
        }
        self.held(&answer, Some(&claims)).await
    }

    fn attempt(&self, secret: &str) -> Attempt {
        let part = |name: &str| {
            let tag = hmac::sign(&self.key, format!("{name} {secret}").as_bytes());
            URL_SAFE_NO_PAD.encode(tag)
        };
        Attempt {
            state: part("state"),
            nonce: part("nonce"),
            verifier: part("verifier"),
        }
    }

    /// Has the issuer replace tokens that are about to expire.
    ///
    /// # Errors
    ///
    /// As [`SignIn::finish`]. The old tokens are as they were.
    pub async fn renew(&self, held: &Held) -> Result<Held, NotSignedIn> {
        let refresh = held.refresh.as_ref().ok_or(NotSignedIn::Refused)?;
        let client = self.client().await?;
        let refresh = RefreshToken::new(refresh.expose().to_owned());
        let ask = client.exchange_refresh_token(&refresh);
        let answer = ask.request_async(&self.issuer()).await;
        let answer = answer.map_err(|error| noted(&error))?;
        let mut new = self.held(&answer, None).await?;
        if new.refresh.is_none() {
            new.refresh = Some(refresh.into_secret().into());
        }
        Ok(new)
    }

    /// The tokens of an answer. The API accepts the access token of most issuers, which has the roles, else the ID token.
    async fn held(&self, answer: &Answer, id: Option<&Map<String, Value>>) -> Result<Held, NotSignedIn> {
        let access = answer.access_token().secret().clone();
        let id_token = answer.extra_fields().id_token.as_ref();
        let id_token = id_token.map(|token| token.expose().to_owned());
        let refresh = answer.refresh_token().map(|token| token.secret().clone().into());
        let mut why = NotSignedIn::Refused;
        for token in [Some(access), id_token].into_iter().flatten() {
            match self.oidc.claims(&token, self.oidc.audience()).await {
                Ok(claims) if id.is_some_and(|id| text(id, "sub") != text(&claims, "sub")) => {
                    why = NotSignedIn::Wrong;
                }
                Ok(claims) => match self.oidc.known(&claims) {
                    Ok(person) => {
                        return Ok(Held {
                            token: token.into(),
                            caller: person.caller(),
                            expires: claims.get("exp").and_then(Value::as_u64),
                            refresh,
                            not_before: None,
                        });
                    }
                    Err(_) => why = NotSignedIn::NoRole,
                },
                Err(Refusal::Unavailable(_)) => return Err(NotSignedIn::Unavailable),
                // Another audience, or no token that can be looked into.
                Err(_) => {}
            }
        }
        tracing::info!("a person signed in at the issuer whose tokens open nothing here");
        Err(why)
    }

    fn issuer(&self) -> Issuer {
        Issuer(self.oidc.keys().client().clone())
    }

    async fn client(&self) -> Result<IssuerClient, NotSignedIn> {
        let Endpoints { authorization, token } = match self.oidc.keys().endpoints().await {
            Ends::Known(endpoints) => endpoints,
            Ends::None => return Err(NotSignedIn::NotOffered),
            Ends::Unavailable => return Err(NotSignedIn::Unavailable),
        };
        let client = Client::new(ClientId::new(self.client_id.clone()))
            .set_auth_uri(AuthUrl::from_url(authorization))
            .set_token_uri(TokenUrl::from_url(token))
            .set_redirect_uri(RedirectUrl::from_url(self.callback.clone()));
        let Some(path) = &self.secret_file else {
            return Ok(client);
        };
        // Read each time: the site may have replaced it.
        let secret = fs_err::tokio::read_to_string(path).await.map_err(|error| {
            tracing::warn!("nobody can sign in at the issuer: {error}");
            NotSignedIn::Unavailable
        })?;
        Ok(client.set_client_secret(ClientSecret::new(secret.trim().to_owned())))
    }
}

impl<'c> AsyncHttpClient<'c> for Issuer {
    type Error = Unreachable;
    type Future = BoxFuture<'c, Result<HttpResponse, Unreachable>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(async move {
            let failed = |error: &dyn std::fmt::Display| Unreachable(error.to_string());
            let request = reqwest::Request::try_from(request).map_err(|error| failed(&chain(&error)))?;
            let response = self.0.execute(request).await;
            let response = response.map_err(|error| failed(&chain(&error)))?;
            // What a gateway before the issuer says is nothing that the issuer said. An error of its own has 400 or 401
            // (RFC 6749, section 5.2).
            let is_own = response.status().is_success() || matches!(response.status().as_u16(), 400 | 401);
            if !is_own {
                return Err(failed(&format_args!("it answered {}", response.status())));
            }
            let mut answer = HttpResponse::default();
            *answer.status_mut() = response.status();
            *answer.headers_mut() = response.headers().clone();
            *answer.body_mut() = whole(response).await.map_err(|error| failed(&error))?;
            Ok(answer)
        })
    }
}

impl Held {
    /// A token of Kiln's own, or one of which nothing more is known.
    pub fn plain(token: &str, caller: String) -> Self {
        Self {
            token: token.to_owned().into(),
            caller,
            expires: None,
            refresh: None,
            not_before: None,
        }
    }

    /// Whether the token expires soon, and the issuer may replace it.
    pub fn is_due(&self, clock: &Clock) -> bool {
        let is_put_off = self.not_before.is_some_and(|until| clock.instant() < until);
        self.refresh.is_some() && !is_put_off && self.expires.is_some_and(|expires| seconds(clock) + EARLY >= expires)
    }

    /// Leaves the issuer alone for a while, which did not answer.
    pub fn put_off(&mut self, clock: &Clock) {
        self.not_before = Some(clock.instant() + RETRY);
    }

    /// Whether the token has expired, and the issuer may yet replace it.
    pub fn waits(&self, clock: &Clock) -> bool {
        self.refresh.is_some() && self.expires.is_some_and(|expires| seconds(clock) >= expires)
    }
}

/// Whether an attempt began less than [`LONGEST_ATTEMPT`] ago. Its state vouches for the time in its secret.
fn is_recent(secret: &str) -> bool {
    let begun = secret.split('-').next().and_then(|begun| begun.parse::<u64>().ok());
    begun.is_some_and(|begun| now().saturating_sub(begun) < LONGEST_ATTEMPT.as_secs())
}

fn now() -> u64 {
    seconds(&Clock::default())
}

/// The time in seconds since 1970, by this host's clock, as tokens have it.
fn seconds(clock: &Clock) -> u64 {
    clock.timestamp().as_second().try_into().unwrap_or(0)
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    claims.get(name).and_then(Value::as_str)
}

fn not_signed_in(refusal: &Refusal) -> NotSignedIn {
    match refusal {
        Refusal::Unavailable(_) | Refusal::Store(_) => NotSignedIn::Unavailable,
        other => {
            tracing::warn!("the issuer's ID token is refused: {other:?}");
            NotSignedIn::Wrong
        }
    }
}

/// The reason behind an error of the token endpoint, which is noted without what may be secret in an answer.
fn noted(error: &AskError) -> NotSignedIn {
    match error {
        RequestTokenError::ServerResponse(said) => {
            tracing::warn!("the issuer refuses to give tokens: {}", said.error());
            NotSignedIn::Refused
        }
        RequestTokenError::Request(error) => {
            tracing::warn!("the issuer cannot be asked for tokens: {error}");
            NotSignedIn::Unavailable
        }
        RequestTokenError::Parse(error, _) => {
            tracing::warn!("the issuer's answer to a request for tokens makes no sense: {error}");
            NotSignedIn::Wrong
        }
        RequestTokenError::Other(error) => {
            tracing::warn!("the issuer's answer to a request for tokens makes no sense: {error}");
            NotSignedIn::Wrong
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_that_is_away_is_left_alone_for_a_while() {
        let clock = Clock::default();
        let mut held = Held {
            expires: Some(seconds(&clock) + 3600),
            refresh: Some("again".to_owned().into()),
            ..Held::plain("token", "a".to_owned())
        };
        assert!(!held.is_due(&clock));
        clock.forward(Duration::from_secs(3600 - EARLY));
        assert!(held.is_due(&clock) && !held.waits(&clock));
        // Nobody can use what has expired, and the issuer has its pause all the same.
        clock.forward(Duration::from_secs(EARLY));
        held.put_off(&clock);
        assert!(!held.is_due(&clock) && held.waits(&clock));
        clock.forward(RETRY);
        assert!(held.is_due(&clock));
        assert!(!Held::plain("token", "a".to_owned()).is_due(&clock));
    }

    #[test]
    fn an_attempt_has_ten_minutes() {
        assert!(is_recent(&SignIn::new_secret()));
        assert!(is_recent(&format!("{}-x", now() - 590)));
        for old in [
            format!("{}-x", now() - 600),
            "-x".to_owned(),
            "x".to_owned(),
            String::new(),
        ] {
            assert!(!is_recent(&old), "{old}");
        }
    }
}

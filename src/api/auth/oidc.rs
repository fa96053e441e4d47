//! Checks the tokens of an OpenID Connect issuer. Pure, but for fetching the issuer's keys.

use std::time::Duration;

use jsonwebtoken::{Algorithm, Validation, decode, decode_header, errors::ErrorKind};
use kiln_records::{Code, Failure, Role};
use serde_json::{Map, Value};

use super::{
    Principal, PrincipalKind, Refusal,
    keys::{self, Found, Keys},
    principal::printable,
};
use crate::{api::rate::Key, config::OidcSettings};

/// The suggested delay before a retry when the issuer does not answer.
pub(super) const RETRY: Duration = keys::RETRY;

/// The accepted error of the issuer's clock, in seconds.
const LEEWAY: u64 = 30;

/// The longest token that is examined.
const LONGEST: usize = 16 << 10;

/// The accepted signature algorithms: those with which only the issuer can sign.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// An issuer whose tokens are accepted.
#[derive(Debug)]
pub struct Oidc {
    issuer: String,
    audience: String,
    role_claim: String,
    roles: [(Role, Vec<String>); 3],
    keys: Keys,
}

impl Oidc {
    /// The issuer of the settings, if they name one. It need not be reachable yet.
    ///
    /// # Errors
    ///
    /// `oidc_settings`: the settings are invalid.
    pub fn new(settings: &OidcSettings) -> Result<Option<Self>, Failure> {
        let Some(issuer) = &settings.issuer else {
            return Ok(None);
        };
        let audience = settings.audience.clone().filter(|audience| !audience.is_empty());
        let audience = audience.ok_or_else(|| {
            Failure::new(Code::OidcSettings, "[oidc] has no audience").hint("set audience to what tokens have in `aud`")
        })?;
        Ok(Some(Self {
            issuer: issuer.clone(),
            audience,
            role_claim: settings.role_claim.clone(),
            roles: [
                (Role::Admin, settings.admin_roles.clone()),
                (Role::Write, settings.write_roles.clone()),
                (Role::Read, settings.read_roles.clone()),
            ],
            keys: Keys::new(issuer, settings)?,
        }))
    }

    /// Keeps the issuer's keys fresh; never ends.
    pub async fn follow(&self) {
        self.keys.follow().await;
    }

    /// The holder of a token.
    pub(super) async fn principal(&self, text: &str) -> Result<Principal, Refusal> {
        let claims = self.claims(text, &self.audience).await?;
        self.known(&claims)
    }

    /// The claims of a token for an audience. The token is one of the issuer's, and valid now.
    pub(super) async fn claims(&self, text: &str, audience: &str) -> Result<Map<String, Value>, Refusal> {
        let invalid = Refusal::Wrong("The token is not valid.");
        if text.len() > LONGEST {
            return Err(Refusal::Wrong("The token is too long."));
        }
        // An unknown algorithm, including `none`, is an error at this point already.
        let Ok(header) = decode_header(text) else {
            return Err(invalid);
        };
        if !ALGORITHMS.contains(&header.alg) {
            return Err(Refusal::Wrong(
                "The token is signed with an algorithm that is not accepted.",
            ));
        }
        // Kiln understands no critical extension.
        if header.crit.is_some() {
            return Err(invalid);
        }
        let key = match self.keys.find(header.kid.as_deref(), header.alg).await {
            Found::Key(key) => key,
            Found::Unknown => {
                return Err(Refusal::Wrong(
                    "The token is signed with a key that the issuer does not have.",
                ));
            }
            Found::Unavailable => {
                return Err(Refusal::Unavailable(
                    "The issuer of the token cannot be asked for its keys. Try again later.",
                ));
            }
        };
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let token = decode::<Map<String, Value>>(text, &key, &validation).map_err(|error| {
            Refusal::Wrong(match error.kind() {
                ErrorKind::ExpiredSignature => "The token has expired.",
                ErrorKind::ImmatureSignature => "The token is not valid yet.",
                ErrorKind::InvalidIssuer => "The token is from another issuer.",
                ErrorKind::InvalidAudience => "The token is for another audience.",
                ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => {
                    "The token lacks one of the claims exp, iss, aud and sub."
                }
                _ => "The token is not valid.",
            })
        })?;
        Ok(token.claims)
    }

    /// The issuer's keys and addresses.
    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The issuer, as tokens name it.
    pub(super) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The value that tokens for the API have in `aud`.
    pub(super) fn audience(&self) -> &str {
        &self.audience
    }

    /// The person that claims are about.
    pub(super) fn known(&self, claims: &Map<String, Value>) -> Result<Principal, Refusal> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let subject = text("sub").ok_or(Refusal::Wrong(
            "The token lacks one of the claims exp, iss, aud and sub.",
        ))?;
        let role = self
            .role(claims)
            .ok_or_else(|| Refusal::NoRole(Key::Subject(subject.to_owned())))?;
        Ok(Principal {
            name: printable(text("preferred_username").unwrap_or(subject)),
            role,
            kind: PrincipalKind::Subject(subject.to_owned()),
        })
    }

    /// The highest role that the claims give.
    fn role(&self, claims: &Map<String, Value>) -> Option<Role> {
        let named: Vec<&str> = match find(claims, &self.role_claim)? {
            // Names separated by spaces, as in `scope`.
            Value::String(names) => names.split_whitespace().collect(),
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => return None,
        };
        let given = |names: &[String]| names.iter().any(|name| named.contains(&name.as_str()));
        self.roles.iter().find(|(_, names)| given(names)).map(|(role, _)| *role)
    }
}

/// A member by its path. Names of members may contain dots, as URLs do.
fn find<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    path.match_indices('.').find_map(|(dot, _)| {
        let inner = claims.get(&path[..dot])?.as_object()?;
        find(inner, &path[dot + 1..])
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn issuer(role_claim: &str) -> Oidc {
        // The same as in `main`.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let settings = OidcSettings {
            issuer: Some("http://127.0.0.1:9".to_owned()),
            audience: Some("kiln".to_owned()),
            role_claim: role_claim.to_owned(),
            ..OidcSettings::default()
        };
        Oidc::new(&settings).unwrap().unwrap()
    }

    fn role(role_claim: &str, claims: &Value) -> Option<Role> {
        issuer(role_claim).role(claims.as_object().unwrap())
    }

    #[test]
    fn roles_are_found_wherever_the_issuer_puts_them() {
        let keycloak = json!({ "realm_access": { "roles": ["offline_access", "kiln-read", "kiln-write"] } });
        assert_eq!(role("realm_access.roles", &keycloak), Some(Role::Write));
        assert_eq!(role("resource_access.kiln.roles", &keycloak), None);
        let scope = json!({ "scope": "openid kiln-admin" });
        assert_eq!(role("scope", &scope), Some(Role::Admin));
        let dotted = json!({ "https://site.example.org/claims": { "a.b": ["kiln-read"] } });
        assert_eq!(role("https://site.example.org/claims.a.b", &dotted), Some(Role::Read));
        for none in [
            json!({}),
            json!({ "roles": "" }),
            json!({ "roles": [] }),
            json!({ "roles": ["kiln-adminx", "xkiln-admin", "KILN-ADMIN", 5] }),
            json!({ "roles": { "kiln-admin": true } }),
        ] {
            assert_eq!(role("roles", &none), None, "{none}");
        }
    }
}

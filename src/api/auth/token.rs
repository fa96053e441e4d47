//! Kiln's own API tokens. Pure, but for the randomness of new ones.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use kiln_records::{Moment, Role, Token, TokenId};
use sha2::{Digest, Sha256};

/// The prefix of tokens, so that scanners for leaked secrets recognise them.
const PREFIX: &str = "kiln_";

/// Letters after the prefix: 256 bits.
const LETTERS: usize = 43;

/// A token's text. It is shown once, and stored nowhere.
pub struct TokenText(String);

impl TokenText {
    /// Makes a random token.
    pub fn random() -> Self {
        Self(format!(
            "{PREFIX}{}",
            URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
        ))
    }

    /// Parses a token; none if the text cannot be one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let letters = text.strip_prefix(PREFIX)?;
        let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        (letters.len() == LETTERS && letters.bytes().all(plain)).then(|| Self(text.to_owned()))
    }

    /// The digest by which the store finds the token. A search by digest also keeps the time of the search from
    /// revealing anything about existing tokens.
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(&self.0))
    }

    /// The text itself, for the one use that shows it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for TokenText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// The record of a new token.
pub fn record(name: String, role: Role, expires: Option<Moment>) -> Token {
    Token {
        id: TokenId::new(),
        created: Moment::now(),
        name,
        role,
        expires,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_random_and_recognised() {
        let (one, other) = (TokenText::random(), TokenText::random());
        assert_ne!(one.expose(), other.expose());
        assert_eq!(one.expose().len(), PREFIX.len() + LETTERS);
        assert_eq!(TokenText::parse(one.expose()).unwrap().sha256(), one.sha256());
        assert_eq!(one.sha256().len(), 64);
        assert!(!format!("{one:?}").contains(one.expose()));
    }

    #[test]
    fn what_cannot_be_a_token_is_not_looked_up() {
        let letters = "a".repeat(LETTERS);
        for wrong in [
            "kiln_".to_owned(),
            letters.clone(),
            format!("kiln_{letters}a"),
            format!("KILN_{letters}"),
            format!("kiln_{}.", &letters[1..]),
            format!("kiln_{}ä", &letters[2..]),
        ] {
            assert!(TokenText::parse(&wrong).is_none(), "{wrong}");
        }
    }
}

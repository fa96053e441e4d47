//! The receivers in the section `[webhooks]`. Pure: no I/O.

use std::path::PathBuf;

use kiln_records::webhook::Event;
use reqwest::Url;
use serde::{Deserialize, Serialize};

/// The longest name of a receiver.
const LONGEST_NAME: usize = 64;

/// A service that is told of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenReceiver", into = "WrittenReceiver")]
pub struct Receiver {
    /// Its name, by which its deliveries are listed.
    pub name: String,
    /// Its address.
    pub url: Url,
    /// The file with the secret that signs what is sent.
    pub secret_file: PathBuf,
    /// What it is told of.
    pub events: Vec<Event>,
    /// Whether it may be on this host, or on the local link.
    pub allow_local: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenReceiver {
    name: String,
    url: String,
    secret_file: PathBuf,
    #[serde(default = "every_event")]
    events: Vec<String>,
    #[serde(default)]
    allow_local: bool,
}

fn every_event() -> Vec<String> {
    Event::ALL.map(|event| event.name().to_owned()).into()
}

impl TryFrom<WrittenReceiver> for Receiver {
    type Error = String;

    fn try_from(written: WrittenReceiver) -> Result<Self, String> {
        let WrittenReceiver {
            name,
            url,
            secret_file,
            events,
            allow_local,
        } = written;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_plain) {
            return Err(format!(
                "the name `{}` of a receiver has to be of letters, digits, `-`, `_` and `.`, {LONGEST_NAME} at most",
                name.escape_default()
            ));
        }
        let wrong = |why: &str| format!("the url of `{name}` cannot be used: {why}");
        let parsed = Url::parse(&url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(parsed.scheme(), "https" | "http") || !parsed.has_host() {
            return Err(wrong("it begins neither with https:// nor with http://"));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.fragment().is_some() {
            return Err(wrong("it has a user or a fragment; the signature says who sends"));
        }
        let known = |event: &String| {
            let names = every_event().join(", ");
            let event = Event::named(event).filter(|event| *event != Event::Test).ok_or(event);
            event.map_err(|event| format!("`{name}` asks for the event `{event}`; there are {names}"))
        };
        let events: Vec<_> = events.iter().map(known).collect::<Result<_, _>>()?;
        if events.is_empty() {
            return Err(format!("`{name}` asks for no event"));
        }
        Ok(Self {
            url: parsed,
            name,
            secret_file,
            events,
            allow_local,
        })
    }
}

impl From<Receiver> for WrittenReceiver {
    fn from(receiver: Receiver) -> Self {
        let Receiver {
            name,
            url,
            secret_file,
            events,
            allow_local,
        } = receiver;
        Self {
            name,
            url: url.into(),
            secret_file,
            events: events.into_iter().map(|event| event.name().to_owned()).collect(),
            allow_local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Receiver, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_receiver_is_told_of_everything_unless_it_chooses() {
        let plain = "name = 'chat'\nurl = 'https://chat.example.org/hook?x=1'\nsecret_file = '/run/secrets/chat'\n";
        let receiver = read(plain).unwrap();
        assert_eq!(receiver.events, Event::ALL);
        let again: Receiver = toml::from_str(&toml::to_string(&receiver).unwrap()).unwrap();
        assert_eq!(again, receiver);
        let few = read(&format!("{plain}events = ['job.failed']")).unwrap();
        assert_eq!(few.events, [Event::JobFailed]);
        for (wrong, why) in [
            ("events = []", "asks for no event"),
            ("events = ['test']", "`test`"),
            ("events = ['job.started']", "there are job.succeeded"),
            ("retries = 3", "unknown field"),
        ] {
            let refused = read(&format!("{plain}{wrong}")).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        for (from, to, why) in [
            ("chat'\nurl", "a b'\nurl", "letters"),
            ("https://", "ftp://", "neither"),
            ("https://", "https://u:p@", "a user"),
            ("https://chat.example.org", "chat", "cannot be used"),
        ] {
            let refused = read(&plain.replacen(from, to, 1)).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}

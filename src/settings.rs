//! Describes settings: [`settings!`](crate::settings!) states each key once, with its type, its default and its
//! meaning. Pure: no I/O.
//!
//! The typed structs, the parsing of the file and of the environment, and the reference all follow from that.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use bytesize::ByteSize;
use ipnet::IpNet;
use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A section of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// Its name, as between the brackets.
    pub name: &'static str,
    /// Its description, line by line.
    pub about: &'static [&'static str],
    /// Its keys, in the order of the reference.
    pub keys: &'static [Key],
}

/// A key of a section.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its meaning, line by line.
    pub about: &'static [&'static str],
    /// An example in TOML, if it has no default.
    pub example: Option<&'static str>,
    /// The value when the key is not set.
    pub default: fn() -> Option<toml::Value>,
    /// Checks whether a value is valid.
    pub check: fn(&toml::Value) -> Result<(), String>,
}

/// Describes a section: the struct with its defaults, and `SECTION` for the parser and the reference.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        [$section:literal]
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $type:ty = $default:expr $(, like $example:literal)?;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $name {
            /// The section, for the parser and the reference.
            pub const SECTION: $crate::settings::Section = $crate::settings::Section {
                name: $section,
                about: &[$($about),*],
                keys: &[$($crate::settings::Key {
                    name: stringify!($field),
                    about: &[$($doc),*],
                    example: [$($example,)?].first().copied(),
                    default: || {
                        let default: $type = $default;
                        toml::Value::try_from(default).ok()
                    },
                    check: |value| value.clone().try_into::<$type>().map(drop).map_err(|error| error.to_string()),
                },)*],
            };
        }
    };
}

/// A length of time, written as `30s`, `5m`, `1h 30m` or `2d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(Duration);

impl Period {
    /// A number of seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// The period as a type of the standard library.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a length of time such as 30s, 5m or 90d");
        let span: Span = text.parse().map_err(|_| wrong())?;
        let signed = span
            .to_duration(SpanRelativeTo::days_are_24_hours())
            .map_err(|_| wrong())?;
        Duration::try_from(signed).map(Self).map_err(|_| wrong())
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_secs();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, seconds) in [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
            let count = rest / seconds;
            rest %= seconds;
            if count > 0 {
                write!(f, "{count}{unit}{}", if rest > 0 { " " } else { "" })?;
            }
        }
        Ok(())
    }
}

/// TCP ports, written as `22000-22999` or as one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last port; not below the first.
    pub last: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a range of ports such as 22000-22999");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        let (first, last) = (port(first)?, port(last)?);
        if first == 0 || last < first {
            return Err(wrong());
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// A number of bytes, written as `1MiB` or as a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = text.parse::<ByteSize>();
        let size = size.map_err(|_| format!("`{text}` is not a size such as 512KiB, 1MiB or 2GiB"))?;
        Ok(Self(size.as_u64()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= bytes && self.0.is_multiple_of(bytes) {
                return write!(f, "{}{unit}", self.0 / bytes);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// The addresses to listen on: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(pub Vec<SocketAddr>);

impl Addresses {
    /// Whether only this host can reach the addresses.
    pub fn are_loopback(&self) -> bool {
        self.0.iter().all(|address| is_loopback(address.ip()))
    }
}

/// Whether only this host can reach the address. `::ffff:127.0.0.1` is another form of 127.0.0.1.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Whether an address names this host.
pub fn names_here(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_loopback)
}

/// A destination on the network: a network, or a host by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A network, or a single address.
    Network(IpNet),
    /// A host; its addresses are looked up when they are needed.
    Host(String),
    /// All addresses of the host that Kiln runs on, except its loopback: `this-host`.
    ThisHost,
}

/// [`Destination::ThisHost`] in a file.
const THIS_HOST: &str = "this-host";

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == THIS_HOST {
            return Ok(Self::ThisHost);
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network.trunc()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        let label = |label: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
            (1..=63).contains(&label.len()) && label.chars().all(plain) && !label.starts_with('-')
        };
        // A text that ends in a number is a mistyped address.
        let number = text.rsplit('.').next().is_some_and(|last| last.parse::<u64>().is_ok());
        if text.len() <= 253 && !number && text.split('.').all(label) {
            return Ok(Self::Host(text.to_owned()));
        }
        Err(format!(
            "`{text}` is not a network such as 10.92.100.0/24, an address or a host name"
        ))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Host(name) => f.write_str(name),
            Self::ThisHost => f.write_str(THIS_HOST),
        }
    }
}

macro_rules! written_as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

written_as_text!(Period);
written_as_text!(Size);
written_as_text!(Destination);
written_as_text!(Ports);

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Destination {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size such as 1MiB, or a number of bytes")]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Self(number)),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl Serialize for Addresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected an address such as 127.0.0.1:9000, or a list of them"
        )]
        enum Written {
            One(String),
            Several(Vec<String>),
        }
        let texts = match Written::deserialize(deserializer)? {
            Written::One(text) => vec![text],
            Written::Several(texts) => texts,
        };
        let address = |text: String| {
            let parsed = text.parse::<SocketAddr>();
            parsed.map_err(|_| {
                D::Error::custom(format!(
                    "`{text}` is not an address such as 127.0.0.1:9000 or [::1]:9000"
                ))
            })
        };
        texts.into_iter().map(address).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_and_sizes_are_written_as_they_are_read() {
        for text in ["0s", "30s", "5m", "1h 30m", "90d"] {
            assert_eq!(text.parse::<Period>().unwrap().to_string(), text);
        }
        for text in ["0B", "1000B", "512KiB", "1MiB", "3GiB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("1.5 MiB".parse::<Size>().unwrap().to_string(), "1536KiB");
        for wrong in ["", "-5s", "5", "five", "1y"] {
            assert!(wrong.parse::<Period>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn destinations_are_networks_addresses_and_names() {
        for (text, written) in [
            ("10.92.100.7/24", "10.92.100.0/24"),
            ("169.254.169.254", "169.254.169.254/32"),
            ("fd00:ec2::254", "fd00:ec2::254/128"),
            ("packages.local", "packages.local"),
            ("this-host", "this-host"),
        ] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), written);
        }
        for wrong in [
            "",
            "10.92.100.0/33",
            "10.92.100.256",
            "http://packages.local",
            "a b",
            "-a.example.org",
            "*.org",
        ] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn loopback_is_recognised_in_other_words() {
        for (text, is) in [
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(text.parse().unwrap()), is, "{text}");
        }
    }
}

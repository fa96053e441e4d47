//! The rules for channels in the section `[catalogue]`. Pure: no I/O.

use kiln_records::set::{
    Requirement,
    name::{LATEST, check_channel},
};
use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

/// A rule for one channel of the sets of some names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenRule", into = "WrittenRule")]
pub struct ChannelRule {
    /// The channel.
    pub channel: String,
    /// The names of the sets, with `*` for any text and `?` for any character.
    pub name: String,
    /// What every image of a set needs before the channel may lead to the set.
    pub requires: Vec<Requirement>,
    /// Whether the channel moves on by itself to the newest complete set that has all this.
    pub follows: bool,
}

impl ChannelRule {
    /// Whether the rule is one for this channel of the sets of a name.
    pub fn is_for(&self, name: &str, channel: &str) -> bool {
        self.channel == channel && WildMatch::new(&self.name).matches(name)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    channel: String,
    #[serde(default = "every_name")]
    name: String,
    #[serde(default)]
    requires: Vec<Requirement>,
    #[serde(default)]
    follows: bool,
}

fn every_name() -> String {
    "*".to_owned()
}

impl TryFrom<WrittenRule> for ChannelRule {
    type Error = String;

    fn try_from(written: WrittenRule) -> Result<Self, String> {
        let WrittenRule {
            channel,
            name,
            requires,
            follows,
        } = written;
        if channel == LATEST {
            return Err("the channel `latest` leads to the newest complete set by itself, without rules".to_owned());
        }
        check_channel(&channel).map_err(|why| format!("the channel `{channel}` cannot be: {why}"))?;
        if name.is_empty() {
            return Err("`name` is empty; \"*\" stands for every name".to_owned());
        }
        if requires.is_empty() && !follows {
            return Err(format!(
                "the rule for the channel `{channel}` says nothing: say `requires` or `follows`"
            ));
        }
        Ok(Self {
            channel,
            name,
            requires,
            follows,
        })
    }
}

impl From<ChannelRule> for WrittenRule {
    fn from(rule: ChannelRule) -> Self {
        let ChannelRule {
            channel,
            name,
            requires,
            follows,
        } = rule;
        Self {
            channel,
            name,
            requires,
            follows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_those_that_say_nothing_refused() {
        let rule = |text: &str| toml::from_str::<ChannelRule>(text);
        let read = rule("channel = \"stable\"\nname = \"compute*\"\nrequires = [\"boot\", \"signature\"]").unwrap();
        assert!(read.is_for("compute-gpu", "stable") && !read.is_for("login", "stable"));
        assert!(!read.is_for("compute", "test") && !read.follows);
        let again: ChannelRule = toml::Value::try_from(read.clone()).unwrap().try_into().unwrap();
        assert_eq!(again, read);
        for wrong in [
            "channel = \"stable\"",
            "channel = \"latest\"\nfollows = true",
            "channel = \"a b\"\nfollows = true",
            "channel = \"stable\"\nname = \"\"\nfollows = true",
            "channel = \"stable\"\nrequires = [\"luck\"]",
        ] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }
}

//! The section `[retention]`: what the server removes by itself, and when. Pure: no I/O.

use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

use crate::{
    settings,
    settings::{Period, Size},
};

settings! {
    /// What the server removes by itself. Whatever no rule names stays. `kiln prune --dry-run` shows what would go. See
    /// docs/retention.md.
    ["retention"]
    pub struct RetentionSettings {
        /// How often the server looks. `0s`: never; `kiln prune` does it by hand.
        every: Period = Period::seconds(86_400);
        /// Rules for images, by name. The first rule that names an image decides. An image that a rule gives up is deleted
        /// as by `kiln images delete`, and can be restored until `purge_after`. Default: none, so no image is deleted.
        images: Vec<ImageRule> = Vec::new();
        /// Tags of images that are never deleted by a rule, whatever their values.
        keep_tags: Vec<String> = vec!["kiln.keep".to_owned()];
        /// The time after which deleted images, recipes and public keys are removed for good. `0s`: never.
        purge_after: Period = Period::seconds(0);
        /// The time after which the records of ended jobs are deleted, with their logs. It counts from a job's creation.
        /// `0s`: never.
        jobs_after: Period = Period::seconds(0);
        /// The size of all logs of ended jobs in S3. Beyond it, the oldest of these jobs are deleted. `0B`: no limit.
        job_log_bytes: Size = Size(0);
        /// The time after which an upload counts as given up, and its parts are removed. `0s`: never.
        uploads_after: Period = Period::seconds(7 * 86_400);
        /// The time for which packages that jobs downloaded are shared with other jobs.
        packages_after: Period = Period::seconds(30 * 86_400);
        /// The size of all these packages. Beyond it, the oldest are removed.
        package_bytes: Size = Size(20 << 30);
        /// The time for which layers, the roots of recipes after their packages, are kept for later jobs.
        layers_after: Period = Period::seconds(14 * 86_400);
        /// The size of all these layers. Beyond it, the oldest are removed.
        layer_bytes: Size = Size(50 << 30);
        /// The time after which the stored toolboxes of other versions of Kiln are removed. `0s`: never.
        toolboxes_after: Period = Period::seconds(90 * 86_400);
        /// The time after which entries of the audit log are removed. `0s`: never. Whatever it is, there are
        /// budgets (docs/security.md#budgets).
        audit_after: Period = Period::seconds(400 * 86_400);
    }
}

/// A rule for the images of some names. An image stays if any part of the rule keeps it; the newest complete image of a
/// series always stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenRule", into = "WrittenRule")]
pub struct ImageRule {
    /// The names, with `*` for any text and `?` for any character.
    pub name: String,
    /// Which images replace each other.
    pub series: Series,
    /// How many of the newest images of a series stay.
    pub keep: usize,
    /// Younger images stay.
    pub younger: Period,
    /// The number of calendar months, in UTC and counting this one, of which the newest image stays.
    pub monthly: u32,
}

/// Which images replace each other, in each architecture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Series {
    /// Those of the same name.
    #[default]
    Name,
    /// All that the rule names: for names with a date or a number in them.
    Rule,
}

impl ImageRule {
    /// Whether the rule decides about images of this name.
    pub fn names(&self, image: &str) -> bool {
        WildMatch::new(&self.name).matches(image)
    }
}

/// A rule as the file has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    name: String,
    #[serde(default)]
    series: Series,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    younger: Option<Period>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    monthly: Option<u32>,
}

impl TryFrom<WrittenRule> for ImageRule {
    type Error = String;

    fn try_from(written: WrittenRule) -> Result<Self, String> {
        let WrittenRule {
            name,
            series,
            keep,
            younger,
            monthly,
        } = written;
        if name.is_empty() {
            return Err("`name` is empty; \"*\" stands for every name".to_owned());
        }
        if keep.is_none() && younger.is_none() && monthly.is_none() {
            return Err(format!(
                "the rule for `{name}` keeps nothing: say `keep`, `younger` or `monthly`"
            ));
        }
        if series == Series::Rule && name.chars().all(|c| c == '*') {
            return Err(format!(
                "the rule for `{name}` makes one series of all images: begin the name, such as \"compute-*\""
            ));
        }
        Ok(Self {
            name,
            series,
            keep: keep.unwrap_or(0),
            younger: younger.unwrap_or(Period::seconds(0)),
            monthly: monthly.unwrap_or(0),
        })
    }
}

impl From<ImageRule> for WrittenRule {
    fn from(rule: ImageRule) -> Self {
        let ImageRule {
            name,
            series,
            keep,
            younger,
            monthly,
        } = rule;
        Self {
            name,
            series,
            keep: Some(keep),
            younger: Some(younger),
            monthly: Some(monthly),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<ImageRule, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn rules_are_read_with_their_defaults() {
        let read = rule("name = \"compute-*\"\nkeep = 3").unwrap();
        assert_eq!((read.series, read.keep, read.monthly), (Series::Name, 3, 0));
        assert!(read.younger.duration().is_zero());
        assert!(read.names("compute-24.11") && !read.names("login-1") && !read.names("a-compute-1"));
        let again: ImageRule = toml::Value::try_from(read.clone()).unwrap().try_into().unwrap();
        assert_eq!(again, read);
    }

    #[test]
    fn a_rule_that_would_surprise_is_refused() {
        for (text, words) in [
            ("name = \"\"\nkeep = 1", "is empty"),
            ("name = \"compute\"", "keeps nothing"),
            ("name = \"**\"\nseries = \"rule\"\nkeep = 1", "one series of all images"),
            ("keep = 1", "missing field `name`"),
            ("name = \"a\"\nkeep = -1", "invalid value"),
            ("name = \"a\"\nlast = 1", "unknown field `last`"),
            ("name = \"a\"\nyounger = \"soon\"", "length of time"),
        ] {
            let why = rule(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}

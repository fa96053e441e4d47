//! The checks of a finished root: which there are, and what a finding means for the job. Pure: no I/O.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{Code, near};

/// What a finding of a check means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckLevel {
    /// The job fails.
    Fail,
    /// The log has a warning.
    Warn,
    /// Nothing.
    Off,
}

impl fmt::Display for CheckLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::Off => "off",
        })
    }
}

/// The levels that somebody chose, by the codes of the checks.
pub type CheckLevels = BTreeMap<Code, CheckLevel>;

/// The file of a recipe that has its own settings.
pub const RECIPE_SETTINGS: &str = "kiln-recipe.toml";

/// The most bytes of that file.
pub const LARGEST_SETTINGS: u64 = 64 << 10;

/// The checks, and the level of each where nobody chose another.
pub const ROOT_CHECKS: [(Code, CheckLevel); 10] = [
    (Code::RootLoader, CheckLevel::Fail),
    (Code::RootModes, CheckLevel::Warn),
    (Code::RootDevices, CheckLevel::Warn),
    (Code::RootLinks, CheckLevel::Warn),
    (Code::RootModules, CheckLevel::Warn),
    (Code::RootAccounts, CheckLevel::Warn),
    (Code::RootPackages, CheckLevel::Warn),
    (Code::RootSetuid, CheckLevel::Warn),
    (Code::RootAttributes, CheckLevel::Warn),
    (Code::RootIdentity, CheckLevel::Warn),
];

/// The level of a check. What a site wants to fail fails; apart from that, a recipe knows better than its site.
pub fn level(code: Code, site: &CheckLevels, recipe: &CheckLevels) -> CheckLevel {
    let usual = || {
        let row = ROOT_CHECKS.iter().find(|(known, _)| *known == code);
        row.map_or(CheckLevel::Warn, |(_, level)| *level)
    };
    match site.get(&code) {
        Some(CheckLevel::Fail) => CheckLevel::Fail,
        chosen => *recipe.get(&code).or(chosen).unwrap_or(&usual()),
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    checks: BTreeMap<String, CheckLevel>,
}

/// The levels that the settings of a recipe choose.
///
/// # Errors
///
/// Why they cannot be used.
pub fn of_recipe(settings: &str) -> Result<CheckLevels, String> {
    let settings: Settings = toml::from_str(settings).map_err(|error| error.to_string())?;
    let mut levels = CheckLevels::new();
    for (name, level) in settings.checks {
        let code = ROOT_CHECKS.iter().find(|(code, _)| code.name() == name);
        let Some((code, _)) = code else {
            let names: Vec<&str> = ROOT_CHECKS.iter().map(|(code, _)| code.name()).collect();
            let near = near::nearest(&name, names.iter().copied());
            let near = near.first().map(|near| format!("; did you mean `{near}`?"));
            return Err(format!("there is no check `{name}`{}", near.unwrap_or_default()));
        };
        levels.insert(*code, level);
    }
    Ok(levels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_chooses_unless_its_site_wants_a_failure() {
        let site = CheckLevels::from([
            (Code::RootModes, CheckLevel::Fail),
            (Code::RootSetuid, CheckLevel::Off),
            (Code::RootLinks, CheckLevel::Off),
        ]);
        let recipe = of_recipe("[checks]\nroot_modes = 'off'\nroot_setuid = 'fail'\nroot_loader = 'off'").unwrap();
        for (code, expected) in [
            (Code::RootModes, CheckLevel::Fail),
            (Code::RootSetuid, CheckLevel::Fail),
            (Code::RootLinks, CheckLevel::Off),
            (Code::RootLoader, CheckLevel::Off),
            (Code::RootAccounts, CheckLevel::Warn),
        ] {
            assert_eq!(level(code, &site, &recipe), expected, "{code}");
        }
    }

    #[test]
    fn settings_that_are_none_are_refused() {
        assert_eq!(of_recipe("").unwrap(), CheckLevels::new());
        for (text, why) in [
            ("[checks]\nroot_mode = 'off'", "did you mean `root_modes`?"),
            ("[checks]\nroot_modes = 'never'", "never"),
            ("[check]\n", "check"),
            ("[checks", ""),
        ] {
            let error = of_recipe(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}

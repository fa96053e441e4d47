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

/// The checks, and the level of each where nobody chose another.
pub const ROOT_CHECKS: [(Code, CheckLevel); 12] = [
    (Code::RootLoader, CheckLevel::Fail),
    (Code::RootModes, CheckLevel::Warn),
    (Code::RootDevices, CheckLevel::Warn),
    (Code::RootLinks, CheckLevel::Warn),
    (Code::RootModules, CheckLevel::Warn),
    (Code::RootInitrd, CheckLevel::Warn),
    (Code::RootInitrdUnread, CheckLevel::Warn),
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

/// The levels that somebody wrote, by the names of the checks.
///
/// # Errors
///
/// Why they cannot be used.
pub(crate) fn by_names(chosen: BTreeMap<String, CheckLevel>) -> Result<CheckLevels, String> {
    let mut levels = CheckLevels::new();
    for (name, level) in chosen {
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
        let recipe = [
            ("root_modes", CheckLevel::Off),
            ("root_setuid", CheckLevel::Fail),
            ("root_loader", CheckLevel::Off),
        ];
        let recipe = by_names(recipe.map(|(name, level)| (name.to_owned(), level)).into()).unwrap();
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
}

//! The settings of Kiln's own that a recipe has. Pure: no I/O.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{CheckLevel, CheckLevels, root_check};

/// The file of a recipe that has them.
pub const RECIPE_SETTINGS: &str = "kiln-recipe.toml";

/// The most bytes of that file.
pub const LARGEST_SETTINGS: u64 = 64 << 10;

/// Which kernel `uname -r` names to programs of a root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Uname {
    /// The newest one in the root, if it has any.
    #[default]
    Image,
    /// The one that the build runs on.
    Builder,
}

/// The settings of a recipe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecipeSettings {
    /// The levels of the checks of its finished root.
    pub checks: CheckLevels,
    /// The kernel that its scripts are told of.
    pub uname: Uname,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    checks: BTreeMap<String, CheckLevel>,
    scripts: Scripts,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Scripts {
    uname: Uname,
}

impl RecipeSettings {
    /// Reads the text of the file.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn read(text: &str) -> Result<Self, String> {
        let Written { checks, scripts } = toml::from_str(text).map_err(|error| error.to_string())?;
        Ok(Self {
            checks: root_check::by_names(checks)?,
            uname: scripts.uname,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn settings_are_read() {
        assert_eq!(RecipeSettings::read("").unwrap(), RecipeSettings::default());
        let settings = RecipeSettings::read("[checks]\nroot_modes = 'off'\n[scripts]\nuname = 'builder'").unwrap();
        assert_eq!(settings.checks, CheckLevels::from([(Code::RootModes, CheckLevel::Off)]));
        assert_eq!(settings.uname, Uname::Builder);
    }

    #[test]
    fn settings_that_are_none_are_refused() {
        for (text, why) in [
            ("[checks]\nroot_mode = 'off'", "did you mean `root_modes`?"),
            ("[checks]\nroot_modes = 'never'", "never"),
            ("[check]\n", "check"),
            ("[scripts]\nuname = 'host'", "host"),
            ("[scripts]\nkernel = 'image'", "kernel"),
            ("[checks", ""),
        ] {
            let error = RecipeSettings::read(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}

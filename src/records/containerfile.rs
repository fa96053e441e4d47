//! What of a recipe with Containerfiles is built, as a job says it. Pure: no I/O.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

/// The longest name of a stage or a secret.
pub const LONGEST_WORD: usize = 64;

/// The longest path of a Containerfile.
pub const LONGEST_PATH: usize = 1024;

/// The choices of a job. All are absent for other recipes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ContainerfileOptions {
    /// The Containerfile's path in the context; null means the usual names.
    pub file: Option<String>,
    /// The stage to build, by name or number; null means the last one.
    pub target: Option<String>,
    /// The secrets that commands of the file may have, by name.
    pub secrets: Vec<String>,
}

impl ContainerfileOptions {
    /// Whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Checks the path of a Containerfile in its context.
///
/// # Errors
///
/// Why it cannot be one.
pub fn check_containerfile(path: &str) -> Result<(), &'static str> {
    let is_below = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if path.len() > LONGEST_PATH || path.chars().any(char::is_control) || path.ends_with('/') {
        return Err("Not the path of a file.");
    }
    if is_below {
        return Ok(());
    }
    Err("Leads out of the context.")
}

/// Checks the name of a stage or a secret.
///
/// # Errors
///
/// Why it cannot be one.
pub fn check_word(word: &str) -> Result<(), &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=LONGEST_WORD).contains(&word.len())
        && word.bytes().all(is_plain)
        && word.starts_with(|first: char| first != '-')
    {
        return Ok(());
    }
    Err("Has other characters than letters, digits, `-`, `_` and `.`, or too many.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containerfile_is_in_its_context() {
        for (path, is_allowed) in [
            ("docker/Dockerfile.prod", true),
            ("./Dockerfile", true),
            ("../Dockerfile", false),
            ("a/../../b", false),
            ("/etc/passwd", false),
            ("a\nb", false),
            ("docker/", false),
        ] {
            assert_eq!(check_containerfile(path).is_ok(), is_allowed, "{path}");
        }
    }

    #[test]
    fn words_are_no_options_and_no_paths() {
        for (word, is_allowed) in [
            ("npm_token", true),
            ("0", true),
            ("-x", false),
            ("a/b", false),
            ("", false),
            ("a,b", false),
        ] {
            assert_eq!(check_word(word).is_ok(), is_allowed, "{word}");
        }
    }
}

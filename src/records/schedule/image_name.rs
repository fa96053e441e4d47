//! Expands the templates of schedules: names of images, and versions of image sets. Pure: no I/O.

use jiff::Zoned;

use crate::{arch::Arch, names::check_file_name, set::name::check_version};

/// The values of the placeholders.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The time at which the run was due, by the clock of the schedule's zone.
    pub due: &'a Zoned,
    /// The recipe's name.
    pub recipe: &'a str,
    /// The recipe's architecture.
    pub arch: Arch,
    /// The number of the run.
    pub number: u32,
}

/// Replaces `{date}` (`2026-11-21`), `{time}` (`0200`), `{recipe}`, `{arch}` and `{n}` with their values.
///
/// # Errors
///
/// One sentence: a placeholder is unknown, a brace has no partner, or the result is not a valid image name.
pub fn expand(template: &str, facts: &Facts<'_>) -> Result<String, String> {
    let known = "{date}, {time}, {recipe}, {arch} and {n}";
    let name = replace(template, known, |placeholder| match placeholder {
        "recipe" => Some(facts.recipe.to_owned()),
        "arch" => Some(facts.arch.name().to_owned()),
        _ => of_run(placeholder, facts.due, facts.number),
    })?;
    match check_file_name(&name) {
        Ok(()) if name.is_empty() => Err("Shorter than minimum length 1.".to_owned()),
        Ok(()) => Ok(name),
        Err(why) if name == template => Err(why.to_owned()),
        Err(why) => Err(format!("`{name}`: {why}")),
    }
}

/// Replaces `{date}`, `{time}` and `{n}`, given the time at which the run was due and its number.
///
/// # Errors
///
/// One sentence: as for names of images, the result is not a valid version, or all runs would have the same one.
pub fn expand_version(template: &str, due: &Zoned, number: u32) -> Result<String, String> {
    let known = "{date}, {time} and {n}";
    let version = replace(template, known, |placeholder| of_run(placeholder, due, number))?;
    if version == template {
        return Err(format!("Each run needs a version of its own, with one of {known}."));
    }
    check_version(&version).map_err(|why| format!("`{version}`: {why}"))?;
    Ok(version)
}

fn of_run(placeholder: &str, due: &Zoned, number: u32) -> Option<String> {
    match placeholder {
        "date" => Some(due.strftime("%Y-%m-%d").to_string()),
        "time" => Some(due.strftime("%H%M").to_string()),
        "n" => Some(number.to_string()),
        _ => None,
    }
}

/// Replaces placeholders; `known` names them for people.
fn replace(template: &str, known: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut name = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        name.push_str(&rest[..at]);
        let Some((placeholder, after)) = rest[at..].strip_prefix('{').and_then(|inner| inner.split_once('}')) else {
            return Err(
                "A brace without its partner; a name cannot have any but those around placeholders.".to_owned(),
            );
        };
        let value = value(placeholder);
        name.push_str(&value.ok_or_else(|| format!("There is no placeholder {{{placeholder}}}; there are {known}."))?);
        rest = after;
    }
    name.push_str(rest);
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(template: &str, recipe: &str) -> Result<String, String> {
        let due: Zoned = "2026-03-29T03:00:00+02:00[Europe/Berlin]".parse().unwrap();
        let facts = Facts {
            due: &due,
            recipe,
            arch: Arch::Aarch64,
            number: 7,
        };
        expand(template, &facts)
    }

    #[test]
    fn placeholders_stand_for_facts() {
        assert_eq!(expanded("nightly-{date}", "r").unwrap(), "nightly-2026-03-29");
        assert_eq!(
            expanded("{recipe}.{arch}-{n}-{time}", "r {n}").unwrap(),
            "r {n}.aarch64-7-0300"
        );
        assert_eq!(expanded("plain", "r").unwrap(), "plain");
    }

    #[test]
    fn each_run_has_a_version_of_its_own() {
        let due: Zoned = "2026-03-29T03:00:00+02:00[Europe/Berlin]".parse().unwrap();
        let expanded = |template| expand_version(template, &due, 7);
        assert_eq!(expanded("24.11-{date}.{n}").unwrap(), "24.11-2026-03-29.7");
        for (template, words) in [
            ("24.11", "a version of its own"),
            ("{arch}", "there are {date}, {time} and {n}."),
            ("{n} a", "`7 a`: "),
        ] {
            let why = expanded(template).unwrap_err();
            assert!(why.contains(words), "{template}: {why}");
        }
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        for (template, recipe, words) in [
            ("{data}", "r", "there are {date}, {time}, {recipe}, {arch} and {n}"),
            ("{}", "r", "no placeholder {}"),
            ("{Date}", "r", "no placeholder {Date}"),
            ("a{date", "r", "without its partner"),
            ("a}b", "r", "without its partner"),
            ("{{date}}", "r", "no placeholder {{date}"),
            ("", "r", "minimum length"),
            ("{recipe}", "a/b", "`a/b`: Not a plain file name."),
            ("a/b", "r", "Not a plain file name."),
            ("{recipe}", &"x".repeat(256), "Longer than 255 bytes."),
        ] {
            let why = expanded(template, recipe).unwrap_err();
            assert!(why.contains(words), "{template}: {why}");
        }
    }
}

//! Shows people what is understood of a recipe. Pure, apart from the output.

use kiln_records::{
    CheckLevel, names,
    protocol::{ProfileRead, Reading, RepositoryReach, RepositoryRead, ScriptRead, TypeRead},
};

use super::printer::Printer;

/// Prints a reading, a row for each fact.
pub(super) fn show(reading: &Reading, printer: &Printer) {
    for (what, text) in rows(reading) {
        printer.result(format_args!("{what:<13} {}", names::shown(&text)));
    }
}

fn rows(reading: &Reading) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let mut row = |what, text: String| rows.push((what, text));
    let name = reading.name.as_deref().unwrap_or("no name is known yet");
    row("recipe", format!("{name}, read for {}", reading.arch));
    if let Some(description) = &reading.description {
        let schema = match &reading.schema {
            Some(schema) if schema.version == schema.read_as => format!(", schema {}", schema.version),
            Some(schema) => format!(", schema {}, converted to {}", schema.version, schema.read_as),
            None => String::new(),
        };
        row("description", format!("{description}{schema}"));
    }
    for included in &reading.included {
        row("includes", included.clone());
    }
    for value in &reading.values {
        let given = match (value.given, &reading.schema) {
            (true, _) => "has a value",
            (false, None) => "has no value",
            // The templates are rendered.
            (false, Some(_)) => "has no value, and needs none",
        };
        row("template", format!("{} {given}", value.name));
    }
    if !reading.archs.is_empty() {
        row("names", reading.archs.join(", "));
    }
    for profile in &reading.profiles {
        row("profile", of_profile(profile));
    }
    for it in &reading.types {
        row("type", of_type(it));
    }
    if let Some(manager) = &reading.package_manager {
        let written = match &manager.written {
            Some(written) if *written == manager.read_as => String::new(),
            Some(written) => format!(", written as {written}"),
            None => ", since none is named".to_owned(),
        };
        row("manager", format!("{}{written}", manager.read_as));
    }
    if let Some(packages) = &reading.packages {
        let text = format!(
            "{} for the beginning, {} after them, and {} patterns, groups and products",
            packages.bootstrap, packages.image, packages.collections
        );
        row("packages", text);
    }
    for repository in &reading.repositories {
        row("repository", of_repository(repository));
    }
    for script in &reading.scripts {
        row("script", of_script(script));
    }
    if reading.packages.is_some() {
        let layer = match &reading.no_layer {
            Some(why) => format!("no: {why}"),
            None => "the packages can be kept for later builds".to_owned(),
        };
        row("layer", layer);
    }
    for level in [CheckLevel::Fail, CheckLevel::Warn, CheckLevel::Off] {
        let checks = reading.checks.iter().filter(|check| check.level == level);
        let checks = checks.map(|check| {
            let by = if check.by_recipe { " (by the recipe)" } else { "" };
            format!("{}{by}", check.code)
        });
        let checks: Vec<_> = checks.collect();
        if !checks.is_empty() {
            row("checks", format!("{level}: {}", checks.join(", ")));
        }
    }
    rows
}

/// Parts of a row, without those that are empty.
fn joined(parts: impl IntoIterator<Item = String>) -> String {
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

/// Names after a word, if there are any.
fn listed(word: &str, names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!("{word} {}", names.join(" and "))
}

fn in_force(is_in_force: bool) -> String {
    if is_in_force { "in force" } else { "" }.to_owned()
}

fn of_profile(profile: &ProfileRead) -> String {
    joined([
        profile.name.clone(),
        listed("for", &profile.archs),
        listed("with", &profile.requires),
        if profile.by_itself { "by itself" } else { "" }.to_owned(),
        in_force(profile.in_force),
    ])
}

fn of_type(it: &TypeRead) -> String {
    joined([
        it.image.clone(),
        listed("for", &it.archs),
        listed("of", &it.profiles),
        in_force(it.in_force),
    ])
}

fn of_repository(repository: &RepositoryRead) -> String {
    let why = repository.why.as_deref().unwrap_or_default();
    let state = match repository.state {
        RepositoryReach::Ready => "ready".to_owned(),
        RepositoryReach::Unreachable => format!("not reachable: {why}"),
        RepositoryReach::Unknown => format!("not looked at: {why}"),
        RepositoryReach::Unused => format!("not used: {why}"),
    };
    let signed = match (repository.signed, repository.signed_by.as_slice()) {
        (None, _) => String::new(),
        (Some(false), _) => "not signed".to_owned(),
        (Some(true), []) => "signed by keys that cannot be told".to_owned(),
        (Some(true), by) => listed("signed by", by),
    };
    let lacks = match repository.has_arch {
        Some(false) => format!("only for {}", repository.has.join(" ")),
        Some(true) | None => String::new(),
    };
    joined([
        repository.url.clone(),
        repository.kind.clone().unwrap_or_default(),
        listed("for", &repository.archs),
        listed("of", &repository.profiles),
        state,
        lacks,
        signed,
        listed("to be signed by", &repository.keys),
    ])
}

fn of_script(script: &ScriptRead) -> String {
    let first = script.first_line.as_deref().unwrap_or("names no interpreter");
    let executable = if script.executable {
        "executable"
    } else {
        "not executable"
    };
    let run = match &script.run_by {
        Some(run_by) => format!("run by {run_by}"),
        None => "not run".to_owned(),
    };
    let obsolete = listed("obsolete in it:", &script.obsolete);
    joined([
        script.name.clone(),
        first.to_owned(),
        executable.to_owned(),
        run,
        obsolete,
    ])
}

//! Completes the help of the commands that talk to a server: their nouns, and only the options that have an effect
//! there. Pure: no I/O.

use clap::{Arg, Command};

/// The groups of commands that only talk to a server.
pub(super) const GROUPS: [&str; 19] = [
    "customize",
    "shell",
    "recipes",
    "images",
    "jobs",
    "public-keys",
    "deleted",
    "remote-build-nodes",
    "schedules",
    "prune",
    "audit",
    "webhooks",
    "sets",
    "catalogue",
    "publish",
    "top",
    "ims",
    "login",
    "logout",
];

/// The groups with the verbs of records: the singular and the plural of each.
const NOUNS: [(&str, &str, &str); 7] = [
    ("recipes", "a recipe", "recipes"),
    ("images", "an image", "images"),
    ("jobs", "a job", "jobs"),
    ("public-keys", "a public key", "public keys"),
    ("remote-build-nodes", "a remote build node", "remote build nodes"),
    ("schedules", "a schedule", "schedules"),
    ("sets", "a set", "sets"),
];

/// Completes the derived command line.
pub(super) fn complete(mut command: Command) -> Command {
    let shared: Vec<Arg> = command.get_arguments().map(fit).collect();
    for name in GROUPS {
        command = command.mut_subcommand(name, |group| group.args(&shared));
    }
    name_records(command, false)
}

/// Changes an option of every command for a command that stores nothing on this machine.
fn fit(argument: &Arg) -> Arg {
    match argument.get_id().as_str() {
        "verbose" => argument.clone().help("Show requests and answers").display_order(900),
        "quiet" => argument.clone().display_order(900),
        _ => argument.clone().hide(true),
    }
}

/// All kinds of records share their verbs; this function adds the noun of each.
fn name_records(command: Command, is_deleted: bool) -> Command {
    command.mut_subcommands(|group| {
        let name = group.get_name().to_owned();
        if matches!(name.as_str(), "ims" | "deleted") {
            return name_records(group, name == "deleted");
        }
        match NOUNS.iter().find(|(group, ..)| *group == name) {
            Some((_, one, several)) => group.mut_subcommands(|verb| say(verb, one, several, is_deleted)),
            None => group,
        }
    })
}

fn say(verb: Command, one: &str, several: &str, is_deleted: bool) -> Command {
    let (_, noun) = one.split_once(' ').unwrap_or(("", one));
    let one = if is_deleted {
        format!("a deleted {noun}")
    } else {
        one.to_owned()
    };
    let deleted = if is_deleted { "deleted " } else { "" };
    let for_good = if is_deleted { " for good" } else { "" };
    let about = match verb.get_name() {
        "list" => format!("List {deleted}{several}"),
        "describe" => format!("Show {one}"),
        "create" => format!("Create {one}"),
        "update" if is_deleted => format!("Restore {one}"),
        "undelete" => format!("Restore {one}: short for `update --operation undelete`"),
        "update" => format!("Change {one}"),
        "delete" => format!("Delete {one}{for_good}"),
        "deleteall" => format!("Delete all {deleted}{several}{for_good}, without asking"),
        _ => return verb,
    };
    verb.about(about)
}

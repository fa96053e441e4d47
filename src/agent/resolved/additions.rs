//! Adds to a recipe's description what the job adds: repositories and packages. Everything that reads the description has them
//! then: what waits for repositories, masks secrets, and decides about layers and twins. Runs a program of the toolbox, and replaces
//! the description in the recipe.

use std::path::Path;

use kiln_records::{Code, Failure, additions::Additions};
use serde_json::json;

use super::{failed, run};
use crate::{
    events::Events,
    kiwi_config::{self, Choice},
    template,
};

/// The program.
const PROGRAM: &str = include_str!("add.py");

/// Adds to the description of a recipe, which is resolved.
///
/// # Errors
///
/// `recipe_config_invalid` where a repository is to be replaced and none is in force; `profile_unknown`.
pub(crate) async fn add(
    recipe: &Path,
    additions: &Additions,
    choice: Choice<'_>,
    events: &Events,
) -> Result<(), Failure> {
    if additions.is_empty() {
        return Ok(());
    }
    let path = kiwi_config::find(recipe)?;
    let lost = |error: std::io::Error| Failure::io("cannot add to the recipe's description", &error);
    let text = kiwi_config::text(&path).map_err(lost)?;
    let order = order(&text, additions, choice)?;
    let ended = run(PROGRAM, &[], order.to_string().as_bytes()).await.map_err(lost)?;
    if !ended.status.success() {
        return Err(failed("the description with what the job adds", &ended));
    }
    template::replace(&path, &ended.stdout).map_err(lost)?;
    for (option, text) in additions.shown() {
        events
            .say(format!("the description has as well: {option} {text}"))
            .await;
    }
    Ok(())
}

/// What the program is to do.
fn order(text: &str, additions: &Additions, choice: Choice<'_>) -> Result<serde_json::Value, Failure> {
    let first = match &additions.set_repo {
        Some(_) if !additions.ignore_repos => kiwi_config::first_repository(text, choice)?,
        _ => None,
    };
    if additions.set_repo.is_some() && first.is_none() {
        let why = "a repository is to be replaced, and the recipe has none in force";
        return Err(Failure::new(Code::RecipeConfigInvalid, why).hint("--add-repo adds one"));
    }
    let lines: Vec<_> = additions.add_repos.iter().map(|line| line.parts()).collect();
    Ok(json!({
        "description": text,
        "ignore_repos": additions.ignore_repos,
        "first": first,
        "set_repo": additions.set_repo.as_ref().map(|line| line.parts()),
        "add_repos": lines,
        "packages": {
            "bootstrap": additions.add_bootstrap_packages,
            "image": additions.add_packages,
            "uninstall": additions.delete_packages,
        },
    }))
}

#[cfg(test)]
mod tests {
    use kiln_records::{additions::RepositoryLine, arch::Arch};

    use super::*;

    const TEXT: &str = r#"<image name="i">
        <profiles><profile name="a"/><profile name="b" import="true"/></profiles>
        <repository profiles="a"><source path="http://a"/></repository>
        <repository arch="s390x"><source path="http://z"/></repository>
        <repository><source path="http://all"/></repository>
    </image>"#;

    fn first(profiles: &[&str], arch: Arch, ignore_repos: bool) -> Result<serde_json::Value, Failure> {
        let profiles: Vec<_> = profiles.iter().map(|name| (*name).to_owned()).collect();
        let additions = Additions {
            ignore_repos,
            set_repo: Some(RepositoryLine::set("http://other").unwrap()),
            ..Additions::default()
        };
        let choice = Choice {
            arch,
            profiles: &profiles,
        };
        order(TEXT, &additions, choice).map(|order| order["first"].clone())
    }

    #[test]
    fn the_first_repository_in_force_is_replaced() {
        assert_eq!(first(&[], Arch::X86_64, false).unwrap(), 2);
        assert_eq!(first(&[], Arch::S390x, false).unwrap(), 1);
        assert_eq!(first(&["a"], Arch::X86_64, false).unwrap(), 0);
        for (profiles, ignored, code) in [
            (&["c"][..], false, Code::ProfileUnknown),
            (&[], true, Code::RecipeConfigInvalid),
        ] {
            assert_eq!(first(profiles, Arch::X86_64, ignored).unwrap_err().code, code);
        }
    }
}

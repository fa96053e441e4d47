//! Says which scripts a recipe has, and what will run each of them. Reads files of the recipe only.

use std::{io, os::unix::fs::PermissionsExt, path::Path};

use kiln_records::protocol::ScriptRead;

use crate::{line_ends::first_line, template};

/// kiwi's scripts of a root file system, in the order in which they run.
pub(super) const OF_ROOT: [&str; 3] = ["post_bootstrap.sh", "config.sh", "images.sh"];

/// Those of these scripts that a recipe has; `runs` says whether they are run.
///
/// # Errors
///
/// One cannot be read.
pub(super) fn look(recipe: &Path, names: &[impl AsRef<str>], runs: bool) -> io::Result<Vec<ScriptRead>> {
    let mut scripts = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        // A script outside the recipe is kiwi's to refuse.
        let Ok(path) = template::inside(recipe, name) else {
            continue;
        };
        let (first, _) = first_line(&path)?;
        let interpreter = first
            .strip_prefix(b"#!")
            .map(|rest| String::from_utf8_lossy(rest).trim().to_owned());
        let executable = fs_err::metadata(&path)?.permissions().mode() & 0o111 != 0;
        let run_by = match &interpreter {
            // As kiwi calls it (kiwi 11.1.6, `SystemSetup._call_script`): the kernel looks at the first line of what is
            // executable, and bash takes the place of one that is missing.
            Some(interpreter) if executable && !interpreter.is_empty() => interpreter.clone(),
            _ => "bash".to_owned(),
        };
        scripts.push(ScriptRead {
            name: name.to_owned(),
            first_line: interpreter.map(|interpreter| format!("#!{interpreter}")),
            executable,
            run_by: runs.then_some(run_by),
            obsolete: Vec::new(),
        });
    }
    Ok(scripts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_counts_where_the_file_is_executable() {
        let recipe = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, mode| {
            let path = recipe.path().join(name);
            fs_err::write(&path, text).unwrap();
            fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write("images.sh", "#! /usr/bin/python3 -E\n", 0o755);
        write("config.sh", "#!/bin/zsh\n", 0o644);
        write("post_bootstrap.sh", "echo\n", 0o755);
        write("disk.sh", "#!/bin/sh\n", 0o755);
        let mut found = look(recipe.path(), &OF_ROOT, true).unwrap();
        found.extend(look(recipe.path(), &["disk.sh", "gone.sh"], false).unwrap());
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.name.as_str(), it.run_by.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("post_bootstrap.sh", Some("bash")),
                ("config.sh", Some("bash")),
                ("images.sh", Some("/usr/bin/python3 -E")),
                ("disk.sh", None),
            ]
        );
    }
}

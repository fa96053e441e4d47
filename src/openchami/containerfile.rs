//! A layer with a parent as a Containerfile. Pure: no I/O.
//!
//! Commands are in the JSON form, which no shell and no variable of the file touches. What a user wrote is one word of it.

use std::fmt::Write as _;

use crate::{
    Copy, Files, Form, Written, Wrong,
    layer::{Command, Content, File, Layer, Manager, Playbook, Repo, RepoSource, is_remote},
    quote::{json, label, unexpanded},
};

/// The recipe.
pub(crate) fn write(layer: &Layer, parent: &str) -> Result<Files, Wrong> {
    let mut writer = Writer {
        lines: vec![
            "# A layer of OpenCHAMI's, translated by Kiln.".to_owned(),
            format!("FROM {parent}"),
        ],
        files: Files::default(),
        places: 0,
    };
    writer.repositories(layer)?;
    // Each tool has an order of its own.
    if layer.form == Form::Builder {
        writer.modules(layer)?;
        writer.groups(layer)?;
        writer.packages(layer)?;
        writer.remove(layer)?;
        writer.files(layer)?;
        writer.commands(&layer.commands)?;
    } else {
        writer.files(layer)?;
        writer.modules(layer)?;
        writer.packages(layer)?;
        writer.groups(layer)?;
        writer.commands(&layer.commands)?;
        writer.remove(layer)?;
    }
    writer.commands(&layer.scans)?;
    for (key, value) in &layer.labels {
        writer.lines.push(format!("LABEL \"{key}\"={}", label(value)));
    }
    let bytes = (writer.lines.join("\n") + "\n").into_bytes();
    writer.files.written.insert(
        0,
        Written {
            path: "Containerfile".to_owned(),
            mode: 0o644,
            bytes,
        },
    );
    Ok(writer.files)
}

struct Writer {
    lines: Vec<String>,
    files: Files,
    places: usize,
}

impl Writer {
    fn run<S: AsRef<str>>(&mut self, key: &str, words: &[S]) -> Result<(), Wrong> {
        self.lines.push(format!("RUN {}", json(key, words)?));
        Ok(())
    }

    /// Runs a script with words that are its arguments.
    fn shell(&mut self, key: &str, script: &str, words: &[&str]) -> Result<(), Wrong> {
        let words: Vec<&str> = ["/bin/sh", "-c", script, "sh"].iter().chain(words).copied().collect();
        self.run(key, &words)
    }

    fn copy(&mut self, file: &File) -> Result<(), Wrong> {
        self.places += 1;
        let last = match &file.content {
            Content::Path(path) => path
                .rsplit('/')
                .find(|part| !matches!(*part, "" | "." | ".."))
                .unwrap_or("tree"),
            Content::Text(_) | Content::Url(_) => "file",
        };
        // The last part of the path counts where the target is a directory.
        let from = format!("copies/{}/{last}", self.places);
        let (instruction, from) = match &file.content {
            Content::Url(url) => ("ADD", url.clone()),
            Content::Text(text) => {
                let (path, bytes) = (from.clone(), text.clone().into_bytes());
                self.files.written.push(Written {
                    path,
                    mode: file.mode.unwrap_or(0o644),
                    bytes,
                });
                ("COPY", from)
            }
            Content::Path(path) => {
                self.files.copies.push(Copy {
                    key: file.key.clone(),
                    source: path.clone(),
                    to: from.clone(),
                    mode: None,
                    excludes: file.tree.clone().unwrap_or_default(),
                    directory: file.tree.is_some().then_some(true),
                    optional: false,
                });
                ("COPY", from)
            }
        };
        let mut line = instruction.to_owned();
        if let Some(owner) = &file.owner {
            let _ = write!(line, " --chown={owner}");
        }
        if let Some(mode) = file.mode {
            let _ = write!(line, " --chmod={mode:04o}");
        }
        let words = json(&file.key, &[unexpanded(&from), unexpanded(&file.dest)])?;
        self.lines.push(format!("{line} {words}"));
        Ok(())
    }

    fn text(&mut self, key: &str, path: &str, text: String, mode: u32) -> Result<(), Wrong> {
        self.copy(&File {
            key: key.to_owned(),
            dest: path.to_owned(),
            content: Content::Text(text),
            mode: Some(mode),
            owner: None,
            tree: None,
        })
    }

    fn repositories(&mut self, layer: &Layer) -> Result<(), Wrong> {
        if let Some((key, path, text)) = &layer.config {
            self.text(key, path, text.clone(), 0o600)?;
        }
        let place = layer.manager.repositories();
        if layer.only_these_repos {
            self.shell("exclusive_repos", r#"rm -rf "$1"/*"#, &[place])?;
        }
        for repo in &layer.repos {
            match &repo.source {
                RepoSource::Packages { alias, .. } => {
                    let end = if layer.manager.is_deb() { "list" } else { "repo" };
                    self.text(
                        &repo.key,
                        &format!("{place}/{alias}.{end}"),
                        entry(layer.manager, repo),
                        0o644,
                    )?;
                }
                RepoSource::File { path, content, mode } => {
                    let content = match content {
                        Content::Text(text) => Content::Text(text.clone()),
                        Content::Path(path) => Content::Path(path.clone()),
                        Content::Url(url) => Content::Url(url.clone()),
                    };
                    let (key, dest) = (repo.key.clone(), path.clone());
                    self.copy(&File {
                        key,
                        dest,
                        content,
                        mode: Some(*mode),
                        owner: None,
                        tree: None,
                    })?;
                }
            }
        }
        let (mut names, mut known) = (Vec::new(), Vec::new());
        for repo in &layer.repos {
            let Some(gpg) = repo.gpg.as_ref().filter(|gpg| !known.contains(gpg)) else {
                continue;
            };
            known.push(gpg);
            let key = format!("{}.gpg", repo.key);
            if layer.manager.is_deb() {
                if !is_remote(gpg) {
                    return Err(Wrong::unsupported(
                        key,
                        "only keys with an address can be fetched for apt",
                    ));
                }
                let (RepoSource::Packages { alias: path, .. } | RepoSource::File { path, .. }) = &repo.source;
                let base = path.rsplit('/').next().unwrap_or_default();
                let base = base.rsplit_once('.').map_or(base, |(base, _)| base);
                let mut name = crate::layer::alias(base);
                while names.contains(&name) {
                    name += "-more";
                }
                let target = format!("/etc/apt/trusted.gpg.d/{name}");
                names.push(name);
                self.copy(&File {
                    key: key.clone(),
                    dest: format!("{target}.got"),
                    content: Content::Url(gpg.clone()),
                    mode: Some(0o644),
                    owner: None,
                    tree: None,
                })?;
                // apt tells the two kinds apart by the name.
                let script =
                    r#"if grep -q 'BEGIN PGP' "$1.got"; then mv "$1.got" "$1.asc"; else mv "$1.got" "$1.gpg"; fi"#;
                self.shell(&key, script, &[&target])?;
            } else if layer.form == Form::Builder {
                self.run(&key, &["rpm", "--import", gpg])?;
            } else {
                // image-thrillhouse goes on without a key.
                self.shell(
                    &key,
                    r#"rpm --import "$1" || echo "a signing key was not imported" >&2"#,
                    &[gpg],
                )?;
            }
        }
        Ok(())
    }

    /// Runs a package manager, and empties its cache of packages.
    fn manager(
        &mut self,
        layer: &Layer,
        key: &str,
        before: &[&str],
        command: &[&str],
        names: &[String],
    ) -> Result<(), Wrong> {
        let script = match layer.manager {
            Manager::Dnf => r#"dnf "$@" && dnf clean all"#,
            // Scripts of packages that failed, and advice to reboot, are no failure.
            Manager::Zypper => {
                r#"zypper -n "$@"; s=$?; case $s in 0|102|103|107) zypper -n clean ;; *) exit $s ;; esac"#
            }
            Manager::Apt | Manager::Mmdebstrap => {
                r#"export DEBIAN_FRONTEND=noninteractive; apt-get update -q && { [ $# -eq 0 ] || apt-get install -y -q "$@"; } && apt-get clean"#
            }
        };
        let global = layer.options.global.iter().map(String::as_str);
        let words: Vec<&str> = before
            .iter()
            .copied()
            .chain(global)
            .chain(command.iter().copied())
            .chain(names.iter().map(String::as_str))
            .collect();
        self.shell(key, script, &words)
    }

    fn modules(&mut self, layer: &Layer) -> Result<(), Wrong> {
        for module in &layer.modules {
            let mut command = vec!["module", module.action.as_str(), "-y"];
            if layer.form == Form::Builder && layer.options.global.is_empty() {
                command.push("--nogpgcheck");
            }
            self.manager(
                layer,
                &module.key,
                quiet(layer),
                &command,
                std::slice::from_ref(&module.spec),
            )?;
        }
        Ok(())
    }

    fn groups(&mut self, layer: &Layer) -> Result<(), Wrong> {
        if layer.groups.is_empty() {
            return Ok(());
        }
        let mut command = match layer.manager {
            Manager::Zypper => vec!["install", "-y", "-t", "pattern"],
            _ => vec!["group", "install", "-y"],
        };
        command.extend(layer.options.install.iter().map(String::as_str));
        self.manager(layer, "package groups", quiet(layer), &command, &layer.groups)
    }

    fn packages(&mut self, layer: &Layer) -> Result<(), Wrong> {
        if layer.packages.is_empty() && layer.manager != Manager::Apt {
            return Ok(());
        }
        let install = layer.options.install.iter().map(String::as_str);
        let command: Vec<&str> = match layer.manager {
            _ if layer.packages.is_empty() => Vec::new(),
            Manager::Apt | Manager::Mmdebstrap => install.collect(),
            _ => ["install", "-y"].into_iter().chain(install).collect(),
        };
        self.manager(layer, "packages", quiet(layer), &command, &layer.packages)
    }

    fn remove(&mut self, layer: &Layer) -> Result<(), Wrong> {
        let tool: &[&str] = if layer.manager.is_deb() {
            &["dpkg", "--remove", "--force-depends"]
        } else {
            &["rpm", "-e", "--nodeps"]
        };
        let each = if layer.form == Form::Builder { 1 } else { usize::MAX };
        for names in layer.remove.chunks(each) {
            let words: Vec<&str> = tool.iter().copied().chain(names.iter().map(String::as_str)).collect();
            self.run("remove_packages", &words)?;
        }
        Ok(())
    }

    fn files(&mut self, layer: &Layer) -> Result<(), Wrong> {
        layer.files.iter().try_for_each(|file| self.copy(file))
    }

    fn commands(&mut self, commands: &[Command]) -> Result<(), Wrong> {
        for command in commands {
            let mut mount = String::new();
            if let Some(playbook) = &command.playbook {
                self.places += 1;
                let place = format!("copies/{}", self.places);
                mount = format!("--mount=type=bind,source={place},target={} ", Playbook::PLACE);
                self.playbook(&command.key, playbook, &place);
            }
            self.lines
                .push(format!("RUN {mount}{}", json(&command.key, &words(command))?));
        }
        Ok(())
    }

    fn playbook(&mut self, key: &str, playbook: &Playbook, place: &str) {
        playbook.add_to(&mut self.files, key, place);
    }
}

/// The words of a command with its environment, and with 107 as success where it is.
pub(crate) fn words(command: &Command) -> Vec<String> {
    let own = |word: &str| word.to_owned();
    let mut words = Vec::new();
    if !command.env.is_empty() {
        words.push(own("env"));
        words.extend(command.env.iter().map(|(name, value)| format!("{name}={value}")));
    }
    if command.lenient {
        let script = r#""$@" || { s=$?; [ $s -eq 107 ] || exit $s; }"#;
        words.extend([own("/bin/bash"), own("-c"), own(script), own("bash")]);
    }
    words.extend(command.argv.iter().cloned());
    words
}

fn quiet(layer: &Layer) -> &'static [&'static str] {
    if layer.form == Form::Layer && !layer.manager.is_deb() {
        &["-q"]
    } else {
        &[]
    }
}

/// The file of a repository in the image.
fn entry(manager: Manager, repo: &Repo) -> String {
    let RepoSource::Packages {
        alias,
        url,
        priority,
        settings,
        suite,
    } = &repo.source
    else {
        return String::new();
    };
    if manager.is_deb() {
        let trusted = if repo.gpg.is_none() { "[trusted=yes] " } else { "" };
        return match suite {
            Some((suite, components)) => format!("deb {trusted}{url} {suite} {components}\n"),
            None => format!("deb {trusted}{url} ./\n"),
        };
    }
    let mut lines = vec![
        format!("[{alias}]"),
        format!("name={alias}"),
        format!("baseurl={url}"),
        "enabled=1".to_owned(),
    ];
    if manager == Manager::Zypper {
        lines.push("autorefresh=1".to_owned());
        lines.push(format!("priority={}", priority.as_deref().unwrap_or("99")));
    } else if let Some(priority) = priority {
        lines.push(format!("priority={priority}"));
    }
    lines.extend(settings.iter().map(|(key, value)| format!("{key}={value}")));
    lines.join("\n") + "\n"
}

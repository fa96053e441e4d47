//! A layer from scratch as a description for kiwi-ng. Pure: no I/O.
//!
//! Packages of rpm are all installed from outside (`bootstrap`), as OpenCHAMI's tools do: such a root needs no package manager of
//! its own. Packages are removed by config.sh with rpm itself: kiwi-ng's `uninstall` would take what needs them as well.

use std::fmt::Write as _;

use crate::{
    Copy, Files, Form, Given, Written, Wrong,
    ini::{self, Described},
    layer::{Command, Content, File, Layer, Manager, Module, Playbook, RepoSource, is_remote},
    quote::{bash, xml},
};

/// The suites of Ubuntu, whose keys are not Debian's.
const UBUNTU: [&str; 9] = [
    "bionic", "focal", "jammy", "noble", "oracular", "plucky", "questing", "resolute", "devel",
];

/// Ends a script with the exit status of the command that failed, after naming it.
const STEP: &str = r#"#!/bin/bash
# Commands of a layer of OpenCHAMI's, in their order: a name, an exit status that is no failure either, and the command.
step() {
    local name=$1 also=$2 status
    shift 2
    "$@"
    status=$?
    if [ "$status" -ne 0 ] && [ "$status" -ne "$also" ]; then
        echo "$name ended with exit status $status" >&2
        exit "$status"
    fi
}
"#;

/// The recipe.
pub(crate) fn write(layer: &Layer, given: &Given, warnings: &mut Vec<String>) -> Result<Files, Wrong> {
    if let Some(wrong) = &layer.options.not_kiwi {
        return Err(wrong.clone());
    }
    let mut writer = Writer {
        files: Files::default(),
        script: STEP.to_owned(),
        playbooks: 0,
    };
    let settings = match &layer.config {
        Some((key, path, text)) => {
            writer.text(path, text, 0o600);
            ini::settings(key, text, layer.manager)?
        }
        None => ini::Settings::default(),
    };
    let repositories = writer.repositories(layer, settings.check, warnings)?;
    let other = if given.arch == "aarch64" { "/x86_64" } else { "/aarch64" };
    if !given.arch.is_empty() && repositories.iter().any(|repository| repository.url.contains(other)) {
        warnings.push(format!(
            "a repository's address has {}, and the image is for {}",
            &other[1..],
            given.arch
        ));
    }
    if layer.packages.is_empty() && layer.groups.is_empty() && !layer.manager.is_deb() {
        return Err(Wrong::missing("packages"));
    }
    writer.description(layer, &settings, &repositories)?;
    writer.files(layer, warnings)?;
    if layer.form == Form::Builder {
        writer.remove(layer, 1);
        writer.commands(&layer.commands);
        writer.commands(&layer.scans);
        writer
            .script
            .push_str("if [ -L /etc/resolv.conf ]; then rm -f /etc/resolv.conf; fi\n");
    } else {
        writer.commands(&layer.commands);
        writer.remove(layer, usize::MAX);
        writer.commands(&layer.scans);
    }
    let script = std::mem::take(&mut writer.script);
    writer.written("config.sh", 0o755, script);
    Ok(writer.files)
}

struct Writer {
    files: Files,
    script: String,
    playbooks: usize,
}

impl Writer {
    fn written(&mut self, path: &str, mode: u32, text: String) {
        self.files.written.push(Written {
            path: path.to_owned(),
            mode,
            bytes: text.into_bytes(),
        });
    }

    /// A file of the image.
    fn text(&mut self, path: &str, text: &str, mode: u32) {
        self.written(&format!("root{path}"), mode, text.to_owned());
    }

    fn step(&mut self, name: &str, also: u32, words: &[String]) {
        let words: Vec<String> = words.iter().map(|word| bash(word)).collect();
        let _ = writeln!(self.script, "step {} {also} {}", bash(name), words.join(" "));
    }

    fn repositories(
        &mut self,
        layer: &Layer,
        check: Option<bool>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Described>, Wrong> {
        let (manager, options) = (layer.manager, &layer.options);
        let mut all = Vec::new();
        if manager == Manager::Mmdebstrap {
            let ubuntu = UBUNTU.contains(&options.suite.as_str());
            all.push(Described {
                alias: "mirror".to_owned(),
                url: options.mirror.clone(),
                check_index: true,
                keys: vec![format!(
                    "file:///usr/share/keyrings/{}-archive-keyring.gpg",
                    if ubuntu { "ubuntu" } else { "debian" }
                )],
                include: true,
                suite: Some((options.suite.clone(), "main".to_owned())),
                ..Described::default()
            });
        }
        for repo in &layer.repos {
            let gpg_key = format!("{}.gpg", repo.key);
            if manager == Manager::Mmdebstrap && repo.gpg.is_some() {
                return Err(Wrong::unsupported(
                    gpg_key,
                    "nothing fetches a key for apt into a root from scratch: add it as a file",
                ));
            }
            let mut found = match &repo.source {
                RepoSource::File {
                    path,
                    content: Content::Text(text),
                    mode,
                } => {
                    self.text(path, text, *mode);
                    match manager {
                        Manager::Dnf | Manager::Zypper => {
                            let unchecked = options.check == Some(false);
                            let checked = check.or(options.check).unwrap_or(manager == Manager::Zypper);
                            let mut found = ini::repositories(&repo.key, text, manager, options, checked, warnings)?;
                            for repository in found.iter_mut().filter(|_| unchecked) {
                                (repository.check_packages, repository.check_index) = (false, false);
                            }
                            found
                        }
                        Manager::Mmdebstrap => Vec::new(),
                        Manager::Apt => {
                            return Err(Wrong::unsupported(
                                &*repo.key,
                                "kiwi-ng wants the address, suite and components",
                            ));
                        }
                    }
                }
                RepoSource::File {
                    path,
                    content: Content::Path(source),
                    mode,
                } if manager == Manager::Mmdebstrap => {
                    self.copy(&repo.key, source, path.trim_start_matches('/'), Some(*mode), None);
                    Vec::new()
                }
                RepoSource::File { .. } => {
                    let why = "a root from scratch is made of repositories that are in the layer file, not of a file elsewhere";
                    return Err(Wrong::unsupported(&*repo.key, why));
                }
                RepoSource::Packages {
                    alias,
                    url,
                    priority,
                    settings,
                    suite,
                } => {
                    let mut repository = Described {
                        alias: alias.clone(),
                        url: url.clone(),
                        priority: priority.clone(),
                        // Whoever names a key wants it to count.
                        check_packages: repo.gpg.is_some() && options.check != Some(false) && !manager.is_deb(),
                        check_index: repo.gpg.is_some() && manager.is_deb(),
                        include: true,
                        suite: suite.clone(),
                        ..Described::default()
                    };
                    let mut lines = String::new();
                    for (setting, value) in settings {
                        match *setting {
                            "gpgcheck" => repository.check_packages = value == "1",
                            _ if manager != Manager::Dnf => {
                                return Err(Wrong::unsupported(
                                    format!("{}.{setting}", repo.key),
                                    "only dnf can be told of it",
                                ));
                            }
                            setting => _ = writeln!(lines, "{setting}={value}"),
                        }
                    }
                    if !lines.is_empty() {
                        let path = format!("repository-{alias}.sh");
                        let script = format!("#!/bin/bash\nprintf %s {} >> \"$1\"\n", bash(&lines));
                        self.written(&path, 0o755, script);
                        repository.customize = Some(path);
                    }
                    vec![repository]
                }
            };
            if let (Some(gpg), Some(first)) = (&repo.gpg, found.first_mut()) {
                let gpg = if is_remote(gpg) {
                    gpg.clone()
                } else {
                    let source = gpg.strip_prefix("file://").unwrap_or(gpg);
                    let to = format!(
                        "keys/{}-{}",
                        self.files.copies.len(),
                        crate::layer::alias(source.rsplit('/').next().unwrap_or_default())
                    );
                    self.files.copies.push(Copy {
                        key: gpg_key,
                        source: source.to_owned(),
                        to: to.clone(),
                        directory: Some(false),
                        ..Copy::default()
                    });
                    format!("this://{to}")
                };
                first.keys.push(gpg);
            }
            all.append(&mut found);
        }
        if all
            .iter()
            .all(|repository| manager == Manager::Apt && repository.suite.is_none())
        {
            return Err(Wrong::missing("repos"));
        }
        let mut aliases: Vec<&str> = all.iter().map(|repository| repository.alias.as_str()).collect();
        aliases.sort_unstable();
        if let Some([twin, _]) = aliases.array_windows().find(|[one, other]| one == other) {
            return Err(Wrong::value(
                "repos",
                format!("has two repositories with the name {twin}"),
            ));
        }
        Ok(all)
    }

    fn description(
        &mut self,
        layer: &Layer,
        settings: &ini::Settings,
        repositories: &[Described],
    ) -> Result<(), Wrong> {
        let (manager, options) = (layer.manager, &layer.options);
        let name = layer.name.replace('/', "-");
        let signed = repositories
            .iter()
            .any(|repository| repository.check_packages || repository.check_index);
        let without_docs = settings
            .without_docs
            .unwrap_or(layer.form == Form::Layer && manager == Manager::Dnf);
        let kiwi = match manager {
            Manager::Dnf => "dnf4",
            Manager::Zypper => "zypper",
            Manager::Apt | Manager::Mmdebstrap => "apt",
        };
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<!-- A layer of OpenCHAMI's, translated by Kiln. -->\n\
             <image schemaversion=\"8.0\" name=\"{name}\">\n  <description type=\"system\">\n    <author>OpenCHAMI</author>\n    \
             <contact>nobody@localhost</contact>\n    <specification>{name}</specification>\n  </description>\n  <preferences>\n    \
             <version>1.0.0</version>\n    <packagemanager>{kiwi}</packagemanager>\n    <locale>C</locale>\n    <keytable>us</keytable>\n    \
             <timezone>UTC</timezone>\n    <rpm-excludedocs>{without_docs}</rpm-excludedocs>\n    \
             <rpm-check-signatures>{signed}</rpm-check-signatures>\n"
        );
        if let Some(release) = &options.release {
            let _ = writeln!(out, "    <release-version>{}</release-version>", xml(release));
        }
        out.push_str("    <type image=\"tbz\"/>\n  </preferences>\n");
        for repository in repositories {
            described(&mut out, repository, manager);
        }
        let recommended = options
            .recommended
            .or(settings.recommended)
            .unwrap_or(manager != Manager::Mmdebstrap);
        let pattern = if recommended { "plusRecommended" } else { "onlyRequired" };
        let own = if manager.is_deb() { "image" } else { "bootstrap" };
        let _ = writeln!(out, "  <packages type=\"{own}\" patternType=\"{pattern}\">");
        let mut groups = layer.groups.clone();
        for module in &layer.modules {
            collection(&mut out, module, &mut groups)?;
        }
        for group in &groups {
            let _ = writeln!(out, "    <namedCollection name=\"{}\"/>", xml(group));
        }
        for package in &layer.packages {
            let _ = writeln!(out, "    <package name=\"{}\"/>", xml(package));
        }
        out.push_str("  </packages>\n");
        if manager.is_deb() {
            let ubuntu = repositories
                .iter()
                .flat_map(|repository| &repository.suite)
                .any(|(suite, _)| UBUNTU.contains(&suite.as_str()));
            let keyring = if ubuntu {
                "ubuntu-keyring"
            } else {
                "debian-archive-keyring"
            };
            let _ = writeln!(
                out,
                "  <packages type=\"bootstrap\">\n    <package name=\"{keyring}\"/>\n  </packages>"
            );
        } else {
            out.push_str("  <packages type=\"image\"/>\n");
        }
        out.push_str("</image>\n");
        self.files.written.insert(
            0,
            Written {
                path: "config.xml".to_owned(),
                mode: 0o644,
                bytes: out.into_bytes(),
            },
        );
        Ok(())
    }

    fn copy(&mut self, key: &str, source: &str, dest: &str, mode: Option<u32>, tree: Option<&Vec<String>>) {
        self.files.copies.push(Copy {
            key: key.to_owned(),
            source: source.to_owned(),
            to: format!("root/{dest}").trim_end_matches('/').to_owned(),
            mode,
            excludes: tree.cloned().unwrap_or_default(),
            directory: tree.is_some().then_some(true),
            optional: false,
        });
    }

    fn files(&mut self, layer: &Layer, warnings: &mut Vec<String>) -> Result<(), Wrong> {
        if !layer.files.is_empty() && layer.form == Form::Layer {
            warnings.push(
                "layer.files and layer.directories are put into the root after packages are installed, not before"
                    .to_owned(),
            );
        }
        if !layer.files.is_empty() && !layer.remove.is_empty() && layer.form == Form::Builder {
            warnings.push(
                "remove_packages is done after copyfiles, not before: what a removed package owned is removed with it"
                    .to_owned(),
            );
        }
        for file in &layer.files {
            self.file(file, layer.form)?;
        }
        Ok(())
    }

    fn file(&mut self, file: &File, form: Form) -> Result<(), Wrong> {
        let mut dest = file.dest.clone();
        match &file.content {
            Content::Text(text) => self.text(&dest, text, file.mode.unwrap_or(0o600)),
            Content::Path(path) => {
                if dest.ends_with('/') && file.tree.is_none() {
                    dest += path.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
                }
                self.copy(
                    &file.key,
                    path,
                    dest.trim_start_matches('/'),
                    file.mode,
                    file.tree.as_ref(),
                );
            }
            Content::Url(_) => {
                return Err(Wrong::unsupported(
                    &*file.key,
                    "nothing fetches a file for a root from scratch: copy it, or fetch it by a command",
                ));
            }
        }
        let Some(owner) = file.owner.as_deref() else {
            return Ok(());
        };
        if owner.split(':').all(|part| matches!(part, "root" | "0")) {
            return Ok(());
        }
        if form == Form::Builder || file.tree.is_some() {
            return Err(Wrong::unsupported(
                &*file.key,
                "copies into a root from scratch belong to root: change their owner by a command",
            ));
        }
        let words = ["chown", "-h", owner, &dest].map(str::to_owned);
        self.step(&file.key, 0, &words);
        Ok(())
    }

    fn remove(&mut self, layer: &Layer, each: usize) {
        let tool: &[&str] = if layer.manager.is_deb() {
            &["dpkg", "--remove", "--force-depends"]
        } else {
            &["rpm", "-e", "--nodeps"]
        };
        for names in layer.remove.chunks(each) {
            let words: Vec<String> = tool
                .iter()
                .map(|&word| word.to_owned())
                .chain(names.iter().cloned())
                .collect();
            self.step("remove_packages", 0, &words);
        }
    }

    fn commands(&mut self, commands: &[Command]) {
        for command in commands {
            let mut words = command.argv.clone();
            let mut env = command.env.clone();
            // The overlay cannot have files in /run.
            let place = format!("/var/lib/image-thrillhouse-ansible-{}", self.playbooks);
            if let Some(playbook) = &command.playbook {
                playbook.add_to(&mut self.files, &command.key, &format!("root{place}"));
                self.playbooks += 1;
                let moved = |text: &mut String| *text = text.replace(Playbook::PLACE, &place);
                words
                    .iter_mut()
                    .chain(env.iter_mut().map(|(_, value)| value))
                    .for_each(moved);
            }
            if !env.is_empty() {
                let env = env.iter().map(|(name, value)| format!("{name}={value}"));
                words = std::iter::once("env".to_owned()).chain(env).chain(words).collect();
            }
            self.step(&command.key, if command.lenient { 107 } else { 0 }, &words);
            if command.playbook.is_some() {
                let _ = writeln!(self.script, "rm -rf {place}");
            }
        }
    }
}

fn described(out: &mut String, repository: &Described, manager: Manager) {
    let kind = if manager.is_deb() { "apt-deb" } else { "rpm-md" };
    let _ = write!(
        out,
        "  <repository type=\"{kind}\" alias=\"{}\"",
        xml(&repository.alias)
    );
    let mut attribute = |name: &str, value: &str| {
        let _ = write!(out, " {name}=\"{}\"", xml(value));
    };
    if let Some((suite, components)) = &repository.suite {
        attribute("distribution", suite);
        attribute("components", components);
    }
    for (name, value) in [
        ("sourcetype", repository.sourcetype),
        ("priority", repository.priority.as_deref()),
        ("customize", repository.customize.as_deref()),
        ("username", repository.login.as_ref().map(|(user, _)| user.as_str())),
        (
            "password",
            repository.login.as_ref().map(|(_, password)| password.as_str()),
        ),
        ("imageinclude", repository.include.then_some("true")),
    ] {
        if let Some(value) = value {
            attribute(name, value);
        }
    }
    attribute(
        "repository_gpgcheck",
        if repository.check_index { "true" } else { "false" },
    );
    if !manager.is_deb() {
        attribute(
            "package_gpgcheck",
            if repository.check_packages { "true" } else { "false" },
        );
    }
    let _ = writeln!(out, ">\n    <source path=\"{}\">", xml(&repository.url));
    for key in &repository.keys {
        let _ = writeln!(out, "      <signing key=\"{}\"/>", xml(key));
    }
    out.push_str("    </source>\n  </repository>\n");
}

fn collection(out: &mut String, module: &Module, groups: &mut Vec<String>) -> Result<(), Wrong> {
    let (spec, profile) = module
        .spec
        .split_once('/')
        .map_or((&*module.spec, false), |(spec, _)| (spec, true));
    let (name, stream) = spec
        .split_once(':')
        .map_or((spec, None), |(name, stream)| (name, Some(stream)));
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    if !word(name) || !stream.is_none_or(word) {
        return Err(Wrong::value(&*module.key, "is no module, such as nodejs:18"));
    }
    match module.action.as_str() {
        "install" | "enable" if module.action == "install" || !profile => {
            let stream = stream.map_or_else(String::new, |stream| format!(" stream=\"{stream}\""));
            let _ = writeln!(out, "    <collectionModule name=\"{name}\"{stream} enable=\"true\"/>");
            if module.action == "install" {
                groups.push(module.spec.clone());
            }
        }
        "disable" => {
            let _ = writeln!(out, "    <collectionModule name=\"{name}\" enable=\"false\"/>");
        }
        // An empty root has nothing to reset.
        "reset" => {}
        action => {
            return Err(Wrong::unsupported(
                &*module.key,
                format!("kiwi-ng has nothing for {action} of a module"),
            ));
        }
    }
    Ok(())
}

//! image-thrillhouse's form: `meta`, `layer` and `publish`. Pure: no I/O.
//!
//! As strict as the tool is, since its authors check their files with it. Warnings where it is silent.

use std::fmt::Write as _;

use crate::{
    Form, Given, Layout, Parent, Publish, Wrong,
    fields::{At, Fields, Manners},
    layer::{
        self, Command, Content, File, Layer, Manager, Module, Playbook, Repo, RepoSource, address, in_image, is_remote,
        line, names, source,
    },
    options, scap, words,
    yaml::parse,
};

/// What files have without a mode: the tool takes them from its temporary files.
const MODE: u32 = 0o600;

/// Reads a layer of which the template is rendered.
pub(crate) fn read(text: &str, given: &Given, warnings: &mut Vec<String>) -> Result<Layer, Wrong> {
    let node = parse(text, true)?;
    let mut top = At::top(&node, Manners::Strict).fields()?;
    let mut meta = top.below("meta")?;
    let name = layer::name("meta.name", given.name.clone().map_or_else(|| meta.need("name"), Ok)?)?;
    let tags = layer::tags("meta.tags", meta.texts("tags")?)?;
    if tags.is_empty() {
        return Err(Wrong::missing("meta.tags"));
    }
    let from = meta.text("from")?.unwrap_or_else(|| "scratch".to_owned());
    let from = given.parent.clone().unwrap_or(from);
    let parent = layer::parent("meta.from", &from)?;
    let scratch = parent == Parent::Scratch;
    if !meta.flag("from-tls-verify", true)? && !scratch {
        warnings.push("meta.from-tls-verify: the parent's registry is verified all the same; one with plain HTTP must be on the loopback".to_owned());
    }
    let own_labels = layer::labels("meta.labels", meta.pairs("labels")?)?;
    if given.name.is_some() {
        meta.get("name");
    }
    meta.rest(warnings);

    let mut body = top.below("layer")?;
    let mut settings = body.below("manager")?;
    let manager = Manager::of(&settings.need("name")?)
        .ok_or_else(|| Wrong::unsupported("layer.manager.name", "it is none of dnf, zypper, apt and mmdebstrap"))?;
    match manager {
        Manager::Apt if scratch => {
            return Err(Wrong::value(
                "layer.manager.name",
                "is apt, which begins nothing from scratch: use mmdebstrap",
            ));
        }
        Manager::Mmdebstrap if !scratch => {
            return Err(Wrong::value(
                "layer.manager.name",
                "is mmdebstrap, which begins from scratch only: use apt",
            ));
        }
        _ => {}
    }
    let config = settings.text("config")?;
    let place = match manager {
        Manager::Dnf => "/etc/dnf/dnf.conf",
        Manager::Zypper => "/etc/zypp/zypp.conf",
        Manager::Apt => "/etc/apt/apt.conf.d/99-image-thrillhouse.conf",
        Manager::Mmdebstrap if config.is_some() => {
            return Err(Wrong::value(
                "layer.manager.config",
                "is there, and mmdebstrap has none",
            ));
        }
        Manager::Mmdebstrap => "",
    };
    let config = config.map(|text| ("layer.manager.config".to_owned(), place.to_owned(), text));
    let options = options::read(manager, settings.pairs("options")?, scratch, warnings)?;
    settings.rest(warnings);
    if scratch && matches!(manager, Manager::Dnf | Manager::Zypper) {
        warnings.push("the macros of rpm that image-thrillhouse sets in a root from scratch are not set".to_owned());
    }

    let env = env(&mut body)?;
    let repos = body
        .items("repos")?
        .iter()
        .map(|at| repo(at, warnings))
        .collect::<Result<Vec<_>, _>>()?;
    let mut files = body
        .items("files")?
        .iter()
        .map(|at| file(at, warnings))
        .collect::<Result<Vec<_>, _>>()?;
    for at in body.items("directories")? {
        files.push(directory(&at, warnings)?);
    }
    let mut actions = body.below("actions")?;
    let mut install = actions.below("install")?;
    let mut packages = names("layer.actions.install.packages", install.texts("packages")?)?;
    let mut groups = names("layer.actions.install.groups", install.texts("groups")?)?;
    let mut modules = install
        .items("modules")?
        .iter()
        .map(|at| module(at, warnings))
        .collect::<Result<Vec<_>, _>>()?;
    let remove = names(
        "layer.actions.install.remove_packages",
        install.texts("remove_packages")?,
    )?;
    install.rest(warnings);
    if manager != Manager::Dnf && !modules.is_empty() || manager.is_deb() && !groups.is_empty() {
        warnings.push(format!(
            "layer.actions.install: modules and groups are ignored where {} has none",
            manager.name()
        ));
        modules.clear();
        if manager.is_deb() {
            groups.clear();
        }
    }
    let mut commands = Vec::new();
    for at in actions.items("commands")? {
        commands.push(command(&at, &env, warnings)?);
    }
    actions.rest(warnings);
    let mut scan = body.below("openscap")?;
    let parts = scap::Parts {
        install: scan.flag("install_scap", false)?,
        benchmark: scan.flag("scap_benchmark", false)?,
        oval: scan.flag("oval_eval", false)?,
    };
    if manager == Manager::Mmdebstrap && parts.install {
        return Err(Wrong::unsupported(
            "layer.openscap.install_scap",
            "image-thrillhouse has it not for mmdebstrap",
        ));
    }
    let scans = scap::commands(parts, &mut scan, "oval_result_path", true)?;
    scan.rest(warnings);
    body.rest(warnings);
    let labels = labels(
        &name,
        &tags,
        &from,
        manager,
        &repos,
        [&packages, &groups],
        &modules,
        own_labels,
    );
    if parts.install {
        packages.extend(scap::packages(manager).iter().map(|&name| name.to_owned()));
    }
    let (publish, promote) = publish(&mut top, &name, &tags, warnings)?;
    top.rest(warnings);
    Ok(Layer {
        form: Form::Layer,
        name,
        tags,
        parent,
        manager,
        options,
        config,
        only_these_repos: false,
        repos,
        modules,
        groups,
        packages,
        remove,
        files,
        commands,
        scans,
        labels,
        publish,
        promote,
    })
}

fn env(fields: &mut Fields<'_>) -> Result<Vec<(String, String)>, Wrong> {
    let Some(at) = fields.get("env") else {
        return Ok(Vec::new());
    };
    let mut env = at.fields()?;
    if !env.texts("pass")?.is_empty() {
        return Err(Wrong::unsupported(
            env.path("pass"),
            "a build has no environment of whoever asks for it: set the values, or use variables",
        ));
    }
    let pairs = env.pairs("set")?;
    for (name, _) in &pairs {
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            return Err(Wrong::value(env.path("set"), "has a name that no variable can have"));
        }
    }
    Ok(pairs)
}

fn content(fields: &mut Fields<'_>) -> Result<Content, Wrong> {
    let here = fields.path("content");
    match (fields.text("content")?, fields.text("src")?, fields.text("url")?) {
        (Some(text), None, None) => Ok(Content::Text(text)),
        (None, Some(src), None) => Ok(Content::Path(source(&fields.path("src"), src)?)),
        (None, None, Some(url)) => Ok(Content::Url(address(&fields.path("url"), url)?)),
        (None, None, None) => Err(Wrong::missing(here)),
        _ => Err(Wrong::value(
            here,
            "is one of three: only one of content, src and url may be there",
        )),
    }
}

fn repo(at: &At<'_>, warnings: &mut Vec<String>) -> Result<Repo, Wrong> {
    let mut fields = at.fields()?;
    let path = in_image(&fields.path("path"), &fields.need("path")?)?;
    let gpg = fields.text("gpg")?;
    if gpg.as_ref().is_some_and(|gpg| !is_remote(gpg)) {
        return Err(Wrong::value(fields.path("gpg"), "is no address"));
    }
    let gpg = gpg.map(|gpg| address(&fields.path("gpg"), gpg)).transpose()?;
    let content = content(&mut fields)?;
    fields.rest(warnings);
    Ok(Repo {
        key: at.path.clone(),
        source: RepoSource::File {
            path,
            content,
            mode: MODE,
        },
        gpg,
    })
}

fn file(at: &At<'_>, warnings: &mut Vec<String>) -> Result<File, Wrong> {
    let mut fields = at.fields()?;
    let dest = in_image(&fields.path("path"), &fields.need("path")?)?;
    let content = content(&mut fields)?;
    let (mode, owner) = access(&mut fields)?;
    fields.rest(warnings);
    Ok(File {
        key: at.path.clone(),
        dest,
        content,
        mode: mode.or(Some(MODE)),
        owner,
        tree: None,
    })
}

fn access(fields: &mut Fields<'_>) -> Result<(Option<u32>, Option<String>), Wrong> {
    let mode = fields
        .text("mode")?
        .map(|mode| layer::mode(&fields.path("mode"), &mode))
        .transpose()?;
    let owner = fields
        .text("owner")?
        .map(|owner| layer::owner(&fields.path("owner"), owner))
        .transpose()?;
    Ok((mode, owner))
}

fn directory(at: &At<'_>, warnings: &mut Vec<String>) -> Result<File, Wrong> {
    let mut fields = at.fields()?;
    let mut dest = in_image(&fields.path("path"), &fields.need("path")?)?;
    let src = source(&fields.path("src"), fields.need("src")?)?;
    let (mode, owner) = access(&mut fields)?;
    if fields.flag("preserve_ownership", false)? {
        return Err(Wrong::unsupported(
            fields.path("preserve_ownership"),
            "recipes do not keep owners: name one by owner",
        ));
    }
    if !fields.flag("contents_only", true)? {
        let last = src
            .rsplit('/')
            .find(|part| !matches!(*part, "" | "."))
            .filter(|part| *part != "..");
        let last =
            last.ok_or_else(|| Wrong::value(fields.path("src"), "has no name for the directory in the image"))?;
        dest = format!("{}/{last}", dest.trim_end_matches('/'));
    }
    let mut excludes = vec!["**/.git".to_owned()];
    excludes.extend(fields.texts("excludes")?);
    fields.rest(warnings);
    Ok(File {
        key: at.path.clone(),
        dest,
        content: Content::Path(src),
        mode,
        owner,
        tree: Some(excludes),
    })
}

fn module(at: &At<'_>, warnings: &mut Vec<String>) -> Result<Module, Wrong> {
    let mut fields = at.fields()?;
    let (name, stream, action) = (fields.need("name")?, fields.text("stream")?, fields.need("action")?);
    if !["enable", "disable", "install", "reset"].contains(&action.as_str()) {
        return Err(Wrong::value(
            fields.path("action"),
            "is none of enable, disable, install and reset",
        ));
    }
    let spec = stream.map_or_else(|| name.clone(), |stream| format!("{name}:{stream}"));
    let spec = names(&at.path, vec![spec])?.remove(0);
    fields.rest(warnings);
    Ok(Module {
        key: at.path.clone(),
        action,
        spec,
    })
}

fn command(at: &At<'_>, env: &[(String, String)], warnings: &mut Vec<String>) -> Result<Command, Wrong> {
    let mut fields = at.fields()?;
    let mut all = env.to_vec();
    for (name, value) in self::env(&mut fields)? {
        all.retain(|(known, _)| *known != name);
        all.push((name, value));
    }
    let (run, script) = (fields.text("run")?, fields.text("script")?);
    let ansible = fields.get("ansible").filter(|at| !at.node.is_null());
    let mut command = match (run, script, ansible) {
        (Some(run), None, None) => {
            let key = fields.path("run");
            let (argv, stopped) =
                words::split(&run).ok_or_else(|| Wrong::value(&*key, "has a quote or a parenthesis without an end"))?;
            if argv.is_empty() {
                return Err(Wrong::value(key, "has no command"));
            }
            if let Some(stop) = stopped {
                warnings.push(format!("{key}: what begins with {stop} is left out, as image-thrillhouse does: it has no shell; write it as a script"));
            }
            let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
            Command::new(key, &argv)
        }
        (None, Some(script), None) if !script.trim().is_empty() => {
            Command::new(fields.path("script"), &["/bin/sh", "-c", &script])
        }
        (None, None, Some(at)) => playbook(&at, warnings)?,
        (None, None | Some(_), None) => return Err(Wrong::missing(fields.path("run"))),
        _ => {
            return Err(Wrong::value(
                at.path.clone(),
                "has more than one of run, script and ansible",
            ));
        }
    };
    command.env.splice(0..0, all);
    fields.rest(warnings);
    Ok(command)
}

fn playbook(at: &At<'_>, warnings: &mut Vec<String>) -> Result<Command, Wrong> {
    let mut fields = at.fields()?;
    let place = Playbook::PLACE;
    let path = source(&fields.path("playbook"), fields.need("playbook")?)?;
    let last = path.rsplit('/').next().filter(|part| !matches!(*part, "" | "." | ".."));
    let last = last
        .ok_or_else(|| Wrong::value(fields.path("playbook"), "is no file"))?
        .to_owned();
    let groups = fields.texts("groups")?;
    if groups.is_empty() {
        return Err(Wrong::missing(fields.path("groups")));
    }
    let mut hosts = String::new();
    for group in groups {
        if group.is_empty() || !group.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)) {
            return Err(Wrong::value(fields.path("groups"), "has no name of a group"));
        }
        let _ = write!(hosts, "[{group}]\nlocalhost ansible_connection=local\n\n");
    }
    let mut words: Vec<String> = ["ansible-playbook", "-i", &format!("{place}/etc/00-generated-localhost")]
        .map(str::to_owned)
        .into();
    let roles = source(
        &fields.path("roles"),
        fields.text("roles")?.unwrap_or_else(|| "roles".to_owned()),
    )?;
    let mut copies = vec![(path, format!("etc/{last}"), false), (roles, "roles".to_owned(), true)];
    if let Some(inventory) = fields.text("inventory")? {
        copies.push((
            source(&fields.path("inventory"), inventory)?,
            "inventory".to_owned(),
            false,
        ));
        words.extend(["-i".to_owned(), format!("{place}/inventory")]);
    }
    let verbose = fields.text("verbose")?.unwrap_or_default();
    match verbose.parse::<usize>() {
        _ if verbose.is_empty() => {}
        Ok(0) => {}
        Ok(level @ 1..=4) => words.push(format!("-{}", "v".repeat(level))),
        _ => return Err(Wrong::value(fields.path("verbose"), "is no number from 0 to 4")),
    }
    let mut vars = fields.pairs("extra_vars")?;
    vars.sort();
    for (name, value) in vars {
        words.extend(["-e".to_owned(), format!("{name}={value}")]);
    }
    for (key, option) in [("tags", "--tags"), ("skip_tags", "--skip-tags")] {
        if let Some(tags) = fields.text(key)? {
            words.extend([option.to_owned(), tags]);
        }
    }
    if fields.flag("check_mode", false)? {
        words.push("--check".to_owned());
    }
    words.push(format!("{place}/etc/{last}"));
    fields.rest(warnings);
    let settings = format!("[defaults]\nroles_path = {place}/roles\nhost_key_checking = False\n");
    Ok(Command {
        key: at.path.clone(),
        argv: words,
        env: vec![("ANSIBLE_CONFIG".to_owned(), format!("{place}/etc/ansible.cfg"))],
        lenient: false,
        playbook: Some(Playbook {
            texts: vec![("etc/ansible.cfg", settings), ("etc/00-generated-localhost", hosts)],
            copies,
        }),
    })
}

#[expect(clippy::too_many_arguments)]
fn labels(
    name: &str,
    tags: &[String],
    from: &str,
    manager: Manager,
    repos: &[Repo],
    [packages, groups]: [&Vec<String>; 2],
    modules: &[Module],
    own: std::collections::BTreeMap<String, String>,
) -> std::collections::BTreeMap<String, String> {
    let files = repos.iter().filter_map(|repo| match &repo.source {
        RepoSource::File { path, .. } => path.rsplit('/').next(),
        RepoSource::Packages { alias, .. } => Some(alias.as_str()),
    });
    let files: Vec<&str> = files.map(|file| file.strip_suffix(".repo").unwrap_or(file)).collect();
    let modules: Vec<&str> = modules.iter().map(|module| module.spec.as_str()).collect();
    let all = [
        ("name", name.to_owned()),
        ("type", "base".to_owned()),
        ("package-manager", manager.name().to_owned()),
        ("parent", from.to_owned()),
        ("tags", tags.join(",")),
        ("repositories", files.join(",")),
        ("packages", packages.join(",")),
        ("package-groups", groups.join(",")),
        ("modules", modules.join(",")),
    ];
    let automatic = all.into_iter().filter(|(_, value)| !value.is_empty());
    automatic
        .map(|(key, value)| (format!("org.openchami.image.{key}"), value))
        .chain(own)
        .collect()
}

fn publish(
    top: &mut Fields<'_>,
    name: &str,
    tags: &[String],
    warnings: &mut Vec<String>,
) -> Result<(Vec<Publish>, Vec<Publish>), Wrong> {
    let (mut now, mut later) = (Vec::new(), Vec::new());
    for at in top.items("publish")? {
        let mut fields = at.fields()?;
        let kind = fields.need("type")?;
        let tls_verify = fields.flag("tls-verify", true)?;
        let place = match kind.as_str() {
            "local" => Publish::Local {
                references: layer::references("localhost", name, tags),
            },
            "squashfs" => {
                let dir = line(&fields.path("path"), fields.need("path")?)?;
                Publish::Squashfs {
                    dir,
                    file: format!("{name}-{}.squashfs", tags.first().map_or("", String::as_str)),
                }
            }
            "registry" => {
                let url = address(&fields.path("url"), fields.need("url")?)?;
                Publish::Registry {
                    references: layer::references(&url, name, tags),
                    tls_verify,
                }
            }
            "s3" => Publish::S3 {
                endpoint: address(&fields.path("url"), fields.need("url")?)?,
                bucket: line(&fields.path("bucket"), fields.need("bucket")?)?,
                prefix: line(&fields.path("prefix"), fields.text("prefix")?.unwrap_or_default())?,
                layout: Layout::Thrillhouse,
            },
            _ => {
                return Err(Wrong::unsupported(
                    fields.path("type"),
                    "it is none of local, squashfs, registry and s3",
                ));
            }
        };
        if fields.flag("promote-only", false)? {
            later.push(place);
        } else {
            now.push(place);
        }
        fields.rest(warnings);
    }
    if now.is_empty() {
        now.push(Publish::Local {
            references: layer::references("localhost", name, tags),
        });
    }
    Ok((now, later))
}

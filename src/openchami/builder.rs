//! image-builder's form: `options`, `repos`, `packages`, `cmds` and so on. Pure: no I/O.
//!
//! Lenient where its authors and its users disagree about types, so that files which people have build unchanged.

use crate::{
    Form, Given, Layout, Parent, Publish, Wrong,
    fields::{At, Fields, Manners},
    layer::{
        self, Command, Content, File, Layer, Manager, Module, Options, Repo, RepoSource, address, alias, in_image,
        is_remote, names, source,
    },
    scap,
    yaml::{Node, Value, parse},
};

/// Reads a layer.
pub(crate) fn read(text: &str, given: &Given, warnings: &mut Vec<String>) -> Result<Layer, Wrong> {
    let node = parse(text, false)?;
    let mut top = At::top(&node, Manners::Lenient).fields()?;
    let mut options = match top.get("options") {
        Some(options) => options.fields()?,
        None => return Err(Wrong::missing("options")),
    };
    match options.need("layer_type")?.as_str() {
        "base" => {}
        "ansible" => {
            let why = "ansible would run outside the image, with files that the layer does not name: let a command run ansible-playbook \
                       in the image, or write the layer in image-thrillhouse's form";
            return Err(Wrong::unsupported("options.layer_type: ansible", why));
        }
        _ => return Err(Wrong::value("options.layer_type", "is neither base nor ansible")),
    }
    let manager = Manager::of(&options.need("pkg_manager")?).filter(|manager| *manager != Manager::Mmdebstrap);
    let manager =
        manager.ok_or_else(|| Wrong::unsupported("options.pkg_manager", "it is none of dnf, zypper and apt"))?;
    let check = options.flag("gpgcheck", true)?;
    let written = options.text("parent")?.unwrap_or_else(|| "scratch".to_owned());
    let parent = layer::parent("options.parent", given.parent.as_deref().unwrap_or(&written))?;
    let proxy = options
        .text("proxy")?
        .map(|proxy| address("options.proxy", proxy))
        .transpose()?;
    if proxy.is_some() && manager != Manager::Dnf {
        return Err(Wrong::unsupported(
            "options.proxy",
            format!("image-builder has it for dnf only, not for {}", manager.name()),
        ));
    }
    let name = options.text("name")?.unwrap_or_else(|| "base".to_owned());
    let name = layer::name("options.name", given.name.clone().unwrap_or(name))?;
    let mut tags = layer::tags("options.publish_tags", options.texts("publish_tags")?)?;
    if tags.is_empty() {
        tags.push("latest".to_owned());
    }
    pull(&mut options, &parent, warnings)?;
    let publish = publish(&mut options, &name, &tags, warnings)?;
    let mut labels = layer::labels("options.labels", options.pairs("labels")?)?;
    let parts = scap::Parts {
        install: options.flag("install_scap", false)?,
        benchmark: options.flag("scap_benchmark", false)?,
        oval: options.flag("oval_eval", false)?,
    };
    if options.flag("force_installroot", false)? {
        warnings.push(
            "options.force_installroot is ignored: packages are installed in the parent's root by its own tools"
                .to_owned(),
        );
    }
    options.rest(warnings);

    let mut repos = Vec::new();
    let exclusive = top.items("exclusive_repos")?;
    for at in exclusive.iter().chain(&top.items("repos")?) {
        repos.push(repo(at, manager, proxy.as_deref(), warnings)?);
    }
    let mut aliases = Vec::new();
    for repo in &mut repos {
        if let RepoSource::Packages { alias, .. } = &mut repo.source {
            // Its own tool names them by address.
            let wanted = alias.clone();
            let mut number = 2;
            while aliases.contains(alias) {
                *alias = format!("{wanted}-{number}");
                number += 1;
            }
            aliases.push(alias.clone());
        }
    }
    let mut modules = modules(&mut top)?;
    let mut groups = names("package_groups", top.texts("package_groups")?)?;
    if manager != Manager::Dnf && !(modules.is_empty() && groups.is_empty()) {
        warnings.push(format!(
            "package_groups and modules are ignored, as image-builder does for {}",
            manager.name()
        ));
        (modules, groups) = (Vec::new(), Vec::new());
    }
    let mut packages = names("packages", top.texts("packages")?)?;
    if parts.install {
        packages.extend(scap::packages(manager).iter().map(|&name| name.to_owned()));
    }
    let remove = names("remove_packages", top.texts("remove_packages")?)?;
    let files = top
        .items("copyfiles")?
        .iter()
        .map(|at| file(at, warnings))
        .collect::<Result<_, _>>()?;
    let commands = top
        .items("cmds")?
        .iter()
        .map(|at| command(at, warnings))
        .collect::<Result<_, _>>()?;
    let scans = openscap(&mut top, parts, warnings)?;
    top.rest(warnings);

    let parent_text = if parent == Parent::Scratch {
        "scratch".to_owned()
    } else {
        given.parent.clone().unwrap_or(written)
    };
    for (key, value) in [
        ("name", name.as_str()),
        ("type", "base"),
        ("parent", &parent_text),
        ("package-manager", manager.name()),
        ("tags", &tags.join(",")),
    ] {
        labels.insert(format!("org.openchami.image.{key}"), value.to_owned());
    }
    let global = match manager {
        Manager::Dnf if !check => vec!["--nogpgcheck".to_owned()],
        Manager::Zypper if !check => vec!["--no-gpg-checks".to_owned(), "--gpg-auto-import-keys".to_owned()],
        _ => Vec::new(),
    };
    Ok(Layer {
        form: Form::Builder,
        name,
        tags,
        parent,
        manager,
        options: Options {
            global,
            check: Some(check),
            ..Options::default()
        },
        config: None,
        only_these_repos: !exclusive.is_empty(),
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
        promote: Vec::new(),
    })
}

/// Options of `buildah from`.
fn pull(options: &mut Fields<'_>, parent: &Parent, warnings: &mut Vec<String>) -> Result<(), Wrong> {
    for option in options.texts("registry_opts_pull")? {
        let (option, value) = option.split_once('=').unwrap_or((&option, "true"));
        match option {
            _ if *parent == Parent::Scratch || !option.starts_with('-') => {}
            "--tls-verify" if value == "true" => {}
            "--tls-verify" => warnings.push(
                "options.registry_opts_pull: the parent's registry is verified all the same; one with plain HTTP must be on the loopback"
                    .to_owned(),
            ),
            // The rest of it may be a password.
            option => {
                let why = format!("Kiln has nothing for {}", option.escape_debug());
                return Err(Wrong::unsupported("options.registry_opts_pull", why));
            }
        }
    }
    Ok(())
}

fn publish(
    options: &mut Fields<'_>,
    name: &str,
    tags: &[String],
    warnings: &mut Vec<String>,
) -> Result<Vec<Publish>, Wrong> {
    let mut publish = Vec::new();
    if options.flag("publish_local", false)? {
        publish.push(Publish::Local {
            references: layer::references("localhost", name, tags),
        });
    }
    let (bucket, prefix) = (options.text("s3_bucket")?, options.text("s3_prefix")?);
    if let Some(endpoint) = options.text("publish_s3")? {
        publish.push(Publish::S3 {
            endpoint: address("options.publish_s3", endpoint)?,
            bucket: layer::line("options.s3_bucket", bucket.unwrap_or_else(|| "boot-images".to_owned()))?,
            prefix: layer::line("options.s3_prefix", prefix.unwrap_or_default())?,
            layout: Layout::Builder,
        });
    }
    let mut tls_verify = true;
    for option in options.texts("registry_opts_push")? {
        match option.split_once('=').unwrap_or((&option, "true")) {
            ("--tls-verify", value) => tls_verify = value != "false",
            (option, _) if option.starts_with('-') => {
                warnings.push(format!(
                    "options.registry_opts_push: {} is ignored",
                    option.escape_debug()
                ));
            }
            _ => {}
        }
    }
    if let Some(place) = options.text("publish_registry")? {
        let place = address("options.publish_registry", place)?;
        publish.push(Publish::Registry {
            references: layer::references(&place, name, tags),
            tls_verify,
        });
    }
    Ok(publish)
}

fn repo(at: &At<'_>, manager: Manager, proxy: Option<&str>, warnings: &mut Vec<String>) -> Result<Repo, Wrong> {
    let mut fields = at.fields()?;
    let key = at.path.clone();
    let url = fields
        .text("url")?
        .map(|url| address(&fields.path("url"), url))
        .transpose()?;
    let written = fields.text("alias")?;
    let alias = alias(
        written
            .as_deref()
            .or_else(|| Some(url.as_deref()?.split_once("://")?.1))
            .unwrap_or_default(),
    );
    if alias.is_empty() {
        return Err(Wrong::missing(fields.path("alias")));
    }
    let gpg = fields
        .text("gpg")?
        .map(|gpg| address(&fields.path("gpg"), gpg))
        .transpose()?;
    let priority = fields.text("priority")?;
    if priority.as_ref().is_some_and(|text| text.parse::<u16>().is_err()) {
        return Err(Wrong::value(fields.path("priority"), "is no number"));
    }
    let mut settings = Vec::new();
    for (name, setting) in [("sslverify", "sslverify"), ("gpgcheck", "gpgcheck")] {
        if fields.text(name)?.is_some() {
            settings.push((setting, if fields.flag(name, true)? { "1" } else { "0" }.to_owned()));
        }
    }
    let (suite, components) = (fields.text("apt_dist")?, fields.text("apt_comp")?);
    let suite = suite.map(|suite| (suite, components.unwrap_or_else(|| "main".to_owned())));
    if let Some((suite, components)) = &suite {
        layer::line(&fields.path("apt_dist"), suite.clone())?;
        layer::line(&fields.path("apt_comp"), components.clone())?;
    }
    let content = fields.text("content")?;
    let content = content.or(fields.text("config")?);
    let place = manager.repositories();
    let file = |name: &str, content| RepoSource::File {
        path: format!("{place}/{name}"),
        content,
        mode: 0o644,
    };
    let source = match (content, url) {
        (Some(text), _) if manager.is_deb() => file(&format!("{alias}.list"), Content::Text(text)),
        (Some(text), _) => {
            let head = if text.trim_start().starts_with('[') {
                String::new()
            } else {
                format!("[{alias}]\n")
            };
            file(&format!("{alias}.repo"), Content::Text(head + &text))
        }
        (None, None) => return Err(Wrong::missing(fields.path("url"))),
        (None, Some(url)) if file_name(&url).rsplit_once('.').is_some_and(|(_, end)| end == "repo") => {
            if proxy.is_some() {
                return Err(Wrong::unsupported(
                    fields.path("url"),
                    "a file of repositories is fetched without the proxy",
                ));
            }
            file(&layer::alias(file_name(&url)), Content::Url(url))
        }
        (None, Some(url)) => {
            settings.extend(proxy.map(|proxy| ("proxy", proxy.to_owned())));
            RepoSource::Packages {
                alias,
                url,
                priority,
                settings,
                suite,
            }
        }
    };
    fields.rest(warnings);
    Ok(Repo { key, source, gpg })
}

fn file_name(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

fn modules(top: &mut Fields<'_>) -> Result<Vec<Module>, Wrong> {
    let Some(at) = top.get("modules") else {
        return Ok(Vec::new());
    };
    if matches!(&at.node.value, Value::List(items) if items.is_empty()) {
        return Ok(Vec::new());
    }
    let mut modules = Vec::new();
    for (action, at) in at.fields()?.all() {
        if !["enable", "disable", "install", "reset", "remove", "switch-to", "update"].contains(&action.as_str()) {
            return Err(Wrong::unsupported(at.path, "it is no command of dnf for modules"));
        }
        let key = at.path.clone();
        let specs = at.items()?.iter().map(At::text).collect::<Result<_, _>>()?;
        modules.extend(names(&key, specs)?.into_iter().map(|spec| Module {
            key: key.clone(),
            action: action.clone(),
            spec,
        }));
    }
    Ok(modules)
}

fn file(at: &At<'_>, warnings: &mut Vec<String>) -> Result<File, Wrong> {
    let mut fields = at.fields()?;
    let src = source(&fields.path("src"), fields.need("src")?)?;
    let dest = match fields.text("dest")? {
        Some(dest) => dest,
        None => fields.text("dst")?.ok_or_else(|| Wrong::missing(fields.path("dest")))?,
    };
    let dest = in_image(&fields.path("dest"), &dest)?;
    let (mut mode, mut owner) = (None, None);
    let opts = fields.texts("opts")?.join(" ");
    let mut words = opts.split_whitespace().flat_map(|word| word.splitn(2, '='));
    let key = fields.path("opts");
    while let Some(option) = words.next() {
        let value = words.next().unwrap_or_default();
        match option {
            "--chmod" => mode = Some(layer::mode(&key, value)?),
            "--chown" => owner = Some(layer::owner(&key, value.to_owned())?),
            _ => {
                return Err(Wrong::unsupported(
                    key,
                    "of the options of buildah copy, only --chmod and --chown are",
                ));
            }
        }
    }
    let content = if is_remote(&src) {
        Content::Url(address(&fields.path("src"), src)?)
    } else {
        Content::Path(src)
    };
    if matches!(&content, Content::Path(path) if path.contains(['*', '?', '['])) {
        return Err(Wrong::unsupported(
            fields.path("src"),
            "it is a pattern: name each file, or a directory",
        ));
    }
    fields.rest(warnings);
    Ok(File {
        key: at.path.clone(),
        dest,
        content,
        mode,
        owner,
        tree: None,
    })
}

fn command(at: &At<'_>, warnings: &mut Vec<String>) -> Result<Command, Wrong> {
    let text = match at.node.value {
        Value::Map(_) => {
            let mut fields = at.fields()?;
            let text = fields.need("cmd")?;
            // It chooses a level of the builder's log, and nothing of the image.
            fields.text("loglevel")?;
            if fields.get("buildah_extra_args").is_some() {
                let key = fields.path("buildah_extra_args");
                warnings.push(format!("{key} is ignored, as image-builder does since 0.1.2"));
            }
            fields.rest(warnings);
            text
        }
        _ => at.text()?,
    };
    let mut command = Command::new(at.path.clone(), &["/bin/bash", "-c", &text]);
    command.lenient = true;
    Ok(command)
}

fn openscap(top: &mut Fields<'_>, parts: scap::Parts, warnings: &mut Vec<String>) -> Result<Vec<Command>, Wrong> {
    let mut merged = Vec::<(String, Node)>::new();
    for at in top.items("openscap")? {
        let Value::Map(entries) = &at.node.value else {
            return Err(at.wants("a mapping"));
        };
        for (key, node) in entries {
            merged.retain(|(name, _)| name != key);
            merged.push((key.clone(), node.clone()));
        }
    }
    let node = Node {
        line: 1,
        value: Value::Map(vec![(
            "openscap".to_owned(),
            Node {
                line: 1,
                value: Value::Map(merged),
            },
        )]),
    };
    let mut all = At::top(&node, Manners::Lenient).fields()?;
    let mut fields = all.below("openscap")?;
    let commands = scap::commands(parts, &mut fields, "oval_path", false)?;
    fields.rest(warnings);
    Ok(commands)
}

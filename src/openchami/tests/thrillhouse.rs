//! image-thrillhouse's form.

use super::*;
use crate::{Layout, Parent, Publish};

fn layer(from: &str, manager: &str, more: &str) -> String {
    format!("meta: {{name: n, tags: [t], from: '{from}'}}\nlayer:\n  manager: {manager}\n{more}")
}

fn child(more: &str) -> String {
    layer("docker://h/p:1", "{name: dnf}", more)
}

#[test]
fn with_a_parent_in_order() {
    let text = layer(
        "h/p:1",
        "{name: dnf, config: '[main]', options: {allowerasing: 'true', releasever: 9, install-weak-deps: 'false', best: ''}}",
        "  env: {set: {A: '1', B: '$X'}}\n  repos:\n  - {path: /etc/yum.repos.d/r.repo, content: '[r]', gpg: 'http://h/k'}\n\
         \x20 files:\n  - {path: /a, content: x}\n  - {path: /b/, src: d/b, mode: '0755', owner: '1:2'}\n  - {path: /c, url: 'http://h/c'}\n\
         \x20 directories:\n  - {path: /d, src: t/tree/, contents_only: false, excludes: [x]}\n\
         \x20 actions:\n    install:\n      packages: [p]\n      groups: [g h]\n      modules: [{name: m, stream: 1.10, action: enable}]\n      remove_packages: [x, y]\n\
         \x20   commands:\n    - run: a 'b c' $D && e\n      env: {set: {A: '2'}}\n    - script: |\n        one\n        two\n",
    );
    let layer = translated(Form::Layer, &text);
    let wanted = [
        "FROM h/p:1",
        r#"COPY --chmod=0600 ["copies/1/file","/etc/dnf/dnf.conf"]"#,
        r#"COPY --chmod=0600 ["copies/2/file","/etc/yum.repos.d/r.repo"]"#,
        r#"RUN ["/bin/sh","-c","rpm --import \"$1\" || echo \"a signing key was not imported\" >&2","sh","http://h/k"]"#,
        r#"COPY --chmod=0600 ["copies/3/file","/a"]"#,
        r#"COPY --chown=1:2 --chmod=0755 ["copies/4/b","/b/"]"#,
        r#"ADD --chmod=0600 ["http://h/c","/c"]"#,
        r#"COPY ["copies/6/tree","/d/tree"]"#,
        r#"RUN ["/bin/sh","-c","dnf \"$@\" && dnf clean all","sh","-q","--releasever","9","--setopt=install_weak_deps=False","--allowerasing","module","enable","-y","m:1.10"]"#,
        r#"RUN ["/bin/sh","-c","dnf \"$@\" && dnf clean all","sh","-q","--releasever","9","--setopt=install_weak_deps=False","--allowerasing","install","-y","p"]"#,
        r#"RUN ["/bin/sh","-c","dnf \"$@\" && dnf clean all","sh","-q","--releasever","9","--setopt=install_weak_deps=False","--allowerasing","group","install","-y","g h"]"#,
        r#"RUN ["env","B=$X","A=2","a","b c","$D"]"#,
        r#"RUN ["env","A=1","B=$X","/bin/sh","-c","one\ntwo\n"]"#,
        r#"RUN ["rpm","-e","--nodeps","x","y"]"#,
    ];
    assert_eq!(lines(&layer)[1..=wanted.len()], wanted);
    let tree = &files(&layer).copies[1];
    assert_eq!(
        (tree.source.as_str(), tree.directory, tree.excludes.len()),
        ("t/tree/", Some(true), 2)
    );
    assert_eq!(layer.warnings.len(), 1);
    assert!(
        layer.warnings[0].starts_with("layer.actions.commands[0].run: what begins with & is left out"),
        "{:?}",
        layer.warnings
    );
    assert_eq!(layer.labels["org.openchami.image.modules"], "m:1.10");
}

#[test]
fn from_scratch() {
    let text = layer(
        "scratch",
        "{name: dnf, options: {releasever: '9'}, config: \"[main]\\ngpgcheck=1\\ninstall_weak_deps=0\\n\"}",
        "  repos:\n  - path: /etc/yum.repos.d/r.repo\n    gpg: http://h/more\n    content: |\n      [r]\n      baseurl=http://h/$releasever\n      gpgkey=http://h/k\n\
         \x20     [off]\n      enabled=0\n  files:\n  - {path: /a, content: x, owner: '7'}\n  - {path: /b, src: b}\n\
         \x20 actions:\n    install: {packages: [p], groups: [g], remove_packages: [x, y]}\n    commands:\n    - run: c d\n",
    );
    let layer = translated(Form::Layer, &text);
    let xml = file(&layer, "config.xml");
    for wanted in [
        "<rpm-excludedocs>true</",
        "<release-version>9</",
        "alias=\"r\" repository_gpgcheck=\"false\" package_gpgcheck=\"true\">\n    <source path=\"http://h/$releasever\">\n      <signing key=\"http://h/k\"/>\n      <signing key=\"http://h/more\"/>",
        "patternType=\"onlyRequired\">\n    <namedCollection name=\"g\"/>\n    <package name=\"p\"/>",
    ] {
        assert!(xml.contains(wanted), "{wanted}\n{xml}");
    }
    let script = file(&layer, "config.sh");
    assert!(script.ends_with("step 'layer.files[0]' 0 chown -h 7 /a\nstep 'layer.actions.commands[0].run' 0 c d\nstep remove_packages 0 rpm -e --nodeps x y\n"), "{script}");
    let written = files(&layer)
        .written
        .iter()
        .find(|written| written.path == "root/etc/yum.repos.d/r.repo")
        .unwrap();
    assert_eq!(written.mode, 0o600);
    assert_eq!(
        (files(&layer).copies[0].to.as_str(), files(&layer).copies[0].mode),
        ("root/b", Some(0o600))
    );

    let deb = layer_of(
        "{name: mmdebstrap, options: {suite: noble, mirror: 'http://h/u', mode: x}}",
        "  actions: {install: {packages: [p]}}\n",
    );
    let xml = file(&deb, "config.xml");
    assert!(
        xml.contains("distribution=\"noble\" components=\"main\" imageinclude=\"true\" repository_gpgcheck=\"true\""),
        "{xml}"
    );
    assert!(
        xml.contains("ubuntu-archive-keyring.gpg")
            && xml.contains("<packages type=\"image\" patternType=\"onlyRequired\">"),
        "{xml}"
    );
    let suse = layer_of(
        "{name: zypper, config: \"[main]\\nrpm.install.excludedocs = yes\", options: {no-gpg-checks: 'true', no-recommends: 'true'}}",
        "  repos: [{path: /etc/zypp/repos.d/r.repo, content: \"[r]\\nbaseurl=http://h/\\ngpgcheck=1\"}]\n  actions: {install: {groups: [base]}}\n",
    );
    let xml = file(&suse, "config.xml");
    assert!(
        xml.contains("package_gpgcheck=\"false\"") && xml.contains("<rpm-excludedocs>true"),
        "{xml}"
    );
}

fn layer_of(manager: &str, more: &str) -> Translated {
    translated(Form::Layer, &layer("", manager, more))
}

#[test]
fn managers_in_a_parent() {
    for (manager, wanted) in [
        (
            "{name: zypper}",
            "exit $s ;; esac\",\"sh\",\"-q\",\"--gpg-auto-import-keys\",\"install\",\"-y\",\"p\"]",
        ),
        (
            "{name: zypper, options: {no-recommends: 'true', no-gpg-checks: 'true', force-resolution: 'true', allow-vendor-change: 'true', auto-agree-with-licenses: 'true'}}",
            "\"--no-gpg-checks\",\"install\",\"-y\",\"--no-recommends\",\"--force-resolution\",\"--auto-agree-with-licenses\",\"--allow-vendor-change\",\"p\"]",
        ),
        (
            "{name: apt}",
            "apt-get clean\",\"sh\",\"--no-install-recommends\",\"p\"]",
        ),
        (
            "{name: apt, options: {install-recommends: 'true', allow-unauthenticated: 'true'}}",
            "\"sh\",\"--allow-unauthenticated\",\"p\"]",
        ),
        (
            "{name: dnf, options: {best: 'false', skip-broken: 'true', nobest: 'true'}}",
            "\"--setopt=best=False\",\"--skip-broken\",\"--nobest\",\"install\"",
        ),
    ] {
        let text = layer("p", manager, "  actions: {install: {packages: [p]}}\n");
        let lines = lines(&translated(Form::Layer, &text)).join("\n");
        assert!(lines.contains(wanted), "{wanted}\n{lines}");
    }
}

#[test]
fn ansible_in_the_image() {
    let text = "  actions:\n    commands:\n    - ansible: {playbook: ./p/site.yml, inventory: inv/, groups: [a, b], extra_vars: {z: '1', y: 'a b'}, tags: t, verbose: 2, check_mode: true}\n";
    let layer = translated(Form::Layer, &child(text));
    let place = "/run/image-thrillhouse-ansible";
    let wanted = format!(
        "RUN --mount=type=bind,source=copies/1,target={place} [\"env\",\"ANSIBLE_CONFIG={place}/etc/ansible.cfg\",\"ansible-playbook\",\"-i\",\"{place}/etc/00-generated-localhost\",\
         \"-i\",\"{place}/inventory\",\"-vv\",\"-e\",\"y=a b\",\"-e\",\"z=1\",\"--tags\",\"t\",\"--check\",\"{place}/etc/site.yml\"]"
    );
    assert_eq!(lines(&layer)[2], wanted);
    assert_eq!(
        file(&layer, "copies/1/etc/00-generated-localhost"),
        "[a]\nlocalhost ansible_connection=local\n\n[b]\nlocalhost ansible_connection=local\n\n"
    );
    let copies: Vec<_> = files(&layer)
        .copies
        .iter()
        .map(|copy| (copy.source.as_str(), copy.to.as_str(), copy.optional))
        .collect();
    assert_eq!(
        copies,
        [
            ("./p/site.yml", "copies/1/etc/site.yml", false),
            ("roles", "copies/1/roles", true),
            ("inv/", "copies/1/inventory", false)
        ]
    );
    let root = super::thrillhouse::layer_of("{name: mmdebstrap, options: {suite: s, mirror: 'http://h/'}}", text);
    assert!(
        file(&root, "config.sh").contains(
            "/var/lib/image-thrillhouse-ansible-0/etc/site.yml\nrm -rf /var/lib/image-thrillhouse-ansible-0\n"
        )
    );
}

#[test]
fn publishing_and_templates() {
    let text = "meta:\n  name: n\n  tags: [\"{{ .tag }}\", 9.10]\n  from: h/p:{{- .parent_tag }}\n  from-tls-verify: false\n  labels: {a: b}\nlayer: {manager: {name: dnf}}\n\
                publish:\n- {type: registry, url: 'docker://h:5/', tls-verify: no}\n- {type: s3, url: 'http://s', bucket: b, prefix: c/, promote-only: true}\n- {type: squashfs, path: /o}\n- {type: local, path: /x}\n";
    let given = Given {
        variables: variables(&[("tag", "v1"), ("parent_tag", "v0")]),
        ..given()
    };
    let layer = read(text, Form::Layer, &given).unwrap();
    assert_eq!(layer.parent, Parent::Image("h/p:v0".to_owned()));
    assert_eq!(
        layer.publish[0],
        Publish::Registry {
            references: vec!["h:5/n:v1".to_owned(), "h:5/n:9.10".to_owned()],
            tls_verify: false
        }
    );
    assert_eq!(
        layer.publish[1],
        Publish::Squashfs {
            dir: "/o".to_owned(),
            file: "n-v1.squashfs".to_owned()
        }
    );
    assert!(matches!(
        &layer.promote[..],
        [Publish::S3 {
            layout: Layout::Thrillhouse,
            ..
        }]
    ));
    assert_eq!(layer.warnings.len(), 2, "{:?}", layer.warnings);
    assert!(matches!(
        &translated(Form::Layer, &child("")).publish[..],
        [Publish::Local { .. }]
    ));
    assert_eq!(refused(Form::Layer, text), "line 3: the variable tag has no value");
}

#[test]
fn refusals_name_the_key() {
    let commands = |command: &str| child(&format!("  actions: {{commands: [{command}]}}\n"));
    let manager = |from: &str, manager: &str| layer(from, manager, "");
    for (text, wanted) in [
        ("meta: {tags: [a]}", "meta.name is missing"),
        ("meta: {name: a}", "meta.tags is missing"),
        ("meta: {name: a, tags: '9'}", "meta.tags (line 1) must be a list"),
        ("meta: {name: a, tags: [a]}\nlayer: {}", "layer.manager.name is missing"),
        (
            "meta: {name: a, tags: [a]}\nlayer: {manager: dnf}",
            "layer.manager (line 2) must be a mapping",
        ),
        ("meta: {name: a, name: b}", "line 1: name is there twice"),
        (&manager("p", "{name: mmdebstrap}"), "begins from scratch only"),
        (&manager("", "{name: apt}"), "which begins nothing from scratch"),
        (&manager("p", "{name: pacman}"), "layer.manager.name is not supported"),
        (
            &manager("", "{name: mmdebstrap, config: x}"),
            "layer.manager.config is there",
        ),
        (
            &manager("", "{name: mmdebstrap, options: {mirror: 'http://h'}}"),
            "options.suite is missing",
        ),
        (
            &manager(
                "",
                "{name: mmdebstrap, options: {suite: s, mirror: 'deb http://h s main'}}",
            ),
            "options.mirror is not supported",
        ),
        (
            &manager("", "{name: mmdebstrap, options: {variant: apt}}"),
            "options.variant is not supported",
        ),
        (
            &manager("p", "{name: dnf, options: {best: 'true', nobest: 'true'}}"),
            "has best and nobest",
        ),
        (
            &manager("p", "{name: dnf, options: {best: maybe}}"),
            "options.best is neither",
        ),
        (
            &manager("p", "{name: dnf, options: {odd: 'true'}}"),
            "options.odd is not supported",
        ),
        (
            &manager("", "{name: dnf, options: {skip-broken: 'true'}}"),
            "options.skip-broken is not supported",
        ),
        (
            &manager("", "{name: dnf, options: {macro._x: y}}"),
            "options.macro._x is not supported",
        ),
        (
            &manager("", "{name: dnf, config: \"[main]\\nexclude=x\"}"),
            "layer.manager.config exclude is not supported",
        ),
        (&child("  repos: [{path: /r}]"), "layer.repos[0].content is missing"),
        (
            &child("  repos: [{path: /r, src: a, url: b}]"),
            "layer.repos[0].content is one of three",
        ),
        (
            &child("  repos: [{path: /r, src: a, gpg: /k}]"),
            "layer.repos[0].gpg is no address",
        ),
        (
            &child("  files: [{path: /r, content: ''}]"),
            "layer.files[0].content is missing",
        ),
        (
            &child("  files: [{path: /r, content: a, mode: u+x}]"),
            "layer.files[0].mode is no mode",
        ),
        (
            &child("  files: [{path: /r, content: a, mode: 9}]"),
            "layer.files[0].mode is no mode",
        ),
        (
            &child("  directories: [{path: /r}]"),
            "layer.directories[0].src is missing",
        ),
        (
            &child("  directories: [{path: /r, src: a, preserve_ownership: true}]"),
            "layer.directories[0].preserve_ownership is not supported",
        ),
        (
            &child("  directories: [{path: /r, src: a, contents_only: 'no'}]"),
            "layer.directories[0].contents_only (line 4) must be a boolean",
        ),
        (&child("  env: {pass: [HOME]}"), "layer.env.pass is not supported"),
        (&child("  env: {set: {'A B': x}}"), "layer.env.set has a name"),
        (
            &child("  actions: {install: {modules: [{name: a}]}}"),
            "modules[0].action is missing",
        ),
        (
            &child("  actions: {install: {modules: [{name: a, action: x}]}}"),
            "modules[0].action is none",
        ),
        (&commands("{}"), "commands[0].run is missing"),
        (&commands("{run: a, script: b}"), "commands[0] has more than one"),
        (&commands("{script: ' '}"), "commands[0].run is missing"),
        (&commands("{run: 'a \"b'}"), "commands[0].run has a quote"),
        (&commands("{run: '; a'}"), "commands[0].run has no command"),
        (
            &commands("{ansible: {groups: [a]}}"),
            "commands[0].ansible.playbook is missing",
        ),
        (
            &commands("{ansible: {playbook: a}}"),
            "commands[0].ansible.groups is missing",
        ),
        (
            &commands("{ansible: {playbook: a, groups: [\"a]\\n[b\"]}}"),
            "commands[0].ansible.groups has no name",
        ),
        (
            &commands("{ansible: {playbook: a, groups: [a], verbose: 5}}"),
            "commands[0].ansible.verbose is no number",
        ),
        (&child("publish: [{type: tarball}]"), "publish[0].type is not supported"),
        (
            &child("publish: [{type: s3, url: 'http://h'}]"),
            "publish[0].bucket is missing",
        ),
        (&child("publish: [{type: squashfs}]"), "publish[0].path is missing"),
        (
            &layer("", "{name: dnf}", "  repos: [{path: /r, url: 'http://h/r'}]"),
            "layer.repos[0] is not supported",
        ),
    ] {
        let wrong = refused(Form::Layer, text);
        assert!(wrong.contains(wanted), "{text}: {wrong}");
    }
}

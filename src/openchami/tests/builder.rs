//! image-builder's form.

use super::*;
use crate::{Copy, Layout, Parent, Publish};

const BASE: &str = "options: {layer_type: base, pkg_manager: dnf, name: n, publish_tags: t}\n\
                    repos:\n- {alias: main, url: 'http://h/main'}\npackages: [bash]\n";

/// A layer with a parent, with more keys of `options` and more lines.
fn child(options: &str, more: &str) -> String {
    format!("options:\n  layer_type: base\n  pkg_manager: dnf\n  parent: h/p:1\n{options}\n{more}")
}

fn child_lines(options: &str, more: &str) -> Vec<String> {
    lines(&translated(Form::Builder, &child(options, more)))
}

#[test]
fn from_scratch() {
    let layer = translated(
        Form::Builder,
        "options:\n  layer_type: base\n  pkg_manager: dnf\n  name: site/base\n  publish_tags: 9.10\n  proxy: http://p:3128\n\
         repos:\n- alias: a b\n  url: http://h/a?x=1&y\n  gpg: https://h/k\n  priority: 7\n- {alias: a b, url: 'http://h/b', gpg: /k/local.asc}\n\
         modules: {enable: ['m:1'], disable: ['o:2'], install: ['p:3/min'], reset: ['q']}\n\
         package_groups: [Some Group]\npackages: [a, '@b<']\nremove_packages: [x, y]\n\
         copyfiles:\n- {src: d/f, dest: /etc/, opts: ['--chmod 0640', '--chown=0:root']}\n- {src: /abs, dst: opt/x}\n\
         cmds:\n- cmd: \"it's\\n$(x)\"\n- plain\n",
    );
    assert_eq!(
        (layer.name.as_str(), layer.tags.as_slice(), &layer.parent),
        ("site/base", &["9.10".to_owned()][..], &Parent::Scratch)
    );
    let xml = file(&layer, "config.xml");
    for wanted in [
        "<image schemaversion=\"8.0\" name=\"site-base\">",
        "<packagemanager>dnf4</packagemanager>",
        "<rpm-check-signatures>true</",
        "alias=\"a_b\" priority=\"7\" customize=\"repository-a_b.sh\" imageinclude=\"true\" repository_gpgcheck=\"false\" package_gpgcheck=\"true\">",
        "<source path=\"http://h/a?x=1&amp;y\">\n      <signing key=\"https://h/k\"/>",
        "alias=\"a_b-2\"",
        "<signing key=\"this://keys/0-local.asc\"/>",
        "<packages type=\"bootstrap\" patternType=\"plusRecommended\">",
        "<collectionModule name=\"m\" stream=\"1\" enable=\"true\"/>",
        "<collectionModule name=\"o\" enable=\"false\"/>",
        "<namedCollection name=\"Some Group\"/>\n    <namedCollection name=\"p:3/min\"/>",
        "<package name=\"@b&lt;\"/>",
    ] {
        assert!(xml.contains(wanted), "{wanted}\n{xml}");
    }
    assert!(!xml.contains("\"q\""), "a module was reset: {xml}");
    assert_eq!(
        file(&layer, "repository-a_b.sh"),
        "#!/bin/bash\nprintf %s 'proxy=http://p:3128\n' >> \"$1\"\n"
    );
    let script = file(&layer, "config.sh");
    let (_, steps) = script
        .split_once("}\n")
        .and_then(|(_, rest)| rest.split_once("step "))
        .unwrap();
    assert_eq!(
        format!("step {steps}"),
        "step remove_packages 0 rpm -e --nodeps x\nstep remove_packages 0 rpm -e --nodeps y\n\
         step 'cmds[0]' 107 /bin/bash -c 'it'\\''s\n$(x)'\nstep 'cmds[1]' 107 /bin/bash -c plain\n\
         if [ -L /etc/resolv.conf ]; then rm -f /etc/resolv.conf; fi\n"
    );
    let of = |key: &str, source: &str, to: &str, mode| Copy {
        key: key.to_owned(),
        source: source.to_owned(),
        to: to.to_owned(),
        mode,
        ..Copy::default()
    };
    assert_eq!(
        files(&layer).copies[1..],
        [
            of("copyfiles[0]", "d/f", "root/etc/f", Some(0o640)),
            of("copyfiles[1]", "/abs", "root/opt/x", None)
        ]
    );
    assert_eq!(layer.warnings.len(), 1, "{:?}", layer.warnings);
}

#[test]
fn with_a_parent_in_order() {
    let lines = child_lines(
        "  gpgcheck: False\n  registry_opts_pull: ['--tls-verify=false']\n  labels: {b: 'x \"$Y\" \\z', a.b: 1}",
        "repos:\n- {alias: r, url: 'http://h/r', gpg: 'http://h/k', priority: '5'}\n- {alias: f, url: 'http://h/d/more.repo'}\n\
         - {alias: c, content: 'baseurl=http://h/c'}\nmodules: {reset: [m], enable: ['m:1']}\npackage_groups: [A B]\npackages: [p, 'q*']\n\
         remove_packages: [x, y]\ncopyfiles:\n- {src: 'a b/$f', dest: '/etc/it''s$\\', opts: --chmod=0600}\n\
         - {src: 'https://h/x', dest: /x}\ncmds:\n- cmd: 'echo ${X} <<E'\n- cmd: |\n    a\\\n    RUN b\n",
    );
    let wrapped = r#"RUN ["/bin/bash","-c","\"$@\" || { s=$?; [ $s -eq 107 ] || exit $s; }","bash","/bin/bash","-c","#;
    let wanted = [
        "FROM h/p:1".to_owned(),
        r#"COPY --chmod=0644 ["copies/1/file","/etc/yum.repos.d/r.repo"]"#.to_owned(),
        r#"ADD --chmod=0644 ["http://h/d/more.repo","/etc/yum.repos.d/more.repo"]"#.to_owned(),
        r#"COPY --chmod=0644 ["copies/3/file","/etc/yum.repos.d/c.repo"]"#.to_owned(),
        r#"RUN ["rpm","--import","http://h/k"]"#.to_owned(),
        r#"RUN ["/bin/sh","-c","dnf \"$@\" && dnf clean all","sh","--nogpgcheck","module","reset","-y","m"]"#
            .to_owned(),
        r#"RUN ["/bin/sh","-c","dnf \"$@\" && dnf clean all","sh","--nogpgcheck","module","enable","-y","m:1"]"#
            .to_owned(),
        r#"RUN ["/bin/sh","-c","dnf \"$@\" && dnf clean all","sh","--nogpgcheck","group","install","-y","A B"]"#
            .to_owned(),
        r#"RUN ["/bin/sh","-c","dnf \"$@\" && dnf clean all","sh","--nogpgcheck","install","-y","p","q*"]"#.to_owned(),
        r#"RUN ["rpm","-e","--nodeps","x"]"#.to_owned(),
        r#"RUN ["rpm","-e","--nodeps","y"]"#.to_owned(),
        r#"COPY --chmod=0600 ["copies/4/\\$f","/etc/it\\'s\\$\\\\"]"#.to_owned(),
        r#"ADD ["https://h/x","/x"]"#.to_owned(),
        format!(r#"{wrapped}"echo ${{X}} \u003c\u003cE"]"#),
        format!(r#"{wrapped}"a\\\nRUN b\n"]"#),
        r#"LABEL "a.b"="1""#.to_owned(),
        r#"LABEL "b"="x \"\$Y\" \\z""#.to_owned(),
    ];
    assert_eq!(lines[1..=wanted.len()], wanted);
    assert!(
        lines
            .iter()
            .any(|line| line == r#"LABEL "org.openchami.image.parent"="h/p:1""#)
    );
}

#[test]
fn files_of_repositories() {
    for (manager, more, path, wanted) in [
        (
            "dnf",
            "priority: 3, sslverify: no",
            "",
            "[r]\nname=r\nbaseurl=http://h/r\nenabled=1\npriority=3\nsslverify=0\n",
        ),
        (
            "zypper",
            "",
            "",
            "[r]\nname=r\nbaseurl=http://h/r\nenabled=1\nautorefresh=1\npriority=99\n",
        ),
        (
            "apt",
            "apt_dist: s, apt_comp: main x",
            "",
            "deb [trusted=yes] http://h/r s main x\n",
        ),
        ("apt", "gpg: 'http://h/k'", "", "deb http://h/r ./\n"),
        ("dnf", "config: 'enabled=1'", "", "[r]\nenabled=1"),
    ] {
        let text = format!(
            "options: {{layer_type: base, pkg_manager: {manager}, parent: p}}\nrepos: [{{alias: r, url: 'http://h/r', {more}}}]\n"
        );
        assert_eq!(
            file(&translated(Form::Builder, &text), "copies/1/file"),
            wanted,
            "{path}"
        );
    }
    let text = child("  proxy: http://p", "repos: [{alias: r, url: 'http://h/r'}]");
    assert!(file(&translated(Form::Builder, &text), "copies/1/file").ends_with("proxy=http://p\n"));
    let apt = translated(
        Form::Builder,
        "options: {layer_type: base, pkg_manager: apt, parent: p}\nrepos: [{alias: r, url: 'http://h/r', gpg: 'http://h/k'}]",
    );
    assert!(
        lines(&apt)
            .iter()
            .any(|line| line == r#"ADD --chmod=0644 ["http://h/k","/etc/apt/trusted.gpg.d/r.got"]"#)
    );
    let root = translated(
        Form::Builder,
        "options: {layer_type: base, pkg_manager: apt}\nrepos: [{alias: u, url: 'http://h/u', apt_dist: noble, apt_comp: main universe}]\npackages: [p]",
    );
    let xml = file(&root, "config.xml");
    assert!(
        xml.contains("type=\"apt-deb\" alias=\"u\" distribution=\"noble\" components=\"main universe\"")
            && xml.contains("ubuntu-keyring"),
        "{xml}"
    );
}

#[test]
fn lenient_types() {
    for more in [
        "packages:\n",
        "packages: []\nmodules: []\n",
        "cmds:\nrepos: ~\n",
        "remove_packages: one\n",
        "copyfiles: []\nopenscap:\n",
    ] {
        child_lines("  publish_tags: [9.10, '9.10', latest]\n", more);
    }
    let layer = translated(
        Form::Builder,
        &child(
            "  publish_tags: [1, v2]\n  publish_local: true'\n  publish_registry: h:5/x//\n  registry_opts_push: --tls-verify=false\n  publish_s3: http://s\n  s3_prefix: c/",
            "",
        ),
    );
    let references = |place: &str| vec![format!("{place}/base:1"), format!("{place}/base:v2")];
    let s3 = |bucket: &str| Publish::S3 {
        endpoint: "http://s".to_owned(),
        bucket: bucket.to_owned(),
        prefix: "c/".to_owned(),
        layout: Layout::Builder,
    };
    let wanted = [
        Publish::Local {
            references: references("localhost"),
        },
        s3("boot-images"),
        Publish::Registry {
            references: references("h:5/x"),
            tls_verify: false,
        },
    ];
    assert_eq!(layer.publish, wanted);
    let named = Given {
        name: Some("other".to_owned()),
        parent: Some("scratch".to_owned()),
        ..given()
    };
    let layer = read(BASE, Form::Builder, &named).unwrap();
    assert_eq!((layer.name.as_str(), layer.parent), ("other", Parent::Scratch));
}

#[test]
fn warnings_name_what_is_ignored() {
    let text = child(
        "  log_level: x\n  force_installroot: yes\n  registry_opts_push: ['--creds=u:secret']",
        "surplus: 1\ncmds:\n- {cmd: a, loglevel: INFO, buildah_extra_args: [x], odd: 1}\nrepos: [{alias: a, url: 'http://u:secret@h/', other: 1}]\n",
    );
    let warnings = translated(Form::Builder, &text).warnings;
    for key in [
        "options.log_level",
        "options.force_installroot",
        "--creds",
        "surplus",
        "cmds[0].buildah_extra_args",
        "cmds[0].odd",
        "repos[0].other",
    ] {
        assert_eq!(
            warnings
                .iter()
                .filter(|warning| warning.contains(key) && !warning.contains("secret"))
                .count(),
            1,
            "{key}: {warnings:?}"
        );
    }
    let zypper = child("", "package_groups: [g]").replace("dnf", "zypper");
    assert!(translated(Form::Builder, &zypper).warnings[0].contains("zypper"));
    let other = Given {
        arch: "aarch64".to_owned(),
        ..Given::default()
    };
    let warnings = read(&BASE.replace("h/main", "h/x86_64/"), Form::Builder, &other)
        .unwrap()
        .warnings;
    assert!(warnings[0].contains("x86_64"), "{warnings:?}");
}

#[test]
fn refusals_name_the_key() {
    for (options, more, wanted) in [
        ("  layer_type: x", "", "options.layer_type is neither"),
        (
            "  layer_type: ansible",
            "",
            "options.layer_type: ansible is not supported",
        ),
        ("  pkg_manager: apk", "", "options.pkg_manager is not supported"),
        (
            "  registry_opts_pull: ['--creds=u:secret']",
            "",
            "options.registry_opts_pull is not supported: Kiln has nothing for --creds",
        ),
        (
            "  parent: 'oci:x'",
            "",
            "options.parent is not supported: its transport is oci",
        ),
        ("  parent: \"a\\nRUN b\"", "", "options.parent is no reference"),
        ("  publish_tags: 'a b'", "", "options.publish_tags has no tag"),
        ("  labels: {x: \"a\\nb\"}", "", "options.labels.x has a line break"),
        ("  proxy: 'http://u:secret@p x'", "", "options.proxy is no address"),
        (
            "  proxy: http://p",
            "repos: [{alias: a, url: 'http://h/x.repo'}]",
            "repos[0].url is not supported",
        ),
        ("", "repos: [{alias: a}]", "repos[0].url is missing"),
        (
            "",
            "repos: [{alias: a, url: 'http://u:secret@h/\"'}]",
            "repos[0].url is no address",
        ),
        (
            "",
            "repos: [{alias: a, url: 'http://h', priority: x}]",
            "repos[0].priority is no number",
        ),
        ("", "modules: {sync: [a]}", "modules.sync is not supported"),
        ("", "packages: {a: b}", "packages (line 6) must be a list"),
        ("", "packages: ['-x']", "packages[0] is empty, or begins with -"),
        ("", "cmds:\n- {command: x}", "cmds[0].cmd is missing"),
        ("", "cmds: [[a]]", "cmds[0] (line 6) must be a text"),
        ("", "copyfiles: [{src: a}]", "copyfiles[0].dest is missing"),
        (
            "",
            "copyfiles: [{src: 'a*', dest: /b}]",
            "copyfiles[0].src is not supported: it is a pattern",
        ),
        ("", "copyfiles: [{src: a, dest: /../b}]", "copyfiles[0].dest is no path"),
        (
            "",
            "copyfiles: [{src: a, dest: /b, opts: [--from x]}]",
            "copyfiles[0].opts is not supported",
        ),
        (
            "",
            "copyfiles: [{src: a, dest: /b, opts: ['--chown=a;b']}]",
            "copyfiles[0].opts is no owner",
        ),
        ("  scap_benchmark: yes", "", "openscap.profile is missing"),
        ("", "cmds: [}", "not YAML: line 6"),
    ] {
        let wrong = refused(Form::Builder, &child(options, more));
        assert!(
            wrong.contains(wanted) && !wrong.contains("secret"),
            "{options} {more}: {wrong}"
        );
    }
    for (text, wanted) in [
        ("packages: [a]", "options is missing"),
        ("options: x", "options (line 1) must be a mapping"),
        (
            "options: {layer_type: base, pkg_manager: dnf}\npackages: [a]",
            "repos is missing",
        ),
        (
            "options: {layer_type: base, pkg_manager: dnf}\nrepos: [{alias: a, url: 'http://h'}]",
            "packages is missing",
        ),
        (&BASE.replace("h/main", "h/x.repo"), "repos[0] is not supported"),
        (
            &format!("{BASE}copyfiles: [{{src: 'http://h/x', dest: /x}}]"),
            "copyfiles[0] is not supported: nothing fetches",
        ),
        (
            &format!("{BASE}copyfiles: [{{src: x, dest: /x, opts: [--chown a]}}]"),
            "copyfiles[0] is not supported: copies into",
        ),
        (
            &format!("{BASE}modules: {{update: [m]}}"),
            "modules.update is not supported: kiwi-ng",
        ),
    ] {
        let wrong = refused(Form::Builder, text);
        assert!(wrong.contains(wanted), "{text}: {wrong}");
    }
}

#[test]
fn openscap() {
    let lines = child_lines(
        "  install_scap: yes\n  scap_benchmark: yes\n  oval_eval: yes",
        "openscap:\n- {profile: p, oval_url: 'http://h/o'}\n- {profile: q, benchmark_path: /b}\n",
    );
    let text = lines.join("\n");
    for wanted in [
        "\"install\",\"-y\",\"openscap-utils\",\"scap-security-guide\",\"bzip2\"]",
        "RUN [\"oscap\",\"--version\"]",
        "|| true\",\"sh\",\"q\",\"/root/scan.xml\",\"/b\"]",
        "\"sh\",\"/root/remediate.sh\",\"q\",\"/root/scan.xml\"]",
        "\"sh\",\"http://h/o\",\"/root/oval.xml\"]",
        "\"sh\",\"/root/vulnerabilities.xml\",\"/root/oval.xml\"]",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
}

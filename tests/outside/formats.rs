//! The forms in which recipes come: names of descriptions, encodings, archives of other systems, links.

use std::{
    os::unix::{fs::symlink, net::UnixListener},
    path::Path,
};

use crate::support::{self, Kiln, Recipe, repository::Repository, run, squashfs, tool};

/// A recipe whose description has another name, in an encoding and with line ends of its own.
fn recipe(name: &str, encode: impl Fn(&str) -> Vec<u8>) -> Recipe {
    let recipe = Recipe::copy_of("rpm-minimal").with("config.sh", "#!/bin/sh\necho \"config.sh of $0 runs\"\n");
    let text = fs_err::read_to_string(format!("{}/config.xml", recipe.path())).unwrap();
    let text = text
        .replace("Minimal RPM root", "Kleinste Wurzel für Café")
        .replace('\n', "\r\n");
    let recipe = recipe
        .without("config.xml")
        .with(".ims_recipe_template.yaml", &format!("template_files:\r\n- {name}\r\n"));
    let at = Path::new(recipe.path());
    fs_err::create_dir_all(at.join(name).parent().unwrap()).unwrap();
    fs_err::write(at.join(name), encode(&text)).unwrap();
    fs_err::create_dir_all(at.join("root/etc/site/v1")).unwrap();
    fs_err::write(at.join("root/etc/site/v1/conf"), "x").unwrap();
    for (link, target) in LINKS {
        symlink(target, at.join(link)).unwrap();
    }
    recipe
}

/// Links of the overlay, with texts that only mean something in the image.
const LINKS: [(&str, &str); 4] = [
    ("root/etc/site/current", "v1/../v1/conf"),
    ("root/etc/site/absolute", "/srv/none"),
    ("root/etc/site/far", "../../../../../srv"),
    ("root/etc/site/odd", "./v1//"),
];

/// Builds a recipe; the log, and what the image says of the links.
fn build(recipe: &str) -> (String, Vec<String>, String) {
    let kiln = Kiln::new();
    let repository = Repository::native();
    let out = tempfile::tempdir().unwrap();
    let set = format!("--set=rpm_repo={}", repository.url());
    let to = out.path().to_str().unwrap();
    let ran = kiln.run(["build", recipe, &set, "--output", to]).ok();
    let log = kiln.log(&kiln.jobs()[0]);
    let files = support::files_below(out.path());
    let rootfs = files.iter().find(|file| file.ends_with("rootfs")).unwrap();
    let listed = tool("unsquashfs", &["-lln", rootfs.to_str().unwrap()]);
    let links = listed.lines().filter_map(|line| {
        let (_, link) = line.split_once(" squashfs-root/")?;
        link.contains("etc/site/").then(|| link.to_owned())
    });
    let links = links.collect();
    assert!(squashfs::list(rootfs).contains_key("/etc/site/v1/conf"), "{listed}");
    (log, links, format!("{}{listed}", ran.stderr))
}

#[track_caller]
fn assert_links(links: &[String]) {
    for (link, target) in LINKS {
        let wanted = format!("{} -> {target}", link.strip_prefix("root/").unwrap());
        assert!(links.contains(&wanted), "{wanted} in {links:?}");
    }
}

#[test]
fn a_directory_of_any_kind_builds() {
    needs!(support::no_namespaces());
    let utf16 = |text: &str| {
        let text = format!("\u{feff}{}", text.replace("utf-8", "utf-16"));
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    };
    let recipe = recipe("appliance.kiwi", utf16).with("zweite.kiwi", "no description");
    let at = Path::new(recipe.path());
    let zeros = fs_err::File::create(at.join("root/etc/zeros.img")).unwrap();
    zeros.set_len(100 << 20).unwrap();
    tool("mkfifo", &[at.join("root/etc/queue").to_str().unwrap()]);
    let _socket = UnixListener::bind(at.join("root/etc/socket")).unwrap();
    let (log, links, shown) = build(recipe.path());
    assert_links(&links);
    for told in ["the description is appliance.kiwi", "was UTF-16LE", "config.sh of"] {
        assert!(log.contains(told), "{told}: {log}");
    }
    for told in ["root/etc/queue is a fifo", "root/etc/socket is a socket", "104857600"] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
}

#[test]
fn an_archive_of_another_system_builds() {
    needs!(support::no_namespaces());
    let latin = |text: &str| {
        let text = text.replace("utf-8", "iso-8859-1");
        text.chars()
            .map(|letter| u8::try_from(u32::from(letter)).unwrap())
            .collect()
    };
    let recipe = recipe("image/config.xml", latin);
    // kiwi takes everything from beside its description.
    for name in ["config.sh", "root"] {
        let at = Path::new(recipe.path());
        fs_err::rename(at.join(name), at.join("image").join(name)).unwrap();
    }
    let list = "template_files: [config.xml]";
    let recipe = recipe
        .without(".ims_recipe_template.yaml")
        .with("image/.ims_recipe_template.yaml", list);
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    for (name, content) in [
        ("README.md", "# Read me"),
        (".DS_Store", "Bud1"),
        ("._my recipe", "\0\u{5}\u{16}\u{7}"),
        ("__MACOSX/my recipe/._config.xml", "\0\u{5}\u{16}\u{7}"),
        ("my recipe/image/root/etc/._motd", "\0\u{5}\u{16}\u{7}and more"),
    ] {
        let file = top.join(name);
        fs_err::create_dir_all(file.parent().unwrap()).unwrap();
        fs_err::write(file, content).unwrap();
    }
    tool(
        "cp",
        &[
            "-a",
            &format!("{}/.", recipe.path()),
            top.join("my recipe").to_str().unwrap(),
        ],
    );
    let zip = dir.path().join("from a mac.zip");
    let script = "import os, sys, zipfile\n\
        with zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED) as archive:\n\
        \x20   for dir, dirs, files in os.walk('.'):\n\
        \x20       for name in dirs + files:\n\
        \x20           path = os.path.join(dir, name)\n\
        \x20           if os.path.islink(path):\n\
        \x20               info = zipfile.ZipInfo(os.path.relpath(path))\n\
        \x20               info.create_system, info.external_attr = 3, 0o120777 << 16\n\
        \x20               archive.writestr(info, os.readlink(path))\n\
        \x20           else:\n\
        \x20               archive.write(path)\n";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", script, zip.to_str().unwrap()]).current_dir(&top);
    support::succeed(&mut python);
    let (log, links, listed) = build(zip.to_str().unwrap());
    assert_links(&links);
    assert!(!log.contains("the archive says no modes"), "{log}");
    for told in [
        "the description is my recipe/image/config.xml",
        "was windows-1252",
        "config.sh of",
    ] {
        assert!(log.contains(told), "{told}: {log}");
    }
    assert!(!listed.contains("._motd"), "{listed}");
}

#[test]
fn what_cannot_be_built_is_refused_with_its_name() {
    needs!(support::no_namespaces());
    let plain = || Recipe::copy_of("rpm-minimal").without(".ims_recipe_template.yaml");
    let linked = plain();
    symlink("../common/root", Path::new(linked.path()).join("root")).unwrap();
    let archive = tempfile::tempdir().unwrap();
    let archive = archive.path().join("linked.tar");
    tool("tar", &["-cf", archive.to_str().unwrap(), "-C", linked.path(), "."]);
    let yaml = plain().without("config.xml").with("config.yaml", "image: {}");
    let upper = plain().without("config.xml").with("Config.XML", "<image/>");
    let several = plain()
        .without("config.xml")
        .with("a/config.xml", "<image/>")
        .with("b/x.kiwi", "<image/>");
    let kiln = Kiln::new();
    for (recipe, words) in [
        (linked.path(), ["`root`", "cp -rL"]),
        (archive.to_str().unwrap(), ["`root`", "cp -rL"]),
        (yaml.path(), ["`config.yaml`", "print-xml"]),
        (upper.path(), ["`Config.XML`", "no config.xml"]),
        (several.path(), ["a/config.xml", "b/x.kiwi"]),
    ] {
        let refused = kiln.run(["build", recipe]);
        refused.failed();
        for word in words {
            assert!(refused.stderr.contains(word), "{word}: {}", refused.last());
        }
    }
    assert!(kiln.jobs().is_empty());
    // These are seen in the sandbox, before anything is fetched for the root.
    let crlf = plain().with("images.sh", "#!/bin/bash\r\ntrue\r\n");
    let wrong = plain();
    fs_err::write(Path::new(wrong.path()).join("config.xml"), b"<image name='\xfc'/>").unwrap();
    for (recipe, code, words) in [
        (crlf.path(), "script_failed", ["images.sh", "CRLF"]),
        (wrong.path(), "recipe_config_invalid", ["line 1", "UTF-8"]),
    ] {
        let kiln = Kiln::new();
        let refused = run(kiln.command(["build", recipe]));
        refused.failed();
        assert_eq!(kiln.failure_code(), code, "{}", refused.last());
        for word in words {
            assert!(refused.stderr.contains(word), "{word}: {}", refused.last());
        }
        assert!(!kiln.log(&kiln.jobs()[0]).contains("system prepare"));
    }
}

//! `kiln images import`: makes an image of a container image. Writes the recipe into a temporary directory, and talks to the server.
//!
//! The recipe is a Containerfile that has the container image as its base and nothing else, so that it is taken apart in a sandbox,
//! within the limits of every job.

use std::path::Path;

use clap::Args;
use kiln_records::{Code, Failure, arch::Arch, run::Kernel};

use super::{
    build_set::build_set, read_recipe::read_recipe, session::Session, signals::cancel_on_signal, values::arch,
};
use crate::orchestrate::recipe::stem;

/// The forms of a container image that is in files.
const FORMS: [&str; 3] = ["oci:", "oci-archive:", "docker-archive:"];

/// The longest index of a layout, in bytes.
const LONGEST_INDEX: u64 = 4 << 20;

/// What the files are called in the recipe.
const FILES: &str = "image";

#[derive(Debug, Args)]
pub(super) struct ImportImage {
    /// The container image: REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…, oci:DIR or oci:DIR:TAG, oci-archive:FILE or docker-archive:FILE.
    #[arg(value_name = "REF")]
    from: String,

    /// Architectures to import it for [default: this host's].
    #[arg(long, value_name = "ARCH", value_delimiter = ',', value_parser = arch())]
    arch: Vec<Arch>,

    /// What to call the image [default: the last part of the container image's name].
    #[arg(long)]
    name: Option<String>,
}

impl ImportImage {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let unwritable = |error: std::io::Error| Failure::io("cannot write the recipe of the import", &error);
        let interrupted = cancel_on_signal()?;
        let scratch = tempfile::tempdir().map_err(unwritable)?;
        let recipe = scratch
            .path()
            .join(self.name.clone().unwrap_or_else(|| name_of(&self.from)));
        fs_err::create_dir(&recipe).map_err(unwritable)?;
        let base = base(&self.from, &recipe)?;
        fs_err::write(recipe.join("Containerfile"), format!("FROM {base}\n")).map_err(unwritable)?;
        let recipe = read_recipe(&recipe, &session.printer)?;
        let archs = if self.arch.is_empty() {
            vec![Arch::host()]
        } else {
            self.arch
        };
        let version = jiff::Timestamp::now().strftime("%Y%m%d.%H%M%S").to_string();
        if let Some(local) = session.without_server() {
            local.carry_out();
        }
        tokio::select! {
            outcome = build_set(session, &recipe, &archs, Kernel::Shared, (&recipe.name, &version)) => outcome,
            () = interrupted.cancelled() => Err(Failure::new(Code::Interrupted, "the import was interrupted")),
        }
    }
}

/// The image's name: the last part of the container image's, or of the path of its files.
fn name_of(reference: &str) -> String {
    let form = FORMS.iter().find_map(|form| reference.strip_prefix(form));
    let last = |text: &str| {
        text.trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let name = last(form.unwrap_or(reference));
    let name = name.split(['@', ':']).next().unwrap_or_default();
    let name = stem(name);
    if name.is_empty() || name.starts_with('.') {
        "imported".to_owned()
    } else {
        name.to_owned()
    }
}

/// What the Containerfile names as its base. Files are put into the recipe.
fn base(reference: &str, recipe: &Path) -> Result<String, Failure> {
    let wrong = |why: &str| {
        Failure::new(
            Code::Usage,
            format!("`{}` names no container image: {why}", reference.escape_debug()),
        )
        .hint("REGISTRY/NAME:TAG, oci:DIR[:TAG], oci-archive:FILE or docker-archive:FILE")
    };
    if reference.is_empty()
        || reference.starts_with('-')
        || reference.chars().any(|c| c.is_whitespace() || c.is_control())
    {
        return Err(wrong("it has characters that no name has"));
    }
    let Some(form) = FORMS.iter().find(|form| reference.starts_with(**form)) else {
        let plain = reference.strip_prefix("docker://").unwrap_or(reference);
        if plain.contains("://") {
            return Err(wrong("it begins with an address of something else"));
        }
        return Ok(plain.to_owned());
    };
    let rest = &reference[form.len()..];
    // A path may have colons: the longest one that is there counts.
    let cut = rest.rsplit_once(':').filter(|_| !Path::new(rest).exists());
    let (path, tag) = cut.map_or((rest, None), |(path, tag)| (path, Some(tag)));
    let path = Path::new(path);
    let missing = |error: std::io::Error| Failure::io("cannot read the container image", &error);
    if !path.exists() || path.is_dir() != (*form == "oci:") {
        return Err(wrong(if path.exists() {
            "it is of another form"
        } else {
            "there is no such file"
        }));
    }
    copy(path, &recipe.join(FILES)).map_err(missing)?;
    let only = if *form == "oci:" { only_tag(path) } else { None };
    let tag = tag.map(str::to_owned).or(only);
    let tag = tag.map(|tag| format!(":{tag}")).unwrap_or_default();
    Ok(format!("{form}{FILES}{tag}"))
}

/// The tag in a layout that has one only. Beside the images with tags there may be others, such as what refers to them.
fn only_tag(layout: &Path) -> Option<String> {
    let index = kiln_files::read(&layout.join("index.json"), LONGEST_INDEX).ok()?;
    let index: serde_json::Value = serde_json::from_slice(&index).ok()?;
    let tags = index["manifests"].as_array()?.iter();
    let mut tags = tags.filter_map(|image| image["annotations"]["org.opencontainers.image.ref.name"].as_str());
    let only = tags.next()?.to_owned();
    tags.next().is_none().then_some(only)
}

/// Copies a file, or a directory with all that is in it.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if !from.is_dir() {
        return fs_err::copy(from, to).map(drop);
    }
    fs_err::create_dir(to)?;
    for entry in fs_err::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_called_as_its_source() {
        for (reference, name) in [
            ("registry.example.org/site/base:12", "base"),
            ("registry.example.org/base@sha256:ab", "base"),
            ("oci:/srv/layout:1.0", "layout"),
            ("docker-archive:app.tar", "app"),
            ("oci:.", "imported"),
        ] {
            assert_eq!(name_of(reference), name, "{reference}");
        }
    }

    #[test]
    fn files_become_part_of_the_recipe() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = dir.path().join("recipe");
        fs_err::create_dir(&recipe).unwrap();
        fs_err::create_dir_all(dir.path().join("lay:out/blobs")).unwrap();
        fs_err::write(dir.path().join("lay:out/blobs/x"), "x").unwrap();
        let reference = format!("oci:{}:1.0", dir.path().join("lay:out").display());
        assert_eq!(base(&reference, &recipe).unwrap(), "oci:image:1.0");
        assert!(recipe.join("image/blobs/x").is_file());
        let named = |name: &str| serde_json::json!({ "annotations": { "org.opencontainers.image.ref.name": name } });
        for (images, expected) in [
            (vec![named("1.0"), serde_json::json!({})], "oci:image:1.0"),
            (vec![named("1.0"), named("2.0")], "oci:image"),
        ] {
            let index = serde_json::json!({ "manifests": images });
            fs_err::write(dir.path().join("lay:out/index.json"), index.to_string()).unwrap();
            fs_err::remove_dir_all(recipe.join("image")).unwrap();
            let reference = format!("oci:{}", dir.path().join("lay:out").display());
            assert_eq!(base(&reference, &recipe).unwrap(), expected);
        }
        assert_eq!(base("docker://r.example/a:1", &recipe).unwrap(), "r.example/a:1");
        for wrong in [
            "",
            "-x",
            "a b",
            "https://r.example/a",
            "oci-archive:/nowhere",
            "docker-archive:/tmp",
        ] {
            assert_eq!(base(wrong, &recipe).unwrap_err().code, Code::Usage, "{wrong}");
        }
    }
}

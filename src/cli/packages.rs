//! `kiln images packages`, `diff` and `find-package`: what is in images. Talks to the server.

use clap::Args;
use kiln_records::{
    Code, Failure,
    sbom::{ListedPackage, PackageChange, changes},
};

use super::session::Session;
use crate::client::{
    Data,
    collection::{FOUND_PACKAGES, IMAGES, PACKAGE_CHANGES, PACKAGES},
};

#[derive(Debug, Args)]
pub(super) struct ImagePackages {
    /// The image: its id, the beginning of its id, or its name.
    image: String,

    /// Only packages of this name.
    name: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Difference {
    /// The image to compare with.
    old: String,

    /// The image.
    new: String,
}

#[derive(Debug, Args)]
pub(super) struct FindPackage {
    /// The name of the package.
    name: String,

    /// Only lower versions than this, by the rules of the packages' format.
    #[arg(long, value_name = "VERSION")]
    below: Option<String>,
}

impl ImagePackages {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let image = session.client.find(&IMAGES, &self.image).await?.id;
        let answer = session
            .client
            .image_packages(&image, self.name.as_deref(), None)
            .await?;
        session.show_table(&PACKAGES, known(&self.image, &answer)?)
    }
}

impl Difference {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let mut both = Vec::new();
        for given in [&self.old, &self.new] {
            let image = session.client.find(&IMAGES, given).await?.id;
            let answer = session.client.image_packages(&image, None, None).await?;
            both.push(listed(&known(given, &answer)?));
        }
        let (Some(new), Some(old)) = (both.pop(), both.pop()) else {
            return Ok(());
        };
        let changes: Vec<_> = changes(&old, &new).into_iter().map(shown).collect();
        if changes.is_empty() && !session.wants_data() {
            session.printer.result("both have the same packages");
            return Ok(());
        }
        session.show_table(&PACKAGE_CHANGES, changes)
    }
}

impl FindPackage {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let (mut found, mut unknown) = (Vec::new(), Vec::new());
        let mut cursor: Option<String> = None;
        loop {
            let answer = self.page(session, cursor.as_deref()).await?;
            found.extend(answer.items("images").iter().map(shown_in_image));
            unknown.extend_from_slice(answer.items("not_looked_at"));
            match answer.text("next") {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        session.show_table(&FOUND_PACKAGES, found)?;
        for image in &unknown {
            let text = |name: &str| image.text(name).unwrap_or_default();
            session
                .printer
                .note(format_args!("unknown    {}: {}", text("id"), text("why")));
        }
        Ok(())
    }

    /// A page of the answer, after the server has looked at all of its images that it can look at.
    async fn page(&self, session: &Session, cursor: Option<&str>) -> Result<Data, Failure> {
        let mut before = usize::MAX;
        loop {
            let client = &session.client;
            let answer = client.find_package(&self.name, self.below.as_deref(), cursor).await?;
            let images = answer.items("not_looked_at").iter();
            let pending = images
                .filter(|image| *image.get("is_pending") == Data::Bool(true))
                .count();
            // Without progress it would go on for ever.
            if pending == 0 || pending >= before {
                return Ok(answer);
            }
            before = pending;
        }
    }
}

/// The packages in an answer.
pub(super) fn known(image: &str, answer: &Data) -> Result<Vec<Data>, Failure> {
    if *answer.get("packages") == Data::Null {
        let cause = format!("nobody has listed the packages of `{image}`");
        let hint = "images that Kiln builds have such a list, unless their log says why not";
        return Err(Failure::new(Code::RecordUnknown, cause).hint(hint));
    }
    Ok(answer.items("packages").to_vec())
}

/// The packages in an answer, of which only what differs is looked at.
pub(super) fn listed(packages: &[Data]) -> Vec<ListedPackage> {
    let of = |package: &Data| {
        let text = |name: &str| package.text(name).unwrap_or_default().to_owned();
        ListedPackage {
            name: text("name"),
            version: text("version"),
            arch: text("arch"),
            licences: None,
        }
    };
    packages.iter().map(of).collect()
}

fn shown(change: PackageChange) -> Data {
    let kind = change.kind().to_owned();
    let PackageChange { name, arch, old, new } = change;
    let fields = [
        ("name", name),
        ("arch", arch),
        ("change", kind),
        ("old", old),
        ("new", new),
    ];
    Data::Map(fields.map(|(name, text)| (name.to_owned(), Data::Text(text))).to_vec())
}

/// A package with the image that has it.
fn shown_in_image(found: &Data) -> Data {
    let fields = [
        ("id", "id"),
        ("image", "name"),
        ("arch", "arch"),
        ("name", "package"),
        ("version", "version"),
    ];
    let text = |name: &str| Data::Text(found.text(name).unwrap_or_default().to_owned());
    Data::Map(fields.map(|(shown, name)| (shown.to_owned(), text(name))).to_vec())
}

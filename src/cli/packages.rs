//! `kiln images packages`, `diff` and `find-package`: what is in images. Talks to the server.

use clap::Args;
use futures::{StreamExt, stream};
use kiln_records::{
    Code, Failure,
    sbom::{ListedPackage, PackageChange, changes},
};

use super::session::Session;
use crate::client::{
    Data, Filter,
    collection::{FOUND_PACKAGES, IMAGES, PACKAGE_CHANGES, PACKAGES},
};

/// The images that are asked for at the same time.
const PARALLEL: usize = 4;

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
        let client = &session.client;
        let images = client.list(&IMAGES, &Filter::default()).await?;
        let ids: Vec<String> = images
            .iter()
            .filter_map(|image| Some(image.text("id")?.to_owned()))
            .collect();
        let asked = ids.into_iter().map(async |id| {
            let answer = client
                .image_packages(&id, Some(&self.name), self.below.as_deref())
                .await;
            (id, answer)
        });
        let answers: Vec<_> = stream::iter(asked).buffered(PARALLEL).collect().await;
        let (mut found, mut unknown) = (Vec::new(), Vec::new());
        for (id, answer) in answers {
            match answer {
                Ok(answer) if *answer.get("packages") != Data::Null => {
                    let packages = answer.items("packages").iter();
                    found.extend(packages.map(|package| of_image(package, &answer)));
                }
                Ok(_) => unknown.push(format!("{id} has no list of packages")),
                Err(failure) => unknown.push(format!("{id}: {failure}")),
            }
        }
        session.show_table(&FOUND_PACKAGES, found)?;
        for image in &unknown {
            session.printer.note(format_args!("unknown    {image}"));
        }
        Ok(())
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
fn of_image(package: &Data, image: &Data) -> Data {
    let text = |data: &Data, name: &str| Data::Text(data.text(name).unwrap_or_default().to_owned());
    Data::Map(vec![
        ("id".to_owned(), text(image, "id")),
        ("image".to_owned(), text(image, "name")),
        ("arch".to_owned(), text(image, "arch")),
        ("name".to_owned(), text(package, "name")),
        ("version".to_owned(), text(package, "version")),
    ])
}

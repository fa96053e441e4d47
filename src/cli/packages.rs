//! `kiln images packages`, `diff` and `find-package`: what is in images. Talks to the server.

use std::collections::BTreeMap;

use clap::Args;
use futures::{StreamExt, stream};
use kiln_records::{Code, Failure};

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
            both.push(by_name(&known(given, &answer)?));
        }
        let (Some(new), Some(old)) = (both.pop(), both.pop()) else {
            return Ok(());
        };
        let changes = changes(&old, &new);
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
fn known(image: &str, answer: &Data) -> Result<Vec<Data>, Failure> {
    if *answer.get("packages") == Data::Null {
        let cause = format!("nobody has listed the packages of `{image}`");
        let hint = "images that Kiln builds have such a list, unless their log says why not";
        return Err(Failure::new(Code::RecordUnknown, cause).hint(hint));
    }
    Ok(answer.items("packages").to_vec())
}

/// Versions by names and architectures. A few packages, such as kernels, are there in several versions.
fn by_name(packages: &[Data]) -> BTreeMap<(String, String), Vec<String>> {
    let mut names: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for package in packages {
        let text = |name: &str| package.text(name).unwrap_or_default().to_owned();
        names
            .entry((text("name"), text("arch")))
            .or_default()
            .push(text("version"));
    }
    names
}

fn changes(old: &BTreeMap<(String, String), Vec<String>>, new: &BTreeMap<(String, String), Vec<String>>) -> Vec<Data> {
    let mut names: Vec<_> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let different = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    different
        .map(|name| {
            let versions = |side: &BTreeMap<_, Vec<String>>| {
                Data::Text(side.get(name).map_or_else(String::new, |all| all.join(", ")))
            };
            let change = match (old.get(name), new.get(name)) {
                (None, _) => "added",
                (_, None) => "removed",
                _ => "changed",
            };
            Data::Map(vec![
                ("name".to_owned(), Data::Text(name.0.clone())),
                ("arch".to_owned(), Data::Text(name.1.clone())),
                ("change".to_owned(), Data::Text(change.to_owned())),
                ("old".to_owned(), versions(old)),
                ("new".to_owned(), versions(new)),
            ])
        })
        .collect()
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

//! Implements [`PackageIndex`]: the packages of images. Touches the store's database only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use async_trait::async_trait;
use kiln_records::{
    ImageId, Moment,
    sbom::{Listed, PackageFormat},
};
use sqlx::{Executor, Row as _};

use super::{Row, Statement, ThisStore, statements::condition};
use crate::store::{After, IndexedImage, IndexedPackage, Known, Lock, PackageIndex, Result, Side, StoreError};

/// The most packages or images in one statement: both databases have a limit for values.
const CHUNK: usize = 1000;

#[async_trait]
impl PackageIndex for ThisStore {
    async fn put_packages(&self, image: ImageId, listed: &Listed, now: Moment) -> Result<()> {
        let format = listed.format.map(PackageFormat::name);
        // A document may name a package twice.
        let packages = listed.packages.iter();
        let packages: BTreeSet<_> = packages
            .map(|package| (package.name.clone(), package.version.clone(), package.arch.clone()))
            .collect();
        let packages = Vec::from_iter(packages);
        let mut put = put_list(image, format, None, now);
        put.push("format = excluded.format, fault = NULL, looked = excluded.looked");
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                // The row keeps others who note the same image waiting.
                if db.execute(put.build()).await?.rows_affected() == 0 {
                    return Ok(());
                }
                let mut earlier = Statement::new("DELETE FROM image_packages WHERE image = ");
                earlier.push_bind(image.to_string());
                db.execute(earlier.build()).await?;
                for packages in packages.chunks(CHUNK) {
                    let mut add = Statement::new("INSERT INTO image_packages (image, name, version, arch) ");
                    add.push_values(packages, |mut row, (name, version, arch)| {
                        row.push_bind(image.to_string()).push_bind(name.clone());
                        row.push_bind(version.clone()).push_bind(arch.clone());
                    });
                    db.execute(add.build()).await?;
                }
                Ok(())
            })
        })
        .await
    }

    async fn put_package_fault(&self, image: ImageId, fault: &str, now: Moment) -> Result<()> {
        // PostgreSQL has no null characters.
        let mut put = put_list(image, None, Some(fault.replace('\0', " ")), now);
        put.push("fault = excluded.fault, looked = excluded.looked WHERE package_lists.fault IS NOT NULL");
        self.write_one(put).await.map(drop)
    }

    async fn images_with(&self, package: &str, after: Option<&After>, limit: u32) -> Result<Vec<IndexedImage>> {
        // No package has such a name, and PostgreSQL refuses it in a query.
        let package = package.replace('\0', " ");
        let Some(mut statement) = page(after, limit) else {
            return Ok(Vec::new());
        };
        let rows = self.readers().fetch_all(statement.build()).await?;
        let mut images = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        for images in images.chunks_mut(CHUNK) {
            let ids: Vec<String> = images.iter().map(|image| image.id.to_string()).collect();
            let rows = self.readers().fetch_all(named(&package, &ids).build()).await?;
            let mut packages: BTreeMap<String, Vec<IndexedPackage>> = BTreeMap::new();
            for row in &rows {
                let (version, arch) = (row.try_get(1)?, row.try_get(2)?);
                let of_image = packages.entry(row.try_get(0)?).or_default();
                of_image.push(IndexedPackage { version, arch });
            }
            for (image, id) in images.iter_mut().zip(&ids) {
                if let Known::Packages { found, .. } = &mut image.known {
                    *found = packages.remove(id).unwrap_or_default();
                    found.sort();
                }
            }
        }
        Ok(images)
    }
}

/// Starts a statement that notes what is known of an image: the changes of an earlier row are to follow.
fn put_list(image: ImageId, format: Option<&'static str>, fault: Option<String>, now: Moment) -> Statement {
    let mut put = Statement::new("INSERT INTO package_lists (image, format, fault, looked) SELECT id, ");
    // PostgreSQL does not guess the types of values in a SELECT.
    put.push("CAST(").push_bind(format).push(" AS TEXT), CAST(");
    put.push_bind(fault).push(" AS TEXT), ").push_bind(now.micros());
    put.push(" FROM images WHERE id = ").push_bind(image.to_string());
    put.push(" ON CONFLICT (image) DO UPDATE SET ");
    put
}

/// The images after a place, and what is known of each; `None` if the place cannot be one.
pub(super) fn page(after: Option<&After>, limit: u32) -> Option<Statement> {
    let mut statement = Statement::new(format!(
        "SELECT id, name, arch, position, link_path, format, fault, looked FROM images LEFT JOIN package_lists ON \
         package_lists.image = images.id WHERE {}",
        condition(Side::Live)
    ));
    if let Some(after) = after {
        if after.id.contains('\0') {
            return None;
        }
        statement.push(" AND (position, id) > (");
        statement.push_bind(after.key.parse::<i64>().ok()?).push(", ");
        statement.push_bind(after.id.clone()).push(")");
    }
    // Not bound: SQLite plans a statement again whenever a value is bound to its LIMIT.
    statement.push(format_args!(" ORDER BY position, id LIMIT {limit}"));
    Some(statement)
}

/// The packages of a name in these images.
pub(super) fn named(package: &str, images: &[String]) -> Statement {
    let mut statement = Statement::new("SELECT image, version, arch FROM image_packages WHERE name = ");
    statement.push_bind(package.to_owned()).push(" AND image IN (");
    let mut list = statement.separated(", ");
    for image in images {
        list.push_bind(image.clone());
    }
    list.push_unseparated(")");
    statement
}

/// The image in a row, without its packages.
fn read(row: &Row) -> Result<IndexedImage> {
    let (id, arch): (&str, &str) = (row.try_get(0)?, row.try_get(2)?);
    let link: Option<&str> = row.try_get(4)?;
    let (format, fault): (Option<&str>, Option<String>) = (row.try_get(5)?, row.try_get(6)?);
    let looked: Option<i64> = row.try_get(7)?;
    let known = match (looked.map(Moment::from_micros), fault) {
        (None, _) => Known::Unseen,
        (Some(looked), Some(why)) => Known::Fault { why, looked },
        (Some(_), None) => Known::Packages {
            format: format.map(read_format).transpose()?,
            found: Vec::new(),
        },
    };
    Ok(IndexedImage {
        id: id.parse().map_err(|error| damaged(&error))?,
        name: row.try_get(1)?,
        arch: arch.parse().map_err(|error| damaged(&error))?,
        position: row.try_get(3)?,
        has_link: link.is_some(),
        known,
    })
}

fn read_format(name: &str) -> Result<PackageFormat> {
    let mut formats = [PackageFormat::Deb, PackageFormat::Rpm].into_iter();
    let found = formats.find(|format| format.name() == name);
    found.ok_or_else(|| damaged(&format_args!("unknown format `{name}`")))
}

fn damaged(error: &dyn fmt::Display) -> StoreError {
    StoreError::Damaged(format!("the packages of an image: {error}"))
}

//! Finds what nobody has finished or used for long: parts of uploads, shared packages, stored toolboxes. Talks to S3 only.
//!
//! Others may use the same buckets. Only keys that are laid out as Kiln lays them out are looked at.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use kiln_records::{Failure, ImageId};

use super::{ArtifactStore, sdk::failure, store::ObjectInfo};

/// The beginnings of the keys of Kiln's own objects in the bucket for recipes.
const RECIPES: [&str; 5] = ["recipes/", "changes/", "logs/", "packages/", "toolboxes/"];

/// An upload in parts that was not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenUpload {
    /// Its bucket.
    pub bucket: String,
    /// The key of the object that it would become.
    pub key: String,
    /// S3's name for it.
    pub id: String,
    /// When it was begun, if S3 tells.
    pub begun: Option<Timestamp>,
}

impl OpenUpload {
    /// The image that it belongs to, if any.
    pub fn image(&self) -> Option<ImageId> {
        self.key.split('/').next()?.parse().ok().map(ImageId)
    }
}

impl ArtifactStore {
    /// The uploads to objects of Kiln's that were begun before this moment. An upload whose beginning S3 does not tell is
    /// not among them.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn uploads_begun_before(&self, moment: Timestamp) -> Result<Vec<OpenUpload>, Failure> {
        let mut found = Vec::new();
        for bucket in [self.images_bucket(), self.recipes_bucket()] {
            let open = self.open_uploads(bucket, "").await?;
            found.extend(open.into_iter().filter(|upload| {
                let is_old = upload.begun.is_some_and(|begun| begun < moment);
                is_old && self.is_own_key(bucket, &upload.key)
            }));
        }
        Ok(found)
    }

    /// The uploads to keys that begin like this.
    pub(super) async fn open_uploads(&self, bucket: &str, prefix: &str) -> Result<Vec<OpenUpload>, Failure> {
        let mut found = Vec::new();
        let mut pages = Some((None, None));
        while let Some((key_marker, id_marker)) = pages {
            let list = self.client.list_multipart_uploads().bucket(bucket).prefix(prefix);
            let page = list
                .set_key_marker(key_marker)
                .set_upload_id_marker(id_marker)
                .send()
                .await;
            let page = page.map_err(|error| {
                failure(
                    format_args!("cannot list the uploads to s3://{bucket}/{prefix}"),
                    &error,
                )
            })?;
            found.extend(page.uploads().iter().map(|upload| {
                OpenUpload {
                    bucket: bucket.to_owned(),
                    key: upload.key().unwrap_or_default().to_owned(),
                    id: upload.upload_id().unwrap_or_default().to_owned(),
                    begun: upload
                        .initiated()
                        .and_then(|begun| Timestamp::from_millisecond(begun.to_millis().ok()?).ok()),
                }
            }));
            pages = page.is_truncated().unwrap_or_default().then(|| {
                let text = |marker: Option<&str>| marker.map(str::to_owned);
                (text(page.next_key_marker()), text(page.next_upload_id_marker()))
            });
        }
        Ok(found)
    }

    /// Removes the parts of an upload. May be repeated.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn give_up(&self, upload: &OpenUpload) -> Result<(), Failure> {
        self.abort(&upload.bucket, &upload.key, &upload.id).await
    }

    /// Whether Kiln lays out its keys like this one.
    fn is_own_key(&self, bucket: &str, key: &str) -> bool {
        let is_image = key
            .split_once('/')
            .is_some_and(|(id, _)| id.parse::<uuid::Uuid>().is_ok());
        (bucket == self.images_bucket() && is_image)
            || (bucket == self.recipes_bucket() && RECIPES.iter().any(|prefix| key.starts_with(prefix)))
    }

    /// The objects of stored toolboxes whose names are not among these; and those of toolboxes for pods that another agent's
    /// came after, or that were never stored whole.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn toolboxes_except(&self, names: &HashSet<String>) -> Result<Vec<ObjectInfo>, Failure> {
        let objects = self.list(self.recipes_bucket(), "toolboxes/").await?;
        let newest = newest_of_pods(&objects);
        let is_left = |key: &str| {
            let Some(name) = key.split('/').nth(1) else {
                return false;
            };
            !names.contains(name) || of_pods(key).is_some_and(|tag| newest.get(&(name, kind_of(tag))) != Some(&tag))
        };
        Ok(objects.iter().filter(|object| is_left(&object.key)).cloned().collect())
    }

    /// The compressed logs of jobs, and what lies beside them.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn job_logs(&self) -> Result<Vec<ObjectInfo>, Failure> {
        self.list(self.recipes_bucket(), "logs/").await
    }
}

/// The tag of a toolbox for pods that an object belongs to.
fn of_pods(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once("/pods/")?;
    let tag = rest.split('/').next()?;
    Some(tag.strip_suffix(".json").unwrap_or(tag))
}

/// The end of a tag, which tells toolboxes for virtual machines from others.
fn kind_of(tag: &str) -> &str {
    tag.rsplit('-').next().unwrap_or_default()
}

/// The tags of the toolboxes for pods that were stored last, by name and kind.
fn newest_of_pods(objects: &[ObjectInfo]) -> HashMap<(&str, &str), &str> {
    let mut stored: Vec<_> = objects
        .iter()
        .filter(|object| object.key.strip_suffix(".json").is_some())
        .filter_map(|object| Some((object.modified, object.key.split('/').nth(1)?, of_pods(&object.key)?)))
        .collect();
    stored.sort_unstable();
    let newest = |(_, name, tag)| ((name, kind_of(tag)), tag);
    stored.into_iter().map(newest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_toolboxes_of_pods_that_were_stored_last_stay() {
        let object = |key: &str, second: i64| ObjectInfo {
            key: key.to_owned(),
            size: 1,
            etag: String::new(),
            modified: Timestamp::from_second(second).unwrap(),
        };
        let objects = [
            object("toolboxes/one/current.json", 9),
            object("toolboxes/one/pods/old-1.json", 1),
            object("toolboxes/one/pods/new-1.json", 2),
            object("toolboxes/one/pods/vm-0.json", 1),
            object("toolboxes/one/pods/half-1/sha.tar.gz", 3),
        ];
        let newest = newest_of_pods(&objects);
        let expected = [(("one", "1"), "new-1"), (("one", "0"), "vm-0")];
        assert_eq!(newest, HashMap::from(expected));
        assert_eq!(of_pods("toolboxes/one/pods/half-1/sha.tar.gz"), Some("half-1"));
        assert_eq!(of_pods("toolboxes/one/current.json"), None);
    }
}

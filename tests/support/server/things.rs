//! Makes records and objects that tests need in order to test something else.

use aws_sdk_s3::primitives::ByteStream;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Server;

/// The bucket of recipes.
pub const RECIPES: &str = "ims";
/// The bucket of images.
pub const IMAGES: &str = "boot-images";
/// The media type of a root file system.
pub const ROOTFS: &str = "application/vnd.cray.image.rootfs.squashfs";
/// An id without a record.
pub const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

impl Server {
    /// Makes a record.
    pub async fn make(&self, path: &str, body: Value) -> Value {
        self.post(path, body).await.is(201).json()
    }

    /// The record at an address.
    pub async fn read(&self, path: &str) -> Value {
        self.get(path).await.is(200).json()
    }

    /// The ids of the records at an address.
    pub async fn ids(&self, path: &str) -> Vec<String> {
        let list = self.read(path).await;
        let ids = list
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["id"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    }

    /// Makes a public key. Returns its id.
    pub async fn key(&self) -> String {
        let key = json!({"name": unique("key"), "public_key": "ssh-ed25519 AAAA me@here\n"});
        id_of(&self.make("/v3/public-keys", key).await)
    }

    /// Makes a recipe with an archive, with these members replacing the usual ones.
    pub async fn recipe(&self, members: Value) -> Value {
        let mut body =
            json!({"name": unique("recipe"), "recipe_type": "kiwi-ng", "linux_distribution": "sles15", "link": null});
        merge(&mut body, &members);
        let recipe = self.make("/v3/recipes", body).await;
        if members.get("link").is_some() {
            return recipe;
        }
        let key = format!("recipes/{}/recipe.tar.gz", id_of(&recipe));
        self.put(RECIPES, &key, "an archive").await;
        let link = json!({"path": format!("s3://{RECIPES}/{key}"), "type": "s3"});
        self.link("recipes", &recipe, &link).await
    }

    /// Makes an image with a root file system and a kernel, with these members replacing the usual ones.
    pub async fn image(&self, members: Value) -> Value {
        let mut body = json!({"name": unique("image"), "link": null});
        merge(&mut body, &members);
        let image = self.make("/v3/images", body).await;
        if members.get("link").is_some() {
            return image;
        }
        let mut artifacts = Vec::new();
        for (name, kind) in [("rootfs", ROOTFS), ("kernel", "application/vnd.cray.image.kernel")] {
            artifacts.push(artifact(kind, &self.own_object(&image, name).await));
        }
        self.linked(&image, json!(artifacts)).await
    }

    /// Makes an object where the objects of an image lie. Returns its path.
    pub async fn own_object(&self, image: &Value, name: &str) -> String {
        let key = format!("{}/{name}", id_of(image));
        self.put(IMAGES, &key, name).await;
        format!("s3://{IMAGES}/{key}")
    }

    /// Gives an image a manifest with these artifacts. Returns the image.
    pub async fn linked(&self, image: &Value, artifacts: Value) -> Value {
        let manifest = json!({"version": "1.0", "created": "2026-01-01 00:00:00.000000", "artifacts": artifacts});
        let key = format!("{}/manifest.json", id_of(image));
        let etag = self.put(IMAGES, &key, manifest.to_string()).await;
        let link = json!({"path": format!("s3://{IMAGES}/{key}"), "etag": etag, "type": "s3"});
        self.link("images", image, &link).await
    }

    async fn link(&self, kind: &str, record: &Value, link: &Value) -> Value {
        let path = format!("/v3/{kind}/{}", id_of(record));
        self.patch(&path, json!({ "link": link })).await.is(200).json()
    }

    /// Makes a manifest with a root file system and a kernel, all in S3. Returns the link to it.
    pub async fn manifest(&self) -> Value {
        let mut artifacts = Vec::new();
        for kind in [ROOTFS, "application/vnd.cray.image.kernel"] {
            let path = self.object(IMAGES, "artifact", kind.as_bytes()).await;
            artifacts.push(artifact(kind, &path));
        }
        self.manifest_of(&json!({"version": "1.0", "created": "2026-01-01 00:00:00.000000", "artifacts": artifacts}))
            .await
    }

    /// Makes a manifest with this content. Returns the link to it.
    pub async fn manifest_of(&self, manifest: &Value) -> Value {
        self.manifest_text(manifest.to_string().into_bytes()).await
    }

    /// Makes a manifest with this text. Returns the link to it.
    pub async fn manifest_text(&self, text: impl Into<Vec<u8>>) -> Value {
        let key = format!("{}/manifest.json", Uuid::new_v4());
        let etag = self.put(IMAGES, &key, text).await;
        json!({"path": format!("s3://{IMAGES}/{key}"), "etag": etag, "type": "s3"})
    }

    /// Makes an object for one test alone. Returns its path.
    pub async fn object(&self, bucket: &str, name: &str, body: &[u8]) -> String {
        let key = format!("{}/{name}", Uuid::new_v4());
        self.put(bucket, &key, body).await;
        format!("s3://{bucket}/{key}")
    }

    /// Writes an object. Returns its entity tag.
    pub async fn put(&self, bucket: &str, key: &str, body: impl Into<Vec<u8>>) -> String {
        let put = self.s3.put_object().bucket(bucket).key(key);
        let answer = put.body(ByteStream::from(body.into())).send().await.unwrap();
        answer.e_tag().unwrap().trim_matches('"').to_owned()
    }

    /// Whether the object at a path exists.
    pub async fn exists(&self, path: &str) -> bool {
        let (bucket, key) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
        self.s3.head_object().bucket(bucket).key(key).send().await.is_ok()
    }

    /// Removes the object at a path.
    pub async fn remove(&self, path: &str) {
        let (bucket, key) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
        self.s3.delete_object().bucket(bucket).key(key).send().await.unwrap();
    }
}

/// An entry of a manifest.
pub fn artifact(kind: &str, path: &str) -> Value {
    json!({"type": kind, "md5": "d41d8cd98f00b204e9800998ecf8427e", "link": {"path": path, "etag": "", "type": "s3"}})
}

/// A name that no other test uses.
pub fn unique(what: &str) -> String {
    format!("{what}-{}", Uuid::new_v4())
}

/// The id of a record.
#[track_caller]
pub fn id_of(record: &Value) -> String {
    record["id"]
        .as_str()
        .unwrap_or_else(|| panic!("no id: {record}"))
        .to_owned()
}

/// Replaces members.
pub fn merge(body: &mut Value, members: &Value) {
    for (name, value) in members.as_object().unwrap().clone() {
        body[name] = value;
    }
}

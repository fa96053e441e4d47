//! The client of OpenStack's image service (Glance, Image API v2): uploads disk images, and leaves none half-made. Talks to
//! Glance and Keystone, and reads one file.

use std::{path::Path, time::Duration};

use futures::TryStreamExt;
use kiln_records::{Code, Failure, names};
use md5::Md5;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256, Sha512};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

mod auth;

pub use auth::Login;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How long an answer may take.
const ANSWER: Duration = Duration::from_mins(1);

/// How long an upload may take beside its bytes.
const UPLOAD: Duration = Duration::from_mins(10);

/// The slowest upload, in bytes per second.
const SLOWEST: u64 = 256 * 1024;

/// The most that is read of an answer, in bytes.
const MOST_ANSWER: usize = 1 << 20;

/// The property by which Kiln knows its images again.
const MARK: &str = "kiln_disk";

/// A disk to upload.
#[derive(Debug)]
pub struct Disk<'d> {
    /// The image's name in Glance.
    pub name: &'d str,
    /// The file.
    pub file: &'d Path,
    /// Its form: `qcow2` or `raw`.
    pub format: &'static str,
    /// Properties of the image.
    pub properties: Map<String, Value>,
}

/// The image in Glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its id.
    pub id: String,
    /// Whether it was there before.
    pub was_there: bool,
    /// Images of earlier attempts that were removed.
    pub removed: usize,
}

/// A connection to Glance.
#[derive(Debug)]
pub struct Glance {
    http: reqwest::Client,
    endpoint: Url,
    token: Option<String>,
}

/// An image as Glance describes it.
#[derive(Debug, Deserialize)]
struct Image {
    id: String,
    status: String,
    checksum: Option<String>,
    os_hash_algo: Option<String>,
    os_hash_value: Option<String>,
    #[serde(rename = "kiln_disk")]
    mark: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Page {
    images: Vec<Image>,
}

/// The digests that Glance may compute.
struct Digests {
    md5: String,
    sha256: String,
    sha512: String,
    size: u64,
}

impl Digests {
    async fn of(path: &Path) -> std::io::Result<Self> {
        let (mut md5, mut sha256, mut sha512, mut size) = (Md5::new(), Sha256::new(), Sha512::new(), 0);
        let mut file = tokio::fs::File::open(path).await?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            md5.update(&buffer[..count]);
            sha256.update(&buffer[..count]);
            sha512.update(&buffer[..count]);
            size += count as u64;
        }
        Ok(Self {
            md5: hex::encode(md5.finalize()),
            sha256: hex::encode(sha256.finalize()),
            sha512: hex::encode(sha512.finalize()),
            size,
        })
    }

    /// Whether these are the digests that Glance computed. Without any that is known here, they are not.
    fn are_of(&self, image: &Image) -> bool {
        match (image.os_hash_algo.as_deref(), &image.os_hash_value, &image.checksum) {
            (Some("sha512"), Some(value), _) => *value == self.sha512,
            (Some("sha256"), Some(value), _) => *value == self.sha256,
            (_, _, Some(checksum)) => *checksum == self.md5,
            _ => false,
        }
    }
}

impl Glance {
    /// Logs in.
    ///
    /// # Errors
    ///
    /// `glance_login` when something is missing in the environment, and those of [`Glance::publish`].
    pub async fn open(login: Login) -> Result<Self, Failure> {
        login.enter(CONNECT).await
    }

    /// Uploads a disk, unless an image with that name and content is there. Images of this name that an earlier attempt
    /// left unfinished are removed; a failure removes the new one.
    ///
    /// # Errors
    ///
    /// `glance_unreachable`, `glance_denied`, `glance_quota`, `glance_refused`, `glance_mismatch`.
    pub async fn publish(&self, disk: &Disk<'_>, stop: impl Future<Output = ()>) -> Result<Published, Failure> {
        let digests = Digests::of(disk.file).await;
        let digests = digests.map_err(|error| Failure::io("cannot read the disk image", &error))?;
        let mut removed = 0;
        for image in self.images(disk.name).await? {
            match image.status.as_str() {
                "active" if digests.are_of(&image) => {
                    let was_there = true;
                    let id = image.id;
                    return Ok(Published { id, was_there, removed });
                }
                // Another user's image of the same name has no mark.
                "queued" | "saving" | "importing" | "uploading" if image.mark.is_some() => {
                    self.delete(&image.id).await?;
                    removed += 1;
                }
                _ => {}
            }
        }
        let id = self.create(disk, &digests).await?;
        let uploaded = tokio::select! {
            uploaded = self.upload(&id, disk, &digests) => uploaded,
            () = stop => Err(Failure::new(Code::Interrupted, "the upload was interrupted")),
        };
        match uploaded {
            Ok(()) => Ok(Published {
                id,
                was_there: false,
                removed,
            }),
            Err(mut failure) => {
                if self.delete(&id).await.is_err() {
                    failure.detail = format!("{}; the unfinished image {id} could not be removed", failure.detail);
                }
                Err(failure)
            }
        }
    }

    async fn images(&self, name: &str) -> Result<Vec<Image>, Failure> {
        let mut url = self.url(&["images"])?;
        url.query_pairs_mut()
            .append_pair("name", name)
            .append_pair("limit", "100");
        let page: Page = self.json(self.request(Method::GET, url)).await?;
        Ok(page.images)
    }

    async fn create(&self, disk: &Disk<'_>, digests: &Digests) -> Result<String, Failure> {
        let mut body = disk.properties.clone();
        for (key, value) in [
            ("name", disk.name),
            ("disk_format", disk.format),
            ("container_format", "bare"),
            (MARK, digests.sha256.as_str()),
        ] {
            body.insert(key.to_owned(), value.into());
        }
        let url = self.url(&["images"])?;
        let image: Image = self.json(self.request(Method::POST, url).json(&body)).await?;
        Ok(image.id)
    }

    async fn upload(&self, id: &str, disk: &Disk<'_>, digests: &Digests) -> Result<(), Failure> {
        let file = tokio::fs::File::open(disk.file).await;
        let file = file.map_err(|error| Failure::io("cannot read the disk image", &error))?;
        let longest = UPLOAD + Duration::from_secs(digests.size / SLOWEST);
        let request = self
            .request(Method::PUT, self.url(&["images", id, "file"])?)
            .timeout(longest)
            .header("content-type", "application/octet-stream")
            .header("content-length", digests.size)
            .body(reqwest::Body::wrap_stream(ReaderStream::with_capacity(file, 1 << 20)));
        accepted(send(request).await?).await?;
        let image: Image = self.json(self.request(Method::GET, self.url(&["images", id])?)).await?;
        if image.status == "active" && digests.are_of(&image) {
            return Ok(());
        }
        let detail = if image.status == "active" {
            "Glance has stored other bytes than were sent, or names no digest that Kiln knows".to_owned()
        } else {
            format!(
                "after the upload the image is `{}`, not active",
                names::shown(&image.status)
            )
        };
        Err(Failure::new(Code::GlanceMismatch, detail).hint("see Glance's log, and publish again"))
    }

    async fn delete(&self, id: &str) -> Result<(), Failure> {
        let response = send(self.request(Method::DELETE, self.url(&["images", id])?)).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(()),
            _ => accepted(response).await.map(drop),
        }
    }

    fn url(&self, segments: &[&str]) -> Result<Url, Failure> {
        let mut url = self.endpoint.clone();
        let mut path = url
            .path_segments_mut()
            .map_err(|()| Failure::new(Code::GlanceLogin, "the address of Glance is no base of others"))?;
        path.pop_if_empty().push("v2").extend(segments);
        drop(path);
        Ok(url)
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.http.request(method, url).timeout(ANSWER);
        match &self.token {
            Some(token) => request.header("x-auth-token", auth::secret(token)),
            None => request,
        }
    }

    async fn json<T: for<'de> Deserialize<'de>>(&self, request: RequestBuilder) -> Result<T, Failure> {
        json_of(accepted(send(request).await?).await?).await
    }
}

async fn send(request: RequestBuilder) -> Result<Response, Failure> {
    request.send().await.map_err(|error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let place = error.url().and_then(Url::host_str).unwrap_or("OpenStack").to_owned();
        let detail = if error.is_timeout() {
            format!("{place} did not answer in time")
        } else {
            format!("{place} cannot be reached: {cause}")
        };
        Failure::new(Code::GlanceUnreachable, detail).hint("check the address and the service; then publish again")
    })
}

/// The answer, if it is no refusal.
async fn accepted(response: Response) -> Result<Response, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let (code, hint) = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            (Code::GlanceDenied, "check the OS_ variables and the roles of the user")
        }
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::INSUFFICIENT_STORAGE => {
            (Code::GlanceQuota, "remove images, or have the quota raised")
        }
        _ if status.is_server_error() => (Code::GlanceUnreachable, "see Glance's log; then publish again"),
        _ => (Code::GlanceRefused, "the message is from the service"),
    };
    let said = body_of(response).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    // An explanation in HTML or JSON; its tags say nothing.
    let said: String = said
        .split('<')
        .map(|part| part.split_once('>').map_or(part, |(_, text)| text))
        .collect();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let said: String = names::shown(&said).chars().take(300).collect();
    Err(Failure::new(code, format!("OpenStack answers {status}: {said}")).hint(hint))
}

async fn body_of(response: Response) -> Result<Vec<u8>, Failure> {
    let lost = |error: reqwest::Error| Failure::new(Code::GlanceUnreachable, format!("the answer breaks off: {error}"));
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.try_next().await.map_err(lost)? {
        if body.len() + piece.len() > MOST_ANSWER {
            let detail = format!("the answer has more than {MOST_ANSWER} bytes");
            return Err(Failure::new(Code::GlanceRefused, detail).hint("check the address: this may not be Glance"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

async fn json_of<T: for<'de> Deserialize<'de>>(response: Response) -> Result<T, Failure> {
    serde_json::from_slice(&body_of(response).await?).map_err(|error| {
        Failure::new(
            Code::GlanceRefused,
            format!("the answer is not one of OpenStack: {error}"),
        )
        .hint("check the address: this may be another service")
    })
}

//! One repository of a registry: its manifests, and which blobs it has. Talks to the registry.

use std::sync::Arc;

use bytes::Bytes;
use kiln_records::Failure;
use reqwest::{
    Method, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName},
};

use crate::{
    digest::Digest,
    model::{Descriptor, MAX_MANIFEST, media},
    reference::Which,
    refusal,
    transport::{Access, Ask, Transport},
};

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");

/// A document, as it was received.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its media type, digest and size.
    pub descriptor: Descriptor,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A repository of a registry.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(crate) transport: Arc<Transport>,
    /// Its name.
    pub repository: String,
    pull: Arc<str>,
    push: Arc<str>,
}

impl Remote {
    /// A repository. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// `ca_file_invalid`, `tls_unusable`.
    pub async fn open(registry: &str, repository: &str, access: &Access) -> Result<Self, Failure> {
        Ok(Self::at(Arc::new(Transport::open(registry, access).await?), repository))
    }

    fn at(transport: Arc<Transport>, repository: &str) -> Self {
        Self {
            transport,
            repository: repository.to_owned(),
            pull: format!("repository:{repository}:pull").into(),
            push: format!("repository:{repository}:pull,push").into(),
        }
    }

    /// The name of an image in it.
    pub fn name(&self, which: &Which) -> String {
        let sign = if which.tag().is_some() { ':' } else { '@' };
        format!("{}/{}{sign}{which}", self.transport.registry, self.repository)
    }

    /// A request that reads.
    pub(crate) fn read<'a>(&'a self, method: Method, tail: &str, what: &'a str) -> Ask<'a> {
        Ask::new(method, self.url(tail), what, &self.pull)
    }

    /// A request that writes.
    pub(crate) fn write<'a>(&'a self, method: Method, tail: &str, what: &'a str) -> Ask<'a> {
        Ask::new(method, self.url(tail), what, &self.push)
    }

    pub(crate) fn url(&self, tail: &str) -> reqwest::Url {
        self.transport.url(&format!("/v2/{}/{tail}", self.repository))
    }

    /// The scope of requests that write.
    pub(crate) fn push_scope(&self) -> &str {
        &self.push
    }

    /// Checks that the registry speaks this protocol and accepts the login.
    ///
    /// # Errors
    ///
    /// It does not.
    pub async fn check(registry: &str, access: &Access) -> Result<(), Failure> {
        let transport = Transport::open(registry, access).await?;
        let what = format!("cannot log in to {registry}");
        let response = transport
            .send(&Ask::new(Method::GET, transport.url("/v2/"), &what, ""))
            .await?;
        match response.status() {
            StatusCode::OK => Ok(()),
            _ => Err(transport.refuse(response, &what).await),
        }
    }

    /// Reads a manifest or index; none if there is none.
    ///
    /// # Errors
    ///
    /// The registry does not answer, or what it answers is not what was asked for.
    pub async fn manifest(&self, which: &Which) -> Result<Option<Found>, Failure> {
        let what = format!("cannot read {}", self.name(which));
        let ask = self
            .read(Method::GET, &format!("manifests/{which}"), &what)
            .header(ACCEPT, &format!("{}, */*;q=0.1", media::MANIFESTS.join(", ")));
        let response = self.transport.send(&ask).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            _ => return Err(self.transport.refuse(response, &what).await),
        }
        let header = |name: &HeaderName| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let media_type = header(&CONTENT_TYPE).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim().to_owned();
        let announced = header(&CONTENT_DIGEST);
        let bytes = self.transport.small(response, MAX_MANIFEST, &what).await?;
        let announced = announced.and_then(|text| text.parse::<Digest>().ok());
        let digest = match which {
            Which::Digest(digest) => digest.clone(),
            Which::Tag(_) => announced.clone().unwrap_or_else(|| Digest::of(&bytes)),
        };
        for expected in [Some(&digest), announced.as_ref()].into_iter().flatten() {
            if !expected.is_of(&bytes) {
                return Err(self.damaged(&what, expected));
            }
        }
        Ok(Some(Found {
            descriptor: Descriptor::new(&media_type, digest, bytes.len() as u64),
            bytes,
        }))
    }

    fn damaged(&self, what: &str, expected: &Digest) -> Failure {
        Failure::new(
            kiln_records::Code::RegistryDigest,
            format!("{what}: what {} sent is not {expected}", self.transport.registry),
        )
        .hint("repeat; if it fails again, the registry or a cache before it is damaged")
    }

    /// The digest of what has the tag now, or whether there is something with the digest.
    ///
    /// # Errors
    ///
    /// The registry does not answer.
    pub async fn head(&self, which: &Which) -> Result<Option<Digest>, Failure> {
        let what = format!("cannot read {}", self.name(which));
        let ask = self
            .read(Method::HEAD, &format!("manifests/{which}"), &what)
            .header(ACCEPT, &format!("{}, */*;q=0.1", media::MANIFESTS.join(", ")));
        let response = self.transport.send(&ask).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            _ => return Err(self.transport.refuse(response, &what).await),
        }
        let digest = response.headers().get(CONTENT_DIGEST);
        match digest.and_then(|value| value.to_str().ok()?.parse().ok()) {
            Some(digest) => Ok(Some(digest)),
            None => Ok(self.manifest(which).await?.map(|found| found.descriptor.digest)),
        }
    }

    /// Writes a manifest or index. Returns whether the registry itself notes what it refers to.
    ///
    /// # Errors
    ///
    /// The registry refuses it, or says that it has another digest.
    pub async fn put(&self, which: &Which, media_type: &str, bytes: Bytes) -> Result<bool, Failure> {
        let what = format!("cannot write {}", self.name(which));
        let digest = match which {
            Which::Digest(digest) => digest.clone(),
            Which::Tag(_) => Digest::of(&bytes),
        };
        let ask = self
            .write(Method::PUT, &format!("manifests/{which}"), &what)
            .header(CONTENT_TYPE, media_type)
            .body(bytes);
        let response = self.transport.send(&ask).await?;
        if !matches!(
            response.status(),
            StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED
        ) {
            return Err(self.transport.refuse(response, &what).await);
        }
        self.same_digest(&response, &digest, &what)?;
        Ok(response.headers().contains_key(SUBJECT))
    }

    /// Checks the digest that an answer names, if it names one.
    pub(crate) fn same_digest(&self, response: &Response, digest: &Digest, what: &str) -> Result<(), Failure> {
        let named = response
            .headers()
            .get(CONTENT_DIGEST)
            .and_then(|value| value.to_str().ok());
        match named.map(str::parse::<Digest>) {
            // Some registries name another algorithm's.
            Some(Ok(named)) if named.parts().0 == digest.parts().0 && named != *digest => Err(Failure::new(
                kiln_records::Code::RegistryDigest,
                format!(
                    "{what}: {digest} was sent, and {} received {named}",
                    self.transport.registry
                ),
            )
            .hint("repeat; if it fails again, what is in between changes what is sent")),
            _ => Ok(()),
        }
    }

    /// The size of a blob; none if the repository does not have it.
    ///
    /// # Errors
    ///
    /// The registry does not answer.
    pub async fn blob_size(&self, digest: &Digest) -> Result<Option<u64>, Failure> {
        let what = format!(
            "cannot look for {digest} in {}/{}",
            self.transport.registry, self.repository
        );
        let ask = self.read(Method::HEAD, &format!("blobs/{digest}"), &what);
        let response = self.transport.send(&ask).await?;
        match response.status() {
            StatusCode::OK => {
                let length = response.headers().get(reqwest::header::CONTENT_LENGTH);
                let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
                length
                    .map(Some)
                    .ok_or_else(|| refusal::senseless(&self.transport.registry, &what, "it names no size"))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.transport.refuse(response, &what).await),
        }
    }
}

//! What refers to a manifest in a registry: signatures, bills of materials, boot files. Talks to the registry.
//!
//! Newer registries keep the list themselves. In others, clients keep it: as an index under a tag made of the digest.

use bytes::Bytes;
use kiln_records::{Code, Failure};
use reqwest::{Method, StatusCode, header::LINK};

use crate::{
    digest::Digest,
    model::{Descriptor, Document, Index, MAX_MANIFEST, media, to_json},
    reference::Which,
    refusal,
    remote::Remote,
};

/// The most pages of one list that are read.
const MAX_PAGES: usize = 100;

/// The most referrers of one manifest.
const MAX_REFERRERS: usize = 10_000;

/// The most bytes of one list.
const MAX_BYTES: usize = 64 << 20;

/// How often an entry is added when others change the list at the same time.
const TRIES: u32 = 5;

/// What refers to a manifest.
#[derive(Debug, Default)]
pub struct Referrers {
    /// What can be read, and nothing else that is said of it there: whoever writes to a registry decides how much that is.
    pub entries: Vec<Descriptor>,
    /// How many bytes said it.
    pub bytes: usize,
}

impl Referrers {
    /// Adds entries that `bytes` bytes said.
    pub fn add(&mut self, entries: Vec<Descriptor>, bytes: usize) {
        self.bytes += bytes;
        self.entries.extend(entries.into_iter().map(|entry| Descriptor {
            artifact_type: entry.artifact_type,
            ..Descriptor::new(&entry.media_type, entry.digest, entry.size)
        }));
    }
}

/// All that refers to a manifest, as the registry says.
pub async fn list(remote: &Remote, subject: &Digest) -> Result<Referrers, Failure> {
    let what = format!(
        "cannot list what refers to {subject} in {}/{}",
        remote.transport.registry, remote.repository
    );
    let mut found = Referrers::default();
    let mut ask = remote.read(Method::GET, &format!("referrers/{subject}"), &what);
    for page in 0..MAX_PAGES {
        let response = remote.transport.send(&ask).await?;
        match response.status() {
            StatusCode::OK => {}
            // A registry that does not know the request: nothing that a proxy answers is a list.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED if page == 0 => {
                let (entries, bytes) = of_tag(remote, subject).await?;
                found.add(entries, bytes);
                return Ok(found);
            }
            _ => return Err(remote.transport.refuse(response, &what).await),
        }
        let next = response.headers().get(LINK).and_then(|value| value.to_str().ok());
        let next = next.and_then(next_page).map(|next| ask.url.join(next));
        let bytes = remote.transport.small(response, MAX_MANIFEST, &what).await?;
        match Document::parse(media::INDEX, &bytes) {
            Ok(Document::Index(index)) => found.add(index.manifests, bytes.len()),
            Ok(_) => {}
            Err(why) => return Err(refusal::senseless(&remote.transport.registry, &what, why)),
        }
        if found.entries.len() > MAX_REFERRERS || found.bytes > MAX_BYTES {
            return Err(too_many(subject));
        }
        match next {
            None => return Ok(found),
            // Pages are the registry's own.
            Some(Ok(next)) if next.origin() == ask.url.origin() => ask.url = next,
            Some(_) => {
                return Err(refusal::senseless(
                    &remote.transport.registry,
                    &what,
                    "its next page is elsewhere",
                ));
            }
        }
    }
    Err(too_many(subject))
}

fn too_many(subject: &Digest) -> Failure {
    Failure::new(
        Code::RegistryGraph,
        format!("more than {MAX_REFERRERS} things refer to {subject}, or more than {MAX_BYTES} bytes say so"),
    )
    .hint("remove those that are not needed")
}

fn next_page(header: &str) -> Option<&str> {
    let (address, rest) = header.trim().strip_prefix('<')?.split_once('>')?;
    (rest.contains("rel=\"next\"") || rest.contains("rel=next")).then_some(address)
}

/// The entries under the tag, and the size of what has it.
async fn of_tag(remote: &Remote, subject: &Digest) -> Result<(Vec<Descriptor>, usize), Failure> {
    let which = Which::Tag(subject.referrers_tag());
    let Some(found) = remote.manifest(&which).await? else {
        return Ok((Vec::new(), 0));
    };
    match Document::parse(&found.descriptor.media_type, &found.bytes) {
        Ok(Document::Index(index)) if index.manifests.len() > MAX_REFERRERS => Err(too_many(subject)),
        Ok(Document::Index(index)) => Ok((index.manifests, found.bytes.len())),
        _ => Err(refusal::senseless(
            &remote.transport.registry,
            &format!("cannot read {}", remote.name(&which)),
            "the tag is that of a list, and it is none",
        )),
    }
}

/// Adds an entry to the list of a registry that does not keep it itself.
pub async fn add(remote: &Remote, subject: &Digest, entry: &Descriptor) -> Result<(), Failure> {
    let which = Which::Tag(subject.referrers_tag());
    for _ in 0..TRIES {
        let (mut entries, _) = of_tag(remote, subject).await?;
        if entries.iter().any(|other| other.digest == entry.digest) {
            return Ok(());
        }
        entries.push(entry.clone());
        // The order of arrival would give each copy another digest.
        entries.sort_by(|one, other| one.digest.cmp(&other.digest));
        let bytes = Bytes::from(to_json(&Index::new(entries)));
        if bytes.len() > MAX_MANIFEST {
            return Err(too_many(subject));
        }
        remote.put(&which, media::INDEX, bytes).await?;
        // Another client may have written at the same time: the next look shows which list it is.
    }
    Err(Failure::new(
        Code::RegistryMoved,
        format!("the list of what refers to {subject} is changed again and again"),
    )
    .hint("try again when no other client publishes to this repository"))
}

//! The headers that describe an object: type, encoding, caching and user metadata. Pure: no I/O.

use std::collections::BTreeMap;

use s3s::dto::{CopyObjectInput, CreateMultipartUploadInput, GetObjectOutput, HeadObjectOutput, PutObjectInput};
use serde::{Deserialize, Serialize};

use super::sums::{Sums, SumsOf};

/// Headers that are stored with an object and returned with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Attributes {
    content_type: Option<String>,
    cache_control: Option<String>,
    content_disposition: Option<String>,
    content_encoding: Option<String>,
    content_language: Option<String>,
    metadata: BTreeMap<String, String>,
    /// The checksums of the content, and what they are of.
    #[serde(skip_serializing_if = "Sums::is_empty")]
    pub(super) sums: Sums,
    pub(super) sums_of: SumsOf,
}

impl Attributes {
    /// These headers with the checksums of another object, which has the same content.
    pub(super) fn describing(self, other: Self) -> Self {
        let Self { sums, sums_of, .. } = other;
        Self { sums, sums_of, ..self }
    }
}

/// The content type that S3 reports for an object without one.
const DEFAULT_TYPE: &str = "binary/octet-stream";

macro_rules! attributes_from {
    ($($input:ident),*) => {
        $(impl From<&$input> for Attributes {
            fn from(input: &$input) -> Self {
                Self {
                    content_type: input.content_type.clone(),
                    cache_control: input.cache_control.clone(),
                    content_disposition: input.content_disposition.clone(),
                    content_encoding: input.content_encoding.as_deref().and_then(stored_encoding),
                    content_language: input.content_language.clone(),
                    metadata: input.metadata.clone().unwrap_or_default().into_iter().collect(),
                    ..Self::default()
                }
            }
        })*
    };
}

macro_rules! attributes_into {
    ($($output:ident),*) => {
        $(impl From<Attributes> for $output {
            fn from(attributes: Attributes) -> Self {
                Self {
                    content_type: Some(attributes.content_type.unwrap_or_else(|| DEFAULT_TYPE.to_owned())),
                    cache_control: attributes.cache_control,
                    content_disposition: attributes.content_disposition,
                    content_encoding: attributes.content_encoding,
                    content_language: attributes.content_language,
                    metadata: Some(attributes.metadata.into_iter().collect()),
                    ..Default::default()
                }
            }
        })*
    };
}

attributes_from!(PutObjectInput, CreateMultipartUploadInput, CopyObjectInput);
attributes_into!(GetObjectOutput, HeadObjectOutput);

/// `aws-chunked` describes the form of the request, not of the object.
fn stored_encoding(header: &str) -> Option<String> {
    let kept: Vec<_> = header
        .split(',')
        .map(str::trim)
        .filter(|word| *word != "aws-chunked")
        .collect();
    let kept = kept.join(", ");
    (!kept.is_empty()).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transfer_form_is_not_kept() {
        assert_eq!(stored_encoding("aws-chunked"), None);
        assert_eq!(stored_encoding("aws-chunked, gzip").as_deref(), Some("gzip"));
    }
}

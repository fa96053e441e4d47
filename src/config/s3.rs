//! The settings for S3: its address and the keys for it. Pure: no I/O.

use std::path::PathBuf;

use kiln_records::Secret;
use serde::{Deserialize, Serialize};

use crate::settings;

settings! {
    /// The S3 service for recipes and images. Without this section, the embedded service is used; with an empty one,
    /// Amazon S3 in `us-east-1` with the usual AWS environment.
    ["s3"]
    pub struct S3Settings {
        /// The URL of the service. Default: Amazon S3 in the region. Buckets are addressed by path.
        endpoint: Option<String> = None, like "\"https://s3.example.org\"";
        /// The URL of the same service for sandboxes, used in presigned URLs. Default: `endpoint`.
        public_endpoint: Option<String> = None, like "\"https://s3.example.org\"";
        /// The region that requests are signed for. Most services other than Amazon S3 accept any.
        region: String = "us-east-1".to_owned();
        /// The access key. Default: the usual AWS chain of environment, profile and role.
        access_key: Option<String> = None, like "\"…\"";
        /// The secret key of `access_key`.
        secret_key: Option<Secret> = None, like "\"…\"";
        /// The bucket for recipes. Kiln creates both buckets if they do not exist.
        recipes_bucket: String = "ims".to_owned();
        /// The bucket for images.
        images_bucket: String = "boot-images".to_owned();
        /// Links of recipes and images, and manifests, that name objects in other buckets than these two: `refuse`, or
        /// `read`. Objects in other buckets are never written or deleted.
        foreign_buckets: ForeignBuckets = ForeignBuckets::Refuse, like "\"read\"";
        /// A PEM file of certificate authorities to trust, in addition to the system's. Sandboxes trust the host's
        /// bundle.
        ca_bundle: Option<PathBuf> = None, like "\"/etc/ssl/certs/site.pem\"";
    }
}

/// What becomes of links into buckets that are not Kiln's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForeignBuckets {
    /// They are refused.
    Refuse,
    /// Their objects are read.
    Read,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_default() {
        let settings: S3Settings = toml::from_str("").unwrap();
        assert_eq!(settings, S3Settings::default());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let error = toml::from_str::<S3Settings>("endpont = 'http://x'").unwrap_err();
        assert!(error.to_string().contains("endpont"), "{error}");
    }

    #[test]
    fn a_secret_is_not_printed() {
        let settings: S3Settings = toml::from_str("access_key = 'me'\nsecret_key = 'hunter2'").unwrap();
        assert_eq!(settings.secret_key.as_ref().unwrap().expose(), "hunter2");
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}

//! The settings for S3: its address and the keys for it. Pure: no I/O.

use std::path::PathBuf;

use crate::{records::Secret, settings};

settings! {
    /// The S3 service that recipes are read from and images are written to. Without this section the embedded one is
    /// used; with an empty one it is Amazon's in `us-east-1` with the usual AWS environment.
    ["s3"]
    pub struct S3Settings {
        /// The service's address. Default: Amazon's own for the region. Buckets are addressed by path.
        endpoint: Option<String> = None, like "\"https://s3.example.org\"";
        /// The address of the same service as sandboxes see it; presigned URLs bear it. Default: `endpoint`.
        public_endpoint: Option<String> = None, like "\"https://s3.example.org\"";
        /// The region that requests are signed for. Most services other than Amazon's accept any.
        region: String = "us-east-1".to_owned();
        /// The access key. Default: Amazon's usual chain of environment, profile and role.
        access_key: Option<String> = None, like "\"…\"";
        /// The secret that belongs to `access_key`.
        secret_key: Option<Secret> = None, like "\"…\"";
        /// The bucket of recipes. Made if it is not there, as is the other one.
        recipes_bucket: String = "ims".to_owned();
        /// The bucket of images.
        images_bucket: String = "boot-images".to_owned();
        /// Certificate authorities to trust besides the system's, a PEM file. Sandboxes trust the host's bundle.
        ca_bundle: Option<PathBuf> = None, like "\"/etc/ssl/certs/site.pem\"";
    }
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

//! Where S3 is and how to sign in to it.

use std::{fmt, path::PathBuf};

use serde::Deserialize;

/// Text that must not appear in a log.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The S3 service that recipes are read from and images are written to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Settings {
    /// The service's address, such as `https://s3.example.org`. None means Amazon's own for the region.
    pub endpoint: Option<String>,
    /// The address of the same service as sandboxes see it; presigned URLs bear it. None means `endpoint`.
    pub public_endpoint: Option<String>,
    /// The region that requests are signed for. Most services other than Amazon's accept any.
    pub region: String,
    /// The access key. None means Amazon's usual chain: environment, profile, instance role.
    pub access_key: Option<String>,
    /// The secret that belongs to `access_key`.
    pub secret_key: Option<Secret>,
    /// The bucket of recipes.
    pub recipes_bucket: String,
    /// The bucket of images.
    pub images_bucket: String,
    /// Certificate authorities to trust besides the system's, a PEM file.
    pub ca_bundle: Option<PathBuf>,
}

impl Default for S3Settings {
    fn default() -> Self {
        Self {
            endpoint: None,
            public_endpoint: None,
            region: "us-east-1".to_owned(),
            access_key: None,
            secret_key: None,
            recipes_bucket: "ims".to_owned(),
            images_bucket: "boot-images".to_owned(),
            ca_bundle: None,
        }
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

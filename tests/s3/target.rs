//! The S3 service under test.

use std::{future::Future, net::SocketAddr};

use aws_sdk_s3::{
    Client,
    config::{BehaviorVersion, Credentials, Region, RequestChecksumCalculation},
    error::{ProvideErrorMetadata, SdkError},
    primitives::ByteStream,
};
use kiln::artifacts::S3Settings;
use kiln_s3::EmbeddedS3;
use uuid::Uuid;

/// A service, and a bucket in it that no other test uses.
pub struct Target {
    pub client: Client,
    pub settings: S3Settings,
    pub bucket: String,
    pub http: reqwest::Client,
}

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A client such as others use, with the SDK's own defaults where `checksums` says so.
pub fn client(settings: &S3Settings, checksums: RequestChecksumCalculation) -> Client {
    let secret = settings.secret_key.as_ref().unwrap().expose();
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(settings.region.clone()))
        .endpoint_url(settings.endpoint.as_ref().unwrap())
        .credentials_provider(Credentials::new(
            settings.access_key.as_ref().unwrap(),
            secret,
            None,
            None,
            "test",
        ))
        .request_checksum_calculation(checksums)
        .force_path_style(true);
    Client::from_conf(config.build())
}

impl Target {
    async fn new(mut settings: S3Settings) -> Self {
        let bucket = format!("kiln-test-{}", Uuid::new_v4());
        settings.images_bucket.clone_from(&bucket);
        settings.recipes_bucket.clone_from(&bucket);
        let client = client(&settings, RequestChecksumCalculation::WhenRequired);
        client.create_bucket().bucket(&bucket).send().await.unwrap();
        // Another test of this process may have installed it already.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Self {
            client,
            settings,
            bucket,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    pub async fn put(&self, key: &str, body: impl Into<Vec<u8>>) -> String {
        let put = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .body(ByteStream::from(body.into()));
        put.send().await.unwrap().e_tag().unwrap().to_owned()
    }

    pub async fn get(&self, key: &str) -> Vec<u8> {
        let answer = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(key)
            .send()
            .await
            .unwrap();
        answer.body.collect().await.unwrap().to_vec()
    }

    pub async fn keys(&self) -> Vec<String> {
        let list = self.client.list_objects_v2().bucket(&self.bucket).send().await.unwrap();
        list.contents()
            .iter()
            .map(|object| object.key().unwrap().to_owned())
            .collect()
    }

    async fn clear(&self) {
        for key in self.keys().await {
            self.client
                .delete_object()
                .bucket(&self.bucket)
                .key(key)
                .send()
                .await
                .unwrap();
        }
        let uploads = self
            .client
            .list_multipart_uploads()
            .bucket(&self.bucket)
            .send()
            .await
            .unwrap();
        for upload in uploads.uploads() {
            let abort = self
                .client
                .abort_multipart_upload()
                .bucket(&self.bucket)
                .key(upload.key().unwrap());
            abort.upload_id(upload.upload_id().unwrap()).send().await.unwrap();
        }
        self.client.delete_bucket().bucket(&self.bucket).send().await.unwrap();
    }
}

pub async fn on_embedded<F: Future<Output = Target>>(_name: &str, case: impl FnOnce(Target) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let server = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    let target = case(Target::new(S3Settings::from(&server)).await).await;
    target.clear().await;
    server.shutdown().await;
    let left: Vec<_> = fs_err::read_dir(dir.path().join("bodies")).unwrap().collect();
    assert!(left.is_empty(), "bodies were left: {left:?}");
    let left: Vec<_> = fs_err::read_dir(dir.path().join("incoming")).unwrap().collect();
    assert!(left.is_empty(), "half-received bodies were left: {left:?}");
}

pub async fn on_real<F: Future<Output = Target>>(name: &str, case: impl FnOnce(Target) -> F) {
    let variable = |name: &str| std::env::var(format!("KILN_TEST_S3_{name}")).ok();
    let (Some(endpoint), Some(access), Some(secret)) =
        (variable("ENDPOINT"), variable("ACCESS_KEY"), variable("SECRET_KEY"))
    else {
        println!("skipped: {name} on a real S3, because KILN_TEST_S3_ENDPOINT and its keys are not set");
        return;
    };
    let settings = S3Settings {
        endpoint: Some(endpoint),
        access_key: Some(access),
        secret_key: Some(secret.into()),
        ..S3Settings::default()
    };
    let target = case(Target::new(settings).await).await;
    target.clear().await;
}

/// The code of an S3 error; for answers without a body its status.
pub fn code<T: std::fmt::Debug, E: ProvideErrorMetadata + std::fmt::Debug>(result: Result<T, SdkError<E>>) -> String {
    let error = result.unwrap_err();
    match error.code() {
        Some(code) => code.to_owned(),
        None => error
            .raw_response()
            .unwrap_or_else(|| panic!("{error:?}"))
            .status()
            .as_u16()
            .to_string(),
    }
}

/// Bytes that do not repeat soon.
pub fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).to_le_bytes()[0])
        .collect()
}

pub fn md5(bytes: &[u8]) -> String {
    use md5::Digest;
    hex::encode(md5::Md5::digest(bytes))
}

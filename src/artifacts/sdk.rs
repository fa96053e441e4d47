//! Creates S3 clients and translates their errors. Reads the authorities' file; the clients it makes talk to S3.

use std::{error::Error, fmt::Display, io, time::Duration};

use aws_config::{BehaviorVersion, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_s3::{
    Client,
    config::{
        Builder, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation, SharedHttpClient,
        StalledStreamProtectionConfig,
        retry::{RetryPartition, TokenBucket},
    },
    error::{ProvideErrorMetadata, SdkError},
};
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use kiln_records::{Code, Failure, failure::chain};

use super::{S3Settings, measuring::Measuring};

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of one attempt until its answer begins. Some services need minutes to complete a large upload.
const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(5);

/// Timeout of a request, all attempts included.
const OPERATION_TIMEOUT: Duration = Duration::from_mins(15);

/// Attempts at one request.
const ATTEMPTS: u32 = 4;

/// How many units of retries come back in each second; one costs 5. Without that, a service that fails half of the requests
/// uses the SDK's 500 units up for good within some minutes, and then each request has one attempt, as long as this process
/// lives. The loops pause between their passes besides, which is what an overloaded service needs.
const RETRY_UNITS_PER_SECOND: f32 = 20.0;

/// How long a stream may stall. The SDK's own 5 s are too short for a busy disk behind S3.
const STALL_GRACE: Duration = Duration::from_mins(1);

/// A client for Kiln's own requests, and one that makes presigned URLs for others.
pub(super) async fn clients(settings: &S3Settings) -> Result<(Client, Client), Failure> {
    let mut config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(settings.region.clone()))
        .force_path_style(true)
        // Services other than Amazon's support only some of the newer checksums.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
        .retry_partition(
            RetryPartition::custom("kiln")
                .token_bucket(TokenBucket::builder().refill_rate(RETRY_UNITS_PER_SECOND).build())
                .build(),
        )
        .stalled_stream_protection(
            StalledStreamProtectionConfig::enabled()
                .grace_period(STALL_GRACE)
                .build(),
        )
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .operation_attempt_timeout(ATTEMPT_TIMEOUT)
                .operation_timeout(OPERATION_TIMEOUT)
                .build(),
        );
    config = match (&settings.access_key, &settings.secret_key) {
        (Some(key), Some(secret)) => {
            config.credentials_provider(Credentials::new(key, secret.expose(), None, None, "kiln settings"))
        }
        (None, None) => {
            let chain = aws_config::defaults(BehaviorVersion::latest()).load().await;
            config.set_credentials_provider(chain.credentials_provider());
            config
        }
        _ => {
            return Err(
                Failure::new(Code::S3Settings, "only one of S3's access key and secret key is set")
                    .hint("set both, or neither to use the usual AWS environment"),
            );
        }
    };
    if let Some(path) = &settings.ca_bundle {
        let trust = |error: &dyn Display| {
            Failure::new(
                Code::S3Settings,
                format_args!("cannot trust the authorities in {}: {error}", path.display()),
            )
        };
        let authorities = fs_err::read(path).map_err(|error| trust(&error))?;
        config = config.http_client(trusting(authorities).map_err(|error| trust(&error))?);
    }
    let at = |config: &Builder, endpoint: Option<&String>| {
        let mut config = config.clone();
        config.set_endpoint_url(endpoint.cloned());
        Client::from_conf(config.build())
    };
    let public = settings.public_endpoint.as_ref().or(settings.endpoint.as_ref());
    let presigner = at(&config, public);
    Ok((
        at(&config.interceptor(Measuring), settings.endpoint.as_ref()),
        presigner,
    ))
}

fn trusting(authorities: Vec<u8>) -> Result<SharedHttpClient, Box<dyn Error + Send + Sync>> {
    let trust = TrustStore::default().with_pem_certificate(authorities);
    let context = TlsContext::builder().with_trust_store(trust).build()?;
    let tls = Provider::Rustls(CryptoMode::AwsLc);
    Ok(aws_smithy_http_client::Builder::new()
        .tls_provider(tls)
        .tls_context(context)
        .build_https())
}

/// The failure for a request that failed. `what` names the attempt, such as "cannot read s3://bucket/key".
pub(super) fn failure<E>(what: impl Display, error: &SdkError<E>) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    match error {
        // An answer of success is an error only to who cannot read it.
        SdkError::ServiceError(answer) if answer.raw().status().is_success() => {
            let why = chain(answer.err());
            let detail = format_args!("{what}: the answer of the S3 service cannot be understood: {why}");
            Failure::new(Code::S3Error, detail)
                .hint("check that the endpoint is that of an S3 service, and try another version of that service")
        }
        SdkError::ServiceError(refusal) => {
            let status = refusal.raw().status().as_u16();
            refused(&what, status, refusal.err().code(), refusal.err().message())
        }
        SdkError::ConstructionFailure(_) => Failure::new(Code::S3Settings, format_args!("{what}: {}", chain(error))),
        SdkError::TimeoutError(_) => Failure::new(Code::S3Timeout, format_args!("{what}: S3 did not answer in time"))
            .hint("check whether the S3 service is overloaded, then try again"),
        _ => {
            let chain = chain(error);
            let hint = if chain.contains("certificate") {
                "if a private authority signed the service's certificate, add it to `ca_bundle`"
            } else {
                "check the S3 endpoint, and that the service runs"
            };
            Failure::new(Code::S3Unreachable, format_args!("{what}: {chain}")).hint(hint)
        }
    }
}

/// Whether S3 answered that the object, bucket or upload does not exist.
pub(super) fn is_missing<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    error
        .raw_response()
        .is_some_and(|response| response.status().as_u16() == 404)
}

/// Whether S3 rejects the request itself: the bucket belongs to another account, or its name is invalid.
pub(super) fn is_refused<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let status = error.raw_response().map(|response| response.status().as_u16());
    matches!(status, Some(400 | 401 | 403)) || matches!(error, SdkError::ConstructionFailure(_))
}

fn refused(what: &dyn Display, status: u16, code: Option<&str>, message: Option<&str>) -> Failure {
    let detail = match (code, message) {
        (Some(code), Some(message)) => format!("{what}: {message} ({code})"),
        (Some(code), None) => format!("{what}: {code}"),
        // The answer to a HEAD request has no body with details.
        _ => format!("{what}: S3 answered with status {status}"),
    };
    match (code.unwrap_or_default(), status) {
        ("NoSuchBucket", _) => Failure::new(Code::S3NoBucket, detail).hint("create the bucket, or set another one"),
        ("NoSuchKey" | "NotFound" | "NoSuchUpload", _) | (_, 404) => Failure::new(Code::S3Missing, detail),
        ("StorageFull" | "QuotaExceeded" | "XMinioStorageFull", _) | (_, 507) => {
            Failure::new(Code::S3Full, detail).hint("free space in the S3 service, or raise the quota")
        }
        ("RequestTimeTooSkewed", _) => Failure::new(Code::S3Denied, detail)
            .hint("set this machine's clock: it differs too much from the service's"),
        (_, 401 | 403) => Failure::new(Code::S3Denied, detail)
            .hint("check the access key and the secret key, and their permissions on the buckets"),
        (_, 301 | 307) | ("AuthorizationHeaderMalformed" | "IllegalLocationConstraintException", _) => {
            Failure::new(Code::S3Region, detail).hint("set `region` to the one the bucket is in")
        }
        // Some of them come with a status that says otherwise.
        ("SlowDown" | "RequestTimeout" | "OperationAborted" | "InternalError" | "ServiceUnavailable", _)
        | (_, 408 | 429 | 500 | 502..=504) => {
            Failure::new(Code::S3Unavailable, detail).hint("check the health of the S3 service")
        }
        _ => Failure::new(Code::S3Error, detail),
    }
}

/// The failure for a stream that broke while it was read.
pub(super) fn broken_stream(what: impl Display, error: &(dyn Error + 'static)) -> Failure {
    Failure::new(Code::S3Unreachable, format_args!("{what}: {}", chain(error)))
}

/// The failure for a URL that could not be made, because S3 does not allow its validity.
pub(super) fn presign_failure<E: Error + 'static>(what: impl Display, error: &E) -> Failure {
    Failure::new(Code::S3Settings, format_args!("{what}: {}", chain(error)))
}

/// The failure for a local file.
pub(super) fn io_failure(what: impl Display) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::io(&what, &error)
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::{config::http::HttpResponse, operation::list_objects_v2::ListObjectsV2Error, primitives::SdkBody};

    use super::*;

    fn code(status: u16, code: Option<&str>) -> Code {
        refused(&"x", status, code, None).code
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_no_refusal() {
        let why = "invalid root, expected ListBucketResult got <ListObjectsResult>";
        let answer = |status: u16| {
            let error = ListObjectsV2Error::unhandled(why);
            let raw = HttpResponse::new(status.try_into().unwrap(), SdkBody::empty());
            failure("cannot list s3://boot-images", &SdkError::service_error(error, raw))
        };
        let failure = answer(200);
        assert_eq!(failure.code, Code::S3Error);
        assert!(
            failure
                .detail
                .starts_with("cannot list s3://boot-images: the answer of the S3 service")
        );
        assert!(failure.detail.contains(why), "{failure}");
        assert_eq!(answer(403).code, Code::S3Denied);
    }

    #[test]
    fn a_refusal_gets_a_stable_code() {
        assert_eq!(code(403, Some("SignatureDoesNotMatch")), Code::S3Denied);
        assert_eq!(code(403, None), Code::S3Denied);
        assert_eq!(code(404, Some("NoSuchBucket")), Code::S3NoBucket);
        assert_eq!(code(404, None), Code::S3Missing);
        assert_eq!(code(507, Some("StorageFull")), Code::S3Full);
        assert_eq!(code(301, Some("PermanentRedirect")), Code::S3Region);
        assert_eq!(code(500, Some("InternalError")), Code::S3Unavailable);
        assert_eq!(code(503, Some("SlowDown")), Code::S3Unavailable);
        assert_eq!(code(400, Some("RequestTimeout")), Code::S3Unavailable);
        assert_eq!(code(409, Some("OperationAborted")), Code::S3Unavailable);
        for status in [408, 429, 500, 502, 503, 504] {
            assert_eq!(code(status, None), Code::S3Unavailable, "{status}");
        }
        assert_eq!(code(400, Some("InvalidRequest")), Code::S3Error);
    }
}

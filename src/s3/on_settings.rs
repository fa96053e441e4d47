//! The S3 operations that read settings which buckets and objects of this server cannot have. Each answers "none", in
//! Amazon's words for it. Touches the database of names.

#[allow(clippy::wildcard_imports, reason = "the tables below name them all")]
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request};

use super::{
    fault::{Fault, Result},
    names::{require_bucket, require_object},
    service::Service,
};

/// The owner of all objects: there is only one key.
const OWNER: &str = "kiln";

/// Settings whose absence is an error with a code of its own.
macro_rules! absent {
    ($($name:ident($input:ty) -> $output:ty = $code:ident;)*) => {
        impl Service {
            $(pub(super) async fn $name(&self, request: S3Request<$input>) -> Result<$output> {
                require_bucket(&mut *self.database().read().await?, &request.input.bucket).await?;
                Err(none(S3ErrorCode::$code))
            })*
        }
    };
}

/// Settings with a value that says "none".
macro_rules! empty {
    ($($name:ident($input:ty) -> $output:ty = $value:expr;)*) => {
        impl Service {
            $(pub(super) async fn $name(&self, request: S3Request<$input>) -> Result<$output> {
                require_bucket(&mut *self.database().read().await?, &request.input.bucket).await?;
                Ok($value)
            })*
        }
    };
}

absent! {
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = NoSuchCORSConfiguration;
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput =
        ServerSideEncryptionConfigurationNotFoundError;
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput =
        NoSuchLifecycleConfiguration;
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput =
        OwnershipControlsNotFoundError;
    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = NoSuchBucketPolicy;
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = NoSuchBucketPolicy;
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput =
        ReplicationConfigurationNotFoundError;
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = NoSuchTagSet;
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput = NoSuchWebsiteConfiguration;
    get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput =
        ObjectLockConfigurationNotFoundError;
}

empty! {
    get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput)
        -> GetBucketAccelerateConfigurationOutput = GetBucketAccelerateConfigurationOutput::default();
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = GetBucketAclOutput {
        grants: Some(all_to_the_owner()),
        owner: Some(owner()),
    };
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput = GetBucketLoggingOutput::default();
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput)
        -> GetBucketNotificationConfigurationOutput = GetBucketNotificationConfigurationOutput::default();
    get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput =
        GetBucketRequestPaymentOutput {
            payer: Some(Payer::from_static(Payer::BUCKET_OWNER)),
        };
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput =
        GetBucketVersioningOutput::default();
}

impl Service {
    pub(super) async fn get_public_access_block(
        &self,
        request: S3Request<GetPublicAccessBlockInput>,
    ) -> Result<GetPublicAccessBlockOutput> {
        require_bucket(&mut *self.database().read().await?, &request.input.bucket).await?;
        let code = "NoSuchPublicAccessBlockConfiguration";
        Err(none(S3ErrorCode::Custom(code.into())))
    }

    pub(super) async fn get_object_acl(&self, request: S3Request<GetObjectAclInput>) -> Result<GetObjectAclOutput> {
        self.require(&request.input.bucket, &request.input.key).await?;
        Ok(GetObjectAclOutput {
            grants: Some(all_to_the_owner()),
            owner: Some(owner()),
            ..Default::default()
        })
    }

    pub(super) async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> Result<GetObjectTaggingOutput> {
        self.require(&request.input.bucket, &request.input.key).await?;
        Ok(GetObjectTaggingOutput {
            tag_set: Vec::new(),
            version_id: None,
        })
    }

    pub(super) async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> Result<GetObjectLegalHoldOutput> {
        self.require(&request.input.bucket, &request.input.key).await?;
        Err(none(S3ErrorCode::NoSuchObjectLockConfiguration))
    }

    pub(super) async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> Result<GetObjectRetentionOutput> {
        self.require(&request.input.bucket, &request.input.key).await?;
        Err(none(S3ErrorCode::NoSuchObjectLockConfiguration))
    }

    async fn require(&self, bucket: &str, key: &str) -> Result<()> {
        let mut db = self.database().read().await?;
        require_object(&mut db, bucket, key).await.map(drop)
    }
}

/// The error for a setting that is not there.
fn none(code: S3ErrorCode) -> Fault {
    let mut error = S3Error::from(code);
    // The library has another status for some of them.
    if let Ok(status) = 404.try_into() {
        error.set_status_code(status);
    }
    error.into()
}

pub(super) fn owner() -> Owner {
    Owner {
        display_name: Some(OWNER.to_owned()),
        id: Some(OWNER.to_owned()),
    }
}

fn all_to_the_owner() -> Vec<Grant> {
    vec![Grant {
        grantee: Some(Grantee {
            display_name: Some(OWNER.to_owned()),
            email_address: None,
            id: Some(OWNER.to_owned()),
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }]
}

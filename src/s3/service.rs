//! Maps each S3 operation to the function that implements it, and commits changes. Touches the database of names and
//! the files of bodies.

use std::sync::Arc;

use futures::future::BoxFuture;
#[allow(clippy::wildcard_imports, reason = "the table below names them all")]
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};
use sqlx::SqliteConnection;
use tokio_util::task::TaskTracker;

use super::{
    bodies::{Bodies, Received},
    database::{Database, Disk},
    fault::Result,
};

/// The store behind the protocol. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Database,
    bodies: Bodies,
    region: &'static str,
    tasks: TaskTracker,
}

impl Service {
    /// `tasks` tracks the writes that must run to completion.
    pub(super) fn new(database: Database, bodies: Bodies, region: &'static str, tasks: TaskTracker) -> Self {
        let inner = Inner {
            database,
            bodies,
            region,
            tasks,
        };
        Self { inner: Arc::new(inner) }
    }

    pub(super) fn database(&self) -> &Database {
        &self.inner.database
    }

    pub(super) fn bodies(&self) -> &Bodies {
        &self.inner.bodies
    }

    pub(super) fn region(&self) -> &'static str {
        self.inner.region
    }

    /// Keeps a received body, changes records in one transaction, and removes the bodies that `change` returns as no
    /// longer needed.
    ///
    /// This runs to completion even if the client hangs up: otherwise a body could be dropped while the database
    /// stores its record, or be kept without one. If nothing was changed, `received` is removed too.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        received: Option<Received>,
        change: impl for<'db> FnOnce(&'db mut SqliteConnection) -> BoxFuture<'db, Result<(T, Vec<String>)>> + Send + 'static,
    ) -> Result<T> {
        self.finish(received, Disk::Free, change).await
    }

    /// As [`Self::change`], for a change that only removes: blocks of the disk are kept for it.
    pub(super) async fn remove(
        &self,
        change: impl for<'db> FnOnce(&'db mut SqliteConnection) -> BoxFuture<'db, Result<((), Vec<String>)>>
        + Send
        + 'static,
    ) -> Result<()> {
        self.finish(None, Disk::Reserve, change).await
    }

    async fn finish<T: Send + 'static>(
        &self,
        received: Option<Received>,
        disk: Disk,
        change: impl for<'db> FnOnce(&'db mut SqliteConnection) -> BoxFuture<'db, Result<(T, Vec<String>)>> + Send + 'static,
    ) -> Result<T> {
        let this = self.clone();
        let commit = async move {
            let name = received.as_ref().map(|received| received.body.name.clone());
            if let Some(received) = received {
                this.bodies().keep(received).await?;
            }
            let done = this.commit(disk, change).await;
            let (answer, unneeded) = match done {
                Ok((answer, unneeded)) => (Ok(answer), unneeded),
                Err(fault) => {
                    let unneeded = name.filter(|_| fault.left_no_trace());
                    (Err(fault), unneeded.into_iter().collect())
                }
            };
            this.bodies().remove(unneeded).await;
            answer
        };
        self.inner.tasks.spawn(commit).await?
    }

    async fn commit<T>(
        &self,
        disk: Disk,
        change: impl for<'db> FnOnce(&'db mut SqliteConnection) -> BoxFuture<'db, Result<T>>,
    ) -> Result<T> {
        let mut db = self.database().write_to(disk).await?;
        let answer = change(&mut db).await?;
        db.commit().await?;
        Ok(answer)
    }
}

macro_rules! operations {
    ($($name:ident($input:ty) -> $output:ty),* $(,)?) => {
        #[async_trait::async_trait]
        impl S3 for Service {
            $(async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                Ok(S3Response::new(Service::$name(self, request).await?))
            })*
        }
    };
}

operations!(
    create_bucket(CreateBucketInput) -> CreateBucketOutput,
    head_bucket(HeadBucketInput) -> HeadBucketOutput,
    list_buckets(ListBucketsInput) -> ListBucketsOutput,
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput,
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput,
    get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput)
        -> GetBucketAccelerateConfigurationOutput,
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput,
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput,
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput,
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput,
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput,
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput)
        -> GetBucketNotificationConfigurationOutput,
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput,
    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput,
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput,
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput,
    get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput,
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput,
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput,
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput,
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput,
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput,
    get_object_legal_hold(GetObjectLegalHoldInput) -> GetObjectLegalHoldOutput,
    get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput,
    get_object_retention(GetObjectRetentionInput) -> GetObjectRetentionOutput,
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput,
    get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput,
    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput,
    put_object(PutObjectInput) -> PutObjectOutput,
    get_object(GetObjectInput) -> GetObjectOutput,
    head_object(HeadObjectInput) -> HeadObjectOutput,
    delete_object(DeleteObjectInput) -> DeleteObjectOutput,
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput,
    copy_object(CopyObjectInput) -> CopyObjectOutput,
    list_objects(ListObjectsInput) -> ListObjectsOutput,
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output,
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput,
    upload_part(UploadPartInput) -> UploadPartOutput,
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput,
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput,
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput,
    list_parts(ListPartsInput) -> ListPartsOutput,
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput,
);

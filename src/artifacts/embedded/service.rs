//! The S3 operations, each joined to the function that does it.

use std::sync::Arc;

#[allow(clippy::wildcard_imports, reason = "the table below names them all")]
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};
use tokio_util::task::TaskTracker;

use super::{bodies::Bodies, database::Database, fault};

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
    /// `tasks` gets the writes that have to run to their end.
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

    /// Runs a change to its end even if the client hangs up meanwhile. Otherwise a body could be dropped while the
    /// database takes up its record.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = fault::Result<T>> + Send + 'static,
    ) -> fault::Result<T> {
        self.inner.tasks.spawn(change).await?
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

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
    database::Database,
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
        let this = self.clone();
        let commit = async move {
            let name = received.as_ref().map(|received| received.body.name.clone());
            if let Some(received) = received {
                this.bodies().keep(received).await?;
            }
            let done = this.commit(change).await;
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
        change: impl for<'db> FnOnce(&'db mut SqliteConnection) -> BoxFuture<'db, Result<T>>,
    ) -> Result<T> {
        let mut db = self.database().write().await?;
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

//! Refuses what requests ask for an object or a bucket and this server cannot keep: rights, tags, locks, encryption and classes
//! of storage. A client that was told that all is well would rely on it. Pure: no I/O.

use s3s::{
    S3Error, S3ErrorCode,
    dto::{
        CopyObjectInput, CreateBucketInput, CreateMultipartUploadInput, ObjectOwnership, PutObjectInput, StorageClass,
        UploadPartCopyInput, UploadPartInput,
    },
};

/// The rights that every object and bucket has: they are the owner's alone. `aws-exec-read` and the like would add others.
const OWN_ACLS: [&str; 3] = ["private", "bucket-owner-read", "bucket-owner-full-control"];

/// A request that may ask for more than this server has.
pub(super) trait Refusable {
    /// Refuses a request that asks for it.
    fn refuse(&self) -> Result<(), S3Error>;
}

/// Refuses rights for others than the owner.
fn rights(acl: Option<&str>, grants: &[&Option<String>]) -> Result<(), S3Error> {
    let is_own = acl.is_none_or(|acl| OWN_ACLS.contains(&acl));
    if is_own && grants.iter().all(|grant| grant.is_none()) {
        return Ok(());
    }
    let message =
        "this server has no ACLs: all belongs to the owner of its key. A presigned URL lets others read an object";
    Err(S3Error::with_message(
        S3ErrorCode::AccessControlListNotSupported,
        message,
    ))
}

/// Refuses what is asked for under these names.
fn lacking(asked: &[(bool, &str)]) -> Result<(), S3Error> {
    match asked.iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, what)) => {
            let message = format!("this server has no {what}");
            Err(S3Error::with_message(S3ErrorCode::NotImplemented, message))
        }
    }
}

macro_rules! customer_keys {
    ($input:ident: $($field:ident),+) => {
        ($($input.$field.is_some())||+, "encryption with keys of the client")
    };
}

macro_rules! objects {
    ($($input:ident),+) => {
        $(impl Refusable for $input {
            fn refuse(&self) -> Result<(), S3Error> {
                let grants = [&self.grant_full_control, &self.grant_read, &self.grant_read_acp, &self.grant_write_acp];
                rights(self.acl.as_ref().map(|acl| acl.as_str()), &grants)?;
                let other_class = |class: &StorageClass| class.as_str() != StorageClass::STANDARD;
                lacking(&[
                    (self.tagging.as_deref().is_some_and(|tags| !tags.is_empty()), "tags"),
                    (self.storage_class.as_ref().is_some_and(other_class), "storage class but STANDARD"),
                    (
                        self.server_side_encryption.is_some()
                            || self.ssekms_key_id.is_some()
                            || self.ssekms_encryption_context.is_some(),
                        "server-side encryption",
                    ),
                    customer_keys!(self: sse_customer_algorithm, sse_customer_key, sse_customer_key_md5),
                    (
                        self.object_lock_mode.is_some()
                            || self.object_lock_retain_until_date.is_some()
                            || self.object_lock_legal_hold_status.as_ref().is_some_and(|hold| hold.as_str() != "OFF"),
                        "object lock",
                    ),
                    (self.website_redirect_location.is_some(), "websites"),
                ])
            }
        })+
    };
}

objects!(PutObjectInput, CopyObjectInput, CreateMultipartUploadInput);

impl Refusable for UploadPartInput {
    fn refuse(&self) -> Result<(), S3Error> {
        lacking(&[customer_keys!(self: sse_customer_algorithm, sse_customer_key, sse_customer_key_md5)])
    }
}

impl Refusable for UploadPartCopyInput {
    fn refuse(&self) -> Result<(), S3Error> {
        lacking(&[customer_keys!(self: sse_customer_algorithm, sse_customer_key, sse_customer_key_md5)])
    }
}

impl Refusable for CreateBucketInput {
    fn refuse(&self) -> Result<(), S3Error> {
        let grants = [
            &self.grant_full_control,
            &self.grant_read,
            &self.grant_read_acp,
            &self.grant_write,
            &self.grant_write_acp,
        ];
        rights(self.acl.as_ref().map(s3s::dto::BucketCannedACL::as_str), &grants)?;
        let shared = |ownership: &ObjectOwnership| ownership.as_str() != ObjectOwnership::BUCKET_OWNER_ENFORCED;
        lacking(&[
            (self.object_lock_enabled_for_bucket == Some(true), "object lock"),
            (
                self.object_ownership.as_ref().is_some_and(shared),
                "object ownership but BucketOwnerEnforced",
            ),
        ])
    }
}

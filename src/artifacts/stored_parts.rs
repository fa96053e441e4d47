//! Lists the parts of an interrupted upload that S3 already has. Talks to S3 only.

use super::{sdk::failure, store::ArtifactStore};
use kiln_records::{Failure, Upload, protocol::StoredPart};

impl ArtifactStore {
    /// The stored parts of an open upload, in order.
    ///
    /// # Errors
    ///
    /// `s3_missing` when S3 no longer knows the upload.
    pub async fn stored_parts(&self, upload: &Upload) -> Result<Vec<StoredPart>, Failure> {
        let what = format!("cannot list the parts of s3://{}/{}", upload.bucket, upload.key);
        let mut parts = Vec::new();
        let mut after = None;
        loop {
            let list = self.client.list_parts().bucket(&upload.bucket).key(&upload.key);
            let list = list.upload_id(&upload.id).set_part_number_marker(after);
            let page = list.send().await.map_err(|error| failure(&what, &error))?;
            parts.extend(page.parts().iter().map(|part| StoredPart {
                number: part.part_number().unwrap_or_default().unsigned_abs(),
                etag: part.e_tag().unwrap_or_default().to_owned(),
                size: part.size().unwrap_or_default().unsigned_abs(),
            }));
            after = page.next_part_number_marker().map(str::to_owned);
            if !page.is_truncated().unwrap_or_default() || after.is_none() {
                return Ok(parts);
            }
        }
    }
}

//! Images, and the jobs that made them. Reads the database.

use kiln_records::{Image, ImageId, Job, JobStatus};

use super::Dashboard;
use crate::{
    api::problem::{Problem, Result},
    store::{Collection, JobFilter, Query, Side},
};

/// The jobs of one name among which the one that made an image is looked for.
const NAMESAKES: u32 = 100;

/// An image, even a deleted one.
pub(super) async fn found(web: &Dashboard, id: ImageId) -> Result<Image> {
    for side in [Side::Live, Side::Deleted] {
        if let Some(stored) = Collection::<Image>::get(&*web.api.store, side, id).await? {
            return Ok(stored.record);
        }
    }
    Err(Problem::not_found())
}

/// The job that made an image: it usually has the image's name.
pub(super) async fn origin(web: &Dashboard, image: &Image) -> Result<Option<Job>> {
    let query = Query {
        descending: true,
        limit: NAMESAKES,
        name: Some(image.name.clone()),
        jobs: JobFilter {
            statuses: vec![JobStatus::Success],
            ..JobFilter::default()
        },
        ..Query::default()
    };
    let jobs = web.api.store.page_jobs(&query).await?;
    let made = |job: &Job| job.resultant_image_id == Some(image.id);
    Ok(jobs.into_iter().map(|stored| stored.record).find(made))
}

//! The server's side of what is installed in a job's root. Reads and writes objects of the job.
//!
//! An agent tells the packages before any late file of the recipe is used, and the first word of an attempt counts: what a
//! recipe's scripts do with the sandbox later changes nothing of it.

use kiln_records::{Code, Failure, Installed, protocol::Answer};

use super::{agents::Refusal, orchestrator::Orchestrator};
use crate::{artifacts::KeptInstalled, store::StoredRun};

impl Orchestrator {
    pub(super) async fn keep_installed(&self, stored: &StoredRun, installed: Installed) -> Result<Answer, Refusal> {
        let refused = |why: &str| Refusal::Failed(Failure::new(Code::Protocol, why));
        let (job, attempt) = (stored.job.id, stored.run.attempt);
        if stored.run.plan.image.is_some() || !installed.is_sound() {
            return Err(refused(
                "what is said of the packages is too large, or not of a recipe's root",
            ));
        }
        match self.artifacts.installed(job, attempt).await? {
            // An agent that lost the answer tells it again.
            Some(before) if before == installed => {}
            Some(_) => return Err(refused("other packages of this attempt are known already")),
            None => {
                let kept = KeptInstalled { attempt, installed };
                self.artifacts.put_installed(job, &kept).await?;
            }
        }
        Ok(Answer::Done)
    }
}

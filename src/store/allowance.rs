//! On whose behalf records are added, and how many that caller may have. The task of a request carries it, so that
//! whatever the request has made counts, by whichever way it is made.

use std::future::Future;

tokio::task_local! {
    static CURRENT: Allowance;
}

/// What a caller may add. A number of 0 is no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// The caller.
    pub caller: String,
    /// The records of each kind that it may have made.
    pub of_caller: u32,
    /// The records of each kind in all beyond which it makes no more.
    pub of_all: u32,
}

impl Allowance {
    /// Does `work` on behalf of the caller.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// That of this task; none where Kiln acts by itself.
    pub(super) fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }
}

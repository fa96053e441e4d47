//! Divides the file descriptors of this process among those who use them at the wish of others, so that no caller and no
//! job takes those that Kiln's own work needs. Reads the limit of this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::api::connections::ApiPlaces;

/// The most descriptors that are divided: connections cost memory too.
const MOST: usize = 16_384;

/// The fewest that are divided. With a lower limit nothing works anyway.
const FEWEST: usize = 128;

/// What each may have. A quarter of all descriptors is nobody's share: it is for databases, for Kiln's own connections
/// to S3 and to engines, and for the sockets, locks and files of sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Connections to the API: a quarter of all descriptors.
    api: usize,
    /// Connections of agents to their jobs' own sockets: an eighth.
    agents: usize,
    /// Connections through the doors of jobs, with two descriptors each: an eighth.
    relays: usize,
    /// Connections to the embedded S3 service: an eighth for them and an eighth for the files that they read and write.
    s3: usize,
}

impl Descriptors {
    /// The shares of this process, by its limit of open files.
    pub fn of_this_process() -> Self {
        // Where the limit cannot be read it may be the usual one.
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        Self::of(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    fn of(limit: usize) -> Self {
        let limit = limit.clamp(FEWEST, MOST);
        Self {
            api: limit / 4,
            agents: limit / 8,
            relays: limit / 16,
            s3: limit / 8,
        }
    }

    /// The places for connections to the API.
    pub fn api(self) -> ApiPlaces {
        ApiPlaces::new(self.api)
    }

    /// The most connections of agents to their jobs' own sockets: in all, and of one job.
    pub fn agents(self) -> (usize, usize) {
        (self.agents, (self.agents / 4).clamp(4, 32))
    }

    /// The most connections through the doors of all jobs.
    pub fn relays(self) -> usize {
        self.relays
    }

    /// The most connections to the embedded S3 service.
    pub fn s3(self) -> usize {
        self.s3.min(512)
    }
}

/// Raises the limit of open files as far as allowed: the usual limit of 1024 is low for a server.
pub fn allow_many() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_all_descriptors_is_kept_for_kiln_itself() {
        for limit in [0, 128, 256, 1000, 1024, 4096, 1 << 20, usize::MAX] {
            let shares = Descriptors::of(limit);
            let used = shares.api + shares.agents().0 + 2 * shares.relays() + 2 * shares.s3();
            assert!(used <= limit.clamp(FEWEST, MOST) / 4 * 3, "{limit}: {shares:?}");
            assert!(shares.agents().1 <= shares.agents().0 && shares.relays() > 0);
        }
    }
}

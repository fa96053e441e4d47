//! The budgets of what callers can store, and have answered: how much of each, whose it is, and what happens beyond it.
//! Every budget stands here, so that none is looked for in vain; docs/security.md has the table. Pure: no I/O.

#[cfg(test)]
mod document;

/// One budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// What it bounds.
    pub what: &'static str,
    /// How much there is of it.
    pub most: Most,
    /// Who has as much.
    pub of: Of,
    /// What happens beyond it.
    pub beyond: &'static str,
}

/// The size of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Most {
    /// A number of things.
    Count(u64),
    /// Bytes.
    Bytes(u64),
    /// What this key of the configuration says.
    Setting(&'static str),
}

/// Who has a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Each caller: the holder of a token, a person whom the issuer knows, or an address whose callers need no token.
    Caller,
    /// Each address from which callers without a token come.
    Address,
    /// Each record.
    Record,
    /// Each request.
    Request,
    /// Each receiver of webhooks.
    Receiver,
    /// Each job.
    Job,
    /// Each channel of a name.
    Channel,
    /// All together.
    All,
}

/// A record as JSON, in bytes; and the body of a request that makes or changes one.
pub const RECORD_BYTES: usize = 64 << 10;

/// A piece of a list, in bytes: no more of it is in memory.
pub const LIST_BYTES: usize = 1 << 20;

/// Records in the answer of a list of Kiln's own that was not asked for fewer.
pub const LISTED: u32 = 1_000;

/// Of these, those in an answer to a caller without a token.
pub const LISTED_OPENLY: u32 = 100;

/// Sets that one answer of the catalogue looks through.
pub const LOOKED_THROUGH: u32 = 2_000;

/// Answers that grow as long as their jobs run.
pub const STREAMS: usize = 1_024;
/// Of these, those of one caller.
pub const STREAMS_OF_CALLER: usize = 64;

/// Questions of callers without a token that are answered at a time.
pub const OPEN_QUESTIONS: usize = 64;
/// Of these, those of one address.
pub const OPEN_QUESTIONS_OF_ADDRESS: usize = 1;

/// Changes of a channel that are kept.
pub const PROMOTIONS: u32 = 1_000;

/// Sessions of the dashboard.
pub const SESSIONS: usize = 4_096;
/// Of these, those of one caller.
pub const SESSIONS_OF_CALLER: usize = 64;

/// Entries of the audit log about requests that were not refused.
pub const AUDIT_ENTRIES: i64 = 1_000_000;
/// Of these, those of one caller.
pub const AUDIT_ENTRIES_OF_CALLER: i64 = 250_000;
/// Entries of the audit log about requests that were refused.
pub const REFUSED_ENTRIES: i64 = 100_000;
/// Of these, those of one caller.
pub const REFUSED_ENTRIES_OF_CALLER: i64 = 10_000;

/// Deliveries of webhooks that are kept for one receiver, waiting ones among them.
pub const DELIVERIES: i64 = 20_000;
/// Of the waiting ones, those that one caller has caused.
pub const DELIVERIES_OF_CALLER: i64 = 5_000;

/// All budgets.
pub const BUDGETS: &[Budget] = &[
    Budget {
        what: "record, as JSON",
        most: Most::Bytes(RECORD_BYTES as u64),
        of: Of::Record,
        beyond: "the request is refused (413)",
    },
    Budget {
        what: "body that becomes a record, or changes one",
        most: Most::Bytes(RECORD_BYTES as u64),
        of: Of::Request,
        beyond: "the request is refused (413)",
    },
    Budget {
        what: "body whose contents become objects in S3: the changes of a customize job, a manifest, a boot check",
        most: Most::Setting("limits.body_bytes"),
        of: Of::Request,
        beyond: "the request is refused (413)",
    },
    Budget {
        what: "file that is uploaded",
        most: Most::Setting("limits.upload_bytes"),
        of: Of::Request,
        beyond: "the request is refused (413)",
    },
    Budget {
        what: "requests in a second",
        most: Most::Setting("limits.requests_per_second"),
        of: Of::Caller,
        beyond: "the request is refused (429)",
    },
    Budget {
        what: "records of one kind, deleted ones among them",
        most: Most::Setting("limits.records_of_caller"),
        of: Of::Caller,
        beyond: "no more are made (409), nor by the caller's schedules and image sets",
    },
    Budget {
        what: "records of one kind, deleted ones among them",
        most: Most::Setting("limits.records"),
        of: Of::All,
        beyond: "no more are made (409), nor by schedules and image sets",
    },
    Budget {
        what: "changes of a channel that are kept",
        most: Most::Count(PROMOTIONS as u64),
        of: Of::Channel,
        beyond: "the oldest go",
    },
    Budget {
        what: "piece of a list",
        most: Most::Bytes(LIST_BYTES as u64),
        of: Of::Request,
        beyond: "IMS's lists go on in the same answer; other answers end, and say where the list goes on (`Link`)",
    },
    Budget {
        what: "records in an answer of Kiln's own lists without `limit`",
        most: Most::Count(LISTED as u64),
        of: Of::Request,
        beyond: "the answer says where the list goes on (`Link`)",
    },
    Budget {
        what: "records in an answer to a caller without a token",
        most: Most::Count(LISTED_OPENLY as u64),
        of: Of::Request,
        beyond: "the answer says where the list goes on (`Link`)",
    },
    Budget {
        what: "sets that an answer of the catalogue looks through",
        most: Most::Count(LOOKED_THROUGH as u64),
        of: Of::Request,
        beyond: "the answer, which may be empty, says where the list goes on (`Link`)",
    },
    Budget {
        what: "streams of logs that are open",
        most: Most::Count(STREAMS_OF_CALLER as u64),
        of: Of::Caller,
        beyond: "the request is refused (429)",
    },
    Budget {
        what: "streams of logs that are open",
        most: Most::Count(STREAMS as u64),
        of: Of::All,
        beyond: "the request is refused (503)",
    },
    Budget {
        what: "questions without a token that are answered at a time",
        most: Most::Count(OPEN_QUESTIONS_OF_ADDRESS as u64),
        of: Of::Address,
        beyond: "the next one waits",
    },
    Budget {
        what: "questions without a token that are answered at a time",
        most: Most::Count(OPEN_QUESTIONS as u64),
        of: Of::All,
        beyond: "the next one waits",
    },
    Budget {
        what: "sessions of the dashboard",
        most: Most::Count(SESSIONS_OF_CALLER as u64),
        of: Of::Caller,
        beyond: "the caller's oldest ends",
    },
    Budget {
        what: "sessions of the dashboard",
        most: Most::Count(SESSIONS as u64),
        of: Of::All,
        beyond: "the oldest of the caller with the most ends",
    },
    Budget {
        what: "audit entries of requests that were not refused",
        most: Most::Count(AUDIT_ENTRIES_OF_CALLER as u64),
        of: Of::Caller,
        beyond: "the caller's oldest go",
    },
    Budget {
        what: "audit entries of requests that were not refused",
        most: Most::Count(AUDIT_ENTRIES as u64),
        of: Of::All,
        beyond: "the oldest go",
    },
    Budget {
        what: "audit entries of refused requests",
        most: Most::Count(REFUSED_ENTRIES_OF_CALLER as u64),
        of: Of::Caller,
        beyond: "the caller's oldest go",
    },
    Budget {
        what: "audit entries of refused requests",
        most: Most::Count(REFUSED_ENTRIES as u64),
        of: Of::All,
        beyond: "the oldest go",
    },
    Budget {
        what: "webhooks that wait, caused by one caller",
        most: Most::Count(DELIVERIES_OF_CALLER as u64),
        of: Of::Receiver,
        beyond: "the caller's oldest go",
    },
    Budget {
        what: "webhooks that wait, were delivered or were given up",
        most: Most::Count(DELIVERIES as u64),
        of: Of::Receiver,
        beyond: "the oldest go: first those that do not wait, then those of the caller with the most",
    },
    Budget {
        what: "log of a job",
        most: Most::Setting("watch.log_bytes"),
        of: Of::Job,
        beyond: "further lines are counted, and not kept",
    },
];

//! The most that an agent may put into S3 and into one message. Pure: no I/O.
//!
//! In a virtual machine the recipe can read the agent's token, so every request of an agent may be the recipe's own: it
//! must not cost more than the disk space that the job may fill anyway.

use bytesize::ByteSize;
use kiln_records::{
    Account, ArtifactKind, Code, Execs, Failure,
    protocol::{Event, NewUpload, SandboxFacts, ShellNews, What},
    run::RunUpload,
};

/// The most uploads of one attempt. An image has six objects, and an agent begins one again when its size differs.
const MOST_UPLOADS: usize = 16;

/// The most parts whose addresses one call may ask for.
const MOST_PARTS: usize = 100;

/// The most events of one message: five times what an agent sends.
const MOST_EVENTS: usize = 1000;

/// The longest fact about a sandbox, in bytes: a path, or a public key.
const LONGEST_FACT: usize = 16 * 1024;

/// Checks the events of one message. Lines of a log are not looked at: they are cut, and the log has an end.
///
/// # Errors
///
/// `protocol` when there are too many, or one would make the job's record large.
pub(super) fn check_events(events: &[Event]) -> Result<(), Failure> {
    if events.len() > MOST_EVENTS {
        let detail = format!("{} events in one message are more than {MOST_EVENTS}", events.len());
        return Err(Failure::new(Code::Protocol, detail));
    }
    let long = |text: &str| text.len() > LONGEST_FACT;
    let too_long = events.iter().any(|event| match &event.what {
        What::Sandbox(SandboxFacts {
            kernel,
            boot_id,
            hypervisor,
            emulator,
        }) => {
            long(kernel)
                || long(boot_id)
                || hypervisor.as_deref().is_some_and(long)
                || emulator.as_deref().is_some_and(long)
        }
        What::Execs(Execs { most_expensive, .. }) => most_expensive.iter().any(|one| long(&one.program)),
        What::Shell(ShellNews::Opened { host_key, .. }) => long(host_key),
        What::StepStarted(_)
        | What::StepFinished { .. }
        | What::Log { .. }
        | What::Progress { .. }
        // It is cut, and the record has a bound for all.
        | What::Warning(_)
        | What::Shell(ShellNews::Extended { .. } | ShellNews::Closed) => false,
    });
    if too_long {
        let detail = format!("a fact about the sandbox has more than {LONGEST_FACT} bytes");
        return Err(Failure::new(Code::Protocol, detail));
    }
    Ok(())
}

/// Checks an upload that an agent wants to begin after these, with the job's limit on disk space in bytes.
///
/// # Errors
///
/// `upload_invalid` for an object that is not an agent's, and for one upload too many; `disk_full` when all uploads of
/// the attempt would be larger than the job's disk space.
pub(super) fn check_upload(begun: &[RunUpload], new: NewUpload, limit: u64) -> Result<(), Failure> {
    if new.kind == ArtifactKind::Log {
        return Err(Failure::new(Code::UploadInvalid, "the log is not the agent's to write"));
    }
    if begun.len() >= MOST_UPLOADS {
        let detail = format!("the job has begun {MOST_UPLOADS} uploads, and may not begin more");
        return Err(Failure::new(Code::UploadInvalid, detail));
    }
    let before = begun.iter().map(|known| known.upload.size);
    let all = before.fold(new.size, u64::saturating_add);
    if all > limit {
        let detail = format!(
            "the uploads of the job have {}, more than the {} of disk that it may use",
            ByteSize(all),
            ByteSize(limit)
        );
        return Err(Failure::new(Code::DiskFull, detail)
            .hint("allow it more: `build_env_size` of the job, in GiB, or `--disk` of `kiln build`"));
    }
    Ok(())
}

/// Checks a request for addresses of parts.
///
/// # Errors
///
/// `upload_invalid` when it is for too many.
pub(super) fn check_parts(numbers: &[u32]) -> Result<(), Failure> {
    if numbers.len() <= MOST_PARTS {
        return Ok(());
    }
    let detail = format!("{} parts are more than {MOST_PARTS}", numbers.len());
    Err(Failure::new(Code::UploadInvalid, detail))
}

/// Checks an account of programs.
///
/// # Errors
///
/// `protocol` when it is too large, or not whole.
pub(super) fn check_account(account: &Account) -> Result<(), Failure> {
    if account.is_sound() {
        return Ok(());
    }
    Err(Failure::new(
        Code::Protocol,
        "the account of programs is too large, or not whole",
    ))
}

/// Checks the packages that a job has added so far for later jobs, in bytes, against its limit on disk space.
///
/// # Errors
///
/// `disk_full` when they are larger than the job's disk space.
pub(super) fn check_packages(bytes: u64, limit: u64) -> Result<(), Failure> {
    if bytes <= limit {
        return Ok(());
    }
    let detail = format!(
        "the packages that the job adds for later ones have {}, more than the {} of disk that it may use",
        ByteSize(bytes),
        ByteSize(limit)
    );
    Err(Failure::new(Code::DiskFull, detail))
}

#[cfg(test)]
mod tests {
    use kiln_records::Upload;

    use super::*;

    fn of(kind: ArtifactKind, size: u64) -> NewUpload {
        NewUpload { kind, size }
    }

    #[test]
    fn no_event_makes_a_record_large() {
        let event = |what| Event {
            time: jiff::Timestamp::UNIX_EPOCH,
            what,
        };
        let facts = |kernel: usize| {
            What::Sandbox(SandboxFacts {
                kernel: "x".repeat(kernel),
                boot_id: String::new(),
                hypervisor: None,
                emulator: None,
            })
        };
        assert_eq!(check_events(&[event(facts(LONGEST_FACT))]), Ok(()));
        assert!(check_events(&[event(facts(LONGEST_FACT + 1))]).is_err());
        let many = |count| vec![event(What::Progress { done: 1, total: 2 }); count];
        assert_eq!(check_events(&many(MOST_EVENTS)), Ok(()));
        assert!(check_events(&many(MOST_EVENTS + 1)).is_err());
    }

    #[test]
    fn an_agent_cannot_store_more_than_its_jobs_disk_holds() {
        const LIMIT: u64 = 1000;
        let code = |checked: Result<(), Failure>| checked.unwrap_err().code;
        let check = |begun: &[RunUpload], kind, size| check_upload(begun, of(kind, size), LIMIT);
        assert_eq!(check(&[], ArtifactKind::Rootfs, LIMIT), Ok(()));
        assert_eq!(code(check(&[], ArtifactKind::Rootfs, 1 << 40)), Code::DiskFull);
        assert_eq!(code(check(&[], ArtifactKind::Log, 1)), Code::UploadInvalid);

        let begun = |size| RunUpload {
            upload: Upload {
                kind: ArtifactKind::Rootfs,
                bucket: String::new(),
                key: String::new(),
                id: String::new(),
                size,
                part_size: 1,
            },
            done: None,
        };
        let huge = [begun(u64::MAX), begun(1)];
        assert_eq!(code(check(&huge, ArtifactKind::Kernel, 1)), Code::DiskFull);
        let many: Vec<_> = (0..MOST_UPLOADS).map(|_| begun(0)).collect();
        assert_eq!(code(check(&many, ArtifactKind::Kernel, 1)), Code::UploadInvalid);
        assert_eq!(code(check_parts(&[1; MOST_PARTS + 1])), Code::UploadInvalid);
        assert_eq!(code(check_packages(LIMIT + 1, LIMIT)), Code::DiskFull);
    }
}

//! Reports from the machine to its host. Writes to the control port, and measures the job's disk.

use std::{
    fs::File,
    io::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kiln_records::{
    Failure,
    guest::{GuestReport, NEWS_EVERY, News as Line},
};
use nix::sys::statvfs::statvfs;

use super::root::DISK;

/// The connection to the host. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct News(Arc<Mutex<Teller>>);

#[derive(Debug)]
struct Teller {
    port: File,
    /// Whether the disk is mounted and can be measured.
    has_disk: bool,
}

impl News {
    pub(super) fn new(port: File) -> Self {
        Self(Arc::new(Mutex::new(Teller { port, has_disk: false })))
    }

    /// Reports the usage of the job's disk regularly, until [`News::forget_disk`].
    pub(super) fn tell_of_disk(&self) {
        self.lock().has_disk = true;
        let news = self.clone();
        std::thread::spawn(move || {
            loop {
                // While it is held, the lock keeps the disk mounted.
                let mut teller = news.lock();
                if !teller.has_disk {
                    return;
                }
                if let Ok(stat) = statvfs(DISK) {
                    // A lost message is followed by another a second later, or the host has stopped listening.
                    let _ = teller.say(&Line::Disk {
                        bytes: (stat.blocks() - stat.blocks_free()) * stat.fragment_size(),
                        inodes: stat.files() - stat.files_free(),
                    });
                }
                drop(teller);
                std::thread::sleep(NEWS_EVERY);
            }
        });
    }

    /// From here on the disk may be unmounted.
    pub(super) fn forget_disk(&self) {
        self.lock().has_disk = false;
    }

    /// Reports the result of the errand.
    pub(super) fn ended(&self, report: GuestReport) -> Result<(), Failure> {
        let told = self.lock().say(&Line::Ended(report));
        told.map_err(|error| Failure::io("cannot report the end", &error))
    }

    fn lock(&self) -> MutexGuard<'_, Teller> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    fn say(&mut self, line: &Line) -> std::io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.port.write_all(text.as_bytes())
    }
}

//! Counts starts of programs, for the job's record. Maps one shared file.

use core::{
    ffi::CStr,
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

use rustix::{
    fs::{OFlags, fstat},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use crate::{kernel::File, layout, text};

const PATH: &CStr = text::terminated(&text::with_end::<{ layout::COUNTS.len() + 1 }>(layout::COUNTS));

/// The content of the file: execs of twins, and execs under the emulator.
#[repr(C)]
struct Counters {
    twins: AtomicU64,
    emulated: AtomicU64,
}

/// The job's counters, shared by all its processes; without the file nothing is counted.
pub struct Counts(Option<NonNull<Counters>>);

impl Counts {
    /// The counters of the root in which this process runs.
    pub fn open() -> Self {
        Self(map())
    }

    /// Counts a twin that is about to run: afterwards this code is gone.
    pub fn twin(&self) {
        self.add(|counters| &counters.twins, 1);
    }

    /// Takes back the count of a twin that did not run.
    pub fn no_twin(&self) {
        // Counters wrap around.
        self.add(|counters| &counters.twins, u64::MAX);
    }

    /// Counts a start under the emulator.
    pub fn emulated(&self) {
        self.add(|counters| &counters.emulated, 1);
    }

    fn add(&self, which: impl Fn(&Counters) -> &AtomicU64, number: u64) {
        if let Some(counters) = self.0 {
            // SAFETY: the memory is mapped as long as `self` lives, and large enough, as `map` checked.
            fetch_add(which(unsafe { counters.as_ref() }), number);
        }
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        if let Some(counters) = self.0 {
            // SAFETY: nothing refers to the memory any more.
            let _ = unsafe { munmap(counters.as_ptr().cast(), size_of::<Counters>()) };
        }
    }
}

fn map() -> Option<NonNull<Counters>> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::open(PATH, flags)?;
    // Memory past the end of a file cannot be accessed.
    let size = usize::try_from(fstat(file.descriptor()).ok()?.st_size).ok()?;
    if size < size_of::<Counters>() {
        return None;
    }
    // SAFETY: new memory at an address of the kernel's choice. The descriptor may be closed; the mapping stays.
    let memory = unsafe {
        mmap(
            ptr::null_mut(),
            size_of::<Counters>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file.descriptor(),
            0,
        )
    };
    NonNull::new(memory.ok()?.cast())
}

#[cfg(not(target_arch = "aarch64"))]
fn fetch_add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, core::sync::atomic::Ordering::Relaxed);
}

/// With instructions that all such processors have. The compiler would call a function that checks writable data for
/// newer ones.
#[cfg(target_arch = "aarch64")]
fn fetch_add(counter: &AtomicU64, number: u64) {
    // SAFETY: it changes this one word only, atomically.
    unsafe {
        core::arch::asm!(
            "2:",
            "ldxr {value}, [{counter}]",
            "add {value}, {value}, {number}",
            "stxr {failed:w}, {value}, [{counter}]",
            "cbnz {failed:w}, 2b",
            counter = in(reg) counter.as_ptr(),
            number = in(reg) number,
            value = out(reg) _,
            failed = out(reg) _,
            options(nostack),
        );
    }
}

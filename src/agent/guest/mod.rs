//! Process 1 of a virtual machine: the same program as the agent, called `init`. Loads modules, mounts disks, runs the
//! agent, and powers off.
//!
//! ```text
//!  kernel ──▶ init ── modules, disks, network ──▶ agent in the toolbox, root of this machine
//!              ▲ │ control port: the errand in, messages out
//!              │ └ words port: the agent's standard error
//!              └── reaps the agent's remaining processes; powers off
//! ```
//!
//! It stays in the initrd, so that it can unmount the job's root at the end: disk space must be unmounted cleanly for
//! another attempt to continue with it.

use std::io::{BufRead, BufReader};

use kiln_inside::routes;
use kiln_records::{
    Code, Failure,
    guest::{CONTROL_PORT, Errand, GuestReport, WORDS_PORT},
};
use nix::sys::{
    prctl,
    reboot::{RebootMode, reboot},
};

mod devices;
mod news;
mod root;
mod run;

/// The program's name as the first process of a machine.
pub const NAME: &str = "init";

/// The machine's network card, and its addresses in the network that each machine has for itself (QEMU's user-mode
/// network).
const CARD: (&str, [u8; 4], u8, [u8; 4]) = ("eth0", [10, 0, 2, 15], 24, [10, 0, 2, 2]);

/// Carries out the machine's errand and powers off.
pub fn main() -> ! {
    let _ = prctl::set_name(c"kiln-init");
    if let Err(failure) = errand() {
        // Only the console is left to report to.
        complain(&failure);
    }
    loop {
        // It returns only when it is refused, which does not happen to process 1.
        let _ = reboot(RebootMode::RB_POWER_OFF);
    }
}

fn complain(failure: &Failure) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "kiln-init: {failure} ({})", failure.code);
}

fn errand() -> Result<(), Failure> {
    devices::mount_system()?;
    devices::prefer_killing();
    devices::load_modules()?;
    let mut control = BufReader::new(devices::port(CONTROL_PORT)?);
    let mut line = String::new();
    control
        .read_line(&mut line)
        .map_err(|error| Failure::io("cannot read the machine's instructions", &error))?;
    let errand = serde_json::from_str(&line)
        .map_err(|error| Failure::new(Code::Protocol, format!("no instructions: {error}")))?;
    let news = news::News::new(control.into_inner());
    let report = match errand {
        Errand::Boot => GuestReport::default(),
        Errand::Agent(job) => {
            let (card, address, prefix, gateway) = CARD;
            let ran = root::furnish(&job)
                .and_then(|()| routes::configure(card, address.into(), prefix, gateway.into()))
                .and_then(|()| run::run_agent(&job, devices::port(WORDS_PORT)?, &news));
            // In every case, all writes must be on the disk before the end is reported.
            run::end_all();
            news.forget_disk();
            root::let_go();
            ran.unwrap_or_else(|failure| GuestReport {
                exit_code: 1,
                failure: Some(failure),
                ..GuestReport::default()
            })
        }
    };
    devices::silence_console();
    news.ended(report)
}

//! Process 1 of a virtual machine: the same program as the agent, called `init`.
//!
//! ```text
//!  kernel ──▶ init ── modules, disks, network ──▶ agent in the toolbox, root of this machine
//!              ▲ │ control port: the errand in, news out
//!              │ └ words port: what the agent says on standard error
//!              └── reaps what the agent leaves; powers off
//! ```
//!
//! It stays in the first root, the one the kernel unpacked, so that it can let go of the job's root at the end: disk
//! space that is to be gone on with must be unmounted in order.

use std::io::{BufRead, BufReader};

use nix::sys::reboot::{RebootMode, reboot};

use crate::{
    records::{
        Code, Failure,
        guest::{CONTROL_PORT, Errand, GuestReport, WORDS_PORT},
    },
    routes,
};

mod devices;
mod news;
mod root;
mod run;

/// The program's name as the first process of a machine.
pub const NAME: &str = "init";

/// The machine's card, and its addresses in the network that every machine has for itself (QEMU's user-mode network).
const CARD: (&str, [u8; 4], u8, [u8; 4]) = ("eth0", [10, 0, 2, 15], 24, [10, 0, 2, 2]);

/// Does the machine's errand and powers off.
pub fn main() -> ! {
    if let Err(failure) = errand() {
        // There is nobody to tell but who reads the console.
        complain(&failure);
    }
    loop {
        // It returns only when it was refused, which process 1 never is.
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
        .map_err(|error| Failure::io("cannot read the machine's errand", &error))?;
    let errand =
        serde_json::from_str(&line).map_err(|error| Failure::new(Code::Protocol, format!("no errand: {error}")))?;
    let news = news::News::new(control.into_inner());
    let report = match errand {
        Errand::Boot => GuestReport::default(),
        Errand::Agent(job) => {
            let (card, address, prefix, gateway) = CARD;
            let ran = root::furnish(&job)
                .and_then(|()| routes::configure(card, address.into(), prefix, gateway.into()))
                .and_then(|()| run::run_agent(&job, devices::port(WORDS_PORT)?, &news));
            // Whatever else happens: what was written must be on the disk before anybody hears of the end.
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

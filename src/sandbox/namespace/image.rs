//! Process 1 of a sandbox whose QEMU boots an image: opens the image's files, sets up the root and starts QEMU. The
//! console goes to this process's standard output.

use std::{
    os::fd::{AsFd, OwnedFd},
    process::{Command, Stdio},
};

use kiln_inside::room::kernel::Kernel;
use kiln_records::Failure;
use nix::fcntl::OFlag;

use super::{
    files::Files,
    machine::{OpenedMachine, Sources, furnish, hand_down, open, open_kvm},
    plan::Plan,
};
use crate::sandbox::microvm::image::{self, ImageMachine, ImageWires};

/// The files of an image, opened before this process loses the right to walk to them.
#[derive(Debug)]
pub(super) struct OpenedImage {
    machine: OpenedMachine,
    root: OwnedFd,
}

/// Opens the parts of a plan's machine.
pub(super) fn open_image(plan: &Plan, image: &ImageMachine) -> Result<OpenedImage, Failure> {
    Ok(OpenedImage {
        machine: OpenedMachine {
            kernel: open(&image.kernel, OFlag::O_PATH)?,
            initrd: open(&image.initrd, OFlag::O_PATH)?,
            kvm: open_kvm(&Files::of(&plan.dir), image.accelerator)?,
            disks: None,
            doors: None,
        },
        root: open(&image.root, OFlag::O_RDONLY)?,
    })
}

/// Enters QEMU's root and returns QEMU, ready to start.
pub(super) fn prepare(os: &mut dyn Kernel, image: &ImageMachine, opened: &OpenedImage) -> Result<Command, Failure> {
    furnish(os, &Sources::of(&opened.machine), "")?;
    let console = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Failure::io("cannot start the machine", &error))?;
    let wires = ImageWires {
        console: hand_down(&console)?,
        root: hand_down(&opened.root)?,
    };
    let mut command = Command::new(&image.qemu);
    command
        .args(image::arguments(image, wires))
        .env_clear()
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // The number must stay open until QEMU inherits it, which is as long as this process lives.
    std::mem::forget(console);
    Ok(command)
}

//! Fetches an image's root file system, checks and unpacks it. Downloads from S3, runs unsquashfs, and writes the
//! root.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use kiln_records::{Code, Digests, Failure, protocol::ObjectSource};
use tokio::process::Command;

use crate::{
    cause,
    events::Events,
    fetch,
    mksquashfs::{parse_devices, parse_progress},
    outputs::Outputs,
    process::{self, blocking},
    squashfs::{Device, Unpacked},
};

/// Fetches the image's root file system and unpacks it. Returns its device nodes, which cannot be unpacked.
///
/// # Errors
///
/// `image_unreachable` when S3 does not deliver it; `image_corrupt` when it differs from the manifest, or is not a
/// squashfs.
pub async fn fetch(
    source: &ObjectSource,
    http: &reqwest::Client,
    outputs: &Outputs,
    events: &Events,
) -> Result<Vec<Device>, Failure> {
    let base = outputs.base();
    let shown = AtomicU64::new(0);
    let digests = fetch::object(http, source, &base, Code::ImageUnreachable, &|done, total| {
        // Progress is reported once per percent.
        if done * 100 / total.max(1) > shown.load(Ordering::Relaxed) {
            shown.store(done * 100 / total.max(1), Ordering::Relaxed);
            events.progress_soon(done, total);
        }
    })
    .await?;
    check(source, &digests)?;
    events
        .say(format!("{} bytes, sha256 {}", digests.size, digests.sha256))
        .await;
    let devices = devices(&base).await?;
    unpack(&base, &outputs.root(), &devices, events).await?;
    let (root, note) = (outputs.root(), outputs.unpacked());
    blocking(move || Unpacked::record(&base, &root)?.save(&note)).await?;
    Ok(devices)
}

/// Checks that the file is the one in the image's manifest.
fn check(source: &ObjectSource, found: &Digests) -> Result<(), Failure> {
    let differs =
        |known: &Option<String>, found: &str| known.as_ref().is_some_and(|known| !known.eq_ignore_ascii_case(found));
    if found.size == source.size && !differs(&source.sha256, &found.sha256) && !differs(&source.md5, &found.md5) {
        return Ok(());
    }
    Err(Failure::new(
        Code::ImageCorrupt,
        format!(
            "the root file system in S3 differs from the one that the image's manifest describes: {} bytes, md5 {}",
            found.size, found.md5
        ),
    )
    .hint("it was overwritten or damaged after the image was made; build the image again"))
}

async fn devices(base: &Path) -> Result<Vec<Device>, Failure> {
    let mut command = Command::new("unsquashfs");
    command
        .args(["-d", "", "-llnumeric", "-full-precision", "-UTC"])
        .arg(base);
    let listed = command.kill_on_drop(true).output().await;
    let listed = listed.map_err(|error| Failure::io("cannot run unsquashfs", &error))?;
    if !listed.status.success() {
        let said = String::from_utf8_lossy(&listed.stderr);
        return Err(corrupt(said.trim().lines().last()));
    }
    Ok(parse_devices(&String::from_utf8_lossy(&listed.stdout)))
}

async fn unpack(base: &Path, root: &Path, devices: &[Device], events: &Events) -> Result<(), Failure> {
    let mut command = Command::new("unsquashfs");
    command.args(["-strict-errors", "-no-wildcards", "-d"]).arg(root);
    if !devices.is_empty() {
        let list = root.with_extension("devices");
        let paths: Vec<_> = devices.iter().map(|device| &*device.path).collect();
        fs_err::write(&list, paths.join("\n") + "\n")
            .map_err(|error| Failure::io("cannot unpack the image", &error))?;
        command.arg("-exclude-file").arg(list);
    }
    command.arg(base);
    let finished = process::run(command, None, events, |line| parse_progress(line).is_some()).await?;
    finished.check_own(|tool| cause::known_cause(&tool.tail).unwrap_or_else(|| corrupt(tool.last_words())))
}

/// Says that the file cannot be unpacked, with the last words of unsquashfs.
fn corrupt(last: Option<&str>) -> Failure {
    let last = last.unwrap_or("unsquashfs said nothing");
    Failure::new(
        Code::ImageCorrupt,
        format!("the image's root file system cannot be unpacked: {last}"),
    )
    .hint("the log has the whole output of unsquashfs")
}

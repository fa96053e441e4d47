//! `kiln check boot`: boots an image in a sandbox, and writes what its console says to a file.

use std::{path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::Args;
use kiln_records::{Code, Failure, arch::Arch, names};
use reqwest::Method;
use serde::Serialize;
use serde_json::json;

use super::{
    format::Format,
    image_source::ImageSource,
    printer::Printer,
    session::{ReadConfig, ServerOptions, Session},
    signals::cancel_on_signal,
    values::arch,
};
use crate::{
    boot::{
        self, Checked, parameters,
        verdict::{Until, Verdict},
    },
    sandbox::namespace::{Bootable, ROOT_DEVICE},
    site,
};

#[derive(Debug, Args)]
pub(super) struct BootArguments {
    /// The image: its id or name, or a directory with its files, such as `kiln build --output` makes.
    image: String,

    /// The image's architecture [default: as its record or directory says].
    #[arg(long, value_name = "ARCH", value_parser = arch())]
    arch: Option<Arch>,

    /// The sign that it is up: `multi-user` (systemd's target, or a prompt for a login), or a regular expression for a line
    /// of the console.
    #[arg(long, value_name = "REGEX", default_value = "multi-user")]
    until: String,

    /// How long the boot may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,

    /// The machine's memory.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize::gib(2))]
    memory: ByteSize,

    /// More kernel parameters. With a `root=` among them, those for a live root are left out.
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    append: String,

    /// The file for the console [default: in the data directory, below boots].
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The result of `kiln check boot`.
#[derive(Debug, Serialize)]
struct Report<'r> {
    image: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'r str>,
    arch: Arch,
    machine: &'r str,
    accelerated: bool,
    #[serde(flatten)]
    checked: &'r Checked,
    console: PathBuf,
}

/// The least memory of a machine.
const LEAST_MEMORY: u64 = 128 << 20;

impl BootArguments {
    pub(super) async fn run(
        self,
        options: &ServerOptions,
        config: ReadConfig<'_>,
        printer: &Printer,
    ) -> Result<(), Failure> {
        let interrupted = cancel_on_signal()?;
        tokio::select! {
            outcome = Box::pin(self.check(options, config, printer)) => outcome,
            () = interrupted.cancelled() => Err(Failure::new(Code::Interrupted, "the check was interrupted")),
        }
    }

    async fn check(self, options: &ServerOptions, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        let until = Until::parse(&self.until)?;
        if self.memory.as_u64() < LEAST_MEMORY {
            return Err(
                Failure::new(Code::Usage, format!("`--memory {}` is too little to boot", self.memory))
                    .hint("128 MiB is the least, 2 GiB the default"),
            );
        }
        let image = Box::pin(ImageSource::open(&self.image, self.arch, options, config, printer)).await?;
        let settings = config()?;
        let console = self.console.clone().unwrap_or_else(|| {
            let name = image.record.as_ref().map_or(&image.name, |(id, _)| id);
            settings
                .data_dir
                .join("boots")
                .join(format!("{}-{}.log", plain(name), image.arch))
        });
        let longest = Duration::from_secs(self.timeout);
        let boot = site::namespace_driver(&settings)?
            .ready_to_boot(Bootable {
                arch: image.arch,
                kernel: image.kernel.clone(),
                initrd: image.initrd.clone(),
                root: image.rootfs.clone(),
                parameters: parameters::for_check(&image.parameters, ROOT_DEVICE, &self.append).ok_or_else(|| {
                    let detail = "the kernel parameters are longer than 2048 bytes, or have control characters";
                    Failure::new(Code::Usage, detail).hint("shorten those of `--append` or of the image")
                })?,
                memory: self.memory.as_u64(),
                longest,
            })
            .await?;
        let (machine, accelerated) = (boot.how.clone(), boot.accelerated);
        printer.note(format_args!("booting {} ({}): {machine}", image.name, image.arch));
        let checked = boot::check(boot, until, &console).await?;
        let report = Report {
            image: &image.name,
            id: image.record.as_ref().map(|(id, _)| id.as_str()),
            arch: image.arch,
            machine: &machine,
            accelerated,
            checked: &checked,
            console: fs_err::canonicalize(&console).unwrap_or(console),
        };
        match options.data_format(self.json) {
            Some(format) => report.show_data(format, printer)?,
            None => report.show(printer),
        }
        if let Some((id, manifest)) = &image.record {
            let kept = keep(id, manifest, &report, options, config, printer).await;
            if let Err(failure) = kept {
                printer.warning(format_args!("the result is not kept beside the image: {failure}"), None);
            }
        }
        checked.failure(longest).map_or(Ok(()), Err)
    }
}

/// Keeps the result beside the image, where channels can require it.
async fn keep(
    id: &str,
    manifest: &str,
    report: &Report<'_>,
    options: &ServerOptions,
    config: ReadConfig<'_>,
    printer: &Printer,
) -> Result<(), Failure> {
    let result = report.checked.result(manifest, report.machine);
    let mut body = json!({
        "manifest_sha256": result.manifest_sha256,
        "up": result.up,
        "detail": result.detail,
        "seconds": result.seconds,
        "machine": result.machine,
    });
    let end = boot::end_of_console(&report.console);
    if !end.is_empty() {
        body["console"] = end.into();
    }
    let work = async |session: &Session| {
        let path = ["kiln", "v1", "images", id, "boot-check"];
        session
            .client
            .send(Method::PUT, &path, &[], Some(&body))
            .await
            .map(drop)
    };
    Box::pin(options.with(config, printer, false, work)).await
}

impl Report<'_> {
    fn show_data(&self, format: Format, printer: &Printer) -> Result<(), Failure> {
        let json = serde_json::to_value(self).and_then(serde_json::from_value);
        let data = json.map_err(|error| Failure::new(Code::Format, error))?;
        printer.result(format.record(&data)?);
        Ok(())
    }

    fn show(&self, printer: &Printer) {
        let row = |what: &str, text: &str| printer.result(format_args!("{what:<10} {}", names::shown(text)));
        row("image", &format!("{} ({})", self.image, self.arch));
        row("machine", self.machine);
        let seconds = self.checked.seconds;
        match &self.checked.verdict {
            Verdict::Up { seen } => row("up", &format!("in {seconds:.1} s: {seen}")),
            Verdict::Down { detail, .. } => {
                row("not up", &format!("after {seconds:.1} s: {detail}"));
                for line in &self.checked.last_lines {
                    printer.note(format_args!("  {line}"));
                }
            }
        }
        for unit in &self.checked.failed_units {
            row("failed", unit);
        }
        for module in &self.checked.missing_modules {
            row("no module", module);
        }
        row("console", &self.console.display().to_string());
    }
}

/// A name as part of a file's name.
fn plain(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    name.chars().take(100).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        assert_eq!(plain("../a b/ü"), ".._a_b__");
    }
}

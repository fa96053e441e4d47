//! `kiln build`: builds images of a recipe without a server, in sandboxes on this host.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc as Shared,
    time::Duration,
};

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{printer::Printer, progress::Progress, toolbox, values::twins};
use crate::{
    arch::Arch,
    artifacts::ArtifactStore,
    config::Config,
    host,
    orchestrate::{
        place,
        recipe::RecipeArchive,
        run::{Failed, Image, Request},
    },
    records::{
        Code, EmulatedProgram, Failure, JobType, TwinLevel,
        protocol::{BootFiles, Compressor, RecipeType, SquashfsOptions, TemplateMode},
    },
    sandbox::Limits,
    site::Workshop,
};

/// The most processes and threads of one build; a kiwi build has a few dozen.
const MOST_PROCESSES: u32 = 16_384;

#[derive(Debug, Args)]
pub(super) struct BuildArguments {
    /// The recipe: a directory, or a tar archive of one (plain, gzip, bzip2, xz, zstd).
    recipe: PathBuf,

    /// Architectures to build for [default: what the recipe declares, else this host's].
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    arch: Vec<String>,

    /// What the recipe is written for.
    #[arg(long = "type", value_name = "TYPE", default_value = "kiwi-ng")]
    recipe_type: String,

    /// A value for the recipe's templates. Kiln itself knows `debian_mirror`.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    values: Vec<(String, String)>,

    /// Let template names without a value become empty text, as IMS does.
    #[arg(long)]
    lenient_templates: bool,

    /// The image's name [default: the recipe's].
    #[arg(long)]
    name: Option<String>,

    /// Also write the artifacts to DIR/ARCH.
    #[arg(long, value_name = "DIR", conflicts_with = "keep")]
    output: Option<PathBuf>,

    /// Keep the sandbox's files, the root among them, and say where they are.
    #[arg(long)]
    keep: bool,

    /// Which tools of the image may run as native twins in an emulated build [default: full, or what the configuration says].
    #[arg(long, value_name = "LEVEL", value_parser = twins())]
    twins: Option<TwinLevel>,

    /// Compressor of the squashfs.
    #[arg(long, value_enum, default_value_t = CompressorName::Zstd)]
    compression: CompressorName,

    /// The compressor's level [default: zstd 3, gzip 9].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=22))]
    compression_level: Option<u32>,

    /// The kernel's file name in /boot. Given, an image without it is an error [default: Image on aarch64, else vmlinuz].
    #[arg(long, value_name = "NAME", value_parser = file_name)]
    kernel_file_name: Option<String>,

    /// The initrd's file name in /boot.
    #[arg(long, value_name = "NAME", value_parser = file_name, default_value = "initrd")]
    initrd_file_name: String,

    /// The kernel parameters' file name in /boot; the file may be absent.
    #[arg(long, value_name = "NAME", value_parser = file_name, default_value = "kernel-parameters")]
    kernel_parameters_file_name: String,

    /// How long to wait for the recipe's repositories, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 500)]
    repos_timeout: u64,

    /// Memory that each build may use, such as 8GiB [default: its share of nine tenths of this host's].
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,

    /// CPUs that each build may use [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompressorName {
    Zstd,
    Gzip,
    Xz,
    Lz4,
}

impl From<CompressorName> for Compressor {
    fn from(name: CompressorName) -> Self {
        match name {
            CompressorName::Zstd => Compressor::Zstd,
            CompressorName::Gzip => Compressor::Gzip,
            CompressorName::Xz => Compressor::Xz,
            CompressorName::Lz4 => Compressor::Lz4,
        }
    }
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it must have the form KEY=VALUE")?;
    let mut letters = key.chars();
    let named = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if named {
        Ok((key.to_owned(), value.to_owned()))
    } else {
        Err(format!("`{key}` is no name a template can use"))
    }
}

/// Parses the name of a file in `/boot`; a path is an error.
fn file_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    if !text.is_empty() && text.len() <= 255 && !text.starts_with('.') && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err("it must be a file name of letters, digits and `._+-`".to_owned())
}

impl BuildArguments {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let cancelled = cancel_on_signal()?;
        let recipe_type = recipe_type(&self.recipe_type)?;
        let recipe = RecipeArchive::read(&self.recipe)?;
        let archs = self.archs(&recipe)?;
        let workshop = Shared::new(Workshop::open(config).await?);
        if workshop.sweep().await? > 0 {
            printer.note("Cleaned up after a build that was killed");
        }
        let toolbox = tokio::select! {
            toolbox = toolbox::ensure(config, printer, Arch::host(), None) => toolbox?,
            () = cancelled.cancelled() => return Err(interrupted()),
        };
        let requests = self.requests(recipe, recipe_type, &archs, config)?;
        for request in &requests {
            printer.note(&request.placement.why);
        }
        let progress = Progress::new(printer, &archs);
        let mut running = JoinSet::new();
        for request in requests {
            let (workshop, toolbox) = (Shared::clone(&workshop), toolbox.clone());
            let (cancelled, lane) = (cancelled.clone(), progress.lane(request.arch, JobType::Create));
            running.spawn(async move {
                let arch = request.arch;
                let outcome = workshop
                    .run(&toolbox, request, &cancelled, |event| lane.show(event))
                    .await;
                lane.end(outcome.as_ref().err().map(|failed| &failed.failure));
                (arch, outcome)
            });
        }
        let mut images = Vec::new();
        let mut failures = Vec::new();
        while let Some(joined) = running.join_next().await {
            match joined.map_err(|error| Failure::new(Code::Panic, error))? {
                (_, Ok(image)) => images.push(image),
                (arch, Err(failed)) => failures.push((arch, failed)),
            }
        }
        drop(progress);
        images.sort_by_key(|image| image.arch);
        for image in &images {
            self.deliver(image, &workshop, printer).await?;
        }
        summarise_failures(failures, archs.len(), printer)
    }

    fn archs(&self, recipe: &RecipeArchive) -> Result<Vec<Arch>, Failure> {
        let wrong = |error: crate::arch::UnknownArch| {
            Failure::new(Code::UnknownArch, error).hint("`--arch` takes one, or several with commas between them")
        };
        let mut archs = Vec::new();
        for name in &self.arch {
            let arch = name.parse().map_err(wrong)?;
            if !archs.contains(&arch) {
                archs.push(arch);
            }
        }
        if archs.is_empty() {
            let host = Arch::host();
            // A recipe for several architectures is built for the host's, if it is among them.
            let declared = recipe
                .declared
                .iter()
                .find(|arch| **arch == host)
                .or(recipe.declared.first());
            archs.push(*declared.unwrap_or(&host));
        }
        Ok(archs)
    }

    fn requests(
        &self,
        recipe: RecipeArchive,
        recipe_type: RecipeType,
        archs: &[Arch],
        config: &Config,
    ) -> Result<Vec<Request>, Failure> {
        let bytes = bytes::Bytes::from(recipe.bytes);
        let default_values: BTreeMap<String, String> = host::apt_mirror()
            .into_iter()
            .map(|mirror| ("debian_mirror".to_owned(), mirror.archive))
            .collect();
        // Builds for several architectures run at the same time.
        let share = || Some(host::nine_tenths_of_memory()? / archs.len() as u64);
        let memory = self.memory.map(|size| size.as_u64()).or_else(share);
        let request = |arch: Arch| {
            Ok(Request {
                name: self.name.clone().unwrap_or_else(|| recipe.name.clone()),
                arch,
                placement: place::place_build(arch, Arch::host()),
                recipe: bytes.clone(),
                recipe_sha256: recipe.sha256.clone(),
                recipe_type,
                values: self.values.iter().cloned().collect(),
                default_values: default_values.clone(),
                template_mode: if self.lenient_templates {
                    TemplateMode::Lenient
                } else {
                    TemplateMode::Strict
                },
                twins: self.twins.unwrap_or(config.emulation.twins),
                squashfs: SquashfsOptions {
                    compressor: self.compression.into(),
                    level: self.compression_level,
                },
                boot: BootFiles {
                    kernel: self
                        .kernel_file_name
                        .clone()
                        .unwrap_or_else(|| arch.kernel_file_name().to_owned()),
                    initrd: self.initrd_file_name.clone(),
                    parameters: self.kernel_parameters_file_name.clone(),
                    required: self.kernel_file_name.is_some(),
                },
                repos_timeout: Duration::from_secs(self.repos_timeout),
                limits: Limits {
                    memory,
                    cpus: self.cpus,
                    pids: MOST_PROCESSES,
                    disk: None,
                },
                keep: self.keep,
            })
        };
        archs.iter().map(|arch| request(*arch)).collect()
    }

    /// Prints the result, and writes it to `--output`.
    async fn deliver(&self, image: &Image, workshop: &Workshop, printer: &Printer) -> Result<(), Failure> {
        printer.result(format_args!("image      {} ({})", image.id, image.arch));
        printer.result(format_args!("manifest   {}", image.manifest.path));
        for artifact in &image.artifacts {
            let (name, size) = (artifact.kind.key_name(), ByteSize(artifact.digests.size).to_string());
            printer.result(format_args!(
                "{name:<16} {size:>10}  sha256 {}",
                artifact.digests.sha256
            ));
        }
        if let Some(execs) = &image.execs {
            printer.result(format_args!("programs   {execs}"));
            if printer.is_verbose() {
                for EmulatedProgram { program, runs, cpu_ms } in &execs.most_expensive {
                    printer.note(format_args!("emulated   {program}: {runs} times, {cpu_ms} ms of CPU"));
                }
            }
        }
        printer.result(format_args!("log        {}", image.log.display()));
        if self.keep {
            let dir = workshop.driver.dir_of(image.job);
            printer.result(format_args!("kept       {}", dir.join("scratch").display()));
        }
        if let Some(output) = &self.output {
            let dir = output.join(image.arch.name());
            download(image, &workshop.store, &dir).await?;
            printer.result(format_args!("files      {}", dir.display()));
        }
        Ok(())
    }
}

fn recipe_type(name: &str) -> Result<RecipeType, Failure> {
    match name {
        "kiwi-ng" => Ok(RecipeType::KiwiNg),
        _ => Err(Failure::new(
            Code::UnknownRecipeType,
            format!("`{name}` is no recipe type Kiln builds"),
        )
        .hint("kiwi-ng is the one there is")),
    }
}

async fn download(image: &Image, store: &ArtifactStore, dir: &Path) -> Result<(), Failure> {
    fs_err::create_dir_all(dir).map_err(|error| Failure::io("cannot make the output directory", &error))?;
    for artifact in &image.artifacts {
        let to = dir.join(artifact.kind.key_name());
        store
            .download(&artifact.bucket, &artifact.key, &to, Some(&artifact.digests))
            .await?;
    }
    let (bucket, key) = image.manifest.bucket_and_key().unwrap_or_default();
    store
        .download(bucket, key, &dir.join("manifest.json"), None)
        .await
        .map(drop)
}

fn summarise_failures(mut failures: Vec<(Arch, Failed)>, asked: usize, printer: &Printer) -> Result<(), Failure> {
    failures.sort_by_key(|(arch, _)| *arch);
    let several = asked > 1;
    let mut last = None;
    for (arch, Failed { mut failure, log, kept }) in failures {
        if several {
            failure.detail = format!("{arch}: {}", failure.detail);
        }
        if let Some(step) = failure.step {
            failure.detail = format!("{} (step {step})", failure.detail);
        }
        if let Some(log) = log {
            printer.note(format_args!("log        {}", log.display()));
        }
        if let Some(kept) = kept {
            printer.note(format_args!("kept       {}", kept.join("scratch").display()));
        }
        if let Some(earlier) = last.replace(failure) {
            printer.failure(&earlier);
        }
    }
    last.map_or(Ok(()), Err)
}

fn interrupted() -> Failure {
    Failure::new(Code::Interrupted, "the build was interrupted")
}

/// A token that fires at the first Ctrl-C or SIGTERM.
pub(super) fn cancel_on_signal() -> Result<CancellationToken, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let cancelled = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).map_err(|error| Failure::io("cannot watch for signals", &error))?;
        let cancelled = cancelled.clone();
        tokio::spawn(async move {
            signals.recv().await;
            cancelled.cancel();
        });
    }
    Ok(cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_values_have_names_and_values() {
        assert_eq!(key_and_value("a_1=b=c").unwrap(), ("a_1".into(), "b=c".into()));
        assert_eq!(key_and_value("a=").unwrap(), ("a".into(), String::new()));
        for wrong in ["a", "=b", "1a=b", "a b=c", "a-b=c"] {
            assert!(key_and_value(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_in_boot_do_not_leave_it() {
        for wrong in ["", ".", "..", "../vmlinuz", "a/b", "a\nb", ".hidden", "a b"] {
            assert!(file_name(wrong).is_err(), "{wrong:?}");
        }
        assert!(file_name("vmlinuz-6.1.0_x+y").is_ok());
    }
}

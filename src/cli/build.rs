//! `kiln build`: builds images of a recipe without a server, in sandboxes on this host.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use kiln_records::{
    CacheDepth, Code, EmulatedProgram, Failure, Image, ImageId, ImageSet, Job, JobId, JobType, Link, Moment, TwinLevel,
    UploadedArtifact,
    arch::Arch,
    description::CONTAINERFILES,
    job::JobOptions,
    protocol::{Compressor, RecipeType, SquashfsOptions, TemplateMode},
    run::{Kernel, TwinsFallback},
    set::{
        name::{self, Which},
        state,
    },
};
use kiln_registry::credentials::Logins;

use super::{
    format::Format,
    isolation::{ISOLATION, IsolationName},
    job_options::{Choosing, DatingOptions},
    job_progress, lock_file,
    of_containerfile::OfContainerfile,
    openchami::{self, Layer},
    printer::Printer,
    progress::Progress,
    read_recipe::read_recipe_as,
    session::Session,
    signals::cancel_on_signal,
    toolbox,
    values::{cache, twins},
    warnings,
};
use crate::{
    artifacts::ArtifactStore,
    config::{Config, SiteRegistry},
    orchestrate::{
        ask::{ArchiveJob, Ask},
        recipe::RecipeArchive,
        sets::{NewSet, Source, Wanted},
    },
    origin,
    site::{self, Isolation, Local},
    store::{Collection, Side, StoredRun},
};

#[derive(Debug, Args)]
pub(super) struct BuildCommand {
    #[command(flatten)]
    build: BuildArguments,

    /// Refuse other packages than those in the recipe's kiln.lock, which `kiln lock` writes.
    #[arg(long)]
    locked: bool,
}

#[derive(Debug, Args)]
#[command(mut_arg("secrets", |option| option.help(
    "A file for RUN --mount=type=secret: id=NAME,src=FILE, or id=NAME,env=VARIABLE, or the name of one in [containers]; may be given \
     several times"
)))]
pub(super) struct BuildArguments {
    /// The recipe: a directory, an archive of one (tar: plain, gzip, bzip2, xz, zstd; or zip), a Containerfile in its context, or a
    /// layer file of OpenCHAMI's.
    pub(super) recipe: PathBuf,

    /// Architectures to build for [default: what the recipe declares, else this host's].
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    arch: Vec<String>,

    /// What the recipe is written for [default: `kiwi-ng` if it has a description of kiwi's, else `containerfile`].
    #[arg(long = "type", value_name = "TYPE")]
    recipe_type: Option<String>,

    #[command(flatten)]
    templating: Templating,

    #[command(flatten)]
    choosing: Choosing,

    #[command(flatten)]
    of_containerfile: OfContainerfile,

    /// The image's name [default: the recipe's].
    #[arg(long)]
    name: Option<String>,

    /// Also make the images a set of this name and version [default of the version: the time, UTC].
    #[arg(long, value_name = "NAME[@VERSION]", value_parser = set_name)]
    image_set: Option<(String, String)>,

    /// Also write the artifacts to DIR/ARCH.
    #[arg(long, value_name = "DIR", conflicts_with = "keep")]
    output: Option<PathBuf>,

    /// Keep the sandbox's files, the root among them, and say where they are.
    #[arg(long)]
    keep: bool,

    /// Which tools of the image may run as native twins in an emulated build [default: full, or what the configuration says].
    #[arg(long, value_name = "LEVEL", value_parser = twins())]
    twins: Option<TwinLevel>,

    /// How much of earlier builds may be reused: `packages`, the root once all packages are installed; `similar`, also that of a
    /// recipe with other packages, to which what is missing is added; `image`, the whole image if recipe, values, repositories and
    /// tools are the same [default: packages, or what the configuration says].
    #[arg(long, value_name = "DEPTH", value_parser = cache(), conflicts_with = "no_cache")]
    cache: Option<CacheDepth>,

    /// Start from the packages of this image, whatever the repositories have by now, if all else is the same.
    #[arg(long, value_name = "ID", conflicts_with = "no_cache")]
    cache_from: Option<ImageId>,

    /// Reuse nothing of earlier builds.
    #[arg(long)]
    no_cache: bool,

    /// Make an emulated root once more, without native twins, and compare: takes as long as `--twins off` besides.
    #[arg(long)]
    verify_twins: bool,

    #[command(flatten)]
    dating: DatingOptions,

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

    /// How builds are isolated from this host. `auto`: in virtual machines if this host runs them fast, else by namespaces.
    #[arg(long, value_name = "KIND", value_enum, env = ISOLATION, hide_env_values = true, default_value_t = IsolationName::Auto)]
    isolation: IsolationName,

    /// Memory that each build may use, such as 8GiB [default: that of all jobs, `default_mem_size_gib`].
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,

    /// Disk that each build may use, such as 20GiB [default: that of all jobs, `default_image_size_gib`].
    #[arg(long, value_name = "SIZE")]
    disk: Option<ByteSize>,

    /// CPUs that each build may use [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
}

/// How a recipe's templates are rendered.
#[derive(Debug, Args)]
pub(super) struct Templating {
    /// A value for the recipe's templates. Kiln itself knows `debian_mirror`.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub(super) values: Vec<(String, String)>,

    /// Let template names without a value become empty text, as IMS does.
    #[arg(long)]
    lenient_templates: bool,
}

impl Templating {
    /// The treatment of template names without a value.
    pub(super) fn mode(&self) -> TemplateMode {
        if self.lenient_templates {
            TemplateMode::Lenient
        } else {
            TemplateMode::Strict
        }
    }
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

/// The architectures to build a recipe for, of which these names are `given`.
pub(super) fn archs(given: &[String], recipe: &RecipeArchive) -> Result<Vec<Arch>, Failure> {
    if !given.is_empty() {
        return wanted_archs(given);
    }
    let host = Arch::host();
    // A recipe for several architectures is built for the host's, if it is among them.
    let declared = recipe
        .declared
        .iter()
        .find(|arch| **arch == host)
        .or(recipe.declared.first());
    Ok(vec![*declared.unwrap_or(&host)])
}

/// The architectures of these names; this host's if there are none.
fn wanted_archs(given: &[String]) -> Result<Vec<Arch>, Failure> {
    let wrong = |error: kiln_records::arch::UnknownArch| {
        Failure::new(Code::UnknownArch, error).hint("`--arch` takes one, or several with commas between them")
    };
    let mut archs = Vec::new();
    for name in given {
        let arch = name.parse().map_err(wrong)?;
        if !archs.contains(&arch) {
            archs.push(arch);
        }
    }
    if archs.is_empty() {
        archs.push(Arch::host());
    }
    Ok(archs)
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

/// Parses `NAME` or `NAME@VERSION`.
fn set_name(text: &str) -> Result<(String, String), String> {
    match name::parse(text)? {
        (name, Which::Version(version)) => Ok((name, version)),
        (name, Which::Channel(_)) if !text.contains(':') => {
            let now = jiff::Timestamp::now();
            Ok((name, now.strftime("%Y%m%d.%H%M%S").to_string()))
        }
        _ => Err("channels are for `kiln catalogue`; write NAME or NAME@VERSION".to_owned()),
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

impl BuildCommand {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let nothing = async |_: &Session, _: &[JobId]| Ok(());
        Box::pin(self.build.make(config, printer, self.locked, nothing)).await
    }
}

impl BuildArguments {
    /// Builds the images, of which nothing but the `locked` packages may be part if that is wanted. Once all are made, does something
    /// more with the jobs that made them.
    pub(super) async fn make(
        &self,
        config: &Config,
        printer: &Printer,
        locked: bool,
        more: impl AsyncFnOnce(&Session, &[JobId]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let interrupted = cancel_on_signal()?;
        let adding = &self.choosing.adding;
        let layer = self.layer(printer)?;
        let (path, named) = match &layer {
            Some(layer) => (layer.recipe.as_path(), None),
            None => containerfile_or_recipe(&self.recipe),
        };
        // Those of a layer are in its recipe already.
        let values = if layer.is_some() {
            Vec::new()
        } else {
            self.templating.values.clone()
        };
        let containerfile = self.of_containerfile.file().or(named.as_deref());
        let (options, mut brought) = self
            .of_containerfile
            .apply(containerfile, adding.apply(JobOptions::default())?)?;
        let recipe = read_recipe_as(path, containerfile, printer)?;
        let recipe_type = recipe_type(self.recipe_type.as_deref(), recipe.kind)?;
        let archs = self.archs(&recipe)?;
        if locked {
            lock_file::check(&self.recipe, &archs)?;
        }
        tokio::select! {
            toolbox = toolbox::ensure(config, printer, Arch::host(), None) => drop(toolbox?),
            () = interrupted.cancelled() => return Err(interruption()),
        }
        let mut config = config.clone();
        // What the user names here goes before what the configuration has.
        brought.append(&mut config.containers.secrets);
        config.containers.secrets = brought;
        let logins = Logins::of_user()
            .registries()?
            .into_iter()
            .map(SiteRegistry::of_command);
        config.containers.registries.extend(logins);
        config.capacity.cpus_per_job = self.cpus.or(config.capacity.cpus_per_job);
        // A machine has a loopback of its own; what the user names on this host's is meant to be reached.
        let named = self
            .templating
            .values
            .iter()
            .map(|(_, value)| value.as_str())
            .chain(adding.addresses());
        let named = named.filter_map(site::loopback_port);
        config.isolation.loopback_ports.extend(named);
        let chosen = Isolation::from(self.isolation).choose(&mut config).await?;
        printer.note(&chosen.why);
        let session = Session::open_local(&config, printer, Format::Toml).await?;
        let outcome = tokio::select! {
            outcome = Box::pin(self.build((recipe, recipe_type), &archs, (chosen.kernel, locked), (options, values, layer.as_ref()), &session, more)) => outcome,
            () = interrupted.cancelled() => Err(interruption()),
        };
        session.close(outcome).await
    }

    async fn build(
        &self,
        (recipe, recipe_type): (RecipeArchive, RecipeType),
        archs: &[Arch],
        (kernel, locked): (Kernel, bool),
        (options, values, layer): (JobOptions, Vec<(String, String)>, Option<&Layer>),
        session: &Session,
        more: impl AsyncFnOnce(&Session, &[JobId]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(local) = session.without_server() else {
            return Ok(());
        };
        let archive = Bytes::from(recipe.bytes);
        let set = self.make_set(archs, local).await?;
        let options = JobOptions {
            locked: Some(locked),
            ..options
        };
        let mut jobs = Vec::new();
        for arch in archs {
            let recipe = (recipe.name.as_str(), recipe_type, archive.clone());
            let mut job = self.job(recipe, *arch, kernel, (options.clone(), values.clone()));
            let id = match &set {
                Some(set) => {
                    if self.name.is_none() {
                        job.image_name = set.image_name(*arch);
                    }
                    set.job_of(*arch).unwrap_or_else(JobId::new)
                }
                None => JobId::new(),
            };
            jobs.push(local.ask_as(id, Ask::Archive(Box::new(job))).await?);
        }
        local.carry_out();
        let progress = Progress::new(&session.printer, archs);
        let following = jobs.iter().map(|job| follow(session, local, job, &progress));
        futures::future::try_join_all(following).await?;
        drop(progress);
        // The user is told of files that were kept once they are complete.
        local.clear_up().await?;
        let (mut failures, mut images) = (Vec::new(), Vec::new());
        for job in &jobs {
            let stored = stored(local, job).await?;
            match stored.run.failure() {
                None => {
                    self.deliver(&stored, local, &session.printer).await?;
                    images.push(stored.run.image.to_string());
                }
                Some(_) => failures.push(stored),
            }
        }
        if let Some(set) = set {
            tell_of_set(&set, local, &session.printer).await?;
        }
        summarise_failures(failures, archs.len(), local, &session.printer)?;
        if let Some(layer) = layer {
            layer.publish(&images, session).await?;
        }
        let jobs: Vec<_> = jobs.iter().map(|job| job.id).collect();
        more(session, &jobs).await
    }

    /// The recipe of a layer file of OpenCHAMI's, if this is one. It has to be the same for all architectures.
    fn layer(&self, printer: &Printer) -> Result<Option<Layer>, Failure> {
        let Some((text, form)) = openchami::text_of(&self.recipe)? else {
            return Ok(None);
        };
        let [arch] = wanted_archs(&self.arch)?[..] else {
            return Err(
                Failure::new(Code::Usage, "a layer file is translated for one architecture at a time")
                    .hint("build each with a `--arch` of its own"),
            );
        };
        let (values, name) = (&self.templating.values, self.name.as_deref());
        Layer::translate(&self.recipe, (&text, form), arch, values, name, printer).map(Some)
    }

    /// Makes the set, with the ids of its jobs. The jobs are made by this command.
    async fn make_set(&self, archs: &[Arch], local: &Local) -> Result<Option<ImageSet>, Failure> {
        let Some((name, version)) = &self.image_set else {
            return Ok(None);
        };
        let wanted = |arch: &Arch| Wanted {
            arch: *arch,
            required: true,
            from: Source::Archive,
            time_limit_s: None,
        };
        let new = NewSet {
            name: name.clone(),
            version: version.clone(),
            public_key_id: None,
            options: JobOptions::default(),
            members: archs.iter().map(wanted).collect(),
            requires: Vec::new(),
        };
        local.can_carry_out()?;
        let made = local.sets().create(new, None, Moment::now()).await?;
        Ok(Some(made.stored.record))
    }

    /// The architectures to build for.
    pub(super) fn archs(&self, recipe: &RecipeArchive) -> Result<Vec<Arch>, Failure> {
        archs(&self.arch, recipe)
    }

    fn job(
        &self,
        (recipe_name, recipe_type, archive): (&str, RecipeType, Bytes),
        arch: Arch,
        kernel: Kernel,
        (options, values): (JobOptions, Vec<(String, String)>),
    ) -> ArchiveJob {
        ArchiveJob {
            image_name: self.name.clone().unwrap_or_else(|| recipe_name.to_owned()),
            recipe_name: recipe_name.to_owned(),
            archive,
            recipe_type,
            arch,
            own_kernel: kernel == Kernel::Own,
            values,
            template_mode: self.templating.mode(),
            squashfs: SquashfsOptions {
                compressor: self.compression.into(),
                level: self.compression_level,
            },
            repos_timeout_s: self.repos_timeout,
            memory: self.memory.map(|size| size.as_u64()),
            disk: self.disk.map(|size| size.as_u64()),
            keep: self.keep,
            options: JobOptions {
                kernel_file_name: self.kernel_file_name.clone(),
                initrd_file_name: Some(self.initrd_file_name.clone()),
                kernel_parameters_file_name: Some(self.kernel_parameters_file_name.clone()),
                twins: self.twins,
                verify_twins: Some(self.verify_twins),
                cache: self.no_cache.then_some(CacheDepth::None).or(self.cache),
                cache_from: self.cache_from,
                reproducible: self.dating.reproducible,
                source_date_epoch: self.dating.source_date_epoch,
                profiles: self.choosing.chosen(),
                ..options
            },
        }
    }

    /// Prints the result, and writes it to `--output`.
    async fn deliver(&self, stored: &StoredRun, local: &Local, printer: &Printer) -> Result<(), Failure> {
        let (job, run) = (&stored.job, &stored.run);
        let image = Collection::<Image>::get(&**local.store(), Side::Live, run.image).await?;
        let manifest = image.and_then(|image| image.record.link);
        let artifacts = run.artifacts().unwrap_or_default();
        printer.result(format_args!("image      {} ({})", run.image, job.arch));
        if let Some(manifest) = &manifest {
            printer.result(format_args!("manifest   {}", manifest.path));
        }
        for artifact in &artifacts {
            let (name, size) = (artifact.kind.key_name(), ByteSize(artifact.digests.size).to_string());
            printer.result(format_args!(
                "{name:<16} {size:>10}  sha256 {}",
                artifact.digests.sha256
            ));
        }
        if let Some(execs) = &run.execs {
            printer.result(format_args!("programs   {execs}"));
            if printer.is_verbose() {
                for EmulatedProgram { program, runs, cpu_ms } in &execs.most_expensive {
                    printer.note(format_args!("emulated   {program}: {runs} times, {cpu_ms} ms of CPU"));
                }
            }
        }
        if let Some(TwinsFallback { attempt, failure }) = &run.twins_fallback {
            printer.result(format_args!(
                "fallback   try {attempt}, with native twins, failed: {failure}"
            ));
        }
        warnings::show(printer, &run.warnings.list, run.warnings.more);
        printer.result(format_args!("job        {}", job.id));
        printer.result(format_args!("log        kiln jobs logs {}", job.id));
        if let Some(kept) = kept(stored, local)? {
            printer.result(format_args!("kept       {}", kept.display()));
        }
        if let Some(output) = &self.output {
            let dir = output.join(job.arch.name());
            download(&artifacts, manifest.as_ref(), local.artifacts(), &dir).await?;
            download_provenance(run.image, local.artifacts(), &dir).await?;
            printer.result(format_args!("files      {}", dir.display()));
        }
        Ok(())
    }
}

fn summarise_failures(failures: Vec<StoredRun>, asked: usize, local: &Local, printer: &Printer) -> Result<(), Failure> {
    let mut last = None;
    for stored in failures {
        let Some(mut failure) = stored.run.failure().cloned() else {
            continue;
        };
        if asked > 1 {
            failure.detail = format!("{}: {}", stored.job.arch, failure.detail);
        }
        if let Some(step) = failure.step {
            failure.detail = format!("{} (step {step})", failure.detail);
        }
        if let Some(TwinsFallback { attempt, failure }) = &stored.run.twins_fallback {
            printer.note(format_args!(
                "fallback   try {attempt}, with native twins, failed too: {failure}"
            ));
        }
        warnings::show(printer, &stored.run.warnings.list, stored.run.warnings.more);
        printer.note(format_args!("log        kiln jobs logs {}", stored.job.id));
        if let Some(kept) = kept(&stored, local)? {
            printer.note(format_args!("kept       {}", kept.display()));
        }
        if let Some(earlier) = last.replace(failure) {
            printer.failure(&earlier);
        }
    }
    last.map_or(Ok(()), Err)
}

/// Looks at a set whose jobs have ended, and says what became of it.
async fn tell_of_set(set: &ImageSet, local: &Local, printer: &Printer) -> Result<(), Failure> {
    let Some(looked) = local.sets().look.look(set.id, Moment::now()).await? else {
        return Ok(());
    };
    let state = looked.state().name();
    printer.result(format_args!(
        "set        {}@{} ({}): {state}",
        set.name, set.version, set.id
    ));
    for remark in state::remarks(&looked.stored.record, &looked.judged) {
        printer.note(format_args!("set        {remark}"));
    }
    Ok(())
}

/// Shows a job's progress until it ends.
async fn follow(session: &Session, local: &Local, job: &Job, progress: &Progress) -> Result<(), Failure> {
    let lane = progress.lane(job.arch, JobType::Create);
    job_progress::show_in(session, &job.id.to_string(), &lane).await?;
    lane.end(stored(local, job).await?.run.failure());
    Ok(())
}

async fn stored(local: &Local, job: &Job) -> Result<StoredRun, Failure> {
    let stored = local.store().get_run(job.id).await?;
    stored.ok_or_else(|| {
        Failure::new(Code::Interrupted, format!("job {} was deleted", job.id)).hint("start the build again")
    })
}

/// The files of the job's sandbox, if they were kept.
fn kept(stored: &StoredRun, local: &Local) -> Result<Option<PathBuf>, Failure> {
    stored.run.kept.then(|| local.kept_at(stored.job.id)).transpose()
}

/// The recipe's place, and the name of the Containerfile in it if that is what the user names.
fn containerfile_or_recipe(path: &Path) -> (&Path, Option<String>) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_containerfile = CONTAINERFILES.iter().any(|usual| {
        let with_part = |separator| name.split(separator).any(|part| part.eq_ignore_ascii_case(usual));
        with_part('.') || with_part('-')
    });
    if !is_containerfile || !path.is_file() {
        return (path, None);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    (dir.unwrap_or(Path::new(".")), Some(name.to_owned()))
}

/// The type of the recipe: what is `given`, or else what it looks like.
fn recipe_type(given: Option<&str>, looks: RecipeType) -> Result<RecipeType, Failure> {
    let Some(name) = given else { return Ok(looks) };
    let known = kiln_records::RecipeType::ALL
        .into_iter()
        .find(|known| known.name() == name);
    known.and_then(kiln_records::RecipeType::built).ok_or_else(|| {
        let text = format!("`{name}` is no recipe type Kiln builds");
        Failure::new(Code::UnknownRecipeType, text).hint("kiwi-ng and containerfile are those that there are")
    })
}

async fn download(
    artifacts: &[UploadedArtifact],
    manifest: Option<&Link>,
    store: &ArtifactStore,
    dir: &Path,
) -> Result<(), Failure> {
    fs_err::create_dir_all(dir).map_err(|error| Failure::io("cannot make the output directory", &error))?;
    for artifact in artifacts {
        let to = dir.join(artifact.kind.key_name());
        store
            .download(&artifact.bucket, &artifact.key, &to, Some(&artifact.digests))
            .await?;
    }
    let (bucket, key) = manifest.and_then(Link::bucket_and_key).unwrap_or_default();
    store
        .download(bucket, key, &dir.join("manifest.json"), None)
        .await
        .map(drop)
}

/// Writes the image's provenance, and its signature if the site signs.
async fn download_provenance(image: ImageId, store: &ArtifactStore, dir: &Path) -> Result<(), Failure> {
    for name in [origin::STATEMENT, origin::ENVELOPE] {
        let (bucket, key) = (store.images_bucket(), format!("{image}/{name}"));
        let to = dir.join(name);
        match store.download(bucket, &key, &to, None).await {
            // That of another image must not stay beside this one.
            Err(failure) if failure.code == Code::S3Missing => match fs_err::remove_file(&to) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::io("cannot remove the provenance of another image", &error));
                }
                _ => {}
            },
            downloaded => drop(downloaded?),
        }
    }
    Ok(())
}

fn interruption() -> Failure {
    Failure::new(Code::Interrupted, "the build was interrupted")
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

//! `kiln toolbox`: builds toolboxes, shows them and makes images of them. Writes to the data directory, and the image where
//! the user wants it: to a file or a registry.

use std::path::PathBuf;

use clap::Subcommand;
use kiln_records::{Code, Failure, arch::Arch, run::Kernel};
use kiln_registry::{Location, mirror, open};

use super::{printer::Printer, progress::Spinner, registry::RegistryOptions, values::arch};
use crate::{
    config::Config,
    host::{self, AptMirror},
    sandbox::toolbox::Toolbox,
    site,
};

#[derive(Debug, Subcommand)]
pub(super) enum ToolboxCommand {
    /// Build the toolbox unless it exists already.
    Build {
        /// The architecture of the build nodes that will use it. Building for a foreign one needs an emulator and takes
        /// longer [default: this host's].
        #[arg(long, value_name = "ARCH", value_parser = arch())]
        arch: Option<Arch>,

        /// The Debian mirror for packages [default: the one that this host uses].
        #[arg(long, value_name = "URL")]
        mirror: Option<String>,
    },
    /// Show the toolbox that builds on this host use.
    Show {
        /// The architecture of the toolbox [default: this host's].
        #[arg(long, value_name = "ARCH", value_parser = arch())]
        arch: Option<Arch>,
    },
    /// Write the toolbox as an image for pods of a Kubernetes cluster, and print the image's name.
    ///
    /// The archive is what `skopeo copy docker-archive:OUT docker://NAME`, `docker load` and `ctr images import` take. Jobs
    /// of this version use exactly this name.
    Image {
        /// The architecture of the nodes [default: this host's].
        #[arg(long, value_name = "ARCH", value_parser = arch())]
        arch: Option<Arch>,

        /// For pods in virtual machines (`vm_runtime` of the section `kubernetes`), whose files belong to root of the machine.
        #[arg(long)]
        vm: bool,

        /// The archive.
        #[arg(value_name = "OUT")]
        out: PathBuf,
    },
    /// Push the toolbox for pods of a Kubernetes cluster to the registry of `image` in the section `kubernetes` or, where
    /// `base_image` is set, to S3; and print its name there.
    ///
    /// Jobs of this version use exactly this name. What is there already is not made again. The login to a registry is that of
    /// `kiln registry login` or of Docker's configuration.
    Push {
        /// The architecture of the nodes [default: this host's].
        #[arg(long, value_name = "ARCH", value_parser = arch())]
        arch: Option<Arch>,

        /// For pods in virtual machines (`vm_runtime` of the section `kubernetes`), whose files belong to root of the machine.
        #[arg(long)]
        vm: bool,

        /// Push it though it is there already, in case that it was damaged.
        #[arg(long)]
        again: bool,

        #[command(flatten)]
        registry: RegistryOptions,
    },
    /// Write a toolbox to a file, for hosts without a network. It is built if necessary.
    Export {
        /// The architecture of the toolbox [default: this host's].
        #[arg(long, value_name = "ARCH", value_parser = arch())]
        arch: Option<Arch>,

        /// The new file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Take a toolbox from a file that `kiln toolbox export` of the same version wrote.
    Import {
        /// The SHA-256 of the file, as `kiln toolbox export` printed it. Builds run in what is in the file.
        #[arg(long, value_name = "DIGEST")]
        sha256: String,

        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// List all toolboxes.
    List,
    /// Remove the toolboxes of other versions. No build may be running.
    Prune,
}

impl ToolboxCommand {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        match self {
            ToolboxCommand::Build { arch, mirror } => {
                let own = ensure(config, printer, Arch::host(), mirror.clone()).await?;
                let toolbox = match arch {
                    // A foreign toolbox needs the emulator of the host's one.
                    Some(arch) if arch != Arch::host() => ensure(config, printer, arch, mirror).await?,
                    _ => own,
                };
                show(&toolbox, printer);
            }
            ToolboxCommand::Show { arch } => {
                let arch = arch.unwrap_or(Arch::host());
                let toolbox = site::toolboxes(config)?.find(arch);
                show(&toolbox.ok_or_else(|| not_built(arch))?, printer);
            }
            ToolboxCommand::Push {
                arch,
                vm,
                again,
                registry,
            } => {
                // Before a toolbox is built, which takes minutes.
                let to_s3 = config.kubernetes.base_image.is_some();
                if config.kubernetes.image.is_none() && !to_s3 {
                    return Err(
                        Failure::new(Code::Usage, "no repository is configured to which the image could go")
                            .hint("set `image` in [kubernetes], for example to registry.example.org/kiln-toolbox"),
                    );
                }
                if to_s3 && config.s3.is_none() {
                    return Err(Failure::new(
                        Code::Usage,
                        "no S3 is configured to which the toolbox could go, and pods of a \
                                     cluster do not reach the embedded one",
                    )
                    .hint("set `endpoint` and the keys in [s3], as for the servers"));
                }
                let toolbox = ensure(config, printer, arch.unwrap_or(Arch::host()), None).await?;
                if to_s3 {
                    push_to_s3(config, printer, &toolbox, kernel(vm), again).await?;
                } else {
                    push(config, printer, &toolbox, kernel(vm), again, &registry).await?;
                }
            }
            ToolboxCommand::Image { arch, vm, out } => {
                let toolbox = ensure(config, printer, arch.unwrap_or(Arch::host()), None).await?;
                let kernel = kernel(vm);
                let (image, repository) = site::image_of(config, &toolbox, kernel)?;
                let packer = site::namespace_driver(config)?;
                image.write(&packer, &repository, &out).await?;
                printer.result(image.name(&repository));
            }
            ToolboxCommand::Export { arch, file } => {
                let toolbox = ensure(config, printer, arch.unwrap_or(Arch::host()), None).await?;
                let sha256 = site::toolboxes(config)?.export(&toolbox, &file).await?;
                printer.result(format_args!("file      {}", file.display()));
                printer.result(format_args!("sha256    {sha256}"));
                printer.result(format_args!(
                    "import    kiln toolbox import --sha256 {sha256} {}",
                    file.display()
                ));
            }
            ToolboxCommand::Import { sha256, file } => {
                let toolbox = site::toolboxes(config)?.import(&file, &sha256).await?;
                show(&toolbox, printer);
            }
            ToolboxCommand::List => {
                for (toolbox, is_current) in site::toolboxes(config)?.list()? {
                    let (name, facts) = (&toolbox.name[..12.min(toolbox.name.len())], &toolbox.facts);
                    let size = bytesize::ByteSize(facts.size).to_string();
                    let note = if is_current { "" } else { "  of another version" };
                    printer.result(format_args!(
                        "{name}  {:<8} {size:>10}  {:.0}{note}",
                        facts.arch, facts.built
                    ));
                }
            }
            ToolboxCommand::Prune => {
                for name in site::toolboxes(config)?.prune().await? {
                    printer.result(format_args!("removed {name}"));
                }
            }
        }
        Ok(())
    }
}

fn kernel(vm: bool) -> Kernel {
    if vm { Kernel::Own } else { Kernel::Shared }
}

/// Pushes the image of a toolbox to the configured registry, unless it is there.
async fn push(
    config: &Config,
    printer: &Printer,
    toolbox: &Toolbox,
    kernel: Kernel,
    again: bool,
    registry: &RegistryOptions,
) -> Result<(), Failure> {
    let interrupted = super::signals::cancel_on_signal()?;
    let (image, repository) = site::image_of(config, toolbox, kernel)?;
    let name = image.name(&repository);
    let access = registry.access();
    let to: Location = name.parse()?;
    let place = open(&to, &access, true).await?;
    if !again
        && let Some(tag) = to.which()
        && place.head(tag).await?.is_some()
    {
        printer.note("the registry has this image already");
        printer.result(name);
        return Ok(());
    }
    printer.note("packing the toolbox");
    let dir = image_dir(config)?;
    let pushing = async {
        image.write_layout(&site::namespace_driver(config)?, dir.path()).await?;
        let from = Location::Layout {
            dir: dir.path().to_owned(),
            which: to.which().cloned(),
        };
        let layout = open(&from, &access, false).await?;
        mirror::mirror(&layout, from.which(), &place, to.which(), &registry.notes(printer)).await
    };
    tokio::select! {
        pushed = pushing => pushed?,
        () = interrupted.cancelled() => {
            return Err(Failure::new(Code::Interrupted, "pushing was interrupted; no tag was set"));
        }
    };
    printer.result(name);
    Ok(())
}

/// Stores a toolbox in S3, from where pods fetch it, unless it is there.
async fn push_to_s3(
    config: &Config,
    printer: &Printer,
    toolbox: &Toolbox,
    kernel: Kernel,
    again: bool,
) -> Result<(), Failure> {
    let interrupted = super::signals::cancel_on_signal()?;
    let (image, _) = site::image_of(config, toolbox, kernel)?;
    let name = image.toolbox_name();
    let (store, _embedded) = site::artifact_store(config).await?;
    let (address, is_there) = store.find_layers(&name).await?;
    if is_there && !again {
        printer.note("S3 has this toolbox already");
        printer.result(address);
        return Ok(());
    }
    printer.note("packing the toolbox");
    let dir = image_dir(config)?;
    let pushing = async {
        let layers = image.write_layers(&site::namespace_driver(config)?, dir.path()).await?;
        store.put_layers(&name, &layers).await
    };
    tokio::select! {
        pushed = pushing => pushed?,
        () = interrupted.cancelled() => {
            return Err(Failure::new(Code::Interrupted, "pushing was interrupted; pods find no toolbox"));
        }
    };
    printer.result(address);
    Ok(())
}

/// A directory for an image, until it is pushed.
fn image_dir(config: &Config) -> Result<tempfile::TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("image-")
        .tempdir_in(&config.data_dir)
        .map_err(|error| Failure::io("cannot make a directory for the image", &error))
}

fn not_built(arch: Arch) -> Failure {
    let (of, option) = if arch == Arch::host() {
        (String::new(), String::new())
    } else {
        (format!(" for {arch}"), format!(" --arch {arch}"))
    };
    let detail = format!("no toolbox{of} was built from this version's description yet");
    Failure::new(Code::NoToolbox, detail).hint(format!("run `kiln toolbox build{option}`"))
}

/// The toolbox for this architecture; builds it if necessary.
pub(super) async fn ensure(
    config: &Config,
    printer: &Printer,
    arch: Arch,
    mirror: Option<String>,
) -> Result<Toolbox, Failure> {
    let toolboxes = site::toolboxes(config)?;
    if let Some(toolbox) = toolboxes.find(arch) {
        return Ok(toolbox);
    }
    printer.note(if arch == Arch::host() {
        "Building the toolbox (once; about 900 MB, a few minutes): kiwi, package managers, emulators".to_owned()
    } else {
        format!("Building the toolbox for {arch} under an emulator (once; about 900 MB, a quarter of an hour or more)")
    });
    let mirror = mirror
        .map(|archive| AptMirror {
            archive,
            security: None,
        })
        .or_else(host::apt_mirror);
    let spinner = Spinner::new(printer, "toolbox");
    toolboxes.ensure(arch, mirror, |line| spinner.line(line)).await
}

fn show(toolbox: &Toolbox, printer: &Printer) {
    printer.result(format_args!("toolbox   {}", toolbox.name));
    printer.result(format_args!("squashfs  {}", toolbox.squashfs.display()));
    printer.result(format_args!("sha256    {}", toolbox.facts.sha256));
    printer.result(format_args!("size      {}", bytesize::ByteSize(toolbox.facts.size)));
    printer.result(format_args!("arch      {}", toolbox.facts.arch));
    printer.result(format_args!("built     {:.0}", toolbox.facts.built));
    printer.result(format_args!("packages  {}", toolbox.facts.packages.len()));
}

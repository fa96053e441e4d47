//! What a layer file becomes, as data. Pure: no I/O.

use std::collections::BTreeMap;

/// What the caller says beside the file.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Values for templates of the form [`Form::Layer`](crate::Form): of files of variables
    /// ([`read_variables`](crate::read_variables)), options, and what a manifest computes.
    pub variables: BTreeMap<String, String>,
    /// The architecture to build for, as rpm spells it: `x86_64`.
    pub arch: String,
    /// The image's name, instead of the file's.
    pub name: Option<String>,
    /// The parent's reference, or `scratch`, instead of the file's.
    pub parent: Option<String>,
}

/// A translated layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Translated {
    /// The image's name, as the file or [`Given::name`] has it.
    pub name: String,
    /// Its tags, at least one; the first is the main one.
    pub tags: Vec<String>,
    /// What it begins with.
    pub parent: Parent,
    /// The recipe.
    pub recipe: Recipe,
    /// Labels of the image, those that the tools set by themselves among them, except the date of the build. A Containerfile has
    /// them as well.
    pub labels: BTreeMap<String, String>,
    /// Where the file wants the image to be, in its order.
    pub publish: Vec<Publish>,
    /// Where image-thrillhouse would send the image on `promote` only.
    pub promote: Vec<Publish>,
    /// What is ignored, or done in another way than by OpenCHAMI's tools. Without secrets.
    pub warnings: Vec<String>,
}

/// What an image begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// An empty root.
    Scratch,
    /// A container image: an OCI reference without a transport, such as `localhost/base:9` (an image of this host) or
    /// `docker.io/rockylinux:9`.
    Image(String),
}

/// A recipe for Kiln.
#[derive(Debug, Clone, PartialEq)]
pub enum Recipe {
    /// A description for kiwi-ng, `config.xml`, with `config.sh` and what goes into the root below `root/`.
    Kiwi(Files),
    /// A `Containerfile` and its context.
    Containerfile(Files),
}

/// The files of a recipe. All paths are relative to the recipe's directory, with `/`, without `..`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Files {
    /// Files to write.
    pub written: Vec<Written>,
    /// What to copy from the user's files, after `written`, in this order: a later one may replace part of an earlier one.
    pub copies: Vec<Copy>,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its path in the recipe.
    pub path: String,
    /// Its permission bits.
    pub mode: u32,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A file or a directory of the user's to copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copy {
    /// The key that wants it, for messages.
    pub key: String,
    /// Its path: absolute, or relative to the layer file's directory. It may have `..`: the caller decides what may be read.
    pub source: String,
    /// The path in the recipe that a file gets, or that gets the contents of a directory.
    pub to: String,
    /// Permission bits of all files in it; those of the source if not given.
    pub mode: Option<u32>,
    /// Patterns of what a directory is copied without, see [`left_out`](crate::left_out).
    pub excludes: Vec<String>,
    /// Whether it is a directory or a file for certain; anything is taken if not given.
    pub directory: Option<bool>,
    /// Whether a source that is not there is no error.
    pub optional: bool,
}

/// A place where the file wants the image to be. Nothing is done about it here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publish {
    /// As a container image on this host.
    Local {
        /// One for each tag, such as `localhost/base:9`.
        references: Vec<String>,
    },
    /// Kernel, initrd and root in a bucket.
    S3 {
        /// The address of the store.
        endpoint: String,
        /// The bucket.
        bucket: String,
        /// What all keys begin with; no slash is added to it.
        prefix: String,
        /// How the rest of the keys is made.
        layout: Layout,
    },
    /// As a container image in a registry.
    Registry {
        /// One for each tag, without a transport.
        references: Vec<String>,
        /// Whether its certificate is verified.
        tls_verify: bool,
    },
    /// The root as a squashfs.
    Squashfs {
        /// The directory.
        dir: String,
        /// The file's name.
        file: String,
    },
}

/// How keys of an S3 store are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// image-builder's: for each tag `PREFIX` + `OS-NAME-TAG` (the squashfs; OS is `ID` and `VERSION_ID` of os-release, such as
    /// `rocky9.5`), `efi-images/PREFIX` + `vmlinuz-VERSION`, `efi-images/PREFIX` + `initramfs-VERSION.img`.
    Builder,
    /// image-thrillhouse's: `PREFIX` + `TAG/[ARCH/]` + `rootfs.squashfs`, `vmlinuz`, `initramfs.img`, for the first tag; the
    /// architecture only for a manifest with architectures.
    Thrillhouse,
}

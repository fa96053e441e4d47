//! Lists every key, by sections, and the variable for each. Pure: no I/O.

use std::path::PathBuf;

use super::{
    containers::ContainerSettings,
    kubernetes::KubernetesSettings,
    retention::RetentionSettings,
    s3::S3Settings,
    sections::{
        AuthSettings, BootCheckSettings, CapacitySettings, CatalogueSettings, DockerEngineSettings, EmbeddedS3Settings,
        EmulationSettings, IsolationSettings, JobSettings, LimitSettings, LogSettings, MetricsSettings,
        NetworkSettings, OidcSettings, RemoteBuildNodeSettings, RootCheckSettings, ServerSettings, ShellSettings,
        StoreSettings, TraceSettings, TrustedListenerSettings, WatchSettings, WebhookSettings,
    },
    signing::SigningSettings,
    trust::TrustSettings,
};
use crate::settings::{Key, Section};

/// The prefix of the variables that set keys.
pub(super) const PREFIX: &str = "KILN__";

/// Every section, in the order of the reference.
pub(super) const SECTIONS: &[Section] = &[
    ServerSettings::SECTION,
    TrustedListenerSettings::SECTION,
    AuthSettings::SECTION,
    OidcSettings::SECTION,
    MetricsSettings::SECTION,
    LimitSettings::SECTION,
    CatalogueSettings::SECTION,
    WebhookSettings::SECTION,
    TraceSettings::SECTION,
    LogSettings::SECTION,
    StoreSettings::SECTION,
    S3Settings::SECTION,
    EmbeddedS3Settings::SECTION,
    JobSettings::SECTION,
    ShellSettings::SECTION,
    IsolationSettings::SECTION,
    NetworkSettings::SECTION,
    TrustSettings::SECTION,
    ContainerSettings::SECTION,
    DockerEngineSettings::SECTION,
    KubernetesSettings::SECTION,
    EmulationSettings::SECTION,
    RootCheckSettings::SECTION,
    CapacitySettings::SECTION,
    BootCheckSettings::SECTION,
    WatchSettings::SECTION,
    RemoteBuildNodeSettings::SECTION,
    RetentionSettings::SECTION,
    SigningSettings::SECTION,
];

/// Keys outside sections.
pub(super) const TOP: Section = Section {
    name: "",
    about: &[],
    keys: &[Key {
        name: "data_dir",
        about: &[
            " The directory for toolboxes, sandboxes, jobs, records and the embedded S3 store. Its file system must support",
            " extended attributes and the upper layer of an overlay: ext4, xfs or btrfs, not NFS. `--data-dir` and",
            " `KILN_DATA_DIR` override this key. Default: `$XDG_DATA_HOME/kiln`, else `~/.local/share/kiln`.",
        ],
        example: Some("\"/srv/kiln\""),
        default: || None,
        check: |value| {
            value
                .clone()
                .try_into::<PathBuf>()
                .map(drop)
                .map_err(|error| error.to_string())
        },
    }],
};

pub(super) fn variable_part(name: &str) -> String {
    name.to_ascii_uppercase()
}

/// The variable that sets a key.
pub(super) fn variable(section: &Section, key: &Key) -> String {
    match section.name {
        "" => "KILN_DATA_DIR".to_owned(),
        name => format!("{PREFIX}{}__{}", variable_part(name), variable_part(key.name)),
    }
}

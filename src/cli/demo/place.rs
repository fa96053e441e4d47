//! Where a demonstration works: in the user's data directory, or in a temporary one that nothing stays of. Makes and removes
//! directories.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use kiln_records::{Code, Failure, arch::Arch};
use tempfile::TempDir;

use crate::{
    config::{
        Access, AuthSettings, CatalogueSettings, Config, KubernetesSettings, MetricsSettings, OidcSettings,
        ServerSettings, SigningSettings, StoreSettings, TraceSettings, TrustedListenerSettings, WebhookSettings,
    },
    sandbox::toolboxes::Toolboxes,
    site,
};

/// The sections that a temporary place has the defaults of.
const PUT_BACK: [&str; 13] = [
    "s3",
    "embedded_s3",
    "store",
    "server",
    "trusted_listener",
    "metrics",
    "signing",
    "catalogue",
    "auth",
    "oidc",
    "kubernetes",
    "webhooks",
    "traces",
];

/// The toolboxes of a data directory.
const TOOLBOXES: &str = "toolboxes";

#[derive(Debug)]
pub(super) struct Place {
    config: Config,
    temporary: Option<TempDir>,
}

impl Place {
    /// The configured directory, at the configured address.
    ///
    /// # Errors
    ///
    /// `usage` when the server there asks its users who they are, or uses TLS: this command has no login.
    pub(super) fn of_user(config: &Config) -> Result<Self, Failure> {
        if config.access() != Access::Open || config.server.tls_certificate.is_some() {
            let detail = "a demonstration needs no token and no TLS, and the configuration asks for them";
            return Err(Failure::new(Code::Usage, detail).hint("use --tmp, which has a server of its own"));
        }
        let mut config = config.clone();
        config.jobs.run = true;
        Ok(Self {
            config,
            temporary: None,
        })
    }

    /// A new directory, with a server at a free port of this host. Settings of how jobs run on this host are the user's.
    pub(super) fn temporary(config: &Config) -> Result<Self, Failure> {
        let unmade = |error: io::Error| Failure::io("cannot make a temporary directory", &error);
        let dir = tempfile::Builder::new()
            .prefix("kiln-demo-")
            .tempdir()
            .map_err(unmade)?;
        let free_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut own = config.clone();
        own.data_dir = fs_err::canonicalize(dir.path()).map_err(unmade)?;
        own.s3 = None;
        own.embedded_s3.listen = free_port;
        own.store = StoreSettings::default();
        own.server = ServerSettings::default();
        own.server.listen.0 = vec![free_port];
        own.trusted_listener = TrustedListenerSettings::default();
        own.metrics = MetricsSettings::default();
        own.signing = SigningSettings::default();
        own.catalogue = CatalogueSettings::default();
        own.auth = AuthSettings::default();
        own.oidc = OidcSettings::default();
        // A demonstration is no news for other services.
        own.webhooks = WebhookSettings::default();
        own.traces = TraceSettings::default();
        // Pods do not reach a server on this host's loopback.
        own.kubernetes = KubernetesSettings::default();
        own.jobs.run = true;
        // What the user's file says of these is not said of this server.
        own.forget_origins(&PUT_BACK);
        share_toolbox(config, &own)?;
        Ok(Self {
            config: own,
            temporary: Some(dir),
        })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Removes what is temporary. Nothing may run there any more.
    pub(super) async fn remove(self) -> Result<(), Failure> {
        let Some(dir) = self.temporary else {
            return Ok(());
        };
        let unremoved = |error: io::Error| {
            let what = format!("cannot remove {}", dir.path().display());
            Failure::io(&what, &error)
        };
        let toolboxes = self.config.data_dir.join(TOOLBOXES);
        if toolboxes.is_dir() {
            let driver = site::namespace_driver(&self.config)?;
            for entry in fs_err::read_dir(toolboxes).map_err(unremoved)? {
                let entry = entry.map_err(unremoved)?;
                // The files of one that was made here belong to ids of sandboxes.
                if entry.file_type().map_err(unremoved)?.is_dir() {
                    driver.remove_dir(&entry.path()).await?;
                }
            }
        }
        fs_err::remove_dir_all(dir.path()).map_err(unremoved)
    }
}

/// Lets the toolbox of the user's data directory serve for another one too, if it is there: to make it takes minutes.
fn share_toolbox(config: &Config, other: &Config) -> Result<(), Failure> {
    let name = Toolboxes::name_of(Arch::host());
    let from = config.data_dir.join(TOOLBOXES).join(&name);
    if !from.is_dir() {
        return Ok(());
    }
    let to = other.data_dir.join(TOOLBOXES);
    let link = fs_err::create_dir(&to).and_then(|()| fs_err::os::unix::fs::symlink(from, to.join(name)));
    link.map_err(|error| Failure::io("cannot use the toolbox of the data directory", &error))
}

//! Settings: one TOML file with strict keys, and where things are kept.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    artifacts::{ArtifactStore, S3Settings, embedded::EmbeddedS3},
    records::Failure,
    sandbox::{namespace::NamespaceDriver, toolbox::Toolboxes},
};

/// Everything that can be set.
#[derive(Debug)]
pub struct Config {
    /// Where Kiln keeps its files.
    pub data_dir: PathBuf,
    /// The S3 service to use; none means the embedded one.
    pub s3: Option<S3Settings>,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// Where Kiln keeps its files. Default: `$XDG_DATA_HOME/kiln`, else `~/.local/share/kiln`.
    data_dir: Option<PathBuf>,
    /// The S3 service. Default: the embedded one, in the data directory.
    s3: Option<S3Settings>,
}

impl Config {
    /// Reads the file (`path`, or the user's own if there is one). `data_dir` from the command line wins over it.
    ///
    /// # Errors
    ///
    /// `config_invalid` with file, line and column.
    pub fn load(path: Option<&Path>, data_dir: Option<PathBuf>) -> Result<Self, Failure> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let under_home = |variable: &str, default: &str| {
            let set = std::env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from);
            set.or_else(|| Some(home.as_ref()?.join(default)))
                .map(|dir| dir.join("kiln"))
        };
        let default_path = under_home("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("kiln.toml"));
        let file = match path.map(Path::to_owned).or(default_path.filter(|path| path.exists())) {
            Some(path) => read(&path)?,
            None => File::default(),
        };
        let data_dir = data_dir
            .or(file.data_dir)
            .or_else(|| under_home("XDG_DATA_HOME", ".local/share"));
        let data_dir = data_dir.ok_or_else(|| {
            Failure::new("no_data_dir", "no place for Kiln's files is known: HOME is not set")
                .hint("use --data-dir DIR")
        })?;
        let data_dir = std::path::absolute(data_dir).map_err(|error| Failure::io("data directory", &error))?;
        Ok(Self { data_dir, s3: file.s3 })
    }

    /// The namespace driver of this data directory.
    pub fn namespace_driver(&self) -> Result<NamespaceDriver, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
        NamespaceDriver::new(&self.data_dir.join("sandboxes"), &program)
    }

    /// Where jobs keep their records and logs.
    pub fn jobs_dir(&self) -> PathBuf {
        self.data_dir.join("jobs")
    }

    /// The S3 service to use, and the embedded one if it is that, which lives as long as what is returned.
    pub async fn artifact_store(&self) -> Result<(ArtifactStore, Option<EmbeddedS3>), Failure> {
        if let Some(settings) = &self.s3 {
            return Ok((ArtifactStore::connect(settings).await?, None));
        }
        let embedded = self.embedded_s3(0).await?;
        Ok((ArtifactStore::connect(&embedded.settings()).await?, Some(embedded)))
    }

    /// Starts the embedded S3 service on a loopback port; 0 means any that is free.
    pub async fn embedded_s3(&self, port: u16) -> Result<EmbeddedS3, Failure> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(EmbeddedS3::start(&self.data_dir.join("s3"), address).await?)
    }

    /// The agent's program: beside this one, or where `KILN_AGENT` says.
    ///
    /// # Errors
    ///
    /// `no_agent` when it is not there, `agent_not_static` when it would not run in every root file system.
    pub fn agent(&self) -> Result<PathBuf, Failure> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("kiln-agent"));
        let path = std::env::var_os("KILN_AGENT")
            .map(PathBuf::from)
            .or_else(beside)
            .unwrap_or_default();
        let program = fs_err::read(&path).map_err(|error| {
            Failure::new("no_agent", format!("the agent is not there: {error}"))
                .hint("`make build` puts it beside kiln; KILN_AGENT names another place")
        })?;
        // A static program names no loader; the name stands near the start of every dynamic one.
        let head = &program[..program.len().min(4096)];
        if head
            .windows(7)
            .any(|window| window == b"/ld-lin" || window == b"/ld64.s")
        {
            return Err(
                Failure::new("agent_not_static", format!("{} is not static", path.display()))
                    .hint("`make build` builds a static one"),
            );
        }
        Ok(path)
    }

    /// The toolboxes of this data directory.
    pub fn toolboxes(&self) -> Result<Toolboxes, Failure> {
        Toolboxes::new(&self.data_dir.join("toolboxes"), self.namespace_driver()?)
    }
}

fn read(path: &Path) -> Result<File, Failure> {
    let text = fs_err::read_to_string(path)
        .map_err(|error| Failure::new("config_unreadable", error).hint("check --config and KILN_CONFIG"))?;
    toml::from_str(&text).map_err(|error| {
        Failure::new(
            "config_invalid",
            format!("{}: {}", path.display(), error.to_string().trim_end()),
        )
        .hint("docs/configuration.md lists every key")
    })
}

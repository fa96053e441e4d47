//! Settings: one TOML file with strict keys, and where things are kept.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{
    records::Failure,
    sandbox::{namespace::NamespaceDriver, toolbox::Toolboxes},
};

/// Everything that can be set.
#[derive(Debug)]
pub struct Config {
    /// Where Kiln keeps its files.
    pub data_dir: PathBuf,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// Where Kiln keeps its files. Default: `$XDG_DATA_HOME/kiln`, else `~/.local/share/kiln`.
    data_dir: Option<PathBuf>,
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
        Ok(Self { data_dir })
    }

    /// The namespace driver of this data directory.
    pub fn namespace_driver(&self) -> Result<NamespaceDriver, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
        NamespaceDriver::new(&self.data_dir.join("sandboxes"), &program)
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

//! Writes the reference of all settings, and the settings in effect. Pure: no I/O.

use std::fmt::Write;

use serde::Serialize;
use toml::Value;

use super::{
    Config,
    keys::{SECTIONS, TOP},
};
use crate::settings::{Key, Section};

/// A file with every key, its meaning and its default, all commented out.
pub fn reference() -> String {
    let mut text = String::from(
        "# Every key of Kiln's configuration with its default. To set a key, remove the `#` before it and its section;\n\
         # an unknown key is an error. The variable KILN__SECTION__KEY wins over the file, as in\n\
         # KILN__SERVER__LISTEN=127.0.0.1:9000. `kiln config check` finds mistakes.\n\
         # This file is what `kiln config reference` prints. See also docs/configuration.md.\n",
    );
    for section in [TOP].iter().chain(SECTIONS) {
        text.push('\n');
        comment(&mut text, section.about);
        if !section.name.is_empty() {
            let _ = writeln!(text, "#[{}]\n", section.name);
        }
        for (index, key) in section.keys.iter().enumerate() {
            if index > 0 {
                text.push('\n');
            }
            comment(&mut text, key.about);
            let _ = writeln!(text, "#{} = {}", key.name, default_of(key));
        }
    }
    text
}

fn comment(text: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(text, "#{line}");
    }
}

/// A key's default as TOML, or an example.
fn default_of(key: &Key) -> String {
    (key.default)().map_or_else(|| key.example.unwrap_or("\"\"").to_owned(), |value| value.to_string())
}

impl Config {
    /// The settings in effect, as a file with the origin of each value. Secrets are left out.
    pub fn show(&self) -> String {
        let mut text = String::new();
        let data_dir = Value::String(self.data_dir.display().to_string());
        for key in TOP.keys {
            self.show_key(&mut text, &TOP, key, Some(&data_dir));
        }
        for section in SECTIONS {
            let values = self.section(section.name);
            let Some(values) = values else {
                let _ = writeln!(text, "\n# There is no [{}].", section.name);
                continue;
            };
            let _ = writeln!(text, "\n[{}]", section.name);
            for key in section.keys {
                self.show_key(&mut text, section, key, values.get(key.name));
            }
        }
        text
    }

    fn show_key(&self, text: &mut String, section: &Section, key: &Key, value: Option<&Value>) {
        let origin = self.origin(section, key).unwrap_or_else(|| "default".to_owned());
        let line = match value {
            Some(value) => format!("{} = {value}", key.name),
            None => format!("#{} =", key.name),
        };
        let origin = if value.is_none() { "not set" } else { &origin };
        let _ = writeln!(text, "{line:<48} # {origin}");
    }

    /// A section's values; none if the section is absent.
    fn section(&self, name: &str) -> Option<Value> {
        fn values(settings: impl Serialize) -> Option<Value> {
            Value::try_from(settings).ok()
        }
        match name {
            "s3" => values(self.s3.as_ref()?),
            "embedded_s3" => values(&self.embedded_s3),
            "store" => values(&self.store),
            "server" => values(&self.server),
            "trusted_listener" => values(&self.trusted_listener),
            "limits" => values(&self.limits),
            "metrics" => values(&self.metrics),
            "catalogue" => values(&self.catalogue),
            "webhooks" => values(&self.webhooks),
            "traces" => values(&self.traces),
            "log" => values(self.log.clone()),
            "auth" => values(&self.auth),
            "oidc" => values(&self.oidc),
            "jobs" => values(&self.jobs),
            "shell" => values(&self.shell),
            "isolation" => values(&self.isolation),
            "network" => values(&self.network),
            "docker" => values(&self.docker),
            "kubernetes" => values(&self.kubernetes),
            "emulation" => values(&self.emulation),
            "capacity" => values(&self.capacity),
            "boot_checks" => values(&self.boot_checks),
            "watch" => values(&self.watch),
            "remote_build_nodes" => values(&self.remote_build_nodes),
            "signing" => values(&self.signing),
            "trust" => values(&self.trust),
            "containers" => values(&self.containers),
            "retention" => values(&self.retention),
            _ => None,
        }
    }
}

/// The reference as tables, for the manual.
pub fn reference_tables() -> String {
    let mut text = String::new();
    for section in [TOP].iter().chain(SECTIONS) {
        if !section.name.is_empty() {
            let _ = writeln!(text, "### `[{}]`\n\n{}\n", section.name, joined(section.about));
        }
        text.push_str("| Key | Default | Meaning |\n|---|---|---|\n");
        for key in section.keys {
            let default = (key.default)().map_or_else(|| "–".to_owned(), |value| format!("`{value}`"));
            let about = joined(key.about).replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {default} | {about} |", key.name);
        }
        text.push('\n');
    }
    text
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{
        super::{keys::variable, source::Source},
        *,
    };

    /// The whole reference, with every key set.
    fn uncommented() -> String {
        let is_setting =
            |line: &&str| line.starts_with('[') || line.split_once(" = ").is_some_and(|(name, _)| !name.contains(' '));
        let lines = reference();
        let lines: Vec<_> = lines
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(is_setting)
            .collect();
        lines.join("\n")
    }

    #[test]
    fn the_reference_can_be_read_and_knows_every_key() {
        let mut source = Source::default();
        source.add_file(Path::new("kiln.toml"), &uncommented());
        assert_eq!(source.problems, []);
        let keys: usize = SECTIONS.iter().map(|section| section.keys.len() + 1).sum();
        assert_eq!(source.origins.len(), keys + 1);
        // The defaults in the reference are the real ones.
        for section in SECTIONS {
            for key in section.keys {
                if let Some(default) = (key.default)() {
                    assert_eq!(source.values[section.name][key.name], default, "{}", key.name);
                    assert_eq!((key.check)(&default), Ok(()));
                }
            }
        }
    }

    #[test]
    fn every_key_says_what_it_means() {
        for section in SECTIONS {
            assert!(!section.about.is_empty(), "{}", section.name);
            for key in section.keys {
                assert!(!key.about.is_empty(), "{}", key.name);
                assert!((key.default)().is_some() || key.example.is_some(), "{}", key.name);
                assert!(!variable(section, key).is_empty());
            }
        }
    }

    /// `INSTA_UPDATE=always` cannot write these; run `kiln config reference > examples/kiln.toml`.
    #[test]
    fn the_example_is_the_reference() {
        let example = fs_err::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/kiln.toml")).unwrap();
        assert!(
            example == reference(),
            "run `kiln config reference > examples/kiln.toml`"
        );
    }

    #[test]
    fn the_manual_has_the_tables() {
        let manual = fs_err::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md")).unwrap();
        assert!(
            manual.contains(reference_tables().trim_end()),
            "run `kiln config reference --markdown` and put it into docs/configuration.md"
        );
        // The tables are not all of the page.
        assert!(manual.starts_with("# Configuration\n"));
    }
}

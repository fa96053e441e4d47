//! Gathers the values that are set, and their origins: defaults, then the file, then the environment, then the command
//! line. Pure: no I/O; it gets the text and the variables.
//!
//! Every key is checked on its own, at its place, so that all mistakes are reported at once, each with its line.

use std::{collections::BTreeMap, ffi::OsString, path::Path};

use toml::{Table, Value, de::DeTable};

use super::{
    keys::{PREFIX, SECTIONS, TOP, variable_part},
    near::{unknown, unknown_variable},
    problem::{Origin, Problem},
};
use crate::settings::{Key, Section};

/// The values that are set.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The valid values, in the form of the file.
    pub(super) values: Table,
    /// The origin of each value, by section and key; of a section itself, by section and an empty key.
    pub(super) origins: BTreeMap<(&'static str, &'static str), Origin>,
    /// The mistakes.
    pub(super) problems: Vec<Problem>,
}

impl Source {
    /// Adds the values of a file.
    pub(super) fn add_file(&mut self, path: &Path, text: &str) {
        let line_of = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
        let place = |line: usize| Origin::File(path.to_owned(), line);
        let parsed = DeTable::parse(text).and_then(|spans| Ok((spans, toml::from_str::<Table>(text)?)));
        let (spans, values) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(span.start));
                let problem = Problem::new(place(line), error.message());
                self.problems.push(problem.hint("see https://toml.io for the syntax"));
                return;
            }
        };
        for (name, spanned) in spans.get_ref() {
            let here = place(line_of(name.span().start));
            let value = &values[name.get_ref().as_ref()];
            if let Some(key) = key_of(&TOP, name.get_ref()) {
                self.set(&TOP, key, value.clone(), here);
                continue;
            }
            let Some(section) = SECTIONS.iter().find(|section| section.name == name.get_ref().as_ref()) else {
                self.problems.push(unknown(here, "", name.get_ref()));
                continue;
            };
            let (Some(spans), Some(values)) = (spanned.get_ref().as_table(), value.as_table()) else {
                let wrong = format!("`{0}` is a section; write it as `[{0}]`", section.name);
                self.problems.push(Problem::new(here, wrong));
                continue;
            };
            self.open(section, here);
            for name in spans.keys() {
                let here = place(line_of(name.span().start));
                match key_of(section, name.get_ref()) {
                    Some(key) => self.set(section, key, values[name.get_ref().as_ref()].clone(), here),
                    None => self.problems.push(unknown(here, section.name, name.get_ref())),
                }
            }
        }
        self.problems.sort_by_key(Problem::line);
    }

    /// Adds the values of the environment.
    pub(super) fn add_environment(&mut self, variables: impl Iterator<Item = (OsString, OsString)>) {
        let mut variables: Vec<_> = variables
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            // `KILN_SERVER__LISTEN` is a mistake for `KILN__SERVER__LISTEN`; no other variable has this form.
            .filter(|(name, _)| name.to_ascii_uppercase().starts_with("KILN_") && name.contains("__"))
            .collect();
        variables.sort();
        for (name, value) in variables {
            let here = Origin::Environment(name.clone());
            let path = name.strip_prefix(PREFIX).and_then(|path| path.split_once("__"));
            let found = path.and_then(|(section, key)| {
                let section = SECTIONS.iter().find(|known| variable_part(known.name) == section)?;
                let key = section.keys.iter().find(|known| variable_part(known.name) == key)?;
                Some((section, key))
            });
            let Some((section, key)) = found else {
                self.problems.push(unknown_variable(here, &name));
                continue;
            };
            let Ok(value) = value.into_string() else {
                self.problems.push(Problem::new(here, "it is not UTF-8 text"));
                continue;
            };
            // As with `KEY=${UNSET}`: an empty variable sets nothing.
            if value.is_empty() {
                continue;
            }
            self.open(section, here.clone());
            self.set(section, key, value_of(key, value), here);
        }
    }

    fn open(&mut self, section: &Section, here: Origin) {
        self.values
            .entry(section.name)
            .or_insert_with(|| Value::Table(Table::new()));
        self.origins.entry((section.name, "")).or_insert(here);
    }

    fn set(&mut self, section: &Section, key: &Key, value: Value, here: Origin) {
        if let Err(wrong) = (key.check)(&value) {
            let wrong = wrong
                .trim()
                .replace('\n', ": ")
                .replace("expected u32", "expected a number");
            let wrong = wrong.replace("expected path string", "expected text");
            let about = key.about.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            let problem = Problem::new(here, format_args!("`{}`: {wrong}", key.name));
            self.problems.push(problem.hint(format_args!("{}: {about}", key.name)));
            return;
        }
        self.origins.insert((section.name, key.name), here);
        let table = match section.name {
            "" => Some(&mut self.values),
            name => self.values.get_mut(name).and_then(Value::as_table_mut),
        };
        if let Some(table) = table {
            table.insert(key.name.to_owned(), value);
        }
    }
}

fn key_of(section: &Section, name: &str) -> Option<&'static Key> {
    section.keys.iter().find(|key| key.name == name)
}

/// The value of a variable: its text as it is where the key takes text, or else parsed as TOML.
fn value_of(key: &Key, text: String) -> Value {
    let plain = Value::String(text);
    if (key.check)(&plain).is_ok() {
        return plain;
    }
    let parsed = toml::from_str::<Table>(&format!("value = {}", plain.as_str().unwrap_or_default()));
    match parsed.ok().and_then(|mut table| table.remove("value")) {
        Some(value) => value,
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Source {
        let mut source = Source::default();
        source.add_file(Path::new("kiln.toml"), text);
        source
    }

    fn environment(variables: &[(&str, &str)]) -> Source {
        let mut source = Source::default();
        source.add_environment(variables.iter().map(|(name, value)| (name.into(), value.into())));
        source
    }

    fn told(source: &Source) -> String {
        let lines = source
            .problems
            .iter()
            .map(|problem| format!("{problem} | {}\n", problem.hint));
        lines.collect()
    }

    #[test]
    fn every_mistake_in_a_file_is_told_with_its_line() {
        let source = file(
            "data_dir = 5\n\
             colour = 'blue'\n\
             [server]\n\
             lisen = 'x'\n\
             listen = 'localhost'\n\
             issuer = 'y'\n\
             [limits]\n\
             burst = -1\n\
             request_timeout = '5 fortnights'\n\
             [auth]\n\
             mode = 'off'\n\
             [ouath]\n\
             [[jobs]]\n",
        );
        insta::assert_snapshot!(told(&source), @r"
            kiln.toml:1: `data_dir`: invalid type: integer `5`, expected text | data_dir: The directory for toolboxes, sandboxes, jobs, records and the embedded S3 store. Its file system must support extended attributes and the upper layer of an overlay: ext4, xfs or btrfs, not NFS. `--data-dir` and `KILN_DATA_DIR` override this key. Default: `$XDG_DATA_HOME/kiln`, else `~/.local/share/kiln`.
            kiln.toml:2: there is no key or section `colour` | `kiln config reference` lists every key
            kiln.toml:4: there is no key `lisen` in [server] | is it `listen`?
            kiln.toml:5: `listen`: `localhost` is not an address such as 127.0.0.1:9000 or [::1]:9000 | listen: The address to listen on, or a list of addresses. Addresses other than loopback require authentication and TLS.
            kiln.toml:6: there is no key `issuer` in [server] | `issuer` is a key of [oidc]
            kiln.toml:8: `burst`: invalid value: integer `-1`, expected a number | burst: The number of requests allowed at once.
            kiln.toml:9: `request_timeout`: `5 fortnights` is not a length of time such as 30s, 5m or 90d | request_timeout: The time limit for reading a request, and again for answering it.
            kiln.toml:11: `mode`: unknown variant `off`, expected `auto` or `required` | mode: `required`: every request needs a token. `auto`: the same if `[oidc]` is present; otherwise no token is needed, and the server starts on loopback addresses only.
            kiln.toml:12: there is no key or section `ouath` | is it `auth`?
            kiln.toml:13: `jobs` is a section; write it as `[jobs]` | `kiln config reference` lists every key
        ");
        assert_eq!(source.values.len(), 3, "{:?}", source.values);
    }

    #[test]
    fn a_file_that_is_no_toml() {
        insta::assert_snapshot!(told(&file("data_dir = '/x'\n[server\n")), @r"
            kiln.toml:2: unclosed table, expected `]` | see https://toml.io for the syntax
        ");
        insta::assert_snapshot!(told(&file("[auth]\nmode='auto'\nmode='required'\n")), @r"
            kiln.toml:3: duplicate key | see https://toml.io for the syntax
        ");
    }

    #[test]
    fn variables_are_text_or_toml() {
        let source = environment(&[
            ("KILN__JOBS__NAMESPACE", "60"),
            ("KILN__JOBS__DEFAULT_IMAGE_SIZE_GIB", "60"),
            ("KILN__JOBS__ENABLE_DKMS", "false"),
            ("KILN__SERVER__LISTEN", "[\"127.0.0.1:1\", \"[::1]:1\"]"),
            ("KILN__EMBEDDED_S3__LISTEN", "127.0.0.1:2"),
            ("KILN__OIDC__READ_ROLES", "['a', 'b']"),
            ("KILN__STORE__URL", ""),
            ("KILN_LOG", "info"),
            ("OTHER__THING", "x"),
        ]);
        assert_eq!(told(&source), "");
        insta::assert_snapshot!(source.values, @r#"
            [embedded_s3]
            listen = "127.0.0.1:2"

            [jobs]
            default_image_size_gib = 60
            enable_dkms = false
            namespace = "60"

            [oidc]
            read_roles = ["a", "b"]

            [server]
            listen = ["127.0.0.1:1", "[::1]:1"]
        "#);
    }

    #[test]
    fn unknown_and_wrong_variables_are_told() {
        let source = environment(&[
            ("KILN__AUTH__MOOD", "required"),
            ("KILN__auth__mode", "required"),
            ("KILN_AUTH__MODE", "required"),
            ("kiln__auth__mode", "required"),
            ("KILN__DATA_DIR", "/x"),
            ("KILN__AUTH__MODE", "off"),
            ("KILN__LIMITS__BURST", "many"),
        ]);
        insta::assert_snapshot!(told(&source), @r#"
            KILN_AUTH__MODE: there is no such key | is it `KILN__AUTH__MODE`?
            KILN__AUTH__MODE: `mode`: unknown variant `off`, expected `auto` or `required` | mode: `required`: every request needs a token. `auto`: the same if `[oidc]` is present; otherwise no token is needed, and the server starts on loopback addresses only.
            KILN__AUTH__MOOD: there is no such key | is it `KILN__AUTH__MODE`?
            KILN__DATA_DIR: there is no such key | is it `KILN_DATA_DIR`?
            KILN__LIMITS__BURST: `burst`: invalid type: string "many", expected a number | burst: The number of requests allowed at once.
            KILN__auth__mode: there is no such key | is it `KILN__AUTH__MODE`?
            kiln__auth__mode: there is no such key | is it `KILN__AUTH__MODE`?
        "#);
        assert!(source.origins.keys().all(|(_, key)| key.is_empty()));
    }
}

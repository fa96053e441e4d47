//! What OpenSCAP does at the end of a layer: packages and commands in the image. Pure: no I/O.

use crate::{
    Wrong,
    fields::Fields,
    layer::{Command, Manager, address, line},
};

/// Which parts are asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts {
    pub install: bool,
    pub benchmark: bool,
    pub oval: bool,
}

/// The packages that bring OpenSCAP.
pub(crate) fn packages(manager: Manager) -> &'static [&'static str] {
    match manager {
        Manager::Dnf | Manager::Zypper => &["openscap-utils", "scap-security-guide", "bzip2"],
        Manager::Apt | Manager::Mmdebstrap => &["openscap-utils", "bzip2", "ssg-base", "ssg-debian", "ssg-debderived"],
    }
}

/// The commands, by the settings of one mapping. `report` is the key of the report of known flaws; if
/// `lenient`, a remedy that cannot be made is no error.
pub(crate) fn commands(
    parts: Parts,
    fields: &mut Fields<'_>,
    report: &str,
    lenient: bool,
) -> Result<Vec<Command>, Wrong> {
    let mut texts = Vec::new();
    for (key, default) in [
        ("profile", ""),
        ("benchmark_path", ""),
        ("oval_url", ""),
        ("results_path", "/root/scan.xml"),
        ("remediate_path", "/root/remediate.sh"),
        ("oval_xml", "/root/oval.xml"),
        (report, "/root/vulnerabilities.xml"),
    ] {
        let text = fields.text(key)?.unwrap_or_else(|| default.to_owned());
        texts.push(line(&fields.path(key), text)?);
    }
    let [profile, benchmark, url, results, remedy, xml, report] = texts.as_slice() else {
        return Ok(Vec::new());
    };
    if !(parts.install || parts.benchmark || parts.oval) {
        return Ok(Vec::new());
    }
    let key = fields.path("");
    let key = key.trim_end_matches('.');
    let shell = |name: &str, script: &str, words: &[&str]| {
        let argv: Vec<&str> = ["/bin/sh", "-c", script, "sh"].iter().chain(words).copied().collect();
        Command::new(format!("{key} ({name})"), &argv)
    };
    let mut commands = vec![Command::new(format!("{key} (version)"), &["oscap", "--version"])];
    if parts.benchmark {
        for (name, text) in [("profile", profile), ("benchmark_path", benchmark)] {
            if text.is_empty() {
                return Err(Wrong::missing(fields.path(name)));
            }
        }
        let scan = r#"oscap xccdf eval --fetch-remote-resources --profile "$1" --results "$2" "$3" || true"#;
        commands.push(shell("scap_benchmark", scan, &[profile, results, benchmark]));
        let fix = r#"oscap xccdf generate fix --output "$1" --profile "$2" "$3""#;
        let fix = if lenient {
            format!("{fix} || true")
        } else {
            fix.to_owned()
        };
        commands.push(shell("scap_benchmark", &fix, &[remedy, profile, results]));
    }
    if parts.oval {
        let url = address(&fields.path("oval_url"), url.clone())?;
        let fetch = r#"curl -fL -o "$2.got" "$1" && case $(head -c 3 "$2.got") in BZh) bzip2 -dc "$2.got" > "$2" && rm "$2.got" ;; *) mv "$2.got" "$2" ;; esac"#;
        commands.push(shell("oval_eval", fetch, &[&url, xml]));
        commands.push(shell(
            "oval_eval",
            r#"oscap oval eval --report "$1" "$2" || true"#,
            &[report, xml],
        ));
    }
    Ok(commands)
}

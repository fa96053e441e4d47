//! The choices of a build from a Containerfile, for the commands that make jobs. Pure: no I/O.

use std::path::PathBuf;

use clap::Args;
use kiln_records::{
    Code, Failure,
    containerfile::{check_containerfile, check_word},
    job::JobOptions,
};
use serde_json::json;

use super::values::Body;
use crate::config::{SecretSource, SiteSecret};

#[derive(Debug, Args)]
pub(super) struct OfContainerfile {
    /// The Containerfile's path in its context [default: Containerfile, else Dockerfile].
    #[arg(long, short, value_name = "PATH", value_parser = path)]
    file: Option<String>,

    /// The stage of the Containerfile to build [default: the last].
    #[arg(long, value_name = "STAGE", value_parser = word)]
    target: Option<String>,

    /// A secret of the site's that commands of the Containerfile may have; may be given several times.
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,
}

fn path(text: &str) -> Result<String, &'static str> {
    check_containerfile(text).map(|()| text.to_owned())
}

fn word(text: &str) -> Result<String, &'static str> {
    check_word(text).map(|()| text.to_owned())
}

impl OfContainerfile {
    /// The Containerfile, if one is chosen.
    pub(super) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Adds them to a request.
    ///
    /// # Errors
    ///
    /// `usage` for what cannot be the name of a secret.
    pub(super) fn add_to(&self, body: Body) -> Result<Body, Failure> {
        let no_name = |text: &String| check_word(text).is_err();
        if let Some(wrong) = self.secrets.iter().find(|text| no_name(text)) {
            let text = format!("`{}` is no name of a secret", wrong.escape_debug());
            return Err(Failure::new(Code::Usage, text)
                .hint("a server has its own, in [containers]; `kiln build` takes those of this machine"));
        }
        let secrets = (!self.secrets.is_empty()).then(|| json!(self.secrets));
        Ok(body
            .set("containerfile", self.file.clone())
            .set("target", self.target.clone())
            .set("secrets", secrets))
    }

    /// The options of a job, and the secrets that this machine has for it. `file` counts where none is chosen.
    ///
    /// # Errors
    ///
    /// `usage` for a secret that cannot be understood.
    pub(super) fn apply(
        &self,
        file: Option<&str>,
        options: JobOptions,
    ) -> Result<(JobOptions, Vec<SiteSecret>), Failure> {
        let mut brought = Vec::new();
        let mut names = Vec::new();
        for text in &self.secrets {
            let secret = secret(text).map_err(|why| {
                Failure::new(Code::Usage, format!("the secret `{}`: {why}", text.escape_debug()))
                    .hint("`id=NAME,src=FILE`, `id=NAME,env=VARIABLE`, or the name of one in [containers]")
            })?;
            match secret {
                Named::Site(name) => names.push(name),
                Named::Brought(secret) => {
                    names.push(secret.name.clone());
                    brought.push(secret);
                }
            }
        }
        let options = JobOptions {
            containerfile: self.file.as_deref().or(file).map(str::to_owned),
            target: self.target.clone(),
            secrets: (!names.is_empty()).then_some(names),
            ..options
        };
        Ok((options, brought))
    }
}

enum Named {
    Site(String),
    Brought(SiteSecret),
}

/// A secret as buildah and Docker name one, or its name alone.
fn secret(text: &str) -> Result<Named, String> {
    if !text.contains('=') {
        return Ok(Named::Site(word(text)?));
    }
    let (mut name, mut source) = (None, None);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("id", id)) => name = Some(word(id)?),
            Some(("src" | "source", path)) if !path.is_empty() => {
                let path = std::path::absolute(PathBuf::from(path)).map_err(|error| error.to_string())?;
                source = Some(SecretSource::File(path));
            }
            Some(("env", variable)) if !variable.is_empty() => {
                source = Some(SecretSource::Variable(variable.to_owned()));
            }
            Some(("type", "file")) if source.is_none() => {}
            Some(("type", "env")) => {}
            _ => return Err(format!("`{part}` is not understood")),
        }
    }
    let name = name.ok_or("it has no id")?;
    // As other tools do it.
    let source = source.unwrap_or_else(|| SecretSource::Variable(name.clone()));
    Ok(Named::Brought(SiteSecret::of_command(name, source)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_named_as_other_tools_name_them() {
        let read = |text: &str| match secret(text) {
            Ok(Named::Site(name)) => name,
            Ok(Named::Brought(secret)) => format!("{} {:?}", secret.name, secret.source),
            Err(why) => format!("error: {why}"),
        };
        for (text, expected) in [
            ("npm", "npm"),
            ("id=npm,src=/x/y", "npm File(\"/x/y\")"),
            ("type=file,id=npm,source=/x/y", "npm File(\"/x/y\")"),
            ("id=npm,env=TOKEN", "npm Variable(\"TOKEN\")"),
            ("id=TOKEN", "TOKEN Variable(\"TOKEN\")"),
            ("src=/x", "error: it has no id"),
            (
                "id=../x,src=/x",
                "error: Has other characters than letters, digits, `-`, `_` and `.`, or too many.",
            ),
            ("id=npm,mode=0400", "error: `mode=0400` is not understood"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}

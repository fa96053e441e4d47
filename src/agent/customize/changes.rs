//! Makes one change to an image: a command, a script, or an Ansible playbook. Downloads it from S3, and runs it in the
//! root.

use std::{io, path::Path};

use kiln_records::{ChangeKind, Code, Failure, ShellTime, ShellWish, archive::Limits, protocol::ChangeSource};
use tokio::process::Command;

use super::Customizing;
use crate::{
    build::ended,
    cause, fetch,
    process::{self, Finished, blocking},
    programs::Programs,
    root::OpenRoot,
    shell::{LocalLogin, Sshd},
    unpack,
};

/// The directory of scripts in the root while they run.
const PLACE: &str = ".kiln-change";

/// The directory of playbooks in the sandbox.
const PLAYBOOKS: &str = "playbook";

impl Customizing<'_> {
    /// Makes one change.
    ///
    /// # Errors
    ///
    /// `change_failed` when the change itself fails; `change_unreachable` when it cannot be downloaded.
    pub(super) async fn make(
        &self,
        change: &ChangeSource,
        open: &mut OpenRoot,
        has_twins: bool,
        programs: &mut Programs,
    ) -> Result<(), Failure> {
        self.events
            .say(format!("{}: {}", change.kind.name(), change.name))
            .await;
        let file = self.outputs.root().with_extension("change");
        let digests = fetch::object(self.http, &change.source, &file, Code::ChangeUnreachable, &|_, _| {}).await?;
        if change
            .source
            .sha256
            .as_ref()
            .is_some_and(|known| *known != digests.sha256)
        {
            return Err(Failure::new(
                Code::ChangeUnreachable,
                format!("{} differs from the uploaded file", change.name),
            ));
        }
        let command = match change.kind {
            ChangeKind::Run => self.command_line(&file)?,
            ChangeKind::Script => self.script(&file, open)?,
            ChangeKind::Ansible => self.playbook(&change.name, &file, has_twins).await?,
        };
        let mut finished = self.run(command).await?;
        programs.merge(std::mem::take(&mut finished.programs));
        finished.check(|tool| failed(change, tool))
    }

    fn command_line(&self, file: &Path) -> Result<Command, Failure> {
        let text = fs_err::read_to_string(file).map_err(|error| Failure::io("cannot read the command", &error))?;
        let mut command = Command::new("chroot");
        command.arg(self.outputs.root()).args(["/bin/sh", "-c"]).arg(text);
        Ok(command)
    }

    fn script(&self, file: &Path, open: &mut OpenRoot) -> Result<Command, Failure> {
        let content = fs_err::read(file).map_err(|error| Failure::io("cannot read the script", &error))?;
        let placed = open
            .file(PLACE, &content)
            .and_then(|()| executable(&self.outputs.root().join(PLACE)));
        placed.map_err(|error| Failure::io("cannot put the script into the image", &error))?;
        let mut command = Command::new("chroot");
        command.arg(self.outputs.root()).arg(Path::new("/").join(PLACE));
        Ok(command)
    }

    /// A playbook reaches the image like a user: over ssh, with a key that is made for it.
    async fn playbook(&self, name: &str, archive: &Path, has_twins: bool) -> Result<Command, Failure> {
        let failed = |error: io::Error| Failure::io("cannot prepare the playbook", &error);
        let dir = self.outputs.root().with_file_name(PLAYBOOKS);
        let (from, into) = (archive.to_owned(), dir.clone());
        blocking(move || {
            if into.exists() {
                fs_err::remove_dir_all(&into).map_err(failed)?;
            }
            // Of a playbook's files, only their contents matter.
            unpack::unpack(&from, &into, &Limits::default(), &mut unpack::Lost::default()).map(drop)
        })
        .await?;
        let login = LocalLogin::make().await?;
        let wish = ShellWish {
            keys: login.public_key().map_err(failed)?,
            jail: true,
            when: ShellTime::Customize,
        };
        let sshd = Sshd::prepare(&wish, &self.outputs.root(), &self.job.environment, has_twins).await?;
        let inventory = login.inventory(&sshd).map_err(failed)?;
        let mut command = Command::new("ansible-playbook");
        command.arg("--inventory").arg(inventory).arg(name).current_dir(dir);
        command
            .env("ANSIBLE_NOCOLOR", "1")
            .env("ANSIBLE_PYTHON_INTERPRETER", "auto_silent");
        command.env("ANSIBLE_LOCALHOST_WARNING", "false").env("HOME", "/root");
        Ok(command)
    }

    async fn run(&self, mut command: Command) -> Result<Finished, Failure> {
        command.envs(self.job.environment.iter().map(|(name, value)| (name, value)));
        command.env("DEBIAN_FRONTEND", "noninteractive");
        if let Some(emulator) = self.emulator {
            command.env("QEMU_CPU", &emulator.cpu);
        }
        process::run(command, self.emulator, self.events, |_| false).await
    }
}

fn executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

fn failed(change: &ChangeSource, tool: &Finished) -> Failure {
    let failure = cause::cause_of_script(&tool.tail).unwrap_or_else(|| {
        let how = match tool.status.code() {
            Some(code) => format!("ended with code {code}"),
            None => format!("was ended: {}", tool.status),
        };
        let last = tool.last_words().map(|line| format!("; its last line: {line}"));
        let last = last.unwrap_or_default();
        Failure::new(
            Code::ChangeFailed,
            format!("{} `{}` {how}{last}", change.kind.name(), change.name),
        )
        .hint("its output precedes this line in the log; the base image is unchanged")
    });
    // A playbook's programs are not ansible's children.
    let own = tool.failures.own.filter(|_| change.kind != ChangeKind::Ansible);
    let cleared = own.is_some_and(|own| ended::is_cleared(own, failure.code));
    failure.beyond_twins(cleared)
}

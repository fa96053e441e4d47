//! `kiln catalogue`: finds the images of complete sets, and moves the channels that lead to them.

use clap::{Args, Subcommand, ValueEnum};
use kiln_records::{
    Code, Failure,
    arch::Arch,
    set::name::{Which, check_channel, check_name, parse},
};
use reqwest::Method;

use super::{
    records::ArchList,
    session::Session,
    values::{Body, arch},
};
use crate::client::collection::{CATALOGUE, CHANNELS, PROMOTIONS};

#[derive(Debug, Subcommand)]
pub(super) enum CatalogueCommand {
    /// List the complete sets
    List(ArchList),
    /// Find the image of a set for an architecture
    Resolve(Resolve),
    /// Let a channel lead to a version, whose images are checked first
    Promote(Promote),
    /// Let a channel lead to the version before; once more goes back further
    Rollback(OfChannel),
    /// Empty a channel
    Withdraw(OfChannel),
    /// Show where a channel has led to, the latest first
    History(OfChannel),
    /// Show where the channels lead now
    Channels(Channels),
    /// Print the catalogue in the form of another service
    Export(Export),
}

#[derive(Debug, Args)]
pub(super) struct Resolve {
    /// The set: NAME@VERSION, NAME:CHANNEL, or NAME for the newest complete version.
    #[arg(value_name = "SET")]
    set: String,

    /// The architecture, as `uname -m` says it.
    #[arg(long, value_parser = arch(), default_value = "x86_64")]
    arch: Arch,
}

#[derive(Debug, Args)]
pub(super) struct Promote {
    /// The set.
    #[arg(value_name = "NAME@VERSION")]
    set: String,

    /// The channel, such as `stable`.
    channel: String,

    /// The number of the channel's latest change that you know of, 0 for none: if there is a later one, nothing is changed.
    #[arg(long, value_name = "N")]
    after: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct OfChannel {
    /// The name of the sets.
    name: String,

    /// The channel.
    channel: String,
}

#[derive(Debug, Args)]
pub(super) struct Channels {
    /// Only those of sets of this name.
    #[arg(long)]
    name: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Export {
    /// The form.
    #[arg(value_enum)]
    form: Form,

    /// The name of the sets; for `openstack`, NAME@VERSION, NAME:CHANNEL or NAME.
    #[arg(value_name = "SET")]
    set: String,

    /// The architecture, for `openstack`.
    #[arg(long, value_parser = arch(), default_value = "x86_64")]
    arch: Arch,

    /// One entry for each architecture, as before several could share one, for `release-images`.
    #[arg(long)]
    single_arch: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    /// Assisted Installer's OS_IMAGES.
    OsImages,
    /// Assisted Installer's RELEASE_IMAGES.
    ReleaseImages,
    /// The properties of an image in OpenStack.
    Openstack,
}

impl CatalogueCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let client = &session.client;
        match self {
            Self::List(list) => {
                // The server filters: an entry has several architectures.
                let entries = client.list_as_answered(&CATALOGUE, &list.into()).await?;
                session.show_list(&CATALOGUE, entries)
            }
            Self::Resolve(resolve) => {
                let (name, which) = parse(&resolve.set).map_err(wrong)?;
                let (kind, which) = match &which {
                    Which::Version(version) => ("versions", version),
                    Which::Channel(channel) => ("channels", channel),
                };
                let mut path = CATALOGUE.path.to_vec();
                path.extend([name.as_str(), kind, which, resolve.arch.name()]);
                session.show(&client.get(&path).await?)
            }
            Self::Promote(promote) => {
                let (name, Which::Version(version)) = parse(&promote.set).map_err(wrong)? else {
                    return Err(wrong("a version is promoted").hint(format!("write `{}@VERSION`", promote.set)));
                };
                check_channel(&promote.channel).map_err(wrong)?;
                let body = Body::default()
                    .set("version", Some(version))
                    .set("after", promote.after)
                    .into_value();
                let path = of_channel(&name, &promote.channel, Some("promote"));
                session.show(&client.send(Method::POST, &path, &[], Some(&body)).await?)
            }
            Self::Rollback(of) => {
                let path = of.path(Some("rollback"))?;
                session.show(&client.send(Method::POST, &path, &[], None).await?)
            }
            Self::Withdraw(of) => {
                client.send(Method::DELETE, &of.path(None)?, &[], None).await?;
                let note = format_args!("the channel {} of {} leads to no set now", of.channel, of.name);
                session.printer.note(note);
                Ok(())
            }
            Self::History(of) => {
                let changes = client.get(&of.path(Some("history"))?).await?;
                session.show_list(&PROMOTIONS, changes.into_items())
            }
            Self::Channels(channels) => {
                let query: Vec<_> = channels.name.iter().map(|name| ("name", name.as_str())).collect();
                let now = client.send(Method::GET, CHANNELS.path, &query, None).await?;
                session.show_list(&CHANNELS, now.into_items())
            }
            Self::Export(export) => export.run(session).await,
        }
    }
}

impl Export {
    /// Prints JSON whatever the format: it is what the other service reads.
    async fn run(self, session: &Session) -> Result<(), Failure> {
        let exports = ["kiln", "v1", "exports"];
        let form = if self.single_arch { "single" } else { "multi" };
        let lists = [("name", self.set.as_str()), ("form", form)];
        let one = [("set", self.set.as_str()), ("cpu_architecture", self.arch.name())];
        let (path, query): (&[&str], _) = match self.form {
            Form::OsImages => (&["assisted-installer", "os-images"], lists),
            Form::ReleaseImages => (&["assisted-installer", "release-images"], lists),
            Form::Openstack => (&["openstack"], one),
        };
        let answer = session
            .client
            .send(Method::GET, &[&exports[..], path].concat(), &query, None)
            .await?;
        session.show_json(&answer)
    }
}

impl OfChannel {
    fn path<'a>(&'a self, what: Option<&'a str>) -> Result<Vec<&'a str>, Failure> {
        check_name(&self.name).map_err(wrong)?;
        check_channel(&self.channel).map_err(wrong)?;
        Ok(of_channel(&self.name, &self.channel, what))
    }
}

fn of_channel<'a>(name: &'a str, channel: &'a str, what: Option<&'a str>) -> Vec<&'a str> {
    let mut path = CHANNELS.path.to_vec();
    path.extend([name, channel]);
    path.extend(what);
    path
}

fn wrong(why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Usage, why)
}

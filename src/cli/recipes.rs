//! `kiln recipes`: the commands for recipes on a server.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kiln_records::{CacheDepth, Code, Failure, LinuxDistribution, RecipeType, TwinLevel, arch::Arch};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    job_options::{DatingOptions, Locking},
    printer::Printer,
    read_recipe::read_recipe,
    records::{ArchList, Common, Plain, Which, create, request},
    session::Session,
    upload::{Objects, fill_created, upload},
    values::{
        Body, LinkOptions, TemplateOptions, arch, boolean, cache, cache_or_default, linux_distribution, recipe_type,
        twins, twins_or_default,
    },
};
use crate::{
    client::{Upload, collection::RECIPES},
    orchestrate::recipe::RecipeArchive,
};

#[derive(Debug, Subcommand)]
pub(super) enum RecipesCommand {
    #[command(flatten)]
    Common(Common<ArchList, Plain>),
    /// Create a record.
    #[command(display_order = 3)]
    Create(Box<CreateRecipe>),
    /// Change a record.
    #[command(display_order = 4)]
    Update(Box<UpdateRecipe>),
}

#[derive(Debug, Args)]
pub(super) struct CreateRecipe {
    /// Its name [default with --from: that of the directory or archive].
    #[arg(long, required_unless_present = "from")]
    name: Option<String>,

    /// The tool that builds it [default with --from: what the archive is].
    #[arg(long, value_name = "TYPE", value_parser = recipe_type(), required_unless_present = "from")]
    recipe_type: Option<RecipeType>,

    /// The distribution of its images.
    #[arg(long, value_name = "DISTRIBUTION", value_parser = linux_distribution())]
    linux_distribution: LinuxDistribution,

    /// The architecture of its images [default: that of its description, else x86_64]. With --from, several separated by
    /// commas make a recipe each.
    #[arg(long, value_delimiter = ',', value_parser = arch())]
    arch: Vec<Arch>,

    /// Whether its jobs need their own kernel [default: true].
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    require_dkms: Option<bool>,

    /// The tools that may run as native twins in emulated builds [default: the server's level].
    #[arg(long, value_name = "LEVEL", value_parser = twins())]
    twins: Option<TwinLevel>,

    /// How much of earlier jobs its jobs may reuse [default: the server's setting].
    #[arg(long, value_name = "DEPTH", value_parser = cache())]
    cache: Option<CacheDepth>,

    #[command(flatten)]
    dating: DatingOptions,

    #[command(flatten)]
    locking: Locking,

    /// A profile that its jobs build; may be given several times [default: those that its description has in force by itself].
    #[arg(long = "profile", value_name = "NAME")]
    profiles: Vec<String>,

    /// Upload this directory, as an archive, or this archive as the recipe.
    #[arg(long, value_name = "DIR|FILE", conflicts_with_all = ["link_path", "link_etag", "link_type"])]
    from: Option<PathBuf>,

    #[command(flatten)]
    link: LinkOptions,

    #[command(flatten)]
    template: TemplateOptions,
}

#[derive(Debug, Args)]
pub(super) struct UpdateRecipe {
    #[command(flatten)]
    which: Which,

    /// The architecture of its images.
    #[arg(long, value_parser = arch())]
    arch: Option<Arch>,

    /// Whether its jobs need their own kernel.
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    require_dkms: Option<bool>,

    /// The tools that may run as native twins in emulated builds; `default` means the server's level.
    #[arg(long, value_name = "LEVEL", value_parser = twins_or_default())]
    twins: Option<Value>,

    /// How much of earlier jobs its jobs may reuse; `default` means the server's setting.
    #[arg(long, value_name = "DEPTH", value_parser = cache_or_default())]
    cache: Option<Value>,

    #[command(flatten)]
    dating: DatingOptions,

    #[command(flatten)]
    locking: Locking,

    /// A profile that its jobs build; may be given several times. An empty name means those that its description has in force by
    /// itself.
    #[arg(long = "profile", value_name = "NAME")]
    profiles: Vec<String>,

    #[command(flatten)]
    link: LinkOptions,

    #[command(flatten)]
    template: TemplateOptions,
}

impl RecipesCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            RecipesCommand::Common(command) => command.run(&RECIPES, session).await,
            RecipesCommand::Create(recipe) => {
                if let Some(path) = recipe.from.clone() {
                    return recipe.create_from(&path, session).await;
                }
                if recipe.arch.len() > 1 {
                    return Err(Failure::new(Code::Usage, "a link can be that of one recipe only")
                        .hint("--from uploads an archive for each of several architectures"));
                }
                let arch = recipe.arch.first().copied();
                create(session, &RECIPES, &recipe.body(arch)?.into_value()).await
            }
            RecipesCommand::Update(change) => {
                let profiles = change.profiles();
                let body = Body::default()
                    .set("link", change.link.link())
                    .set("arch", change.arch.map(Arch::name))
                    .set("require_dkms", change.require_dkms)
                    .set("twins", change.twins)
                    .set("cache", change.cache)
                    .set("profiles", profiles)
                    .set("template_dictionary", change.template.dictionary()?);
                let body = change.locking.add_to(change.dating.add_to(body)).into_change()?;
                let found = session.client.find(&RECIPES, &change.which.id).await?;
                session.show(&request(session, Method::PATCH, &RECIPES, &found, Some(&body)).await?)
            }
        }
    }
}

impl UpdateRecipe {
    /// The profiles as a request has them, if they change.
    fn profiles(&self) -> Option<Value> {
        let named: Vec<_> = self.profiles.iter().filter(|name| !name.is_empty()).collect();
        let chosen = if named.is_empty() { Value::Null } else { json!(named) };
        (!self.profiles.is_empty()).then_some(chosen)
    }
}

impl CreateRecipe {
    fn body(&self, arch: Option<Arch>) -> Result<Body, Failure> {
        let body = Body::default()
            .text("name", self.name.clone())
            .set("recipe_type", self.recipe_type.map(RecipeType::name))
            .set("linux_distribution", Some(self.linux_distribution.name()))
            .set("link", self.link.link())
            .set("arch", arch.map(Arch::name))
            .set("require_dkms", self.require_dkms)
            .set("twins", self.twins.map(TwinLevel::name))
            .set("cache", self.cache.map(CacheDepth::name))
            .set("profiles", (!self.profiles.is_empty()).then(|| self.profiles.clone()))
            .set("template_dictionary", self.template.dictionary()?);
        Ok(self.locking.add_to(self.dating.add_to(body)))
    }

    /// Says for what jobs of the recipe would be refused, as far as that can be told here.
    fn warn(&self, archive: &RecipeArchive, printer: &Printer) {
        let hint = "`kiln check recipe` says what is understood of it";
        for warning in &archive.warnings {
            printer.warning(warning, Some(hint));
        }
        let is_declared = |arch: &&Arch| archive.declared.is_empty() || archive.declared.contains(arch);
        for arch in self.arch.iter().filter(|arch| !is_declared(arch)) {
            printer.warning(format_args!("its description has no image type for {arch}"), Some(hint));
        }
    }

    async fn create_from(mut self, path: &Path, session: &Session) -> Result<(), Failure> {
        let archive = read_recipe(path, &session.printer)?;
        self.warn(&archive, &session.printer);
        self.name.get_or_insert_with(|| archive.name.clone());
        self.recipe_type.get_or_insert(archive.kind.into());
        if let ([only], []) = (&archive.declared[..], &self.arch[..]) {
            self.arch.push(*only);
        }
        self.arch.sort_unstable();
        self.arch.dedup();
        let media_type = archive.media_type();
        // The records have an object each: what is one's alone can be deleted with it.
        let bytes = archive.bytes;
        let fill = async |arch: Option<Arch>| {
            let body = self.body(arch)?.into_value();
            fill_created(session, &RECIPES, &body, Objects::Uploaded, async |id| {
                let to = ["kiln", "v1", "recipes", id, "archive"];
                upload(session, &to, "recipe", Upload::bytes(bytes.clone(), media_type)).await
            })
            .await
        };
        if self.arch.len() < 2 {
            return session.show(&fill(self.arch.first().copied()).await?);
        }
        let mut made = Vec::new();
        for arch in &self.arch {
            match fill(Some(*arch)).await {
                Ok(recipe) => made.push(recipe),
                Err(mut failure) => {
                    let ids: Vec<_> = made.iter().filter_map(|recipe| recipe.text("id")).collect();
                    failure.detail = format!("{arch}: {}", failure.detail);
                    return Err(if ids.is_empty() {
                        failure
                    } else {
                        failure.hint(format!("made before it, and still there: {}", ids.join(", ")))
                    });
                }
            }
        }
        session.show_list(&RECIPES, made)
    }
}

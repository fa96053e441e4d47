//! `/recipes`: the records of recipes. Touches the database and S3.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use kiln_records::{
    CacheDepth, Link, LinuxDistribution, Moment, Recipe, RecipeId, RecipeType, TemplateValue, TwinLevel, arch::Arch,
};

use super::{Change, find, id, must_have_no_link};
use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields::{List, Name, Nullable, body},
        lists::{ArchParameter, ListParameters, ListQuery},
        problem::{Problem, Result},
    },
    store::{Collection, Side},
};

body! {
    /// A new recipe.
    pub(in crate::api) struct RecipeCreate {
        /// Its name.
        name: Name,
        /// The tool that builds it.
        recipe_type: RecipeType,
        /// The distribution of the resulting image.
        linux_distribution: LinuxDistribution,
        /// The recipe's archive, if it already exists in S3.
        link: Nullable<Link>,
        /// The architecture of the resulting image; the default is `x86_64`.
        arch: Option<Arch>,
        /// Whether the build loads kernel modules; the default is true.
        require_dkms: Option<bool>,
        /// Values for the recipe's templates.
        template_dictionary: Nullable<List<TemplateValue>>,
        /// The tools that may run as native twins in emulated builds; null means the server's level.
        twins: Nullable<TwinLevel>,
        /// How much of earlier jobs its jobs may reuse; null means the server's setting.
        cache: Nullable<CacheDepth>,
        /// Whether equal inputs are to give equal images; null means no.
        reproducible: Nullable<bool>,
        /// The date in its reproducible images, in seconds since 1970; null means that of its newest file.
        source_date_epoch: Nullable<u32>,
        /// Whether other packages than those of its lock file are refused; null means no.
        locked: Nullable<bool>,
        /// The profiles that its jobs build; null means those that the description has in force by itself.
        profiles: Nullable<List<Name>>,
    }
}

body! {
    /// Changes to a recipe.
    pub(in crate::api) struct RecipeUpdate with at least 1 member {
        /// The recipe's archive, unless it already has one.
        link: Option<Link>,
        /// The architecture of the resulting image.
        arch: Option<Arch>,
        /// Whether the build loads kernel modules.
        require_dkms: Option<bool>,
        /// Values for the recipe's templates. They replace all existing ones.
        template_dictionary: Option<List<TemplateValue>>,
        /// The tools that may run as native twins in emulated builds; null means the server's level.
        twins: Nullable<TwinLevel>,
        /// How much of earlier jobs its jobs may reuse; null means the server's setting.
        cache: Nullable<CacheDepth>,
        /// Whether equal inputs are to give equal images; null means no.
        reproducible: Nullable<bool>,
        /// The date in its reproducible images, in seconds since 1970; null means that of its newest file.
        source_date_epoch: Nullable<u32>,
        /// Whether other packages than those of its lock file are refused; null means no.
        locked: Nullable<bool>,
        /// The profiles that its jobs build; null means those that the description has in force by itself.
        profiles: Nullable<List<Name>>,
    }
}

/// List the recipes.
#[utoipa::path(get, path = "/recipes", tag = "recipes", params(ListParameters, ArchParameter),
    responses((status = 200, body = Vec<Recipe>), (status = 400, body = Problem)))]
pub(in crate::api) async fn list(State(api): State<Api>, list: ListQuery<Recipe>) -> Result<Response> {
    list.answer(move |query| {
        let api = api.clone();
        async move { Collection::<Recipe>::page_text(&*api.store, &query).await }
    })
    .await
}

/// Create a recipe.
#[utoipa::path(post, path = "/recipes", tag = "recipes", request_body = RecipeCreate,
    responses((status = 201, body = Recipe), (status = 502, body = Problem)))]
pub(in crate::api) async fn create(State(api): State<Api>, body: RawBody) -> Answer<(StatusCode, Json<Recipe>)> {
    let given: RecipeCreate = body.read()?;
    let recipe = Recipe {
        id: RecipeId::new(),
        created: Moment::now(),
        link: given.link.flatten(),
        recipe_type: given.recipe_type,
        linux_distribution: given.linux_distribution,
        name: given.name,
        arch: given.arch.unwrap_or(Arch::X86_64),
        require_dkms: given.require_dkms.unwrap_or(true),
        template_dictionary: given.template_dictionary.unwrap_or_else(|| Some(Vec::new())),
        twins: given.twins.flatten(),
        cache: given.cache.flatten(),
        reproducible: given.reproducible.flatten(),
        source_date_epoch: given.source_date_epoch.flatten(),
        locked: given.locked.flatten(),
        profiles: given.profiles.flatten(),
        deleted: None,
    };
    let mut objects = Vec::new();
    if let Some(link) = &recipe.link {
        api.artifacts.must_exist(&link.path).await?;
        objects.push(link.path.clone());
    }
    Collection::<Recipe>::insert(&*api.store, &recipe, &objects).await?;
    Ok((StatusCode::CREATED, Json(recipe)))
}

/// Show a recipe.
#[utoipa::path(get, path = "/recipes/{id}", tag = "recipes", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = Recipe), (status = 404, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<Recipe>> {
    Ok(Json(find::<Recipe>(&*api.store, Side::Live, &text).await?.record))
}

/// Change a recipe. Either all requested changes are made, or none.
#[utoipa::path(patch, path = "/recipes/{id}", tag = "recipes", request_body = RecipeUpdate,
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = Recipe), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(in crate::api) async fn update(
    State(api): State<Api>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<Recipe>> {
    let current = find::<Recipe>(&*api.store, Side::Live, &text).await?;
    let change: RecipeUpdate = body.read()?;
    Ok(Json(super::change(&api, &*api.store, current, &change).await?))
}

impl Change<Recipe> for RecipeUpdate {
    async fn apply(&self, api: &Api, recipe: &mut Recipe) -> Result<Vec<String>> {
        let mut objects = Vec::new();
        if let Some(link) = self.link.as_ref().filter(|link| recipe.link.as_ref() != Some(link)) {
            must_have_no_link(recipe.link.as_ref())?;
            api.artifacts.must_exist(&link.path).await?;
            objects.push(link.path.clone());
            recipe.link = Some(link.clone());
        }
        recipe.arch = self.arch.unwrap_or(recipe.arch);
        recipe.require_dkms = self.require_dkms.unwrap_or(recipe.require_dkms);
        recipe.twins = self.twins.unwrap_or(recipe.twins);
        recipe.cache = self.cache.unwrap_or(recipe.cache);
        recipe.reproducible = self.reproducible.unwrap_or(recipe.reproducible);
        recipe.source_date_epoch = self.source_date_epoch.unwrap_or(recipe.source_date_epoch);
        recipe.locked = self.locked.unwrap_or(recipe.locked);
        if let Some(profiles) = &self.profiles {
            recipe.profiles.clone_from(profiles);
        }
        if let Some(values) = &self.template_dictionary {
            recipe.template_dictionary = Some(values.clone());
        }
        Ok(objects)
    }
}

/// Delete a recipe. It can be restored.
#[utoipa::path(delete, path = "/recipes/{id}", tag = "recipes", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 204), (status = 404, body = Problem)))]
pub(in crate::api) async fn delete(State(api): State<Api>, Path(text): Path<String>) -> Result<StatusCode> {
    match Collection::<Recipe>::delete(&*api.store, Some(id(&text)?), Moment::now()).await? {
        0 => Err(Problem::not_found()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Delete every recipe. They can be restored.
#[utoipa::path(delete, path = "/recipes", tag = "recipes", responses((status = 204)))]
pub(in crate::api) async fn delete_all(State(api): State<Api>) -> Result<StatusCode> {
    Collection::<Recipe>::delete(&*api.store, None, Moment::now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! `/recipes`.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Change, find, id, must_have_no_link};
use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields::{self, Fields},
        lists::{ArchParameter, ListParameters, ListQuery},
        objects::must_exist,
        problem::{Problem, Result},
    },
    arch::Arch,
    records::{Link, LinuxDistribution, Moment, Recipe, RecipeId, RecipeType, TemplateValue, TwinLevel},
    store::{Collection, Side},
};

/// What makes a recipe.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct RecipeCreate {
    /// What people call it.
    #[schema(min_length = 1, max_length = 1024)]
    name: String,
    /// The tool that builds it.
    recipe_type: RecipeType,
    /// The distribution that comes out.
    linux_distribution: LinuxDistribution,
    /// The recipe's archive, if it is in S3 already.
    link: Option<Link>,
    /// The architecture of what comes out; `x86_64` unless said otherwise.
    #[schema(nullable = false)]
    arch: Option<Arch>,
    /// Whether the build loads kernel modules; true unless said otherwise.
    #[schema(nullable = false)]
    require_dkms: Option<bool>,
    /// Values for the recipe's templates.
    template_dictionary: Option<Vec<TemplateValue>>,
    /// Which tools may run as native twins in its emulated builds; null: as the server says.
    twins: Option<TwinLevel>,
}

/// What can be changed of a recipe.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct RecipeUpdate {
    /// The recipe's archive, if it has none yet.
    #[schema(nullable = false)]
    link: Option<Link>,
    /// The architecture of what comes out.
    #[schema(nullable = false)]
    arch: Option<Arch>,
    /// Whether the build loads kernel modules.
    #[schema(nullable = false)]
    require_dkms: Option<bool>,
    /// Values for the recipe's templates, in place of all it has.
    #[schema(nullable = false)]
    template_dictionary: Option<Vec<TemplateValue>>,
    /// Which tools may run as native twins in its emulated builds; null: as the server says.
    twins: Option<TwinLevel>,
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

/// Make a recipe.
#[utoipa::path(post, path = "/recipes", tag = "recipes", request_body = RecipeCreate,
    responses((status = 201, body = Recipe), (status = 502, body = Problem)))]
pub(in crate::api) async fn create(State(api): State<Api>, body: RawBody) -> Answer<(StatusCode, Json<Recipe>)> {
    let mut fields = Fields::of(body.json()?)?;
    let name = fields.required("name", fields::name);
    let recipe_type = fields.required("recipe_type", fields::recipe_type);
    let linux_distribution = fields.required("linux_distribution", fields::linux_distribution);
    let link = fields.nullable("link", fields::link);
    let arch = fields.optional("arch", fields::arch);
    let require_dkms = fields.optional("require_dkms", fields::boolean);
    let template_dictionary = fields.nullable("template_dictionary", fields::template_dictionary);
    let twins = fields.nullable("twins", fields::twins);
    fields.finish()?;

    let recipe = Recipe {
        id: RecipeId::new(),
        created: Moment::now(),
        link: link?.flatten(),
        recipe_type: recipe_type?,
        linux_distribution: linux_distribution?,
        name: name?,
        arch: arch?.unwrap_or(Arch::X86_64),
        require_dkms: require_dkms?.unwrap_or(true),
        template_dictionary: template_dictionary?.unwrap_or_else(|| Some(Vec::new())),
        twins: twins?.flatten(),
        deleted: None,
    };
    let mut objects = Vec::new();
    if let Some(link) = &recipe.link {
        must_exist(&api, &link.path).await?;
        objects.push(link.path.clone());
    }
    Collection::<Recipe>::insert(&*api.store, &recipe, &objects).await?;
    Ok((StatusCode::CREATED, Json(recipe)))
}

/// One recipe.
#[utoipa::path(get, path = "/recipes/{id}", tag = "recipes", params(("id" = String, Path, description = "Its id")),
    responses((status = 200, body = Recipe), (status = 404, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<Recipe>> {
    Ok(Json(find::<Recipe>(&*api.store, Side::Live, &text).await?.record))
}

/// Change a recipe: everything that is asked for, or nothing.
#[utoipa::path(patch, path = "/recipes/{id}", tag = "recipes", request_body = RecipeUpdate,
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, body = Recipe), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(in crate::api) async fn update(
    State(api): State<Api>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<Recipe>> {
    let current = find::<Recipe>(&*api.store, Side::Live, &text).await?;
    let mut fields = Fields::of(body.json()?)?;
    let link = fields.optional("link", fields::link);
    let arch = fields.optional("arch", fields::arch);
    let require_dkms = fields.optional("require_dkms", fields::boolean);
    let template_dictionary = fields.optional("template_dictionary", fields::template_dictionary);
    let twins = fields.nullable("twins", fields::twins);
    fields.finish()?;
    let change = Changes {
        link: link?,
        arch: arch?,
        require_dkms: require_dkms?,
        template_dictionary: template_dictionary?,
        twins: twins?,
    };
    Ok(Json(super::change(&api, &*api.store, current, &change).await?))
}

struct Changes {
    link: Option<Link>,
    arch: Option<Arch>,
    require_dkms: Option<bool>,
    template_dictionary: Option<Vec<TemplateValue>>,
    /// None leaves it as it is; none within forgets it.
    #[expect(clippy::option_option, reason = "absent and null are different things here")]
    twins: Option<Option<TwinLevel>>,
}

impl Change<Recipe> for Changes {
    async fn apply(&self, api: &Api, recipe: &mut Recipe) -> Result<Vec<String>> {
        let mut objects = Vec::new();
        if let Some(link) = self.link.as_ref().filter(|link| recipe.link.as_ref() != Some(link)) {
            must_have_no_link(recipe.link.as_ref())?;
            must_exist(api, &link.path).await?;
            objects.push(link.path.clone());
            recipe.link = Some(link.clone());
        }
        recipe.arch = self.arch.unwrap_or(recipe.arch);
        recipe.require_dkms = self.require_dkms.unwrap_or(recipe.require_dkms);
        recipe.twins = self.twins.unwrap_or(recipe.twins);
        if let Some(values) = &self.template_dictionary {
            recipe.template_dictionary = Some(values.clone());
        }
        Ok(objects)
    }
}

/// Delete a recipe. It can be restored.
#[utoipa::path(delete, path = "/recipes/{id}", tag = "recipes", params(("id" = String, Path, description = "Its id")),
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

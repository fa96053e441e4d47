//! The description of the API: generated from the handlers, served as `/openapi.json` with a page to read it at
//! `/docs`. Pure: no I/O.

use axum::{Json, Router, middleware, routing::get};
use serde_json::Value;
use utoipa::{
    OpenApi as _,
    openapi::{
        Components, ContentBuilder, HttpMethod, OpenApi, Ref, RefOr, Response, ResponseBuilder, SecurityRequirement,
        Server,
        extensions::Extensions,
        path::Operation,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_swagger_ui::SwaggerUi;

use super::{Api, kiln, limits, problem::Problem, schemas, security_headers, service, uploads, v2, v3};

/// The extension that says how large the body of a request may be, in bytes, unless the site has set something else.
const MOST_BYTES: &str = "x-kiln-most-bytes";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Kiln",
        description = "Builds operating-system images. Compatible with version 3 of the Image Management Service (IMS). \
            Every path is also served below `/apis/ims`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem, uploads::UploadKind))
)]
struct Document;

/// Every documented route, with its description.
pub(super) fn routes() -> OpenApiRouter<Api> {
    let mut router = OpenApiRouter::with_openapi(Document::openapi())
        .nest("/v3", v3::router())
        .nest("/v2", v2::router())
        .merge(v2::router())
        .nest("/kiln/v1", uploads::router().merge(kiln::router()))
        .merge(service::router());
    finish(router.get_openapi_mut());
    router
}

/// The description alone, as it is served.
pub fn document() -> Value {
    schemas::refine(&routes().into_openapi())
}

/// The description and the page.
pub(super) fn pages(document: &OpenApi) -> Router<Api> {
    let served = schemas::refine(document);
    Router::new()
        .route("/openapi.json", get(move || async move { Json(served) }))
        .merge(
            Router::from(SwaggerUi::new("/docs").config(utoipa_swagger_ui::Config::from("/openapi.json")))
                .layer(middleware::map_response(security_headers::describing)),
        )
}

/// Adds the parts common to all operations: their names, and the answers of the layers around the handlers.
fn finish(document: &mut OpenApi) {
    document.servers = Some(vec![Server::new("/"), Server::new("/apis/ims")]);
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    document
        .components
        .get_or_insert_with(Components::new)
        .add_security_scheme("bearer", scheme);

    for (path, item) in &mut document.paths.paths {
        let is_open = path.starts_with("/healthz") || path == "/version";
        let operations = [
            (HttpMethod::Get, &mut item.get),
            (HttpMethod::Post, &mut item.post),
            (HttpMethod::Put, &mut item.put),
            (HttpMethod::Patch, &mut item.patch),
            (HttpMethod::Delete, &mut item.delete),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            operation.operation_id = Some(operation_id(&method, path));
            let mut statuses = vec![
                ("429", "too many requests"),
                ("503", "the database or S3 is not available"),
            ];
            if operation.responses.responses.contains_key("502") {
                statuses.extend([("504", "S3 does not answer in time"), ("507", "S3 has no space left")]);
            }
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                body.extensions = Some(Extensions::builder().add(MOST_BYTES, limits::usual_most(path)).build());
                statuses.extend([
                    (
                        "400",
                        "the body is invalid or empty, or refers to a missing record or object",
                    ),
                    (
                        "409",
                        "in conflict with the current state, or there are as many records as may be",
                    ),
                    ("413", "the body, or the record that it makes, is too large"),
                    ("422", "the body has invalid members"),
                ]);
                operation
                    .responses
                    .responses
                    .insert("415".to_owned(), RefOr::T(Response::new("the body is not JSON")));
            }
            if !is_open {
                statuses.extend([
                    ("401", "no credentials, or invalid ones"),
                    ("403", "the role does not allow it"),
                ]);
                operation.security = Some(vec![
                    SecurityRequirement::default(),
                    SecurityRequirement::new::<_, [&str; 0], &str>("bearer", []),
                ]);
            }
            for (status, meaning) in statuses {
                operation
                    .responses
                    .responses
                    .entry(status.to_owned())
                    .or_insert_with(|| problem(meaning));
            }
            describe(operation);
        }
    }
}

/// Gives problems the type `application/problem+json`, and every status a description.
fn describe(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        if !status.starts_with('2')
            && let Some(content) = response.content.shift_remove("application/json")
        {
            response.content.insert("application/problem+json".to_owned(), content);
        }
        if response.description.is_empty() {
            let words = match status.as_str() {
                "200" => "success",
                "201" => "created",
                "204" => "done",
                "400" => "the request is invalid",
                "404" => "not found",
                "409" => "in conflict with the current state",
                "502" => "S3 does not answer",
                _ => "failed",
            };
            words.clone_into(&mut response.description);
        }
        // IMS's web framework answers these two in its own form.
        if status == "400" || status == "415" {
            response
                .content
                .insert("application/json".to_owned(), RefOr::T(ContentBuilder::new().build()));
        }
    }
}

fn problem(meaning: &str) -> RefOr<Response> {
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .build();
    RefOr::T(
        ResponseBuilder::new()
            .description(meaning)
            .content("application/problem+json", content)
            .build(),
    )
}

/// `GET /v3/images/{id}` is `get_v3_images_id`.
fn operation_id(method: &HttpMethod, path: &str) -> String {
    let method = match method {
        HttpMethod::Get => "get",
        HttpMethod::Post => "post",
        HttpMethod::Put => "put",
        HttpMethod::Patch => "patch",
        _ => "delete",
    };
    let path: String = path
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("{method}{}", path.trim_end_matches('_')).replace("__", "_")
}

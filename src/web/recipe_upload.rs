//! Adding recipes: a form with an archive, whose architecture, distribution and template values are recognised. The
//! records and the archive go to the API in the name of the sender.

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Multipart, Path, State, multipart::MultipartError},
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use kiln_records::{Failure, LinuxDistribution, RecipeId, RecipeType, arch::Arch};
use maud::{Markup, html};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    Dashboard, forms, layout,
    text::shown,
    viewer::{FORM_TOKEN, Viewer},
};
use crate::{
    api::limits::Memory,
    artifacts::Room,
    orchestrate::recipe::{self, Look},
};

/// The address of the form. Its body is not received before its sender is known.
pub(super) const ADDRESS: &str = "/ui/recipes/upload";

/// The largest archive, in bytes. The command line takes larger ones.
const LARGEST: usize = 32 << 20;

/// The longest text of a field, in bytes.
const LONGEST_FIELD: usize = 4096;

/// Archives are looked into one after the other: each may unpack to much.
static LOOKS: Semaphore = Semaphore::const_new(1);

/// The form as it was sent.
#[derive(Default)]
struct Sent {
    name: String,
    arch: String,
    distribution: String,
    own_kernel: bool,
    file: String,
    archive: Vec<u8>,
}

/// The reason why nothing was added.
enum Refused {
    /// The body is no form of this kind, or ended early.
    Broken(MultipartError),
    /// The form is not of this session.
    Foreign,
    /// It is too large.
    TooLarge,
    /// The server receives as much as it can hold.
    Full,
    /// A field says what cannot be.
    Wrong(&'static str, &'static str),
    /// The archive is no recipe.
    Archive(Box<Failure>),
}

impl From<MultipartError> for Refused {
    fn from(error: MultipartError) -> Self {
        Self::Broken(error)
    }
}

/// The form.
pub(super) fn form(viewer: &Viewer) -> Markup {
    html! {
        details.box #add-recipe {
            summary { "Add a recipe…" }
            form.stack.drop method="post" action=(ADDRESS) enctype="multipart/form-data" {
                // It has to come first: nothing else is read of a form of another session.
                (viewer.token_field())
                label for="recipe-file" { "Archive of the recipe: a tar file, packed or not, or a zip file, with config.xml or a .kiwi file at its top" }
                input #recipe-file type="file" name="archive" required accept=".tar,.gz,.tgz,.xz,.txz,.zst,.bz2,.zip" aria-describedby="drop-help";
                p #drop-help.dim { "Or drop it here. 32 MiB at most; " code { "kiln recipes create --from" } " takes more." }
                label for="recipe-name" { "Name (empty: that of the file)" }
                input #recipe-name name="name" maxlength="255";
                label for="recipe-arch" { "Architecture" }
                select #recipe-arch name="arch" {
                    option value="" { "as the recipe says" }
                    @for arch in Arch::ALL { option value=(arch.name()) { (arch.name()) } }
                }
                label for="recipe-distribution" { "Distribution" }
                select #recipe-distribution name="distribution" {
                    option value="" { "as its package manager says" }
                    @for distribution in LinuxDistribution::ALL { option value=(distribution.name()) { (distribution.name()) } }
                }
                label { input type="checkbox" name="own-kernel" value="true" checked; " The build loads kernel modules, so it needs a virtual machine" }
                button type="submit" { "Add it" }
            }
        }
    }
}

/// Adds the recipe: a record for each architecture that it is for, with the same archive.
pub(super) async fn upload(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Extension(memory): Extension<Memory>,
    form: Multipart,
) -> Response {
    let mut room = memory.share();
    let sent = match receive(form, &viewer, &mut room).await {
        Ok(sent) => sent,
        Err(refused) => return refused.page(&viewer),
    };
    let (bytes, file) = (sent.archive, sent.file.clone());
    let looked = {
        let _turn = LOOKS.acquire().await;
        tokio::task::spawn_blocking(move || {
            let bytes = recipe::as_tar(bytes, &file, &Look::limits())?;
            let look = Look::into(&bytes, &file, &Look::limits())?;
            Ok((Bytes::from(bytes), look))
        })
        .await
    };
    let (archive, look) = match looked {
        Ok(Ok(looked)) => looked,
        Ok(Err(failure)) => return Refused::Archive(Box::new(failure)).page(&viewer),
        Err(_) => return Refused::Wrong("The archive cannot be looked into.", "").page(&viewer),
    };
    let archs = match sent.arch.parse::<Arch>() {
        Ok(arch) => vec![arch],
        Err(_) => look.archs.clone(),
    };
    let distribution = match LinuxDistribution::ALL
        .into_iter()
        .find(|one| one.name() == sent.distribution)
    {
        Some(distribution) => Some(distribution),
        None => look.distribution,
    };
    let refused = match (archs.is_empty(), distribution) {
        (true, _) => Refused::Wrong(
            "The recipe does not say for which architecture it is.",
            "Choose one, or give <preferences> an attribute arch.",
        ),
        (_, None) => Refused::Wrong(
            "The package manager of the recipe says nothing about its distribution.",
            "Choose one.",
        ),
        (false, Some(distribution)) => {
            let name = if sent.name.is_empty() {
                stem(&sent.file)
            } else {
                &sent.name
            };
            return web
                .add(
                    &viewer,
                    &memory,
                    name,
                    &archs,
                    distribution,
                    sent.own_kernel,
                    archive,
                    &look,
                )
                .await;
        }
    };
    refused.page(&viewer)
}

impl Dashboard {
    #[expect(clippy::too_many_arguments, reason = "each is one fact of the new records")]
    async fn add(
        &self,
        viewer: &Viewer,
        memory: &Memory,
        name: &str,
        archs: &[Arch],
        distribution: LinuxDistribution,
        own_kernel: bool,
        archive: Bytes,
        look: &Look,
    ) -> Response {
        let mut added = Vec::new();
        for arch in archs {
            let called = match archs {
                [_] => name.to_owned(),
                _ => format!("{name}.{arch}"),
            };
            let recipe_type = RecipeType::from(look.kind).name();
            let record = json!({
                "name": called, "recipe_type": recipe_type, "linux_distribution": distribution.name(), "arch": arch,
                "require_dkms": own_kernel,
            });
            let made = self.ask(viewer, Method::POST, "/v3/recipes", Some(record)).await;
            let id = match made {
                (status, made) if status.is_success() => made["id"].as_str().unwrap_or_default().to_owned(),
                refusal => return self.take_back(viewer, &added, refusal).await,
            };
            let path = format!("/kiln/v1/recipes/{id}/archive");
            let stored = self
                .put(viewer, &path, Body::from(archive.clone()), memory.clone())
                .await;
            added.push((id, called, *arch));
            if !stored.0.is_success() {
                return self.take_back(viewer, &added, stored).await;
            }
        }
        match added.as_slice() {
            [(id, ..)] if look.variables.is_empty() && look.warnings.is_empty() => {
                Redirect::to(&format!("/ui/recipes/{id}")).into_response()
            }
            _ => layout::page(
                viewer,
                "Recipe added",
                "/ui/recipes",
                None,
                &added_page(viewer, &added, look),
            )
            .into_response(),
        }
    }

    /// Removes what was added of a recipe that was then refused, and says why. The records can be restored as all deleted ones.
    async fn take_back(
        &self,
        viewer: &Viewer,
        added: &[(String, String, Arch)],
        refusal: (StatusCode, Value),
    ) -> Response {
        for (id, ..) in added {
            let path = format!("/v3/recipes/{id}");
            self.ask(viewer, Method::DELETE, &path, None).await;
        }
        self.refused(viewer, refusal)
    }
}

/// What was added, with a form for each record's template values.
fn added_page(viewer: &Viewer, added: &[(String, String, Arch)], look: &Look) -> Markup {
    html! {
        h1 { "Recipe added" }
        @for warning in &look.warnings {
            p role="status" { span.badge.warn { "warning" } " " (shown(warning)) "; " code { "kiln check recipe" } " says what is understood of it." }
        }
        @for (id, name, arch) in added {
            section aria-label=(arch.name()) {
                p { a href={ "/ui/recipes/" (id) } { (shown(name)) } " for " (arch.name()) }
                @if !look.variables.is_empty() {
                    form.stack method="post" action={ "/ui/recipes/" (id) "/values" } {
                        (viewer.token_field())
                        p { "Its templates ask for these values. Those left empty are not set." }
                        @for variable in &look.variables {
                            @let field = format!("value-{arch}-{variable}");
                            label for=(field) { (shown(variable)) }
                            input #(field) name=(format!("value-{variable}")) maxlength="4096";
                        }
                        button type="submit" { "Set the values for " (arch.name()) }
                    }
                }
            }
        }
    }
}

/// Sets the template values of a recipe.
pub(super) async fn values(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(id): Path<RecipeId>,
    uri: Uri,
    body: Bytes,
) -> Response {
    let form = match forms::check(&viewer, &uri, &body) {
        Ok(form) => form,
        Err(page) => return page.into_response(),
    };
    let values = form.iter().filter_map(|(name, value)| {
        let key = name.strip_prefix("value-")?;
        (!value.is_empty()).then(|| json!({ "key": key, "value": value }))
    });
    let change = json!({ "template_dictionary": values.collect::<Vec<Value>>() });
    let path = format!("/v3/recipes/{id}");
    let lead = |_: &Value| format!("/ui/recipes/{id}");
    web.act(&viewer, (Method::PATCH, &path), Some(change), lead).await
}

async fn receive(mut form: Multipart, viewer: &Viewer, room: &mut impl Room) -> Result<Sent, Refused> {
    let mut sent = Sent::default();
    let mut is_own = false;
    while let Some(mut field) = form.next_field().await? {
        let name = field.name().unwrap_or_default().to_owned();
        if !is_own && name != FORM_TOKEN {
            return Err(Refused::Foreign);
        }
        if name == "archive" {
            field.file_name().unwrap_or_default().clone_into(&mut sent.file);
        }
        let most = if name == "archive" { LARGEST } else { LONGEST_FIELD };
        let mut content = Vec::new();
        while let Some(piece) = field.chunk().await? {
            if content.len() + piece.len() > most {
                return Err(match name.as_str() {
                    "archive" => Refused::TooLarge,
                    _ => Refused::Wrong("A field is longer than 4096 bytes.", "Make it shorter."),
                });
            }
            if !room.take(piece.len()) {
                return Err(Refused::Full);
            }
            content.extend_from_slice(&piece);
        }
        if name == "archive" {
            sent.archive = content;
            continue;
        }
        let text = String::from_utf8(content).unwrap_or_default();
        let text = text.trim();
        match name.as_str() {
            FORM_TOKEN if text == viewer.form_token => is_own = true,
            FORM_TOKEN => return Err(Refused::Foreign),
            "name" => text.clone_into(&mut sent.name),
            "arch" => text.clone_into(&mut sent.arch),
            "distribution" => text.clone_into(&mut sent.distribution),
            "own-kernel" => sent.own_kernel = text == "true",
            _ => {}
        }
    }
    if !is_own {
        return Err(Refused::Foreign);
    }
    if sent.archive.is_empty() {
        return Err(Refused::Wrong(
            "There is no archive in this form.",
            "Choose a file, or drop one.",
        ));
    }
    Ok(sent)
}

/// The name of a recipe by that of its file.
fn stem(file: &str) -> &str {
    let name = recipe::stem(file.rsplit(['/', '\\']).next().unwrap_or(file));
    if name.is_empty() { "recipe" } else { name }
}

impl Refused {
    fn page(&self, viewer: &Viewer) -> Response {
        let (status, why, hint) = match self {
            Self::Broken(error) => (error.status(), "The form did not arrive as a whole.", "Try it again."),
            Self::Foreign => (
                StatusCode::FORBIDDEN,
                "This form is from another session, or from before the server started.",
                "Go back, load the page anew, and choose the file again.",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "The archive is larger than 32 MiB.",
                "`kiln recipes create --from FILE` takes it. Large files belong in packages.",
            ),
            Self::Full => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The server is receiving as much as it can hold.",
                "Try again later.",
            ),
            Self::Wrong(why, hint) => (StatusCode::UNPROCESSABLE_ENTITY, *why, *hint),
            Self::Archive(failure) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                failure.detail.as_str(),
                failure.hint.as_deref().unwrap_or_default(),
            ),
        };
        let body = html! {
            h1 { "Nothing was added" }
            p.note.bad role="alert" { (shown(why)) }
            @if !hint.is_empty() { p { "Hint: " (shown(hint)) } }
            p { "The browser's way back leads to what you chose." }
        };
        (
            status,
            layout::page(viewer, "Nothing was added", "/ui/recipes", None, &body),
        )
            .into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_called_as_its_file() {
        for (file, name) in [
            ("compute.tar.gz", "compute"),
            ("C:\\recipes\\compute-24.11.tgz", "compute-24.11"),
            ("../../etc/x.tar", "x"),
            ("compute.zip", "compute"),
            (".tar.gz", "recipe"),
            ("", "recipe"),
        ] {
            assert_eq!(stem(file), name);
        }
    }
}

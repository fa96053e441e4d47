//! The frame of every page: head, navigation, messages. Pure: no I/O.

use axum::{
    http::StatusCode,
    response::{Html, IntoResponse, Response},
};
use maud::{DOCTYPE, Markup, html};

use super::{
    assets::ADDRESSES,
    text::{cut, shown},
    viewer::Viewer,
};

/// The pages in the navigation.
const PAGES: [(&str, &str); 6] = [
    ("/ui", "Overview"),
    ("/ui/jobs", "Jobs"),
    ("/ui/images", "Images"),
    ("/ui/sets", "Sets"),
    ("/ui/recipes", "Recipes"),
    ("/ui/schedules", "Schedules"),
];

/// The longest title of a page, in characters.
const LONGEST_TITLE: usize = 100;

/// A page for a person who is let in. `here` is its address in the navigation; the script keeps the page current if
/// `seconds` are given.
pub(super) fn page(viewer: &Viewer, title: &str, here: &str, seconds: Option<u32>, body: &Markup) -> Html<String> {
    let header = html! {
        header.top {
            a.brand href="/ui" { "Kiln" }
            nav aria-label="Pages" {
                @for (address, name) in PAGES {
                    a href=(address) aria-current=[(address == here).then_some("page")] { (name) }
                }
            }
            @if let Some(name) = viewer.name() {
                span.who { (cut(name, 30)) }
                @if viewer.has_session {
                    form method="post" action="/ui/logout" { (viewer.token_field()) button.plain type="submit" { "Sign out" } }
                }
            }
        }
    };
    frame(title, &header, seconds, body)
}

/// A page without navigation.
pub(super) fn bare(title: &str, body: &Markup) -> Html<String> {
    let header = html! { header.top { span.brand { "Kiln" } } };
    frame(title, &header, None, body)
}

/// A page that says why there is no other one.
pub(super) fn message(status: StatusCode, detail: &str, hint: Option<&str>, can_go_home: bool) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = html! {
        h1 { (status.as_u16()) " " (title) }
        p.note.bad role="alert" { (shown(detail)) }
        @if let Some(hint) = hint { p { "Hint: " (shown(hint)) } }
        p { @if can_go_home { a href="/ui" { "Overview" } } @else { a href="/ui/login" { "Sign in" } } }
    };
    (status, bare(title, &body)).into_response()
}

fn frame(title: &str, header: &Markup, seconds: Option<u32>, body: &Markup) -> Html<String> {
    let (style, script) = &*ADDRESSES;
    let title: String = shown(title).chars().take(LONGEST_TITLE).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Kiln" }
                link rel="icon" href="/ui/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href=(style);
                script src=(script) defer {}
            }
            body data-every=[seconds] {
                a.skip href="#main" { "Skip to the content" }
                (header)
                p #connection .note.bad role="status" hidden {}
                main #main tabindex="-1" { (body) }
            }
        }
    };
    Html(page.into_string())
}

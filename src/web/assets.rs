//! The style, the script and the icon of all pages. They are part of the program; nothing else is loaded.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/script.js");
const ICON: &str = include_str!("assets/icon.svg");

/// The addresses of style and script, which change with their contents: browsers keep them.
pub(super) static ADDRESSES: LazyLock<(String, String)> = LazyLock::new(|| {
    let version = |content: &str| hex::encode(&Sha256::digest(content)[..6]);
    (
        format!("/ui/style.css?{}", version(STYLE)),
        format!("/ui/script.js?{}", version(SCRIPT)),
    )
});

pub(super) async fn style() -> Response {
    asset("text/css; charset=utf-8", STYLE)
}

pub(super) async fn script() -> Response {
    asset("text/javascript; charset=utf-8", SCRIPT)
}

pub(super) async fn icon() -> Response {
    asset("image/svg+xml", ICON)
}

fn asset(kind: &'static str, content: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "public, max-age=86400"),
    ];
    (headers, content).into_response()
}

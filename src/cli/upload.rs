//! Creates records together with their objects. Reads files and sends them to the server.

use indicatif::{ProgressBar, ProgressStyle};
use kiln_records::{Code, Failure};
use reqwest::Method;
use serde_json::Value;

use super::{records::request, session::Session};
use crate::client::{Collection, Data, Found, Upload};

/// The owner of the objects that a record will name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Objects {
    /// They are uploaded with the record, and are removed with it.
    Uploaded,
    /// They existed before.
    Theirs,
}

/// Creates a record, lets `fill` upload its objects, and prints the result. If that fails or is interrupted, the record
/// is removed again.
pub(super) async fn create_filled(
    session: &Session,
    collection: &Collection,
    body: &Value,
    objects: Objects,
    fill: impl AsyncFnOnce(&str) -> Result<Data, Failure>,
) -> Result<(), Failure> {
    session.show(&fill_created(session, collection, body, objects, fill).await?)
}

/// As [`create_filled`], and returns the result instead of printing it.
pub(super) async fn fill_created(
    session: &Session,
    collection: &Collection,
    body: &Value,
    objects: Objects,
    fill: impl AsyncFnOnce(&str) -> Result<Data, Failure>,
) -> Result<Data, Failure> {
    let interrupted = super::signals::cancel_on_signal()?;
    let record = session
        .client
        .send(Method::POST, collection.path, &[], Some(body))
        .await?;
    let id = record.text("id").unwrap_or_default().to_owned();
    if id.is_empty() {
        return Err(Failure::new(
            Code::ServerUnknown,
            "the server made a record without an id",
        ));
    }
    let filled = tokio::select! {
        filled = fill(&id) => filled,
        () = interrupted.cancelled() => Err(Failure::new(Code::Interrupted, "the upload was interrupted")),
    };
    match filled {
        Ok(record) => Ok(record),
        Err(failure) => Err(remove(session, collection, id, objects, failure).await),
    }
}

/// Removes an incomplete record finally, and reports it. If the record may already name another owner's objects, it is
/// only deleted and can be restored: a final removal would remove the objects too.
async fn remove(
    session: &Session,
    collection: &Collection,
    id: String,
    objects: Objects,
    mut failure: Failure,
) -> Failure {
    let is_uncertain = matches!(failure.code, Code::ServerTimeout | Code::ServerLost | Code::Interrupted);
    let keeps = objects == Objects::Theirs && is_uncertain;
    let noun = collection.noun;
    let found = Found { id, name: None };
    let deleted = request(session, Method::DELETE, collection, &found, None).await;
    let purged = match (&deleted, collection.bin) {
        (Ok(_), Some(_)) if keeps => false,
        (Ok(_), Some(bin)) => request(session, Method::DELETE, bin, &found, None).await.is_ok(),
        _ => true,
    };
    let command = collection.command;
    let line = match deleted {
        Ok(_) if purged => format!("the {noun} made for it was removed again"),
        Ok(_) => format!("the {noun} made for it was deleted; `kiln deleted {command} list` still shows it"),
        Err(why) => format!(
            "the {noun} made for it is still there ({}): `kiln {command} delete {}` removes it",
            why.detail, found.id
        ),
    };
    failure.detail = format!("{}\n  {line}", failure.detail);
    failure
}

/// Uploads with a progress bar on a terminal, and with a line elsewhere.
pub(super) async fn upload(session: &Session, path: &[&str], what: &str, upload: Upload) -> Result<Data, Failure> {
    let size = upload.size;
    let bar = session.printer.wants_bars().then(|| {
        let template = "{prefix:<15} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
        let bar = ProgressBar::new(size).with_prefix(what.to_owned());
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    });
    let sent = {
        let bar = bar.clone();
        move |bytes| {
            if let Some(bar) = &bar {
                bar.set_position(bytes);
            }
        }
    };
    let answer = session.client.upload(path, upload, sent).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let answer = answer.map_err(|failure| match failure.code {
        Code::NotFound => failure
            .hint("only a Kiln server accepts uploads; for IMS, put the object into S3 and name it with --link-path"),
        _ => failure,
    })?;
    session
        .printer
        .note(format_args!("uploaded {what} ({})", bytesize::ByteSize(size)));
    Ok(answer)
}

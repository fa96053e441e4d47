//! Times say in which zone they are, but for the fields of IMS, whose clients expect none.

use kiln_records::Moment;
use serde_json::{Value, json};

use crate::{
    doors::operations,
    support::server::{Server, id_of, unique},
};

/// The texts of an answer that are times, each with the way to it.
fn times(at: &str, value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => {
            let is_time = text.len() >= 19 && text.as_bytes()[10] == b'T' && text.parse::<Moment>().is_ok();
            if is_time {
                found.push((at.to_owned(), text.clone()));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| times(at, item, found)),
        Value::Object(members) => {
            for (name, member) in members {
                times(&format!("{at}.{name}"), member, found);
            }
        }
        _ => {}
    }
}

#[test]
async fn a_time_has_an_offset_unless_it_is_of_ims() {
    let api = Server::own();
    let recipe = id_of(&api.recipe(json!({})).await);
    let image = id_of(&api.image(json!({})).await);
    let schedule = json!({
        "name": unique("schedule"), "recipe_id": recipe, "cron": "0 2 * * *", "image_root_archive_name": "night",
    });
    let schedule = id_of(&api.make("/kiln/v1/schedules", schedule).await);
    let set = json!({ "name": "compute", "version": "1", "arches": [{ "arch": "x86_64", "image_id": image }] });
    let set = id_of(&api.make("/kiln/v1/sets", set).await);
    let key = api.key().await;
    let job =
        json!({ "job_type": "create", "artifact_id": recipe, "public_key_id": key, "image_root_archive_name": "n" });
    let job = id_of(&api.make("/v3/jobs", job).await);
    let deleted = id_of(&api.recipe(json!({})).await);
    api.delete(&format!("/v3/recipes/{deleted}")).await.is(204);

    let mut paths: Vec<_> = operations(&api)
        .await
        .into_iter()
        .filter(|one| one.method == "GET")
        .map(|one| one.path)
        .collect();
    for one in [
        format!("/kiln/v1/schedules/{schedule}"),
        format!("/kiln/v1/schedules/{schedule}/runs"),
        format!("/kiln/v1/sets/{set}"),
        format!("/kiln/v1/jobs/{job}"),
        format!("/kiln/v1/images/{image}/artifacts"),
        format!("/v3/recipes/{recipe}"),
        format!("/v3/deleted/recipes/{deleted}"),
        format!("/v2/images/{image}"),
    ] {
        paths.push(one);
    }
    let mut found = Vec::new();
    for path in &paths {
        let answer = api.request("GET", path).send().await.unwrap();
        if answer.status().is_success()
            && answer.headers()["content-type"]
                .as_bytes()
                .starts_with(b"application/json")
        {
            times(path, &answer.json().await.unwrap(), &mut found);
        }
    }
    let is_kilns = |at: &str| at.starts_with("/kiln/");
    assert!(found.iter().filter(|(at, _)| is_kilns(at)).count() > 8, "{found:#?}");
    assert!(found.iter().filter(|(at, _)| !is_kilns(at)).count() > 4, "{found:#?}");
    for (at, text) in &found {
        let has_offset = text.ends_with('Z') || text.as_bytes()[text.len() - 6] == b'+';
        assert_eq!(has_offset, is_kilns(at), "{at}: {text}");
    }
}

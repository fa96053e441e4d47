//! Jobs after they were made: their status, what came out, and how they are deleted.

use serde_json::{Value, json};

use crate::api::{
    jobs::job,
    server::{NOBODY, Server, id_of, unique},
};

/// Every status in its order; the last two are ends.
const STATUSES: [&str; 9] = [
    "creating",
    "fetching_image",
    "fetching_recipe",
    "waiting_for_repos",
    "building_image",
    "waiting_on_user",
    "packaging_artifacts",
    "error",
    "success",
];

async fn make(api: &Server, kind: &str) -> String {
    let artifact = match kind {
        "create" => api.recipe(json!({})).await,
        _ => api.image(json!({})).await,
    };
    id_of(
        &api.make("/v3/jobs", job(kind, &id_of(&artifact), &api.key().await))
            .await,
    )
}

/// A job in this state.
async fn make_in(api: &Server, kind: &str, status: &str) -> String {
    let id = make(api, kind).await;
    api.patch(&format!("/jobs/{id}"), json!({ "status": status }))
        .await
        .is(200);
    id
}

#[test]
async fn jobs_go_the_way_of_ims() {
    let api = Server::shared();
    let create = "fetching_recipe waiting_for_repos building_image waiting_on_user packaging_artifacts success";
    let customize = "fetching_image waiting_on_user packaging_artifacts error";
    // The helper in IMS's pods uses addresses without a version.
    for (version, kind, way) in [
        ("", "create", create),
        ("/v3", "create", create),
        ("/v2", "customize", customize),
    ] {
        let id = make(&api, kind).await;
        let path = format!("{version}/jobs/{id}");
        let mut expected = api.read(&path).await;
        for status in way.split(' ') {
            expected["status"] = json!(status);
            assert_eq!(
                api.patch(&path, json!({ "status": status })).await.is(200).json(),
                expected
            );
            // Saying it twice does no harm: the helper does.
            assert_eq!(
                api.patch(&path, json!({ "status": status })).await.is(200).json(),
                expected
            );
            assert_eq!(api.read(&path).await, expected);
        }
    }
}

#[test]
async fn w26_only_legal_transitions_are_taken() {
    let api = Server::shared();
    let artifact = id_of(&api.recipe(json!({})).await);
    let key = api.key().await;
    for (at, from) in STATUSES.into_iter().enumerate() {
        for (next, to) in STATUSES.into_iter().enumerate() {
            let id = id_of(&api.make("/v3/jobs", job("create", &artifact, &key)).await);
            let path = format!("/v3/jobs/{id}");
            api.patch(&path, json!({ "status": from })).await.is(200);
            let ended = from == "success" || from == "error";
            let legal = at == next || (!ended && at < next);
            let answer = api.patch(&path, json!({ "status": to })).await;
            if legal {
                assert_eq!(answer.is(200).json()["status"], to, "{from} → {to}");
            } else {
                answer.problem(409);
                assert_eq!(api.read(&path).await["status"], from, "{from} → {to}");
            }
        }
    }
}

#[test]
async fn w26_the_resulting_image_is_checked() {
    let api = Server::shared();
    let id = make(&api, "create").await;
    let path = format!("/v3/jobs/{id}");
    let before = api.read(&path).await;
    api.patch(&path, json!({"resultant_image_id": NOBODY}))
        .await
        .problem(422);
    // All or nothing (W11).
    let both = json!({"status": "success", "resultant_image_id": NOBODY});
    api.patch(&path, both).await.problem(422);
    let deleted = id_of(&api.image(json!({})).await);
    api.delete(&format!("/v3/images/{deleted}")).await.done();
    api.patch(&path, json!({"resultant_image_id": deleted}))
        .await
        .problem(422);
    let errors = api.patch(&path, json!({"resultant_image_id": null})).await.errors();
    assert_eq!(errors, json!({"resultant_image_id": ["Field may not be null."]}));
    assert_eq!(api.read(&path).await, before);

    let image = id_of(&api.image(json!({})).await);
    let both = json!({"status": "success", "resultant_image_id": image.to_uppercase()});
    let patched = api.patch(&path, both).await.is(200).json();
    assert_eq!(
        (&patched["status"], &patched["resultant_image_id"]),
        (&json!("success"), &json!(image))
    );
    // An ended job does not change; a repeated update is not a change.
    let other = id_of(&api.image(json!({})).await);
    api.patch(&path, json!({"resultant_image_id": other}))
        .await
        .problem(409);
    api.patch(&path, json!({"status": "creating"})).await.problem(409);
    assert_eq!(
        api.patch(&path, json!({"resultant_image_id": image}))
            .await
            .is(200)
            .json(),
        patched
    );
    assert_eq!(api.read(&path).await, patched);
}

#[test]
async fn the_helper_may_say_the_image_before_the_end() {
    let api = Server::shared();
    let id = make_in(&api, "customize", "packaging_artifacts").await;
    let path = format!("/jobs/{id}");
    let image = id_of(&api.image(json!({"link": null})).await);
    assert_eq!(
        api.patch(&path, json!({"resultant_image_id": image}))
            .await
            .is(200)
            .json()["resultant_image_id"],
        image
    );
    assert_eq!(
        api.patch(&path, json!({"status": "success"})).await.is(200).json()["resultant_image_id"],
        image
    );
}

#[test]
async fn what_no_status_is() {
    let api = Server::shared();
    let id = make(&api, "create").await;
    for status in [
        json!("done"),
        json!("Creating"),
        json!(""),
        json!(null),
        json!(1),
        json!(["success"]),
    ] {
        let errors = api
            .patch(&format!("/v3/jobs/{id}"), json!({ "status": status }))
            .await
            .errors();
        assert!(errors["status"].is_array(), "{status}");
    }
}

#[test]
async fn a_job_can_be_deleted_in_any_state_and_leaves_its_image() {
    let api = Server::shared();
    for status in STATUSES {
        let id = make_in(&api, "create", status).await;
        let image = api.image(json!({})).await;
        if status == "packaging_artifacts" {
            api.patch(&format!("/v3/jobs/{id}"), json!({"resultant_image_id": image["id"]}))
                .await
                .is(200);
        }
        api.delete(&format!("/v3/jobs/{id}")).await.done();
        api.get(&format!("/v3/jobs/{id}")).await.problem(404);
        api.delete(&format!("/v3/jobs/{id}")).await.problem(404);
        assert_eq!(api.read(&format!("/v3/images/{}", id_of(&image))).await, image);
    }
}

#[test]
async fn filters_choose_what_is_deleted() {
    let api = Server::own();
    for version in ["/v3", "/v2", ""] {
        for (query, kept) in [
            (
                "?status=error",
                "creating/create success/create creating/customize success/customize",
            ),
            ("?status=error&status=success", "creating/create creating/customize"),
            ("?status=ERROR&status=Success", "creating/create creating/customize"),
            (
                "?job_type=create",
                "creating/customize error/customize success/customize",
            ),
            (
                "?job_type=customize&status=success",
                "creating/create error/create success/create creating/customize error/customize",
            ),
            (
                "?age=1d",
                "creating/create error/create success/create creating/customize error/customize success/customize",
            ),
            (
                "?age=0m&job_type=create&status=error",
                "creating/create success/create creating/customize error/customize success/customize",
            ),
            ("?age=0d", ""),
            ("", ""),
        ] {
            let mut expected = Vec::new();
            for kind in ["create", "customize"] {
                for status in ["creating", "error", "success"] {
                    let id = make_in(&api, kind, status).await;
                    if kept.split(' ').any(|one| one == format!("{status}/{kind}")) {
                        expected.push(id);
                    }
                }
            }
            api.delete(&format!("{version}/jobs{query}")).await.done();
            assert_eq!(api.ids("/v3/jobs").await, expected, "{version} {query}");
            api.delete("/v3/jobs").await.done();
        }
    }
}

#[test]
async fn a_filter_that_is_none_is_400_with_the_reason_as_title() {
    let api = Server::shared();
    let id = make(&api, "create").await;
    for query in [
        "status=done",
        "status=",
        "status=error&status=x",
        "job_type=Create",
        "job_type=",
        "age=99999999999999999999w",
        "age=999999999999w",
    ] {
        let answer = api.delete(&format!("/v3/jobs?{query}")).await.is(400);
        assert_eq!(answer.header("content-type"), "application/problem+json", "{query}");
        let problem = answer.json();
        assert_eq!(problem["status"], 400, "{query}");
        assert!(
            problem["title"].as_str().is_some_and(|title| title != "Bad Request"),
            "{problem}"
        );
        assert!(
            problem.get("detail").is_none() && problem.get("errors").is_none(),
            "{problem}"
        );
    }
    api.get(&format!("/v3/jobs/{id}")).await.is(200);
}

#[test]
async fn w08_an_age_that_cannot_be_read_deletes_nothing() {
    let api = Server::own();
    let id = make_in(&api, "create", "building_image").await;
    for query in [
        "age=foo",
        "age=",
        "age",
        "age=10",
        "age=2%20days",
        "age=2+days",
        "age=1month",
        "age=1y",
        "age=-1d",
        "age=1.5d",
        "age=1d1d",
        "age=d",
        "age=1d%20",
        "age=%FF",
        "age=1d&age=foo",
        // Misspelt: nothing narrows it down, so it would delete everything.
        "ages=1d",
        "Age=1d",
        "state=error",
        "jobtype=create",
        "statuses=error",
        "name=x",
    ] {
        assert_eq!(
            api.delete(&format!("/v3/jobs?{query}")).await.is(400).json()["status"],
            400,
            "{query}"
        );
        assert_eq!(api.ids("/v3/jobs").await, std::slice::from_ref(&id), "{query}");
    }
    // Filters of IMS's clients keep their meaning.
    for query in [
        "age=1d",
        "age=6h",
        "age=30m",
        "age=2w",
        "age=2days",
        "age=1d5w",
        "age=1W2D",
        "age=5minutes",
    ] {
        api.delete(&format!("/v3/jobs?{query}")).await.done();
        assert_eq!(api.ids("/v3/jobs").await, std::slice::from_ref(&id), "{query}");
    }
    api.delete("/v3/jobs?age=0m").await.done();
    assert_eq!(api.read("/v3/jobs").await, json!([]));
}

#[test]
async fn lists_of_jobs_can_be_narrowed_down() {
    let api = Server::shared();
    let name = unique("narrow");
    let key = api.key().await;
    let recipe = id_of(&api.recipe(json!({"arch": "riscv64"})).await);
    let mut body: Value = job("create", &recipe, &key);
    body["image_root_archive_name"] = json!(name);
    let id = id_of(&api.make("/v3/jobs", body).await);
    for (query, found) in [
        ("", true),
        ("&status=creating", true),
        ("&status=creating&status=error", true),
        ("&status=error", false),
        ("&job_type=create", true),
        ("&job_type=customize", false),
        ("&arch=riscv64", true),
        ("&arch=x86_64", false),
    ] {
        let ids = api.ids(&format!("/v3/jobs?name={name}{query}")).await;
        assert_eq!(ids == [id.clone()], found, "{query}: {ids:?}");
    }
    for query in ["status=done", "job_type=x", "arch=sparc"] {
        api.get(&format!("/v3/jobs?{query}")).await.problem(400);
    }
}

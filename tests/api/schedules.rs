//! `/kiln/v1/schedules`.

use serde_json::{Value, json};

use crate::api::server::{NOBODY, Server, id_of, unique};

const PATH: &str = "/kiln/v1/schedules";

/// A server whose jobs another server carries out.
fn server() -> Server {
    Server::with(&[("KILN__JOBS__RUN", "false")])
}

/// A schedule at two o'clock in Berlin, with these members besides.
async fn schedule(api: &Server, members: Value) -> Value {
    let recipe = id_of(&api.recipe(json!({"arch": "aarch64"})).await);
    let mut body =
        json!({"name": unique("nightly"), "recipe_id": recipe, "cron": "0 2 * * *", "timezone": "Europe/Berlin"});
    crate::api::server::merge(&mut body, &members);
    api.make(PATH, body).await
}

#[test]
async fn a_schedule_says_when_it_runs() {
    let api = server();
    let made = schedule(&api, json!({"image_root_archive_name": "nightly-{date}"})).await;
    assert_eq!(made["description"], "At 02:00.");
    assert_eq!(made["timezone"], "Europe/Berlin");
    let usual = [
        "missed_runs",
        "missed_runs_limit",
        "overlap",
        "paused",
        "runs",
        "last_run",
        "public_key_id",
    ];
    let usual: Vec<_> = usual.iter().map(|member| made[member].clone()).collect();
    assert_eq!(json!(usual), json!(["once", 10, "forbid", false, 0, null, null]));
    let runs = made["next_runs"].as_array().unwrap();
    assert_eq!(runs.len(), 5);
    for run in runs {
        let run = run.as_str().unwrap();
        assert!(run.contains("T02:00:00+0") || run.contains("T03:00:00+02:00"), "{run}");
    }
    let next = made["next_run"].as_str().unwrap();
    let moment = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    assert_eq!(moment(runs[0].as_str().unwrap()), moment(next));
    assert_eq!(api.read(&format!("{PATH}/{}", id_of(&made))).await, made);

    let mut record = made.clone();
    for member in ["description", "next_runs"] {
        record.as_object_mut().unwrap().remove(member);
    }
    let name = made["name"].as_str().unwrap();
    assert_eq!(api.read(&format!("{PATH}?name={name}")).await, json!([record]));
    schedule(&api, json!({})).await;
    assert_eq!(api.read(PATH).await.as_array().unwrap().len(), 2);
    let page = api.get(&format!("{PATH}?limit=1")).await.is(200);
    assert!(page.header("link").contains("rel=\"next\""), "{page:?}");
}

#[test]
async fn what_is_wrong_is_said_by_field() {
    let api = server();
    let recipe = id_of(&api.recipe(json!({})).await);
    let good = json!({"name": "n", "recipe_id": recipe, "cron": "0 2 * * *"});
    let id = id_of(&api.make(PATH, good.clone()).await);
    for (member, value, words) in [
        ("cron", json!("0 2 * *"), "five fields"),
        ("cron", json!("@daily"), "write `0 0 * * *`"),
        ("cron", json!("0 0 31 2 *"), "never comes"),
        ("cron", json!(5), "Not a valid string"),
        ("timezone", json!("Europe/Berln"), "did you mean Europe/Berlin"),
        ("timezone", Value::Null, "may not be null"),
        (
            "image_root_archive_name",
            json!("x-{day}"),
            "there are {date}, {time}, {recipe}, {arch} and {n}",
        ),
        ("image_root_archive_name", json!("a/{date}"), "Not a plain file name"),
        ("missed_runs", json!("twice"), "skip, once, all"),
        ("missed_runs_limit", json!(0), "from 1 to 100"),
        ("missed_runs_limit", json!(101), "from 1 to 100"),
        ("overlap", json!("allow"), "forbid, queue, replace"),
        ("job_mem_size", json!(0), "greater than or equal to 1"),
        ("kernel_file_name", json!("../x"), "Not a plain file name"),
        ("name", json!("two\nlines"), "control characters"),
        ("next_run", json!("2026-01-01T00:00:00"), "Unknown field"),
    ] {
        let mut body = good.clone();
        body[member] = value.clone();
        for answer in [
            api.post(PATH, body).await,
            api.patch(&format!("{PATH}/{id}"), json!({ member: value })).await,
        ] {
            let errors = answer.errors();
            assert!(
                errors[member][0].as_str().unwrap().contains(words),
                "{member}: {errors}"
            );
        }
    }
    let errors = api.post(PATH, json!({"x": 1})).await.errors();
    for member in ["name", "cron"] {
        assert_eq!(errors[member], json!(["Missing data for required field."]));
    }
    for member in ["recipe_id", "public_key_id"] {
        let mut body = good.clone();
        body[member] = json!(NOBODY);
        let problem = api.post(PATH, body).await.problem(400);
        assert!(problem["detail"].as_str().unwrap().contains(NOBODY), "{problem}");
    }
    api.post(PATH, json!({})).await.problem(400);
    for (method, path) in [
        ("GET", NOBODY.to_owned()),
        ("GET", "x".to_owned()),
        ("DELETE", NOBODY.to_owned()),
        ("POST", format!("{NOBODY}/pause")),
        ("POST", format!("{NOBODY}/resume")),
        ("POST", format!("{NOBODY}/run")),
        ("GET", format!("{NOBODY}/history")),
    ] {
        api.send(method, &format!("{PATH}/{path}"), None).await.problem(404);
    }
    api.patch(&format!("{PATH}/{NOBODY}"), json!({"name": "n"}))
        .await
        .problem(404);
    api.get(&format!("{PATH}/{id}/history?limit=0")).await.problem(400);
}

#[test]
async fn image_sets_are_made_of_recipes_for_several_architectures() {
    let api = server();
    let mut recipes = Vec::new();
    for arch in ["x86_64", "aarch64", "aarch64"] {
        recipes.push(id_of(&api.recipe(json!({"arch": arch})).await));
    }
    let set = unique("compute");
    let sets = |members: Value| {
        let mut sets = json!({"name": set, "version": "{date}.{n}", "recipes": [
            {"recipe_id": recipes[0]},
            {"recipe_id": recipes[1], "required": false, "time_limit_s": 60},
        ]});
        crate::api::server::merge(&mut sets, &members);
        sets
    };
    let name = unique("nightly");
    let body = json!({"name": name, "cron": "0 2 * * *", "timezone": "Europe/Berlin", "image_set": sets(json!({}))});
    for (member, value, path, words) in [
        ("image_set", Value::Null, "/image_set/0", "may not be null"),
        (
            "recipe_id",
            json!(recipes[0]),
            "/recipe_id/0",
            "Either `recipe_id` or `image_set`",
        ),
        (
            "image_root_archive_name",
            json!("n"),
            "/image_root_archive_name/0",
            "makes image sets",
        ),
        (
            "image_set",
            sets(json!({"version": "24.11"})),
            "/image_set/version/0",
            "a version of its own",
        ),
        (
            "image_set",
            sets(json!({"version": "{arch}"})),
            "/image_set/version/0",
            "no placeholder {arch}",
        ),
        ("image_set", sets(json!({"name": "a b"})), "/image_set/name/0", ""),
        (
            "image_set",
            sets(json!({"recipes": []})),
            "/image_set/recipes/0",
            "has to be required",
        ),
        (
            "image_set",
            sets(json!({"recipes": [{"recipe_id": recipes[1], "required": false}]})),
            "/image_set/recipes/0",
            "has to be required",
        ),
        (
            "image_set",
            sets(json!({"recipes": [{"recipe_id": recipes[1]}, {"recipe_id": recipes[2]}]})),
            "/image_set/recipes/1/recipe_id/0",
            "Another recipe is for aarch64",
        ),
    ] {
        let mut wrong = body.clone();
        wrong[member] = value;
        let errors = api.post(PATH, wrong).await.errors();
        let why = errors
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_else(|| panic!("{path}: {errors}"));
        assert!(why.contains(words), "{path}: {errors}");
    }
    let mut unknown = body.clone();
    unknown["image_set"] = sets(json!({"recipes": [{"recipe_id": NOBODY}]}));
    api.post(PATH, unknown).await.problem(400);

    let made = api.make(PATH, body).await;
    assert_eq!(
        (&made["recipe_id"], &made["image_root_archive_name"]),
        (&Value::Null, &Value::Null)
    );
    let path = format!("{PATH}/{}", id_of(&made));
    for wrong in [
        json!({"recipe_id": recipes[0]}),
        json!({"image_root_archive_name": "n"}),
    ] {
        api.patch(&path, wrong).await.errors();
    }
    let one = schedule(&api, json!({})).await;
    let of_one = format!("{PATH}/{}", id_of(&one));
    let errors = api.patch(&of_one, json!({"image_set": sets(json!({}))})).await.errors();
    assert!(
        errors["image_set"][0].as_str().unwrap().contains("builds one recipe"),
        "{errors}"
    );

    let run = api.post(&format!("{path}/run"), Value::Null).await.is(201).json();
    assert_eq!((&run["outcome"], &run["job_id"]), (&json!("made"), &Value::Null));
    let made_set = api
        .read(&format!("/kiln/v1/sets/{}", run["set_id"].as_str().unwrap()))
        .await;
    let arches: Vec<_> = made_set["arches"].as_array().unwrap().iter().collect();
    let facts: Vec<_> = arches
        .iter()
        .map(|arch| json!([arch["arch"], arch["required"], arch["time_limit_s"]]))
        .collect();
    assert_eq!(json!(facts), json!([["x86_64", true, null], ["aarch64", false, 60]]));
    let job = api
        .read(&format!("/v3/jobs/{}", arches[1]["jobs"][0].as_str().unwrap()))
        .await;
    assert_eq!(job["arch"], "aarch64");
    let image = job["image_root_archive_name"].as_str().unwrap();
    assert!(
        image.starts_with(&format!("{set}-20")) && image.ends_with(".1.aarch64"),
        "{image}"
    );

    let changed = sets(json!({"version": "next-{n}"}));
    let answer = api.patch(&path, json!({ "image_set": changed })).await.is(200).json();
    assert_eq!(answer["image_set"]["version"], "next-{n}");
}

#[test]
async fn changes_pauses_and_resumes() {
    let api = server();
    let made = schedule(&api, json!({"job_mem_size": 2})).await;
    let path = format!("{PATH}/{}", id_of(&made));
    let renamed = api
        .patch(&path, json!({"name": "other", "job_mem_size": null}))
        .await
        .is(200)
        .json();
    assert_eq!(
        (&renamed["name"], &renamed["job_mem_size"]),
        (&json!("other"), &Value::Null)
    );
    assert_eq!(renamed["next_run"], made["next_run"], "other times were not asked for");
    let hourly = api
        .patch(&path, json!({"cron": "30  * * * *", "timezone": "utc"}))
        .await
        .is(200)
        .json();
    assert_eq!(
        (&hourly["cron"], &hourly["timezone"]),
        (&json!("30 * * * *"), &json!("UTC"))
    );
    assert!(
        hourly["next_run"].as_str().unwrap().ends_with(":30:00+00:00"),
        "{hourly}"
    );

    for _ in 0..2 {
        let paused = api.post(&format!("{path}/pause"), Value::Null).await.is(200).json();
        assert_eq!(
            (&paused["paused"], &paused["next_run"], &paused["next_runs"]),
            (&json!(true), &Value::Null, &json!([]))
        );
    }
    let still = api.patch(&path, json!({"cron": "0 2 * * *"})).await.is(200).json();
    assert_eq!(still["next_run"], Value::Null, "a change does not resume");
    let resumed = api.send("POST", &format!("{path}/resume"), None).await.is(200).json();
    assert_eq!(resumed["paused"], false);
    assert!(
        resumed["next_run"].as_str().unwrap().ends_with("T02:00:00+00:00"),
        "{resumed}"
    );
    api.delete(&path).await.done();
    api.get(&path).await.problem(404);
    api.delete(&path).await.problem(404);
}

#[test]
async fn running_now_makes_a_job_of_the_recipe() {
    let api = server();
    let key = api.key().await;
    let made = schedule(
        &api,
        json!({"image_root_archive_name": "nightly-{arch}-{n}", "public_key_id": key, "job_mem_size": 3, "paused": true}),
    )
    .await;
    let path = format!("{PATH}/{}", id_of(&made));
    let mut jobs = Vec::new();
    for number in 1..=2 {
        let tick = api.send("POST", &format!("{path}/run"), None).await.is(201).json();
        assert_eq!((&tick["outcome"], &tick["number"]), (&json!("made"), &json!(number)));
        let job = api
            .read(&format!("/v3/jobs/{}", tick["job_id"].as_str().unwrap()))
            .await;
        assert_eq!(job["image_root_archive_name"], format!("nightly-aarch64-{number}"));
        assert_eq!(
            (
                &job["job_type"],
                &job["artifact_id"],
                &job["public_key_id"],
                &job["job_mem_size"]
            ),
            (&json!("create"), &made["recipe_id"], &json!(key), &json!(3))
        );
        jobs.push(tick["job_id"].clone());
    }
    let history = api.read(&format!("{path}/history")).await;
    let of_history: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|tick| tick["job_id"].clone())
        .collect();
    assert_eq!(of_history, jobs);
    assert_eq!(api.read(&format!("{path}/history?limit=1")).await, json!([history[0]]));
    assert_eq!(api.read("/v3/jobs").await.as_array().unwrap().len(), 2);
    // Without a key the job has an unused id in its place.
    api.patch(&path, json!({"public_key_id": null})).await.is(200);
    let tick = api.send("POST", &format!("{path}/run"), None).await.is(201).json();
    let job = api
        .read(&format!("/v3/jobs/{}", tick["job_id"].as_str().unwrap()))
        .await;
    assert_eq!(job["public_key_id"], "00000000-0000-0000-0000-000000000000");
}

#[test]
async fn a_run_that_cannot_be_says_why() {
    let api = server();
    let made = schedule(&api, json!({})).await;
    let recipe = made["recipe_id"].as_str().unwrap();
    api.delete(&format!("/v3/recipes/{recipe}")).await.done();
    let path = format!("{PATH}/{}", id_of(&made));
    let tick = api.send("POST", &format!("{path}/run"), None).await.is(201).json();
    assert_eq!(tick["outcome"], "failed");
    assert!(tick["why"].as_str().unwrap().contains("no recipe"), "{tick}");
    assert_eq!(tick["job_id"], Value::Null);
    assert_eq!(api.read("/v3/jobs").await, json!([]));
    // It can be stopped all the same, but not be given the recipe anew.
    api.send("POST", &format!("{path}/pause"), None).await.is(200);
    api.patch(&path, json!({"image_root_archive_name": "x-{n}"}))
        .await
        .problem(400);
}

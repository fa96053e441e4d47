//! `/kiln/v1/sets`.

use serde_json::{Value, json};

use crate::api::server::{IMAGES, NOBODY, Server, id_of, unique};
use crate::support::eventually_async;

const PATH: &str = "/kiln/v1/sets";

/// An image of an architecture, with its manifest.
async fn image(api: &Server, arch: &str) -> Value {
    api.image(json!({"arch": arch})).await
}

/// A recipe of an architecture, by its id.
async fn recipe(api: &Server, arch: &str) -> String {
    id_of(&api.recipe(json!({"arch": arch})).await)
}

/// A set with these architectures, each of a recipe of its own.
async fn set(api: &Server, arches: &[(&str, bool)]) -> Value {
    let mut list = Vec::new();
    for (arch, required) in arches {
        list.push(json!({"arch": arch, "recipe_id": recipe(api, arch).await, "required": required}));
    }
    let body = json!({"name": unique("compute"), "version": "24.11", "arches": list, "job_mem_size": 3});
    api.make(PATH, body).await
}

fn at(set: &Value) -> String {
    format!("{PATH}/{}", id_of(set))
}

/// The states of the architectures, and of the set.
fn states(set: &Value) -> (Vec<&str>, &str) {
    let arches = set["arches"].as_array().unwrap();
    (
        arches.iter().map(|arch| arch["state"].as_str().unwrap()).collect(),
        set["state"].as_str().unwrap(),
    )
}

/// The last job of an architecture.
fn job(set: &Value, number: usize) -> String {
    let jobs = set["arches"][number]["jobs"].as_array().unwrap();
    jobs.last().unwrap().as_str().unwrap().to_owned()
}

/// Ends a job as another program would that carries it out.
async fn end(api: &Server, job: &str, image: Option<&str>) {
    let body = match image {
        Some(image) => json!({"status": "success", "resultant_image_id": image}),
        None => json!({"status": "error"}),
    };
    api.patch(&format!("/v3/jobs/{job}"), body).await.is(200);
}

#[test]
async fn a_set_is_complete_once_every_required_manifest_was_read() {
    let api = Server::own();
    let made = set(&api, &[("aarch64", true), ("x86_64", true), ("riscv64", false)]).await;
    assert_eq!(states(&made), (vec!["waiting"; 3], "building"), "{made}");
    assert_eq!(made["arches"][0]["arch"], "x86_64", "they have an order");
    // IMS's clients see plain jobs.
    let jobs = api.read("/v3/jobs").await;
    let mut names: Vec<_> = jobs
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["image_root_archive_name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    let name = made["name"].as_str().unwrap();
    let expected = ["aarch64", "riscv64", "x86_64"].map(|arch| format!("{name}-24.11.{arch}"));
    assert_eq!(names, expected);
    assert_eq!(jobs[0]["job_mem_size"], 3);

    let one = image(&api, "x86_64").await;
    end(&api, &job(&made, 0), Some(&id_of(&one))).await;
    let looked = api.read(&at(&made)).await;
    assert_eq!(states(&looked), (vec!["complete", "waiting", "waiting"], "building"));
    assert_eq!(looked["arches"][0]["manifest_sha256"].as_str().unwrap().len(), 64);
    let other = image(&api, "aarch64").await;
    end(&api, &job(&made, 1), Some(&id_of(&other))).await;
    end(&api, &job(&made, 2), None).await;
    let looked = api.read(&at(&made)).await;
    assert_eq!(states(&looked), (vec!["complete", "complete", "failed"], "complete"));
    assert_eq!(
        looked["remarks"],
        json!(["riscv64 (non-voting) is failed: its job has failed"])
    );
    assert!(looked["complete_since"].is_string());
    let listed = api.read(&format!("{PATH}?name={name}")).await;
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["state"], "complete");

    // Another architecture at the same version: not complete until its image is there.
    let more = json!({"arches": [
        {"arch": "s390x", "recipe_id": recipe(&api, "s390x").await},
        {"arch": "x86_64", "recipe_id": recipe(&api, "x86_64").await},
    ]});
    let grown = api
        .post(&format!("{}/arches", at(&made)), more.clone())
        .await
        .is(200)
        .json();
    assert_eq!(
        states(&grown),
        (vec!["complete", "complete", "waiting", "failed"], "building")
    );
    assert_eq!(
        grown["arches"][0]["jobs"], made["arches"][0]["jobs"],
        "what is complete stays"
    );
    let again = api.post(&format!("{}/arches", at(&made)), more).await.is(200).json();
    assert_eq!(
        again["arches"][2]["jobs"], grown["arches"][2]["jobs"],
        "what is under way stays"
    );
    end(&api, &job(&grown, 2), Some(&id_of(&image(&api, "s390x").await))).await;
    assert_eq!(states(&api.read(&at(&made)).await).1, "complete");

    // Only what failed is built again.
    let rebuilt = api
        .post(&format!("{}/rebuild", at(&made)), json!({}))
        .await
        .is(200)
        .json();
    assert_eq!(states(&rebuilt).0, ["complete", "complete", "complete", "waiting"]);
    assert_eq!(rebuilt["arches"][3]["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(api.read("/v3/jobs").await.as_array().unwrap().len(), 5);
    let once_more = api
        .post(&format!("{}/rebuild", at(&made)), json!({}))
        .await
        .is(200)
        .json();
    assert_eq!(once_more["arches"][3]["jobs"], rebuilt["arches"][3]["jobs"]);

    api.delete(&at(&made)).await.is(204);
    api.get(&at(&made)).await.problem(404);
    assert_eq!(
        api.read("/v3/jobs").await.as_array().unwrap().len(),
        5,
        "its jobs remain"
    );
}

/// A set of existing images, one of which goes through everything that can happen to an image.
#[test]
async fn an_image_that_is_deleted_changed_or_damaged_makes_its_set_incomplete() {
    let api = Server::own();
    let (one, other) = (image(&api, "x86_64").await, image(&api, "aarch64").await);
    let body = json!({"name": unique("given"), "version": "1", "arches": [
        {"arch": "x86_64", "image_id": id_of(&one)}, {"arch": "aarch64", "image_id": id_of(&other)},
    ]});
    let made = api.make(PATH, body).await;
    assert_eq!(states(&made), (vec!["complete", "complete"], "complete"));
    assert_eq!(api.read("/v3/jobs").await, json!([]));
    let now = async || api.read(&at(&made)).await;
    let listed = async || api.read(PATH).await[0]["state"].as_str().unwrap().to_owned();

    let path = format!("/v3/images/{}", id_of(&other));
    api.delete(&path).await.is(204);
    assert_eq!(listed().await, "incomplete", "the records alone say so");
    let looked = now().await;
    assert_eq!(states(&looked), (vec!["complete", "deleted"], "incomplete"));
    assert!(
        looked["remarks"][0].as_str().unwrap().contains("was deleted"),
        "{looked}"
    );
    let undelete = json!({"operation": "undelete"});
    api.patch(&format!("/v3/deleted/images/{}", id_of(&other)), undelete)
        .await
        .is(204);
    assert_eq!(states(&now().await).1, "complete", "it was restored");

    // The same manifest with other words, at the same place.
    let key = format!("{}/manifest.json", id_of(&other));
    let text = api.s3().get_object().bucket(IMAGES).key(&key).send().await.unwrap();
    let text = text.body.collect().await.unwrap().into_bytes().to_vec();
    api.put(IMAGES, &key, [b" ", &text[..]].concat()).await;
    let looked = now().await;
    assert_eq!(states(&looked).0, ["complete", "changed"]);
    assert_eq!(
        looked["arches"][1]["manifest_sha256"],
        made["arches"][1]["manifest_sha256"]
    );
    api.put(IMAGES, &key, text.clone()).await;
    assert_eq!(states(&now().await).1, "complete");

    // An object of the image is gone, then the manifest.
    let rootfs = format!("s3://{IMAGES}/{}/rootfs", id_of(&other));
    api.remove(&rootfs).await;
    let looked = now().await;
    assert_eq!(states(&looked), (vec!["complete", "unusable"], "incomplete"));
    assert!(
        looked["remarks"][0].as_str().unwrap().contains("cannot be found"),
        "{looked}"
    );
    api.remove(&format!("s3://{IMAGES}/{key}")).await;
    assert_eq!(states(&now().await).0, ["complete", "unusable"]);
    let arch = json!({"arch": "riscv64"});
    api.patch(&format!("/v3/images/{}", id_of(&one)), arch).await.is(200);
    assert_eq!(states(&now().await).0, ["changed", "unusable"]);
    let refused = api
        .post(&format!("{}/rebuild", at(&made)), json!({}))
        .await
        .problem(409);
    assert!(
        refused["detail"].as_str().unwrap().contains("x86_64, aarch64"),
        "{refused}"
    );
    // Another image takes the place of one that is not usable.
    let third = id_of(&image(&api, "aarch64").await);
    let more = json!({"arches": [{"arch": "aarch64", "image_id": third}]});
    let looked = api.post(&format!("{}/arches", at(&made)), more).await.is(200).json();
    assert_eq!(states(&looked).0, ["changed", "complete"]);
}

#[test]
async fn a_server_that_dies_leaves_a_set_that_the_next_one_goes_on_with() {
    let api = Server::own();
    let made = set(&api, &[("aarch64", true), ("x86_64", true)]).await;
    let api = api.crashed();
    let looked = api.read(&at(&made)).await;
    assert_eq!(looked["arches"][0]["jobs"], made["arches"][0]["jobs"]);
    assert_eq!(api.read("/v3/jobs").await.as_array().unwrap().len(), 2);
    // The loop looks by itself: nobody asks for the set here.
    for number in [0, 1] {
        let arch = made["arches"][number]["arch"].as_str().unwrap();
        end(&api, &job(&made, number), Some(&id_of(&image(&api, arch).await))).await;
    }
    eventually_async(async || {
        let listed = api.read(PATH).await;
        if listed[0]["state"] == "complete" {
            Ok(())
        } else {
            Err(listed)
        }
    })
    .await;
}

#[test]
async fn what_is_wrong_leaves_nothing_behind() {
    let api = Server::own();
    let (x86, arm) = (recipe(&api, "x86_64").await, recipe(&api, "aarch64").await);
    let arches = json!([{"arch": "x86_64", "recipe_id": x86}]);
    let good = json!({"name": "n", "version": "1", "arches": arches});
    for (member, value, words) in [
        ("arches", json!([]), "at least one architecture"),
        ("arches", json!("x86_64"), "Not a valid list"),
        (
            "arches",
            json!([{"arch": "x86_64", "recipe_id": x86}, {"arch": "x86_64", "recipe_id": x86}]),
            "named twice",
        ),
        (
            "arches",
            json!([{"arch": "sparc", "recipe_id": x86}]),
            "Must be one of: x86_64",
        ),
        (
            "arches",
            json!([{"arch": "x86_64"}]),
            "Either `recipe_id` or `image_id`",
        ),
        (
            "arches",
            json!([{"arch": "x86_64", "recipe_id": x86, "image_id": NOBODY}]),
            "Either `recipe_id` or `image_id`",
        ),
        (
            "arches",
            json!([{"arch": "x86_64", "recipe_id": x86, "time_limit_s": 0}]),
            "from 1 to",
        ),
        ("name", json!("a/b"), "letters, digits"),
        ("name", json!("<script>"), "letters, digits"),
        ("name", json!("a\u{202e}b"), "letters, digits"),
        ("name", json!("x".repeat(10_240)), "Longer than 128 bytes"),
        ("version", json!("../1"), "letters, digits"),
        ("version", json!("x".repeat(10_240)), "Longer than 64 bytes"),
        ("version", json!(24), "Not a valid string"),
        ("state", json!("complete"), "Unknown field"),
    ] {
        let mut body = good.clone();
        body[member] = value.clone();
        let errors = api.post(PATH, body).await.errors();
        assert!(errors[member].to_string().contains(words), "{member}: {errors}");
    }
    // The second one cannot be made: nothing is.
    for (arches, status, words) in [
        (
            json!([{"arch": "x86_64", "recipe_id": x86}, {"arch": "aarch64", "recipe_id": x86}]),
            422,
            "is one for x86_64, not for aarch64",
        ),
        (
            json!([{"arch": "x86_64", "recipe_id": x86}, {"arch": "aarch64", "recipe_id": NOBODY}]),
            400,
            "aarch64: There is no recipe",
        ),
        (
            json!([{"arch": "x86_64", "recipe_id": x86}, {"arch": "aarch64", "image_id": NOBODY}]),
            400,
            "aarch64: There is no image",
        ),
        (
            json!([{"arch": "aarch64", "recipe_id": arm, "required": false}]),
            422,
            "at least one required",
        ),
    ] {
        let body = json!({"name": "n", "version": "1", "arches": arches});
        let problem = api.post(PATH, body).await.problem(status);
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
    let unlinked = id_of(&api.make("/v3/images", json!({"name": "n", "arch": "x86_64"})).await);
    let body = json!({"name": "n", "version": "1", "arches": [{"arch": "x86_64", "image_id": unlinked}]});
    api.post(PATH, body).await.problem(400);
    assert_eq!(api.read(PATH).await, json!([]));
    assert_eq!(api.read("/v3/jobs").await, json!([]));

    let made = api.make(PATH, good.clone()).await;
    let problem = api.post(PATH, good).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("n@1 already"), "{problem}");
    let wrong = json!({"arches": [{"arch": "riscv64", "recipe_id": arm}]});
    api.post(&format!("{}/arches", at(&made)), wrong).await.problem(422);
    assert_eq!(api.read(&at(&made)).await["arches"].as_array().unwrap().len(), 1);
    for (method, path) in [
        ("GET", NOBODY.to_owned()),
        ("GET", "x".to_owned()),
        ("DELETE", NOBODY.to_owned()),
        ("POST", format!("{NOBODY}/rebuild")),
    ] {
        api.send(method, &format!("{PATH}/{path}"), None).await.problem(404);
    }
}

/// Two requests for the same version at the same time make one set.
#[test]
async fn one_of_two_wins() {
    let api = Server::own();
    let recipe = recipe(&api, "x86_64").await;
    let body = json!({"name": "n", "version": "1", "arches": [{"arch": "x86_64", "recipe_id": recipe}]});
    let both = futures::future::join_all((0..8).map(|_| api.post(PATH, body.clone()))).await;
    let made = both.into_iter().filter(|answer| answer.status == 201).count();
    assert_eq!(made, 1);
    assert_eq!(api.read(PATH).await.as_array().unwrap().len(), 1);
    assert_eq!(api.read("/v3/jobs").await.as_array().unwrap().len(), 1);
}

//! Input that IMS stumbles over.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::api::{
    jobs::job,
    server::{NOBODY, Server, id_of, unique},
};

#[test]
async fn w09_what_is_a_500_in_ims_is_a_422() {
    let api = Server::shared();
    let taken = api.recipe(json!({})).await;
    let recipe = id_of(&api.recipe(json!({"link": null})).await);
    let image = id_of(&api.image(json!({"link": null})).await);
    let minimal = json!({"name": "n", "recipe_type": "kiwi-ng", "linux_distribution": "sles15"});
    let with = |member: &str, value: &Value| {
        let mut body = minimal.clone();
        body[member] = value.clone();
        body
    };
    // A link that another recipe has.
    api.post("/v3/recipes", with("link", &taken["link"])).await.problem(422);
    // Paths that are none.
    for path in [
        "ims/recipe",
        "/ims/recipe",
        "s3:/ims/recipe",
        "s3://",
        "s3://ims",
        "s3://ims/",
        "s3:///recipe",
        "S3://ims/recipe",
        "http://ims/recipe",
        "s3://i m s/recipe",
        "s3://ims/a\nb",
        "s3://ims/a\u{0}b",
        "s3://../recipe",
        " s3://ims/recipe",
        "recipe",
        &format!("s3://ims/{}", "x".repeat(1025)),
        &format!("s3://{}/x", "b".repeat(300)),
    ] {
        let link = json!({"path": path, "type": "s3"});
        for (method, at, body) in [
            ("POST", "/v3/recipes".to_owned(), with("link", &link)),
            ("POST", "/v3/images".to_owned(), json!({"name": "n", "link": link})),
            ("PATCH", format!("/v3/recipes/{recipe}"), json!({ "link": link })),
            ("PATCH", format!("/v3/images/{image}"), json!({ "link": link })),
        ] {
            let answer = api.send(method, &at, Some(&body)).await;
            assert_eq!(answer.status, 422, "{path:?}: {answer:?}");
            answer.problem(422);
        }
    }
    // A dictionary that is null: refused by PATCH, and harmless in a job.
    api.patch(&format!("/v3/recipes/{recipe}"), json!({"template_dictionary": null}))
        .await
        .errors();
    let null = id_of(&api.recipe(json!({"template_dictionary": null})).await);
    let key = api.key().await;
    api.make("/v3/jobs", job("create", &null, &key)).await;
    // A recipe that cannot be built.
    let packer = id_of(&api.recipe(json!({"recipe_type": "packer"})).await);
    api.post("/v3/jobs", job("create", &packer, &key)).await.problem(422);
    // Two lines, of which only one would be looked at.
    for text in [
        "ssh-rsa A\nssh-rsa B",
        "ssh-rsa A\n\n",
        "\nssh-rsa A",
        "ssh-rsa A\rssh-rsa B\n",
        "\n",
        " ",
        "a\u{0}",
    ] {
        let errors = api
            .post("/v3/public-keys", json!({"name": "n", "public_key": text}))
            .await
            .errors();
        assert!(errors["public_key"].is_array(), "{text:?}");
    }
}

#[test]
async fn w09_of_many_that_want_one_link_one_gets_it() {
    let api = Server::shared();
    let path = api.object("ims", "wanted", b"x").await;
    let wish = || {
        let body = json!({"name": "n", "recipe_type": "kiwi-ng", "linux_distribution": "sles15",
                          "link": {"path": path, "type": "s3"}});
        api.post("/v3/recipes", body)
    };
    let mut statuses: Vec<_> = join_all((0..10).map(|_| wish()))
        .await
        .iter()
        .map(|answer| answer.status)
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![201], vec![422; 9]].concat());
}

#[test]
async fn w11_a_patch_does_everything_or_nothing() {
    let api = Server::shared();
    let recipe = api
        .recipe(json!({"link": null, "template_dictionary": [{"key": "a", "value": "b"}]}))
        .await;
    let linked = api.recipe(json!({})).await;
    let image = api.image(json!({"link": null, "metadata": {"a": "b"}})).await;
    let tagged = api.image(json!({"metadata": {"a": "b"}})).await;
    let missing = json!({"path": format!("s3://ims/{}", unique("missing")), "type": "s3"});
    let broken = api.manifest_text("not json").await;
    let tag = json!({"operation": "set", "key": "a", "value": "changed"});
    for (kind, record, members, status) in [
        (
            "recipes",
            &recipe,
            vec![("arch", json!("aarch64")), ("link", missing.clone())],
            422,
        ),
        (
            "recipes",
            &recipe,
            vec![("require_dkms", json!(false)), ("arch", json!("sparc"))],
            422,
        ),
        (
            "recipes",
            &recipe,
            vec![("template_dictionary", json!([])), ("require_dkms", json!("maybe"))],
            422,
        ),
        (
            "recipes",
            &recipe,
            vec![("template_dictionary", json!([])), ("odd", json!(1))],
            422,
        ),
        (
            "recipes",
            &linked,
            vec![("arch", json!("aarch64")), ("link", missing.clone())],
            409,
        ),
        (
            "images",
            &image,
            vec![("arch", json!("aarch64")), ("link", broken.clone())],
            422,
        ),
        (
            "images",
            &image,
            vec![("metadata", tag.clone()), ("link", missing.clone())],
            422,
        ),
        (
            "images",
            &image,
            vec![("name", json!("changed")), ("metadata", json!({}))],
            422,
        ),
        (
            "images",
            &tagged,
            vec![("metadata", tag.clone()), ("link", missing.clone())],
            409,
        ),
    ] {
        let path = format!("/v3/{kind}/{}", id_of(record));
        // In both orders: IMS goes through members as they come.
        for reverse in [false, true] {
            let mut members: Vec<_> = members
                .iter()
                .map(|(name, value)| format!("{name:?}: {value}"))
                .collect();
            if reverse {
                members.reverse();
            }
            let body = format!("{{{}}}", members.join(", "));
            let answer = api.raw("PATCH", &path, Some("application/json"), body.clone()).await;
            assert_eq!(answer.status, status, "{body}: {answer:?}");
            assert_eq!(api.read(&path).await, *record, "{body}");
        }
    }
}

#[test]
async fn w11_changes_at_the_same_time_all_count() {
    let api = Server::shared();
    let image = id_of(&api.image(json!({})).await);
    let path = format!("/v3/images/{image}");
    let set = |number: i32| {
        let tag = json!({"operation": "set", "key": format!("k{number}"), "value": "v"});
        api.patch(&path, json!({ "metadata": tag }))
    };
    let answers = join_all((0..8).map(set)).await;
    let took: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(took, [200; 8]);
    assert_eq!(api.read(&path).await["metadata"].as_object().unwrap().len(), 8);
}

#[test]
async fn w12_what_is_stored_is_typed() {
    let api = Server::own();
    let recipe = id_of(&api.recipe(json!({"arch": "x86_64"})).await);
    let path = format!("/v3/recipes/{recipe}");
    let key = api.key().await;
    for (text, means) in [("false", false), ("yes", true), ("0", false)] {
        api.patch(&path, json!({ "require_dkms": text })).await.is(200);
        let made = api.make("/v3/jobs", job("create", &recipe, &key)).await;
        assert_eq!(made["require_dkms"], means, "a job takes it for what it means");
    }
    let record = api.read(&path).await;
    let mut body = job("create", &recipe, &key);
    body["build_env_size"] = json!(" 15 ");
    body["enable_debug"] = json!("on");
    let made = api.make("/v3/jobs", body).await;
    let api = api.restarted();
    assert_eq!(api.read(&path).await, record);
    assert_eq!(record["require_dkms"], false);
    assert_eq!(api.read(&format!("/v3/jobs/{}", id_of(&made))).await, made);
    assert_eq!(
        (&made["build_env_size"], &made["enable_debug"]),
        (&json!(15), &json!(true))
    );
}

#[test]
async fn w13_texts_that_would_be_something_else_elsewhere_are_refused_or_kept_as_they_are() {
    let api = Server::shared();
    let recipe = id_of(&api.recipe(json!({})).await);
    let key = api.key().await;
    let fields = [
        "kernel_file_name",
        "initrd_file_name",
        "kernel_parameters_file_name",
        "image_root_archive_name",
    ];
    for field in fields {
        for text in [
            "../../etc/passwd",
            "/etc/shadow",
            "boot/vmlinuz",
            "..",
            ".",
            "-rf",
            "--help",
            "a\nb: c",
            "a\rb",
            "a\u{0}b",
            "a\tb",
            "\u{1b}[2J",
            "a\u{202e}b",
            "a\u{2028}\u{7f}",
            &"x".repeat(256),
            &"ü".repeat(128),
        ] {
            let mut body = job("create", &recipe, &key);
            body[field] = json!(text);
            let errors = api.post("/v3/jobs", body).await.errors();
            assert!(errors[field].is_array(), "{field} {text:?}");
        }
        // These are only text here; nothing pastes them anywhere.
        for text in [
            "{{ 7*7 }}",
            "$(id)",
            "a\"b'c",
            "`id`",
            "a: b # c",
            "123",
            "true",
            "null",
            "a;b",
            "%s",
            "ü",
            "a b",
            "<x>",
        ] {
            let mut body = job("create", &recipe, &key);
            body[field] = json!(text);
            let made = api.make("/v3/jobs", body).await;
            assert_eq!(made[field], text, "{field}");
            assert_eq!(api.read(&format!("/v3/jobs/{}", id_of(&made))).await[field], text);
        }
    }
}

#[test]
async fn w16_a_job_that_is_refused_leaves_nothing() {
    let api = Server::own();
    let recipe = id_of(&api.recipe(json!({})).await);
    let key = api.key().await;
    let mut shells = job("create", &recipe, &key);
    shells["ssh_containers"] = json!([{}]);
    for body in [
        job("create", NOBODY, &key),
        job("create", &recipe, NOBODY),
        job("customize", &recipe, &key),
        shells,
    ] {
        api.post("/v3/jobs", body).await.problem(400);
    }
    assert_eq!(api.read("/v3/jobs").await, json!([]));
    let mut left: Vec<_> = fs_err::read_dir(api.data())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("records.sqlite"))
        .collect();
    left.sort();
    assert!(
        !left.iter().any(|name| name == "jobs" || name == "sandboxes"),
        "{left:?}"
    );
}

#[test]
async fn w17_jobs_end_and_go_whatever_happens_elsewhere() {
    let api = Server::shared();
    let recipe = id_of(&api.recipe(json!({})).await);
    let key = api.key().await;
    for status in ["success", "error"] {
        let id = id_of(&api.make("/v3/jobs", job("create", &recipe, &key)).await);
        let path = format!("/v3/jobs/{id}");
        assert_eq!(
            api.patch(&path, json!({ "status": status })).await.is(200).json()["status"],
            status
        );
        api.delete(&path).await.done();
    }
}

//! Tests what counts as a text, a boolean, a number, a UUID: IMS's rules, and that typed values are stored.

use serde_json::{Value, json};

use crate::api::server::{Server, id_of, unique};

const TRUE: [&str; 14] = [
    "1", "t", "T", "true", "True", "TRUE", "on", "On", "ON", "y", "Y", "yes", "Yes", "YES",
];
const FALSE: [&str; 14] = [
    "0", "f", "F", "false", "False", "FALSE", "off", "Off", "OFF", "n", "N", "no", "No", "NO",
];

/// Every form of a boolean, with its meaning.
fn yes_and_no() -> Vec<(Value, bool)> {
    let texts = |list: [&'static str; 14], means| list.into_iter().map(move |text| (json!(text), means));
    let mut all: Vec<_> = texts(TRUE, true).chain(texts(FALSE, false)).collect();
    all.extend([
        (json!(true), true),
        (json!(1), true),
        (json!(1.0), true),
        (json!(false), false),
        (json!(0), false),
        (json!(0.0), false),
    ]);
    all
}

fn neither() -> Vec<Value> {
    let texts = [
        "", "2", "tRuE", "oN", "yEs", " true", "true ", "enabled", "None", "null",
    ];
    let mut all: Vec<_> = texts.iter().map(|text| json!(text)).collect();
    all.extend([
        json!(2),
        json!(-1),
        json!(0.5),
        json!([]),
        json!([true]),
        json!({}),
        json!(null),
    ]);
    all
}

#[test]
async fn booleans() {
    let api = Server::shared();
    let recipe = api.recipe(json!({"link": null})).await;
    let path = format!("/v3/recipes/{}", id_of(&recipe));
    for (value, means) in yes_and_no() {
        let body =
            json!({"name": "n", "recipe_type": "kiwi-ng", "linux_distribution": "sles15", "require_dkms": value});
        assert_eq!(api.make("/v3/recipes", body).await["require_dkms"], means, "{value}");
        let patched = api.patch(&path, json!({ "require_dkms": value })).await.is(200).json();
        assert_eq!(patched["require_dkms"], means, "{value}");
        assert_eq!(api.read(&path).await["require_dkms"], means, "{value}");
    }
    for value in neither() {
        let errors = api.post("/v3/recipes", json!({ "require_dkms": value })).await.errors();
        assert_eq!(
            errors["require_dkms"].as_array().map(Vec::len),
            Some(1),
            "{value}: {errors}"
        );
        let errors = api.patch(&path, json!({ "require_dkms": value })).await.errors();
        assert_eq!(errors.as_object().unwrap().len(), 1, "{value}: {errors}");
        for field in ["enable_debug", "require_dkms"] {
            let errors = api.post("/v3/jobs", json!({ field: value })).await.errors();
            assert!(errors[field].is_array(), "{field} {value}: {errors}");
        }
        let errors = api
            .post("/v3/jobs", json!({"ssh_containers": [{ "jail": value }]}))
            .await
            .errors();
        assert!(errors["ssh_containers"]["0"]["jail"].is_array(), "{value}: {errors}");
    }
}

#[test]
async fn sizes() {
    let api = Server::shared();
    let job = json!({"job_type": "create", "artifact_id": id_of(&api.recipe(json!({})).await),
                     "public_key_id": api.key().await, "image_root_archive_name": unique("image")});
    for field in ["build_env_size", "job_mem_size"] {
        for (value, means) in [
            (json!(1), 1),
            (json!(15), 15),
            (json!(1.7), 1),
            (json!(2e1), 20),
            (json!("7"), 7),
            (json!(" 7 "), 7),
            (json!("\t7\n"), 7),
            (json!("+7"), 7),
            (json!("007"), 7),
            (json!(1_048_576), 1_048_576),
        ] {
            let mut body = job.clone();
            body[field] = value.clone();
            assert_eq!(api.make("/v3/jobs", body).await[field], means, "{field} {value}");
        }
        for value in [
            json!(0),
            json!(0.9),
            json!(-1),
            json!(-1.5),
            json!("0"),
            json!("-3"),
            json!("1.7"),
            json!("0x10"),
            json!("1e3"),
            json!(""),
            json!(" "),
            json!("seven"),
            json!("7 GiB"),
            json!("_1"),
            json!("1_0"),
            json!(true),
            json!(false),
            json!(null),
            json!([7]),
            json!({}),
            json!(1e300),
            json!(1_048_577),
            json!(u64::MAX),
            json!(i64::MIN),
            json!("99999999999999999999999999999999999999999999"),
        ] {
            let errors = api.post("/v3/jobs", json!({ field: value })).await.errors();
            assert_eq!(
                errors[field].as_array().map(Vec::len),
                Some(1),
                "{field} {value}: {errors}"
            );
        }
    }
}

#[test]
async fn uuids() {
    let api = Server::shared();
    let recipe = id_of(&api.recipe(json!({})).await);
    let key = api.key().await;
    let spellings = |id: &str| {
        let plain = id.replace('-', "");
        vec![
            id.to_owned(),
            id.to_uppercase(),
            plain.clone(),
            plain.to_uppercase(),
            format!("{{{id}}}"),
            format!("urn:uuid:{id}"),
            format!("urn:uuid:{{{plain}}}"),
        ]
    };
    for (recipe_text, key_text) in spellings(&recipe).into_iter().zip(spellings(&key)) {
        let body = json!({"job_type": "create", "artifact_id": recipe_text, "public_key_id": key_text,
                          "image_root_archive_name": "n"});
        let job = api.make("/v3/jobs", body).await;
        assert_eq!(
            (job["artifact_id"].as_str(), job["public_key_id"].as_str()),
            (Some(&*recipe), Some(&*key))
        );
    }
    for value in [
        json!(""),
        json!("not-a-uuid"),
        json!(format!("{recipe}0")),
        json!(recipe[1..]),
        json!(format!(" {recipe}")),
        json!(recipe.replace(['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'], "g")),
        json!(7),
        json!(true),
        json!(null),
        json!([recipe]),
        json!({"id": recipe}),
    ] {
        for field in ["artifact_id", "public_key_id"] {
            let errors = api.post("/v3/jobs", json!({ field: value })).await.errors();
            assert_eq!(
                errors[field].as_array().map(Vec::len),
                Some(1),
                "{field} {value}: {errors}"
            );
        }
    }
}

#[test]
async fn texts() {
    let api = Server::shared();
    let recipe = id_of(&api.recipe(json!({"link": null})).await);
    let image = id_of(&api.image(json!({"link": null})).await);
    let no_texts = [
        json!(7),
        json!(1.5),
        json!(true),
        json!([]),
        json!(["x"]),
        json!({}),
        json!(null),
    ];
    let mut places = vec![
        ("POST", "/v3/public-keys".to_owned(), "name public_key"),
        (
            "POST",
            "/v3/recipes".to_owned(),
            "name recipe_type linux_distribution arch",
        ),
        ("POST", "/v3/images".to_owned(), "name arch"),
        (
            "POST",
            "/v3/jobs".to_owned(),
            "job_type image_root_archive_name kernel_file_name initrd_file_name kernel_parameters_file_name",
        ),
        ("POST", "/v3/remote-build-nodes".to_owned(), "xname"),
        ("PATCH", format!("/v3/recipes/{recipe}"), "arch"),
        ("PATCH", format!("/v3/images/{image}"), "arch name"),
    ];
    for (method, path, fields) in places.drain(..) {
        for field in fields.split(' ') {
            // Every text has to say something, but the kernel's name.
            let empty = (field != "kernel_file_name").then(|| json!(""));
            for value in no_texts.iter().cloned().chain(empty) {
                let errors = api.send(method, &path, Some(&json!({ field: value }))).await.errors();
                assert_eq!(
                    errors[field].as_array().map(Vec::len),
                    Some(1),
                    "{path} {field} {value}: {errors}"
                );
            }
        }
    }
    for (method, path) in [
        ("POST", "/v3/recipes".to_owned()),
        ("PATCH", format!("/v3/recipes/{recipe}")),
    ] {
        for value in &no_texts {
            for part in ["path", "type", "etag"] {
                let errors = api
                    .send(method, &path, Some(&json!({"link": { part: value }})))
                    .await
                    .errors();
                assert!(errors["link"][part].is_array(), "{path} {part} {value}: {errors}");
            }
            for part in ["key", "value"] {
                let body = json!({"template_dictionary": [{ part: value }]});
                let errors = api.send(method, &path, Some(&body)).await.errors();
                assert!(
                    errors["template_dictionary"]["0"][part].is_array(),
                    "{path} {part} {value}: {errors}"
                );
            }
        }
    }
    for value in &no_texts {
        let errors = api
            .post("/v3/jobs", json!({"ssh_containers": [{ "name": value }]}))
            .await
            .errors();
        assert!(errors["ssh_containers"]["0"]["name"].is_array(), "{value}: {errors}");
    }
}

#[test]
async fn lists_and_objects_are_nothing_else() {
    let api = Server::shared();
    let recipe = id_of(&api.recipe(json!({"link": null})).await);
    let image = id_of(&api.image(json!({"link": null})).await);
    let others = [json!("x"), json!(7), json!(true)];
    for (method, path, field) in [
        ("POST", "/v3/recipes".to_owned(), "link"),
        ("PATCH", format!("/v3/recipes/{recipe}"), "link"),
        ("POST", "/v3/images".to_owned(), "link"),
        ("PATCH", format!("/v3/images/{image}"), "link"),
        ("POST", "/v3/images".to_owned(), "metadata"),
        ("PATCH", format!("/v3/images/{image}"), "metadata"),
    ] {
        for value in others.iter().chain(&[json!([]), json!([{}])]) {
            let errors = api.send(method, &path, Some(&json!({ field: value }))).await.errors();
            assert!(!errors[field].is_null(), "{method} {path} {field} {value}: {errors}");
        }
    }
    for (method, path, field) in [
        ("POST", "/v3/recipes".to_owned(), "template_dictionary"),
        ("PATCH", format!("/v3/recipes/{recipe}"), "template_dictionary"),
        ("POST", "/v3/jobs".to_owned(), "ssh_containers"),
    ] {
        for value in others
            .iter()
            .chain(&[json!({}), json!([1]), json!([null]), json!(["x"])])
        {
            let errors = api.send(method, &path, Some(&json!({ field: value }))).await.errors();
            assert!(!errors[field].is_null(), "{method} {path} {field} {value}: {errors}");
        }
    }
}

#[test]
async fn null_is_taken_where_it_means_nothing_given() {
    let api = Server::shared();
    let recipe = api.recipe(json!({"link": null, "template_dictionary": null})).await;
    assert_eq!(
        (&recipe["link"], &recipe["template_dictionary"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(api.image(json!({"link": null})).await["link"], Value::Null);
    let job = json!({"job_type": "create", "artifact_id": id_of(&api.recipe(json!({})).await),
                     "public_key_id": api.key().await, "image_root_archive_name": "n", "ssh_containers": null});
    assert_eq!(api.make("/v3/jobs", job).await["ssh_containers"], Value::Null);

    let path = format!("/v3/recipes/{}", id_of(&recipe));
    for field in ["link", "arch", "require_dkms", "template_dictionary"] {
        let errors = api.patch(&path, json!({ field: null })).await.errors();
        assert_eq!(errors, json!({ field: ["Field may not be null."] }));
    }
    assert_eq!(api.read(&path).await, recipe);
}

#[test]
async fn enumerations_take_their_own_words_only() {
    let api = Server::shared();
    for (path, field, words) in [
        ("/v3/recipes", "recipe_type", "kiwi-ng packer"),
        (
            "/v3/recipes",
            "linux_distribution",
            "sles12 sles15 centos7 debian opensuse rhel rocky ubuntu",
        ),
        ("/v3/recipes", "arch", "x86_64 aarch64 ppc64le s390x riscv64"),
        ("/v3/recipes", "twins", "off tools shell full"),
        ("/v3/jobs", "twins", "off tools shell full"),
        ("/v3/recipes", "cache", "none packages image"),
        ("/v3/jobs", "cache", "none packages image"),
        ("/v3/images", "arch", "x86_64 aarch64 ppc64le s390x riscv64"),
        ("/v3/jobs", "job_type", "create customize"),
    ] {
        for word in words.split(' ') {
            let errors = api.post(path, json!({ field: word, "odd": 1 })).await.errors();
            assert!(errors.get(field).is_none(), "{field} {word}: {errors}");
            let (upper, padded) = (word.to_uppercase(), format!(" {word}"));
            for other in [upper.as_str(), &padded, "other", "arm64", "amd64", "kiwi", "Create"] {
                let errors = api.post(path, json!({ field: other })).await.errors();
                assert_eq!(
                    errors[field].as_array().map(Vec::len),
                    Some(1),
                    "{field} {other}: {errors}"
                );
            }
        }
    }
}

//! Tests `/jobs`: the members of a job, those that follow from its recipe or image, and the order of the checks.

use serde_json::{Value, json};

use crate::api::{
    moments::is_moment,
    server::{IMAGES, NOBODY, ROOTFS, Server, artifact, id_of, merge, unique},
};

/// A request for a job.
pub fn job(kind: &str, artifact: &str, key: &str) -> Value {
    json!({"job_type": kind, "artifact_id": artifact, "public_key_id": key, "image_root_archive_name": unique("built")})
}

/// The shell of a job.
fn shell(id: &str, name: Option<&str>, jail: bool) -> Value {
    let mut shell = json!({
        "jail": jail, "status": "pending",
        "connection_info": {
            "customer_access": {"host": format!("{id}.ims.cmn.shasta.local"), "port": 22},
            "cluster.local": {"host": format!("cray-ims-{id}-service.ims.svc.cluster.local"), "port": 22},
        },
    });
    if let Some(name) = name {
        shell["name"] = json!(name);
    }
    shell
}

#[test]
async fn a_create_job_gets_its_defaults() {
    let api = Server::shared();
    let (recipe, key) = (id_of(&api.recipe(json!({})).await), api.key().await);
    let body = job("create", &recipe, &key);
    let made = api.make("/v3/jobs", body.clone()).await;
    is_moment(&made["created"]);
    let id = id_of(&made);
    let expected = json!({
        "id": id, "created": made["created"], "job_type": "create", "artifact_id": recipe, "public_key_id": key,
        "image_root_archive_name": body["image_root_archive_name"], "enable_debug": false, "build_env_size": 60,
        "job_mem_size": 8, "kernel_file_name": "vmlinuz", "initrd_file_name": "initrd",
        "kernel_parameters_file_name": "kernel-parameters", "ssh_containers": null, "require_dkms": true,
        "status": "creating", "arch": "x86_64", "resultant_image_id": null,
        "kubernetes_job": format!("cray-ims-{id}-create"), "kubernetes_service": format!("cray-ims-{id}-service"),
        "kubernetes_configmap": format!("cray-ims-{id}-configmap"),
        "kubernetes_pvc": format!("cray-ims-{id}-job-claim"), "kubernetes_secret": null,
        "kubernetes_namespace": "ims", "remote_build_node": "",
    });
    assert_eq!(made, expected);
    assert_eq!(made.as_object().unwrap().len(), 24);
    for version in ["/v3", "/v2", ""] {
        assert_eq!(api.read(&format!("{version}/jobs/{id}")).await, expected);
        let list = api.read(&format!("{version}/jobs")).await;
        assert!(list.as_array().unwrap().contains(&expected), "{version}");
    }
}

#[test]
async fn a_customize_job_gets_its_defaults() {
    let api = Server::shared();
    let (image, key) = (id_of(&api.image(json!({})).await), api.key().await);
    let made = api.make("/v3/jobs", job("customize", &image, &key)).await;
    let id = id_of(&made);
    assert_eq!(made["kubernetes_job"], format!("cray-ims-{id}-customize"));
    assert_eq!(made["ssh_containers"], json!([shell(&id, Some("customize"), false)]));
    assert_eq!(made["artifact_id"], image);
    assert_eq!(made.as_object().unwrap().len(), 24);
    assert_eq!(
        api.patch(&format!("/v3/jobs/{id}"), json!({"status": "creating"}))
            .await
            .is(200)
            .json(),
        made
    );
}

#[test]
async fn what_is_said_is_kept() {
    let api = Server::shared();
    let (recipe, key) = (id_of(&api.recipe(json!({})).await), api.key().await);
    let said = json!({
        "enable_debug": true, "build_env_size": 15, "job_mem_size": 3, "kernel_file_name": "vmlinux-5.3",
        "initrd_file_name": "initrd.img", "kernel_parameters_file_name": "params", "require_dkms": false,
        "image_root_archive_name": "123",
    });
    let mut body = job("create", &recipe, &key);
    merge(&mut body, &said);
    let made = api.make("/v3/jobs", body).await;
    for (member, value) in said.as_object().unwrap() {
        assert_eq!(made[member], *value, "{member}");
    }
}

#[test]
async fn what_a_job_needs() {
    let api = Server::shared();
    let errors = api.post("/v3/jobs", json!({"enable_debug": true})).await.errors();
    let required = json!(["Missing data for required field."]);
    let names = ["job_type", "artifact_id", "public_key_id", "image_root_archive_name"];
    assert_eq!(errors.as_object().unwrap().len(), names.len());
    for name in names {
        assert_eq!(errors[name], required, "{name}");
    }
}

#[test]
async fn everything_follows_from_the_architecture_of_the_artifact() {
    let api = Server::shared();
    let key = api.key().await;
    for arch in ["x86_64", "aarch64", "ppc64le", "s390x", "riscv64"] {
        let kernel = if arch == "aarch64" { "Image" } else { "vmlinuz" };
        let image = id_of(&api.image(json!({ "arch": arch })).await);
        for recipe_dkms in [true, false] {
            let recipe = id_of(&api.recipe(json!({"arch": arch, "require_dkms": recipe_dkms})).await);
            for asked in [None, Some(true), Some(false)] {
                for (kind, artifact, usual) in [("create", &recipe, recipe_dkms), ("customize", &image, true)] {
                    let mut body = job(kind, artifact, &key);
                    if let Some(asked) = asked {
                        body["require_dkms"] = json!(asked);
                    }
                    let made = api.make("/v3/jobs", body).await;
                    let what = format!("{arch} {kind} recipe: {recipe_dkms} asked: {asked:?}");
                    assert_eq!(made["arch"], arch, "{what}");
                    assert_eq!(made["kernel_file_name"], kernel, "{what}");
                    // A job for aarch64 always gets a kernel of its own.
                    let dkms = arch == "aarch64" || asked.unwrap_or(usual);
                    assert_eq!(made["require_dkms"], dkms, "{what}");
                }
            }
        }
        let recipe = id_of(&api.recipe(json!({ "arch": arch })).await);
        for (asked, means) in [
            ("", kernel),
            ("vmlinuz", "vmlinuz"),
            ("Image", "Image"),
            ("k-6.1", "k-6.1"),
        ] {
            let mut body = job("create", &recipe, &key);
            body["kernel_file_name"] = json!(asked);
            assert_eq!(
                api.make("/v3/jobs", body).await["kernel_file_name"],
                means,
                "{arch} {asked:?}"
            );
        }
    }
}

#[test]
async fn the_architecture_stays_that_of_the_beginning() {
    let api = Server::shared();
    let key = api.key().await;
    let recipe = id_of(&api.recipe(json!({"arch": "aarch64"})).await);
    let made = api.make("/v3/jobs", job("create", &recipe, &key)).await;
    api.patch(&format!("/v3/recipes/{recipe}"), json!({"arch": "x86_64"}))
        .await
        .is(200);
    assert_eq!(api.read(&format!("/v3/jobs/{}", id_of(&made))).await, made);
}

/// Shells by name and jail; none means null.
type Shells = Option<&'static [(Option<&'static str>, bool)]>;

/// A job's type, the shells asked for, whether debugging was; the shells it gets, or a status.
type ShellCase = (&'static str, Option<Value>, bool, Result<Shells, u16>);

#[test]
async fn shells() {
    let api = Server::shared();
    let key = api.key().await;
    let recipe = id_of(&api.recipe(json!({})).await);
    let image = id_of(&api.image(json!({})).await);
    let cases: &[ShellCase] = &[
        ("create", None, false, Ok(None)),
        ("create", Some(json!(null)), false, Ok(None)),
        ("create", Some(json!([])), false, Ok(None)),
        ("create", None, true, Ok(Some(&[(Some("debug"), false)]))),
        ("create", Some(json!([])), true, Ok(Some(&[(Some("debug"), false)]))),
        ("create", Some(json!([{"name": "x"}])), false, Err(400)),
        ("create", Some(json!([{}])), true, Err(400)),
        ("create", Some(json!([{}, {}])), false, Err(400)),
        ("customize", None, false, Ok(Some(&[(Some("customize"), false)]))),
        ("customize", None, true, Ok(Some(&[(Some("customize"), false)]))),
        (
            "customize",
            Some(json!(null)),
            false,
            Ok(Some(&[(Some("customize"), false)])),
        ),
        (
            "customize",
            Some(json!([])),
            false,
            Ok(Some(&[(Some("customize"), false)])),
        ),
        // The request that CFS sends.
        (
            "customize",
            Some(json!([{"jail": true}])),
            false,
            Ok(Some(&[(None, true)])),
        ),
        (
            "customize",
            Some(json!([{"jail": "yes", "name": "n"}])),
            false,
            Ok(Some(&[(Some("n"), true)])),
        ),
        (
            "customize",
            Some(json!([{"name": ""}])),
            false,
            Ok(Some(&[(Some(""), false)])),
        ),
        ("customize", Some(json!([{}])), false, Ok(Some(&[(None, false)]))),
        (
            "customize",
            Some(json!([{"jail": true}, {"jail": true}])),
            false,
            Err(400),
        ),
    ];
    for (kind, given, debug, expected) in cases {
        let mut body = job(kind, if *kind == "create" { &recipe } else { &image }, &key);
        if let Some(given) = given {
            body["ssh_containers"] = given.clone();
        }
        body["enable_debug"] = json!(debug);
        let answer = api.post("/v3/jobs", body).await;
        match expected {
            Err(status) => drop(answer.problem(*status)),
            Ok(None) => assert_eq!(answer.is(201).json()["ssh_containers"], Value::Null, "{kind} {given:?}"),
            Ok(Some(shells)) => {
                let made = answer.is(201).json();
                let id = id_of(&made);
                let shells: Vec<_> = shells.iter().map(|(name, jail)| shell(&id, *name, *jail)).collect();
                assert_eq!(made["ssh_containers"], json!(shells), "{kind} {given:?}");
                assert_eq!(api.read(&format!("/v3/jobs/{id}")).await, made);
            }
        }
    }
}

#[test]
async fn what_a_job_refers_to_has_to_be_there() {
    let api = Server::shared();
    let key = api.key().await;
    let recipe = api.recipe(json!({})).await;
    let image = api.image(json!({})).await;
    let unlinked_recipe = id_of(&api.recipe(json!({"link": null})).await);
    let unlinked_image = id_of(&api.image(json!({"link": null})).await);
    let lost_recipe = api.recipe(json!({})).await;
    api.remove(lost_recipe["link"]["path"].as_str().unwrap()).await;
    let lost_image = api.image(json!({})).await;
    api.remove(lost_image["link"]["path"].as_str().unwrap()).await;
    let deleted = api.recipe(json!({})).await;
    api.delete(&format!("/v3/recipes/{}", id_of(&deleted))).await.done();
    let deleted_key = api.key().await;
    api.delete(&format!("/v3/public-keys/{deleted_key}")).await.done();
    for (kind, artifact, key, status, what) in [
        ("create", NOBODY, &*key, 400, "no such recipe"),
        ("customize", NOBODY, &key, 400, "no such image"),
        ("create", &id_of(&image), &key, 400, "an image is no recipe"),
        ("customize", &id_of(&recipe), &key, 400, "a recipe is no image"),
        ("create", &id_of(&deleted), &key, 400, "deleted recipe"),
        ("create", &unlinked_recipe, &key, 400, "recipe without link"),
        ("customize", &unlinked_image, &key, 400, "image without link"),
        ("create", &id_of(&lost_recipe), &key, 422, "recipe's object is gone"),
        ("customize", &id_of(&lost_image), &key, 422, "manifest is gone"),
        ("create", &id_of(&recipe), NOBODY, 400, "no such key"),
        ("customize", &id_of(&image), NOBODY, 400, "no such key"),
        ("create", &id_of(&recipe), &deleted_key, 400, "deleted key"),
        // The artifact is looked at before the key.
        ("create", &id_of(&lost_recipe), NOBODY, 422, "both"),
    ] {
        let body = job(kind, artifact, key);
        let answer = api.post("/v3/jobs", body.clone()).await;
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        answer.problem(status);
        let name = body["image_root_archive_name"].as_str().unwrap();
        assert_eq!(
            api.read(&format!("/v3/jobs?name={name}")).await,
            json!([]),
            "{what}: nothing is left"
        );
    }
}

#[test]
async fn a_customize_job_needs_one_root_file_system() {
    let api = Server::shared();
    let key = api.key().await;
    let rootfs = api.object(IMAGES, "rootfs", b"r").await;
    let good = artifact(ROOTFS, &rootfs);
    let gone = artifact(ROOTFS, &format!("{rootfs}-gone"));
    for (text, status, what) in [
        (json!({"version": "1.0", "artifacts": []}).to_string(), 400, "none"),
        (
            json!({"version": "1.0", "artifacts": [good, good]}).to_string(),
            400,
            "two",
        ),
        (json!({"version": "1.0", "artifacts": [gone]}).to_string(), 422, "gone"),
        (
            json!({"version": "1.0", "artifacts": [{"type": ROOTFS}]}).to_string(),
            422,
            "without link",
        ),
        (
            json!({"version": "9", "artifacts": [good]}).to_string(),
            422,
            "other version",
        ),
        ("{}".to_owned(), 422, "empty manifest"),
        ("[]".to_owned(), 422, "no manifest"),
        ("not json".to_owned(), 422, "not JSON"),
        ("x".repeat(1 << 20), 400, "too large"),
    ] {
        // The manifest is replaced behind the record's back; with it, it would not have been taken.
        let image = api.image(json!({})).await;
        let path = image["link"]["path"].as_str().unwrap();
        let (bucket, key_name) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
        api.put(bucket, key_name, text).await;
        let answer = api.post("/v3/jobs", job("customize", &id_of(&image), &key)).await;
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        answer.problem(status);
    }
}

#[test]
async fn a_job_outlives_what_it_refers_to() {
    let api = Server::shared();
    let key = api.key().await;
    let recipe = id_of(&api.recipe(json!({})).await);
    let made = api.make("/v3/jobs", job("create", &recipe, &key)).await;
    api.delete(&format!("/v2/recipes/{recipe}")).await.done();
    api.delete(&format!("/v2/public-keys/{key}")).await.done();
    assert_eq!(api.read(&format!("/v3/jobs/{}", id_of(&made))).await, made);
}

#[test]
async fn the_site_says_what_jobs_get_that_do_not() {
    let api = Server::with(&[
        ("KILN__JOBS__DEFAULT_IMAGE_SIZE_GIB", "15"),
        ("KILN__JOBS__DEFAULT_MEM_SIZE_GIB", "3"),
        ("KILN__JOBS__ENABLE_DKMS", "false"),
        ("KILN__JOBS__ACCESS_SUBNET", "chn"),
        ("KILN__JOBS__ACCESS_DOMAIN", "example.org"),
        ("KILN__JOBS__NAMESPACE", "builds"),
    ]);
    let key = api.key().await;
    let image = id_of(&api.image(json!({})).await);
    let made = api.make("/v3/jobs", job("customize", &image, &key)).await;
    let id = id_of(&made);
    assert_eq!(
        (&made["build_env_size"], &made["job_mem_size"]),
        (&json!(15), &json!(3))
    );
    assert_eq!(
        (&made["require_dkms"], &made["kubernetes_namespace"]),
        (&json!(false), &json!("builds"))
    );
    let at = &made["ssh_containers"][0]["connection_info"];
    assert_eq!(at["customer_access"]["host"], format!("{id}.ims.chn.example.org"));
    assert_eq!(
        at["cluster.local"]["host"],
        format!("cray-ims-{id}-service.builds.svc.cluster.local")
    );
    // A recipe says it for itself, and aarch64 always needs it.
    let recipe = id_of(&api.recipe(json!({"require_dkms": true})).await);
    assert_eq!(
        api.make("/v3/jobs", job("create", &recipe, &key)).await["require_dkms"],
        true
    );
    let image = id_of(&api.image(json!({"arch": "aarch64"})).await);
    assert_eq!(
        api.make("/v3/jobs", job("customize", &image, &key)).await["require_dkms"],
        true
    );
}

/// The plan of a job, in the row of a server that does not run.
fn plan_in(data: &std::path::Path, job: &str) -> kiln_records::run::Plan {
    let job = job.parse().unwrap();
    tokio::task::block_in_place(|| {
        tokio::runtime::Handle::current().block_on(async {
            let records = data.join("records.sqlite");
            let store = kiln::store::open(records.to_str().unwrap()).await.unwrap();
            let plan = store.get_run(job).await.unwrap().unwrap().run.plan;
            store.close().await;
            plan
        })
    })
}

#[test(threads = 2)]
async fn a_kernel_that_is_named_is_required_whatever_its_name_is() {
    let api = Server::with(&[("KILN__JOBS__RUN", "true")]);
    let (recipe, key) = (id_of(&api.recipe(json!({})).await), api.key().await);
    let image = id_of(&api.image(json!({})).await);
    let mut made = Vec::new();
    for (named, is_required) in [
        (Value::Null, false),
        (json!(""), false),
        (json!("vmlinuz"), true),
        (json!("vmlinuz-6"), true),
    ] {
        for (kind, artifact) in [("create", &recipe), ("customize", &image)] {
            let mut body = job(kind, artifact, &key);
            if named != Value::Null {
                body["kernel_file_name"] = named.clone();
            }
            made.push((id_of(&api.make("/v3/jobs", body).await), is_required));
        }
        // The empty text is IMS's, and only known of jobs.
        if named != "" {
            let schedule =
                json!({"name": unique("s"), "recipe_id": recipe, "cron": "0 0 1 1 *", "kernel_file_name": named});
            let schedule = id_of(&api.make("/kiln/v1/schedules", schedule).await);
            let run = format!("/kiln/v1/schedules/{schedule}/run");
            let tick = api.make(&run, json!({})).await;
            assert_eq!(tick["outcome"], "made", "{tick}");
            made.push((tick["job_id"].as_str().unwrap().to_owned(), is_required));

            let changes = json!([{"kind": "run", "text": "true"}]);
            let mut body = json!({"image_root_archive_name": unique("built"), "changes": changes});
            if named != Value::Null {
                body["kernel_file_name"] = named.clone();
            }
            let job = api.make(&format!("/kiln/v1/images/{image}/customize"), body).await;
            made.push((id_of(&job), is_required));
        }
    }
    api.restarted_after(|data| {
        for (job, is_required) in &made {
            let boot = plan_in(data, job).boot;
            assert_eq!(boot.required, *is_required, "{job}: {boot:?}");
        }
    });
}

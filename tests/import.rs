//! Tests reading the stored files of an IMS, importing them into the store, and writing them again.

use std::path::{Path, PathBuf};

use kiln::{
    import::{Imported, Records, import_into, read_ims, records_of, write_ims},
    store::{self, Collection, Doomed, SharedStore, Side},
};
use kiln_records::{Code, Failure, Image, JobStatus, LinuxDistribution, Moment, arch::Arch};
use serde_json::Value;
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/ims-data")
        .join(name)
}

async fn new_store() -> (SharedStore, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = store::open(dir.path().join("records.sqlite").to_str().unwrap())
        .await
        .unwrap();
    (store, dir)
}

/// Every image has a kernel, but one cannot be read.
async fn artifacts(image: Image) -> Result<Vec<String>, Failure> {
    if image.name == "compute-sles15sp5.aarch64" {
        return Err(Failure::new(Code::S3Missing, "no such key"));
    }
    Ok(vec![format!("s3://boot-images/{}/kernel", image.id)])
}

async fn import(store: &SharedStore, records: &Records) -> Imported {
    import_into(store, records, artifacts).await.unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

#[test]
async fn what_comes_in_goes_out_again() {
    let (records, notes) = read_ims(&fixture("current")).unwrap();
    assert_eq!(notes, []);
    assert_eq!(records.len(), 16);

    let (store, _dir) = new_store().await;
    let imported = import(&store, &records).await;
    assert_eq!(imported.added, 16);
    let notes: Vec<_> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("images[1] ") && notes[0].ends_with("its artifacts are unknown: no such key"));
    assert_eq!(records_of(&store).await.unwrap(), records);

    let out = tempfile::tempdir().unwrap();
    assert_eq!(write_ims(out.path(), &records).unwrap(), []);
    let (mut theirs, mut ours) = (names(&fixture("current")), names(out.path()));
    theirs.sort();
    ours.sort();
    assert_eq!(ours, theirs);
    for name in &ours {
        assert_eq!(
            json(&out.path().join(name)),
            json(&fixture("current").join(name)),
            "{name}"
        );
    }
    assert_eq!(read_ims(out.path()).unwrap(), (records.clone(), vec![]));

    // Objects are known, so they are removed with the last record that names them.
    Collection::<Image>::purge(&*store, Side::Deleted, None, false)
        .await
        .unwrap();
    let gone = records.deleted_images[0].id;
    let doomed = store.doomed(10).await.unwrap();
    let own = |path| Doomed { path, own: true };
    assert_eq!(
        doomed,
        [
            own(format!("s3://boot-images/deleted/{gone}/deleted_manifest.json")),
            own(format!("s3://boot-images/{gone}/kernel"))
        ]
    );
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
async fn an_import_can_be_run_again() {
    let (store, _dir) = new_store().await;
    let (records, _) = read_ims(&fixture("current")).unwrap();
    // On a task of its own, as a server would.
    tokio::spawn({
        let (store, records) = (store.clone(), records.clone());
        async move { import_into(&store, &records, artifacts).await.unwrap() }
    })
    .await
    .unwrap();
    let mut changed = records.clone();
    "changed".clone_into(&mut changed.images[0].name);
    let again = import(&store, &changed).await;
    assert_eq!(again.added, 0);
    assert_eq!(again.notes.len(), 16);
    assert!(
        again
            .notes
            .iter()
            .all(|note| note.left_out && note.reason == "it is there already")
    );
    assert_eq!(records_of(&store).await.unwrap(), records);
}

#[test]
async fn old_installations_are_understood() {
    let (records, notes) = read_ims(&fixture("old")).unwrap();
    assert_eq!(notes, []);
    // Of two releases' files, the newer.
    assert_eq!(records.recipes.len(), 1);
    let recipe = &records.recipes[0];
    assert_eq!(recipe.name, "cray-shasta-compute-sles15sp1");
    assert_eq!(recipe.template_dictionary.as_deref(), Some(&[][..]));
    assert!(!recipe.require_dkms);
    assert_eq!(recipe.link.as_ref().unwrap().etag, "");
    assert_eq!(recipe.created.to_string(), "2020-06-01T10:00:00.500000+00:00");
    let image = &records.images[0];
    assert_eq!(
        (image.arch, image.created.to_string().as_str()),
        (Arch::X86_64, "2020-06-01T10:00:00+00:00")
    );
    assert!(image.metadata.is_empty());
    let job = &records.jobs[0];
    assert_eq!((job.build_env_size, job.job_mem_size, job.enable_debug), (10, 8, false));
    assert_eq!(
        (job.kernel_file_name.as_str(), job.kernel_parameters_file_name.as_str()),
        ("vmlinuz", "kernel-parameters")
    );
    assert_eq!(job.kubernetes_job, format!("cray-ims-{}-customize", job.id));
    assert_eq!(job.kubernetes_namespace, "ims");
    let shell = &job.ssh_containers.as_ref().unwrap()[0];
    assert_eq!(
        shell.connection_info["customer_access"].host,
        format!("{}.ims.shasta.local", job.id)
    );

    // Nothing works on a job that IMS had not finished.
    let (store, _dir) = new_store().await;
    let imported = import(&store, &records).await;
    assert_eq!(imported.added, 4);
    assert_eq!(imported.notes.len(), 1);
    assert!(
        imported.notes[0].reason.contains("waiting_on_user"),
        "{:?}",
        imported.notes
    );
    assert_eq!(
        store.get_job(job.id).await.unwrap().unwrap().record.status,
        JobStatus::Error
    );
}

#[test]
async fn what_is_broken_stops_nothing_else() {
    let (records, notes) = read_ims(&fixture("broken")).unwrap();
    let mut names: Vec<_> = records.recipes.iter().map(|recipe| recipe.name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "good",
        "link that a failed copy left",
        "member of a newer release",
        "same link as the first",
    ];
    assert_eq!(names, expected);
    assert_eq!(records.recipes[1].link, None);
    assert!(records.images.is_empty() && records.jobs.is_empty());
    assert_eq!(records.deleted_images.len(), 1);
    assert_eq!(
        records.deleted_images[0].deleted,
        Some(records.deleted_images[0].created)
    );
    assert_eq!(records.remote_build_nodes.len(), 1);
    let notes: Vec<_> = notes.iter().map(ToString::to_string).collect();
    let expected = [
        "v2.2_recipes.json[1] 4b7a9c21-1e3f-4d6a-9b22-7f8e5d4c3b04: left out: linux_distribution: missing",
        "v2.2_recipes.json[2] not-a-uuid: left out: id: ",
        "v2.2_recipes.json[3] 5c6d7e32-2f4a-4e7b-8c33-1a2b3c4d5e05: link to `` (s3) dropped: ",
        "v2.2_recipes.json[4]: left out: not an object but text",
        "v2.2_recipes.json[5] df20abba-a1c2-4af3-8ebb-9cadbecfd013: unknown members of link dropped: size",
        "v2.2_recipes.json[5] df20abba-a1c2-4af3-8ebb-9cadbecfd013: unknown members dropped: labels",
        "v2.2_recipes.json[6] e131bccb-b2d3-4ba4-9fcc-adbecfd0e115: left out: name: Contains control characters.",
        "v2.2_recipes.json[7] e231bccb-b2d3-4ba4-9fcc-adbecfd0e116: left out: arch: `itanium` is not",
        "v2.1_images.json: left out: not JSON: ",
        "v3.1_deleted_images.json[0] 7f6e5d54-4b6c-4a9d-8e55-3c4d5e6f7a07: deleted: missing, ",
        "v3.1_deleted_images.json[1] 8a7b6c65-5c7d-4bae-9f66-4d5e6f7a8b08: left out: deleted: ",
        "v2.4_jobs.json: left out: not a list but an object",
        "v2.0_remote_build_nodes.json[1] -oProxyCommand=id: left out: xname: Not a host name.",
        "v2.0_remote_build_nodes.json[2]: left out: xname: missing",
    ];
    assert_eq!(notes.len(), expected.len(), "{notes:#?}");
    for (note, expected) in notes.iter().zip(expected) {
        assert!(note.starts_with(expected), "{note}\n{expected}");
    }

    let (store, _dir) = new_store().await;
    let imported = import(&store, &records).await;
    assert_eq!(imported.added, 5);
    assert_eq!(imported.notes.len(), 1);
    assert!(
        imported.notes[0]
            .to_string()
            .contains("another record has the link s3://ims/recipes/")
    );
}

/// What CSM's `export_ims_data.py` makes of an IMS with these files.
fn exported(from: &Path) -> Value {
    let map = |name: &str| {
        let list = json(&from.join(name));
        let records = list.as_array().unwrap().iter();
        let map: serde_json::Map<_, _> = records
            .map(|record| (record["id"].as_str().unwrap().to_owned(), record.clone()))
            .collect();
        Value::Object(map)
    };
    serde_json::json!({
        "bos": [], "bss": null, "created": "20231013161618.084854", "product_catalog": [],
        "ims_data": {
            "deleted": {
                "images": map("v3.1_deleted_images.json"),
                "public_keys": map("v3_deleted_public_keys.json"),
                "recipes": map("v3.2_deleted_recipes.json"),
            },
            "images": map("v2.1_images.json"),
            "jobs": map("v2.4_jobs.json"),
            "public_keys": map("v2_public_keys.json"),
            "recipes": map("v2.2_recipes.json"),
        },
        "s3_data": {
            "artifacts": {
                "s3://boot-images/a/manifest.json": { "describe": {}, "relpath": "s3_artifacts/a", "manifest_links": [] },
                "s3://boot-images/b/rootfs": { "describe": {} },
            },
            "buckets": { "boot-images": { "artifacts": [] } },
        },
    })
}

#[test]
fn an_export_of_csm_is_read_as_archive_and_as_directory() {
    let (expected, _) = read_ims(&fixture("current")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = exported(&fixture("current")).to_string();
    fs_err::write(dir.path().join("export.json"), &text).unwrap();
    let file = dir.path().join("export-ims-data-20231013161618.084854-naswhadt.tar");
    let mut archive = tar::Builder::new(fs_err::File::create(&file).unwrap());
    for (name, content) in [("s3_artifacts/a", "{}"), ("export.json", &*text)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    archive.finish().unwrap();

    for path in [dir.path(), &file] {
        let (mut records, notes) = read_ims(path).unwrap();
        // The nodes are not exported.
        records.remote_build_nodes.clone_from(&expected.remote_build_nodes);
        let sorted = |mut records: Records| {
            // The JSON of this test has no order.
            records.recipes.sort_by_key(|record| record.id);
            records.images.sort_by_key(|record| record.id);
            records.jobs.sort_by_key(|record| record.id);
            records.public_keys.sort_by_key(|record| record.id);
            records
        };
        assert_eq!(sorted(records), sorted(expected.clone()));
        let notes: Vec<_> = notes.iter().map(ToString::to_string).collect();
        let note = "export.json: the artifacts beside it (1) are not copied: they have to be in S3 already";
        assert_eq!(notes, [note]);
    }
}

#[test]
fn an_export_of_csm_keeps_its_order_and_names_what_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let key = |id: &str| {
        format!(r#""{id}": {{"id": "{id}", "created": "2020-06-01T10:00:00", "name": "k", "public_key": "ssh-rsa A"}}"#)
    };
    let (second, first) = (
        "b0000000-0000-4000-8000-000000000000",
        "a0000000-0000-4000-8000-000000000000",
    );
    let keys = [key(second), key(first), r#""odd": 7"#.to_owned()].join(",");
    let text =
        format!(r#"{{"created": "x", "ims_data": {{"deleted": null, "public_keys": {{{keys}}}}}, "s3_data": null}}"#);
    fs_err::write(dir.path().join("export.json"), text).unwrap();
    let (records, notes) = read_ims(dir.path()).unwrap();
    let ids: Vec<_> = records.public_keys.iter().map(|key| key.id.to_string()).collect();
    assert_eq!(ids, [second, first]);
    let notes: Vec<_> = notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes, ["public_keys[2]: left out: not an object but a number"]);

    // Neither another file of that name nor another archive is an empty IMS.
    fs_err::write(dir.path().join("export.json"), "{}").unwrap();
    let refused = read_ims(dir.path()).unwrap_err();
    assert!(
        refused.detail.contains("export.json is not what CSM exports"),
        "{refused}"
    );
    let file = dir.path().join("other.tar");
    tar::Builder::new(fs_err::File::create(&file).unwrap())
        .finish()
        .unwrap();
    assert_eq!(read_ims(&file).unwrap_err().code.name(), "not_ims_data");
}

#[test]
fn a_directory_without_files_of_ims_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("package.json"), "{}").unwrap();
    assert_eq!(read_ims(dir.path()).unwrap_err().code.name(), "not_ims_data");
    let missing = read_ims(&dir.path().join("missing")).unwrap_err();
    assert_eq!(missing.code.name(), "io");
    assert!(missing.detail.contains("missing"), "{missing}");
}

#[test]
fn what_ims_would_stumble_over_is_not_written() {
    let (mut records, _) = read_ims(&fixture("current")).unwrap();
    records.recipes[0].linux_distribution = LinuxDistribution::Debian;
    records.images[0].arch = Arch::Riscv64;
    records.jobs[0].created = Moment::from_micros(0);
    let out = tempfile::tempdir().unwrap();
    let notes = write_ims(out.path(), &records).unwrap();
    let notes: Vec<_> = notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            format!(
                "v2.2_recipes.json[0] {}: left out: IMS does not know the distribution debian",
                records.recipes[0].id
            ),
            format!(
                "v2.1_images.json[0] {}: left out: IMS does not know the architecture riscv64",
                records.images[0].id
            ),
        ]
    );
    records.recipes.remove(0);
    records.images.remove(0);
    assert_eq!(read_ims(out.path()).unwrap(), (records, vec![]));
}

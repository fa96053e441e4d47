//! A list takes little memory, however much there is to list and however many read it at once.

use futures::future::join_all;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use crate::{
    doors::{filled, operations},
    support::{
        self,
        server::{Server, id_of, unique},
    },
};

/// The records in the database, of which each is as large as one may be.
const RECORDS: usize = 3_000;

/// Readers at a time.
const READERS: usize = 6;

/// How much larger the server may become: the list alone has three times as much.
const GROWTH: usize = 64 << 20;

/// The lists of images, and how one record of the largest size is made of another.
const LISTS: [&str; 3] = ["/v3/images", "/images", "/v2/images"];
const LARGEST: &str = "json_set(record, '$.id', new, '$.metadata', json_object('k', hex(zeroblob(32000))))";

/// Says something to the records past the server.
async fn say(api: &Server, sql: String) {
    let url = format!("sqlite://{}", api.data().join("records.sqlite").display());
    let mut records = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query(AssertSqlSafe(sql)).execute(&mut records).await.unwrap();
    records.close().await.unwrap();
}

/// Copies the only record of a table so many times.
fn copies(table: &str, columns: &str, record: &str, number: usize) -> String {
    format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number}) \
         INSERT INTO {table} (id, revision, position, name, {columns}record) \
         SELECT new, 1, position + i, name, {columns}{record} \
         FROM (SELECT i, printf('00000000-0000-4000-8000-%012x', i) AS new, one.* FROM n, {table} AS one)"
    )
}

/// A figure of the server's memory, in bytes.
fn memory(api: &Server, figure: &str) -> usize {
    let status = fs_err::read_to_string(format!("/proc/{}/status", api.process())).unwrap();
    let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test(threads = 2)]
async fn readers_of_a_large_list_take_little_memory() {
    let api = Server::own();
    api.make("/v3/images", json!({ "name": unique("large") })).await;
    say(&api, copies("images", "arch, ", LARGEST, RECORDS - 1)).await;
    let before = memory(&api, "VmRSS");
    let read = async |path: &str| {
        let mut answer = api.request("GET", path).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let (mut bytes, mut ids) = (0, 0);
        while let Some(piece) = answer.chunk().await.unwrap() {
            bytes += piece.len();
            ids += begun(&piece);
        }
        (bytes, ids)
    };
    let readers = (0..READERS).map(|reader| read(LISTS[reader % LISTS.len()]));
    for (bytes, records) in join_all(readers).await {
        assert!(bytes > (RECORDS - 1) * 64_000, "{bytes}");
        // One may be cut in two by the end of a piece.
        assert!((RECORDS - 50..=RECORDS).contains(&records), "{records}");
    }
    let grown = memory(&api, "VmHWM").saturating_sub(before);
    assert!(grown < GROWTH, "the server became {} MiB larger", grown >> 20);
    // With a limit, an answer is cut, and says where the list goes on.
    let page = api.get("/v3/images?limit=1000").await.is(200);
    assert!(page.body.len() < 2 << 20, "{}", page.body.len());
    assert!(page.header("link").ends_with("rel=\"next\""), "{}", page.header("link"));
    // What was deleted is listed by the piece, too.
    api.delete("/v3/images").await.is(204);
    let (bytes, _) = read("/v3/deleted/images").await;
    assert!(bytes > (RECORDS - 1) * 64_000, "{bytes}");
    let grown = memory(&api, "VmHWM").saturating_sub(before);
    assert!(grown < GROWTH, "the server became {} MiB larger", grown >> 20);
}

/// As many records as a server has by default, and more readers than a site has: 6.4 GB, of which each reader takes a part.
#[test(threads = 2)]
async fn many_readers_of_the_largest_list_take_little_memory() {
    needs!(support::not_asked("100000 records of the largest size are made"));
    let api = Server::own();
    api.make("/v3/images", json!({ "name": unique("large") })).await;
    say(&api, copies("images", "arch, ", LARGEST, 99_999)).await;
    let read = async |path: &str| {
        let mut answer = api.request("GET", path).send().await.unwrap();
        let mut bytes = 0;
        while bytes < 128 << 20 {
            bytes += answer.chunk().await.unwrap().unwrap().len();
        }
    };
    join_all((0..32).map(|reader| read(LISTS[reader % LISTS.len()]))).await;
    let most = memory(&api, "VmHWM");
    assert!(most < 400 << 20, "{} MiB", most >> 20);
    println!("{} MiB at most", most >> 20);
}

/// The records that begin in a piece.
fn begun(piece: &[u8]) -> usize {
    const MARK: &[u8] = b"\"created\":";
    piece.windows(MARK.len()).filter(|window| *window == MARK).count()
}

#[test]
async fn lists_of_kilns_own_are_cut_and_say_how_to_go_on() {
    let api = Server::own();
    let recipe = id_of(&api.recipe(json!({})).await);
    let schedule = json!({ "name": unique("night"), "recipe_id": recipe, "cron": "0 2 * * *", "paused": true });
    api.make("/kiln/v1/schedules", schedule).await;
    say(&api, copies("schedules", "", "json_set(record, '$.id', new)", 1_000)).await;
    let first = api.get("/kiln/v1/schedules").await.is(200);
    assert_eq!(first.json().as_array().unwrap().len(), 1_000);
    let link = first.header("link");
    let rest = link.trim_start_matches('<').split('>').next().unwrap();
    assert_eq!(api.read(rest).await.as_array().unwrap().len(), 1);
    // A list of IMS is whole.
    let key = api.key().await;
    say(&api, copies("public_keys", "", "json_set(record, '$.id', new)", 1_500)).await;
    let keys = api.get("/v3/public-keys").await.is(200);
    assert_eq!(keys.json().as_array().unwrap().len(), 1_501);
    assert!(keys.header("link").is_empty());
    assert!(api.ids("/v3/public-keys").await.contains(&key));
}

/// Lists without `limit`, and what bounds them.
const OTHERWISE: [(&str, &str); 7] = [
    ("/kiln/v1/channels", "1000 channels"),
    (
        "/kiln/v1/channels/{name}/{channel}/history",
        "changes of a channel that are kept",
    ),
    (
        "/kiln/v1/exports/assisted-installer/os-images",
        "sets that are looked through",
    ),
    (
        "/kiln/v1/exports/assisted-installer/release-images",
        "sets that are looked through",
    ),
    ("/kiln/v1/webhooks", "receivers in the configuration"),
    ("/v3/remote-build-nodes", "records of a kind"),
    ("/v3/remote-build-nodes/status", "records of a kind"),
];

#[test]
async fn every_list_of_the_description_has_a_bound() {
    let api = Server::shared();
    let document = api.read("/openapi.json").await;
    let is_list = |described: &Value| {
        let mut schema = &described["responses"]["200"]["content"]["application/json"]["schema"];
        while let Some(name) = schema["$ref"].as_str() {
            schema = document.pointer(name.trim_start_matches('#')).unwrap();
        }
        schema["type"] == "array"
            || schema["type"]
                .as_array()
                .is_some_and(|all| all.contains(&json!("array")))
    };
    let mut lists = 0;
    for operation in operations(&api).await {
        if operation.method != "GET" || !is_list(&operation.described) {
            continue;
        }
        lists += 1;
        let parameters = operation.described["parameters"].as_array();
        let limit = parameters.into_iter().flatten().find(|one| one["name"] == "limit");
        let is_bounded = limit.is_some_and(|limit| limit["schema"]["maximum"].is_u64());
        let otherwise = OTHERWISE.iter().any(|(path, _)| filled(path) == operation.path);
        assert!(is_bounded != otherwise, "{}: {limit:?}", operation.path);
    }
    assert!(lists > 20, "{lists}");
}

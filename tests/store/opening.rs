//! Tests which databases may be opened, and the errors for the others.

use std::os::unix::fs::PermissionsExt;

use kiln::store::{PostgresStore, SqliteStore, StoreError};

use crate::store::{
    place::{Place, all, public_key, public_keys},
    postgres::{PASSWORD, Server},
};

on_both!(a_newer_database_is_refused);

async fn refusal(place: &Place) -> String {
    match place.try_open().await {
        Err(StoreError::Unavailable(text)) => text,
        other => panic!("{other:?}"),
    }
}

async fn a_newer_database_is_refused(place: &Place) {
    place.open().await.close().await;
    place
        .execute(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             SELECT 9999, 'later', success, checksum, execution_time FROM _sqlx_migrations WHERE version = 1",
        )
        .await;
    let text = refusal(place).await;
    assert!(text.contains("newer Kiln"), "{text}");
}

#[test]
async fn a_file_is_for_its_owner_only() {
    let place = Place::sqlite();
    fs_err::write(place.file(), "").unwrap();
    fs_err::set_permissions(place.file(), PermissionsExt::from_mode(0o644)).unwrap();
    let store = place.open().await;
    public_keys(&store).insert(&public_key("k"), &[]).await.unwrap();
    let mut names = Vec::new();
    for entry in fs_err::read_dir(place.file().parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.file_name().into_string().unwrap());
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", entry.path().display());
    }
    assert!(names.contains(&"records.sqlite-wal".to_owned()), "{names:?}");
    // Another opening takes no locks away from the first.
    let other = place.open().await;
    other.close().await;
    public_keys(&store).insert(&public_key("k"), &[]).await.unwrap();
    assert_eq!(all(public_keys(&store), kiln::store::Side::Live).await.len(), 2);
}

#[test]
async fn what_is_no_database_is_left_alone() {
    let place = Place::sqlite();
    fs_err::write(place.file(), "once upon a time, there was a text of some length").unwrap();
    let text = refusal(&place).await;
    assert!(
        text.contains("records.sqlite") && text.contains("not a database"),
        "{text}"
    );
    let missing = place.file().with_file_name("missing/records.sqlite");
    let error = SqliteStore::open(&missing).await.unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
}

#[test]
async fn an_unreachable_server_is_named_and_no_password_is() {
    let server = Server::shared();
    let good = server.url("postgres");
    let wrong_password = good.replace(PASSWORD, "wr0ng-secret");
    let bad = [
        (good.replace(':', ";"), "not a PostgreSQL URL"),
        (format!("{good}?sslmode=perhaps"), "not a PostgreSQL URL"),
        (
            "postgres://kiln:wr0ng-secret@127.0.0.1:1/kiln".to_owned(),
            "PostgreSQL at 127.0.0.1:1, database kiln",
        ),
        (
            "postgres://kiln:wr0ng-secret@host.invalid/kiln".to_owned(),
            "host.invalid",
        ),
        (wrong_password, "password authentication failed"),
        (server.url("nowhere"), "\"nowhere\" does not exist"),
        (
            "postgres://kiln:wr0ng-secret@:notaport/x".to_owned(),
            "not a PostgreSQL URL",
        ),
    ];
    for (url, expected) in bad {
        let error = PostgresStore::connect(&url).await.unwrap_err();
        let texts = [error.to_string(), format!("{error:?}")];
        assert!(texts[0].contains(expected), "{url}: {texts:?}");
        for text in texts {
            assert!(!text.contains(PASSWORD) && !text.contains("wr0ng-secret"), "{text}");
        }
    }
    let store = PostgresStore::connect(&server.new_database()).await.unwrap();
    let text = format!("{store:?}");
    assert!(!text.contains(PASSWORD) && text.contains("127.0.0.1"), "{text}");
}

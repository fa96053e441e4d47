//! `/public-keys`.

use serde_json::json;

use crate::api::server::{Server, id_of, unique};

#[test]
async fn a_key_is_kept_byte_for_byte() {
    let api = Server::shared();
    for text in [
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@here\n",
        "ssh-rsa AAAA\r\n",
        "ssh-rsa AAAA",
        "  padded key  ",
        "not a key at all, which IMS does not look at",
        "from=\"10.0.0.1\",command=\"echo {{ x }}\" ssh-rsa AAAA ü@ö",
        "tab\tseparated",
        "k",
    ] {
        let name = unique("key");
        let made = api
            .make("/v3/public-keys", json!({"name": name, "public_key": text}))
            .await;
        let mut members: Vec<_> = made.as_object().unwrap().keys().map(String::as_str).collect();
        members.sort_unstable();
        assert_eq!(members, ["created", "id", "name", "public_key"]);
        assert_eq!((&made["name"], &made["public_key"]), (&json!(name), &json!(text)));
        assert_eq!(api.read(&format!("/v3/public-keys/{}", id_of(&made))).await, made);
    }
}

#[test]
async fn what_a_key_needs() {
    let api = Server::shared();
    let required = json!(["Missing data for required field."]);
    let errors = api.post("/v3/public-keys", json!({"odd": 1})).await.errors();
    assert_eq!((&errors["name"], &errors["public_key"]), (&required, &required));
    let errors = api.post("/v3/public-keys", json!({"name": "n"})).await.errors();
    assert_eq!(errors, json!({ "public_key": required }));
}

#[test]
async fn names_need_not_be_unique() {
    let api = Server::shared();
    let body = json!({"name": unique("same"), "public_key": "k"});
    let first = api.make("/v3/public-keys", body.clone()).await;
    let second = api.make("/v3/public-keys", body).await;
    assert_ne!(first["id"], second["id"]);
    let ids = api.ids("/v3/public-keys").await;
    let place = |record| ids.iter().position(|id| *id == id_of(record)).unwrap();
    assert!(place(&first) < place(&second), "lists come in the order of creation");
}

#[test]
async fn names_are_any_readable_text() {
    let api = Server::shared();
    for name in [
        "Ölmühle 3/4 (neu)",
        "123",
        "$(id)",
        "a'b\"c",
        "{{ x }}",
        "..",
        "-rf",
        "<b>",
        "名前",
        "null",
    ] {
        let made = api
            .make("/v3/public-keys", json!({"name": name, "public_key": "k"}))
            .await;
        assert_eq!(
            api.read(&format!("/v3/public-keys/{}", id_of(&made))).await["name"],
            name
        );
    }
    for name in [
        "two\nlines",
        "tab\t",
        "\u{1b}[31mred",
        "nul\0",
        "\u{202e}gnp.exe",
        &"x".repeat(1025),
        "\r",
    ] {
        let errors = api
            .post("/v3/public-keys", json!({"name": name, "public_key": "k"}))
            .await
            .errors();
        assert!(errors["name"].is_array(), "{name:?}");
    }
}

#[test]
async fn ids_are_random_and_lower_case_and_moments_have_no_zone() {
    let api = Server::shared();
    let made = api
        .make("/v3/public-keys", json!({"name": "n", "public_key": "k"}))
        .await;
    let id = uuid::Uuid::parse_str(&id_of(&made)).unwrap();
    assert_eq!(id.get_version_num(), 4);
    assert_eq!(id.hyphenated().to_string(), id_of(&made));
    crate::api::moments::is_moment(&made["created"]);
}

//! Adding a recipe on the dashboard: by drag and drop, and with what a hostile form says.

use base64::{Engine, engine::general_purpose::STANDARD};
use kiln::orchestrate::recipe::pack;
use serde_json::json;

use super::browser::{Browser, no_browser};
use crate::support::{
    archive::Archive,
    serve::{Server, send},
    source_dir,
};

/// A form with parts, as browsers send it.
fn parts(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (head, content) in parts {
        body.extend_from_slice(format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--x--\r\n");
    body
}

fn archive(name: &str) -> Vec<u8> {
    pack(&source_dir().join("recipes").join(name)).unwrap().bytes
}

#[test(threads = 2)]
async fn a_recipe_is_dropped_into_the_page() {
    needs!(no_browser());
    let server = Server::start(&[]);
    let browser = Browser::open().await;
    browser.goto(&format!("{}/ui/recipes", server.url)).await;
    let packed = STANDARD.encode(archive("debian-templated"));
    let drop = format!(
        "(() => {{ const bytes = Uint8Array.from(atob({packed:?}), (c) => c.charCodeAt(0));
        const given = new DataTransfer(); given.items.add(new File([bytes], 'night build.tar.gz'));
        for (const kind of ['dragover', 'drop']) document.body.dispatchEvent(
            new DragEvent(kind, {{ dataTransfer: given, bubbles: true, cancelable: true }}));
        return true; }})()"
    );
    browser.value(&drop).await;
    browser.until_text("night build.tar.gz is chosen").await;
    browser.is_accessible("recipes").await;
    // Nothing in this recipe says for which architecture it is.
    browser.click("#add-recipe button").await;
    browser.until_text("does not say for which architecture").await;
    browser.goto(&format!("{}/ui/recipes", server.url)).await;
    browser.value(&drop).await;
    browser.until_text("night build.tar.gz is chosen").await;
    browser
        .value("document.getElementById('recipe-arch').value = 'x86_64'")
        .await;
    browser.click("#add-recipe button").await;
    browser.until_text("Its templates ask for these values").await;
    browser.is_accessible("recipe added").await;
    browser
        .fill("input[name='value-debian_mirror']", "http://127.0.0.1:9/debian?<b>")
        .await;
    browser.click("main form button").await;
    browser.until_text("http://127.0.0.1:9/debian?<b>").await;
    let recipes = server.ask("", "GET", "/v3/recipes", None).await.json();
    let recipe = &recipes[0];
    assert_eq!(
        json!([
            recipe["name"],
            recipe["arch"],
            recipe["linux_distribution"],
            recipe["require_dkms"]
        ]),
        json!(["night build", "x86_64", "debian", true])
    );
    assert_eq!(
        recipe["template_dictionary"],
        json!([{ "key": "debian_mirror", "value": "http://127.0.0.1:9/debian?<b>" }])
    );
    assert!(recipe["link"]["path"].is_string());
    browser.close().await;
    server.stop();
}

#[test(threads = 2)]
async fn forms_with_anything_but_a_recipe_add_nothing() {
    let server = Server::start(&[]);
    let page = send(server.request("GET", "/ui/recipes").header("accept", "text/html")).await;
    let (_, rest) = page.text.split_once("name=\"form_token\" value=\"").unwrap();
    let token = rest.split('"').next().unwrap().to_owned();
    let token = ("name=\"form_token\"", token.as_bytes());
    let given = archive("debian-minimal");
    let file = "name=\"archive\"; filename=\"r.tar.gz\"";
    let no_recipe = fs_err::read(Archive::empty().file("README", b"x").made().path).unwrap();
    let large = vec![0; (32 << 20) + 1];
    let long = vec![b'x'; 5000];
    let plain = ("name=\"distribution\"", &b"debian"[..]);
    for (what, status, told, body) in [
        ("no token", 403, "another session", parts(&[(file, &given)])),
        (
            "a token too late",
            403,
            "another session",
            parts(&[(file, &given), token]),
        ),
        (
            "another token",
            403,
            "another session",
            parts(&[("name=\"form_token\"", b"x"), (file, &given)]),
        ),
        ("no file", 422, "no archive", parts(&[token])),
        ("no archive", 422, "not an archive", parts(&[token, (file, b"<html>")])),
        ("no recipe", 422, "no config.xml", parts(&[token, (file, &no_recipe)])),
        (
            "no architecture",
            422,
            "for which architecture",
            parts(&[token, plain, (file, &given)]),
        ),
        ("too large", 413, "larger than 32 MiB", parts(&[token, (file, &large)])),
        (
            "a long field",
            422,
            "longer than 4096 bytes",
            parts(&[token, ("name=\"name\"", &long), (file, &given)]),
        ),
        (
            "cut off",
            400,
            "did not arrive",
            parts(&[token, (file, &given)])[..800].to_vec(),
        ),
        ("no form", 400, "", b"form_token=x".to_vec()),
    ] {
        let request = server
            .request("POST", "/ui/recipes/upload")
            .header("accept", "text/html")
            .header("content-type", "multipart/form-data; boundary=x")
            .body(body);
        let answer = send(request).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text);
        assert!(answer.text.contains(told), "{what}: {}", answer.text);
    }
    assert_eq!(server.ask("", "GET", "/v3/recipes", None).await.json(), json!([]));

    // What the form says counts before what is recognised, and a name of markup is text.
    let fields = [
        token,
        ("name=\"name\"", &b"<script>alert(1)</script>"[..]),
        ("name=\"arch\"", b"riscv64"),
        (file, &given),
    ];
    let request = server
        .request("POST", "/ui/recipes/upload")
        .header("accept", "text/html")
        .header("content-type", "multipart/form-data; boundary=x")
        .body(parts(&fields));
    let added = send(request).await;
    assert_eq!(added.status, 200, "{}", added.text);
    assert!(
        !added.text.contains("<script>alert") && added.text.contains("riscv64"),
        "{}",
        added.text
    );
    let recipes = server.ask("", "GET", "/v3/recipes", None).await.json();
    assert_eq!(
        (&recipes[0]["arch"], &recipes[0]["require_dkms"]),
        (&json!("riscv64"), &json!(false))
    );

    // What a build would stumble over is said.
    let parted = b"<image name=\"x\"><include from=\"https://host/a.xml\"/><preferences><packagemanager>apt</packagemanager></preferences></image>";
    let parted = fs_err::read(Archive::empty().file("config.xml", parted).made().path).unwrap();
    let request = server
        .request("POST", "/ui/recipes/upload")
        .header("accept", "text/html")
        .header("content-type", "multipart/form-data; boundary=x")
        .body(parts(&[token, ("name=\"arch\"", b"x86_64"), (file, &parted)]));
    let added = send(request).await;
    assert!(
        added
            .text
            .contains("includes https://host/a.xml, which is no file of the recipe"),
        "{}",
        added.text
    );
    server.stop();
}

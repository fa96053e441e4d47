//! Addresses to which Kiln connects on somebody's word.

use serde_json::json;

use crate::support::{
    Kiln,
    fake_server::{Answer, FakeServer},
    own_address,
    serve::Server,
    server::NOBODY,
};

#[test]
fn receivers_are_not_on_this_host_by_any_of_its_addresses() {
    let own = own_address();
    needs!(
        own.is_none()
            .then(|| "this host has no address but its loopback".to_owned())
    );
    let listener = std::net::TcpListener::bind((own.unwrap(), 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let kiln = Kiln::bare();
    let secret = kiln.data().join("secret");
    fs_err::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    let hosts = [
        ("own", at.to_string()),
        ("mapped", format!("[::ffff:{}]:{}", at.ip(), at.port())),
        ("alibaba", "100.100.100.200".to_owned()),
        ("amazon", "[fd00:ec2::254]".to_owned()),
        ("decimal", "2130706433:9".to_owned()),
        ("octal", "0177.0.0.1:9".to_owned()),
        ("nowhere", "0.0.0.0:9".to_owned()),
    ];
    let entry = |(name, host): &(&str, String)| {
        let secret = secret.to_str().unwrap();
        format!("{{ name = \"{name}\", url = \"http://{host}/hook\", secret_file = {secret:?} }}")
    };
    let receivers: Vec<_> = hosts.iter().map(entry).collect();
    let receivers = format!("[{}]", receivers.join(", "));
    let server = Server::start_in(kiln, &[("KILN__WEBHOOKS__RECEIVERS", &receivers)]);
    for (name, _) in &hosts {
        let told = server.run(&["webhooks", "test", name]).failed();
        assert!(told.contains("allow_local = true"), "{name}: {told}");
    }
    assert!(listener.accept().is_err(), "a receiver was asked");
    server.stop();
}

#[test]
fn a_server_leads_its_clients_to_no_metadata() {
    let kiln = Kiln::bare();
    for host in ["169.254.169.254", "[fd00:ec2::254]", "0.0.0.0"] {
        let url = format!("http://{host}/latest?X-Amz-Signature=secret");
        let root =
            json!({ "type": "application/vnd.cray.image.rootfs.squashfs", "path": "s3://b/r", "size": 1, "url": url });
        let server =
            FakeServer::start(move |_| Answer::json(200, &json!({ "id": NOBODY, "name": "x", "artifacts": [root] })));
        let mut command = kiln.command(["images", "files", NOBODY, "--server", &server.url()]);
        let told = crate::support::run({
            command.arg("/");
            command
        });
        let told = told.failed();
        assert!(told.contains("an object that is not read: it is at "), "{host}: {told}");
        assert!(!told.contains("secret"), "{told}");
    }
}

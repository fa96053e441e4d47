//! Tests the reach of a sandbox's network against a hostile root.

use std::{io::Write, net::IpAddr};

use ipnet::IpNet;
use kiln::sandbox::{Network, Reach, SandboxSpec};

use crate::drivers::{
    microvm::Microvms,
    namespace::Namespaces,
    place::{Kind, Place, own_address},
};

/// Prints `NAME: ` and the answer of `$2`, port `$3`, or the error's name. With a fourth word the socket is bound to
/// that card, past every route.
const TRY: &str = r#"
try() {
    python3 -c '
import errno, socket, sys
name, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
peer = socket.socket()
peer.settimeout(3)
try:
    if len(sys.argv) > 4:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, sys.argv[4].encode())
    peer.connect((host, port))
    said = peer.recv(100).decode()
except TimeoutError:
    said = "nothing"
except OSError as error:
    said = errno.errorcode.get(error.errno, error)
print(name, said, sep=": ", file=sys.stderr)
' "$@"
}
"#;

/// The address of clouds' metadata services, which hand out keys.
const METADATA: &str = "169.254.169.254";

/// A port of this machine that greets every client.
fn greeter() -> u16 {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.write_all(b"hello");
        }
    });
    port
}

fn spec<K: Kind>(place: &Place<K>, allow: &[IpAddr], deny: &[&str], script: &str) -> SandboxSpec {
    let mut spec = place.spec(&format!("{TRY}{script}"));
    spec.network = Network::Isolated(Reach {
        allow: allow.iter().map(|address| IpNet::from(*address)).collect(),
        deny: deny.iter().map(|net| net.parse().unwrap()).collect(),
    });
    spec
}

fn no_address() -> Option<String> {
    let lack = "this machine has no address but its loopback";
    own_address().is_none().then(|| lack.to_owned())
}

/// Denied networks stay unreachable, and the rest is reachable.
async fn what_is_denied<K: Kind>(refusals: [&str; 2]) {
    needs!(K::lack(), no_address());
    let place = Place::<K>::new().await;
    let (own, port) = (own_address().unwrap(), greeter());
    let reached = spec(&place, &[], &["169.254.0.0/16"], &format!("try own {own} {port}"));
    assert_eq!(place.run(&reached).await.last_words, ["own: hello"]);
    place.destroy(reached.job).await;

    // Every network that this machine is in, so that the test does not know which.
    let script = format!(
        "
        try own {own} {port}
        try metadata {METADATA} 80
        card=$(ip -oneline route show default | sed 's/.* dev \\([^ ]*\\).*/\\1/')
        ip route replace {own}/32 via 10.0.2.2 2>/dev/null
        ip route delete prohibit {own}/32 2>/dev/null
        ip route flush table main 2>/dev/null; ip route add default dev $card 2>/dev/null
        unshare --user --map-root-user ip route replace {own}/32 via 10.0.2.2 2>/dev/null
        try changed {own} {port}
        try bound {own} {port} $card
        "
    );
    let denied = format!("{own}/32");
    let spec = spec(&place, &[], &["169.254.0.0/16", &denied], &script);
    let evidence = place.run(&spec).await;
    let heard = |name: &str| {
        let lines = &evidence.last_words;
        let said = lines.iter().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        said.unwrap_or_else(|| panic!("{name}: {evidence:?}")).to_owned()
    };
    for name in ["own", "metadata"] {
        assert!(refusals.contains(&heard(name).as_str()), "{evidence:?}");
    }
    for name in ["changed", "bound"] {
        assert_ne!(heard(name), "hello", "{evidence:?}");
    }
    place.destroy(spec.job).await;
}

/// Networks that are not allowed are unreachable, except for looking up names.
async fn what_is_allowed<K: Kind>(refusals: [&str; 2]) {
    needs!(K::lack(), no_address());
    let place = Place::<K>::new().await;
    let (own, port) = (own_address().unwrap(), greeter());
    let script = format!(
        "try own {own} {port}
        try elsewhere 192.0.2.1 {port}
        python3 -c '
import socket
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.connect((\"10.0.2.3\", 53))
peer.send(b\"\\0\" * 12)
' && echo resolver: asked >&2
        ring through-the-door && echo rang >&2"
    );
    let spec = spec(&place, &[own], &[], &script);
    let evidence = place.run(&spec).await;
    let words = &evidence.last_words;
    assert_eq!(words[0], "own: hello", "{evidence:?}");
    let elsewhere = words[1].strip_prefix("elsewhere: ").unwrap();
    assert!(refusals.contains(&elsewhere), "{evidence:?}");
    assert_eq!(words[2..], ["resolver: asked", "rang"], "{evidence:?}");
    place.destroy(spec.job).await;
}

/// The kernel of the network itself says no; that of a machine hears it from QEMU, in one way or another.
const OF_NAMESPACES: [&str; 2] = ["EACCES"; 2];
const OF_MACHINES: [&str; 2] = ["ECONNREFUSED", "ENETUNREACH"];

#[test]
async fn what_is_denied_to_namespaces_stays_denied() {
    what_is_denied::<Namespaces>(OF_NAMESPACES).await;
}

#[test]
async fn what_is_denied_to_machines_stays_denied() {
    what_is_denied::<Microvms>(OF_MACHINES).await;
}

#[test]
async fn namespaces_reach_only_what_they_are_allowed_to() {
    what_is_allowed::<Namespaces>(OF_NAMESPACES).await;
}

#[test]
async fn machines_reach_only_what_they_are_allowed_to() {
    what_is_allowed::<Microvms>(OF_MACHINES).await;
}

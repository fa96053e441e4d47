use super::*;

fn rules(change: impl FnOnce(&mut Rules)) -> Rules {
    let mut rules = Rules {
        apply: true,
        deny: vec!["169.254.0.0/16".parse().unwrap()],
        deny_names: vec!["secret.example".to_owned()],
        ..Rules::default()
    };
    change(&mut rules);
    rules
}

#[tokio::test]
async fn what_a_sandbox_may_not_reach_is_not_asked_for_either() {
    let open = rules(|_| ());
    for host in [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
        "169.254.169.254",
        "224.0.0.1",
        "localhost",
        "LOCALHOST",
        "a.localhost.",
        "secret.example",
        "Secret.Example.",
    ] {
        assert!(open.check(host).await.is_err(), "{host}");
    }
    for host in ["198.51.100.1", "[2001:db8::1]", "unknown.invalid"] {
        open.check(host).await.unwrap();
    }
}

#[tokio::test]
async fn a_list_of_allowed_hosts_is_complete() {
    let strict = rules(|rules| {
        rules.only_allowed = true;
        rules.allow = vec!["198.51.100.0/24".parse().unwrap()];
        rules.allow_names = vec!["mirror.invalid".to_owned()];
    });
    for host in ["198.51.100.9", "mirror.invalid", "MIRROR.invalid."] {
        strict.check(host).await.unwrap();
    }
    // A name that nobody knows here may have any address where the proxy is.
    for host in ["203.0.113.1", "other.invalid", "sub.mirror.invalid", "127.0.0.1"] {
        assert!(strict.check(host).await.is_err(), "{host}");
    }
    let nothing = rules(|rules| rules.only_allowed = true);
    assert!(nothing.check("198.51.100.9").await.is_err());
}

#[test]
fn programs_are_told_of_the_proxy_in_both_spellings() {
    let address = Address {
        host: "proxy".to_owned(),
        port: 3128,
    };
    let gate = Gate::to(Site {
        https: Some(address),
        direct: vec!["example.org".to_owned(), "10.0.0.1".to_owned()],
        ..Site::default()
    });
    let variables = gate
        .unwrap()
        .variables("http://127.0.0.1:3128", &["s3.local".to_owned()]);
    let hosts = "localhost,127.0.0.1,::1,example.org,.example.org,10.0.0.1,s3.local,.s3.local";
    let expected = [
        ("https_proxy", "http://127.0.0.1:3128"),
        ("HTTPS_PROXY", "http://127.0.0.1:3128"),
        ("no_proxy", hosts),
        ("NO_PROXY", hosts),
    ];
    assert_eq!(
        variables,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    assert!(Gate::to(Site::default()).is_none());
}

//! What is in the files of `examples/kubernetes`. Reads them; asks no cluster.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use serde_json::Value;

use crate::support::{self, Kiln, authority::Authority};

/// The directory that a site applies.
pub static BASE: LazyLock<PathBuf> = LazyLock::new(|| support::source_dir().join("examples/kubernetes"));

/// What a site adds if its cluster has the operator of Prometheus.
static METRICS: LazyLock<PathBuf> = LazyLock::new(|| BASE.with_file_name("kubernetes-metrics"));

/// What a site adds if shells of jobs get Services.
static SHELLS: LazyLock<PathBuf> = LazyLock::new(|| BASE.with_file_name("kubernetes-shells"));

/// The objects of a file.
pub fn documents(file: &Path) -> Vec<Value> {
    let text = fs_err::read_to_string(file).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Every object that a site applies.
pub fn all() -> Vec<Value> {
    let list = &documents(&BASE.join("kustomization.yaml"))[0];
    let resources: BTreeSet<String> = serde_json::from_value(list["resources"].clone()).unwrap();
    let files: BTreeSet<String> = fs_err::read_dir(&*BASE)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    assert_eq!(resources, files, "a file that is there and not applied, or the reverse");
    resources.iter().flat_map(|file| documents(&BASE.join(file))).collect()
}

/// Those of one kind, of which there have to be some.
pub fn of_kind<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let some: Vec<_> = all.iter().filter(|one| one["kind"] == kind).collect();
    assert!(!some.is_empty(), "no {kind}");
    some
}

/// The objects with a description of pods, and that description.
fn pods(all: &[Value]) -> Vec<(&Value, &Value)> {
    let some: Vec<_> = all
        .iter()
        .filter_map(|one| Some((one, one["spec"]["template"].get("spec")?)))
        .collect();
    assert!(!some.is_empty(), "no pods");
    some
}

fn containers(pod: &Value) -> Vec<&Value> {
    ["initContainers", "containers"]
        .iter()
        .filter_map(|key| pod[key].as_array())
        .flatten()
        .collect()
}

#[test]
fn no_pod_has_a_right_on_its_node() {
    let all = all();
    for (object, pod) in pods(&all) {
        for key in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod[key].is_null(), "{key}: {object:#}");
        }
        let kinds: BTreeSet<_> = pod["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|volume| volume.as_object().unwrap().keys().map(String::as_str))
            .filter(|key| *key != "name")
            .collect();
        assert_eq!(kinds, BTreeSet::from(["configMap", "emptyDir", "secret"]));
        let security = &pod["securityContext"];
        assert_eq!(security["runAsNonRoot"], true);
        assert!(security["runAsUser"].as_u64().unwrap() > 0);
        assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
        for container in containers(pod) {
            let security = &container["securityContext"];
            assert!(security["privileged"].is_null(), "{container:#}");
            assert_eq!(security["allowPrivilegeEscalation"], false);
            assert_eq!(security["readOnlyRootFilesystem"], true);
            assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]));
            assert!(security["capabilities"]["add"].is_null());
            assert!(security["runAsUser"].is_null(), "another user than the pod's");
            assert!(container["resources"]["limits"]["memory"].is_string());
            let (_, tag) = container["image"].as_str().unwrap().rsplit_once(':').unwrap();
            assert_ne!(tag, "latest");
        }
    }
    // The namespace refuses other pods than such, too.
    let server = of_kind(&all, "Namespace")
        .into_iter()
        .find(|one| one["metadata"]["name"] == "kiln")
        .unwrap();
    let level = &server["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
    assert_eq!(level, "restricted");
}

/// Secrets are named. Neither they nor the configuration have a value.
#[test]
fn no_secret_is_in_the_manifests() {
    let all = all();
    assert!(!all.iter().any(|one| one["kind"] == "Secret"));
    for (_, pod) in pods(&all) {
        let volumes = pod["volumes"].as_array().unwrap();
        let secrets: BTreeSet<_> = volumes
            .iter()
            .filter_map(|volume| volume["secret"]["secretName"].as_str())
            .collect();
        assert_eq!(secrets, BTreeSet::from(["kiln-database", "kiln-s3", "kiln-tls"]));
        for container in containers(pod) {
            // Every process of a container, and whoever may read pods, sees the environment and the arguments.
            let variables: BTreeSet<_> = container["env"]
                .as_array()
                .unwrap()
                .iter()
                .map(|variable| variable["name"].as_str().unwrap())
                .collect();
            assert_eq!(
                variables,
                BTreeSet::from([
                    "AWS_EC2_METADATA_DISABLED",
                    "AWS_SHARED_CREDENTIALS_FILE",
                    "KILN_CONFIG"
                ])
            );
            assert!(container["envFrom"].is_null());
            assert_eq!(container["args"], serde_json::json!(["serve"]));
        }
    }
    let configuration: toml::Table = configuration(&all).parse().unwrap();
    let store = configuration["store"].as_table().unwrap();
    let url: reqwest::Url = store["url"].as_str().unwrap().parse().unwrap();
    assert_eq!(url.password(), None);
    assert!(!store.contains_key("password"));
    let s3 = configuration["s3"].as_table().unwrap();
    assert!(!s3.contains_key("access_key") && !s3.contains_key("secret_key"));
}

/// The configuration, its certificate and its password are where the pod has them, and Kiln takes them.
#[test]
fn kiln_takes_the_configuration() {
    takes_the_configuration(&[]);
}

/// Kiln takes the base's configuration in a pod that also has the mounts and the environment of these containers.
fn takes_the_configuration(more: &[&Value]) {
    const SECRETS: &str = "/run/secrets/kiln";
    let all = all();
    let (_, pod) = pods(&all)[0];
    let kiln = Kiln::bare();
    let root = kiln.data().join("pod");
    // Only what the pod mounts is there.
    for container in [containers(pod)[0]].iter().chain(more) {
        for mount in container["volumeMounts"].as_array().unwrap() {
            fs_err::create_dir_all(root.join(&mount["mountPath"].as_str().unwrap()[1..])).unwrap();
        }
    }
    let secrets = root.join(&SECRETS[1..]);
    let inside = |text: &str| text.replace(SECRETS, secrets.to_str().unwrap());
    let authority = Authority::new();
    let tls = secrets.join("tls");
    authority.write_for(
        &["kiln.kiln.svc.cluster.local"],
        &tls.join("tls.crt"),
        &tls.join("tls.key"),
    );
    fs_err::write(tls.join("ca.crt"), &authority.pem).unwrap();
    fs_err::write(secrets.join("database/password"), "of a test\n").unwrap();

    let file = root.join("etc/kiln/kiln.toml");
    let text = inside(configuration(&all));
    // A Kiln without the driver of clusters knows neither its section nor its name.
    let reference = kiln.run(["config", "reference"]).ok().stdout;
    let text = if reference.contains("[kubernetes]") {
        text
    } else {
        let (before, of_driver) = text.split_once("# A pod without rights").unwrap();
        assert!(of_driver.contains("[kubernetes]"));
        before.to_owned()
    };
    fs_err::write(&file, text).unwrap();
    let mut command = kiln.command(["config", "check"]);
    command.env("KILN_CONFIG", &file);
    for variable in more.iter().flat_map(|container| container["env"].as_array().unwrap()) {
        let value = inside(variable["value"].as_str().unwrap());
        if variable["name"] == "KILN__METRICS__TOKEN_FILE" {
            fs_err::write(&value, "0123456789abcdef0123456789abcdef\n").unwrap();
        }
        command.env(variable["name"].as_str().unwrap(), value);
    }
    let ran = support::run(command).ok();
    assert_eq!(ran.stdout, format!("ok: {}\n", file.display()));
}

/// The monitor leads Prometheus to the listener that the servers get, with its token and by the name in their certificate.
#[test]
fn shells_are_let_in_where_servers_listen_for_them() {
    let list = &documents(&SHELLS.join("kustomization.yaml"))[0];
    let files: Vec<String> = serde_json::from_value(list["resources"].clone()).unwrap();
    assert_eq!(files.len() + 1, fs_err::read_dir(&*SHELLS).unwrap().count());
    let more: Vec<Value> = files.iter().flat_map(|file| documents(&SHELLS.join(file))).collect();
    let policy = of_kind(&more, "NetworkPolicy")[0];
    let all = all();
    let server = of_kind(&all, "Deployment")[0];
    let labels = &policy["spec"]["podSelector"]["matchLabels"];
    assert_eq!(policy["metadata"]["namespace"], server["metadata"]["namespace"]);
    for (name, value) in labels.as_object().unwrap() {
        assert_eq!(&server["spec"]["template"]["metadata"]["labels"][name], value);
    }
    let let_in = &policy["spec"]["ingress"][0]["ports"][0];
    let kiln = Kiln::bare();
    let ports = kiln.run(["config", "show"]).ok().stdout;
    let range = format!("ports = \"{}-{}\"", let_in["port"], let_in["endPort"]);
    assert!(ports.contains(&range), "{range} is not in\n{ports}");
}

#[test]
fn figures_are_where_the_monitor_looks() {
    let base = all();
    let list = &documents(&METRICS.join("kustomization.yaml"))[0];
    assert_eq!(list["kind"], "Component");
    let files: Vec<String> = serde_json::from_value(list["resources"].clone()).unwrap();
    let more: Vec<Value> = files.iter().flat_map(|file| documents(&METRICS.join(file))).collect();
    let patch = &documents(&METRICS.join(list["patches"][0]["path"].as_str().unwrap()))[0];
    let there = fs_err::read_dir(&*METRICS).unwrap().count();
    assert_eq!(there, files.len() + 2, "a file that is there and not applied");

    // The patch meets the container that is there.
    let (deployment, pod) = pods(&base)[0];
    for key in ["apiVersion", "kind"] {
        assert_eq!(patch[key], deployment[key]);
    }
    for key in ["name", "namespace"] {
        assert_eq!(patch["metadata"][key], deployment["metadata"][key]);
    }
    let added = &patch["spec"]["template"]["spec"];
    let container = &added["containers"][0];
    assert_eq!(container["name"], containers(pod)[0]["name"]);

    // Monitor, Service, port, policy and listener are the same.
    let monitor = &of_kind(&more, "ServiceMonitor")[0]["spec"];
    let service = of_kind(&more, "Service")[0];
    let policy = &of_kind(&more, "NetworkPolicy")[0]["spec"];
    assert_eq!(monitor["selector"]["matchLabels"], service["metadata"]["labels"]);
    for other in of_kind(&base, "Service") {
        assert_ne!(other["metadata"]["labels"], service["metadata"]["labels"]);
    }
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(service["spec"]["selector"], *labels);
    assert_eq!(policy["podSelector"]["matchLabels"], *labels);
    let endpoint = &monitor["endpoints"][0];
    let port = &container["ports"][0];
    assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"]);
    assert_eq!(service["spec"]["ports"][0]["targetPort"], port["name"]);
    assert_eq!(policy["ingress"][0]["ports"][0]["port"], port["containerPort"]);
    assert_eq!(
        policy["ingress"][0]["from"].as_array().map(Vec::len),
        Some(1),
        "open to all"
    );
    let listen = &container["env"][0];
    assert_eq!(listen["name"], "KILN__METRICS__LISTEN");
    assert_eq!(listen["value"], format!("0.0.0.0:{}", port["containerPort"]));

    // The token is the mounted one, and the certificate is checked.
    assert_eq!(
        (&endpoint["path"], &endpoint["scheme"]),
        (&"/metrics".into(), &"https".into())
    );
    let secret = &added["volumes"][0]["secret"];
    let credentials = &endpoint["authorization"]["credentials"];
    assert_eq!(credentials["name"], secret["secretName"]);
    assert_eq!(credentials["key"], secret["items"][0]["key"]);
    let mount = &container["volumeMounts"][0];
    assert_eq!(mount["name"], added["volumes"][0]["name"]);
    let token = format!(
        "{}/{}",
        mount["mountPath"].as_str().unwrap(),
        secret["items"][0]["path"].as_str().unwrap()
    );
    assert_eq!(container["env"][1]["value"], token);
    let name = endpoint["tlsConfig"]["serverName"].as_str().unwrap();
    assert_eq!(
        endpoint["tlsConfig"],
        serde_json::json!({"ca": {"secret": {"name": "kiln-tls", "key": "ca.crt"}}, "serverName": name})
    );
    assert!(configuration(&base).contains(&format!("agent_url = \"https://{name}\"")));

    takes_the_configuration(&[container]);
}

fn configuration(all: &[Value]) -> &str {
    of_kind(all, "ConfigMap")[0]["data"]["kiln.toml"].as_str().unwrap()
}

#[test]
fn probes_ask_what_the_server_answers() {
    let openapi = fs_err::read_to_string(support::source_dir().join("docs/openapi.json")).unwrap();
    let openapi: Value = serde_json::from_str(&openapi).unwrap();
    let all = all();
    let ports: Vec<_> = of_kind(&all, "Service")
        .into_iter()
        .flat_map(|service| service["spec"]["ports"].as_array().unwrap())
        .map(|port| &port["targetPort"])
        .collect();
    for (_, pod) in pods(&all) {
        let container = containers(pod)[0];
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let asked = &container[probe]["httpGet"];
            let path = asked["path"].as_str().unwrap();
            assert!(openapi["paths"][path]["get"].is_object(), "{probe}: {path}");
            assert_eq!(asked["scheme"], "HTTPS");
            assert!(ports.contains(&&asked["port"]));
        }
        assert_eq!(container["ports"][0]["name"], *ports[0]);
        assert!(configuration(&all).contains(&format!("0.0.0.0:{}", container["ports"][0]["containerPort"])));
    }
}

/// A drain of one node, or an upgrade, leaves a server.
#[test]
fn one_server_of_two_is_always_there() {
    let all = all();
    let deployment = of_kind(&all, "Deployment")[0];
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
    let budget = of_kind(&all, "PodDisruptionBudget")[0];
    assert_eq!(budget["spec"]["minAvailable"], 1);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let service = of_kind(&all, "Service")[0];
    for selector in [
        &deployment["spec"]["selector"]["matchLabels"],
        &budget["spec"]["selector"]["matchLabels"],
        &service["spec"]["selector"],
    ] {
        assert_eq!(selector, labels);
    }
}

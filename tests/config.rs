//! `kiln config`, word by word.

use std::path::PathBuf;

use crate::support::{self, Kiln};

/// A kiln with a configuration file.
struct Configured {
    kiln: Kiln,
    file: PathBuf,
}

impl Configured {
    fn new(text: &str) -> Self {
        let kiln = Kiln::bare();
        let file = kiln.data().join("kiln.toml");
        fs_err::write(&file, text).unwrap();
        Self { kiln, file }
    }

    /// The output of a command, with these variables.
    fn says(&self, args: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = self.kiln.command(args);
        command.env_remove("KILN__WATCH__SILENCE");
        command.env_remove("KILN__WATCH__HEARTBEAT");
        command.env("KILN_CONFIG", &self.file).envs(variables.iter().copied());
        let ran = support::run(command);
        let code = ran.code.unwrap_or(-1);
        let said = format!("exit code {code}\n--- stdout\n{}--- stderr\n{}", ran.stdout, ran.stderr);
        said.replace(self.kiln.data().to_str().unwrap(), "DATA")
    }

    fn checked(&self, variables: &[(&str, &str)]) -> String {
        self.says(&["config", "check"], variables)
    }
}

#[test]
fn nothing_is_fine() {
    let kiln = Kiln::bare();
    let ran = kiln.run(["config", "check"]).ok();
    assert_eq!(ran.stdout, "ok: no file, all defaults\n");
    insta::assert_snapshot!(Configured::new("").checked(&[]), @r"
        exit code 0
        --- stdout
        ok: DATA/kiln.toml
        --- stderr
    ");
}

/// Every mistake at once, each with its place.
#[test]
fn every_mistake_is_told() {
    let configured = Configured::new(
        "data_dri = '/srv/kiln'\n\
         [server]\n\
         listen = 'localhost:9000'\n\
         [limits]\n\
         body_bytes = 'much'\n\
         [auth]\n\
         mode = 'of'\n",
    );
    insta::assert_snapshot!(configured.checked(&[("KILN__LOG__FORMAT", "xml"), ("KILN__LOG__LEVEL", "info")]), @r"
        exit code 1
        --- stdout
        --- stderr
        error: DATA/kiln.toml:1: there is no key or section `data_dri`

        hint: is it `data_dir`?
        error: DATA/kiln.toml:3: `listen`: `localhost:9000` is not an address such as 127.0.0.1:9000 or [::1]:9000

        hint: listen: The address to listen on, or a list of addresses. Addresses other than loopback require authentication and TLS.
        error: DATA/kiln.toml:5: `body_bytes`: `much` is not a size such as 512KiB, 1MiB or 2GiB

        hint: body_bytes: The maximum size of a JSON body whose contents are kept in S3. Any other has 64 KiB at most.
        error: DATA/kiln.toml:7: `mode`: unknown variant `of`, expected `auto` or `required`

        hint: mode: `required`: every request needs a token. `auto`: the same if `[oidc]` is present; otherwise no token is needed, and the server starts on loopback addresses only.
        error: KILN__LOG__FORMAT: `format`: unknown variant `xml`, expected `text` or `json`

        hint: format: The format of the log: `text`, or `json` with one object per line.
        error: KILN__LOG__LEVEL: there is no such key

        hint: variables are named KILN__SECTION__KEY; `kiln config reference` lists every key
    ");
    // Commands that only want to work tell the first.
    insta::assert_snapshot!(configured.says(&["artifacts", "list"], &[]), @r"
        exit code 1
        --- stdout
        --- stderr
        error: DATA/kiln.toml:1: there is no key or section `data_dri`

        hint: is it `data_dir`?
              `kiln config check` shows 3 more
    ");
}

#[test]
fn an_engine_that_can_be_nowhere() {
    for (engine, says) in [
        (
            "docker",
            "[docker] engine: `docker` is not the address of a container engine",
        ),
        ("tcp://host:2376", "[docker] engine: an engine at tcp:// requires TLS"),
    ] {
        let configured = Configured::new(&format!("[docker]\nengine = '{engine}'\n"));
        let said = configured.checked(&[]);
        assert!(said.contains(&format!("DATA/kiln.toml:2: {says}")), "{said}");
        assert!(said.starts_with("exit code 1") && said.contains("hint: "), "{said}");
    }
}

#[test]
fn places_that_no_job_could_ever_have() {
    let engine = "[docker]\nengine = 'unix:///run/x.sock'\nvm_runtime = 'kata'\n";
    for (text, says) in [
        (
            "[isolation]\ndrivers = ['kata', 'microvm']\n",
            "2: [isolation] drivers: there is no engine for `kata`",
        ),
        (
            "[isolation]\ndrivers = ['docker', 'docker']\n",
            "2: [isolation] drivers: a driver is listed twice",
        ),
        (
            "[isolation]\ndrivers = ['podman']\n",
            "2: `drivers`: unknown variant `podman`",
        ),
        (
            engine,
            "3: [docker] vm_runtime: agents in its virtual machines have no way to this server",
        ),
        (
            "[isolation]\ndrivers = ['kubernetes-vm']\n[kubernetes]\nenabled = true\n",
            "2: [isolation] drivers: there is no cluster for `kubernetes-vm`",
        ),
        (
            "[kubernetes]\nenabled = true\nimage = 'registry:5000/kiln:1'\n",
            "3: [kubernetes] image: it is not a repository without a tag",
        ),
        (
            "[kubernetes]\nenabled = true\nimage = 'registry:5000/kiln'\n",
            "2: [kubernetes] enabled: agents in the cluster have no way to this server",
        ),
        (
            "[kubernetes]\nenabled = true\nimage = 'r/kiln'\nbase_image = 'r/kiln:1'\n",
            "4: [kubernetes] base_image: pods have one image, and `image` names another one",
        ),
        (
            "[kubernetes]\nenabled = true\nbase_image = ''\n",
            "3: [kubernetes] base_image: it is not the name of an image",
        ),
        (
            "[server]\nagent_url = 'https://kiln:9000'\n[kubernetes]\nenabled = true\nimage = 'r/kiln'\nshell_service = 'NodePort'\n",
            "6: [kubernetes] shell_service: its Services lead to this server's shells, which listen on this host's loopback only",
        ),
    ] {
        let said = Configured::new(text).checked(&[]);
        assert!(said.contains(&format!("DATA/kiln.toml:{says}")), "{said}");
        assert!(said.starts_with("exit code 1") && said.contains("hint: "), "{said}");
    }
    let good = format!("{engine}[server]\nagent_url = 'https://kiln:9000'\n[isolation]\ndrivers = ['kata']\n");
    assert!(Configured::new(&good).checked(&[]).starts_with("exit code 0"));
}

#[test]
fn settings_that_make_no_sense_together() {
    let configured = Configured::new(
        "[server]\n\
         listen = ['0.0.0.0:9000', '0.0.0.0:9000']\n\
         tls_certificate = '/nowhere/tls.pem'\n\
         public_url = 'kiln.example.org'\n\
         [oidc]\n\
         issuer = 'http://keycloak.example.org/realms/site'\n\
         ca_bundle = '/nowhere/ca.pem'\n\
         read_roles = []\n\
         write_roles = []\n\
         admin_roles = []\n\
         [limits]\n\
         body_bytes = 0\n\
         burst = 0\n\
         [store]\n\
         url = 'mysql://db/kiln'\n\
         password_file = '/nowhere/password'\n\
         [s3]\n\
         endpoint = 's3.example.org'\n\
         access_key = 'me'\n\
         [embedded_s3]\n\
         listen = '10.0.0.1:9001'\n\
         [jobs]\n\
         default_mem_size_gib = 0\n\
         [remote_build_nodes]\n\
         identity_file = '/nowhere/id_ed25519'\n",
    );
    insta::assert_snapshot!(configured.checked(&[
        ("KILN__LIMITS__REQUEST_TIMEOUT", "0s"),
        ("KILN__JOBS__CACHE", "similar"),
    ]), @r#"
        exit code 1
        --- stdout
        --- stderr
        error: DATA/kiln.toml:2: [server] listen: an address is listed twice

        hint: remove one
        error: DATA/kiln.toml:2: [server] listen: tokens would cross the network without encryption

        hint: set tls_certificate and tls_key; or, behind a gateway that terminates TLS, `insecure_http = true`
        error: DATA/kiln.toml:3: [server] tls_certificate: tls_key is not set

        hint: set both, or neither
        error: DATA/kiln.toml:4: [server] public_url: `kiln.example.org` is not the URL of a server

        hint: for example: https://kiln.example.org
        error: DATA/kiln.toml:6: [oidc] issuer: `http://keycloak.example.org/realms/site` is not an https URL

        hint: for example: https://keycloak.example.org/realms/site
        error: DATA/kiln.toml:7: [oidc] ca_bundle: failed to open file `/nowhere/ca.pem`: No such file or directory (os error 2)

        hint: a relative path starts at Kiln's working directory; prefer an absolute one
        error: DATA/kiln.toml:8: [oidc] read_roles: no role of the issuer grants any access

        hint: name roles in read_roles, write_roles or admin_roles
        error: DATA/kiln.toml:12: [limits] body_bytes: zero would allow nothing

        hint: "1MiB" is the default
        error: DATA/kiln.toml:13: [limits] burst: zero would allow nothing

        hint: for no limit, set requests_per_second to 0
        error: DATA/kiln.toml:15: [store] url: it is not the URL of a PostgreSQL database

        hint: for example: postgresql://kiln@db.example.org/kiln; without a url, SQLite is used
        error: DATA/kiln.toml:16: [store] password_file: failed to open file `/nowhere/password`: No such file or directory (os error 2)

        hint: a relative path starts at Kiln's working directory; prefer an absolute one
        error: DATA/kiln.toml:18: [s3] endpoint: `s3.example.org` is not the URL of a service

        hint: for example: https://s3.example.org
        error: DATA/kiln.toml:19: [s3] access_key: only one of access_key and secret_key is set

        hint: set both, or neither to use the usual AWS environment
        error: DATA/kiln.toml:21: [embedded_s3] listen: it must be a loopback address

        hint: use 127.0.0.1, or configure a service that other hosts can reach in [s3]
        error: DATA/kiln.toml:23: [jobs] default_mem_size_gib: it is zero

        hint: set it to 1 or more
        error: DATA/kiln.toml:25: [remote_build_nodes] identity_file: failed to open file `/nowhere/id_ed25519`: No such file or directory (os error 2)

        hint: a relative path starts at Kiln's working directory; prefer an absolute one
        error: [oidc] audience: tokens for any other service would be accepted

        hint: set audience to the value of the claim `aud` in the issuer's tokens for Kiln
        error: KILN__LIMITS__REQUEST_TIMEOUT: [limits] request_timeout: zero would allow nothing

        hint: "60s" is the default
        error: KILN__JOBS__CACHE: [jobs] cache: more than the same packages is only reused where the recipe or the request asks for it

        hint: set it to "packages", and `cache` of recipes to "similar"
    "#);
}

#[test]
fn what_is_in_effect_is_shown_with_its_origin_and_without_secrets() {
    let configured = Configured::new(
        "[server]\n\
         listen = '127.0.0.1:8080'\n\
         [store]\n\
         url = 'postgresql://kiln:hunter2@db.example.org/kiln?sslmode=verify-full'\n\
         [s3]\n\
         access_key = 'me'\n\
         secret_key = 'hunter3'\n",
    );
    let shown = configured.says(
        &["config", "show"],
        &[("KILN__STORE__PASSWORD", "hunter4"), ("KILN__LIMITS__BURST", "10")],
    );
    assert!(!shown.contains("hunter"), "{shown}");
    // How wide that line is depends on where the test runs.
    let shown = shown.replace("data_dir = \"DATA\"", "data_dir = \"DATA\"\n");
    let shown: Vec<&str> = shown
        .lines()
        .filter(|line| !line.trim_start().starts_with("# --data"))
        .collect();
    let shown = shown.join("\n");
    insta::assert_snapshot!(shown, @r#"
        exit code 0
        --- stdout
        data_dir = "DATA"

        [server]
        listen = "127.0.0.1:8080"                        # DATA/kiln.toml:2
        #tls_certificate =                               # not set
        #tls_key =                                       # not set
        insecure_http = false                            # default
        #agent_url =                                     # not set
        #agent_ca_bundle =                               # not set
        #peer_url =                                      # not set
        hosts = []                                       # default
        #public_url =                                    # not set

        [trusted_listener]
        listen = []                                      # default
        networks = []                                    # default
        role = "write"                                   # default

        [auth]
        mode = "auto"                                    # default

        [oidc]
        #issuer =                                        # not set
        #audience =                                      # not set
        role_claim = "realm_access.roles"                # default
        read_roles = ["kiln-read"]                       # default
        write_roles = ["kiln-write"]                     # default
        admin_roles = ["kiln-admin"]                     # default
        #ca_bundle =                                     # not set
        jwks_refresh = "1h"                              # default
        #client_id =                                     # not set
        #client_secret_file =                            # not set
        scopes = ["profile"]                             # default

        [metrics]
        listen = []                                      # default
        #token_file =                                    # not set

        [limits]
        body_bytes = "1MiB"                              # default
        upload_bytes = "20GiB"                           # default
        records_of_caller = 100000                       # default
        records = 1000000                                # default
        requests_per_second = 500                        # default
        burst = 10                                       # KILN__LIMITS__BURST
        failed_logins_per_minute = 20                    # default
        request_timeout = "1m"                           # default

        [catalogue]
        public = false                                   # default
        channels = []                                    # default

        [webhooks]
        receivers = []                                   # default

        [traces]
        #endpoint =                                      # not set

        [log]
        format = "text"                                  # default

        [store]
        url = "postgresql://kiln:REDACTED@db.example.org/kiln?REDACTED" # DATA/kiln.toml:4
        password = "REDACTED"                            # KILN__STORE__PASSWORD
        #password_file =                                 # not set

        [s3]
        #endpoint =                                      # not set
        #public_endpoint =                               # not set
        region = "us-east-1"                             # default
        access_key = "me"                                # DATA/kiln.toml:6
        secret_key = "REDACTED"                          # DATA/kiln.toml:7
        recipes_bucket = "ims"                           # default
        images_bucket = "boot-images"                    # default
        foreign_buckets = "refuse"                       # default
        #ca_bundle =                                     # not set

        [embedded_s3]
        listen = "127.0.0.1:9001"                        # default

        [jobs]
        run = true                                       # default
        default_image_size_gib = 60                      # default
        default_mem_size_gib = 8                         # default
        cache = "packages"                               # default
        enable_dkms = true                               # default
        access_subnet = "cmn"                            # default
        access_domain = "shasta.local"                   # default
        namespace = "ims"                                # default

        [shell]
        #listen =                                        # not set
        #host =                                          # not set
        ports = "22000-22999"                            # default
        idle = "12h"                                     # default
        longest = "7d"                                   # default

        [isolation]
        foreign = "vm"                                   # default
        drivers = []                                     # default
        loopback_ports = []                              # default

        [network]
        allow = []                                       # default
        deny = ["this-host", "169.254.0.0/16", "100.100.100.200/32", "fd00:ec2::254/128"] # default
        #http_proxy =                                    # not set
        #https_proxy =                                   # not set
        no_proxy = []                                    # default
        #proxy_credentials =                             # not set

        [trust]
        #ca =                                            # not set
        keep_ca = false                                  # default
        #signing_keys =                                  # not set

        [containers]
        secrets = []                                     # default
        registries = []                                  # default

        [docker]
        #engine =                                        # not set
        #certificates =                                  # not set
        #vm_runtime =                                    # not set
        dns = []                                         # default

        [kubernetes]
        enabled = false                                  # default
        #kubeconfig =                                    # not set
        #context =                                       # not set
        #namespace =                                     # not set
        #image =                                         # not set
        #base_image =                                    # not set
        image_pull_policy = "IfNotPresent"               # default
        image_pull_secrets = []                          # default
        #vm_runtime =                                    # not set
        node_selector = {}                               # default
        tolerations = []                                 # default
        #priority_class =                                # not set
        labels = {}                                      # default
        annotations = {}                                 # default
        request_cpus = 1                                 # default
        #storage_class =                                 # not set
        server_labels = {}                               # default
        start = "15m"                                    # default
        #shell_service =                                 # not set
        #shell_host =                                    # not set
        shell_annotations = {}                           # default
        #shell_endpoint =                                # not set

        [emulation]
        twins = "full"                                   # default
        verify_percent = 0                               # default

        # There is no [root_checks].

        [capacity]
        #jobs =                                          # not set
        #memory =                                        # not set
        first_memory = "2GiB"                            # default
        first_disk = "1GiB"                              # KILN__CAPACITY__FIRST_DISK
        disk_floor = "2GiB"                              # default
        inode_floor = 20000                              # default
        longest_wait = "5m"                              # KILN__CAPACITY__LONGEST_WAIT
        #cpus_per_job =                                  # not set
        processes_per_job = 16384                        # default
        files_per_job = 4000000                          # default

        [boot_checks]
        run = true                                       # default
        memory = "2GiB"                                  # default
        timeout = "10m"                                  # default

        [watch]
        heartbeat = "1m"                                 # default
        silence = "1h"                                   # default
        wall = "4h"                                      # default
        emulated_factor = 10                             # default
        attempts = 3                                     # default
        interruptions = 10                               # default
        retry_pause = "5s"                               # default
        log_bytes = "64MiB"                              # default
        keep_failed = "1h"                               # default

        [remote_build_nodes]
        user = "root"                                    # default
        #identity_file =                                 # not set
        #known_hosts =                                   # not set
        #ssh_config =                                    # not set
        engine_socket = "/run/podman/podman.sock"        # default
        connect_timeout = "10s"                          # default

        [retention]
        every = "1d"                                     # default
        images = []                                      # default
        keep_tags = ["kiln.keep"]                        # default
        purge_after = "0s"                               # default
        jobs_after = "0s"                                # default
        job_log_bytes = "0B"                             # default
        uploads_after = "7d"                             # default
        packages_after = "30d"                           # default
        package_bytes = "20GiB"                          # default
        layers_after = "14d"                             # default
        layer_bytes = "50GiB"                            # default
        toolboxes_after = "90d"                          # default
        audit_after = "400d"                             # default

        [signing]
        #key_file =                                      # not set
        command = []                                     # default
        #public_key_file =                               # not set
        #builder =                                       # not set
        --- stderr
    "#);
}

#[test]
fn the_reference_is_the_example() {
    let reference = Kiln::bare().run(["config", "reference"]).ok().stdout;
    let example = support::source_dir().join("examples/kiln.toml");
    assert_eq!(fs_err::read_to_string(example).unwrap(), reference);
    // Every key that is not an example has its default value, so uncommenting it changes nothing.
    let configured = Configured::new(&reference);
    assert!(configured.checked(&[]).contains("ok: DATA/kiln.toml"));
}

/// An unreadable file must not count as missing.
#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let kiln = Kiln::bare();
    let dir = kiln.data().join(".config/kiln");
    fs_err::create_dir_all(dir.join("kiln.toml")).unwrap();
    kiln.run(["config", "check"]).failed();
    fs_err::remove_dir_all(kiln.data().join(".config")).unwrap();
    fs_err::write(kiln.data().join(".config"), "").unwrap();
    kiln.run(["serve"]).failed();
}

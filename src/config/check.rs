//! Checks that single keys cannot make: readable files, and settings that contradict each other. Reads the files that
//! the configuration names; no network.

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_records::{CacheDepth, run::DriverKind};
use reqwest::Url;

use super::{AuthMode, Config, EngineUrl, Problem, S3Settings};
use crate::{
    settings::{Destination, Key, Section, is_loopback, names_here},
    tls,
};

/// Whether callers have to authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Callers need not authenticate: only this host can reach the server.
    Open,
    /// Every caller has to authenticate.
    Authenticated,
}

/// Whether other users of this host can read a file.
fn others_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs_err::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

impl Config {
    /// Whether callers have to authenticate. Only a configuration that asks for less than everything makes this
    /// [`Access::Open`], and [`Config::problems`] reports that unless only this host can call.
    pub fn access(&self) -> Access {
        if self.auth.mode == AuthMode::Required || self.oidc.issuer.is_some() || !self.only_here() {
            Access::Authenticated
        } else {
            Access::Open
        }
    }

    /// Whether only this host can call.
    fn only_here(&self) -> bool {
        let public = self.server.public_url.as_ref();
        self.server.listen.are_loopback() && public.is_none_or(|url| Url::parse(url).is_ok_and(|url| names_here(&url)))
    }

    /// All problems of the configuration as a whole.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        self.check_server(&mut problems);
        self.check_access(&mut problems);
        self.check_trusted_listener(&mut problems);
        self.check_metrics(&mut problems);
        self.check_signing(&mut problems);
        self.check_trust(&mut problems);
        self.check_oidc(&mut problems);
        self.check_traces(&mut problems);
        self.check_limits(&mut problems);
        self.check_store(&mut problems);
        self.check_s3(&mut problems);
        self.check_jobs(&mut problems);
        self.check_engine(&mut problems);
        self.check_places(&mut problems);
        self.check_proxy(&mut problems);
        self.check_cluster(&mut problems);
        problems.sort_by_key(Problem::line);
        problems
    }

    /// A problem of a key, with the place where the key was set.
    pub(super) fn problem(&self, section: &'static str, key: &'static str, what: impl std::fmt::Display) -> Problem {
        let origin = self.origins.get(&(section, key)).cloned();
        Problem::new(origin, format_args!("[{section}] {key}: {what}"))
    }

    pub(super) fn is_set(&self, section: &'static str, key: &'static str) -> bool {
        self.origins.contains_key(&(section, key))
    }

    fn check_readable(&self, section: &'static str, key: &'static str, path: &Path, problems: &mut Vec<Problem>) {
        if let Err(error) = fs_err::read(path) {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => "make it readable for the user that runs Kiln",
                _ => "a relative path starts at Kiln's working directory; prefer an absolute one",
            };
            problems.push(self.problem(section, key, error).hint(hint));
        }
    }

    fn check_authorities(
        &self,
        (section, key): (&'static str, &'static str),
        path: Option<&PathBuf>,
        problems: &mut Vec<Problem>,
    ) {
        let Some(path) = path else { return };
        let known = problems.len();
        self.check_readable(section, key, path, problems);
        if problems.len() == known
            && let Err(error) = tls::authorities(path)
        {
            let hint = "it must contain PEM certificates: -----BEGIN CERTIFICATE-----";
            problems.push(self.problem(section, key, error).hint(hint));
        }
    }

    fn check_proxy(&self, problems: &mut Vec<Problem>) {
        const SECTION: &str = "network";
        let network = &self.network;
        for destination in &network.no_proxy {
            let is_host = match destination {
                Destination::Host(_) => true,
                Destination::Network(net) => net.prefix_len() == net.max_prefix_len(),
                Destination::ThisHost => false,
            };
            if !is_host {
                let what = format_args!("`{destination}` is no single host or domain");
                let hint = "few programs know networks there; name the hosts";
                problems.push(self.problem(SECTION, "no_proxy", what).hint(hint));
            }
        }
        if network.http_proxy.is_none() && network.https_proxy.is_none() {
            for key in ["no_proxy", "proxy_credentials"] {
                if self.is_set(SECTION, key) {
                    let problem = self.problem(SECTION, key, "there is no proxy, so it has no effect");
                    problems.push(problem.hint("set http_proxy, or remove it"));
                }
            }
            return;
        }
        if let Some(path) = &network.proxy_credentials {
            let known = problems.len();
            self.check_readable(SECTION, "proxy_credentials", path, problems);
            if problems.len() == known && others_read(path) {
                let problem = self.problem(
                    SECTION,
                    "proxy_credentials",
                    "other users of this host can read the file",
                );
                problems.push(problem.hint(format!("chmod 600 {}", path.display())));
            }
        }
    }

    fn check_server(&self, problems: &mut Vec<Problem>) {
        let server = &self.server;
        if server.listen.0.is_empty() {
            let hint = "give at least one, such as \"127.0.0.1:9000\"";
            problems.push(
                self.problem("server", "listen", "the list of addresses is empty")
                    .hint(hint),
            );
        }
        let mut fixed: Vec<_> = server.listen.0.iter().filter(|address| address.port() != 0).collect();
        fixed.sort();
        if fixed.windows(2).any(|pair| pair[0] == pair[1]) {
            problems.push(
                self.problem("server", "listen", "an address is listed twice")
                    .hint("remove one"),
            );
        }
        match (&server.tls_certificate, &server.tls_key) {
            (Some(certificate), Some(key)) => {
                let known = problems.len();
                self.check_readable("server", "tls_certificate", certificate, problems);
                self.check_readable("server", "tls_key", key, problems);
                if problems.len() == known
                    && let Err(error) = tls::server_config(certificate, key)
                {
                    let hint = "both must be PEM files, and the first certificate must match the key";
                    problems.push(self.problem("server", "tls_certificate", error).hint(hint));
                }
            }
            (Some(_), None) => {
                let problem = self.problem("server", "tls_certificate", "tls_key is not set");
                problems.push(problem.hint("set both, or neither"));
            }
            (None, Some(_)) => {
                let problem = self.problem("server", "tls_key", "tls_certificate is not set");
                problems.push(problem.hint("set both, or neither"));
            }
            (None, None) => {}
        }
        for (key, url) in [
            ("public_url", &server.public_url),
            ("agent_url", &server.agent_url),
            ("peer_url", &server.peer_url),
        ] {
            if let Some(url) = url
                && !Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            {
                let problem = self.problem("server", key, format_args!("`{url}` is not the URL of a server"));
                problems.push(problem.hint("for example: https://kiln.example.org"));
            }
        }
        self.check_authorities(("server", "agent_ca_bundle"), server.agent_ca_bundle.as_ref(), problems);
    }

    fn check_access(&self, problems: &mut Vec<Problem>) {
        let server = &self.server;
        let authenticated = self.auth.mode == AuthMode::Required || self.oidc.issuer.is_some();
        if !authenticated && !self.only_here() {
            let (key, what) = if server.listen.are_loopback() {
                (
                    "public_url",
                    "other hosts can reach the server there, and no authentication is required",
                )
            } else {
                (
                    "listen",
                    "other hosts can reach such an address, and no authentication is required",
                )
            };
            let hint = "set `mode = \"required\"` in [auth] and make a token with `kiln tokens create`, or configure \
                        [oidc], or listen on 127.0.0.1 only";
            problems.push(self.problem("server", key, what).hint(hint));
        }
        let encrypted = server.tls_certificate.is_some() && server.tls_key.is_some();
        if !server.listen.are_loopback() && !encrypted && !server.insecure_http {
            let hint =
                "set tls_certificate and tls_key; or, behind a gateway that terminates TLS, `insecure_http = true`";
            let what = "tokens would cross the network without encryption";
            problems.push(self.problem("server", "listen", what).hint(hint));
        }
    }

    fn check_trusted_listener(&self, problems: &mut Vec<Problem>) {
        const SECTION: &str = "trusted_listener";
        for host in &self.server.hosts {
            if !matches!(host.parse(), Ok(Destination::Host(_))) {
                let problem = self.problem("server", "hosts", format_args!("`{host}` is not the name of a host"));
                problems
                    .push(problem.hint("for example: cray-ims.services.svc.cluster.local, without scheme and port"));
            }
        }
        let trusted = &self.trusted_listener;
        if trusted.listen.0.is_empty() {
            if self.is_set(SECTION, "networks") || self.is_set(SECTION, "role") {
                let problem = self.problem(SECTION, "listen", "it is not set, so the other keys have no effect");
                problems.push(problem.hint("set it, or remove the section"));
            }
            return;
        }
        if trusted.networks.is_empty() {
            let problem = self.problem(SECTION, "networks", "no network may use the listener");
            problems.push(problem.hint("name those of the callers, such as [\"10.32.0.0/12\"]"));
        }
        if let Some(network) = trusted.networks.iter().find(|network| network.prefix_len() == 0) {
            let problem = self.problem(SECTION, "networks", format_args!("{network} is every host there is"));
            problems.push(problem.hint("name the networks of the callers only"));
        }
        let mut fixed: Vec<_> = trusted.listen.0.iter().filter(|address| address.port() != 0).collect();
        fixed.sort();
        if fixed.windows(2).any(|pair| pair[0] == pair[1]) || fixed.iter().any(|it| self.server.listen.0.contains(it)) {
            let problem = self.problem(SECTION, "listen", "an address is listed twice, perhaps in [server]");
            problems.push(problem.hint("remove one"));
        }
    }

    fn check_oidc(&self, problems: &mut Vec<Problem>) {
        let oidc = &self.oidc;
        let Some(issuer) = &oidc.issuer else {
            // The user meant to configure an issuer.
            if let Some(origin) = self.origins.get(&("oidc", "")) {
                let problem = Problem::new(origin.clone(), "[oidc] has no issuer");
                problems.push(problem.hint("set issuer and audience, or remove the section"));
            }
            return;
        };
        if !Url::parse(issuer).is_ok_and(|url| is_private(&url)) {
            let what = format!("`{issuer}` is not an https URL");
            let hint = "for example: https://keycloak.example.org/realms/site";
            problems.push(self.problem("oidc", "issuer", what).hint(hint));
        }
        if oidc.audience.as_ref().is_none_or(String::is_empty) {
            let hint = "set audience to the value of the claim `aud` in the issuer's tokens for Kiln";
            let what = "tokens for any other service would be accepted";
            problems.push(self.problem("oidc", "audience", what).hint(hint));
        }
        if [&oidc.read_roles, &oidc.write_roles, &oidc.admin_roles]
            .iter()
            .all(|roles| roles.is_empty())
        {
            let problem = self.problem("oidc", "read_roles", "no role of the issuer grants any access");
            problems.push(problem.hint("name roles in read_roles, write_roles or admin_roles"));
        }
        if oidc.role_claim.is_empty() {
            let problem = self.problem("oidc", "role_claim", "it is empty");
            problems.push(problem.hint("Keycloak's is \"realm_access.roles\""));
        }
        if oidc.jwks_refresh.duration().is_zero() {
            let problem = self.problem("oidc", "jwks_refresh", "it is zero");
            problems.push(problem.hint("\"1h\" is the default"));
        }
        self.check_authorities(("oidc", "ca_bundle"), oidc.ca_bundle.as_ref(), problems);
        self.check_sign_in(problems);
    }

    fn check_traces(&self, problems: &mut Vec<Problem>) {
        let Some(endpoint) = &self.traces.endpoint else {
            return;
        };
        let is_usable = |url: Url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none();
        if !Url::parse(endpoint).is_ok_and(is_usable) {
            let problem = self.problem("traces", "endpoint", format!("`{endpoint}` is no http or https URL"));
            problems.push(problem.hint("for example: http://otel-collector.example.org:4318"));
        }
    }

    fn check_sign_in(&self, problems: &mut Vec<Problem>) {
        let oidc = &self.oidc;
        if oidc.client_id.is_none() {
            for key in ["client_secret_file", "scopes"] {
                if self.is_set("oidc", key) {
                    let problem = self.problem("oidc", key, "it is set without client_id");
                    problems.push(problem.hint("set client_id, or remove this key"));
                }
            }
            return;
        }
        if oidc.client_id.as_ref().is_some_and(String::is_empty) {
            let problem = self.problem("oidc", "client_id", "it is empty");
            problems.push(problem.hint("it is the name of the dashboard's client at the issuer"));
        }
        // The issuer sends people back there, with a code that is worth a session.
        let public = self.server.public_url.as_deref().map(Url::parse);
        if !public.is_some_and(|url| url.is_ok_and(|url| is_private(&url))) {
            let what = "the issuer cannot send people back to a dashboard without an https address";
            let hint = "set public_url in [server] to the URL at which browsers reach this server";
            problems.push(self.problem("oidc", "client_id", what).hint(hint));
        }
    }

    fn check_limits(&self, problems: &mut Vec<Problem>) {
        let limits = &self.limits;
        let zero = |key| self.problem("limits", key, "zero would allow nothing");
        if limits.body_bytes.0 == 0 {
            problems.push(zero("body_bytes").hint("\"1MiB\" is the default"));
        }
        if limits.upload_bytes.0 == 0 {
            problems.push(zero("upload_bytes").hint("\"20GiB\" is the default"));
        }
        if limits.request_timeout.duration().is_zero() {
            problems.push(zero("request_timeout").hint("\"60s\" is the default"));
        }
        if limits.burst == 0 && limits.requests_per_second > 0 {
            problems.push(zero("burst").hint("for no limit, set requests_per_second to 0"));
        }
    }

    fn check_store(&self, problems: &mut Vec<Problem>) {
        let store = &self.store;
        let url = store.url.as_ref().map(|url| Url::parse(url.expose()));
        match &url {
            None => {
                for key in ["password", "password_file"] {
                    if self.is_set("store", key) {
                        let problem = self.problem("store", key, "it is set without a url");
                        problems.push(problem.hint("set url, or remove this key: SQLite has no password"));
                    }
                }
            }
            Some(Ok(url)) if matches!(url.scheme(), "postgresql" | "postgres") => {
                let passwords = [
                    url.password().is_some(),
                    store.password.is_some(),
                    store.password_file.is_some(),
                ];
                if passwords.into_iter().filter(|set| *set).count() > 1 {
                    let problem = self.problem("store", "url", "the password is set twice");
                    problems.push(problem.hint("keep one of: the password in url, password, password_file"));
                }
            }
            Some(_) => {
                let problem = self.problem("store", "url", "it is not the URL of a PostgreSQL database");
                problems.push(
                    problem.hint("for example: postgresql://kiln@db.example.org/kiln; without a url, SQLite is used"),
                );
            }
        }
        if let Some(path) = &store.password_file {
            self.check_readable("store", "password_file", path, problems);
        }
    }

    fn check_s3(&self, problems: &mut Vec<Problem>) {
        if !is_loopback(self.embedded_s3.listen.ip()) {
            let problem = self.problem("embedded_s3", "listen", "it must be a loopback address");
            problems.push(problem.hint("use 127.0.0.1, or configure a service that other hosts can reach in [s3]"));
        }
        let Some(s3) = &self.s3 else { return };
        if s3.access_key.is_some() != s3.secret_key.is_some() {
            let key = if s3.access_key.is_some() {
                "access_key"
            } else {
                "secret_key"
            };
            let problem = self.problem("s3", key, "only one of access_key and secret_key is set");
            problems.push(problem.hint("set both, or neither to use the usual AWS environment"));
        }
        for (key, url) in [("endpoint", &s3.endpoint), ("public_endpoint", &s3.public_endpoint)] {
            if let Some(url) = url
                && !Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            {
                let problem = self.problem("s3", key, format_args!("`{url}` is not the URL of a service"));
                problems.push(problem.hint("for example: https://s3.example.org"));
            }
        }
        self.check_authorities((S3Settings::SECTION.name, "ca_bundle"), s3.ca_bundle.as_ref(), problems);
    }

    fn check_jobs(&self, problems: &mut Vec<Problem>) {
        let (jobs, nodes) = (&self.jobs, &self.remote_build_nodes);
        for (key, value) in [
            ("default_image_size_gib", jobs.default_image_size_gib),
            ("default_mem_size_gib", jobs.default_mem_size_gib),
        ] {
            if value == 0 {
                problems.push(self.problem("jobs", key, "it is zero").hint("set it to 1 or more"));
            }
        }
        if !matches!(jobs.cache, CacheDepth::None | CacheDepth::Packages) {
            problems.push(
                self.problem(
                    "jobs",
                    "cache",
                    "more than the same packages is only reused where the recipe or the request asks for it",
                )
                .hint(format!(
                    "set it to \"packages\", and `cache` of recipes to \"{}\"",
                    jobs.cache
                )),
            );
        }
        for (key, path) in [
            ("identity_file", &nodes.identity_file),
            ("known_hosts", &nodes.known_hosts),
            ("ssh_config", &nodes.ssh_config),
        ] {
            if let Some(path) = path {
                self.check_readable("remote_build_nodes", key, path, problems);
            }
        }
    }

    fn check_engine(&self, problems: &mut Vec<Problem>) {
        let Some(engine) = &self.docker.engine else { return };
        // The server would report the same problem.
        let checked = engine.parse::<EngineUrl>().and_then(|url| match url {
            EngineUrl::Tcp(_) => self.docker.client_certificates().map(drop),
            EngineUrl::Socket(_) | EngineUrl::Ssh { .. } => Ok(()),
        });
        if let Err(failure) = checked {
            let problem = self.problem("docker", "engine", failure.detail);
            problems.push(problem.hint(failure.hint.unwrap_or_default()));
        }
    }

    fn check_places(&self, problems: &mut Vec<Problem>) {
        let (docker, drivers) = (&self.docker, &self.isolation.drivers);
        let has_machines = docker.engine.is_some() && docker.vm_runtime.is_some();
        if drivers.contains(&DriverKind::Kata) && !has_machines {
            let problem = self.problem("isolation", "drivers", "there is no engine for `kata`");
            problems.push(problem.hint("set `engine` and `vm_runtime` in [docker]; see kata/README.md"));
        }
        if drivers.contains(&DriverKind::Kubernetes) && !self.kubernetes.enabled {
            let problem = self.problem("isolation", "drivers", "there is no cluster for `kubernetes`");
            problems.push(problem.hint("set `enabled` and `image` in [kubernetes]; see docs/kubernetes.md"));
        }
        if drivers.contains(&DriverKind::KubernetesVm)
            && !(self.kubernetes.enabled && self.kubernetes.vm_runtime.is_some())
        {
            let problem = self.problem("isolation", "drivers", "there is no cluster for `kubernetes-vm`");
            problems.push(problem.hint("set `enabled`, `image` and `vm_runtime` in [kubernetes]"));
        }
        if (1..drivers.len()).any(|at| drivers[..at].contains(&drivers[at])) {
            let problem = self.problem("isolation", "drivers", "a driver is listed twice");
            problems.push(problem.hint("remove one"));
        }
        if self.jobs.run && has_machines && self.server.agent_url.is_none() {
            let what = "agents in its virtual machines have no way to this server";
            let problem = self.problem("docker", "vm_runtime", what);
            problems.push(problem.hint("set `agent_url` in [server]; see kata/README.md"));
        }
    }

    fn check_cluster(&self, problems: &mut Vec<Problem>) {
        let cluster = &self.kubernetes;
        if !cluster.enabled {
            return;
        }
        if let Some(base) = &cluster.base_image {
            let what = if cluster.image.is_some() {
                "pods have one image, and `image` names another one"
            } else if base.is_empty() || base.contains(char::is_whitespace) {
                "it is not the name of an image"
            } else {
                ""
            };
            if !what.is_empty() {
                let problem = self.problem("kubernetes", "base_image", what);
                problems.push(problem.hint("for example: registry.example.org/kiln:0.1.0, without `image`"));
            }
        }
        let image = cluster.image.as_deref().unwrap_or_default();
        let name = image.rsplit('/').next().unwrap_or_default();
        if cluster.base_image.is_none() && (name.is_empty() || name.contains([':', '@'])) {
            let what = if image.is_empty() {
                "jobs in the cluster need an image"
            } else {
                "it is not a repository without a tag"
            };
            let problem = self.problem("kubernetes", "image", what);
            problems.push(problem.hint(
                "for example: registry.example.org/kiln-toolbox; see `kiln toolbox push --help`, and `base_image` for sites \
                 whose registry takes none",
            ));
        }
        if let Some(path) = &cluster.kubeconfig {
            self.check_readable("kubernetes", "kubeconfig", path, problems);
        }
        if cluster.shell_service.is_some() && self.shells_listen().is_loopback() {
            let what = "its Services lead to this server's shells, which listen on this host's loopback only";
            let problem = self.problem("kubernetes", "shell_service", what);
            problems.push(problem.hint("set `listen` in [shell], for example to 0.0.0.0"));
        }
        if self.jobs.run && self.server.agent_url.is_none() {
            let problem = self.problem(
                "kubernetes",
                "enabled",
                "agents in the cluster have no way to this server",
            );
            problems.push(problem.hint("set `agent_url` in [server]"));
        }
    }

    /// The place where a key was set, if it was set.
    pub(super) fn origin(&self, section: &Section, key: &Key) -> Option<String> {
        let found = self
            .origins
            .iter()
            .find(|((s, k), _)| *s == section.name && *k == key.name);
        found.map(|(_, origin)| origin.to_string())
    }
}

/// Whether requests to an address are safe from being read or changed on the way.
pub(crate) fn is_private(url: &Url) -> bool {
    url.has_host() && (url.scheme() == "https" || (url.scheme() == "http" && names_here(url)))
}

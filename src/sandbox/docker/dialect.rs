//! What an engine does otherwise than Docker, by what it says of itself. Talks to the engine.
//!
//! Podman speaks Docker's API with these differences, seen with 4.3.1 and 5.4.2: a seccomp profile is the path of a file on the
//! engine's host; `/proc` is uncovered by an option of its own; a volume's size is an option of its mount; a container that is about
//! to end is listed as `stopped`; a container's limits of processes and files are refused where they are above the engine's, and so
//! are its own defaults unless it runs as a user; the name server of a network is at the network's own addresses, which sandboxes
//! do not reach; and Docker's request to import an image leaves the whole archive in `/var/tmp` of the engine's host.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{
    Docker, body_full, body_try_stream,
    errors::Error,
    models::{
        ContainerInspectResponse, ContainerSummary, ResourcesUlimits, SystemInfo, SystemInfoCgroupVersionEnum,
        VolumeCreateRequest,
    },
    query_parameters::{
        CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions,
        ListContainersOptionsBuilder, RemoveVolumeOptions, RenameContainerOptionsBuilder,
        UploadToContainerOptionsBuilder,
    },
};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use kiln_inside::room::{IdMap, filter, order::VOLUME};
use kiln_records::{Code, Failure, JobId, arch::Arch};
use reqwest::{Body, Method, RequestBuilder, Url};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{
    DockerDriver, IDS, IDS_OF_USER, Wanted, body,
    container::Options,
    fault::{failure, is_missing},
    programs,
};
use crate::sandbox::{Kernel, Limits};

/// Whose API an engine speaks.
#[derive(Debug, Clone)]
pub(super) enum Dialect {
    /// Docker's own.
    Docker,
    /// Podman's.
    Podman(Podman),
}

/// A Podman, asked past the client library, which refuses states that Docker does not have and knows Docker's requests only.
#[derive(Debug, Clone)]
pub(super) struct Podman {
    http: reqwest::Client,
    /// Whether it runs as an ordinary user.
    is_rootless: bool,
}

/// Containers with this label hold the seccomp profile. All installations share them.
const PROFILE_LABEL: &str = "kiln.seccomp";

/// The profile's name in the volume.
const PROFILE: &str = "seccomp.json";

/// Limits that every engine of a usable host may give, and that builds can do with.
const ULIMITS: [(&str, i64); 2] = [("nofile", 4_096), ("nproc", 32_768)];

/// How long an engine may take for an answer.
const ASKING: Duration = Duration::from_secs(30);

/// The same for a request that sends it a large file, such as a toolbox of nearly 1 GB over a slow line.
pub(super) const LOAD: Duration = Duration::from_mins(30);

/// A client for a request that sends a large file.
pub(super) fn patient(engine: &Docker) -> Docker {
    engine.clone().with_timeout(LOAD)
}

impl Dialect {
    /// That of an engine, which has this socket here if it has one.
    ///
    /// # Errors
    ///
    /// `engine_gone`, or another error of the engine; `engine_refused` for a Podman without a socket here.
    pub(super) async fn of(engine: &Docker, socket: Option<PathBuf>) -> Result<Self, Failure> {
        let version = engine.version().await;
        let version = version.map_err(|error| failure("cannot ask the container engine for its version", &error))?;
        let mut parts = version.components.unwrap_or_default().into_iter();
        if !parts.any(|part| part.name.starts_with("Podman")) {
            return Ok(Self::Docker);
        }
        let socket = socket.ok_or_else(|| {
            Failure::new(Code::EngineRefused, "Podman is used by its socket only")
                .hint("name it with `ssh://USER@HOST` or `unix://`")
        })?;
        let podman = Podman::at(&socket).await;
        podman
            .map(Self::Podman)
            .map_err(|error| failure("cannot ask the container engine", &error))
    }

    /// Whether the engine runs as an ordinary user.
    fn is_rootless(&self, engine: &SystemInfo) -> bool {
        let options = engine.security_options.as_deref().unwrap_or_default();
        match self {
            Self::Docker => options.iter().any(|option| option.starts_with("name=rootless")),
            Self::Podman(podman) => podman.is_rootless,
        }
    }

    /// The ids of sandboxes in its containers.
    pub(super) fn ids(&self, engine: &SystemInfo) -> IdMap {
        if self.is_rootless(engine) { IDS_OF_USER } else { IDS }
    }

    /// Whether its containers have no limits, whatever the engine says of them: only version 2 of control groups can be a user's.
    pub(super) fn lacks_limits(&self, engine: &SystemInfo) -> bool {
        self.is_rootless(engine) && engine.cgroup_version == Some(SystemInfoCgroupVersionEnum::_1)
    }

    /// The options of a volume of a size, in bytes.
    pub(super) fn of_size(&self, bytes: u64) -> HashMap<String, String> {
        let (name, value) = match self {
            Self::Docker => ("size", bytes.to_string()),
            Self::Podman(_) => ("o", format!("size={bytes}")),
        };
        HashMap::from([(name.to_owned(), value)])
    }

    /// Makes an image without a name of the root in a tar archive. Returns its id.
    pub(super) async fn import<A>(&self, engine: &Docker, archive: A) -> Result<String, Error>
    where
        A: Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        let id = match self {
            Self::Docker => {
                let options = CreateImageOptionsBuilder::default().from_src("-").build();
                let said: Vec<_> = patient(engine)
                    .create_image(Some(options), Some(body_try_stream(archive)), None)
                    .try_collect()
                    .await?;
                let mut said = said.into_iter().filter_map(|info| info.status);
                said.find(|status| status.starts_with("sha256:"))
            }
            Self::Podman(podman) => podman.import(Body::wrap_stream(archive)).await?,
        };
        id.ok_or_else(|| std::io::Error::other("the engine did not report the id of the image").into())
    }

    /// What containers on the engine's own kernel need from it, with this seccomp profile, in the engine's form.
    fn options(&self, engine: &SystemInfo, profile: &str) -> Options {
        let mut security = security_of_modules(engine.security_options.as_deref().unwrap_or_default());
        security.push(format!("seccomp={profile}"));
        let ulimits = match self {
            Self::Docker => None,
            Self::Podman(podman) => {
                security.push("unmask=ALL".to_owned());
                let limits = ULIMITS.map(|(name, most)| ResourcesUlimits {
                    name: Some(name.to_owned()),
                    soft: Some(most),
                    hard: Some(most),
                });
                // One of a user gives what it may by itself. That can be less: the kernel allows a user's processes by the memory.
                (!podman.is_rootless).then(|| limits.into())
            }
        };
        Options { security, ulimits }
    }
}

impl Podman {
    /// The one at this socket. Each request has a connection of its own, as with the client library.
    async fn at(socket: &Path) -> Result<Self, Error> {
        let http = reqwest::Client::builder().unix_socket(socket).timeout(ASKING);
        let http = http.pool_max_idle_per_host(0).build().map_err(lost)?;
        let mut podman = Self {
            http,
            is_rootless: false,
        };
        podman.is_rootless = podman.ask(Method::GET, "info", &[], None).await?["Rootless"] == true;
        Ok(podman)
    }

    /// Makes the network of sandboxes: without its name server, so that sandboxes ask those of the host.
    ///
    /// # Errors
    ///
    /// Also when the network exists.
    pub(super) async fn make_network(&self, name: &str, bridge: &str) -> Result<(), Error> {
        let wanted = json!({
            "name": name,
            "driver": "bridge",
            "network_interface": bridge,
            "dns_enabled": false,
            "options": { "isolate": "true" },
        });
        let path = "v4.0.0/libpod/networks/create";
        self.ask(Method::POST, path, &[], Some(&wanted)).await.map(drop)
    }

    /// The id of an image made of this archive.
    async fn import(&self, archive: Body) -> Result<Option<String>, Error> {
        let request = self.request(Method::POST, "v4.0.0/libpod/images/import", &[])?;
        let said = tokio::time::timeout(LOAD, answered(request.timeout(LOAD * 2).body(archive)));
        let said = said.await.map_err(|_| Error::RequestTimeoutError)??;
        Ok(said["Id"].as_str().map(str::to_owned))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, Error> {
        let mut request = self.request(method, path, query)?;
        if let Some(body) = body {
            request = request.json(body);
        }
        answered(request).await
    }

    fn request(&self, method: Method, path: &str, query: &[(&str, &str)]) -> Result<RequestBuilder, Error> {
        let url = Url::parse_with_params(&format!("http://engine/{path}"), query).map_err(std::io::Error::other)?;
        Ok(self.http.request(method, url))
    }
}

/// What the engine answers.
async fn answered(request: RequestBuilder) -> Result<Value, Error> {
    let answer = request.send().await.map_err(lost)?;
    let status = answer.status();
    if status.is_success() {
        return answer.json().await.map_err(lost);
    }
    let text = answer.text().await.map_err(lost)?;
    let said = serde_json::from_str::<Value>(&text);
    let message = said.ok().and_then(|said| said["message"].as_str().map(str::to_owned));
    Err(Error::DockerResponseServerError {
        status_code: status.as_u16(),
        message: message.unwrap_or(text),
    })
}

/// The client library's error for an answer that does not come.
fn lost(error: reqwest::Error) -> Error {
    std::io::Error::other(error).into()
}

impl DockerDriver {
    /// What containers on the engine's own kernel need from it.
    pub(super) async fn options(&self, engine: &Docker, info: &SystemInfo) -> Result<Options, Failure> {
        let dialect = self.engine.open().await?.dialect;
        Ok(match &dialect {
            Dialect::Docker => dialect.options(info, filter::PROFILE),
            Dialect::Podman(_) => {
                let entrance = self.settings.agents.of(arch_of(info)?)?;
                dialect.options(info, &self.profile_there(engine, &entrance).await?)
            }
        })
    }

    /// The path of the seccomp profile on the engine's host: in a volume of a container that is never started. Its name says that
    /// the profile is whole.
    async fn profile_there(&self, engine: &Docker, entrance: &Path) -> Result<String, Failure> {
        let digest = hex::encode(Sha256::digest(filter::PROFILE));
        let name = format!("kiln-seccomp-{}", &digest[..12]);
        if let Some(path) = self.profile_of(&name).await? {
            return Ok(path);
        }
        let failed = |error| failure("cannot give the container engine a seccomp profile", &error);
        let new = format!("{name}-{}", Uuid::new_v4());
        let volume = VolumeCreateRequest {
            name: Some(new.clone()),
            labels: Some(HashMap::from([(PROFILE_LABEL.to_owned(), digest)])),
            ..Default::default()
        };
        engine.create_volume(volume).await.map_err(failed)?;
        let image = self.probe_image(engine, entrance).await?;
        let wanted = Wanted {
            job: JobId::new(),
            labels: HashMap::from([(PROFILE_LABEL.to_owned(), String::new())]),
            image: &image,
            kernel: Kernel::Shared,
            runtime: None,
            limits: Limits {
                memory: None,
                cpus: None,
                pids: 1,
                disk: None,
            },
            volume: Some(&new),
            doors: None,
            network: "none",
            sets_routes: false,
            options: Options::default(),
            arguments: Vec::new(),
        };
        let create = CreateContainerOptionsBuilder::default().name(&new).build();
        engine
            .create_container(Some(create), body(&wanted))
            .await
            .map_err(failed)?;
        let archive = programs::one_file(PROFILE, filter::PROFILE.as_bytes())?;
        let upload = UploadToContainerOptionsBuilder::default().path(VOLUME).build();
        engine
            .upload_to_container(&new, Some(upload), body_full(archive.into()))
            .await
            .map_err(failed)?;
        let rename = RenameContainerOptionsBuilder::default().name(&name).build();
        match engine.rename_container(&new, rename).await {
            Ok(()) => {}
            // Another server was faster.
            Err(Error::DockerResponseServerError { .. }) => {
                self.remove_container(engine, &new).await?;
                let _ = engine.remove_volume(&new, None::<RemoveVolumeOptions>).await;
            }
            Err(error) => return Err(failed(error)),
        }
        self.profile_of(&name).await?.ok_or_else(|| {
            Failure::new(
                Code::EngineRefused,
                "the container engine does not say where a volume is",
            )
        })
    }

    /// Where the profile is that this container holds.
    async fn profile_of(&self, name: &str) -> Result<Option<String>, Failure> {
        let mounts = self.inspect(name).await?.and_then(|found| found.mounts);
        let source = mounts.unwrap_or_default().into_iter().find_map(|mount| mount.source);
        Ok(source.map(|dir| format!("{dir}/{PROFILE}")))
    }

    /// A container, if it exists.
    ///
    /// # Errors
    ///
    /// `engine_gone`, or another error of the engine.
    pub(super) async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>, Failure> {
        let open = self.engine.open().await?;
        let found = match &open.dialect {
            Dialect::Docker => {
                let options = None::<InspectContainerOptions>;
                open.client.inspect_container(name, options).await
            }
            Dialect::Podman(podman) => {
                let path = format!("containers/{name}/json");
                let found = podman.ask(Method::GET, &path, &[], None).await;
                found.and_then(|mut found| {
                    end_if_stopped(&mut found["State"]["Status"]);
                    Ok(serde_json::from_value(found)?)
                })
            }
        };
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failure("cannot look at the sandbox's container", &error)),
        }
    }

    /// The containers with these labels, whatever their state.
    ///
    /// # Errors
    ///
    /// `engine_gone`, or another error of the engine.
    pub(super) async fn labelled(&self, labels: Vec<String>) -> Result<Vec<ContainerSummary>, Failure> {
        let open = self.engine.open().await?;
        let filters = HashMap::from([("label", labels)]);
        let found = match &open.dialect {
            Dialect::Docker => {
                let options = ListContainersOptionsBuilder::default().all(true);
                open.client
                    .list_containers(Some(options.filters(&filters).build()))
                    .await
            }
            Dialect::Podman(podman) => {
                let filters = json!(filters).to_string();
                let query = [("all", "true"), ("filters", &filters)];
                let list = podman.ask(Method::GET, "containers/json", &query, None).await;
                list.and_then(|mut list| {
                    for container in list.as_array_mut().into_iter().flatten() {
                        end_if_stopped(&mut container["State"]);
                    }
                    Ok(serde_json::from_value(list)?)
                })
            }
        };
        found.map_err(|error| failure("cannot list containers", &error))
    }
}

/// Podman notes that a container was stopped before it notes how it ended.
fn end_if_stopped(state: &mut Value) {
    if *state == "stopped" {
        *state = "exited".into();
    }
}

/// What an engine says of itself and its host.
///
/// # Errors
///
/// `engine_gone`, or another error of the engine.
pub(super) async fn info(engine: &Docker) -> Result<SystemInfo, Failure> {
    let info = engine.info().await;
    info.map_err(|error| failure("cannot ask the container engine", &error))
}

/// The CPU of an engine's host.
///
/// # Errors
///
/// `engine_arch` when there are no toolboxes for it.
pub(super) fn arch_of(engine: &SystemInfo) -> Result<Arch, Failure> {
    let machine = engine.architecture.as_deref().unwrap_or_default();
    let arch = Arch::ALL
        .into_iter()
        .find(|arch| arch.name() == machine || arch.debian() == machine);
    arch.ok_or_else(|| {
        Failure::new(
            Code::EngineArch,
            format!("the container engine runs on {machine}, for which there is no toolbox"),
        )
    })
}

/// Options against the defaults of the engine's security modules, which forbid every mount even to root of a user
/// namespace.
fn security_of_modules(modules: &[String]) -> Vec<String> {
    let has = |name: &str| modules.iter().any(|module| module.starts_with(name));
    let mut options = Vec::new();
    if has("name=apparmor") {
        options.push("apparmor=unconfined".to_owned());
    }
    if has("name=selinux") {
        options.push("label=disable".to_owned());
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn podman(is_rootless: bool) -> Dialect {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let http = reqwest::Client::new();
        Dialect::Podman(Podman { http, is_rootless })
    }

    #[test]
    fn every_engine_gets_the_seccomp_profile_in_its_own_form() {
        let info = SystemInfo::default();
        let options = Dialect::Docker.options(&info, filter::PROFILE);
        assert!(options.security[0].starts_with("seccomp={"), "{options:?}");
        assert_eq!(options.ulimits, None);
        let options = podman(false).options(&info, "/there/seccomp.json");
        assert_eq!(options.security, ["seccomp=/there/seccomp.json", "unmask=ALL"]);
        assert!(options.ulimits.is_some());
        assert_eq!(podman(true).options(&info, "/there/seccomp.json").ulimits, None);
    }

    #[test]
    fn an_engine_of_a_user_has_other_ids_and_perhaps_no_limits() {
        let info = |options: &[&str], version| SystemInfo {
            security_options: Some(options.iter().map(|option| (*option).to_owned()).collect()),
            cgroup_version: Some(version),
            ..SystemInfo::default()
        };
        let (old, new) = (SystemInfoCgroupVersionEnum::_1, SystemInfoCgroupVersionEnum::_2);
        for (dialect, options, version, is_users, lacks) in [
            (
                Dialect::Docker,
                &["name=seccomp,profile=default"][..],
                old,
                false,
                false,
            ),
            (Dialect::Docker, &["name=seccomp", "name=rootless"], old, true, true),
            (Dialect::Docker, &["name=rootless"], new, true, false),
            // Podman does not say it there.
            (podman(false), &["name=seccomp"], old, false, false),
            (podman(true), &["name=seccomp"], old, true, true),
            (podman(true), &["name=seccomp"], new, true, false),
        ] {
            let info = info(options, version);
            assert_eq!(dialect.ids(&info) == IDS_OF_USER, is_users, "{dialect:?} {options:?}");
            assert_eq!(dialect.lacks_limits(&info), lacks, "{dialect:?} {options:?}");
        }
    }
}

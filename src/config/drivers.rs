//! What makes sandboxes, as the configuration says.

use std::net::{Ipv4Addr, SocketAddr};

use super::Config;
use crate::{
    host,
    orchestrate::ShellPlace,
    records::{Code, Failure},
    remote_nodes::RemoteNodeSettings,
    sandbox::{
        agents::Agents,
        docker::{DockerDriver, DockerSettings, EngineAddress, EngineUrl},
        namespace::NamespaceDriver,
    },
};

impl Config {
    /// The namespace driver of this data directory.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made or this user has no ids for a sandbox.
    pub fn namespace_driver(&self) -> Result<NamespaceDriver, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
        let driver = NamespaceDriver::new(&self.data_dir.join("sandboxes"), &program)?;
        // Without an agent there will be no sandbox of any kind, which is said where one is asked for.
        Ok(match self.agent() {
            Ok(agent) => driver.with_machines(&self.data_dir.join("toolboxes"), &agent),
            Err(_) => driver,
        })
    }

    /// The container engine, if there is one. `installation` names who uses it among others.
    ///
    /// # Errors
    ///
    /// `engine_address` when its address makes no sense.
    pub fn docker_driver(&self, installation: &str) -> Result<Option<DockerDriver>, Failure> {
        let Some(url) = &self.docker.engine else {
            return Ok(None);
        };
        Ok(Some(DockerDriver::new(DockerSettings {
            engine: self.engine_address(url)?,
            installation: installation.to_owned(),
            agents: Agents::beside(self.agent()?),
            packer: self.namespace_driver()?,
            vm_runtime: self.docker.vm_runtime.clone(),
        })))
    }

    /// Where the container engine is that the configuration names so.
    pub(super) fn engine_address(&self, url: &str) -> Result<EngineAddress, Failure> {
        Ok(match url.parse::<EngineUrl>()? {
            EngineUrl::Socket(path) => EngineAddress::Socket(path),
            EngineUrl::Tcp(host) => EngineAddress::Tls {
                host,
                certificates: self.docker.certificates.clone().ok_or_else(no_certificates)?,
            },
            EngineUrl::Ssh { user, host, socket } => {
                let mut login = self.node_login();
                if let Some(user) = user {
                    login.user = user;
                }
                EngineAddress::Ssh { host, socket, login }
            }
        })
    }

    /// Where the shells of jobs are.
    pub fn shells(&self) -> ShellPlace {
        let first = self.server.listen.0.first().map(SocketAddr::ip);
        let listen = self.shell.listen.or(first).unwrap_or(Ipv4Addr::LOCALHOST.into());
        let host = match &self.shell.host {
            Some(host) => host.clone(),
            None if listen.is_unspecified() => host::name(),
            None => listen.to_string(),
        };
        ShellPlace {
            listen,
            host,
            ports: self.shell.ports,
            idle: self.shell.idle.duration(),
            longest: self.shell.longest.duration(),
        }
    }

    /// How remote build nodes are logged in to.
    pub fn node_login(&self) -> RemoteNodeSettings {
        let settings = self.remote_build_nodes.clone();
        RemoteNodeSettings {
            user: settings.user,
            identity_file: settings.identity_file,
            known_hosts: settings.known_hosts,
            ssh_config: settings.ssh_config,
            connect_timeout: settings.connect_timeout.duration(),
        }
    }
}

fn no_certificates() -> Failure {
    Failure::new(
        Code::EngineAddress,
        "an engine at tcp:// is reached with TLS only, and there are no certificates",
    )
    .hint("set `certificates` in [docker] to the directory with key.pem, cert.pem and ca.pem; or use ssh://")
}

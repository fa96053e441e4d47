//! Compares the root with the known packages, and passes changes on to the directory of twins. Reads the root.

use std::{io, path::PathBuf};

use super::{
    Settings,
    packages::{Host, Packages},
    side_by_side::side_by_side,
    unchanged::unchanged,
};
use crate::twins::world::{self, World};

/// The number of threads that read files of the root.
const READERS: usize = 2;

/// Packages that have new files in the root. Before a process enters the root (`all`), packages that the package
/// manager does not know yet are checked too: the first ones are unpacked without it.
pub(super) fn compare(
    settings: &Settings,
    packages: &mut Packages,
    world: &mut World,
    all: bool,
) -> io::Result<Vec<world::Package>> {
    let mut offers = Vec::new();
    let changed = packages.changed(all).into_iter().collect();
    let installed = side_by_side(changed, READERS, |name: &String| installed(settings, packages, name));
    for (name, installed) in installed {
        let installed = installed?;
        let versions = || packages.known.iter().filter(|((known, _), _)| *known == name);
        let was_there = versions().any(|(_, package)| !package.paired.is_empty());
        let (version, files) = installed;
        let mut is_new = false;
        for ((known, other), package) in &mut packages.known {
            if *known == name {
                let paired = if *other == version { files.clone() } else { Vec::new() };
                is_new |= !paired.is_empty() && paired != package.paired;
                package.paired = paired;
            }
        }
        if !is_new {
            world.settle(&name).map_err(io::Error::other)?;
        }
        let host = packages.known.get(&(name.clone(), version.clone()));
        match host.map(|package| &package.host) {
            Some(Host::At { dir, version: of_host }) if is_new => {
                let (host, host_version) = (dir.clone(), of_host.clone());
                offers.push(world::Package {
                    name,
                    version,
                    files,
                    host,
                    host_version,
                });
            }
            Some(Host::Missing(_)) if is_new => {
                world.remove(&name).map_err(io::Error::other)?;
                world.note_emulated(&name, &version, &files);
            }
            Some(Host::At { .. } | Host::Missing(_)) if !files.is_empty() => {}
            _ if was_there => world.remove(&name).map_err(io::Error::other)?,
            _ => {}
        }
    }
    Ok(offers)
}

/// The version of a package that is in the root, with its unchanged files. Versions of one package have files in common; the
/// installed version has all of its own.
fn installed(settings: &Settings, packages: &Packages, name: &str) -> io::Result<(String, Vec<PathBuf>)> {
    let mut installed = (String::new(), Vec::new());
    for ((_, version), package) in packages.known.iter().filter(|((known, _), _)| *known == name) {
        let files = unchanged(&settings.root, &package.sums, settings.target)?;
        if files.len() >= installed.1.len() {
            installed = (version.clone(), files);
        }
    }
    Ok(installed)
}

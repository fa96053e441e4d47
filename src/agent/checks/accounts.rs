//! Looks at what a root's own databases say: accounts whose ids no file can have, and packages that are not all there. Reads the
//! root, and the ids of this process's user namespace.

use std::{io, path::Path};

use super::Finished;
use crate::{
    ids::{Range, ranges},
    twins::{DPKG_STATUS, Root, control_field},
};

/// The most bytes of a database that is looked at.
const LARGEST: u64 = 64 << 20;

/// Accounts and groups with ids that the sandbox does not have, so that no file of the image can belong to them.
pub(super) fn outside(finished: &Finished) -> Vec<String> {
    let Ok(root) = Root::open(&finished.root) else {
        return Vec::new();
    };
    let here = |file: &str| ranges(&fs_err::read_to_string(file).unwrap_or_default());
    let (users, groups) = (here("/proc/self/uid_map"), here("/proc/self/gid_map"));
    let text = |path: &str| root.text(Path::new(path), LARGEST).unwrap_or_default();
    let mut found = without(&text("etc/passwd"), "account", &users);
    found.extend(without(&text("etc/group"), "group", &groups));
    found
}

fn without(database: &str, what: &str, ranges: &[Range]) -> Vec<String> {
    let is_there = |id: u64| ranges.iter().any(|(first, last)| (*first..=*last).contains(&id));
    let mut found = Vec::new();
    for line in database.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(Ok(id))) = (fields.next(), fields.nth(1).map(str::parse)) else {
            continue;
        };
        if !ranges.is_empty() && !is_there(id) {
            let name = name.escape_debug();
            found.push(format!(
                "the {what} {name} has the id {id}, which this sandbox does not have"
            ));
        }
    }
    found
}

/// dpkg itself.
const DPKG: &str = "usr/bin/dpkg";

/// Packages that dpkg unpacked and could not configure, or not even unpack.
pub(super) fn half_installed(finished: &Finished) -> Vec<String> {
    let Ok(root) = Root::open(&finished.root) else {
        return Vec::new();
    };
    let status = root.text(Path::new(DPKG_STATUS), LARGEST).unwrap_or_default();
    let mut found = Vec::new();
    for paragraph in status.split("\n\n") {
        let state = control_field(paragraph, "Status");
        let state = state.rsplit(' ').next().unwrap_or_default();
        if matches!(state, "half-configured" | "half-installed" | "unpacked") {
            let name = control_field(paragraph, "Package");
            found.push(format!("the package {} is {state}", name.escape_debug()));
        }
    }
    // What cannot be looked at is neither there nor gone.
    let size = |path: &str| match root.file(Path::new(path)) {
        Ok(found) => Some(found.map_or(0, |(_, status)| status.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(0),
        Err(_) => None,
    };
    if matches!((size(DPKG_STATUS), size(DPKG)), (Some(0), Some(1..))) {
        let text = "dpkg knows no package of the root, so that none is configured: kiwi only unpacks those of `<packages \
                    type=\"bootstrap\">`, unless `<packages type=\"image\">` names one";
        found.push(text.to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use kiln_records::arch::Arch;

    use super::*;

    #[test]
    fn ids_outside_of_the_ranges_are_found() {
        let map = "         0     100000      65536\n     65536    1000000     10\n";
        assert_eq!(ranges(map), [(0, 65545)]);
        let passwd =
            "root:x:0:0::/root:/bin/sh\nlast:x:65545:1::/:/bin/sh\nsvc:x:1234567:700001::/:/bin/sh\n+::::::\nbroken\n";
        let found = without(passwd, "account", &ranges(map));
        assert_eq!(
            found,
            ["the account svc has the id 1234567, which this sandbox does not have"]
        );
        // Where nothing is known of the ranges, nothing is said.
        assert_eq!(without(passwd, "account", &[]), Vec::<String>::new());
    }

    #[test]
    fn packages_that_are_not_all_there_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DPKG_STATUS);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        let status = "Package: a\nStatus: install ok installed\n\nPackage: b\nStatus: install ok half-configured\n\n\
                      Package: c\nStatus: deinstall ok config-files\n\nPackage: d\nStatus: install reinstreq unpacked\n\n\
                      Package: e\nStatus: install ok triggers-pending\n";
        fs_err::write(path, status).unwrap();
        let finished = Finished::new(dir.path().to_owned(), Arch::X86_64, None);
        assert_eq!(
            half_installed(&finished),
            ["the package b is half-configured", "the package d is unpacked"]
        );
    }

    #[test]
    fn a_root_that_was_only_unpacked_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let finished = Finished::new(dir.path().to_owned(), Arch::X86_64, None);
        assert!(half_installed(&finished).is_empty());
        let dpkg = dir.path().join(DPKG);
        fs_err::create_dir_all(dpkg.parent().unwrap()).unwrap();
        fs_err::write(dpkg, "program").unwrap();
        assert!(half_installed(&finished)[0].contains("dpkg knows no package"));
        let status = dir.path().join(DPKG_STATUS);
        fs_err::create_dir_all(status.parent().unwrap()).unwrap();
        fs_err::write(status, "Package: a\nStatus: install ok installed\n").unwrap();
        assert!(half_installed(&finished).is_empty());
    }
}

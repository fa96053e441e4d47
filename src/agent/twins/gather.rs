//! Collects the files of a package for the directory of twins: those that both builds have, and the host's libraries.
//! Reads the root and unpacked packages; writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, Metadata},
    io::{self, Read, Seek},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use memchr::memmem;

use super::{
    choice::{Item, Library, Verdict},
    elf::{self, Elf, Kind},
    examine::{Build, Finding, examine, has_one_long_double, libm, sets_modes_on_aarch64},
    key,
    pairs::{counterparts, data_name, is_in_library_directory, loader_name, moved_data},
    root::Root,
    table::Table,
    truth::{self, Untold},
};
use kiln_records::{TwinLevel, account::Ground, arch::Arch};

/// Larger files are not rewritten: the target's file may be anything.
const LARGEST_TOLD: u64 = 256 << 20;

/// A package that is installed in the root, and the host's build of it.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Files of the target's build: absolute paths in the root, where the files are as the package brought them.
    pub files: Vec<PathBuf>,
    /// The directory into which the host's build was unpacked. Files are linked from there where that can be done.
    pub host: PathBuf,
    /// The version of the host's build: the same, or that of a rebuild of the same source.
    pub host_version: String,
}

impl Package {
    /// Whether builds of one of its files name their versions, which differ. Both would; the longer version is less likely to be there
    /// by chance.
    fn is_named_in(&self, twin: &[u8], original: &[u8]) -> bool {
        if self.host_version.len() > self.version.len() {
            names_version(twin, &self.host_version)
        } else {
            names_version(original, &self.version)
        }
    }
}

/// A file that has no twin, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its path in the root.
    pub path: String,
    /// The kind of cause.
    pub ground: Ground,
    /// The cause, in one line.
    pub why: String,
}

impl Refused {
    pub(super) fn new(path: &str, ground: Ground, why: &str) -> Self {
        Self {
            path: path.to_owned(),
            ground,
            why: why.to_owned(),
        }
    }
}

/// Tells which files of packages are to be published.
#[derive(Debug)]
pub struct Gatherer {
    /// The image's root.
    pub root: Root,
    /// The architecture of the twins.
    pub host: Arch,
    /// The architecture of the image.
    pub target: Arch,
    /// The programs that may have twins.
    pub table: Table,
    /// The highest level allowed.
    pub level: TwinLevel,
}

/// The result for one package.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Native files.
    pub items: Vec<Found>,
    /// Other files that native libraries read: name in the directory of twins, and content.
    pub data: Vec<(String, Vec<u8>)>,
}

/// A native file.
#[derive(Debug)]
pub struct Found {
    /// Its description.
    pub item: Item,
    /// Its content, unless that of the host's package is used unchanged.
    pub content: Option<Vec<u8>>,
}

/// Files of the host's package by path, or why they cannot be used.
type Natives = BTreeMap<String, Result<Elf, String>>;

/// A file of the root with all its names, and its counterpart.
struct Pair<'a> {
    elf: &'a Elf,
    original: File,
    paths: Vec<String>,
    origins: Vec<&'a str>,
}

impl Gatherer {
    /// Reads both builds of `package`. Files of both builds that cannot be twins are added to `refused`.
    ///
    /// # Errors
    ///
    /// The host's package cannot be read. The root is not trusted: a file of it that cannot be read just has no twin.
    pub fn gather(&self, package: &Package, refused: &mut Vec<Refused>) -> io::Result<Gathered> {
        let mut gathered = Gathered::default();
        let mut natives = Natives::new();
        for origin in files_below(&package.host)? {
            let place = package.host.join(&origin);
            if let Some(name) = data_name(&origin) {
                gathered.data.push((name, moved_data(&origin, fs_err::read(place)?)));
            } else if !origin.contains("/glibc-hwcaps/") {
                // Variants for newer processors would only take the name of the variant that runs everywhere.
                let native = self.native(&origin, &place)?;
                natives.extend(native.map(|native| (origin, native)));
            }
        }
        let mut alone: BTreeSet<&str> = natives.keys().map(String::as_str).collect();
        for (key, pair) in self.pairs(package, &natives, refused) {
            for origin in &pair.origins {
                alone.remove(origin);
            }
            gathered.items.extend(self.paired(package, key, pair, refused)?);
        }
        for origin in alone {
            // Files that have to be rewritten wait for the target's file, which has the new text.
            if let Some(Ok(elf)) = natives.get(origin)
                && elf.soname.is_some()
                && !truth::concerns(&self.counterpart(origin))
            {
                gathered.items.push(self.alone(package, origin, elf));
            }
        }
        Ok(gathered)
    }

    /// The path in the target's package of the host's file at `origin`.
    fn counterpart(&self, origin: &str) -> String {
        format!("/{}", origin.replace(self.host.multiarch(), self.target.multiarch()))
    }

    /// The headers of a file of the host's package. `None` unless it is linked dynamically.
    fn native(&self, origin: &str, place: &Path) -> io::Result<Option<Result<Elf, String>>> {
        let (file, _) = fs_err::File::open(place)?.into_parts();
        let mut elf = match Elf::read(&file, self.host.elf_machine()) {
            Ok(None) => return Ok(None),
            Ok(Some(elf)) => elf,
            Err(broken) => return Ok(Some(Err(format!("the host's file is broken: {broken}")))),
        };
        if elf.kind == Kind::Shared && elf.soname.is_none() && is_in_library_directory(origin, self.host) {
            elf.soname = Some(origin.rsplit('/').next().unwrap_or(origin).to_owned());
        }
        let checked = match elf.soname.as_deref() {
            Some(name) if name.contains('/') || ["", ".", ".."].contains(&name) => Err("its name is a path".to_owned()),
            Some("libc.so.6") => is_new_enough(&file),
            _ => Ok(()),
        };
        Ok(Some(checked.map(|()| elf)))
    }

    /// The files of the root that have counterparts, by key.
    fn pairs<'a>(
        &self,
        package: &'a Package,
        natives: &'a Natives,
        refused: &mut Vec<Refused>,
    ) -> BTreeMap<String, Pair<'a>> {
        let mut pairs: BTreeMap<String, Pair<'a>> = BTreeMap::new();
        for path in package.files.iter().filter_map(|path| path.to_str()) {
            let mut found =
                counterparts(path, self.target, self.host).filter_map(|origin| natives.get_key_value(&origin));
            let Some((origin, native)) = found.next() else { continue };
            let Ok(Some((original, head, status))) = self.original(path) else {
                continue;
            };
            let elf = match native {
                Ok(elf) => elf,
                Err(why) => {
                    refused.push(Refused::new(path, Ground::Unusable, why));
                    continue;
                }
            };
            let Some(key) = key_of(&head, status.size(), status.mtime()) else {
                refused.push(Refused::new(path, Ground::NoBuildId, "it has no build-id"));
                continue;
            };
            let pair = pairs.entry(key).or_insert_with(|| Pair {
                elf,
                original,
                paths: Vec::new(),
                origins: Vec::new(),
            });
            pair.paths.push(path.to_owned());
            pair.origins.push(origin);
        }
        pairs
    }

    /// The image's dynamic loaders among the files of `package`: key and path of each.
    pub fn loaders(&self, package: &Package) -> Vec<(String, String)> {
        let is_loader = |path: &&PathBuf| path.ends_with(loader_name(self.target));
        let paths = package.files.iter().filter(is_loader).filter_map(|path| path.to_str());
        let loaders = paths.filter_map(|path| {
            let (_, head, status) = self.original(path).ok()??;
            Some((key_of(&head, status.size(), status.mtime())?, path.to_owned()))
        });
        loaders.collect()
    }

    /// Opens a file of the root and reads its beginning. `None` unless it is linked dynamically.
    fn original(&self, path: &str) -> io::Result<Option<(File, Vec<u8>, Metadata)>> {
        let Some((file, status)) = self.root.file(Path::new(path))? else {
            return Ok(None);
        };
        let mut head = Vec::with_capacity(key::HEAD);
        (&file).take(key::HEAD as u64).read_to_end(&mut head)?;
        Ok(elf::is_dynamic(&head, self.target.elf_machine()).then_some((file, head, status)))
    }

    /// The twin of a file that both builds have. `None` when its answers cannot be made those of the original.
    fn paired(
        &self,
        package: &Package,
        key: String,
        pair: Pair<'_>,
        refused: &mut Vec<Refused>,
    ) -> io::Result<Option<Found>> {
        let Pair {
            elf,
            original,
            paths,
            origins,
        } = pair;
        let Some(origin) = origins.first() else { return Ok(None) };
        let mut found = self.alone(package, origin, elf);
        found.item.verdict = self.verdict(package, &paths, elf);
        let is_library = found.item.library.is_some();
        found.item.is_examined = !is_library && paths.iter().any(|path| self.table.is_examined(path, &package.name));
        let examines = found.item.is_examined || self.examines_library(elf);
        let told = paths.iter().find(|path| truth::concerns(path));
        let functions = self.long_double(package, &paths, elf);
        let is_rebuild = package.version != package.host_version;
        let is_looked_at = examines || told.is_some() || functions.is_some() || is_rebuild;
        if found.item.verdict != Verdict::Refused && is_looked_at {
            let mut twin = fs_err::read(package.host.join(origin))?;
            let original = if examines || told.is_some() || is_rebuild || self.host != Arch::X86_64 {
                whole(&original)
            } else {
                Ok(Vec::new())
            };
            if is_rebuild {
                let why = match &original {
                    Ok(original) if package.is_named_in(&twin, original) => {
                        "it names its version, and the host has a rebuild"
                    }
                    Ok(_) => "",
                    Err(why) => why,
                };
                if !why.is_empty() {
                    refuse(refused, &paths, Ground::Untold, why);
                    return Ok(None);
                }
            }
            let mut changes = match self.change(told, functions, &mut twin, &original) {
                Ok(changes) => changes,
                Err(why) => {
                    refuse(refused, &paths, Ground::Untold, &why);
                    return Ok(None);
                }
            };
            if examines {
                let finding = self.examine(&twin, &original);
                if let Some(why) = finding.as_ref().filter(|_| !is_library) {
                    refuse(refused, &paths, Ground::Finding, why);
                    found.item.verdict = Verdict::Refused;
                }
                found.item.finding = finding.filter(|_| is_library);
                // Programs that the table names use it all the same.
                if found.item.finding.is_some() {
                    match self.change(None, Some(&[]), &mut twin, &original) {
                        Ok(more) => changes += more,
                        Err(why) => {
                            refuse(refused, &paths, Ground::Untold, &why);
                            return Ok(None);
                        }
                    }
                }
            }
            found.content = (changes > 0).then_some(twin);
        }
        // The loader itself has no twin: a caller that runs it by name asks about programs of the target.
        found.item.key = (elf.soname.as_deref() != Some(loader_name(self.host))).then_some(key);
        found.item.paths = paths;
        Ok(Some(found))
    }

    /// A file of the host's package, unchanged.
    fn alone(&self, package: &Package, origin: &str, elf: &Elf) -> Found {
        let library = elf.soname.as_ref().map(|name| Library {
            name: name.clone(),
            is_public: is_in_library_directory(origin, self.host),
        });
        let item = Item {
            package: package.name.clone(),
            paths: Vec::new(),
            origin: origin.to_owned(),
            key: None,
            kind: elf.kind,
            library,
            needed: elf.needed.clone(),
            verdict: Verdict::Fine,
            // Until the target's build is there to be compared with.
            finding: self
                .examines_library(elf)
                .then(|| "nothing to compare it with".to_owned()),
            is_examined: false,
        };
        Found { item, content: None }
    }

    fn verdict(&self, package: &Package, paths: &[String], elf: &Elf) -> Verdict {
        let level_of = |path: &String| self.table.level_of(path, &package.name);
        let is_allowed = match elf {
            Elf {
                kind: Kind::Program, ..
            } => paths
                .iter()
                .all(|path| level_of(path).is_some_and(|level| level <= self.level)),
            // A module belongs to the program that loads it, at every level.
            Elf { soname: None, .. } => paths.iter().all(|path| level_of(path).is_some()),
            _ => true,
        };
        let is_tried = elf.kind == Kind::Program && paths.iter().any(|path| self.table.probes(path).next().is_some());
        match (is_allowed, is_tried) {
            (false, _) => Verdict::Refused,
            (true, true) => Verdict::Untried,
            (true, false) => Verdict::Fine,
        }
    }

    /// The exported functions outside of which a file with an entry must not compute with `long double`. `None` if it
    /// may everywhere.
    fn long_double(&self, package: &Package, paths: &[String], elf: &Elf) -> Option<&[String]> {
        match &elf.soname {
            Some(name) => self.table.long_double_of_library(name),
            None => self.table.long_double(paths.first()?, &package.name),
        }
    }

    /// Rewrites the answers in `twin` to those of `original`, if it is `told` as the file at that path, and keeps it from
    /// computing with `long double`, if its format differs, outside of these `functions`. Returns how many places were
    /// changed.
    fn change(
        &self,
        told: Option<&String>,
        functions: Option<&[String]>,
        twin: &mut Vec<u8>,
        original: &Result<Vec<u8>, String>,
    ) -> Result<usize, String> {
        let untold = |untold: Untold| untold.to_string();
        let bytes = || original.as_ref().map_err(Clone::clone);
        let mut changes = 0;
        if let Some(path) = told {
            changes += truth::tell(path, twin, bytes()?, self.host, self.target).map_err(untold)?;
        }
        if functions.is_some() && self.host == Arch::Aarch64 && sets_modes_on_aarch64(twin) {
            return Err(Finding::Modes.to_string());
        }
        let functions = functions.filter(|_| !has_one_long_double(self.host, self.target));
        // Only the 8087's format has instructions of its own. A twin that has them traps at each; one for another CPU is
        // as its original, so that must have none.
        match (functions, self.host, self.target) {
            (None, ..) => {}
            (Some(functions), Arch::X86_64, _) => {
                if !has_fused_libm()
                    && let Some(finding) = libm(twin)
                {
                    return Err(finding.to_string());
                }
                changes += truth::traps::set(twin, functions).map_err(untold)?;
            }
            (Some(functions), _, Arch::X86_64) => {
                if !truth::traps::computing(bytes()?, functions).map_err(untold)?.is_empty() {
                    return Err(Finding::LongDouble.to_string());
                }
            }
            (Some(_), ..) => return Err("nothing shows whether it computes with long double".to_owned()),
        }
        Ok(changes)
    }

    /// Whether a finding in this file keeps programs emulated that need it.
    fn examines_library(&self, elf: &Elf) -> bool {
        let name = elf.soname.as_deref();
        elf.kind == Kind::Shared && name.is_some_and(|name| self.table.why_library(name).is_none())
    }

    /// What depends on the CPU in a file: the `twin` as it would run, beside the `original`.
    fn examine(&self, twin: &[u8], original: &Result<Vec<u8>, String>) -> Option<String> {
        let original = match original {
            Ok(original) => original,
            Err(why) => return Some(why.clone()),
        };
        let build = |file, arch| Build { file, arch };
        let finding = examine(build(twin, self.host), build(original, self.target));
        finding.map(|finding| finding.to_string())
    }
}

/// Whether libm chooses fused multiplications on this machine, as it is compiled with for other CPUs.
fn has_fused_libm() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return true;
}

/// Adds a file to those that cannot be twins, by the first of its names.
fn refuse(refused: &mut Vec<Refused>, paths: &[String], ground: Ground, why: &str) {
    refused.extend(paths.first().map(|path| Refused::new(path, ground, why)));
}

/// Whether the text of a package's version, `[EPOCH:]VERSION`, is in a file. The note in which rpm and systemd keep it for
/// tools that look at core dumps does not count: no program reads its own.
fn names_version(file: &[u8], version: &str) -> bool {
    const NOTE: &[u8] = b"\"version\":\"";
    let version = version.split_once(':').map_or(version, |(_, version)| version);
    memmem::find_iter(file, version.as_bytes()).any(|at| !file[..at].ends_with(NOTE))
}

/// The content of a file of the root.
fn whole(mut file: &File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(LARGEST_TOLD).read_to_end(&mut bytes));
    match read {
        Ok(size) if (size as u64) < LARGEST_TOLD => Ok(bytes),
        Ok(_) => Err("it is too large to be read".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The key of a file from its first bytes `head`, its size and its modification time in seconds since 1970. `None`
/// when it has no build-id.
pub fn key_of(head: &[u8], size: u64, modified: i64) -> Option<String> {
    let mut key = [0; key::LONGEST_KEY];
    let length = key::write_key(&mut key, key::build_id(head)?, size, modified)?;
    Some(String::from_utf8_lossy(key.get(..length)?).into_owned())
}

/// Checks that the C library `file` is glibc 2.34 or newer. Its loader accepts the options with which twins are
/// started, and `answers.so` finds every function it calls without a further library.
fn is_new_enough(file: &File) -> Result<(), String> {
    match elf::defines(file, "dlsym") {
        Ok(true) => Ok(()),
        Ok(false) => Err("the C library is older than glibc 2.34".to_owned()),
        Err(broken) => Err(format!("the host's C library is broken: {broken}")),
    }
}

/// The regular files below `top`, as relative paths. Names that are not UTF-8 are skipped.
fn files_below(top: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in fs_err::read_dir(top.join(&dir))? {
            let entry = entry?;
            let (path, kind) = (dir.join(entry.file_name()), entry.file_type()?);
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                files.extend(path.into_os_string().into_string());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_texts_and_not_in_the_note_of_a_package() {
        assert!(names_version(b"\0GNU ld (Debian 2.44-3+b1)\0", "1:2.44-3+b1"));
        assert!(!names_version(b"\0GNU ld (Debian 2.44-3)\0", "1:2.44-3+b1"));
        let note = br#"{"type":"rpm","name":"grep","version":"3.11-2.14","architecture":"aarch64"}"#;
        assert!(!names_version(note, "0:3.11-2.14"));
        assert!(names_version(&[note, &b"3.11-2.14"[..]].concat(), "0:3.11-2.14"));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_double_has_no_twin_on_any_host_where_its_format_differs() {
        let dir = tempfile::tempdir().unwrap();
        let gatherer = |host, target| Gatherer {
            root: Root::open(dir.path()).unwrap(),
            host,
            target,
            table: Table::built_in().unwrap(),
            level: TwinLevel::Full,
        };
        // seq counts with long double; true does not.
        let (seq, plain) = (
            fs_err::read("/usr/bin/seq").unwrap(),
            fs_err::read("/usr/bin/true").unwrap(),
        );
        let change = |host, target, file: &[u8]| {
            gatherer(host, target).change(None, Some(&[]), &mut file.to_owned(), &Ok(file.to_owned()))
        };
        assert!(change(Arch::X86_64, Arch::Aarch64, &seq).unwrap() > 0);
        let why = change(Arch::Aarch64, Arch::X86_64, &seq).unwrap_err();
        assert_eq!(why, "it computes with long double");
        assert_eq!(change(Arch::Aarch64, Arch::X86_64, &plain), Ok(0));
        // Neither has instructions to look for.
        assert!(change(Arch::Aarch64, Arch::Ppc64le, &plain).is_err());
        assert_eq!(
            gatherer(Arch::Aarch64, Arch::Riscv64).change(None, None, &mut Vec::new(), &Ok(Vec::new())),
            Ok(0)
        );
    }
}

//! An account of how each program of an emulated root was run, and why; and twins that failed. Pure: no I/O.

use std::{collections::HashMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{Code, JobId, Moment, TwinPair, arch::Arch};

/// How the programs of a root, and the modules of its interpreters, were run, and why. Packages and reasons, which many
/// programs share, are listed once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The architecture of twins.
    pub host: Arch,
    /// The packages.
    pub packages: Vec<Package>,
    /// The reasons.
    pub reasons: Vec<Reason>,
    /// The programs and modules, by path.
    pub programs: Vec<Program>,
    /// The number of further ones, for which there was no room.
    pub omitted: u64,
    /// Why no more twins were made from some time on, if that was so.
    pub ended: Option<String>,
    /// The commands at which twins gave up.
    #[serde(default)]
    pub given_up: GivenUp,
}

/// Commands at which twins gave up. A later root of the same recipe has them start under the emulator, so that it need not be
/// made twice. They make a build slower at most, so they may be anybody's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// Identifies the table of twins with which they gave up. With another one they may not.
    pub table: u64,
    /// The commands, as hashes of a program and its arguments up to the script.
    pub commands: Vec<u64>,
}

impl GivenUp {
    /// The most commands.
    pub const MOST: usize = 512;

    /// Those of a list, without duplicates and as many as there may be.
    pub fn of(table: u64, mut commands: Vec<u64>) -> Self {
        commands.sort_unstable();
        commands.dedup();
        commands.truncate(Self::MOST);
        Self { table, commands }
    }
}

/// A package of the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its full version.
    pub version: String,
}

/// Why a program was run as it was.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reason {
    /// Its kind.
    pub ground: Ground,
    /// What was found, or the reason of the rule; empty if the kind says it all.
    pub detail: String,
}

/// A program or module: its path, and the indexes of its package and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program(pub String, pub usize, pub usize);

/// The kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ground {
    /// A twin: both builds were examined, and nothing was found.
    Examined,
    /// A twin: an entry of the table names it.
    Entry,
    /// Emulated: the table says so.
    Never,
    /// Emulated: it would be a twin at a higher level.
    Level,
    /// Emulated: something in its builds depends on the CPU.
    Finding,
    /// Emulated: something in a library that it needs depends on the CPU.
    Library,
    /// Emulated: it needs a library that the host has not.
    LibraryMissing,
    /// Emulated: its package has no twin.
    PackageMissing,
    /// Emulated: the host's build of its package does not have it.
    FileMissing,
    /// Emulated: it is linked statically.
    Static,
    /// Emulated: it has no build id.
    NoBuildId,
    /// Emulated: the host's file cannot be used.
    Unusable,
    /// Emulated: what it says of the architecture cannot be made that of the target.
    Untold,
    /// Emulated: it answers otherwise than under the emulator.
    Answers,
    /// Emulated: its answers were not compared in time.
    Untried,
    /// Emulated: it failed as a twin in an earlier job.
    Failed,
}

impl Ground {
    /// Whether it is the ground for a twin.
    pub const fn is_twin(self) -> bool {
        matches!(self, Self::Examined | Self::Entry)
    }

    /// The ground in words, which the detail of a reason continues.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Examined => "twin by rule: nothing that depends on the CPU was found",
            Self::Entry => "twin by entry",
            Self::Never => "the table says emulated",
            Self::Level => "a twin only from a higher level on",
            Self::Finding => "found in it",
            Self::Library => "found in a library that it needs",
            Self::LibraryMissing => "it needs a library that cannot run here",
            Self::PackageMissing => "its package has no twin",
            Self::FileMissing => "the host's build of its package does not have it",
            Self::Static => "it is linked statically",
            Self::NoBuildId => "it has no build id",
            Self::Unusable => "the host's file cannot be used",
            Self::Untold => "what it says of the architecture cannot be changed",
            Self::Answers => "it answers otherwise than under the emulator",
            Self::Untried => "its answers were not compared in time",
            Self::Failed => "its twin failed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.ground.words())?;
        if self.detail.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.detail)
    }
}

/// Counts of an account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Counts {
    /// Twins in which nothing that depends on the CPU was found.
    pub by_rule: usize,
    /// Twins that an entry of the table names.
    pub by_entry: usize,
    /// Emulated programs and modules.
    pub emulated: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            by_rule,
            by_entry,
            emulated,
        } = self;
        write!(f, "{by_rule} twins by rule, {by_entry} by entry, {emulated} emulated")
    }
}

impl Account {
    /// The most programs in one account.
    pub const MOST_PROGRAMS: usize = 20_000;

    /// The most text in one account, in bytes.
    pub const MOST_TEXT: usize = 4 << 20;

    /// An account of these programs: path, package and reason of each.
    pub fn of(host: Arch, mut programs: Vec<(String, Package, Reason)>, ended: Option<String>) -> Self {
        programs.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        programs.dedup_by(|(one, ..), (other, ..)| one == other);
        let (mut packages, mut reasons) = (Interned::default(), Interned::default());
        let (mut kept, mut text, all) = (Vec::new(), 0, programs.len());
        for (path, package, reason) in programs {
            text += path.len();
            text += packages.cost(&package, package.name.len() + package.version.len());
            text += reasons.cost(&reason, reason.detail.len());
            if kept.len() == Self::MOST_PROGRAMS || text > Self::MOST_TEXT {
                break;
            }
            kept.push(Program(path, packages.index(package), reasons.index(reason)));
        }
        Self {
            host,
            packages: packages.all,
            reasons: reasons.all,
            omitted: (all - kept.len()) as u64,
            programs: kept,
            ended,
            given_up: GivenUp::default(),
        }
    }

    /// An account of the programs of this root, and of those of a later root of the same job, whose programs count where both have a
    /// path.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        let rows = |account: &Self| -> Vec<(String, Package, Reason)> {
            let owned =
                |(path, package, reason): (&str, &Package, &Reason)| (path.to_owned(), package.clone(), reason.clone());
            account.rows().map(owned).collect()
        };
        let mut programs = rows(&later);
        programs.extend(rows(&self));
        let (omitted, table) = (self.omitted + later.omitted, later.given_up.table);
        let mut both = Self::of(later.host, programs, later.ended.or(self.ended));
        both.omitted += omitted;
        both.given_up = GivenUp::of(table, [self.given_up.commands, later.given_up.commands].concat());
        both
    }

    /// Whether it is as large as an account may be, and whole: it may be anybody's.
    pub fn is_sound(&self) -> bool {
        let names = self
            .packages
            .iter()
            .map(|package| package.name.len() + package.version.len());
        let details = self.reasons.iter().map(|reason| reason.detail.len());
        let paths = self.programs.iter().map(|Program(path, ..)| path.len());
        let ended = self.ended.as_ref().map_or(0, String::len);
        let text = names.chain(details).chain(paths).fold(ended, usize::saturating_add);
        let lists = [self.packages.len(), self.reasons.len(), self.programs.len()];
        let is_whole =
            |Program(_, package, reason): &Program| *package < self.packages.len() && *reason < self.reasons.len();
        text <= Self::MOST_TEXT
            && self.given_up.commands.len() <= GivenUp::MOST
            && lists.iter().all(|length| *length <= Self::MOST_PROGRAMS)
            && self.programs.iter().all(is_whole)
    }

    /// The programs, each with its package and its reason.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &Package, &Reason)> {
        self.programs.iter().filter_map(|Program(path, package, reason)| {
            Some((path.as_str(), self.packages.get(*package)?, self.reasons.get(*reason)?))
        })
    }

    /// Counts the programs by how they were run.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (_, _, reason) in self.rows() {
            let count = match reason.ground {
                Ground::Examined => &mut counts.by_rule,
                Ground::Entry => &mut counts.by_entry,
                _ => &mut counts.emulated,
            };
            *count += 1;
        }
        counts
    }

    /// The pair that ran as the twin of the program at `path`, if there was one.
    pub fn pair_of(&self, path: &str, target: Arch) -> Option<TwinPair> {
        let (_, package, _) = self
            .rows()
            .find(|(known, _, reason)| *known == path && reason.ground.is_twin())?;
        Some(TwinPair {
            package: package.name.clone(),
            version: package.version.clone(),
            path: path.to_owned(),
            target,
            host: self.host,
        })
    }
}

/// A list without duplicates.
struct Interned<T> {
    all: Vec<T>,
    places: HashMap<T, usize>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            places: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Interned<T> {
    /// The size of an item, if it has to be added.
    fn cost(&self, item: &T, size: usize) -> usize {
        if self.places.contains_key(item) { 0 } else { size }
    }

    /// The place of an item, which is added if it is new.
    fn index(&mut self, item: T) -> usize {
        *self.places.entry(item).or_insert_with_key(|item| {
            self.all.push(item.clone());
            self.all.len() - 1
        })
    }
}

/// A pair whose twin died in a job that then succeeded without twins. It is not used again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedTwin {
    /// The pair.
    pub pair: TwinPair,
    /// The job.
    pub job: JobId,
    /// When the job succeeded.
    pub since: Moment,
    /// The failure of its first try.
    pub code: Code,
}

impl FailedTwin {
    /// The most that are kept; the oldest ones are forgotten.
    pub const MOST: u32 = 1000;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &str, package: &str, ground: Ground) -> (String, Package, Reason) {
        let package = Package {
            name: package.to_owned(),
            version: "1".to_owned(),
        };
        let detail = "why".to_owned();
        (path.to_owned(), package, Reason { ground, detail })
    }

    #[test]
    fn what_programs_share_is_listed_once() {
        let account = Account::of(
            Arch::X86_64,
            vec![
                row("/b", "p", Ground::Entry),
                row("/a", "p", Ground::Entry),
                row("/c", "q", Ground::Never),
                row("/c", "q", Ground::Never),
            ],
            None,
        );
        assert_eq!((account.packages.len(), account.reasons.len()), (2, 2));
        let paths: Vec<_> = account.rows().map(|(path, ..)| path).collect();
        assert_eq!(paths, ["/a", "/b", "/c"]);
        let counts = account.counts();
        assert_eq!((counts.by_entry, counts.emulated, counts.by_rule), (2, 1, 0));
        assert_eq!(account.pair_of("/a", Arch::Aarch64).unwrap().package, "p");
        assert_eq!(account.pair_of("/c", Arch::Aarch64), None, "it is emulated");
    }

    #[test]
    fn an_account_has_a_largest_size() {
        let many = (0..=Account::MOST_PROGRAMS).map(|number| row(&format!("/{number:06}"), "p", Ground::Entry));
        let account = Account::of(Arch::X86_64, many.collect(), None);
        assert_eq!((account.programs.len(), account.omitted), (Account::MOST_PROGRAMS, 1));
        assert!(account.is_sound());
        let long = (0..10).map(|number| row(&format!("/{number}{}", "x".repeat(1 << 20)), "p", Ground::Entry));
        let account = Account::of(Arch::X86_64, long.collect(), None);
        assert_eq!((account.programs.len(), account.omitted), (3, 7));
        assert!(account.is_sound());
    }

    #[test]
    fn an_account_with_holes_is_refused() {
        let mut account = Account::of(Arch::X86_64, vec![row("/a", "p", Ground::Entry)], None);
        assert!(account.is_sound());
        account.programs.push(Program("/b".to_owned(), 0, 1));
        assert!(!account.is_sound());
        account.programs.pop();
        account.reasons[0].detail = "x".repeat(Account::MOST_TEXT + 1);
        assert!(!account.is_sound());
    }
}

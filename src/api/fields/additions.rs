//! The rules for what a job adds to a recipe's description. Pure: no I/O.

use kiln_records::additions::{PackageName, RepositoryLine};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};

use super::{Field, Parsed, error, string, text};

/// A repository, as kiwi's `--add-repo` has it.
#[derive(Debug)]
pub(in crate::api) enum AddedRepo {}

/// Changes of a repository, as kiwi's `--set-repo` has them.
#[derive(Debug)]
pub(in crate::api) enum SetRepo {}

/// The name of a package.
#[derive(Debug)]
pub(in crate::api) enum Package {}

/// What begins both lines, and what follows in both. A line for `--set-repo` may have all of it empty.
const SOURCE: &str = r"((https?|ftp|obs|obsrepositories|dir|file|this):|/)[!-+\--~]*";
const TYPE: &str = "(apk|apt-deb|apt-rpm|deb-dir|mirrors|rpm-md)";
const REST: &str = r"(,[A-Za-z0-9_.-]*(,(-?[0-9]{1,9})?(,(true|false)?(,(true|false)?(,(\{((https?|file):[!-+\--:<-z]*;?)*\})?(,[ -+\--~]*(,[ -+\--~]*(,(true|false)?(,(baseurl|metalink|mirrorlist)?)?)?)?)?)?)?)?)?)?)?";

/// Without the most letters: made-up clients find no text that is that long for patterns like these. With the fewest: without, they
/// take the empty text for one that fits.
fn line(begin: &str, fewest: usize) -> RefOr<Schema> {
    let pattern = format!("^{begin}{REST}$");
    string().min_length(Some(fewest)).pattern(Some(pattern)).into()
}

impl Field for AddedRepo {
    type Read = RepositoryLine;

    fn read(value: &Value) -> Parsed<RepositoryLine> {
        RepositoryLine::added(&text(value)?).map_err(|wrong| error(wrong.to_string()))
    }

    fn schema() -> RefOr<Schema> {
        line(&format!("{SOURCE},{TYPE}"), "/,apk".len())
    }
}

impl Field for SetRepo {
    type Read = RepositoryLine;

    fn read(value: &Value) -> Parsed<RepositoryLine> {
        RepositoryLine::set(&text(value)?).map_err(|wrong| error(wrong.to_string()))
    }

    fn schema() -> RefOr<Schema> {
        line(&format!("({SOURCE})?(,{TYPE}?)?"), 0)
    }
}

impl Field for Package {
    type Read = PackageName;

    fn read(value: &Value) -> Parsed<PackageName> {
        text(value)?
            .parse()
            .map_err(|wrong: kiln_records::additions::Wrong| error(wrong.to_string()))
    }

    fn schema() -> RefOr<Schema> {
        string().min_length(Some(1)).pattern(Some("^[!-,.-~][!-~]*$")).into()
    }
}

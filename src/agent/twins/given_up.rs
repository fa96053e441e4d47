//! The commands at which twins gave up: from earlier jobs of the recipe, the table, and the roots of this job. Reads and
//! writes the job's list of them.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
};

use kiln_records::GivenUp;

use super::table::{Table, VERSION};

/// The most of a list that is read, in bytes, since programs of the root write it.
const LONGEST: u64 = (GivenUp::MOST * COMMAND) as u64;

/// The size of a command in a list, in bytes.
const COMMAND: usize = size_of::<u64>();

/// Begins the list of a job with those of an earlier one, unless there is a list already.
///
/// # Errors
///
/// The file cannot be written.
pub fn begin(list: &Path, earlier: &GivenUp) -> io::Result<()> {
    if earlier.table != VERSION || earlier.commands.is_empty() || list.exists() {
        return Ok(());
    }
    fs_err::write(list, bytes(&earlier.commands))
}

/// The commands of a job so far, for its account. A list that cannot be read costs a later job time at most.
pub(super) fn all(list: &Path) -> GivenUp {
    let read = read(list).unwrap_or_default();
    GivenUp::of(VERSION, commands(&read))
}

/// The list for programs of a root: those of the job so far, and those of the table.
///
/// # Errors
///
/// The job's list cannot be read.
pub(super) fn for_programs(list: &Path, table: &Table) -> io::Result<Vec<u8>> {
    let mut all = bytes(&table.emulated_commands());
    if list.exists() {
        all.extend(read(list)?);
    }
    Ok(all)
}

/// Adds the commands that programs of a root have put in `noted` to those of the job.
///
/// # Errors
///
/// A file cannot be read or written.
pub(super) fn add_noted(noted: &Path, list: &Path) -> io::Result<()> {
    append(&read(noted)?, list)
}

/// Adds commands to those of the job.
///
/// # Errors
///
/// The file cannot be written.
pub(super) fn add(commands: &[u64], list: &Path) -> io::Result<()> {
    append(&bytes(commands), list)
}

fn append(noted: &[u8], list: &Path) -> io::Result<()> {
    if noted.is_empty() {
        return Ok(());
    }
    fs_err::OpenOptions::new()
        .append(true)
        .create(true)
        .open(list)?
        .write_all(noted)
}

fn read(list: &Path) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    fs_err::File::open(list)?.take(LONGEST).read_to_end(&mut read)?;
    Ok(read)
}

fn bytes(commands: &[u64]) -> Vec<u8> {
    commands.iter().flat_map(|command| command.to_ne_bytes()).collect()
}

fn commands(list: &[u8]) -> Vec<u64> {
    let (whole, _) = list.as_chunks::<COMMAND>();
    whole.iter().copied().map(u64::from_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_earlier_jobs_begin_a_list_that_roots_add_to() {
        let dir = tempfile::tempdir().unwrap();
        let (list, noted) = (dir.path().join("list"), dir.path().join("noted"));
        assert_eq!(all(&list), GivenUp::of(VERSION, Vec::new()));
        begin(&list, &GivenUp::of(VERSION + 1, vec![9])).unwrap();
        assert!(!list.exists(), "of another table");
        begin(&list, &GivenUp::of(VERSION, vec![2, 1])).unwrap();
        // A program of the root may have written anything.
        fs_err::write(&noted, [bytes(&[3, 1]), vec![7; 3]].concat()).unwrap();
        add_noted(&noted, &list).unwrap();
        begin(&list, &GivenUp::of(VERSION, vec![5])).unwrap();
        assert_eq!(all(&list), GivenUp::of(VERSION, vec![1, 2, 3]));
        let table = Table::built_in().unwrap();
        let shown = for_programs(&list, &table).unwrap();
        assert!(shown.ends_with(&[7; 3]) && shown.len() >= 4 * COMMAND + 3);
        fs_err::write(&noted, vec![1; 1 << 20]).unwrap();
        add_noted(&noted, &list).unwrap();
        assert!(all(&list).commands.len() <= GivenUp::MOST);
    }
}

//! Repackages a root like the agent, for benches/customize.

use std::{env, error::Error, path::Path};

use fs_err as fs;
use kiln_agent::squashfs::{Options, Outcome, Unpacked, rebase};
use kiln_records::protocol::{Compressor, SquashfsOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["record", base, root, notes] => {
            let unpacked = Unpacked::record(Path::new(base), Path::new(root))?;
            fs::write(notes, serde_json::to_vec(&unpacked)?)?;
        }
        ["rebase", base, root, notes, out, cpus] => {
            let unpacked = serde_json::from_slice(&fs::read(notes)?)?;
            let options = Options {
                squashfs: SquashfsOptions {
                    compressor: Compressor::Zstd,
                    level: None,
                },
                cpus: cpus.parse()?,
                devices: Vec::new(),
                made: 0,
            };
            match rebase(Path::new(base), &unpacked, Path::new(root), Path::new(out), &options)? {
                Outcome::Rebased(rebased) => println!("{}", serde_json::to_string(&rebased)?),
                Outcome::NotPossible(why) => return Err(why.into()),
            }
        }
        _ => return Err("usage: record BASE ROOT NOTES | rebase BASE ROOT NOTES OUT CPUS".into()),
    }
    Ok(())
}

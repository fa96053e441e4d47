//! Finds where a program computes with `long double`, whose format differs, and lets a twin trap there. Works on bytes in
//! memory: no I/O.
//!
//! On x86_64 the format has instructions of its own, those of the 8087. Each of them is overwritten by `ud2`, on which
//! the CPU raises `SIGILL`; `answers.so` then starts the program over under the emulator, or ends it. So a twin that is
//! used in spite of such code cannot give a result that depends on it.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::{Image, Untold, image::exported};
use crate::twins::{long_double::Computing, modes};

/// The instruction that is defined to be undefined.
const UD2: [u8; 2] = [0x0f, 0x0b];

/// Overwrites the instructions of `twin`, an x86_64 file, that compute with `long double` outside of the exported
/// functions named in `except`. Returns their number.
///
/// # Errors
///
/// The file cannot be read, or sets which results trap. It is then unchanged.
pub fn set(twin: &mut [u8], except: &[String]) -> Result<usize, Untold> {
    let traps = computing(twin, except)?;
    for trap in &traps {
        let place = twin[trap.clone()].first_chunk_mut();
        *place.ok_or_else(|| Untold::new("an instruction for long double is too short"))? = UD2;
    }
    Ok(traps.len())
}

/// The instructions of `file`, which is for x86_64, that compute with `long double` outside of the exported functions named
/// in `except`.
///
/// # Errors
///
/// The file cannot be read, or sets modes of floating point.
pub fn computing(file: &[u8], except: &[String]) -> Result<Vec<Range<usize>>, Untold> {
    let image = Image::read(file)?;
    let except = exported(file, except)?;
    let mut found = Vec::new();
    for part in &image.code {
        let mut decoder = Decoder::with_ip(64, &file[part.bytes.clone()], part.address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut computing = Computing::default();
        while decoder.can_decode() {
            let at = decoder.position();
            decoder.decode_out(&mut instruction);
            if modes::set_on_x86_64(instruction.code()) {
                return Err(Untold::new(modes::FOUND));
            }
            computing.add(&instruction, at..at + instruction.len());
        }
        let is_excepted = |at: u64| except.iter().any(|function| function.contains(&at));
        for place in computing.places() {
            if !is_excepted(part.address + place.start as u64) {
                found.push(part.bytes.start + place.start..part.bytes.start + place.end);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_for_long_double_is_found_again_as_a_trap() {
        let mut file = fs_err::read(std::env::current_exe().unwrap()).unwrap();
        let before = file.clone();
        let found = computing(&file, &[]).unwrap().len();
        let count = set(&mut file, &[]).unwrap();
        let changed = before.iter().zip(&file).filter(|(old, new)| old != new).count();
        assert!(count == found && changed <= 2 * count);
        // A trap can look like the beginning of a longer instruction to those that follow, but not like itself.
        assert_eq!(set(&mut file, &[]).unwrap(), 0);
    }
}

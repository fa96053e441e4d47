//! Turning everything that points to a string to another place.

use std::ops::Range;

use object::{LittleEndian, elf};

use super::{Untold, image::Image, instructions};

/// A string that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// The addresses that move: from where the string begins, at the earliest, up to the first byte that is another
    /// one. Linkers let strings with equal ends share them, and what points behind the difference can stay.
    pub from: Range<u64>,
    /// Where the string ends: the address of its NUL.
    pub end: u64,
    /// Where `from` begins now.
    pub to: u64,
    /// By how much it became longer.
    pub growth: usize,
}

impl Move {
    /// Where `address` is now. None when it does not move.
    pub fn moved(&self, address: u64) -> Option<u64> {
        self.from
            .contains(&address)
            .then(|| self.to + (address - self.from.start))
    }
}

/// Turns what points to the strings of `moves` in `file`.
///
/// # Errors
///
/// When nothing points to one of them, or an instruction reads from one in place.
pub(super) fn turn(file: &mut [u8], image: &Image, moves: &[Move]) -> Result<(), Untold> {
    let mut turned = vec![0_usize; moves.len()];
    let place_of = |address: u64| {
        let mut known = moves.iter().enumerate();
        known.find_map(|(index, one)| Some((index, one.moved(address)?)))
    };
    for relocations in &image.relocations {
        let table = object::pod::slice_from_all_bytes_mut::<elf::Rela64<LittleEndian>>(&mut file[relocations.clone()])
            .map_err(|()| Untold::new("the relocations are no table"))?;
        for entry in table {
            if entry.r_type(LittleEndian, false) == elf::R_X86_64_RELATIVE
                && let Ok(address) = u64::try_from(entry.r_addend.get(LittleEndian))
                && let Some((index, to)) = place_of(address)
            {
                entry.r_addend.set(LittleEndian, to.cast_signed());
                turned[index] += 1;
            }
        }
    }
    // Words hold addresses where relocations are packed (DT_RELR), and, constants too, where the file has fixed ones.
    let constants = image.constants.iter().filter(|_| image.fixed);
    for part in image.data.iter().chain(constants) {
        for word in file[part.bytes.clone()].as_chunks_mut::<8>().0 {
            if let Some((index, to)) = place_of(u64::from_le_bytes(*word)) {
                *word = to.to_le_bytes();
                turned[index] += 1;
            }
        }
    }
    instructions::turn(file, image, moves, &mut turned)?;
    if turned.contains(&0) {
        return Err(Untold::new("nothing points to a string that would have to move"));
    }
    Ok(())
}

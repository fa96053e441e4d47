//! Redirects every reference to a string that has moved. Works on bytes in memory: no I/O.

use object::{LittleEndian, elf};

use super::{
    Untold,
    image::Image,
    instructions,
    moves::{Move, Uses},
};

/// Redirects the references in `file` to the strings of `moves`.
///
/// # Errors
///
/// Nothing refers to one of them, or instructions read a text that has no room for the new one.
pub(super) fn turn(file: &mut [u8], image: &Image, moves: &[Move]) -> Result<(), Untold> {
    let mut uses = vec![Uses::default(); moves.len()];
    let place_of = |address: u64| {
        let mut known = moves.iter().enumerate();
        known.find_map(|(index, one)| Some((index, one.moved(address)?)))
    };
    for relocations in &image.relocations {
        let table = object::pod::slice_from_all_bytes_mut::<elf::Rela64<LittleEndian>>(&mut file[relocations.clone()])
            .map_err(|()| Untold::new("the relocations are not a table"))?;
        for entry in table {
            if entry.r_type(LittleEndian, false) == elf::R_X86_64_RELATIVE
                && let Ok(address) = u64::try_from(entry.r_addend.get(LittleEndian))
                && let Some((index, to)) = place_of(address)
            {
                entry.r_addend.set(LittleEndian, to.cast_signed());
                uses[index].turned += 1;
            }
        }
    }
    // Words hold addresses where relocations are packed (DT_RELR), and, in constants too, where the file has fixed
    // addresses.
    let constants = image.constants.iter().filter(|_| image.fixed);
    for part in image.data.iter().chain(constants) {
        for word in file[part.bytes.clone()].as_chunks_mut::<8>().0 {
            if let Some((index, to)) = place_of(u64::from_le_bytes(*word)) {
                *word = to.to_le_bytes();
                uses[index].turned += 1;
            }
        }
    }
    instructions::turn(file, image, moves, &mut uses);
    for (one, uses) in moves.iter().zip(uses) {
        match uses {
            Uses {
                turned: 1..,
                read_until: None,
            } => {}
            Uses {
                turned: 0,
                read_until: Some(until),
            } => write_in_place(file, one, until)?,
            Uses {
                turned: 0,
                read_until: None,
            } => {
                return Err(Untold::new("nothing points to a string that would have to move"));
            }
            Uses { .. } => return Err(Untold::new("a string is read in place and pointed to")),
        }
    }
    Ok(())
}

/// Writes a text over the old one when instructions copy it. `until` is the address up to which they read: an array of
/// characters is longer than its text, or is padded to the size of a register.
fn write_in_place(file: &mut [u8], one: &Move, until: u64) -> Result<(), Untold> {
    let room = file.get_mut(one.at..one.at + one.new.len() + 1);
    let Some((room, old_length)) = room.zip(usize::try_from(one.end - one.from.start).ok()) else {
        return Err(Untold::new("a text at the end of the file has no room"));
    };
    if one.end + one.growth() >= until || room[old_length..].iter().any(|byte| *byte != 0) {
        return Err(Untold::new(
            "a text that is read piece by piece has no room for a longer one",
        ));
    }
    room[..one.new.len()].copy_from_slice(&one.new);
    Ok(())
}

//! x86_64 code: where strings are pointed to, how long the compiler knew them to be, and names that became operands.

use std::collections::VecDeque;

use iced_x86::{Code, ConstantOffsets, Decoder, DecoderOptions, Instruction, OpKind};

use super::{
    Untold,
    image::{Image, Part},
    references::Move,
};
use crate::arch::Arch;

/// Between the instruction that takes a string's address and the one that takes its length lie at most this many:
/// both are arguments of the same call.
const WINDOW: usize = 6;

/// An instruction and where it is.
struct Decoded {
    instruction: Instruction,
    offsets: ConstantOffsets,
    /// Its offset in the file.
    at: usize,
}

impl Decoded {
    /// The length that this instruction puts into a register, and where the file has it.
    fn length(&self) -> Option<(usize, usize)> {
        let length =
            (self.instruction.code() == Code::Mov_r32_imm32).then(|| self.instruction.immediate32() as usize)?;
        Some((length, self.at + self.offsets.immediate_offset()))
    }
}

/// Calls `each` with all instructions of `part` in turn.
fn decode(file: &[u8], part: &Part, mut each: impl FnMut(Decoded) -> Result<(), Untold>) -> Result<(), Untold> {
    let code = &file[part.bytes.clone()];
    let mut decoder = Decoder::with_ip(64, code, part.address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let at = part.bytes.start + decoder.position();
        decoder.decode_out(&mut instruction);
        let offsets = decoder.get_constant_offsets(&instruction);
        each(Decoded {
            instruction,
            offsets,
            at,
        })?;
    }
    Ok(())
}

/// Turns the instructions that point to the strings of `moves`, and adds to `turned` how many there were of each.
///
/// # Errors
///
/// When an instruction reads the text itself: the compiler then copies it piece by piece.
pub(super) fn turn(file: &mut [u8], image: &Image, moves: &[Move], turned: &mut [usize]) -> Result<(), Untold> {
    let mut edits: Vec<(usize, [u8; 4])> = Vec::new();
    for part in &image.code {
        let mut recent: VecDeque<Decoded> = VecDeque::new();
        // Strings whose address was just taken: how many instructions ago, their length, and by how much it grows.
        let mut taken: Vec<(usize, usize, usize)> = Vec::new();
        decode(file, part, |decoded| {
            for (age, length, growth) in &mut taken {
                *age += 1;
                if let Some((found, at)) = decoded.length()
                    && found == *length
                {
                    edits.push((at, new_length(*length, *growth)));
                }
            }
            taken.retain(|(age, ..)| *age < WINDOW);
            if let Some((index, address, at)) = pointer(&decoded, image.fixed, moves)? {
                let one = &moves[index];
                let to = one.moved(address).unwrap_or(address);
                let value = if decoded.instruction.is_ip_rel_memory_operand() {
                    to.wrapping_sub(decoded.instruction.next_ip())
                } else {
                    to
                };
                edits.push((at, low_half(value)));
                turned[index] += 1;
                let length = usize::try_from(one.end - address).unwrap_or(usize::MAX);
                for (found, at) in recent.iter().filter_map(Decoded::length) {
                    if found == length {
                        edits.push((at, new_length(length, one.growth)));
                    }
                }
                taken.push((0, length, one.growth));
            }
            recent.push_back(decoded);
            if recent.len() > WINDOW {
                recent.pop_front();
            }
            Ok(())
        })?;
    }
    for (at, bytes) in edits {
        file[at..at + 4].copy_from_slice(&bytes);
    }
    Ok(())
}

/// Which of `moves` the instruction points to, the address, and where the file has it.
fn pointer(decoded: &Decoded, fixed: bool, moves: &[Move]) -> Result<Option<(usize, u64, usize)>, Untold> {
    let instruction = &decoded.instruction;
    let place = |address: u64| moves.iter().position(|one| one.from.contains(&address));
    if instruction.is_ip_rel_memory_operand() {
        let address = instruction.ip_rel_memory_address();
        if instruction.code() == Code::Lea_r64_m {
            let at = decoded.at + decoded.offsets.displacement_offset();
            return Ok(place(address).map(|index| (index, address, at)));
        }
        if moves.iter().any(|one| (one.from.end - 1..one.end).contains(&address)) {
            return Err(Untold::new("an instruction reads a name piece by piece"));
        }
    } else if fixed && (0..instruction.op_count()).any(|operand| is_address_sized(instruction.op_kind(operand))) {
        let address = u64::from(instruction.immediate32());
        let at = decoded.at + decoded.offsets.immediate_offset();
        return Ok(place(address).map(|index| (index, address, at)));
    }
    Ok(None)
}

fn is_address_sized(kind: OpKind) -> bool {
    matches!(kind, OpKind::Immediate32 | OpKind::Immediate32to64)
}

fn new_length(length: usize, growth: usize) -> [u8; 4] {
    low_half((length + growth) as u64)
}

/// The low 32 bits, as they stand in a file.
fn low_half(value: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = value.to_le_bytes();
    [a, b, c, d]
}

/// Changes Debian's name of the host where it is an operand: compilers write a text as short as `amd64` in two moves.
///
/// Returns how many there were.
///
/// # Errors
///
/// When the code is not x86_64's, the target's name has another length, or the name is nowhere.
pub(super) fn change_name(file: &mut [u8], image: &Image, host: Arch, target: Arch) -> Result<usize, Untold> {
    let (old, new) = (host.debian().as_bytes(), target.debian().as_bytes());
    if host != Arch::X86_64 || old.len() != new.len() || old[4..] != new[4..] {
        return Err(Untold::new(
            "the name of the architecture is part of the code and cannot be replaced there",
        ));
    }
    let mut places = Vec::new();
    for part in &image.code {
        decode(file, part, |decoded| {
            let at = decoded.at + decoded.offsets.immediate_offset();
            if decoded.offsets.has_immediate()
                && decoded.offsets.immediate_size() >= 4
                && file.get(at..at + 4) == Some(&old[..4])
            {
                places.push(at);
            }
            Ok(())
        })?;
    }
    if places.is_empty() {
        return Err(Untold::new("the name of the architecture is not where it is expected"));
    }
    for at in &places {
        file[*at..at + 4].copy_from_slice(&new[..4]);
    }
    Ok(places.len())
}

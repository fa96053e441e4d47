//! Rewrites x86_64 code: references to strings, the lengths that the compiler knew, and names used as operands. Works
//! on bytes in memory: no I/O.

use std::collections::VecDeque;

use iced_x86::{Code, ConstantOffsets, Decoder, DecoderOptions, Instruction, OpKind};
use kiln_records::arch::Arch;

use super::{
    Untold,
    image::{Image, Part},
    moves::{Move, Uses},
};

/// The most instructions between the one that loads a string's address and the one that loads its length: both are
/// arguments of the same call.
const WINDOW: usize = 6;

/// An instruction and its place.
pub(super) struct Decoded {
    pub instruction: Instruction,
    pub offsets: ConstantOffsets,
    /// Its offset in the file.
    pub at: usize,
}

impl Decoded {
    /// The offset of `length` in the file, if this instruction loads it into a register.
    fn length_at(&self, length: u64) -> Option<usize> {
        let is_length =
            self.instruction.code() == Code::Mov_r32_imm32 && u64::from(self.instruction.immediate32()) == length;
        is_length.then(|| self.at + self.offsets.immediate_offset())
    }
}

/// Calls `each` with every instruction of `part` in order.
pub(super) fn decode(file: &[u8], part: &Part, mut each: impl FnMut(Decoded)) {
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
        });
    }
}

/// How an instruction uses one of the strings.
enum Use {
    /// It loads the address, which the file has at `at`.
    Pointer { index: usize, address: u64, at: usize },
    /// It reads the text, up to an address.
    Read { index: usize, until: u64 },
}

/// Redirects the instructions that refer to the strings of `moves`, adjusts the lengths beside them, and adds to
/// `uses`.
pub(super) fn turn(file: &mut [u8], image: &Image, moves: &[Move], uses: &mut [Uses]) {
    let mut edits: Vec<(usize, [u8; 4])> = Vec::new();
    for part in &image.code {
        let mut recent: VecDeque<Decoded> = VecDeque::new();
        // Strings whose address was loaded recently: how many instructions ago, the length, and the new length.
        let mut taken: Vec<(usize, u64, u64)> = Vec::new();
        decode(file, part, |decoded| {
            for (age, length, new) in &mut taken {
                *age += 1;
                edits.extend(decoded.length_at(*length).map(|at| (at, low_half(*new))));
            }
            taken.retain(|(age, ..)| *age < WINDOW);
            match use_of(&decoded, image.fixed, moves) {
                Some(Use::Pointer { index, address, at }) => {
                    let one = &moves[index];
                    let to = one.moved(address).unwrap_or(address);
                    let is_relative = decoded.instruction.is_ip_rel_memory_operand();
                    let from = if is_relative { decoded.instruction.next_ip() } else { 0 };
                    edits.push((at, low_half(to.wrapping_sub(from))));
                    uses[index].turned += 1;
                    let length = one.end - address;
                    let new = length + one.growth();
                    edits.extend(
                        recent
                            .iter()
                            .filter_map(|before| before.length_at(length))
                            .map(|at| (at, low_half(new))),
                    );
                    taken.push((0, length, new));
                }
                Some(Use::Read { index, until }) => {
                    let known = &mut uses[index].read_until;
                    *known = (*known).max(Some(until));
                }
                None => {}
            }
            recent.push_back(decoded);
            if recent.len() > WINDOW {
                recent.pop_front();
            }
        });
    }
    for (at, bytes) in edits {
        file[at..at + 4].copy_from_slice(&bytes);
    }
}

fn use_of(decoded: &Decoded, fixed: bool, moves: &[Move]) -> Option<Use> {
    let instruction = &decoded.instruction;
    let place = |address: u64| moves.iter().position(|one| one.from.contains(&address));
    if instruction.is_ip_rel_memory_operand() {
        let address = instruction.ip_rel_memory_address();
        if instruction.code() == Code::Lea_r64_m {
            let at = decoded.at + decoded.offsets.displacement_offset();
            return place(address).map(|index| Use::Pointer { index, address, at });
        }
        let until = address.checked_add(instruction.memory_size().size() as u64)?;
        let index = moves.iter().position(|one| one.is_within(&(address..until)))?;
        return Some(Use::Read { index, until });
    }
    if fixed && (0..instruction.op_count()).any(|operand| is_address_sized(instruction.op_kind(operand))) {
        let address = u64::from(instruction.immediate32());
        let at = decoded.at + decoded.offsets.immediate_offset();
        return place(address).map(|index| Use::Pointer { index, address, at });
    }
    None
}

fn is_address_sized(kind: OpKind) -> bool {
    matches!(kind, OpKind::Immediate32 | OpKind::Immediate32to64)
}

/// The low 32 bits, as stored in a file.
fn low_half(value: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = value.to_le_bytes();
    [a, b, c, d]
}

/// Replaces Debian's name of the host, where it is an operand, by one of the same length: compilers write a text as short
/// as `amd64` in two moves. Returns the number of replacements, which is zero if the compiler made it a string.
///
/// # Errors
///
/// The names differ in their ends.
pub(super) fn change_name(file: &mut [u8], image: &Image, host: Arch, target: Arch) -> Result<usize, Untold> {
    let (old, new) = (host.debian().as_bytes(), target.debian().as_bytes());
    match (old.split_first_chunk(), new.split_first_chunk()) {
        (Some((old, old_end)), Some((new, new_end))) if old_end == new_end => {
            Ok(replace_operand(file, image, *old, *new))
        }
        _ => Err(Untold::new("the name of the architecture has another end")),
    }
}

/// Keeps librpm from using the x86_64 level that it finds by `CPUID` as the name of the machine, so that only the
/// answer of `uname` is left. Returns how many places were changed; before rpm 4.19 there are none.
pub(super) fn hide_cpu_level(file: &mut [u8], image: &Image) -> usize {
    // The features of level 2 in ECX: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT. No CPU has all the other bits
    // too.
    const LEVEL_2: u32 = 0x0098_2201;
    replace_operand(file, image, LEVEL_2.to_le_bytes(), [0xff; 4])
}

/// Replaces the operand `old` in all instructions that have it. Returns their number.
fn replace_operand(file: &mut [u8], image: &Image, old: [u8; 4], new: [u8; 4]) -> usize {
    let mut places = Vec::new();
    for part in &image.code {
        decode(file, part, |decoded| {
            let at = decoded.at + decoded.offsets.immediate_offset();
            if decoded.offsets.immediate_size() >= old.len() && file.get(at..at + old.len()) == Some(&old) {
                places.push(at);
            }
        });
    }
    for at in &places {
        file[*at..*at + new.len()].copy_from_slice(&new);
    }
    places.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text is at 0x2000 and has 36 characters, the fifth of which changes; the new text is one character longer.
    fn one_move() -> [Move; 1] {
        [Move {
            from: 0x2000..0x2005,
            end: 0x2024,
            to: 0x9000,
            at: 0x2000,
            new: vec![b'x'; 37],
        }]
    }

    fn turned(mut code: Vec<u8>, fixed: bool) -> (Vec<u8>, Uses) {
        let image = Image {
            constants: Vec::new(),
            code: vec![Part {
                address: 0x1000,
                bytes: 0..code.len(),
            }],
            data: Vec::new(),
            relocations: Vec::new(),
            fixed,
        };
        let mut uses = [Uses::default()];
        turn(&mut code, &image, &one_move(), &mut uses);
        let [uses] = uses;
        (code, uses)
    }

    /// `lea rsi, [rip + distance]`.
    fn lea(distance: u32) -> Vec<u8> {
        [&[0x48, 0x8d, 0x35][..], &distance.to_le_bytes()].concat()
    }

    /// `mov edx, value`.
    fn mov(value: u32) -> Vec<u8> {
        [&[0xba][..], &value.to_le_bytes()].concat()
    }

    #[test]
    fn an_address_and_the_length_beside_it_are_turned() {
        let (code, uses) = turned([lea(0x2000 - 0x1007), mov(36)].concat(), false);
        assert_eq!(code, [lea(0x9000 - 0x1007), mov(37)].concat());
        assert_eq!((uses.turned, uses.read_until), (1, None));
        let (code, _) = turned([mov(36), lea(0x2000 - 0x100c)].concat(), false);
        assert_eq!(code, [mov(37), lea(0x9000 - 0x100c)].concat());
    }

    #[test]
    fn a_length_far_away_or_another_number_stays() {
        let nops = vec![0x90; WINDOW + 1];
        let (code, _) = turned([lea(0x2000 - 0x1007), mov(35), nops.clone(), mov(36)].concat(), false);
        assert_eq!(code, [lea(0x9000 - 0x1007), mov(35), nops, mov(36)].concat());
    }

    #[test]
    fn what_points_behind_the_difference_stays() {
        let (code, uses) = turned(lea(0x2006 - 0x1007), false);
        assert_eq!((code, uses), (lea(0x2006 - 0x1007), Uses::default()));
    }

    #[test]
    fn text_that_is_read_is_seen() {
        // movdqa xmm0, [rip + distance]
        let load = [&[0x66, 0x0f, 0x6f, 0x05][..], &(0x2000_u32 - 0x1008).to_le_bytes()].concat();
        let (_, uses) = turned(load, false);
        assert_eq!((uses.turned, uses.read_until), (0, Some(0x2010)));
    }

    #[test]
    fn numbers_are_addresses_only_where_addresses_are_fixed() {
        assert_eq!(turned(mov(0x2000), true).0, mov(0x9000));
        assert_eq!(turned(mov(0x2000), false).0, mov(0x2000));
    }
}

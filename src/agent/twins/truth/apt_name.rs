//! Replaces the name of the architecture in libapt-pkg by one of another length. Works on bytes in memory: no I/O.
//!
//! libapt-pkg says its name in one place, where it sets `APT::Architecture`. It is C++, so its compiler knew the length
//! of the name. There are two forms: a string whose text and length are operands of instructions (until apt 2.9), and the
//! address of a text beside its length. What has not exactly one of them is refused.

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};
use kiln_records::arch::Arch;
use memchr::memmem;

use super::{
    Untold,
    image::Image,
    instructions::{Decoded, decode},
};

/// The room for a text that is written in two moves of four bytes, with its NUL.
const ROOM: usize = 8;

/// One byte of padding.
const NOP: u8 = 0x90;

/// Bytes to be written, and their offset in the file.
type Edit = (usize, Vec<u8>);

/// Gives the code of libapt-pkg the target's name, or its length. Where the name is a text, that is still the host's:
/// [`super::strings`] replaces it. Returns the number of changes.
///
/// # Errors
///
/// The name is not in exactly one place, or not in a known form.
pub(super) fn rename(
    file: &mut [u8],
    image: &Image,
    original: &[u8],
    host: Arch,
    target: Arch,
) -> Result<usize, Untold> {
    let names = (host.debian().as_bytes(), target.debian().as_bytes());
    let texts: Vec<u64> = image
        .constants
        .iter()
        .flat_map(|part| {
            let found = memmem::find_iter(&file[part.bytes.clone()], names.0);
            found.map(|at| part.address + at as u64)
        })
        .collect();
    let runs = runs(file, image, names.0, &texts);
    let edits = match (&runs[..], texts.len()) {
        ([run], 0) => of_operands(file, image, run, names),
        // The text will be replaced, for it is the target's in the other build.
        ([run], 1) if has_text(original, names.1) && !has_text(original, names.0) => of_text(run, names),
        _ => None,
    };
    let edits = edits.ok_or_else(|| {
        Untold::new("the name of the architecture has another length, and is not used in a form that is known")
    })?;
    let count = edits.len();
    for (at, bytes) in edits {
        file[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(count)
}

fn has_text(file: &[u8], text: &[u8]) -> bool {
    memmem::find(file, &[b"\0", text, b"\0"].concat()).is_some()
}

/// What is executed from each use of the name on, up to and with the next call or jump.
fn runs(file: &[u8], image: &Image, name: &[u8], texts: &[u64]) -> Vec<Vec<Decoded>> {
    let begins = |instruction: &Instruction| {
        let is_text = instruction.is_ip_rel_memory_operand() && texts.contains(&instruction.ip_rel_memory_address());
        is_text || immediate(instruction).is_some_and(|bytes| name.starts_with(&bytes))
    };
    let mut runs = Vec::new();
    for part in &image.code {
        let mut is_open = false;
        decode(file, part, |decoded| {
            let is_last = decoded.instruction.flow_control() != FlowControl::Next;
            if begins(&decoded.instruction) {
                // A use within the run of another one is one too many, too.
                runs.push(Vec::new());
                is_open = true;
            }
            if is_open && let Some(run) = runs.last_mut() {
                run.push(decoded);
                is_open = !is_last;
            }
        });
    }
    runs
}

/// The first four bytes of an operand.
fn immediate(instruction: &Instruction) -> Option<[u8; 4]> {
    use iced_x86::OpKind::{Immediate32, Immediate32to64, Immediate64};
    match instruction
        .op_count()
        .checked_sub(1)
        .map(|last| instruction.op_kind(last))?
    {
        Immediate32 | Immediate32to64 => Some(instruction.immediate32().to_le_bytes()),
        Immediate64 => instruction.immediate64().to_le_bytes().first_chunk().copied(),
        _ => None,
    }
}

/// `movl "amd6", (text); …; movb "4", 4(text); movq 5, (length); movb 0, 5(text); …; call`
///
/// The text of the target fills two moves of four bytes. The second one needs three bytes more, which the move of the
/// zero has.
fn of_operands(file: &[u8], image: &Image, run: &[Decoded], (old, new): (&[u8], &[u8])) -> Option<Vec<Edit>> {
    let (old_begin, old_rest) = old.split_first_chunk::<4>()?;
    let mut text = new.to_vec();
    let ([old_end], 5..ROOM) = (old_rest, new.len()) else {
        return None;
    };
    text.resize(ROOM, 0);
    let (begin, end) = text.split_first_chunk::<4>()?;
    let first = run.first()?;
    let place = place_of(&first.instruction)?;
    let is_first =
        first.instruction.code() == Code::Mov_rm32_imm32 && first.instruction.immediate32().to_le_bytes() == *old_begin;
    let is_byte = |decoded: &Decoded, at: u64, byte: u8| {
        let instruction = &decoded.instruction;
        instruction.code() == Code::Mov_rm8_imm8
            && place_of(instruction) == Some((place.0, place.1.wrapping_add(at)))
            && instruction.immediate8() == byte
    };
    let last = run.iter().position(|decoded| is_byte(decoded, 4, *old_end))?;
    let [character, length, zero] = run.get(last..last + 3)? else {
        return None;
    };
    let is_whole = is_first
        && is_length(&length.instruction, old.len())
        && place_of(&length.instruction) == Some((place.0, place.1.wrapping_sub(8)))
        && is_byte(zero, 5, 0)
        && ends_in_call(run)
        && !run[..last + 3]
            .iter()
            .any(|decoded| writes(&decoded.instruction, place.0));
    let block = character.at..zero.at + zero.instruction.len();
    if !is_whole || is_jumped_into(file, image, &run[last + 1..last + 3]) {
        return None;
    }
    // The same move of four bytes has the next opcode.
    let mut bytes = file
        .get(character.at..character.at + character.offsets.immediate_offset())?
        .to_vec();
    let opcode = bytes.iter().position(|byte| *byte & 0xf0 != 0x40)?;
    if bytes[opcode] != 0xc6 {
        return None;
    }
    bytes[opcode] = 0xc7;
    bytes.extend_from_slice(end);
    bytes.extend_from_slice(file.get(length.at..length.at + length.offsets.immediate_offset())?);
    bytes.extend_from_slice(&length_of(new)?);
    if bytes.len() > block.len() {
        return None;
    }
    bytes.resize(block.len(), NOP);
    Some(vec![
        (first.at + first.offsets.immediate_offset(), begin.to_vec()),
        (block.start, bytes),
    ])
}

/// `lea "amd64", %register; …; mov %register, 8(view); movq 5, (view); …; call`, in any order.
fn of_text(run: &[Decoded], (old, new): (&[u8], &[u8])) -> Option<Vec<Edit>> {
    let (first, rest) = run.split_first()?;
    let register = first.instruction.op0_register();
    let pointer = rest.iter().find(|decoded| {
        let instruction = &decoded.instruction;
        instruction.code() == Code::Mov_rm64_r64 && instruction.op1_register() == register
    })?;
    let mut lengths = rest.iter().filter(|decoded| is_length(&decoded.instruction, old.len()));
    let (length, other) = (lengths.next()?, lengths.next());
    let (base, at) = place_of(&length.instruction)?;
    let between = rest
        .iter()
        .take_while(|decoded| decoded.at <= pointer.at.max(length.at));
    let is_whole = first.instruction.code() == Code::Lea_r64_m
        && other.is_none()
        && place_of(&pointer.instruction) == Some((base, at.wrapping_add(8)))
        && ends_in_call(run)
        && !rest
            .iter()
            .take_while(|decoded| decoded.at < pointer.at)
            .any(|decoded| writes(&decoded.instruction, register))
        && !between
            .skip_while(|decoded| decoded.at < pointer.at.min(length.at))
            .any(|decoded| writes(&decoded.instruction, base));
    let edit = (length.at + length.offsets.immediate_offset(), length_of(new)?.to_vec());
    is_whole.then(|| vec![edit])
}

/// The register and the distance from it of a plain place in memory, which is the first operand.
fn place_of(instruction: &Instruction) -> Option<(Register, u64)> {
    let is_plain = instruction.op0_kind() == iced_x86::OpKind::Memory
        && !instruction.is_ip_rel_memory_operand()
        && instruction.memory_base() != Register::None
        && instruction.memory_index() == Register::None
        && !instruction.has_segment_prefix();
    is_plain.then(|| (instruction.memory_base(), instruction.memory_displacement64()))
}

fn is_length(instruction: &Instruction, length: usize) -> bool {
    instruction.code() == Code::Mov_rm64_imm32
        && place_of(instruction).is_some()
        && usize::try_from(instruction.immediate32to64()) == Ok(length)
}

fn length_of(name: &[u8]) -> Option<[u8; 4]> {
    u32::try_from(name.len()).ok().map(u32::to_le_bytes)
}

fn ends_in_call(run: &[Decoded]) -> bool {
    run.last()
        .is_some_and(|decoded| decoded.instruction.flow_control() == FlowControl::Call)
}

fn writes(instruction: &Instruction, register: Register) -> bool {
    let mut factory = InstructionInfoFactory::new();
    factory.info(instruction).used_registers().iter().any(|used| {
        used.register().full_register() == register.full_register()
            && !matches!(
                used.access(),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            )
    })
}

/// Whether a jump leads to one of these instructions.
fn is_jumped_into(file: &[u8], image: &Image, instructions: &[Decoded]) -> bool {
    let mut is_jumped_into = false;
    for part in &image.code {
        decode(file, part, |decoded| {
            let target = decoded.instruction.near_branch_target();
            is_jumped_into |= instructions.iter().any(|one| one.instruction.ip() == target);
        });
    }
    is_jumped_into
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::truth::image::Part;

    const TEXT: u64 = 0x9000;

    /// What is made of `code` at 0x1000, in a file that also has `texts`.
    fn renamed(code: &[u8], texts: &[u8], target: Arch) -> Option<Vec<u8>> {
        let mut file = [code, texts].concat();
        let part = |address, bytes| Part { address, bytes };
        let image = Image {
            constants: vec![part(TEXT, code.len()..file.len())],
            code: vec![part(0x1000, 0..code.len())],
            data: Vec::new(),
            relocations: Vec::new(),
            fixed: false,
        };
        let original = [b"\0", target.debian().as_bytes(), b"\0"].concat();
        rename(&mut file, &image, &original, Arch::X86_64, target).ok()?;
        file.truncate(code.len());
        Some(file)
    }

    const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];

    /// As in libapt-pkg 2.6, in its pieces.
    fn operands(name: [u8; 4], rest: &[u8]) -> Vec<u8> {
        // movl name, 0x70(%rsp); mov %rbp, %rdx; mov %rbx, 0x60(%rsp)
        let begin = [
            &[0xc7, 0x44, 0x24, 0x70],
            &name[..],
            &[0x48, 0x89, 0xea],
            &[0x48, 0x89, 0x5c, 0x24, 0x60],
        ];
        [&begin.concat(), rest, &CALL].concat()
    }

    /// movb "4", 0x74(%rsp); movq 5, 0x68(%rsp); movb 0, 0x75(%rsp)
    const OLD: [u8; 19] = [
        0xc6, 0x44, 0x24, 0x74, b'4', 0x48, 0xc7, 0x44, 0x24, 0x68, 5, 0, 0, 0, 0xc6, 0x44, 0x24, 0x75, 0,
    ];

    #[test]
    fn a_longer_name_takes_the_room_of_the_zero() {
        for (target, begin, end) in [
            (Arch::Ppc64le, *b"ppc6", *b"4el\0"),
            (Arch::Riscv64, *b"risc", *b"v64\0"),
        ] {
            let moves = [
                &[0xc7, 0x44, 0x24, 0x74][..],
                &end,
                &[0x48, 0xc7, 0x44, 0x24, 0x68, 7, 0, 0, 0, NOP, NOP],
            ];
            let expected = operands(begin, &moves.concat());
            assert_eq!(renamed(&operands(*b"amd6", &OLD), b"", target), Some(expected));
        }
    }

    #[test]
    fn another_form_of_operands_is_refused() {
        let refused = |code: &[u8], texts: &[u8]| assert_eq!(renamed(code, texts, Arch::Ppc64le), None, "{code:x?}");
        let whole = operands(*b"amd6", &OLD);
        refused(&whole, b"\0amd64\0");
        refused(&whole.repeat(2), b"");
        refused(&whole[..whole.len() - CALL.len()], b"");
        refused(b"", b"");
        // Each operand in turn is another one.
        for at in [3, 7, 16, 20, 25, 26, 34, 35] {
            let mut other = whole.clone();
            other[at] ^= 1;
            refused(&other, b"");
        }
        // The stack pointer changes: push %rax.
        refused(&operands(*b"amd6", &[&[0x50], &OLD[..]].concat()), b"");
        // A jump leads to the move of the length: jmp -21.
        refused(&[&whole[..], &[0xeb, 0xeb]].concat(), b"");
    }

    /// lea text, %rax; then `between`; mov %rax, 0x28(%rsp); movq length, 0x20(%rsp)
    fn view(between: &[u8], length: u8) -> Vec<u8> {
        let distance = (TEXT + 1 - 0x1007).to_le_bytes();
        [
            &[0x48, 0x8d, 0x05][..],
            &distance[..4],
            between,
            &[0x48, 0x89, 0x44, 0x24, 0x28],
            &[0x48, 0xc7, 0x44, 0x24, 0x20, length, 0, 0, 0],
            &CALL,
        ]
        .concat()
    }

    #[test]
    fn the_length_beside_a_text_is_that_of_the_new_name() {
        // push %r15; sub $0xa8, %rsp, as in libapt-pkg 3.0
        let between = [0x41, 0x57, 0x48, 0x81, 0xec, 0xa8, 0, 0, 0];
        let renamed = |code: &[u8], texts: &[u8]| renamed(code, texts, Arch::Riscv64);
        assert_eq!(renamed(&view(&between, 5), b"\0amd64\0"), Some(view(&between, 7)));
        for (code, texts) in [
            (view(&between, 6), &b"\0amd64\0"[..]),
            (view(&between, 5), b"\0amd64\0amd64\0"),
            // mov %rbx, %rax; call
            (view(&[0x48, 0x89, 0xd8], 5), b"\0amd64\0"),
            (view(&CALL, 5), b"\0amd64\0"),
        ] {
            assert_eq!(renamed(&code, texts), None, "{code:x?}");
        }
    }
}

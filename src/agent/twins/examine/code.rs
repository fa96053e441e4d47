//! Looks at instructions: `long double`, fused multiplications, and questions to the CPU. Works on bytes in memory: no
//! I/O.

use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, Instruction, OpKind};
use kiln_records::arch::Arch;

use super::{Build, Finding};
use crate::twins::{
    long_double::Computing,
    modes,
    truth::{Image, Part},
};

/// The first finding in the code of `build`.
pub(super) fn finding(build: Build<'_>, image: &Image) -> Option<Finding> {
    let of_part = |part: &Part| {
        let code = &build.file[part.bytes.clone()];
        match build.arch {
            Arch::X86_64 => on_x86_64(code, part),
            Arch::Aarch64 => words(code).find_map(on_aarch64),
            Arch::Ppc64le => is_fused_in_power_code(code).then_some(Finding::Fused),
            Arch::Riscv64 => is_fused_on_riscv(code).then_some(Finding::Fused),
            // Its order of bytes differs from every other's, so it has no twins.
            Arch::S390x => Some(Finding::Unreadable("its instructions are not known".to_owned())),
        }
    };
    image.code.iter().find_map(of_part)
}

fn on_x86_64(code: &[u8], part: &Part) -> Option<Finding> {
    let mut computing = Computing::default();
    let mut decoder = Decoder::with_ip(64, code, part.address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        computing.add(&instruction, at..at + instruction.len());
        let found = match instruction.code() {
            Code::Cpuid | Code::Xgetbv => Some(Finding::OwnCpu("CPUID".to_owned())),
            code if modes::set_on_x86_64(code) => Some(Finding::Modes),
            code if code.cpuid_features().contains(&CpuidFeature::FMA) => Some(Finding::Fused),
            _ if computing.has_some() => Some(Finding::LongDouble),
            _ if names_itself(&instruction) => {
                Some(Finding::Name("x86_64, as an operand of an instruction".to_owned()))
            }
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    (!computing.places().is_empty()).then_some(Finding::LongDouble)
}

fn on_aarch64(word: u32) -> Option<Finding> {
    match word {
        _ if is_fused_on_aarch64(word) => Some(Finding::Fused),
        _ if modes::set_on_aarch64(word) => Some(Finding::Modes),
        _ => None,
    }
}

/// Whether an operand is the beginning of a name: compilers put short texts into instructions.
fn names_itself(instruction: &Instruction) -> bool {
    let bytes = match instruction.op1_kind() {
        OpKind::Immediate32 | OpKind::Immediate32to64 => u64::from(instruction.immediate32()).to_le_bytes(),
        OpKind::Immediate64 => instruction.immediate64().to_le_bytes(),
        _ => return false,
    };
    bytes.starts_with(b"amd6") || bytes.starts_with(b"x86_") || bytes.starts_with(b"x86-")
}

/// Whether code for aarch64 sets modes of floating point.
pub(super) fn sets_modes_on_aarch64(code: &[u8]) -> bool {
    words(code).any(modes::set_on_aarch64)
}

/// Instructions of four bytes.
fn words(code: &[u8]) -> impl Iterator<Item = u32> {
    code.chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// FMADD, FMSUB, FNMADD and FNMSUB; FMLA and FMLS of vectors, and by element (Arm ARM, C4.1).
fn is_fused_on_aarch64(word: u32) -> bool {
    word & 0xff00_0000 == 0x1f00_0000
        || word & 0xbfa0_fc00 == 0x0e20_cc00
        || word & 0xbfa0_fc00 == 0x0ea0_cc00
        || word & 0xbf80_f400 == 0x0f80_1000
        || word & 0xbf80_f400 == 0x0f80_5000
}

/// Whether code for Power has a fused instruction. Compilers put the table of a `switch` behind its jump, and a negative offset
/// looks like `fnmsub f31,f31,f28,f31`.
fn is_fused_in_power_code(code: &[u8]) -> bool {
    /// `bctr`, `mtctr` of any register, and `add` of any registers.
    const BCTR: u32 = 0x4e80_0420;
    let is_mtctr = |word: u32| word & 0xfc1f_ffff == 0x7c09_03a6;
    let is_add = |word: u32| word & 0xfc00_07ff == 0x7c00_0214;
    let mut before = [0; 4];
    let mut table = None;
    for (at, word) in words(code).enumerate() {
        // An offset from the table leads to an instruction of this code. No other instruction does, taken as a number, but
        // some with f30 and f31, which the code that a table leads to does not begin with: they are their function's caller's.
        let leads_into_code = |from: usize| {
            let target = i64::from(word.cast_signed()) + i64::try_from(4 * from).unwrap_or(i64::MAX);
            word % 4 == 0 && usize::try_from(target).is_ok_and(|target| target < code.len())
        };
        if table.is_some_and(leads_into_code) {
            continue;
        }
        table = None;
        if is_fused_on_power(word) {
            return true;
        }
        // The address is the sum of the table's and of the offset in it.
        if word == BCTR && is_mtctr(before[3]) && before.into_iter().any(is_add) {
            table = Some(at + 1);
        }
        before = [before[1], before[2], before[3], word];
    }
    false
}

/// The A-form of fmadd and its relatives, and VSX's xsmadd and xvmadd (Power ISA 3.1, 4.6.6 and 7.6).
fn is_fused_on_power(word: u32) -> bool {
    match word >> 26 {
        59 | 63 => (28..=31).contains(&(word >> 1 & 0x1f)),
        60 => word >> 3 & 7 == 1,
        _ => false,
    }
}

/// FMADD, FMSUB, FNMSUB and FNMADD (the RISC-V manual, volume I). Instructions have two or four bytes.
fn is_fused_on_riscv(mut code: &[u8]) -> bool {
    while let [first, _, ..] = *code {
        if matches!(first & 0x7f, 0x43 | 0x47 | 0x4b | 0x4f) {
            return true;
        }
        let length = if first & 3 == 3 { 4 } else { 2 };
        code = code.get(length..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &[u8]) -> Option<Finding> {
        let part = Part {
            address: 0x1000,
            bytes: 0..code.len(),
        };
        on_x86_64(code, &part)
    }

    #[test]
    fn x86_code_shows_what_it_computes_with() {
        let name = Finding::Name("x86_64, as an operand of an instruction".to_owned());
        for (code, expected) in [
            // mulsd xmm0, xmm1; addsd xmm0, xmm2; ret
            ([0xf2, 0x0f, 0x59, 0xc1, 0xf2, 0x0f, 0x58, 0xc2, 0xc3].as_slice(), None),
            // fld tbyte ptr [rsp+16]
            (&[0xdb, 0x6c, 0x24, 0x10], Some(Finding::LongDouble)),
            // vfmadd132sd xmm0, xmm1, xmm2
            (&[0xc4, 0xe2, 0xf1, 0x99, 0xc2], Some(Finding::Fused)),
            // cpuid
            (&[0x0f, 0xa2], Some(Finding::OwnCpu("CPUID".to_owned()))),
            // mov dword ptr [rax], "amd6"
            (&[0xc7, 0x00, b'a', b'm', b'd', b'6'], Some(name.clone())),
            // movabs rax, "x86_64\0\0"
            (&[0x48, 0xb8, b'x', b'8', b'6', b'_', b'6', b'4', 0, 0], Some(name)),
            // ldmxcsr dword ptr [rsp]; stmxcsr dword ptr [rsp]
            (&[0x0f, 0xae, 0x14, 0x24], Some(Finding::Modes)),
            (&[0x0f, 0xae, 0x1c, 0x24], None),
            // mov eax, 4
            (&[0xb8, 4, 0, 0, 0], None),
        ] {
            assert_eq!(found(code), expected, "{code:x?}");
        }
    }

    #[test]
    fn fused_instructions_are_known_on_every_architecture() {
        // fmadd d0, d1, d2, d3; fmla v0.2d, v1.2d, v2.2d; fmls v0.2d, v1.2d, v2.d[0]
        for word in [0x1f42_0c20, 0x4e62_cc20, 0x4fc2_5020] {
            assert!(is_fused_on_aarch64(word), "{word:x}");
        }
        // fmul d0, d1, d2; fadd d0, d1, d2; madd x0, x1, x2, x3; ret
        for word in [0x1e62_0820, 0x1e62_2820, 0x9b02_0c20, 0xd65f_03c0] {
            assert!(!is_fused_on_aarch64(word), "{word:x}");
        }
        // fmadd f1, f2, f3, f4; xsmaddadp vs0, vs1, vs2
        for word in [0xfc22_20fa, 0xf001_1108] {
            assert!(is_fused_on_power(word), "{word:x}");
        }
        // fmul f1, f2, f3; fadd f1, f2, f3; fmr f1, f2; xsmuldp vs0, vs1, vs2
        for word in [0xfc22_00f2, 0xfc22_182a, 0xfc20_1090, 0xf001_1180] {
            assert!(!is_fused_on_power(word), "{word:x}");
        }
        // add r9,r9,r10; mtctr r9; bctr; a table; li r6,6
        let switch = [
            0x7d29_5214,
            0x7d29_03a6,
            0x4e80_0420,
            0x0000_000c,
            0xffff_fffc,
            0xffff_fff8,
            0x38c0_0006,
        ];
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        assert!(is_fused_on_power(switch[4]) && !is_fused_in_power_code(&bytes(&switch)));
        // Without a jump, or beyond the table, it is an instruction.
        assert!(is_fused_in_power_code(&bytes(&switch[3..])));
        assert!(is_fused_in_power_code(&bytes(&[&switch[..], &[0xfc22_20fa]].concat())));
        // An offset that leads out of the code is none.
        let elsewhere = [&switch[..3], &[0xffff_ff3c]].concat();
        assert!(is_fused_in_power_code(&bytes(&elsewhere)));
        // c.nop, then fmadd.d fa0, fa1, fa2, fa3
        assert!(is_fused_on_riscv(&[0x01, 0x00, 0x43, 0xf5, 0xc5, 0x6a]));
        // fmul.d fa0, fa1, fa2, then half an instruction
        assert!(!is_fused_on_riscv(&[0x53, 0xf5, 0xc5, 0x12, 0x43]));
    }
}

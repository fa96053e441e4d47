//! Finds the instructions of x86_64 that compute with `long double`, those of the 8087. Works on bytes in memory: no I/O.

use std::ops::Range;

use iced_x86::{Code, CpuidFeature, Instruction, Mnemonic, Register};

/// Collects the places of such instructions. It is given all instructions of a section in order, since some of them
/// compute nothing where they stand: compilers that clear what a function used before it returns (gcc's
/// `-fzero-call-used-regs`, with which OpenSSH is built) push zeros into the registers of the 8087, and pop as many.
#[derive(Debug, Default)]
pub(super) struct Computing {
    found: Vec<Range<usize>>,
    /// Zeros, and what pops them, as long as they are next to each other.
    clearing: Vec<Range<usize>>,
    pushed: usize,
}

impl Computing {
    /// Looks at the next instruction, which is at `place`.
    pub(super) fn add(&mut self, instruction: &Instruction, place: Range<usize>) {
        let popped = self.clearing.len() - self.pushed;
        let pops = instruction.code() == Code::Fstp_sti && instruction.op0_register() == Register::ST0;
        if instruction.code() == Code::Fldz {
            if popped > 0 {
                self.end_clearing();
            }
            self.clearing.push(place);
            self.pushed += 1;
        } else if pops && self.pushed > 0 {
            self.clearing.push(place);
            if popped + 1 == self.pushed {
                self.clearing.clear();
                self.pushed = 0;
            }
        } else {
            self.end_clearing();
            self.found.extend(computes(instruction.code()).then_some(place));
        }
    }

    /// Whether there is a place already.
    pub(super) fn has_some(&self) -> bool {
        !self.found.is_empty()
    }

    /// The places, after the last instruction.
    pub(super) fn places(mut self) -> Vec<Range<usize>> {
        self.end_clearing();
        self.found
    }

    /// Not all zeros were popped, so something may compute with them.
    fn end_clearing(&mut self) {
        self.found.append(&mut self.clearing);
        self.pushed = 0;
    }
}

/// Whether an instruction works on numbers of the 8087. Others only read or set its modes, as interpreters do at their
/// start.
fn computes(code: Code) -> bool {
    let sets_modes = [
        Mnemonic::Fldcw,
        Mnemonic::Fnstcw,
        Mnemonic::Fstcw,
        Mnemonic::Fnstsw,
        Mnemonic::Fstsw,
        Mnemonic::Fninit,
        Mnemonic::Finit,
        Mnemonic::Fnclex,
        Mnemonic::Fclex,
        Mnemonic::Fnstenv,
        Mnemonic::Fstenv,
        Mnemonic::Fldenv,
    ];
    code.cpuid_features().contains(&CpuidFeature::FPU) && !sets_modes.contains(&code.mnemonic())
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    /// The places of what computes in `code`.
    fn places(code: &[u8]) -> Vec<Range<usize>> {
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut computing = Computing::default();
        while decoder.can_decode() {
            let at = decoder.position();
            let instruction = decoder.decode();
            computing.add(&instruction, at..at + instruction.len());
        }
        computing.places()
    }

    #[test]
    fn only_numbers_of_the_8087_count() {
        for (code, expected) in [
            // fld tbyte ptr [rsp+16]; fstp tbyte ptr [rsp]; faddp
            ([0xdb, 0x6c, 0x24, 0x10].as_slice(), true),
            (&[0xdb, 0x3c, 0x24], true),
            (&[0xde, 0xc1], true),
            // fnstcw [rsp]; fldcw [rsp]; addsd xmm0, xmm1
            (&[0xd9, 0x3c, 0x24], false),
            (&[0xd9, 0x2c, 0x24], false),
            (&[0xf2, 0x0f, 0x58, 0xc1], false),
        ] {
            assert_eq!(!places(code).is_empty(), expected, "{code:x?}");
        }
    }

    #[test]
    fn registers_that_are_only_cleared_compute_nothing() {
        let (zero, pop, ret) = ([0xd9, 0xee], [0xdd, 0xd8], [0xc3]);
        // fstp tbyte ptr [rsp]; fstp st(1); nop
        let (store, other, nop) = ([0xdb, 0x3c, 0x24], [0xdd, 0xd9], [0x90]);
        let cleared = [[zero; 8].as_flattened(), [pop; 8].as_flattened(), &ret].concat();
        assert_eq!(places(&cleared), []);
        assert_eq!(places(&cleared.repeat(2)), []);
        for (code, expected) in [
            // A zero that is used, one that stays, one too many that is popped.
            ([zero.as_slice(), &store, &ret].concat(), 2),
            ([zero.as_slice(), &zero, &pop, &ret].concat(), 3),
            ([zero.as_slice(), &pop, &pop, &ret].concat(), 1),
            ([zero.as_slice(), &other, &ret].concat(), 2),
            // Something stands between, or behind the end.
            ([zero.as_slice(), &nop, &pop].concat(), 2),
            (zero.to_vec(), 1),
            // The first run ends, the second one is whole.
            ([zero.as_slice(), &zero, &pop, &zero, &pop].concat(), 3),
        ] {
            assert_eq!(places(&code).len(), expected, "{code:x?}");
        }
    }
}

//! Knows the instructions that set how a CPU treats results that no number stands for. Works on instructions in memory: no
//! I/O.
//!
//! A twin may have none of them: on an x86_64, they can have such results raise no signal, and on an aarch64, they can have
//! the CPU forget that there were some.

use iced_x86::{Code, Mnemonic};

/// What is said of a program that has one.
pub(super) const FOUND: &str = "it sets the modes of floating point by itself";

/// Whether it loads MXCSR (Intel SDM, volume 1, 10.2.3).
pub(super) fn set_on_x86_64(code: Code) -> bool {
    use Mnemonic::{Fxrstor, Fxrstor64, Ldmxcsr, Vldmxcsr, Xrstor, Xrstor64, Xrstors, Xrstors64};
    let loading = [
        Ldmxcsr, Vldmxcsr, Fxrstor, Fxrstor64, Xrstor, Xrstor64, Xrstors, Xrstors64,
    ];
    loading.contains(&code.mnemonic())
}

/// Whether it is MSR of FPCR or of FPSR (Arm ARM, C5.2.8 and C5.2.9).
pub(super) const fn set_on_aarch64(word: u32) -> bool {
    matches!(word & !0x1f, 0xd51b_4400 | 0xd51b_4420)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_reads_modes_sets_none() {
        // msr fpcr, x3; msr fpsr, x0; mrs x0, fpsr
        assert!(set_on_aarch64(0xd51b_4403) && set_on_aarch64(0xd51b_4420) && !set_on_aarch64(0xd53b_4420));
        assert!(set_on_x86_64(Code::Ldmxcsr_m32) && !set_on_x86_64(Code::Stmxcsr_m32));
    }
}

//! Strings that move, and what is found to point to them.

use std::ops::Range;

/// A string that becomes longer and therefore moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// The addresses that move: from where the string begins, at the earliest, up to the first byte that is another
    /// one. Linkers let strings with equal ends share them, and what points behind the difference can stay.
    pub from: Range<u64>,
    /// Where the string ends: the address of its NUL.
    pub end: u64,
    /// Where `from` begins now.
    pub to: u64,
    /// Where it begins in the file.
    pub at: usize,
    /// What it becomes.
    pub new: Vec<u8>,
}

impl Move {
    /// Where `address` is now. None when it does not move.
    pub fn moved(&self, address: u64) -> Option<u64> {
        self.from
            .contains(&address)
            .then(|| self.to + (address - self.from.start))
    }

    /// By how much the string becomes longer.
    pub fn growth(&self) -> u64 {
        (self.from.start + self.new.len() as u64).saturating_sub(self.end)
    }

    /// Whether something of the string, from the first byte that is another one on, is within `piece`.
    pub fn is_within(&self, piece: &Range<u64>) -> bool {
        piece.start <= self.end && self.from.end <= piece.end
    }
}

/// What instructions have to do with a string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// How many places were turned to where it is now.
    pub turned: usize,
    /// Up to which address instructions read the text itself, in order to copy it piece by piece.
    pub read_until: Option<u64>,
}

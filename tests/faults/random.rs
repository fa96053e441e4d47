//! Pseudorandom numbers that can be repeated.

use std::ops::Range;

/// A sequence that its seed decides (splitmix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// By `KILN_FAULT_SEED`, or by the time of day; says which.
    pub fn seeded() -> Self {
        let given = std::env::var("KILN_FAULT_SEED").ok().map(|text| text.parse().unwrap());
        let seed = given.unwrap_or_else(|| {
            let since = std::time::UNIX_EPOCH.elapsed().unwrap();
            u64::from(since.subsec_nanos()) ^ since.as_secs()
        });
        println!("KILN_FAULT_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn between(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.between(0..last as u64 + 1)).unwrap();
            items.swap(last, other);
        }
    }
}

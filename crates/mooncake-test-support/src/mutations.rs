//! Bytes that look like chance, the same in each run.

/// Numbers, and what they make of bytes.
pub struct Mutator(u64);

impl Default for Mutator {
    fn default() -> Self {
        Mutator(0x2545_f491_4f6c_dd1d)
    }
}

impl Mutator {
    /// One of the seeds, mutated a few times; or no seed at all.
    pub fn bytes(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = match self.below(8) {
            0 => (0..self.below(100)).map(|_| self.below(256) as u8).collect(),
            _ => seeds[self.below(seeds.len())].clone(),
        };
        for _ in 0..=self.below(4) {
            self.mutate(&mut bytes, seeds);
        }
        bytes
    }

    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        match self.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, self.below(256) as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            3 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'['][self.below(8)],
            4 if at + 8 <= bytes.len() => {
                let word = [0, 1, u64::MAX, 1 << 63, u64::MAX - 7, 1 << 32][self.below(6)];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            5 => {
                let other = &others[self.below(others.len())];
                let from = self.below(other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let number = ["-1", "18446744073709551616", "1e309", "null", "\\u0000", "\u{fffd}"][self.below(6)];
                bytes.splice(at..at, number.bytes());
            }
        }
    }
}

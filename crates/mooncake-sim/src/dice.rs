//! What is left to chance.

/// Numbers that follow from a seed (xorshift64*).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Another seed, other numbers.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// One below the bound, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.number() >> 33) % bound
    }

    /// True so often in a hundred times.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

//! The same piece of work over and over: how much longer the longest of it takes is the machine's doing, and what the
//! machine adds to the longest of anything.

use crate::holds::Holds;

/// Bytes that it walks through: more than caches hold.
const BYTES: usize = 256 << 20;

/// Steps of one walk, each of which waits for memory: about 200 us.
const STEPS: usize = 1_500;

/// The same walk through memory, over and over.
#[derive(Debug)]
pub struct Control {
    /// Each element is the number of the next one.
    next: Vec<u32>,
    at: u32,
}

impl Control {
    /// Its memory, all of it touched.
    pub fn new() -> Control {
        let count = (BYTES / size_of::<u32>()) as u32;
        // Full period: the increment is odd, and the factor leaves 1 with 4.
        let next = (0..count).map(|at| at.wrapping_mul(0x9e37_79b5).wrapping_add(0x3c6e_f35f) & (count - 1)).collect();
        Control { next, at: 0 }
    }

    /// Walks on, and notes how long that took.
    pub fn walk(&mut self, holds: &mut Holds) {
        let Control { next, at } = self;
        holds.measure("(the machine: the same walk through memory)", || {
            for _ in 0..STEPS {
                *at = next[*at as usize];
            }
            (std::hint::black_box(*at), 0)
        });
    }
}

impl Default for Control {
    fn default() -> Control {
        Control::new()
    }
}

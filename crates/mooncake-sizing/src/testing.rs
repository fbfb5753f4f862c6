//! Traces for tests.

use crate::trace::Trace;

/// A trace whose requests come ten seconds apart.
pub(crate) fn trace_of(requests: &[&[i128]]) -> Trace {
    let line =
        |(nth, blocks): (usize, &&[i128])| format!("{{\"timestamp\":{},\"hash_ids\":{blocks:?}}}\n", nth * 10_000);
    let text: String = requests.iter().enumerate().map(line).collect();
    Trace::read(text.as_bytes()).expect("a good trace")
}

/// Numbers without a pattern, the same in each run.
pub(crate) struct Dice(pub u64);

impl Dice {
    /// One below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

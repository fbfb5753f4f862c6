//! What came of a simulation.

use mooncake_sizing::{Point, Rules};
use serde_json::{Value, json};

/// All that is told of it.
pub struct Report {
    /// What the trace is called.
    pub name: String,
    /// Its requests.
    pub requests: u64,
    /// Time from the first of them to the last.
    pub span_ms: u64,
    /// Blocks that they ask for, each as often as it is.
    pub blocks: u64,
    /// The different ones.
    pub distinct: u32,
    /// By which it was simulated.
    pub rules: Rules,
    /// Blocks that are found where nothing ever has to leave.
    pub possible: u64,
    /// Share of these for which the least memory was searched.
    pub target: f64,
    /// That memory, if anything is found at all.
    pub least: Option<Size>,
    /// Sizes that were asked for.
    pub sizes: Vec<Size>,
}

/// A pool.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Its memory, as it was asked for.
    pub bytes: u64,
    /// What it finds.
    pub point: Point,
}

impl Report {
    /// All sizes that are told of, from the smallest on.
    pub fn sizes(&self) -> impl Iterator<Item = &Size> {
        let mut sizes: Vec<&Size> = self.sizes.iter().chain(&self.least).collect();
        sizes.sort_by_key(|size| size.bytes);
        sizes.into_iter()
    }

    /// Of all blocks that are asked for.
    pub fn share(&self, blocks: u64) -> f64 {
        blocks as f64 / self.blocks.max(1) as f64
    }

    /// Of all distinct ones.
    pub fn of_all(&self, size: &Size) -> f64 {
        f64::from(size.point.room) / f64::from(self.distinct.max(1))
    }

    /// The same for programs.
    pub fn as_json(&self) -> Value {
        json!({
            "trace": self.name,
            "requests": self.requests,
            "seconds": self.span_ms as f64 / 1e3,
            "blocks": self.blocks,
            "distinct_blocks": self.distinct,
            "block_bytes": self.rules.block_bytes,
            "distinct_bytes": self.rules.bytes_of(self.distinct),
            "lookup_protect_ms": self.rules.lookup_protect_ms,
            "possible": { "found_blocks": self.possible, "hit_ratio": self.share(self.possible) },
            "target": { "share": self.target, "least": self.least.as_ref().map(|size| self.size_as_json(size)) },
            "sizes": self.sizes.iter().map(|size| self.size_as_json(size)).collect::<Vec<_>>(),
        })
    }

    fn size_as_json(&self, size: &Size) -> Value {
        let Point { room, found, any, best, not_stored } = size.point;
        json!({
            "capacity_bytes": size.bytes,
            "room_blocks": room,
            "share_of_distinct": self.of_all(size),
            "found_blocks": found,
            "hit_ratio": self.share(found),
            "any_blocks": any,
            "any_ratio": self.share(any),
            "best_blocks": best,
            "best_ratio": self.share(best),
            "not_stored_blocks": not_stored,
        })
    }
}

/// Of pools of these sizes in blocks, half of which they find; nothing without a least one.
#[cfg(test)]
pub fn report_for_tests(rooms: &[u32], least: Option<u32>) -> Report {
    let rules = Rules { block_bytes: 64 << 20, ..Rules::default() };
    let size = |room: u32| {
        let found = if least.is_some() { u64::from(room) / 2 } else { 0 };
        let point = Point { room, found, any: found, best: found + found.min(1), not_stored: 0 };
        Size { bytes: rules.bytes_of(room), point }
    };
    Report {
        name: "a <trace> & \"more\"\u{1b}[31m".to_owned(),
        requests: 12_031,
        span_ms: 60_000,
        blocks: 1_000,
        distinct: 600,
        rules,
        possible: if least.is_some() { 301 } else { 0 },
        target: 0.95,
        least: least.map(size),
        sizes: rooms.iter().copied().map(size).collect(),
    }
}

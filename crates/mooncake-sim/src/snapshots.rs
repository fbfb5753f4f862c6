//! Snapshots that a master takes of its core in slices, between any two operations, and what they come to.

use std::collections::BTreeMap;

use mooncake_core::{Config, Core, Record, SnapshotPart, SnapshotSlice};

use crate::dice::Dice;

/// Of a hundred operations so many are followed by a slice, where a snapshot is being taken.
const SLICED: u64 = 50;
/// One of so many operations is followed by a snapshot's beginning, where none is being taken: to look at one takes
/// long.
const BEGUN: u64 = 250;
/// Things in a slice, at most.
const SLICE: u64 = 12;

/// Those of one master. They have dice of their own: what else happens is the same without them.
pub(crate) struct Snapshots {
    dice: Dice,
    taken: Option<Taken>,
}

/// A snapshot in the making.
struct Taken {
    lsn: u64,
    /// What it is to make again.
    state: Vec<String>,
    parts: BTreeMap<SnapshotPart, Vec<Record>>,
}

/// The state after an LSN.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub lsn: u64,
    pub records: Vec<Record>,
}

impl Snapshots {
    pub fn new(seed: u64) -> Snapshots {
        Snapshots { dice: Dice::new(seed), taken: None }
    }

    /// An operation is through, which left the log at this LSN. A snapshot that is whole now, having been looked at.
    pub fn operated(&mut self, core: &mut Core, lsn: u64) -> Option<Snapshot> {
        let Some(taken) = &mut self.taken else {
            if self.dice.below(BEGUN) == 0 {
                core.begin_snapshot();
                self.taken = Some(Taken { lsn, state: durable(core), parts: BTreeMap::new() });
            }
            return None;
        };
        if !self.dice.percent(SLICED) {
            return None;
        }
        let slice = core.snapshot_slice(1 + self.dice.below(SLICE) as usize).expect("little is put aside");
        if let Some(SnapshotSlice { part, records }) = slice {
            taken.parts.entry(part).or_default().extend(records.into_iter().flatten());
            return None;
        }
        core.end_snapshot();
        let Taken { lsn, state, parts } = self.taken.take().expect("just seen");
        let records: Vec<Record> = parts.into_values().flatten().collect();
        assert_eq!(durable(&replayed(&records)), state, "a snapshot of another state than that of its LSN");
        Some(Snapshot { lsn, records })
    }
}

impl Snapshot {
    /// With the frames behind it, it makes the state that all frames make. Replies that a client has said it has may be
    /// forgotten, which no frame says.
    pub fn check(&self, frames: &[Vec<Record>]) {
        let behind = &frames[self.lsn as usize..];
        let from_it = replayed(self.records.iter().chain(behind.iter().flatten()));
        let state = |core: &Core| {
            let is_kept = |record: &String| !record.starts_with("Replied") || record.contains("sequence: 0,");
            durable(core).into_iter().filter(is_kept).collect::<Vec<_>>()
        };
        assert_eq!(
            state(&from_it),
            state(&replayed(frames.iter().flatten())),
            "the log is another one without its snapshot"
        );
    }
}

fn replayed<'a>(records: impl IntoIterator<Item = &'a Record>) -> Core {
    let mut core = Core::new(Config::default());
    for record in records {
        core.replay(record.clone()).unwrap_or_else(|error| panic!("{error} at {record:?}"));
    }
    core
}

/// The durable state, in an order of its own.
fn durable(core: &Core) -> Vec<String> {
    let mut records: Vec<String> = core.snapshot().map(|record| format!("{record:?}")).collect();
    records.sort();
    records
}

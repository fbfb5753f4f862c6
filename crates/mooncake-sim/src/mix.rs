//! What a schedule has more of than others have: faults, callers, objects, memory. Some things meet only where one of
//! them is frequent, or scarce.

use crate::world::World;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A store's way to its master is cut.
    CutAnchor,
    /// A store cannot reach its masters for a while.
    SetApart,
    /// A process stands still.
    Freeze,
    /// A process is killed and started again.
    RestartEngine,
    /// The master stands still.
    FreezeMaster,
    /// The master is killed and started again.
    RestartMaster,
    /// A store's ways to the owners of what it has mapped are cut.
    CutAttachments,
    /// A machine ends and starts again.
    Reboot,
    /// Some processes stand still while the master is started again in another epoch.
    Raise,
    /// A master begins on a copy of the log, or ends.
    CopyLog,
}

/// How often each comes in a thousand beats, where it is neither rare nor frequent.
const USUAL: [(Fault, u64); 10] = [
    (Fault::CutAnchor, 40),
    (Fault::SetApart, 5),
    (Fault::Freeze, 20),
    (Fault::RestartEngine, 10),
    (Fault::FreezeMaster, 6),
    (Fault::RestartMaster, 8),
    (Fault::CutAttachments, 15),
    (Fault::Reboot, 1),
    (Fault::Raise, 12),
    (Fault::CopyLog, 25),
];

/// A schedule's.
#[derive(Debug, Clone)]
pub struct Mix {
    /// In three thousand beats.
    faults: Vec<(Fault, u64)>,
    /// Objects that there are at most.
    pub keys: u64,
    /// Processes of stores.
    pub engines: usize,
    /// Granules of a segment.
    pub granules: u64,
    /// Of a hundred puts so many are of two replicas.
    pub replicas: u64,
    /// Longest time that most views last, microseconds.
    pub view_micros: u64,
    /// Longest time until an owner that is asked to give its memory hears of it, microseconds.
    pub map_micros: u64,
    /// Longest time between two granules of the slowest writes, microseconds.
    pub pace: u64,
}

impl Mix {
    /// Drawn for a schedule.
    pub fn draw(world: &World) -> Mix {
        let of = |choices: &[u64]| choices[world.below(choices.len() as u64) as usize];
        Mix {
            faults: USUAL.iter().map(|(fault, usual)| (*fault, usual * of(&[1, 1, 3, 6]))).collect(),
            keys: of(&[8, 20, 40]),
            engines: of(&[2, 3, 4, 5]) as usize,
            granules: of(&[8, 11, 14]),
            replicas: of(&[10, 30, 70]),
            view_micros: of(&[20_000, 300_000, 3_000_000]),
            map_micros: of(&[1, 30_000, 1_000_000]),
            pace: of(&[40_000, 40_000, 400_000]),
        }
    }

    /// How many tasks of a store put, get and view: some stores are quiet but for one kind.
    pub fn callers(&self, world: &World) -> [u64; 3] {
        let of = |choices: &[u64]| choices[world.below(choices.len() as u64) as usize];
        match world.below(4) {
            0 => [0, 0, of(&[1, 4])],
            1 => [of(&[1, 3]), 0, 0],
            _ => [of(&[1, 2, 3]), of(&[1, 2]), of(&[1, 2, 4])],
        }
    }

    /// What goes wrong in the next beat.
    pub(crate) fn fault(&self, world: &World) -> Option<Fault> {
        let mut drawn = world.below(3_000);
        let hit = self.faults.iter().find(|(_, often)| {
            let is_it = drawn < *often;
            drawn = drawn.saturating_sub(*often);
            is_it
        });
        hit.map(|(fault, _)| *fault)
    }
}

//! Registered memory of a lane that bytes go through whose own memory no card knows: a caller's that was never
//! registered, or a device's.

use std::time::Duration;

use mooncake_memory::{Bounce, ForeignRange, PrivatePages};
use mooncake_os::Deadline;
use mooncake_rdma::{Lane, Work};
use mooncake_verbs::{Access, Operation, Piece, Region, Remote};

use super::connector::LaneError;
use crate::transport::context::Context;

/// Bytes that go at a time.
pub(super) const RING_BYTES: usize = 8 << 20;

/// A piece of a request whose local end is not registered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StagedWork {
    pub operation: Operation,
    pub local: ForeignRange,
    pub remote: Remote,
}

/// The memory, of one lane.
#[derive(Debug)]
pub(crate) struct Ring {
    region: Region,
}

impl Ring {
    pub fn new(lane: &Lane) -> Result<Ring, LaneError> {
        let pages = PrivatePages::parts(1, RING_BYTES).map_err(|error| LaneError::NoRing(error.to_string()))?;
        let pages = pages.into_iter().next().expect("one");
        let access = Access { local_write: true, ..Access::default() };
        let region = Region::register_pages(lane.nic().domain(), pages, access);
        Ok(Ring { region: region.map_err(|error| LaneError::NoRing(error.to_string()))? })
    }

    /// Carries work out, as much at a time as there is room for. No piece is longer than the memory.
    pub fn carry(
        &self,
        context: &Context,
        lane: &mut Lane,
        works: &[StagedWork],
        deadline: &Deadline<'_>,
        stall: Duration,
    ) -> Result<(), LaneError> {
        let (mut bounce, mut rest) = (Bounce::new(), works);
        while !rest.is_empty() {
            let mut end = 0;
            let fits = rest.iter().take_while(|work| {
                end += work.local.len();
                end <= RING_BYTES
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            rest = later;
            let places: Vec<(usize, Piece)> = self.places(now);
            for (work, (at, _)) in now.iter().zip(&places) {
                if work.operation == Operation::Write {
                    let into = self.region.range().part(*at, work.local.len());
                    context.copy(work.local, into, &mut bounce).map_err(LaneError::Local)?;
                }
            }
            let carried = now.iter().zip(&places);
            let mut carried = carried.map(|(work, (_, local))| Work {
                operation: work.operation,
                local: *local,
                remote: work.remote,
            });
            lane.carry(&mut carried, deadline, stall)?;
            for (work, (at, _)) in now.iter().zip(&places) {
                if work.operation == Operation::Read {
                    let from = self.region.range().part(*at, work.local.len());
                    context.copy(from, work.local, &mut bounce).map_err(LaneError::Local)?;
                }
            }
        }
        Ok(())
    }

    fn places(&self, works: &[StagedWork]) -> Vec<(usize, Piece)> {
        let mut at = 0;
        let place = |work: &StagedWork| {
            let start = at;
            at += work.local.len();
            (start, self.region.piece(start, work.local.len()).expect("it fits"))
        };
        works.iter().map(place).collect()
    }
}

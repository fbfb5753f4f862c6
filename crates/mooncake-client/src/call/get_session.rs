//! Get sessions: how look-ups and bytes get on their way. What they are is said in [`crate::machine::get_session`].

use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{Destination, Neighbours};
use mooncake_wire::message::Object;

use crate::call::fan_out::{fan_out, threads_for};
use crate::call::get::Part;
use crate::call::ranges::{GetRanges, ReadRange};
use crate::error::{Cause, StoreError};
use crate::inner::Inner;
use crate::machine::get_session::{Found, GetSessionDriver, GetSessions, read, start};
use crate::machine::numbering::Numbering;
use crate::machine::ready;
use crate::segments::directory::{MetSegments, segment_of};
use crate::transfer_error::is_no_staging;

/// A store's get sessions.
type Sessions = GetSessions<MetSegments, Numbering>;

impl GetSessionDriver for Inner {
    type MetSegments = MetSegments;

    fn get_sessions(&self) -> impl std::ops::DerefMut<Target = Sessions> {
        self.get_sessions.lock()
    }

    async fn protect(&self, keys: &[&[u8]]) -> Result<(), StoreError> {
        self.exists(keys, false, (), |_, _| ()).map(drop)
    }

    fn met_segments(&self, object: &Object, numbering: Numbering) -> MetSegments {
        self.shared.directory.met_segments(numbering, &object.replicas)
    }
}

impl Inner {
    pub(crate) fn start_get_sessions(&self, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
        ready(start(self, keys))
    }

    pub(crate) fn end_get_sessions(&self, keys: &[&[u8]]) {
        let mut sessions = self.get_sessions.lock();
        keys.iter().for_each(|key| sessions.end(key));
    }

    /// Bytes read for each key.
    pub(crate) fn read_in_sessions(&self, items: &mut [GetRanges<'_>]) -> Vec<Result<u64, StoreError>> {
        let found: Vec<_> = {
            let mut sessions = self.get_sessions.lock();
            items.iter().map(|item| sessions.find(item.key)).collect()
        };
        let destinations = || items.iter().flat_map(|item| &item.ranges).map(|range| &range.destination);
        let neighbours = Neighbours::of_destinations(destinations());
        let on_device =
            destinations().filter(|destination| destination.is_on_device()).map(|destination| destination.len() as u64);
        let threads = threads_for(items.len(), on_device.fold(0, u64::saturating_add));
        let read = |(item, found): &mut (&mut GetRanges<'_>, Result<Arc<_>, StoreError>),
                    stop: &(dyn Fn() -> bool + Sync)| {
            found.as_ref().map_err(Clone::clone).and_then(|found| self.read_in_session(item, found, &neighbours, stop))
        };
        let starved = |outcome: &Result<u64, StoreError>| matches!(outcome, Err(error) if is_no_staging(error));
        fan_out(items.iter_mut().zip(found).collect(), threads, &|| self.is_interrupted(), starved, read).0
    }

    fn read_in_session(
        &self,
        item: &mut GetRanges<'_>,
        found: &Arc<Found<MetSegments, Numbering>>,
        neighbours: &Neighbours,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<u64, StoreError> {
        let object = &found.object;
        let mut bytes = 0_u64;
        for range in &item.ranges {
            let len = range.destination.len() as u64;
            if range.offset.checked_add(len).is_none_or(|end| end > object.size) {
                let (from, size) = (range.offset, object.size);
                let reason = format!("{len} bytes from byte {from} on: the object has {size} bytes");
                return Err(Cause::InvalidParams(reason).into());
            }
            bytes = bytes.saturating_add(len);
        }
        let GetRanges { key, ranges } = item;
        ready(read(self, key, found, async |replica| {
            let address = segment_of(&found.met, Rid(replica.rid));
            let mut rest = &mut ranges[..];
            while let Some(offset) = rest.first().map(|range| range.offset) {
                let (run, others) = rest.split_at_mut(run_of(rest));
                let (mut one, mut several);
                let destinations: &mut [Destination<'_>] = match run {
                    // The usual case is worth no allocation.
                    [range] => {
                        one = [range.destination.reborrow().among(neighbours)];
                        &mut one
                    }
                    run => {
                        several = run
                            .iter_mut()
                            .map(|range| range.destination.reborrow().among(neighbours))
                            .collect::<Vec<_>>();
                        &mut several
                    }
                };
                let part = Part { offset, destinations };
                self.read_replica_at((key, object), replica, address, part, interrupted)?;
                rest = others;
            }
            Ok(())
        }))?;
        Ok(bytes)
    }
}

/// How many of the ranges, from the first on, lie one behind the other in the object: they are read at once.
fn run_of(ranges: &[ReadRange<'_>]) -> usize {
    let follows = |pair: &[ReadRange<'_>]| pair[0].offset + pair[0].destination.len() as u64 == pair[1].offset;
    1 + ranges.windows(2).take_while(|pair| follows(pair)).count()
}

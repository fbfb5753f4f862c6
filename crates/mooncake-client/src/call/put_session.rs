//! Put sessions: how reservations and bytes get on their way. What they are is said in [`crate::machine::put_session`].

use std::ops::DerefMut;
use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{Destination, Neighbours, Source, crc32c_append, crc32c_combine, total_of_sources};
use mooncake_wire::message::{Lookup, Object, Replica, reply, request};
use mooncake_wire::pack_keys;

use crate::call::fan_out::{fan_out, threads_for};
use crate::call::put::{Driver, PutItem, check_all};
use crate::error::{Cause, StoreError};
use crate::inner::Inner;
use crate::machine::filling::Combine;
use crate::machine::progress::HeldReservations;
use crate::machine::put::{PutDriver as _, Unwritten};
use crate::machine::put_session::{self, NEW_SESSION, PutSessionDriver, PutSessions, Reserved, write_part};
use crate::machine::ready;
use crate::options::PutOptions;
use crate::segments::directory::{MetSegments, segment_of};
use crate::session::reservation_origin::ReservationOrigin;
use crate::transfer_error::{is_no_staging, link_error, transfer_error};

/// Bytes of an object that are read back at a time, to be summed while they are in the cache.
const CHUNK: u64 = 256 << 10;

/// A store's put sessions.
type Sessions = PutSessions<ReservationOrigin, MetSegments>;

/// Parts of one object that a session writes.
#[derive(Debug)]
pub struct PutRanges<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The parts.
    pub ranges: Vec<WriteRange<'a>>,
}

/// A part of an object: the bytes from `offset` on.
#[derive(Debug, Clone, Copy)]
pub struct WriteRange<'a> {
    /// First byte of the object.
    pub offset: u64,
    /// What it is to be.
    pub source: Source<'a>,
}

impl PutSessionDriver for Driver<'_> {
    type MetSegments = MetSegments;
    const COMBINE: Combine = crc32c_combine;

    fn put_sessions(&self) -> impl DerefMut<Target = Sessions> {
        self.store.shared.put_sessions.lock()
    }

    fn hold(&self, rids: Vec<Rid>) -> Arc<HeldReservations> {
        let control = &self.store.shared.control;
        control.progress.lock().hold(control.now(), rids)
    }

    fn met_segments(&self, origin: &ReservationOrigin, replicas: &[Replica]) -> MetSegments {
        self.store.shared.directory.met_segments(origin.numbering, replicas)
    }

    fn is_lost(&self, reserved: &Reserved<ReservationOrigin, MetSegments>, replica: &Replica) -> bool {
        segment_of(&reserved.met, Rid(replica.rid)).is_none() || !self.is_current(&reserved.origin)
    }

    async fn rids_of(&self, origin: &ReservationOrigin, keys: &[&[u8]]) -> Result<Vec<Vec<Rid>>, StoreError> {
        const WHAT: &str = "a lookup";
        let control = &self.store.shared.control;
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(keys)) });
        let reply = control.query(WHAT, body, control.lookup_timeout)?;
        let reply::Body::Lookup(found) = reply.body else { return Err(control.confused(WHAT)) };
        if !reply.session.is(&origin.session) {
            return Ok(Vec::new());
        }
        let rids = |object: &Object| object.replicas.iter().map(|replica| Rid(replica.rid)).collect();
        Ok(found.objects.iter().map(rids).collect())
    }

    fn is_interrupted(&self) -> bool {
        self.store.is_interrupted()
    }

    async fn sum_of(
        &self,
        reserved: &Reserved<ReservationOrigin, MetSegments>,
        replica: &Replica,
    ) -> Result<u32, Unwritten> {
        let (store, size) = (self.store, reserved.size);
        let unread =
            |error: StoreError, passing| Unwritten { final_word: error.is_callers(), passing, error, settled: true };
        let [extent] = &replica.extents[..] else { return Err(unread(store.shared.control.confused("a put"), false)) };
        let Some(address) = segment_of(&reserved.met, Rid(replica.rid)) else {
            return Err(unread(Cause::Transfer(format!("segment {} has left the pool", extent.segment)).into(), false));
        };
        let interrupted = || self.store.is_interrupted();
        let deadline = store.transfer_deadline(size, &interrupted);
        let link = store.shared.links.link(address, &deadline);
        let link = link.map_err(|error| unread(link_error(&error), error.is_passing()))?;
        let (mut buffer, mut done, mut sum) = (vec![0; CHUNK.min(size) as usize], 0, 0);
        while done < size {
            let chunk = &mut buffer[..CHUNK.min(size - done) as usize];
            let mut destinations = [Destination::new(chunk)];
            let read = link.read(Rid(replica.rid), extent.offset + done, &mut destinations, None, &deadline);
            read.map_err(|error| {
                let passing = error.is_passing();
                unread(transfer_error(error), passing)
            })?;
            sum = crc32c_append(sum, chunk);
            done += chunk.len() as u64;
        }
        Ok(sum)
    }
}

impl Inner {
    pub(crate) fn start_put_sessions(
        &self,
        keys: &[&[u8]],
        sizes: &[u64],
        options: &PutOptions,
    ) -> Vec<Result<(), StoreError>> {
        let items = items(keys);
        let checked = check_all(&items, sizes, options);
        ready(put_session::start(&self.driver(&items, sizes, options), keys, sizes, checked))
    }

    pub(crate) fn end_put_sessions(&self, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
        ready(put_session::end(&self.driver(&[], &[], &PutOptions::default()), keys))
    }

    pub(crate) fn abort_put_sessions(&self, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
        ready(put_session::abort(&self.driver(&[], &[], &PutOptions::default()), keys))
    }

    /// The store closes: what its put sessions hold is room for others.
    pub(crate) fn close_put_sessions(&self) {
        let all = self.shared.put_sessions.lock().close();
        ready(put_session::abort_placements(&self.driver(&[], &[], &PutOptions::default()), all));
    }

    /// Bytes written for each key.
    pub(crate) fn write_in_sessions(&self, items: &[PutRanges<'_>]) -> Vec<Result<u64, StoreError>> {
        let sources = || items.iter().flat_map(|item| &item.ranges).map(|range| &range.source);
        let neighbours = Neighbours::of_sources(sources());
        let on_device = sources().filter(|source| source.is_on_device()).map(|source| source.len() as u64);
        let threads = threads_for(items.len(), on_device.fold(0, u64::saturating_add));
        let write = |item: &mut &PutRanges<'_>, stop: &(dyn Fn() -> bool + Sync)| {
            self.write_in_session(item, &neighbours, stop)
        };
        let starved = |outcome: &Result<u64, StoreError>| matches!(outcome, Err(error) if is_no_staging(error));
        fan_out(items.iter().collect(), threads, &|| self.is_interrupted(), starved, write).0
    }

    fn write_in_session(
        &self,
        item: &PutRanges<'_>,
        neighbours: &Neighbours,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<u64, StoreError> {
        let options = PutOptions::default();
        let driver = self.driver(&[], &[], &options);
        let (mut bytes, mut rest) = (0_u64, &item.ranges[..]);
        while let Some(first) = rest.first() {
            let (run, others) = rest.split_at(run_of(rest));
            rest = others;
            let sources: Vec<Source<'_>> = run.iter().map(|range| range.source.among(neighbours)).collect();
            let part = (first.offset, total_of_sources(&sources));
            ready(write_part(&driver, item.key, part, async |reserved, replica| {
                let (origin, address) = (&reserved.origin, segment_of(&reserved.met, Rid(replica.rid)));
                // Links tell sessions apart by numbers, which begin anew with another log.
                if !driver.is_current(origin) {
                    let over = Cause::Transfer(NEW_SESSION.into());
                    return Err(Unwritten { error: over.into(), final_word: false, passing: false, settled: true });
                }
                self.write_replica_at(replica, address, (first.offset, &sources), origin, interrupted)
            }))?;
            bytes = bytes.saturating_add(part.1);
        }
        Ok(bytes)
    }

    fn driver<'a>(&'a self, items: &'a [PutItem<'a>], sizes: &'a [u64], options: &'a PutOptions) -> Driver<'a> {
        Driver { store: self, items, sizes, options }
    }
}

fn items<'a>(keys: &[&'a [u8]]) -> Vec<PutItem<'a>> {
    keys.iter().map(|key| PutItem { key, value: &[] }).collect()
}

/// How many of the ranges, from the first on, lie one behind the other in the object: they are written at once.
fn run_of(ranges: &[WriteRange<'_>]) -> usize {
    let follows =
        |pair: &[WriteRange<'_>]| pair[0].offset.checked_add(pair[0].source.len() as u64) == Some(pair[1].offset);
    1 + ranges.windows(2).take_while(|pair| follows(pair)).count()
}

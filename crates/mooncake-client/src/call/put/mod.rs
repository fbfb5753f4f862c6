//! Puts: what a call is to store, and how its bytes and messages get on their way. When it does what is decided in
//! [`crate::machine::put`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_memory::{Source, total_of_sources};
use mooncake_segment::SegmentAddress;
use mooncake_wire::message::{Abort, Ended, PutConfig, PutEnd, PutSlot, PutStart, reply, request};
use mooncake_wire::{KEY_BYTES_MAX, pack_keys};

use crate::call::fan_out::{fan_out, threads_for};
use crate::error::{Cause, StoreError};
use crate::inner::Inner;
use crate::key::check_key;
use crate::machine::call::IfUnanswered;
use crate::machine::orphans::abort;
use crate::machine::put::{PlacedKey, PutDriver, PutOutcome, Unwritten, Written, put, write_key};
use crate::machine::ready;
use crate::options::{PinKind, PutOptions};
use crate::session::reservation_origin::ReservationOrigin;
use crate::transfer_error::{is_no_staging, link_error, transfer_error};

#[cfg(test)]
mod tests;

/// Longest that the master parks a put, and some.
const PARK_TIME_MAX: Duration = Duration::from_millis(2_500);

/// Most replicas of an object.
const REPLICAS_MAX: u32 = 64;

/// Says that a soft pin names no lifetime: the master's default holds.
const MASTERS_TTL: u64 = u64::MAX;

/// Rounds of so many bytes are worth a look at the caller's interrupt hook before they become objects.
const WORTH_A_LOOK: u64 = 1 << 20;

/// One object of a batch put.
#[derive(Debug, Clone, Copy)]
pub struct PutItem<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value: the concatenation of the pieces.
    pub value: &'a [Source<'a>],
}

impl Inner {
    pub(crate) fn put_batch(&self, items: &[PutItem<'_>], options: &PutOptions) -> Vec<Result<PutOutcome, StoreError>> {
        let sizes: Vec<u64> = items.iter().map(|item| total_of_sources(item.value)).collect();
        let results = check_all(items, &sizes, options);
        let driver = Driver { store: self, items, sizes: &sizes, options };
        ready(put(&driver, &sizes, results, self.settings.put_timeout))
    }
}

/// What is wrong with items of these sizes from the beginning.
pub(crate) fn check_all<T>(
    items: &[PutItem<'_>],
    sizes: &[u64],
    options: &PutOptions,
) -> Vec<Option<Result<T, StoreError>>> {
    let groups = options.groups.len();
    if groups != 0 && groups != items.len() {
        let reason = format!("{groups} groups for {} objects; give one per object, or none", items.len());
        let error = StoreError::from(Cause::InvalidParams(reason));
        return items.iter().map(|_| Some(Err(error.clone()))).collect();
    }
    let first_look = items.iter().zip(sizes).enumerate();
    first_look.map(|(index, (item, size))| check(item, *size, options.groups.get(index)).err().map(Err)).collect()
}

fn check(item: &PutItem<'_>, size: u64, group: Option<&String>) -> Result<(), StoreError> {
    check_key(item.key)?;
    if let Some(group) = group
        && group.len() > KEY_BYTES_MAX
    {
        let reason = format!("a group's name has at most {KEY_BYTES_MAX} bytes, not {}", group.len());
        return Err(Cause::InvalidParams(reason).into());
    }
    if size == u64::MAX {
        let reason = "the sizes of this value's pieces add up to 2^64 - 1 bytes or more, which no memory has".into();
        return Err(Cause::InvalidParams(reason).into());
    }
    if size == 0 {
        return Err(Cause::InvalidParams("an object has at least one byte; this value is empty".into()).into());
    }
    Ok(())
}

/// A put call on its caller's thread.
pub(crate) struct Driver<'a> {
    pub store: &'a Inner,
    pub items: &'a [PutItem<'a>],
    pub sizes: &'a [u64],
    pub options: &'a PutOptions,
}

impl PutDriver for Driver<'_> {
    type ReservationOrigin = ReservationOrigin;

    fn now(&self) -> Duration {
        self.store.shared.control.now()
    }

    fn key_bytes(&self, index: usize) -> usize {
        self.items[index].key.len() + self.options.groups.get(index).map_or(0, String::len)
    }

    fn replicas(&self) -> usize {
        self.options.replica_num.clamp(1, REPLICAS_MAX) as usize
    }

    fn is_current(&self, origin: &ReservationOrigin) -> bool {
        self.store.shared.control.session().is(&origin.session)
    }

    async fn reserve(
        &self,
        indices: &[usize],
        wait: bool,
        first_rid: Rid,
    ) -> Result<(Vec<PutSlot>, ReservationOrigin), StoreError> {
        let control = &self.store.shared.control;
        let keys: Vec<&[u8]> = indices.iter().map(|&index| self.items[index].key).collect();
        let start = PutStart {
            keys: Some(pack_keys(&keys)),
            sizes: indices.iter().map(|&index| self.sizes[index]).collect(),
            config: Some(PutConfig {
                first_rid: first_rid.0,
                comes_again: !wait && !self.store.settings.put_timeout.is_zero(),
                ..config(self.options)
            }),
            wait,
            groups: (!self.options.groups.is_empty()).then(|| {
                let groups: Vec<&str> = indices.iter().map(|&index| self.options.groups[index].as_str()).collect();
                pack_keys(&groups)
            }),
        };
        let timeout = control.lookup_timeout + if wait { PARK_TIME_MAX } else { Duration::ZERO };
        let body = request::Body::PutStart(start);
        let reply = control.mutate(WHAT, body, timeout, IfUnanswered::AbortsPlacements)?;
        match reply.body {
            reply::Body::PutStart(started) if started.slots.len() == indices.len() => {
                Ok((started.slots, ReservationOrigin { numbering: reply.numbering, session: reply.session }))
            }
            _ => Err(self.confused()),
        }
    }

    async fn meet(&self, origin: &ReservationOrigin, placed: &[PlacedKey]) -> Result<(), StoreError> {
        let replicas = placed.iter().flat_map(|placed| &placed.slot.replicas);
        self.store.shared.directory.meet(&self.store.shared.control, origin.numbering, replicas)
    }

    async fn write_all(
        &self,
        origin: &ReservationOrigin,
        placed: &[PlacedKey],
    ) -> (Vec<Result<Written, Unwritten>>, bool) {
        let control = &self.store.shared.control;
        // Each has one, most often.
        let mut rids = Vec::with_capacity(placed.len());
        rids.extend(placed.iter().flat_map(|placed| placed.slot.replicas.iter().map(|replica| Rid(replica.rid))));
        let progress = control.progress.lock().begin(control.now(), rids);
        let stopped = AtomicBool::new(false);
        let write = |placed: &mut &PlacedKey, interrupted: &(dyn Fn() -> bool + Sync)| {
            if stopped.load(Ordering::Relaxed) {
                return Err(Unwritten::interrupted(true));
            }
            progress.begin_write();
            let pieces = self.items[placed.index].value;
            let outcome = ready(write_key(&placed.slot.replicas, |replica| {
                std::future::ready(self.store.write_replica(replica, 0, pieces, origin, interrupted))
            }));
            progress.end_write();
            if matches!(&outcome, Err(unwritten) if matches!(unwritten.error.cause(), Cause::Interrupted)) {
                stopped.store(true, Ordering::Relaxed);
            }
            outcome
        };
        let interrupted = || self.store.is_interrupted();
        let starved =
            |outcome: &Result<Written, Unwritten>| matches!(outcome, Err(unwritten) if found_no_staging(unwritten));
        let bytes: u64 = placed.iter().map(|placed| self.sizes[placed.index]).sum();
        let threads = self.threads_for(placed, bytes);
        let (written, told) = fan_out(placed.iter().collect(), threads, &interrupted, starved, write);
        // A copy within this host does not ask meanwhile whether the caller is interrupted.
        let interrupted = told || stopped.into_inner() || (bytes >= WORTH_A_LOOK && self.store.is_interrupted());
        control.progress.lock().end(&progress);
        (written, interrupted)
    }

    async fn end(&self, origin: &ReservationOrigin, ended: Vec<Ended>) -> Result<Option<Vec<i32>>, StoreError> {
        const WHAT: &str = "the end of a put";
        let control = &self.store.shared.control;
        let body = request::Body::PutEnd(PutEnd { ended });
        let reply = control.finish_in(&origin.session, WHAT, body, control.lookup_timeout * 2)?;
        match reply.map(|reply| reply.body) {
            None => Ok(None),
            Some(reply::Body::PutEnd(reply)) => Ok(Some(reply.outcomes)),
            Some(_) => Err(control.confused(WHAT)),
        }
    }

    async fn abort(&self, origin: &ReservationOrigin, rids: Vec<Rid>, settled: bool) {
        let body = request::Body::Abort(Abort { rids: rids.iter().map(|rid| rid.0).collect(), writer_done: settled });
        let control = &self.store.shared.control;
        if let Err(error) = control.finish_in(&origin.session, "abort a put", body, control.lookup_timeout) {
            tracing::debug!(%error, "placements not aborted yet");
            self.abort_later(origin, rids, settled);
        }
    }

    fn abort_later(&self, origin: &ReservationOrigin, rids: Vec<Rid>, settled: bool) {
        let control = &self.store.shared.control;
        abort(control, &origin.session, rids, settled);
    }

    async fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn confused(&self) -> StoreError {
        self.store.shared.control.confused(WHAT)
    }
}

const WHAT: &str = "a put";

impl Driver<'_> {
    /// Threads for the bytes of so many keys: several only where devices hold them.
    fn threads_for(&self, placed: &[PlacedKey], bytes: u64) -> usize {
        let threads = threads_for(placed.len(), bytes);
        if threads < 2 {
            return threads;
        }
        let is_on_device = |placed: &&PlacedKey| self.items[placed.index].value.iter().any(Source::is_on_device);
        let bytes = placed.iter().filter(is_on_device).map(|placed| self.sizes[placed.index]).sum();
        threads_for(placed.len(), bytes)
    }
}

/// Nothing was the matter but that others had all the memory that a device's bytes go through.
fn found_no_staging(unwritten: &Unwritten) -> bool {
    unwritten.settled && is_no_staging(&unwritten.error)
}

impl Inner {
    /// Writes the pieces to a replica, from this byte of the object on.
    pub(crate) fn write_replica(
        &self,
        replica: &mooncake_wire::message::Replica,
        offset: u64,
        pieces: &[Source<'_>],
        origin: &ReservationOrigin,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<u32, Unwritten> {
        let segment = replica.extents.first().map(|extent| extent.segment);
        let address = segment.and_then(|segment| self.shared.directory.find(origin.numbering, segment));
        self.write_replica_at(replica, address.as_ref(), (offset, pieces), origin, interrupted)
    }

    /// [`Inner::write_replica`] of a replica whose segment was met there, if it was.
    pub(crate) fn write_replica_at(
        &self,
        replica: &mooncake_wire::message::Replica,
        address: Option<&Arc<SegmentAddress>>,
        (offset, pieces): (u64, &[Source<'_>]),
        origin: &ReservationOrigin,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<u32, Unwritten> {
        let not_begun =
            |error: StoreError, passing| Unwritten { final_word: error.is_callers(), passing, error, settled: true };
        let [extent] = &replica.extents[..] else {
            return Err(not_begun(self.shared.control.confused(WHAT), false));
        };
        let Some(address) = address else {
            let gone = Cause::Transfer(format!("segment {} has left the pool", extent.segment));
            return Err(not_begun(gone.into(), false));
        };
        let deadline = self.transfer_deadline(extent.length, interrupted);
        let link = self.shared.links.link_to_write(origin.session.id, address, &deadline);
        let link = link.map_err(|error| not_begun(link_error(&error), error.is_passing()))?;
        link.write_part(Rid(replica.rid), extent.offset + offset, pieces, extent.length, &deadline).map_err(|failed| {
            let (passing, error) = (failed.error.is_passing(), transfer_error(failed.error));
            Unwritten { final_word: error.is_callers(), passing, error, settled: failed.settled }
        })
    }
}

fn config(options: &PutOptions) -> PutConfig {
    PutConfig {
        replica_num: options.replica_num.clamp(1, REPLICAS_MAX),
        preferred_segments: options.preferred_segments.clone(),
        hard_pin: options.pin == PinKind::Hard,
        soft_pin_ttl_ms: match options.pin {
            PinKind::Soft { ttl_ms } => ttl_ms.map_or(MASTERS_TTL, |ttl_ms| ttl_ms.min(MASTERS_TTL - 1)),
            PinKind::None | PinKind::Hard | PinKind::Cleared => 0,
        },
        prefer_local: options.prefer_local,
        replace: options.replace,
        soft_pin_clear: matches!(options.pin, PinKind::Cleared | PinKind::Soft { ttl_ms: Some(0) }),
        first_rid: 0,
        comes_again: false,
    }
}

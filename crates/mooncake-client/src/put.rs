//! Puts: reserve, write, end; then, holding nothing, wait for the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::{CopyError, Source, total_of_sources};
use mooncake_transfer::TransferError;
use mooncake_wire::message::{
    Abort, Ended, PutConfig, PutEnd, PutSlot, PutStart, ReplicaOutcome, put_end_reply, put_slot, reply, request,
};
use mooncake_wire::{MAX_KEY, pack_keys};

use crate::control::Abandoned;
use crate::directory::Numbering;
use crate::error::{Cause, StoreError};
use crate::options::{PinKind, PutOptions};
use crate::orphans;
use crate::rounds::ROUND_KEY_BYTES;
use crate::session::Session;
use crate::store::{Inner, check_key};
use crate::team::{share, threads_for};

/// Most bytes reserved at a time: space held by puts under way is space that nobody can use.
const ROUND_BYTES: u64 = 64 << 20;

/// Most keys reserved at a time.
const ROUND_KEYS: usize = 8_192;

/// Longest that the master parks a put, and some.
const PARKED: Duration = Duration::from_millis(2_500);

/// Tries of one key that ended with nothing stored though it was placed.
const ATTEMPTS: u32 = 4;

/// Most copies of an object that a master makes.
const MAX_REPLICAS: u32 = 64;

/// Says that a soft pin names no lifetime: the master's default holds.
const MASTERS_TTL: u64 = u64::MAX;

/// Rounds of so many bytes are worth a look at the caller's interrupt hook before they become objects.
const WORTH_A_LOOK: u64 = 1 << 20;

/// Pause before a key is tried again whose placement did not work out.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// One object of a batch put.
#[derive(Debug, Clone, Copy)]
pub struct PutItem<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value: the concatenation of the pieces.
    pub value: &'a [Source<'a>],
}

/// What a successful put did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// Stored, in so many copies.
    Stored {
        /// Copies that are readable; fewer than asked for when there are fewer clients.
        replicas: u32,
    },
    /// The key was there already, and keeps its value: the first writer wins.
    Existed,
}

impl Inner {
    pub(crate) fn put_batch(&self, items: &[PutItem<'_>], options: &PutOptions) -> Vec<Result<PutOutcome, StoreError>> {
        let groups = options.groups.len();
        if groups != 0 && groups != items.len() {
            let reason = format!("{groups} groups for {} objects; give one per object, or none", items.len());
            let error = StoreError::from(Cause::InvalidParams(reason));
            return items.iter().map(|_| Err(error.clone())).collect();
        }
        let mut put = Put {
            store: self,
            items,
            options,
            sizes: Vec::with_capacity(items.len()),
            results: (0..items.len()).map(|_| None).collect(),
            attempts: vec![0; items.len()],
            first: None,
        };
        put.run();
        let lost = || Err(Cause::Superseded { attempts: 0 }.into());
        put.results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
    }
}

struct Put<'a> {
    store: &'a Inner,
    items: &'a [PutItem<'a>],
    options: &'a PutOptions,
    sizes: Vec<u64>,
    results: Vec<Option<Result<PutOutcome, StoreError>>>,
    attempts: Vec<u32>,
    /// Lowest rid of all its rounds in the last session: the master spares what this call has stored when a later round
    /// needs room. Under another log the same number may be below all that there is.
    first: Option<(Arc<Session>, u64)>,
}

/// What a round did with the keys it was given.
#[derive(Default)]
struct Round {
    /// To be tried again, with what is in the way if that is final.
    rest: Vec<(usize, StoreError)>,
    /// Something was placed, or found to be there.
    progress: bool,
    /// Placed, and yet nothing stored.
    setback: bool,
    /// The caller's interrupt hook ended it, and the whole call with it.
    interrupted: bool,
}

/// Where a reservation comes from.
struct Origin {
    numbering: Numbering,
    session: Arc<Session>,
}

/// A placement that is to be written.
struct Placed {
    index: usize,
    slot: PutSlot,
}

impl Put<'_> {
    fn run(&mut self) {
        for item in self.items {
            self.sizes.push(total_of_sources(item.value));
        }
        let mut pending: Vec<usize> = Vec::with_capacity(self.items.len());
        for index in 0..self.items.len() {
            match self.check(index) {
                Ok(()) => pending.push(index),
                Err(error) => self.results[index] = Some(Err(error)),
            }
        }
        // A single key may wait in the master at once: it holds nothing.
        let mut wait = pending.len() == 1;
        let mut patience = self.store.settings.put_timeout;
        let mut pending = std::collections::VecDeque::from(pending);
        // Keys of this pass; what they leave over goes to the next one, which waits.
        let mut left = pending.len();
        while !pending.is_empty() {
            let keys = self.take_round(&mut pending, left);
            left -= keys.len().min(left);
            let started = Instant::now();
            let wait_now = wait && !patience.is_zero();
            let round = self.round(&keys, wait_now);
            if round.interrupted {
                let rest = pending.drain(..).chain(round.rest.into_iter().map(|(index, _)| index));
                self.fail_all(rest, &Cause::Interrupted.into());
                return;
            }
            if !round.progress || round.setback {
                patience = patience.saturating_sub(started.elapsed());
            }
            let over = patience.is_zero();
            for (index, error) in round.rest {
                // Nothing moved while the master itself waited: that is its last word.
                let last_word = wait_now && !round.progress;
                if over || last_word || self.attempts[index] >= ATTEMPTS {
                    self.results[index] = Some(Err(error));
                } else {
                    pending.push_back(index);
                }
            }
            if left == 0 {
                wait = true;
                left = pending.len();
                if round.setback {
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    fn check(&self, index: usize) -> Result<(), StoreError> {
        check_key(self.items[index].key)?;
        if let Some(group) = self.options.groups.get(index)
            && group.len() > MAX_KEY
        {
            let reason = format!("a group's name has at most {MAX_KEY} bytes, not {}", group.len());
            return Err(Cause::InvalidParams(reason).into());
        }
        if self.sizes[index] == u64::MAX {
            let reason =
                "the sizes of this value's pieces add up to 2^64 - 1 bytes or more, which no memory has".into();
            return Err(Cause::InvalidParams(reason).into());
        }
        if self.sizes[index] == 0 {
            return Err(Cause::InvalidParams("an object has at least one byte; this value is empty".into()).into());
        }
        Ok(())
    }

    /// The keys of the next round: as many as may be reserved at a time.
    fn take_round(&self, pending: &mut std::collections::VecDeque<usize>, most: usize) -> Vec<usize> {
        let mut keys = Vec::new();
        let (mut bytes, mut key_bytes) = (0_u64, 0);
        while let Some(&index) = pending.front() {
            bytes = bytes.saturating_add(self.sizes[index]);
            key_bytes += self.items[index].key.len() + self.options.groups.get(index).map_or(0, String::len);
            let full = keys.len() == most.min(ROUND_KEYS) || bytes > ROUND_BYTES || key_bytes > ROUND_KEY_BYTES;
            if full && !keys.is_empty() {
                break;
            }
            keys.push(index);
            pending.pop_front();
        }
        keys
    }

    fn fail_all(&mut self, keys: impl Iterator<Item = usize>, error: &StoreError) {
        for index in keys {
            self.results[index] = Some(Err(error.clone()));
        }
    }

    fn round(&mut self, keys: &[usize], wait: bool) -> Round {
        let mut round = Round::default();
        let (slots, origin) = match self.reserve(keys, wait) {
            Ok(reserved) => reserved,
            Err(error) => {
                self.fail_all(keys.iter().copied(), &error);
                return round;
            }
        };
        let rids = slots.iter().flat_map(|slot| &slot.replicas).map(|replica| replica.rid);
        let earlier = self.first_rid_in(&origin.session);
        self.first = earlier.into_iter().chain(rids).min().map(|first| (origin.session.clone(), first));
        let mut placed = Vec::new();
        for (&index, slot) in keys.iter().zip(slots) {
            let bytes = self.sizes[index];
            match slot.kind() {
                put_slot::Kind::Placed => {
                    round.progress = true;
                    placed.push(Placed { index, slot });
                }
                put_slot::Kind::Exists => {
                    round.progress = true;
                    self.results[index] = Some(Ok(PutOutcome::Existed));
                }
                put_slot::Kind::Busy => round.rest.push((index, Cause::Busy { reason: slot.reason }.into())),
                put_slot::Kind::Full => round.rest.push((index, Cause::NoSpace { bytes, reason: slot.reason }.into())),
                put_slot::Kind::TooLarge => {
                    self.results[index] = Some(Err(Cause::TooLarge { bytes, reason: slot.reason }.into()));
                }
                // Perhaps for what this very call holds: once more when it holds nothing.
                put_slot::Kind::Refused => {
                    round.rest.push((index, Cause::PutRefused { bytes, reason: slot.reason }.into()))
                }
                put_slot::Kind::Unspecified => {
                    self.results[index] = Some(Err(self.store.shared.control.confused("a put")));
                }
            }
        }
        if !placed.is_empty() {
            self.write_and_end(placed, &origin, &mut round);
        }
        round
    }

    /// Of its rounds in this session.
    fn first_rid_in(&self, session: &Session) -> Option<u64> {
        self.first.as_ref().filter(|(of, _)| of.is(session)).map(|(_, first)| *first)
    }

    fn reserve(&self, keys: &[usize], wait: bool) -> Result<(Vec<PutSlot>, Origin), StoreError> {
        const WHAT: &str = "a put";
        let control = &self.store.shared.control;
        let names: Vec<&[u8]> = keys.iter().map(|&index| self.items[index].key).collect();
        let first_rid = self.first_rid_in(&control.session()).unwrap_or(0);
        let start = PutStart {
            keys: Some(pack_keys(&names)),
            sizes: keys.iter().map(|&index| self.sizes[index]).collect(),
            config: Some(PutConfig { first_rid, ..config(self.options) }),
            wait,
            groups: (!self.options.groups.is_empty()).then(|| {
                let groups: Vec<&str> = keys.iter().map(|&index| self.options.groups[index].as_str()).collect();
                pack_keys(&groups)
            }),
        };
        let patience = control.lookup_timeout + if wait { PARKED } else { Duration::ZERO };
        let body = request::Body::PutStart(start);
        let answer = control.mutate(WHAT, body, patience, Abandoned::GivesUpPlacements)?;
        match answer.body {
            reply::Body::PutStart(reply) if reply.slots.len() == keys.len() => {
                Ok((reply.slots, Origin { numbering: answer.numbering, session: answer.session }))
            }
            _ => Err(control.confused(WHAT)),
        }
    }

    /// Writes what was placed and ends all of it with one call.
    fn write_and_end(&mut self, placed: Vec<Placed>, origin: &Origin, round: &mut Round) {
        let control = &self.store.shared.control;
        let all_rids = || placed.iter().flat_map(|placed| placed.slot.replicas.iter().map(|replica| replica.rid));
        let replicas = placed.iter().flat_map(|placed| &placed.slot.replicas);
        if let Err(error) = self.store.shared.directory.meet(control, origin.numbering, replicas) {
            self.store.give_up(origin, all_rids().collect(), true);
            self.fail_all(placed.iter().map(|placed| placed.index), &error);
            return;
        }

        let progress = control.progress.lock().begin(control.now(), all_rids().collect());
        let stopped = AtomicBool::new(false);
        let write = |placed: &mut &Placed, interrupted: &dyn Fn() -> bool| {
            if stopped.load(Ordering::Relaxed) {
                return Err(Lost::interrupted(true));
            }
            progress.begin_write();
            let outcome = self.write(placed, origin, interrupted);
            progress.end_write();
            if matches!(&outcome, Err(lost) if matches!(lost.error.cause(), Cause::Interrupted)) {
                stopped.store(true, Ordering::Relaxed);
            }
            outcome
        };
        let interrupted = || self.store.is_interrupted();
        let starved = |outcome: &Result<Written, Lost>| matches!(outcome, Err(lost) if lost.found_no_staging());
        let (mut written, told) =
            share(placed.iter().collect(), self.threads_for(&placed), &interrupted, starved, write);
        // A copy within this host does not look up meanwhile: what the caller has given up is not to become an object.
        let bytes: u64 = placed.iter().map(|placed| self.sizes[placed.index]).sum();
        round.interrupted = told || stopped.into_inner() || (bytes >= WORTH_A_LOOK && self.store.is_interrupted());
        if round.interrupted {
            for outcome in &mut written {
                if let Ok(written) = outcome {
                    *outcome = Err(Lost::interrupted(written.is_settled()));
                }
            }
        }
        control.progress.lock().end(&progress);
        self.end(&placed, written, origin, round);
    }

    /// Threads for the bytes of so many keys: several only where devices hold them.
    fn threads_for(&self, placed: &[Placed]) -> usize {
        let threads = threads_for(placed.len(), placed.iter().map(|placed| self.sizes[placed.index]).sum());
        if threads < 2 {
            return threads;
        }
        let is_on_device = |placed: &&Placed| self.items[placed.index].value.iter().any(Source::is_on_device);
        let bytes = placed.iter().filter(is_on_device).map(|placed| self.sizes[placed.index]).sum();
        threads_for(placed.len(), bytes)
    }

    /// Writes every replica of one key.
    fn write(&self, placed: &Placed, origin: &Origin, interrupted: &dyn Fn() -> bool) -> Result<Written, Lost> {
        let parts = self.items[placed.index].value;
        let outcomes = Vec::with_capacity(placed.slot.replicas.len());
        let mut written = Written { crc32c: 0, outcomes, spoilt: Vec::new() };
        let mut good = 0;
        let mut lost: Option<Lost> = None;
        let mut settled = true;
        for replica in &placed.slot.replicas {
            match self.store.write_replica(replica, parts, origin, interrupted) {
                // Copies that differ mean that the caller changed the bytes in between.
                Ok(crc) if good > 0 && crc != written.crc32c => {
                    written.spoilt.push(replica.rid);
                    written.outcomes.push(ReplicaOutcome { rid: replica.rid, good: false });
                }
                Ok(crc) => {
                    written.crc32c = crc;
                    good += 1;
                    written.outcomes.push(ReplicaOutcome { rid: replica.rid, good: true });
                }
                Err(failed) => {
                    settled &= failed.settled;
                    if failed.settled {
                        written.spoilt.push(replica.rid);
                    }
                    let stop = failed.final_word;
                    let rid = format_args!("{:#x}", replica.rid);
                    if stop {
                        // The caller is told, and what it gave is its own affair.
                        tracing::debug!(rid, error = %failed.error, "a copy was not written");
                    } else {
                        tracing::warn!(rid, error = %failed.error, "a copy was not written");
                    }
                    lost = Some(failed);
                    if stop {
                        break;
                    }
                    written.outcomes.push(ReplicaOutcome { rid: replica.rid, good: false });
                }
            }
        }
        match lost {
            Some(lost) if good == 0 || lost.final_word => Err(Lost { settled, ..lost }),
            _ => Ok(written),
        }
    }

    fn end(&mut self, placed: &[Placed], written: Vec<Result<Written, Lost>>, origin: &Origin, round: &mut Round) {
        let mut ended = Vec::with_capacity(placed.len());
        let mut ended_keys = Vec::with_capacity(placed.len());
        let mut given_up = Vec::new();
        let mut unsettled = Vec::new();
        let mut spoilt = Vec::new();
        // Should it not be delivered: an Abort says of all copies of a key that nothing touches them again, or of none.
        let (mut settled, mut open) = (Vec::new(), Vec::new());
        for (placed, written) in placed.iter().zip(written) {
            match written {
                Ok(written) => {
                    let good = written.outcomes.iter().filter(|outcome| outcome.good).count() as u32;
                    ended_keys.push((placed.index, good));
                    let undelivered = if written.is_settled() { &mut settled } else { &mut open };
                    undelivered.extend(written.outcomes.iter().map(|outcome| outcome.rid));
                    spoilt.extend(written.spoilt);
                    ended.push(Ended { replicas: written.outcomes, crc32c: written.crc32c });
                }
                Err(lost) => {
                    let rids = placed.slot.replicas.iter().map(|replica| replica.rid);
                    if lost.settled {
                        given_up.extend(rids);
                    } else {
                        unsettled.extend(rids);
                    }
                    if lost.final_word {
                        self.results[placed.index] = Some(Err(lost.error));
                    } else {
                        self.try_again(placed.index, lost.error, round);
                    }
                }
            }
        }
        self.store.give_up(origin, given_up, true);
        self.store.give_up(origin, unsettled, false);
        if ended.is_empty() {
            return;
        }
        const WHAT: &str = "the end of a put";
        let control = &self.store.shared.control;
        let body = request::Body::PutEnd(PutEnd { ended });
        let patience = control.lookup_timeout * 2;
        let answer = control.finish_in(&origin.session, WHAT, body, patience).map(|answer| answer.map(|it| it.body));
        let outcomes = match answer {
            // The placements ended with their session: whoever gets one in the next session may find these rids in it.
            Ok(None) => vec![put_end_reply::Outcome::Superseded.into(); ended_keys.len()],
            Ok(Some(reply::Body::PutEnd(reply))) if reply.outcomes.len() == ended_keys.len() => reply.outcomes,
            other => {
                // Whoever was told of a failure must not keep the key. What was committed, and only the word of it was
                // lost, is not given up by that.
                orphans::give_up(control, &origin.session, settled, true);
                orphans::give_up(control, &origin.session, open, false);
                let error = other.err().unwrap_or_else(|| control.confused(WHAT));
                self.fail_all(ended_keys.iter().map(|(index, _)| *index), &error);
                return;
            }
        };
        // Ended as bad, and nothing of them can land any more: no fence has to prove that.
        self.store.give_up(origin, spoilt, true);
        for ((index, replicas), outcome) in ended_keys.into_iter().zip(outcomes) {
            match put_end_reply::Outcome::try_from(outcome) {
                Ok(put_end_reply::Outcome::Committed) => {
                    self.results[index] = Some(Ok(PutOutcome::Stored { replicas }));
                }
                _ => {
                    let attempts = self.attempts[index] + 1;
                    self.try_again(index, Cause::Superseded { attempts }.into(), round);
                }
            }
        }
    }

    fn try_again(&mut self, index: usize, error: StoreError, round: &mut Round) {
        self.attempts[index] += 1;
        round.setback = true;
        round.rest.push((index, error));
    }
}

/// A key whose bytes are in the pool, in at least one copy.
struct Written {
    crc32c: u32,
    outcomes: Vec<ReplicaOutcome>,
    /// Bad copies that nothing of this client will touch again.
    spoilt: Vec<u64>,
}

impl Written {
    /// Nothing of this client touches any copy again.
    fn is_settled(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.good || self.spoilt.contains(&outcome.rid))
    }
}

/// Bytes that did not get there.
pub(crate) struct Lost {
    error: StoreError,
    /// Trying again cannot help: the caller's own memory, or wish.
    final_word: bool,
    /// No byte of it can land any more.
    settled: bool,
}

impl Lost {
    /// The caller wants it no more.
    fn interrupted(settled: bool) -> Self {
        Self { error: Cause::Interrupted.into(), final_word: true, settled }
    }

    /// Nothing was the matter but that others had all the memory that a device's bytes go through.
    fn found_no_staging(&self) -> bool {
        self.settled && is_no_staging(&self.error)
    }
}

impl Inner {
    fn write_replica(
        &self,
        replica: &mooncake_wire::message::Replica,
        parts: &[Source<'_>],
        origin: &Origin,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<u32, Lost> {
        let untouched = |error: StoreError| Lost { final_word: is_callers(&error), error, settled: true };
        let [extent] = &replica.extents[..] else {
            return Err(untouched(self.shared.control.confused("a put")));
        };
        let Some(address) = self.shared.directory.find(origin.numbering, extent.segment) else {
            return Err(untouched(Cause::Transfer(format!("segment {} has left the pool", extent.segment)).into()));
        };
        let wait = self.transfer_wait(extent.length, interrupted);
        let link = self.shared.links.link_to_write(origin.session.id, &address, &wait);
        let link = link.map_err(|error| untouched(link_error(&error)))?;
        link.write(replica.rid, extent.offset, parts, &wait).map_err(|failed| {
            let error = transfer_error(failed.error);
            Lost { final_word: is_callers(&error), error, settled: failed.settled }
        })
    }

    /// Gives placements up; `settled` = nothing of this client will touch them again.
    fn give_up(&self, origin: &Origin, rids: Vec<u64>, settled: bool) {
        if rids.is_empty() {
            return;
        }
        let body = request::Body::Abort(Abort { rids: rids.clone(), writer_done: settled });
        let control = &self.shared.control;
        if let Err(error) = control.finish_in(&origin.session, "give up a put", body, control.lookup_timeout) {
            tracing::debug!(%error, "placements not given up yet");
            orphans::give_up(control, &origin.session, rids, settled);
        }
    }
}

/// Another replica or another try cannot help: it is the caller's own memory, device, or wish.
pub(crate) fn is_callers(error: &StoreError) -> bool {
    matches!(
        error.cause(),
        Cause::Fault(_)
            | Cause::Device(_)
            | Cause::InvalidParams(_)
            | Cause::Interrupted
            | Cause::Closed
            | Cause::Forked
    )
}

pub(crate) fn is_no_staging(error: &StoreError) -> bool {
    matches!(error.cause(), Cause::Device(CopyError::NoStaging { .. }))
}

pub(crate) fn link_error(error: &mooncake_transfer::LinkError) -> StoreError {
    use mooncake_transfer::LinkError;
    match error {
        LinkError::Closed => Cause::Closed.into(),
        LinkError::Forked => Cause::Forked.into(),
        other => Cause::Transfer(other.to_string()).into(),
    }
}

pub(crate) fn transfer_error(error: TransferError) -> StoreError {
    match error {
        TransferError::Copy(error @ (CopyError::Fault { .. } | CopyError::Unchecked { .. })) => Cause::Fault(error),
        TransferError::Copy(CopyError::Device(error)) if error.is_wrong_range() => Cause::Fault(error.into()),
        TransferError::Copy(error @ (CopyError::Device(_) | CopyError::NoStaging { .. })) => Cause::Device(error),
        TransferError::CallerMemory { .. } => Cause::InvalidParams(error.to_string()),
        TransferError::Timeout { .. } => Cause::TransferTimeout(error.to_string()),
        TransferError::Checksum { .. } => Cause::Checksum(error.to_string()),
        TransferError::Interrupted => Cause::Interrupted,
        TransferError::Forked => Cause::Forked,
        other => Cause::Transfer(other.to_string()),
    }
    .into()
}

fn config(options: &PutOptions) -> PutConfig {
    PutConfig {
        replica_num: options.replica_num.clamp(1, MAX_REPLICAS),
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
    }
}

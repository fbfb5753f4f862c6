//! Puts: reserve, write, end; then, holding nothing, wait for the rest.

mod reasons;

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;
use mooncake_wire::message::{Ended, PutSlot, Replica, ReplicaOutcome, put_end_reply, put_slot};

pub(crate) use reasons::Reasons;

use crate::error::{Cause, StoreError};
use crate::machine::rounds::{ROUND_KEY_BYTES, changed_keys};

/// Most bytes reserved at a time: no caller can use the space that a put under way holds.
const ROUND_BYTES: u64 = 64 << 20;

/// Tries of one key that ended with nothing stored though it was placed.
const ATTEMPTS: u32 = 4;

/// Pause before a key is tried again whose placement did not work out.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What a successful put did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// Stored, in so many replicas.
    Stored {
        /// Replicas that are readable; fewer than asked for when there are fewer clients.
        replicas: u32,
    },
    /// The key was there already, and keeps its value: the first writer wins.
    Existed,
}

/// What a put needs of its store.
pub trait PutDriver {
    /// Where a reservation comes from.
    type ReservationOrigin: ReservationOrigin;

    /// Since a time origin that the driver chooses.
    fn now(&self) -> Duration;

    /// Bytes that a key takes in a request, with the name of its group.
    fn key_bytes(&self, index: usize) -> usize;

    /// Replicas that are asked for of each key.
    fn replicas(&self) -> usize;

    /// Whether the store is still in the session that a reservation was made in.
    fn is_current(&self, origin: &Self::ReservationOrigin) -> bool;

    /// Asks the master for room for these keys; `wait`: it may park the request. A slot for each of them. `first_rid`:
    /// the lowest one that the call was given in this session, 0 for none.
    fn reserve(
        &self,
        indices: &[usize],
        wait: bool,
        first_rid: Rid,
    ) -> impl Future<Output = Result<(Vec<PutSlot>, Self::ReservationOrigin), StoreError>>;

    /// Has the segments of placements known.
    fn meet(
        &self,
        origin: &Self::ReservationOrigin,
        placed: &[PlacedKey],
    ) -> impl Future<Output = Result<(), StoreError>>;

    /// Writes each key by [`write_key`], and says what became of each, in order, and whether the caller has interrupted
    /// the call.
    fn write_all(
        &self,
        origin: &Self::ReservationOrigin,
        placed: &[PlacedKey],
    ) -> impl Future<Output = (Vec<Result<Written, Unwritten>>, bool)>;

    /// Tells the master what was written: an outcome for each, or none if the session of the placements is over.
    fn end(
        &self,
        origin: &Self::ReservationOrigin,
        ended: Vec<Ended>,
    ) -> impl Future<Output = Result<Option<Vec<i32>>, StoreError>>;

    /// Tells the master to abort placements; as soon as it can be reached, if it cannot be now. `settled`:
    /// nothing of this client touches any replica of them again.
    fn abort(&self, origin: &Self::ReservationOrigin, rids: Vec<Rid>, settled: bool) -> impl Future<Output = ()>;

    /// The same where the master could not be reached a moment ago.
    fn abort_later(&self, origin: &Self::ReservationOrigin, rids: Vec<Rid>, settled: bool);

    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;

    /// The master's answer to a put makes no sense.
    fn confused(&self) -> StoreError;
}

/// Where a reservation comes from.
pub trait ReservationOrigin: Clone {
    /// Both are of one session.
    fn is_of_session(&self, other: &Self) -> bool;
}

/// A key with its placements, which are to be written.
#[derive(Debug)]
pub struct PlacedKey {
    /// Number of its key.
    pub index: usize,
    /// What the master gave it.
    pub slot: PutSlot,
}

/// Puts values of these sizes; a result for each. Keys that no object can have, and what else is wrong from the
/// beginning, have their results already. `timeout`: for how long keys are tried again while nothing gets on.
pub async fn put<D: PutDriver>(
    driver: &D,
    sizes: &[u64],
    results: Vec<Option<Result<PutOutcome, StoreError>>>,
    timeout: Duration,
) -> Vec<Result<PutOutcome, StoreError>> {
    let attempts = vec![0; results.len()];
    let mut put = Put { driver, sizes, results, attempts, first: None };
    put.run(timeout).await;
    let superseded = || Err(Cause::Superseded { attempts: 0 }.into());
    put.results.into_iter().map(|result| result.unwrap_or_else(superseded)).collect()
}

struct Put<'a, D: PutDriver> {
    driver: &'a D,
    sizes: &'a [u64],
    results: Vec<Option<Result<PutOutcome, StoreError>>>,
    attempts: Vec<u32>,
    /// Lowest rid of all its rounds in the last session: the master spares what this call has stored when a later round
    /// needs room. Under another log the same number may be below all that there is.
    first: Option<(D::ReservationOrigin, Rid)>,
}

/// What a round did with the keys it was given.
#[derive(Default)]
struct Round {
    /// To be tried again, with what is in the way if that is final.
    unfinished: Vec<(usize, StoreError)>,
    /// Something was placed, or found to be there.
    progress: bool,
    /// Placed, and yet nothing stored.
    setback: bool,
    /// The caller's interrupt hook ended it, and the whole call with it.
    interrupted: bool,
}

impl<D: PutDriver> Put<'_, D> {
    async fn run(&mut self, mut timeout: Duration) {
        let mut pending: VecDeque<usize> =
            (0..self.results.len()).filter(|&index| self.results[index].is_none()).collect();
        // A single key may wait in the master at once: it holds nothing.
        let mut wait = pending.len() == 1;
        // Keys of this pass; what they leave over goes to the next one, which waits.
        let mut left = pending.len();
        while !pending.is_empty() {
            let indices = self.take_round(&mut pending, left);
            left -= indices.len().min(left);
            let started = self.driver.now();
            let wait_now = wait && !timeout.is_zero();
            let round = self.round(&indices, wait_now).await;
            if round.interrupted {
                let rest = pending.drain(..).chain(round.unfinished.into_iter().map(|(index, _)| index));
                self.fail_all(rest, &Cause::Interrupted.into());
                return;
            }
            if !round.progress || round.setback {
                timeout = timeout.saturating_sub(self.driver.now().saturating_sub(started));
            }
            // A master places as many keys as it has time for: the others are no worse off.
            let over = timeout.is_zero() && (!round.progress || round.setback);
            for (index, error) in round.unfinished {
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
                    self.driver.pause(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// The keys of the next round: as many as may be reserved at a time.
    fn take_round(&self, pending: &mut VecDeque<usize>, most: usize) -> Vec<usize> {
        let mut indices = Vec::with_capacity(pending.len().min(most));
        let (mut bytes, mut key_bytes) = (0_u64, 0);
        while let Some(&index) = pending.front() {
            bytes = bytes.saturating_add(self.sizes[index]);
            key_bytes += self.driver.key_bytes(index);
            let most = most.min(changed_keys(self.driver.replicas()));
            let full = indices.len() == most || bytes > ROUND_BYTES || key_bytes > ROUND_KEY_BYTES;
            if full && !indices.is_empty() {
                break;
            }
            indices.push(index);
            pending.pop_front();
        }
        indices
    }

    fn fail_all(&mut self, indices: impl Iterator<Item = usize>, error: &StoreError) {
        for index in indices {
            self.results[index] = Some(Err(error.clone()));
        }
    }

    async fn round(&mut self, indices: &[usize], wait: bool) -> Round {
        let mut round = Round::default();
        let first = self.first.as_ref().filter(|(origin, _)| self.driver.is_current(origin));
        let first_rid = first.map_or(Rid(0), |(_, rid)| *rid);
        let (slots, origin) = match self.driver.reserve(indices, wait, first_rid).await {
            Ok(reserved) => reserved,
            Err(error) => {
                self.fail_all(indices.iter().copied(), &error);
                return round;
            }
        };
        let rids = slots.iter().flat_map(|slot| &slot.replicas).map(|replica| Rid(replica.rid));
        let earlier = self.first.as_ref().filter(|(of, _)| of.is_of_session(&origin)).map(|(_, rid)| *rid);
        self.first = earlier.into_iter().chain(rids).min().map(|first| (origin.clone(), first));
        let mut placed = Vec::with_capacity(indices.len());
        let mut reasons = Reasons::default();
        for (&index, slot) in indices.iter().zip(slots) {
            let bytes = self.sizes[index];
            match slot.kind() {
                put_slot::Kind::Placed => {
                    round.progress = true;
                    placed.push(PlacedKey { index, slot });
                }
                put_slot::Kind::Exists => {
                    round.progress = true;
                    self.results[index] = Some(Ok(PutOutcome::Existed));
                }
                kind => match reasons.cause(slot, bytes) {
                    None => self.results[index] = Some(Err(self.driver.confused())),
                    Some(cause) if kind == put_slot::Kind::TooLarge => self.results[index] = Some(Err(cause.into())),
                    // What is refused is so perhaps for what this very call holds: once more when it holds nothing.
                    Some(cause) => round.unfinished.push((index, cause.into())),
                },
            }
        }
        if !placed.is_empty() {
            self.write_and_end(placed, &origin, &mut round).await;
        }
        round
    }

    /// Writes what was placed and ends all of it with one call.
    async fn write_and_end(&mut self, placed: Vec<PlacedKey>, origin: &D::ReservationOrigin, round: &mut Round) {
        if let Err(error) = self.driver.meet(origin, &placed).await {
            let rids = placed.iter().flat_map(|placed| placed.slot.replicas.iter().map(|replica| Rid(replica.rid)));
            self.abort(origin, rids.collect(), true).await;
            self.fail_all(placed.iter().map(|placed| placed.index), &error);
            return;
        }
        let (mut written, interrupted) = self.driver.write_all(origin, &placed).await;
        // What the caller has given up is not to become an object.
        round.interrupted = interrupted;
        if interrupted {
            for outcome in &mut written {
                if let Ok(written) = outcome {
                    *outcome = Err(Unwritten::interrupted(written.is_settled()));
                }
            }
        }
        self.end(&placed, written, origin, round).await;
    }

    /// Aborts what was not written, and ends the rest.
    async fn end(
        &mut self,
        placed: &[PlacedKey],
        written: Vec<Result<Written, Unwritten>>,
        origin: &D::ReservationOrigin,
        round: &mut Round,
    ) {
        let mut ends = Ends::of(placed.len());
        let (mut settled, mut unsettled) = (Vec::new(), Vec::new());
        for (placed, written) in placed.iter().zip(written) {
            match written {
                Ok(written) => ends.add(placed.index, written),
                Err(unwritten) => {
                    let is_settled = unwritten.settled || mutant!(OpenPutsAreSettled);
                    let aborted = if is_settled { &mut settled } else { &mut unsettled };
                    aborted.extend(placed.slot.replicas.iter().map(|replica| Rid(replica.rid)));
                    if unwritten.final_word {
                        self.results[placed.index] = Some(Err(unwritten.error));
                    } else {
                        self.try_again(placed.index, unwritten.error, round);
                    }
                }
            }
        }
        self.abort(origin, settled, true).await;
        self.abort(origin, unsettled, false).await;
        if !ends.ended.is_empty() {
            self.deliver(ends, origin, round).await;
        }
    }

    /// Tells the master of the ends; a result for each of their keys, or another try.
    async fn deliver(&mut self, ends: Ends, origin: &D::ReservationOrigin, round: &mut Round) {
        let Ends { ended, mut keys, settled_bad, settled, unsettled } = ends;
        let outcomes = match self.driver.end(origin, ended).await {
            Ok(Some(outcomes)) if outcomes.len() == keys.len() => outcomes,
            // The placements ended with their session: other clients may be given these rids in the next one.
            Ok(None) => vec![put_end_reply::Outcome::Superseded.into(); keys.len()],
            other => {
                // A caller that was told of a failure must not keep the key. What was committed, and only the word of
                // it was lost, is not aborted by that.
                self.driver.abort_later(origin, settled, true);
                self.driver.abort_later(origin, unsettled, false);
                let error = other.err().unwrap_or_else(|| self.driver.confused());
                self.fail_all(keys.iter().map(|(index, _)| *index), &error);
                return;
            }
        };
        // Ended as bad, and nothing of them can land any more: no fence has to prove that.
        self.abort(origin, settled_bad, true).await;
        if mutant!(OutcomesAreMixedUp) {
            keys.reverse();
        }
        for ((index, replicas), outcome) in keys.into_iter().zip(outcomes) {
            match put_end_reply::Outcome::try_from(outcome) {
                Ok(put_end_reply::Outcome::Committed) => {
                    self.results[index] = Some(Ok(PutOutcome::Stored { replicas }));
                }
                _ if mutant!(SupersededCountsAsStored) => {
                    self.results[index] = Some(Ok(PutOutcome::Stored { replicas }));
                }
                _ => {
                    let attempts = self.attempts[index] + 1;
                    self.try_again(index, Cause::Superseded { attempts }.into(), round);
                }
            }
        }
    }

    async fn abort(&self, origin: &D::ReservationOrigin, rids: Vec<Rid>, settled: bool) {
        if !rids.is_empty() {
            self.driver.abort(origin, rids, settled).await;
        }
    }

    fn try_again(&mut self, index: usize, error: StoreError, round: &mut Round) {
        self.attempts[index] += 1;
        round.setback = true;
        round.unfinished.push((index, error));
    }
}

/// What the master is told of the keys of a round that were written.
#[derive(Default)]
struct Ends {
    ended: Vec<Ended>,
    /// The number of each key, and how many of its replicas are good.
    keys: Vec<(usize, u32)>,
    /// Bad replicas that nothing of this client will touch again.
    settled_bad: Vec<Rid>,
    /// Replicas of keys none of which this client touches again. Should the ends not be delivered, they are aborted:
    /// an Abort says of all replicas of a key that nothing touches them again, or of none.
    settled: Vec<Rid>,
    /// Those of the other keys.
    unsettled: Vec<Rid>,
}

impl Ends {
    /// Of so many keys, nearly all of which have one replica and were written.
    fn of(keys: usize) -> Ends {
        let (ended, settled) = (Vec::with_capacity(keys), Vec::with_capacity(keys));
        Ends { ended, keys: Vec::with_capacity(keys), settled, ..Ends::default() }
    }

    fn add(&mut self, index: usize, written: Written) {
        let good = written.outcomes.iter().filter(|outcome| outcome.good).count() as u32;
        self.keys.push((index, good));
        let replicas = if written.is_settled() { &mut self.settled } else { &mut self.unsettled };
        replicas.extend(written.outcomes.iter().map(|outcome| Rid(outcome.rid)));
        self.settled_bad.extend(written.settled_bad);
        self.ended.push(Ended { replicas: written.outcomes, crc32c: written.crc32c, stays: false });
    }
}

/// A key whose bytes are in the pool, in at least one replica.
#[derive(Debug)]
pub struct Written {
    pub(crate) crc32c: u32,
    pub(crate) outcomes: Vec<ReplicaOutcome>,
    /// Bad replicas that nothing of this client will touch again.
    pub(crate) settled_bad: Vec<Rid>,
}

impl Written {
    /// Nothing of this client touches any replica again.
    fn is_settled(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.good || self.settled_bad.contains(&Rid(outcome.rid)))
    }
}

/// Why bytes were not written, or those that were could not be read back.
#[derive(Debug)]
pub struct Unwritten {
    /// Why.
    pub error: StoreError,
    /// Trying again cannot help: the caller's own memory, or wish.
    pub final_word: bool,
    /// The same may go well in a moment: it says nothing of the placement.
    pub passing: bool,
    /// No byte of it can land any more.
    pub settled: bool,
}

impl Unwritten {
    /// The caller wants it no more.
    pub fn interrupted(settled: bool) -> Self {
        Self { error: Cause::Interrupted.into(), final_word: true, passing: false, settled }
    }
}

/// Writes every replica of one key by `write`, which gives the checksum of what it copied.
pub async fn write_key<'r, W>(
    replicas: impl IntoIterator<Item = &'r Replica>,
    mut write: impl FnMut(&'r Replica) -> W,
) -> Result<Written, Unwritten>
where
    W: Future<Output = Result<u32, Unwritten>>,
{
    let mut written = Written { crc32c: 0, outcomes: Vec::with_capacity(1), settled_bad: Vec::new() };
    let mut good = 0;
    let mut unwritten: Option<Unwritten> = None;
    let (mut settled, mut passing) = (true, false);
    for replica in replicas {
        match write(replica).await {
            // Replicas that differ mean that the caller changed the bytes in between.
            Ok(crc) if good > 0 && crc != written.crc32c => {
                written.settled_bad.push(Rid(replica.rid));
                written.outcomes.push(ReplicaOutcome { rid: replica.rid, good: false });
            }
            Ok(crc) => {
                written.crc32c = crc;
                good += 1;
                written.outcomes.push(ReplicaOutcome { rid: replica.rid, good: true });
            }
            Err(failed) => {
                settled &= failed.settled;
                passing |= failed.passing;
                if failed.settled {
                    written.settled_bad.push(Rid(replica.rid));
                }
                let stop = failed.final_word;
                let rid = format_args!("{:#x}", replica.rid);
                if stop {
                    // The caller is told, and what it gave is its own affair.
                    tracing::debug!(rid, error = %failed.error, "a replica was not written");
                } else {
                    tracing::warn!(rid, error = %failed.error, "a replica was not written");
                }
                unwritten = Some(failed);
                if stop {
                    break;
                }
                written.outcomes.push(ReplicaOutcome { rid: replica.rid, good: mutant!(UnwrittenCopiesAreGood) });
            }
        }
    }
    match unwritten {
        Some(unwritten) if good == 0 || unwritten.final_word => Err(Unwritten { settled, passing, ..unwritten }),
        _ => Ok(written),
    }
}

#[cfg(test)]
mod tests;

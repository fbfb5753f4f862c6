//! Puts: reserve, write, end; then, holding nothing, wait for the rest.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use mooncake_mutant::mutant;
use mooncake_wire::message::{Ended, PutSlot, Replica, ReplicaOutcome, put_end_reply, put_slot};

use crate::error::{Cause, StoreError};
use crate::put::PutOutcome;
use crate::rounds::ROUND_KEY_BYTES;

/// Most bytes reserved at a time: space held by puts under way is space that nobody can use.
const ROUND_BYTES: u64 = 64 << 20;

/// Most keys reserved at a time.
const ROUND_KEYS: usize = 8_192;

/// Tries of one key that ended with nothing stored though it was placed.
const ATTEMPTS: u32 = 4;

/// Pause before a key is tried again whose placement did not work out.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What a put needs of its store.
pub trait PutDriver {
    /// Where a reservation comes from.
    type Origin: Origin;

    /// Since an origin that the driver chooses.
    fn now(&self) -> Duration;

    /// Bytes that a key takes in a request, with the name of its group.
    fn key_bytes(&self, index: usize) -> usize;

    /// Whether the store is still in the session that a reservation was made in.
    fn is_current(&self, origin: &Self::Origin) -> bool;

    /// Asks the master for room for these keys; `wait`: it may park the request. A slot for each of them. `first_rid`: the
    /// lowest one that the call was given in this session, 0 for none.
    fn reserve(
        &self,
        keys: &[usize],
        wait: bool,
        first_rid: u64,
    ) -> impl Future<Output = Result<(Vec<PutSlot>, Self::Origin), StoreError>>;

    /// Has the segments of placements known.
    fn meet(&self, origin: &Self::Origin, placed: &[Placed]) -> impl Future<Output = Result<(), StoreError>>;

    /// Writes each key by [`write_key`], and says what became of each, in order, and whether the caller has interrupted the call.
    fn write_all(
        &self,
        origin: &Self::Origin,
        placed: &[Placed],
    ) -> impl Future<Output = (Vec<Result<Written, Lost>>, bool)>;

    /// Tells the master what was written: an outcome for each, or none if the session of the placements is over.
    fn end(
        &self,
        origin: &Self::Origin,
        ended: Vec<Ended>,
    ) -> impl Future<Output = Result<Option<Vec<i32>>, StoreError>>;

    /// Tells the master that placements are given up; as soon as it can be reached, if it cannot be now. `settled`: nothing
    /// of this client touches any copy of them again.
    fn give_up(&self, origin: &Self::Origin, rids: Vec<u64>, settled: bool) -> impl Future<Output = ()>;

    /// The same where the master could not be reached a moment ago.
    fn give_up_later(&self, origin: &Self::Origin, rids: Vec<u64>, settled: bool);

    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;

    /// The master's answer to a put makes no sense.
    fn confused(&self) -> StoreError;
}

/// Where a reservation comes from.
pub trait Origin: Clone {
    /// Both are of one session.
    fn is_of_session(&self, other: &Self) -> bool;
}

/// A placement that is to be written.
#[derive(Debug)]
pub struct Placed {
    /// Number of its key.
    pub index: usize,
    /// What the master gave it.
    pub slot: PutSlot,
}

/// Puts values of these sizes; a result for each. Keys that no object can have, and what else is wrong from the beginning,
/// have their results already. `patience`: for how long keys are tried again while nothing gets on.
pub async fn put<D: PutDriver>(
    driver: &D,
    sizes: &[u64],
    results: Vec<Option<Result<PutOutcome, StoreError>>>,
    patience: Duration,
) -> Vec<Result<PutOutcome, StoreError>> {
    let attempts = vec![0; results.len()];
    let mut put = Put { driver, sizes, results, attempts, first: None };
    put.run(patience).await;
    let lost = || Err(Cause::Superseded { attempts: 0 }.into());
    put.results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
}

struct Put<'a, D: PutDriver> {
    driver: &'a D,
    sizes: &'a [u64],
    results: Vec<Option<Result<PutOutcome, StoreError>>>,
    attempts: Vec<u32>,
    /// Lowest rid of all its rounds in the last session: the master spares what this call has stored when a later round
    /// needs room. Under another log the same number may be below all that there is.
    first: Option<(D::Origin, u64)>,
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

impl<D: PutDriver> Put<'_, D> {
    async fn run(&mut self, mut patience: Duration) {
        let mut pending: VecDeque<usize> =
            (0..self.results.len()).filter(|&index| self.results[index].is_none()).collect();
        // A single key may wait in the master at once: it holds nothing.
        let mut wait = pending.len() == 1;
        // Keys of this pass; what they leave over goes to the next one, which waits.
        let mut left = pending.len();
        while !pending.is_empty() {
            let keys = self.take_round(&mut pending, left);
            left -= keys.len().min(left);
            let started = self.driver.now();
            let wait_now = wait && !patience.is_zero();
            let round = self.round(&keys, wait_now).await;
            if round.interrupted {
                let rest = pending.drain(..).chain(round.rest.into_iter().map(|(index, _)| index));
                self.fail_all(rest, &Cause::Interrupted.into());
                return;
            }
            if !round.progress || round.setback {
                patience = patience.saturating_sub(self.driver.now().saturating_sub(started));
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
                    self.driver.pause(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// The keys of the next round: as many as may be reserved at a time.
    fn take_round(&self, pending: &mut VecDeque<usize>, most: usize) -> Vec<usize> {
        let mut keys = Vec::new();
        let (mut bytes, mut key_bytes) = (0_u64, 0);
        while let Some(&index) = pending.front() {
            bytes = bytes.saturating_add(self.sizes[index]);
            key_bytes += self.driver.key_bytes(index);
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

    async fn round(&mut self, keys: &[usize], wait: bool) -> Round {
        let mut round = Round::default();
        let first = self.first.as_ref().filter(|(origin, _)| self.driver.is_current(origin));
        let first_rid = first.map_or(0, |(_, rid)| *rid);
        let (slots, origin) = match self.driver.reserve(keys, wait, first_rid).await {
            Ok(reserved) => reserved,
            Err(error) => {
                self.fail_all(keys.iter().copied(), &error);
                return round;
            }
        };
        let rids = slots.iter().flat_map(|slot| &slot.replicas).map(|replica| replica.rid);
        let earlier = self.first.as_ref().filter(|(of, _)| of.is_of_session(&origin)).map(|(_, rid)| *rid);
        self.first = earlier.into_iter().chain(rids).min().map(|first| (origin.clone(), first));
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
                put_slot::Kind::Unspecified => self.results[index] = Some(Err(self.driver.confused())),
            }
        }
        if !placed.is_empty() {
            self.write_and_end(placed, &origin, &mut round).await;
        }
        round
    }

    /// Writes what was placed and ends all of it with one call.
    async fn write_and_end(&mut self, placed: Vec<Placed>, origin: &D::Origin, round: &mut Round) {
        if let Err(error) = self.driver.meet(origin, &placed).await {
            let rids = placed.iter().flat_map(|placed| placed.slot.replicas.iter().map(|replica| replica.rid));
            self.give_up(origin, rids.collect(), true).await;
            self.fail_all(placed.iter().map(|placed| placed.index), &error);
            return;
        }
        let (mut written, interrupted) = self.driver.write_all(origin, &placed).await;
        // What the caller has given up is not to become an object.
        round.interrupted = interrupted;
        if interrupted {
            for outcome in &mut written {
                if let Ok(written) = outcome {
                    *outcome = Err(Lost::interrupted(written.is_settled()));
                }
            }
        }
        self.end(&placed, written, origin, round).await;
    }

    async fn end(
        &mut self,
        placed: &[Placed],
        written: Vec<Result<Written, Lost>>,
        origin: &D::Origin,
        round: &mut Round,
    ) {
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
                    if lost.settled || mutant!(OpenPutsAreSettled) {
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
        self.give_up(origin, given_up, true).await;
        self.give_up(origin, unsettled, false).await;
        if ended.is_empty() {
            return;
        }
        let outcomes = match self.driver.end(origin, ended).await {
            Ok(Some(outcomes)) if outcomes.len() == ended_keys.len() => outcomes,
            // The placements ended with their session: other clients may be given these rids in the next one.
            Ok(None) => vec![put_end_reply::Outcome::Superseded.into(); ended_keys.len()],
            other => {
                // A caller that was told of a failure must not keep the key. What was committed, and only the word of it was
                // lost, is not given up by that.
                self.driver.give_up_later(origin, settled, true);
                self.driver.give_up_later(origin, open, false);
                let error = other.err().unwrap_or_else(|| self.driver.confused());
                self.fail_all(ended_keys.iter().map(|(index, _)| *index), &error);
                return;
            }
        };
        // Ended as bad, and nothing of them can land any more: no fence has to prove that.
        self.give_up(origin, spoilt, true).await;
        if mutant!(OutcomesAreMixedUp) {
            ended_keys.reverse();
        }
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

    async fn give_up(&self, origin: &D::Origin, rids: Vec<u64>, settled: bool) {
        if !rids.is_empty() {
            self.driver.give_up(origin, rids, settled).await;
        }
    }

    fn try_again(&mut self, index: usize, error: StoreError, round: &mut Round) {
        self.attempts[index] += 1;
        round.setback = true;
        round.rest.push((index, error));
    }
}

/// A key whose bytes are in the pool, in at least one copy.
#[derive(Debug)]
pub struct Written {
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
#[derive(Debug)]
pub struct Lost {
    /// Why.
    pub error: StoreError,
    /// Trying again cannot help: the caller's own memory, or wish.
    pub final_word: bool,
    /// No byte of it can land any more.
    pub settled: bool,
}

impl Lost {
    /// The caller wants it no more.
    pub fn interrupted(settled: bool) -> Self {
        Self { error: Cause::Interrupted.into(), final_word: true, settled }
    }
}

/// Writes every replica of one key by `write`, which gives the checksum of what it copied.
pub async fn write_key<'r, W>(replicas: &'r [Replica], mut write: impl FnMut(&'r Replica) -> W) -> Result<Written, Lost>
where
    W: Future<Output = Result<u32, Lost>>,
{
    let mut written = Written { crc32c: 0, outcomes: Vec::with_capacity(replicas.len()), spoilt: Vec::new() };
    let mut good = 0;
    let mut lost: Option<Lost> = None;
    let mut settled = true;
    for replica in replicas {
        match write(replica).await {
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
                written.outcomes.push(ReplicaOutcome { rid: replica.rid, good: mutant!(UnwrittenCopiesAreGood) });
            }
        }
    }
    match lost {
        Some(lost) if good == 0 || lost.final_word => Err(Lost { settled, ..lost }),
        _ => Ok(written),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    use mooncake_wire::message::Extent;

    use super::*;
    use crate::machine::ready;

    /// What a master and owners say, step by step, and what they were told.
    #[derive(Default)]
    struct Script {
        now: Cell<Duration>,
        session: Cell<u64>,
        /// Another one begins behind each End.
        changes_session: Cell<bool>,
        /// Or that of each reservation.
        session_of_round: RefCell<VecDeque<u64>>,
        /// Answers to reservations: the kind of each key's slot, and how long that takes.
        slots: RefCell<VecDeque<(Vec<put_slot::Kind>, Duration)>>,
        /// What writing a replica gives, by its rid; else its own checksum.
        writes: RefCell<VecDeque<(u64, Result<u32, Lost>)>>,
        /// Answers to Ends; none left: all are committed.
        ends: RefCell<VecDeque<Result<Option<Vec<put_end_reply::Outcome>>, StoreError>>>,
        interrupted: Cell<bool>,
        replicas: u64,
        next_rid: Cell<u64>,
        told: RefCell<Vec<String>>,
    }

    #[derive(Clone)]
    struct Session(u64);

    impl Origin for Session {
        fn is_of_session(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    const CRC: u32 = 7;

    impl Script {
        fn new(slots: &[(&[put_slot::Kind], u64)]) -> Script {
            let slots = slots.iter().map(|(kinds, ms)| (kinds.to_vec(), Duration::from_millis(*ms))).collect();
            Script { slots: RefCell::new(slots), replicas: 1, next_rid: Cell::new(2), ..Script::default() }
        }

        fn say(&self, text: String) {
            self.told.borrow_mut().push(text);
        }

        fn put(&self, keys: usize) -> Vec<Result<PutOutcome, StoreError>> {
            let results = (0..keys).map(|_| None).collect();
            ready(put(self, &vec![1024; keys], results, Duration::from_secs(1)))
        }

        fn told(&self) -> Vec<String> {
            self.told.take()
        }
    }

    fn replica(rid: u64) -> Replica {
        Replica { rid, extents: vec![Extent::default()] }
    }

    impl PutDriver for Script {
        type Origin = Session;

        fn now(&self) -> Duration {
            self.now.get()
        }

        fn key_bytes(&self, _: usize) -> usize {
            1
        }

        fn is_current(&self, origin: &Session) -> bool {
            origin.0 == self.session.get()
        }

        async fn reserve(
            &self,
            keys: &[usize],
            wait: bool,
            first_rid: u64,
        ) -> Result<(Vec<PutSlot>, Session), StoreError> {
            self.say(format!("reserve {keys:?} wait {wait} first {first_rid}"));
            if let Some(session) = self.session_of_round.borrow_mut().pop_front() {
                self.session.set(session);
            }
            let Some((kinds, takes)) = self.slots.borrow_mut().pop_front() else { return Err(Cause::Closed.into()) };
            self.now.set(self.now.get() + takes);
            let slots = kinds.into_iter().map(|kind| {
                let count = if kind == put_slot::Kind::Placed { self.replicas } else { 0 };
                let replicas = (0..count).map(|_| replica(self.next_rid.replace(self.next_rid.get() + 2))).collect();
                PutSlot { kind: kind.into(), replicas, ..PutSlot::default() }
            });
            Ok((slots.collect(), Session(self.session.get())))
        }

        async fn meet(&self, _: &Session, _: &[Placed]) -> Result<(), StoreError> {
            Ok(())
        }

        async fn write_all(&self, _: &Session, placed: &[Placed]) -> (Vec<Result<Written, Lost>>, bool) {
            let written = placed.iter().map(|placed| {
                ready(write_key(&placed.slot.replicas, async |replica: &Replica| {
                    let mut writes = self.writes.borrow_mut();
                    match writes.front() {
                        Some((rid, _)) if *rid == replica.rid => writes.pop_front().unwrap().1,
                        _ => Ok(CRC),
                    }
                }))
            });
            (written.collect(), self.interrupted.get())
        }

        async fn end(&self, _: &Session, ended: Vec<Ended>) -> Result<Option<Vec<i32>>, StoreError> {
            let said: Vec<Vec<(u64, bool)>> =
                ended.iter().map(|one| one.replicas.iter().map(|it| (it.rid, it.good)).collect()).collect();
            self.say(format!("end {said:?}"));
            self.session.set(self.session.get() + u64::from(self.changes_session.get()));
            let committed = || Ok(Some(vec![put_end_reply::Outcome::Committed; ended.len()]));
            let outcomes = self.ends.borrow_mut().pop_front().unwrap_or_else(committed)?;
            Ok(outcomes.map(|outcomes| outcomes.into_iter().map(i32::from).collect()))
        }

        async fn give_up(&self, _: &Session, rids: Vec<u64>, settled: bool) {
            self.say(format!("give up {rids:?} settled {settled}"));
        }

        fn give_up_later(&self, _: &Session, rids: Vec<u64>, settled: bool) {
            if !rids.is_empty() {
                self.say(format!("give up later {rids:?} settled {settled}"));
            }
        }

        async fn pause(&self, time: Duration) {
            self.now.set(self.now.get() + time);
        }

        fn confused(&self) -> StoreError {
            Cause::Closed.into()
        }
    }

    use put_end_reply::Outcome::{Committed, Superseded};
    use put_slot::Kind::{Busy, Exists, Full, Placed as Given};

    fn stored(result: &Result<PutOutcome, StoreError>) -> Option<u32> {
        match result {
            Ok(PutOutcome::Stored { replicas }) => Some(*replicas),
            _ => None,
        }
    }

    fn broken(settled: bool) -> Lost {
        Lost { error: Cause::Transfer("broken".into()).into(), final_word: false, settled }
    }

    #[test]
    fn what_an_end_says_of_each_is_told_of_that_key() {
        let script = Script::new(&[(&[Given, Exists, Given, Given], 1), (&[Given], 1)]);
        script.ends.borrow_mut().push_back(Ok(Some(vec![Committed, Committed, Superseded])));
        script.ends.borrow_mut().push_back(Ok(Some(vec![Superseded])));
        let results = script.put(4);
        // The one that was superseded is placed anew, and no other.
        assert_eq!(script.told()[2], "reserve [3] wait true first 2");
        assert_eq!([stored(&results[0]), stored(&results[2])], [Some(1), Some(1)]);
        assert!(matches!(&results[1], Ok(PutOutcome::Existed)));
        assert!(results[3].is_err());
    }

    #[test]
    fn a_copy_that_was_not_written_is_ended_as_bad_and_given_up_once_nothing_can_land() {
        for settled in [true, false] {
            let script = Script { replicas: 2, ..Script::new(&[(&[Given], 1)]) };
            script.writes.borrow_mut().push_back((2, Err(broken(settled))));
            assert_eq!(stored(&script.put(1)[0]), Some(1));
            let mut told = vec!["reserve [0] wait true first 0", "end [[(2, false), (4, true)]]"];
            if settled {
                told.push("give up [2] settled true");
            }
            assert_eq!(script.told(), told);
        }
    }

    #[test]
    fn a_put_whose_bytes_may_still_land_is_not_given_up_as_settled() {
        for settled in [true, false] {
            let script = Script { replicas: 2, ..Script::new(&[(&[Given], 1), (&[Given], 1)]) };
            script.writes.borrow_mut().extend([(2, Err(broken(true))), (4, Err(broken(settled)))]);
            assert_eq!(stored(&script.put(1)[0]), Some(2), "it was placed anew");
            assert_eq!(script.told()[1], format!("give up [2, 4] settled {settled}"));
        }
    }

    #[test]
    fn copies_that_differ_are_no_copies_of_one_object() {
        let script = Script { replicas: 2, ..Script::new(&[(&[Given], 1)]) };
        script.writes.borrow_mut().push_back((4, Ok(CRC + 1)));
        assert_eq!(stored(&script.put(1)[0]), Some(1));
        assert_eq!(script.told()[1..], ["end [[(2, true), (4, false)]]", "give up [4] settled true"]);
    }

    #[test]
    fn an_end_without_an_answer_gives_its_placements_up_as_soon_as_the_master_is_there() {
        let script = Script { replicas: 2, ..Script::new(&[(&[Given, Given], 1)]) };
        script.writes.borrow_mut().push_back((4, Err(broken(false))));
        script.ends.borrow_mut().push_back(Err(Cause::Closed.into()));
        assert!(script.put(2).iter().all(Result::is_err));
        assert_eq!(script.told()[2..], ["give up later [6, 8] settled true", "give up later [2, 4] settled false"]);
    }

    #[test]
    fn the_master_spares_what_a_call_has_stored_in_the_same_session_only() {
        for changes in [false, true] {
            let script = Script::new(&[(&[Given, Busy, Busy], 1), (&[Given, Busy], 1), (&[Given], 1)]);
            script.changes_session.set(changes);
            assert!(script.put(3).iter().all(|result| stored(result) == Some(1)));
            let told = script.told();
            let reserved: Vec<&str> =
                told.iter().filter(|told| told.starts_with("reserve")).map(String::as_str).collect();
            let first = if changes { 0 } else { 2 };
            assert_eq!(reserved[1], format!("reserve [1, 2] wait true first {first}"));
            assert_eq!(reserved[2], format!("reserve [2] wait true first {first}"));
        }
        // The second round came in another session, the third comes in that one.
        let script = Script::new(&[(&[Given, Busy, Busy], 1), (&[Given, Busy], 1), (&[Given], 1)]);
        script.session_of_round.borrow_mut().extend([0, 1, 1]);
        assert!(script.put(3).iter().all(|result| stored(result) == Some(1)));
        assert_eq!(script.told()[4], "reserve [2] wait true first 4");
    }

    #[test]
    fn what_ended_with_its_session_is_placed_anew() {
        let script = Script::new(&[(&[Given], 1), (&[Given], 1)]);
        script.ends.borrow_mut().push_back(Ok(None));
        assert_eq!(stored(&script.put(1)[0]), Some(1));
        assert_eq!(script.told().len(), 4);
    }

    #[test]
    fn an_interrupted_put_stores_nothing() {
        let script = Script::new(&[(&[Given, Busy, Given], 1)]);
        script.interrupted.set(true);
        let results = script.put(3);
        assert!(
            results.iter().all(|result| matches!(result, Err(error) if matches!(error.cause(), Cause::Interrupted)))
        );
        assert_eq!(script.told()[1..], ["give up [2, 4] settled true"]);
    }

    #[test]
    fn keys_wait_only_while_the_call_holds_nothing_and_no_longer_than_its_patience() {
        let script = Script::new(&[(&[Busy, Given], 1), (&[Busy], 600), (&[Full], 600)]);
        let results = script.put(2);
        assert_eq!(stored(&results[1]), Some(1));
        assert!(matches!(&results[0], Err(error) if matches!(error.cause(), Cause::Busy { .. })));
        let told = script.told();
        assert_eq!(
            (told[0].as_str(), told[2].as_str()),
            ("reserve [0, 1] wait false first 0", "reserve [0] wait true first 2")
        );
        assert_eq!(told.len(), 3, "a wait without progress was the master's last word");
    }
}

//! Put sessions: keys that are reserved once and then filled by any threads, in parts and in any order, until their
//! caller ends them as objects or takes them back. The beat renews what they reserve, idle or not, for ten minutes; a
//! master that does not hear it has the reservations lapse as those of any put.
//!
//! What has been written decides at the end: a byte that nobody has written refuses its key, and the checksum of an
//! object is that of its parts, or is read back where a part was written over another one.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use mooncake_mutant::mutant;
use mooncake_wire::STILL_POPULATED;
use mooncake_wire::message::{Ended, Replica, ReplicaOutcome, put_end_reply, put_slot};

use crate::error::{Cause, StoreError};
use crate::machine::filling::{Combine, Filling};
use crate::machine::get::ROUND_KEYS;
use crate::machine::progress::Held;
use crate::machine::put::{Lost, Origin as _, Placed, PutDriver, Written, write_key};
use crate::machine::rounds::{ROUND_KEY_BYTES, changed_keys, changed_round, rounds};

/// How often a call that waits for writes of others looks whether they have ended.
const LOOK: Duration = Duration::from_millis(1);

/// Longest wait for them: each ends by itself when no byte of it moves.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest that a call which holds something already goes on asking for room in memory that is still being populated,
/// with none placed. That room comes whatever others hold, so asking again keeps nobody from anything.
const POPULATING: Duration = Duration::from_secs(5);

/// How often it asks.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Most copies that the sessions of a store reserve at a time: the beat renews each of them every few seconds.
const MOST: usize = 16_384;

/// Why a session is over that has no replica left.
const GONE: &str = "the owners of all its copies are gone";

/// Why all sessions are over whose store has a new session with its master.
pub const NEW_SESSION: &str = "the store's session with its master, which reserved this, is over";

/// What put sessions need of their store.
pub trait PutSessionDriver: PutDriver {
    /// Where the copies of what was reserved are, whatever their store meets behind that.
    type Place;

    /// How checksums of parts become one.
    const COMBINE: Combine;

    /// The store's, under their lock.
    fn put_sessions(&self) -> impl DerefMut<Target = PutSessions<Self::Origin, Self::Place>>;

    /// Has the beat renew these from now on, as long as the answer lives.
    fn hold(&self, rids: Vec<u64>) -> Arc<Held>;

    /// The places of replicas whose segments were just met.
    fn place(&self, origin: &Self::Origin, replicas: &[Replica]) -> Self::Place;

    /// Whether a replica cannot be written any more: its segment is Gone, or its session with the master over.
    fn is_lost(&self, reserved: &Reserved<Self::Origin, Self::Place>, replica: &Replica) -> bool;

    /// The rids of the objects that these keys are, as the master knows them: none where it is asked in another
    /// session, as numbers begin anew with another log.
    fn rids_of(&self, origin: &Self::Origin, keys: &[&[u8]])
    -> impl Future<Output = Result<Vec<Vec<u64>>, StoreError>>;

    /// Reads a replica back, and gives the checksum of its bytes.
    fn sum_of(
        &self,
        reserved: &Reserved<Self::Origin, Self::Place>,
        replica: &Replica,
    ) -> impl Future<Output = Result<u32, Lost>>;
}

/// The keys of a store that have a put session.
#[derive(Debug)]
pub struct PutSessions<O, P> {
    open: BTreeMap<Box<[u8]>, Open<O, P>>,
    next: u64,
    /// Of all that are open.
    copies: usize,
    /// Of those that calls are about to reserve.
    promised: usize,
}

impl<O, P> Default for PutSessions<O, P> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), next: 0, copies: 0, promised: 0 }
    }
}

#[derive(Debug)]
struct Open<O, P> {
    /// A key has one session after the other.
    id: u64,
    reserved: Arc<Reserved<O, P>>,
    /// Replicas that lack a part of what was written: true where nothing of this client touches them any more.
    bad: Vec<(u64, bool)>,
    filling: Filling,
    /// Parts under way, of all threads.
    writing: Vec<(u64, u64)>,
    state: State,
    held: Option<Arc<Held>>,
}

/// What a key was given.
#[derive(Debug)]
pub struct Reserved<O, P> {
    /// Where it comes from.
    pub origin: O,
    /// Bytes of the object to be.
    pub size: u64,
    /// Its placements.
    pub replicas: Vec<Replica>,
    /// Where they are.
    pub place: P,
}

/// Copies that a call to start sessions wants, and those of them that it was promised.
struct Call {
    asked: usize,
    promised: usize,
}

#[derive(Debug)]
enum State {
    /// It is being filled.
    Filled,
    /// A call ends it, or takes it back.
    Sealed,
    /// The master has perhaps been told that it is an object: nothing may be written any more.
    Sent(Ended),
    /// Nothing that it reserved is its own any more, and why.
    Over(String),
}

/// A part that may be written.
struct Part<O, P> {
    id: u64,
    reserved: Arc<Reserved<O, P>>,
    /// Replicas that need not be written any more.
    bad: Vec<u64>,
}

/// Placements that are to be given up. `settled`: nothing of this client touches any copy of them again.
#[derive(Debug)]
pub struct GivenUp<O, P> {
    /// Where they come from.
    pub reserved: Arc<Reserved<O, P>>,
    /// See above.
    pub settled: bool,
}

impl<O, P> Open<O, P> {
    fn is_bad(&self, rid: u64) -> bool {
        self.bad.iter().any(|(bad, _)| *bad == rid)
    }

    fn good(&self) -> impl Iterator<Item = &Replica> {
        self.reserved.replicas.iter().filter(|replica| !self.is_bad(replica.rid))
    }

    /// Bad replicas that no write of this client touches any more. Several writes may have found one bad, each by
    /// itself.
    fn untouched(&self) -> Vec<u64> {
        let all_settled = |rid| self.bad.iter().all(|(bad, settled)| *bad != rid || *settled);
        let mut rids: Vec<u64> = self.bad.iter().map(|(rid, _)| *rid).filter(|rid| all_settled(*rid)).collect();
        rids.sort_unstable();
        rids.dedup();
        rids
    }

    fn is_settled(&self) -> bool {
        self.writing.is_empty() && self.bad.iter().all(|(_, settled)| *settled)
    }

    /// Nothing can be written to these replicas any more. Without another one the session is over, unless a call ends
    /// it: that finds out. True if it is over by this.
    fn lose(&mut self, lost: Vec<u64>, reason: &str) -> bool {
        self.bad.extend(lost.into_iter().map(|rid| (rid, true)));
        let is_over = matches!(self.state, State::Filled) && self.good().next().is_none();
        if is_over {
            self.over(reason.to_owned());
        }
        is_over
    }

    /// A call that was to end it has found that it cannot.
    fn reopen(&mut self) {
        self.state = State::Filled;
        self.lose(Vec::new(), GONE);
    }

    /// Nothing of it can become an object, and nothing of it is being written: its caller has left it behind.
    fn is_left(&self, now: Duration) -> bool {
        let is_over = match &self.state {
            State::Over(_) => true,
            State::Filled => self.held.as_ref().is_some_and(|held| held.has_lapsed(now)),
            State::Sealed | State::Sent(_) => false,
        };
        is_over && self.writing.is_empty()
    }

    fn rids(&self) -> Vec<u64> {
        self.reserved.replicas.iter().map(|replica| replica.rid).collect()
    }

    /// What the master is told: from here on nothing is written.
    fn send(&mut self, crc32c: u32) -> Sealed<O, P> {
        let ended = self.ended(|rid| !self.is_bad(rid), crc32c);
        self.state = State::Sent(ended.clone());
        self.sealed(ended)
    }

    fn ended(&self, good: impl Fn(u64) -> bool, crc32c: u32) -> Ended {
        let outcome = |replica: &Replica| ReplicaOutcome { rid: replica.rid, good: good(replica.rid) };
        Ended { replicas: self.reserved.replicas.iter().map(outcome).collect(), crc32c }
    }

    fn sealed(&self, ended: Ended) -> Sealed<O, P> {
        Sealed { id: self.id, reserved: self.reserved.clone(), ended }
    }

    fn over(&mut self, reason: String) {
        self.state = State::Over(reason);
        self.held = None;
    }
}

impl<O, P> PutSessions<O, P> {
    /// The store closes: all that is reserved, and whether nothing of it is being written.
    pub fn close(&mut self) -> Vec<GivenUp<O, P>> {
        self.copies = 0;
        let open = std::mem::take(&mut self.open).into_values();
        let alive = open.filter(|open| !matches!(open.state, State::Over(_)));
        alive.map(|open| GivenUp { settled: open.is_settled(), reserved: open.reserved }).collect()
    }

    /// A segment is Gone, as `is_on_it` knows. What was reserved there is lost, and sessions without another copy are
    /// over. Gives those of them that have reserved something elsewhere, too.
    pub fn segment_gone(&mut self, is_on_it: impl Fn(&Reserved<O, P>, &Replica) -> bool) -> Vec<GivenUp<O, P>> {
        self.lose(is_on_it, GONE)
    }

    /// The store has a new session with its master, and `is_of_it` knows what was reserved in that.
    pub fn session_over(&mut self, is_of_it: impl Fn(&O) -> bool) {
        self.lose(|reserved, _| !is_of_it(&reserved.origin), NEW_SESSION);
    }

    fn lose(&mut self, is_lost: impl Fn(&Reserved<O, P>, &Replica) -> bool, reason: &str) -> Vec<GivenUp<O, P>> {
        let mut given_up = Vec::new();
        for open in self.open.values_mut().filter(|open| matches!(open.state, State::Filled | State::Sealed)) {
            let lost = open.reserved.replicas.iter().filter(|replica| is_lost(&open.reserved, replica));
            let lost: Vec<u64> = lost.map(|replica| replica.rid).collect();
            let is_all = lost.len() == open.reserved.replicas.len();
            if !lost.is_empty() && open.lose(lost, reason) && !is_all {
                given_up.push(GivenUp { reserved: open.reserved.clone(), settled: open.is_settled() });
            }
        }
        given_up
    }

    /// Whether a key may have a session, of so many bytes, with so many copies. They count from here on, until
    /// [`PutSessions::begin`] or [`PutSessions::give_back`].
    fn promise(&mut self, key: &[u8], bytes: u64, copies: usize, call: &Call, now: Duration) -> Result<(), StoreError> {
        if self.open.get(key).is_some_and(|open| !open.is_left(now)) {
            return Err(
                Cause::InvalidParams("this key has a put session already; end or revoke it first".into()).into()
            );
        }
        if self.copies + self.promised + copies > MOST {
            // What its callers have left lying about is no reason to refuse others.
            self.open.retain(|_, open| !open.is_left(now));
            self.copies = self.open.values().map(|open| open.reserved.replicas.len()).sum();
        }
        if self.copies + self.promised + copies > MOST {
            let (held, asked) = (self.copies + self.promised - call.promised, call.asked);
            let reason = format!(
                "put sessions of this store hold {held} copies of objects, this call asks for {asked}, and all may \
                 hold {MOST} at a time; end or revoke some, or start fewer with one call"
            );
            return Err(Cause::NoSpace { bytes, reason }.into());
        }
        self.promised += copies;
        Ok(())
    }

    /// So many copies that were promised are reserved, or are not going to be.
    fn give_back(&mut self, copies: usize) {
        self.promised -= copies;
    }

    /// `lost`: those of its replicas that were lost on the way here. Gives what is to be given up if none is left.
    fn begin(
        &mut self,
        key: &[u8],
        reserved: Reserved<O, P>,
        combine: Combine,
        held: Arc<Held>,
        lost: Vec<u64>,
    ) -> Option<GivenUp<O, P>> {
        let id = self.next;
        self.next += 1;
        let filling = Filling::new(reserved.size, combine);
        let (bad, writing, state) = (Vec::new(), Vec::new(), State::Filled);
        let mut open = Open { id, reserved: Arc::new(reserved), bad, filling, writing, state, held: Some(held) };
        let is_over = open.lose(lost, GONE);
        let given_up = is_over.then(|| GivenUp { reserved: open.reserved.clone(), settled: true });
        self.copies += open.reserved.replicas.len();
        let former = self.open.insert(key.into(), open);
        self.copies -= former.map_or(0, |former| former.reserved.replicas.len());
        given_up
    }

    fn find(&mut self, key: &[u8]) -> Result<&mut Open<O, P>, StoreError> {
        let none = || Cause::InvalidParams("this key has no put session; start one first".into()).into();
        self.open.get_mut(key).ok_or_else(none)
    }

    /// That very session of a key, if it has not been followed by another one.
    fn that(&mut self, key: &[u8], id: u64) -> Option<&mut Open<O, P>> {
        self.open.get_mut(key).filter(|open| open.id == id || mutant!(SessionsGoByName))
    }

    fn remove(&mut self, key: &[u8], id: u64) -> Option<Open<O, P>> {
        self.that(key, id)?;
        let open = self.open.remove(key)?;
        self.copies -= open.reserved.replicas.len();
        Some(open)
    }

    /// A part is to be written, once no other thread writes a byte of it: none until then.
    fn begin_part(&mut self, key: &[u8], offset: u64, len: u64) -> Result<Option<Part<O, P>>, StoreError> {
        let open = self.find(key)?;
        match &open.state {
            State::Filled => {}
            State::Over(reason) => return Err(Cause::SessionOver { reason: reason.clone() }.into()),
            State::Sealed if !mutant!(SealedSessionsAreWritten) => return Err(is_ending()),
            State::Sent(_) if !mutant!(SealedSessionsAreWritten) => return Err(has_ended()),
            State::Sealed | State::Sent(_) => {}
        }
        if !open.filling.has(offset, len) {
            let size = open.reserved.size;
            let reason = format!("{len} bytes from byte {offset} on: the object is to have {size} bytes");
            return Err(Cause::InvalidParams(reason).into());
        }
        if open.writing.iter().any(|(from, bytes)| *from < offset + len && offset < from + bytes) {
            return Ok(None);
        }
        open.filling.begin(offset, len);
        open.writing.push((offset, len));
        let bad = open.bad.iter().map(|(rid, _)| *rid).collect();
        Ok(Some(Part { id: open.id, reserved: open.reserved.clone(), bad }))
    }

    /// What became of a part, and what is to be given up for it.
    fn end_part(
        &mut self,
        key: &[u8],
        id: u64,
        part: (u64, u64),
        outcome: Result<Written, Lost>,
        now: Duration,
    ) -> (Result<(), StoreError>, Option<GivenUp<O, P>>) {
        let Some(open) = self.that(key, id) else { return (Err(meanwhile()), None) };
        if let Some(at) = open.writing.iter().position(|other| *other == part) {
            open.writing.swap_remove(at);
        }
        let reason = match outcome {
            Ok(written) => {
                let spoilt = |rid| written.spoilt.contains(&rid);
                let bad = written.outcomes.iter().filter(|outcome| !outcome.good).map(|outcome| outcome.rid);
                open.bad.extend(bad.map(|rid| (rid, spoilt(rid))));
                open.filling.written(part.0, part.1, written.crc32c);
                if open.good().next().is_some() {
                    return (Ok(()), None);
                }
                "no copy has all that was written".to_owned()
            }
            // Nothing but the caller's own memory, or wish, was the matter, or what passes: it may write them once
            // more.
            Err(lost) if (lost.final_word || lost.passing) && lost.settled => return (Err(lost.error), None),
            Err(lost) => {
                let rids = open.rids().into_iter();
                open.bad.extend(rids.map(|rid| (rid, lost.settled)));
                match &open.held {
                    Some(held) if held.has_lapsed(now) => {
                        format!("what it reserved lapsed, as it does after ten minutes: {}", lost.error)
                    }
                    _ => lost.error.to_string(),
                }
            }
        };
        let result = Err(Cause::SessionOver { reason: reason.clone() }.into());
        if matches!(open.state, State::Over(_)) {
            return (result, None);
        }
        open.over(reason);
        (result, Some(GivenUp { reserved: open.reserved.clone(), settled: open.is_settled() }))
    }
}

fn meanwhile() -> StoreError {
    Cause::SessionOver { reason: "it was taken back meanwhile".to_owned() }.into()
}

fn has_ended() -> StoreError {
    let reason = "the end of this key's put session is on its way, or was not answered; say it again, or revoke it";
    Cause::InvalidParams(reason.into()).into()
}

fn is_ending() -> StoreError {
    let reason = "the put session of this key is being ended or taken back by another call; wait for that call";
    Cause::InvalidParams(reason.into()).into()
}

fn is_object() -> StoreError {
    let reason =
        "this key has no put session any more: its end has made the object, which is there; remove the key instead";
    Cause::InvalidParams(reason.into()).into()
}

/// Reserves room for objects of these sizes; a result for each. What is wrong with a key from the beginning is in
/// `results`.
pub async fn start<D: PutSessionDriver>(
    driver: &D,
    keys: &[&[u8]],
    sizes: &[u64],
    mut results: Vec<Option<Result<(), StoreError>>>,
) -> Vec<Result<(), StoreError>> {
    let (mut pending, mut named) = (Vec::new(), BTreeSet::new());
    let (copies, now) = (driver.replicas(), driver.now());
    let mut call = Call { asked: results.iter().filter(|result| result.is_none()).count() * copies, promised: 0 };
    for (index, key) in keys.iter().enumerate().filter(|(index, _)| results[*index].is_none()).collect::<Vec<_>>() {
        let may = match named.insert(*key) {
            true => driver.put_sessions().promise(key, sizes[index], copies, &call, now),
            false => Err(Cause::InvalidParams("this key is in the batch already".into()).into()),
        };
        match may {
            Ok(()) => {
                call.promised += copies;
                pending.push(index);
            }
            Err(error) => results[index] = Some(Err(error)),
        }
    }
    let promised = pending.clone();
    // Reserving waits as long as the call holds nothing.
    let (mut wait, mut since) = (true, driver.now());
    while !pending.is_empty() {
        let later = pending.split_off(round_of(driver, &pending));
        let round = begin_round(driver, keys, sizes, &pending, wait, &mut results).await;
        if round.placed {
            (wait, since) = (false, driver.now());
            pending = round.full;
        } else if round.populating && !wait && driver.now().saturating_sub(since) < POPULATING {
            driver.pause(ASK_AGAIN).await;
            pending = round.full;
        } else {
            pending.clear();
        }
        pending.extend(later);
    }
    let unbegun = promised.iter().filter(|&&index| !matches!(results[index], Some(Ok(())))).count();
    driver.put_sessions().give_back(unbegun * copies);
    let lost = || Err(Cause::Superseded { attempts: 0 }.into());
    results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
}

/// How many keys, of so many, one request may name.
fn round_of<D: PutSessionDriver>(driver: &D, keys: &[usize]) -> usize {
    let mut bytes = 0;
    let fitting = keys.iter().take(changed_keys(driver.replicas())).take_while(|&&index| {
        bytes += driver.key_bytes(index);
        bytes <= ROUND_KEY_BYTES
    });
    fitting.count().max(1)
}

/// What became of a request to reserve.
#[derive(Default)]
struct Begun {
    /// Something was reserved. A master places as many keys as it has time for, and the others are no worse off.
    placed: bool,
    /// What had no room.
    full: Vec<usize>,
    /// For that, memory has to be populated.
    populating: bool,
}

async fn begin_round<D: PutSessionDriver>(
    driver: &D,
    keys: &[&[u8]],
    sizes: &[u64],
    round: &[usize],
    wait: bool,
    results: &mut [Option<Result<(), StoreError>>],
) -> Begun {
    let (slots, origin) = match driver.reserve(round, wait, 0).await {
        Ok(reserved) => reserved,
        Err(error) => {
            round.iter().for_each(|&index| results[index] = Some(Err(error.clone())));
            return Begun::default();
        }
    };
    let (mut placed, mut full) = (Vec::new(), Vec::new());
    // Told with the first of the keys that have no room.
    let mut why_full = String::new();
    for (&index, slot) in round.iter().zip(slots) {
        let bytes = sizes[index];
        let refusal = match slot.kind() {
            put_slot::Kind::Placed => {
                placed.push(Placed { index, slot });
                continue;
            }
            put_slot::Kind::Exists => Cause::Exists.into(),
            put_slot::Kind::Busy => Cause::Busy { reason: slot.reason }.into(),
            put_slot::Kind::Full => {
                full.push(index);
                if !slot.reason.is_empty() {
                    why_full = slot.reason;
                }
                Cause::NoSpace { bytes, reason: why_full.clone() }.into()
            }
            put_slot::Kind::TooLarge => Cause::TooLarge { bytes, reason: slot.reason }.into(),
            put_slot::Kind::Refused => Cause::PutRefused { bytes, reason: slot.reason }.into(),
            put_slot::Kind::Unspecified => driver.confused(),
        };
        results[index] = Some(Err(refusal));
    }
    let populating = why_full.starts_with(STILL_POPULATED);
    if placed.is_empty() {
        return Begun { placed: false, full, populating };
    }
    if let Err(error) = driver.meet(&origin, &placed).await {
        let rids = placed.iter().flat_map(|placed| placed.slot.replicas.iter().map(|replica| replica.rid));
        driver.give_up(&origin, rids.collect(), true).await;
        placed.iter().for_each(|placed| results[placed.index] = Some(Err(error.clone())));
        return Begun::default();
    }
    let mut given_up = Vec::new();
    for Placed { index, slot } in placed {
        let held = driver.hold(slot.replicas.iter().map(|replica| replica.rid).collect());
        let mut sessions = driver.put_sessions();
        // Under their lock: what is lost behind this finds the session among the others.
        let place = driver.place(&origin, &slot.replicas);
        let reserved = Reserved { origin: origin.clone(), size: sizes[index], replicas: slot.replicas, place };
        let lost = reserved.replicas.iter().filter(|replica| driver.is_lost(&reserved, replica));
        let lost = lost.map(|replica| replica.rid).collect();
        sessions.give_back(driver.replicas());
        given_up.extend(sessions.begin(keys[index], reserved, D::COMBINE, held, lost));
        drop(sessions);
        results[index] = Some(Ok(()));
    }
    give_up(driver, given_up).await;
    Begun { placed: true, full, populating }
}

/// Writes bytes from `offset` on in the session of a key, by `write` to each replica, which gives their checksum. Waits
/// for other threads that write some of the same ones.
pub async fn write_part<D: PutSessionDriver>(
    driver: &D,
    key: &[u8],
    (offset, len): (u64, u64),
    write: impl AsyncFn(&Reserved<D::Origin, D::Place>, &Replica) -> Result<u32, Lost>,
) -> Result<(), StoreError> {
    let began = driver.now();
    let Part { id, reserved, bad } = loop {
        let part = driver.put_sessions().begin_part(key, offset, len)?;
        if let Some(part) = part {
            break part;
        }
        if driver.now().saturating_sub(began) > PATIENCE {
            let what = format!("other threads have been writing some of {len} bytes from {offset} on for {PATIENCE:?}");
            return Err(Cause::TransferTimeout(what).into());
        }
        driver.pause(LOOK).await;
    };
    let good = reserved.replicas.iter().filter(|replica| !bad.contains(&replica.rid));
    let outcome = write_key(good, |replica| write(&reserved, replica)).await;
    let (result, given_up) = driver.put_sessions().end_part(key, id, (offset, len), outcome, driver.now());
    give_up(driver, given_up.into_iter().collect()).await;
    result
}

/// Makes objects of what was filled; a result for each key. One of which a byte was never written keeps its session,
/// and so does one of which the master could not be told.
pub async fn end<D: PutSessionDriver>(driver: &D, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
    let mut results: Vec<Option<Result<(), StoreError>>> = keys.iter().map(|_| None).collect();
    let mut sent = Vec::with_capacity(keys.len());
    for (index, key) in keys.iter().enumerate() {
        match seal(driver, key).await {
            Ok(sealed) => sent.push((index, sealed)),
            Err(error) => results[index] = Some(Err(error)),
        }
    }
    let told = tell(driver, keys, &sent).await;
    for ((index, sealed), told) in sent.iter().zip(told) {
        let told = match told {
            Ok(told) => told,
            Err(error) => {
                results[*index] = Some(Err(error));
                continue;
            }
        };
        // Another call may have ended it too, and its key have another one by now.
        let open = driver.put_sessions().remove(keys[*index], sealed.id);
        results[*index] = Some(if told == Told::Object { Ok(()) } else { Err(taken_back()) });
        // Ended as bad, and nothing of them can land any more: no fence has to prove that.
        let spoilt = open.map(|open| open.untouched()).unwrap_or_default();
        if told == Told::Object && !spoilt.is_empty() {
            driver.give_up(&sealed.reserved.origin, spoilt, true).await;
        }
    }
    let lost = || Err(taken_back());
    results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
}

/// What became of a session whose outcome the master was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// It is an object, by this word or an earlier one.
    Object,
    /// This word took it back, before any other made it an object.
    TakenBack,
    /// The word came too late.
    Late,
}

/// Tells the master how these end; what became of each, an error where there is no telling yet.
async fn tell<D: PutSessionDriver>(driver: &D, keys: &[&[u8]], sent: &[Sent<D>]) -> Vec<Result<Told, StoreError>> {
    let (mut all, mut rest) = (Vec::with_capacity(sent.len()), sent);
    while let Some((_, Sealed { reserved: first, .. })) = rest.first() {
        let of_it = |(_, sealed): &&Sent<D>| sealed.reserved.origin.is_of_session(&first.origin);
        let copies = |(_, sealed): &Sent<D>| sealed.reserved.replicas.len();
        let (round, others) = rest.split_at(changed_round(rest.iter().take_while(of_it).map(copies)));
        rest = others;
        let ended = round.iter().map(|(_, sealed)| sealed.ended.clone()).collect();
        all.extend(match driver.end(&first.origin, ended).await {
            Ok(Some(outcomes)) if outcomes.len() == round.len() => became_of(driver, keys, round, &outcomes).await,
            Ok(None) => vec![Ok(Told::Late); round.len()],
            other => vec![Err(other.err().unwrap_or_else(|| driver.confused())); round.len()],
        });
    }
    all
}

/// What became of each of these. A master knows the last placements of a session only that have become objects: of
/// others it says that they came too late, though it may have been told before, and its word was lost. Their keys tell.
async fn became_of<D: PutSessionDriver>(
    driver: &D,
    keys: &[&[u8]],
    round: &[Sent<D>],
    outcomes: &[i32],
) -> Vec<Result<Told, StoreError>> {
    use put_end_reply::Outcome;
    let told = |outcome: &i32| match Outcome::try_from(*outcome) {
        Ok(Outcome::Committed) => Told::Object,
        Ok(Outcome::Revoked) => Told::TakenBack,
        _ => Told::Late,
    };
    let mut became: Vec<_> = outcomes.iter().map(|outcome| Ok(told(outcome))).collect();
    let superseded = |at: &usize| Outcome::try_from(outcomes[*at]) == Ok(Outcome::Superseded);
    let late: Vec<usize> = (0..round.len()).filter(superseded).collect();
    let names: Vec<&[u8]> = late.iter().map(|&at| keys[round[at].0]).collect();
    let mut rest = &late[..];
    for names in rounds(&names, ROUND_KEYS) {
        let (these, others) = rest.split_at(names.len());
        rest = others;
        let found = driver.rids_of(&round[0].1.reserved.origin, names).await;
        for (nth, &at) in these.iter().enumerate() {
            let is_own = |rids: &Vec<u64>| round[at].1.reserved.replicas.iter().any(|own| rids.contains(&own.rid));
            let is_there = |found: &Vec<Vec<u64>>| found.get(nth).is_some_and(is_own);
            let told = |found| if is_there(found) { Told::Object } else { Told::Late };
            became[at] = found.as_ref().map(told).map_err(Clone::clone);
        }
    }
    became
}

fn taken_back() -> StoreError {
    let reason =
        "what it reserved was taken back (after ten minutes, with its segment, or with the store's own session)";
    Cause::SessionOver { reason: reason.to_owned() }.into()
}

/// A session that takes no further part, and what the master is to be told of it.
struct Sealed<O, P> {
    id: u64,
    reserved: Arc<Reserved<O, P>>,
    ended: Ended,
}

/// With the number of its key.
type Sent<D> = (usize, Sealed<<D as PutDriver>::Origin, <D as PutSessionDriver>::Place>);

/// Has a key take no further part.
async fn seal<D: PutSessionDriver>(driver: &D, key: &[u8]) -> Result<Sealed<D::Origin, D::Place>, StoreError> {
    let id = {
        let mut sessions = driver.put_sessions();
        let open = sessions.find(key)?;
        match &open.state {
            State::Filled => open.state = State::Sealed,
            State::Sealed => return Err(is_ending()),
            State::Sent(ended) => return Ok(open.sealed(ended.clone())),
            State::Over(_) => {}
        }
        open.id
    };
    let is_still = wait_for_writes(driver, key, id).await;
    let (reserved, known) = {
        let mut sessions = driver.put_sessions();
        let open = sessions.that(key, id).ok_or_else(meanwhile)?;
        if let State::Over(reason) = &open.state {
            let error = Cause::SessionOver { reason: reason.clone() }.into();
            if is_still {
                sessions.remove(key, id);
            }
            return Err(error);
        }
        if !is_still && !mutant!(EndsDoNotWaitForWrites) {
            open.reopen();
            let what = format!("writes of this key have been under way for {PATIENCE:?}; end it again, or revoke it");
            return Err(Cause::TransferTimeout(what).into());
        }
        if let Some((from, to)) = open.filling.first_hole()
            && !mutant!(HolesAreEnded)
        {
            open.reopen();
            let size = open.reserved.size;
            let reason = format!(
                "bytes {from} to {to} of {size} were never written, or their write failed; write them and end it \
                 again, or revoke it"
            );
            return Err(Cause::InvalidParams(reason).into());
        }
        if let Some(sum) = open.filling.sum() {
            return Ok(open.send(sum));
        }
        (open.reserved.clone(), open.bad.clone())
    };
    // Something was written twice.
    let (mut sum, mut reason, mut passing, mut bad) = (None, GONE.to_owned(), None, Vec::new());
    for replica in reserved.replicas.iter().filter(|replica| known.iter().all(|(rid, _)| *rid != replica.rid)) {
        match driver.sum_of(&reserved, replica).await {
            Ok(read) if *sum.get_or_insert(read) == read => continue,
            Ok(_) => reason = "its copies differ".to_owned(),
            Err(lost) if lost.passing => passing = Some(lost.error),
            Err(lost) => reason = lost.error.to_string(),
        }
        bad.push((replica.rid, true));
    }
    let mut sessions = driver.put_sessions();
    let open = sessions.that(key, id).ok_or_else(meanwhile)?;
    if let Some(error) = passing.filter(|_| sum.is_none()) {
        open.reopen();
        return Err(error);
    }
    open.bad.extend(bad);
    if let Some(sum) = sum {
        return Ok(open.send(sum));
    }
    let over = GivenUp { reserved: open.reserved.clone(), settled: open.is_settled() };
    sessions.remove(key, id);
    drop(sessions);
    give_up(driver, vec![over]).await;
    Err(Cause::SessionOver { reason }.into())
}

/// Whether none is under way any more.
async fn wait_for_writes<D: PutSessionDriver>(driver: &D, key: &[u8], id: u64) -> bool {
    let began = driver.now();
    loop {
        let is_still = driver.put_sessions().that(key, id).is_none_or(|open| open.writing.is_empty());
        if is_still || mutant!(EndsDoNotWaitForWrites) || driver.now().saturating_sub(began) > PATIENCE {
            return is_still;
        }
        driver.pause(LOOK).await;
    }
}

/// Takes back what keys have reserved; a result for each. Where an end has gone to the master, the master is told that
/// no copy is good, and its answer decides: a key that is said to be taken back never becomes an object.
pub async fn revoke<D: PutSessionDriver>(driver: &D, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
    let (mut results, mut given_up, mut sent) = (Vec::with_capacity(keys.len()), Vec::new(), Vec::new());
    for (index, key) in keys.iter().enumerate() {
        let begun = driver.put_sessions().find(key).and_then(|open| match &open.state {
            State::Sealed => Err(is_ending()),
            State::Sent(_) if !mutant!(RevokesDoNotAsk) => {
                sent.push((index, open.sealed(open.ended(|_| false, 0))));
                Ok(None)
            }
            State::Filled | State::Sent(_) => {
                open.state = State::Sealed;
                Ok(Some(open.id))
            }
            State::Over(_) => Ok(Some(open.id)),
        });
        if let Ok(Some(id)) = begun {
            wait_for_writes(driver, key, id).await;
        }
        results.push(match begun {
            Ok(Some(id)) => match driver.put_sessions().remove(key, id) {
                Some(Open { state: State::Over(reason), .. }) => Err(Cause::SessionOver { reason }.into()),
                Some(open) => {
                    given_up.push(GivenUp { settled: open.is_settled(), reserved: open.reserved });
                    Ok(())
                }
                None => Ok(()),
            },
            begun => begun.map(drop),
        });
    }
    let told = tell(driver, keys, &sent).await;
    for ((index, sealed), told) in sent.iter().zip(told) {
        results[*index] = match told {
            Ok(Told::TakenBack) => Ok(()),
            Ok(Told::Object) => Err(is_object()),
            Ok(Told::Late) => Err(taken_back()),
            Err(error) => {
                results[*index] = Err(error);
                // Its caller wants it no more, and may not ask again: from here on it ends as a put that nobody renews.
                if let Some(open) = driver.put_sessions().that(keys[*index], sealed.id) {
                    open.held = None;
                }
                continue;
            }
        };
        let open = driver.put_sessions().remove(keys[*index], sealed.id);
        // Nothing of it can land any more: no fence has to prove that.
        let settled = open.filter(|open| results[*index].is_ok() && open.is_settled());
        given_up.extend(settled.map(|open| GivenUp { settled: true, reserved: open.reserved }));
    }
    give_up(driver, given_up).await;
    results
}

/// Gives placements up, those of a session together.
pub async fn give_up<D: PutSessionDriver>(driver: &D, all: Vec<GivenUp<D::Origin, D::Place>>) {
    for settled in [true, false] {
        let of_kind: Vec<_> = all.iter().filter(|given_up| given_up.settled == settled).collect();
        let mut rest = &of_kind[..];
        while let Some(first) = rest.first() {
            let origin = &first.reserved.origin;
            let of_it = |other: &&&GivenUp<D::Origin, D::Place>| other.reserved.origin.is_of_session(origin);
            let copies = |given_up: &&GivenUp<D::Origin, D::Place>| given_up.reserved.replicas.len();
            let (round, others) = rest.split_at(changed_round(rest.iter().take_while(of_it).map(copies)));
            rest = others;
            let rids = round.iter().flat_map(|given_up| &given_up.reserved.replicas).map(|replica| replica.rid);
            driver.give_up(origin, rids.collect(), settled).await;
        }
    }
}

#[cfg(test)]
mod tests;

//! Put sessions: keys that are reserved once and then filled by any threads, in parts and in any order, until their
//! caller ends them as objects or aborts them. The beat renews what they reserve, idle or not, for ten minutes; a
//! master that does not hear it has the reservations lapse as those of any put.
//!
//! What has been written decides at the end: one unwritten byte refuses its key. The checksum of an object is that of
//! its parts. Where a part was written over another one, the object is read back for it (docs/safety.md, rule 3).

mod book;

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;
use mooncake_wire::STILL_POPULATED;
use mooncake_wire::message::{Replica, put_end_reply, put_slot};

pub use book::{Aborted, NEW_SESSION, PutSessions, Reserved};
use book::{GONE, Open, Permit, Promise, Sealed, State, is_ending, is_object, meanwhile};

use crate::error::{Cause, StoreError};
use crate::key::ShownKey;
use crate::machine::filling::Combine;
use crate::machine::get::ROUND_KEYS;
use crate::machine::progress::HeldReservations;
use crate::machine::put::{PlacedKey, PutDriver, Reasons, ReservationOrigin as _, Unwritten, write_key};
use crate::machine::rounds::{ROUND_KEY_BYTES, changed_keys, changed_round, rounds};

/// How often a call that waits for writes of others looks whether they have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Longest wait for them: each ends by itself when no byte of it moves.
const WRITES_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest that a call which holds something already goes on asking for room in memory that is still being populated,
/// with none placed. That room comes whatever others hold, so asking again blocks no other put (docs/safety.md,
/// rule 9).
const POPULATING: Duration = Duration::from_secs(5);

/// How often it asks.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Longest wait of an end for owners that are away: behind a restart of the master they are back within a second.
const OWNERS_AWAY: Duration = Duration::from_secs(3);

/// What put sessions need of their store.
pub trait PutSessionDriver: PutDriver {
    /// The segments of what was reserved, whatever their store meets behind that.
    type MetSegments;

    /// How checksums of parts become one.
    const COMBINE: Combine;

    /// The store's, under their lock.
    fn put_sessions(&self) -> impl DerefMut<Target = PutSessions<Self::ReservationOrigin, Self::MetSegments>>;

    /// Has the beat renew these from now on, as long as the answer lives.
    fn hold(&self, rids: Vec<Rid>) -> Arc<HeldReservations>;

    /// The segments of replicas, which were just met.
    fn met_segments(&self, origin: &Self::ReservationOrigin, replicas: &[Replica]) -> Self::MetSegments;

    /// Whether a replica cannot be written any more: its segment is Gone, or its session with the master over.
    fn is_lost(&self, reserved: &Reserved<Self::ReservationOrigin, Self::MetSegments>, replica: &Replica) -> bool;

    /// The rids of the objects that these keys are, as the master knows them: none where it is asked in another
    /// session, as numbers begin anew with another log.
    fn rids_of(
        &self,
        origin: &Self::ReservationOrigin,
        keys: &[&[u8]],
    ) -> impl Future<Output = Result<Vec<Vec<Rid>>, StoreError>>;

    /// Whether the caller wants this call no more.
    fn is_interrupted(&self) -> bool;

    /// Reads a replica back, and gives the checksum of its bytes.
    fn sum_of(
        &self,
        reserved: &Reserved<Self::ReservationOrigin, Self::MetSegments>,
        replica: &Replica,
    ) -> impl Future<Output = Result<u32, Unwritten>>;
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
    let (replicas, now) = (driver.replicas(), driver.now());
    for (index, key) in keys.iter().enumerate().filter(|(index, _)| results[*index].is_none()).collect::<Vec<_>>() {
        let may = match named.insert(*key) {
            true => driver.put_sessions().may_begin(key, now),
            false => Err(is_named_twice()),
        };
        match may {
            Ok(()) => pending.push(index),
            Err(error) => results[index] = Some(Err(error)),
        }
    }
    // Reserving waits as long as the call holds nothing.
    let (mut wait, mut since, mut held, mut begun) = (true, driver.now(), 0, Vec::new());
    while !pending.is_empty() && !driver.is_interrupted() {
        let promise = driver.put_sessions().promise(round_of(driver, &pending), replicas, driver.now());
        let Some(mut promise) = promise else {
            refuse(driver, sizes, &pending, held, &mut results);
            break;
        };
        let later = pending.split_off(promise.keys);
        let promised = promise.replicas;
        let round = begin_round(driver, keys, sizes, &pending, wait, &mut promise, &mut results).await;
        driver.put_sessions().give_back(promise.replicas);
        held += promised - promise.replicas;
        begun.extend(round.begun);
        if !round.beyond.is_empty() {
            refuse(driver, sizes, &[round.beyond, round.full, later].concat(), held, &mut results);
            break;
        }
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
    if driver.is_interrupted() {
        pending.into_iter().for_each(|index| results[index] = Some(Err(Cause::Interrupted.into())));
        abort_begun(driver, keys, &begun, &mut results).await;
    }
    let superseded = || Err(Cause::Superseded { attempts: 0 }.into());
    results.into_iter().map(|result| result.unwrap_or_else(superseded)).collect()
}

/// Aborts what a call has begun whose caller hears nothing of it.
async fn abort_begun<D: PutSessionDriver>(
    driver: &D,
    keys: &[&[u8]],
    begun: &[(usize, u64)],
    results: &mut [Option<Result<(), StoreError>>],
) {
    let mut aborted = Vec::new();
    for &(index, id) in begun {
        let open = driver.put_sessions().remove(keys[index], id);
        aborted.extend(open.map(|open| Aborted { settled: open.is_settled(), reserved: open.reserved }));
        results[index] = Some(Err(Cause::Interrupted.into()));
    }
    abort_placements(driver, aborted).await;
}

/// Nothing is left for these of what all put sessions may hold.
fn refuse<D: PutSessionDriver>(
    driver: &D,
    sizes: &[u64],
    indices: &[usize],
    held: usize,
    results: &mut [Option<Result<(), StoreError>>],
) {
    let sessions = driver.put_sessions();
    indices.iter().for_each(|&index| results[index] = Some(Err(sessions.no_replicas_left(sizes[index], held))));
}

/// How many keys, of so many, one request may name.
fn round_of<D: PutSessionDriver>(driver: &D, indices: &[usize]) -> usize {
    let mut bytes = 0;
    let fitting = indices.iter().take(changed_keys(driver.replicas())).take_while(|&&index| {
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
    /// Keys that have a session now, each with its number.
    begun: Vec<(usize, u64)>,
    /// What had no room.
    full: Vec<usize>,
    /// What got more replicas than all sessions may hold.
    beyond: Vec<usize>,
    /// Of what had no room: it comes from memory that is still being populated.
    populating: bool,
}

async fn begin_round<D: PutSessionDriver>(
    driver: &D,
    keys: &[&[u8]],
    sizes: &[u64],
    round: &[usize],
    wait: bool,
    promise: &mut Promise,
    results: &mut [Option<Result<(), StoreError>>],
) -> Begun {
    let (slots, origin) = match driver.reserve(round, wait, Rid(0)).await {
        Ok(reserved) => reserved,
        Err(error) => {
            round.iter().for_each(|&index| results[index] = Some(Err(error.clone())));
            return Begun::default();
        }
    };
    let (mut placed, mut full) = (Vec::new(), Vec::new());
    let mut reasons = Reasons::default();
    for (&index, slot) in round.iter().zip(slots) {
        let bytes = sizes[index];
        match slot.kind() {
            put_slot::Kind::Placed => {
                placed.push(PlacedKey { index, slot });
                continue;
            }
            put_slot::Kind::Full => full.push(index),
            _ => {}
        }
        results[index] = Some(Err(reasons.cause(slot, bytes).map_or_else(|| driver.confused(), StoreError::from)));
    }
    let populating = reasons.full().starts_with(STILL_POPULATED);
    if placed.is_empty() {
        return Begun { full, populating, ..Begun::default() };
    }
    if let Err(error) = driver.meet(&origin, &placed).await {
        let rids = placed.iter().flat_map(|placed| placed.slot.replicas.iter().map(|replica| Rid(replica.rid)));
        driver.abort(&origin, rids.collect(), true).await;
        placed.iter().for_each(|placed| results[placed.index] = Some(Err(error.clone())));
        return Begun::default();
    }
    let (mut aborted, mut begun, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for PlacedKey { index, slot } in placed {
        let Some(left) = promise.replicas.checked_sub(slot.replicas.len()) else {
            beyond.push((index, slot.replicas));
            continue;
        };
        promise.replicas = left;
        let held = driver.hold(slot.replicas.iter().map(|replica| Rid(replica.rid)).collect());
        let mut sessions = driver.put_sessions();
        // Under their lock: what is lost behind this finds the session among the others.
        let met = driver.met_segments(&origin, &slot.replicas);
        let reserved = Reserved { origin: origin.clone(), size: sizes[index], replicas: slot.replicas, met };
        let lost = reserved.replicas.iter().filter(|replica| driver.is_lost(&reserved, replica));
        let lost = lost.map(|replica| Rid(replica.rid)).collect();
        sessions.give_back(reserved.replicas.len());
        let (id, is_lost) = sessions.begin(keys[index], reserved, D::COMBINE, held, lost);
        begun.push((index, id));
        aborted.extend(is_lost);
        drop(sessions);
        results[index] = Some(Ok(()));
    }
    abort_placements(driver, aborted).await;
    if !beyond.is_empty() {
        let rids = beyond.iter().flat_map(|(_, replicas)| replicas).map(|replica| Rid(replica.rid)).collect();
        driver.abort(&origin, rids, true).await;
    }
    let beyond = beyond.into_iter().map(|(index, _)| index).collect();
    Begun { placed: true, begun, full, beyond, populating }
}

/// Writes bytes from `offset` on in the session of a key, by `write` to each replica, which gives their checksum. Waits
/// for other threads that write some of the same ones.
pub async fn write_part<D: PutSessionDriver>(
    driver: &D,
    key: &[u8],
    (offset, len): (u64, u64),
    write: impl AsyncFn(&Reserved<D::ReservationOrigin, D::MetSegments>, &Replica) -> Result<u32, Unwritten>,
) -> Result<(), StoreError> {
    let began = driver.now();
    let Permit { id, reserved, bad } = loop {
        let permit = driver.put_sessions().begin_part(key, offset, len)?;
        if let Some(permit) = permit {
            break permit;
        }
        if driver.is_interrupted() {
            return Err(Cause::Interrupted.into());
        }
        if driver.now().saturating_sub(began) > WRITES_TIMEOUT {
            let what =
                format!("other threads have been writing some of {len} bytes from {offset} on for {WRITES_TIMEOUT:?}");
            return Err(Cause::TransferTimeout(what).into());
        }
        driver.pause(POLL_INTERVAL).await;
    };
    let good = reserved.replicas.iter().filter(|replica| !bad.contains(&Rid(replica.rid)));
    let outcome = write_key(good, |replica| write(&reserved, replica)).await;
    let (result, aborted) = driver.put_sessions().end_part(key, id, (offset, len), outcome, driver.now());
    abort_placements(driver, aborted.into_iter().collect()).await;
    result
}

/// Makes objects of what was filled; a result for each key. One of which a byte was never written keeps its session,
/// and so does one of which the master could not be told.
pub async fn end<D: PutSessionDriver>(driver: &D, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
    let mut results: Vec<Option<Result<(), StoreError>>> = keys.iter().map(|_| None).collect();
    let (mut sent, mut named) = (Vec::with_capacity(keys.len()), BTreeSet::new());
    for (index, key) in keys.iter().enumerate() {
        let sealed = if named.insert(*key) { seal(driver, key).await } else { Err(is_named_twice()) };
        match sealed {
            Ok(sealed) => sent.push((index, sealed)),
            Err(error) => results[index] = Some(Err(error)),
        }
    }
    let began = driver.now();
    while !sent.is_empty() {
        let told = tell(driver, keys, &sent).await;
        let mut hidden = Vec::new();
        for ((index, sealed), told) in sent.into_iter().zip(told) {
            let told = match told {
                Ok(Told::Hidden) => {
                    results[index] = Some(Err(are_away()));
                    hidden.push((index, sealed));
                    continue;
                }
                Ok(told) => told,
                Err(error) => {
                    results[index] = Some(Err(error));
                    continue;
                }
            };
            // Another call may have ended it too, and its key have another one by now.
            let open = driver.put_sessions().remove(keys[index], sealed.id);
            results[index] = Some(if told == Told::Object { Ok(()) } else { Err(was_aborted()) });
            // Ended as bad, and nothing of them can land any more: no fence has to prove that.
            let is_spoilt = |rid: &Rid| sealed.ended.replicas.iter().any(|ended| ended.rid == rid.0 && !ended.good);
            let spoilt: Vec<Rid> = open.map(|open| open.settled_bad()).unwrap_or_default();
            let spoilt: Vec<Rid> = spoilt.into_iter().filter(is_spoilt).collect();
            if told == Told::Object && !spoilt.is_empty() {
                driver.abort(&sealed.reserved.origin, spoilt, true).await;
            }
        }
        sent = hidden;
        if sent.is_empty() || driver.now().saturating_sub(began) > OWNERS_AWAY {
            break;
        }
        if driver.is_interrupted() {
            sent.iter().for_each(|(index, _)| results[*index] = Some(Err(Cause::Interrupted.into())));
            break;
        }
        driver.pause(ASK_AGAIN).await;
    }
    let aborted = || Err(was_aborted());
    results.into_iter().map(|result| result.unwrap_or_else(aborted)).collect()
}

/// What became of a session whose outcome the master was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// It is an object, by this word or an earlier one.
    Object,
    /// This word aborted it, before any other made it an object.
    Aborted,
    /// The word came too late.
    Late,
    /// The owners of all its replicas are away: the word may be said again.
    Hidden,
}

/// Tells the master how these end; what became of each, an error where there is no telling yet.
async fn tell<D: PutSessionDriver>(driver: &D, keys: &[&[u8]], sent: &[Sent<D>]) -> Vec<Result<Told, StoreError>> {
    let (mut all, mut rest) = (Vec::with_capacity(sent.len()), sent);
    while let Some((_, Sealed { reserved: first, .. })) = rest.first() {
        let of_it = |(_, sealed): &&Sent<D>| sealed.reserved.origin.is_of_session(&first.origin);
        let replicas = |(_, sealed): &Sent<D>| sealed.reserved.replicas.len();
        let (round, others) = rest.split_at(changed_round(rest.iter().take_while(of_it).map(replicas)));
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
        Ok(Outcome::Revoked) => Told::Aborted,
        Ok(Outcome::Hidden) => Told::Hidden,
        _ => Told::Late,
    };
    let mut became: Vec<_> = outcomes.iter().map(|outcome| Ok(told(outcome))).collect();
    let superseded = |at: &usize| Outcome::try_from(outcomes[*at]) == Ok(Outcome::Superseded);
    let late: Vec<usize> = (0..round.len()).filter(superseded).collect();
    let late_keys: Vec<&[u8]> = late.iter().map(|&at| keys[round[at].0]).collect();
    let mut rest = &late[..];
    for round_keys in rounds(&late_keys, ROUND_KEYS) {
        let (these, others) = rest.split_at(round_keys.len());
        rest = others;
        let found = driver.rids_of(&round[0].1.reserved.origin, round_keys).await;
        for (nth, &at) in these.iter().enumerate() {
            let is_own = |rids: &Vec<Rid>| round[at].1.reserved.replicas.iter().any(|own| rids.contains(&Rid(own.rid)));
            let is_there = |found: &Vec<Vec<Rid>>| found.get(nth).is_some_and(is_own);
            let told = |found| if is_there(found) { Told::Object } else { Told::Late };
            became[at] = found.as_ref().map(told).map_err(Clone::clone);
        }
    }
    became
}

fn is_named_twice() -> StoreError {
    Cause::InvalidParams("this key is in the batch already".into()).into()
}

fn are_away() -> StoreError {
    let what = format!("the owners of all its replicas have been away for {OWNERS_AWAY:?}; end it again, or revoke it");
    Cause::TransferTimeout(what).into()
}

fn was_aborted() -> StoreError {
    let reason =
        "what it reserved was taken back (after ten minutes, with its segment, or with the store's own session)";
    Cause::SessionOver { reason: reason.to_owned() }.into()
}

/// With the number of its key.
type Sent<D> = (usize, Sealed<<D as PutDriver>::ReservationOrigin, <D as PutSessionDriver>::MetSegments>);

/// Has a key take no further part.
async fn seal<D: PutSessionDriver>(
    driver: &D,
    key: &[u8],
) -> Result<Sealed<D::ReservationOrigin, D::MetSegments>, StoreError> {
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
    let is_quiet = wait_for_writes(driver, key, id).await;
    let (reserved, known) = {
        let mut sessions = driver.put_sessions();
        let open = sessions.that(key, id).ok_or_else(meanwhile)?;
        if let State::Over(reason) = &open.state {
            let error = Cause::SessionOver { reason: reason.clone() }.into();
            if is_quiet {
                sessions.remove(key, id);
            }
            return Err(error);
        }
        if !is_quiet && !mutant!(EndsDoNotWaitForWrites) {
            open.reopen();
            if driver.is_interrupted() {
                return Err(Cause::Interrupted.into());
            }
            let what =
                format!("writes of this key have been under way for {WRITES_TIMEOUT:?}; end it again, or revoke it");
            return Err(Cause::TransferTimeout(what).into());
        }
        if let Some((from, to)) = open.filling.first_hole()
            && !mutant!(HolesAreEnded)
        {
            open.reopen();
            let size = open.reserved.size;
            let reason = format!(
                "{}: bytes {from} to {to} of {size} were never written, or their write failed; write them and end \
                 it again, or revoke it",
                ShownKey(key)
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
    for replica in reserved.replicas.iter().filter(|replica| known.iter().all(|(rid, _)| rid.0 != replica.rid)) {
        match driver.sum_of(&reserved, replica).await {
            Ok(read) if *sum.get_or_insert(read) == read => continue,
            Ok(_) => reason = "its replicas differ".to_owned(),
            // Nothing of the replica was the matter.
            Err(unread) if unread.final_word || driver.is_interrupted() => {
                if let Some(open) = driver.put_sessions().that(key, id) {
                    open.reopen();
                }
                return Err(if unread.final_word { unread.error } else { Cause::Interrupted.into() });
            }
            Err(unread) if unread.passing => passing = Some(unread.error),
            Err(unread) => reason = unread.error.to_string(),
        }
        bad.push((Rid(replica.rid), true));
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
    let over = Aborted { reserved: open.reserved.clone(), settled: open.is_settled() };
    sessions.remove(key, id);
    drop(sessions);
    abort_placements(driver, vec![over]).await;
    Err(Cause::SessionOver { reason }.into())
}

/// Waits until no write of the session is under way. False where that takes too long, or the caller is interrupted.
async fn wait_for_writes<D: PutSessionDriver>(driver: &D, key: &[u8], id: u64) -> bool {
    let began = driver.now();
    loop {
        let is_quiet = driver.put_sessions().that(key, id).is_none_or(|open| open.writing.is_empty());
        let is_late = driver.now().saturating_sub(began) > WRITES_TIMEOUT || driver.is_interrupted();
        if is_quiet || mutant!(EndsDoNotWaitForWrites) || is_late {
            return is_quiet;
        }
        driver.pause(POLL_INTERVAL).await;
    }
}

/// Aborts what keys have reserved; a result for each. Where an end has gone to the master, the master is told that
/// no replica is good, and its answer decides: a key that is said to be aborted never becomes an object.
pub async fn abort<D: PutSessionDriver>(driver: &D, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
    let (mut results, mut aborted, mut sent) = (Vec::with_capacity(keys.len()), Vec::new(), Vec::new());
    for (index, key) in keys.iter().enumerate() {
        let begun = driver.put_sessions().find(key).and_then(|open| match &open.state {
            State::Sealed => Err(is_ending()),
            State::Sent(_) if !mutant!(AbortsDoNotAsk) => {
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
                    aborted.push(Aborted { settled: open.is_settled(), reserved: open.reserved });
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
            Ok(Told::Aborted) => Ok(()),
            Ok(Told::Object) => Err(is_object()),
            Ok(Told::Late) => Err(was_aborted()),
            Ok(Told::Hidden) => Err(driver.confused()),
            Err(error) => {
                results[*index] = Err(error);
                // The caller wants the key no more, and may not ask again. Without renewals its reservation lapses
                // (docs/safety.md, rule 6).
                if let Some(open) = driver.put_sessions().that(keys[*index], sealed.id) {
                    open.held = None;
                }
                continue;
            }
        };
        let open = driver.put_sessions().remove(keys[*index], sealed.id);
        // Nothing of it can land any more: no fence has to prove that.
        let settled = open.filter(|open| results[*index].is_ok() && open.is_settled());
        aborted.extend(settled.map(|open| Aborted { settled: true, reserved: open.reserved }));
    }
    abort_placements(driver, aborted).await;
    results
}

/// Aborts placements, those of a session together.
pub async fn abort_placements<D: PutSessionDriver>(
    driver: &D,
    all: Vec<Aborted<D::ReservationOrigin, D::MetSegments>>,
) {
    for settled in [true, false] {
        let of_kind: Vec<_> = all.iter().filter(|aborted| aborted.settled == settled).collect();
        let mut rest = &of_kind[..];
        while let Some(first) = rest.first() {
            let origin = &first.reserved.origin;
            let of_it =
                |other: &&&Aborted<D::ReservationOrigin, D::MetSegments>| other.reserved.origin.is_of_session(origin);
            let replicas = |aborted: &&Aborted<D::ReservationOrigin, D::MetSegments>| aborted.reserved.replicas.len();
            let (round, others) = rest.split_at(changed_round(rest.iter().take_while(of_it).map(replicas)));
            rest = others;
            let rids = round.iter().flat_map(|aborted| &aborted.reserved.replicas).map(|replica| Rid(replica.rid));
            driver.abort(origin, rids.collect(), settled).await;
        }
    }
}

#[cfg(test)]
mod tests;

//! The keys of a store that have a put session, and what their sessions know of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;
use mooncake_wire::message::{Ended, Replica, ReplicaOutcome};

use crate::error::{Cause, StoreError};
use crate::machine::filling::{Combine, Filling};
use crate::machine::progress::HeldReservations;
use crate::machine::put::{Unwritten, Written};

/// Most replicas that the sessions of a store reserve at a time: the beat renews each of them every few seconds.
pub(super) const REPLICAS_HELD_MAX: usize = 16_384;

/// Why a session is over that has no replica left.
pub(super) const GONE: &str = "the owners of all its replicas are gone";

/// Why all sessions are over whose store has a new session with its master.
pub const NEW_SESSION: &str = "the store's session with its master, which reserved this, is over";

/// The keys of a store that have a put session.
#[derive(Debug)]
pub struct PutSessions<O, M> {
    pub(super) open: BTreeMap<Box<[u8]>, Open<O, M>>,
    pub(super) next: u64,
    /// Of all that are open.
    pub(super) replicas: usize,
    /// Replicas that calls are about to reserve.
    pub(super) promised: usize,
}

impl<O, M> Default for PutSessions<O, M> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), next: 0, replicas: 0, promised: 0 }
    }
}

#[derive(Debug)]
pub(super) struct Open<O, M> {
    /// A key has one session after the other.
    pub(super) id: u64,
    pub(super) reserved: Arc<Reserved<O, M>>,
    /// Replicas that lack a part of what was written: true where nothing of this client touches them any more.
    pub(super) bad: Vec<(Rid, bool)>,
    pub(super) filling: Filling,
    /// Parts under way, of all threads.
    pub(super) writing: Vec<(u64, u64)>,
    pub(super) state: State,
    pub(super) held: Option<Arc<HeldReservations>>,
}

/// What a key was given.
#[derive(Debug)]
pub struct Reserved<O, M> {
    /// Where it comes from.
    pub origin: O,
    /// Bytes of the object to be.
    pub size: u64,
    /// Its placements.
    pub replicas: Vec<Replica>,
    /// Their segments.
    pub met: M,
}

/// What a request to reserve may ask for.
pub(super) struct Promise {
    /// Its keys.
    pub(super) keys: usize,
    /// Replicas of them all that may still be reserved.
    pub(super) replicas: usize,
}

#[derive(Debug)]
pub(super) enum State {
    /// It is being filled.
    Filled,
    /// A call ends or aborts it.
    Sealed,
    /// The master has perhaps been told that it is an object: nothing may be written any more.
    Sent(Ended),
    /// Nothing that it reserved is its own any more, and why.
    Over(String),
}

/// Leave to write a part.
pub(super) struct Permit<O, M> {
    pub(super) id: u64,
    pub(super) reserved: Arc<Reserved<O, M>>,
    /// Replicas that need not be written any more.
    pub(super) bad: Vec<Rid>,
}

/// A session that takes no further part, and what the master is to be told of it.
pub(super) struct Sealed<O, M> {
    pub(super) id: u64,
    pub(super) reserved: Arc<Reserved<O, M>>,
    pub(super) ended: Ended,
}

/// Placements that are to be aborted.
#[derive(Debug)]
pub struct Aborted<O, M> {
    /// Where they come from.
    pub reserved: Arc<Reserved<O, M>>,
    /// Nothing of this client touches any replica of them again.
    pub settled: bool,
}

impl<O, M> Open<O, M> {
    pub(super) fn is_bad(&self, rid: Rid) -> bool {
        self.bad.iter().any(|(bad, _)| *bad == rid)
    }

    pub(super) fn good(&self) -> impl Iterator<Item = &Replica> {
        self.reserved.replicas.iter().filter(|replica| !self.is_bad(Rid(replica.rid)))
    }

    /// Bad replicas that no write of this client touches any more. Several writes may have found one bad, each by
    /// itself.
    pub(super) fn settled_bad(&self) -> Vec<Rid> {
        let all_settled = |rid| self.bad.iter().all(|(bad, settled)| *bad != rid || *settled);
        let mut rids: Vec<Rid> = self.bad.iter().map(|(rid, _)| *rid).filter(|rid| all_settled(*rid)).collect();
        rids.sort_unstable();
        rids.dedup();
        rids
    }

    pub(super) fn is_settled(&self) -> bool {
        self.writing.is_empty() && self.bad.iter().all(|(_, settled)| *settled)
    }

    /// Nothing can be written to these replicas any more. Without another one the session is over, unless a call ends
    /// it: that finds out. True if it is over by this.
    pub(super) fn lose(&mut self, lost: Vec<Rid>, reason: &str) -> bool {
        self.bad.extend(lost.into_iter().map(|rid| (rid, true)));
        let is_over = matches!(self.state, State::Filled) && self.good().next().is_none();
        if is_over {
            self.over(reason.to_owned());
        }
        is_over
    }

    /// A call that was to end it has found that it cannot.
    pub(super) fn reopen(&mut self) {
        self.state = State::Filled;
        self.lose(Vec::new(), GONE);
    }

    /// Nothing of it can become an object any more, or none of this store waits for that, and nothing of it is being
    /// written: its caller has left it behind.
    pub(super) fn is_left(&self, now: Duration) -> bool {
        let has_lapsed = || self.held.as_ref().is_some_and(|held| held.has_lapsed(now));
        let is_over = match &self.state {
            State::Over(_) => true,
            State::Filled => has_lapsed(),
            State::Sealed => false,
            // An abort that was not answered renews it no more.
            State::Sent(_) => self.held.is_none() || has_lapsed() || self.good().next().is_none(),
        };
        is_over && self.writing.is_empty()
    }

    pub(super) fn rids(&self) -> Vec<Rid> {
        self.reserved.replicas.iter().map(|replica| Rid(replica.rid)).collect()
    }

    /// What the master is told: from here on nothing is written.
    pub(super) fn send(&mut self, crc32c: u32) -> Sealed<O, M> {
        let ended = self.ended(|rid| !self.is_bad(rid), crc32c);
        self.state = State::Sent(ended.clone());
        self.sealed(ended)
    }

    pub(super) fn ended(&self, good: impl Fn(Rid) -> bool, crc32c: u32) -> Ended {
        let outcome = |replica: &Replica| ReplicaOutcome { rid: replica.rid, good: good(Rid(replica.rid)) };
        Ended { replicas: self.reserved.replicas.iter().map(outcome).collect(), crc32c, stays: true }
    }

    pub(super) fn sealed(&self, ended: Ended) -> Sealed<O, M> {
        Sealed { id: self.id, reserved: self.reserved.clone(), ended }
    }

    pub(super) fn over(&mut self, reason: String) {
        self.state = State::Over(reason);
        self.held = None;
    }
}

impl<O, M> PutSessions<O, M> {
    /// The store closes: all that is reserved, and whether nothing of it is being written.
    pub fn close(&mut self) -> Vec<Aborted<O, M>> {
        self.replicas = 0;
        let open = std::mem::take(&mut self.open).into_values();
        let alive = open.filter(|open| !matches!(open.state, State::Over(_)));
        alive.map(|open| Aborted { settled: open.is_settled(), reserved: open.reserved }).collect()
    }

    /// A segment is Gone, as `is_on_it` knows. What was reserved there is lost, and sessions without another replica
    /// are over. Gives those of them that have reserved something elsewhere, too.
    pub fn segment_gone(&mut self, is_on_it: impl Fn(&Reserved<O, M>, &Replica) -> bool) -> Vec<Aborted<O, M>> {
        self.lose(is_on_it, GONE)
    }

    /// The store has a new session with its master, and `is_of_it` knows what was reserved in that.
    pub fn session_over(&mut self, is_of_it: impl Fn(&O) -> bool) {
        self.lose(|reserved, _| !is_of_it(&reserved.origin), NEW_SESSION);
    }

    pub(super) fn lose(
        &mut self,
        is_lost: impl Fn(&Reserved<O, M>, &Replica) -> bool,
        reason: &str,
    ) -> Vec<Aborted<O, M>> {
        let mut aborted = Vec::new();
        for open in self.open.values_mut().filter(|open| !matches!(open.state, State::Over(_))) {
            let lost = open.reserved.replicas.iter().filter(|replica| is_lost(&open.reserved, replica));
            let lost: Vec<Rid> = lost.map(|replica| Rid(replica.rid)).collect();
            let is_all = lost.len() == open.reserved.replicas.len();
            if !lost.is_empty() && open.lose(lost, reason) && !is_all {
                aborted.push(Aborted { reserved: open.reserved.clone(), settled: open.is_settled() });
            }
        }
        aborted
    }

    /// Whether a key may have a session.
    pub(super) fn may_begin(&self, key: &[u8], now: Duration) -> Result<(), StoreError> {
        match self.open.get(key).is_some_and(|open| !open.is_left(now)) {
            true => {
                Err(Cause::InvalidParams("this key has a put session already; end or revoke it first".into()).into())
            }
            false => Ok(()),
        }
    }

    /// How many of so many keys the next request may name, asking for so many replicas of each; none where nothing is
    /// left. Its replicas count from here on, until [`PutSessions::begin`] or [`PutSessions::give_back`]: one request
    /// at a time, because a pool of few clients reserves fewer replicas than are asked for. Where less is left than one
    /// key asks for, that key is promised what is left.
    pub(super) fn promise(&mut self, keys: usize, replicas: usize, now: Duration) -> Option<Promise> {
        if self.left() < keys * replicas {
            // What its callers have left lying about is no reason to refuse others.
            self.open.retain(|_, open| !open.is_left(now));
            self.replicas = self.open.values().map(|open| open.reserved.replicas.len()).sum();
        }
        let left = self.left();
        let keys = keys.min(left / replicas).max(1);
        let promise = Promise { keys, replicas: left.min(keys * replicas) };
        self.promised += promise.replicas;
        (left > 0).then_some(promise)
    }

    fn left(&self) -> usize {
        REPLICAS_HELD_MAX.saturating_sub(self.replicas + self.promised)
    }

    /// Why there is no room for an object of so many bytes, when nothing is left of what all sessions may hold. A call
    /// holds so many replicas.
    pub(super) fn no_replicas_left(&self, bytes: u64, own: usize) -> StoreError {
        let held = self.replicas + self.promised;
        let reason = format!(
            "put sessions of this store hold {held} copies of objects, {own} of them by this call, and all may hold \
             {REPLICAS_HELD_MAX} at a time; end or revoke some, or start fewer with one call"
        );
        Cause::NoSpace { bytes, reason }.into()
    }

    /// So many replicas that were promised are reserved, or are not going to be.
    pub(super) fn give_back(&mut self, replicas: usize) {
        self.promised -= replicas;
    }

    /// `lost`: those of its replicas that were lost on the way here. Gives the number of the session, and what is to be
    /// aborted if none is left.
    pub(super) fn begin(
        &mut self,
        key: &[u8],
        reserved: Reserved<O, M>,
        combine: Combine,
        held: Arc<HeldReservations>,
        lost: Vec<Rid>,
    ) -> (u64, Option<Aborted<O, M>>) {
        let id = self.next;
        self.next += 1;
        let filling = Filling::new(reserved.size, combine);
        let (bad, writing, state) = (Vec::new(), Vec::new(), State::Filled);
        let mut open = Open { id, reserved: Arc::new(reserved), bad, filling, writing, state, held: Some(held) };
        let is_over = open.lose(lost, GONE);
        let aborted = is_over.then(|| Aborted { reserved: open.reserved.clone(), settled: true });
        self.replicas += open.reserved.replicas.len();
        let former = self.open.insert(key.into(), open);
        self.replicas -= former.map_or(0, |former| former.reserved.replicas.len());
        (id, aborted)
    }

    pub(super) fn find(&mut self, key: &[u8]) -> Result<&mut Open<O, M>, StoreError> {
        let none = || Cause::InvalidParams("this key has no put session; start one first".into()).into();
        self.open.get_mut(key).ok_or_else(none)
    }

    /// That very session of a key, if it has not been followed by another one.
    pub(super) fn that(&mut self, key: &[u8], id: u64) -> Option<&mut Open<O, M>> {
        self.open.get_mut(key).filter(|open| open.id == id || mutant!(SessionsGoByName))
    }

    pub(super) fn remove(&mut self, key: &[u8], id: u64) -> Option<Open<O, M>> {
        self.that(key, id)?;
        let open = self.open.remove(key)?;
        self.replicas -= open.reserved.replicas.len();
        Some(open)
    }

    /// A part is to be written, once no other thread writes a byte of it: none until then.
    pub(super) fn begin_part(&mut self, key: &[u8], offset: u64, len: u64) -> Result<Option<Permit<O, M>>, StoreError> {
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
        Ok(Some(Permit { id: open.id, reserved: open.reserved.clone(), bad }))
    }

    /// What became of a part, and what is to be aborted for it.
    pub(super) fn end_part(
        &mut self,
        key: &[u8],
        id: u64,
        part: (u64, u64),
        outcome: Result<Written, Unwritten>,
        now: Duration,
    ) -> (Result<(), StoreError>, Option<Aborted<O, M>>) {
        let Some(open) = self.that(key, id) else { return (Err(meanwhile()), None) };
        if let Some(at) = open.writing.iter().position(|other| *other == part) {
            open.writing.swap_remove(at);
        }
        let reason = match outcome {
            Ok(written) => {
                let settled_bad = |rid| written.settled_bad.contains(&rid);
                let bad = written.outcomes.iter().filter(|outcome| !outcome.good).map(|outcome| Rid(outcome.rid));
                open.bad.extend(bad.map(|rid| (rid, settled_bad(rid))));
                open.filling.written(part.0, part.1, written.crc32c);
                if open.good().next().is_some() {
                    return (Ok(()), None);
                }
                "no replica has all that was written".to_owned()
            }
            // Nothing but the caller's own memory, or wish, was the matter, or what passes: it may write them once
            // more.
            Err(unwritten) if (unwritten.final_word || unwritten.passing) && unwritten.settled => {
                return (Err(unwritten.error), None);
            }
            Err(unwritten) => {
                let rids = open.rids().into_iter();
                open.bad.extend(rids.map(|rid| (rid, unwritten.settled)));
                match &open.held {
                    Some(held) if held.has_lapsed(now) => {
                        format!("what it reserved lapsed, as it does after ten minutes: {}", unwritten.error)
                    }
                    _ => unwritten.error.to_string(),
                }
            }
        };
        let result = Err(Cause::SessionOver { reason: reason.clone() }.into());
        if matches!(open.state, State::Over(_)) {
            return (result, None);
        }
        open.over(reason);
        (result, Some(Aborted { reserved: open.reserved.clone(), settled: open.is_settled() }))
    }
}

pub(super) fn meanwhile() -> StoreError {
    Cause::SessionOver { reason: "it was taken back meanwhile".to_owned() }.into()
}

pub(super) fn has_ended() -> StoreError {
    let reason =
        "the end of this key's put session is on its way, or has come to nothing yet; say it again, or revoke it";
    Cause::InvalidParams(reason.into()).into()
}

pub(super) fn is_ending() -> StoreError {
    let reason = "the put session of this key is being ended or taken back by another call; wait for that call";
    Cause::InvalidParams(reason.into()).into()
}

pub(super) fn is_object() -> StoreError {
    let reason =
        "this key has no put session any more: its end has made the object, which is there; remove the key instead";
    Cause::InvalidParams(reason.into()).into()
}

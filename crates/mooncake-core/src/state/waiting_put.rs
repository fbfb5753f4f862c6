//! Requests that wait for a key or for room, first come first served, each found by what may help it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::ensure::ensure;
use crate::ids::{Ticket, Time};
use crate::request::{Origin, PutConfig};
use crate::touched::Touched;
use mooncake_ids::SessionId;

/// A parked put. It holds nothing while it waits.
#[derive(Debug, Clone)]
pub(crate) struct WaitingPut {
    pub ticket: Ticket,
    pub origin: Origin,
    pub entries: Vec<(Box<[u8]>, u64)>,
    pub config: PutConfig,
    pub since: Time,
    /// It waits for the turn that the rest of its evictions has to have, and for nothing else.
    pub impatient: bool,
    /// When it is answered whatever there is.
    pub deadline: Time,
    pub waits: WaitsFor,
}

/// What a request waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WaitsFor {
    /// Hashes of keys that others are putting, each once.
    pub keys: Vec<u64>,
    /// Room: later requests get none before it.
    pub room: bool,
    /// Room that later requests may have: they need less, or may take what this one spares.
    pub same_call: bool,
    /// It is to come from an owner's populator: with `room` all of it, else that for a further replica.
    pub population: bool,
    /// Its own session's unfinished puts.
    pub capped: bool,
    /// The least granules that no eviction can gain: the end of views, or of quarantine. Later requests get room all
    /// the same.
    pub unattainable: Option<u32>,
}

impl WaitsFor {
    pub fn for_anything(&self) -> bool {
        !self.keys.is_empty() || self.for_room()
    }

    /// For room of whatever kind, not for a key alone.
    pub fn for_room(&self) -> bool {
        self.room || self.same_call || self.capped || self.unattainable.is_some()
    }

    /// For a populator, and keeps those waiting that come after it.
    fn for_population(&self) -> bool {
        self.room && self.population
    }
}

/// Position in the line. What waits for a populator goes ahead of what waits for others' space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    behind: bool,
    number: u64,
}

impl Position {
    pub const FIRST: Position = Position { behind: false, number: 0 };
    const LAST: Position = Position { behind: true, number: u64::MAX };

    fn of(number: u64, waits: &WaitsFor) -> Position {
        Position { behind: !waits.population, number }
    }
}

#[derive(Default)]
pub(crate) struct WaitQueue {
    line: BTreeMap<Position, WaitingPut>,
    positions: BTreeMap<Ticket, Position>,
    by_origin: BTreeSet<(SessionId, u64, Position)>,
    by_deadline: BTreeSet<(Time, Position)>,
    by_key: BTreeSet<(u64, Position)>,
    for_room: BTreeSet<Position>,
    for_same_call: BTreeSet<Position>,
    for_population: BTreeSet<Position>,
    capped: BTreeSet<(SessionId, Position)>,
    unattainable: BTreeSet<(u32, Position)>,
    last: u64,
    touched: Touched,
}

impl WaitQueue {
    pub fn next_id(&mut self) -> Ticket {
        self.last += 1;
        Ticket(self.last)
    }

    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Requests, and keys of theirs, that have been looked at.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// One before a position in the line, or of all, waits for room already.
    pub fn any_for_room_before(&self, position: Option<Position>) -> bool {
        self.for_room.first().is_some_and(|first| position.is_none_or(|position| *first < position))
    }

    /// Parks a request: as early as it came first, which the position says that it had, and now as one that waits for
    /// what it does.
    pub fn push(&mut self, parked: WaitingPut, before: Option<Position>) {
        self.touched.add(1 + parked.waits.keys.len());
        let position = Position::of(before.map_or(parked.ticket.0, |position| position.number), &parked.waits);
        let WaitingPut { ticket, origin, deadline, ref waits, .. } = parked;
        self.positions.insert(ticket, position);
        self.by_origin.insert((origin.session, origin.sequence, position));
        self.by_deadline.insert((deadline, position));
        self.by_key.extend(waits.keys.iter().map(|hash| (*hash, position)));
        if waits.room {
            self.for_room.insert(position);
        }
        if waits.same_call {
            self.for_same_call.insert(position);
        }
        if waits.for_population() {
            self.for_population.insert(position);
        }
        if waits.capped {
            self.capped.insert((origin.session, position));
        }
        self.unattainable.extend(waits.unattainable.map(|granules| (granules, position)));
        let before = self.line.insert(position, parked);
        debug_assert!(before.is_none(), "a position in the line is one request's");
    }

    /// Takes one out of the line.
    pub fn take(&mut self, position: Position) -> Option<WaitingPut> {
        let parked = self.line.remove(&position)?;
        self.touched.add(1 + parked.waits.keys.len());
        let WaitingPut { ticket, origin, deadline, ref waits, .. } = parked;
        self.positions.remove(&ticket);
        self.by_origin.remove(&(origin.session, origin.sequence, position));
        self.by_deadline.remove(&(deadline, position));
        for hash in &waits.keys {
            self.by_key.remove(&(*hash, position));
        }
        self.for_room.remove(&position);
        self.for_same_call.remove(&position);
        self.for_population.remove(&position);
        self.capped.remove(&(origin.session, position));
        if let Some(granules) = waits.unattainable {
            self.unattainable.remove(&(granules, position));
        }
        Some(parked)
    }

    /// Whether one waits for a key.
    pub fn await_key(&self, hash: u64) -> bool {
        self.next_for_key(hash, None).is_some()
    }

    /// Whether one waits for its session's unfinished puts.
    pub fn await_session(&self, session: SessionId) -> bool {
        self.next_capped(session, None).is_some()
    }

    /// Keys that a request was parked with.
    pub fn keys_at(&self, position: Position) -> usize {
        self.touched.add(1);
        self.line.get(&position).map_or(0, |parked| parked.entries.len())
    }

    pub fn next_for_key(&self, hash: u64, after: Option<Position>) -> Option<Position> {
        self.touched.add(1);
        next(&self.by_key, hash, after)
    }

    pub fn next_capped(&self, session: SessionId, after: Option<Position>) -> Option<Position> {
        next(&self.capped, session, after)
    }

    pub fn first_for_room(&self) -> Option<Position> {
        self.for_room.first().copied()
    }

    pub fn next_for_same_call(&self, after: Option<Position>) -> Option<Position> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.for_same_call.range((from, Bound::Unbounded)).next().copied()
    }

    /// The one that waits for the least that no eviction can gain, of those behind one.
    pub fn next_unattainable(&self, after: Option<(u32, Position)>) -> Option<(u32, Position)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.unattainable.range((from, Bound::Unbounded)).next().copied()
    }

    /// The first whose deadline has come.
    pub fn due(&self, now: Time) -> Option<Position> {
        self.by_deadline.first().filter(|(deadline, _)| *deadline <= now).map(|(_, position)| *position)
    }

    /// Whether the first in line for room may be one that waits for a populator.
    pub fn any_for_population(&self) -> bool {
        !self.for_population.is_empty()
    }

    /// Sessions of which one waits for its unfinished puts.
    pub fn capped_sessions(&self) -> BTreeSet<SessionId> {
        self.touched.each(self.capped.iter().map(|(session, _)| *session)).collect()
    }

    /// Takes out the parked request of a ticket.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let position = self.positions.get(&ticket).copied();
        position.and_then(|position| self.take(position)).is_some()
    }

    /// Takes out the parked request of the same mutation, if any, with its position in the line.
    pub fn cancel_origin(&mut self, origin: Origin) -> Option<(Position, WaitingPut)> {
        let Origin { session, sequence, .. } = origin;
        let same = (session, sequence, Position::FIRST)..=(session, sequence, Position::LAST);
        let (_, _, position) = *self.by_origin.range(same).next().filter(|_| sequence > 0)?;
        self.take(position).map(|parked| (position, parked))
    }

    /// A request of a session.
    pub fn of_session(&self, session: SessionId) -> Option<Position> {
        let its = (session, 0, Position::FIRST)..=(session, u64::MAX, Position::LAST);
        self.by_origin.range(its).next().map(|(_, _, position)| *position)
    }

    /// Each has a number of its own and is of a mutation of its own, says what it waits for, and is found by that.
    pub fn check_invariants(&self) -> Result<(), String> {
        let last = self.positions.keys().next_back();
        ensure!(last.is_none_or(|ticket| ticket.0 <= self.last), "{last:?} is parked of {}", self.last);
        let numbered: Vec<(SessionId, u64)> = self.by_origin.iter().map(|origin| (origin.0, origin.1)).collect();
        let twice = numbered.windows(2).find(|pair| pair[0] == pair[1] && pair[0].1 > 0).map(|pair| pair[0]);
        ensure!(twice.is_none(), "the mutation {twice:?} is parked twice");
        let (mut found, mut keys) = ([0; 8], 0);
        for (position, parked) in &self.line {
            let WaitingPut { ticket, origin, deadline, waits, .. } = parked;
            ensure!(!parked.entries.is_empty(), "{ticket:?} has no keys");
            ensure!(waits.for_anything(), "{ticket:?} waits for nothing");
            ensure!(
                waits.room || waits.same_call || !waits.population,
                "{ticket:?} waits for a populator and not for room"
            );
            ensure!(
                *position == Position::of(position.number, waits),
                "{ticket:?} waits for {waits:?} at {position:?}"
            );
            ensure!(waits.unattainable != Some(0), "{ticket:?} waits for the end of views over nothing");
            let is = [
                self.positions.get(ticket) == Some(position),
                self.by_origin.contains(&(origin.session, origin.sequence, *position)),
                self.by_deadline.contains(&(*deadline, *position)),
                self.for_room.contains(position),
                self.for_same_call.contains(position),
                self.for_population.contains(position),
                self.capped.contains(&(origin.session, *position)),
                waits.unattainable.is_some_and(|granules| self.unattainable.contains(&(granules, *position))),
            ];
            let unattainable = waits.unattainable.is_some();
            let right =
                [true, true, true, waits.room, waits.same_call, waits.for_population(), waits.capped, unattainable];
            ensure!(is == right, "{ticket:?} is to be found by {right:?}, and is by {is:?}");
            let lost = waits.keys.iter().find(|hash| !self.by_key.contains(&(**hash, *position)));
            ensure!(lost.is_none(), "{ticket:?} waits for the key {lost:?}, and is not found by it");
            found.iter_mut().zip(is).for_each(|(count, is)| *count += usize::from(is));
            keys += waits.keys.len();
        }
        let indexed = [
            self.positions.len(),
            self.by_origin.len(),
            self.by_deadline.len(),
            self.for_room.len(),
            self.for_same_call.len(),
            self.for_population.len(),
            self.capped.len(),
            self.unattainable.len(),
        ];
        ensure!(found == indexed, "{found:?} are parked, and found in the lines {indexed:?}");
        ensure!(keys == self.by_key.len(), "they wait for {keys} keys, and are found by {}", self.by_key.len());
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &WaitingPut> {
        self.line.values()
    }
}

/// The next that is found by a value, in line behind a position.
fn next<V: Copy + Ord>(found: &BTreeSet<(V, Position)>, by: V, after: Option<Position>) -> Option<Position> {
    let from = after.map_or(Bound::Included((by, Position::FIRST)), |position| Bound::Excluded((by, position)));
    found.range((from, Bound::Included((by, Position::LAST)))).next().map(|(_, position)| *position)
}

//! Requests that wait for a key or for room, first come first served.

use std::collections::VecDeque;

use crate::ids::{SessionId, Ticket, Time};
use crate::invariants::ensure;
use crate::request::{Origin, PutConfig};

/// A parked put. It holds nothing while it waits.
#[derive(Debug, Clone)]
pub(crate) struct Parked {
    pub ticket: Ticket,
    pub origin: Origin,
    pub entries: Vec<(Box<[u8]>, u64)>,
    pub config: PutConfig,
    pub since: Time,
    /// Some key is waited for.
    pub for_key: bool,
    /// Room is waited for: later requests get none before it.
    pub for_room: bool,
    /// Room is waited for that later requests may have.
    pub for_own: bool,
    /// The room is to come from the owner's populator.
    pub for_population: bool,
    /// Its own session's unfinished puts are waited for.
    pub capped: bool,
    /// The least granules waited for that no eviction can gain: for the end of views, or of quarantine. Later requests
    /// get room all the same.
    pub held: Option<u32>,
}

impl Parked {
    /// For room of whatever kind, not for a key alone.
    pub fn waits_for_room(&self) -> bool {
        self.for_room || self.for_own || self.capped || self.held.is_some()
    }
}

#[derive(Default)]
pub(crate) struct Tickets {
    queue: VecDeque<Parked>,
    last: u64,
}

impl Tickets {
    pub fn next_id(&mut self) -> Ticket {
        self.last += 1;
        Ticket(self.last)
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Somebody before a place in the line waits for room already.
    pub fn any_for_room_before(&self, place: usize) -> bool {
        self.queue.iter().take(place).any(|parked| parked.for_room)
    }

    /// Parks a request: at the place of the one that it repeats, or last. What waits for the populator goes ahead of what
    /// waits for others' space.
    pub fn push(&mut self, parked: Parked, place: Option<usize>) {
        let at = match place {
            Some(place) => place.min(self.queue.len()),
            None if parked.for_population => {
                self.queue.iter().position(|other| !other.for_population).unwrap_or(self.queue.len())
            }
            None => self.queue.len(),
        };
        self.queue.insert(at, parked);
    }

    pub fn take_all(&mut self) -> VecDeque<Parked> {
        std::mem::take(&mut self.queue)
    }

    pub fn put_back(&mut self, queue: VecDeque<Parked>) {
        debug_assert!(self.queue.is_empty());
        self.queue = queue;
    }

    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let before = self.queue.len();
        self.queue.retain(|parked| parked.ticket != ticket);
        self.queue.len() < before
    }

    /// Takes out the parked request of the same mutation, if any, with its place in the line.
    pub fn cancel_origin(&mut self, origin: Origin) -> Option<(usize, Parked)> {
        let same = |other: Origin| other.session == origin.session && other.sequence == origin.sequence;
        let at = self.queue.iter().position(|parked| origin.sequence > 0 && same(parked.origin))?;
        self.queue.remove(at).map(|parked| (at, parked))
    }

    /// All parked requests of a session.
    pub fn cancel_session(&mut self, session: SessionId) -> Vec<Parked> {
        let all = std::mem::take(&mut self.queue);
        let (gone, rest): (Vec<Parked>, Vec<Parked>) =
            all.into_iter().partition(|parked| parked.origin.session == session);
        self.queue = rest.into();
        gone
    }

    /// Each has a number of its own and is of a mutation of its own, and says what it waits for.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut tickets: Vec<Ticket> = self.queue.iter().map(|parked| parked.ticket).collect();
        tickets.sort_unstable();
        let twice = tickets.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        ensure!(twice.is_none(), "{twice:?} is parked twice");
        ensure!(tickets.last().is_none_or(|ticket| ticket.0 <= self.last), "{tickets:?} are parked of {}", self.last);
        let numbered = self.queue.iter().map(|parked| (parked.origin.session, parked.origin.sequence));
        let mut origins: Vec<(SessionId, u64)> = numbered.filter(|(_, sequence)| *sequence > 0).collect();
        origins.sort_unstable();
        let twice = origins.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        ensure!(twice.is_none(), "the mutation {twice:?} is parked twice");
        for parked in &self.queue {
            let Parked { ticket, for_room, for_population, held, .. } = parked;
            ensure!(!parked.entries.is_empty(), "{ticket:?} has no keys");
            ensure!(parked.for_key || parked.waits_for_room(), "{ticket:?} waits for nothing");
            ensure!(*for_room || !for_population, "{ticket:?} waits for a populator and not for room");
            ensure!(*held != Some(0), "{ticket:?} waits for the end of views over nothing");
        }
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Parked> {
        self.queue.iter()
    }
}

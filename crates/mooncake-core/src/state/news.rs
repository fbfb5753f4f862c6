//! News that may help requests that wait.

use std::collections::{BTreeMap, VecDeque};

use crate::state::reservation::ReservationSlot;
use crate::state::waiting_put::Position;
use mooncake_ids::SessionId;

/// What may help requests that wait, and has not been passed on to all of them.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Keys that changed hands with their hashes, and how far the line of those that wait for each has been gone
    /// through.
    pub keys: VecDeque<(Box<[u8]>, u64, Option<Position>)>,
    /// The hashes of those keys, with how often each is there.
    pub hashes: BTreeMap<u64, u32>,
    /// Writers that have gone away, which yield the keys that others wait for, and how far each one's have been gone
    /// through.
    pub yielding: VecDeque<(SessionId, Option<ReservationSlot>)>,
    /// There may be more room than before: the first in line looks.
    pub room: bool,
    /// All sessions may have more unfinished than before.
    pub cap_raised: bool,
    /// Sessions that have less unfinished than before, and how far the line of each has been gone through since.
    pub uncapped: BTreeMap<SessionId, Option<Position>>,
    pub unattainable: Pass<(u32, Position)>,
    /// The most that eviction alone can gain in a segment where it has become more.
    pub attainable: u32,
    pub same_call: Pass<Position>,
}

/// A walk along a line, in pieces.
#[derive(Debug)]
pub(crate) struct Pass<P> {
    pub begun: bool,
    pub after: Option<P>,
    /// It is to begin anew when it is through: what it has gone by has changed since.
    pub again: bool,
}

impl<P> Default for Pass<P> {
    fn default() -> Self {
        Pass { begun: false, after: None, again: false }
    }
}

impl<P: Copy> Pass<P> {
    pub fn begin(&mut self) {
        self.again = std::mem::replace(&mut self.begun, true);
    }

    /// It has come to the end.
    pub fn ends(&mut self) {
        *self = Pass { begun: std::mem::take(&mut self.again), after: None, again: false };
    }
}

impl News {
    /// Nothing is left to be passed on.
    pub fn is_empty(&self) -> bool {
        let keys = self.keys.is_empty() && self.yielding.is_empty();
        let uncapped = self.cap_raised || !self.uncapped.is_empty();
        keys && !self.room && !uncapped && !self.unattainable.begun && !self.same_call.begun
    }

    /// Whether those that wait for a key are yet to hear of it.
    pub fn tells_of(&self, hash: u64) -> bool {
        self.hashes.contains_key(&hash)
    }

    pub fn add_key(&mut self, key: &[u8], hash: u64) {
        self.keys.push_back((key.into(), hash, None));
        *self.hashes.entry(hash).or_default() += 1;
    }

    pub fn remove_first_key(&mut self) {
        let Some((_, hash, _)) = self.keys.pop_front() else { return };
        let count = self.hashes.get_mut(&hash).expect("it was added with its key");
        *count -= 1;
        if *count == 0 {
            self.hashes.remove(&hash);
        }
    }

    /// Set by each tick: re-evaluate puts that wait rather than evict their own call's objects, and those that wait for
    /// memory that is being populated. Not on every change, because there may be many.
    pub fn begin_same_call(&mut self) {
        if !self.same_call.begun {
            self.same_call.begin();
        }
    }
}

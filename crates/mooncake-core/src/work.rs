//! How much is done in one hold of the core's lock.

/// What one step in the background is to do, in objects, keys and extents that it touches: each takes a microsecond or
/// less.
pub const STEP_OBJECTS: usize = 256;

/// Objects that cost as much as one, where they are only looked at.
pub(crate) const LOOKED_AT_AS_ONE: usize = 8;

/// What an operation does for others besides.
const BESIDE_OBJECTS: usize = 128;

/// What one look at a request does for room, in replicas that it places: it evicts for 128 keys, if each needs one.
/// What has room without is placed all the same; for the others it goes on at another look.
const LOOK_REPLICAS: usize = 384;

/// An object that leaves takes as long as so many that are placed: it has gone from the caches, and so have its
/// neighbours in the list, its place in the index and the free space around it.
pub(crate) const EVICTED_AS: usize = 2;

/// A key is copied into the log, and so many bytes of a long one take as long as one object more.
const KEY_AS_ONE: usize = 4 << 10;

/// The same beside a snapshot, for which it is put aside first.
pub(crate) const EVICTED_AS_BESIDE_A_SNAPSHOT: usize = 4;

/// Slots that one slice of a removal of very many objects goes through.
pub const REMOVAL_SLOTS: usize = STEP_OBJECTS / EVICTED_AS;

/// An unfinished put that ends takes as long as so many objects: it is taken out of its books, its extents are put into
/// those of quarantine, and their owners are asked for them.
pub(crate) const ENDED_AS: usize = 2;

/// How many objects more it takes as long as that an object with so long a key leaves.
pub(crate) fn key_as(bytes: usize) -> usize {
    bytes / KEY_AS_ONE
}

/// What is left of it.
#[derive(Debug)]
pub(crate) struct Work {
    left: usize,
    begun: bool,
    is_step: bool,
}

impl Work {
    /// A step in the background.
    pub fn step(budget: usize) -> Work {
        Work { left: budget, begun: false, is_step: true }
    }

    /// For others, at the end of an operation.
    pub fn beside_an_operation() -> Work {
        Work { left: BESIDE_OBJECTS, begun: false, is_step: false }
    }

    /// Of an operation itself.
    pub fn operation() -> Work {
        Work { left: usize::MAX, begun: true, is_step: false }
    }

    /// Nothing more is to be done in this hold.
    pub fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Whether something that cannot be cut is still to be done: it touches so much. A step begins with whatever it is.
    pub fn has_time_for(&mut self, much: usize) -> bool {
        let has = much <= self.left || self.is_step && !self.begun;
        if !has {
            self.left = 0;
        }
        has
    }

    /// What a look at a request may do, in replicas that it places.
    pub fn look(&self) -> usize {
        self.left(LOOK_REPLICAS)
    }

    /// Something was touched.
    pub fn did(&mut self, much: usize) {
        self.begun |= much > 0;
        self.left = self.left.saturating_sub(much);
    }

    /// Looks at slots from one on as far as there is time, and finds those that something is to be done about, each of
    /// which is touched. They, and the slot that is looked at next.
    pub fn look_through(&mut self, next: u32, bound: u32, is_one: impl Fn(u32) -> bool) -> (Vec<u32>, u32) {
        let most = self.left(STEP_OBJECTS);
        let (mut at, mut found) = (next, Vec::new());
        while at < bound && found.len() + (at - next) as usize / LOOKED_AT_AS_ONE < most {
            found.extend(is_one(at).then_some(at));
            at += 1;
        }
        self.did(found.len() + ((at - next) as usize).div_ceil(LOOKED_AT_AS_ONE));
        (found, at)
    }

    /// What is left, of at most so much.
    pub fn left(&self, most: usize) -> usize {
        self.left.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_begins_with_what_cannot_be_cut_though_it_has_looked_where_there_was_nothing_to_do() {
        let mut work = Work::step(10);
        work.did(0);
        assert!(work.has_time_for(11));
        work.did(1);
        assert!(!work.has_time_for(11) && work.is_used_up());
    }
}

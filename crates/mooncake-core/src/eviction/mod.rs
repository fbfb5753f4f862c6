//! The order in which objects leave.

pub(crate) mod lru;

use crate::slab::Links;

/// Decides which slot leaves next. A policy sees slots and their links, nothing else. The caller takes objects
/// that are held, protected, soft pinned or set aside out and brings them back with [`insert`](EvictionPolicy::insert)
/// or [`insert_coldest`](EvictionPolicy::insert_coldest), so that a policy never has to skip anything.
pub trait EvictionPolicy<L: Links + ?Sized>: Send {
    /// A slot that was not there: new, or in use again.
    fn insert(&mut self, links: &mut L, slot: u32);
    /// A slot that is to leave before all others.
    fn insert_coldest(&mut self, links: &mut L, slot: u32);
    /// A slot was used.
    fn touch(&mut self, links: &mut L, slot: u32);
    /// A slot leaves, for whatever reason.
    fn remove(&mut self, links: &mut L, slot: u32);
    /// The slot that leaves next; it stays until it is removed.
    fn victim(&self, links: &L) -> Option<u32>;
    /// The slot that leaves after this one.
    fn after(&self, links: &L, slot: u32) -> Option<u32>;
    /// The slot that leaves last.
    fn last(&self, links: &L) -> Option<u32>;
    /// The slot that leaves before this one.
    fn before(&self, links: &L, slot: u32) -> Option<u32>;
    /// Begins a walk over all slots from the one that leaves next, in the place of a former walk.
    fn begin_walk(&mut self);
    /// The next slot of the walk, between whose steps the order may change: it stays where it is in the order then. A
    /// slot that is touched meanwhile may be met twice, one that is put coldest never.
    fn walk_on(&mut self, links: &L) -> Option<u32>;
    /// Number of slots.
    fn len(&self) -> usize;
    /// True when it holds none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

//! Least recently used leaves first.

use crate::eviction::EvictionPolicy;
use crate::slab::{Links, List};

/// One list: coldest at its head.
#[derive(Debug, Default)]
pub struct Lru {
    list: List,
}

impl<L: Links + ?Sized> EvictionPolicy<L> for Lru {
    fn insert(&mut self, links: &mut L, slot: u32) {
        self.list.push_back(links, slot);
    }

    fn insert_coldest(&mut self, links: &mut L, slot: u32) {
        self.list.push_front(links, slot);
    }

    fn touch(&mut self, links: &mut L, slot: u32) {
        self.list.move_to_back(links, slot);
    }

    fn remove(&mut self, links: &mut L, slot: u32) {
        self.list.remove(links, slot);
    }

    fn victim(&self, _links: &L) -> Option<u32> {
        self.list.head()
    }

    fn after(&self, links: &L, slot: u32) -> Option<u32> {
        self.list.next(links, slot)
    }

    fn last(&self, _links: &L) -> Option<u32> {
        self.list.tail()
    }

    fn before(&self, links: &L, slot: u32) -> Option<u32> {
        self.list.prev(links, slot)
    }

    fn begin_walk(&mut self) {
        self.list.begin_walk();
    }

    fn walk_on(&mut self, links: &L) -> Option<u32> {
        self.list.walk_on(links)
    }

    fn len(&self) -> usize {
        self.list.len() as usize
    }
}

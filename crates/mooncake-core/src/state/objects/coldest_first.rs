//! All objects in the order in which they would be evicted, in steps between which anything may happen to them.

use super::{ObjectSlot, Objects};

/// Lists of objects: what eviction tries first comes first. What is in none is held.
const LISTS: u8 = 4;

/// How far a walk is. Where it is in a list, that list knows, which moves it on when the object there leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColdestFirst {
    list: u8,
    /// So many more of that list: what is used meanwhile goes to its end, again and again.
    left: u32,
}

impl Objects {
    /// Begins a walk, in the place of a former one.
    pub fn walk_coldest_first(&mut self) -> ColdestFirst {
        ColdestFirst { list: 0, left: self.begin_list(0) }
    }

    /// The next object of it, `None` behind the last list. One that changes its list meanwhile is met twice, or not at
    /// all.
    pub fn next_coldest(&mut self, walk: &mut ColdestFirst) -> Option<ObjectSlot> {
        while walk.list < LISTS {
            if walk.left > 0
                && let Some(slot) = self.next_of_list(walk.list)
            {
                walk.left -= 1;
                return Some(ObjectSlot(slot));
            }
            walk.list += 1;
            walk.left = self.begin_list(walk.list);
        }
        None
    }

    /// How many are in it.
    fn begin_list(&mut self, list: u8) -> u32 {
        let list = match list {
            0 => &mut self.set_aside,
            1 => {
                self.policy.begin_walk();
                return self.policy.len() as u32;
            }
            2 => &mut self.soft,
            3 => &mut self.protected,
            _ => return 0,
        };
        list.begin_walk();
        list.len()
    }

    fn next_of_list(&mut self, list: u8) -> Option<u32> {
        match list {
            0 => self.set_aside.walk_on(&self.slab),
            1 => self.policy.walk_on(&self.slab),
            2 => self.soft.walk_on(&self.slab),
            _ => self.protected.walk_on(&self.slab),
        }
    }
}

//! What processes find each other by, and what is true of all of them.

use std::cell::RefCell;
use std::rc::Rc;

use crate::master::Master;
use crate::memory::ledger::Ledger;
use crate::mix::Mix;
use crate::server::servers::Servers;
use crate::whims::Whims;
use crate::world::World;

/// Clones are the same one.
#[derive(Clone)]
pub struct Network {
    /// Masters.
    pub masters: Masters,
    /// The truth.
    pub ledger: Ledger,
    pub(crate) mix: Rc<Mix>,
    pub(crate) servers: Servers,
    pub(crate) whims: Whims,
}

impl Network {
    /// The network of a world, with no master and no server yet.
    pub fn new(world: &World) -> Network {
        Network {
            masters: Masters::default(),
            ledger: Ledger::new(world.seed()),
            mix: Rc::new(Mix::draw(world)),
            servers: Servers::default(),
            whims: Whims::default(),
        }
    }
}

/// The masters that may be reached, by their numbers in every store's list. Clones are the same list.
#[derive(Clone, Default)]
pub struct Masters {
    all: Rc<RefCell<Vec<Option<Master>>>>,
}

impl Masters {
    /// A master is reached by this number from now on, or none is.
    pub fn set(&self, number: usize, master: Option<Master>) {
        let mut all = self.all.borrow_mut();
        let len = all.len().max(number + 1);
        all.resize_with(len, || None);
        all[number] = master;
    }

    /// The master of a number.
    pub fn get(&self, number: usize) -> Option<Master> {
        self.all.borrow().get(number).cloned().flatten()
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.all.borrow().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

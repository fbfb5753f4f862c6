//! Forks: children that have what their parents had open, until their own handler has closed it.
//!
//! A child has the read-only maps of its parent for as long as it lives, which no process notices. It has whatever
//! connections and locks there were for as long as its first instructions take: closed by its parent, or ended with it,
//! they are open until then. Of what it does later nothing is to be seen.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::world::{ProcessId, World};

/// The children of each process, as long as they have open what it had.
#[derive(Default)]
pub(crate) struct Forks {
    of: RefCell<BTreeMap<ProcessId, Vec<Fork>>>,
}

/// Microseconds.
#[derive(Clone, Copy)]
struct Fork {
    at: u64,
    closes_at: u64,
}

impl World {
    /// A process forks. So many microseconds later its child closes what it has inherited.
    pub fn fork(&self, parent: ProcessId, closes_after: u64) -> Option<ProcessId> {
        let child = self.start_process(self.host_of(parent)?);
        if self.is_apart(parent) {
            self.put_apart(child);
        }
        let (at, mut forks) = (self.micros(), self.forks().of.borrow_mut());
        let forks = forks.entry(parent).or_default();
        forks.retain(|fork| fork.closes_at > at);
        forks.push(Fork { at, closes_at: at + closes_after });
        Some(child)
    }

    /// Until when, in microseconds, children hold open what their parent, which lets go of it now, has had since then.
    pub(crate) fn held_open(&self, since: u64) -> u64 {
        self.acting().map_or(0, |process| self.held_open_of(process, since))
    }

    fn held_open_of(&self, process: ProcessId, since: u64) -> u64 {
        let of = self.forks().of.borrow();
        let held = of.get(&process).into_iter().flatten().filter(|fork| fork.at >= since);
        held.map(|fork| fork.closes_at).max().unwrap_or(0)
    }

    /// Whether the process lives, or a child has its locks still.
    pub(crate) fn is_present(&self, process: ProcessId) -> bool {
        self.is_alive(process) || self.held_open_of(process, 0) > self.micros()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::pipe::{Closed, Sender, pipe};
    use crate::world::HostId;

    /// A process that has one end of a connection, and the time at which the other end hears that it is closed.
    fn connected(world: &World) -> (ProcessId, Rc<Cell<Option<u64>>>) {
        let (one, other) = (world.start_process(HostId(1)), world.start_process(HostId(1)));
        let (sender, mut receiver): (Sender<()>, _) = pipe(world, 100);
        world.spawn(one, async move {
            let _held = sender;
            std::future::pending::<()>().await;
        });
        let (heard, inside, ear) = (Rc::default(), world.clone(), world.clone());
        let at: Rc<Cell<Option<u64>>> = Rc::clone(&heard);
        world.spawn(other, async move {
            assert_eq!(receiver.next().await, Err(Closed));
            at.set(Some(ear.micros()));
        });
        inside.run(Duration::from_millis(1));
        (one, heard)
    }

    #[test]
    fn a_connection_ends_when_the_last_child_has_closed_it_and_not_with_the_child() {
        let world = World::new(1);
        world.calm();
        let (process, heard) = connected(&world);
        let children = [world.fork(process, 30_000).unwrap(), world.fork(process, 200_000).unwrap()];
        world.kill(process);
        let killed = world.micros();
        world.run(Duration::from_secs(1));
        assert!((200_000..201_000).contains(&(heard.get().unwrap() - killed)));
        assert!(children.iter().all(|child| world.is_alive(*child)), "they live on");
    }

    #[test]
    fn what_was_opened_behind_a_fork_is_no_childs_and_what_a_child_has_closed_it_hides_no_more() {
        let world = World::new(1);
        world.calm();
        let process = world.start_process(HostId(1));
        world.fork(process, 200_000).unwrap();
        let (late, heard) = connected(&world);
        world.kill(late);
        world.run(Duration::from_millis(1));
        assert!(heard.get().is_some());
        let (early, heard) = connected(&world);
        world.fork(early, 10_000).unwrap();
        world.run(Duration::from_millis(11));
        assert!(heard.get().is_none());
        world.kill(early);
        assert!(!world.is_present(early));
        world.run(Duration::from_millis(1));
        assert!(heard.get().is_some());
    }
}

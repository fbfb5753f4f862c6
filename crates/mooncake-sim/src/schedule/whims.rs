//! What callers do of their own accord in a schedule, and what follows: a store is closed, and another one begins in
//! its process, or that ends, or nothing; a process forks, and the child lives for a while, or on and on.

use std::time::Duration;

use super::{Engine, Pool};
use crate::master::REACHED;
use crate::store::Store;
use crate::whims::Whim;
use crate::world::ProcessId;

/// How long after a store's close what follows comes, at most, microseconds.
const LATER: [u64; 4] = [1, 50_000, 800_000, 4_000_000];

/// Until a child has closed what it inherited, at most, microseconds.
const HANDLED: [u64; 4] = [300, 300, 30_000, 1_500_000];

/// How long a child lives, microseconds.
const LIVES: [Option<u64>; 4] = [Some(2_000_000), Some(5_000_000), Some(12_000_000), None];

/// What follows when a store of a process has been closed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sequel {
    /// Another one begins there.
    Another(ProcessId),
    /// The process ends.
    End(ProcessId),
}

impl Pool {
    /// One beat.
    pub(super) fn have_whims(&mut self) {
        if self.network.masters.get(0).is_some_and(|master| !master.is_alive()) {
            self.restart_master(0);
        }
        let now = self.world.now();
        let due: Vec<_> = self.sequels.extract_if(.., |(at, _)| *at <= now).collect();
        due.into_iter().for_each(|(_, sequel)| self.follow(sequel));
        match self.network.whims.next() {
            Some(Whim::Close) => self.close_one(),
            Some(Whim::Fork) => self.fork_one(),
            Some(Whim::EndInCommit) => {
                let reached = self.network.whims.of(&REACHED);
                self.network.masters.get(0).iter().for_each(|master| master.end_in_commit(reached));
            }
            None => {}
        }
    }

    fn follow(&mut self, sequel: Sequel) {
        let (Sequel::Another(process) | Sequel::End(process)) = sequel;
        // Meanwhile it may have ended otherwise.
        let Some(nth) = self.engines.iter().position(|engine| engine.process == process) else { return };
        match sequel {
            Sequel::Another(_) => self.start_another(nth),
            Sequel::End(_) => self.restart_engine(nth),
        }
    }

    /// Another store begins in the place of one that was closed.
    fn start_another(&mut self, nth: usize) {
        let Engine { host, process, lends, stores, count, .. } = &self.engines[nth];
        if stores.len() < *count {
            let store = self.start_store(host, *process, *lends);
            self.engines[nth].stores.push(store);
        }
    }

    /// A store is closed, though never the last one that there is.
    fn close_one(&mut self) {
        let whims = self.network.whims.clone();
        let places =
            |(nth, engine): (usize, &Engine)| (0..engine.stores.len()).map(move |at| (nth, at)).collect::<Vec<_>>();
        let all: Vec<(usize, usize)> = self.engines.iter().enumerate().flat_map(places).collect();
        let store = |(nth, at): &(usize, usize)| &self.engines[*nth].stores[*at];
        let ready: Vec<_> = all.iter().copied().filter(|place| store(place).session_id().is_some()).collect();
        let looking: Vec<_> = ready.iter().copied().filter(|place| store(place).has_views()).collect();
        let from = if whims.below(4) > 0 && !looking.is_empty() { looking } else { ready };
        if from.is_empty() || all.len() < 2 {
            return;
        }
        let (nth, at) = whims.of(&from);
        let engine = &mut self.engines[nth];
        let store = engine.stores.remove(at);
        self.world.spawn(engine.process, store.clone().close());
        engine.closed.push(store);
        whims.count(|sum| sum.closed += 1);
        let at = self.world.now() + Duration::from_micros(whims.below(whims.of(&LATER)));
        match whims.below(10) {
            0..6 => self.sequels.push((at, Sequel::Another(engine.process))),
            6..9 => self.sequels.push((at, Sequel::End(engine.process))),
            _ => {}
        }
    }

    /// A process forks. What the child does with its copies of stores is refused, and no other process hears of it.
    fn fork_one(&mut self) {
        let whims = self.network.whims.clone();
        let engine = &self.engines[whims.below(self.engines.len() as u64) as usize];
        let handled = whims.below(whims.of(&HANDLED));
        let Some(child) = self.world.fork(engine.process, handled) else { return };
        for store in engine.all().cloned().collect::<Vec<Store>>() {
            self.world.spawn(child, store.forked(child).live_on(handled));
        }
        self.children.push(child);
        whims.count(|sum| sum.forks += 1);
        if let Some(life) = whims.of(&LIVES) {
            let world = self.world.clone();
            self.world.after(life, move || world.kill(child));
        }
    }

    /// Before the verdict: stores begin in the places of some that were closed. A process ends if it has closed a store
    /// and the master may not know that: a master that has lost the end of its log, or goes on with another one. No
    /// process tells it.
    pub(super) fn settle_whims(&mut self) {
        self.sequels.clear();
        if self.network.masters.get(0).is_some_and(|master| !master.spare()) {
            self.restart_master(0);
        }
        for nth in 0..self.engines.len() {
            let forgets = self.plan.loses_tails || self.plan.copies_logs;
            if forgets && !self.engines[nth].closed.is_empty() {
                self.restart_engine(nth);
            }
            while self.engines[nth].stores.len() < self.engines[nth].count
                && (nth == 0 || self.network.whims.below(2) == 0)
            {
                self.start_another(nth);
            }
        }
    }
}

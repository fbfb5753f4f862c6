//! What a store says of its pins, and a master that goes by it: every view that counts as known is pinned, and nothing
//! else stays pinned.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const RIDS: u64 = 3;

#[derive(Debug, Clone)]
enum Op {
    /// A view begins: the master grants the pin, and the reply is here.
    Take(Rid),
    /// The master grants a pin, and the reply is under way.
    Ask(Rid),
    /// The oldest such reply is here.
    Reply,
    End(usize),
    /// A beat with ended pins, which may be lost, as may its answer.
    Beat {
        arrives: bool,
        answered: bool,
    },
    List,
    /// The list that is on its way reaches the master.
    Arrive,
    /// The master's answer to it is here, or its connection broke.
    Answer {
        broken: bool,
        silent: bool,
    },
    /// Another master process, whose log has lost its end: some placements, with all their pins, and pins of others.
    Restart {
        forgets: u64,
        unpins: u64,
    },
    StartOver,
}

fn op() -> impl Strategy<Value = Op> {
    let rid = (1..=RIDS).prop_map(Rid);
    prop_oneof![
        4 => rid.clone().prop_map(Op::Take),
        1 => rid.clone().prop_map(Op::Ask),
        1 => Just(Op::Reply),
        4 => (0_usize..8).prop_map(Op::End),
        4 => (any::<bool>(), any::<bool>()).prop_map(|(arrives, answered)| Op::Beat { arrives, answered }),
        3 => Just(Op::List),
        3 => Just(Op::Arrive),
        3 => (prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(broken, silent)| Op::Answer { broken, silent }),
        1 => (0_u64..1 << RIDS, 0_u64..1 << RIDS).prop_map(|(forgets, unpins)| Op::Restart { forgets, unpins }),
        1 => Just(Op::StartOver),
    ]
}

/// What one master process has of the session.
#[derive(Debug, Default)]
struct Master {
    pinned: BTreeMap<Rid, u64>,
    /// Placements that no master knows any more. What is put later has other rids.
    forgotten: BTreeSet<Rid>,
    /// Calls whose replies it does not know to be here, each with what it pinned.
    unsettled: BTreeMap<u64, Rid>,
    heard: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct World {
    pins: Pins,
    /// The views, each with its era.
    views: Vec<(u64, Rid)>,
    era: u64,
    sequence: u64,
    master: Master,
    /// The store has not heard from this process yet.
    another: bool,
    /// A list was tried in vain, or another one is due: nothing is told before one gets through.
    away: bool,
    replies: Vec<(u64, u64, Rid)>,
    /// A list that is on its way, and once it is there what the master did not know.
    listing: Option<(Listing, Option<Vec<Rid>>)>,
}

impl World {
    fn is_connected(&self) -> bool {
        self.listing.is_none() && !self.another && !self.away
    }

    fn live(&self, rid: Rid) -> u64 {
        self.views.iter().filter(|view| **view == (self.era, rid)).count() as u64
    }

    fn pinned(&self, rid: Rid) -> u64 {
        self.master.pinned.get(&rid).copied().unwrap_or(0)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn ask(&mut self, rid: Rid) {
        let (generation, sequence) = (self.pins.generation(), self.next_sequence());
        *self.master.pinned.entry(rid).or_insert(0) += 1;
        self.master.unsettled.insert(sequence, rid);
        self.replies.push((generation, sequence, rid));
    }

    fn reply(&mut self, at: usize) {
        let (generation, sequence, rid) = self.replies.remove(at);
        let era = self.pins.adopt(generation, [rid].into_iter());
        match era {
            Some(era) => {
                self.era = era;
                self.views.push((era, rid));
            }
            None => assert!(self.pins.is_listing(), "there is to be another list"),
        }
        if self.pins.may_settle(sequence) {
            self.master.unsettled.remove(&sequence);
        }
    }

    fn end(&mut self, at: usize) {
        let (era, rid) = self.views.remove(at);
        self.pins.release(era, rid);
    }

    fn beat(&mut self, arrives: bool, answered: bool) {
        let next = self.sequence + 1;
        let Some((sequence, ended)) = self.pins.to_send(|| next) else { return };
        self.sequence = self.sequence.max(sequence);
        if arrives && self.master.heard.insert(sequence) {
            for rid in ended {
                let pinned = self.master.pinned.entry(rid).or_insert(0);
                *pinned = pinned.saturating_sub(1);
            }
        }
        if arrives && answered {
            assert!(self.pins.confirmed(sequence) && !self.pins.confirmed(sequence));
        }
    }

    fn arrive(&mut self) {
        let Some((listing, unknown @ None)) = &mut self.listing else { return };
        listing.held_back.iter().for_each(|sequence| _ = self.master.unsettled.remove(sequence));
        self.master.heard.extend(listing.replaced());
        self.master.pinned.clear();
        // Where it knows the placement it notes again what its log had lost.
        let (not_known, known): (Vec<Rid>, _) =
            listing.rids.iter().partition(|rid| self.master.forgotten.contains(*rid));
        for rid in known {
            *self.master.pinned.entry(rid).or_insert(0) += 1;
        }
        for rid in self.master.unsettled.values() {
            *self.master.pinned.entry(*rid).or_insert(0) += 1;
        }
        *unknown = Some(not_known);
    }

    /// True if there is to be another list.
    fn answer(&mut self, broken: bool, silent: bool) -> bool {
        let Some((listing, unknown)) = self.listing.take() else { return false };
        let Some(unknown) = unknown.filter(|_| !broken) else {
            self.pins.unlist(listing);
            self.away = true;
            return true;
        };
        self.pins.arrived().iter().for_each(|sequence| _ = self.master.unsettled.remove(sequence));
        let another = std::mem::take(&mut self.another);
        let answer = match (silent, another) {
            (false, _) => ListAnswer::Unknown(&unknown),
            (true, true) => ListAnswer::Silent,
            (true, false) => ListAnswer::Unchanged,
        };
        let again = self.pins.listed(&listing, answer, another);
        // The anchor hangs up before it says anything else.
        self.away = again;
        again || self.pins.is_listing()
    }

    fn step(&mut self, op: Op) {
        let connected = self.is_connected();
        match op {
            Op::Take(rid) | Op::Ask(rid) if self.master.forgotten.contains(&rid) => {}
            Op::Take(rid) => {
                self.ask(rid);
                self.reply(self.replies.len() - 1);
            }
            Op::Ask(rid) => self.ask(rid),
            Op::Reply if !self.replies.is_empty() => self.reply(0),
            Op::End(at) if at < self.views.len() => self.end(at),
            Op::Beat { arrives, answered } if connected => self.beat(arrives, answered),
            Op::List if self.listing.is_none() => self.listing = Some((self.pins.list(), None)),
            Op::Arrive => self.arrive(),
            Op::Answer { broken, silent } => _ = self.answer(broken, silent),
            // Nor is one answered by a process that it has not reached.
            Op::Restart { forgets, unpins } if self.listing.as_ref().is_none_or(|(_, unknown)| unknown.is_none()) => {
                self.another = true;
                let of = |set: u64, rid: Rid| set >> (rid.0 - 1) & 1;
                self.master.forgotten.extend((1..=RIDS).map(Rid).filter(|rid| of(forgets, *rid) == 1));
                let Master { pinned, unsettled, forgotten, .. } = &mut self.master;
                pinned.retain(|rid, _| !forgotten.contains(rid));
                unsettled.retain(|_, rid| !forgotten.contains(rid));
                pinned.iter_mut().for_each(|(rid, pinned)| *pinned -= of(unpins, *rid).min(*pinned));
                unsettled.retain(|_, rid| of(unpins, *rid) == 0);
            }
            Op::StartOver if self.listing.is_none() => {
                self.pins.start_over();
                (self.era, self.another, self.away, self.master) = (self.era + 1, false, false, Master::default());
                self.replies.clear();
            }
            _ => {}
        }
        if self.is_connected() {
            self.check();
        }
    }

    fn check(&self) {
        let mut all = self.views.iter().all(|(era, _)| *era == self.era);
        for rid in (1..=RIDS).map(Rid) {
            let (live, known) = (self.live(rid), self.pins.is_known(self.era, rid));
            assert!(
                !known || self.pinned(rid) >= live,
                "{}: {} pinned under {live} views: {self:?}",
                rid.0,
                self.pinned(rid)
            );
            assert!(live > 0 || known, "{} is unknown, and has no view", rid.0);
            all &= known;
        }
        assert_eq!(self.pins.all_listed(), all, "{self:?}");
    }

    /// All that is under way comes to its end.
    fn come_to_rest(&mut self) {
        while !self.replies.is_empty() {
            self.reply(0);
        }
        self.answer(true, false);
        for round in 0.. {
            assert!(round < 3, "lists without an end: {self:?}");
            self.listing = Some((self.pins.list(), None));
            self.arrive();
            if !self.answer(false, false) {
                break;
            }
        }
        self.beats();
        self.check();
    }

    fn beats(&mut self) {
        while self.pins.wants_to_send() {
            self.beat(true, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_counts_as_known_is_pinned_and_nothing_stays_pinned_without_a_view(
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::default();
        ops.into_iter().for_each(|op| world.step(op));
        world.come_to_rest();
        for rid in (1..=RIDS).map(Rid) {
            let (live, pinned) = (world.live(rid), world.pinned(rid));
            let is_right = if world.pins.is_known(world.era, rid) { pinned == live } else { pinned < live };
            prop_assert!(is_right, "{}: {world:?}", rid.0);
        }
        let listed = world.views.iter().filter(|(era, _)| *era == world.era).count();
        prop_assert_eq!(world.pins.take_room(usize::MAX), VIEWS_MAX - listed);
        while !world.views.is_empty() {
            prop_assert!(!world.pins.seal() || listed == 0);
            world.end(0);
        }
        world.beats();
        prop_assert!(world.master.pinned.values().all(|pinned| *pinned == 0), "{world:?}");
        prop_assert!(world.pins.is_empty() && world.pins.all_listed() && world.pins.seal());
    }
}

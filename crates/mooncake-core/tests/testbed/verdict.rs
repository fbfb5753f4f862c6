//! What must hold when a run is over.

use mooncake_core::{Core, GRANULE, Replica};

use super::client::{KEYS, key};
use super::memory::granules;
use super::{Tally, World};

impl World {
    /// Ends the faults, lets everything come to rest, and looks at what is left.
    pub fn conclude(&mut self) -> Tally {
        self.calm_down();
        // Longer than the longest freeze, and then a reservation and the retention, last.
        self.run_ms(50_000);
        let core = self.master.core.take().expect("the master is up when nothing fails");
        self.nothing_is_stuck(&core);
        self.acknowledged_objects_are_there(&core);
        self.master.core = Some(core);
        self.every_key_can_be_put();
        self.tally.clone()
    }

    fn nothing_is_stuck(&self, core: &Core) {
        let stats = core.stats();
        let seed = self.seed;
        assert_eq!(stats.unfinished_puts, 0, "seed {seed}: a put is stuck");
        assert_eq!(stats.quarantined_extents, 0, "seed {seed}: an extent is stuck in quarantine");
        assert_eq!(stats.pins, 0, "seed {seed}: a pin without a view");
        assert_eq!(stats.tickets, 0, "seed {seed}: a parked request is stuck");
        assert_eq!(stats.segments_closed, 0, "seed {seed}: a segment is closed");
        assert_eq!(stats.segments_live, 3, "seed {seed}: every owner is back");
        let objects: u64 =
            self.master.objects.values().flatten().map(|replica| replica.extent.length.div_ceil(GRANULE)).sum();
        assert_eq!(stats.used_bytes, objects * GRANULE, "seed {seed}: space is lost");
    }

    fn acknowledged_objects_are_there(&mut self, core: &Core) {
        let mut keys = Vec::new();
        let mut cursor = Default::default();
        while !core.keys_slice(&mut cursor, 1000, |key| keys.push(key.to_vec())) {}
        keys.sort();
        assert_eq!(keys, self.master.objects.keys().cloned().collect::<Vec<_>>(), "seed {}", self.seed);
        let there: std::collections::BTreeSet<_> =
            self.master.objects.values().flatten().map(|replica| replica.rid).collect();
        for (rid, segment) in &self.acknowledged {
            // One of two replicas may have gone before the end of its put.
            let gone = core.segment(*segment).is_none();
            let known = there.contains(rid) || self.master.left.contains(rid) || gone || self.tail_was_cut;
            assert!(known, "seed {}: the acknowledged {rid:?} was forgotten", self.seed);
        }
        let objects: Vec<Replica> = self.master.objects.values().flatten().copied().collect();
        for replica in &objects {
            let memory = self.memory_of(&replica.extent);
            let stamps = &self.memories[memory].stamps;
            let whole = granules(&replica.extent).all(|granule| stamps[granule as usize] == replica.rid.0);
            // What a log lost may have taken the place of what it still has; the first reader finds that out.
            assert!(whole || self.tail_was_cut, "seed {}: {:?} is not readable", self.seed, replica.rid);
            if whole {
                self.assert_right(replica, &self.words(replica));
            }
        }
    }

    /// No key is stuck: each can be put, removed and put again at once.
    fn every_key_can_be_put(&mut self) {
        use mooncake_core::{Origin, PutSlot, PutStarted};
        let session = self.clients[0].session.expect("connected");
        for number in 0..KEYS {
            let name = key(number);
            // Sequences that the client itself will not reach in this run.
            let origin = |nth: u64| Origin { session, sequence: (1 << 40) + number * 4 + nth, answered_below: 0 };
            let slots = self.with_core(|core, now, fx| {
                core.remove(now, origin(1), &[&name], true, fx).unwrap();
                core.put_start(now, origin(2), &[(&name, 3000)], &super::client::plain(), false, fx).unwrap()
            });
            let Some(PutStarted::Now(slots)) = slots else { panic!("seed {}: parked without wait", self.seed) };
            let PutSlot::Placed(replicas) = &slots[0] else { panic!("seed {}: {slots:?}", self.seed) };
            let rid = replicas[0].rid;
            self.with_core(|core, now, fx| core.abort(now, origin(3), &[rid], true, fx).unwrap());
            self.run_ms(100);
        }
    }
}

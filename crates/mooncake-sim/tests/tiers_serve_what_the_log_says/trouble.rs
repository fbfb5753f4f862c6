//! Beginnings and ends: of processes, connections, masters, power and disks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use mooncake_core::{Core, Effects, ListedViews, Offload, Origin, STEP_OBJECTS, SegmentSpec, SessionSpec, Sight};
use mooncake_ids::SegmentUuid;
use mooncake_tier::address::{BLOCK, Geometry};
use mooncake_tier::medium::Medium;
use mooncake_tier::owner::TierOwner;
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::{NewTier, Tier};
use parking_lot::Mutex;

use super::memory::Memory;
use super::{CAPACITY, FILE, MEMORY, NEIGHBOUR, OWNER, Process, SECRET, World};

impl World {
    /// A new process: with memory of its own, and a folder.
    pub fn begin_process(&mut self) {
        let own = self.folder_for_a_process();
        self.set_faults(self.calm);
        self.processes += 1;
        let (boot_id, process) = (vec![self.boots; 16], vec![self.processes; 40]);
        let spec = SessionSpec {
            secret: u64::from(self.processes),
            name: OWNER.into(),
            boot_id: boot_id.clone(),
            process: process.clone(),
        };
        let session = self.core.open_session(self.now, spec, &mut self.fx).unwrap();
        self.core.set_sight(session, Sight::Tiers);
        let (owner, slots) = (self.owner_now(), Slots::new(2));
        let (tier, is_new) = match Tier::open(own.disk.clone(), owner.clone(), &slots) {
            Ok((tier, _)) => (tier, false),
            Err(_) => {
                let geometry = Geometry::of_file_blocks(FILE / BLOCK).unwrap();
                let (tier, secret) = (own.uuid, SECRET);
                let new = NewTier { tier, secret, cluster_id: "c".into(), capacity: CAPACITY, geometry };
                (Tier::create(own.disk.clone(), new, owner, &slots).unwrap(), true)
            }
        };
        let tier = TierOwner::new(tier, is_new, CAPACITY).unwrap();
        let (uuid, memory) = (SegmentUuid([self.processes; 16]), Arc::new(Mutex::new(Memory::default())));
        let (to_promote, promoted) = (VecDeque::new(), Vec::new());
        let (sequence, adopted, said) = (0, Vec::new(), Vec::new());
        let found_bad = BTreeSet::new();
        self.process = Some(Process {
            session,
            sequence,
            uuid,
            neighbour: None,
            memory,
            own,
            tier,
            adopted,
            said,
            found_bad,
            to_promote,
            promoted,
        });
        let origin = self.origin();
        self.lend(origin, uuid, OWNER);
        if self.has_neighbours {
            self.begin_neighbour();
        }
        self.collect();
        self.mount_tier();
        self.set_faults(self.faults);
    }

    pub fn begin_neighbour(&mut self) {
        let spec = SessionSpec {
            secret: u64::from(self.processes),
            name: NEIGHBOUR.into(),
            boot_id: vec![self.boots; 16],
            process: vec![self.processes; 41],
        };
        let session = self.core.open_session(self.now, spec, &mut self.fx).unwrap();
        let uuid = SegmentUuid([self.processes | 0x80; 16]);
        self.process.as_mut().expect("it has begun").neighbour = Some((session, uuid));
        self.lend(Origin { session, sequence: 1, answered_below: 1 }, uuid, NEIGHBOUR);
    }

    pub fn lend(&mut self, origin: Origin, uuid: SegmentUuid, name: &str) {
        let bytes = if self.has_neighbours { 4 * MEMORY } else { MEMORY };
        let spec = SegmentSpec { uuid, name: name.into(), bytes, endpoint: Vec::new() };
        let number = self.core.mount(self.now, origin, spec, bytes, &mut self.fx).unwrap();
        self.process.as_ref().expect("it lends").memory.lock().add(number, bytes);
    }

    pub fn resume(&mut self, epoch_taken: u16) {
        let Some(process) = &mut self.process else { return };
        let (owner, secret) = (process.session, u64::from(process.uuid.0[0]));
        let lenders: Vec<_> = process.lenders().collect();
        let has_resumed = lenders.into_iter().all(|(session, uuid)| {
            let (views, segments) = (ListedViews::default(), [(uuid, epoch_taken)]);
            let resumed = self.core.resume_session(self.now, session, secret, &segments, views, &mut self.fx);
            resumed.is_ok_and(|resumed| resumed.gone.is_empty())
        });
        if has_resumed {
            self.core.set_sight(owner, Sight::Tiers);
            self.collect();
            self.mount_tier();
        } else {
            // The log has lost its session, or its memory: it begins anew, with its folder.
            self.end_process(false);
        }
    }

    pub fn end_process(&mut self, power_lost: bool) {
        let Some(process) = self.process.take() else { return };
        let lenders = process.lenders();
        let Process { own, mut tier, adopted, .. } = process;
        adopted.into_iter().for_each(|uuid| drop(tier.let_go(uuid)));
        drop(tier.into_lock());
        own.disk.kill_process();
        for folder in &self.folders {
            match power_lost {
                false => folder.disk.kill_process(),
                true => folder.disk.lose_power(),
            }
        }
        self.boots += u8::from(power_lost);
        for (session, _) in lenders {
            self.core.process_gone(self.now, session, &mut self.fx);
        }
        while self.core.background(self.now, STEP_OBJECTS, &mut self.fx) {}
        self.collect();
    }

    pub fn restart_master(&mut self, power_lost: bool) {
        let epoch = self.core.epoch().number;
        if power_lost {
            let kept = self.synced + self.random.below((self.log.len() - self.synced) as u64 + 1) as usize;
            self.log.truncate(kept);
            // A place that was dropped may be back, because its bytes were lost with the power of the owner's host.
            self.is_damaged |= self.boots > 1;
            self.history.retain(|(length, ..)| *length <= kept);
        }
        self.note_evictions();
        let config = World::config(Offload { on_evict: self.random.below(3) == 0, force_evict: false });
        let mut core = Core::new(config);
        self.log.iter().for_each(|record| core.replay(record.clone()).unwrap());
        self.core = core;
        self.fx = Effects::default();
        if let Some(process) = &mut self.process {
            process.said.clear();
            process.tier.anchor_lost();
        }
        let raised = power_lost.then_some(epoch + 1);
        self.core.begin(self.now, raised, &mut self.fx);
        self.collect();
        self.synced = self.log.len();
        self.resume(if power_lost { 0 } else { epoch });
    }

    pub fn trouble(&mut self) {
        match self.random.below(6) {
            0 => self.end_process(false),
            1 => self.end_process(true),
            2 => self.restart_master(false),
            3 => self.restart_master(true),
            4 => {
                let Some(process) = &mut self.process else { return };
                process.said.clear();
                process.tier.anchor_lost();
                for (session, _) in process.lenders() {
                    self.core.anchor_lost(self.now, session, &mut self.fx);
                }
                self.collect();
                self.resume(self.core.epoch().number);
            }
            _ => {
                // A new core from a snapshot of this one.
                let mut core = Core::new(World::config(Offload::default()));
                self.core.snapshot().for_each(|record| core.replay(record).unwrap());
                let state = |core: &Core| {
                    let mut records: Vec<String> = core.snapshot().map(|record| format!("{record:?}")).collect();
                    records.sort();
                    records
                };
                assert_eq!(state(&core), state(&self.core), "a snapshot makes another state");
            }
        }
    }

    /// A disk that is none of the best loses what it was to sync, and nobody reads it for a while.
    pub fn lose_at_sync(&mut self) {
        if self.is_calm() {
            return;
        }
        let Some(process) = &self.process else { return };
        let disk = process.own.disk.clone();
        let files = disk.list().unwrap().into_iter().map(|file| file.name);
        let Some(newest) = files.filter(|name| name.ends_with(".records")).max() else { return };
        disk.lose_at_sync(&newest, 2);
        for _ in 0..80 {
            self.go_on();
        }
    }
}

//! What users do: they put, read, look for and remove objects, and each value that they read is the last one.

use std::time::Duration;

use mooncake_core::{
    EndOutcome, Ended, PutConfig, PutStarted, Record, RemoveAll, RemoveOutcome, Replica, STEP_OBJECTS, Sight,
    StartOutcome,
};
use mooncake_ids::{TIER_BLOCK, TierUuid};
use mooncake_memory::{copy_and_sum, crc32c};
use mooncake_tier::address::{Address, BLOCK, Geometry};
use mooncake_tier::medium::faulty::FaultyDisk;
use mooncake_tier::reader::{Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;

use super::memory::Value;
use super::{FILE, KEYS, LARGEST, NEIGHBOUR, OWNER, World};

impl World {
    pub fn truth(&self, key: u64) -> Option<Value> {
        self.history.iter().rev().find(|(_, other, _)| *other == key).and_then(|(.., value)| *value)
    }

    pub fn name(key: u64) -> Vec<u8> {
        format!("key-{key}").into_bytes()
    }

    pub fn put(&mut self) {
        self.put_on(Vec::new());
    }

    /// On a segment of these names if there is room; else anywhere, with a neighbour on two.
    pub fn put_on(&mut self, preferred_segments: Vec<String>) {
        if self.process.is_none() {
            return;
        }
        let (key, replace) = (self.random.below(KEYS), self.random.below(3) == 0);
        let value = Value { number: self.next_value, size: 1 + self.random.below(LARGEST) };
        self.next_value += 1;
        let replica_num = 1 + u32::from(self.has_neighbours && preferred_segments.is_empty());
        let config = PutConfig { replace, replica_num, preferred_segments, ..PutConfig::default() };
        let (name, origin) = (World::name(key), self.origin());
        let entries: [(&[u8], u64); 1] = [(&name, value.size)];
        let started = self.core.put_start(self.now, origin, &entries, &config, false, &mut self.fx).unwrap();
        let slots = match started {
            PutStarted::Now(slots) => slots,
            PutStarted::Parked(ticket) => loop {
                self.log.append(&mut self.fx.records);
                if let Some(at) = self.fx.woken.iter().position(|(other, _)| *other == ticket) {
                    break self.fx.woken.remove(at).1;
                }
                self.core.background(self.now, STEP_OBJECTS, &mut self.fx);
            },
        };
        self.collect();
        let StartOutcome::Placed(replicas) = &slots[0] else {
            assert!(slots[0] != StartOutcome::Exists || self.truth(key).is_some(), "{key} is there, and was removed");
            return;
        };
        let process = self.process.as_mut().expect("it puts");
        let bytes = value.bytes();
        let memory = process.memory.clone();
        memory.lock().to_come.extend(replicas.iter().map(|replica| (*replica, bytes.clone())));
        if self.has_neighbours && self.random.below(2) == 0 {
            self.go_on_without_hearing();
        }
        memory.lock().write_all();
        if self.random.below(20) == 0 {
            // It is left to its deadline.
            return;
        }
        let ended = Ended {
            replicas: replicas.iter().map(|replica| (replica.rid, true)).collect(),
            crc32c: crc32c(&bytes),
            stays: false,
        };
        let origin = self.origin();
        let rid = replicas[0].rid;
        let outcome = self.core.put_end(self.now, origin, &[ended], &mut self.fx).unwrap();
        self.collect();
        if outcome == [EndOutcome::Committed] {
            let is_it =
                |record: &Record| matches!(record, Record::Committed { reservation, .. } if *reservation == rid);
            let at = self.log.iter().rposition(is_it).expect("it was logged");
            self.history.push((at + 1, key, Some(value)));
        }
    }

    pub fn get(&mut self) {
        let key = self.random.below(KEYS);
        let Some(process) = &self.process else { return };
        let (name, session, memory) = (World::name(key), process.session, process.memory.clone());
        let mut found = None;
        self.core.lookup(self.now, session, [&name[..]].into_iter(), |object| {
            found = object.ok().map(|object| object.to_found());
        });
        let Some(found) = found else { return };
        let truth = self.truth(key);
        let value = truth.unwrap_or_else(|| panic!("key {key} was removed, and is there: {found:?}"));
        assert_eq!(found.size, value.size, "key {key} has another value than {value:?}");
        for replica in &found.replicas {
            match self.core.tier(replica.extent.segment).map(|tier| tier.spec.uuid) {
                Some(uuid) => self.read_record(key, &name, value, (uuid, replica)),
                None => {
                    let memory = memory.lock();
                    // What a log lost may have been stored over since.
                    if memory.carries(replica) {
                        assert!(memory.at(replica) == value.bytes(), "wrong bytes of {key} in memory, {replica:?}");
                    }
                }
            }
        }
    }

    pub fn disk_of(&self, uuid: TierUuid) -> FaultyDisk {
        self.folders.iter().find(|folder| folder.uuid == uuid).expect("a folder is read that is there").disk.clone()
    }

    pub fn read_record(&mut self, key: u64, name: &[u8], value: Value, (tier, replica): (TierUuid, &Replica)) {
        let geometry = Geometry::of_file_blocks(FILE / BLOCK).unwrap();
        let mut reader = Reader::new(self.disk_of(tier), geometry, Slots::new(4)).unwrap();
        let mut bytes = vec![0; value.size as usize];
        let mut sink = |at: u64, some: &[u8]| copy_and_sum(some, &mut bytes[at as usize..][..some.len()]);
        let address = Address(replica.extent.offset / TIER_BLOCK);
        let place = RecordPlace { tier, address, rid: replica.rid, size: value.size, key_bytes: name.len() };
        let want = Want { place, from: 0, len: value.size, crc: None, sink: &mut sink };
        match reader.read(&mut [want], || Duration::from_secs(10)).remove(0) {
            Ok(()) => {
                assert!(bytes == value.bytes(), "wrong bytes of {key} on the tier, {replica:?}");
                self.seen.records_read += 1;
            }
            Err(miss) => assert!(!self.is_calm(), "key {key} is on a Live tier at {replica:?}, and not read: {miss}"),
        }
    }

    /// An existence query, after which the objects that only the tier has come back to memory.
    pub fn look_for_some(&mut self) {
        let names: Vec<Vec<u8>> = (0..4).map(|_| World::name(self.random.below(KEYS))).collect();
        self.core.exists(self.now, Sight::Tiers, names.iter().map(|name| &name[..]), |_| {});
    }

    pub fn remove(&mut self) {
        if self.process.is_none() {
            return;
        }
        if self.random.below(8) == 0 {
            let mut removal = RemoveAll::new(&mut self.core, true);
            while !self.core.remove_all_slice(self.now, &mut removal, 7, &mut self.fx) {
                self.collect();
                // What is not removed yet is written, moved and promoted meanwhile.
                match self.random.below(6) {
                    0..3 => self.hear_one(),
                    3 => {
                        self.look_for_some();
                        self.go_on();
                        (0..4).for_each(|_| self.promote_one());
                        self.hear_promoted();
                    }
                    _ => {}
                }
            }
            self.collect();
            // Before the reply (`docs/safety.md`, rule T10).
            self.synced = self.log.len();
            (0..KEYS).for_each(|key| self.history.push((self.log.len(), key, None)));
            return;
        }
        let (key, origin, before) = (self.random.below(KEYS), self.origin(), self.log.len());
        self.core.remove(self.now, origin, &[&World::name(key)], true, &mut self.fx).unwrap();
        self.collect();
        let at = self.removed_at(key, before).unwrap_or(before);
        self.history.push((at, key, None));
    }

    /// The length of the log once it had that, where it has it behind so many records.
    pub fn removed_at(&self, key: u64, before: usize) -> Option<usize> {
        let name = World::name(key);
        let is_it = |record: &Record| matches!(record, Record::Removed { key, .. } if **key == name[..]);
        Some(before + self.log[before..].iter().position(is_it)? + 1)
    }

    /// A user has some copies dropped, and what is put next lies where they were.
    pub fn clear(&mut self) {
        if self.process.is_none() {
            return;
        }
        (0..4).for_each(|_| self.put());
        self.order();
        let segment = [OWNER, NEIGHBOUR][self.random.below(2) as usize];
        for key in 0..KEYS {
            if self.random.below(2) == 0 {
                continue;
            }
            let (name, origin, before) = (World::name(key), self.origin(), self.log.len());
            let cleared = self.core.clear_replicas(self.now, origin, &[&name], segment, &mut self.fx).unwrap();
            self.collect();
            match self.removed_at(key, before) {
                Some(at) => self.history.push((at, key, None)),
                None => self.seen.cleared += u64::from(cleared == [RemoveOutcome::Removed]),
            }
        }
        (0..4).for_each(|_| self.put_on(vec![segment.into()]));
    }
}

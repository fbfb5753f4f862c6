//! What owners do with their tiers, and what they and the master say to one another.

use std::time::Duration;

use mooncake_core::{OrdersAnswered, Promoted, Record, STEP_OBJECTS, TierMount, TierProof, TierSpec, Verdict, Written};
use mooncake_ids::{Rid, TIER_BLOCK, TierUuid};
use mooncake_memory::copy_and_sum;
use mooncake_tier::address::{Address, BLOCK, Geometry};
use mooncake_tier::medium::faulty::{Faults, FaultyDisk};
use mooncake_tier::owner::{Proof, ToMaster};
use mooncake_tier::reader::{Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use mooncake_tier::tier::{Owner, Tier};

use super::{CAPACITY, FILE, FOLDERS_MAX, KEYS, OWNER, Process, SECRET, TierFolder, ToPromote, World};

impl World {
    /// A folder that is left, or a new one.
    pub fn folder_for_a_process(&mut self) -> TierFolder {
        let at = self.random.below(self.folders.len() as u64 + 1) as usize;
        match self.folders.get(at) {
            Some(left) => left.clone(),
            None if self.folders.len() == FOLDERS_MAX => self.folders[0].clone(),
            None => {
                self.folders_made += 1;
                let disk = FaultyDisk::new(self.random.below(1 << 40), self.calm);
                let made = TierFolder { uuid: TierUuid([self.folders_made; 16]), disk };
                self.folders.push(made.clone());
                made
            }
        }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.folders.iter().for_each(|folder| folder.disk.set_faults(faults));
    }

    pub fn owner_now(&self) -> Owner {
        Owner { boot_id: vec![self.boots; 16], process: vec![self.processes; 40] }
    }

    pub fn mount_of(&self, uuid: TierUuid, proof: Proof, is_adopted: bool) -> TierMount {
        let records_max = self.records_max;
        let spec = TierSpec {
            uuid,
            secret: SECRET,
            name: OWNER.into(),
            bytes: CAPACITY,
            file_blocks: FILE / BLOCK,
            endpoint: Vec::new(),
        };
        let Proof { is_new, head, files, appended, suspects, proven } = proof;
        TierMount {
            spec,
            is_new,
            is_adopted,
            file_system: None,
            head,
            records_max,
            proof: TierProof { files, appended, suspects, proven },
        }
    }

    /// The process has a folder that is left beside its own.
    pub fn adopt(&mut self) {
        let owner = self.owner_now();
        let Some(process) = &mut self.process else { return };
        let is_left = |folder: &&TierFolder| folder.uuid != process.own.uuid && !process.adopted.contains(&folder.uuid);
        let Some(left) = self.folders.iter().find(is_left).cloned() else { return };
        left.disk.set_faults(self.calm);
        // One in which nothing came to be is none yet.
        if let Ok((tier, _)) = Tier::open(left.disk.clone(), owner, &Slots::new(2)) {
            process.tier.adopt(tier).unwrap();
            process.adopted.push(left.uuid);
            self.seen.adoptions += 1;
            self.mount_adopted(left.uuid);
        }
        left.disk.set_faults(self.faults);
    }

    pub fn mount_adopted(&mut self, uuid: TierUuid) {
        let Some(process) = &mut self.process else { return };
        let proof = process.tier.adopted_proof(uuid, || Duration::from_secs(10)).expect("the disk answers");
        let session = process.session;
        let mount = self.mount_of(uuid, proof, true);
        let mounted = self.core.mount_tier(self.now, session, mount, &mut self.fx);
        let Some(process) = &mut self.process else { return };
        match mounted {
            Ok(_) => process.tier.adopted_is_mounted(uuid, true),
            // The log has lost that there is such a tier.
            Err(_) => self.lose_folder(uuid),
        }
        self.collect();
    }

    /// Nothing in a folder is of the log, or anything more.
    pub fn lose_folder(&mut self, uuid: TierUuid) {
        self.folders.retain(|folder| folder.uuid != uuid);
        let Some(process) = &mut self.process else { return };
        if process.own.uuid == uuid {
            return self.end_process(false);
        }
        process.adopted.retain(|adopted| *adopted != uuid);
        drop(process.tier.let_go(uuid));
    }

    /// What was adopted has no file any more: it is forgotten.
    pub fn let_go_of_empty(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some(uuid) = process.tier.empty_adopted() else { return };
        self.core.leave_tier(self.now, process.session, uuid, true, &mut self.fx);
        self.lose_folder(uuid);
        self.seen.folders_emptied += 1;
        self.collect();
    }

    /// An operator says that a tier never comes back.
    pub fn forget(&mut self) {
        let at = self.random.below(self.folders.len() as u64) as usize;
        self.forget_one(self.folders[at].uuid);
    }

    pub fn forget_one(&mut self, uuid: TierUuid) {
        let Some(process) = &self.process else { return };
        let session = process.session;
        let Some(number) = self.core.tiers().find(|tier| tier.spec.uuid == uuid).map(|tier| tier.number) else {
            return;
        };
        let lost: Vec<u64> = (0..KEYS)
            .filter(|key| {
                let (name, mut is_there_alone) = (World::name(*key), false);
                self.core.lookup(self.now, session, [&name[..]].into_iter(), |object| {
                    is_there_alone = object.is_ok_and(|object| {
                        object.to_found().replicas.iter().all(|replica| replica.extent.segment == number)
                    });
                });
                is_there_alone
            })
            .collect();
        assert!(self.core.forget_tier(self.now, uuid, &mut self.fx));
        self.collect();
        // As a bulk removal (`docs/safety.md`, rule T10).
        self.synced = self.log.len();
        lost.into_iter().for_each(|key| self.history.push((self.log.len(), key, None)));
        // The word of it comes at some time, and what was on its way to the master is heard before.
        if self.random.below(2) == 0 {
            self.go_on();
        }
        self.lose_folder(uuid);
    }

    pub fn mount_tier(&mut self) {
        let Some(process) = &mut self.process else { return };
        let proof = process.tier.proof(|| Duration::from_secs(10)).expect("the disk answers");
        let (session, uuid, adopted) = (process.session, process.own.uuid, process.adopted.clone());
        let mount = self.mount_of(uuid, proof, false);
        let mounted = self.core.mount_tier(self.now, session, mount, &mut self.fx);
        let Some(process) = &mut self.process else { return };
        match mounted {
            Ok(mounted) => process.tier.mounted(mounted.head),
            // The log has lost that there is such a tier: its owner makes another one, in another folder.
            Err(_) => {
                let is_it = |record: &Record| matches!(record, Record::TierSeen { spec, .. } if spec.uuid == uuid);
                assert!(!self.log.iter().any(is_it), "it is known");
                return self.lose_folder(uuid);
            }
        }
        self.collect();
        adopted.into_iter().for_each(|uuid| self.mount_adopted(uuid));
    }

    /// The owner makes the next copy, as a writer does, and says so at some time.
    pub fn promote_one(&mut self) {
        let geometry = Geometry::of_file_blocks(FILE / BLOCK).unwrap();
        let Some(process) = &mut self.process else { return };
        let Some(ToPromote { tier, key, crc32c, from, to }) = process.to_promote.pop_front() else { return };
        // Its folder may be another one's by now.
        let Some(folder) = self.folders.iter().find(|folder| folder.uuid == tier) else {
            return process.promoted.push(Promoted { rid: to.rid, good: false });
        };
        let mut reader = Reader::new(folder.disk.clone(), geometry, Slots::new(4)).unwrap();
        let size = from.extent.length;
        let mut bytes = vec![0; size as usize];
        let mut sink = |at: u64, some: &[u8]| copy_and_sum(some, &mut bytes[at as usize..][..some.len()]);
        let address = Address(from.extent.offset / TIER_BLOCK);
        let place = RecordPlace { tier, address, rid: from.rid, size, key_bytes: key.len() };
        let want = Want { place, from: 0, len: size, crc: Some(crc32c), sink: &mut sink };
        let read = reader.read(&mut [want], || Duration::from_secs(10)).remove(0);
        let mut memory = process.memory.lock();
        let is_newest = memory.stamps[memory.granules(&to)].iter().all(|stamp| *stamp < to.rid);
        if is_newest {
            memory.write(&to, &bytes);
        }
        drop(memory);
        process.promoted.push(Promoted { rid: to.rid, good: read.is_ok() && is_newest });
    }

    pub fn hear_promoted(&mut self) {
        let Some(process) = &mut self.process else { return };
        let (session, promoted) = (process.session, std::mem::take(&mut process.promoted));
        self.core.promoted(self.now, session, &promoted, &mut self.fx);
        self.collect();
    }

    /// The next word of the owner comes to the master.
    pub fn hear_one(&mut self) {
        let Some(process) = &mut self.process else { return };
        if process.said.is_empty() {
            return;
        }
        let (session, own, mut moved_from) = (process.session, process.own.uuid, None);
        match process.said.remove(0) {
            ToMaster::Written { written, window, sealed } => {
                let written =
                    written.iter().map(|(rid, address)| Written { rid: *rid, address: address.map(|at| at.0) });
                let sealed = sealed.iter().map(|file| file.0).collect();
                let answered = OrdersAnswered { written: written.collect(), window, sealed };
                self.core.orders_answered(self.now, session, own, &answered, &mut self.fx);
            }
            ToMaster::Reclaim { tier, file, records } => {
                let origin = self.origin();
                let records: Vec<(&[u8], Rid)> = records.iter().map(|(key, rid)| (&key[..], *rid)).collect();
                let verdicts = self.core.reclaim(self.now, origin, (tier, own), file.0, &records, &mut self.fx);
                let process = self.process.as_mut().expect("it asks");
                match verdicts {
                    Ok(verdicts) => {
                        let count =
                            |is: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count() as u64;
                        let kept = count(|verdict| matches!(verdict, Verdict::Keep(_)));
                        self.seen.records_kept += kept;
                        self.seen.kept_elsewhere += if tier == own { 0 } else { kept };
                        moved_from = (kept > 0).then_some(tier);
                        self.seen.records_dropped += count(|verdict| *verdict == Verdict::Dropped);
                        let rid = |verdict: &Verdict| if let Verdict::Keep(rid) = verdict { *rid } else { Rid(0) };
                        process.tier.judged(&verdicts.iter().map(rid).collect::<Vec<_>>());
                    }
                    Err(_) => process.tier.leave_off(),
                }
            }
            ToMaster::Bad { records } => {
                self.seen.found_bad += records.len() as u64;
                for (key, rid) in records {
                    process.found_bad.insert(rid);
                    self.core.bad_replica(self.now, session, &key, rid, &mut self.fx);
                }
            }
            ToMaster::Damaged { key, rid } => panic!("{key:?} is damaged in memory as {rid:?}"),
            ToMaster::Reclaimed { tier, file } => {
                self.seen.files_given_up += 1;
                if self.core.reclaimed(session, tier, file.0).is_err() {
                    process.tier.leave_off();
                }
            }
        }
        self.collect();
        // While some of it is on its way to another file.
        if let Some(uuid) = moved_from
            && self.random.below(16) == 0
        {
            self.go_on_without_hearing();
            self.forget_one(uuid);
        }
    }

    /// The owner does what it has to, and the master hears nothing of it yet.
    pub fn go_on_without_hearing(&mut self) {
        if let Some(process) = &mut self.process {
            let said = process.tier.poll(process.own.disk.now(), Duration::ZERO);
            process.said.extend(said);
        }
    }

    pub fn go_on(&mut self) {
        let wait = Duration::from_micros(self.random.below(4_000));
        let is_lame = self.random.below(6) == 0;
        if let Some(process) = &mut self.process {
            let said = process.tier.poll(process.own.disk.now(), wait);
            process.said.extend(said);
            if !is_lame {
                while self.process.as_ref().is_some_and(|process| !process.said.is_empty()) {
                    self.hear_one();
                }
            }
        }
        let ms = 20 * (1 + self.random.below(20));
        let pause = Duration::from_millis(self.random.below(ms));
        self.folders.iter().for_each(|folder| folder.disk.pass(pause));
        self.let_go_of_empty();
        self.now = self.now.plus_ms(ms);
        for (session, _) in self.process.iter().flat_map(Process::lenders) {
            self.core.beat(self.now, session, &[], &[], &mut self.fx);
        }
        self.order();
        // The disk of the log syncs now and then.
        if self.random.below(4) == 0 {
            self.synced = self.log.len();
        }
        self.core.check_invariants().unwrap();
    }

    /// The master has done what it has to.
    pub fn order(&mut self) {
        self.core.tick(self.now, &mut self.fx);
        while self.core.background(self.now, STEP_OBJECTS, &mut self.fx) {}
        self.collect();
    }
}

//! A tier that is full gives up its oldest file, but for what is worth to be written once more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, TIER_OBJECT_PART, TierUuid};
use mooncake_memory::{copy_and_sum, copy_for_disk, crc32c};

use super::{Ordered, TierOwner, ToMaster};
use crate::address::{FileNumber, Geometry};
use crate::appender::{Order, Value};
use crate::contents::{contents, is_for_now, object_id};
use crate::footer::{Entries, Entry};
use crate::health::Fitness;
use crate::io_counts::{CountedReads, ReadFor};
use crate::medium::Medium;
use crate::proof::record_place;
use crate::reader::{Miss, Want};
use crate::record::Layout;

/// Records that one request names.
const NAMED_MAX: usize = 1_000;

/// Files that are to be free before an order needs them: the next one, and one for what is kept of a full one. Where
/// objects come that take several numbers each, as many more.
const FILES_AHEAD: u64 = 2;

/// Bytes of one object that is written once more; more of them wait for each other.
const MOVED_MAX: u64 = 64 << 20;

/// Between two rounds through a tier of which nearly all is kept, and two tries of a disk that would not let a file go.
pub(super) const STUCK: Duration = Duration::from_secs(60);

/// How long a word counts that a tier may have no more objects: the master says it each second.
const FULL_FOR: Duration = Duration::from_secs(2);

/// A file of which nearly all is kept has another turn after so long.
const PASSED_OVER_FOR: Duration = Duration::from_secs(600);

/// The same of a tier that is full for good.
const KEEPS_ALL_SAID_EVERY: Duration = Duration::from_secs(600);

/// Between two lines of a tier that may have no more objects.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Time that a disk has for a record that is to be kept, or looked at.
pub(super) const READ_LIMIT: Duration = Duration::from_secs(3);

/// A file that is given up.
pub(super) struct GivingUp {
    /// The tier that has it.
    pub tier: TierUuid,
    pub file: FileNumber,
    /// Of the file.
    pub bytes: u64,
    pub entries: Vec<Entry>,
    /// Before this one all have been named.
    pub next: usize,
    /// Those named in the request that is under way.
    pub asked: Option<std::ops::Range<usize>>,
    /// To be written once more, with their new rids.
    pub keep: Vec<(usize, Rid)>,
    pub moving: BTreeSet<Rid>,
    pub moving_bytes: u64,
    /// The master knows that nothing more of it is to be kept.
    pub is_told: bool,
    /// What there is to be kept was found to be worth it.
    pub is_weighed: bool,
}

/// A record that was read to be written once more.
struct FromRecord(Vec<u8>);

impl Value for FromRecord {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        Some(crc32c(&self.0[at as usize..][..len as usize]))
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        copy_for_disk(&self.0[at as usize..][..into.len()], into);
        true
    }
}

/// Bytes that a record takes once it is written to a tier of such files: a large one gets a file for itself.
fn bytes_of_another(entry: &Entry, geometry: Geometry) -> u64 {
    let key_bytes = entry.key.len();
    let record_bytes = Layout::of(key_bytes, entry.size).map_or(0, |of| of.record_bytes);
    match geometry.numbers_for(record_bytes + Entries::default().footer_bytes_with(key_bytes)) {
        1 => record_bytes,
        numbers => numbers * geometry.file_bytes(),
    }
}

impl<M: Medium> TierOwner<M> {
    /// The tier has as many records as it may: its oldest file is given up, whatever room there is.
    pub fn give_oldest_up(&mut self) {
        if self.giving_up.is_some() || !self.evicts {
            return;
        }
        // Each of its files had its turn, and whatever it had was kept.
        if self.in_vain > self.over.len() {
            self.in_vain = 0;
            tracing::warn!(
                "a tier with as many objects as it may have writes nothing more for a minute: all are pinned. Remove \
                 some, pin fewer, or let it have more (MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT)"
            );
            self.stuck_until = self.now + STUCK;
            return;
        }
        self.full_until = self.now + FULL_FOR;
        if self.full_said_at.is_none_or(|at| self.now.saturating_sub(at) >= SAID_EVERY) {
            self.full_said_at = Some(self.now);
            tracing::warn!(
                "the tier has as many objects as it may (MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT, or 10,000,000): its oldest \
                 files are given up for new ones. Each takes memory of the master; larger objects use a disk better"
            );
        }
    }

    /// The tier has no room, and is to give nothing up.
    pub(super) fn says_that_it_keeps_all(&mut self, now: Duration) {
        if self.full_said_at.is_none_or(|at| now.saturating_sub(at) >= KEEPS_ALL_SAID_EVERY) {
            self.full_said_at = Some(now);
            tracing::warn!(
                bytes = self.used(),
                "the tier is full, and gives nothing up as the master says so (--enable_disk_eviction=false): what is \
                 put from now on lies in memory alone. Remove objects, or raise --quota_bytes"
            );
        }
    }

    /// The master has judged what [`ToMaster::Reclaim`] named: a new rid for each that is kept, 0 for the others.
    pub fn judged(&mut self, rids: &[Rid]) {
        let Some(up) = &mut self.giving_up else { return };
        let Some(asked) = up.asked.take() else { return };
        let kept = asked.zip(rids).filter(|(_, rid)| rid.0 != 0);
        up.keep.extend(kept.map(|(at, rid)| (at, *rid)));
    }

    /// The file that is being given up stays, and is tried again: the master did not judge. What was to be kept of it
    /// is not written once more.
    pub fn leave_off(&mut self) {
        if let Some(up) = self.giving_up.take() {
            self.answers.extend(up.keep.into_iter().map(|(_, rid)| (rid, None)));
        }
    }

    /// The same, and nothing is given up for a while: the disk would not let it.
    pub(super) fn put_off(&mut self) {
        self.leave_off();
        self.stuck_until = self.now + STUCK;
    }

    pub(super) fn has_moved(&mut self, rid: Rid, bytes: u64) {
        if let Some(up) = &mut self.giving_up
            && up.moving.remove(&rid)
        {
            up.moving_bytes -= bytes;
        }
    }

    /// Goes on giving up the oldest file, or begins to where there is no room for the next ones.
    pub(super) fn make_room(&mut self, now: Duration) -> Option<ToMaster> {
        // A disk that is not to be written has no place for what is kept, and nothing of it goes.
        if !self.is_mounted || self.fitness != Fitness::Good {
            return None;
        }
        if self.giving_up.is_none() {
            if self.short.take_if(|(_, until)| *until <= now).is_some() {
                self.limit_appender();
            }
            self.large.take_if(|(_, until)| *until <= now);
            if self.has_room() && !self.is_full() || now < self.stuck_until || !self.evicts {
                return None;
            }
            let is_for_records = self.has_room();
            self.begin_giving_up(now)?;
            self.full_until = Duration::ZERO;
            self.in_vain += usize::from(is_for_records);
        }
        let up = self.giving_up.as_mut().expect("it has begun");
        if up.asked.is_some() {
            return None;
        }
        if up.next < up.entries.len() {
            let asked = up.next..up.entries.len().min(up.next + NAMED_MAX);
            let named = up.entries[asked.clone()].iter().map(|entry| (entry.key.clone(), entry.rid));
            let records = named.collect();
            up.next = asked.end;
            up.asked = Some(asked);
            return Some(ToMaster::Reclaim { tier: up.tier, file: up.file, records });
        }
        let kept: u64 = up.keep.iter().map(|(at, _)| bytes_of_another(&up.entries[*at], self.geometry)).sum();
        if !std::mem::replace(&mut up.is_weighed, true) && kept > up.bytes / 10 * 9 {
            let (tier, file) = (up.tier, up.file);
            tracing::debug!(file = file.0, "nearly all of a file is kept: it stays, and the next oldest is given up");
            self.leave_off();
            self.passed_over.insert((tier, file), now);
            return None;
        }
        self.move_kept();
        let up = self.giving_up.as_mut().expect("it goes on");
        let is_through = up.keep.is_empty() && up.moving.is_empty() && self.answers.is_empty();
        if !is_through || std::mem::replace(&mut up.is_told, true) {
            return None;
        }
        Some(ToMaster::Reclaimed { tier: up.tier, file: up.file })
    }

    /// Writes once more what is kept of the file that is given up.
    fn move_kept(&mut self) {
        let own = self.appender.superblock().tier;
        let Some(up) = &mut self.giving_up else { return };
        let (medium, reader, counts, tier, geometry) =
            match self.adopted.iter_mut().find(|adopted| adopted.uuid() == up.tier) {
                Some(adopted) => {
                    let (tier, geometry) = (adopted.uuid(), adopted.geometry());
                    (&adopted.medium, &mut adopted.reader, &adopted.counts, tier, geometry)
                }
                None => (&self.medium, &mut self.reader, &self.counts, own, self.geometry),
            };
        let counted = CountedReads { counts: counts.clone(), by: ReadFor::Kept };
        reader.counts(counted.clone());
        while up.moving_bytes < MOVED_MAX
            && let Some((at, rid)) = up.keep.pop()
        {
            let entry = &up.entries[at];
            let mut bytes = vec![0; entry.size as usize];
            let mut sink = |at: u64, some: &[u8]| copy_and_sum(some, &mut bytes[at as usize..][..some.len()]);
            let (place, len) = (record_place(tier, entry), entry.size);
            let want = Want { place, from: 0, len, crc: None, sink: &mut sink };
            let until = Instant::now() + READ_LIMIT;
            let read = reader.read(&mut [want], || until.saturating_duration_since(Instant::now())).pop();
            if matches!(read, Some(Err(Miss::Late | Miss::NoSlot | Miss::Away))) {
                // It says nothing of the record. What is to be kept stays where it is.
                self.answers.push((rid, None));
                return self.put_off();
            }
            let of = (tier, geometry);
            let id = match read {
                Some(Ok(())) => object_id(medium, of, (up.file, entry.address), &self.slots, &counted),
                _ => Ok(None),
            };
            match (read, id) {
                (Some(Ok(())), Ok(Some(object_id))) => {
                    let (key, size) = (entry.key.clone(), entry.size);
                    up.moving.insert(rid);
                    up.moving_bytes += size;
                    self.ordered.insert(rid, Ordered::Moved(size));
                    let value = Box::new(FromRecord(bytes));
                    self.appender.append(Order { rid, object_id, key, crc32c: None, value, is_kept: true });
                }
                (read, _) => {
                    let why = read.and_then(Result::err).unwrap_or(Miss::Wrong);
                    tracing::warn!(file = up.file.0, %why, "a record that was to be kept cannot be read");
                    self.answers.push((rid, None));
                }
            }
        }
    }

    /// Whether the master lets it have no more records.
    fn is_full(&self) -> bool {
        self.now < self.full_until
    }

    /// Whether the next files can be begun without any of today's being given up.
    pub(super) fn has_room(&self) -> bool {
        let file_bytes = self.geometry.file_bytes();
        let limit = self.short.map_or(self.capacity, |(found, _)| found.min(self.capacity));
        // An object that is large for what room there is costs no others theirs: it waits, and comes to nothing.
        let largest = limit / TIER_OBJECT_PART + file_bytes;
        let large = self.large.filter(|(numbers, _)| numbers * file_bytes <= largest);
        let ahead = large.map_or(FILES_AHEAD, |(numbers, _)| FILES_AHEAD.max(numbers + 1));
        self.used() + ahead * file_bytes <= limit
    }

    /// The next file to be given up, of adopted tiers before the own one, with its bytes.
    fn oldest(&self) -> Option<(TierUuid, FileNumber, u64)> {
        // What adopted tiers have is no part of the records that the own one may have.
        let is_short_of_room = !self.has_room();
        let mounted = self.adopted.iter().filter(|adopted| adopted.is_mounted && is_short_of_room);
        let of_adopted = mounted.flat_map(|adopted| {
            let uuid = adopted.uuid();
            adopted.files.iter().map(move |(file, bytes)| (uuid, *file, *bytes))
        });
        let (own, files) = (self.appender.superblock().tier, self.appender.files());
        let of_own = self.over.iter().map(|file| (own, *file, files.get(file).copied().unwrap_or(0)));
        // What was pinned may not be by now.
        let is_passed_over = |at: &Duration| self.now.saturating_sub(*at) < PASSED_OVER_FOR;
        of_adopted
            .chain(of_own)
            .find(|(tier, file, _)| !self.passed_over.get(&(*tier, *file)).is_some_and(is_passed_over))
    }

    fn begin_giving_up(&mut self, now: Duration) -> Option<()> {
        let Some((tier, file, bytes)) = self.oldest() else {
            if self.is_full() {
                // What may go is in the file that it appends. The master says so again, if that is not enough.
                self.full_until = Duration::ZERO;
                if self.appender.leave_file() {
                    return None;
                }
            }
            if !self.passed_over.is_empty() {
                tracing::warn!(
                    "a full tier writes nothing more for a minute: nearly all that it has is pinned. Remove some, pin \
                     fewer, or give it more room (MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES)"
                );
                self.passed_over.clear();
                self.stuck_until = now + STUCK;
            } else if self.short.is_some() && self.used() <= self.geometry.file_bytes() {
                tracing::warn!(
                    file_bytes = self.geometry.file_bytes(),
                    "the tier writes nothing for a minute: it has no file to give up, and there is no room for two. \
                     Make room on its file system, or give it another path"
                );
                self.stuck_until = now + STUCK;
            }
            return None;
        };
        let of_adopted = self.adopted.iter().find(|adopted| adopted.uuid() == tier);
        let (medium, geometry, counts) = match of_adopted {
            Some(adopted) => (&adopted.medium, adopted.geometry(), &adopted.counts),
            None => (&self.medium, self.geometry, &self.counts),
        };
        let counted = CountedReads { counts: counts.clone(), by: ReadFor::Kept };
        let entries = match contents(medium, (tier, geometry), (file, bytes), &self.slots, &counted) {
            Ok(found) => found.entries,
            Err(error) if is_for_now(&error) => {
                tracing::warn!(file = file.0, %error, "the oldest file of the tier cannot be read now");
                self.stuck_until = now + STUCK;
                return None;
            }
            Err(error) => {
                tracing::warn!(file = file.0, %error, "the oldest file of the tier cannot be read; it is given up");
                Vec::new()
            }
        };
        self.giving_up = Some(GivingUp {
            tier,
            file,
            bytes,
            entries,
            next: 0,
            asked: None,
            keep: Vec::new(),
            moving: BTreeSet::new(),
            moving_bytes: 0,
            is_told: false,
            is_weighed: false,
        });
        Some(())
    }
}

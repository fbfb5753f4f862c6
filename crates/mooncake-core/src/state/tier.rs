//! Tiers: which there are and whose, how much of what the log knows lies in which of their files, and what their owners
//! have been asked to write.
//!
//! *Live*: its session is there and has mounted it. *Checking*: mounted, while places that its folder no longer proves
//! are dropped. *Hidden*: its session is away or over, or has left it. *Left*: the same, and there are sessions that
//! have its file system and read it by themselves. *Gone*: no entry any more.
//!
//! States: `docs/safety.md`, table of the tier.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::SmallVec;

use crate::ensure::ensure;
use crate::ids::{SegmentNo, Time};
use crate::request::TierSpec;
use crate::state::object::TierPlace;
use crate::state::objects::ObjectSlot;
use crate::state::tier_stats::TierStats;
use crate::state::tier_writes::{Budget, TierWrites};
use mooncake_ids::{FileSystemUuid, Rid, SessionId, TIER_BLOCK, TIER_OBJECT_PART, TierUuid};
use mooncake_mutant::mutant;

/// Bytes that a tier may have under order before its owner has said how fast it writes.
pub(crate) const WINDOW_MIN: u64 = 16 << 20;

/// Bytes that a tier may have under order at most.
pub(crate) const WINDOW_MAX: u64 = 256 << 20;

/// Orders that a tier may have unanswered.
pub(crate) const ORDERS_MAX: usize = 4_096;

/// New objects that wait to be written; of more of them the oldest are left to the search for cold ones.
const FRESH_MAX: usize = 1 << 20;

/// Of the files of a tier this part is young: those that were begun last. Much of what is put is read soon, and then no
/// more, which is no reason to write it once more when its file is given up. Replays of traces find nearly as much so
/// (at most 0.3 points less), and write a fifth to a half less of what is kept: `docs/benchmarks.md`. Files of which no
/// object has anything, and numbers that large objects take besides their file's, make the part smaller; with less than
/// three files none is young.
const YOUNG_PART: u64 = 3;

/// What the log knows of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Records that objects have there.
    pub records: u32,
    /// Bytes of these objects.
    pub bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Tier {
    pub spec: TierSpec,
    /// That has it mounted, or had it last.
    pub session: SessionId,
    /// Number of that session's host.
    pub host: Option<u32>,
    pub mounted: Mounted,
    /// On which it lies, where sessions share one.
    pub file_system: Option<FileSystemUuid>,
    /// When a session was asked last to adopt it, and the tier that this session writes.
    pub asked: Option<(Time, SegmentNo)>,
    /// Its session has it beside its own: it is read, and not written.
    pub is_adopted: bool,
    /// Number above those of all files that the log has heard of.
    pub head: u64,
    files: BTreeMap<u64, FileCounts>,
    pub records: u64,
    pub bytes: u64,
    /// Records that it has at most.
    pub records_max: u64,
    /// When its owner was told last that it has as many.
    pub told_full: Option<Time>,
    /// Files that are appended no more and that no object needs: their owner is yet to be told.
    pub unneeded: BTreeSet<u64>,
    /// Files that their owner says it appends no more.
    sealed: BTreeSet<u64>,
    /// Bytes that may be under order. None: its owner takes no orders, as its disk fails or stands still.
    pub window: u64,
    /// What its owner has said last of its disk, since it was mounted.
    pub stats: Option<Box<TierStats>>,
    pub ordered_bytes: u64,
    pub ordered: usize,
    /// Bytes of the records that they come to.
    under_order: u64,
    pub writes: TierWrites,
    /// Its budget is spent, or is left to what was read: no put waits for it.
    pub is_over_budget: bool,
    pub answered_at: Option<Time>,
    /// New objects in order of commit.
    pub fresh: VecDeque<(ObjectSlot, Rid)>,
    /// What was committed before it was Live is found by a search over all slots, which goes on with this one.
    pub search: Option<u32>,
    /// Its store closes: what leaves memory last is written first. So far are the hottest ones.
    pub closing: Option<Closing>,
    /// Bytes kept of the file that is given up at present because they were read.
    pub kept_of: Option<u64>,
    pub kept_bytes: u64,
    /// Files of which records were judged: an answer that comes late names nothing there.
    pub judged: BTreeSet<u64>,
    /// Files of which nothing is moved any more: whatever objects still have there is dropped.
    pub told: BTreeSet<u64>,
    /// Files that are given up, and how far the search is for what objects still have there.
    pub given_up: BTreeMap<u64, u32>,
}

/// Whether and how its session has it.
#[derive(Debug)]
pub(crate) enum Mounted {
    /// Since then it is not.
    Hidden(Time),
    /// Since then it is not, and sessions that announce its file system read its files.
    Left(Time),
    /// Objects before slot `next` have been looked at.
    Checking {
        proof: Box<TierProof>,
        next: u32,
    },
    Live,
}

/// How far the hottest objects of a store that closes have been ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It has just begun, or the last one was used meanwhile.
    Begins,
    /// The next one.
    At(ObjectSlot),
    /// All have been looked at that may leave.
    Through,
}

/// What a folder proves when it is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierProof {
    /// Numbers of the files that are there.
    pub files: BTreeSet<u64>,
    /// Those of them that its owner goes on appending.
    pub appended: BTreeSet<u64>,
    /// What lies in these files is there only if `proven` has it.
    pub suspects: BTreeSet<u64>,
    /// Rids of records that were read back and are whole.
    pub proven: BTreeSet<Rid>,
}

impl TierProof {
    /// Whether a place is one that the folder proves, where `file` is the number of its file.
    pub(crate) fn proves(&self, place: &TierPlace, file: u64) -> bool {
        self.files.contains(&file) && (!self.suspects.contains(&file) || self.proven.contains(&place.rid))
    }
}

/// What an owner has been asked to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub tier: SegmentNo,
    pub slot: ObjectSlot,
    pub object_id: Rid,
    pub source: OrderSource,
    pub bytes: u64,
    pub since: Time,
}

/// Where what is to be written lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrderSource {
    /// In memory, on that segment.
    Memory(SegmentNo),
    /// In a file that is given up, of that tier: the one that it is written to, or one that its session has adopted.
    File(SegmentNo),
}

#[derive(Debug, Default)]
pub(crate) struct Tiers {
    table: BTreeMap<SegmentNo, Tier>,
    by_uuid: BTreeMap<TierUuid, SegmentNo>,
    /// Those that are Live.
    live: BTreeSet<(SessionId, SegmentNo)>,
    live_on_host: BTreeSet<(u32, SegmentNo)>,
    pub orders: BTreeMap<Rid, Order>,
    /// Those of them by which an object is moved from a file that is given up.
    moves: BTreeMap<ObjectSlot, Rid>,
    /// Bytes of segments that are under order.
    ordered_on: BTreeMap<SegmentNo, u64>,
    /// The Live one that came first of late.
    first_in_turn: Option<SegmentNo>,
    /// Rids that the log has set aside for orders: the next one, and the end.
    pub rids: (u64, u64),
    /// All of the coldest that are to be written are, as far as they can be: they are looked at again then, or when
    /// something is logged.
    pub cold_rests_until: Time,
    /// Sessions that have file systems on which tiers lie.
    announced: BTreeMap<FileSystemUuid, BTreeSet<SessionId>>,
    /// How many write tiers there, as each of them was told last; none where one was not.
    writers_told: BTreeMap<FileSystemUuid, usize>,
}

/// Bytes of an object's record, about.
fn record_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(TIER_BLOCK) + TIER_BLOCK
}

impl Tier {
    /// The number of the file in which an address lies.
    pub fn file_of(&self, address: u64) -> u64 {
        address / self.spec.file_blocks
    }

    /// Whether it is one of those that were begun last.
    fn is_young(&self, file: u64) -> bool {
        self.head.saturating_sub(file) <= self.files.len() as u64 / YOUNG_PART
    }

    pub fn is_live(&self) -> bool {
        matches!(self.mounted, Mounted::Live)
    }

    /// Whether what it has can be read.
    pub fn is_read(&self) -> bool {
        matches!(self.mounted, Mounted::Live | Mounted::Left(_))
    }

    /// Whether its session has it.
    pub fn is_mounted(&self) -> bool {
        self.without_session_since().is_none()
    }

    /// Since when no session has it.
    pub fn without_session_since(&self) -> Option<Time> {
        match self.mounted {
            Mounted::Hidden(since) | Mounted::Left(since) => Some(since),
            Mounted::Checking { .. } | Mounted::Live => None,
        }
    }

    pub fn files(&self) -> &BTreeMap<u64, FileCounts> {
        &self.files
    }

    /// Whether it has as many records as it may, whatever room its disk has.
    pub fn is_full(&self) -> bool {
        self.records >= self.records_max
    }

    /// Bytes that its files may have: what its owner has said last, or what it was mounted with. The share of one of
    /// several writers changes as they come and go.
    pub fn capacity(&self) -> u64 {
        let said = self.stats.as_ref().map(|stats| stats.capacity_bytes).filter(|bytes| *bytes > 0);
        said.unwrap_or(self.spec.bytes)
    }

    /// Whether it is for an object of that size.
    pub fn suits(&self, bytes: u64) -> bool {
        bytes <= self.capacity() / TIER_OBJECT_PART && !self.is_adopted
    }

    /// Nothing is written there now: what is to be is not waited for, and holds up no other tier.
    pub fn is_left_alone(&self) -> bool {
        self.is_over_budget || self.takes_nothing()
    }

    /// Its owner takes no orders, or it has as many records as it may.
    pub fn takes_nothing(&self) -> bool {
        self.window == 0 || self.is_full()
    }

    /// Bytes a day of a budget of so many fills; 0 is none.
    fn budget_bytes(&self, fills_per_day: f64) -> u64 {
        (self.capacity() as f64 * fills_per_day) as u64
    }

    /// What is left of a budget of so many fills a day.
    pub fn budget(&mut self, now: Time, fills_per_day: f64) -> Budget {
        let per_day = self.budget_bytes(fills_per_day);
        let budget = self.writes.budget(now, self.under_order, per_day);
        self.is_over_budget = budget != Budget::Plenty;
        budget
    }

    /// An object of that size was written, of such a budget.
    pub fn wrote(&mut self, now: Time, bytes: u64, fills_per_day: f64) {
        let per_day = self.budget_bytes(fills_per_day);
        self.writes.wrote(now, record_bytes(bytes), per_day);
    }

    /// Whether one more object of that size may be under order.
    pub fn takes(&self, bytes: u64) -> bool {
        let has_room = self.ordered == 0 || self.ordered < ORDERS_MAX && self.ordered_bytes + bytes <= self.window;
        self.window > 0 && has_room
    }

    /// A new object is to be written in its turn.
    pub fn add_fresh(&mut self, slot: ObjectSlot, object_id: Rid) {
        if self.fresh.len() == FRESH_MAX {
            self.fresh.pop_front();
        }
        self.fresh.push_back((slot, object_id));
    }

    /// Its owner appends a file no more.
    pub fn seal(&mut self, file: u64) {
        match self.files.contains_key(&file) {
            true => _ = self.sealed.insert(file),
            false => _ = self.unneeded.insert(file),
        }
    }

    fn count(&mut self, place: &TierPlace, bytes: u64) {
        let file = self.file_of(place.address());
        self.head = self.head.max(file + 1);
        let counts = self.files.entry(file).or_default();
        *counts = FileCounts { records: counts.records + 1, bytes: counts.bytes + bytes };
        if self.unneeded.remove(&file) {
            self.sealed.insert(file);
        }
        self.records += 1;
        self.bytes += bytes;
    }

    fn discount(&mut self, place: &TierPlace, bytes: u64) {
        let file = self.file_of(place.address());
        self.records -= 1;
        self.bytes -= bytes;
        let counts = self.files.get_mut(&file).expect("it was counted");
        *counts = FileCounts { records: counts.records - 1, bytes: counts.bytes - bytes };
        if counts.records == 0 {
            self.files.remove(&file);
            if self.sealed.remove(&file) {
                self.unneeded.insert(file);
            }
        }
    }
}

impl Tiers {
    pub fn get(&self, number: SegmentNo) -> Option<&Tier> {
        self.table.get(&number)
    }

    pub fn get_mut(&mut self, number: SegmentNo) -> Option<&mut Tier> {
        self.table.get_mut(&number)
    }

    /// Whether a record's file is one of the youngest of its tier.
    #[inline]
    pub fn is_young(&self, place: &TierPlace) -> bool {
        self.table.get(&place.tier).is_some_and(|tier| tier.is_young(tier.file_of(place.address())))
    }

    pub fn by_uuid(&self, uuid: TierUuid) -> Option<SegmentNo> {
        self.by_uuid.get(&uuid).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (SegmentNo, &Tier)> {
        self.table.iter().map(|(number, tier)| (*number, tier))
    }

    pub fn from(&self, number: SegmentNo) -> impl Iterator<Item = (SegmentNo, &Tier)> {
        self.table.range(number..).map(|(number, tier)| (*number, tier))
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// What of their budgets is left now, of so many fills a day.
    pub fn refresh_budgets(&mut self, now: Time, fills_per_day: f64) {
        for tier in self.table.values_mut().filter(|tier| tier.is_live()) {
            tier.budget(now, fills_per_day);
        }
    }

    #[inline]
    pub fn any_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// Live ones, each time another one first.
    pub fn live_in_turn(&mut self) -> SmallVec<[SegmentNo; 8]> {
        let live = self.iter().filter(|(_, tier)| tier.is_live()).map(|(number, _)| number);
        let mut live: SmallVec<[SegmentNo; 8]> = live.collect();
        let next = live.partition_point(|number| Some(*number) <= self.first_in_turn) % live.len().max(1);
        live.rotate_left(next);
        self.first_in_turn = live.first().copied();
        live
    }

    /// Live ones of a session, then the others of its host.
    pub fn near(&self, session: SessionId, host: Option<u32>) -> impl Iterator<Item = SegmentNo> + '_ {
        let own = self.live.range((session, SegmentNo(0))..=(session, SegmentNo(u32::MAX))).map(|(_, number)| *number);
        let hosts = host.into_iter().flat_map(|host| {
            self.live_on_host.range((host, SegmentNo(0))..=(host, SegmentNo(u32::MAX))).map(|(_, number)| *number)
        });
        own.chain(hosts.filter(move |number| self.table[number].session != session))
    }

    /// Those that a session has mounted.
    pub fn mounted_by(&self, session: SessionId) -> Vec<SegmentNo> {
        let its = |(_, tier): &(SegmentNo, &Tier)| tier.session == session && tier.is_mounted();
        self.iter().filter(its).map(|(number, _)| number).collect()
    }

    pub fn announce(&mut self, file_system: FileSystemUuid, session: SessionId) {
        self.announced.entry(file_system).or_default().insert(session);
    }

    /// The file systems that no session has any more, now that this one is not there.
    pub fn announces_no_more(&mut self, session: SessionId) -> Vec<FileSystemUuid> {
        let mut ended = Vec::new();
        self.announced.retain(|file_system, sessions| {
            if sessions.remove(&session) && sessions.is_empty() {
                ended.push(*file_system);
            }
            !sessions.is_empty()
        });
        ended
    }

    /// Whether a session has mounted a tier, or has a file system on which some lie.
    pub fn has_any_of(&self, session: SessionId) -> bool {
        let has_mounted = |tier: &Tier| tier.session == session && tier.is_mounted();
        self.table.values().any(has_mounted) || self.announced.values().any(|sessions| sessions.contains(&session))
    }

    pub fn is_announced(&self, file_system: FileSystemUuid) -> bool {
        self.announced.contains_key(&file_system)
    }

    pub fn has_announced(&self, file_system: FileSystemUuid, session: SessionId) -> bool {
        self.announced.get(&file_system).is_some_and(|sessions| sessions.contains(&session))
    }

    /// Those that no session has mounted, and since when.
    pub fn left_on(&self, file_system: FileSystemUuid) -> Vec<(SegmentNo, Time)> {
        let on = self.iter().filter(|(_, tier)| tier.file_system == Some(file_system));
        on.filter_map(|(number, tier)| Some((number, tier.without_session_since()?))).collect()
    }

    /// Those that are written there, by their sessions.
    pub fn writers(&self, file_system: FileSystemUuid) -> Vec<SegmentNo> {
        let mut writers = self.on(file_system, |tier| tier.is_mounted() && !tier.is_adopted);
        writers.sort_by_key(|number| self.table[number].session);
        writers
    }

    /// File systems whose writers do not know how many they are, with these.
    pub fn writers_to_be_told(&self) -> Vec<(FileSystemUuid, Vec<SegmentNo>)> {
        let file_systems: BTreeSet<FileSystemUuid> = self.table.values().filter_map(|tier| tier.file_system).collect();
        let counted = file_systems.into_iter().map(|file_system| (file_system, self.writers(file_system)));
        counted.filter(|(file_system, writers)| self.writers_told.get(file_system) != Some(&writers.len())).collect()
    }

    pub fn writers_told(&mut self, file_system: FileSystemUuid, count: usize) {
        self.writers_told.insert(file_system, count);
    }

    /// How many tiers of others each session has that has any.
    pub fn adopted(&self) -> BTreeMap<SessionId, usize> {
        let mut adopted = BTreeMap::new();
        for tier in self.table.values().filter(|tier| tier.is_adopted && tier.is_mounted()) {
            *adopted.entry(tier.session).or_default() += 1;
        }
        adopted
    }

    fn on(&self, file_system: FileSystemUuid, is_one: impl Fn(&Tier) -> bool) -> Vec<SegmentNo> {
        let on = self.iter().filter(|(_, tier)| tier.file_system == Some(file_system) && is_one(tier));
        on.map(|(number, _)| number).collect()
    }

    /// A session has said what it is: a new one, or again.
    pub fn seen(
        &mut self,
        now: Time,
        number: SegmentNo,
        session: SessionId,
        host: Option<u32>,
        (spec, head): (TierSpec, u64),
        file_system: Option<FileSystemUuid>,
    ) {
        self.by_uuid.insert(spec.uuid, number);
        if let Some(tier) = self.table.get_mut(&number) {
            (tier.session, tier.host, tier.spec, tier.head) = (session, host, spec, tier.head.max(head));
            return;
        }
        let tier = Tier {
            spec,
            session,
            host,
            mounted: Mounted::Hidden(now),
            file_system,
            asked: None,
            is_adopted: false,
            head,
            files: BTreeMap::new(),
            records: 0,
            bytes: 0,
            records_max: u64::MAX,
            told_full: None,
            unneeded: BTreeSet::new(),
            sealed: BTreeSet::new(),
            window: WINDOW_MIN,
            stats: None,
            ordered_bytes: 0,
            ordered: 0,
            under_order: 0,
            writes: TierWrites::new(),
            is_over_budget: false,
            answered_at: None,
            fresh: VecDeque::new(),
            search: None,
            closing: None,
            kept_of: None,
            kept_bytes: 0,
            judged: BTreeSet::new(),
            told: BTreeSet::new(),
            given_up: BTreeMap::new(),
        };
        self.table.insert(number, tier);
    }

    pub fn remove(&mut self, number: SegmentNo) -> Option<Tier> {
        let tier = self.table.remove(&number)?;
        self.by_uuid.remove(&tier.spec.uuid);
        self.unlist(number, &tier);
        Some(tier)
    }

    fn unlist(&mut self, number: SegmentNo, tier: &Tier) {
        self.live.remove(&(tier.session, number));
        tier.host.map(|host| self.live_on_host.remove(&(host, number)));
    }

    /// Whether its session has it from now on. What was under order there is given up by both sides; the objects of
    /// these orders, each with the id for which it was ordered.
    pub fn set_mounted(&mut self, number: SegmentNo, mounted: Mounted) -> Vec<(ObjectSlot, Rid)> {
        let Some(tier) = self.table.get_mut(&number) else { return Vec::new() };
        self.cold_rests_until = Time(0);
        let was_live = tier.is_live();
        tier.mounted = mounted;
        tier.asked = None;
        // Whoever writes there is told anew.
        tier.file_system.map(|file_system| self.writers_told.remove(&file_system));
        let (session, host) = (tier.session, tier.host);
        match tier.is_live() {
            true => {
                tier.search = (!tier.is_adopted).then_some(0);
                self.live.insert((session, number));
                host.map(|host| self.live_on_host.insert((host, number)));
                return Vec::new();
            }
            false => {
                self.live.remove(&(session, number));
                host.map(|host| self.live_on_host.remove(&(host, number)));
            }
        }
        (tier.window, tier.answered_at, tier.kept_of) = (WINDOW_MIN, None, None);
        tier.stats = None;
        tier.fresh.clear();
        (tier.search, tier.closing) = (None, None);
        tier.sealed.clear();
        tier.unneeded.clear();
        tier.given_up.clear();
        tier.judged.clear();
        tier.told.clear();
        if was_live {
            self.search_again_near(session, host);
        }
        let is_its = |order: &Order| {
            let is_from = order.source == OrderSource::File(number) && !mutant!(MovesOutliveTheirTier);
            order.tier == number || is_from
        };
        if mutant!(OrdersOutliveTheirAnchor) {
            return Vec::new();
        }
        let of_tier = self.orders.iter().filter(|(_, order)| is_its(order));
        let ended: Vec<Rid> = of_tier.map(|(rid, _)| *rid).collect();
        if !ended.is_empty() {
            self.look_again_at_what_is_told();
        }
        let ended = ended.into_iter().filter_map(|rid| self.remove_order(rid));
        ended.map(|order| (order.slot, order.object_id)).collect()
    }

    /// What waited for a tier that has gone, or was under order there, is found by those that are near to it.
    fn search_again_near(&mut self, session: SessionId, host: Option<u32>) {
        let near: Vec<SegmentNo> = self.near(session, host).collect();
        for number in near {
            let tier = self.table.get_mut(&number).expect("it is Live");
            if !tier.is_adopted && tier.closing.is_none() {
                tier.search = Some(0);
            }
        }
    }

    /// What was under order to another place was left in files of which nothing else is kept: without these orders that
    /// is dropped as well.
    fn look_again_at_what_is_told(&mut self) {
        for tier in self.table.values_mut() {
            let Tier { told, files, given_up, .. } = tier;
            given_up.extend(told.iter().filter(|file| files.contains_key(file)).map(|file| (*file, 0)));
        }
    }

    /// An object has that place from now on. Nothing is counted of one that is Gone.
    pub fn add_place(&mut self, place: &TierPlace, bytes: u64) {
        if let Some(tier) = self.table.get_mut(&place.tier) {
            tier.count(place, bytes);
        }
    }

    /// An object has that place no more.
    pub fn drop_place(&mut self, place: &TierPlace, bytes: u64) {
        if let Some(tier) = self.table.get_mut(&place.tier) {
            tier.discount(place, bytes);
        }
    }

    /// An owner is asked to write something.
    pub fn insert_order(&mut self, rid: Rid, order: Order) {
        let tier = self.table.get_mut(&order.tier).expect("it takes orders");
        tier.under_order += record_bytes(order.bytes);
        tier.ordered += 1;
        tier.ordered_bytes += order.bytes;
        match order.source {
            OrderSource::Memory(source) => *self.ordered_on.entry(source).or_default() += order.bytes,
            OrderSource::File(_) => _ = self.moves.insert(order.slot, rid),
        }
        self.orders.insert(rid, order);
    }

    fn remove_order(&mut self, rid: Rid) -> Option<Order> {
        let order = self.orders.remove(&rid)?;
        let tier = self.table.get_mut(&order.tier).expect("it has orders");
        tier.under_order -= record_bytes(order.bytes);
        tier.ordered -= 1;
        tier.ordered_bytes -= order.bytes;
        let OrderSource::Memory(source) = order.source else {
            // The slot may have another object since, which is moved too.
            if self.moves.get(&order.slot) == Some(&rid) {
                self.moves.remove(&order.slot);
            }
            return Some(order);
        };
        let bytes = self.ordered_on.get_mut(&source).expect("it was counted");
        *bytes -= order.bytes;
        if *bytes == 0 {
            self.ordered_on.remove(&source);
        }
        Some(order)
    }

    /// Bytes of a segment that are under order.
    pub fn ordered_on(&self, segment: SegmentNo) -> u64 {
        self.ordered_on.get(&segment).copied().unwrap_or(0)
    }

    /// A file that is given up, and how far the search for what is left there is.
    pub fn given_up(&self) -> Option<(SegmentNo, u64, u32)> {
        self.iter()
            .find_map(|(number, tier)| tier.given_up.first_key_value().map(|(file, next)| (number, *file, *next)))
    }

    /// An order that a tier's owner has answered.
    pub fn take_order(&mut self, now: Time, rid: Rid, tier: SegmentNo) -> Option<Order> {
        self.orders.get(&rid).filter(|order| order.tier == tier)?;
        self.table.get_mut(&tier).expect("it has orders").answered_at = Some(now);
        self.remove_order(rid)
    }

    /// The oldest order that is not answered.
    pub fn oldest(&self) -> Option<(Rid, Order)> {
        self.orders.first_key_value().map(|(rid, order)| (*rid, *order))
    }

    /// An order is over without an answer of its owner's.
    pub fn end_order(&mut self, rid: Rid) {
        self.remove_order(rid);
    }

    /// The order by which an object is moved from a file of a tier.
    pub fn move_of(&self, tier: SegmentNo, slot: ObjectSlot, object_id: Rid) -> Option<(Rid, Order)> {
        let rid = *self.moves.get(&slot)?;
        let order = self.orders[&rid];
        ((order.source, order.object_id) == (OrderSource::File(tier), object_id)).then_some((rid, order))
    }

    /// When an order was answered last.
    pub fn answered_at(&self) -> Option<Time> {
        self.live.iter().filter_map(|(_, number)| self.table[number].answered_at).max()
    }

    /// When the oldest order that is under way was given.
    pub fn oldest_order(&self) -> Option<Time> {
        self.orders.values().next().map(|order| order.since)
    }

    /// One of which it is looked at what its folder proves.
    pub fn checking(&self) -> Option<SegmentNo> {
        let mut checking = self.iter().filter(|(_, tier)| matches!(tier.mounted, Mounted::Checking { .. }));
        checking.next().map(|(number, _)| number)
    }

    /// One that no session has had since a time or longer.
    pub fn without_session(&self, time: Time) -> Option<SegmentNo> {
        let is_old = |tier: &Tier| tier.without_session_since().is_some_and(|since| since <= time);
        self.iter().find(|(_, tier)| is_old(tier)).map(|(number, _)| number)
    }

    /// The time that no session has them begins anew.
    pub fn restart_without_session(&mut self, now: Time) {
        for tier in self.table.values_mut() {
            if let Mounted::Hidden(since) | Mounted::Left(since) = &mut tier.mounted {
                *since = now;
            }
        }
    }

    /// Counts are those of `places`, which are all there are; what is Live is listed as that; orders are counted.
    pub fn check_invariants(
        &self,
        places: &[(TierPlace, u64)],
        is_live: impl Fn(SegmentNo) -> bool,
    ) -> Result<(), String> {
        let mut counted: BTreeMap<SegmentNo, BTreeMap<u64, FileCounts>> = BTreeMap::new();
        for (place, bytes) in places {
            let Some(tier) = self.get(place.tier) else { continue };
            let of_file = counted.entry(place.tier).or_default().entry(tier.file_of(place.address())).or_default();
            *of_file = FileCounts { records: of_file.records + 1, bytes: of_file.bytes + bytes };
        }
        for (number, tier) in self.iter() {
            let right = counted.remove(&number).unwrap_or_default();
            ensure!(right == tier.files, "{number:?} has {right:?} in its files, and counted {:?}", tier.files);
            let (records, bytes) = tier
                .files
                .values()
                .fold((0, 0), |(records, bytes), counts| (records + u64::from(counts.records), bytes + counts.bytes));
            let noted = (tier.records, tier.bytes);
            ensure!(
                (records, bytes) == noted,
                "{number:?} has {records} records, {bytes} bytes, and counted {noted:?}"
            );
            let above = tier.files.keys().next_back().map_or(0, |last| last + 1);
            ensure!(above <= tier.head, "{number:?} has file {above} less one, and its head is {}", tier.head);
            let listed = self.live.contains(&(tier.session, number));
            ensure!(
                tier.is_live() == listed && tier.is_read() == is_live(number),
                "{number:?} is {:?}, listed as Live: {listed}, read from: {}",
                tier.mounted,
                is_live(number)
            );
            let is_announced = tier.file_system.is_some_and(|file_system| self.is_announced(file_system));
            ensure!(
                tier.is_mounted() || matches!(tier.mounted, Mounted::Left(_)) == is_announced,
                "{number:?} is {:?}, and its file system is announced: {is_announced}",
                tier.mounted
            );
            let on_host = tier.host.is_some_and(|host| self.live_on_host.contains(&(host, number)));
            ensure!(on_host == (listed && tier.host.is_some()), "{number:?} is Live: {listed}, on its host: {on_host}");
            let orders = self.orders.values().filter(|order| order.tier == number);
            let (orders, bytes, records) = orders.fold((0, 0, 0), |(count, bytes, records), order| {
                (count + 1, bytes + order.bytes, records + record_bytes(order.bytes))
            });
            let noted = (tier.ordered, tier.ordered_bytes, tier.under_order);
            ensure!(
                (orders, bytes, records) == noted,
                "{number:?} has {orders} orders of {bytes} bytes, {records} of records, and counted {noted:?}"
            );
            ensure!(orders == 0 || listed, "{number:?} has {orders} orders, and is not Live");
            ensure!(orders == 0 || !tier.is_adopted, "{number:?} has {orders} orders, and is adopted");
            let moved = self.orders.values().filter(|order| order.source == OrderSource::File(number)).count();
            ensure!(moved == 0 || listed, "{moved} objects are moved from {number:?}, which is not Live");
            let unneeded = tier.unneeded.iter().find(|file| tier.files.contains_key(file));
            ensure!(unneeded.is_none(), "{number:?} is to retire {unneeded:?}, which objects need");
            let found = self.by_uuid(tier.spec.uuid);
            ensure!(found == Some(number), "{number:?} is found by its UUID as {found:?}");
        }
        let mut ordered_on: BTreeMap<SegmentNo, u64> = BTreeMap::new();
        for order in self.orders.values() {
            if let OrderSource::Memory(source) = order.source {
                *ordered_on.entry(source).or_default() += order.bytes;
            }
        }
        let counted = &self.ordered_on;
        ensure!(ordered_on == *counted, "segments have {ordered_on:?} bytes under order, and counted {counted:?}");
        let is_gone = |order: &Order| {
            let from = if let OrderSource::File(from) = order.source { Some(from) } else { None };
            from.into_iter().chain([order.tier]).any(|number| self.get(number).is_none())
        };
        let stray = self.orders.iter().find(|(_, order)| is_gone(order));
        ensure!(stray.is_none(), "{stray:?} is an order of a tier that is Gone");
        let numbers = (self.table.len(), self.by_uuid.len());
        ensure!(numbers.0 == numbers.1, "(tiers, found by UUID) are {numbers:?}");
        Ok(())
    }
}

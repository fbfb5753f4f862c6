//! Finding objects: existence queries, the lookups inside gets, and pins.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{Replica, SegmentNo, Time};
use crate::record::Record;
use crate::request::{Found, Origin, Refused, Remembered, Sight};
use crate::state::object::{Object, Place, TierPlace};
use crate::state::objects::{AHEAD, Asked, ObjectSlot};
use crate::state::segment::Segments;
use crate::state::session::Session;
use crate::state::tier::Tier;
use mooncake_ids::{Rid, SessionId};

/// A lookup's answer, borrowed from the core.
pub struct FoundRef<'a> {
    /// Size of the object, bytes.
    pub size: u64,
    /// CRC-32C of the whole object.
    pub crc32c: u32,
    memory: &'a [Place],
    tier: Option<TierPlace>,
    segments: &'a Segments,
    host: Option<u32>,
}

impl<'a> FoundRef<'a> {
    fn new(object: &'a Object, segments: &'a Segments, host: Option<u32>, sight: Sight) -> Self {
        let tier = object.places.tier().filter(|place| sight == Sight::Tiers && segments.is_live(place.tier));
        let memory = object.places.memory();
        FoundRef { size: object.size(), crc32c: object.crc32c, memory, tier, segments, host }
    }

    /// Live replicas in the order in which a reader tries them: in memory on its host, in memory elsewhere, on a tier.
    pub fn replicas(&self) -> impl Iterator<Item = Replica> + '_ {
        let live = self.memory.iter().filter(|place| self.segments.is_live(place.segment));
        // A single one needs no order, and no look at its host.
        let several = self.memory.len() > 1;
        let local = live.clone().filter(move |place| several && self.is_local(place));
        let others = live.filter(move |place| !several || !self.is_local(place));
        let memory = local.chain(others).map(|place| place.replica(self.size));
        memory.chain(self.tier.map(|place| place.replica(self.size)))
    }

    /// Number of the tier that it is on, if that is Live.
    pub fn tier(&self) -> Option<SegmentNo> {
        self.tier.map(|place| place.tier)
    }

    /// The same as a value.
    pub fn to_found(&self) -> Found {
        Found { size: self.size, crc32c: self.crc32c, replicas: self.replicas().collect() }
    }

    fn is_local(&self, place: &Place) -> bool {
        self.host.is_some() && self.segments.get(place.segment).is_some_and(|segment| segment.host == self.host)
    }
}

/// Why nothing is found under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// No object has it.
    Unknown,
    /// The owners of all its replicas are away, or have just ended.
    OwnersAway,
}

impl Core {
    /// A client has said what its version knows of. No log has it: it says so with each hello.
    pub fn set_sight(&mut self, session: SessionId, sight: Sight) {
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.sight = sight;
        }
    }

    /// What a client can be told of.
    pub fn sight(&self, session: SessionId) -> Sight {
        self.sessions.get(session).map_or_else(Sight::default, |entry| entry.sight)
    }

    /// The slot of an object that can be seen.
    #[inline]
    pub(crate) fn visible(&self, hash: u64, key: &[u8], sight: Sight) -> Option<ObjectSlot> {
        self.seen(self.objects.find(hash, key), sight).ok()
    }

    #[inline]
    fn seen(&self, slot: Option<ObjectSlot>, sight: Sight) -> Result<ObjectSlot, Absent> {
        let slot = slot.ok_or(Absent::Unknown)?;
        match self.is_visible(slot, sight) {
            true => Ok(slot),
            false if self.is_visible(slot, Sight::Tiers) => Err(Absent::Unknown),
            false => Err(Absent::OwnersAway),
        }
    }

    #[inline]
    pub(crate) fn is_visible(&self, slot: ObjectSlot, sight: Sight) -> bool {
        let places = &self.objects.object(slot).places;
        let is_in_memory = places.memory().iter().any(|place| self.segments.is_live(place.segment));
        let is_on_tier = || places.tier().is_some_and(|place| self.segments.is_live(place.tier));
        is_in_memory || sight == Sight::Tiers && is_on_tier()
    }

    /// Whether it can leave memory without loss. What lies on a tier that no session has is read as long as its folder
    /// is there, for which nobody answers.
    #[inline]
    pub(crate) fn is_on_live_tier(&self, slot: ObjectSlot) -> bool {
        let place = self.objects.object(slot).places.tier();
        place.is_some_and(|place| self.tiers.get(place.tier).is_some_and(Tier::is_live))
    }

    /// Looks at each of many keys, and at the object that has it. A few dozen are looked up in the index together,
    /// before the first of them is looked at: the processor waits for their places at the same time.
    #[inline]
    fn for_each_key<'k>(
        &mut self,
        mut keys: impl Iterator<Item = &'k [u8]>,
        mut look: impl FnMut(&mut Core, &Asked<'k>, Option<ObjectSlot>),
    ) {
        self.objects.begin_renewals();
        // Used again and never moved: it is larger than all else that a query of one key touches.
        let mut some: SmallVec<[Asked<'k>; AHEAD]> = SmallVec::new();
        loop {
            some.clear();
            some.extend(keys.by_ref().take(AHEAD).map(|key| self.objects.ask(key)));
            if some.is_empty() {
                return;
            }
            self.objects.look_up(&mut some);
            for asked in &some {
                let slot = self.objects.found(asked);
                look(self, asked, slot);
            }
        }
    }

    /// Existence query: gives the size of each key that is there, in order, and protects what it found.
    pub fn exists<'k>(
        &mut self,
        now: Time,
        sight: Sight,
        keys: impl Iterator<Item = &'k [u8]>,
        mut found: impl FnMut(Result<u64, Absent>),
    ) {
        self.for_each_key(keys, |core, _, slot| {
            core.counts.exists_keys += 1;
            let slot = match core.seen(slot, sight) {
                Ok(slot) => slot,
                Err(absent) => return found(Err(absent)),
            };
            core.counts.exists_hits += 1;
            core.objects.protect(now, slot, core.config.lookup_protect_ms);
            // One look: this is what engines ask most.
            let object = core.objects.object(slot);
            let (size, is_in_memory) = (object.size(), !object.places.memory().is_empty());
            if !is_in_memory {
                core.is_found(slot);
            }
            found(Ok(size));
        });
    }

    /// Existence query that tells where the replicas are, too: protects what it found.
    pub fn describe<'k>(
        &mut self,
        now: Time,
        sight: Sight,
        keys: impl Iterator<Item = &'k [u8]>,
        mut found: impl FnMut(Option<FoundRef<'_>>),
    ) {
        self.for_each_key(keys, |core, _, slot| {
            core.counts.exists_keys += 1;
            let Ok(slot) = core.seen(slot, sight) else { return found(None) };
            core.counts.exists_hits += 1;
            core.objects.protect(now, slot, core.config.lookup_protect_ms);
            found(Some(FoundRef::new(core.objects.object(slot), &core.segments, None, sight)));
        });
    }

    /// What an operator looks at: changes nothing, and is not counted.
    pub fn peek(&self, key: &[u8]) -> Option<FoundRef<'_>> {
        let slot = self.visible(self.objects.hash(key), key, Sight::Tiers)?;
        Some(FoundRef::new(self.objects.object(slot), &self.segments, None, Sight::Tiers))
    }

    /// The lookup inside a get: refreshes recency, protects nothing.
    pub fn lookup<'k>(
        &mut self,
        now: Time,
        session: SessionId,
        keys: impl Iterator<Item = &'k [u8]>,
        mut found: impl FnMut(Result<FoundRef<'_>, Absent>),
    ) {
        let (host, sight) = self.sessions.get(session).map_or_else(Default::default, |entry| (entry.host, entry.sight));
        self.for_each_key(keys, |core, &Asked { hash, .. }, slot| {
            core.counts.lookup_keys += 1;
            let slot = match core.seen(slot, sight) {
                Ok(slot) => slot,
                Err(absent) => {
                    core.counts.lookup_then_miss += u64::from(core.recently_evicted.contains(hash));
                    return found(Err(absent));
                }
            };
            core.count_hit(slot);
            core.objects.touch(now, slot, |place| core.tiers.is_young(place));
            core.is_read(now, slot, hash);
            found(Ok(FoundRef::new(core.objects.object(slot), &core.segments, host, sight)));
        });
    }

    #[inline]
    fn count_hit(&mut self, slot: ObjectSlot) {
        self.counts.lookup_hits += 1;
        let object = self.objects.object(slot);
        if object.places.memory().is_empty() {
            self.counts.tier_hits += 1;
            self.counts.tier_hit_bytes += object.size();
        }
    }

    /// Pins the first replica of each object found, for one view: nothing but [`unpin`](Core::unpin) or the end of the
    /// session ends that. Nothing is pinned on a segment whose owner does not obey the current epoch: a writer of an
    /// earlier epoch may still write there, by a reservation that the lost end of the log had. An object that has no
    /// other replica is found without any. In order, as the keys are.
    pub fn pin(
        &mut self,
        now: Time,
        origin: Origin,
        keys: &[&[u8]],
        fx: &mut Effects,
    ) -> Result<Vec<Result<Found, Absent>>, Refused> {
        let repeated = match self.admit_sized(origin, keys.len())? {
            None => None,
            Some(Remembered::Pin(found)) => Some(found),
            Some(other) => return Err(other.refusal(origin)),
        };
        let session = origin.session;
        let Session { host, sight, .. } = *self.sessions.known(session)?;
        if let Some(found) = repeated {
            // What was not pinned is not remembered: it may be there, to be copied.
            let again =
                |(key, found): (&&[u8], Option<Found>)| found.map_or_else(|| self.found_unpinned(key, host, sight), Ok);
            return Ok(keys.iter().zip(found).map(again).collect());
        }
        let mut all = Vec::with_capacity(keys.len());
        self.for_each_key(keys.iter().copied(), |core, &Asked { key, hash, .. }, slot| {
            core.counts.lookup_keys += 1;
            let slot = match core.seen(slot, sight) {
                Ok(slot) => slot,
                Err(absent) => {
                    core.counts.lookup_then_miss += u64::from(core.recently_evicted.contains(hash));
                    return all.push(Err(absent));
                }
            };
            core.count_hit(slot);
            core.objects.touch(now, slot, |place| core.tiers.is_young(place));
            core.is_read(now, slot, hash);
            // Memory alone is pinned: what only a tier has is found without a replica.
            let mut found = FoundRef::new(core.objects.object(slot), &core.segments, host, Sight::Memory).to_found();
            found.replicas.retain(|replica| core.segments.obeys(replica.extent.segment, core.epoch.number));
            if let Some(Replica { rid, extent }) = found.replicas.first().copied() {
                core.log(now, Record::Pinned { session, rid, extent, key: Some(key.into()) }, fx);
                core.counts.pins_taken += 1;
            }
            all.push(Ok(found));
        });
        // Masters of earlier versions read this, to which a pin has a replica.
        let pinned =
            |found: &Result<Found, Absent>| found.as_ref().ok().filter(|found| !found.replicas.is_empty()).cloned();
        self.remember(origin, Remembered::Pin(all.iter().map(pinned).collect()), fx);
        Ok(all)
    }

    /// The object as it is told to a reader that holds no pin on it: to be copied.
    fn found_unpinned(&self, key: &[u8], host: Option<u32>, sight: Sight) -> Result<Found, Absent> {
        let slot = self.seen(self.objects.find(self.objects.hash(key), key), sight)?;
        let found = FoundRef::new(self.objects.object(slot), &self.segments, host, sight).to_found();
        Ok(Found { replicas: SmallVec::new(), ..found })
    }

    /// Releases pins, whose views ended: a rid once per view. One that the session does not hold is no harm.
    pub fn unpin(&mut self, now: Time, origin: Origin, rids: &[Rid], fx: &mut Effects) -> Result<(), Refused> {
        let done = self.once(origin, rids.len(), fx, |core, fx| {
            let session = origin.session;
            for &rid in rids {
                let entry = core.sessions.known(session)?;
                if entry.pins.get(&rid).is_some_and(|views| *views > entry.ended(rid)) {
                    core.log(now, Record::Unpinned { session, rid }, fx);
                } else {
                    core.counts.stale_messages += 1;
                }
            }
            Ok(())
        });
        self.serve_waiting(now, fx);
        done
    }
}

//! What must hold of the whole state between two operations.

mod space;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::core::Core;
use crate::ensure::ensure;
use crate::ids::SegmentNo;
use crate::state::object::Mark;
use crate::state::objects::ObjectSlot;
use mooncake_ids::granules;
use mooncake_ids::{GRANULE, Rid, SessionId};

impl Core {
    /// For the simulation and property tests: looks at the whole state of a core that has [begun](Core::begin), between
    /// two operations, without changing it. The error names the first thing that is wrong, with values.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        let of = |what: &'static str| move |wrong: String| format!("{what}: {wrong}");
        self.segments.check_invariants(self.epoch.number).map_err(of("segments"))?;
        let forgets = |session| self.settled.contains(&session);
        self.sessions.check_invariants(forgets).map_err(of("sessions"))?;
        self.objects.check_invariants(&self.segments).map_err(of("objects"))?;
        self.reservations.check_invariants().map_err(of("unfinished puts"))?;
        let is_reserved = |rid| self.reservations.by_rid(rid).is_some();
        self.promotions.check_invariants(is_reserved).map_err(of("promotions"))?;
        self.quarantine.check_invariants().map_err(of("quarantine"))?;
        self.tickets.check_invariants().map_err(of("parked requests"))?;
        self.recently_evicted.check_invariants()?;
        self.check_owners().map_err(of("owners"))?;
        self.check_unfinished().map_err(of("unfinished puts"))?;
        self.check_replacements().map_err(of("replacements"))?;
        self.check_views().map_err(of("views"))?;
        self.pins.check_invariants().map_err(of("views"))?;
        self.check_space().map_err(of("space"))?;
        self.check_tiers().map_err(of("tiers"))?;
        self.check_rechecks().map_err(of("rechecks"))?;
        self.check_waiters().map_err(of("parked requests"))?;
        self.check_slots_counted()
    }

    /// Segments are those of sessions that are not over, and Live as long as these are here.
    fn check_owners(&self) -> Result<(), String> {
        let of_session = |(id, session): (SessionId, &crate::state::session::Session)| {
            session.segments.iter().map(move |number| (*number, id)).collect::<Vec<_>>()
        };
        let mut owned: Vec<(SegmentNo, SessionId)> = self.sessions.iter().flat_map(of_session).collect();
        owned.sort_unstable();
        let mut pairs = owned.iter();
        for number in self.segments.numbers() {
            let segment = self.segments.get(number).expect("it is there");
            let (session, of) = (segment.session, pairs.next());
            ensure!(of == Some(&(number, session)), "{number:?} is of {session:?}, and sessions have {of:?}");
            let owner = self.sessions.get(session).expect("it has the segment");
            // One that its owner holds no more is seen by none until it is Gone.
            let is_held = segment.leaves.is_none_or(|grace| grace.grace_ms > 0);
            ensure!(
                segment.live == (owner.away.is_none() && is_held),
                "{number:?} is Live: {}, and {session:?} is away since {:?}",
                segment.live,
                owner.away
            );
            let (host, its) = (segment.host, owner.host);
            ensure!(host == its, "{number:?} is on host {host:?}, and {session:?} on {its:?}");
        }
        let left = pairs.next();
        ensure!(left.is_none(), "sessions have {left:?}, which is Gone");
        Ok(())
    }

    /// Each unfinished put is of this epoch, if those of earlier ones have been dropped, and of a session that is not
    /// over, which counts it.
    fn check_unfinished(&self) -> Result<(), String> {
        let mut unfinished: BTreeMap<(SessionId, bool), u64> = BTreeMap::new();
        for (_, reservation) in self.reservations.iter() {
            let (key, session) = (reservation.key.as_slice().escape_ascii(), reservation.session);
            ensure!(self.sessions.get(session).is_some(), "the one of {key} is of {session:?}, which is over");
            let is_promotion = reservation.terms.promotes.is_some();
            *unfinished.entry((session, is_promotion)).or_default() += reservation.bytes();
            for replica in &reservation.replicas {
                let (rid, epoch) = (replica.rid, self.epoch.number);
                let is_right = rid.epoch() == epoch || rid.epoch() < epoch && self.older_puts.is_some();
                ensure!(is_right, "the one of {key} has {rid:?} of epoch {} in {epoch}", rid.epoch());
            }
        }
        for (id, session) in self.sessions.iter() {
            let bytes = [false, true].map(|of| unfinished.get(&(id, of)).copied().unwrap_or(0));
            let counted = [session.unfinished, session.promoting];
            ensure!(bytes == counted, "{id:?} has {bytes:?} bytes in puts and promotions, and counted {counted:?}");
        }
        Ok(())
    }

    /// Of each object that is being replaced there is an unfinished put that says so, and the other way round.
    fn check_replacements(&self) -> Result<(), String> {
        for (slot, object) in self.objects.iter() {
            let key = self.objects.key(slot);
            let put = self.reservations.by_key(key).map(|slot| self.reservations.get(slot));
            let replaces = put.map(|put| put.terms.replaces);
            let (key, replacing) = (key.escape_ascii(), object.is_replaced());
            ensure!(
                replacing == (replaces == Some(true)),
                "{key} is being replaced: {replacing}, and its unfinished put replaces: {replaces:?}"
            );
        }
        Ok(())
    }

    /// Views are counted by rid, by session, and with the object that they are of, if it is still there.
    fn check_views(&self) -> Result<(), String> {
        let mut views: Vec<(Rid, u32)> = Vec::new();
        let mut holders = self.pins.holders();
        for (id, session) in self.sessions.iter() {
            let mut bytes = 0;
            for (rid, count) in &session.pins {
                let Some(pin) = self.pins.get(*rid) else {
                    return Err(format!("{id:?} has one of {rid:?}, which is not pinned"));
                };
                ensure!(*count > 0, "{id:?} has none of {rid:?}, which it lists");
                let held = self.segments.get(pin.extent.segment).is_some();
                bytes += if held { granules(pin.extent.length) * GRANULE } else { 0 };
                views.push((*rid, *count));
            }
            let counted = if bytes > 0 { holders.next() } else { None };
            let right = (bytes > 0).then_some((id, bytes));
            ensure!(counted == right, "those of {id:?} hold {bytes} bytes, and counted {counted:?}");
            let unknown = session.unknown_pins.iter().find(|(rid, _)| self.pins.get(*rid).is_some());
            ensure!(unknown.is_none(), "{id:?} waits for {unknown:?} to be found, which is pinned");
        }
        let left = holders.next();
        ensure!(left.is_none(), "{left:?} holds bytes, and has none");
        views.sort_unstable();
        let (mut rids, mut all) = (0, 0);
        for same in views.chunk_by(|a, b| a.0 == b.0) {
            let (rid, count) = (same[0].0, same.iter().map(|(_, count)| count).sum::<u32>());
            let counted = self.pins.get(rid).map(|pin| pin.views);
            ensure!(counted == Some(count), "there are {count} of {rid:?}, and counted {counted:?}");
            (rids, all) = (rids + 1, all + u64::from(count));
        }
        ensure!(rids == self.pins.len(), "{rids} rids are pinned by sessions, and {} at all", self.pins.len());
        ensure!(all == self.pins.views(), "there are {all}, and counted {}", self.pins.views());
        self.check_readers()
    }

    /// An object's readers are its replicas under views.
    fn check_readers(&self) -> Result<(), String> {
        let mut viewed: Vec<ObjectSlot> = Vec::new();
        for (rid, pin) in self.pins.iter() {
            let Some(slot) = pin.object else { continue };
            let of = self.objects.get(slot).is_some_and(|object| object.has(rid));
            ensure!(of, "{rid:?} is pinned as a replica of slot {}, which has none such", slot.0);
            viewed.push(slot);
        }
        viewed.sort_unstable();
        for same in viewed.chunk_by(|a, b| a == b) {
            let (key, counted) = (self.objects.key(same[0]).escape_ascii(), self.objects.object(same[0]).readers);
            let there = same.len();
            ensure!(there == counted as usize, "{there} replicas of {key} are under views, and counted {counted}");
        }
        let counted: usize = self.objects.iter().map(|(_, object)| object.readers as usize).sum();
        ensure!(viewed.len() == counted, "{} replicas of objects are under views, and counted {counted}", viewed.len());
        Ok(())
    }

    /// Each file of a tier has the records that objects have there; what is marked as ordered is under order.
    fn check_tiers(&self) -> Result<(), String> {
        let on_tiers = self.objects.iter().filter_map(|(_, object)| Some((object.places.tier()?, object.size())));
        let places: Vec<_> = on_tiers.collect();
        self.tiers.check_invariants(&places, |number| self.segments.is_live(number))?;
        let last = Rid::new(self.epoch.number, self.counter);
        for (place, _) in &places {
            let is_one = place.rid.0 & 1 == 0 && place.rid <= last;
            ensure!(is_one, "{:?} is on a tier, above the last rid {last:?} or none", place.rid);
            let is_gone = !self.is_there(place.tier);
            ensure!(
                !is_gone || self.purge.is_some(),
                "{:?} lies on {:?}, which is Gone, and stays",
                place.rid,
                place.tier
            );
        }
        let mut ordered: Vec<ObjectSlot> = Vec::new();
        for (rid, order) in &self.tiers.orders {
            let object = self.objects.get(order.slot).filter(|object| object.id() == order.object_id);
            ensure!(*rid <= last, "order {rid:?} is above the last rid {last:?}");
            ordered.extend(object.map(|_| order.slot));
        }
        ordered.sort_unstable();
        let twice = ordered.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(twice.is_none(), "{twice:?} is under order twice");
        let marked = self.objects.iter().filter(|(_, object)| object.marks.has(Mark::Ordered)).map(|(slot, _)| slot);
        let marked: Vec<ObjectSlot> = marked.collect();
        ensure!(marked == ordered, "{marked:?} are marked as ordered, and {ordered:?} are under order");
        Ok(())
    }

    /// An owner is asked only about what lies on a segment that is there.
    fn check_rechecks(&self) -> Result<(), String> {
        for (rid, recheck) in &self.rechecks {
            let replica = recheck.replica;
            ensure!(*rid == replica.rid, "{rid:?} is asked about as {:?}", replica.rid);
            let there = self.is_there(replica.extent.segment);
            ensure!(there, "{rid:?} is asked about on {:?}, which is Gone", replica.extent.segment);
        }
        Ok(())
    }

    /// Requests are parked for sessions that are not over; one that waits for a key hears what becomes of it.
    fn check_waiters(&self) -> Result<(), String> {
        for parked in self.tickets.iter() {
            let (ticket, session) = (parked.ticket, parked.origin.session);
            ensure!(self.sessions.get(session).is_some(), "{ticket:?} is of {session:?}, which is over");
            let is_awaited =
                |key: &[u8]| self.reservations.by_key(key).is_some_and(|slot| self.reservations.get(slot).awaited);
            let keys = &parked.waits.keys;
            let is_told = keys.iter().any(|hash| self.news.tells_of(*hash));
            let hears = is_told || parked.entries.iter().any(|(key, _)| is_awaited(key));
            ensure!(
                keys.is_empty() || hears,
                "{ticket:?} of {session:?} waits for a key, and no end of a put tells it"
            );
        }
        Ok(())
    }

    fn check_slots_counted(&self) -> Result<(), String> {
        let counts = &self.counts;
        let each = [
            counts.put_placed,
            counts.put_exists,
            counts.put_busy,
            counts.put_full,
            counts.put_too_large,
            counts.put_refused,
        ];
        let (sum, all) = (each.iter().sum::<u64>(), counts.put_keys);
        ensure!(sum == all, "answered keys of puts: {all}, of which {each:?}");
        Ok(())
    }
}

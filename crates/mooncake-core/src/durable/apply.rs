//! The one place where durable state changes, live and at replay.

use smallvec::SmallVec;

use crate::core::Core;
use crate::durable::error::ReplayError;
use crate::ids::{Extent, Replica, SegmentNo, Time};
use crate::record::Record;
use crate::request::{PinKind, TierSpec};
use crate::state::gone_segments::GoneSegment;
use crate::state::object::{Hold, Mark, Object, Place, Places, REPLICAS_MAX, TierPlace};
use crate::state::objects::ObjectSlot;
use crate::state::objects::SoftPin;
use crate::state::quarantine::Quarantined;
use crate::state::reservation::ReservationSlot;
use crate::state::reservation::{PutTerms, Reservation};
use crate::state::segment::HeldBy;
use crate::state::session::Kept;
use crate::state::tier::{Mounted, Tier};
use crate::work::Work;
use mooncake_ids::granules;
use mooncake_ids::{FileSystemUuid, GRANULE, Rid, SessionId};

impl Core {
    /// Makes one change. Nothing here may depend on anything but the records before it; `now` only starts clocks.
    #[expect(clippy::too_many_lines, reason = "one arm for each kind of record")]
    pub(crate) fn apply<K: AsRef<[u8]>>(&mut self, now: Time, record: &Record<K>) -> Result<(), ReplayError> {
        self.put_aside_before(record);
        match record {
            Record::Epoch(number) => {
                if *number <= self.epoch.number {
                    return Err(ReplayError::EpochBackwards { from: self.epoch.number, to: *number });
                }
                self.epoch = self.epoch.after(record);
                self.counter = 0;
                Ok(())
            }
            Record::SessionOpened { session, spec } => {
                if self.sessions.get(*session).is_some() {
                    return Err(ReplayError::Twice { what: "session", id: session.0 });
                }
                self.sessions.insert(now, *session, spec.clone());
                Ok(())
            }
            Record::SessionOver(session) => self.apply_session_over(now, *session),
            Record::SegmentMounted { number, session, spec, epoch } => {
                if self.segments.by_uuid(spec.uuid).is_some() || self.segments.get(*number).is_some() {
                    return Err(ReplayError::Twice { what: "segment", id: number.0.into() });
                }
                let owner = self.sessions.get_mut(*session).ok_or(ReplayError::UnknownSession(session.0))?;
                owner.segments.push(*number);
                self.segments.insert(*number, *session, owner.host, spec.clone(), *epoch);
                Ok(())
            }
            Record::SegmentTookEpoch { number, epoch } => {
                let segment = self.segments.get_mut(*number).ok_or(ReplayError::UnknownSegment(number.0))?;
                (segment.epoch, segment.inherited) = (*epoch, false);
                if self.quarantine.len_on(*number) > 0 {
                    self.obeying.insert(*number);
                }
                self.open_or_close(*number);
                Ok(())
            }
            Record::SegmentPopulated { number, bytes } => {
                if self.segments.get(*number).is_none() {
                    return Err(ReplayError::UnknownSegment(number.0));
                }
                self.segments.raise_limit(*number, (bytes / GRANULE).min(u32::MAX.into()) as u32);
                self.news.room = true;
                self.news.begin_same_call();
                Ok(())
            }
            Record::SegmentEnds { number, bytes } => {
                if self.segments.get(*number).is_none() {
                    return Err(ReplayError::UnknownSegment(number.0));
                }
                self.segments.raise_limit(*number, (bytes / GRANULE).min(u32::MAX.into()) as u32);
                self.segments.end_at_limit(*number);
                self.news.room = true;
                self.news.begin_same_call();
                Ok(())
            }
            Record::SegmentLeaves { number, grace_ms } => {
                if self.segments.get(*number).is_none() {
                    return Err(ReplayError::UnknownSegment(number.0));
                }
                self.segments.set_leaves(now, *number, *grace_ms);
                self.open_or_close(*number);
                Ok(())
            }
            Record::SegmentGone(number) if self.tiers.get(*number).is_some() => {
                self.apply_tier_gone(*number);
                Ok(())
            }
            Record::SegmentGone(number) => self.apply_segment_gone(now, *number),
            Record::SegmentForgotten { uuid, number } => {
                // Why it went is not in a snapshot. Of one that is Gone already a log says so when its views are
                // forgotten.
                self.segments.forget(GoneSegment { uuid: *uuid, number: *number, kept_whole: true });
                Ok(())
            }
            Record::Reserved { session, key, size, pin, replicas } => {
                self.apply_reserved(now, *session, key.as_ref(), *size, *pin, replicas, PutTerms::default())
            }
            Record::ReservedWith { session, key, size, pin, replicas, group, replaces } => {
                let terms = PutTerms { group: group.as_ref().into(), replaces: *replaces, promotes: None };
                self.apply_reserved(now, *session, key.as_ref(), *size, *pin, replicas, terms)
            }
            Record::Committed { reservation, good, crc32c } => self.apply_committed(now, *reservation, good, *crc32c),
            Record::CommittedBy { session, rids } => {
                let writer = self.sessions.get_mut(*session).ok_or(ReplayError::UnknownSession(session.0))?;
                rids.iter().for_each(|rid| writer.remember_committed(*rid));
                Ok(())
            }
            Record::Dropped(rid) => self.apply_dropped(now, *rid),
            Record::Released(rid) => {
                let entry =
                    self.quarantine.remove(*rid).ok_or(ReplayError::UnknownRid { record: "Released", rid: rid.0 })?;
                let extent = entry.replica.extent;
                self.count_held(extent, HeldBy::Quarantine, false);
                self.give(*rid, extent)
            }
            Record::WriterDone(rid) => match self.quarantine.set_writer_done(*rid) {
                true => Ok(()),
                false => Err(ReplayError::UnknownRid { record: "WriterDone", rid: rid.0 }),
            },
            Record::Removed { key, rid } => {
                let slot = self.object_with(key.as_ref(), *rid, "Removed")?;
                self.unlink(slot)
            }
            Record::ReplicaDropped { key, rid } => {
                let slot = self.object_with(key.as_ref(), *rid, "ReplicaDropped")?;
                self.drop_places(now, slot, |other, _| other == *rid)
            }
            Record::Pinned { session, rid, extent, key } => {
                self.apply_pinned(*session, *rid, *extent, key.as_ref().map(AsRef::as_ref))
            }
            Record::Unpinned { session, rid } => {
                let owner = self.sessions.get_mut(*session).ok_or(ReplayError::UnknownSession(session.0))?;
                let views =
                    owner.pins.get_mut(rid).ok_or(ReplayError::UnknownRid { record: "Unpinned", rid: rid.0 })?;
                *views -= 1;
                let is_last = *views == 0;
                owner.views_change(*rid);
                if is_last {
                    owner.pins.remove(rid);
                    self.pins.holds_no_more(*session, *rid);
                }
                self.release_view(now, *rid)
            }
            Record::Replied { session, sequence, answered_below, reply } => {
                if !self.sessions.remember(*session, *sequence, *answered_below, reply) {
                    return Err(ReplayError::UnknownSession(session.0));
                }
                self.forget_answered(*session);
                Ok(())
            }
            Record::Object { key, size, crc32c, pin, replicas } => {
                check_number(replicas, "object")?;
                let places = places_of_new(replicas);
                self.apply_object(now, key.as_ref(), *size, *crc32c, replicas, places, EvictionTerms::of(now, *pin))
            }
            Record::GroupedObject { key, size, crc32c, pin, replicas, group } => {
                check_number(replicas, "object")?;
                let kept = EvictionTerms { group: group.as_ref().into(), ..EvictionTerms::of(now, *pin) };
                let places = places_of_new(replicas);
                self.apply_object(now, key.as_ref(), *size, *crc32c, replicas, places, kept)
            }
            Record::Quarantined { replica, writer, writer_done } => {
                self.take(replica)?;
                self.quarantine_replica(now, *replica, *writer);
                if *writer_done {
                    self.quarantine.set_writer_done(replica.rid);
                }
                Ok(())
            }
            Record::TierSeen { number, session, spec, head } => {
                self.apply_tier_seen(now, *number, *session, (spec, *head), None)
            }
            Record::SharedTierSeen { number, session, spec, head, file_system } => {
                self.apply_tier_seen(now, *number, *session, (spec, *head), Some(*file_system))
            }
            Record::TierRids { from, count } => {
                if from.epoch() == self.epoch.number {
                    let last = from.counter() + u64::from(*count).saturating_sub(1);
                    self.counter = self.counter.max(last);
                }
                Ok(())
            }
            Record::TierAdded { key, object_id, replica } => {
                self.apply_tier_added(now, key.as_ref(), *object_id, replica)
            }
            Record::TieredObject { key, size, crc32c, pin, replicas, group, object_id, tier } => {
                let kept = EvictionTerms { group: group.as_ref().into(), ..EvictionTerms::of(now, *pin) };
                let memory: SmallVec<[Place; 2]> = replicas.iter().map(Place::of).collect();
                let places = Places::new(*object_id, &memory, tier.as_ref().map(TierPlace::of));
                self.apply_object(now, key.as_ref(), *size, *crc32c, replicas, places, kept)
            }
            Record::Promoting { session, key, object_id, size, replica } => {
                let terms = PutTerms { promotes: Some(*object_id), ..PutTerms::default() };
                let replicas = SmallVec::from_slice(&[*replica]);
                self.apply_reserved(now, *session, key.as_ref(), *size, PinKind::None, &replicas, terms)
            }
            Record::ReplicaAdded { rid } => self.apply_replica_added(now, *rid),
            Record::SessionKept { session, ms, secret, turn } => {
                let entry = self.sessions.get_mut(*session).ok_or(ReplayError::UnknownSession(session.0))?;
                entry.kept = Some(Kept { ms: *ms, secret: *secret, turn: *turn });
                Ok(())
            }
            Record::SegmentMoved { number, session, endpoint } => self.apply_segment_moved(*number, *session, endpoint),
            Record::Counters { rid, session, segment, .. } => {
                self.epoch = self.epoch.after(record);
                self.counter = self.counter.max(*rid);
                self.sessions.last = self.sessions.last.max(*session);
                self.segments.set_last(*segment);
                Ok(())
            }
        }
    }

    fn apply_segment_moved(
        &mut self,
        number: SegmentNo,
        session: SessionId,
        endpoint: &[u8],
    ) -> Result<(), ReplayError> {
        let former = self.segments.get(number).ok_or(ReplayError::UnknownSegment(number.0))?.session;
        if self.sessions.get(session).is_none() {
            return Err(ReplayError::UnknownSession(session.0));
        }
        if let Some(former) = self.sessions.get_mut(former) {
            former.segments.retain(|other| *other != number);
        }
        self.sessions.get_mut(session).expect("it is open").segments.push(number);
        self.segments.move_to(number, session, endpoint);
        self.open_or_close(number);
        Ok(())
    }

    fn apply_session_over(&mut self, now: Time, session: SessionId) -> Result<(), ReplayError> {
        let gone = self.sessions.remove(session).ok_or(ReplayError::UnknownSession(session.0))?;
        if let Some(writer) = gone.writer {
            self.objects.writer_left(writer);
        }
        for (rid, views) in gone.pins {
            self.pins.holds_no_more(session, rid);
            for _ in 0..views {
                self.release_view(now, rid)?;
            }
        }
        Ok(())
    }

    fn apply_segment_gone(&mut self, now: Time, number: SegmentNo) -> Result<(), ReplayError> {
        let segment = self.segments.remove(number, self.epoch.number).ok_or(ReplayError::UnknownSegment(number.0))?;
        self.pins.segment_gone(number);
        if let Some(owner) = self.sessions.get_mut(segment.session) {
            owner.segments.retain(|other| *other != number);
        }
        self.quarantine.remove_segment(number);
        // Unfinished puts go on with the replicas that they have elsewhere, or not at all. Views outlive it, but hold
        // nothing of an object any more, once that is purged.
        self.reservations.segment_gone(number);
        self.clear_gone(now, &mut Work::beside_an_operation());
        self.purge_again = self.purge.is_some();
        self.purge.get_or_insert(0);
        self.objects.segments_changed(&self.segments);
        self.news.room = true;
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "each is another thing that is known of one put; a struct of them would serve this one call"
    )]
    fn apply_reserved(
        &mut self,
        now: Time,
        session: SessionId,
        key: &[u8],
        size: u64,
        pin: PinKind,
        replicas: &SmallVec<[Replica; 1]>,
        terms: PutTerms,
    ) -> Result<(), ReplayError> {
        check_number(replicas, "reservation")?;
        let is_promotion = terms.promotes.is_some();
        if !is_promotion && self.reservations.by_key(key).is_some() {
            return Err(ReplayError::Twice { what: "reservation of the key of rid", id: replicas[0].rid.0 });
        }
        let writer = self.sessions.get_mut(session).ok_or(ReplayError::UnknownSession(session.0))?;
        *writer.reserved(is_promotion) += size * replicas.len() as u64;
        for replica in replicas {
            if self.reservations.by_rid(replica.rid).is_some() {
                return Err(ReplayError::Twice { what: "rid", id: replica.rid.0 });
            }
            if self.segments.get(replica.extent.segment).is_none() {
                return Err(ReplayError::UnknownSegment(replica.extent.segment.0));
            }
            self.take(replica)?;
            // The counter is of this epoch. The rid of an earlier one, which a snapshot may list, says nothing of it.
            if replica.rid.epoch() == self.epoch.number {
                self.counter = self.counter.max(replica.rid.counter());
            }
        }
        if terms.replaces
            && let Some(old) = self.objects.find(self.objects.hash(key), key)
        {
            self.objects.hold(old);
        }
        let reservation = Reservation::new(session, key, size, pin, SmallVec::from_slice(replicas), terms);
        if let Some(object_id) = reservation.terms.promotes {
            self.mark_promoting(&reservation.key, object_id, true);
        }
        self.reservations.insert(now, reservation);
        Ok(())
    }

    fn apply_committed(&mut self, now: Time, rid: Rid, good: &[Rid], crc32c: u32) -> Result<(), ReplayError> {
        let unknown = |rid: Rid| ReplayError::UnknownRid { record: "Committed", rid: rid.0 };
        let slot = self.reservations.by_rid(rid).ok_or_else(|| unknown(rid))?;
        let mut reservation = self.end_reservation(now, slot);
        if good.is_empty() {
            return Err(ReplayError::Empty("commit"));
        }
        if let Some(stranger) = good.iter().find(|rid| !reservation.replicas.iter().any(|other| other.rid == **rid)) {
            return Err(unknown(*stranger));
        }
        // What is not good: nearly always nothing.
        let mut bad: SmallVec<[Replica; 1]> = SmallVec::new();
        reservation.replicas.retain(|replica| {
            let is_good = good.contains(&replica.rid);
            if !is_good {
                bad.push(*replica);
            }
            is_good
        });
        let (key, good) = (reservation.key.as_slice(), &reservation.replicas);
        let mut kept =
            EvictionTerms { group: reservation.terms.group.clone(), ..EvictionTerms::of(now, reservation.pin) };
        let hash = self.objects.hash(key);
        // The value that it replaces; else an object that no reader could see when the put began, whether its owner is
        // back by now or not (docs/safety.md, rule 20). It leaves before the new one comes: a key has one object.
        if let Some(old) = self.objects.find(hash, key) {
            // What is left of one whose segments went is not there: when it is cleared away is no matter of the log.
            if reservation.terms.replaces && self.lies_somewhere(old) {
                kept.inherit(now, reservation.pin, self.objects.object(old), self.objects.soft_pin(old));
                kept.group = self.objects.group_of(old).into();
            }
            self.unlink(old)?;
        }
        for replica in bad {
            self.quarantine_replica(now, replica, reservation.session);
        }
        let mut object = Object::new(reservation.size, crc32c, places_of_new(good), kept.hold);
        if let Some(writer) = self.sessions.get_mut(reservation.session) {
            for replica in good {
                writer.remember_committed(replica.rid);
            }
            object.set_writer(*writer.writer.get_or_insert_with(|| self.objects.begin_writer()));
        }
        let slot = self.link_object(now, hash, key, object, good, kept);
        self.is_to_be_written(slot);
        good.iter().for_each(|replica| self.removals.committed(replica.rid));
        Ok(())
    }

    /// Whether any segment or tier that an object lies on is still there, in reach or not.
    pub(crate) fn lies_somewhere(&self, slot: ObjectSlot) -> bool {
        self.objects.object(slot).places.segments().any(|number| self.is_there(number))
    }

    /// Whether a segment or tier is not Gone.
    pub(crate) fn is_there(&self, number: SegmentNo) -> bool {
        self.segments.get(number).is_some() || self.tiers.get(number).is_some()
    }

    fn apply_tier_seen(
        &mut self,
        now: Time,
        number: SegmentNo,
        session: SessionId,
        (spec, head): (&TierSpec, u64),
        file_system: Option<FileSystemUuid>,
    ) -> Result<(), ReplayError> {
        let other = self.tiers.by_uuid(spec.uuid).unwrap_or(number);
        let has_another = self.tiers.get(number).is_some_and(|tier| tier.spec.uuid != spec.uuid);
        if other != number || has_another || self.segments.get(number).is_some() {
            return Err(ReplayError::Twice { what: "tier", id: number.0.into() });
        }
        let host = self.sessions.get(session).and_then(|session| session.host);
        self.tiers.seen(now, number, session, host, (spec.clone(), head), file_system);
        self.segments.set_last(number.0);
        Ok(())
    }

    /// What lay on it is dropped lazily: nothing finds it any more.
    fn apply_tier_gone(&mut self, number: SegmentNo) {
        self.set_tier_mounted(number, Mounted::Hidden(Time(0)));
        self.tiers.remove(number);
        self.purge_again = self.purge.is_some();
        self.purge.get_or_insert(0);
    }

    /// A tier's session has it no more, or is yet to say what its folder proves.
    pub(crate) fn hide_tier(&mut self, now: Time, number: SegmentNo) {
        let file_system = self.tiers.get(number).and_then(|tier| tier.file_system);
        let is_read = file_system.is_some_and(|file_system| self.tiers.is_announced(file_system));
        self.set_tier_mounted(number, if is_read { Mounted::Left(now) } else { Mounted::Hidden(now) });
    }

    pub(crate) fn set_tier_mounted(&mut self, number: SegmentNo, mounted: Mounted) {
        let was_ordered = self.tiers.set_mounted(number, mounted);
        for (slot, object_id) in was_ordered {
            // Another object may lie there by now, with an order of its own.
            if self.objects.get(slot).is_some_and(|object| object.id() == object_id) {
                self.objects.set_mark(slot, Mark::Ordered, false);
            }
        }
        let is_read = self.tiers.get(number).is_some_and(Tier::is_read);
        if self.segments.set_tier_live(number, is_read) {
            self.objects.segments_changed(&self.segments);
        }
    }

    fn apply_tier_added(
        &mut self,
        now: Time,
        key: &[u8],
        object_id: Rid,
        replica: &Replica,
    ) -> Result<(), ReplayError> {
        let found = self.objects.find(self.objects.hash(key), key);
        let slot = found.filter(|slot| self.objects.object(*slot).id() == object_id);
        let unknown = ReplayError::UnknownObject { record: "TierAdded", key_len: key.len(), rid: object_id.0 };
        let slot = slot.ok_or(unknown)?;
        if self.tiers.get(replica.extent.segment).is_none() {
            return Err(ReplayError::UnknownSegment(replica.extent.segment.0));
        }
        self.put_aside_object(slot);
        let place = TierPlace::of(replica);
        let object = self.objects.object(slot);
        let (size, before) = (object.size(), object.places.tier());
        let places = Places::new(object_id, object.places.memory(), Some(place));
        if let Some(before) = before {
            self.tiers.drop_place(&before, size);
        }
        self.tiers.add_place(&place, size);
        self.objects.set_places(now, slot, places, &self.segments);
        for mark in [Mark::Read, Mark::ReadLate] {
            self.objects.set_mark(slot, mark, false);
        }
        // What is on a tier can leave memory without loss.
        self.news.room = true;
        Ok(())
    }

    fn apply_replica_added(&mut self, now: Time, rid: Rid) -> Result<(), ReplayError> {
        let unknown = ReplayError::UnknownRid { record: "ReplicaAdded", rid: rid.0 };
        let Some(slot) = self.reservations.by_rid(rid) else { return Err(unknown) };
        let Some(object) = self.promoted_object(slot) else { return Err(unknown) };
        let reservation = self.end_reservation(now, slot);
        self.put_aside_object(object);
        let (replica, before) = (reservation.replicas[0], self.objects.object(object));
        let (id, hold, tier) = (before.id(), before.hold, before.places.tier());
        let mut memory: SmallVec<[Place; 2]> = SmallVec::from_slice(before.places.memory());
        memory.push(Place::of(&replica));
        if hold == Hold::Hard {
            self.count_held(replica.extent, HeldBy::Pin, true);
            self.count_held(replica.extent, HeldBy::HardPin, true);
        }
        self.objects.set_places(now, object, Places::new(id, &memory, tier), &self.segments);
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "each is another thing that is known of one object; a struct of them would serve this one call"
    )]
    fn apply_object(
        &mut self,
        now: Time,
        key: &[u8],
        size: u64,
        crc32c: u32,
        replicas: &[Replica],
        places: Places,
        kept: EvictionTerms,
    ) -> Result<(), ReplayError> {
        let hash = self.objects.hash(key);
        if self.objects.find(hash, key).is_some() {
            return Err(ReplayError::Twice { what: "object with id", id: places.object_id().0 });
        }
        if places.rids().next().is_none() {
            return Err(ReplayError::Empty("object"));
        }
        for replica in replicas {
            self.take(replica)?;
        }
        self.link_object(now, hash, key, Object::new(size, crc32c, places, kept.hold), replicas, kept);
        Ok(())
    }

    fn apply_dropped(&mut self, now: Time, rid: Rid) -> Result<(), ReplayError> {
        let slot = self.reservations.by_rid(rid).ok_or(ReplayError::UnknownRid { record: "Dropped", rid: rid.0 })?;
        let reservation = self.end_reservation(now, slot);
        for replica in &reservation.replicas {
            self.quarantine_replica(now, *replica, reservation.session);
        }
        Ok(())
    }

    fn apply_pinned(
        &mut self,
        session: SessionId,
        rid: Rid,
        extent: Extent,
        key: Option<&[u8]>,
    ) -> Result<(), ReplayError> {
        let object = match key {
            Some(key) => Some(self.object_with(key, rid, "Pinned")?),
            None => None,
        };
        let reader = self.sessions.get_mut(session).ok_or(ReplayError::UnknownSession(session.0))?;
        let views = reader.pins.entry(rid).or_default();
        *views += 1;
        let first = *views == 1;
        reader.views_change(rid);
        if self.pins.get(rid).is_none() {
            if object.is_none() {
                self.take(&Replica { rid, extent })?;
            }
            if object.is_none_or(|slot| self.objects.object(slot).hold != Hold::Hard) {
                self.count_held(extent, HeldBy::Pin, true);
            }
            if let Some(slot) = object {
                self.objects.reader_added(slot);
            }
        }
        self.pins.add(rid, extent, object);
        if first && self.segments.get(extent.segment).is_some() {
            self.pins.holds(session, extent);
        }
        Ok(())
    }

    /// One view less over a rid; the last one gives back an extent whose object has left.
    fn release_view(&mut self, now: Time, rid: Rid) -> Result<(), ReplayError> {
        let Some(last) = self.pins.release(rid) else { return Ok(()) };
        match last.object {
            Some(slot) => {
                if self.objects.object(slot).hold != Hold::Hard {
                    self.count_held(last.extent, HeldBy::Pin, false);
                }
                self.objects.reader_left(now, slot, self.config.lookup_protect_ms);
                self.news.room = true;
                Ok(())
            }
            None => {
                self.count_held(last.extent, HeldBy::Pin, false);
                self.give(rid, last.extent)
            }
        }
    }

    fn end_reservation(&mut self, now: Time, slot: ReservationSlot) -> Reservation {
        let reservation = self.reservations.remove(slot);
        if reservation.terms.replaces {
            self.release_replaced(now, reservation.key.as_slice());
        }
        if reservation.awaited {
            self.key_changed(reservation.key.as_slice());
        }
        self.promotion_over(&reservation);
        self.news.room = true;
        if let Some(writer) = self.sessions.get_mut(reservation.session) {
            *writer.reserved(reservation.terms.promotes.is_some()) -= reservation.bytes();
        }
        self.less_unfinished(reservation.session);
        reservation
    }

    /// What was to be replaced can be evicted again, if it is still there.
    pub(crate) fn release_replaced(&mut self, now: Time, key: &[u8]) {
        if let Some(old) = self.objects.find(self.objects.hash(key), key) {
            self.objects.release(now, old, self.config.lookup_protect_ms);
        }
    }

    fn quarantine_replica(&mut self, now: Time, replica: Replica, writer: SessionId) {
        self.count_held(replica.extent, HeldBy::Quarantine, true);
        if let Some(segment) = self.segments.get(replica.extent.segment) {
            if replica.rid.epoch() < segment.epoch {
                self.obeying.insert(segment.number);
            }
            self.quarantine.insert(Quarantined { replica, writer, writer_done: false, since: now });
        }
    }

    fn link_object(
        &mut self,
        now: Time,
        hash: u64,
        key: &[u8],
        object: Object,
        replicas: &[Replica],
        kept: EvictionTerms,
    ) -> ObjectSlot {
        let EvictionTerms { soft, protected, group, .. } = kept;
        if object.hold == Hold::Hard {
            for replica in replicas {
                self.count_held(replica.extent, HeldBy::Pin, true);
                self.count_held(replica.extent, HeldBy::HardPin, true);
            }
        }
        if let Some(place) = object.places.tier() {
            self.tiers.add_place(&place, object.size());
        }
        let slot = self.objects.insert(now, hash, key, object, soft, &self.segments);
        self.is_no_matter_of_a_snapshot(slot);
        self.objects.join(slot, &group);
        if protected {
            self.objects.protect(now, slot, self.config.lookup_protect_ms);
        }
        self.news.room = true;
        slot
    }

    /// Takes an object out and gives its space back, but for what views hold.
    pub(crate) fn unlink(&mut self, slot: ObjectSlot) -> Result<(), ReplayError> {
        self.put_aside_object(slot);
        let object = self.objects.remove(slot);
        for place in object.places.memory() {
            self.drop_place(place, object.size(), object.hold == Hold::Hard)?;
        }
        if let Some(place) = object.places.tier() {
            self.tiers.drop_place(&place, object.size());
        }
        self.news.room = true;
        Ok(())
    }

    /// Drops some replicas of an object, and the object with the last of them.
    pub(crate) fn drop_places(
        &mut self,
        now: Time,
        slot: ObjectSlot,
        which: impl Fn(Rid, SegmentNo) -> bool,
    ) -> Result<(), ReplayError> {
        self.put_aside_object(slot);
        let object = self.objects.object(slot);
        let (drop, keep): (SmallVec<[Place; 2]>, SmallVec<[Place; 2]>) =
            object.places.memory().iter().copied().partition(|place| which(place.rid, place.segment));
        let on_tier = object.places.tier();
        let dropped_tier = on_tier.filter(|place| which(place.rid, place.tier));
        let places = Places::new(object.id(), &keep, on_tier.filter(|_| dropped_tier.is_none()));
        if places.rids().next().is_none() {
            return self.unlink(slot);
        }
        let (size, hard) = (object.size(), object.hold == Hold::Hard);
        if let Some(place) = dropped_tier {
            self.tiers.drop_place(&place, size);
        }
        for place in &drop {
            if self.drop_place(place, size, hard)? {
                self.objects.reader_left(now, slot, self.config.lookup_protect_ms);
            }
        }
        self.objects.set_places(now, slot, places, &self.segments);
        self.news.room = true;
        Ok(())
    }

    /// True when views hold it, which now hold the extent alone.
    fn drop_place(&mut self, place: &Place, size: u64, hard: bool) -> Result<bool, ReplayError> {
        let extent = place.extent(size);
        if hard {
            self.count_held(extent, HeldBy::HardPin, false);
        }
        match self.pins.get_mut(place.rid) {
            Some(pin) => Ok(pin.object.take().is_some()),
            None => {
                if hard {
                    self.count_held(extent, HeldBy::Pin, false);
                }
                self.give(place.rid, extent).map(|()| false)
            }
        }
    }

    fn object_with(&self, key: &[u8], rid: Rid, record: &'static str) -> Result<ObjectSlot, ReplayError> {
        self.objects
            .find(self.objects.hash(key), key)
            .filter(|slot| self.objects.object(*slot).has(rid))
            .ok_or(ReplayError::UnknownObject { record, key_len: key.len(), rid: rid.0 })
    }

    fn count_held(&mut self, extent: Extent, by: HeldBy, begins: bool) {
        self.segments.count_held(extent.segment, by, granules(extent.length) as u32, begins);
        if !begins && by != HeldBy::HardPin {
            self.more_attainable(extent.segment);
        }
    }

    /// After a change of whether a segment is Live, leaves or obeys the epoch.
    pub(crate) fn open_or_close(&mut self, number: SegmentNo) {
        if self.segments.open_or_close(number, self.epoch.number) {
            self.more_is_open(number);
        }
    }

    /// Takes a replica's extent. On a segment that is Gone there is nothing to take.
    fn take(&mut self, replica: &Replica) -> Result<(), ReplayError> {
        let number = replica.extent.segment;
        if number.0 > self.segments.last() {
            return Err(ReplayError::UnknownSegment(number.0));
        }
        let (start, len) = granule_range(replica.rid, replica.extent)?;
        self.segments.take(number, start, len).map_err(|source| ReplayError::Extent {
            segment: number.0,
            rid: replica.rid.0,
            source,
        })
    }

    fn give(&mut self, rid: Rid, extent: Extent) -> Result<(), ReplayError> {
        self.news.room = true;
        let (start, len) = granule_range(rid, extent)?;
        self.segments.give(extent.segment, start, len).map_err(|source| ReplayError::Extent {
            segment: extent.segment.0,
            rid: rid.0,
            source,
        })
    }
}

/// What keeps a new object from being evicted, and the group that it leaves with.
struct EvictionTerms {
    hold: Hold,
    soft: Option<SoftPin>,
    /// An existence query found the value that it replaces a moment ago: the load that follows must not miss.
    protected: bool,
    /// Empty for none.
    group: Box<[u8]>,
}

impl EvictionTerms {
    fn of(now: Time, pin: PinKind) -> EvictionTerms {
        let (hold, soft) = match pin {
            PinKind::None | PinKind::Cleared => (Hold::None, None),
            PinKind::Soft { ttl_ms } => (Hold::Soft, Some(SoftPin { ttl_ms, until: now.plus_ms(ttl_ms) })),
            PinKind::Hard => (Hold::Hard, None),
        };
        EvictionTerms { hold, soft, protected: false, group: Box::default() }
    }

    /// What an object passes on to its replacement. A hard pin is decided once, when the object is made.
    fn inherit(&mut self, now: Time, pin: PinKind, old: &Object, soft: Option<SoftPin>) {
        self.protected = old.protected_until > now;
        if old.hold == Hold::Hard {
            (self.hold, self.soft) = (Hold::Hard, None);
        } else if matches!(pin, PinKind::None | PinKind::Hard) {
            (self.hold, self.soft) = (old.hold, soft);
        }
    }
}

/// Of replicas in memory that a commit or a snapshot has, of which there is one at least.
fn places_of_new(replicas: &[Replica]) -> Places {
    let memory: SmallVec<[Place; 2]> = replicas.iter().map(Place::of).collect();
    Places::of_new(&memory)
}

fn check_number(replicas: &[Replica], of: &'static str) -> Result<(), ReplayError> {
    match replicas.len() {
        0 => Err(ReplayError::Empty(of)),
        1..=REPLICAS_MAX => Ok(()),
        count => Err(ReplayError::Replicas { of, count }),
    }
}

pub(crate) fn granule_range(rid: Rid, extent: Extent) -> Result<(u32, u32), ReplayError> {
    let error = ReplayError::NotAnExtent { rid: rid.0, offset: extent.offset, length: extent.length };
    if extent.length == 0 || !extent.offset.is_multiple_of(GRANULE) {
        return Err(error);
    }
    match (u32::try_from(extent.offset / GRANULE), u32::try_from(granules(extent.length))) {
        (Ok(start), Ok(len)) if start.checked_add(len).is_some() => Ok((start, len)),
        _ => Err(error),
    }
}

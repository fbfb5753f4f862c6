//! Sessions and their segments: who comes, who is away, who is over.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::Core;
use crate::effect::{Effects, Push, Record};
use crate::ids::{GRANULE, Rid, SegmentNo, SegmentUuid, SessionId, Time};
use crate::request::{Origin, Populated, Refused, Remembered, Resumed, SegmentSpec, SessionSpec};
use crate::segment::{GoneSegment, SegmentView};
use crate::session::{GoneTold, Session};

/// Gone segments told to a session that comes back, at most.
const GONE_TOLD_MAX: usize = 1_024;

/// Gone segments told to sessions that come back after a restart of the master, which forgot whom it told.
pub(crate) const RECENTLY_GONE: u64 = 256;

/// Longest grace of a segment that is being unmounted.
const GRACE_MAX_MS: u64 = 7 * 24 * 3600 * 1000;

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Closed,
    ProcessGone,
    /// Away for the retention, or lingering until nothing hung on its views any more.
    Expired,
    Unused,
}

impl Ending {
    fn reason(self) -> &'static str {
        match self {
            Ending::Closed => "it closed",
            Ending::ProcessGone => "its process is gone",
            Ending::Expired => "it was away for too long",
            Ending::Unused => "it left before it did anything",
        }
    }

    /// Nothing of it can read any more.
    fn is_proven(self) -> bool {
        matches!(self, Ending::Closed | Ending::ProcessGone)
    }
}

impl Core {
    // --------------------------------------------------------------- sessions

    /// A new session; its anchor is there.
    pub fn open_session(&mut self, now: Time, spec: SessionSpec, fx: &mut Effects) -> Result<SessionId, Refused> {
        if self.sessions.len() >= self.config.sessions_max {
            return Err(Refused::TooManySessions(self.sessions.len()));
        }
        let session = SessionId(self.sessions.last + 1);
        self.log(now, Record::SessionOpened { session, spec }, fx);
        self.counts.sessions_opened += 1;
        // What went before is nothing that it can have mapped.
        self.sessions.get_mut(session).expect("it was opened").gone = GoneTold::heard(self.segments.gone_count());
        Ok(session)
    }

    /// The anchor of a known session is back. `segments` are what it still holds, each with the epoch that it has taken (0
    /// where its owner's word is none), `pins` its views (once per view). Whatever was asked of it while it was away is
    /// asked again.
    pub fn resume_session(
        &mut self,
        now: Time,
        session: SessionId,
        secret: u64,
        segments: &[(SegmentUuid, u16)],
        pins: &[Rid],
        fx: &mut Effects,
    ) -> Result<Resumed, Refused> {
        self.check_session(session, secret)?;
        self.counts.sessions_resumed += 1;
        let mine = |core: &Core, uuid: &SegmentUuid| core.segments.by_uuid(*uuid).is_some_and(|s| s.session == session);
        let gone = segments.iter().map(|(uuid, _)| *uuid).filter(|uuid| !mine(self, uuid)).collect();
        let known: Vec<SegmentNo> = self.sessions.known(session)?.segments.to_vec();
        let held: BTreeMap<SegmentUuid, u16> = segments.iter().copied().collect();
        for number in known {
            let segment = self.segments.get(number).expect("a session's segments are there");
            match held.get(&segment.spec.uuid) {
                // Its owner does not hold it any more.
                None => self.segment_gone(now, number, None, fx),
                Some(taken) if segment.epoch < self.epoch && *taken == self.epoch => {
                    self.segment_obeys(now, number, self.epoch, fx);
                }
                Some(_) => {}
            }
        }
        let unknown_pins = self.reconcile_pins(now, session, pins, fx);
        self.come_back(now, session, fx);
        self.settle(now, fx);
        Ok(Resumed { gone, unknown_pins })
    }

    /// Whether no later list of a session's views has come than this one. A client that gave a resume up on the way and has
    /// come back with another one has taken views since; what it listed before says nothing of them. 0: it does not count.
    pub fn is_latest_list(&mut self, session: SessionId, number: u64) -> bool {
        let Some(entry) = self.sessions.get_mut(session) else { return true };
        let late = number != 0 && number < entry.listed;
        entry.listed = entry.listed.max(number);
        !late
    }

    /// Views that the session does not list have ended, unless it may yet receive the reply that gave them; views that it
    /// lists and the log lost are noted again. Returns those of which not even the place is known any more: nothing here
    /// keeps it from being given out, so their reader has to.
    fn reconcile_pins(&mut self, now: Time, session: SessionId, listed: &[Rid], fx: &mut Effects) -> Vec<Rid> {
        let mut listed = listed.to_vec();
        listed.sort_unstable();
        let count = |rid: Rid| {
            let from = listed.partition_point(|other| *other < rid);
            listed[from..].iter().take_while(|other| **other == rid).count() as u32
        };
        let Some(entry) = self.sessions.get_mut(session) else { return Vec::new() };
        let searched = std::mem::take(&mut entry.unknown_pins);
        let known: Vec<(Rid, u32)> = entry.pins.iter().map(|(rid, views)| (*rid, *views)).collect();
        let under_way = entry.pins_under_way();
        for (rid, views) in &known {
            for _ in count(*rid) + under_way.get(rid).copied().unwrap_or(0)..*views {
                self.log(now, Record::Unpinned { session, rid: *rid }, fx);
            }
        }
        // What a log lost with its end.
        let mut missing: BTreeMap<Rid, u32> = BTreeMap::new();
        for rid in listed.chunk_by(|a, b| a == b).map(|same| same[0]) {
            let views = known.binary_search_by_key(&rid, |(other, _)| *other).map_or(0, |at| known[at].1);
            let lost = count(rid).saturating_sub(views);
            if lost > 0 {
                missing.insert(rid, lost);
            }
        }
        // Other views of the same placement say where it is, whatever became of its object.
        let noted: Vec<Rid> = missing.keys().copied().filter(|rid| self.pins.get(*rid).is_some()).collect();
        for rid in noted {
            let pin = self.pins.get(rid).expect("just seen");
            let (extent, object) = (pin.extent, pin.object);
            let key: Option<Box<[u8]>> = object.map(|slot| self.objects.object(slot).key.as_slice().into());
            for _ in 0..missing.remove(&rid).expect("just seen") {
                self.log(now, Record::Pinned { session, rid, extent, key: key.clone() }, fx);
            }
        }
        // An object that was looked for once in vain does not turn up later.
        if missing.keys().any(|rid| !searched.contains_key(rid)) {
            for slot in 0..self.objects.bound() {
                let Some(object) = self.objects.get(slot) else { continue };
                let Some(place) = object.places.as_slice().iter().find(|place| missing.contains_key(&place.rid)) else {
                    continue;
                };
                let (rid, extent, key) = (place.rid, place.extent(object.size), object.key.as_slice().to_vec());
                if self.segments.get(extent.segment).is_none() {
                    continue;
                }
                for _ in 0..missing.remove(&rid).unwrap_or(0) {
                    self.log(now, Record::Pinned { session, rid, extent, key: Some(key.as_slice().into()) }, fx);
                }
            }
        }
        let unknown = missing.iter().flat_map(|(rid, views)| std::iter::repeat_n(*rid, *views as usize)).collect();
        self.sessions.get_mut(session).expect("known").unknown_pins = missing;
        unknown
    }

    /// A call connection may attach to this session.
    pub fn check_session(&self, session: SessionId, secret: u64) -> Result<(), Refused> {
        match self.sessions.known(session)?.spec.secret == secret {
            true => Ok(()),
            false => Err(Refused::WrongSecret(session.0)),
        }
    }

    /// The anchor closed: away at once. A session that never did anything has nothing to come back for, and is over.
    pub fn anchor_lost(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        let waits = self.tickets.iter().any(|parked| parked.origin.session == session);
        match self.sessions.get(session) {
            Some(entry) if entry.is_unused() && !waits => {
                self.session_over(now, session, Ending::Unused, fx);
            }
            _ => self.set_away(now, session),
        }
    }

    /// A heartbeat: the session is there, `moved` are the rids whose bytes moved since the last one, `populated` how far
    /// its segments are. Returns those that turned out smaller than they were.
    pub fn beat(
        &mut self,
        now: Time,
        session: SessionId,
        moved: &[Rid],
        populated: &[Populated],
        fx: &mut Effects,
    ) -> Vec<SegmentNo> {
        let mut ended = Vec::new();
        let Some(entry) = self.sessions.get_mut(session) else { return ended };
        entry.last_heard = now;
        if entry.away.is_some() {
            self.come_back(now, session, fx);
        } else {
            entry.gone.beat(now, self.segments.gone_count());
        }
        for rid in moved {
            if let Some(slot) = self.reservations.by_rid(*rid)
                && self.reservations.get(slot).session == session
            {
                self.reservations.renew(now, slot);
            }
        }
        for Populated { uuid, bytes, failed } in populated.iter().copied() {
            let Some(segment) = self.segments.by_uuid(uuid).filter(|segment| segment.session == session) else {
                continue;
            };
            let number = segment.number;
            if failed && segment.populating() {
                self.log(now, Record::SegmentEnds { number, bytes }, fx);
                self.counts.segments_cut += 1;
                ended.push(number);
            } else if bytes / GRANULE > segment.extents.limit().into() {
                self.log(now, Record::SegmentPopulated { number, bytes }, fx);
                self.segments.get_mut(number).expect("mounted").progress = now;
            }
        }
        self.settle(now, fx);
        ended
    }

    /// This process was itself stopped: nobody was silent, it did not listen.
    pub fn stalled(&mut self, now: Time) {
        for (_, session) in self.sessions.iter_mut() {
            session.last_heard = now;
            if session.away.is_some() {
                session.away = Some(now);
            }
        }
        self.reservations.renew_all(now);
    }

    /// The session ended by itself, after its last view: a client says so only when none is left and none can begin.
    pub fn close_session(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        self.session_over(now, session, Ending::Closed, fx);
    }

    /// Its process is proven gone, and its views with it.
    pub fn process_gone(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        self.session_over(now, session, Ending::ProcessGone, fx);
    }

    /// Identity of a session's process, as it was given.
    pub fn session_process(&self, session: SessionId) -> Option<&[u8]> {
        Some(&self.session_spec(session)?.process)
    }

    /// What a session said of itself.
    pub fn session_spec(&self, session: SessionId) -> Option<&SessionSpec> {
        Some(&self.sessions.get(session)?.spec)
    }

    pub(crate) fn set_away(&mut self, now: Time, session: SessionId) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        if entry.away.is_some() {
            return;
        }
        entry.away = Some(now);
        self.counts.sessions_lost += 1;
        for number in entry.segments.clone() {
            self.segments.set_live(number, false);
        }
        self.segments.rebuild_open(self.epoch);
    }

    fn come_back(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        entry.last_heard = now;
        entry.lingering = false;
        let was_away = entry.away.take().is_some();
        let segments = entry.segments.clone();
        for number in &segments {
            self.segments.set_live(*number, true);
            self.segments.get_mut(*number).expect("a session's segments are there").progress = now;
        }
        self.segments.rebuild_open(self.epoch);
        self.objects.unpark();
        self.room_changed |= was_away;
        self.tell_again(session, fx);
        self.ask_again(session, fx);
    }

    /// Tells a session that is back which segments are Gone that it may not have heard of. What it was told last may have gone
    /// down unread with its connection, and memory is held by everybody that is not told to part with it.
    fn tell_again(&mut self, session: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        entry.gone.come_back();
        for GoneSegment { uuid, number, kept_whole } in self.segments.gone_since(entry.gone.heard, GONE_TOLD_MAX) {
            let pinned = match kept_whole {
                true => vec![GoneSegment::whole(number)],
                false => self.pins.of_segment(number, |_| 0),
            };
            fx.pushes.push((session, Push::SegmentGone { uuid, number, pinned }));
        }
    }

    /// Asks an owner once more for fences that it has not answered yet: by rid, from one on, so many at most. Gives the
    /// first one that is left.
    pub fn ask_fences(&self, owner: SessionId, from: Rid, most: usize, fx: &mut Effects) -> Option<Rid> {
        let mut asked = 0;
        for entry in self.quarantine.iter_from(from) {
            let Some(segment) = self.segments.get(entry.replica.extent.segment) else { continue };
            if segment.session != owner {
                continue;
            }
            if asked == most {
                return Some(entry.replica.rid);
            }
            asked += 1;
            let fence = Push::Fence {
                uuid: segment.spec.uuid,
                replica: entry.replica,
                writer: entry.writer,
                writer_done: entry.writer_done,
            };
            fx.pushes.push((owner, fence));
        }
        None
    }

    /// Sends an owner all that it has not answered yet.
    fn ask_again(&mut self, owner: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(owner) else { return };
        if entry.segments.iter().any(|number| self.segments.get(*number).is_some_and(|s| s.epoch < self.epoch)) {
            fx.pushes.push((owner, Push::TakeEpoch(self.reign())));
        }
        self.ask_fences(owner, Rid(0), usize::MAX, fx);
        for recheck in self.rechecks.values() {
            let Some(segment) = self.segments.get(recheck.replica.extent.segment) else { continue };
            if segment.session == owner {
                let (uuid, replica, crc32c) = (segment.spec.uuid, recheck.replica, recheck.crc32c);
                fx.pushes.push((owner, Push::Recheck { uuid, replica, crc32c }));
            }
        }
    }

    /// Whether anything could be done to the bytes under a session's views if they were forgotten. On a segment that is
    /// there they would be given out again. Nobody maps memory of another host: what is viewed of that are copies.
    pub(crate) fn needs_its_views(&self, session: &Session) -> bool {
        let can_be_mapped = |host: Option<u32>| host == session.host || host.is_none() || session.host.is_none();
        session.pins.keys().filter_map(|rid| self.pins.get(*rid)).any(|pinned| {
            let segment = self.segments.get(pinned.extent.segment);
            segment.is_some_and(|segment| can_be_mapped(segment.host))
        })
    }

    /// Ends a session. Its views end with it if that is proven, or if there is nothing left that they keep; else it
    /// lingers until one or the other.
    pub(crate) fn session_over(&mut self, now: Time, session: SessionId, ending: Ending, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(session) else { return };
        let lingers = !ending.is_proven() && self.needs_its_views(entry);
        for number in entry.segments.clone() {
            self.segment_gone(now, number, Some(session).filter(|_| !lingers), fx);
        }
        for parked in self.tickets.cancel_session(session) {
            self.refuse_ticket(parked, "the session is over", fx);
        }
        let unfinished = self.reservations.iter().filter(|(_, reservation)| reservation.session == session);
        let rids: Vec<Rid> = unfinished.map(|(_, reservation)| reservation.rid()).collect();
        for rid in rids {
            self.drop_reservation(now, rid, false, fx);
        }
        if lingers {
            self.set_away(now, session);
            self.sessions.get_mut(session).expect("known").lingering = true;
        } else {
            // Also when it is away: the connection of a process that was frozen may still be there when it wakes up.
            fx.pushes.push((session, Push::SessionOver(ending.reason().to_owned())));
            *match ending {
                Ending::Closed | Ending::Unused => &mut self.counts.sessions_closed,
                Ending::ProcessGone => &mut self.counts.sessions_died,
                Ending::Expired => &mut self.counts.sessions_expired,
            } += 1;
            if !ending.is_proven() {
                self.keep_what_is_viewed(now, session, fx);
            }
            self.log(now, Record::SessionOver(session), fx);
        }
        self.room_changed = true;
        self.settle(now, fx);
    }

    /// The views of a session are about to be forgotten, and its process may live and go on reading: whoever is yet to hear
    /// of the segments that are Gone under them gives nothing of those back.
    fn keep_what_is_viewed(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(session) else { return };
        let viewed = entry.pins.keys().filter_map(|rid| Some(self.pins.get(*rid)?.extent.segment));
        let viewed: BTreeSet<SegmentNo> = viewed.filter(|number| self.segments.get(*number).is_none()).collect();
        if viewed.is_empty() {
            return;
        }
        let gone: Vec<GoneSegment> = self.segments.gone().filter(|gone| viewed.contains(&gone.number)).collect();
        for GoneSegment { uuid, number, .. } in gone {
            self.log(now, Record::SegmentForgotten { uuid, number }, fx);
        }
    }

    // --------------------------------------------------------------- segments

    /// A session contributes memory. A repeat for the same memory gives the same number.
    pub fn mount(
        &mut self,
        now: Time,
        origin: Origin,
        spec: SegmentSpec,
        populated: u64,
        fx: &mut Effects,
    ) -> Result<SegmentNo, Refused> {
        match self.admit(origin)? {
            None => {}
            Some(Remembered::Mount(number)) => return Ok(number),
            Some(other) => return Err(other.refusal(origin)),
        }
        let result = self.mount_new(now, origin.session, spec, populated, fx);
        let reply = match &result {
            Ok(number) => Remembered::Mount(*number),
            Err(refused) => Remembered::Refused(refused.clone()),
        };
        self.remember(origin, reply, fx);
        self.settle(now, fx);
        result
    }

    fn mount_new(
        &mut self,
        now: Time,
        session: SessionId,
        spec: SegmentSpec,
        populated: u64,
        fx: &mut Effects,
    ) -> Result<SegmentNo, Refused> {
        let live = self.sessions.known(session)?.away.is_none();
        if self.segments.is_gone_uuid(spec.uuid) {
            return Err(Refused::SegmentGone(spec.uuid.0));
        }
        if let Some(segment) = self.segments.by_uuid(spec.uuid) {
            return match segment.session == session {
                true => Ok(segment.number),
                false => Err(Refused::SegmentTaken(spec.uuid.0, segment.session.0)),
            };
        }
        if spec.bytes < GRANULE || spec.bytes / GRANULE >= u32::MAX.into() {
            return Err(Refused::SegmentSize(spec.bytes));
        }
        let number = SegmentNo(self.segments.last() + 1);
        self.log(now, Record::SegmentMounted { number, session, spec, epoch: self.epoch }, fx);
        self.counts.segments_mounted += 1;
        if populated >= GRANULE {
            self.log(now, Record::SegmentPopulated { number, bytes: populated }, fx);
        }
        self.segments.get_mut(number).expect("mounted").progress = now;
        self.segments.set_live(number, live);
        self.segments.rebuild_open(self.epoch);
        self.room_changed = true;
        Ok(number)
    }

    /// An owner takes its memory back: Gone, for ever, at once or after a grace in which it is only read.
    pub fn unmount(
        &mut self,
        now: Time,
        origin: Origin,
        uuid: SegmentUuid,
        grace_ms: u64,
        fx: &mut Effects,
    ) -> Result<(), Refused> {
        match self.admit(origin)? {
            None => {}
            Some(Remembered::Done) => return Ok(()),
            Some(other) => return Err(other.refusal(origin)),
        }
        let result = match self.segments.by_uuid(uuid) {
            Some(segment) if segment.session != origin.session => Err(Refused::SegmentTaken(uuid.0, segment.session.0)),
            Some(segment) => {
                let number = segment.number;
                match grace_ms.min(GRACE_MAX_MS) {
                    0 => self.segment_gone(now, number, None, fx),
                    grace_ms => self.log(now, Record::SegmentLeaves { number, grace_ms }, fx),
                }
                Ok(())
            }
            None if self.segments.is_gone_uuid(uuid) => Ok(()),
            None => Err(Refused::SegmentGone(uuid.0)),
        };
        let reply = result.clone().map_or_else(Remembered::Refused, |()| Remembered::Done);
        self.remember(origin, reply, fx);
        self.settle(now, fx);
        result
    }

    /// A segment is Gone. `over` is the session whose end causes it, whose views end too.
    pub(crate) fn segment_gone(&mut self, now: Time, number: SegmentNo, over: Option<SessionId>, fx: &mut Effects) {
        let Some(segment) = self.segments.get(number) else { return };
        let uuid = segment.spec.uuid;
        let ending = over.and_then(|session| self.sessions.get(session)).map(|session| session.pins.clone());
        let pinned = match segment.epoch < self.epoch {
            // Not everybody who maps it has said yet that no view is unknown here: all of it stays until they unmap it.
            true => vec![GoneSegment::whole(number)],
            false => self
                .pins
                .of_segment(number, |rid| ending.as_ref().and_then(|pins| pins.get(&rid)).copied().unwrap_or(0)),
        };
        self.log(now, Record::SegmentGone(number), fx);
        self.counts.segments_gone += 1;
        self.rechecks.retain(|_, recheck| recheck.replica.extent.segment != number);
        let everybody: Vec<SessionId> = self.sessions.iter().map(|(id, _)| id).collect();
        for session in everybody {
            self.push(session, Push::SegmentGone { uuid, number, pinned: pinned.clone() }, fx);
        }
    }

    /// A segment that is not Gone.
    pub fn segment(&self, number: SegmentNo) -> Option<SegmentView<'_>> {
        Some(self.segments.get(number)?.view())
    }

    /// All segments that are not Gone, by number.
    pub fn segments(&self) -> impl Iterator<Item = SegmentView<'_>> {
        self.segments.iter().map(|segment| segment.view())
    }

    /// Owner of a segment that is not Gone.
    pub fn segment_owner(&self, uuid: SegmentUuid) -> Option<SessionId> {
        Some(self.segments.by_uuid(uuid)?.session)
    }
}

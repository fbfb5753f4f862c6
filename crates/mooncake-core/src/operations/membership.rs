//! Sessions and their segments: which ones come, are away and are over.

use std::collections::BTreeMap;

use crate::core::Core;
use crate::effect::{Effects, Push, To};
use crate::ids::{SegmentNo, Time};
use crate::operations::ending::SEGMENT;
use crate::operations::listed_views::ListedViews;
use crate::record::Record;
use crate::request::{Origin, Populated, Refused, Resumed, SegmentSpec, SessionSpec};
use crate::state::endings::Ending;
use crate::state::segment::SegmentView;
use crate::state::session::GoneTold;
use crate::work::Work;
use mooncake_ids::{GRANULE, Rid, SegmentUuid, SessionId};
use mooncake_mutant::mutant;

/// Longest grace of a segment that is being unmounted.
const GRACE_MAX_MS: u64 = 7 * 24 * 3600 * 1000;

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
        self.sessions.get_mut(session).expect("it was opened").gone = GoneTold::heard(self.segments.gone().count());
        Ok(session)
    }

    /// The anchor of a known session is back. `segments` are what it still holds, each with the epoch that it has taken
    /// (0 where its owner's word is none), `views` what it reads. Whatever was asked of it while it was away is
    /// asked again.
    pub fn resume_session(
        &mut self,
        now: Time,
        session: SessionId,
        secret: u64,
        segments: &[(SegmentUuid, u16)],
        views: ListedViews,
        fx: &mut Effects,
    ) -> Result<Resumed, Refused> {
        self.check_session(session, secret)?;
        self.counts.sessions_resumed += 1;
        // The end of the anchor before may not have been seen yet: what was ordered there is over, and its client
        // mounts its tiers anew (docs/safety.md, rule T4).
        if !mutant!(ResumesKeepOrders) {
            self.hide_tiers_of(now, session);
        }
        let mine = |core: &Core, uuid: &SegmentUuid| core.segments.by_uuid(*uuid).is_some_and(|s| s.session == session);
        let gone = segments.iter().map(|(uuid, _)| *uuid).filter(|uuid| !mine(self, uuid)).collect();
        let known: Vec<SegmentNo> = self.sessions.known(session)?.segments.to_vec();
        let held: BTreeMap<SegmentUuid, u16> = segments.iter().copied().collect();
        let (mut work, mut leave) = (Work::beside_an_operation(), Vec::new());
        for number in known {
            let segment = self.segments.get(number).expect("a session's segments are there");
            match held.get(&segment.spec.uuid) {
                // Its owner does not hold it any more.
                None if work.has_time_for(SEGMENT) => {
                    self.segment_gone(now, number, fx);
                    work.did(SEGMENT);
                }
                // In steps, as those whose grace is over.
                None => {
                    self.log(now, Record::SegmentLeaves { number, grace_ms: 0 }, fx);
                    leave.push(number);
                }
                Some(taken) if !segment.obeys(self.epoch.number) && *taken == self.epoch.number => {
                    self.segment_obeys(now, number, self.epoch.number, &mut work, fx);
                }
                Some(_) => {}
            }
        }
        let unknown_pins = self.reconcile_views(now, session, views, fx);
        self.come_back(now, session, fx);
        self.set_live(&leave, false);
        self.serve_waiting(now, fx);
        Ok(Resumed { gone, unknown_pins })
    }

    /// Whether no later list of a session's views has come than this one. A client that gave a resume up on the way and
    /// has come back with another one has taken views since; what it listed before says nothing of them. 0: it does not
    /// count.
    pub fn is_latest_list(&mut self, session: SessionId, number: u64) -> bool {
        let Some(entry) = self.sessions.get_mut(session) else { return true };
        let late = number != 0 && number < entry.listed;
        entry.listed = entry.listed.max(number);
        !late
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
        let waits = self.tickets.of_session(session).is_some();
        match self.sessions.get(session) {
            Some(entry) if entry.is_unused() && !waits => {
                self.session_over(now, session, Ending::Unused, fx);
            }
            _ => self.set_away(now, session),
        }
    }

    /// A heartbeat: the session is there, `moved` are the rids whose bytes moved since the last one, `populated` how
    /// far its segments are. Returns those that turned out smaller than they were.
    pub fn beat(
        &mut self,
        now: Time,
        session: SessionId,
        moved: &[Rid],
        populated: &[Populated],
        fx: &mut Effects,
    ) -> Vec<SegmentNo> {
        let mut ended = Vec::new();
        let Some(entry) = self.sessions.get_mut(session).filter(|entry| !entry.is_deaf()) else { return ended };
        entry.last_heard = now;
        if entry.away.is_some() {
            self.come_back(now, session, fx);
        } else if let Some(told) = self.gone_told(session) {
            self.sessions.get_mut(session).expect("it beats").gone.beat(now, told);
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
        self.serve_waiting(now, fx);
        ended
    }

    /// This process was itself stopped: no client was silent, the master did not listen.
    pub fn stalled(&mut self, now: Time) {
        for (_, session) in self.sessions.iter_mut() {
            session.last_heard = now;
            if session.away.is_some() {
                session.away = Some(now);
            }
            if session.bereft.is_some() {
                session.bereft = Some(now);
            }
        }
        self.reservations.renew_all(now);
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
        let segments = entry.segments.clone();
        self.set_live(&segments, false);
        self.hide_tiers_of(now, session);
        self.yields_its_keys(session);
    }

    /// Segments are Live from now on, or Hidden: all those that are it together, as objects are looked at once for all
    /// of them.
    pub(crate) fn set_live(&mut self, numbers: &[SegmentNo], live: bool) {
        let changed = numbers.iter().filter(|number| self.segments.set_live(**number, live)).count();
        if changed > 0 {
            self.objects.segments_changed(&self.segments);
        }
        numbers.iter().for_each(|number| self.open_or_close(*number));
    }

    pub(crate) fn come_back(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        entry.last_heard = now;
        entry.lingering = false;
        let was_away = entry.away.take().is_some();
        let segments = entry.segments.clone();
        self.set_live(&segments, true);
        for number in &segments {
            self.segments.get_mut(*number).expect("a session's segments are there").progress = now;
        }
        self.objects.retry_set_aside();
        self.news.room |= was_away;
        self.ask_again(session, fx);
        self.tell_again(session, fx);
    }

    /// Sends an owner what it has not answered yet, but for fences.
    fn ask_again(&mut self, owner: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(owner) else { return };
        if entry.segments.iter().any(|number| self.segments.get(*number).is_some_and(|s| !s.obeys(self.epoch.number))) {
            fx.pushes.push((To::Session(owner), Push::TakeEpoch(self.epoch)));
        }
        for recheck in self.touched.each(self.rechecks.values()) {
            let of_owner = self.recheck_of(recheck).filter(|(other, _)| *other == owner);
            fx.pushes.extend(of_owner.map(|(owner, push)| (To::Session(owner), push)));
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
        let number = self.once(origin, 1, fx, |core, fx| core.mount_new(now, origin.session, spec, populated, fx));
        self.serve_waiting(now, fx);
        number
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
        if self.segments.gone().has(spec.uuid) {
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
        self.log(now, Record::SegmentMounted { number, session, spec, epoch: self.epoch.number }, fx);
        self.counts.segments_mounted += 1;
        if populated >= GRANULE {
            self.log(now, Record::SegmentPopulated { number, bytes: populated }, fx);
        }
        self.segments.get_mut(number).expect("mounted").progress = now;
        self.set_live(&[number], live);
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
        let done = self.once(origin, 1, fx, |core, fx| match core.segments.by_uuid(uuid) {
            Some(segment) if segment.session != origin.session => Err(Refused::SegmentTaken(uuid.0, segment.session.0)),
            Some(segment) => {
                let number = segment.number;
                match grace_ms.min(GRACE_MAX_MS) {
                    0 => core.segment_gone(now, number, fx),
                    grace_ms => core.log(now, Record::SegmentLeaves { number, grace_ms }, fx),
                }
                Ok(())
            }
            None if core.segments.gone().has(uuid) => Ok(()),
            None => Err(Refused::SegmentGone(uuid.0)),
        });
        self.serve_waiting(now, fx);
        done
    }

    /// A segment that is not Gone.
    pub fn segment(&self, number: SegmentNo) -> Option<SegmentView<'_>> {
        Some(self.segments.get(number)?.view())
    }

    /// All segments that are not Gone, by number.
    pub fn segments(&self) -> impl Iterator<Item = SegmentView<'_>> {
        self.segments.iter().map(|segment| segment.view())
    }

    /// The same, from a number on.
    pub fn segments_from(&self, first: SegmentNo) -> impl Iterator<Item = SegmentView<'_>> {
        self.segments.numbers_from(first).filter_map(|number| self.segment(number))
    }

    /// The segment of that UUID, unless it is Gone.
    pub fn segment_of(&self, uuid: SegmentUuid) -> Option<SegmentView<'_>> {
        Some(self.segments.by_uuid(uuid)?.view())
    }

    /// Those of a name that are not Gone, by number.
    pub fn segments_named(&self, name: &str) -> impl Iterator<Item = SegmentView<'_>> {
        self.segments.by_name(name).filter_map(|number| self.segment(number))
    }

    /// Owner of a segment that is not Gone.
    pub fn segment_owner(&self, uuid: SegmentUuid) -> Option<SessionId> {
        Some(self.segments.by_uuid(uuid)?.session)
    }
}

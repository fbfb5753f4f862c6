//! Ending puts: committed, aborted, or overdue.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::{Effects, Push};
use crate::ids::{Replica, Time};
use crate::record::Record;
use crate::request::{EndOutcome, Ended, Origin, Refused};
use crate::state::objects::AHEAD;
use crate::work::{ENDED_AS, Work};
use mooncake_ids::{Rid, SessionId};

impl Core {
    /// The writer is through. What is committed is readable from now on.
    pub fn put_end(
        &mut self,
        now: Time,
        origin: Origin,
        ended: &[Ended],
        fx: &mut Effects,
    ) -> Result<Vec<EndOutcome>, Refused> {
        let outcomes = self.once(origin, ended.len(), fx, |core, fx| {
            let mut outcomes = Vec::with_capacity(ended.len());
            for some in ended.chunks(AHEAD) {
                core.foresee_ends(some);
                outcomes.extend(some.iter().map(|ended| core.end_one(now, origin, ended, fx)));
            }
            Ok(outcomes)
        });
        self.serve_waiting(now, fx);
        outcomes
    }

    /// Where the objects are to be found that come of these puts.
    fn foresee_ends(&self, ended: &[Ended]) {
        let hash_of = |ended: &Ended| {
            let slot = ended.replicas.first().and_then(|(rid, _)| self.reservations.by_rid(*rid));
            slot.map_or(0, |slot| self.objects.hash(self.reservations.get(slot).key.as_slice()))
        };
        self.objects.foresee(ended.iter().map(hash_of));
    }

    fn end_one(&mut self, now: Time, origin: Origin, ended: &Ended, fx: &mut Effects) -> EndOutcome {
        let mut mine = |rid: Rid| {
            let slot = self.unfinished_by_rid(now, rid, fx)?;
            self.reservations.get(slot).is_put_of(origin.session).then_some(slot)
        };
        let Some(slot) = ended.replicas.iter().find_map(|(rid, _)| mine(*rid)) else {
            let session = self.sessions.get(origin.session).expect("admitted");
            if ended.replicas.iter().any(|(rid, _)| session.has_committed(*rid)) {
                return EndOutcome::Committed;
            }
            self.counts.puts_superseded += 1;
            return EndOutcome::Superseded;
        };
        let reservation = self.reservations.get(slot);
        let reservation_rid = reservation.rid();
        let is_good = |replica: &Replica| ended.replicas.iter().any(|(rid, good)| *rid == replica.rid && *good);
        let (mut good, mut bad): (SmallVec<[Rid; 1]>, SmallVec<[Replica; 1]>) = Default::default();
        let (mut readable, mut hidden) = (false, false);
        for replica in &reservation.replicas {
            if is_good(replica) {
                good.push(replica.rid);
                readable |= self.segments.is_live(replica.extent.segment);
                hidden |= !self.segments.is_gone(replica.extent.segment);
            } else {
                bad.push(*replica);
            }
        }
        if good.is_empty() {
            self.drop_reservation(now, reservation_rid, fx);
            self.counts.puts_aborted += 1;
            return EndOutcome::Aborted;
        }
        if !readable && hidden && ended.stays {
            return EndOutcome::Hidden;
        }
        // Success is always readable (docs/safety.md, rule 9). What no reader can see now may never come back, and must
        // not appear later either.
        if !readable {
            self.drop_reservation(now, reservation_rid, fx);
            self.counts.puts_superseded += 1;
            return EndOutcome::Superseded;
        }
        let record = Record::Committed { reservation: reservation_rid, good, crc32c: ended.crc32c };
        self.log(now, record, fx);
        for replica in bad {
            self.fence(now, replica, origin.session, false, fx);
        }
        self.counts.puts_committed += 1;
        EndOutcome::Committed
    }

    /// Aborts puts, each as a whole. `writer_done`: no thread and no posted request of the writer will touch the
    /// extents of these rids again. Of other replicas of the same puts that says nothing: they are fenced as those of
    /// any writer.
    pub fn abort(
        &mut self,
        now: Time,
        origin: Origin,
        rids: &[Rid],
        writer_done: bool,
        fx: &mut Effects,
    ) -> Result<(), Refused> {
        let result = self.once(origin, rids.len(), fx, |core, fx| {
            let mut done = if writer_done { rids.to_vec() } else { Vec::new() };
            done.sort_unstable();
            for rid in rids {
                if let Some(slot) = core.unfinished_by_rid(now, *rid, fx) {
                    if core.reservations.get(slot).is_put_of(origin.session) {
                        core.drop_reservation_of(now, *rid, &done, fx);
                        core.counts.puts_aborted += 1;
                    }
                } else if writer_done
                    && let Some(entry) = core.quarantine.get(*rid).copied()
                    && entry.writer == origin.session
                    && !entry.writer_done
                {
                    core.fence(now, entry.replica, entry.writer, true, fx);
                }
            }
            Ok(())
        });
        self.serve_waiting(now, fx);
        result
    }

    /// Ends the puts whose deadline has passed.
    pub(crate) fn expire_reservations(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while !work.is_used_up()
            && let Some(slot) = self.reservations.expired(now)
        {
            work.did(ENDED_AS);
            if self.is_unfinished(now, slot, fx) {
                let reservation = self.reservations.get(slot);
                let rid = reservation.rid();
                match reservation.terms.promotes {
                    Some(_) => self.counts.promotions_expired += 1,
                    None => self.counts.puts_expired += 1,
                }
                self.drop_reservation(now, rid, fx);
            }
        }
    }

    /// Ends an unfinished put: its key is free, its extents wait for their owners' word.
    pub(crate) fn drop_reservation(&mut self, now: Time, rid: Rid, fx: &mut Effects) {
        self.drop_reservation_of(now, rid, &[], fx);
    }

    /// The same of one whose writer is `done` with replicas of these rids, in order.
    pub(crate) fn drop_reservation_of(&mut self, now: Time, rid: Rid, done: &[Rid], fx: &mut Effects) {
        let Some(slot) = self.reservations.by_rid(rid) else { return };
        if !self.clear_lost(now, slot) {
            return;
        }
        let reservation = self.reservations.get(slot);
        let (rid, writer, replicas) = (reservation.rid(), reservation.session, reservation.replicas.clone());
        self.log(now, Record::Dropped(rid), fx);
        for replica in replicas {
            self.fence(now, replica, writer, done.binary_search(&replica.rid).is_ok(), fx);
        }
    }

    /// Asks the owner of an extent in quarantine for its word.
    pub(crate) fn fence(
        &mut self,
        now: Time,
        replica: Replica,
        writer: SessionId,
        writer_done: bool,
        fx: &mut Effects,
    ) {
        let Some(segment) = self.segments.get(replica.extent.segment) else { return };
        let (owner, uuid) = (segment.session, segment.spec.uuid);
        if writer_done {
            self.log(now, Record::WriterDone(replica.rid), fx);
        }
        self.counts.fences_asked += 1;
        self.push(owner, Push::Fence { uuid, replica, writer, writer_done }, fx);
    }
}

//! Memory that outlives its process: sessions that are kept, and the heirs that take their segments over.
//!
//! An heir is a session of its own. What its predecessor asked for, holds or still says is that session's, and ends
//! with it: a call, a resume or a beat that comes late changes nothing for the heir.

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::Time;
use crate::record::Record;
use crate::request::{Claim, Inherited, Keep, Origin, Refused, SessionSpec};
use crate::state::endings::Ending;
use crate::state::session::{GoneTold, Kept};
use mooncake_ids::{SegmentUuid, SessionId};
use mooncake_mutant::mutant;

/// Longest time that a session waits for an heir.
const KEPT_MAX_MS: u64 = 24 * 3600 * 1000;

/// Most segments that an heir gets, all in one hold of the core's lock. A storage node has a few.
const CLAIMED_MAX: usize = 512;

impl Core {
    /// The end of a session's process is not the end of the session from now on, or is again.
    pub fn keep(&mut self, now: Time, origin: Origin, keep: Keep, fx: &mut Effects) -> Result<(), Refused> {
        self.once(origin, 1, fx, |core, fx| {
            let (session, Keep { ms, secret, turn }) = (origin.session, keep);
            core.sessions.known(session)?;
            core.log(now, Record::SessionKept { session, ms: ms.min(KEPT_MAX_MS), secret, turn }, fx);
            Ok(())
        })
    }

    /// A session whose process holds the memory of one that is kept, and has proof that the process of that has ended.
    /// Its segments are Live at once, and closed to placement until the heir has taken the epoch. That other session is
    /// over.
    pub fn open_heir(
        &mut self,
        now: Time,
        spec: SessionSpec,
        claim: &Claim,
        fx: &mut Effects,
    ) -> Result<Inherited, Refused> {
        let (former, kept) = self.check_claim(&spec, claim)?;
        let session = SessionId(self.sessions.last + 1);
        self.log(now, Record::SessionOpened { session, spec }, fx);
        self.counts.sessions_opened += 1;
        let Kept { ms, secret, .. } = kept;
        self.log(now, Record::SessionKept { session, ms, secret, turn: claim.turn }, fx);
        for (uuid, endpoint) in claim.segments.iter().take(CLAIMED_MAX) {
            let Some(segment) = self.segments.by_uuid(*uuid).filter(|segment| segment.session == former) else {
                continue;
            };
            let number = segment.number;
            self.log(now, Record::SegmentMoved { number, session, endpoint: endpoint.clone() }, fx);
        }
        // What the heir does not hold ends with it.
        self.session_over(now, former, Ending::Succeeded, fx);
        let gone_by_now = self.segments.gone().count();
        self.sessions.get_mut(session).expect("it was opened").gone = GoneTold::heard(gone_by_now);
        self.come_back(now, session, fx);
        self.serve_waiting(now, fx);
        let is_gone = |uuid: &SegmentUuid| self.segments.by_uuid(*uuid).is_none_or(|it| it.session != session);
        let gone = claim.segments.iter().map(|(uuid, _)| *uuid).filter(is_gone).collect();
        Ok(Inherited { session, gone })
    }

    /// Whether a session waits for an heir.
    pub fn is_bereft(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(|entry| entry.bereft.is_some())
    }

    /// Whether the memory of a session may have had another owner, or may come to another one.
    pub fn may_change_hands(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(|entry| entry.kept.is_some())
    }

    /// The process of a session that is kept has ended.
    pub(crate) fn bereave(&mut self, now: Time, session: SessionId) {
        self.set_away(now, session);
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.bereft.get_or_insert(now);
        }
    }

    /// The session that has what is claimed, and how it is kept.
    fn check_claim(&self, spec: &SessionSpec, claim: &Claim) -> Result<(SessionId, Kept), Refused> {
        let named = claim.segments.iter().map(|(uuid, _)| uuid).chain(&claim.lost);
        let mut owners = named.filter_map(|uuid| self.segments.by_uuid(*uuid));
        let former = owners.next().map(|segment| segment.session).ok_or(Refused::NotKept)?;
        let entry = self.sessions.get(former).filter(|entry| !entry.ends).ok_or(Refused::NotKept)?;
        let kept = entry.kept.filter(|kept| entry.is_kept() && kept.secret == claim.secret).ok_or(Refused::NotKept)?;
        // Memory lasts as long as the boot of its host.
        if spec.boot_id.is_empty() || spec.boot_id != entry.spec.boot_id {
            return Err(Refused::NotKept);
        }
        // One that was sent before, and lay in a connection until now, is of a process that may have ended since.
        match claim.turn > kept.turn || mutant!(OldClaimsAreTaken) {
            true => Ok((former, kept)),
            false => Err(Refused::OldClaim(claim.turn, kept.turn)),
        }
    }
}

//! Tiers on file systems that several sessions have: read by each of them, though the writer is gone, and adopted by
//! one that writes a tier there itself.

use crate::core::Core;
use crate::effect::{Effects, Push};
use crate::ids::{SegmentNo, Time};
use crate::request::Refused;
use crate::state::tier::Mounted;
use crate::work::Work;
use mooncake_ids::{FileSystemUuid, SessionId};

/// A session that was asked to adopt a tier has so long, until another one may be.
const ADOPTION_MS: u64 = 10_000;

/// Most tiers of others that a session has beside its own.
const ADOPTED_MAX: usize = 16;

impl Core {
    /// A session says which file system it finds below the shared folder: it reads tiers there by itself, whoever wrote
    /// them. Said again with each anchor.
    pub fn announce(
        &mut self,
        now: Time,
        session: SessionId,
        file_system: FileSystemUuid,
        fx: &mut Effects,
    ) -> Result<(), Refused> {
        self.sessions.known(session)?;
        if self.config.shared_storage.is_none() {
            return Err(Refused::TiersNotAllowed);
        }
        self.tiers.announce(file_system, session);
        for number in self.tiers.hidden_on(file_system) {
            self.set_tier_mounted(number, Mounted::Left);
            self.news.room = true;
        }
        self.serve_waiting(now, fx);
        Ok(())
    }

    /// A session is away, or over: it reads no file system.
    pub(crate) fn announces_no_more(&mut self, now: Time, session: SessionId) {
        for file_system in self.tiers.announces_no_more(session) {
            for number in self.tiers.left_on(file_system) {
                self.set_tier_mounted(number, Mounted::Hidden(now));
            }
        }
    }

    /// Tells writers how many they are, by which they divide the room, and one of them of each tier whose writer is
    /// gone.
    pub(crate) fn look_after_shared(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        if self.tiers.is_empty() {
            return;
        }
        for (file_system, writers) in self.tiers.writers_to_be_told() {
            let count = writers.len();
            for number in writers {
                let tier = self.tiers.get(number).expect("it is written");
                let (owner, tier) = (tier.session, tier.spec.uuid);
                self.push(owner, Push::TierShared { tier, writers: count, left: None }, fx);
            }
            self.tiers.writers_told(file_system, count);
            work.did(count);
        }
        let is_due = |asked_at: Option<Time>| asked_at.is_none_or(|at| at.plus_ms(ADOPTION_MS) <= now);
        let left: Vec<(SegmentNo, FileSystemUuid)> = self
            .tiers
            .iter()
            .filter(|(_, tier)| matches!(tier.mounted, Mounted::Left) && is_due(tier.asked_at))
            .filter_map(|(number, tier)| Some((number, tier.file_system?)))
            .collect();
        for (number, file_system) in left {
            let mut writers = self.tiers.writers(file_system).into_iter();
            let adopter = writers.find(|writer| {
                let session = self.tiers.get(*writer).expect("it is written").session;
                self.tiers.adopted_by(session) < ADOPTED_MAX
            });
            let Some(adopter) = adopter.and_then(|writer| self.tiers.get(writer)) else { continue };
            let (owner, tier, writers) = (adopter.session, adopter.spec.uuid, self.tiers.writers(file_system).len());
            let tier_left = self.tiers.get_mut(number).expect("it is there");
            tier_left.asked_at = Some(now);
            let left = Some(tier_left.spec.uuid);
            self.push(owner, Push::TierShared { tier, writers, left }, fx);
            work.did(1);
        }
    }
}

//! Tiers on file systems that several sessions have: read by each of them, though the writer is gone, and adopted by
//! one that writes a tier there itself.

use std::collections::BTreeMap;

use crate::core::Core;
use crate::effect::{Effects, Push};
use crate::ids::{SegmentNo, Time};
use crate::request::Refused;
use crate::state::tier::{Mounted, Tier};
use crate::work::Work;
use mooncake_ids::{FileSystemUuid, SessionId};
use mooncake_mutant::mutant;

/// A session that was asked to adopt a tier has so long, until another one may be.
const ADOPTION_MS: u64 = 10_000;

/// A session that is away may come back, and its process write meanwhile: where a file system has no locks, as some
/// that hosts share, another one takes its tier only when it has not been heard of for so long.
const AWAY_BEFORE_ADOPTION_MS: u64 = 30_000;

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
        // The end of its anchor says that it reads nothing: no word that comes behind that counts.
        if self.sessions.known(session)?.away.is_some() && !mutant!(AwaySessionsAnnounce) {
            return Err(Refused::SessionAway(session.0));
        }
        if self.config.shared_storage.is_none() {
            return Err(Refused::TiersNotAllowed);
        }
        self.tiers.announce(file_system, session);
        let is_read = |number| self.tiers.get(number).is_some_and(Tier::is_read);
        let hidden: Vec<_> = self.tiers.left_on(file_system).into_iter().filter(|(it, _)| !is_read(*it)).collect();
        for (number, since) in hidden {
            self.set_tier_mounted(number, Mounted::Left(since));
            self.news.room = true;
        }
        self.serve_waiting(now, fx);
        Ok(())
    }

    /// A session is away, or over: it reads no file system.
    pub(crate) fn announces_no_more(&mut self, session: SessionId) {
        for file_system in self.tiers.announces_no_more(session) {
            for (number, since) in self.tiers.left_on(file_system) {
                self.set_tier_mounted(number, Mounted::Hidden(since));
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
        let is_due = |asked: Option<(Time, SegmentNo)>| asked.is_none_or(|(at, _)| at.plus_ms(ADOPTION_MS) <= now);
        let is_free = |tier: &Tier, since: Time| {
            let is_over = self.sessions.get(tier.session).is_none();
            is_over || since.plus_ms(AWAY_BEFORE_ADOPTION_MS) <= now
        };
        let is_left =
            |tier: &Tier| matches!(tier.mounted, Mounted::Left(since) if is_free(tier, since)) && is_due(tier.asked);
        let left = self.tiers.iter().filter(|(_, tier)| is_left(tier));
        let left: Vec<(SegmentNo, FileSystemUuid)> =
            left.filter_map(|(number, tier)| Some((number, tier.file_system?))).collect();
        if left.is_empty() {
            return;
        }
        let (adopted, mut writers_of) = (self.tiers.adopted(), BTreeMap::new());
        for (number, file_system) in left {
            let writers = writers_of.entry(file_system).or_insert_with(|| self.tiers.writers(file_system));
            let Some(last) = writers.last().copied() else { continue };
            let adopter = self.adopter(number, writers, &adopted);
            // Where none has room for it they are asked again later, too.
            self.tiers.get_mut(number).expect("it is there").asked = Some((now, adopter.unwrap_or(last)));
            work.did(1);
            let Some(adopter) = adopter else { continue };
            let left = self.tiers.get(number).map(|tier| tier.spec.uuid);
            let adopter = self.tiers.get(adopter).expect("it is written");
            let (owner, tier, writers) = (adopter.session, adopter.spec.uuid, writers.len());
            self.push(owner, Push::TierShared { tier, writers, left }, fx);
        }
    }

    /// The writer that is asked next to adopt a tier: in turn, as one of them may not be able to. `adopted`: how many
    /// sessions have.
    fn adopter(
        &self,
        number: SegmentNo,
        writers: &[SegmentNo],
        adopted: &BTreeMap<SessionId, usize>,
    ) -> Option<SegmentNo> {
        let asked = self.tiers.get(number)?.asked;
        let last = asked.and_then(|(_, asked)| writers.iter().position(|writer| *writer == asked));
        let (asked, others) = writers.split_at(last.map_or(0, |last| last + 1));
        let has_room = |writer: &SegmentNo| {
            let session = self.tiers.get(*writer).expect("it is written").session;
            adopted.get(&session).is_none_or(|count| *count < ADOPTED_MAX)
        };
        others.iter().chain(asked).copied().find(has_room)
    }
}

//! Sessions: which are there, what they own, and what they were told.
//!
//! States: `docs/safety.md`, table of the session. Ending is `ends`, whatever else is set; lingering is `lingering`;
//! bereft is `bereft`; away is `away` alone. A session that is over has no entry.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::SmallVec;

use crate::ensure::ensure;
use crate::ids::{SegmentNo, Time};
use crate::request::{Origin, Refused, Remembered, SessionSpec, Sight};
use crate::state::comparing::Comparing;
use crate::state::promotion::RoomSought;
use crate::state::writers::WriterNo;
use crate::touched::Touched;
use mooncake_ids::{Rid, SessionId, TierUuid};

/// Committed rids kept per session, so that a late repeat of an End is answered as what it is.
const COMMITTED_MAX: usize = 1_024;
/// Most mutations that a client may say it still waits for behind others that it has the answers to.
const UNSETTLED_MAX: usize = 16_384;

/// Gone segments told to sessions that come back after a restart of the master, which forgot which ones it told.
pub(crate) const RECENTLY_GONE: u64 = 256;

pub(crate) struct Session {
    pub spec: SessionSpec,
    pub host: Option<u32>,
    /// What its client can be told of. No log has it: it is said again.
    pub sight: Sight,
    /// Since when it is away.
    pub away: Option<Time>,
    pub last_heard: Time,
    pub answered_below: u64,
    pub replies: BTreeMap<u64, Remembered>,
    /// Mutations that are not to be carried out if they still come. No log has them: with this process their
    /// connections end.
    pub abandoned: BTreeSet<u64>,
    /// The client has the answers of all below `settled_to` but these. No log has it: it is said again.
    pub settled_to: u64,
    pub unsettled: BTreeSet<u64>,
    /// Number of the last list of its views that has come. No log has it: with this process their connections end.
    pub listed: u64,
    /// The turn of what it said last of each tier. No log has it: with this process their connections end.
    pub tier_turns: BTreeMap<TierUuid, u64>,
    pub segments: SmallVec<[SegmentNo; 2]>,
    /// Views, with their number per rid.
    pub pins: BTreeMap<Rid, u32>,
    /// Views that it listed and that the master cannot place. No log has it: they are listed again.
    pub unknown_pins: Vec<(Rid, u32)>,
    /// Its views are being compared with a list of them.
    pub comparing: Option<Comparing>,
    /// Views that have ended by such a list, and are yet to be taken out of `pins`: by rid, how many. No log has it:
    /// what is left is not listed again.
    pub ended: Vec<(Rid, u32)>,
    /// Bytes in its unfinished puts.
    pub unfinished: u64,
    /// Bytes in its unfinished promotions.
    pub promoting: u64,
    /// Room for more of them. No log has it.
    pub room_sought: RoomSought,
    /// It would be over but for its views: nothing proves yet that they are not read any more, and what they are on is
    /// still there.
    pub lingering: bool,
    /// It is about to be over: nothing is taken from it any more.
    pub ends: bool,
    /// Which segments that are Gone it knows of.
    pub gone: GoneTold,
    /// It asked to be kept, and perhaps to be kept no more since.
    pub kept: Option<Kept>,
    /// Since when its process is known to have ended, where it is kept. No log has it: that is found out again.
    pub bereft: Option<Time>,
    committed: VecDeque<Rid>,
    /// Its number as one that stores objects, from the first one on. No log has it.
    pub writer: Option<WriterNo>,
}

/// For how long a session waits for an heir, and for which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    /// 0: it is not any more.
    pub ms: u64,
    pub secret: [u8; 16],
    pub turn: u64,
}

/// Of so many segments that are Gone a session knows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GoneTold {
    /// It has heard of these.
    pub heard: u64,
    /// It had been told of these at its last beat that counted: when the next one comes over the same connection it
    /// counts as having heard of them.
    pub told: u64,
    /// When that beat came.
    at: Time,
}

/// Between two beats that count, ms. Those that come closer together may both have crossed what the session was told.
const CROSSING_MS: u64 = 250;

impl GoneTold {
    pub fn heard(count: u64) -> Self {
        GoneTold { heard: count, told: count, at: Time(0) }
    }

    /// It beats, when there are so many.
    pub fn beat(&mut self, now: Time, count: u64) {
        if now >= self.at.plus_ms(CROSSING_MS) {
            *self = GoneTold { heard: self.told, told: count, at: now };
        }
    }

    /// It speaks over another connection.
    pub fn come_back(&mut self) {
        self.told = self.heard;
    }
}

impl Session {
    pub fn remember_committed(&mut self, rid: Rid) {
        if self.committed.len() == COMMITTED_MAX {
            self.committed.pop_front();
        }
        self.committed.push_back(rid);
    }

    /// Bytes of its unfinished puts, or promotions.
    pub fn reserved(&mut self, is_promotion: bool) -> &mut u64 {
        if is_promotion { &mut self.promoting } else { &mut self.unfinished }
    }

    /// Oldest first.
    pub fn committed(&self) -> impl ExactSizeIterator<Item = Rid> + '_ {
        self.committed.iter().copied()
    }

    pub fn has_committed(&self, rid: Rid) -> bool {
        self.committed.contains(&rid)
    }

    /// Views given in replies that the client has not said it has.
    pub fn pins_under_way(&self) -> BTreeMap<Rid, u32> {
        let mut rids = BTreeMap::new();
        for (sequence, reply) in &self.replies {
            let Remembered::Pin(found) = reply else { continue };
            if self.is_settled(*sequence).is_some() {
                continue;
            }
            for found in found.iter().flatten() {
                *rids.entry(found.replicas[0].rid).or_default() += 1;
            }
        }
        rids
    }

    /// The next reply that the client has said it has.
    pub fn next_settled(&self) -> Option<(u64, &Remembered)> {
        let before = self.replies.range(..self.settled_to.max(self.answered_below));
        let mut before = before.map(|(sequence, reply)| (*sequence, reply));
        before.find(|(sequence, _)| self.is_settled(*sequence).is_some())
    }

    /// The mark that the sequence is below and not one of those that the client still waits for: it has the answer, or
    /// wants none.
    pub fn is_settled(&self, sequence: u64) -> Option<u64> {
        match sequence < self.answered_below {
            true => Some(self.answered_below),
            false => (sequence < self.settled_to && !self.unsettled.contains(&sequence)).then_some(self.settled_to),
        }
    }

    /// The end of its process is not its end.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some_and(|kept| kept.ms > 0)
    }

    /// Nothing more is taken from it.
    pub fn is_deaf(&self) -> bool {
        self.ends || self.bereft.is_some()
    }

    /// How long it may be away, where nothing says that its process has ended.
    pub fn retention_ms(&self, retention_ms: u64) -> u64 {
        retention_ms.max(self.kept.map_or(0, |kept| kept.ms))
    }

    /// It never asked for a change: nothing of it is anywhere.
    pub fn is_unused(&self) -> bool {
        self.replies.is_empty() && self.answered_below == 0 && self.segments.is_empty() && self.pins.is_empty()
    }
}

/// Where sessions are.
struct Host {
    number: u32,
    sessions: u32,
}

#[derive(Default)]
pub(crate) struct Sessions {
    map: BTreeMap<SessionId, Session>,
    /// By boot id; gone with the last session there.
    hosts: BTreeMap<Vec<u8>, Host>,
    last_host: u32,
    pub last: u64,
    touched: Touched,
}

impl Sessions {
    /// Sessions, and replies of theirs, that have been looked at.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.touched.add(1);
        self.map.get(&id)
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.touched.add(1);
        self.map.get_mut(&id)
    }

    pub fn known(&self, id: SessionId) -> Result<&Session, Refused> {
        self.get(id).filter(|session| !session.is_deaf()).ok_or(Refused::UnknownSession(id.0))
    }

    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.touched.each(self.map.iter().map(|(id, session)| (*id, session)))
    }

    /// From a number on.
    pub fn from(&self, id: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        self.touched.each(self.map.range(id..).map(|(id, session)| (*id, session)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        self.touched.each(self.map.iter_mut().map(|(id, session)| (*id, session)))
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn insert(&mut self, now: Time, id: SessionId, spec: SessionSpec) {
        let host = (!spec.boot_id.is_empty()).then(|| {
            let host = self.hosts.entry(spec.boot_id.clone()).or_insert_with(|| {
                self.last_host = self.last_host.wrapping_add(1);
                Host { number: self.last_host, sessions: 0 }
            });
            host.sessions += 1;
            host.number
        });
        self.last = self.last.max(id.0);
        self.map.insert(
            id,
            Session {
                spec,
                host,
                sight: Sight::default(),
                away: None,
                last_heard: now,
                answered_below: 0,
                replies: BTreeMap::new(),
                abandoned: BTreeSet::new(),
                settled_to: 0,
                unsettled: BTreeSet::new(),
                listed: 0,
                tier_turns: BTreeMap::new(),
                segments: SmallVec::new(),
                pins: BTreeMap::new(),
                unknown_pins: Vec::new(),
                comparing: None,
                ended: Vec::new(),
                unfinished: 0,
                promoting: 0,
                room_sought: RoomSought::default(),
                lingering: false,
                ends: false,
                gone: GoneTold::default(),
                kept: None,
                bereft: None,
                committed: VecDeque::new(),
                writer: None,
            },
        );
    }

    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.map.remove(&id)?;
        if let Some(host) = self.hosts.get_mut(&session.spec.boot_id) {
            host.sessions -= 1;
            if host.sessions == 0 {
                self.hosts.remove(&session.spec.boot_id);
            }
        }
        Some(session)
    }

    /// Hosts are those of the sessions; nothing that was answered is kept, but where it `is_being_forgotten`; messages
    /// wait only for those that are away.
    pub fn check_invariants(&self, is_being_forgotten: impl Fn(SessionId) -> bool) -> Result<(), String> {
        let mut on_hosts = 0;
        for (id, session) in self.iter() {
            let forgets = is_being_forgotten(id);
            let id = id.0;
            ensure!(id <= self.last, "{id} is above {}, the last that was opened", self.last);
            let host = self.hosts.get(&session.spec.boot_id).map(|host| host.number);
            ensure!(session.host == host, "{id} is on host {:?}, and its boot id is of {host:?}", session.host);
            on_hosts += u32::from(host.is_some());
            let below = session.answered_below;
            let first = session.replies.first_key_value().map(|(sequence, _)| sequence);
            ensure!(
                forgets || first.is_none_or(|first| *first >= below),
                "{id} has answers below {below}, and {first:?} is kept"
            );
            let first = session.abandoned.first();
            ensure!(first.is_none_or(|first| *first >= below), "{id} has answers below {below}, and gave {first:?} up");
            ensure!(session.away.is_some() || !session.lingering, "{id} is here and lingers");
            let waits = session.bereft.is_none() || session.away.is_some() && session.is_kept();
            ensure!(waits, "{id} waits for an heir, and is here or not kept");
            let too_many =
                session.ended.iter().find(|(rid, views)| session.pins.get(rid).is_none_or(|all| all < views));
            ensure!(too_many.is_none(), "{id} has fewer views than have ended: {too_many:?}");
            let committed = session.committed.len();
            ensure!(committed <= COMMITTED_MAX, "{id} keeps {committed} rids");
        }
        let counted: u32 = self.hosts.values().map(|host| host.sessions).sum();
        ensure!(counted == on_hosts, "{on_hosts} are on hosts, and counted {counted}");
        let empty = self.hosts.values().find(|host| host.sessions == 0).map(|host| host.number);
        ensure!(empty.is_none(), "host {empty:?} has none");
        Ok(())
    }

    /// Whether a mutation is new (`None`), a repeat (its reply), or not to be taken at all.
    pub fn admit(&self, origin: Origin, unanswered_max: usize) -> Result<Option<Remembered>, Refused> {
        let session = self.known(origin.session)?;
        // Sequences begin at 1. What comes without one has no reply to repeat: none is remembered.
        if origin.sequence == 0 {
            return Ok(None);
        }
        // Settled comes first: such replies are forgotten in steps, and the answer must not depend on how far that is.
        if let Some(answered_below) = session.is_settled(origin.sequence) {
            return Err(Refused::Forgotten { sequence: origin.sequence, answered_below });
        }
        // Before what is abandoned: a mutation that was done before its caller gave it up stays done (docs/safety.md,
        // rule 6).
        if let Some(reply) = session.replies.get(&origin.sequence) {
            return Ok(Some(reply.clone()));
        }
        if session.abandoned.contains(&origin.sequence) {
            return Err(Refused::Abandoned { sequence: origin.sequence });
        }
        // Last, because only a new mutation adds a reply. Replies that are settled and not forgotten yet do not count.
        if session.replies.len() >= unanswered_max {
            let kept = self.touched.each(session.replies.range(origin.answered_below..));
            let unanswered = kept.filter(|(sequence, _)| session.is_settled(**sequence).is_none()).count();
            if unanswered >= unanswered_max {
                return Err(Refused::TooManyUnanswered(origin.session.0, unanswered, unanswered_max));
            }
        }
        Ok(None)
    }

    /// Mutations that are not carried out from now on, should they come.
    pub fn abandon(&mut self, session: SessionId, sequences: &[u64], most: usize) {
        let Some(session) = self.map.get_mut(&session) else { return };
        // What is below has its answers and is refused as settled. A client makes the master keep `most` at most: the
        // lowest are forgotten first.
        let below = session.answered_below;
        session.abandoned.extend(sequences.iter().take(most).filter(|sequence| **sequence >= below));
        while session.abandoned.len() > most {
            session.abandoned.pop_first();
        }
    }

    /// The client has the answers to all below a mark but a few. Of two such words the one with the higher mark is the
    /// later one, whichever comes first. Whether some are kept that need not be.
    pub fn settle(&mut self, session: SessionId, below: u64, unsettled: &[u64]) -> bool {
        let Some(session) = self.map.get_mut(&session) else { return false };
        // A word that is older or too long changes nothing: replies are kept longer then, and none is lost.
        if below < session.settled_to || unsettled.len() > UNSETTLED_MAX {
            return false;
        }
        // Two words with one mark may come in either order. A client that has an answer keeps it, so that a sequence is
        // unsettled only if both name it.
        let same = below == session.settled_to;
        let said = unsettled.iter().copied().filter(|sequence| !same || session.unsettled.contains(sequence));
        session.unsettled = said.collect();
        session.settled_to = below;
        session.next_settled().is_some()
    }

    /// Notes a reply, and which ones the client has: those are not forgotten yet.
    pub fn remember(&mut self, session: SessionId, sequence: u64, answered_below: u64, reply: &Remembered) -> bool {
        let Some(session) = self.map.get_mut(&session) else { return false };
        // The mark only rises: of two requests the one with the higher mark is the later one, whichever comes first.
        if answered_below > session.answered_below {
            session.answered_below = answered_below;
            session.abandoned = session.abandoned.split_off(&answered_below);
        }
        if sequence >= session.answered_below {
            session.replies.insert(sequence, reply.clone());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_forgotten_with_its_last_session() {
        let mut sessions = Sessions::default();
        let open = |sessions: &mut Sessions, id: u64, boot: u8| {
            let spec = SessionSpec { secret: 0, name: String::new(), boot_id: vec![boot; 16], process: Vec::new() };
            sessions.insert(Time(0), SessionId(id), spec);
            sessions.get(SessionId(id)).unwrap().host
        };
        let first = open(&mut sessions, 1, 7);
        assert_eq!(open(&mut sessions, 2, 7), first);
        let other = open(&mut sessions, 3, 8);
        assert_ne!(other, first);
        sessions.remove(SessionId(1));
        assert_eq!(open(&mut sessions, 4, 7), first, "one of its sessions is still there");
        for id in [2, 4] {
            sessions.remove(SessionId(id));
        }
        assert_eq!(sessions.hosts.len(), 1);
        let again = open(&mut sessions, 5, 9);
        assert!(again != other && again.is_some(), "numbers are not handed out twice");
    }
}

//! Replies to mutations, kept until the client has them (docs/safety.md, rule 6).

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{SegmentNo, Time};
use crate::record::Record;
use crate::request::{EndOutcome, Origin, Refused, Remembered, RemoveOutcome, Verdict};
use crate::work::Work;
use mooncake_ids::SessionId;

/// Keys, rids or views that a client of this version asks about in one mutation at most.
const REQUEST_MAX: usize = 512;

/// Things in a reply that take as long as an object when it is put aside or forgotten.
const THINGS_AS_ONE: usize = 16;

impl Core {
    /// Whether a mutation is new (`None`), a repeat (its reply), or not to be taken at all.
    pub fn admit(&mut self, origin: Origin) -> Result<Option<Remembered>, Refused> {
        let reply = self.sessions.admit(origin, self.config.unanswered_max)?;
        self.counts.replies_repeated += u64::from(reply.is_some());
        Ok(reply)
    }

    /// The same for a mutation of so many things. Clients of this version ask for no more than [`REQUEST_MAX`] at a
    /// time; what earlier ones ask for is carried out in one hold of the lock, however much it is, and counted.
    pub(crate) fn admit_sized(&mut self, origin: Origin, things: usize) -> Result<Option<Remembered>, Refused> {
        self.counts.large_requests += u64::from(things > REQUEST_MAX);
        self.admit(origin)
    }

    /// Carries a mutation of so many things out, once: a repeat gets the reply of its first time, a refusal too.
    pub(crate) fn once<T: Reply>(
        &mut self,
        origin: Origin,
        things: usize,
        fx: &mut Effects,
        body: impl FnOnce(&mut Core, &mut Effects) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        if let Some(reply) = self.admit_sized(origin, things)? {
            return T::recall(reply).map_err(|other| other.refusal(origin));
        }
        let result = body(self, fx);
        self.remember(origin, result.clone().map_or_else(Remembered::Refused, T::remembered), fx);
        result
    }

    /// The client waits for these mutations no more: those that have not been carried out by now never are.
    pub fn abandon(&mut self, session: SessionId, sequences: &[u64]) {
        self.sessions.abandon(session, sequences, self.config.unanswered_max);
    }

    /// The client has the answers to all mutations below a mark but these few. What [`Origin::answered_below`] says
    /// stops at the first of them, and that one may take long.
    pub fn settle_replies(&mut self, session: SessionId, below: u64, unsettled: &[u64]) {
        if self.sessions.settle(session, below, unsettled) {
            self.settled.insert(session);
        }
    }

    /// Goes on forgetting replies that clients have said they have. In steps: one word may settle very many.
    pub(crate) fn forget_settled(&mut self, _: Time, work: &mut Work, _: &mut Effects) {
        while let Some(session) = self.settled.first().copied() {
            let Some((sequence, things)) = self.sessions.get(session).and_then(|entry| {
                let (sequence, reply) = entry.next_settled()?;
                Some((sequence, reply.things()))
            }) else {
                self.settled.pop_first();
                continue;
            };
            if work.is_used_up() {
                return;
            }
            self.forget_reply(session, sequence, things, work);
        }
    }

    /// Forgets the first replies of a session, those below a sequence. False when there was no time for all of them.
    pub(crate) fn forget_replies(&mut self, session: SessionId, below: u64, work: &mut Work) -> bool {
        while let Some((sequence, things)) = self.sessions.get(session).and_then(|entry| {
            let (sequence, reply) = entry.replies.first_key_value().filter(|(sequence, _)| **sequence < below)?;
            Some((*sequence, reply.things()))
        }) {
            if work.is_used_up() {
                return false;
            }
            self.forget_reply(session, sequence, things, work);
        }
        true
    }

    /// Goes on forgetting all replies of a session that ends.
    pub(crate) fn forget_all_replies(&mut self, now: Time, session: SessionId, work: &mut Work, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(session) else { return };
        let Some((last, _)) = entry.replies.last_key_value() else { return };
        let (below, answered_below) = (last + 1, entry.answered_below);
        let mut costs = entry.replies.values().map(|reply| 1 + reply.things() / THINGS_AS_ONE);
        let time = work.left(usize::MAX);
        let fits = costs.try_fold(0, |sum: usize, cost| Some(sum + cost).filter(|sum| *sum < time)).is_some();
        // They go in several steps, and a snapshot may be cut between two of those: if the log then loses its end, and
        // with it the end of the session, a repeat must not be carried out anew (`docs/safety.md`, rule 6).
        if !fits && answered_below < below {
            let word = Record::Replied { session, sequence: 0, answered_below: below, reply: Remembered::Done };
            self.log(now, word, fx);
        }
        self.forget_replies(session, below, work);
    }

    fn forget_reply(&mut self, session: SessionId, sequence: u64, things: usize, work: &mut Work) {
        // A snapshot that is being taken may have yet to write it.
        self.put_aside_reply(session, sequence);
        self.sessions.get_mut(session).expect("it has replies").replies.remove(&sequence);
        work.did(1 + things / THINGS_AS_ONE);
    }

    /// The client of a session has said anew which replies it has.
    pub(crate) fn forget_answered(&mut self, session: SessionId) {
        let below = self.sessions.get(session).map_or(0, |entry| entry.answered_below);
        if !self.forget_replies(session, below, &mut Work::beside_an_operation()) {
            self.settled.insert(session);
        }
    }

    /// Whether the client waits no more for a mutation that is under way in slices: it abandoned the mutation, and may
    /// have gone on since then, which forgets that.
    pub fn is_abandoned(&self, origin: Origin) -> bool {
        let Some(session) = self.sessions.get(origin.session) else { return false };
        let gone_by = origin.sequence != 0 && session.is_settled(origin.sequence).is_some();
        gone_by || session.abandoned.contains(&origin.sequence)
    }

    /// Notes the reply to a mutation. Only for what the shell does in slices; the others do it themselves.
    pub fn remember(&mut self, origin: Origin, reply: Remembered, fx: &mut Effects) {
        // Without a sequence nothing can be repeated. The reply to a session that is over is kept by no session.
        if origin.sequence == 0 || self.sessions.get(origin.session).is_none() {
            return;
        }
        let Origin { session, sequence, answered_below } = origin;
        self.log(Time(0), Record::Replied { session, sequence, answered_below, reply }, fx);
    }
}

/// What a mutation replies, as it is remembered.
pub(crate) trait Reply: Clone {
    fn remembered(self) -> Remembered;

    /// Of a first time; that one back if it was of another kind.
    fn recall(reply: Remembered) -> Result<Self, Remembered>;
}

impl Reply for () {
    fn remembered(self) -> Remembered {
        Remembered::Done
    }

    fn recall(reply: Remembered) -> Result<Self, Remembered> {
        if reply == Remembered::Done { Ok(()) } else { Err(reply) }
    }
}

impl Reply for SegmentNo {
    fn remembered(self) -> Remembered {
        Remembered::Mount(self)
    }

    fn recall(reply: Remembered) -> Result<Self, Remembered> {
        if let Remembered::Mount(number) = reply { Ok(number) } else { Err(reply) }
    }
}

impl Reply for Vec<EndOutcome> {
    fn remembered(self) -> Remembered {
        Remembered::PutEnd(self)
    }

    fn recall(reply: Remembered) -> Result<Self, Remembered> {
        if let Remembered::PutEnd(outcomes) = reply { Ok(outcomes) } else { Err(reply) }
    }
}

impl Reply for Vec<RemoveOutcome> {
    fn remembered(self) -> Remembered {
        Remembered::Remove(self)
    }

    fn recall(reply: Remembered) -> Result<Self, Remembered> {
        if let Remembered::Remove(outcomes) = reply { Ok(outcomes) } else { Err(reply) }
    }
}

impl Reply for Vec<Verdict> {
    fn remembered(self) -> Remembered {
        Remembered::Reclaim(self)
    }

    fn recall(reply: Remembered) -> Result<Self, Remembered> {
        if let Remembered::Reclaim(verdicts) = reply { Ok(verdicts) } else { Err(reply) }
    }
}

impl Remembered {
    /// What it is of: keys or views.
    fn things(&self) -> usize {
        match self {
            Remembered::PutStart(outcomes) => outcomes.len(),
            Remembered::Pin(found) => found.len(),
            Remembered::Reclaim(verdicts) => verdicts.len(),
            _ => 1,
        }
    }

    /// What to say to a repeat whose first answer was of another kind than its own.
    pub(crate) fn refusal(self, origin: Origin) -> Refused {
        match self {
            Remembered::Refused(refused) => refused,
            _ => Refused::SequenceReused { session: origin.session.0, sequence: origin.sequence },
        }
    }
}

//! The session of a store with its master, as the anchor keeps it: heartbeats, what the master asks of an owner, and
//! the way back after either side was away.
//!
//! A driver has one connection at most. It calls [`Anchor::step`] and carries the outputs out, in their order. While it
//! is connected it then hears what has come ([`Anchor::hear`]), and lets the anchor speak ([`Anchor::tell`],
//! [`Anchor::beat`]), at the latest at the time that `step` has named; then it begins anew. When a connection breaks it
//! says so ([`Anchor::lost`]); what becomes of a try to connect it says with [`Anchor::answered`] or
//! [`Anchor::failed`].

use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_mutant::mutant;
use mooncake_segment::{Epoch, Fence};
use mooncake_wire::Feature;
use mooncake_wire::message::{
    AnchorDown, AnchorUp, Beat, Claim, EpochTaken, Goodbye, HelloReply, LogPosition, OpenSession, Populated,
    ProcessIdentity, anchor_down, anchor_up, hello,
};

use super::anchor_context::AnchorContext;
use super::pins::Listing;
use super::position::epoch_of;
use super::reachability::Reachability;

mod output;
#[cfg(test)]
mod tests;
mod way_back;

pub use output::{Output, Outputs, Recheck, Taking};
use way_back::Try;

/// Time between two beats.
const BEAT: Duration = Duration::from_millis(500);

/// Time between two pings of a master that does not answer.
const PING: Duration = Duration::from_millis(100);

/// How long a master keeps a session that is away; after that it has nothing left to end.
const RETENTION: Duration = Duration::from_secs(600);

/// Time between two tries to reach a master again.
pub const RECONNECT: Duration = Duration::from_millis(100);

/// Without a word for this long the connection is given up for a new one.
const SILENCE: Duration = Duration::from_secs(4);

/// Longest time for one try to reach one master.
pub const TRY: Duration = Duration::from_secs(3);

/// How a store identifies itself.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its name, "host:port".
    pub name: String,
    /// Its process, without a mark.
    pub process: ProcessIdentity,
    /// Shown to owners of what this process maps: see [`mooncake_segment::LinkOptions::mark`].
    pub mark: u64,
}

impl Identity {
    /// What the hello of a new session asks for.
    pub fn open(&self) -> hello::Role {
        let process = ProcessIdentity { mark: self.mark, ..self.process.clone() };
        hello::Role::Open(OpenSession { host_name: self.name.clone(), process: Some(process), claim: None })
    }

    /// The same of a session that claims memory which this process holds.
    pub fn claim(&self, claim: Claim) -> hello::Role {
        match self.open() {
            hello::Role::Open(open) => hello::Role::Open(OpenSession { claim: Some(claim), ..open }),
            other => other,
        }
    }
}

/// The anchor.
#[derive(Debug)]
pub struct Anchor {
    identity: Identity,
    /// How many there are to try.
    masters: usize,
    session: SessionId,
    state: State,
    next_beat: Duration,
    /// Of the last beat.
    number: u64,
    /// The next try to connect is not made before.
    next_try: Duration,
    next_master: usize,
    /// Since when the last view of a closed store has ended.
    ending_since: Option<Duration>,
    /// What this master has shown of its log: which one it is, and in which epoch.
    shown: LogPosition,
    /// Sent messages that the master does not ask for again and no later message repeats, each with the number of the
    /// beat behind it. The pong of that beat says that the message came.
    facts: Vec<(u64, AnchorUp)>,
}

#[derive(Debug)]
struct SessionId {
    id: u64,
    secret: u64,
    /// Random id of the master's process.
    instance: Vec<u8>,
}

impl SessionId {
    fn of(reply: &HelloReply) -> Self {
        SessionId { id: reply.session, secret: reply.secret, instance: reply.instance.to_vec() }
    }
}

#[derive(Debug)]
enum State {
    Connected {
        /// What the master said that it knows.
        features: u64,
    },
    Away,
    /// The goodbye is said, and nothing comes behind it. The master's answer is that the session is over.
    Parting,
    /// A hello is on its way that resumes the session.
    Resuming(Try, Listing),
    /// The master did not know the session; a hello is on its way that begins another one. Until that has begun the
    /// list is still to come: another master may know the session.
    Opening(Try, Listing),
}

impl Anchor {
    /// Of a session that has just begun, with one of so many masters.
    pub fn new(now: Duration, identity: Identity, masters: usize, reply: &HelloReply) -> Self {
        Anchor {
            identity,
            masters,
            session: SessionId::of(reply),
            state: State::Connected { features: reply.features },
            next_beat: now,
            number: 0,
            next_try: now + RECONNECT,
            next_master: 0,
            ending_since: None,
            shown: reply.position.unwrap_or_default(),
            facts: Vec::new(),
        }
    }

    /// Whether there is a connection to hear and to speak over.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// The anchor is awake: ends the session or the connection, or says what comes next. While it waits for the outcome
    /// of a try, which the driver owes it within [`TRY`], there is nothing.
    pub fn step(&mut self, now: Duration, context: &mut AnchorContext<'_>, out: &mut Outputs) {
        if matches!(self.state, State::Resuming(..) | State::Opening(..)) {
            return;
        }
        if context.wants.is_ending() && self.has_ended(now, context, out) {
            out.push(Output::Stop);
            return;
        }
        if matches!(self.state, State::Parting) {
            return self.wait_for_leave(now, context, out);
        }
        if context.wants.take_resume() {
            if self.is_connected() {
                self.state = State::Away;
                out.push(Output::HangUp { silent: false });
            }
            self.next_try = now;
        }
        if self.is_connected() {
            self.next_beat = self.next_beat.min(now + interval(context.reachability));
            out.push(Output::WaitUntil(self.next_beat));
        } else if now < self.next_try {
            out.push(Output::WaitUntil(self.next_try));
        } else {
            out.push(Output::Reconnect);
        }
    }

    /// Nothing is left that the master has to be told. What it holds for this
    /// session is held until it hears so: without a connection that waits.
    fn has_ended(&mut self, now: Duration, context: &mut AnchorContext<'_>, out: &mut Outputs) -> bool {
        if !context.pins.seal() && !mutant!(GoodbyeDoesNotWaitForViews) {
            self.ending_since = None;
            return false;
        }
        let since = *self.ending_since.get_or_insert(now);
        if self.is_connected() && (context.pins.is_empty() || mutant!(GoodbyeDoesNotWaitForViews)) {
            out.push(Output::Goodbye(up(anchor_up::Body::Goodbye(Goodbye {}))));
            self.state = State::Parting;
            return mutant!(GoodbyeIsSaidOnce);
        }
        now.saturating_sub(since) > RETENTION
    }

    /// A goodbye that did not arrive is said again over another connection: the process may live on, and what its
    /// session holds would be held as long.
    fn wait_for_leave(&mut self, now: Duration, context: &AnchorContext<'_>, out: &mut Outputs) {
        if context.reachability.silence(now) > SILENCE {
            self.state = State::Away;
            out.push(Output::HangUp { silent: true });
        }
        out.push(Output::WaitUntil(now + BEAT));
    }

    // ------------------------------------------------------- with a connection

    /// Hears the master.
    pub fn hear(&mut self, now: Duration, message: AnchorDown, context: &mut AnchorContext<'_>, out: &mut Outputs) {
        match message.body {
            Some(anchor_down::Body::Pong(pong)) => {
                context.reachability.pong(now);
                self.facts.retain(|(beat, _)| *beat > pong.number);
                if context.pins.confirmed(pong.unpin_sequence) {
                    context.sequences.answered(pong.unpin_sequence);
                }
                if let Some(position) = pong.position {
                    self.see(position, context);
                }
                // Cheap when the epoch is not new and no owner asks.
                out.push(Output::Obey(epoch_of(&self.shown)));
            }
            Some(anchor_down::Body::Fence(fence)) => {
                let Some(uuid) = uuid(&fence.uuid) else { return };
                out.push(Output::Fence(Fence {
                    uuid,
                    rid: Rid(fence.rid),
                    offset: fence.offset,
                    len: fence.length,
                    writer: fence.writer,
                    writer_done: fence.writer_done,
                }));
            }
            Some(anchor_down::Body::Recheck(recheck)) => {
                let Some(uuid) = uuid(&recheck.uuid) else { return };
                out.push(Output::Recheck(Recheck {
                    uuid,
                    rid: Rid(recheck.rid),
                    offset: recheck.offset,
                    length: recheck.length,
                    crc: recheck.crc32c,
                }));
            }
            Some(anchor_down::Body::TakeEpoch(take)) => {
                // Before it is obeyed: whatever becomes of this connection, the next hello shows which epoch that was.
                self.see(LogPosition { lsn: 0, epoch: take.epoch, epoch_id: take.epoch_id, ..self.shown }, context);
                out.push(Output::TakeEpoch(Epoch { number: take.epoch as u16, id: take.epoch_id }));
                out.push(Output::Obey(epoch_of(&self.shown)));
            }
            Some(anchor_down::Body::SegmentGone(gone)) => {
                let Some(uuid) = uuid(&gone.uuid) else { return };
                let pinned = gone.pinned.iter().map(|extent| (extent.offset, extent.length)).collect();
                out.push(Output::SegmentGone { uuid, number: gone.number, pinned });
            }
            Some(anchor_down::Body::SessionOver(_)) if context.wants.is_ending() => out.push(Output::Stop),
            Some(anchor_down::Body::SessionOver(_)) if context.wants.is_closing() => {}
            Some(anchor_down::Body::SessionOver(over)) => {
                out.push(Output::Ended { reason: over.reason });
                context.wants.resume();
            }
            Some(anchor_down::Body::ReaderGoneTaken(taken)) => context.deaths.taken(taken.session, &taken.uuid),
            Some(anchor_down::Body::TierOrder(order)) => out.push(Output::TierOrder(order)),
            Some(anchor_down::Body::TierPromote(promote)) => out.push(Output::TierPromote(promote)),
            Some(anchor_down::Body::TierRetire(retire)) => out.push(Output::TierRetire(retire)),
            Some(anchor_down::Body::TierRecheck(recheck)) => out.push(Output::TierRecheck(recheck)),
            Some(anchor_down::Body::TierAllOrdered(all)) => out.push(Output::TierAllOrdered(all)),
            Some(anchor_down::Body::TierShared(shared)) => out.push(Output::TierShared(shared)),
            // Something newer than this client.
            None => {}
        }
    }

    /// The owner has been asked to take an epoch.
    pub fn epoch_asked(&mut self, epoch: Epoch, taking: Taking, context: &mut AnchorContext<'_>) {
        match taking {
            Taking::Begun => {}
            // The next hello has the master leave it.
            Taking::TwoEpochs => {
                context.note(&LogPosition { lsn: u64::MAX, ..self.shown });
                context.wants.resume();
            }
            Taking::NoOwner => {
                let taken = EpochTaken { epoch: u32::from(epoch.number), segments: Vec::new() };
                context.up.push(up(anchor_up::Body::EpochTaken(taken)));
            }
        }
    }

    /// The master has shown a position, which may be one that an earlier message has gone beyond.
    fn see(&mut self, position: LogPosition, context: &mut AnchorContext<'_>) {
        context.note(&position);
        if position.epoch >= self.shown.epoch {
            self.shown = position;
        }
    }

    /// Sends what waits. True if a beat is due behind it: then [`Anchor::beat`]. `reports`: the owner has new figures.
    #[must_use]
    pub fn tell(&mut self, now: Duration, reports: bool, context: &mut AnchorContext<'_>, out: &mut Outputs) -> bool {
        let State::Connected { features } = self.state else { return false };
        if context.reachability.silence(now) > SILENCE {
            self.state = State::Away;
            out.push(Output::HangUp { silent: true });
            return false;
        }
        let due = now >= self.next_beat || context.wants.take_ping() || context.pins.wants_to_send() || reports;
        for message in std::mem::take(context.up) {
            if !is_asked_for_again(&message) && !mutant!(FactsAreToldOnce) {
                self.facts.push((self.number + 1, message.clone()));
            }
            out.push(Output::Send(message));
        }
        if Feature::ReaderGone.is_in(features) {
            // The store tells again, over the next connection, what does not get through.
            let epoch = epoch_of(&self.shown);
            out.extend(context.deaths.to_tell(now, epoch).into_iter().map(|body| Output::Send(up(body))));
        }
        due
    }

    /// Sends a beat. `populated`: what the owner has populated since the last one.
    pub fn beat(
        &mut self,
        now: Duration,
        populated: Vec<Populated>,
        context: &mut AnchorContext<'_>,
        out: &mut Outputs,
    ) {
        self.number += 1;
        let (unpin_sequence, unpin) = context.pins.to_send(|| context.sequences.begin()).unwrap_or_default();
        let unpin = unpin.into_iter().map(|rid| rid.0).collect();
        let moved = context.progress.moved(now).into_iter().map(|rid| rid.0).collect();
        let beat = Beat { number: self.number, moved, populated, unpin, unpin_sequence };
        out.push(Output::Send(up(anchor_up::Body::Beat(beat))));
        self.next_beat = now + interval(context.reachability);
    }

    /// The connection broke. `unsent`: what the driver was to send last and did not, as far as it knows.
    pub fn lost(&mut self, mut unsent: Vec<AnchorUp>, context: &mut AnchorContext<'_>) {
        self.state = State::Away;
        // The next connection begins with a beat and the readers that ended, and ends with the goodbye. Tiers are
        // mounted anew then: by that the master knows what was written, and what is said of their disks comes with it.
        unsent.retain(|message| {
            use anchor_up::Body::{Beat, Goodbye, ReaderGone, TierStats, TierWritten};
            !matches!(&message.body, Some(Beat(_) | ReaderGone(_) | Goodbye(_) | TierStats(_) | TierWritten(_)))
        });
        let facts = unsent.iter().filter(|message| !is_asked_for_again(message)).count();
        self.facts.truncate(self.facts.len().saturating_sub(facts));
        // The master answers a fence twice gladly; it must not miss one.
        context.put_back(unsent);
    }
}

fn interval(reachability: &Reachability) -> Duration {
    if reachability.is_unreachable() { PING } else { BEAT }
}

fn up(body: anchor_up::Body) -> AnchorUp {
    AnchorUp { body: Some(body) }
}

/// Whether nothing is lost for good with a message: the master asks once more for what it has asked for, the next beat
/// says what the last one said, a goodbye is said until it is answered, and a tier is mounted anew.
fn is_asked_for_again(message: &AnchorUp) -> bool {
    use anchor_up::Body::{Beat, EpochTaken, FenceDone, Goodbye, Rechecked, TierStats, TierWritten};
    match &message.body {
        None | Some(Beat(_) | FenceDone(_) | Rechecked(_) | EpochTaken(_) | Goodbye(_)) => true,
        body => matches!(body, Some(TierStats(_) | TierWritten(_))),
    }
}

fn uuid(bytes: &[u8]) -> Option<SegmentUuid> {
    bytes.try_into().ok()
}

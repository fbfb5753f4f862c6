//! How the anchor comes back after either side was away: it resumes the session, or begins another one where the master
//! does not know it.

use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_mutant::mutant;
use mooncake_wire::Feature;
use mooncake_wire::message::{HelloReply, ResumeSession, hello, refusal};

use super::{Anchor, Output, Outputs, RECONNECT, SessionId, State, TRY, uuid};
use crate::machine::anchor_context::AnchorContext;
use crate::machine::pins::{ListAnswer, Listing};
use crate::machine::position::epoch_of;

/// A try to reach one master.
#[derive(Debug, Clone, Copy)]
pub(super) struct Try {
    pub master: usize,
    by: Duration,
}

impl Anchor {
    /// Tries to come back. `held`: this store's segments, each with the highest epoch that it has taken.
    pub fn reconnect(
        &mut self,
        now: Duration,
        held: &[(SegmentUuid, u16)],
        context: &mut AnchorContext<'_>,
        out: &mut Outputs,
    ) {
        self.next_try = now + RECONNECT;
        // The connection may have ended before they came.
        context.put_back(self.facts.drain(..).map(|(_, fact)| fact).collect());
        let master = self.next_master;
        self.next_master = (master + 1) % self.masters;
        // Before the list is made: a view whose reply is here by now is on it, or comes too late for it and is void.
        let (settled_below, mut unsettled) = context.sequences.settled();
        let listing = context.pins.list();
        unsettled.retain(|sequence| !listing.held_back.contains(sequence));
        let role = hello::Role::Resume(ResumeSession {
            session: self.session.id,
            secret: self.session.secret,
            process: Some(self.identity.process.clone()),
            host_name: self.identity.name.clone(),
            segments: held.iter().map(|(uuid, _)| uuid.0.to_vec().into()).collect(),
            pins: if mutant!(ViewsAreNotListed) { Vec::new() } else { listing.rids.iter().map(|rid| rid.0).collect() },
            // A master that does not know of the epochs below opens all of the segments by this one.
            epoch_taken: held.iter().map(|(_, taken)| u32::from(*taken)).min().unwrap_or(0),
            settled_below,
            unsettled,
            list: listing.number,
            epochs: held.iter().map(|(_, taken)| u32::from(*taken)).collect(),
        });
        let attempt = Try { master, by: now + TRY };
        self.state = State::Resuming(attempt, listing);
        out.push(attempt.connect(role, context));
    }

    /// The try has failed.
    pub fn failed(&mut self, reason: String, context: &mut AnchorContext<'_>, out: &mut Outputs) {
        if let State::Resuming(_, listing) | State::Opening(_, listing) =
            std::mem::replace(&mut self.state, State::Away)
        {
            context.pins.unlist(listing);
        }
        out.push(Output::Unreachable { reason });
    }

    /// The master has replied to the hello.
    pub fn answered(&mut self, now: Duration, reply: &HelloReply, context: &mut AnchorContext<'_>, out: &mut Outputs) {
        match std::mem::replace(&mut self.state, State::Away) {
            State::Resuming(attempt, listing) => self.resume_answered(now, attempt, listing, reply, context, out),
            State::Opening(attempt, listing) => self.open_answered(now, attempt, listing, reply, context, out),
            // The anchor has not asked.
            other => self.state = other,
        }
    }

    fn resume_answered(
        &mut self,
        now: Duration,
        attempt: Try,
        listing: Listing,
        reply: &HelloReply,
        context: &mut AnchorContext<'_>,
        out: &mut Outputs,
    ) {
        let is_known = match &reply.refusal {
            None => true,
            Some(refusal) if refusal.kind() == refusal::Kind::UnknownSession => false,
            Some(refusal) => {
                context.pins.unlist(listing);
                out.push(Output::Unreachable { reason: refusal.reason.clone() });
                return;
            }
        };
        if is_known {
            list_arrived(&listing, context);
            // Before any epoch is obeyed.
            let another = reply.instance[..] != self.session.instance[..] && !mutant!(AnotherMasterCountsAsTheSame);
            let unknown: Vec<Rid> = reply.unknown_pins.iter().copied().map(Rid).collect();
            if context.pins.listed(&listing, self.list_answer(reply, &unknown), another) {
                context.wants.resume();
            }
            self.session.instance = reply.instance.to_vec();
            self.connected(now, attempt, reply, context, out);
            let gone = reply.gone_segments.iter().filter_map(|gone| uuid(gone)).collect();
            let unknown_views = (!context.pins.all_listed()).then_some(reply.unknown_pins.len());
            out.push(Output::Resumed { gone, unknown_views });
        } else if context.wants.is_closing() {
            // The master has ended it, as asked. Nothing is to begin any more.
            context.pins.unlist(listing);
            if context.wants.is_ending() {
                out.push(Output::Stop);
            }
            out.push(Output::Unreachable { reason: "the store is being closed".into() });
        } else {
            self.state = State::Opening(attempt, listing);
            out.push(attempt.connect(self.identity.open(), context));
        }
    }

    fn open_answered(
        &mut self,
        now: Duration,
        attempt: Try,
        listing: Listing,
        reply: &HelloReply,
        context: &mut AnchorContext<'_>,
        out: &mut Outputs,
    ) {
        if let Some(refusal) = &reply.refusal {
            context.pins.unlist(listing);
            out.push(Output::Unreachable { reason: refusal.reason.clone() });
            return;
        }
        list_arrived(&listing, context);
        // Everything that hung on the old session is void: placements, pins, segments.
        context.pins.start_over();
        context.progress.start_over();
        context.deaths.start_over();
        context.up.clear();
        out.push(Output::StartOver);
        self.session = SessionId::of(reply);
        self.connected(now, attempt, reply, context, out);
        out.push(Output::Began);
    }

    fn connected(
        &mut self,
        now: Duration,
        attempt: Try,
        reply: &HelloReply,
        context: &mut AnchorContext<'_>,
        out: &mut Outputs,
    ) {
        if let Some(position) = &reply.position {
            context.note(position);
            self.shown = *position;
            out.push(Output::Obey(epoch_of(position)));
        }
        context.deaths.tell_again();
        self.state = State::Connected { features: reply.features };
        self.next_master = attempt.master;
        self.next_beat = now;
    }

    /// What a master says of the views that it was given a list of, `unknown` being what it names. An older one says
    /// nothing: if its epoch is as before, it has lost none.
    fn list_answer<'a>(&self, reply: &HelloReply, unknown: &'a [Rid]) -> ListAnswer<'a> {
        if Feature::UnknownPins.is_in(reply.features) {
            return ListAnswer::Unknown(unknown);
        }
        match &reply.position {
            Some(position)
                if position.epoch == self.shown.epoch && !epoch_of(position).clashes_with(epoch_of(&self.shown)) =>
            {
                ListAnswer::Unchanged
            }
            _ => ListAnswer::Silent,
        }
    }
}

/// Of what the list says nothing is waited for any more.
fn list_arrived(listing: &Listing, context: &mut AnchorContext<'_>) {
    if let Some(replaced) = listing.replaced() {
        context.sequences.answered(replaced);
    }
    context.pins.arrived().into_iter().for_each(|sequence| context.sequences.answered(sequence));
}

impl Try {
    fn connect(&self, role: hello::Role, context: &AnchorContext<'_>) -> Output {
        Output::Connect { master: self.master, role, highest: *context.position, by: self.by }
    }
}

//! What a client says on its session's anchor, and what the master does about it: beats, what an owner has done, and
//! whose end a process has seen.

use mooncake_core::{Core, Effects, OrdersAnswered, Origin, Populated, Promoted, Refused, SegmentNo, TierStats, Time};
use mooncake_ids::{Rid, SegmentUuid, SessionId, TierUuid};
use mooncake_mutant::mutant;
use mooncake_wire::message::{
    AnchorDown, AnchorUp, Beat, LogPosition, Pong, ProcessIdentity, ReaderGone, ReaderGoneTaken, anchor_down, anchor_up,
};
use prost::Message;

use super::anchors::{self, Anchor, AnchorTable, Replaced};
use super::convert::{self, Bad};

/// A frame that makes sense.
#[derive(Debug)]
pub enum Said {
    /// A heartbeat.
    Beat(Heartbeat),
    /// An owner has proof that nothing can land in these extents any more.
    FenceDone(Vec<Rid>),
    /// An owner has looked at a replica again.
    Rechecked {
        /// Which.
        rid: Rid,
        /// It is what it should be.
        good: bool,
    },
    /// An owner's segments obey an epoch.
    EpochTaken {
        /// The epoch.
        epoch: u16,
        /// The segments.
        segments: Vec<SegmentUuid>,
    },
    /// The process that owned this memory is gone: a process of the same host has its pidfd.
    PeerGone {
        /// The memory.
        uuid: SegmentUuid,
        /// That process, unless an older version says it.
        process: Option<ProcessIdentity>,
    },
    /// A process that had the sender's memory mapped is gone: the sender has its pidfd.
    ReaderGone {
        /// Its session, as it said itself.
        reader: SessionId,
        /// The memory.
        uuid: SegmentUuid,
        /// What that process has told to the master and to owners alone.
        mark: u64,
    },
    /// The session closes.
    Goodbye,
    /// An owner has answered orders for its tier.
    TierWritten {
        /// The tier.
        tier: TierUuid,
        /// What it says of them.
        answered: OrdersAnswered,
    },
    /// An owner has made copies of what its tier has, or could not.
    TierPromoted(Vec<Promoted>),
    /// What the owner of a tier has had its disk do.
    TierStats {
        /// The tier.
        tier: TierUuid,
        /// What it says.
        stats: TierStats,
    },
    /// The session will close within so many milliseconds, and brings what its tiers have not to the disk before.
    Closing(u64),
}

/// What a beat says.
#[derive(Debug, Default)]
pub struct Heartbeat {
    number: u64,
    /// Rids whose bytes have moved since the last one.
    moved: Vec<Rid>,
    populated: Vec<Populated>,
    /// Views that ended, and the number of the mutation that this is; 0 for none.
    unpin: Vec<Rid>,
    unpin_sequence: u64,
}

/// What came of a frame: [`Pongs::reply`] says it.
#[derive(Debug)]
pub enum Heard {
    /// Nothing to be said.
    Done,
    /// Of a beat.
    Beat {
        /// The beat's.
        number: u64,
        /// The mutation that it confirms, 0 for none.
        unpin_sequence: u64,
        /// What became of the views that it gave back.
        unpinned: Result<(), Refused>,
    },
    /// A client's process is proven gone, and its session over.
    PeerGone(SessionId),
    /// An owner's word about a reader was looked at.
    ReaderGone {
        /// The reader.
        reader: SessionId,
        /// The owner's memory.
        uuid: SegmentUuid,
        /// What it is worth.
        judged: Judged,
    },
}

/// What an owner's word about the end of a reader's process is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// The reader's session is no more.
    Over,
    /// What ended is not the reader's process, or its owner cannot have seen that.
    NoProof,
    /// The session is over by it.
    Proven,
    /// It is proven, and the reader's anchor is still there, which keeps it, or its session has not ended yet. The
    /// owner says it again.
    ForLater,
}

impl Said {
    /// What a client would say whose frames are not read: that it is there.
    pub fn still_there() -> Said {
        Said::Beat(Heartbeat::default())
    }

    /// Reads a frame. `None`: a newer client's message, which is ignored, as unknown fields are.
    pub fn read(message: AnchorUp) -> Result<Option<Said>, Bad> {
        use anchor_up::Body;
        let Some(body) = message.body else { return Ok(None) };
        Ok(Some(match body {
            Body::Beat(beat) => Said::Beat(Heartbeat::read(&beat)?),
            Body::FenceDone(done) => Said::FenceDone(convert::rids(&done.rids)),
            Body::Rechecked(checked) => Said::Rechecked { rid: Rid(checked.rid), good: checked.good },
            Body::EpochTaken(taken) => Said::EpochTaken {
                epoch: convert::epoch(taken.epoch)?,
                segments: taken.segments.iter().map(|uuid| convert::uuid(uuid)).collect::<Result<_, _>>()?,
            },
            Body::PeerGone(gone) => Said::PeerGone { uuid: convert::uuid(&gone.uuid)?, process: gone.process },
            Body::ReaderGone(ReaderGone { session, uuid, mark }) => {
                Said::ReaderGone { reader: SessionId(session), uuid: convert::uuid(&uuid)?, mark }
            }
            Body::Goodbye(_) => Said::Goodbye,
            Body::TierWritten(said) => {
                Said::TierWritten { tier: convert::tier_uuid(&said.tier)?, answered: convert::orders_answered(said)? }
            }
            Body::TierStats(said) => {
                Said::TierStats { tier: convert::tier_uuid(&said.tier)?, stats: convert::tier_stats(&said) }
            }
            Body::Closing(said) => Said::Closing(said.within_ms),
            Body::TierPromoted(said) => Said::TierPromoted(convert::promoted(&said)),
        }))
    }

    /// Does what a frame asks for that came on a connection.
    pub fn obey<L: AnchorTable>(
        self,
        core: &mut Core,
        anchors: &mut L,
        now: Time,
        from: Anchor<'_, L::Queue>,
        effects: &mut Effects,
    ) -> Result<Heard, Replaced> {
        let session = from.session;
        // What a process has seen of another one's end is as true on a connection that has been replaced.
        if !matches!(self, Said::PeerGone { .. } | Said::ReaderGone { .. }) {
            anchors::check(anchors, from)?;
        }
        match self {
            Said::Beat(beat) => return Ok(beat.obey(core, now, session, effects)),
            Said::TierWritten { tier, answered } => core.orders_answered(now, session, tier, &answered, effects),
            Said::TierStats { tier, stats } => core.tier_stats(session, tier, stats),
            Said::Closing(within_ms) => core.closes(now, session, within_ms, effects),
            Said::TierPromoted(promoted) => core.promoted(now, session, &promoted, effects),
            Said::FenceDone(rids) => core.fence_done(now, session, &rids, effects),
            Said::Rechecked { rid, good } => core.rechecked(now, session, rid, good, effects),
            Said::EpochTaken { epoch, segments } => core.epoch_taken(now, session, epoch, &segments, effects),
            Said::PeerGone { uuid, process } => {
                let owner = seen_by_peer(core, session, uuid, process.as_ref());
                let over = owner.filter(|owner| anchors::reported_gone(core, anchors, now, *owner, effects));
                return Ok(over.map_or(Heard::Done, Heard::PeerGone));
            }
            Said::ReaderGone { reader, uuid, mark } => {
                let judged = match judge(core, session, reader, uuid, mark) {
                    Judged::Proven => {
                        let ends = anchors::reported_gone(core, anchors, now, reader, effects);
                        // The owner says it once more if much hangs on the session: until all of it is in the log.
                        let over = ends && (core.session_spec(reader).is_none() || core.is_bereft(reader));
                        if over { Judged::Proven } else { Judged::ForLater }
                    }
                    judged => judged,
                };
                return Ok(Heard::ReaderGone { reader, uuid, judged });
            }
            // The answer is what every end of a session sends down its anchor.
            // What hangs on the session may be left to the background.
            Said::Goodbye => _ = core.close_session(now, session, effects),
        }
        Ok(Heard::Done)
    }
}

impl Heartbeat {
    fn read(beat: &Beat) -> Result<Heartbeat, Bad> {
        let mut populated = Vec::with_capacity(beat.populated.len());
        for one in &beat.populated {
            populated.push(Populated { uuid: convert::uuid(&one.uuid)?, bytes: one.bytes, failed: one.failed });
        }
        Ok(Heartbeat {
            number: beat.number,
            moved: convert::rids(&beat.moved),
            populated,
            unpin: convert::rids(&beat.unpin),
            unpin_sequence: beat.unpin_sequence,
        })
    }

    fn obey(self, core: &mut Core, now: Time, session: SessionId, effects: &mut Effects) -> Heard {
        let Heartbeat { number, moved, populated, unpin, unpin_sequence } = self;
        for ended in core.beat(now, session, &moved, &populated, effects) {
            tell_of_end(core, session, ended);
        }
        let unpinned = match unpin_sequence {
            0 => Ok(()),
            sequence => core.unpin(now, Origin { session, sequence, answered_below: 0 }, &unpin, effects),
        };
        // Answered when it was refused for good, too: a repeat would change nothing. Without an answer the next beat
        // repeats it.
        let for_now = matches!(unpinned, Err(Refused::TooManyUnanswered(..)));
        Heard::Beat { number, unpin_sequence: if for_now { 0 } else { unpin_sequence }, unpinned }
    }
}

impl Heard {
    /// Whether its reply says that something is done, which an earlier frame may have done: of this connection or of
    /// another one.
    pub fn confirms(&self) -> bool {
        !matches!(self, Heard::Beat { unpin_sequence: 0, .. })
    }
}

/// What an anchor is answered.
#[derive(Debug, Default)]
pub struct Pongs {
    /// The last beat up to which everything is in the log.
    confirmed: u64,
}

impl Pongs {
    /// What is sent back. `logged`: all that came over this anchor so far is in the log, which stands at `position`.
    ///
    /// Where the disk is slow a client still has to hear that its master is there. That is all that it hears then: it
    /// says once more whatever was not confirmed.
    pub fn reply(&mut self, heard: &Heard, logged: bool, position: LogPosition) -> Option<AnchorDown> {
        let logged = logged || mutant!(PongsConfirmUnlogged);
        let body = match heard {
            Heard::Beat { number, unpin_sequence, .. } if logged => {
                self.confirmed = *number;
                let unpin_sequence = *unpin_sequence;
                anchor_down::Body::Pong(Pong { number: *number, position: Some(position), unpin_sequence })
            }
            Heard::Beat { .. } => anchor_down::Body::Pong(Pong { number: self.confirmed, ..Pong::default() }),
            Heard::ReaderGone { reader, uuid, judged } if logged && *judged != Judged::ForLater => {
                let taken = ReaderGoneTaken { session: reader.0, uuid: uuid.0.to_vec().into() };
                anchor_down::Body::ReaderGoneTaken(taken)
            }
            Heard::ReaderGone { .. } | Heard::Done | Heard::PeerGone(_) => return None,
        };
        Some(AnchorDown { body: Some(body) })
    }
}

fn tell_of_end(core: &Core, session: SessionId, segment: SegmentNo) {
    let Some(view) = core.segment(segment) else { return };
    let owner = core.session_spec(session).map(|spec| spec.name.as_str()).unwrap_or_default();
    tracing::warn!(
        segment = view.name,
        owner,
        session = session.0,
        announced_bytes = view.bytes,
        populated_bytes = view.populated,
        "the owner of a segment could not get all of the memory that it announced; from now on the pool counts on what \
         is there. Look at that machine's memory limits"
    );
}

/// The owner of a segment, if the reporter can hold a pidfd that says that it is gone: as another process of its host.
///
/// What a reporter has seen stays true, and is said again over its next connection. By then an heir may have the
/// memory: the process that ended is that of the owner, or the word says nothing of it (`docs/safety.md`, rule 14).
fn seen_by_peer(
    core: &Core,
    reporter: SessionId,
    uuid: SegmentUuid,
    ended: Option<&ProcessIdentity>,
) -> Option<SessionId> {
    let owner = core.segment_owner(uuid)?;
    let of_owner = process_of(core, owner)?;
    let boot_of_reporter = process_of(core, reporter)?.boot_id;
    let same_host = !of_owner.boot_id.is_empty() && of_owner.boot_id == boot_of_reporter;
    let is_owners = match ended {
        // The mark is not a peer's to know.
        Some(ended) => ProcessIdentity { mark: of_owner.mark, ..ended.clone() } == of_owner,
        None => !core.may_change_hands(owner),
    };
    (same_host && owner != reporter && (is_owners || mutant!(PeerGoneNamesNoProcess))).then_some(owner)
}

/// What an owner's word is worth that a process is gone that had its memory mapped.
///
/// A process that maps memory only names its session, and another process can name the same one. The mark, which the
/// session's process alone gave to the master and to owners, tells that the owner's word is about that process. Only an
/// owner of memory on the same host can have seen it (`docs/safety.md`, rule 5).
fn judge(core: &Core, reporter: SessionId, reader: SessionId, uuid: SegmentUuid, mark: u64) -> Judged {
    let Some(of_reader) = process_of(core, reader) else { return Judged::Over };
    let owns = core.segment_owner(uuid) == Some(reporter) && reporter != reader;
    let boot_id = process_of(core, reporter).map(|process| process.boot_id);
    let same_host = !of_reader.boot_id.is_empty() && boot_id.as_ref() == Some(&of_reader.boot_id);
    let is_marked = mark != 0 && mark == of_reader.mark || mutant!(MarksAreNotCompared);
    match owns && same_host && is_marked {
        true => Judged::Proven,
        false => Judged::NoProof,
    }
}

/// The identity that a session was opened with.
pub fn process_of(core: &Core, session: SessionId) -> Option<ProcessIdentity> {
    ProcessIdentity::decode(core.session_process(session)?).ok()
}

#[cfg(test)]
mod tests;

//! What a client says on its session's anchor, and what the master does about it: beats, what an owner has done, and whose
//! end a process has seen.

use mooncake_core::{Core, Effects, Origin, Populated, Refused, Rid, SegmentNo, SegmentUuid, SessionId, Time};
use mooncake_wire::message::{
    AnchorDown, AnchorUp, Beat, LogPosition, Pong, ProcessIdentity, ReaderGone, ReaderGoneTaken, anchor_down, anchor_up,
};
use prost::Message;

use super::anchors::{self, Anchor, Lend, Superseded};
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
    /// The process that owns this memory is gone: a process of the same host has its pidfd.
    PeerGone(SegmentUuid),
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
}

/// What a beat says.
#[derive(Debug)]
pub struct Heartbeat {
    number: u64,
    /// Rids whose bytes have moved since the last one.
    moved: Vec<Rid>,
    populated: Vec<Populated>,
    /// Views that ended, and the number of the mutation that this is; 0 for none.
    unpin: Vec<Rid>,
    unpin_sequence: u64,
}

/// What came of a frame. [`Heard::reply`] may be sent once the records that it left are in the log.
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
    /// The session is closed, and the connection with it.
    Goodbye,
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
    /// It is proven, and the reader's anchor is still there, which keeps it. The owner says it again.
    ForLater,
}

impl Said {
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
            Body::PeerGone(gone) => Said::PeerGone(convert::uuid(&gone.uuid)?),
            Body::ReaderGone(ReaderGone { session, uuid, mark }) => {
                Said::ReaderGone { reader: SessionId(session), uuid: convert::uuid(&uuid)?, mark }
            }
            Body::Goodbye(_) => Said::Goodbye,
        }))
    }

    /// Does what a frame asks for that came on a connection.
    pub fn obey<L: Lend>(
        self,
        core: &mut Core,
        anchors: &mut L,
        now: Time,
        from: Anchor<'_, L::Queue>,
        effects: &mut Effects,
    ) -> Result<Heard, Superseded> {
        let session = from.session;
        // What a process has seen of another one's end is as true on a connection that has been replaced.
        if !matches!(self, Said::PeerGone(_) | Said::ReaderGone { .. }) {
            anchors::check(anchors, from)?;
        }
        match self {
            Said::Beat(beat) => return Ok(beat.obey(core, now, session, effects)),
            Said::FenceDone(rids) => core.fence_done(now, session, &rids, effects),
            Said::Rechecked { rid, good } => core.rechecked(now, session, rid, good, effects),
            Said::EpochTaken { epoch, segments } => core.epoch_taken(now, session, epoch, &segments, effects),
            Said::PeerGone(uuid) => {
                let owner = seen_by_peer(core, session, uuid);
                let over = owner.filter(|owner| anchors::reported_gone(core, anchors, now, *owner, effects));
                return Ok(over.map_or(Heard::Done, Heard::PeerGone));
            }
            Said::ReaderGone { reader, uuid, mark } => {
                let judged = match judge(core, session, reader, uuid, mark) {
                    Judged::Proven if !anchors::reported_gone(core, anchors, now, reader, effects) => Judged::ForLater,
                    judged => judged,
                };
                return Ok(Heard::ReaderGone { reader, uuid, judged });
            }
            Said::Goodbye => {
                core.close_session(now, session, effects);
                return Ok(Heard::Goodbye);
            }
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
    /// What is sent back, and where the log stood then: behind all that this frame has changed.
    pub fn reply(&self, position: LogPosition) -> Option<AnchorDown> {
        let body = match self {
            Heard::Beat { number, unpin_sequence, .. } => {
                let (number, unpin_sequence) = (*number, *unpin_sequence);
                anchor_down::Body::Pong(Pong { number, position: Some(position), unpin_sequence })
            }
            Heard::ReaderGone { reader, uuid, judged } if *judged != Judged::ForLater => {
                let taken = ReaderGoneTaken { session: reader.0, uuid: uuid.0.to_vec().into() };
                anchor_down::Body::ReaderGoneTaken(taken)
            }
            Heard::ReaderGone { .. } | Heard::Done | Heard::PeerGone(_) | Heard::Goodbye => return None,
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
fn seen_by_peer(core: &Core, reporter: SessionId, uuid: SegmentUuid) -> Option<SessionId> {
    let owner = core.segment_owner(uuid)?;
    let boot = |session| process_of(core, session).map(|process| process.boot_id);
    let same_host = boot(owner).is_some_and(|id| !id.is_empty() && Some(id) == boot(reporter));
    (same_host && owner != reporter).then_some(owner)
}

/// What an owner's word is worth that a process is gone that had its memory mapped.
///
/// Who maps memory only says for which session: that the owner's word is about this session's process, and not about
/// another one that named it, is told by the mark, which that process alone gave to the master and to owners. Nobody but an
/// owner of memory on the same host can have seen it.
fn judge(core: &Core, reporter: SessionId, reader: SessionId, uuid: SegmentUuid, mark: u64) -> Judged {
    let Some(of_reader) = process_of(core, reader) else { return Judged::Over };
    let owns = core.segment_owner(uuid) == Some(reporter) && reporter != reader;
    let boot_id = process_of(core, reporter).map(|process| process.boot_id);
    let same_host = !of_reader.boot_id.is_empty() && boot_id.as_ref() == Some(&of_reader.boot_id);
    match owns && same_host && mark != 0 && mark == of_reader.mark {
        true => Judged::Proven,
        false => Judged::NoProof,
    }
}

/// The identity that a session was opened with.
pub fn process_of(core: &Core, session: SessionId) -> Option<ProcessIdentity> {
    ProcessIdentity::decode(core.session_process(session)?).ok()
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::{EpochTaken, FenceDone, Goodbye, PeerGone, Populated, Rechecked};

    use super::super::testbed::{Client, End, HOST, MARK, MEMORY, Testbed};
    use super::*;

    fn uuid() -> bytes::Bytes {
        MEMORY.to_vec().into()
    }

    fn beat() -> anchor_up::Body {
        anchor_up::Body::Beat(Beat { number: 8, ..Beat::default() })
    }

    fn peer_gone() -> anchor_up::Body {
        anchor_up::Body::PeerGone(PeerGone { uuid: uuid() })
    }

    fn reader_gone(reader: Client, mark: u64) -> anchor_up::Body {
        anchor_up::Body::ReaderGone(ReaderGone { session: reader.session.0, uuid: uuid(), mark })
    }

    /// A client that has something to come back for: it lingers as away when its anchor ends.
    fn reader(testbed: &mut Testbed, boot_id: &[u8]) -> Client {
        let reader = testbed.open_on(boot_id);
        let keys = Some(mooncake_wire::pack_keys(&[b"missing"]));
        testbed.call(reader, mooncake_wire::message::request::Body::Pin(mooncake_wire::message::Pin { keys }));
        reader
    }

    #[test]
    fn a_beat_is_answered_by_its_number_with_where_the_log_stands_then() {
        let mut testbed = Testbed::new();
        let client = testbed.open();
        let position = Some(LogPosition { lsn: 51, ..LogPosition::default() });
        let pong = Pong { number: 8, position, unpin_sequence: 0 };
        assert_eq!(testbed.says(client, beat()), Ok(Some(anchor_down::Body::Pong(pong))));
    }

    #[test]
    fn nothing_that_a_replaced_anchor_says_of_its_session_is_done() {
        let mut testbed = Testbed::new();
        let first = testbed.owner();
        testbed.core.raise_epoch(testbed.now, 2, &mut testbed.effects);
        let second = testbed.resume(first);
        let words = || {
            [
                beat(),
                anchor_up::Body::FenceDone(FenceDone { uuid: uuid(), rids: vec![2] }),
                anchor_up::Body::Rechecked(Rechecked { uuid: uuid(), rid: 2, good: false }),
                anchor_up::Body::EpochTaken(EpochTaken { epoch: 2, segments: vec![uuid()] }),
                anchor_up::Body::Goodbye(Goodbye {}),
            ]
        };
        for word in words() {
            let said = format!("{word:?}");
            assert_eq!(testbed.says(first, word), Err(End::Superseded), "{said}");
            assert_eq!((testbed.stats().segments_closed, testbed.stats().sessions), (1, 1), "{said}");
        }
        for word in words() {
            assert!(testbed.says(second, word).is_ok());
        }
        assert_eq!(
            (testbed.stats().sessions, testbed.owner_of_memory()),
            (0, None),
            "the same counts on the other one"
        );
    }

    #[test]
    fn what_comes_late_on_an_anchor_that_ended_brings_no_session_back() {
        let mut testbed = Testbed::new();
        let client = testbed.owner();
        assert!(testbed.hangs_up(client));
        assert_eq!(testbed.says(client, beat()), Err(End::Superseded));
        assert_eq!(testbed.stats().sessions_away, 1);
    }

    #[test]
    fn a_peers_proof_counts_at_once_behind_the_end_of_the_owners_anchor() {
        let mut testbed = Testbed::new();
        let (owner, peer) = (testbed.owner(), testbed.open());
        testbed.hangs_up(owner);
        assert!(testbed.knows(owner));
        assert_eq!(testbed.says(peer, peer_gone()), Ok(None));
        assert!(!testbed.knows(owner));
    }

    #[test]
    fn a_peers_proof_that_comes_before_the_end_of_the_owners_anchor_counts_with_it() {
        let mut testbed = Testbed::new();
        let (owner, first) = (testbed.owner(), testbed.open());
        // Also of a peer whose own anchor was replaced since.
        testbed.resume(first);
        assert_eq!(testbed.says(first, peer_gone()), Ok(None));
        assert!(testbed.knows(owner), "no peer talks a living owner away");
        testbed.hangs_up(owner);
        assert!(!testbed.knows(owner));
    }

    #[test]
    fn a_process_that_cannot_have_seen_an_owners_end_proves_nothing() {
        for boot_id in [&[8; 16][..], &[]] {
            let mut testbed = Testbed::new();
            let (owner, stranger) = (testbed.owner(), testbed.open_on(boot_id));
            testbed.says(stranger, peer_gone()).unwrap();
            testbed.says(owner, peer_gone()).unwrap();
            testbed.hangs_up(owner);
            testbed.says(stranger, peer_gone()).unwrap();
            assert!(testbed.knows(owner), "{boot_id:?}");
        }
    }

    #[test]
    fn an_owners_proof_of_a_readers_end_is_taken_once_it_counts() {
        let mut testbed = Testbed::new();
        let owner = testbed.owner();
        let reader = reader(&mut testbed, &HOST);
        let taken = ReaderGoneTaken { session: reader.session.0, uuid: uuid() };
        let taken = Ok(Some(anchor_down::Body::ReaderGoneTaken(taken)));
        assert_eq!(testbed.says(owner, reader_gone(reader, MARK)), Ok(None), "the reader's anchor is there");
        assert!(testbed.knows(reader));
        testbed.hangs_up(reader);
        assert!(!testbed.knows(reader), "it was kept for this moment");
        assert_eq!(testbed.says(owner, reader_gone(reader, MARK)), taken, "it need not be said again");
    }

    #[test]
    fn a_reader_without_an_anchor_is_over_by_its_owners_proof_and_by_no_other() {
        for (boot_id, mark, by_owner) in
            [(HOST, MARK + 1, true), (HOST, 0, true), ([8; 16], MARK, true), (HOST, MARK, false)]
        {
            let mut testbed = Testbed::new();
            let (owner, other) = (testbed.owner(), testbed.open());
            let reader = reader(&mut testbed, &boot_id);
            testbed.hangs_up(reader);
            let by = if by_owner { owner } else { other };
            let said = testbed.says(by, reader_gone(reader, mark)).unwrap();
            assert!(matches!(said, Some(anchor_down::Body::ReaderGoneTaken(_))), "it is no proof, now or later");
            assert!(testbed.knows(reader), "{boot_id:?} {mark} {by_owner}");
            let own = testbed.says(owner, reader_gone(owner, MARK));
            assert!(own.is_ok() && testbed.knows(owner), "an owner says nothing of itself");
        }
        let mut testbed = Testbed::new();
        let owner = testbed.owner();
        let reader = reader(&mut testbed, &HOST);
        testbed.hangs_up(reader);
        assert!(testbed.says(owner, reader_gone(reader, MARK)).unwrap().is_some());
        assert!(!testbed.knows(reader));
    }

    #[test]
    fn what_makes_no_sense_ends_the_connection_and_changes_nothing() {
        let short = || bytes::Bytes::from_static(&[1; 15]);
        let populated = vec![Populated { uuid: short(), ..Populated::default() }];
        let garbage = [
            anchor_up::Body::Beat(Beat { populated, ..Beat::default() }),
            anchor_up::Body::EpochTaken(EpochTaken { epoch: 65_536, segments: vec![uuid()] }),
            anchor_up::Body::EpochTaken(EpochTaken { epoch: 1, segments: vec![uuid(), short()] }),
            anchor_up::Body::PeerGone(PeerGone { uuid: short() }),
            anchor_up::Body::ReaderGone(ReaderGone { session: 1, uuid: short(), mark: MARK }),
        ];
        let mut testbed = Testbed::new();
        let client = testbed.owner();
        testbed.effects = Effects::default();
        for word in garbage {
            let said = format!("{word:?}");
            assert!(matches!(testbed.says(client, word), Err(End::Garbage(_))), "{said}");
        }
        assert!(testbed.effects.is_empty());
        assert!(Said::read(AnchorUp { body: None }).unwrap().is_none(), "a newer client's message is ignored");
    }
}

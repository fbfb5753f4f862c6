//! The owner's book: which processes map its segments, what they have promised,
//! and what is waited for before space there is given out again.
//!
//! A fence is done when the writes through the owner's process that passed the gate
//! before it have ended (a lane that does not end by itself is cut), and when
//! every process of the writer's session that may write the memory directly has
//! said so over its attach connection or has ended. A closed connection proves nothing.

#[cfg(test)]
mod any_order_tests;
mod attachment;
mod elders;
mod fence_list;
mod promises;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::CopyError;
use mooncake_mutant::mutant;

use super::Writes;
use crate::epoch::Epoch;
use crate::protocol::frames::{Frame, Op};

pub use attachment::Newcomer;
pub use elders::{Elders, Tenure};

use attachment::Attachment;
use elders::Inheritance;
use fence_list::FenceList;
use promises::PendingEpoch;

/// Most attachments at a time, all segments together.
const ATTACHED_MAX: usize = 4096;

/// A placement whose writer must be shut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// Segment.
    pub uuid: SegmentUuid,
    /// Placement.
    pub rid: Rid,
    /// First byte of its extent.
    pub offset: u64,
    /// Bytes of its extent.
    pub len: u64,
    /// Session that was to write it.
    pub writer: u64,
    /// That session said that nothing of it will touch the extent again.
    pub writer_done: bool,
}

/// The proven end of a process that had a segment mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessGone {
    /// Session that it mapped it for.
    pub session: u64,
    /// The segment.
    pub uuid: SegmentUuid,
    /// Number that it showed: see [`crate::LinkOptions::mark`].
    pub mark: u64,
}

/// What the book asks of a segment's memory, its gate and the stores of the owner's own process, at that instant.
pub trait Segment: Writes {
    /// The highest stamp in an extent.
    fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError>;
    /// The stores of this process that use the segment are asked to obey an epoch: [`super::Insiders::raise`]. True:
    /// all of them do.
    fn raise_insiders(&self, asked: Epoch) -> bool;
    /// Whether all of them have taken an epoch: [`super::Insiders::obey`].
    fn insiders_obey(&self, epoch: u16) -> bool;
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this to an attached process.
    Send {
        /// Its attachment.
        to: u64,
        /// The message.
        frame: Frame,
    },
    /// Close the connection of an attachment: what came over it is not an attached process's to say. The end of the
    /// process is waited for.
    HangUp {
        /// The attachment.
        attachment: u64,
    },
    /// An attachment is no more: its process is watched no longer for it.
    Forget {
        /// The attachment.
        attachment: u64,
    },
    /// Ask those of [`super::Insiders::below`] to obey an epoch.
    AskInsiders {
        /// The segment that they use.
        uuid: SegmentUuid,
        /// The epoch.
        epoch: Epoch,
    },
    /// Cut the lanes of these writes: they did not end by themselves.
    Cut {
        /// The segment.
        uuid: SegmentUuid,
        /// The writes, by their numbers in its gate.
        writes: Vec<u64>,
    },
    /// Report that a fence that could not be finished at once is done.
    Fenced {
        /// The segment.
        uuid: SegmentUuid,
        /// The placement.
        rid: Rid,
    },
    /// Report that a segment obeys an epoch that could not be taken at once.
    EpochTaken {
        /// The epoch.
        epoch: u16,
        /// The segment.
        uuid: SegmentUuid,
    },
    /// Report that a process that had shown whose it is has ended.
    ProcessGone(ProcessGone),
    /// Log that a fence names an extent that is not in its segment.
    Outside(Fence),
    /// Log that a stamp in a fenced extent is newer than its tombstone.
    Marred {
        /// The fence. It is never done.
        fence: Fence,
        /// That stamp.
        found: u64,
    },
}

/// The book of one owner. `S` is what the driver has of a segment.
#[derive(Debug)]
pub struct Owner<S> {
    /// Latest one that it was asked to obey.
    epoch: Epoch,
    /// Latest number of an attachment or of a fence.
    next: u64,
    segments: BTreeMap<SegmentUuid, Held<S>>,
    attached: BTreeMap<u64, Attachment>,
    fences: FenceList,
    epochs: Vec<PendingEpoch>,
}

#[derive(Debug)]
struct Held<S> {
    segment: S,
    /// Highest epoch that it has taken: nothing older is written here, and every process that maps it has said so.
    taken: u16,
    /// Whose memory it was before, if it outlives its owners.
    inheritance: Option<Inheritance>,
}

impl<S> Default for Owner<S> {
    fn default() -> Owner<S> {
        Owner {
            epoch: Epoch::default(),
            next: 0,
            segments: BTreeMap::new(),
            attached: BTreeMap::new(),
            fences: FenceList::default(),
            epochs: Vec::new(),
        }
    }
}

impl<S: Segment> Owner<S> {
    /// Latest epoch that it was asked to obey.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    // ------------------------------------------------------------- segments

    /// Fresh memory: nothing older than the epoch can be there.
    pub fn add(&mut self, uuid: SegmentUuid, segment: S) {
        self.segments.insert(uuid, Held { segment, taken: self.epoch.number, inheritance: None });
    }

    /// Takes a segment out, and gives it with the rids of its unfinished fences, which have nothing left to guard. They
    /// are reported when its memory is given back. No frame goes to its attachments any more: the connections close.
    pub fn remove(&mut self, uuid: &SegmentUuid, out: &mut Vec<Output>) -> Option<(S, Vec<Rid>)> {
        let Held { segment, .. } = self.segments.remove(uuid)?;
        let over = self.attached.extract_if(.., |_, attached| attached.uuid == *uuid);
        out.extend(over.map(|(attachment, _)| Output::Forget { attachment }));
        self.epochs.retain(|pending| pending.uuid != *uuid);
        Some((segment, self.fences.remove_segment(uuid)))
    }

    /// What the driver has of a segment.
    pub fn segment(&self, uuid: &SegmentUuid) -> Option<&S> {
        self.segments.get(uuid).map(|held| &held.segment)
    }

    /// The segments.
    pub fn uuids(&self) -> impl Iterator<Item = SegmentUuid> {
        self.segments.keys().copied()
    }

    /// Highest epoch that a segment has taken; 0 for one that is not here. It may have been asked for a higher one.
    pub fn taken(&self, uuid: &SegmentUuid) -> u16 {
        if mutant!(ResumeSaysWhatWasAsked) {
            return self.epoch.number;
        }
        self.segments.get(uuid).map_or(0, |held| held.taken)
    }

    // ---------------------------------------------------------- attachments

    /// Number of attachments.
    pub fn attached(&self) -> usize {
        self.attached.len()
    }

    /// Whether there may be no more of them.
    pub fn is_full(&self) -> bool {
        self.attached.len() >= ATTACHED_MAX
    }

    /// Puts a process on record that was given a segment's descriptors, and gives the number of the attachment.
    pub fn attach(&mut self, newcomer: Newcomer) -> u64 {
        // While an epoch is being taken, an older version may come with pins that only the former epoch knew.
        let is_silent = !newcomer.knows_pins && self.epochs.iter().any(|pending| pending.uuid == newcomer.uuid);
        // Others have nothing older to swear off.
        let epoch = if is_silent { 0 } else { self.epoch.number };
        self.next += 1;
        self.attached.insert(self.next, Attachment::new(newcomer, epoch));
        self.next
    }

    /// An attached process has sent this.
    pub fn heard(&mut self, attachment: u64, frame: &Frame, out: &mut Vec<Output>) {
        let Some(attached) = self.attached.get_mut(&attachment).filter(|attached| attached.is_connected()) else {
            return;
        };
        match frame.op {
            // Of memory that outlives its owners it may be written, and views may begin, with a lock that says so.
            Op::Upgrade | Op::View if !is_locked(&self.segments, attached, frame) => {
                attached.lost();
                out.push(Output::HangUp { attachment });
            }
            Op::View => out.push(Output::Send { to: attachment, frame: Frame::plain(Op::Viewable, self.epoch.number) }),
            Op::Upgrade => {
                // On record before the answer allows the first store.
                attached.writable = true;
                out.push(Output::Send { to: attachment, frame: Frame::plain(Op::Upgraded, self.epoch.number) });
            }
            Op::EpochTaken => attached.has_taken(frame.epoch),
            Op::Quiesced => {
                attached.has_answered();
                self.fences.answered(frame.sequence, attachment);
            }
            Op::Detached => {
                if mutant!(DetachedIsNotHeard) {
                    return;
                }
                self.detach(attachment, out);
            }
            Op::Introduce => attached.mark = frame.rid,
            _ => {
                attached.lost();
                out.push(Output::HangUp { attachment });
            }
        }
        self.put_questions(attachment, out);
    }

    /// Whether all that was sent to an attached process has left this one. Until it has, the process reads slowly, and
    /// is not asked for an epoch.
    pub fn room(&mut self, attachment: u64, has_room: bool, out: &mut Vec<Output>) {
        if let Some(attached) = self.attached.get_mut(&attachment) {
            attached.has_room(has_room);
            self.put_questions(attachment, out);
        }
    }

    /// No answer comes over the connection of an attachment any more. That proves nothing.
    pub fn connection_lost(&mut self, attachment: u64) {
        if let Some(attached) = self.attached.get_mut(&attachment) {
            attached.lost();
            if mutant!(ClosedConnectionProvesEpochs) {
                attached.epoch = u16::MAX;
            }
            if mutant!(ClosedConnectionProvesFences) {
                self.fences.detached(attachment);
            }
        }
    }

    /// The process of an attachment has ended: whatever it was asked has become true.
    pub fn process_ended(&mut self, attachment: u64, out: &mut Vec<Output>) {
        if mutant!(EndIsNotHeard) {
            return;
        }
        // Any process could have named that session in its hello: the mark is the proof.
        if let Some(Attachment { session, uuid, mark, .. }) = self.detach(attachment, out)
            && mark != 0
            && !mutant!(EndOfReaderIsNotTold)
        {
            out.push(Output::ProcessGone(ProcessGone { session, uuid, mark }));
        }
    }

    fn detach(&mut self, attachment: u64, out: &mut Vec<Output>) -> Option<Attachment> {
        self.fences.detached(attachment);
        let detached = self.attached.remove(&attachment)?;
        out.push(Output::Forget { attachment });
        Some(detached)
    }

    fn put_questions(&mut self, attachment: u64, out: &mut Vec<Output>) {
        if let Some(attached) = self.attached.get_mut(&attachment) {
            attached.put_questions(attachment, &self.fences, self.epoch.number, out);
        }
    }
}

/// Whether a process holds the lock of this owner's tenure that its wish needs.
fn is_locked<S>(segments: &BTreeMap<SegmentUuid, Held<S>>, attached: &Attachment, frame: &Frame) -> bool {
    let inheritance = segments.get(&attached.uuid).and_then(|held| held.inheritance.as_ref());
    let tenure = inheritance.map_or(0, |inheritance| inheritance.tenure().into());
    frame.rid == tenure || mutant!(UnlockedPeersWrite)
}

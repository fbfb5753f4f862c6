//! What the book promises, in virtual time.

use std::rc::Rc;
use std::time::Duration;

use mooncake_mutant::{Mutant, is_noticed_by};

use super::super::fixture::{KIB, Memory, rid};
use super::attachment::UNANSWERED_MAX;
use super::promises::GRACE;
use super::*;

const UUID: SegmentUuid = SegmentUuid([1; 16]);
const WRITER: u64 = 7;
const GRANULES: u64 = 2048;
const A2: Epoch = Epoch { number: 2, id: 7 };
const B2: Epoch = Epoch { number: 2, id: 8 };

/// An owner of one segment in epoch 1, at a time that goes by as the test says.
struct World {
    owner: Owner<Rc<Memory>>,
    memory: Rc<Memory>,
    now: Duration,
}

impl World {
    fn new() -> World {
        let mut world = World { owner: Owner::default(), memory: Memory::new(GRANULES, 1), now: Duration::ZERO };
        assert_eq!(world.take_epoch(Epoch::numbered(1)), (Ok(vec![]), vec![]));
        world.owner.add(UUID, world.memory.clone());
        world
    }

    fn attach(&mut self, session: u64) -> u64 {
        self.owner.attach(Newcomer { session, uuid: UUID, knows_pins: true })
    }

    /// A process that may write the memory.
    fn writer(&mut self, session: u64) -> u64 {
        self.writer_in(1, session)
    }

    /// The same when the owner obeys that epoch.
    fn writer_in(&mut self, epoch: u16, session: u64) -> u64 {
        let id = self.attach(session);
        let upgraded = Output::Send { to: id, frame: Frame::plain(Op::Upgraded, epoch) };
        assert_eq!(self.hear(id, Frame::plain(Op::Upgrade, 0)), [upgraded]);
        id
    }

    fn hear(&mut self, id: u64, frame: Frame) -> Vec<Output> {
        self.output(|owner, out| owner.heard(id, &frame, out))
    }

    fn take_epoch(&mut self, epoch: Epoch) -> (Result<Vec<SegmentUuid>, ()>, Vec<Output>) {
        let (now, mut out) = (self.now, Vec::new());
        (self.owner.take_epoch(now, epoch, &mut out).map_err(drop), out)
    }

    /// Whether a fence is done at once, and what is to be done for it.
    fn fence(&mut self, fence: Fence) -> (bool, Vec<Output>) {
        let (now, mut out) = (self.now, Vec::new());
        (self.owner.fence(now, fence, &mut out), out)
    }

    fn check(&mut self) -> Vec<Output> {
        let now = self.now;
        self.output(|owner, out| owner.check_promises(now, out))
    }

    fn end(&mut self, id: u64) -> Vec<Output> {
        self.output(|owner, out| owner.process_ended(id, out))
    }

    fn output(&mut self, input: impl FnOnce(&mut Owner<Rc<Memory>>, &mut Vec<Output>)) -> Vec<Output> {
        let mut out = Vec::new();
        input(&mut self.owner, &mut out);
        out
    }
}

/// The fence of the first KiB at that place.
fn fence(counter: u64) -> Fence {
    Fence { uuid: UUID, rid: rid(1, counter), offset: counter * KIB, len: KIB, writer: WRITER, writer_done: false }
}

fn fenced(counter: u64) -> Output {
    Output::Fenced { uuid: UUID, rid: rid(1, counter) }
}

/// The frames among these.
fn frames(out: &[Output]) -> Vec<(u64, Frame)> {
    let frame = |output: &Output| match output {
        Output::Send { to, frame } => Some((*to, *frame)),
        _ => None,
    };
    out.iter().filter_map(frame).collect()
}

/// The answer to a question about a fence.
fn quiesced(question: Frame) -> Frame {
    assert_eq!(question.op, Op::Quiesce);
    Frame { op: Op::Quiesced, ..question }
}

#[test]
fn a_closed_connection_proves_nothing_and_the_end_of_the_process_does() {
    let mut world = World::new();
    let writer = world.writer(WRITER);
    assert!(!world.fence(fence(1)).0);
    assert_eq!(world.take_epoch(A2).0, Ok(vec![]));
    world.owner.connection_lost(writer);
    assert_eq!(world.check(), []);
    let late = world.fence(fence(2));
    assert_eq!(late, (false, vec![]), "it cannot be asked, and could write");
    world.now += Duration::from_secs(3600);
    assert_eq!((world.check(), world.owner.taken(&UUID)), (vec![], 1));
    assert_eq!(world.end(writer), [Output::Forget { attachment: writer }]);
    assert_eq!(world.check(), [fenced(1), fenced(2), Output::EpochTaken { epoch: 2, uuid: UUID }]);
    assert_eq!((world.check(), world.owner.taken(&UUID)), (vec![], 2));
}

#[test]
fn only_who_may_write_for_that_session_is_asked_about_a_fence() {
    let mut world = World::new();
    world.attach(WRITER);
    world.writer(WRITER + 1);
    let elsewhere = world.owner.attach(Newcomer { session: WRITER, uuid: SegmentUuid([2; 16]), knows_pins: true });
    world.hear(elsewhere, Frame::plain(Op::Upgrade, 0));
    assert_eq!(world.fence(fence(1)), (true, vec![]));
    let writer = world.writer(WRITER);
    let (done, out) = world.fence(fence(2));
    let question = Frame { op: Op::Quiesce, epoch: 1, rid: rid(1, 2).0, offset: 2 * KIB, len: KIB, sequence: 0 };
    let asked = frames(&out);
    assert!(!done && asked == [(writer, Frame { sequence: asked[0].1.sequence, ..question })]);
    assert_eq!(world.fence(Fence { writer_done: true, ..fence(3) }), (true, vec![]), "the writer itself said so");
    world.hear(writer, quiesced(asked[0].1));
    assert_eq!(world.check(), [fenced(2)]);
}

#[test]
fn a_fence_that_is_asked_for_twice_gives_one_answer() {
    let mut world = World::new();
    let writer = world.writer(WRITER);
    let question = frames(&world.fence(fence(1)).1)[0].1;
    assert_eq!(world.fence(fence(1)), (false, vec![]));
    world.hear(writer, quiesced(question));
    world.hear(writer, quiesced(question));
    assert_eq!(world.check(), [fenced(1)]);
    assert_eq!(world.check(), []);
    // The writer's own word, which comes with the repetition, is proof for what others were asked, and none for a lane.
    assert!(!world.fence(fence(2)).0);
    let write = world.memory.admit(rid(1, 3), 3 * KIB, KIB);
    assert!(!world.fence(fence(3)).0);
    for counter in [2, 3] {
        assert_eq!(world.fence(Fence { writer_done: true, ..fence(counter) }), (false, vec![]));
    }
    assert_eq!(world.check(), [fenced(2)]);
    world.memory.ended(write);
    assert_eq!(world.check(), [fenced(3)]);
}

#[test]
fn a_lane_in_mid_write_is_cut_once_after_its_grace_and_waited_for_until_it_has_ended() {
    for epoch in [false, true] {
        let mut world = World::new();
        let write = world.memory.admit(rid(1, 1), KIB, KIB);
        world.now = Duration::from_secs(5);
        let kept = match epoch {
            true => {
                assert_eq!(world.take_epoch(A2), (Ok(vec![]), vec![]));
                Output::EpochTaken { epoch: 2, uuid: UUID }
            }
            false => {
                assert_eq!(world.fence(fence(1)), (false, vec![]));
                fenced(1)
            }
        };
        assert_eq!(world.owner.next_cut(), Some(world.now + GRACE));
        world.now += GRACE - Duration::from_nanos(1);
        assert_eq!(world.check(), []);
        world.now += Duration::from_nanos(1);
        assert_eq!(world.check(), [Output::Cut { uuid: UUID, writes: vec![write] }]);
        world.now += GRACE * 100;
        assert_eq!((world.check(), world.owner.next_cut()), (vec![], None));
        world.memory.ended(write);
        assert_eq!(world.check(), [kept]);
        assert_eq!(world.check(), []);
    }
}

#[test]
fn what_stamps_over_its_tombstone_is_tombstoned_again_before_the_fence_is_done() {
    let mut world = World::new();
    let write = world.memory.admit(rid(1, 1), KIB, KIB);
    assert!(!world.fence(fence(1)).0);
    world.memory.stamps.stamp(rid(1, 1), KIB, KIB);
    world.memory.ended(write);
    assert_eq!(world.check(), [fenced(1)]);
    assert_eq!(world.memory.max_stamp(KIB, KIB).unwrap(), rid(1, 1).tombstone());
}

#[test]
fn a_write_that_begins_while_the_tombstone_is_stamped_over_is_waited_for_too() {
    let mut world = World::new();
    let first = world.memory.admit(rid(1, 1), KIB, KIB);
    assert!(!world.fence(fence(1)).0);
    world.memory.stamps.stamp(rid(1, 1), KIB, KIB);
    world.memory.ended(first);
    let second = world.memory.admit(rid(1, 1), KIB, KIB);
    assert_eq!(world.check(), []);
    assert_eq!(world.fence(fence(1)), (false, vec![]), "it is pending");
    world.now += GRACE;
    assert_eq!(world.check(), [Output::Cut { uuid: UUID, writes: vec![second] }]);
    world.memory.ended(second);
    assert_eq!(world.check(), [fenced(1)]);
}

#[test]
fn an_extent_with_a_stamp_that_its_writer_cannot_have_made_does_not_come_back() {
    let mut world = World::new();
    let newer = rid(1, 1 << 30);
    world.memory.stamps.stamp(newer, KIB, KIB);
    assert_eq!(world.fence(fence(1)), (false, vec![Output::Marred { fence: fence(1), found: newer.0 }]));
    assert_eq!(world.check(), [], "it never is done");
    // The same when it is found behind a writer that was waited for.
    let write = world.memory.admit(rid(1, 2), 2 * KIB, KIB);
    assert!(!world.fence(fence(2)).0);
    world.memory.stamps.stamp(newer, 2 * KIB, KIB);
    world.memory.ended(write);
    assert_eq!(world.check(), [Output::Marred { fence: fence(2), found: newer.0 }]);
    assert_eq!(world.check(), []);
    // What is asked for again behind that is a fence of its own.
    assert!(!world.fence(fence(2)).0);
}

#[test]
fn a_fence_of_what_is_not_there_has_nothing_to_guard() {
    let mut world = World::new();
    assert_eq!(world.fence(Fence { uuid: SegmentUuid([9; 16]), ..fence(1) }), (true, vec![]));
    let outside = Fence { offset: GRANULES * KIB, ..fence(1) };
    assert_eq!(world.fence(outside), (true, vec![Output::Outside(outside)]));
}

#[test]
fn a_process_is_asked_of_a_bounded_number_of_fences_at_a_time_and_not_of_those_that_are_proven() {
    let mut world = World::new();
    let (writer, other) = (world.writer(WRITER), world.attach(WRITER));
    let many = UNANSWERED_MAX as u64 + 3;
    let mut asked = Vec::new();
    for counter in 1..=many {
        asked.extend(frames(&world.fence(fence(counter)).1));
    }
    assert_eq!(asked.len(), UNANSWERED_MAX);
    assert!(asked.iter().all(|(to, _)| *to == writer), "{other} does not write");
    // The next one is proven by the writer's word before its turn comes.
    assert!(!world.fence(Fence { writer_done: true, ..fence(many - 2) }).0);
    assert_eq!(world.check(), [fenced(many - 2)]);
    let next = frames(&world.hear(writer, quiesced(asked[0].1)));
    assert_eq!((next.len(), next[0].1.rid), (1, rid(1, many - 1).0));
    let next = frames(&world.hear(writer, quiesced(asked[1].1)));
    assert_eq!((next.len(), next[0].1.rid), (1, rid(1, many).0));
    assert_eq!(world.hear(writer, quiesced(asked[2].1)), []);
    assert_eq!(world.check(), [fenced(1), fenced(2), fenced(3)]);
}

#[test]
fn an_epoch_waits_for_each_process_that_maps_the_segment_readers_too() {
    let mut world = World::new();
    let (reader, writer) = (world.attach(3), world.writer(WRITER));
    let question = Frame::take_epoch(A2);
    let (taken, out) = world.take_epoch(A2);
    assert_eq!((taken, frames(&out)), (Ok(vec![]), vec![(reader, question), (writer, question)]));
    let newcomer = world.attach(4);
    world.hear(writer, Frame::plain(Op::EpochTaken, 2));
    world.hear(newcomer, Frame::plain(Op::EpochTaken, 2));
    world.hear(reader, Frame::plain(Op::EpochTaken, 1));
    assert_eq!(world.check(), []);
    world.hear(reader, Frame::plain(Op::Detached, 0));
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 2, uuid: UUID }]);
    assert_eq!(world.take_epoch(A2), (Ok(vec![UUID]), vec![]), "asked again");
}

#[test]
fn an_older_version_that_comes_while_an_epoch_is_taken_is_waited_for_until_it_is_gone() {
    let mut world = World::new();
    let older = Newcomer { session: 9, uuid: UUID, knows_pins: false };
    let before = world.owner.attach(older);
    assert_eq!(world.take_epoch(A2).0, Ok(vec![]));
    let meanwhile = world.owner.attach(older);
    for id in [before, meanwhile] {
        world.hear(id, Frame::plain(Op::EpochTaken, 2));
        assert_eq!(world.check(), [], "its word does not cover its views");
        world.end(id);
    }
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 2, uuid: UUID }]);
    let after = world.owner.attach(older);
    assert_eq!(world.take_epoch(A2).0, Ok(vec![UUID]), "{after} has nothing older to swear off");
}

#[test]
fn of_two_epochs_of_one_number_nothing_is_reported() {
    let mut world = World::new();
    let reader = world.attach(3);
    assert_eq!(world.take_epoch(A2).0, Ok(vec![]));
    assert_eq!(world.take_epoch(B2), (Err(()), vec![]));
    world.hear(reader, Frame::plain(Op::EpochTaken, 2));
    assert_eq!((world.check(), world.owner.taken(&UUID)), (vec![], 1));
    assert_eq!(world.take_epoch(Epoch { number: 3, id: 9 }).0, Ok(vec![]), "the next number is another matter");
    world.hear(reader, Frame::plain(Op::EpochTaken, 3));
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 3, uuid: UUID }]);
}

#[test]
fn a_process_that_reads_slowly_is_asked_for_the_highest_epoch_alone() {
    let mut world = World::new();
    let reader = world.attach(3);
    assert_eq!(world.output(|owner, out| owner.room(reader, false, out)), []);
    for epoch in [2, 4, 3] {
        assert_eq!(frames(&world.take_epoch(Epoch::numbered(epoch)).1), []);
    }
    let out = world.output(|owner, out| owner.room(reader, true, out));
    assert_eq!(frames(&out), [(reader, Frame::take_epoch(Epoch::numbered(4)))]);
    assert_eq!(world.output(|owner, out| owner.room(reader, true, out)), [], "it has been asked");
    world.hear(reader, Frame::plain(Op::EpochTaken, 4));
    assert_eq!(world.check().len(), 2, "the lower one, which was asked for last, is taken with it");
}

#[test]
fn the_stores_of_the_owners_own_process_are_waited_for() {
    let mut world = World::new();
    let inside = world.memory.insiders.borrow_mut().enter();
    assert_eq!(world.take_epoch(A2), (Ok(vec![]), vec![Output::AskInsiders { uuid: UUID, epoch: A2 }]));
    assert_eq!(world.check(), []);
    world.memory.insiders.borrow_mut().confirm(inside, A2);
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 2, uuid: UUID }]);
}

#[test]
fn a_segment_that_is_removed_takes_all_that_waits_for_it_along() {
    let mut world = World::new();
    let (writer, elsewhere) = (
        world.writer(WRITER),
        world.owner.attach(Newcomer { session: 3, uuid: SegmentUuid([2; 16]), knows_pins: true }),
    );
    world.memory.admit(rid(1, 1), KIB, KIB);
    world.fence(fence(1));
    assert_eq!(world.take_epoch(A2).0, Ok(vec![]));
    assert_eq!(world.owner.next_cut(), Some(GRACE));
    let mut out = Vec::new();
    let (_, over) = world.owner.remove(&UUID, &mut out).unwrap();
    assert_eq!((over, out), (vec![rid(1, 1)], vec![Output::Forget { attachment: writer }]));
    assert_eq!(world.owner.next_cut(), None);
    assert_eq!((world.check(), world.end(writer), world.owner.attached()), (vec![], vec![], 1));
    assert!(world.owner.remove(&UUID, &mut Vec::new()).is_none() && world.owner.segment(&UUID).is_none());
    assert_eq!(world.end(elsewhere), [Output::Forget { attachment: elsewhere }]);
}

#[test]
fn a_message_that_is_not_its_ends_the_connection_and_not_what_is_waited_for() {
    let mut world = World::new();
    let writer = world.writer(WRITER);
    let question = frames(&world.fence(fence(1)).1)[0].1;
    assert_eq!(world.hear(writer, Frame::plain(Op::Write, 0)), [Output::HangUp { attachment: writer }]);
    assert_eq!(world.hear(writer, quiesced(question)), [], "nothing comes over a closed connection");
    assert_eq!(world.check(), []);
    world.end(writer);
    assert_eq!(world.check(), [fenced(1)]);
}

#[test]
fn the_end_of_a_process_is_told_with_the_mark_that_it_showed() {
    let mut world = World::new();
    let (shows, hides, leaves) = (world.attach(3), world.attach(3), world.attach(3));
    for id in [shows, leaves] {
        assert_eq!(world.hear(id, Frame { rid: 99, ..Frame::plain(Op::Introduce, 0) }), []);
    }
    assert_eq!(world.hear(leaves, Frame::plain(Op::Detached, 0)), [Output::Forget { attachment: leaves }]);
    let gone = Output::ProcessGone(ProcessGone { session: 3, uuid: UUID, mark: 99 });
    assert_eq!(world.end(shows), [Output::Forget { attachment: shows }, gone]);
    assert_eq!(world.end(hides), [Output::Forget { attachment: hides }], "anybody could have said that session");
    assert_eq!((world.end(leaves), world.owner.attached()), (vec![], 0));
}

const OTHER: SegmentUuid = SegmentUuid([2; 16]);

#[test]
fn a_segment_that_is_removed_leaves_alone_what_waits_for_another() {
    let mut world = World::new();
    let elsewhere = Memory::new(GRANULES, 1);
    world.owner.add(OTHER, elsewhere.clone());
    let (here, there) =
        (world.writer(WRITER), world.owner.attach(Newcomer { session: 3, uuid: OTHER, knows_pins: true }));
    let write = elsewhere.admit(rid(1, 1), KIB, KIB);
    assert_eq!(world.fence(Fence { uuid: OTHER, ..fence(1) }), (false, vec![]));
    world.fence(fence(2));
    assert_eq!(world.take_epoch(A2).0, Ok(vec![]));

    let (_, over) = world.owner.remove(&UUID, &mut Vec::new()).unwrap();
    assert_eq!((over, world.owner.attached()), (vec![rid(1, 2)], 1), "{here}");
    assert_eq!(world.owner.next_cut(), Some(GRACE), "it is still to be cut");
    assert_eq!(world.check(), []);
    elsewhere.ended(write);
    assert_eq!(world.check(), [Output::Fenced { uuid: OTHER, rid: rid(1, 1) }]);
    world.hear(there, Frame::plain(Op::EpochTaken, 2));
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 2, uuid: OTHER }]);
    assert_eq!((world.owner.taken(&UUID), world.owner.taken(&OTHER)), (0, 2));
}

#[test]
fn each_segment_takes_an_epoch_by_itself() {
    let mut world = World::new();
    let [second, third] = [OTHER, SegmentUuid([3; 16])].map(|uuid| {
        let memory = Memory::new(GRANULES, 1);
        world.owner.add(uuid, memory.clone());
        (uuid, memory)
    });
    let reader = world.attach(3);
    let inside = second.1.insiders.borrow_mut().enter();
    let (taken, out) = world.take_epoch(A2);
    assert_eq!(taken, Ok(vec![third.0]), "nothing older is under way there");
    assert_eq!(frames(&out), [(reader, Frame::take_epoch(A2))]);
    assert!(out.contains(&Output::AskInsiders { uuid: OTHER, epoch: A2 }) && out.len() == 2);
    second.1.insiders.borrow_mut().confirm(inside, A2);
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 2, uuid: OTHER }]);
    assert_eq!([UUID, OTHER, third.0].map(|uuid| world.owner.taken(&uuid)), [1, 2, 2]);
    world.end(reader);
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 2, uuid: UUID }]);
    assert_eq!(world.check(), []);
}

#[test]
fn a_fence_that_waits_anew_takes_no_other_ones_place() {
    let mut world = World::new();
    let writes: Vec<u64> = (1..=3).map(|at| world.memory.admit(rid(1, at), at * KIB, KIB)).collect();
    (1..=3).for_each(|at| assert!(!world.fence(fence(at)).0));
    // The first two writes stamped over their tombstones, and let others of the same placements through.
    let again: Vec<u64> = (1..=2)
        .map(|at| {
            world.memory.stamps.stamp(rid(1, at), at * KIB, KIB);
            world.memory.ended(writes[at as usize - 1]);
            world.memory.admit(rid(1, at), at * KIB, KIB)
        })
        .collect();
    assert_eq!(world.check(), []);
    world.memory.ended(again[1]);
    assert_eq!(world.check(), [fenced(2)]);
    world.memory.ended(writes[2]);
    assert_eq!(world.check(), [fenced(3)]);
    // What is put on record behind them is a matter of its own, too.
    let writer = world.writer(WRITER);
    assert!(!world.fence(fence(4)).0);
    world.memory.ended(again[0]);
    assert_eq!(world.check(), [fenced(1)]);
    world.end(writer);
    assert_eq!((world.check(), world.check()), (vec![fenced(4)], vec![]));
}

#[test]
fn what_is_not_cut_any_more_wakes_nobody() {
    let mut world = World::new();
    let reader = world.attach(3);
    let write = world.memory.admit(rid(1, 1), KIB, KIB);
    assert_eq!(world.take_epoch(A2).0, Ok(vec![]));
    assert_eq!(world.owner.next_cut(), Some(GRACE));
    world.memory.ended(write);
    // The process that maps the segment may stand still for hours.
    assert_eq!((world.check(), world.owner.next_cut()), (vec![], None));
    world.now += GRACE * 2;
    assert_eq!((world.check(), world.owner.next_cut()), (vec![], None));
    world.end(reader);
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 2, uuid: UUID }]);
    // The same for a fence.
    let writer = world.writer_in(2, WRITER);
    let write = world.memory.admit(rid(2, 1), KIB, KIB);
    let fence = Fence { rid: rid(2, 1), ..fence(1) };
    let question = frames(&world.fence(fence).1)[0].1;
    assert_eq!(world.owner.next_cut(), Some(world.now + GRACE));
    world.memory.ended(write);
    assert_eq!((world.check(), world.owner.next_cut()), (vec![], None));
    world.hear(writer, quiesced(question));
    assert_eq!(world.check(), [Output::Fenced { uuid: UUID, rid: rid(2, 1) }]);
}

#[test]
fn several_processes_of_a_session_are_asked_and_all_of_them_are_waited_for() {
    let mut world = World::new();
    let writers = [(); 3].map(|()| world.writer(WRITER));
    let asked = frames(&world.fence(fence(1)).1);
    assert_eq!(asked.iter().map(|(to, _)| *to).collect::<Vec<_>>(), writers);
    world.hear(writers[1], quiesced(asked[1].1));
    assert_eq!(world.check(), []);
    world.end(writers[0]);
    // One that answers twice, or for another, does not answer for the last.
    for _ in 0..2 {
        world.hear(writers[1], quiesced(asked[1].1));
    }
    world.owner.connection_lost(writers[2]);
    assert_eq!(world.check(), []);
    world.end(writers[2]);
    assert_eq!((world.check(), world.check()), (vec![fenced(1)], vec![]));
}

#[test]
fn of_two_epochs_of_one_number_the_other_numbers_are_reported() {
    let mut world = World::new();
    let reader = world.attach(3);
    let [a4, b4] = [7, 8].map(|id| Epoch { number: 4, id });
    assert_eq!(world.take_epoch(a4).0, Ok(vec![]));
    assert_eq!(world.take_epoch(Epoch::numbered(3)).0, Ok(vec![]), "asked for later than the higher one");
    assert_eq!(world.take_epoch(b4), (Err(()), vec![]));
    world.hear(reader, Frame::plain(Op::EpochTaken, 4));
    assert_eq!(world.check(), [Output::EpochTaken { epoch: 3, uuid: UUID }]);
}

#[test]
fn their_mutants_are_noticed() {
    assert!(is_noticed_by(Mutant::BothEpochsAreTaken, of_two_epochs_of_one_number_nothing_is_reported));
    assert!(is_noticed_by(Mutant::AskedAgainCountsAsDone, a_fence_that_is_asked_for_twice_gives_one_answer));
    assert!(is_noticed_by(
        Mutant::TombstonesStayStampedOver,
        what_stamps_over_its_tombstone_is_tombstoned_again_before_the_fence_is_done
    ));
    assert!(is_noticed_by(Mutant::EndOfReaderIsNotTold, the_end_of_a_process_is_told_with_the_mark_that_it_showed));
}

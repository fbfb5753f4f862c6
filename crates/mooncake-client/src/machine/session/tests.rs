//! The anchor in virtual time: a master is a few lines of the test.

use mooncake_ids::Rid;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_wire::message::{
    FenceDone, Hello, PeerGone, Pong, ReaderGoneTaken, Refusal, ResumeSession, SegmentGone, SessionOver, TakeEpoch,
    refusal,
};
use mooncake_wire::{FEATURES, HELLO_FRAME_BYTES_MAX};
use prost::Message;

use super::*;
use crate::machine::deaths::Deaths;
use crate::machine::owner::SEGMENTS_MAX;
use crate::machine::pins::{Pins, VIEWS_MAX};
use crate::machine::progress::Progress;
use crate::machine::sequences::{Sequences, UNSETTLED_MAX};
use crate::machine::wants::Wants;

const A1: Epoch = Epoch::numbered(1);
const A2: Epoch = Epoch { number: 2, id: 7 };
const B2: Epoch = Epoch { number: 2, id: 8 };
const UUID: SegmentUuid = SegmentUuid([5; 16]);

/// A store without threads.
struct Store {
    now: Duration,
    anchor: Anchor,
    pins: Pins,
    sequences: Sequences,
    progress: Progress,
    deaths: Deaths,
    position: LogPosition,
    up: Vec<AnchorUp>,
    reachability: Reachability,
    wants: Wants,
    held: Vec<(SegmentUuid, u16)>,
}

impl Store {
    /// In session 7 with the first of two masters.
    fn new() -> Self {
        let process = ProcessIdentity { pid: 1, ..ProcessIdentity::default() };
        let identity = Identity { name: "host:1".into(), process, mark: 3 };
        let first = reply(7);
        Store {
            now: Duration::ZERO,
            anchor: Anchor::new(Duration::ZERO, identity, 2, &first),
            pins: Pins::default(),
            sequences: Sequences::default(),
            progress: Progress::default(),
            deaths: Deaths::default(),
            position: first.position.unwrap(),
            up: Vec::new(),
            reachability: Reachability::default(),
            wants: Wants::default(),
            held: vec![(UUID, 1), (SegmentUuid([6; 16]), 2)],
        }
    }

    fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Anchor, Duration, &mut AnchorContext<'_>, &mut Outputs) -> R,
    ) -> (R, Outputs) {
        let mut context = AnchorContext {
            pins: &mut self.pins,
            sequences: &mut self.sequences,
            progress: &mut self.progress,
            deaths: &mut self.deaths,
            position: &mut self.position,
            up: &mut self.up,
            reachability: &self.reachability,
            wants: &self.wants,
        };
        let mut out = Outputs::new();
        let result = act(&mut self.anchor, self.now, &mut context, &mut out);
        (result, out)
    }

    fn after(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    fn step(&mut self) -> Outputs {
        self.with(|anchor, now, context, out| anchor.step(now, context, out)).1
    }

    fn hear(&mut self, body: anchor_down::Body) -> Outputs {
        self.with(|anchor, now, context, out| anchor.hear(now, AnchorDown { body: Some(body) }, context, out)).1
    }

    /// A pong to this beat.
    fn pong(&mut self, number: u64) -> Outputs {
        self.hear(anchor_down::Body::Pong(Pong { number, ..Pong::default() }))
    }

    /// What is sent now, with a beat if one is due.
    fn tell(&mut self) -> Vec<anchor_up::Body> {
        let (due, mut out) = self.with(|anchor, now, context, out| anchor.tell(now, false, context, out));
        if due {
            out.extend(self.with(|anchor, now, context, out| anchor.beat(now, Vec::new(), context, out)).1);
        }
        sent(out)
    }

    fn beat(&mut self) -> Beat {
        match self.tell().pop() {
            Some(anchor_up::Body::Beat(beat)) => beat,
            other => panic!("no beat: {other:?}"),
        }
    }

    fn lose(&mut self, unsent: Vec<AnchorUp>) -> &mut Self {
        self.with(|anchor, _, context, _| anchor.lost(unsent, context));
        self
    }

    /// Begins a try, and gives the number of its master and what its hello asks for.
    fn try_again(&mut self) -> (usize, hello::Role) {
        let out = self.step();
        let [Output::WaitUntil(_), ..] = &out[..] else { return self.try_now(&out) };
        self.now += RECONNECT;
        let out = self.step();
        self.try_now(&out)
    }

    fn try_now(&mut self, out: &[Output]) -> (usize, hello::Role) {
        assert!(matches!(out.last(), Some(Output::Reconnect)), "{out:?}");
        let held = self.held.clone();
        let (_, out) = self.with(|anchor, now, context, out| anchor.reconnect(now, &held, context, out));
        connect(out)
    }

    /// Begins a try to resume, and gives what its hello says.
    fn resume(&mut self) -> ResumeSession {
        match self.try_again().1 {
            hello::Role::Resume(resume) => resume,
            other => panic!("{other:?}"),
        }
    }

    fn reply(&mut self, reply: &HelloReply) -> Outputs {
        let out = self.with(|anchor, now, context, out| anchor.answered(now, reply, context, out)).1;
        if matches!(out.last(), Some(Output::Resumed { .. } | Output::Began)) {
            self.reachability.pong(self.now);
        }
        out
    }

    fn fail(&mut self) -> Outputs {
        self.with(|anchor, _, context, out| anchor.failed("refused".into(), context, out)).1
    }

    fn epoch_asked(&mut self, epoch: Epoch, taking: Taking) {
        self.with(|anchor, _, context, _| anchor.epoch_asked(epoch, taking, context));
    }

    /// A view over this rid.
    fn view(&mut self, rid: Rid) -> u64 {
        self.pins.adopt(self.pins.generation(), [rid].into_iter()).expect("it is granted in this generation")
    }

    fn queue(&mut self, body: anchor_up::Body) {
        self.up.push(up(body));
    }
}

fn reply(session: u64) -> HelloReply {
    HelloReply {
        session,
        secret: session + 100,
        features: FEATURES,
        instance: vec![1; 16].into(),
        position: Some(LogPosition { log_id: 1, epoch: 1, lsn: 4, epoch_id: 0 }),
        ..HelloReply::default()
    }
}

fn refused(kind: refusal::Kind) -> HelloReply {
    let refusal = Refusal { kind: kind.into(), reason: "no".into() };
    HelloReply { refusal: Some(refusal), ..HelloReply::default() }
}

fn in_epoch(epoch: Epoch) -> HelloReply {
    let position = LogPosition { log_id: 1, epoch: epoch.number.into(), lsn: 9, epoch_id: epoch.id };
    HelloReply { position: Some(position), ..reply(7) }
}

fn sent(out: Outputs) -> Vec<anchor_up::Body> {
    let body = |output| match output {
        Output::Send(message) => message.body,
        other => panic!("{other:?}"),
    };
    out.into_iter().filter_map(body).collect()
}

fn connect(out: Outputs) -> (usize, hello::Role) {
    match out.into_iter().last() {
        Some(Output::Connect { master, role, .. }) => (master, role),
        other => panic!("{other:?}"),
    }
}

fn peer_gone(byte: u8) -> anchor_up::Body {
    anchor_up::Body::PeerGone(PeerGone { uuid: vec![byte; 16].into(), process: None })
}

fn fence_done(rid: Rid) -> anchor_up::Body {
    anchor_up::Body::FenceDone(FenceDone { uuid: UUID.0.to_vec().into(), rids: vec![rid.0] })
}

fn is_beat(body: &anchor_up::Body) -> bool {
    matches!(body, anchor_up::Body::Beat(_))
}

fn take_epoch(epoch: Epoch) -> anchor_down::Body {
    anchor_down::Body::TakeEpoch(TakeEpoch { epoch: epoch.number.into(), epoch_id: epoch.id })
}

fn obeyed(out: &[Output]) -> Vec<Epoch> {
    let epoch = |output: &Output| if let Output::Obey(epoch) = output { Some(*epoch) } else { None };
    out.iter().filter_map(epoch).collect()
}

// ------------------------------------------------------------------ beats

#[test]
fn a_beat_goes_out_at_once_and_then_every_half_second_and_more_often_while_nobody_answers() {
    let mut store = Store::new();
    assert!(matches!(store.step()[..], [Output::WaitUntil(Duration::ZERO)]));
    assert_eq!(store.beat().number, 1);
    assert!(matches!(store.step()[..], [Output::WaitUntil(until)] if until == BEAT));
    store.after(BEAT - PING);
    assert_eq!(store.tell(), []);
    store.wants.ping();
    assert_eq!(store.beat().number, 2, "a thread wants a pong");
    store.reachability.expired(store.now);
    let next = store.now + PING;
    assert!(matches!(store.step()[..], [Output::WaitUntil(until)] if until == next));
    store.after(PING).beat();
    let next = store.now + PING;
    assert!(matches!(store.step()[..], [Output::WaitUntil(until)] if until == next));
    store.pong(3);
    assert!(!store.reachability.is_unreachable());
}

#[test]
fn a_beat_renews_what_moves_and_tells_ended_views_until_they_are_confirmed() {
    let mut store = Store::new();
    let put = store.progress.begin(Duration::ZERO, vec![Rid(9)]);
    put.begin_write();
    let era = store.view(Rid(2));
    store.after(BEAT * 20);
    store.reachability.pong(store.now);
    assert_eq!(store.beat().moved, [9]);
    assert!(store.pins.release(era, Rid(2)));
    let told = store.beat();
    assert_eq!((&told.unpin[..], told.unpin_sequence), (&[2][..], 1));
    assert_eq!(store.after(BEAT).beat().unpin, [2], "until it is confirmed");
    let pong = Pong { number: 3, unpin_sequence: told.unpin_sequence, ..Pong::default() };
    store.hear(anchor_down::Body::Pong(pong));
    assert_eq!(store.after(BEAT).beat().unpin, [0; 0]);
    assert_eq!(store.sequences.settled(), (2, vec![]), "that mutation is answered");
}

#[test]
fn a_master_that_is_silent_for_too_long_is_left_for_another_connection() {
    let mut store = Store::new();
    assert_eq!(store.after(SILENCE).tell().len(), 1);
    store.queue(fence_done(Rid(2)));
    let (due, out) = store.after(BEAT).with(|anchor, now, context, out| anchor.tell(now, false, context, out));
    assert!(!due && matches!(out[..], [Output::HangUp { silent: true }]), "{out:?}");
    assert!(!store.anchor.is_connected() && store.up.len() == 1);
    store.resume();
}

// ---------------------------------------------------------------- messages

#[test]
fn a_fact_is_told_again_over_the_next_connection_until_a_pong_behind_it_has_come() {
    let mut store = Store::new();
    store.queue(peer_gone(1));
    store.queue(fence_done(Rid(2)));
    let told = store.tell();
    assert_eq!((&told[..2], told.len()), (&[peer_gone(1), fence_done(Rid(2))][..], 3));
    store.queue(peer_gone(2));
    assert_eq!(store.tell(), [peer_gone(2)], "it goes out before its beat");
    store.pong(1);
    store.lose(Vec::new()).resume();
    store.reply(&reply(7));
    let told = store.tell();
    assert_eq!(&told[..told.len() - 1], [peer_gone(2)], "the master has the first, and asks for the fence itself");
    store.pong(1);
    store.lose(Vec::new()).resume();
    store.reply(&reply(7));
    assert_eq!(store.tell()[0], peer_gone(2), "that pong was to an earlier beat");
    store.pong(3);
    store.lose(Vec::new()).resume();
    store.reply(&reply(7));
    assert!(store.tell().iter().all(is_beat));
}

#[test]
fn what_could_not_be_sent_is_sent_once_over_the_next_connection() {
    let mut store = Store::new();
    [peer_gone(1), fence_done(Rid(2)), peer_gone(3), fence_done(Rid(4))].into_iter().for_each(|body| store.queue(body));
    let (_, out) = store.with(|anchor, now, context, out| anchor.tell(now, false, context, out));
    let mut unsent: Vec<AnchorUp> = sent(out).into_iter().map(up).skip(1).collect();
    unsent.push(up(anchor_up::Body::Beat(Beat::default())));
    store.lose(unsent);
    store.queue(fence_done(Rid(6)));
    store.resume();
    store.reply(&reply(7));
    let told = store.tell();
    let expected = [peer_gone(1), fence_done(Rid(2)), peer_gone(3), fence_done(Rid(4)), fence_done(Rid(6))];
    assert_eq!(&told[..told.len() - 1], expected, "the first may have been lost on the way");
    assert_eq!(told.iter().filter(|body| is_beat(body)).count(), 1);
}

#[test]
fn ended_readers_are_told_over_each_connection_to_a_master_that_knows_of_them() {
    let mut store = Store::new();
    store.deaths.note(mooncake_segment::ProcessGone { session: 4, uuid: UUID, mark: 1 });
    let tells = |store: &mut Store| {
        let told = store.tell();
        told.iter().filter(|body| matches!(body, anchor_up::Body::ReaderGone(_))).count()
    };
    assert_eq!((tells(&mut store), tells(&mut store)), (1, 0));
    store.lose(Vec::new()).resume();
    store.reply(&HelloReply { features: 0, ..reply(7) });
    assert_eq!(tells(&mut store), 0, "an older master");
    store.lose(Vec::new()).resume();
    store.reply(&reply(7));
    assert_eq!(tells(&mut store), 1);
    let taken = ReaderGoneTaken { session: 4, uuid: UUID.0.to_vec().into() };
    store.hear(anchor_down::Body::ReaderGoneTaken(taken));
    store.lose(Vec::new()).resume();
    store.reply(&reply(7));
    assert_eq!(tells(&mut store), 0);
}

#[test]
fn what_names_no_segment_is_passed_over() {
    let mut store = Store::new();
    for uuid in [vec![], vec![5; 15]] {
        let gone = SegmentGone { uuid: uuid.into(), ..SegmentGone::default() };
        assert!(store.hear(anchor_down::Body::SegmentGone(gone)).is_empty());
    }
    let gone = SegmentGone { uuid: UUID.0.to_vec().into(), number: 3, pinned: Vec::new() };
    let out = store.hear(anchor_down::Body::SegmentGone(gone));
    assert!(matches!(&out[..], [Output::SegmentGone { uuid: UUID, number: 3, pinned }] if pinned.is_empty()));
    assert!(store.with(|anchor, now, context, out| anchor.hear(now, AnchorDown::default(), context, out)).1.is_empty());
}

// ------------------------------------------------------------------ epochs

#[test]
fn an_epoch_is_taken_by_the_owner_before_the_links_obey_it() {
    let mut store = Store::new();
    let out = store.hear(take_epoch(A2));
    assert!(matches!(out[..], [Output::TakeEpoch(A2), Output::Obey(A2)]), "{out:?}");
    store.epoch_asked(A2, Taking::Begun);
    assert!(store.up.is_empty(), "the owner says it when it is done");
    assert_eq!(obeyed(&store.pong(1)), [A2], "and once more with each pong, for owners that asked meanwhile");
    let out = store.hear(take_epoch(A1));
    assert_eq!(obeyed(&out), [A2], "it never goes back");
    store.epoch_asked(A2, Taking::NoOwner);
    let taken = EpochTaken { epoch: 2, segments: Vec::new() };
    assert_eq!(store.up, [up(anchor_up::Body::EpochTaken(taken))]);
}

#[test]
fn whatever_becomes_of_the_connection_the_next_hello_shows_the_epoch_that_was_asked_for() {
    let mut store = Store::new();
    store.hear(take_epoch(A2));
    store.lose(Vec::new());
    store.held[0].1 = 2;
    let resume = store.resume();
    assert_eq!((resume.epochs, resume.epoch_taken), (vec![2, 2], 2));
    assert_eq!((store.position.epoch, store.position.epoch_id), (2, 7));
}

#[test]
fn of_two_epochs_of_one_number_a_hello_says_more_than_either_holds() {
    // The owner finds it out, and the pongs of another master of the same log do.
    let by_owner = |store: &mut Store| store.epoch_asked(A2, Taking::TwoEpochs);
    let by_pong = |store: &mut Store| {
        let position = Some(LogPosition { log_id: 1, epoch: 2, lsn: 1, epoch_id: B2.id });
        store.hear(anchor_down::Body::Pong(Pong { number: 1, position, unpin_sequence: 0 }));
    };
    for find_out in [by_owner, by_pong] {
        let mut store = Store::new();
        store.hear(take_epoch(A2));
        find_out(&mut store);
        assert_eq!((store.position.epoch, store.position.lsn), (2, u64::MAX));
        let out = store.step();
        assert!(matches!(out[..], [Output::HangUp { silent: false }, Output::Reconnect]), "at once: {out:?}");
    }
}

#[test]
fn the_answer_to_a_list_counts_before_the_epoch_is_obeyed_that_it_came_from() {
    let mut store = Store::new();
    let era = store.view(Rid(2));
    store.lose(Vec::new());
    assert_eq!(store.resume().pins, [2]);
    let out = store.reply(&HelloReply { unknown_pins: vec![2], ..in_epoch(A2) });
    assert!(!store.pins.all_listed() && !store.pins.is_known(era, Rid(2)));
    assert!(matches!(out[..], [Output::Obey(A2), Output::Resumed { unknown_views: Some(1), .. }]), "{out:?}");
}

#[test]
fn what_a_hello_shows_is_what_the_master_is_known_by() {
    let mut store = Store::new();
    store.view(Rid(2));
    store.lose(Vec::new()).resume();
    store.reply(&in_epoch(A2));
    let shown = in_epoch(A2).position.unwrap();
    assert_eq!(store.position, shown, "no later hello shows less");
    assert!(store.pins.all_listed(), "it would have named what it does not know");
    assert!(matches!(store.pong(1)[..], [Output::Obey(A2)]), "and a pong that shows nothing changes nothing");
    // One that has shown another epoch of that number would be noticed.
    store.lose(Vec::new()).resume();
    store.reply(&in_epoch(B2));
    assert_eq!((store.position.epoch, store.position.lsn), (2, u64::MAX));
}

#[test]
fn an_older_master_has_forgotten_views_unless_its_epoch_is_as_before() {
    for (epoch, knows) in [(A2, true), (Epoch::numbered(2), true), (B2, false), (Epoch { number: 3, id: 9 }, false)] {
        let mut store = Store::new();
        store.hear(take_epoch(A2));
        store.view(Rid(2));
        store.lose(Vec::new()).resume();
        store.reply(&HelloReply { features: 0, ..in_epoch(epoch) });
        assert_eq!(store.pins.all_listed(), knows, "{epoch:?}");
    }
}

// ---------------------------------------------------------------- way back

#[test]
fn masters_are_tried_in_turn_with_a_pause_and_the_one_that_answered_first_the_next_time() {
    let mut store = Store::new();
    store.after(BEAT).lose(Vec::new());
    let mut tried = Vec::new();
    for _ in 0..3 {
        let began = store.now;
        tried.push(store.try_again().0);
        assert!(store.step().is_empty(), "nothing is begun before its outcome is here");
        assert!(matches!(&store.fail()[..], [Output::Unreachable { reason }] if reason == "refused"));
        assert!(tried.len() == 1 || store.now == began + RECONNECT);
    }
    store.after(TRY);
    tried.push(store.try_again().0);
    store.reply(&reply(7));
    store.after(RECONNECT).lose(Vec::new());
    tried.push(store.try_again().0);
    assert_eq!(tried, [0, 1, 0, 1, 1]);
}

#[test]
fn a_list_that_did_not_come_leaves_what_it_replaced_to_be_told() {
    // No answer, and one that refuses for another reason than that the session is over.
    for answered in [false, true] {
        let mut store = Store::new();
        let era = store.view(Rid(2));
        store.view(Rid(4));
        store.pins.release(era, Rid(2));
        let told = store.beat();
        assert_eq!(told.unpin, [2]);
        store.lose(Vec::new());
        let first = store.resume();
        assert_eq!(first.pins, [4]);
        match answered {
            false => store.fail(),
            true => store.reply(&refused(refusal::Kind::Overloaded)),
        };
        assert!(!store.pins.is_empty());
        assert_eq!(store.sequences.settled().1, [told.unpin_sequence], "nobody knows that it was carried out");
        let second = store.resume();
        assert!(second.list > first.list, "the first is refused when it comes late");
        store.reply(&reply(7));
        assert_eq!(store.sequences.settled().1, [0; 0], "the list says as much");
        assert_eq!(store.beat().unpin, [0; 0]);
    }
}

#[test]
fn views_that_were_granted_while_a_list_was_on_its_way_are_on_the_next_one_or_void() {
    let mut store = Store::new();
    let before = store.pins.generation();
    let sequence = store.sequences.begin();
    store.lose(Vec::new());
    let first = store.resume();
    assert_eq!((&first.pins[..], first.settled_below, &first.unsettled[..]), (&[][..], 2, &[sequence][..]));
    assert!(!store.pins.may_settle(sequence), "its reply comes while the list is on its way");
    assert_eq!(store.pins.adopt(before, [Rid(8)].into_iter()), None, "it was asked for before");
    store.view(Rid(2));
    store.fail();
    // A second list that does not come, and a third.
    let second = store.resume();
    assert_eq!((&second.pins[..], &second.unsettled[..]), (&[2][..], &[][..]));
    store.fail();
    assert_eq!(store.resume().pins, [2]);
    store.reply(&reply(7));
    assert_eq!(store.sequences.settled().1, [0; 0], "the master may hear of it now");
}

#[test]
fn views_that_another_process_was_not_told_of_are_listed_once_more() {
    for (instance, again) in [(1, false), (2, true)] {
        let mut store = Store::new();
        store.lose(Vec::new()).resume();
        store.view(Rid(2));
        store.reply(&HelloReply { instance: vec![instance; 16].into(), ..reply(7) });
        let out = store.step();
        assert_eq!(matches!(out[..], [Output::HangUp { silent: false }, Output::Reconnect]), again, "{out:?}");
        assert_eq!(store.pins.all_listed(), !again);
    }
    // The same process as the last time, though not as the first time.
    let mut store = Store::new();
    let restarted = HelloReply { instance: vec![2; 16].into(), ..reply(7) };
    store.lose(Vec::new()).resume();
    store.reply(&restarted);
    store.lose(Vec::new()).resume();
    store.view(Rid(2));
    store.reply(&restarted);
    assert!(matches!(store.step()[..], [Output::WaitUntil(_)]));
}

#[test]
fn a_resume_that_is_wanted_while_one_is_under_way_follows_it_at_once() {
    for is_first_beat_gone in [false, true] {
        let mut store = Store::new();
        store.after(BEAT).lose(Vec::new()).resume();
        store.wants.resume();
        assert!(store.step().is_empty(), "the outcome comes first");
        store.reply(&reply(7));
        if is_first_beat_gone {
            store.beat();
        }
        let out = store.step();
        assert!(matches!(out[..], [Output::HangUp { silent: false }, Output::Reconnect]), "{out:?}");
        store.try_now(&out);
        store.wants.resume();
        store.fail();
        assert!(matches!(store.step()[..], [Output::Reconnect]), "without a pause");
        assert!(matches!(store.step()[..], [Output::Reconnect]), "it is still due");
    }
}

#[test]
fn what_waits_for_the_anchor_outlasts_a_connection_that_ends_before_its_first_beat() {
    let mut store = Store::new();
    store.queue(fence_done(Rid(2)));
    store.lose(Vec::new()).resume();
    store.reply(&reply(7));
    store.lose(Vec::new()).resume();
    store.queue(fence_done(Rid(4)));
    store.reply(&reply(7));
    let told = store.tell();
    assert_eq!(&told[..2], [fence_done(Rid(2)), fence_done(Rid(4))]);
    assert!(is_beat(&told[2]), "a beat goes out at once");
}

#[test]
fn a_reply_that_nobody_waits_for_changes_nothing() {
    let mut store = Store::new();
    assert!(store.reply(&in_epoch(A2)).is_empty());
    assert!(store.anchor.is_connected() && store.position.epoch == 1);
    store.lose(Vec::new());
    assert!(store.reply(&in_epoch(A2)).is_empty());
    assert!(!store.anchor.is_connected());
}

// -------------------------------------------------------------- start over

#[test]
fn another_session_begins_with_nothing_of_the_last_one() {
    let mut store = Store::new();
    let era = store.view(Rid(2));
    store.progress.begin(Duration::ZERO, vec![Rid(9)]).begin_write();
    store.deaths.note(mooncake_segment::ProcessGone { session: 4, uuid: UUID, mark: 1 });
    store.queue(peer_gone(1));
    store.after(BEAT * 20).lose(Vec::new());
    store.queue(fence_done(Rid(2)));
    let (master, _) = store.try_again();
    let out = store.reply(&refused(refusal::Kind::UnknownSession));
    let (same, role) = connect(out);
    let hello::Role::Open(open) = role else { panic!("{role:?}") };
    assert_eq!((same, open.process.map(|process| process.mark)), (master, Some(3)));
    assert!(store.step().is_empty());
    let out = store.reply(&HelloReply { session: 8, ..in_epoch(A2) });
    assert!(matches!(out[..], [Output::StartOver, Output::Obey(A2), Output::Began]), "{out:?}");
    assert!(!store.pins.is_known(era, Rid(2)));
    assert!(store.up.is_empty());
    let told = store.tell();
    assert!(matches!(&told[..], [anchor_up::Body::Beat(beat)] if beat.moved.is_empty()), "{told:?}");
    store.lose(Vec::new());
    let resume = store.resume();
    assert_eq!((resume.session, resume.pins), (8, vec![]), "views of the last one are on no list");
}

#[test]
fn a_try_to_begin_another_session_that_fails_begins_with_a_resume_again() {
    for answered in [false, true] {
        let mut store = Store::new();
        let (era, ended) = (store.view(Rid(2)), store.view(Rid(4)));
        store.pins.release(ended, Rid(4));
        store.lose(Vec::new()).resume();
        assert!(!store.pins.may_settle(5), "a list is on its way");
        store.reply(&refused(refusal::Kind::UnknownSession));
        let out = match answered {
            false => store.fail(),
            true => store.reply(&refused(refusal::Kind::Overloaded)),
        };
        assert!(matches!(&out[..], [Output::Unreachable { .. }]), "{out:?}");
        assert!(store.pins.is_known(era, Rid(2)), "nothing is given up before another session is there");
        // Of several masters another one may know the session, and it has no list yet.
        assert!(!store.pins.may_settle(6));
        let resume = store.resume();
        assert_eq!((resume.session, resume.pins), (7, vec![2]));
        assert!(resume.unsettled.iter().all(|sequence| ![5, 6].contains(sequence)), "{:?}", resume.unsettled);
        store.reply(&in_epoch(A2));
        assert!(store.pins.may_settle(7));
    }
}

#[test]
fn a_master_that_ends_the_session_is_asked_whether_it_knows_it() {
    let mut store = Store::new();
    let over = || anchor_down::Body::SessionOver(SessionOver { reason: "away".into() });
    assert!(matches!(&store.hear(over())[..], [Output::Ended { reason }] if reason == "away"));
    assert!(matches!(store.step()[..], [Output::HangUp { silent: false }, Output::Reconnect]));
    let mut store = Store::new();
    store.wants.close();
    assert!(store.hear(over()).is_empty(), "as it was asked to");
    assert!(matches!(store.step()[..], [Output::WaitUntil(_)]));
}

// ------------------------------------------------------------------ the end

#[test]
fn goodbye_is_said_when_the_last_view_has_ended_and_the_master_knows() {
    let mut store = Store::new();
    let era = store.view(Rid(2));
    store.wants.close();
    store.wants.end();
    assert!(matches!(store.step()[..], [Output::WaitUntil(_)]), "a view is there");
    store.pins.release(era, Rid(2));
    let told = store.beat();
    assert_eq!(told.unpin, [2]);
    assert!(matches!(store.step()[..], [Output::WaitUntil(_)]), "it is not confirmed");
    store.hear(anchor_down::Body::Pong(Pong { number: 1, unpin_sequence: told.unpin_sequence, position: None }));
    assert!(says_goodbye(&store.step()));
}

#[test]
fn goodbye_is_said_until_the_master_answers_that_the_session_is_over() {
    let closed = || {
        let mut store = Store::new();
        store.wants.close();
        store.wants.end();
        assert!(says_goodbye(&store.step()));
        store
    };
    let over = || anchor_down::Body::SessionOver(SessionOver { reason: "closed".into() });
    assert!(matches!(closed().hear(over())[..], [Output::Stop]));

    // Nothing comes behind it.
    let mut store = closed();
    store.up.push(up(anchor_up::Body::FenceDone(FenceDone::default())));
    store.wants.ping();
    assert!(matches!(store.step()[..], [Output::WaitUntil(_)]));
    let told = store.tell();
    assert!(told.is_empty(), "{told:?}");

    // The connection breaks, and the master has not heard it.
    let mut store = closed();
    let goodbye = up(anchor_up::Body::Goodbye(Goodbye {}));
    store.lose(vec![goodbye]).resume();
    store.reply(&in_epoch(A2));
    assert!(says_goodbye(&store.step()));
    assert!(store.up.is_empty(), "{:?}", store.up);

    // Or it has.
    store.lose(Vec::new()).resume();
    assert!(matches!(store.reply(&refused(refusal::Kind::UnknownSession))[..], [Output::Stop, ..]));

    // A connection over which no answer comes is given up.
    let mut store = closed();
    store.after(SILENCE + BEAT);
    assert!(matches!(store.step()[..], [Output::HangUp { silent: true }, Output::WaitUntil(_)]));
    assert!(matches!(store.step()[..], [Output::Reconnect]));
}

fn says_goodbye(out: &[Output]) -> bool {
    let goodbye = |message: &AnchorUp| matches!(message.body, Some(anchor_up::Body::Goodbye(_)));
    matches!(out, [Output::Goodbye(message), Output::WaitUntil(_)] if goodbye(message))
}

#[test]
fn a_closed_store_waits_for_its_master_as_long_as_that_keeps_the_session() {
    let mut store = Store::new();
    store.wants.close();
    store.wants.end();
    store.lose(Vec::new());
    store.resume();
    store.fail();
    // The first look at it was a pause ago.
    store.after(RETENTION - RECONNECT);
    assert!(matches!(store.step()[..], [Output::Reconnect]));
    store.after(BEAT);
    assert!(matches!(store.step()[..], [Output::Stop]));
}

#[test]
fn a_store_that_is_closed_begins_no_other_session() {
    for ending in [false, true] {
        let mut store = Store::new();
        store.view(Rid(2));
        store.wants.close();
        if ending {
            store.wants.end();
        }
        store.lose(Vec::new()).resume();
        let out = store.reply(&refused(refusal::Kind::UnknownSession));
        match ending {
            true => assert!(matches!(out[..], [Output::Stop, Output::Unreachable { .. }]), "{out:?}"),
            false => assert!(matches!(out[..], [Output::Unreachable { .. }]), "its close is not through: {out:?}"),
        }
    }
}

// ---------------------------------------------------------------- its size

#[test]
fn whatever_a_store_holds_it_can_come_back_with() {
    let most = u64::MAX;
    let position = LogPosition { log_id: most, epoch: u32::MAX, lsn: most, epoch_id: u32::MAX };
    let process = ProcessIdentity {
        boot_id: vec![9; 16].into(),
        pid: u32::MAX,
        start_time: most,
        pid_namespace: most,
        ..ProcessIdentity::default()
    };
    let resume = ResumeSession {
        session: most,
        secret: most,
        process: Some(process),
        host_name: "n".repeat(1 << 10),
        segments: vec![vec![9; 16].into(); SEGMENTS_MAX],
        pins: vec![most; VIEWS_MAX],
        epoch_taken: u32::MAX,
        settled_below: most,
        unsettled: vec![most; UNSETTLED_MAX],
        epochs: vec![u32::MAX; SEGMENTS_MAX],
        list: most,
    };
    let hello = Hello { highest: Some(position), role: Some(hello::Role::Resume(resume)), ..Hello::default() };
    // And what a later version may add: some more about each of its segments.
    assert!(hello.encoded_len() + 32 * SEGMENTS_MAX < HELLO_FRAME_BYTES_MAX, "{}", hello.encoded_len());
    // The master names those of them that it does not know.
    let (gone_segments, unknown_pins) = (vec![vec![9; 16].into(); SEGMENTS_MAX], vec![most; VIEWS_MAX]);
    let reply = HelloReply { gone_segments, unknown_pins, ..HelloReply::default() };
    assert!(reply.encoded_len() < HELLO_FRAME_BYTES_MAX);
}

#[test]
fn their_mutants_are_noticed() {
    assert!(is_noticed_by(
        Mutant::GoodbyeDoesNotWaitForViews,
        goodbye_is_said_when_the_last_view_has_ended_and_the_master_knows
    ));
    assert!(is_noticed_by(
        Mutant::GoodbyeIsSaidOnce,
        goodbye_is_said_until_the_master_answers_that_the_session_is_over
    ));
    assert!(is_noticed_by(
        Mutant::AnotherMasterCountsAsTheSame,
        views_that_another_process_was_not_told_of_are_listed_once_more
    ));
    assert!(is_noticed_by(
        Mutant::FactsAreToldOnce,
        a_fact_is_told_again_over_the_next_connection_until_a_pong_behind_it_has_come
    ));
}

//! The thread over sockets, with a master that says what a test wants it to say.

use std::io::Write;

use mooncake_ids::Rid;
use mooncake_memory::Source;
use mooncake_segment::{Epoch, SegmentAddress};
use mooncake_wire::message::{
    EpochTaken, Extent, FenceDone, HelloReply, LogPosition, Recheck, Rechecked, Refusal, Replica, SegmentGone,
    SegmentsReply, anchor_down, anchor_up, refusal, reply,
};

use super::*;
use crate::machine::numbering::Numbering;
use crate::scripted_master::{Client, Lender, TIMEOUT, frame, hello_reply, reply_to, take_epoch, wait_for};

const A2: Epoch = Epoch { number: 2, id: 7 };
const B2: Epoch = Epoch { number: 2, id: 8 };

/// The address of the lender's segment, as the store learns it from its master.
fn met(client: &Client, lender: &Lender) -> Arc<SegmentAddress> {
    let segment = lender.segment();
    client.master.answers(move |request| {
        let segments = vec![segment.clone()];
        Some(reply_to(request, reply::Body::Segments(SegmentsReply { segments })))
    });
    let StoreContext { control, directory, .. } = &*client.shared;
    let numbering = Numbering { log_id: 1, instance: [1; 16] };
    let replica = Replica { rid: 2, extents: vec![Extent { segment: 1, ..Extent::default() }] };
    directory.meet(control, numbering, [&replica].into_iter()).unwrap();
    directory.find(numbering, 1).unwrap()
}

#[test]
fn a_store_without_memory_says_at_once_that_it_obeys() {
    let (_client, mut caller) = Client::connect();
    caller.ask(A2);
    let taken = EpochTaken { epoch: 2, segments: Vec::new() };
    assert_eq!(caller.hear(), Some(anchor_up::Body::EpochTaken(taken)));
}

#[test]
fn an_owner_that_obeys_another_epoch_of_one_number_has_the_store_say_hello_anew() {
    let (client, mut caller) = Client::with_owner();
    assert!(client.owner().take_epoch(B2), "another master asked for it");
    assert_eq!(caller.hear().map(|told| matches!(told, anchor_up::Body::EpochTaken(_))), Some(true));
    caller.ask(A2);
    assert_eq!(caller.hear(), None, "it hangs up");
    let highest = client.master.next().hello.highest.unwrap();
    assert_eq!((highest.epoch, highest.lsn), (2, u64::MAX));
}

#[test]
fn a_resumed_session_lists_what_is_held_and_replaces_what_the_master_does_not_know() {
    let (client, caller) = Client::with_owner();
    let (kept, gone) = (client.mount(), client.mount());
    drop(caller);
    let mut caller = client.master.next();
    let Some(hello::Role::Resume(resume)) = &caller.hello.role else { panic!("{:?}", caller.hello) };
    assert_eq!((resume.session, &resume.segments[..]), (7, &[kept.0.to_vec(), gone.0.to_vec()].map(Into::into)[..]));
    let gone_segments = vec![gone.0.to_vec().into()];
    caller.say(&HelloReply { gone_segments, instance: vec![2; 16].into(), ..hello_reply(7) });
    wait_for("another segment in its place", || {
        client.holds(kept) && !client.holds(gone) && client.owner().held().len() == 2
    });
    let session = client.shared.control.session();
    assert_eq!((session.id, session.secret, &session.instance[..]), (7, 7, &[2; 16][..]));
}

#[test]
fn another_session_begins_with_other_memory_and_without_the_segments_that_were_met() {
    let (client, caller) = Client::with_owner();
    let mounted = client.mount();
    let (control, directory) = (&client.shared.control, &client.shared.directory);
    let numbering = Numbering { log_id: 1, instance: [1; 16] };
    let replica = Replica { rid: 2, extents: vec![Extent { segment: 1, ..Extent::default() }] };
    directory.meet(control, numbering, [&replica].into_iter()).unwrap();
    assert!(directory.find(numbering, 1).is_some());
    drop(caller);
    let refusal = Refusal { kind: refusal::Kind::UnknownSession.into(), reason: "no".into() };
    client.master.next().say(&HelloReply { refusal: Some(refusal), ..HelloReply::default() });
    let mut caller = client.master.next();
    assert!(matches!(caller.hello.role, Some(hello::Role::Open(_))), "{:?}", caller.hello);
    caller.say(&hello_reply(8));
    wait_for("other memory", || !client.holds(mounted) && client.owner().held().len() == 1);
    assert!(directory.find(numbering, 1).is_none());
    wait_for("the session", || control.session().id == 8);
}

#[test]
fn what_a_broken_connection_did_not_take_waits_for_the_next_one() {
    let (client, identity, opened, caller) = Client::without_thread();
    let control = &client.shared.control;
    let mut driver = Driver::new(client.shared.clone(), identity, opened);
    driver.tell();
    // With that beat unread the connection is reset.
    drop(caller);
    let done = [2, 3].map(|rid| anchor_up::Body::FenceDone(FenceDone { uuid: vec![1; 16].into(), rids: vec![rid] }));
    let waits = || control.decide(|context| context.up.clone());
    let began = Instant::now();
    wait_for("an end of the connection", || {
        done.iter().for_each(|done| control.tell(done.clone()));
        driver.tell();
        driver.connection.is_none()
    });
    assert_eq!(waits(), done.map(|done| AnchorUp { body: Some(done) }), "all of it, in its order");
    assert!(!driver.machine.is_connected());
    assert!(began.elapsed() < TIMEOUT / 2, "and not because the master says nothing");
}

#[test]
fn what_is_populated_is_told_again_when_the_session_goes_on() {
    let (client, caller) = Client::with_owner();
    let mounted = client.mount();
    wait_for("the mount itself has told it", || !client.owner().wants_to_report());
    drop(caller);
    let mut caller = client.master.next();
    caller.say(&hello_reply(7));
    // Of the beat that was lost with the connection the store knows nothing.
    let mut told = Vec::new();
    while told.is_empty() {
        told = caller.beat().populated;
    }
    assert_eq!((&told[0].uuid[..], told[0].bytes, told[0].failed), (&mounted.0[..], 1 << 20, false));
}

#[test]
fn all_that_came_at_once_is_heard_at_once() {
    let (_client, mut caller) = Client::connect();
    let messages = [A2, Epoch { number: 3, id: 7 }].map(|epoch| AnchorDown { body: Some(take_epoch(epoch)) });
    caller.stream.write_all(&messages.iter().flat_map(frame).collect::<Vec<u8>>()).unwrap();
    for epoch in [2, 3] {
        let taken = EpochTaken { epoch, segments: Vec::new() };
        assert_eq!(caller.hear(), Some(anchor_up::Body::EpochTaken(taken)));
    }
}

#[test]
fn a_bell_that_was_heard_is_silent() {
    // With a connection and without one.
    for ends in [false, true] {
        let (client, caller) = Client::connect();
        let _caller = (!ends).then_some(caller);
        let waker = &client.shared.control.waker;
        let wakes =
            || poll(&mut [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)], Some(&timespec(Duration::ZERO)));
        for _ in 0..3 {
            waker.wake();
            wait_for("the anchor hears it", || wakes() == Ok(0));
        }
    }
}

#[test]
fn writes_of_another_session_go_over_links_of_that_one() {
    let (client, caller) = Client::connect();
    let lender = Lender::start();
    drop(caller);
    let refusal = Refusal { kind: refusal::Kind::UnknownSession.into(), reason: "no".into() };
    client.master.next().say(&HelloReply { refusal: Some(refusal), ..HelloReply::default() });
    let _caller = {
        let mut caller = client.master.next();
        caller.say(&hello_reply(8));
        // The links are there when this is heard.
        caller.beat();
        caller
    };
    let (links, address, deadline) =
        (&client.shared.links, met(&client, &lender), Deadline::at(Instant::now() + TIMEOUT));
    links.link_to_write(8, &address, &deadline).unwrap();
    assert!(links.link_to_write(7, &address, &deadline).is_err(), "the owner fences each session by itself");
}

#[test]
fn what_kept_a_store_from_its_master_is_forgotten_when_it_is_back() {
    let (client, caller) = Client::connect();
    let control = &client.shared.control;
    let explained = || control.unreachable("gone").to_string().contains("full");
    drop(caller);
    let refusal = Refusal { kind: refusal::Kind::Overloaded.into(), reason: "full".into() };
    client.master.next().say(&HelloReply { refusal: Some(refusal), ..HelloReply::default() });
    wait_for("the reason", explained);
    let mut caller = client.master.next();
    caller.say(&hello_reply(7));
    wait_for("it is forgotten", || !explained());
}

#[test]
fn a_store_that_is_closed_waits_for_no_master() {
    let (client, caller) = Client::connect();
    drop(caller);
    // It has said hello, and gets no answer.
    let _next = client.master.next();
    let began = Instant::now();
    drop(client);
    assert!(began.elapsed() < SEND_TIMEOUT / 2, "{:?}", began.elapsed());
}

#[test]
fn a_segment_that_is_gone_is_given_up_replaced_and_met_no_more() {
    let (client, mut caller) = Client::with_owner();
    let mounted = client.mount();
    let StoreContext { control, directory, .. } = &*client.shared;
    let numbering = Numbering { log_id: 1, instance: [1; 16] };
    let replica = Replica { rid: 2, extents: vec![Extent { segment: 1, ..Extent::default() }] };
    directory.meet(control, numbering, [&replica].into_iter()).unwrap();
    let gone = SegmentGone { uuid: mounted.0.to_vec().into(), number: 1, ..SegmentGone::default() };
    caller.tell(anchor_down::Body::SegmentGone(gone));
    wait_for("another one", || !client.holds(mounted) && client.owner().held().len() == 1);
    assert!(directory.find(numbering, 1).is_none());
}

#[test]
fn links_to_a_segment_that_is_gone_are_let_go_of() {
    let (client, mut caller) = Client::connect();
    let lender = Lender::start();
    let (links, address) = (&client.shared.links, met(&client, &lender));
    drop(links.link(&address, &Deadline::at(Instant::now() + TIMEOUT)).unwrap());
    assert_eq!(links.report().len(), 1);
    let gone = SegmentGone { uuid: address.uuid.0.to_vec().into(), number: 1, ..SegmentGone::default() };
    caller.tell(anchor_down::Body::SegmentGone(gone));
    wait_for("no link", || links.report().is_empty());
}

#[test]
fn nothing_is_written_by_a_reservation_of_an_epoch_before_the_masters() {
    // The master asks for the epoch, or is found in it after a while without it.
    for asks in [true, false] {
        let (client, mut caller) = Client::connect();
        let lender = Lender::start();
        let (links, address) = (&client.shared.links, met(&client, &lender));
        let deadline = Deadline::at(Instant::now() + TIMEOUT);
        let link = links.link(&address, &deadline).unwrap();
        let writes = |rid| link.write(rid, 0, &[Source::new(b"x")], &deadline).is_ok();
        assert!(writes(Rid(1 << 48 | 2)));
        let _caller = match asks {
            true => {
                caller.ask(A2);
                caller
            }
            false => {
                drop(caller);
                let mut caller = client.master.next();
                let position = Some(LogPosition { log_id: 1, epoch: 2, lsn: 1, epoch_id: 7 });
                caller.say(&HelloReply { position, ..hello_reply(7) });
                caller
            }
        };
        let next = std::cell::Cell::new(4);
        wait_for("earlier writes are refused", || !writes(Rid(1 << 48 | next.replace(next.get() + 2))));
        assert!(writes(Rid(2 << 48 | 2)), "asks: {asks}");
    }
}

#[test]
fn the_master_hears_what_there_is_where_it_doubts_a_replica() {
    let (client, mut caller) = Client::with_owner();
    let uuid = client.mount().0.to_vec();
    let recheck = Recheck { uuid: uuid.clone().into(), rid: 1 << 48 | 1, offset: 0, length: 4, crc32c: 0 };
    caller.tell(anchor_down::Body::Recheck(recheck));
    let rechecked = Rechecked { uuid: uuid.into(), rid: 1 << 48 | 1, good: false };
    assert_eq!(caller.hear(), Some(anchor_up::Body::Rechecked(rechecked)));
}

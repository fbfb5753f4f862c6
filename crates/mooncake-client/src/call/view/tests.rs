//! Views over loopback, with a master that says what a test wants it to say.

use mooncake_ids::Rid;
use mooncake_memory::Source;
use mooncake_wire::message::{LookupReply, Pong, Replica, SegmentsReply, anchor_down, anchor_up};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::scripted_master::{Caller, Lender, Master, reply_to, usual, wait_for};
use crate::store::Store;

const RID: Rid = Rid::new(1, 1);

/// A store with a view of the one object that there is.
fn viewed() -> (Master, Lender, Store, Caller, View) {
    let (master, lender) = (Master::start(), Lender::start());
    lender.memory.mapping().write(RID, 0, &[Source::new(b"seen")]).unwrap();
    let segment = lender.segment();
    master.answers(move |request| match &request.body {
        Some(request::Body::Segments(_)) => {
            Some(reply_to(request, reply::Body::Segments(SegmentsReply { segments: vec![segment.clone()] })))
        }
        Some(request::Body::Pin(_)) => {
            let extent = Extent { segment: 1, offset: 0, length: 4 };
            let replicas = vec![Replica { rid: RID.0, extents: vec![extent] }];
            let objects = vec![Object { size: 4, replicas, ..Object::default() }];
            Some(reply_to(request, reply::Body::Lookup(LookupReply { objects, away: false })))
        }
        _ => Some(usual(request)),
    });
    let (store, caller) = master.store(|options| options.verify = false);
    let view = store.view(&["k"]).remove(0).unwrap().unwrap();
    assert!(!view.is_private_copy() && *view == *b"seen");
    (master, lender, store, caller, view)
}

#[test]
fn a_view_ends_before_its_pin_does_which_wakes_the_anchor() {
    let (_master, lender, store, _caller, view) = viewed();
    let control = store.inner().shared.control.clone();
    // The anchor hears no waker any more.
    store.inner().end_anchor();
    control.waker.clear();
    let mapping = lender.memory.view_mapping().unwrap();
    let before = Arc::strong_count(&mapping);
    let pins = control.pins.lock();
    let ending = std::thread::spawn(move || drop(view));
    wait_for("the view ends", || Arc::strong_count(&mapping) < before);
    drop(pins);
    ending.join().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(control.waker.fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1));
}

#[test]
fn the_session_of_a_closed_store_lasts_as_long_as_its_views() {
    let (master, _lender, store, mut caller, view) = viewed();
    store.close();
    assert!(store.links().is_empty());
    assert!(!master.asked().iter().any(|body| matches!(body, request::Body::CloseSession(_))));
    drop(view);
    let told = loop {
        let beat = caller.beat();
        if !beat.unpin.is_empty() {
            break beat;
        }
    };
    assert_eq!(told.unpin, [RID.0]);
    let pong = Pong { number: told.number, unpin_sequence: told.unpin_sequence, ..Pong::default() };
    caller.tell(anchor_down::Body::Pong(pong));
    assert!(matches!(caller.hear(), Some(anchor_up::Body::Goodbye(_))));
    assert_eq!(caller.hear(), None);
}

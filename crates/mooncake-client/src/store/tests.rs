//! A store over loopback, with a master that says what a test wants it to say.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use mooncake_ids::Rid;
use mooncake_memory::{Destination, Source};
use mooncake_wire::message::{
    ExistsReply, Extent, HelloReply, LookupReply, Object, PutEndReply, PutSlot, PutStartReply, Refusal, RemoveReply,
    Replica, Reply, Request, Segment, SegmentsReply, anchor_up, hello, put_end_reply, put_slot, refusal, remove_reply,
    reply, request,
};
use parking_lot::Mutex;

use super::*;
use crate::machine::get::GetDriver;
use crate::machine::numbering::Numbering;
use crate::machine::view::ViewDriver;
use crate::scripted_master::{Lender, Master, hello_reply, reply_to, usual, wait_for};

const RID: Rid = Rid::new(1, 1);

fn replica(segment: u32) -> Replica {
    Replica { rid: RID.0, extents: vec![Extent { segment, offset: 0, length: 4 }] }
}

fn segments(request: &Request, segments: &[Segment]) -> Option<Reply> {
    let found = SegmentsReply { segments: segments.to_vec() };
    matches!(request.body, Some(request::Body::Segments(_))).then(|| reply_to(request, reply::Body::Segments(found)))
}

fn is_confused<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(error) if matches!(error.cause(), Cause::Protocol { .. }))
}

/// An answer about so many keys.
fn about(request: &Request, keys: usize) -> Reply {
    let body = match &request.body {
        Some(request::Body::Lookup(_) | request::Body::Pin(_)) => {
            reply::Body::Lookup(LookupReply { objects: vec![Object::default(); keys], away: false })
        }
        Some(request::Body::Exists(asked)) => reply::Body::Exists(ExistsReply {
            found: vec![1; keys].into(),
            sizes: if asked.sizes { vec![4; keys] } else { Vec::new() },
            away: false,
        }),
        Some(request::Body::Remove(_)) => {
            reply::Body::Remove(RemoveReply { outcomes: vec![remove_reply::Outcome::Removed.into(); keys] })
        }
        Some(request::Body::PutStart(_)) => {
            let slot = PutSlot { kind: put_slot::Kind::Exists.into(), ..PutSlot::default() };
            reply::Body::PutStart(PutStartReply { slots: vec![slot; keys] })
        }
        _ => return usual(request),
    };
    reply_to(request, body)
}

#[test]
fn an_answer_about_another_number_of_keys_fails_the_call_that_it_is_for() {
    let master = Master::start();
    let (store, _caller) = master.store(|options| options.put_timeout = Duration::ZERO);
    let keys = ["a", "b"];
    let value = [Source::new(b"v")];
    let items: Vec<PutItem<'_>> = keys.iter().map(|key| PutItem { key: key.as_bytes(), value: &value }).collect();
    for count in [0, 1, 3, 2] {
        master.answers(move |request| Some(about(request, count)));
        let fits = count == 2;
        let all =
            |confused: Vec<bool>| assert!(confused.iter().all(|confused| *confused != fits), "{count}: {confused:?}");
        all(vec![
            is_confused(&store.exists(&keys)),
            is_confused(&store.sizes(&keys)),
            is_confused(&store.remove(&keys, false)),
        ]);
        all(store.put_batch(&items, &PutOptions::default()).iter().map(is_confused).collect());
        let mut bytes = [[0; 4]; 2];
        let mut gets: Vec<GetInto<'_>> = keys
            .iter()
            .zip(&mut bytes)
            .map(|(key, bytes)| GetInto { key: key.as_bytes(), destinations: vec![Destination::new(bytes)] })
            .collect();
        all(store.get_into(&mut gets).iter().map(is_confused).collect());
        all(store.view(&keys).iter().map(is_confused).collect());
    }
    // As many answers as keys, and sizes that are not.
    master.answers(|request| {
        Some(reply_to(
            request,
            reply::Body::Exists(ExistsReply { found: vec![1; 2].into(), sizes: vec![4], away: false }),
        ))
    });
    assert!(is_confused(&store.sizes(&keys)) && store.exists(&keys).is_ok());
}

#[test]
fn what_a_put_whose_answer_was_lost_was_given_is_found_out_and_given_up() {
    let master = Master::start();
    let (store, mut caller) = master.store(|options| {
        options.lookup_timeout = Duration::from_millis(200);
        options.put_timeout = Duration::ZERO;
    });
    let (is_deaf, given_up) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
    let (deaf, heard) = (is_deaf.clone(), given_up.clone());
    master.answers(move |request| match &request.body {
        Some(request::Body::PutStart(_)) if deaf.load(Ordering::SeqCst) => None,
        Some(request::Body::PutStart(_)) => {
            let slot =
                PutSlot { kind: put_slot::Kind::Placed.into(), replicas: vec![replica(1)], ..PutSlot::default() };
            Some(reply_to(request, reply::Body::PutStart(PutStartReply { slots: vec![slot] })))
        }
        Some(request::Body::Abort(abort)) => {
            heard.lock().push(abort.rids.clone());
            Some(usual(request))
        }
        _ => Some(usual(request)),
    });
    store.put(b"k", &[Source::new(b"value")], &PutOptions::default()).unwrap_err();
    is_deaf.store(false, Ordering::SeqCst);
    wait_for("the master hears of it", || {
        caller.pong();
        !given_up.lock().is_empty()
    });
    assert_eq!(*given_up.lock(), [[RID.0]]);
}

#[test]
fn an_interrupt_that_is_told_once_ends_all_that_a_put_writes() {
    // Its owner takes connections and says nothing.
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
    let lender = Lender::start();
    let mut silent = Segment { uuid: vec![9; 16].into(), ..lender.segment() };
    let endpoint = silent.endpoint.as_mut().unwrap();
    endpoint.tcp = vec![owner.local_addr().unwrap().to_string()];
    (endpoint.boot_id, endpoint.unix_socket, endpoint.process) = (Default::default(), String::new(), None);
    let good = Segment { number: 2, ..lender.segment() };
    let master = Master::start();
    let (placed, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (is_placed, count) = (placed.clone(), told.clone());
    let (store, _caller) = master.store(|options| {
        options.interrupted = Some(Arc::new(move || {
            // The first look begins the copy, and the hook tells of a wish to stop only once.
            is_placed.load(Ordering::SeqCst) && count.fetch_add(1, Ordering::SeqCst) == 1
        }));
    });
    master.answers(move |request| match &request.body {
        Some(request::Body::PutStart(_)) => {
            placed.store(true, Ordering::SeqCst);
            let slot = |segment: u32| {
                let replicas = vec![Replica { rid: RID.0 + 2 * u64::from(segment), ..replica(segment) }];
                PutSlot { kind: put_slot::Kind::Placed.into(), replicas, ..PutSlot::default() }
            };
            Some(reply_to(request, reply::Body::PutStart(PutStartReply { slots: vec![slot(1), slot(2)] })))
        }
        Some(request::Body::PutEnd(end)) => {
            let outcomes = vec![put_end_reply::Outcome::Committed.into(); end.ended.len()];
            Some(reply_to(request, reply::Body::PutEnd(PutEndReply { outcomes })))
        }
        _ => segments(request, &[silent.clone(), good.clone()]).or_else(|| Some(usual(request))),
    });
    let value = [Source::new(b"four")];
    let items = [PutItem { key: b"a", value: &value }, PutItem { key: b"b", value: &value }];
    let outcomes = store.put_batch(&items, &PutOptions::default());
    let is_interrupted = |outcome: &Result<PutOutcome, StoreError>| {
        outcome.as_ref().is_err_and(|error| matches!(error.cause(), Cause::Interrupted))
    };
    assert!(outcomes.iter().all(is_interrupted), "{outcomes:?}");
    assert!(!master.asked().iter().any(|body| matches!(body, request::Body::PutEnd(_))), "nothing of it is stored");
    assert!(told.load(Ordering::SeqCst) >= 2);
}

#[test]
fn bytes_that_are_not_those_of_the_object_are_a_miss_where_they_are_verified() {
    for verify in [true, false] {
        let (master, lender) = (Master::start(), Lender::start());
        lender.memory.mapping().write(RID, 0, &[Source::new(b"four")]).unwrap();
        let segment = lender.segment();
        master.answers(move |request| match &request.body {
            Some(request::Body::Lookup(_)) => {
                let object = Object { size: 4, replicas: vec![replica(1)], crc32c: 77 };
                Some(reply_to(request, reply::Body::Lookup(LookupReply { objects: vec![object], away: false })))
            }
            _ => segments(request, std::slice::from_ref(&segment)).or_else(|| Some(usual(request))),
        });
        let (store, _caller) = master.store(|options| options.verify = verify);
        let got = store.get(b"k").unwrap();
        assert_eq!(got.as_deref(), (!verify).then_some(&b"four"[..]));
        let reported =
            || master.asked().iter().any(|body| matches!(body, request::Body::BadReplica(bad) if bad.rid == RID.0));
        match verify {
            true => wait_for("the master hears of it", reported),
            false => assert!(!reported()),
        }
    }
}

#[test]
fn the_nearest_owner_is_one_in_this_process_and_then_one_on_this_host() {
    let (master, lender) = (Master::start(), Lender::start());
    let (store, _caller) = master.store(|_| {});
    let own = lender.segment();
    let change = |number: u8, change: &dyn Fn(&mut mooncake_wire::message::Endpoint)| {
        let mut segment = Segment { number: number.into(), uuid: vec![number; 16].into(), ..own.clone() };
        change(segment.endpoint.as_mut().unwrap());
        segment
    };
    let host = change(2, &|endpoint| endpoint.process.as_mut().unwrap().pid += 1);
    let other = change(3, &|endpoint| {
        endpoint.process = None;
        endpoint.boot_id = vec![7; 16].into();
    });
    let all = [own.clone(), host, other];
    master.answers(move |request| segments(request, &all).or_else(|| Some(usual(request))));
    let (inner, numbering) = (store.inner(), Numbering { log_id: 1, instance: [1; 16] });
    let replicas = [1, 2, 3].map(replica);
    inner.shared.directory.meet(&inner.shared.control, numbering, replicas.iter()).unwrap();
    let ranks = [1, 2, 3, 4].map(|segment| inner.rank(&replica(segment), numbering));
    assert_eq!(ranks, [0, 1, 2, 3]);
}

#[test]
fn pins_that_were_void_have_the_store_list_its_views_anew() {
    let master = Master::start();
    let (store, _caller) = master.store(|_| {});
    let began = Instant::now();
    ViewDriver::resume_anew(&**store.inner());
    let mut again = master.next();
    assert!(began.elapsed() < Duration::from_secs(2), "and not because the master says nothing");
    assert!(matches!(again.hello.role, Some(hello::Role::Resume(_))), "{:?}", again.hello);
    again.say(&hello_reply(7));
}

#[test]
fn a_wait_for_another_session_ends_when_its_caller_wants_to_stop() {
    let master = Master::start();
    let wants_to_stop = Arc::new(AtomicBool::new(false));
    let stop = wants_to_stop.clone();
    let (store, _caller) =
        master.store(|options| options.interrupted = Some(Arc::new(move || stop.load(Ordering::SeqCst))));
    let unknown = Refusal { kind: refusal::Kind::UnknownSession.into(), reason: "no".into() };
    master.greets(HelloReply { refusal: Some(unknown), ..hello_reply(7) });
    std::thread::scope(|scope| {
        let call = scope.spawn(|| store.exists(&["k"]));
        // The anchor has no answer, so there is no other session.
        let _anchor = master.next();
        wants_to_stop.store(true, Ordering::SeqCst);
        let error = call.join().unwrap().unwrap_err();
        assert!(matches!(error.cause(), Cause::Interrupted), "{error}");
    });
}

#[test]
fn the_end_of_a_store_is_told_once_and_its_connections_end() {
    let master = Master::start();
    let (store, mut caller) = master.store(|_| {});
    store.close();
    assert_eq!(caller.hear(), None, "what was answered needs no goodbye");
    store.close();
    assert_eq!(master.asked().iter().filter(|body| matches!(body, request::Body::CloseSession(_))).count(), 1);
    assert_eq!(store.health(), Health::Closed);
}

#[test]
fn a_store_whose_end_the_master_did_not_hear_says_goodbye() {
    let master = Master::start();
    let (store, mut caller) = master.store(|options| options.lookup_timeout = Duration::from_millis(100));
    master.answers(|request| (!matches!(request.body, Some(request::Body::CloseSession(_)))).then(|| usual(request)));
    store.close();
    assert!(matches!(caller.hear(), Some(anchor_up::Body::Goodbye(_))));
    assert_eq!(caller.hear(), None);
}

#[test]
fn why_an_object_was_missed_is_taken_by_the_thread_that_missed_it() {
    let master = Master::start();
    let (store, _caller) = master.store(|_| {});
    store.inner.keep_miss("it was bad".into());
    let other = store.clone();
    assert_eq!(thread::spawn(move || other.take_miss_cause()).join().unwrap(), None);
    assert_eq!(store.last_miss_cause().as_deref(), Some("it was bad"));
    assert_eq!(store.take_miss_cause().as_deref(), Some("it was bad"));
    assert_eq!((store.take_miss_cause(), store.last_miss_cause()), (None, None), "once");
}

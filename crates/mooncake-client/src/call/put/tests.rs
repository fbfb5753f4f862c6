//! Puts over loopback, with a master that says what a test wants it to say.

use std::net::TcpListener;
use std::sync::OnceLock;

use mooncake_wire::message::{
    Extent, PutSlot, PutStartReply, Replica, Reply, Request, Segment, SegmentsReply, put_slot,
};
use parking_lot::Mutex;

use super::*;
use crate::error::ErrorKind;
use crate::machine::numbering::Numbering;
use crate::scripted_master::{Caller, Lender, Master, hello_reply, reply_to, usual, wait_for};
use crate::session::Session;
use crate::session::control::Control;
use crate::store::Store;

const RID: Rid = Rid::new(1, 1);

fn replica() -> Replica {
    Replica { rid: RID.0, extents: vec![Extent { segment: 1, offset: 0, length: 1 << 20 }] }
}

/// Places each key in segment 1.
fn places(request: &Request) -> Option<Reply> {
    let slot = PutSlot { kind: put_slot::Kind::Placed.into(), replicas: vec![replica()], ..PutSlot::default() };
    match &request.body {
        Some(request::Body::PutStart(_)) => {
            Some(reply_to(request, reply::Body::PutStart(PutStartReply { slots: vec![slot] })))
        }
        _ => None,
    }
}

#[test]
fn placements_whose_abort_did_not_arrive_are_given_up_when_the_master_is_back() {
    let master = Master::start();
    let (store, mut caller) = master.store(|options| {
        options.lookup_timeout = Duration::from_millis(300);
        options.put_timeout = Duration::ZERO;
    });
    let is_deaf = Arc::new(AtomicBool::new(true));
    let aborted = Arc::new(Mutex::new(Vec::new()));
    let (deaf, heard) = (is_deaf.clone(), aborted.clone());
    master.answers(move |request| match &request.body {
        Some(request::Body::Abort(_)) if deaf.load(Ordering::SeqCst) => None,
        Some(request::Body::Abort(abort)) => {
            heard.lock().push(abort.clone());
            Some(usual(request))
        }
        // Segment 1 has nobody behind it: nothing can be written there.
        _ => places(request).or_else(|| Some(usual(request))),
    });
    store.put(b"k", &[Source::new(b"value")], &PutOptions::default()).unwrap_err();
    assert!(aborted.lock().is_empty());
    is_deaf.store(false, Ordering::SeqCst);
    wait_for("the master hears of it", || {
        caller.pong();
        !aborted.lock().is_empty()
    });
    assert_eq!(*aborted.lock(), [Abort { rids: vec![RID.0], writer_done: true }]);
}

#[test]
fn a_placement_of_an_earlier_session_is_not_written_over_links_of_a_later_one() {
    let (master, lender) = (Master::start(), Lender::start());
    let (store, _caller) = master.store(|_| {});
    let segments = vec![lender.segment()];
    master.answers(move |request| {
        Some(reply_to(request, reply::Body::Segments(SegmentsReply { segments: segments.clone() })))
    });
    let shared = &store.inner().shared;
    let (control, numbering) = (&shared.control, Numbering { log_id: 1, instance: [1; 16] });
    shared.directory.meet(control, numbering, [&replica()].into_iter()).unwrap();
    let write = |origin: &ReservationOrigin| {
        store.inner().write_replica(&replica(), 0, &[Source::new(b"value")], origin, &|| false)
    };
    let former = ReservationOrigin { numbering, session: control.session() };
    write(&former).map_err(|unwritten| unwritten.error).unwrap();
    control.set_session(Session::new(&hello_reply(8), former.session.master.clone(), None, &[0; 16]));
    shared.links.start_over();
    let unwritten = write(&former).expect_err("its owner would not fence that");
    assert!(unwritten.settled, "nothing was written");
    write(&ReservationOrigin { session: control.session(), ..former }).map_err(|unwritten| unwritten.error).unwrap();
}

/// A store whose caller wants to stop once a write of its put has begun, and what was to be renewed then.
fn impatient(master: &Master) -> (Store, Caller, Arc<Mutex<Vec<Rid>>>) {
    let control: Arc<OnceLock<Arc<Control>>> = Arc::default();
    let renewed: Arc<Mutex<Vec<Rid>>> = Arc::default();
    let (knows, sees) = (control.clone(), renewed.clone());
    let (store, caller) = master.store(|options| {
        options.interrupted = Some(Arc::new(move || {
            let now = knows.get().map_or(Vec::new(), |control| to_renew(control));
            sees.lock().extend(&now);
            !now.is_empty()
        }));
    });
    control.set(store.inner().shared.control.clone()).unwrap();
    (store, caller, renewed)
}

/// Reservations of puts that have written since the last look, all of them old enough.
fn to_renew(control: &Control) -> Vec<Rid> {
    control.progress.lock().moved(control.now() + Duration::from_secs(60))
}

fn places_in(master: &Master, segment: Segment) {
    master.answers(move |request| match &request.body {
        Some(request::Body::Segments(_)) => {
            Some(reply_to(request, reply::Body::Segments(SegmentsReply { segments: vec![segment.clone()] })))
        }
        _ => places(request).or_else(|| Some(usual(request))),
    });
}

#[test]
fn reservations_are_renewed_while_their_put_writes_and_not_behind_it() {
    // Its owner takes connections and says nothing.
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut segment = Lender::start().segment();
    let endpoint = segment.endpoint.as_mut().unwrap();
    endpoint.tcp = vec![owner.local_addr().unwrap().to_string()];
    (endpoint.boot_id, endpoint.unix_socket, endpoint.process) = (Default::default(), String::new(), None);
    let master = Master::start();
    let (store, _caller, renewed) = impatient(&master);
    places_in(&master, segment);
    let outcome = store.put(b"k", &[Source::new(b"value")], &PutOptions::default());
    assert_eq!(renewed.lock().first(), Some(&RID), "{outcome:?}");
    assert_eq!(to_renew(&store.inner().shared.control), [Rid(0); 0]);
}

#[test]
fn what_was_written_when_its_caller_wanted_to_stop_is_given_up() {
    let (master, lender) = (Master::start(), Lender::start());
    let (store, _caller, _) = impatient(&master);
    places_in(&master, lender.segment());
    let value = vec![7; WORTH_A_LOOK as usize];
    let outcome = store.put(b"k", &[Source::new(&value)], &PutOptions::default());
    assert!(matches!(outcome.as_ref().unwrap_err().cause(), Cause::Interrupted), "{outcome:?}");
    let asked = master.asked();
    assert!(asked.iter().any(|body| matches!(body, request::Body::Abort(_))), "{asked:?}");
    assert!(!asked.iter().any(|body| matches!(body, request::Body::PutEnd(_))), "{asked:?}");
}

#[test]
fn what_is_asked_for_is_what_the_options_say() {
    let soft = |ttl_ms| config(&PutOptions { pin: PinKind::Soft { ttl_ms }, ..PutOptions::default() });
    assert_eq!((soft(None).soft_pin_ttl_ms, soft(None).soft_pin_clear), (MASTERS_TTL, false));
    assert_eq!((soft(Some(MASTERS_TTL)).soft_pin_ttl_ms, soft(Some(7)).soft_pin_ttl_ms), (MASTERS_TTL - 1, 7));
    assert!(soft(Some(0)).soft_pin_clear && !soft(Some(1)).soft_pin_clear);
    let replicas = |replica_num| config(&PutOptions { replica_num, ..PutOptions::default() }).replica_num;
    assert_eq!([0, 2, 1000].map(replicas), [1, 2, REPLICAS_MAX]);
    let hard = config(&PutOptions { pin: PinKind::Hard, replace: true, ..PutOptions::default() });
    assert!(hard.hard_pin && hard.replace && hard.soft_pin_ttl_ms == 0 && !hard.soft_pin_clear);
    assert!(config(&PutOptions { pin: PinKind::Cleared, ..PutOptions::default() }).soft_pin_clear);
}

#[test]
fn what_no_object_can_be_is_refused_before_the_master_is_asked() {
    let master = Master::start();
    let (store, _caller) = master.store(|options| options.put_timeout = Duration::ZERO);
    let (empty, value) = ([Source::new(b"")], [Source::new(b"v")]);
    let item = |key: &'static [u8], value| PutItem { key, value };
    let items = [item(b"a", &empty), item(b"", &value), item(b"b", &value), item(b"c", &value)];
    let groups = [1, 1, KEY_BYTES_MAX + 1, KEY_BYTES_MAX].map(|bytes| "g".repeat(bytes)).to_vec();
    master.answers(|request| {
        let slot = PutSlot { kind: put_slot::Kind::Exists.into(), ..PutSlot::default() };
        match &request.body {
            Some(request::Body::PutStart(start)) => {
                let keys: Vec<&[u8]> = mooncake_wire::unpack_keys(&start.keys).unwrap().collect();
                assert_eq!((keys, &start.sizes[..]), (vec![&b"c"[..]], &[1][..]));
                Some(reply_to(request, reply::Body::PutStart(PutStartReply { slots: vec![slot] })))
            }
            _ => Some(usual(request)),
        }
    });
    let options = PutOptions { groups, ..PutOptions::default() };
    let outcomes = store.put_batch(&items, &options);
    let kinds: Vec<Option<ErrorKind>> =
        outcomes.iter().map(|outcome| outcome.as_ref().err().map(StoreError::kind)).collect();
    let (params, key) = (Some(ErrorKind::InvalidParams), Some(ErrorKind::InvalidKey));
    assert_eq!(kinds, [params, key, params, None]);
    let unlike = PutOptions { groups: vec!["g".into()], ..PutOptions::default() };
    let outcomes = store.put_batch(&items, &unlike);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(error) if error.kind() == ErrorKind::InvalidParams)));
}

#[test]
fn a_put_that_waits_for_room_waits_longer_than_a_lookup_does() {
    let master = Master::start();
    let (store, mut caller) = master.store(|options| options.lookup_timeout = Duration::from_millis(100));
    let waited = Arc::new(Mutex::new(Vec::new()));
    let seen = waited.clone();
    master.answers(move |request| {
        let Some(request::Body::PutStart(start)) = &request.body else { return Some(usual(request)) };
        seen.lock().push(start.wait);
        std::thread::sleep(Duration::from_millis(300));
        let slot = PutSlot { kind: put_slot::Kind::Exists.into(), ..PutSlot::default() };
        Some(reply_to(request, reply::Body::PutStart(PutStartReply { slots: vec![slot] })))
    });
    std::thread::scope(|scope| {
        let put = scope.spawn(|| store.put(b"k", &[Source::new(b"v")], &PutOptions::default()));
        while !put.is_finished() {
            caller.pong();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(matches!(put.join().unwrap(), Ok(PutOutcome::Existed)));
    });
    assert_eq!(*waited.lock(), [true], "asked once");
}

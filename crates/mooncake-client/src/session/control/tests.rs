//! Calls over the pool of connections, with a master that says what a test wants it to say.

use std::sync::mpsc;

use mooncake_wire::message::{HelloReply, Ping, Refusal, RemoveAll, RemoveByRegex, Reply, reply, request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::error::ErrorKind;
use crate::scripted_master::{Client, Master, TIMEOUT, hello_reply, reply_to, usual, wait_for};

/// A store whose anchor says nothing.
struct Alone {
    client: Client,
    _anchor: (crate::session::opening::Opened, crate::scripted_master::Caller),
}

impl Alone {
    fn new() -> Self {
        let (client, _, opened, caller) = Client::without_thread();
        Alone { client, _anchor: (opened, caller) }
    }

    fn control(&self) -> &Arc<Control> {
        &self.client.shared.control
    }

    fn master(&self) -> &Master {
        &self.client.master
    }

    fn ask(&self, body: request::Body, timeout: Duration) -> Result<crate::session::caller::SessionReply, StoreError> {
        self.control().query("a call", body, timeout)
    }

    fn ping(&self) -> Result<crate::session::caller::SessionReply, StoreError> {
        self.ask(request::Body::Ping(Ping {}), TIMEOUT)
    }
}

fn long() -> request::Body {
    request::Body::RemoveAll(RemoveAll { force: true })
}

/// The same session with another process of the master, or another session.
fn session(instance: u8, number: u64, control: &Control) -> Session {
    let reply = HelloReply { instance: vec![instance; 16].into(), ..hello_reply(number) };
    Session::new(&reply, control.session().master.clone(), None, &[0; 16])
}

/// Has a call wait for its answer until the sender is dropped or used.
fn held(master: &Master) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    master.answers(move |request| {
        let _ = released.lock().recv_timeout(TIMEOUT);
        Some(usual(request))
    });
    release
}

#[test]
fn a_session_that_goes_on_is_a_word_of_the_master() {
    let control = Control::alone();
    assert!(!control.reachability.expired(Duration::from_secs(1)));
    control.set_session(Session::clone(&control.session()));
    assert!(!control.reachability.is_unreachable(), "calls are made again");
    assert!(control.reachability.silence(control.now()) < TIMEOUT);
}

#[test]
fn whatever_is_wanted_of_the_anchor_wakes_it() {
    let control = Control::alone();
    let rings = || {
        let mut fds = [PollFd::from_borrowed_fd(control.waker.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    };
    type Want = fn(&Control);
    let wants: [(&str, Want); 5] = [
        ("a message", |control| control.tell(anchor_up::Body::Goodbye(Default::default()))),
        ("a pong", Control::ping),
        ("a list of what is held", Control::resume_anew),
        ("the end of the session", Control::end),
        ("its own end", Control::stop),
    ];
    for (what, want) in wants {
        assert!(!rings(), "{what}");
        want(&control);
        assert!(rings(), "{what}");
        control.waker.clear();
    }
}

#[test]
fn whatever_becomes_of_a_call_its_place_is_given_back() {
    let store = Alone::new();
    let control = store.control();
    store.ping().unwrap();
    store.ask(long(), TIMEOUT).unwrap();
    assert_eq!((control.connections(), store.master().attached()), ((1, 1, 0), 1), "one after the other");

    let other = Arc::new(session(1, 8, control));
    let body = request::Body::Ping(Ping {});
    assert!(control.finish_in(&other, "a call", body, TIMEOUT).unwrap().is_none(), "it is of another session");
    assert_eq!(control.connections(), (1, 1, 0));

    // A master that knows of no patterns.
    store.master().greets(HelloReply { features: 0, ..hello_reply(7) });
    control.drop_idle();
    store.ask(request::Body::RemoveByRegex(RemoveByRegex::default()), TIMEOUT).unwrap_err();
    assert_eq!(control.connections(), (0, 0, 0));

    store.master().answers(|_| None);
    for body in [request::Body::Ping(Ping {}), long()] {
        store.ask(body, Duration::from_millis(50)).unwrap_err();
        assert_eq!(control.connections(), (0, 0, 0));
        control.reachability.pong(control.now());
    }

    let release = held(store.master());
    for body in [request::Body::Ping(Ping {}), long()] {
        store.ask(body, Duration::from_millis(50)).unwrap_err();
        assert_eq!(control.connections(), (0, 0, 0), "it was not waited for any longer");
        control.reachability.pong(control.now());
    }
    drop(release);
}

#[test]
fn a_connection_that_breaks_is_a_word_about_the_others() {
    let store = Alone::new();
    let (control, release) = (store.control(), held(store.master()));
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(|| store.ping())).collect();
        wait_for("three calls", || store.master().asked().len() == 3);
        (0..3).for_each(|_| release.send(()).unwrap());
        calls.into_iter().for_each(|call| drop(call.join().unwrap().unwrap()));
    });
    assert_eq!(control.connections(), (3, 3, 0));
    let confuses = AtomicBool::new(true);
    store.master().answers(move |request| {
        let reply = usual(request);
        Some(Reply { id: reply.id + u64::from(confuses.swap(false, Ordering::SeqCst)), ..reply })
    });
    store.ping().unwrap();
    assert_eq!(control.connections(), (1, 1, 0), "none of them is tried");
}

/// Has a store so many connections that no call has.
fn with_idle(store: &Alone, count: usize) {
    let release = held(store.master());
    std::thread::scope(|scope| {
        let before = store.master().asked().len();
        let calls: Vec<_> = (0..count).map(|_| scope.spawn(|| store.ping())).collect();
        wait_for("all calls", || store.master().asked().len() == before + count);
        (0..count).for_each(|_| release.send(()).unwrap());
        calls.into_iter().for_each(|call| drop(call.join().unwrap().unwrap()));
    });
    assert_eq!(store.control().connections(), (count, count, 0));
    store.master().answers(|request| Some(usual(request)));
}

#[test]
fn a_connection_that_the_master_closes_while_a_request_is_on_its_way_costs_neither_the_call_nor_a_pause() {
    let store = Alone::new();
    let control = store.control();
    with_idle(&store, 3);
    let hangs_up = AtomicBool::new(true);
    store.master().answers(move |request| (!hangs_up.swap(false, Ordering::SeqCst)).then(|| usual(request)));
    control.waker.clear();
    store.ping().unwrap();
    assert_eq!((control.connections(), store.master().attached()), ((2, 2, 0), 3), "the others stand");
    let mut fds = [PollFd::from_borrowed_fd(control.waker.fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0), "nobody doubts the master");
    // One that was made just now is another matter.
    control.drop_idle();
    let hangs_up = AtomicBool::new(true);
    store.master().answers(move |request| (!hangs_up.swap(false, Ordering::SeqCst)).then(|| usual(request)));
    store.ping().unwrap();
    assert_eq!((control.connections(), store.master().attached()), ((1, 1, 0), 5));
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1));
}

#[test]
fn connections_that_the_master_closed_at_rest_are_not_tried() {
    let store = Alone::new();
    let control = store.control();
    with_idle(&store, 3);
    store.master().hang_up();
    wait_for("they are closed", || store.master().open() == 0);
    control.was_idle_for(Duration::from_secs(1));
    store.ping().unwrap();
    assert_eq!((control.connections(), store.master().attached()), ((1, 1, 0), 4));
    assert_eq!(store.master().asked().len(), 4, "it is asked once");
}

#[test]
fn connections_that_no_call_has_are_closed_after_a_while_and_two_are_kept() {
    let store = Alone::new();
    let control = store.control();
    with_idle(&store, 5);
    control.close_idle();
    assert_eq!(control.connections(), (5, 5, 0), "they may be needed again");
    control.was_idle_for(IDLE_MAX + Duration::from_secs(1));
    store.ping().unwrap();
    control.close_idle();
    assert_eq!(control.connections(), (KEPT, KEPT, 0));
    wait_for("the master hears of it", || store.master().open() == KEPT);
    control.was_idle_for(IDLE_MAX + Duration::from_secs(1));
    control.close_idle();
    store.ping().unwrap();
    assert_eq!(
        (control.connections(), store.master().attached()),
        ((KEPT, KEPT, 0), 5),
        "the next call waits for none"
    );
}

#[test]
fn a_store_whose_anchor_beats_closes_what_no_call_has_had_for_long() {
    let (client, _caller) = Client::connect();
    let control = &client.shared.control;
    let release = held(&client.master);
    std::thread::scope(|scope| {
        let ping = || control.query("a call", request::Body::Ping(Ping {}), TIMEOUT);
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(ping)).collect();
        wait_for("all calls", || client.master.asked().len() == 4);
        (0..4).for_each(|_| release.send(()).unwrap());
        calls.into_iter().for_each(|call| drop(call.join().unwrap().unwrap()));
    });
    control.was_idle_for(IDLE_MAX + Duration::from_secs(1));
    wait_for("a beat", || control.connections() == (KEPT, KEPT, 0));
}

#[test]
fn a_connection_to_an_earlier_process_of_the_master_is_used_no_more() {
    let store = Alone::new();
    let (control, release) = (store.control(), held(store.master()));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| store.ping());
        wait_for("a call", || store.master().asked().len() == 1);
        control.set_session(session(2, 7, control));
        release.send(()).unwrap();
        call.join().unwrap().unwrap();
    });
    assert_eq!(control.connections(), (1, 1, 0), "it comes back when the call is through");
    drop(release);
    store.ping().unwrap();
    assert_eq!((store.master().attached(), control.connections()), (2, (1, 1, 0)));
    control.set_session(session(3, 7, control));
    assert_eq!(control.connections(), (0, 0, 0));
    wait_for("they are closed", || store.master().open() == 0);
}

#[test]
fn a_store_that_is_closed_keeps_no_connection() {
    let store = Alone::new();
    let (control, release) = (store.control(), held(store.master()));
    std::thread::scope(|scope| {
        let calls = [scope.spawn(|| store.ping()), scope.spawn(|| store.ping())];
        wait_for("two calls", || store.master().asked().len() == 2);
        release.send(()).unwrap();
        wait_for("one is through", || control.connections() == (2, 1, 0));
        control.stop();
        assert_eq!(control.connections(), (1, 0, 0));
        release.send(()).unwrap();
        calls.into_iter().for_each(|call| drop(call.join().unwrap()));
    });
    assert_eq!(control.connections(), (0, 0, 0), "nor one that comes back later");
    wait_for("they are closed", || store.master().open() == 0);
    assert_eq!(store.ping().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn an_answer_to_another_request_is_none() {
    let store = Alone::new();
    let confuses = AtomicBool::new(true);
    store.master().answers(move |request| {
        let reply = reply_to(request, reply::Body::Done(Default::default()));
        let next = u64::from(confuses.swap(false, Ordering::SeqCst));
        Some(Reply { id: reply.id + next, ..reply })
    });
    store.ping().unwrap();
    assert_eq!(store.master().asked().len(), 2, "it is asked again, over another connection");
    assert_eq!(store.master().attached(), 2);
}

/// Listens on an abstract name as a master does, and greets so; gives how often it has been asked.
fn listen_on(name: &str, instance: Option<u8>) -> Arc<AtomicU64> {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let inside = asked.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            inside.fetch_add(1, Ordering::SeqCst);
            let Some(instance) = instance else { continue };
            let hello = HelloReply { instance: vec![instance; 16].into(), ..hello_reply(7) };
            let _ = stream.write_all(&crate::scripted_master::frame(&hello));
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    asked
}

#[test]
fn a_unix_socket_that_another_process_has_by_now_is_passed_over() {
    for (what, instance) in [("it hangs up", None), ("it is another master", Some(9))] {
        let store = Alone::new();
        let control = store.control();
        let name = format!("mooncake-test-{}-{what}", std::process::id());
        let asked = listen_on(&name, instance);
        control.set_session(Session { unix: Some(Address::Unix(name)), ..Session::clone(&control.session()) });
        store.ping().expect(what);
        assert_eq!((asked.load(Ordering::SeqCst), store.master().attached()), (1, 1), "{what}");
    }
}

#[test]
fn a_call_of_a_lost_session_is_made_once_more_in_the_next_one() {
    let store = Alone::new();
    let control = store.control();
    let lost = |kind: refusal::Kind| {
        let refusal = Some(Refusal { kind: kind.into(), reason: "no".into() });
        store.master().greets(HelloReply { refusal, ..hello_reply(7) });
    };
    lost(refusal::Kind::UnknownSession);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| store.ping());
        wait_for("it has been refused", || control.connections() == (0, 0, 0) && store.master().attached() == 1);
        store.master().greets(hello_reply(8));
        control.set_session(session(1, 8, control));
        assert_eq!(call.join().unwrap().unwrap().session.id, 8);
    });
    assert_eq!(store.master().attached(), 2, "there was nothing to try before");
    // Without another session it ends in time, and what else a master says is its last word.
    control.drop_idle();
    lost(refusal::Kind::UnknownSession);
    let error = store.ask(request::Body::Ping(Ping {}), Duration::from_millis(120)).unwrap_err();
    assert_eq!((error.kind(), store.master().attached()), (ErrorKind::MasterUnreachable, 3));
    control.reachability.pong(control.now());
    lost(refusal::Kind::BadRequest);
    let error = store.ping().unwrap_err();
    assert!(!matches!(error.cause(), Cause::MasterUnreachable { .. }) && store.master().attached() == 4, "{error}");
    assert_eq!(control.connections(), (0, 0, 0));
}

#[test]
fn no_more_calls_are_under_way_than_there_are_places_and_long_ones_leave_some_to_others() {
    let store = Alone::new();
    let control = store.control();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    store.master().answers(move |request| {
        if matches!(request.body, Some(request::Body::RemoveAll(_))) {
            let _ = released.lock().recv_timeout(TIMEOUT);
        }
        Some(usual(request))
    });
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..LONG_CALLS_MAX + 2).map(|_| scope.spawn(|| store.ask(long(), 2 * TIMEOUT))).collect();
        wait_for("as many as may be", || store.master().asked().len() == LONG_CALLS_MAX);
        store.ping().expect("there is room for it");
        assert_eq!(control.connections(), (LONG_CALLS_MAX + 1, 1, LONG_CALLS_MAX));
        (0..2).for_each(|_| release.send(()).unwrap());
        wait_for("those that waited", || store.master().asked().len() == LONG_CALLS_MAX + 1 + 2);
        (0..LONG_CALLS_MAX).for_each(|_| release.send(()).unwrap());
        calls.into_iter().for_each(|call| drop(call.join().unwrap().unwrap()));
    });
    assert_eq!(control.connections().2, 0);

    let release = held(store.master());
    let asked = store.master().asked().len();
    std::thread::scope(|scope| {
        let ping = || scope.spawn(|| store.ask(request::Body::Ping(Ping {}), 2 * TIMEOUT));
        let mut calls: Vec<_> = (0..CONNECTIONS_MAX).map(|_| ping()).collect();
        wait_for("as many as may be", || store.master().asked().len() == asked + CONNECTIONS_MAX);
        assert_eq!(control.connections(), (CONNECTIONS_MAX, 0, 0));
        let error = store.ask(request::Body::Ping(Ping {}), Duration::from_millis(80)).unwrap_err();
        assert_eq!(store.master().asked().len(), asked + CONNECTIONS_MAX, "{error}");
        assert!(control.reachability.is_unreachable());
        let error = store.ping().unwrap_err();
        assert_eq!(store.master().asked().len(), asked + CONNECTIONS_MAX, "{error}");
        control.reachability.pong(control.now());
        calls.extend((0..3).map(|_| ping()));
        (0..calls.len()).for_each(|_| release.send(()).unwrap());
        calls.into_iter().for_each(|call| drop(call.join().unwrap().unwrap()));
    });
    assert_eq!(store.master().asked().len(), asked + CONNECTIONS_MAX + 3);
    assert_eq!(control.connections(), (CONNECTIONS_MAX, CONNECTIONS_MAX, 0));
}

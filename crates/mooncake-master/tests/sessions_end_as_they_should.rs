//! Anchors, processes and parked requests: what ends what, and how fast.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mooncake_master::Settings;
use mooncake_wire::message::{self, anchor_down, anchor_up, hello, put_slot, reply, request};
use mooncake_wire::{FRAME_BYTES_MAX, pack_keys};

use crate::support;
use crate::support::{Client, Running, read_frame, write_frame};

/// The identity of another process of this host.
fn identity_of(pid: u32) -> message::ProcessIdentity {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start_time = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    message::ProcessIdentity { pid, start_time, ..support::process() }
}

fn waiting_put(key: &str, size: u64, sequence: u64) -> message::Request {
    let start = message::PutStart {
        keys: Some(pack_keys(&[key])),
        sizes: vec![size],
        wait: true,
        ..message::PutStart::default()
    };
    message::Request {
        id: 9,
        sequence,
        answered_below: 0,
        body: Some(request::Body::PutStart(start)),
        ..message::Request::default()
    }
}

#[test]
fn a_killed_clients_segments_are_gone_at_once() {
    let master = Running::start(Settings::default());
    let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    let mut owner = Client::open_as(master.rpc, identity_of(child.id()), None);
    assert_eq!(owner.hello.pid_proof, 1);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    let mut other = Client::open(master.rpc);
    assert!(other.exists("a"));
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    // Its anchor is still open, as a forked child of it would keep it.
    let gone = other.down();
    assert!(matches!(gone.body, Some(anchor_down::Body::SegmentGone(_))), "{gone:?}");
    assert!(killed.elapsed() < Duration::from_millis(500), "{:?}", killed.elapsed());
    assert!(!other.exists("a"));
    assert!(owner.resume(master.rpc).refusal.is_some(), "over is over");
    master.stop();
}

#[test]
fn a_lost_anchor_hides_and_a_resumed_one_shows_again() {
    let master = Running::start(Settings::default());
    let mut owner = Client::open(master.rpc);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    let mut other = Client::open(master.rpc);
    owner.anchor.shutdown(std::net::Shutdown::Both).unwrap();
    support::eventually("hidden", || !other.exists("a"));
    assert_eq!(owner.resume(master.rpc).refusal, None);
    assert!(other.exists("a"));
    // A second resume takes the place of the first, whose end then changes nothing.
    let older = owner.anchor.try_clone().unwrap();
    assert_eq!(owner.resume(master.rpc).refusal, None);
    drop(older);
    std::thread::sleep(Duration::from_millis(50));
    assert!(other.exists("a"));
    master.stop();
}

#[test]
fn a_resume_that_was_given_up_on_the_way_takes_no_view_and_no_anchor_from_the_one_after_it() {
    let master = Running::start(Settings::default());
    let mut owner = Client::open(master.rpc);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    let resume = |client: &Client, list, settled_below| {
        let resume = message::ResumeSession {
            session: client.session,
            secret: client.secret,
            segments: client.segments.iter().map(|uuid| uuid.clone().into()).collect(),
            settled_below,
            list,
            ..message::ResumeSession::default()
        };
        support::greet(master.rpc, hello::Role::Resume(resume), None)
    };
    let (anchor, reply) = resume(&owner, 2, 0);
    assert_eq!(reply.refusal, None);
    owner.anchor = anchor;
    let pin = message::Pin { keys: Some(pack_keys(&["a"])) };
    owner.mutate(request::Body::Pin(pin));
    let pins = || master.http("GET /metrics").1.lines().any(|line| line == "mooncake_pins 1");
    assert!(pins());
    // Its list was made before the view began, whose reply has come since.
    let (_late, reply) = resume(&owner, 1, owner.sequence + 1);
    assert!(pins(), "the view is held");
    assert_eq!(reply.refusal.map(|refusal| refusal.kind()), Some(message::refusal::Kind::BadRequest));
    owner.beat();
    // What does not count its lists is heard as before.
    assert_eq!(resume(&owner, 0, owner.sequence + 1).1.refusal, None);
    assert!(!pins());
    master.stop();
}

#[test]
fn a_peers_word_counts_only_once_the_owners_anchor_is_down() {
    let master = Running::start(Settings::default());
    // A process that the master cannot watch: its pid namespace is another.
    let hidden = message::ProcessIdentity { pid_namespace: 1, ..support::process() };
    let mut owner = Client::open_as(master.rpc, hidden, None);
    assert_eq!(owner.hello.pid_proof, 0);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    let mut peer = Client::open(master.rpc);
    peer.up(anchor_up::Body::PeerGone(message::PeerGone { uuid: owner.segments[0].clone().into(), process: None }));
    peer.beat();
    assert!(peer.exists("a"), "a living owner is not talked away");
    owner.anchor.shutdown(std::net::Shutdown::Both).unwrap();
    let gone = peer.down();
    assert!(matches!(gone.body, Some(anchor_down::Body::SegmentGone(_))), "{gone:?}");
    assert!(owner.resume(master.rpc).refusal.is_some());
    master.stop();
}

#[test]
fn a_parked_put_is_woken_by_the_end_of_what_it_waits_for() {
    let master = Running::start(Settings::default());
    let mut first = Client::open(master.rpc);
    first.mount(1 << 20);
    let rids = first.start(&[("a", 1000)]);
    let mut second = Client::open(master.rpc);
    let start = Instant::now();
    write_frame(&mut second.call, &waiting_put("a", 1000, 1)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    first.end(&rids);
    let reply: message::Reply = read_frame(&mut second.call, FRAME_BYTES_MAX).unwrap();
    let Some(reply::Body::PutStart(started)) = reply.body else { panic!("{reply:?}") };
    assert_eq!(started.slots[0].kind(), put_slot::Kind::Exists);
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
    master.stop();
}

#[test]
fn a_parked_put_ends_with_busy_at_its_deadline_and_with_its_connection() {
    let master = Running::start(Settings::default());
    let mut first = Client::open(master.rpc);
    first.mount(1 << 20);
    let rids = first.start(&[("a", 1000)]);
    let mut second = Client::open(master.rpc);
    let start = Instant::now();
    write_frame(&mut second.call, &waiting_put("a", 1000, 1)).unwrap();
    let reply: message::Reply = read_frame(&mut second.call, FRAME_BYTES_MAX).unwrap();
    let Some(reply::Body::PutStart(started)) = reply.body else { panic!("{reply:?}") };
    assert_eq!(started.slots[0].kind(), put_slot::Kind::Busy, "{started:?}");
    assert!((450..1000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());

    write_frame(&mut second.call, &waiting_put("a", 1000, 2)).unwrap();
    let parked = |page: &str| page.lines().any(|line| line == "mooncake_parked_puts 1");
    support::eventually("parked", || parked(&master.http("GET /metrics").1));
    second.call.shutdown(std::net::Shutdown::Both).unwrap();
    support::eventually("cancelled", || !parked(&master.http("GET /metrics").1));
    first.end(&rids);
    master.stop();
}

#[test]
fn closing_a_session_closes_its_anchor_and_forgets_its_segments() {
    let master = Running::start(Settings::default());
    let mut owner = Client::open(master.rpc);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    let mut other = Client::open(master.rpc);
    let closed = owner.call(request::Body::CloseSession(message::CloseSession {}));
    assert_eq!(closed, reply::Body::Done(message::Done {}));
    assert!(!other.exists("a"));
    let mut frames = 0;
    while read_frame::<message::AnchorDown>(&mut owner.anchor, FRAME_BYTES_MAX).is_ok() {
        frames += 1;
        assert!(frames < 10, "the anchor stays open");
    }
    assert!(owner.resume(master.rpc).refusal.is_some());
    master.stop();
}

#[test]
fn a_session_that_closes_is_answered_once_all_that_hung_on_it_is_gone() {
    let master = Running::start(Settings::default());
    let mut owner = Client::open(master.rpc);
    // More than one hold of the lock has time for.
    (0..60).for_each(|_| _ = owner.mount(1 << 20));
    let segments = |master: &Running| master.http("GET /get_all_segments").1.lines().count();
    let there = segments(&master);
    assert_eq!(there, 60);
    owner.call(request::Body::CloseSession(message::CloseSession {}));
    let (_, summary) = master.http("GET /metrics");
    let gone = summary.lines().find_map(|line| line.strip_prefix("mooncake_segments_gone_total "));
    assert_eq!((segments(&master), gone), (0, Some("60")));
    master.stop();
}

#[test]
fn a_beat_is_answered_with_its_number_and_a_position() {
    let master = Running::start(Settings::default());
    let mut client = Client::open(master.rpc);
    for number in 1..4 {
        let pong = client.beat();
        let Some(anchor_down::Body::Pong(pong)) = pong.body else { panic!("{pong:?}") };
        assert_eq!(pong.number, number);
        assert!(pong.position.is_some());
    }
    master.stop();
}

#[test]
fn a_segment_that_cannot_be_populated_shrinks_to_what_there_is_and_stays_so() {
    let scratch = support::Scratch::new();
    let master = Running::start(scratch.settings());
    let mut owner = Client::open(master.rpc);
    let memory = vec![9; 16];
    owner.segments.push(memory.clone());
    let request::Body::Mount(mount) = support::mount_request(memory.clone(), 1 << 20) else { unreachable!() };
    owner.mutate(request::Body::Mount(message::Mount { populated: 1 << 16, ..mount }));
    let populated = vec![message::Populated { uuid: memory.into(), bytes: 3 << 16, failed: true }];
    owner.up(anchor_up::Body::Beat(message::Beat { number: 1, populated, ..message::Beat::default() }));
    owner.down();
    let has = |master: &Running, line: &str| master.http("GET /metrics").1.lines().any(|have| have == line);
    assert!(has(&master, "master_total_capacity_bytes 196608"));
    assert!(has(&master, "segment_total_capacity_bytes{segment=\"test:1\"} 196608"));
    master.stop();
    let master = Running::start(scratch.settings());
    owner.resume(master.rpc);
    assert!(has(&master, "master_total_capacity_bytes 196608"));
    master.stop();
}

/// A client whose process the master cannot watch, with a view on what another one has put.
fn reader_of(master: &Running, key: &str, mark: u64) -> Client {
    // Of another pid namespace, as in a container of its own.
    let apart = message::ProcessIdentity { pid_namespace: 1, mark, ..support::process() };
    let mut reader = Client::open_as(master.rpc, apart, None);
    assert_eq!(reader.hello.pid_proof, 0);
    match reader.mutate(request::Body::Pin(message::Pin { keys: Some(pack_keys(&[key])) })) {
        reply::Body::Lookup(found) => assert_eq!(found.objects[0].replicas.len(), 1),
        other => panic!("{other:?}"),
    }
    reader
}

fn pins(master: &Running) -> u64 {
    let page = master.http("GET /metrics").1;
    let line = page.lines().find_map(|line| line.strip_prefix("mooncake_pins ")).expect("the metric");
    line.parse().unwrap()
}

fn reader_gone(session: u64, uuid: &[u8], mark: u64) -> anchor_up::Body {
    anchor_up::Body::ReaderGone(message::ReaderGone { session, uuid: uuid.to_vec().into(), mark })
}

fn taken(session: u64, uuid: &[u8]) -> Option<anchor_down::Body> {
    Some(anchor_down::Body::ReaderGoneTaken(message::ReaderGoneTaken { session, uuid: uuid.to_vec().into() }))
}

#[test]
fn an_owner_that_saw_a_reader_end_gives_its_pins_back() {
    let scratch = support::Scratch::new();
    let master = Running::start(scratch.settings());
    let mut owner = Client::open(master.rpc);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    let uuid = owner.segments[0].clone();
    let mut reader = reader_of(&master, "a", 77);
    assert_eq!(pins(&master), 1);
    // Seen by its owner before the master has heard the end of its connection: kept until then.
    owner.up(reader_gone(reader.session, &uuid, 77));
    owner.beat();
    assert_eq!(pins(&master), 1, "a living reader is not talked away");
    reader.anchor.shutdown(std::net::Shutdown::Both).unwrap();
    support::eventually("given back", || pins(&master) == 0);
    assert!(reader.resume(master.rpc).refusal.is_some(), "over is over");
    // Told again, as by an owner that has had no answer.
    owner.up(reader_gone(reader.session, &uuid, 77));
    assert_eq!(owner.down().body, taken(reader.session, &uuid));

    // Told to a master that was restarted meanwhile.
    let reader = reader_of(&master, "a", 78);
    let session = reader.session;
    drop(reader);
    master.stop();
    let master = Running::start(scratch.settings());
    assert_eq!(owner.resume(master.rpc).refusal, None);
    assert_eq!(pins(&master), 1);
    owner.up(reader_gone(session, &uuid, 78));
    assert_eq!(owner.down().body, taken(session, &uuid));
    assert_eq!(pins(&master), 0);
    master.stop();
    // And that the log says, too.
    let master = Running::start(scratch.settings());
    assert_eq!(pins(&master), 0);
    master.stop();
}

#[test]
fn nobody_talks_the_views_of_another_process_away() {
    let master = Running::start(Settings::default());
    let mut owner = Client::open(master.rpc);
    owner.mount(1 << 20);
    owner.put("a", 1000);
    let uuid = owner.segments[0].clone();
    let (mut reader, mut old) = (reader_of(&master, "a", 77), reader_of(&master, "a", 0));
    for reader in [&reader, &old] {
        reader.anchor.shutdown(std::net::Shutdown::Both).unwrap();
    }
    let elsewhere = message::ProcessIdentity { boot_id: vec![9; 16].into(), ..support::process() };
    let mut stranger = Client::open_as(master.rpc, elsewhere, None);
    stranger.mount(1 << 20);
    let strangers = stranger.segments[0].clone();
    let mut peer = Client::open(master.rpc);
    let session = reader.session;
    let refused = |reporter: &mut Client, session: u64, uuid: &[u8], mark: u64| {
        reporter.up(reader_gone(session, uuid, mark));
        assert_eq!(reporter.down().body, taken(session, uuid), "it need not be told again");
    };
    // A process that named a session that is not its own, and ended, has not shown the mark of it.
    refused(&mut owner, session, &uuid, 78);
    refused(&mut owner, session, &uuid, 0);
    refused(&mut owner, old.session, &uuid, 0);
    // Who holds no memory on that host has seen nobody end.
    refused(&mut peer, session, &uuid, 77);
    refused(&mut stranger, session, &uuid, 77);
    refused(&mut stranger, session, &strangers, 77);
    assert_eq!(pins(&master), 2);
    assert_eq!((reader.resume(master.rpc).refusal, old.resume(master.rpc).refusal), (None, None));
    master.stop();
}

#[test]
fn clients_whose_processes_end_while_no_master_is_there_are_over_and_those_that_end_later_are_then() {
    let scratch = support::Scratch::new();
    let master = Running::start(scratch.settings());
    let mut children = [(), ()].map(|()| Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap());
    let mut owners = children.each_ref().map(|child| Client::open_as(master.rpc, identity_of(child.id()), None));
    owners.iter_mut().for_each(|owner| _ = owner.mount(1 << 20));
    let [first, second] = &mut children;
    master.stop();
    let end = |child: &mut std::process::Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    end(first);

    let master = Running::start(scratch.settings());
    let gone = |page: &str| page.contains("\nmooncake_sessions 1\n");
    let page = master.http("GET /metrics").1;
    assert!(gone(&page), "only one is left: {page}");
    assert!(owners[0].resume(master.rpc).refusal.is_some(), "its memory went with it");
    // The other one has not come back yet, and never will.
    let mut witness = Client::open(master.rpc);
    end(second);
    let told = witness.down();
    assert!(matches!(told.body, Some(anchor_down::Body::SegmentGone(_))), "{told:?}");
    assert!(owners[1].resume(master.rpc).refusal.is_some());
    master.stop();
}

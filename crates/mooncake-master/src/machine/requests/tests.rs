use mooncake_wire::message::put_end_reply::Outcome as Ending;
use mooncake_wire::message::put_slot::Kind;
use mooncake_wire::message::refusal;
use mooncake_wire::message::request::Body;
use mooncake_wire::pack_keys;

use super::super::testbed::{Client, MEMORY, Testbed};
use super::*;

fn put_start(keys: &[&str], wait: bool) -> message::PutStart {
    let sizes = vec![1000; keys.len()];
    message::PutStart { keys: Some(pack_keys(keys)), sizes, wait, ..message::PutStart::default() }
}

fn put_end(rid: u64) -> Body {
    let replicas = vec![message::ReplicaOutcome { rid, good: true }];
    Body::PutEnd(message::PutEnd { ended: vec![message::Ended { replicas, crc32c: 7, stays: false }] })
}

/// Reserves room for a key.
fn reserve(testbed: &mut Testbed, client: Client, key: &str) -> u64 {
    let reply = testbed.call(client, Body::PutStart(put_start(&[key], false)));
    let reply::Body::PutStart(reply) = reply.body else { panic!("{reply:?}") };
    assert_eq!(reply.slots[0].kind(), Kind::Placed);
    reply.slots[0].replicas[0].rid
}

fn put(testbed: &mut Testbed, client: Client, key: &str) -> u64 {
    let rid = reserve(testbed, client, key);
    let reply = testbed.call(client, put_end(rid));
    let outcomes = vec![Ending::Committed.into()];
    assert_eq!(reply.body, reply::Body::PutEnd(message::PutEndReply { outcomes }));
    rid
}

fn is_bad(reply: &CountedReply) -> bool {
    let bad = matches!(&reply.body, reply::Body::Refusal(it) if it.kind() == refusal::Kind::BadRequest);
    bad && reply.tally.is_none()
}

fn tally(items: usize, failed: usize, hit_bytes: u64) -> Option<Tally> {
    Some(Tally { items, failed, hit_bytes, existing: 0 })
}

/// One of each, in its plainest form.
fn all() -> Vec<Body> {
    let keys = || Some(pack_keys(&["k"]));
    vec![
        Body::Exists(message::Exists { keys: keys(), sizes: false }),
        Body::Lookup(message::Lookup { keys: keys() }),
        Body::Describe(message::Describe { keys: keys() }),
        Body::Segments(message::Segments { numbers: vec![1] }),
        Body::Ping(message::Ping {}),
        Body::BadReplica(message::BadReplica::default()),
        Body::CloseSession(message::CloseSession {}),
        Body::PutStart(put_start(&["k"], false)),
        Body::PutEnd(message::PutEnd::default()),
        Body::Abort(message::Abort::default()),
        Body::Pin(message::Pin { keys: keys() }),
        Body::Unpin(message::Unpin::default()),
        Body::Remove(message::Remove { keys: keys(), force: false }),
        Body::RemoveAll(message::RemoveAll { force: false }),
        Body::RemoveByRegex(message::RemoveByRegex { pattern: "k".to_owned(), force: false }),
        Body::Mount(message::Mount::default()),
        Body::Unmount(message::Unmount { uuid: MEMORY.to_vec().into(), grace_ms: 0 }),
    ]
}

#[test]
fn what_is_to_be_done_once_has_a_number() {
    for (at, body) in all().into_iter().enumerate() {
        let mut testbed = Testbed::new();
        let client = testbed.open();
        let said = format!("{body:?}");
        let reply = testbed.request(client, Request { body: Some(body), ..Request::default() }).unwrap();
        // The first seven change nothing, or nothing that a repeat changes.
        assert_eq!(is_bad(&reply), at >= 7, "{said}: {reply:?}");
    }
    let mut testbed = Testbed::new();
    let client = testbed.open();
    let nothing = testbed.request(client, Request { sequence: 1, ..Request::default() }).unwrap();
    assert!(is_bad(&nothing), "{nothing:?}");
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let lying = || Some(message::Keys { blob: bytes::Bytes::from_static(b"abc"), lengths: vec![2] });
    let config = |config| Body::PutStart(message::PutStart { config: Some(config), ..put_start(&["k"], false) });
    let plain = message::PutConfig::default;
    let segment = |segment| Body::Mount(message::Mount { segment: Some(segment), populated: 0 });
    let whole = || message::Segment {
        uuid: vec![4; 16].into(),
        name: "s".to_owned(),
        bytes: 1 << 20,
        endpoint: Some(message::Endpoint::default()),
        ..message::Segment::default()
    };
    let garbage = [
        Body::Exists(message::Exists { keys: None, sizes: false }),
        Body::Lookup(message::Lookup { keys: lying() }),
        Body::Describe(message::Describe { keys: lying() }),
        Body::Pin(message::Pin { keys: lying() }),
        Body::Remove(message::Remove { keys: lying(), force: false }),
        Body::PutStart(message::PutStart { keys: lying(), ..put_start(&["k"], false) }),
        Body::PutStart(message::PutStart { sizes: vec![1, 2], ..put_start(&["k"], false) }),
        Body::PutStart(message::PutStart { groups: lying(), ..put_start(&["k"], false) }),
        config(message::PutConfig { replica_num: 65, ..plain() }),
        config(message::PutConfig { soft_pin_ttl_ms: 10_001, ..plain() }),
        Body::RemoveByRegex(message::RemoveByRegex { pattern: "(".to_owned(), force: false }),
        Body::Mount(message::Mount::default()),
        segment(message::Segment { uuid: vec![4; 15].into(), ..whole() }),
        segment(message::Segment { name: String::new(), ..whole() }),
        segment(message::Segment { endpoint: None, ..whole() }),
        Body::Unmount(message::Unmount { uuid: vec![4; 17].into(), grace_ms: 0 }),
        Body::BadReplica(message::BadReplica {
            more: vec![message::BadReplica::default(); BAD_REPLICAS_MAX],
            ..message::BadReplica::default()
        }),
    ];
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    testbed.effects = Effects::default();
    for body in garbage {
        let said = format!("{body:.80?}");
        let reply = testbed.call(client, body);
        assert!(is_bad(&reply), "{said}: {reply:?}");
    }
    assert!(testbed.effects.is_empty());
    assert!(!is_bad(&testbed.call(client, segment(whole()))), "the same without the fault");
}

#[test]
fn what_is_put_is_there_for_all_that_asks_until_it_is_removed() {
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    let rid = put(&mut testbed, client, "k");
    let keys = || Some(pack_keys(&["k", "missing"]));

    let reply = testbed.call(client, Body::Exists(message::Exists { keys: keys(), sizes: true }));
    let told = message::ExistsReply { found: vec![1, 0].into(), sizes: vec![1000, 0], away: false };
    assert_eq!((reply.body, reply.tally), (reply::Body::Exists(told), tally(2, 0, 0)));

    for body in [Body::Lookup(message::Lookup { keys: keys() }), Body::Pin(message::Pin { keys: keys() })] {
        let reply = testbed.call(client, body);
        let reply::Body::Lookup(told) = reply.body else { panic!("{reply:?}") };
        assert_eq!((told.objects[0].replicas[0].rid, told.objects[0].crc32c), (rid, 7));
        assert_eq!((told.objects[1].replicas.len(), reply.tally), (0, tally(2, 1, 1000)));
    }
    assert_eq!(testbed.stats().pins, 1);
    let reply = testbed.call(client, Body::Unpin(message::Unpin { rids: vec![rid] }));
    assert_eq!((testbed.stats().pins, reply.tally), (0, tally(1, 0, 0)));

    let reply = testbed.call(client, Body::Describe(message::Describe { keys: keys() }));
    let reply::Body::Describe(told) = reply.body else { panic!("{reply:?}") };
    assert_eq!((told.objects[0].size, &*told.segments[0].name), (1000, "h:1"));
    let numbers = vec![told.segments[0].number; 2];
    let reply = testbed.call(client, Body::Segments(message::Segments { numbers }));
    let reply::Body::Segments(told) = reply.body else { panic!("{reply:?}") };
    assert_eq!((told.segments.len(), told.segments[0].session), (1, client.session.0), "each once");

    let reply = testbed.call(client, Body::Remove(message::Remove { keys: keys(), force: true }));
    use message::remove_reply::Outcome;
    let outcomes = vec![Outcome::Removed.into(), Outcome::Missing.into()];
    let told = reply::Body::Remove(message::RemoveReply { outcomes });
    assert_eq!((reply.body, reply.tally), (told, tally(2, 1, 0)));
    assert_eq!(testbed.stats().keys, 0);
}

#[test]
fn a_put_that_waits_is_answered_when_the_one_before_it_ends() {
    let mut testbed = Testbed::new();
    let (first, second) = (testbed.owner(), testbed.open());
    let rid = reserve(&mut testbed, first, "k");
    let wait = |testbed: &mut Testbed, sequence| {
        let body = Some(Body::PutStart(put_start(&["k"], true)));
        testbed.request(second, Request { sequence, body, ..Request::default() }).unwrap_err()
    };
    let given_up = wait(&mut testbed, 100);
    testbed.core.cancel_ticket(testbed.now, given_up, &mut testbed.effects);
    let ticket = wait(&mut testbed, 101);
    assert!(testbed.effects.woken.is_empty());
    testbed.call(first, put_end(rid));
    let woken = std::mem::take(&mut testbed.effects.woken);
    assert_eq!(woken, [(ticket, vec![StartOutcome::Exists])]);
    let reply = CountedReply::put_start(&woken[0].1);
    let reply::Body::PutStart(told) = reply.body else { panic!("{reply:?}") };
    let one = Tally { items: 1, existing: 1, ..Tally::default() };
    assert_eq!((told.slots[0].kind(), reply.tally), (Kind::Exists, Some(one)));
}

#[test]
fn a_repeat_gets_the_first_answer_until_the_client_says_that_it_has_it() {
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    let rid = reserve(&mut testbed, client, "k");
    let end = |testbed: &mut Testbed| {
        let request = Request { sequence: 50, body: Some(put_end(rid)), ..Request::default() };
        testbed.request(client, request).unwrap()
    };
    let (first, again) = (end(&mut testbed), end(&mut testbed));
    assert_eq!(first.body, again.body);
    assert_eq!(testbed.stats().counters.puts_committed, 1);
    let next = Request { sequence: 52, answered_below: 52, settled_below: 52, ..Request::default() };
    let body = Some(Body::Unpin(message::Unpin::default()));
    testbed.request(client, Request { body, ..next }).unwrap();
    let forgotten = end(&mut testbed);
    assert!(matches!(forgotten.body, reply::Body::Refusal(_)), "{forgotten:?}");
    assert_eq!(forgotten.tally, tally(1, 1, 0));
}

#[test]
fn what_its_client_has_given_up_is_not_carried_out_when_it_comes() {
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    let ping = Some(Body::Ping(message::Ping {}));
    testbed.request(client, Request { abandoned: vec![60], body: ping, ..Request::default() }).unwrap();
    let late = Some(Body::PutStart(put_start(&["k"], false)));
    let reply = testbed.request(client, Request { sequence: 60, body: late, ..Request::default() }).unwrap();
    assert!(matches!(reply.body, reply::Body::Refusal(_)), "{reply:?}");
    assert_eq!(testbed.stats().unfinished_puts, 0);
}

#[test]
fn a_session_that_closes_is_over_with_its_memory() {
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    testbed.call(client, Body::CloseSession(message::CloseSession {}));
    assert!(!testbed.knows(client) && testbed.owner_of_memory().is_none());
    let reply = testbed.call(client, Body::PutStart(put_start(&["k"], false)));
    let reply::Body::Refusal(refusal) = reply.body else { panic!("{reply:?}") };
    assert_eq!(refusal.kind(), refusal::Kind::UnknownSession);
}

#[test]
fn what_its_client_has_the_answer_to_is_forgotten_by_one_word_and_not_done_again() {
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    let remove = |sequence| {
        let body = Some(Body::Remove(message::Remove { keys: Some(pack_keys(&["k"])), force: true }));
        Request { sequence, body, ..Request::default() }
    };
    let refusal = |reply: &CountedReply| match &reply.body {
        reply::Body::Refusal(refusal) => Some(refusal.reason.clone()),
        _ => None,
    };
    for sequence in 21..=25 {
        assert_eq!(refusal(&testbed.request(client, remove(sequence)).unwrap()), None);
    }
    put(&mut testbed, client, "k");
    // One that takes long is waited for still: no mark passes it.
    let ping = Body::Ping(message::Ping {});
    let settled = Request { settled_below: 25, unsettled: vec![22], body: Some(ping), ..Request::default() };
    testbed.request(client, settled).unwrap();
    let again: Vec<bool> =
        (21..=25).map(|sequence| refusal(&testbed.request(client, remove(sequence)).unwrap()).is_none()).collect();
    assert_eq!(again, [false, true, false, false, true], "only what it waits for is answered again");
    assert!(testbed.core.peek(b"k").is_some(), "and nothing is done again");
}

#[test]
fn as_failed_counts_what_was_not_done() {
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    let (one, other) = (reserve(&mut testbed, client, "a"), reserve(&mut testbed, client, "b"));
    let ended =
        |rid, good| message::Ended { replicas: vec![message::ReplicaOutcome { rid, good }], crc32c: 7, stays: false };
    let all = message::PutEnd { ended: vec![ended(one, true), ended(other, false), ended(4, true)] };
    let reply = testbed.call(client, Body::PutEnd(all));
    let outcomes = vec![Ending::Committed.into(), Ending::Revoked.into(), Ending::Superseded.into()];
    assert_eq!(reply.body, reply::Body::PutEnd(message::PutEndReply { outcomes }));
    assert_eq!(reply.tally, tally(3, 2, 0));

    let mut start = put_start(&["a", "c", "huge"], false);
    start.sizes[2] = 1 << 40;
    let reply = testbed.call(client, Body::PutStart(start));
    let reply::Body::PutStart(started) = &reply.body else { panic!("{reply:?}") };
    let kinds: Vec<Kind> = started.slots.iter().map(|slot| slot.kind()).collect();
    assert_eq!(kinds[..2], [Kind::Exists, Kind::Placed]);
    let told = Tally { items: 3, failed: 1, existing: 1, ..Tally::default() };
    assert_eq!(reply.tally, Some(told), "{:?}", kinds[2]);

    let keys = || Some(pack_keys(&["a", "c", "d"]));
    assert_eq!(testbed.call(client, Body::Pin(message::Pin { keys: keys() })).tally, tally(3, 2, 1000));
    let remove = Body::Remove(message::Remove { keys: keys(), force: true });
    assert_eq!(testbed.call(client, remove).tally, tally(3, 2, 0), "one is busy, one is missing");
}

#[test]
fn whoever_asks_whether_an_object_is_there_has_a_while_to_get_it() {
    let keys = || Some(pack_keys(&["k"]));
    let shows = [
        Body::Exists(message::Exists { keys: keys(), sizes: false }),
        Body::Describe(message::Describe { keys: keys() }),
    ];
    for show in shows {
        let mut testbed = Testbed::new();
        let client = testbed.owner();
        put(&mut testbed, client, "k");
        let remove = |testbed: &mut Testbed| {
            let reply = testbed.call(client, Body::Remove(message::Remove { keys: keys(), force: false }));
            let reply::Body::Remove(reply) = reply.body else { panic!("{reply:?}") };
            message::remove_reply::Outcome::try_from(reply.outcomes[0]).unwrap()
        };
        // The put itself is no reader.
        testbed.now = testbed.now.plus_ms(4_000);
        testbed.call(client, show.clone());
        assert_eq!(remove(&mut testbed), message::remove_reply::Outcome::Protected, "{show:?}");
        testbed.now = testbed.now.plus_ms(4_000);
        assert_eq!(remove(&mut testbed), message::remove_reply::Outcome::Removed, "{show:?}");
    }
}

//! docs/safety.md, rule 6: a mutation that is repeated after a lost reply is done once.

use mooncake_wire::message::put_end_reply::Outcome;
use mooncake_wire::message::reply::Body as Told;
use mooncake_wire::message::{self, request};
use mooncake_wire::pack_keys;

use crate::support;
use crate::support::{Client, Running, Scratch, put_end, put_start};

#[test]
fn a_repeated_mutation_gets_the_first_reply_also_after_a_restart() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    let started = client.mutate(put_start(&[("a", 1000), ("b", 2000)]));
    let start_sequence = client.sequence;
    assert_eq!(client.call_as(start_sequence, put_start(&[("a", 1000), ("b", 2000)])), started);

    let rids: Vec<u64> = match &started {
        message::reply::Body::PutStart(s) => s.slots.iter().map(|slot| slot.replicas[0].rid).collect(),
        other => panic!("{other:?}"),
    };
    let ended = client.mutate(put_end(&rids));
    let end_sequence = client.sequence;
    assert_eq!(client.call_as(end_sequence, put_end(&rids)), ended);

    let remove = request::Body::Remove(message::Remove { keys: Some(pack_keys(&["a"])), force: true });
    let removed = client.mutate(remove.clone());
    let remove_sequence = client.sequence;
    master.stop();

    let master = Running::start(scratch.settings());
    assert_eq!(client.resume(master.rpc).refusal, None);
    assert_eq!(client.call_as(start_sequence, put_start(&[("a", 1000), ("b", 2000)])), started);
    assert_eq!(client.call_as(end_sequence, put_end(&rids)), ended);
    assert_eq!(client.call_as(remove_sequence, remove), removed);
    assert!(!client.exists("a"));
    assert!(client.exists("b"));
    master.stop();
}

#[test]
fn a_replacement_that_began_before_a_restart_ends_after_it_and_once() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    let old = client.put("a", 1000);
    let request::Body::PutStart(start) = put_start(&[("a", 2000)]) else { unreachable!() };
    let config = message::PutConfig { replace: true, ..message::PutConfig::default() };
    let start = request::Body::PutStart(message::PutStart { config: Some(config), ..start });
    let started = client.mutate(start.clone());
    let rid = match &started {
        message::reply::Body::PutStart(s) => s.slots[0].replicas[0].rid,
        other => panic!("{other:?}"),
    };
    let sequence = client.sequence;
    master.stop();

    let master = Running::start(scratch.settings());
    assert_eq!(client.resume(master.rpc).refusal, None);
    assert_eq!(client.call_as(sequence, start), started);
    assert_eq!(client.lookup("a"), Some((1000, old)));
    let ended = client.mutate(put_end(&[rid]));
    assert_eq!(client.call_as(client.sequence, put_end(&[rid])), ended);
    assert_eq!(client.lookup("a"), Some((2000, rid)));
    master.stop();
}

#[test]
fn a_repeated_remove_all_removes_nothing_that_came_since() {
    let master = Running::start(support::Scratch::new().settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    for key in ["a", "b", "c"] {
        client.put(key, 100);
    }
    let all = request::Body::RemoveAll(message::RemoveAll { force: true });
    let first = client.mutate(all.clone());
    assert_eq!(first, message::reply::Body::RemoveAll(message::RemoveAllReply { removed: 3 }));
    let sequence = client.sequence;
    client.put("d", 100);
    assert_eq!(client.call_as(sequence, all), first);
    assert!(client.exists("d"));
    master.stop();
}

#[test]
fn a_mutation_without_a_sequence_is_refused() {
    let master = Running::start(mooncake_master::Settings::default());
    let mut client = Client::open(master.rpc);
    let refused = client.call(put_start(&[("a", 1)]));
    assert!(matches!(refused, message::reply::Body::Refusal(_)), "{refused:?}");
    master.stop();
}

#[test]
fn what_found_nothing_to_do_does_nothing_either_when_it_comes_again_later() {
    for restart in [false, true] {
        let scratch = Scratch::new();
        let mut master = Running::start(scratch.settings());
        let mut client = Client::open(master.rpc);
        client.mount(1 << 20);
        let keys = |key| Some(pack_keys(&[key]));
        let mut asked = Vec::new();
        let mut ask = |client: &mut Client, body: request::Body| {
            let told = client.mutate(body.clone());
            asked.push((client.sequence, body, told.clone()));
            told
        };
        let all = request::Body::RemoveAll(message::RemoveAll { force: true });
        let none = Told::RemoveAll(message::RemoveAllReply { removed: 0 });
        assert_eq!(ask(&mut client, all), none);
        let matching = message::RemoveByRegex { pattern: "removed".to_owned(), force: true };
        assert_eq!(ask(&mut client, request::Body::RemoveByRegex(matching)), none);
        let remove = message::Remove { keys: keys("removed"), force: true };
        ask(&mut client, request::Body::Remove(remove));
        ask(&mut client, request::Body::Pin(message::Pin { keys: keys("pinned") }));
        let last = client.put("there", 100);
        ask(&mut client, put_start(&[("there", 100)]));
        // Of placements to come.
        let [viewed, given_up, ended] = [last + 2, last + 4, last + 6];
        ask(&mut client, request::Body::Unpin(message::Unpin { rids: vec![viewed] }));
        ask(&mut client, request::Body::Abort(message::Abort { rids: vec![given_up], writer_done: true }));
        let superseded = Told::PutEnd(message::PutEndReply { outcomes: vec![Outcome::Superseded.into()] });
        assert_eq!(ask(&mut client, put_end(&[ended])), superseded);
        let other = vec![0x77; 16];
        let unmount = message::Unmount { uuid: other.clone().into(), grace_ms: 0 };
        assert!(matches!(ask(&mut client, request::Body::Unmount(unmount)), Told::Refusal(_)));

        // Now there is what each of them would find.
        assert_eq!(client.put("viewed", 100), viewed);
        client.mutate(request::Body::Pin(message::Pin { keys: keys("viewed") }));
        assert_eq!(client.start(&[("given up", 100), ("ended", 100)]), [given_up, ended]);
        ["removed", "pinned"].iter().for_each(|key| _ = client.put(key, 100));
        client.mutate(request::Body::Remove(message::Remove { keys: keys("there"), force: true }));
        client.segments.push(other.clone());
        let Told::Mount(mounted) = client.mutate(support::mount_request(other.clone(), 1 << 20)) else { panic!() };
        if restart {
            master.stop();
            master = Running::start(scratch.settings());
            assert_eq!(client.resume_with_views(master.rpc, vec![viewed]).refusal, None);
        }
        for (sequence, body, told) in asked {
            let is_pin = matches!(body, request::Body::Pin(_));
            let again = client.call_as(sequence, body);
            match &again {
                // It pins nothing. What is there by now may be copied: the caller has not heard that it was not.
                Told::Lookup(found) if is_pin => {
                    assert!(matches!(&found.objects[..], [found] if found.size == 100 && found.replicas.is_empty()));
                }
                again => assert_eq!(*again, told),
            }
        }
        for key in ["removed", "pinned", "viewed"] {
            assert!(client.exists(key), "{key}");
        }
        assert!(master.http("GET /metrics").1.contains("\nmooncake_pins 1\n"), "the view is there, and none beside it");
        assert_eq!(client.lookup("ended"), None);
        let committed = i32::from(Outcome::Committed);
        assert_eq!(client.end(&[given_up, ended]), [committed, committed], "both were under way still");
        assert_eq!(Client::open(master.rpc).start(&[("there", 100)]).len(), 1, "nobody has its key");
        let again = client.mutate(support::mount_request(other, 1 << 20));
        assert_eq!(again, Told::Mount(mounted), "the memory is there still");
        master.stop();
    }
}

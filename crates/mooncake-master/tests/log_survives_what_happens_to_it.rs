//! docs/safety.md, rules 17 to 19: restarts, torn tails, damage, older copies, runs without
//! the log, two masters.

use std::fs;
use std::path::Path;

use mooncake_master::{LogFolder, Settings, Wal};
use mooncake_wire::message::{self, anchor_down};

use crate::support;
use crate::support::{Client, Running, Scratch};

/// A log with some objects whose master has stopped.
fn written(scratch: &Scratch) -> Client {
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    for key in ["a", "b", "c"] {
        client.put(key, 1000);
    }
    master.stop();
    client
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_restarted_master_still_knows_every_object() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    for _ in 0..3 {
        let master = Running::start(scratch.settings());
        let reply = client.resume(master.rpc);
        assert_eq!(reply.refusal, None);
        assert_eq!(reply.gone_segments.len(), 0);
        assert_eq!(reply.position.unwrap().epoch, 1, "nothing is missing: the epoch stays");
        for key in ["a", "b", "c"] {
            assert!(client.exists(key));
        }
        master.stop();
    }
}

#[test]
fn replayed_objects_are_invisible_until_their_owner_is_back() {
    let scratch = Scratch::new();
    let mut owner = written(&scratch);
    let master = Running::start(scratch.settings());
    let mut other = Client::open(master.rpc);
    assert!(!other.exists("a"));
    assert_eq!(master.http("GET /get_all_keys").1, "");
    owner.resume(master.rpc);
    assert!(other.exists("a"));
    master.stop();
}

#[test]
fn a_torn_tail_is_cut_wherever_it_tears() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    let file = scratch.log_files().pop().unwrap();
    let whole = fs::read(&file).unwrap();
    let backup = scratch.0.join("backup");
    copy(&scratch.current(), &backup);
    // The last frame commits "c": every cut inside of it loses just that.
    for cut in [1, 2, 9, 17, 20] {
        fs::remove_dir_all(scratch.current()).unwrap();
        copy(&backup, &scratch.current());
        fs::write(&file, &whole[..whole.len() - cut]).unwrap();
        let master = Running::start(scratch.settings());
        let reply = client.resume_with(master.rpc, None);
        assert_eq!(reply.refusal, None, "cut {cut}");
        assert!(reply.position.unwrap().epoch > 1, "the witness has seen more");
        assert!(client.exists("a") && client.exists("b") && !client.exists("c"), "cut {cut}");
        let torn = (whole.len() - cut) as u64 - fs::metadata(&file).unwrap().len();
        let line = format!("\nmooncake_log_torn_bytes {torn}\n");
        assert!(torn > 0 && master.http("GET /metrics").1.contains(&line), "{line}");
        master.stop();
    }
}

#[test]
fn damage_with_good_frames_behind_it_stops_the_master_with_instructions() {
    let scratch = Scratch::new();
    let _client = written(&scratch);
    let file = scratch.log_files().pop().unwrap();
    let whole = fs::read(&file).unwrap();
    for at in [70, 90, whole.len() / 2] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&file, &bytes).unwrap();
        let error = Running::try_start(scratch.settings()).err().expect("refuses to start").to_string();
        assert!(error.contains("damaged") && error.contains("mv "), "{error}");
        assert_eq!(fs::read(&file).unwrap(), bytes, "nothing is changed");
    }
    fs::write(&file, &whole).unwrap();
    Running::start(scratch.settings()).stop();
}

#[test]
fn a_missing_file_in_the_middle_stops_the_master() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    for key in ["d", "e"] {
        let master = Running::start(scratch.settings());
        client.resume(master.rpc);
        client.put(key, 10);
        master.stop();
    }
    fs::remove_file(&scratch.log_files()[1]).unwrap();
    let error = Running::try_start(scratch.settings()).err().expect("refuses to start").to_string();
    assert!(error.contains("is missing"), "{error}");
}

#[test]
fn an_older_copy_raises_the_epoch_and_the_owner_must_take_it_before_the_next_put() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    let old = scratch.0.join("old");
    copy(&scratch.current(), &old);
    let master = Running::start(scratch.settings());
    client.resume(master.rpc);
    let late = client.put("late", 1000);
    master.stop();
    fs::remove_dir_all(scratch.current()).unwrap();
    copy(&old, &scratch.current());

    let master = Running::start(scratch.settings());
    let reply = client.resume_with(master.rpc, None);
    let epoch = reply.position.unwrap().epoch;
    assert_eq!(epoch, 2);
    let pushed = client.down();
    assert!(matches!(pushed.body, Some(anchor_down::Body::TakeEpoch(t)) if t.epoch == 2), "{pushed:?}");
    assert!(client.exists("a"), "reads go on");
    assert!(!client.exists("late"));
    let refused = client.mutate(support::put_start(&[("x", 10)]));
    let message::reply::Body::PutStart(slots) = refused else { panic!("{refused:?}") };
    assert_ne!(slots.slots[0].kind(), message::put_slot::Kind::Placed, "closed until the epoch is taken");
    client.take_epoch(epoch);
    client.beat();
    let rid = client.put("x", 10);
    assert!(rid > late, "rids of the new epoch are above all of the old one");
    master.stop();
}

#[test]
fn a_hello_that_has_seen_more_of_this_log_raises_the_epoch() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    let master = Running::start(scratch.settings());
    let seen = client.highest.unwrap();
    let ahead = message::LogPosition { lsn: seen.lsn + 100, ..seen };
    let reply = client.resume_with(master.rpc, Some(ahead));
    assert_eq!(reply.position.unwrap().epoch, 2);
    let other_log = message::LogPosition { log_id: 1, epoch: 1, lsn: 1 << 40, epoch_id: 0 };
    let other = Client::open_as(master.rpc, support::process(), Some(other_log));
    assert_eq!(other.hello.position.unwrap().epoch, 2, "another log's LSN says nothing");
    let same = message::LogPosition { log_id: 1, epoch: 2, lsn: 1, epoch_id: 0 };
    for _ in 0..2 {
        let other = Client::open_as(master.rpc, support::process(), Some(same));
        assert_eq!(other.hello.position.unwrap().epoch, 3, "the other log has given out rids of epoch 2");
    }
    let far = message::LogPosition { log_id: 1, epoch: 9, lsn: 1, epoch_id: 0 };
    let third = Client::open_as(master.rpc, support::process(), Some(far));
    assert_eq!(third.hello.position.unwrap().epoch, 10, "its segments may obey epoch 9 already");
    master.stop();
    let master = Running::start(scratch.settings());
    let reply = client.resume(master.rpc);
    assert_eq!(reply.position.unwrap().epoch, 10, "a raised epoch is in the log");
    master.stop();
}

#[test]
fn without_a_witness_the_epoch_is_raised() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    for entry in fs::read_dir(scratch.0.join("witness")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let master = Running::start(scratch.settings());
    assert_eq!(client.resume_with(master.rpc, None).position.unwrap().epoch, 2);
    master.stop();
}

#[test]
fn a_log_that_another_host_has_written_to_raises_the_epoch_whatever_the_witness_says() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    // Bytes 32 to 47 of a header are the boot id of who made the file, the last four a sum over the rest.
    let file = scratch.log_files().pop().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[32] ^= 1;
    let sum = mooncake_memory::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&sum.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    for _ in 0..2 {
        let master = Running::start(scratch.settings());
        assert_eq!(client.resume_with(master.rpc, None).position.unwrap().epoch, 2);
        assert!(client.exists("a") && client.exists("b") && client.exists("c"));
        master.stop();
    }
}

#[test]
fn a_run_without_the_log_renames_it_away_first() {
    let scratch = Scratch::new();
    let mut client = written(&scratch);
    let master = Running::start(Settings { wal: Wal::Off, ..scratch.settings() });
    assert!(client.resume(master.rpc).refusal.is_some(), "this master knows nobody");
    master.stop();
    assert!(!scratch.current().exists());
    assert_eq!(scratch.away().len(), 1);
    assert_eq!(fs::read_dir(scratch.0.join("witness")).unwrap().count(), 0, "its witness goes with it");
    let master = Running::start(scratch.settings());
    assert!(client.resume(master.rpc).refusal.is_some());
    master.stop();
}

#[test]
fn an_engine_that_outlived_very_many_runs_without_a_log_is_let_in_by_and_by() {
    let scratch = Scratch::new();
    let master = Running::start(Settings { wal: Wal::Off, ..scratch.settings() });
    let seen = message::LogPosition { log_id: 1, epoch: 1040, lsn: 9, epoch_id: 0 };
    support::eventually("the engine is let in", || {
        let open =
            message::OpenSession { host_name: "test:1".to_owned(), process: Some(support::process()), claim: None };
        let (_, reply) = support::greet(master.rpc, message::hello::Role::Open(open), Some(seen));
        match reply.refusal {
            Some(refusal) => assert!(refusal.reason.contains("tried again in"), "{}", refusal.reason),
            None => assert_eq!(reply.position.unwrap().epoch, 1041),
        }
        reply.session != 0
    });
    master.stop();
}

#[test]
fn a_run_without_a_log_leaves_a_log_in_use_alone() {
    let scratch = Scratch::new();
    let _client = written(&scratch);
    let master = Running::start(scratch.settings());
    let error = Running::try_start(Settings { wal: Wal::Off, ..scratch.settings() }).err().expect("locked").to_string();
    assert!(error.contains("locked by another master"), "{error}");
    assert!(scratch.current().exists());
    master.stop();
}

#[test]
fn a_second_master_on_the_same_log_exits_and_says_who_has_it() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let error = Running::try_start(scratch.settings()).err().expect("refuses to start").to_string();
    assert!(error.contains("locked by another master"), "{error}");
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    master.stop();
    Running::start(scratch.settings()).stop();
}

#[test]
fn a_compacted_log_gives_the_same_state() {
    let scratch = Scratch::new();
    let settings = || Settings { compact_min: 20_000, ..scratch.settings() };
    let master = Running::start(settings());
    let mut client = Client::open(master.rpc);
    client.mount(16 << 20);
    for n in 0..400 {
        client.put(&format!("key-{n}"), 1000);
        if n % 50 == 0 {
            client.beat();
        }
    }
    support::eventually("a snapshot", || scratch.snapshots().len() == 1);
    support::eventually("old log files are removed", || scratch.log_files().len() <= 2);
    for n in 400..450 {
        client.put(&format!("key-{n}"), 1000);
    }
    master.stop();
    let size: u64 = scratch.log_files().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(size < 90_000, "{size} bytes of log files");
    for _ in 0..2 {
        let master = Running::start(settings());
        let reply = client.resume(master.rpc);
        assert_eq!((reply.refusal, reply.position.unwrap().epoch), (None, 1));
        for n in 0..450 {
            assert!(client.exists(&format!("key-{n}")), "key-{n}");
        }
        master.stop();
    }
}

#[test]
fn fsync_and_plain_logs_read_alike() {
    let scratch = Scratch::new();
    let master = Running::start(Settings { wal: Wal::Fsync, ..scratch.settings() });
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    client.put("a", 10);
    master.stop();
    let master = Running::start(scratch.settings());
    client.resume(master.rpc);
    assert!(client.exists("a"));
    master.stop();
}

#[test]
fn everything_acknowledged_to_many_clients_at_once_is_in_the_log() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut owner = Client::open(master.rpc);
    owner.mount(16 << 20);
    let address = master.rpc;
    std::thread::scope(|scope| {
        for writer in 0..4 {
            scope.spawn(move || {
                let mut client = Client::open(address);
                for n in 0..200 {
                    client.put(&format!("{writer}-{n}"), 1000);
                }
            });
        }
    });
    owner.beat();
    master.stop();
    let master = Running::start(scratch.settings());
    assert_eq!(owner.resume(master.rpc).position.unwrap().epoch, 1);
    for writer in 0..4 {
        for n in 0..200 {
            assert!(owner.exists(&format!("{writer}-{n}")), "{writer}-{n}");
        }
    }
    master.stop();
}

#[test]
fn only_where_nobody_asked_for_a_log_and_none_can_be_does_a_master_run_without_one() {
    let scratch = Scratch::new();
    let file = scratch.0.join("file");
    fs::write(&file, b"").unwrap();
    let below = file.join("below");
    let settings = |log_folder| Settings { log_folder, ..scratch.settings() };
    let error = Running::try_start(settings(LogFolder::Given(below.clone()))).err().expect("it was asked for");
    assert!(error.to_string().contains("--wal=off"), "{error}");
    let master = Running::start(settings(LogFolder::Default(below)));
    assert!(master.http("GET /metrics").1.contains("mooncake_log_enabled 0"));
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    client.put("a", 10);
    master.stop();

    // A log lies there, and its folder cannot be used: running beside it would make it a lie.
    let scratch = Scratch::new();
    let _client = written(&scratch);
    let lock = scratch.0.join("log/lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    let default = Settings { log_folder: LogFolder::Default(scratch.0.join("log")), ..scratch.settings() };
    let error = Running::try_start(default).err().expect("it is not passed over");
    assert!(error.to_string().contains("state folder"), "{error}");
    fs::remove_dir(&lock).unwrap();
    Running::start(scratch.settings()).stop();
}

#[test]
fn a_run_without_the_log_where_there_is_none_makes_and_renames_nothing() {
    let scratch = Scratch::new();
    let master = Running::start(Settings { wal: Wal::Off, ..scratch.settings() });
    Client::open(master.rpc).mount(1 << 20);
    master.stop();
    assert!(!scratch.0.join("log").exists());
}

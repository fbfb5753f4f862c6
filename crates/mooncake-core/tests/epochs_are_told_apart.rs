//! Two masters that continue one log from the same place give out nothing twice.

use mooncake_core::{Config, Core, Effects, Epoch, Record, Time};

use crate::pool::{Pool, durable, replayed};

/// The epoch that a master draws who continues this log, and the log as it goes on.
fn continued(log: &[Record], number: u16, seed: u64) -> (Core, Vec<Record>) {
    let mut core = Core::new(Config { epoch_seed: seed, ..Config::default() });
    log.iter().for_each(|record| core.replay(record.clone()).unwrap());
    let mut fx = Effects::default();
    core.begin(Time(1), Some(number), &mut fx);
    (core, [log, &fx.records].concat())
}

fn first_log() -> Vec<Record> {
    let (mut pool, session) = Pool::single(1 << 20);
    pool.put(session, "a", 1000);
    pool.log
}

#[test]
fn two_raises_from_one_log_share_no_rid_and_no_session() {
    let log = first_log();
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for seed in 1..=200 {
        let (_, log) = continued(&log, 2, 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let Some(Record::Counters { rid, session, .. }) = log.last() else { panic!("{log:?}") };
        assert!(*rid < 1 << 46 && session >> 32 == 1, "rid {rid}, session {session}");
        let apart = |(other_rid, other): &(u64, u64)| other_rid.abs_diff(*rid) > 1 << 20 && other != session;
        assert!(seen.iter().all(apart), "seed {seed}");
        seen.push((*rid, *session));
    }
}

#[test]
fn an_epoch_keeps_its_id_through_replay_and_snapshots() {
    assert_eq!(replayed(first_log()).epoch(), Epoch { number: 1, id: 0 }, "the first one begins once");
    let (second, log) = continued(&first_log(), 2, 7);
    let (other, _) = continued(&first_log(), 2, 8);
    assert_eq!(second.epoch().number, 2);
    assert!(second.epoch().id != 0 && second.epoch() != other.epoch());
    let again = replayed(log.clone());
    assert_eq!(again.epoch(), second.epoch());
    let of_snapshot = replayed(second.snapshot());
    assert_eq!((of_snapshot.epoch(), durable(&of_snapshot)), (second.epoch(), durable(&second)));
    let (third, _) = continued(&log, 3, 9);
    assert!(third.epoch().number == 3 && third.epoch().id != second.epoch().id);
    let twice = replayed(replayed(third.snapshot()).snapshot());
    assert_eq!(twice.epoch(), third.epoch());
}

#[test]
fn logs_and_snapshots_of_versions_without_epoch_ids_have_none() {
    let raised = [Record::Epoch(2), Record::Counters { epoch: 2, rid: 0, session: 1 << 32, segment: 1 << 10 }];
    let mut core = replayed(first_log().into_iter().chain(raised));
    assert_eq!(core.epoch(), Epoch { number: 2, id: 0 });
    let snapshot = Record::Counters { epoch: 2, rid: 99, session: (1 << 32) + 5, segment: 1 << 10 };
    core.replay(snapshot.clone()).unwrap();
    assert_eq!((core.epoch().id, replayed([snapshot]).epoch()), (0, core.epoch()));
}

#[test]
fn rids_go_on_from_where_their_epoch_has_drawn_them() {
    let (mut pool, _) = Pool::single(1 << 20);
    pool.restart(Some(2));
    let Some(Record::Counters { rid, .. }) = pool.log.last() else { panic!("{:?}", pool.log) };
    let (drawn, other) = (*rid, pool.session(2));
    pool.mount(other, 2, 1 << 20);
    for number in 1..=3 {
        let rid = pool.put(other, &format!("b{number}"), 1000)[0].rid;
        assert_eq!((rid.epoch(), rid.counter()), (2, drawn + number));
    }
    pool.check();
}

//! Speed and memory of the core, printed: `cargo test --release -p mooncake-core --test promises figures --
//! --ignored --nocapture`.

use mooncake_core::{
    Config, Core, Effects, Ended, Origin, PutConfig, PutStarted, RemoveAll, SegmentSpec, SessionSpec, Sight,
    StartOutcome, Time,
};
use mooncake_ids::SegmentUuid;

const OBJECTS: u64 = 1_000_000;
const BATCH: u64 = 64;

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Time that this thread has had a processor, so that neighbours on the machine do not count.
struct Busy(u64);

impl Busy {
    fn now() -> Busy {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Busy(schedstat.split(' ').next().unwrap().parse().unwrap())
    }

    fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(Busy::now().0 - self.0)
    }
}

struct Run {
    core: Core,
    fx: Effects,
    sequence: u64,
    session: mooncake_ids::SessionId,
}

impl Run {
    fn put(&mut self, first: u64, keys: u64) {
        let origin = |sequence| Origin { session: self.session, sequence, answered_below: sequence };
        let config = PutConfig::default();
        let names: Vec<String> = (first..first + keys).map(|n| format!("key-{n:08}")).collect();
        let entries: Vec<(&[u8], u64)> = names.iter().map(|name| (name.as_bytes(), 1024)).collect();
        let started =
            self.core.put_start(Time(1), origin(self.sequence + 1), &entries, &config, true, &mut self.fx).unwrap();
        let PutStarted::Now(slots) = started else { panic!("parked") };
        let ended: Vec<Ended> = slots
            .iter()
            .map(|slot| {
                let StartOutcome::Placed(replicas) = slot else { panic!("{slot:?}") };
                Ended {
                    replicas: replicas.iter().map(|replica| (replica.rid, true)).collect(),
                    crc32c: 7,
                    stays: false,
                }
            })
            .collect();
        self.core.put_end(Time(1), origin(self.sequence + 2), &ended, &mut self.fx).unwrap();
        self.sequence += 2;
        self.fx.records.clear();
    }

    fn puts(&mut self, first: u64, batch: u64) -> f64 {
        let start = Busy::now();
        for n in (0..OBJECTS).step_by(batch as usize) {
            self.put(first + n, batch);
        }
        start.elapsed().as_nanos() as f64 / OBJECTS as f64
    }
}

#[test]
#[ignore = "measures; run it alone, in release"]
fn figures_of_a_million_objects() {
    let mut run = Run {
        core: Core::new(Config::default()),
        fx: Effects::default(),
        sequence: 1,
        session: mooncake_ids::SessionId(1),
    };
    run.core.begin(Time(1), None, &mut run.fx);
    let spec = SessionSpec { secret: 1, name: "a".into(), boot_id: vec![1], process: Vec::new() };
    run.session = run.core.open_session(Time(1), spec, &mut run.fx).unwrap();
    let bytes = OBJECTS * 1024;
    let spec = SegmentSpec { uuid: SegmentUuid([1; 16]), name: "a".into(), bytes, endpoint: Vec::new() };
    let origin = Origin { session: run.session, sequence: 1, answered_below: 1 };
    run.core.mount(Time(1), origin, spec, bytes, &mut run.fx).unwrap();
    run.fx.records.clear();

    let before = resident();
    println!("put_start + put_end, batches of {BATCH}: {:.0} ns a key", run.puts(0, BATCH));
    println!("memory: {} B an object", (resident() - before) / OBJECTS);

    let start = Busy::now();
    let mut slowest = std::time::Duration::ZERO;
    let mut cursor = RemoveAll::new(&mut run.core, true);
    loop {
        let slice = Busy::now();
        let done = run.core.remove_all_slice(Time(1), &mut cursor, 1000, &mut run.fx);
        slowest = slowest.max(slice.elapsed());
        run.fx.records.clear();
        if done {
            break;
        }
    }
    println!("remove_all: {:?}, slowest slice of 1000 {slowest:?}, {} removed", start.elapsed(), cursor.removed);
    run.fx = Effects::default();
    println!("memory afterwards: {} KiB more than before", resident().saturating_sub(before) / 1024);
    println!("again, put_start + put_end: {:.0} ns a key", run.puts(0, BATCH));

    let names: Vec<String> = (0..OBJECTS).map(|n| format!("key-{:08}", n * 7919 % OBJECTS)).collect();
    let hot = &names[..1000];
    for _ in 0..2 {
        let start = Busy::now();
        for _ in 0..3000 {
            run.core
                .exists(Time(2), Sight::Tiers, hot.iter().map(|name| name.as_bytes()), |size| assert!(size.is_ok()));
        }
        println!("exists of 1000 hot keys: {:.0} ns a key", start.elapsed().as_nanos() as f64 / 3_000_000.0);
        let start = Busy::now();
        for _ in 0..3000 {
            run.core.lookup(Time(2), run.session, hot.iter().map(|name| name.as_bytes()), |found| {
                assert_eq!(found.ok().unwrap().replicas().count(), 1);
            });
        }
        println!("lookup of 1000 hot keys: {:.0} ns a key", start.elapsed().as_nanos() as f64 / 3_000_000.0);
    }
    for at in [Time(2), Time(3), Time(3_000_000)] {
        let start = Busy::now();
        let mut found = 0;
        run.core.exists(at, Sight::Tiers, names.iter().map(|name| name.as_bytes()), |size| {
            found += u64::from(size.is_ok())
        });
        println!("exists: {:.0} ns a key, {found} found", start.elapsed().as_nanos() as f64 / OBJECTS as f64);
    }
    let start = Busy::now();
    let mut rids = 0;
    run.core.lookup(Time(4), run.session, names.iter().map(|name| name.as_bytes()), |found| {
        rids ^= found.map_or(0, |found| found.replicas().map(|replica| replica.rid.0).sum());
    });
    println!("lookup: {:.0} ns a key ({rids:x})", start.elapsed().as_nanos() as f64 / OBJECTS as f64);
    let start = Busy::now();
    for _ in 0..200 {
        run.core.tick(Time(30_000_000), &mut run.fx);
        run.core.beat(Time(30_000_000), run.session, &[], &[], &mut run.fx);
    }
    println!("200 ticks that lapse all protection: {:?}", start.elapsed());

    println!("put with eviction, batches of {BATCH}: {:.0} ns a key", run.puts(OBJECTS, BATCH));
    println!("put with eviction, singly: {:.0} ns a key", run.puts(2 * OBJECTS, 1));

    let start = Busy::now();
    let records: Vec<_> = run.core.snapshot().collect();
    let made = start.elapsed();
    let start = Busy::now();
    let mut other = Core::new(Config::default());
    let count = records.len();
    for record in records {
        other.replay(record).unwrap();
    }
    println!("snapshot of {count} records: {made:?}, its replay {:?}", start.elapsed());
}

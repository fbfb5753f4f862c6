//! `mooncake bench`: how fast a pool stores and reads from this machine, beside how fast this machine copies memory.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use mooncake_client::{
    Destination, GetInto, PutItem, PutOptions, SizeError, Source, Store, StoreError, StoreOptions, parse_size,
};
use mooncake_settings::{BENCH, Given, SettingError};
use serde_json::{Value, json};

use super::pages::master;
use crate::client::{ClientError, names};
use crate::flags;
use crate::logging::{self, print_stderr, say};
use crate::terminal::{bytes, microseconds, number};

/// Bytes that are copied to find the floor.
const COPIED: usize = 256 << 20;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A size on it.
    #[error("--{flag}: {source}")]
    Size {
        /// The flag.
        flag: &'static str,
        /// What is wrong with it.
        source: SizeError,
    },
    /// Sizes that are none.
    #[error("--size={0}: an object has at least one byte")]
    NoBytes(String),
    /// No way to the master.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The pool.
    #[error("{what}: {source}")]
    Store {
        /// What was tried.
        what: &'static str,
        /// What failed.
        source: StoreError,
    },
    /// An object that was stored is not there.
    #[error("{missing} of {count} objects were gone before they were read: the pool is too small for them; see --lend")]
    Evicted {
        /// How many.
        missing: usize,
        /// Of these.
        count: usize,
    },
    /// Bytes that were not stored.
    #[error("an object came back with other bytes: please report this")]
    WrongBytes,
}

/// What is done.
struct Load {
    size: usize,
    count: usize,
    threads: usize,
    batch: usize,
}

/// Figures of one kind of call.
struct Measured {
    name: &'static str,
    /// The calls of the slowest thread.
    took: Duration,
    /// Each call, in order of length.
    calls: Vec<Duration>,
    bytes: u64,
    objects: u64,
}

/// Measures.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), BenchError> {
    let Some(given) = flags::read(&BENCH, args)? else { return Ok(()) };
    let size = |flag: &'static str| {
        parse_size(given.text_or_default(flag)).map_err(|source| BenchError::Size { flag, source })
    };
    let load = Load {
        size: size("size")? as usize,
        count: given.number_or_default("count"),
        threads: given.number_or_default("threads"),
        batch: given.number_or_default("batch"),
    };
    if load.size == 0 {
        return Err(BenchError::NoBytes(given.text_or_default("size").to_owned()));
    }
    logging::start_at("WARNING");
    let store = connect(&given, size("lend")?)?;
    let measured = measure(&store, &load);
    store.close();
    let (measured, floor) = (measured?, floor());
    match given.boolean("json") {
        true => say(&format!("{:#}\n", as_json(&load, &measured, floor))),
        false => say(&table(&load, &measured, floor)),
    }
    Ok(())
}

fn connect(given: &Given, lend: u64) -> Result<Store, BenchError> {
    let master = master(given);
    let failed = |source| BenchError::Store { what: "joining the pool", source };
    let (name, bind) = match lend {
        0 => ("localhost".to_owned(), None),
        _ => names("0.0.0.0", &master)?,
    };
    let mut options = StoreOptions::new(name, master).from_env().map_err(failed)?;
    options.global_segment_size = lend;
    options.bind_address = options.bind_address.or(bind);
    Store::connect(options).map_err(failed)
}

/// Keys that nobody else has, of one thread.
fn keys(thread: usize, load: &Load) -> Vec<Vec<u8>> {
    let pid = std::process::id();
    (0..load.count).map(|nth| format!("mooncake-bench/{pid}/{thread}/{nth}").into_bytes()).collect()
}

fn measure(store: &Store, load: &Load) -> Result<Vec<Measured>, BenchError> {
    let all: Vec<Vec<Vec<u8>>> = (0..load.threads).map(|thread| keys(thread, load)).collect();
    let value: Vec<u8> = (0..load.size).map(|at| (at % 251) as u8).collect();
    let phases: [(&'static str, &Call<'_>); 3] = [
        ("put", &|keys, _| {
            let pieces = [Source::new(&value)];
            let items: Vec<PutItem<'_>> = keys.iter().map(|key| PutItem { key, value: &pieces }).collect();
            let (stored, took) = timed(|| store.put_batch(&items, &PutOptions::default()));
            let failed = stored.into_iter().find_map(Result::err);
            failed.map_or(Ok((0, took)), |source| Err(BenchError::Store { what: "put", source }))
        }),
        ("is_exist", &|keys, _| {
            let (found, took) = timed(|| store.exists(keys));
            let found = found.map_err(|source| BenchError::Store { what: "is_exist", source })?;
            Ok((found.iter().filter(|is_there| !**is_there).count(), took))
        }),
        ("get", &|keys, buffers| get(store, keys, buffers, &value)),
    ];
    let mut measured = Vec::new();
    let mut failed = None;
    for (name, call) in phases {
        print_stderr(&format!("{name} ...\n"));
        match phase(name, &all, load, call) {
            Ok(one) => measured.push(one),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // What is left of it would hold the room for nothing.
    for keys in &all {
        let _ = store.remove(keys, true);
    }
    failed.map_or(Ok(measured), Err)
}

/// A call about some keys, with memory for their values: how many of them were not there, and how long the call took.
type Call<'a> = dyn Fn(&[Vec<u8>], &mut [Vec<u8>]) -> Result<(usize, Duration), BenchError> + Sync + 'a;

fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = call();
    (result, began.elapsed())
}

/// Reads into memory that was there before, and looks at it once the time has been taken.
fn get(
    store: &Store,
    keys: &[Vec<u8>],
    buffers: &mut [Vec<u8>],
    value: &[u8],
) -> Result<(usize, Duration), BenchError> {
    let items = keys.iter().zip(&mut *buffers);
    let mut items: Vec<GetInto<'_>> =
        items.map(|(key, buffer)| GetInto { key, destinations: vec![Destination::new(buffer)] }).collect();
    let (got, took) = timed(|| store.get_into(&mut items));
    let mut missing = 0;
    for (outcome, buffer) in got.into_iter().zip(buffers) {
        match outcome.map_err(|source| BenchError::Store { what: "get", source })? {
            None => missing += 1,
            Some(_) if buffer != value => return Err(BenchError::WrongBytes),
            Some(_) => {}
        }
    }
    Ok((missing, took))
}

fn phase(name: &'static str, all: &[Vec<Vec<u8>>], load: &Load, call: &Call<'_>) -> Result<Measured, BenchError> {
    let barrier = Barrier::new(all.len());
    let thread = |keys: &Vec<Vec<u8>>| -> Result<(Vec<Duration>, usize), BenchError> {
        // Its pages are there before the time is taken.
        let mut buffers = vec![vec![1; load.size]; load.batch.min(keys.len())];
        barrier.wait();
        let (mut calls, mut missing) = (Vec::new(), 0);
        for some in keys.chunks(load.batch) {
            let (lost, took) = call(some, &mut buffers[..some.len()])?;
            missing += lost;
            calls.push(took);
        }
        Ok((calls, missing))
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = all.iter().map(|keys| scope.spawn(|| thread(keys))).collect();
        running.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let (mut calls, mut missing, mut took) = (Vec::new(), 0, Duration::ZERO);
    for one in done {
        let (some, lost) = one?;
        // The slowest thread's calls, without what it did between them.
        took = took.max(some.iter().sum());
        calls.extend(some);
        missing += lost;
    }
    let count = load.count * load.threads;
    if missing > 0 {
        return Err(BenchError::Evicted { missing, count });
    }
    calls.sort_unstable();
    let moves = name != "is_exist";
    let objects = count as u64;
    Ok(Measured { name, took, calls, bytes: if moves { objects * load.size as u64 } else { 0 }, objects })
}

/// Bytes a second of a copy in memory, the best of three.
fn floor() -> f64 {
    let (from, mut to) = (vec![1_u8; COPIED], vec![0_u8; COPIED]);
    let copy = |_| {
        let began = Instant::now();
        to.copy_from_slice(&from);
        std::hint::black_box(&to);
        COPIED as f64 / began.elapsed().as_secs_f64()
    };
    (0..3).map(copy).fold(0.0, f64::max)
}

impl Measured {
    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn quantile(&self, share: f64) -> f64 {
        let at = (self.calls.len() as f64 * share) as usize;
        self.calls.get(at.min(self.calls.len().saturating_sub(1))).map_or(0.0, |took| took.as_secs_f64() * 1e6)
    }
}

fn table(load: &Load, measured: &[Measured], floor: f64) -> String {
    let mut out = format!(
        "{} objects of {}, {} threads, {} a call\n\n{:<10} {:>12} {:>12} {:>10} {:>10} {:>8}\n",
        number((load.count * load.threads) as f64),
        bytes(load.size as f64),
        load.threads,
        load.batch,
        "",
        "objects/s",
        "bytes/s",
        "p50",
        "p99",
        "of floor"
    );
    for one in measured {
        let rate = one.rate(one.bytes);
        let (speed, share) = match one.bytes {
            0 => ("-".to_owned(), "-".to_owned()),
            _ => (bytes(rate), format!("{:.0} %", 100.0 * rate / floor)),
        };
        out += &format!(
            "{:<10} {:>12} {:>12} {:>10} {:>10} {:>8}\n",
            one.name,
            number(one.rate(one.objects)),
            speed,
            microseconds(Some(one.quantile(0.5))),
            microseconds(Some(one.quantile(0.99))),
            share
        );
    }
    out + &format!("{:<10} {:>12} {:>12}   this machine's memory, copied by one thread\n", "floor", "", bytes(floor))
}

fn as_json(load: &Load, measured: &[Measured], floor: f64) -> Value {
    let calls: Vec<Value> = measured
        .iter()
        .map(|one| {
            json!({
                "call": one.name,
                "objects_per_second": one.rate(one.objects),
                "bytes_per_second": one.rate(one.bytes),
                "p50_us": one.quantile(0.5),
                "p99_us": one.quantile(0.99),
                "seconds": one.took.as_secs_f64(),
            })
        })
        .collect();
    json!({
        "size_bytes": load.size, "objects": load.count * load.threads, "threads": load.threads, "batch": load.batch,
        "calls": calls, "copy_bytes_per_second": floor,
    })
}

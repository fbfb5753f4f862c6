//! `mooncake engine-bench`: two processes, one of which moves bytes to or from the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_client::parse_size;
use mooncake_engine::{Engine, EngineError, EngineOptions, Opcode, Request, Status};
use mooncake_memory::{ForeignRange, MemoryError, leak_shared};
use mooncake_settings::{CommandLine, ENGINE_BENCH, Given, SettingError, environment, parse};

use crate::{logging, say};

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A flag's value that means nothing.
    #[error("--{name}={value}: expected {expected}")]
    Value {
        /// The flag.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is understood.
        expected: &'static str,
    },
    /// The engine, or its peer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Memory for the blocks.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Threads, signals or the log.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// A batch did not come through.
    #[error("a batch ended as {status:?}: {reason}")]
    Batch {
        /// How.
        status: Status,
        /// Why.
        reason: String,
    },
}

/// What is to be measured.
struct Plan {
    opcode: Opcode,
    block: u64,
    batch: u64,
    threads: u64,
    duration: Duration,
    bytes: u64,
}

/// Runs as target or as initiator.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), BenchError> {
    let given = match parse(&ENGINE_BENCH, args)? {
        CommandLine::Run(given) => given,
        CommandLine::Help(text) | CommandLine::Version(text) => {
            say(&format!("{}\n", text.trim_end()));
            return Ok(());
        }
    };
    logging::start_at("INFO")?;
    let plan = Plan::of(&given)?;
    let options = EngineOptions::default().from_env(environment::variable)?;
    let cluster = environment::variable("MC_METADATA_CLUSTER_ID").unwrap_or_default();
    let (metadata, name) = (given.text_or_default("metadata_server"), given.text_or_default("local_server_name"));
    let engine = Engine::connect(metadata, name, options, &cluster)?;
    let memory = leak_shared(plan.bytes)?;
    engine.register(&[memory], "cpu:0")?;
    match given.text_or_default("mode") {
        "target" => target(&engine),
        "initiator" => initiator(&engine, memory, &plan, &given),
        other => Err(value("mode", other, "initiator or target")),
    }
}

fn value(name: &'static str, value: &str, expected: &'static str) -> BenchError {
    BenchError::Value { name, value: value.to_owned(), expected }
}

impl Plan {
    fn of(given: &Given) -> Result<Plan, BenchError> {
        let opcode = match given.text_or_default("operation") {
            "read" => Opcode::Read,
            "write" => Opcode::Write,
            other => return Err(value("operation", other, "read or write")),
        };
        let size = |name| {
            let text = given.text_or_default(name);
            parse_size(text)
                .ok()
                .filter(|bytes| *bytes > 0)
                .ok_or_else(|| value(name, text, "bytes, or a number with KB, MB or GB"))
        };
        let count = |name| {
            let text = given.text_or_default(name);
            text.parse().ok().filter(|count: &u64| *count > 0).ok_or_else(|| value(name, text, "1 or more"))
        };
        let (block, batch, threads) = (size("block_size")?, count("batch_size")?, count("threads")?);
        let text = given.text_or_default("duration");
        let duration = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let duration = duration.ok_or_else(|| value("duration", text, "seconds"))?;
        let needed = block.checked_mul(batch).and_then(|bytes| bytes.checked_mul(threads));
        let needed = needed.ok_or_else(|| value("block_size", given.text_or_default("block_size"), "less"))?;
        Ok(Plan { opcode, block, batch, threads, duration, bytes: needed.max(size("buffer_size")?) })
    }
}

fn target(engine: &Engine) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Scripts wait for this line.
        say(&format!("transfer_engine_bench --segment_id={}\n", engine.name()));
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        Ok(())
    })
}

fn initiator(engine: &Engine, memory: ForeignRange, plan: &Plan, given: &Given) -> Result<(), BenchError> {
    let segment = given.text_or_default("segment_id");
    if segment.is_empty() {
        return Err(value("segment_id", segment, "the name that the target prints"));
    }
    let (unit, per_byte) = unit(given.text_or_default("report_unit"))?;
    let peer = engine.open(segment)?;
    let base =
        engine.first_buffer(segment)?.ok_or_else(|| value("segment_id", segment, "a target that lends memory"))?;
    let (batches, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let worker = |thread: u64| -> Result<(), BenchError> {
        let request = |nth: u64| {
            let at = plan.block * (nth * plan.threads + thread);
            let local = memory.part(at as usize, plan.block as usize);
            (peer, Request { opcode: plan.opcode, local, remote: base + at })
        };
        while began.elapsed() < plan.duration && !stop.load(Ordering::Relaxed) {
            let batch = engine.allocate(plan.batch as usize);
            engine.submit(batch, (0..plan.batch).map(request).collect(), None)?;
            let status = engine.wait(batch, Duration::from_secs(3_600))?;
            let reason = engine.batch_error(batch)?.unwrap_or_default();
            engine.free(batch)?;
            if status != Status::Completed {
                return Err(BenchError::Batch { status, reason });
            }
            batches.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let ended: Vec<Result<(), BenchError>> = std::thread::scope(|scope| {
        let worker = &worker;
        let stop = &stop;
        let run = move |thread| {
            let ended = worker(thread);
            if ended.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            ended
        };
        let threads: Vec<_> = (0..plan.threads).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker of the bench panicked")).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    ended.into_iter().collect::<Result<(), BenchError>>()?;
    let count = batches.load(Ordering::Relaxed);
    let rate = (count * plan.batch * plan.block) as f64 * per_byte / seconds;
    let digits: usize = given.text_or_default("report_precision").parse().unwrap_or(2);
    for link in engine.links() {
        tracing::info!(peer = link.peer, path = link.path, reason = link.reason, "link");
    }
    eprintln!("Test completed: duration {seconds:.2}, batch count {count}, throughput {rate:.digits$} {unit}/s");
    Ok(())
}

/// The unit, and how many of it are a byte.
fn unit(name: &str) -> Result<(&str, f64), BenchError> {
    let per_byte = match name {
        "GB" => 1e-9,
        "GiB" => 1.0 / f64::from(1 << 30),
        "Gb" => 8e-9,
        "MB" => 1e-6,
        "MiB" => 1.0 / f64::from(1 << 20),
        "Mb" => 8e-6,
        "KB" => 1e-3,
        "KiB" => 1.0 / 1024.0,
        "Kb" => 8e-3,
        other => return Err(value("report_unit", other, "GB, GiB, Gb, MB, MiB, Mb, KB, KiB or Kb")),
    };
    Ok((name, per_byte))
}

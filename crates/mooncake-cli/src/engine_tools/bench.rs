//! `mooncake engine-bench`: one load, and what it reached.

use std::time::Duration;

use mooncake_memory::ForeignRange;
use mooncake_settings::{ENGINE_BENCH, Given};
use mooncake_transfer_engine::{Engine, Opcode};

use super::load::{Ends, Load};
use super::{ToolError, bad_value, begin, connect, lend, lend_until_interrupted, seconds, size};

/// Runs as target or as initiator.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), ToolError> {
    let Some(given) = begin(&ENGINE_BENCH, args)? else { return Ok(()) };
    let opcode = match given.text_or_default("operation") {
        "read" => Opcode::Read,
        "write" => Opcode::Write,
        other => return Err(bad_value("operation", other, "read or write")),
    };
    let load = Load {
        opcodes: vec![opcode],
        block: size(&given, "block_size")?,
        batch: given.number_or_default("batch_size"),
        threads: given.number_or_default("threads"),
        pause: Duration::ZERO,
    };
    let duration = seconds(&given, "duration")?;
    let needed = load.bytes().ok_or_else(|| {
        bad_value(
            "block_size",
            given.text_or_default("block_size"),
            "less: times batch_size and threads it is beyond 2^64 bytes",
        )
    })?;
    let bytes = needed.max(size(&given, "buffer_size")?);
    let work = Work::of(&given, duration)?;
    let engine = connect(given.text_or_default("metadata_server"), given.text_or_default("local_server_name"))?;
    let memory = lend(&engine, bytes)?;
    match work {
        Work::Target => lend_until_interrupted(&format!("transfer_engine_bench --segment_id={}\n", engine.name())),
        Work::Measurement(work) => work.run(&engine, memory, &load),
    }
}

/// What is asked for, checked before anything is opened.
enum Work<'a> {
    Target,
    Measurement(Measurement<'a>),
}

struct Measurement<'a> {
    segment: &'a str,
    duration: Duration,
    unit: &'a str,
    per_byte: f64,
    digits: usize,
}

impl<'a> Work<'a> {
    fn of(given: &'a Given, duration: Duration) -> Result<Work<'a>, ToolError> {
        match given.text_or_default("mode") {
            "target" => return Ok(Work::Target),
            "initiator" => {}
            other => return Err(bad_value("mode", other, "initiator or target")),
        }
        let segment = given.text_or_default("segment_id");
        if segment.is_empty() {
            let why = "the name that the target prints, which is started with --mode=target";
            return Err(ToolError::Needed { name: "segment_id", what: "NAME", why });
        }
        let (unit, per_byte) = unit(given.text_or_default("report_unit"))?;
        let digits = given.number_or_default("report_precision");
        Ok(Work::Measurement(Measurement { segment, duration, unit, per_byte, digits }))
    }
}

impl Measurement<'_> {
    fn run(&self, engine: &Engine, memory: ForeignRange, load: &Load) -> Result<(), ToolError> {
        let Measurement { segment, duration, unit, per_byte, digits } = *self;
        let peer = engine.open(segment)?;
        let lends = engine.first_buffer(segment)?;
        let remote = lends.ok_or_else(|| bad_value("segment_id", segment, "a target that lends memory"))?;
        let measured = load.run(&Ends { engine, memory, remotes: vec![(peer, remote)] }, duration)?;
        let (seconds, count) = (measured.elapsed.as_secs_f64(), measured.batches.len() as u64);
        let rate = (count * load.batch * load.block) as f64 * per_byte / seconds;
        for link in engine.links() {
            tracing::info!(peer = link.peer, path = link.path, reason = link.reason, "link");
        }
        crate::logging::print_stderr(&format!(
            "Test completed: duration {seconds:.2}, batch count {count}, throughput {rate:.digits$} {unit}/s\n"
        ));
        Ok(())
    }
}

/// The unit, and how many of it are a byte.
fn unit(name: &str) -> Result<(&str, f64), ToolError> {
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
        other => return Err(bad_value("report_unit", other, "GB, GiB, Gb, MB, MiB, Mb, KB, KiB or Kb")),
    };
    Ok((name, per_byte))
}

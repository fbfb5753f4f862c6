//! `mooncake engine-sweep`: blocks, batches and threads of many sizes, a line for each.

use std::time::Duration;

use mooncake_settings::{ENGINE_SWEEP, Given};
use mooncake_transfer_engine::{Engine, Opcode};

use super::load::{Ends, Load, Measured};
use super::{ToolError, bad_value, begin, connect, lend, lend_until_interrupted, seconds, size};
use crate::logging::say;

/// Before each cell, so that connections are there and processors awake.
const WARM_UP: Duration = Duration::from_secs(1);
/// As wide as a terminal: 79 columns.
const HEAD: &str = "     block  batch threads      GB/s     avg us     p50 us     p99 us    p999 us\n";

/// Runs as target, or as initiator if it has one.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), ToolError> {
    let Some(given) = begin(&ENGINE_SWEEP, args)? else { return Ok(()) };
    let plan = Plan::of(&given)?;
    let target = given.text_or_default("target_seg_name");
    if !target.is_empty() && plan.loads().is_empty() {
        let (name, bytes) = match plan.range.filter(|range| *range < plan.total) {
            Some(range) => ("target_range_size", range),
            None => ("total_buffer_size", plan.total),
        };
        return Err(bad_value(name, &bytes.to_string(), "room for the smallest block"));
    }
    let engine = connect(metadata(&given)?, given.text_or_default("seg_name"))?;
    if target.is_empty() {
        lend(&engine, plan.total)?;
        let more = match metadata(&given)? {
            "P2PHANDSHAKE" => String::new(),
            url => format!(" --metadata_type=http --metadata_url_list={url}"),
        };
        let total = plan.total;
        return lend_until_interrupted(&format!(
            "tebench --target_seg_name={} --total_buffer_size={total}{more}\n",
            engine.name()
        ));
    }
    plan.sweep(&engine, target)
}

fn metadata(given: &Given) -> Result<&str, ToolError> {
    match given.text_or_default("metadata_type") {
        "p2p" => Ok("P2PHANDSHAKE"),
        "http" => Ok(given.text_or_default("metadata_url_list")),
        other => Err(bad_value("metadata_type", other, "p2p or http")),
    }
}

/// What is to be measured.
struct Plan {
    opcodes: Vec<Opcode>,
    op_type: String,
    blocks: Vec<u64>,
    batches: Vec<u64>,
    threads: Vec<u64>,
    total: u64,
    /// Of the target's memory, if not all of it is used.
    range: Option<u64>,
    offset: u64,
    duration: Duration,
    pause: Duration,
    check: bool,
    json: bool,
}

impl Plan {
    fn of(given: &Given) -> Result<Plan, ToolError> {
        let op_type = given.text_or_default("op_type");
        let opcodes = match op_type {
            "read" => vec![Opcode::Read],
            "write" => vec![Opcode::Write],
            "mix" => vec![Opcode::Write, Opcode::Read],
            "write_seed" => vec![Opcode::Write],
            "read_verify" => vec![Opcode::Read],
            other => return Err(bad_value("op_type", other, "read, write, mix, write_seed or read_verify")),
        };
        let count = |given: &Given, name: &'static str| Ok(given.number_or_default(name));
        Ok(Plan {
            opcodes,
            op_type: op_type.to_owned(),
            blocks: sizes(given, "start_block_size", "max_block_size", size)?,
            batches: sizes(given, "start_batch_size", "max_batch_size", count)?,
            threads: sizes(given, "start_num_threads", "max_num_threads", count)?,
            total: size(given, "total_buffer_size")?,
            range: Some(given.number_or_default("target_range_size")).filter(|bytes| *bytes > 0),
            offset: given.number_or_default("target_offset"),
            duration: seconds(given, "duration")?,
            pause: Duration::from_micros(given.number_or_default("request_interval_us")),
            check: given.boolean("check_consistency"),
            json: given.boolean("json"),
        })
    }

    /// Every combination that fits the memory.
    fn loads(&self) -> Vec<Load> {
        let most = self.total.min(self.range.unwrap_or(u64::MAX));
        let mut loads = Vec::new();
        for &threads in &self.threads {
            for &batch in &self.batches {
                for &block in &self.blocks {
                    let load = Load { opcodes: self.opcodes.clone(), block, batch, threads, pause: self.pause };
                    if load.bytes().is_some_and(|bytes| bytes <= most) {
                        loads.push(load);
                    }
                }
            }
        }
        loads
    }

    fn sweep(&self, engine: &Engine, target: &str) -> Result<(), ToolError> {
        let loads = self.loads();
        let largest = loads.iter().filter_map(Load::bytes).max().unwrap_or_default();
        let names: Vec<&str> = target.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let mut remotes = Vec::new();
        for name in &names {
            let peer = engine.open(name)?;
            let lends = engine.first_buffer(name)?;
            let first = lends.ok_or_else(|| bad_value("target_seg_name", name, "a target that lends memory"))?;
            let remote = first.checked_add(self.offset);
            remotes.push((
                peer,
                remote.ok_or_else(|| {
                    bad_value("target_offset", &self.offset.to_string(), "an offset inside of what the target lends")
                })?,
            ));
        }
        // The near end's memory is as good as the far end's: registered.
        let memory = lend(engine, largest)?;
        let ends = Ends { engine, memory, remotes };
        if !self.json {
            say(HEAD);
        }
        let (mut cells, mut ended) = (Vec::new(), Ok(()));
        for (nth, load) in loads.iter().enumerate() {
            match self.measure(&ends, load, nth as u64) {
                Ok(cell) if self.json => cells.push(cell.json(self.check)),
                Ok(cell) => say(&cell.line()),
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        let (path, reason) = link(engine, &names);
        if self.json {
            let document = serde_json::json!({
                "target": target, "op_type": self.op_type, "path": path, "reason": reason,
                "duration": self.duration.as_secs_f64(), "cells": cells,
                // What was measured before is there all the same.
                "error": ended.as_ref().err().map(ToString::to_string),
            });
            say(&format!("{document:#}\n"));
        } else if ended.is_ok() {
            let checked = if self.check { "; what was written came back as it was" } else { "" };
            say(&format!("{} by {path} ({reason}){checked}\n", self.op_type));
        }
        ended
    }

    fn measure<'a>(&self, ends: &Ends<'_>, load: &'a Load, seed: u64) -> Result<Cell<'a>, ToolError> {
        if self.op_type == "write_seed" {
            load.seed(ends)?;
        }
        load.run(ends, WARM_UP.min(self.duration))?;
        let measured = load.run(ends, self.duration)?;
        if self.op_type == "read_verify" {
            load.verify(ends)?;
        }
        if self.check {
            load.check(ends, seed)?;
        }
        Ok(Cell { load, measured })
    }
}

/// The sizes between two flags. Where only the smallest is given, it is the only one if it is more than the usual
/// largest.
fn sizes(
    given: &Given,
    start: &'static str,
    max: &'static str,
    read: fn(&Given, &'static str) -> Result<u64, ToolError>,
) -> Result<Vec<u64>, ToolError> {
    let (smallest, largest) = (read(given, start)?, read(given, max)?);
    match given.text(max).filter(|_| largest < smallest) {
        Some(text) => Err(bad_value(max, text, "no less than what it starts with")),
        None => Ok(doubled(smallest, largest)),
    }
}

/// From the one to the other, times two each.
fn doubled(start: u64, max: u64) -> Vec<u64> {
    std::iter::successors(Some(start), |last| last.checked_mul(2)).take_while(|one| *one <= max.max(start)).collect()
}

/// By which paths, and why, each once.
fn link(engine: &Engine, targets: &[&str]) -> (String, String) {
    let links = engine.links();
    let of = |target: &&str| {
        let link = links.iter().find(|link| link.peer == **target);
        link.map_or(("local", "the engine itself"), |link| (link.path, &link.reason))
    };
    let (mut paths, mut reasons): (Vec<&str>, Vec<&str>) = targets.iter().map(of).unzip();
    for list in [&mut paths, &mut reasons] {
        list.sort_unstable();
        list.dedup();
    }
    (paths.join(", "), reasons.join(", "))
}

/// One combination and what came of it.
struct Cell<'a> {
    load: &'a Load,
    measured: Measured,
}

impl Cell<'_> {
    fn gb_per_second(&self) -> f64 {
        let moved = self.measured.batches.len() as u64 * self.load.batch * self.load.block;
        moved as f64 / 1e9 / self.measured.elapsed.as_secs_f64()
    }

    fn line(&self) -> String {
        let Load { block, batch, threads, .. } = self.load;
        let (rate, average) = (self.gb_per_second(), self.measured.average());
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| self.measured.quantile(share));
        format!(
            "{block:>10} {batch:>6} {threads:>7} {rate:>9.3} {average:>10.1} {p50:>10.1} {p99:>10.1} {p999:>10.1}\n"
        )
    }

    fn json(&self, checked: bool) -> serde_json::Value {
        serde_json::json!({
            "block_size": self.load.block, "batch_size": self.load.batch, "threads": self.load.threads,
            "batches": self.measured.batches.len(), "seconds": self.measured.elapsed.as_secs_f64(),
            "gb_per_s": self.gb_per_second(), "checked": checked,
            "latency_us": {
                "avg": self.measured.average(), "p50": self.measured.quantile(0.5),
                "p99": self.measured.quantile(0.99), "p999": self.measured.quantile(0.999),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use mooncake_settings::{CommandLine, parse};

    use super::*;

    #[test]
    fn sizes_double_up_to_the_largest_and_one_is_always_there() {
        assert_eq!(doubled(4096, 16_384), [4096, 8192, 16_384]);
        assert_eq!(doubled(3, 20), [3, 6, 12]);
        assert_eq!(doubled(8, 1), [8]);
        assert_eq!(doubled(1 << 63, u64::MAX), [1 << 63]);
    }

    #[test]
    fn a_sweep_that_ends_before_it_starts_is_refused() {
        let plan = |args: &[&str]| {
            let args = args.iter().map(|arg| (*arg).to_owned());
            let CommandLine::Run(given) = parse(&ENGINE_SWEEP, args).unwrap() else { panic!("it runs") };
            Plan::of(&given)
        };
        let flags = [("start_batch_size", "max_batch_size"), ("start_num_threads", "max_num_threads")];
        for (start, max) in flags.into_iter().chain([("start_block_size", "max_block_size")]) {
            let both = [format!("--{start}=8"), format!("--{max}=4")];
            let refused = plan(&both.each_ref().map(String::as_str)).err().map(|error| error.to_string());
            assert!(refused.is_some_and(|said| said.starts_with(&format!("--{max}=4: "))), "{max}");
        }
        assert_eq!(plan(&["--start_batch_size=8"]).unwrap().batches, [8]);
        assert_eq!(plan(&["--start_batch_size=8", "--max_batch_size=8"]).unwrap().batches, [8]);
    }

    #[test]
    fn a_line_fits_a_terminal_and_stands_under_its_head() {
        let batches = vec![123_456_789; 4];
        let measured = Measured { elapsed: Duration::from_secs(1_000), batches };
        let load =
            Load { opcodes: vec![Opcode::Read], block: 1 << 30, batch: 65_536, threads: 64, pause: Duration::ZERO };
        let line = Cell { load: &load, measured }.line();
        assert_eq!((line.trim_end().len(), HEAD.trim_end().len()), (79, 79), "{line}");
    }
}

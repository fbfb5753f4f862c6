//! `mooncake simulate`: how much memory a pool needs, by a trace of requests.

mod chart;
mod frame;
mod report;
mod table;

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::Path;

use mooncake_client::{SizeError, parse_size};
use mooncake_settings::{Given, SIMULATE, SettingError, duration_ms};
use mooncake_sizing::{Point, Rules, Trace, TraceError, least, points};

use crate::flags;
use crate::logging::{print_stderr, say};
use crate::terminal::{Paint, bytes, has_colour};
use report::{Report, Size};

/// Sizes that are tried where none are given: so many hundredths of the distinct blocks, about as many times the one
/// before.
const LADDER: [u64; 10] = [1, 2, 3, 5, 8, 12, 20, 35, 60, 100];

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
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
    /// A block of nothing.
    #[error("--block_size={0}: a block has at least one byte")]
    NoBlock(String),
    /// A pool without room for a block.
    #[error("--capacity: no block of {block} (--block_size) fits into {capacity}")]
    NoRoom {
        /// The pool.
        capacity: String,
        /// The block.
        block: String,
    },
    /// The trace.
    #[error("{name}: {source}")]
    Trace {
        /// Its file.
        name: String,
        /// What is wrong with it.
        source: TraceError,
    },
    /// The chart.
    #[error("--svg={path}: {source}")]
    Chart {
        /// Its file.
        path: String,
        /// What failed.
        source: io::Error,
    },
}

/// Simulates, and says what came of it.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), SimulateError> {
    let Some(given) = flags::read(&SIMULATE, args)? else { return Ok(()) };
    let rules = rules(&given)?;
    // Before the work: what is wrong with it is told at once.
    let capacities = capacities(&given, &rules)?;
    let name = &given.operands[0];
    let trace = read(name).map_err(|source| SimulateError::Trace { name: name.clone(), source })?;
    let path = given.text("svg").filter(|path| !path.is_empty());
    let failed = |source| SimulateError::Chart { path: path.unwrap_or_default().to_owned(), source };
    let chart = path.map(File::create).transpose().map_err(failed)?;
    let report = simulate(title(name), &trace, rules, capacities, given.number_or_default("target"));
    if let Some(mut chart) = chart {
        chart.write_all(chart::svg(&report).as_bytes()).map_err(failed)?;
    }
    match given.boolean("json") {
        true => say(&format!("{:#}\n", report.as_json())),
        false => say(&table::text(&report, Paint(has_colour()))),
    }
    Ok(())
}

fn size(text: &str, flag: &'static str) -> Result<u64, SimulateError> {
    parse_size(text).map_err(|source| SimulateError::Size { flag, source })
}

fn rules(given: &Given) -> Result<Rules, SimulateError> {
    let text = given.text_or_default("block_size");
    let block_bytes = size(text, "block_size")?;
    if block_bytes == 0 {
        return Err(SimulateError::NoBlock(text.to_owned()));
    }
    let ttl = given.text_or_default("default_kv_lease_ttl");
    Ok(Rules { block_bytes, lookup_protect_ms: duration_ms(ttl).expect("checked when it was set") })
}

/// Those that are asked for, in bytes, from the smallest on.
fn capacities(given: &Given, rules: &Rules) -> Result<Vec<u64>, SimulateError> {
    let words = given.text("capacity").unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut all: Vec<u64> = words.map(|word| size(word, "capacity")).collect::<Result<_, _>>()?;
    all.sort_unstable();
    all.dedup();
    match all.iter().find(|capacity| rules.room_of(**capacity) == 0) {
        None => Ok(all),
        Some(none) => {
            Err(SimulateError::NoRoom { capacity: bytes(*none as f64), block: bytes(rules.block_bytes as f64) })
        }
    }
}

/// `-` is the standard input.
fn read(name: &str) -> Result<Trace, TraceError> {
    let from: Box<dyn BufRead> = match name {
        "-" => Box::new(io::stdin().lock()),
        path => Box::new(BufReader::new(File::open(path)?)),
    };
    Trace::read(from)
}

/// What the trace is called.
fn title(name: &str) -> String {
    match (name, Path::new(name).file_name()) {
        ("-", _) | (_, None) => "standard input".to_owned(),
        (_, Some(file)) => file.to_string_lossy().into_owned(),
    }
}

fn simulate(name: String, trace: &Trace, rules: Rules, capacities: Vec<u64>, target: f64) -> Report {
    let all = trace.distinct();
    let mut wanted: Vec<(u64, u32)> = if capacities.is_empty() {
        let rooms = LADDER.map(|share| (u64::from(all) * share).div_ceil(100) as u32);
        rooms.map(|room| (rules.bytes_of(room), room)).to_vec()
    } else {
        let room = |bytes: &u64| rules.room_of(*bytes).min(u64::from(all)) as u32;
        capacities.iter().map(|bytes| (*bytes, room(bytes))).collect()
    };
    wanted.dedup();
    // The last of them has room for everything, whether it is asked for or not: that is what is possible.
    let mut rooms: Vec<u32> = wanted.iter().map(|(_, room)| *room).chain([all]).collect();
    rooms.dedup();
    let progress = Progress::new();
    let tried = points(trace, &rules, &rooms, |done| progress.say(&format!("{done} of {} sizes", rooms.len())));
    let possible = *tried.last().expect("there is one at least");
    let goal = (possible.found as f64 * target).ceil() as u64;
    let searched = |done| progress.say(&format!("the least size, {done} tried"));
    let least = (possible.found > 0).then(|| least(trace, &rules, goal, &tried, searched)).flatten();
    progress.end();
    let of = |room: u32| *tried.iter().find(|point| point.room == room).expect("each was simulated");
    Report {
        name,
        requests: trace.requests().len() as u64,
        span_ms: trace.span_ms(),
        blocks: trace.blocks(),
        distinct: all,
        rules,
        possible: possible.found,
        target,
        least: least.map(|point: Point| Size { bytes: rules.bytes_of(point.room), point }),
        sizes: wanted.into_iter().map(|(bytes, room)| Size { bytes, point: of(room) }).collect(),
    }
}

/// A line on a terminal that says how far it is, for as long as that takes.
struct Progress {
    is_seen: bool,
}

impl Progress {
    fn new() -> Progress {
        Progress { is_seen: io::stderr().is_terminal() }
    }

    fn say(&self, what: &str) {
        if self.is_seen {
            print_stderr(&format!("\r\x1b[Ksimulating: {what}"));
        }
    }

    fn end(&self) {
        if self.is_seen {
            print_stderr("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(args: &[&str]) -> String {
        run(args.iter().map(|arg| (*arg).to_owned())).unwrap_err().to_string()
    }

    fn given(args: &[&str]) -> Given {
        flags::read(&SIMULATE, args.iter().map(|arg| (*arg).to_owned())).unwrap().unwrap()
    }

    #[test]
    fn what_is_wrong_is_named_before_anything_is_simulated() {
        assert!(said(&[]).contains("which TRACE?"));
        assert!(said(&["/no/such/trace"]).starts_with("/no/such/trace: No such file"));
        assert!(said(&["-", "--block_size=0"]).contains("at least one byte"));
        assert!(said(&["-", "--block_size=huge"]).starts_with("--block_size: \"huge\" is not a size"));
        assert!(said(&["-", "--capacity=1GB,x"]).starts_with("--capacity: \"x\" is not a size"));
        let tight = said(&["-", "--capacity=1GB,1MB"]);
        assert!(tight.contains("no block of 64.0 MB") && tight.ends_with("into 1.0 MB"), "{tight}");
        assert!(said(&["-", "--target=2"]).contains("a number from 0 to 1"));
    }

    #[test]
    fn sizes_are_told_in_order_and_what_is_more_than_all_blocks_is_as_good_as_all() {
        let trace = "{\"timestamp\":0,\"hash_ids\":[1,2]}\n{\"timestamp\":9000,\"hash_ids\":[1,2]}\n";
        let trace = Trace::read(trace.as_bytes()).unwrap();
        let given = given(&["-", "--capacity=8GB, 64MB,1GB,1GB"]);
        let rules = rules(&given).unwrap();
        let report = simulate("t".to_owned(), &trace, rules, capacities(&given, &rules).unwrap(), 0.95);
        let told: Vec<(u64, u32)> = report.sizes.iter().map(|size| (size.bytes >> 20, size.point.room)).collect();
        assert_eq!(told, [(64, 1), (1024, 2), (8192, 2)]);
        assert_eq!(report.least.map(|size| size.point.room), Some(2));
        // Ten sizes of two blocks are two.
        let report = simulate("t".to_owned(), &trace, rules, Vec::new(), 0.95);
        assert_eq!(report.sizes.iter().map(|size| size.point.room).collect::<Vec<_>>(), [1, 2]);
    }
}

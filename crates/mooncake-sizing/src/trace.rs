//! Traces of requests, as Mooncake publishes them: a JSON object on each line.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufRead, Read};
use std::ops::Range;

use serde::Deserialize;
use serde_json::Number;

/// Longest line that is read: as long as a prompt of millions of blocks has.
const LINE_MAX: u64 = 64 << 20;

/// What files of gzip begin with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A timestamp beyond it is no time in milliseconds.
const TIME_MAX: f64 = 1e15;

/// Requests in the order of time, and the blocks that each asks for.
#[derive(Debug, Default)]
pub struct Trace {
    requests: Vec<Span>,
    /// Of all requests, one behind the other: each block by the number that it got when it first came.
    blocks: Vec<u32>,
    distinct: u32,
}

/// When a request came, and which blocks it asks for.
#[derive(Debug)]
struct Span {
    at_ms: u64,
    blocks: Range<usize>,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Milliseconds since the first one.
    pub at_ms: u64,
    /// Blocks of its prompt, in order, each of them once.
    pub blocks: &'a [u32],
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// A line that is no request.
    #[error(
        "line {line}: {fault}; expected an object with the time in ms and whole numbers, as in \
         {{\"timestamp\": 3000, \"hash_ids\": [0, 1, 2]}}"
    )]
    Line {
        /// From 1 on.
        line: usize,
        /// What is wrong with it.
        fault: LineFault,
    },
    /// It is compressed.
    #[error("this is a file of gzip, expected lines of JSON; zcat FILE | mooncake simulate - reads it")]
    Compressed,
    /// Nothing could ever be found.
    #[error("no request asks for a block; expected a line for each request, with its blocks in hash_ids")]
    NoBlocks,
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum LineFault {
    /// No JSON, or not these fields.
    #[error("{what} (column {column})")]
    Json {
        /// What was met there.
        what: String,
        /// From 1 on.
        column: usize,
    },
    /// A hash that is none.
    #[error("{0} is no whole number of 64 bits")]
    Hash(Number),
    /// Times that are none.
    #[error("the timestamp {0} is no time from 0 to 1e15 ms")]
    Time(f64),
    /// It stands behind a later one.
    #[error("the timestamp {at} comes behind {before}: requests stand in the order of time")]
    Order {
        /// Of this line.
        at: f64,
        /// Of an earlier one.
        before: f64,
    },
    /// It has no end.
    #[error("it is longer than {} MiB", LINE_MAX >> 20)]
    TooLong,
    /// Their numbers have an end.
    #[error("it has the block that is one too many: 2^32 - 2 distinct ones can be counted")]
    TooMany,
}

/// What is read of a line. Traces have the lengths in tokens as well, and others may have more.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    hash_ids: Vec<Number>,
}

impl Line {
    fn of(text: &[u8]) -> Result<Line, LineFault> {
        serde_json::from_slice(text).map_err(|error| {
            let text = error.to_string();
            // It counts lines, too, of which this is the only one.
            let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what).to_owned();
            LineFault::Json { what, column: error.column() }
        })
    }
}

/// A trace while it is read.
#[derive(Default)]
struct Reading {
    trace: Trace,
    numbers: HashMap<i128, u32>,
    /// By block, one more than the last request that has it.
    last_in: Vec<usize>,
    times: Option<(f64, f64)>,
}

impl Trace {
    /// Reads all lines. Empty ones say nothing.
    pub fn read(mut from: impl BufRead) -> Result<Trace, TraceError> {
        let (mut reading, mut line, mut number) = (Reading::default(), Vec::new(), 0);
        loop {
            line.clear();
            number += 1;
            if from.by_ref().take(LINE_MAX + 1).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if number == 1 && line.starts_with(&GZIP) {
                return Err(TraceError::Compressed);
            }
            reading.add(&line).map_err(|fault| TraceError::Line { line: number, fault })?;
        }
        match reading.trace.distinct {
            0 => Err(TraceError::NoBlocks),
            _ => Ok(reading.trace),
        }
    }

    /// The requests, in the order of time.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request<'_>> + DoubleEndedIterator {
        self.requests.iter().map(|span| Request { at_ms: span.at_ms, blocks: &self.blocks[span.blocks.clone()] })
    }

    /// How many blocks are asked for, each as often as it is.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// How many different blocks there are: their numbers end below.
    pub fn distinct(&self) -> u32 {
        self.distinct
    }

    /// Milliseconds from the first request to the last.
    pub fn span_ms(&self) -> u64 {
        self.requests.last().map_or(0, |last| last.at_ms)
    }
}

impl Reading {
    fn add(&mut self, line: &[u8]) -> Result<(), LineFault> {
        if line.len() as u64 > LINE_MAX {
            return Err(LineFault::TooLong);
        }
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        let Line { timestamp: at, hash_ids } = Line::of(line)?;
        if !(0.0..=TIME_MAX).contains(&at) {
            return Err(LineFault::Time(at));
        }
        let (first, before) = self.times.unwrap_or((at, at));
        if at < before {
            return Err(LineFault::Order { at, before });
        }
        self.times = Some((first, at));
        let begin = self.trace.blocks.len();
        let nth = self.trace.requests.len() + 1;
        for hash in hash_ids {
            // Python's may be below 0.
            let id = hash.as_u64().map(i128::from).or_else(|| hash.as_i64().map(i128::from));
            let block = self.number_of(id.ok_or(LineFault::Hash(hash))?)?;
            // A prompt has a block once: its hash is that of all before it, too.
            let last_in = &mut self.last_in[block as usize];
            if *last_in != nth {
                *last_in = nth;
                self.trace.blocks.push(block);
            }
        }
        let blocks = begin..self.trace.blocks.len();
        self.trace.requests.push(Span { at_ms: (at - first) as u64, blocks });
        Ok(())
    }

    fn number_of(&mut self, id: i128) -> Result<u32, LineFault> {
        let next = self.trace.distinct;
        match self.numbers.entry(id) {
            Entry::Occupied(known) => Ok(*known.get()),
            // A pool counts granules of a segment, which is a little smaller than that.
            Entry::Vacant(_) if next == u32::MAX - 1 => Err(LineFault::TooMany),
            Entry::Vacant(new) => {
                new.insert(next);
                self.last_in.push(0);
                self.trace.distinct += 1;
                Ok(next)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Trace::read(text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn a_trace_is_read_as_mooncake_publishes_it() {
        let text = concat!(
            r#"{"timestamp": 1000, "input_length": 1000, "output_length": 5, "hash_ids": [70, 46, -3]}"#,
            "\r\n\n",
            r#"{"timestamp": 4000.5, "hash_ids": [70, 9, 70]}"#,
        );
        let trace = Trace::read(text.as_bytes()).unwrap();
        let requests: Vec<Request<'_>> = trace.requests().collect();
        assert_eq!(requests[0], Request { at_ms: 0, blocks: &[0, 1, 2] });
        assert_eq!(requests[1], Request { at_ms: 3000, blocks: &[0, 3] }, "a block of a prompt counts once");
        assert_eq!((trace.blocks(), trace.distinct(), trace.span_ms()), (5, 4, 3000));
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_line_and_what_was_expected() {
        let good = "{\"timestamp\": 5, \"hash_ids\": [1]}\n\n";
        for (line, what) in [
            ("x", "expected value"),
            ("[1, 2]", "invalid type"),
            (r#"{"timestamp": 5}"#, "missing field `hash_ids`"),
            (r#"{"hash_ids": [1]}"#, "missing field `timestamp`"),
            (r#"{"timestamp": "now", "hash_ids": [1]}"#, "invalid type: string \"now\""),
            (r#"{"timestamp": 6, "hash_ids": [1.5]}"#, "1.5 is no whole number"),
            (r#"{"timestamp": 6, "hash_ids": [null]}"#, "expected a JSON number"),
            (r#"{"timestamp": 6, "hash_ids": 7}"#, "invalid type: integer `7`"),
            (r#"{"timestamp": -1, "hash_ids": [1]}"#, "the timestamp -1 is no time"),
            (r#"{"timestamp": 1e300, "hash_ids": [1]}"#, "is no time"),
            (r#"{"timestamp": 4, "hash_ids": [1]}"#, "the timestamp 4 comes behind 5"),
            (r#"{"timestamp": 6, "hash_ids": [1]"#, "EOF"),
            ("\u{fffd}", "expected value"),
        ] {
            let said = refused(&format!("{good}{line}\n"));
            assert!(said.starts_with("line 3: ") && said.contains(what), "{line}: {said}");
            assert!(said.ends_with(r#"as in {"timestamp": 3000, "hash_ids": [0, 1, 2]}"#), "{said}");
        }
    }

    #[test]
    fn a_trace_without_blocks_is_none() {
        for text in ["", "\n\n", "{\"timestamp\": 0, \"hash_ids\": []}"] {
            assert!(refused(text).contains("no request asks for a block"), "{text:?}");
        }
        let compressed = Trace::read(&[0x1f, 0x8b, 8, 0][..]).unwrap_err().to_string();
        assert!(compressed.contains("zcat"), "{compressed}");
    }

    #[test]
    fn a_line_that_does_not_end_is_not_read_to_its_end() {
        let endless = io::BufReader::new(io::repeat(b' '));
        let said = Trace::read(endless).unwrap_err().to_string();
        assert!(said.starts_with("line 1: it is longer than 64 MiB"), "{said}");
    }
}

//! The summary line: every 10 s in the output, and at `/metrics/summary`.

use std::fmt::Write;
use std::time::Instant;

use mooncake_core::Stats;
use mooncake_metrics::bytes;

use crate::log::LogStats;
use crate::metrics::{Metrics, Op, OpReading};

/// Readings at the previous periodic line: rates are since then.
#[derive(Debug)]
pub struct Previous {
    at: Instant,
    ops: [OpReading; Op::ALL.len()],
}

impl Previous {
    /// Counts from now on.
    pub fn start(metrics: &Metrics) -> Previous {
        Previous { at: Instant::now(), ops: Op::ALL.map(|op| metrics.reading(op)) }
    }
}

/// What the line tells, as of one moment.
#[derive(Debug)]
pub struct Figures<'a> {
    /// What the core counts.
    pub stats: Stats,
    /// What the log counts.
    pub log: LogStats,
    /// What the shell counts.
    pub shell: &'a Metrics,
}

/// The line, without a prefix, with the rates since the last periodic one.
pub fn line(Figures { stats, log, shell }: &Figures<'_>, previous: &Previous) -> String {
    let mut out = format!("Storage: {} / {}", bytes(stats.used_bytes), bytes(stats.capacity_bytes));
    if stats.capacity_bytes > 0 {
        let _ = write!(out, " ({:.1}%)", 100.0 * stats.used_bytes as f64 / stats.capacity_bytes as f64);
    }
    let _ = write!(out, " | Keys: {}", stats.keys);
    if stats.soft_pinned_objects > 0 {
        let _ = write!(out, " (soft-pinned: {})", stats.soft_pinned_objects);
    }
    let _ = write!(out, " | Clients: {}", stats.sessions.saturating_sub(stats.sessions_away));
    if stats.sessions_away > 0 {
        let _ = write!(out, " (away: {})", stats.sessions_away);
    }
    let seconds = previous.at.elapsed().as_secs_f64().max(0.001);
    let rate = |count: u64| (count as f64 / seconds).round() as u64;
    out.push_str(" | Requests (Success/Total per sec): ");
    let mut first = true;
    for (op, name) in SHOWN {
        let (now, then) = (shell.reading(op), previous.ops[op as usize]);
        let total = now.requests - then.requests;
        let failed = now.failures - then.failures;
        let _ = write!(out, "{}{name}={}/{}", separator(&mut first), rate(total - failed.min(total)), rate(total));
    }
    out.push_str(" | Batch Requests (per sec, Req=Success/PartialSuccess/Total, Item=Success/Total): ");
    let mut first = true;
    for (op, name) in SHOWN_BATCHES {
        let (now, then) = (shell.reading(op), previous.ops[op as usize]);
        let total = now.batch_requests - then.batch_requests;
        let partial = now.batch_partial - then.batch_partial;
        let failed = now.batch_failures - then.batch_failures;
        let items = now.batch_items - then.batch_items;
        let failed_items = now.batch_failed_items - then.batch_failed_items;
        let _ = write!(
            out,
            "{}{name}:(Req={}/{}/{}, Item={}/{})",
            separator(&mut first),
            rate(total.saturating_sub(partial + failed)),
            rate(partial),
            rate(total),
            rate(items.saturating_sub(failed_items)),
            rate(items),
        );
    }
    let _ = write!(
        out,
        " | Eviction: keys={}, size={}, AllocFail={}, PartialAlloc={}",
        stats.counters.evicted_objects,
        bytes(stats.counters.evicted_bytes),
        stats.counters.put_full + stats.counters.put_too_large,
        shell.partial_allocations(),
    );
    let _ = write!(
        out,
        " | Held: pinned={}, unfinished={}, quarantined={}",
        bytes(stats.pinned_bytes),
        bytes(stats.unfinished_bytes),
        bytes(stats.quarantined_bytes),
    );
    let state = match (log.enabled, log.lost) {
        (true, _) => "on",
        (false, true) => "LOST",
        (false, false) => "off",
    };
    let _ = write!(out, " | Log: {state}, size={}, snapshots={}", bytes(log.bytes), log.snapshots);
    out
}

/// The periodic line that was said last. One that says the same is not said again.
#[derive(Debug, Default)]
pub struct Said(String);

impl Said {
    /// The line, if it says something else than the last one. How often clients beat is no news by itself.
    pub fn news(&mut self, line: String) -> Option<String> {
        let told =
            match line.split_once(", Ping=").and_then(|(before, pings)| Some((before, pings.split_once(" | ")?.1))) {
                Some((before, behind)) => format!("{before} | {behind}"),
                None => line.clone(),
            };
        (std::mem::replace(&mut self.0, told) != self.0).then_some(line)
    }
}

const SHOWN: [(Op, &str); 8] = [
    (Op::PutStart, "PutStart"),
    (Op::PutEnd, "PutEnd"),
    (Op::PutRevoke, "PutRevoke"),
    (Op::GetReplicaList, "Get"),
    (Op::ExistKey, "Exist"),
    (Op::Remove, "Del"),
    (Op::RemoveAll, "DelAll"),
    (Op::Ping, "Ping"),
];

const SHOWN_BATCHES: [(Op, &str); 5] = [
    (Op::PutStart, "PutStart"),
    (Op::PutEnd, "PutEnd"),
    (Op::PutRevoke, "PutRevoke"),
    (Op::GetReplicaList, "Get"),
    (Op::ExistKey, "ExistKey"),
];

fn separator(first: &mut bool) -> &'static str {
    if std::mem::take(first) { "" } else { ", " }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::log::Log;
    use crate::reading::summary_line;
    use crate::shared::Shared;

    #[test]
    fn a_master_of_which_nothing_is_asked_says_that_once() {
        let shared = Shared::of(Arc::new(Log::new(1, 0, None, false)));
        let (mut said, line) = (Said::default(), || summary_line(&shared));
        assert!(said.news(line()).is_some());
        shared.metrics.count(Op::Ping, 5_000, 0);
        assert!(line().contains("Ping=") && !line().contains("Ping=0/0"), "{}", line());
        assert_eq!(said.news(line()), None);
        shared.metrics.count(Op::ExistKey, 5_000, 0);
        assert!(said.news(line()).is_some_and(|line| line.contains("Ping=")));
        *shared.summarized.lock() = Previous::start(&shared.metrics);
        assert!(said.news(line()).is_some(), "that it stopped is news");
        assert_eq!(said.news(line()), None);
    }
}

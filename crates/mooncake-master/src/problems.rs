//! What is wrong with the pool, and what to do about it: what its operator is to see first.

use mooncake_core::Stats;
use mooncake_http::Problem;
use mooncake_metrics::{bytes, duration};

use crate::history::{Latencies, Rates};
use crate::reading::ClientReading;

/// Clients of a kind that are named; the others are counted.
const NAMED_MAX: usize = 3;

/// A log whose disk takes longer for 1 of 100 writes slows puts down, microseconds.
const LOG_SLOW_US: f64 = 100_000.0;

/// Views on a larger share of the memory leave eviction too little to choose from.
const PINNED_MUCH: f64 = 0.5;

/// What they are found in.
#[derive(Debug)]
pub struct Found<'a> {
    /// The pool.
    pub stats: &'a Stats,
    /// Its clients.
    pub clients: &'a [ClientReading],
    /// What was asked lately.
    pub rates: &'a Rates,
    /// How fast that was.
    pub latencies: &'a Latencies,
    /// The log is lost.
    pub is_log_lost: bool,
    /// The log is closed.
    pub is_log_closed: bool,
}

/// All of them, worst first.
pub fn problems(found: &Found<'_>) -> Vec<Problem> {
    let all = [of_log(found), of_clients(found), of_tiers(found), of_memory(found), of_puts(found)];
    let mut all: Vec<Problem> = all.into_iter().flatten().collect();
    all.sort_by_key(|problem| problem.severity);
    all
}

fn of_log(found: &Found<'_>) -> Vec<Problem> {
    let mut all = Vec::new();
    if found.is_log_closed {
        let message = "the log is closed: this master answers no call any more".to_owned();
        all.push(Problem::error("log_closed", message, "restart the master; its output says what happened"));
    }
    if found.is_log_lost {
        let message = "the log is lost: a restart of this master forgets every object".to_owned();
        let remedy = "make room on its disk, then POST /api/v1/start_log to this port";
        all.push(Problem::error("log_lost", message, remedy));
    }
    let slowest = [found.latencies.log_append, found.latencies.log_fsync].into_iter().flatten();
    let slowest = slowest.map(|latency| latency.p99).fold(0.0, f64::max);
    if slowest > LOG_SLOW_US {
        let message = format!("1 of 100 writes of the log takes up to {} ms: every put waits for it", slowest / 1e3);
        let remedy = "give the log a disk of its own (--wal_dir), or do without --wal=fsync";
        all.push(Problem::warning("log_slow", message, remedy));
    }
    all
}

fn of_clients(found: &Found<'_>) -> Vec<Problem> {
    let lends = |client: &&ClientReading| client.view.lent > 0;
    let away: Vec<&ClientReading> =
        found.clients.iter().filter(lends).filter(|it| it.view.away_us.is_some() && !it.view.is_bereft).collect();
    let bereft: Vec<&ClientReading> = found.clients.iter().filter(lends).filter(|it| it.view.is_bereft).collect();
    let mut all = Vec::new();
    if !away.is_empty() {
        let message = format!("{}: what is in their {} is not read until they are back", named(&away), lent(&away));
        let remedy = "look at these processes and at the network to them; their objects are kept until they are back";
        all.push(Problem::warning("client_away", message, remedy));
    }
    if !bereft.is_empty() {
        let message = format!("{}: {} wait for the next process", named(&bereft), lent(&bereft));
        let remedy = "start these storage nodes again, as they were started before: their memory is kept";
        all.push(Problem::warning("waits_for_heir", message, remedy));
    }
    all
}

fn lent(clients: &[&ClientReading]) -> String {
    bytes(clients.iter().map(|client| client.view.lent).sum())
}

/// `10.0.0.7:12345 on h7, away for 14 s, and 3 more`
fn named(clients: &[&ClientReading]) -> String {
    let one = |client: &&ClientReading| {
        let (name, host) = (&client.view.name, client.seen.about().host);
        let on = if host.is_empty() { String::new() } else { format!(" on {host}") };
        let state = match client.view.away_us {
            _ if client.view.is_bereft => ", whose process has ended".to_owned(),
            Some(away_us) => format!(", away for {}", duration(away_us as f64 / 1e6)),
            None => String::new(),
        };
        format!("{name}{on}{state}")
    };
    let told: Vec<String> = clients.iter().take(NAMED_MAX).map(one).collect();
    match clients.len().saturating_sub(NAMED_MAX) {
        0 => told.join("; "),
        more => format!("{}; and {more} more", told.join("; ")),
    }
}

fn of_tiers(found: &Found<'_>) -> Vec<Problem> {
    let stats = found.stats;
    let mut all = Vec::new();
    if stats.tiers_hidden > 0 {
        let message = format!("{} tiers are not read: their owner, folder or disk is away", stats.tiers_hidden);
        let remedy = "mooncake tier list names them; bring them back, or have the master forget them";
        all.push(Problem::warning("tier_hidden", message, remedy));
    }
    if stats.tiers_refusing > 0 {
        let message = format!("{} tiers are not written: their disk fails or stands still", stats.tiers_refusing);
        let remedy = "the output of their owners says which disk, and why";
        all.push(Problem::warning("tier_read_only", message, remedy));
    }
    all
}

fn of_memory(found: &Found<'_>) -> Vec<Problem> {
    let stats = found.stats;
    if stats.capacity_bytes == 0 {
        let message = "no client lends memory: every put fails".to_owned();
        let remedy =
            "start a storage node: mooncake_client --master_server_address=HOST:PORT --global_segment_size=4GB";
        return vec![Problem::error("no_memory", message, remedy)];
    }
    let mut all = Vec::new();
    if stats.pinned_bytes as f64 > PINNED_MUCH * stats.capacity_bytes as f64 {
        let (pinned, capacity) = (bytes(stats.pinned_bytes), bytes(stats.capacity_bytes));
        let message = format!("{pinned} of {capacity} are pinned: eviction has only the rest to choose from");
        let remedy = "see which clients hold views (viewed_bytes), and have them let go of what they do not need";
        all.push(Problem::warning("pinned_much", message, remedy));
    }
    if found.rates.lookup_then_miss > 0.0 {
        let message = "objects are evicted between their look-up and their get".to_owned();
        let remedy =
            "the pool is too small for what is read at a time: lend more memory, or add a tier (docs/tiers.md)";
        all.push(Problem::warning("lookup_then_miss", message, remedy));
    }
    all
}

fn of_puts(found: &Found<'_>) -> Vec<Problem> {
    let mut all = Vec::new();
    if found.rates.put_no_room > 0.0 {
        let message = format!("puts of {:.1} keys a second find no room, and fail", found.rates.put_no_room);
        let remedy =
            "lend more memory, or put a tier behind it (docs/tiers.md); pinned and unfinished bytes hold room, too";
        all.push(Problem::error("puts_fail", message, remedy));
    }
    if found.rates.put_too_large > 0.0 {
        let message = format!("puts of {:.1} keys a second are larger than every segment", found.rates.put_too_large);
        let remedy = "have a client lend a larger segment (global_segment_size), or store smaller objects";
        all.push(Problem::warning("puts_too_large", message, remedy));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::tests::client;
    use mooncake_metrics::Latency;

    fn codes(found: &Found<'_>) -> Vec<&'static str> {
        problems(found).iter().map(|problem| problem.code).collect()
    }

    #[test]
    fn a_pool_that_is_well_has_none_and_what_loses_objects_comes_first() {
        let stats = Stats { capacity_bytes: 10, ..Stats::default() };
        let (rates, latencies) = (Rates::default(), Latencies::default());
        let well = Found {
            stats: &stats,
            clients: &[],
            rates: &rates,
            latencies: &latencies,
            is_log_lost: false,
            is_log_closed: false,
        };
        assert_eq!(codes(&well), [""; 0]);
        let stats =
            Stats { capacity_bytes: 10, pinned_bytes: 6, tiers_hidden: 1, tiers_refusing: 2, ..Stats::default() };
        let rates = Rates { put_no_room: 0.5, put_too_large: 1.0, lookup_then_miss: 1.0, ..Rates::default() };
        let slow = Some(Latency { p50: 1.0, p99: 1e7 });
        let latencies = Latencies { log_fsync: slow, ..Latencies::default() };
        let clients = [client(1, "a:1".to_owned(), Some(14_500_000)), client(2, "b:1".to_owned(), None)];
        let ill = Found {
            stats: &stats,
            clients: &clients,
            rates: &rates,
            latencies: &latencies,
            is_log_lost: true,
            is_log_closed: true,
        };
        let (errors, warnings) = (
            ["log_closed", "log_lost", "puts_fail"],
            [
                "log_slow",
                "client_away",
                "tier_hidden",
                "tier_read_only",
                "pinned_much",
                "lookup_then_miss",
                "puts_too_large",
            ],
        );
        assert_eq!(codes(&ill), [&errors[..], &warnings[..]].concat());
        let away = problems(&ill).into_iter().find(|problem| problem.code == "client_away").unwrap();
        assert!(away.message.starts_with("a:1, away for 14 s: "), "{}", away.message);
    }

    #[test]
    fn a_pool_without_memory_says_what_to_start_and_many_clients_are_counted() {
        let (rates, latencies) = (Rates::default(), Latencies::default());
        let clients: Vec<ClientReading> = (1..=9).map(|nth| client(nth, format!("n:{nth}"), Some(1))).collect();
        let found = Found {
            stats: &Stats::default(),
            clients: &clients,
            rates: &rates,
            latencies: &latencies,
            is_log_lost: false,
            is_log_closed: false,
        };
        assert_eq!(codes(&found), ["no_memory", "client_away"]);
        let message = &problems(&found)[1].message;
        assert!(message.contains("n:3") && !message.contains("n:4") && message.contains("and 6 more"), "{message}");
    }
}

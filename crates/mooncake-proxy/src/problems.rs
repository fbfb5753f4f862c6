//! What is wrong with the fleet, and what to do about it.

use std::time::Instant;

use mooncake_http::Problem;
use mooncake_metrics::duration;

use crate::history::Rates;
use crate::instances::fleet::Fleet;
use crate::instances::instance::{Health, Kind};

/// Instances of a kind that are named; the others are counted.
const NAMED_MAX: usize = 3;

/// So large a share of all answers is an error of the service, and not of single requests.
const FAILED_MUCH: f64 = 0.05;

/// What they are found in.
pub(crate) struct Found<'a> {
    pub fleet: &'a Fleet,
    pub rates: &'a Rates,
    /// Requests waited for their turn all the last seconds.
    pub has_long_waits: bool,
    pub is_stopping: bool,
    pub now: Instant,
}

/// All of them, worst first.
pub(crate) fn problems(found: &Found<'_>) -> Vec<Problem> {
    let mut all = Vec::new();
    all.extend(of_decode(found));
    all.extend(of_prefill(found));
    all.extend(of_answers(found));
    all.extend(of_queue(found));
    all.sort_by_key(|problem| problem.severity);
    all
}

fn of_decode(found: &Found<'_>) -> Option<Problem> {
    let (down, well) = down(found, Kind::Decode);
    if !found.fleet.available(Kind::Decode, &[]).is_empty() {
        let what = match (down.as_str(), well) {
            ("", _) => return None,
            // Those that fail are asked all the same: there is no other.
            (_, 0) => "all decode instances fail, and are asked as there is no other",
            _ => "decode instances are out of service",
        };
        return Some(Problem::warning("decode_down", format!("{what}: {down}"), REMEDY));
    }
    let message = match down.as_str() {
        "" => {
            let remedy = "name one with --decode, or add one with POST /instances/add";
            let message = "there is no decode instance: no request is answered".to_owned();
            return Some(Problem::error("no_decode", message, remedy));
        }
        _ => format!("no decode instance is in service, and no request is answered: {down}"),
    };
    Some(Problem::error("decode_down", message, REMEDY))
}

fn of_prefill(found: &Found<'_>) -> Option<Problem> {
    let (down, well) = down(found, Kind::Prefill);
    let what = match (down.as_str(), well) {
        ("", _) => return None,
        (_, 0) if found.fleet.available(Kind::Prefill, &[]).is_empty() => {
            "no prefill instance is in service, and decode instances compute all prompts"
        }
        (_, 0) => "all prefill instances fail, and are asked as there is no other",
        _ => "prefill instances are out of service",
    };
    Some(Problem::warning("prefill_down", format!("{what}: {down}"), REMEDY))
}

/// What mends an instance that is left alone.
const REMEDY: &str = "look at these servers and at the network to them; an instance that answers its check is back in \
    service by itself";

/// The instances of a kind that are out of service, in words, and how many are in service.
fn down(found: &Found<'_>, kind: Kind) -> (String, usize) {
    let all: Vec<_> = found.fleet.all().into_iter().filter(|one| one.kind == kind).collect();
    let down: Vec<String> = all
        .iter()
        .filter_map(|one| match one.health() {
            Health::Well => None,
            Health::Resting { reason, since, .. } => {
                let time = duration(found.now.saturating_duration_since(since).as_secs_f64());
                Some(format!("{} for {time} ({reason})", one.address.authority()))
            }
        })
        .collect();
    let well = all.len() - down.len();
    let named = down[..down.len().min(NAMED_MAX)].join("; ");
    match down.len().saturating_sub(NAMED_MAX) {
        0 => (named, well),
        more => (format!("{named}; and {more} more"), well),
    }
}

fn of_answers(found: &Found<'_>) -> Vec<Problem> {
    let mut all = Vec::new();
    // Whoever comes while the proxy stops is told so, with 503.
    if found.rates.failed > 0.0 && !found.is_stopping {
        let message = format!("{:.1} answers a second are errors (5xx)", found.rates.failed);
        let remedy =
            "the log of this proxy and those of the instances say why; for \"no connection left\" raise ulimit -n";
        all.push(match found.rates.failed >= FAILED_MUCH * found.rates.requests {
            true => Problem::error("answers_fail", message, remedy),
            false => Problem::warning("answers_fail", message, remedy),
        });
    }
    if found.rates.broke_off > 0.0 {
        let message = format!("{:.1} answers a second break off after their first byte", found.rates.broke_off);
        let remedy = "look at the decode instances' logs: they end answers, or are slower than --stall_timeout";
        all.push(Problem::warning("answers_break_off", message, remedy));
    }
    all
}

fn of_queue(found: &Found<'_>) -> Option<Problem> {
    if found.rates.rejected > 0.0 {
        let message = format!("{:.1} requests a second are rejected (429)", found.rates.rejected);
        let remedy = "add instances, or let more wait (--max_waiting, --max_bodies_size); \
            mooncake_proxy_rejected_total says which of the two is full";
        return Some(Problem::error("rejected", message, remedy));
    }
    found.has_long_waits.then(|| {
        let message = "requests wait for their turn: as many as may be are under way".to_owned();
        Problem::warning("requests_wait", message, "add instances, or let each have more to do (--max_running)")
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use mooncake_http::Severity;

    use super::*;

    /// So many of each.
    fn fleet(prefill: u32, decode: u32) -> Fleet {
        let fleet = Fleet::default();
        for (kind, count) in [(Kind::Prefill, prefill), (Kind::Decode, decode)] {
            (1..=count).for_each(|nth| _ = fleet.add(kind, format!("10.0.0.{nth}:1").parse().unwrap()));
        }
        fleet
    }

    fn all(fleet: &Fleet, rates: &Rates, has_long_waits: bool) -> Vec<Problem> {
        problems(&Found { fleet, rates, has_long_waits, is_stopping: false, now: Instant::now() })
    }

    fn codes(fleet: &Fleet, rates: &Rates, has_long_waits: bool) -> Vec<&'static str> {
        all(fleet, rates, has_long_waits).iter().map(|one| one.code).collect()
    }

    #[test]
    fn a_fleet_that_does_what_it_is_asked_has_no_problem() {
        let rates = Rates { requests: 9.0, cancelled: 1.0, refused: 1.0, ..Rates::default() };
        assert_eq!(codes(&fleet(2, 1), &rates, false), [""; 0]);
    }

    #[test]
    fn what_fails_comes_first_and_names_the_instances_and_since_when() {
        let rates = Rates { requests: 9.0, failed: 1.0, broke_off: 1.0, rejected: 1.0, ..Rates::default() };
        let (fleet, began) = (fleet(5, 1), Instant::now());
        fleet.all().iter().take(5).for_each(|one| one.failed(began, "refused", true));
        let now = began + Duration::from_secs(14);
        let found = Found { fleet: &fleet, rates: &rates, has_long_waits: true, is_stopping: false, now };
        let all = problems(&found);
        let codes: Vec<_> = all.iter().map(|one| one.code).collect();
        assert_eq!(codes, ["answers_fail", "rejected", "prefill_down", "answers_break_off"]);
        let told = &all[2].message;
        assert!(told.contains("10.0.0.1:1 for 14 s (refused)") && told.ends_with("and 2 more"), "{told}");
        assert!(told.starts_with("no prefill instance is in service"), "{told}");
        assert!(!problems(&Found { is_stopping: true, ..found }).iter().any(|one| one.code == "answers_fail"));
    }

    #[test]
    fn few_errors_among_many_answers_are_a_warning() {
        let rates = Rates { requests: 900.0, failed: 1.0, ..Rates::default() };
        assert_eq!(all(&fleet(0, 1), &rates, false)[0].severity, Severity::Warning);
    }

    #[test]
    fn without_a_decode_instance_no_request_is_answered_and_that_is_an_error() {
        assert_eq!(codes(&fleet(0, 0), &Rates::default(), false), ["no_decode"]);
        let fleet = fleet(0, 2);
        let [first, second] = &fleet.all()[..] else { panic!("two") };
        first.failed(Instant::now(), "refused", true);
        assert_eq!(codes(&fleet, &Rates::default(), true), ["decode_down", "requests_wait"]);
        second.failed(Instant::now(), "refused", true);
        assert_eq!(all(&fleet, &Rates::default(), false)[0].severity, Severity::Error);
        // It answers its checks, and all requests with errors.
        second.is_proven.store(true, Ordering::Relaxed);
        let [told] = &all(&fleet, &Rates::default(), false)[..] else { panic!("one") };
        assert!(told.message.starts_with("all decode instances fail"), "{}", told.message);
        assert_eq!(told.severity, Severity::Warning);
    }
}

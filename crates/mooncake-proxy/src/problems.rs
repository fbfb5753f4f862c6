//! What is wrong with the fleet, and what to do about it.

use std::time::Instant;

use mooncake_http::Problem;
use mooncake_metrics::duration;

use crate::history::Rates;
use crate::instances::instance::{Health, Instance, Kind};

/// Instances of a kind that are named; the others are counted.
const NAMED_MAX: usize = 3;

/// What they are found in.
pub(crate) struct Found<'a> {
    pub instances: &'a [std::sync::Arc<Instance>],
    pub rates: &'a Rates,
    /// Requests that wait for their turn.
    pub waiting: usize,
    pub running_max: usize,
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
    let add = "name one with --decode, or add one with POST /instances/add";
    match (down.as_str(), well) {
        ("", 0) => {
            Some(Problem::error("no_decode", "there is no decode instance: no request is answered".to_owned(), add))
        }
        (_, 0) => {
            let message = format!("no decode instance is in service, and no request is answered: {down}");
            Some(Problem::error("decode_down", message, REMEDY))
        }
        ("", _) => None,
        _ => Some(Problem::warning("decode_down", format!("decode instances out of service: {down}"), REMEDY)),
    }
}

fn of_prefill(found: &Found<'_>) -> Option<Problem> {
    let (down, well) = down(found, Kind::Prefill);
    let message = match (down.as_str(), well) {
        ("", _) => return None,
        (_, 0) => format!("no prefill instance is in service, and decode instances compute all prompts: {down}"),
        _ => format!("prefill instances out of service: {down}"),
    };
    Some(Problem::warning("prefill_down", message, REMEDY))
}

/// What mends an instance that is left alone.
const REMEDY: &str = "look at these servers and at the network to them; an instance that answers its check is back in \
    service by itself";

/// The instances of a kind that are out of service, in words, and how many are in service.
fn down(found: &Found<'_>, kind: Kind) -> (String, usize) {
    let of_kind = || found.instances.iter().filter(|one| one.kind == kind);
    let down: Vec<String> = of_kind()
        .filter_map(|one| match one.health() {
            Health::Well => None,
            Health::Resting { reason, since, .. } => {
                let time = duration(found.now.saturating_duration_since(since).as_secs_f64());
                Some(format!("{} for {time} ({reason})", one.address.authority()))
            }
        })
        .collect();
    let well = of_kind().count() - down.len();
    let named = down[..down.len().min(NAMED_MAX)].join("; ");
    match down.len().saturating_sub(NAMED_MAX) {
        0 => (named, well),
        more => (format!("{named}; and {more} more"), well),
    }
}

fn of_answers(found: &Found<'_>) -> Vec<Problem> {
    let mut all = Vec::new();
    if found.rates.failed > 0.0 {
        let message = format!("{:.1} answers a second are errors (5xx)", found.rates.failed);
        let remedy = "instances that fail are out of service, or their own logs say what they cannot do";
        all.push(Problem::error("answers_fail", message, remedy));
    }
    if found.rates.broken > 0.0 {
        let message = format!("{:.1} answers a second break off after their first byte", found.rates.broken);
        let remedy = "look at the decode instances' logs: they end answers, or are slower than --stall_timeout";
        all.push(Problem::warning("answers_break_off", message, remedy));
    }
    all
}

fn of_queue(found: &Found<'_>) -> Option<Problem> {
    let remedy = "add instances, or let each have more to do: --max_running, --max_waiting";
    if found.rates.crowded > 0.0 {
        let message = format!("{:.1} requests a second find the queue full, and are refused", found.rates.crowded);
        return Some(Problem::error("queue_full", message, remedy));
    }
    (found.waiting > 0).then(|| {
        let (waiting, most) = (found.waiting, found.running_max);
        Problem::warning("requests_wait", format!("{waiting} requests wait, as {most} are under way"), remedy)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn instances(kind: Kind, count: u32) -> Vec<Arc<Instance>> {
        let one = |nth| Instance::new(nth, kind, format!("10.0.0.{nth}:1").parse().unwrap());
        (1..=count).map(|nth| Arc::new(one(nth))).collect()
    }

    fn codes(instances: &[Arc<Instance>], rates: &Rates, waiting: usize) -> Vec<&'static str> {
        let now = Instant::now();
        problems(&Found { instances, rates, waiting, running_max: 8, now }).iter().map(|one| one.code).collect()
    }

    #[test]
    fn a_fleet_that_does_what_it_is_asked_has_no_problem() {
        let fleet = [instances(Kind::Prefill, 2), instances(Kind::Decode, 1)].concat();
        assert_eq!(
            codes(&fleet, &Rates { requests: 9.0, cancelled: 1.0, refused: 1.0, ..Rates::default() }, 0),
            [""; 0]
        );
    }

    #[test]
    fn what_fails_comes_first_and_names_the_instances_and_since_when() {
        let rates = Rates { failed: 1.0, broken: 1.0, crowded: 1.0, ..Rates::default() };
        let fleet = [instances(Kind::Prefill, 5), instances(Kind::Decode, 1)].concat();
        let now = Instant::now();
        fleet.iter().take(5).for_each(|one| one.failed(now, "refused", true));
        let found =
            Found { instances: &fleet, rates: &rates, waiting: 1, running_max: 8, now: now + Duration::from_secs(14) };
        let all = problems(&found);
        let codes: Vec<_> = all.iter().map(|one| one.code).collect();
        assert_eq!(codes, ["answers_fail", "queue_full", "prefill_down", "answers_break_off"]);
        let told = &all[2].message;
        assert!(told.contains("10.0.0.1:1 for 14 s (refused)") && told.ends_with("and 2 more"), "{told}");
        assert!(told.starts_with("no prefill instance is in service"), "{told}");
    }

    #[test]
    fn without_a_decode_instance_no_request_is_answered_and_that_is_an_error() {
        assert_eq!(codes(&[], &Rates::default(), 0), ["no_decode"]);
        let fleet = instances(Kind::Decode, 2);
        fleet[0].failed(Instant::now(), "refused", true);
        assert_eq!(codes(&fleet, &Rates::default(), 3), ["decode_down", "requests_wait"]);
        fleet[1].failed(Instant::now(), "refused", true);
        let now = Instant::now();
        let found = Found { instances: &fleet, rates: &Rates::default(), waiting: 0, running_max: 8, now };
        assert_eq!(problems(&found)[0].severity, mooncake_http::Severity::Error);
    }
}

//! How far this host's clock is from the master's. The pool itself goes by none; log lines of several hosts do.

use super::finding::{Area, Finding, Findings};
use super::pool::Pool;
use crate::terminal::{duration, microseconds};

/// Lines that are so far apart cannot be put in order any more.
const FAR_MS: f64 = 1_000.0;

/// Judges it.
pub fn judge(pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::Clock);
    let told = pool.pages.as_ref().ok().and_then(|pages| Some((pages, pages.status["time_ms"].as_f64()?)));
    let Some((pages, master_ms)) = told else {
        found.skip("clock", "the clocks were not compared: no page of a master says what time it is");
        return found.sorted();
    };
    // The master reads its clock somewhere within the round trip, and in the middle of it as far as is known.
    let half_ms = pages.took.as_secs_f64() * 1e3 / 2.0;
    let ahead_ms = pages.asked_ms + half_ms - master_ms;
    let apart = match ahead_ms.abs() {
        few if few < FAR_MS => microseconds(Some(few * 1e3)),
        many => duration(many / 1e3),
    };
    let (direction, sure) = (if ahead_ms > 0.0 { "ahead of" } else { "behind" }, half_ms.ceil());
    match ahead_ms.abs() > FAR_MS + half_ms {
        true => found.warn(
            "clock",
            format!(
                "this host's clock is {apart} {direction} the master's: the pool does not mind, but log lines and \
                 dashboards of both cannot be compared"
            ),
            "timedatectl set-ntp true on both hosts (or start chronyd), then timedatectl status",
        ),
        false => found.ok("clock", format!("this host's clock and the master's are {apart} apart (within {sure} ms)")),
    }
    found.sorted()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::doctor::broken;
    use crate::doctor::finding::{Severity, told};
    use crate::doctor::pool::NoPages;

    /// What is said where the master's clock says so much when this one says 1,000,000 and the answer takes 400 ms.
    fn judged(master_ms: &Value) -> Vec<Finding> {
        let mut status = broken::status();
        status["time_ms"] = master_ms.clone();
        let mut pool = broken::pool(status);
        pool.pages.as_mut().unwrap().took = Duration::from_millis(400);
        judge(&pool)
    }

    #[test]
    fn half_of_the_round_trip_is_taken_off_and_the_other_half_is_not_held_against_a_clock() {
        for near in [1_000_200, 1_001_300, 999_100] {
            told::is(&judged(&json!(near)), "clock", Severity::Ok, &["within 200 ms"]);
        }
    }

    #[test]
    fn a_clock_that_is_far_off_is_told_with_its_direction() {
        told::is(&judged(&json!(1_120_200)), "clock", Severity::Warning, &["2 min behind the master's", "timedatectl"]);
        told::is(&judged(&json!(995_200)), "clock", Severity::Warning, &["5.0 s ahead of the master's"]);
        told::is(&judged(&json!(998_900)), "clock", Severity::Warning, &["1.3 s ahead of the master's"]);
    }

    #[test]
    fn without_a_time_of_the_masters_nothing_is_compared() {
        told::is(&judged(&Value::Null), "clock", Severity::Skipped, &[]);
        let none = Err(NoPages::NoMaster);
        let pool = super::super::pool::Pool { pages: none, ..broken::pool(broken::status()) };
        told::is(&judge(&pool), "clock", Severity::Skipped, &[]);
    }
}

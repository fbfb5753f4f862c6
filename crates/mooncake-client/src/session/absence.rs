//! How long there has been no connection to the master, and when that is said again: lines in between would drown
//! others.

use std::time::{Duration, Instant};

/// How often it is said that the master is still not there.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// The time without a master.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    /// Since when, and when it was said last.
    known: Option<(Instant, Instant)>,
}

impl Absence {
    /// One more try has failed: how long there has been none, if that is to be said. What is `news` is said at once.
    pub fn goes_on(&mut self, now: Instant, news: bool) -> Option<Duration> {
        let (since, said) = self.known.get_or_insert((now, now));
        let is_due = news || now.duration_since(*said) >= SAY_AGAIN;
        is_due.then(|| {
            *said = now;
            now.duration_since(*since)
        })
    }

    /// It is there again.
    pub fn ends(&mut self) {
        self.known = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_stays_away_is_told_of_once_a_minute_and_at_once_for_another_reason() {
        let (mut absence, began) = (Absence::default(), Instant::now());
        let mut told = Vec::new();
        for second in 0..150 {
            let news = second == 0 || second == 70;
            told.extend(absence.goes_on(began + Duration::from_secs(second), news).map(|away| away.as_secs()));
        }
        assert_eq!(told, [0, 60, 70, 130]);
        absence.ends();
        let again = began + Duration::from_secs(200);
        assert_eq!(absence.goes_on(again, true), Some(Duration::ZERO), "counted from the new loss");
    }
}

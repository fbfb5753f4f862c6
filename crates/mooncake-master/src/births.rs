//! When objects came. An object has no room for a time, but its id tells: ids grow, and the highest one is noted every
//! few seconds.

use std::time::{Duration, Instant};

use mooncake_ids::Rid;

/// Notes that are kept at the most.
const NOTES_MAX: usize = 1_024;

/// Then a note goes without which the ages of its neighbours differ by no more than this part of them. What is left of
/// years is some 600 notes.
const PART: u32 = 32;

/// The highest ids, by time.
#[derive(Debug, Default)]
pub struct Births(Vec<(Rid, Instant)>);

impl Births {
    /// Notes that this is the highest id now.
    pub fn take(&mut self, highest: Rid, now: Instant) {
        if self.0.last().is_some_and(|(noted, _)| *noted >= highest) {
            return;
        }
        if self.0.len() >= NOTES_MAX {
            self.thin(now);
        }
        self.0.push((highest, now));
    }

    /// The first one stays: what is below it came before this master.
    fn thin(&mut self, now: Instant) {
        let all = std::mem::take(&mut self.0);
        for (nth, note) in all.iter().enumerate() {
            let is_needed = match (self.0.last(), all.get(nth + 1)) {
                (Some((_, before)), Some((_, behind))) => *behind - *before > (now - *behind) / PART,
                _ => true,
            };
            if is_needed {
                self.0.push(*note);
            }
        }
    }

    /// How long ago an object of an id came, but for the time between two notes. None: before this master began.
    pub fn age(&self, id: Rid, now: Instant) -> Option<Duration> {
        let above = self.0.partition_point(|(highest, _)| *highest < id);
        if above == 0 && !self.0.is_empty() {
            return None;
        }
        // What no note has yet came a moment ago.
        Some(self.0.get(above).map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rid(counter: u64) -> Rid {
        Rid::new(1, counter)
    }

    #[test]
    fn an_object_is_as_old_as_the_note_behind_which_it_came() {
        let (mut births, began) = (Births::default(), Instant::now());
        assert_eq!(births.age(rid(1), began), Some(Duration::ZERO));
        for (nth, counter) in [10, 20, 20, 40].into_iter().enumerate() {
            births.take(rid(counter), began + nth as u32 * SECOND);
        }
        let now = began + 10 * SECOND;
        let ages = [5, 10, 11, 20, 21, 40, 41].map(|counter| births.age(rid(counter), now).map(|age| age.as_secs()));
        assert_eq!(ages, [None, None, Some(9), Some(9), Some(7), Some(7), Some(0)]);
        assert_eq!(births.age(Rid::new(2, 1), now), Some(Duration::ZERO), "of a later epoch");
    }

    #[test]
    fn however_long_it_runs_little_is_kept_and_what_is_young_is_told_exactly() {
        let (mut births, began) = (Births::default(), Instant::now());
        let last = 100_000_u32;
        (0..=last).for_each(|nth| births.take(rid(u64::from(nth) + 1), began + nth * SECOND));
        assert!(births.0.len() <= NOTES_MAX);
        let now = began + last * SECOND;
        let age = |seconds: u32| births.age(rid(u64::from(last - seconds) + 1), now).unwrap().as_secs();
        assert_eq!((age(0), age(30)), (0, 30));
        for real in [300, 3_000, 30_000, 90_000] {
            let told = age(real);
            assert!(told <= u64::from(real) && told >= u64::from(real - real / 16), "{told} for {real}");
        }
        assert_eq!(births.age(rid(1), now), None);
    }
}

//! What is written to one tier: how often that fills it in a day, and whether more of it is within a budget. A drive
//! wears out by what is written.

use crate::ids::Time;

/// Minutes that are looked back on.
const MINUTES: usize = 60;

const MINUTE_US: u64 = 60_000_000;

/// So much of a budget may be spent at once: what comes of it in an hour.
const DAY_OF_BURSTS: u64 = 24;

/// Below this part of a burst only what was read is worth it.
const SCARCE_PART: u64 = 5;

/// What is left of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    Plenty,
    /// For what was read since it was put.
    Scarce,
    Spent,
}

#[derive(Debug, Clone)]
pub(crate) struct TierWrites {
    /// Bytes of the last hour, by minute.
    minutes: [u64; MINUTES],
    /// The minute of the newest one.
    minute: u64,
    /// Bytes that may be written of a budget, as of a time.
    left: u64,
    as_of: Option<Time>,
}

impl TierWrites {
    pub fn new() -> TierWrites {
        TierWrites { minutes: [0; MINUTES], minute: 0, left: 0, as_of: None }
    }

    /// Something was written, of a budget of so many bytes a day; 0 is none.
    pub fn wrote(&mut self, now: Time, bytes: u64, per_day: u64) {
        self.pass(now);
        self.minutes[(self.minute % MINUTES as u64) as usize] += bytes;
        self.fill(now, per_day);
        self.left = self.left.saturating_sub(bytes);
    }

    /// What is left of that budget besides what is under order. One object is always within what is not spent.
    pub fn budget(&mut self, now: Time, under_order: u64, per_day: u64) -> Budget {
        if per_day == 0 {
            return Budget::Plenty;
        }
        self.fill(now, per_day);
        match self.left.saturating_sub(under_order) {
            0 => Budget::Spent,
            left if left < per_day / DAY_OF_BURSTS / SCARCE_PART => Budget::Scarce,
            _ => Budget::Plenty,
        }
    }

    /// Bytes of the last hour, or of what there was of it.
    pub fn last_hour(&self, now: Time) -> u64 {
        let mut as_of_now = self.clone();
        as_of_now.pass(now);
        as_of_now.minutes.iter().sum()
    }

    fn pass(&mut self, now: Time) {
        let minute = now.0 / MINUTE_US;
        for passed in (self.minute + 1..=minute).rev().take(MINUTES) {
            self.minutes[(passed % MINUTES as u64) as usize] = 0;
        }
        self.minute = self.minute.max(minute);
    }

    fn fill(&mut self, now: Time, per_day: u64) {
        let burst = per_day / DAY_OF_BURSTS;
        let Some(as_of) = self.as_of else {
            (self.left, self.as_of) = (burst, Some(now));
            return;
        };
        let came = u128::from(now.0.saturating_sub(as_of.0)) * u128::from(per_day) / (24 * 3_600 * 1_000_000);
        // What has not come to a byte yet comes later.
        if came > 0 {
            self.left = burst.min(self.left.saturating_add(u64::try_from(came).unwrap_or(u64::MAX)));
            self.as_of = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * MINUTE_US;

    #[test]
    fn an_hour_s_worth_of_a_budget_is_spent_at_once_and_comes_back_with_time() {
        let (mut writes, per_day) = (TierWrites::new(), 24_000);
        assert_eq!(writes.budget(Time(HOUR), 0, per_day), Budget::Plenty);
        writes.wrote(Time(HOUR), 801, per_day);
        assert_eq!(writes.budget(Time(HOUR), 0, per_day), Budget::Scarce, "199 of 1,000 are left");
        writes.wrote(Time(HOUR), 5_000, per_day);
        assert_eq!(writes.budget(Time(HOUR), 0, per_day), Budget::Spent);
        assert_eq!(writes.budget(Time(HOUR + HOUR / 10), 0, per_day), Budget::Scarce, "100 have come");
        assert_eq!(writes.budget(Time(HOUR + HOUR / 10), 100, per_day), Budget::Spent, "and are under order");
        assert_eq!(writes.budget(Time(HOUR + HOUR / 4), 0, per_day), Budget::Plenty);
        writes.wrote(Time(9 * HOUR), 0, per_day);
        assert_eq!(writes.left, 1_000, "no more than an hour's worth is saved");
        assert_eq!(writes.budget(Time(HOUR), 0, 0), Budget::Plenty, "there is none");
    }

    #[test]
    fn a_budget_of_a_few_bytes_a_day_comes_back_too() {
        let mut writes = TierWrites::new();
        writes.wrote(Time(0), 100, 24);
        for minute in 0..70 {
            writes.budget(Time(minute * MINUTE_US), 0, 24);
        }
        assert_eq!(writes.left, 1);
    }

    #[test]
    fn the_last_hour_is_what_is_told() {
        let mut writes = TierWrites::new();
        for minute in 0..90 {
            writes.wrote(Time(minute * MINUTE_US), 10, 0);
        }
        assert_eq!(writes.last_hour(Time(89 * MINUTE_US)), 600);
        assert_eq!(writes.last_hour(Time(119 * MINUTE_US)), 300);
        assert_eq!(writes.last_hour(Time(1_000 * MINUTE_US)), 0);
    }
}

//! The addresses of one peer: which of them a request takes, and which one is left out for a while after it failed. It
//! has no socket, no clock and no lock.

use std::time::{Duration, Instant};

/// What is known of a peer's addresses, by their places in its list.
#[derive(Debug)]
pub struct Addresses {
    known: Vec<Known>,
    pause: Duration,
}

#[derive(Debug, Clone, Default)]
struct Known {
    in_flight: u64,
    /// It failed, and is left out until then.
    out_until: Option<Instant>,
}

impl Addresses {
    /// So many; one that fails is left out for the pause.
    pub fn new(count: usize, pause: Duration) -> Addresses {
        Addresses { known: vec![Known::default(); count], pause }
    }

    /// Those that a large request takes: all that are not left out, or all of them if none is left.
    pub fn in_use(&self, now: Instant) -> Vec<usize> {
        let all = || 0..self.known.len();
        let some: Vec<usize> = all().filter(|nth| !self.is_out(*nth, now)).collect();
        if some.is_empty() { all().collect() } else { some }
    }

    /// The order in which a small request tries them: the one with the fewest bytes in flight first, of equal ones as
    /// they are listed. Those that are left out come last, the one that failed first before the others.
    pub fn in_order(&self, now: Instant) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.known.len()).collect();
        let rank = |nth: &usize| (self.known[*nth].out_until.filter(|until| *until > now), self.known[*nth].in_flight);
        all.sort_by_key(rank);
        all
    }

    fn is_out(&self, nth: usize, now: Instant) -> bool {
        self.known[nth].out_until.is_some_and(|until| until > now)
    }

    /// A request begins to move bytes there.
    pub fn begin(&mut self, nth: usize, bytes: u64) {
        self.known[nth].in_flight += bytes;
    }

    /// It has ended.
    pub fn end(&mut self, nth: usize, bytes: u64) {
        self.known[nth].in_flight -= bytes;
    }

    /// It failed. True if that is news: it was not left out.
    pub fn failed(&mut self, nth: usize, now: Instant) -> bool {
        let is_news = !self.is_out(nth, now);
        self.known[nth].out_until = Some(now + self.pause);
        is_news
    }

    /// It carried a request. True if that is news: it had failed before.
    pub fn answered(&mut self, nth: usize) -> bool {
        self.known[nth].out_until.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    #[test]
    fn a_small_request_takes_the_address_with_the_fewest_bytes_in_flight() {
        let (mut addresses, now) = (Addresses::new(3, PAUSE), Instant::now());
        assert_eq!(addresses.in_order(now), [0, 1, 2]);
        addresses.begin(0, 10);
        addresses.begin(1, 4);
        assert_eq!(addresses.in_order(now), [2, 1, 0]);
        addresses.end(0, 10);
        assert_eq!(addresses.in_order(now), [0, 2, 1]);
    }

    #[test]
    fn an_address_that_failed_is_left_out_for_the_pause_and_used_again_afterwards() {
        let (mut addresses, now) = (Addresses::new(2, PAUSE), Instant::now());
        assert!(addresses.failed(0, now) && !addresses.failed(0, now));
        assert_eq!((addresses.in_use(now), addresses.in_order(now)), (vec![1], vec![1, 0]));
        let later = now + PAUSE;
        assert_eq!((addresses.in_use(later), addresses.in_order(later)), (vec![0, 1], vec![0, 1]));
        assert!(addresses.failed(0, later), "it is tried again, and fails again");
        assert_eq!(addresses.in_use(later), [1]);
        assert!(addresses.answered(0) && !addresses.answered(0));
        assert_eq!(addresses.in_use(later), [0, 1]);
    }

    #[test]
    fn where_all_have_failed_all_are_tried() {
        let (mut addresses, now) = (Addresses::new(2, PAUSE), Instant::now());
        addresses.failed(1, now);
        addresses.failed(0, now + Duration::from_secs(1));
        let soon = now + Duration::from_secs(2);
        assert_eq!((addresses.in_use(soon), addresses.in_order(soon)), (vec![0, 1], vec![1, 0]));
    }
}

//! Counted permits: of a thing there are so many at a time. A holder gives its permit back by dropping it.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are, and how many are taken.
#[derive(Debug)]
pub struct Permits {
    taken: AtomicUsize,
    limit: usize,
}

/// Some of them, taken until it is dropped. `P` is what holds the [`Permits`]: a reference or an `Arc`.
#[derive(Debug)]
pub struct Permit<P: Deref<Target = Permits>> {
    of: P,
    count: usize,
}

impl Permits {
    /// So many.
    pub const fn new(limit: usize) -> Permits {
        Permits { taken: AtomicUsize::new(0), limit }
    }

    fn take(&self, wanted: usize) -> usize {
        let mut count = 0;
        let _ = self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |taken| {
            count = wanted.min(self.limit - taken);
            Some(taken + count)
        });
        count
    }
}

impl<P: Deref<Target = Permits>> Permit<P> {
    /// One, if one is free.
    pub fn one(of: P) -> Option<Permit<P>> {
        Some(Permit::up_to(of, 1)).filter(|permit| permit.count == 1)
    }

    /// As many as are free and no more than wanted; none perhaps.
    pub fn up_to(of: P, wanted: usize) -> Permit<P> {
        let count = of.take(wanted);
        Permit { of, count }
    }

    /// How many these are.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl<P: Deref<Target = Permits>> Drop for Permit<P> {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.count, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn there_are_never_more_out_than_there_are_and_what_is_dropped_is_free_again() {
        let permits = Permits::new(3);
        let two = Permit::up_to(&permits, 2);
        let rest = Permit::up_to(&permits, 2);
        assert_eq!((two.count(), rest.count(), Permit::up_to(&permits, 1).count()), (2, 1, 0));
        assert!(Permit::one(&permits).is_none());
        drop(two);
        let one = Permit::one(&permits);
        assert_eq!((one.as_ref().map(Permit::count), Permit::up_to(&permits, 9).count()), (Some(1), 1));
        drop((one, rest));
        assert_eq!(Permit::up_to(&permits, 9).count(), 3);
    }

    #[test]
    fn a_permit_may_outlive_who_took_it() {
        let permits = Arc::new(Permits::new(1));
        let permit = Permit::one(permits.clone());
        std::thread::spawn(move || drop(permit)).join().unwrap();
        assert!(Permit::one(permits).is_some());
    }
}

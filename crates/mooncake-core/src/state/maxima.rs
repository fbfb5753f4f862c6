//! The largest of many numbers, found at once though each of them keeps changing.

/// A tournament: every number plays the one beside it, the larger ones play on, and the last is the largest.
#[derive(Debug)]
pub(crate) struct Maxima {
    /// Winner of the match whose players are at twice its place and behind it, from place 1 on; the numbers themselves
    /// are the second half.
    rounds: Vec<u32>,
}

impl Default for Maxima {
    fn default() -> Self {
        Maxima { rounds: vec![0; 2] }
    }
}

impl Maxima {
    /// 0 when there is none.
    pub fn largest(&self) -> u32 {
        self.rounds[1]
    }

    /// The number of a place.
    pub fn at(&self, place: usize) -> u32 {
        self.rounds.get(self.places() + place).copied().unwrap_or(0)
    }

    /// Sets the number of a place; one that was never set is 0.
    pub fn set(&mut self, place: usize, number: u32) {
        while place >= self.places() {
            self.grow();
        }
        let mut at = self.places() + place;
        self.rounds[at] = number;
        while at > 1 {
            at /= 2;
            let winner = self.rounds[2 * at].max(self.rounds[2 * at + 1]);
            if std::mem::replace(&mut self.rounds[at], winner) == winner {
                return;
            }
        }
    }

    /// The first place from one on that has a number, which is not 0, or a larger one.
    pub fn next(&self, from: usize, least: u32) -> Option<usize> {
        let places = self.places();
        let mut at = places + from;
        if from >= places {
            return None;
        }
        while self.rounds[at] < least {
            // A player on the right of its matches so far is the last one of those.
            while at % 2 == 1 {
                at /= 2;
                if at <= 1 {
                    return None;
                }
            }
            at += 1;
        }
        while at < places {
            at *= 2;
            at += usize::from(self.rounds[at] < least);
        }
        Some(at - places)
    }

    fn places(&self) -> usize {
        self.rounds.len() / 2
    }

    fn grow(&mut self) {
        let numbers = self.rounds.split_off(self.places());
        self.rounds = vec![0; 4 * numbers.len()];
        for (place, number) in numbers.into_iter().enumerate() {
            self.set(place, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_largest_is_known_after_each_change(
            changes in proptest::collection::vec((0..70usize, 0..50u32), 1..300),
        ) {
            let (mut maxima, mut numbers) = (Maxima::default(), vec![0; 70]);
            prop_assert_eq!(maxima.largest(), 0);
            for (place, number) in changes {
                maxima.set(place, number);
                numbers[place] = number;
                prop_assert_eq!(Some(maxima.largest()), numbers.iter().max().copied());
                for (from, least) in (0..80).zip([1, 49, 25, number.max(1)].into_iter().cycle()) {
                    let next = (from..70).find(|place| numbers[*place] >= least);
                    prop_assert_eq!(maxima.next(from, least), next);
                }
            }
        }
    }
}

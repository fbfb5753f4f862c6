//! The stores of the owner's own process that read or write a segment of it.
//!
//! They need no attachment: their writes pass the owner's gate. Of their views the owner knows nothing, so that
//! they are asked for an epoch as a process is that maps the segment.

use std::collections::BTreeMap;

use crate::epoch::Epoch;

/// The links and views that stores of this process have in a segment of it.
#[derive(Debug)]
pub struct Insiders {
    next: u64,
    /// Latest epoch of the segment's master, that those in it are asked for. A newcomer has nothing older to swear off.
    epoch: Epoch,
    each: BTreeMap<u64, Insider>,
}

#[derive(Debug)]
struct Insider {
    /// Latest epoch that it obeys, and that it is asked for.
    obeyed: Epoch,
    asked: Epoch,
}

impl Insiders {
    /// Those of a segment that is made while its owner obeys an epoch: none yet.
    pub fn new(epoch: Epoch) -> Insiders {
        Insiders { next: 0, epoch, each: BTreeMap::new() }
    }

    /// A newcomer, and the number that it goes by.
    pub fn enter(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.each.insert(number, Insider { obeyed: self.epoch, asked: self.epoch });
        number
    }

    /// One has ended its link and its views.
    pub fn leave(&mut self, number: u64) {
        self.each.remove(&number);
    }

    /// The master that knows the segment is in this epoch. A store that entered before that was known goes by its
    /// number until it is asked; no other master knows anything of the segment by then.
    pub fn mounted(&mut self, epoch: Epoch) {
        self.epoch = self.epoch.or_later(epoch);
    }

    /// Latest epoch that the segment was mounted in, or its owner asked to obey.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Its owner is to obey an epoch: the stores that do not obey it yet are to be asked, and a store that enters from
    /// here on obeys it. True: all of them do.
    pub fn raise(&mut self, asked: Epoch) -> bool {
        self.epoch = self.epoch.or_later(asked);
        let mut all = true;
        for insider in self.each.values_mut().filter(|insider| insider.obeyed.number < asked.number) {
            insider.asked = insider.asked.or_later(asked);
            all = false;
        }
        all
    }

    /// The stores that do not obey an epoch yet.
    pub fn below(&self, asked: Epoch) -> impl Iterator<Item = u64> {
        let below = self.each.iter().filter(move |(_, insider)| insider.obeyed.number < asked.number);
        below.map(|(number, _)| *number)
    }

    /// Whether all of them have taken an epoch.
    pub fn obey(&self, number: u16) -> bool {
        self.each.values().all(|insider| insider.obeyed.number >= number)
    }

    /// One obeys an epoch.
    pub fn confirm(&mut self, number: u64, epoch: Epoch) {
        if let Some(insider) = self.each.get_mut(&number) {
            insider.obeyed = insider.obeyed.or_later(epoch);
        }
    }

    /// See [`crate::Link::is_waited_for_in`].
    pub fn is_waited_for_in(&self, number: u64, epoch: Epoch) -> bool {
        self.each.get(&number).is_some_and(|Insider { obeyed, asked }| {
            epoch.knows_what_is_known_in(*obeyed) || epoch.knows_what_is_known_in(*asked)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A2: Epoch = Epoch { number: 2, id: 7 };
    const B2: Epoch = Epoch { number: 2, id: 8 };

    #[test]
    fn those_who_were_there_are_waited_for_until_each_has_confirmed_or_left() {
        let mut insiders = Insiders::new(Epoch::numbered(1));
        assert!(insiders.raise(Epoch::numbered(1)), "none is there");
        let (confirms, leaves) = (insiders.enter(), insiders.enter());
        assert!(!insiders.raise(A2) && !insiders.obey(2) && insiders.obey(1));
        let late = insiders.enter();
        assert_eq!(insiders.below(A2).collect::<Vec<_>>(), [confirms, leaves]);
        insiders.confirm(confirms, Epoch::numbered(1));
        insiders.confirm(late, A2);
        assert!(!insiders.obey(2), "an older epoch's answer, and that of one who is not waited for");
        insiders.confirm(confirms, A2);
        assert!(!insiders.obey(2) && insiders.below(A2).eq([leaves]));
        insiders.leave(leaves);
        assert!(insiders.obey(2) && insiders.raise(A2));
    }

    #[test]
    fn one_is_waited_for_in_the_epoch_that_it_began_in_or_was_asked_for() {
        let mut insiders = Insiders::new(Epoch::numbered(1));
        insiders.mounted(Epoch { number: 1, id: 5 });
        let early = insiders.enter();
        assert!(insiders.is_waited_for_in(early, Epoch { number: 1, id: 5 }) && !insiders.is_waited_for_in(early, A2));
        insiders.raise(A2);
        assert_eq!(insiders.epoch(), A2);
        let late = insiders.enter();
        for number in [early, late] {
            assert!(insiders.is_waited_for_in(number, A2) && !insiders.is_waited_for_in(number, B2));
        }
        insiders.confirm(early, A2);
        assert!(!insiders.is_waited_for_in(early, Epoch { number: 1, id: 5 }));
        insiders.leave(late);
        assert!(!insiders.is_waited_for_in(late, A2));
    }
}

//! The stores of the owner's own process that read or write a segment of it.
//!
//! They need no attachment: their writes pass the owner's gate. Of their views the owner knows nothing, so that
//! they are asked for an epoch as a process is that maps the segment.

use std::collections::BTreeMap;

use crate::reign::Reign;

/// The links and views that stores of this process have in a segment of it.
#[derive(Debug)]
pub struct Insiders {
    next: u64,
    /// Latest reign of the segment's master, that those in it are asked for. A newcomer has nothing older to swear off.
    reign: Reign,
    each: BTreeMap<u64, Insider>,
}

#[derive(Debug)]
struct Insider {
    /// Latest reign that it obeys, and that it is asked for.
    obeyed: Reign,
    asked: Reign,
}

impl Insiders {
    /// Those of a segment that is made while its owner obeys a reign: none yet.
    pub fn new(reign: Reign) -> Insiders {
        Insiders { next: 0, reign, each: BTreeMap::new() }
    }

    /// A newcomer, and the number that it goes by.
    pub fn enter(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.each.insert(number, Insider { obeyed: self.reign, asked: self.reign });
        number
    }

    /// One has ended its link and its views.
    pub fn leave(&mut self, number: u64) {
        self.each.remove(&number);
    }

    /// The master that knows the segment is in this reign. Those who came before that was known go by its number until
    /// they are asked; no other master knows anything of the segment by then.
    pub fn mounted(&mut self, reign: Reign) {
        self.reign = self.reign.or_later(reign);
    }

    /// Latest reign that the segment was mounted in, or its owner asked to obey.
    pub fn reign(&self) -> Reign {
        self.reign
    }

    /// Its owner is to obey a reign: those who do not yet are to be asked, and whoever enters from here on obeys it.
    /// True: all of them do.
    pub fn raise(&mut self, asked: Reign) -> bool {
        self.reign = self.reign.or_later(asked);
        let mut all = true;
        for insider in self.each.values_mut().filter(|insider| insider.obeyed.epoch < asked.epoch) {
            insider.asked = insider.asked.or_later(asked);
            all = false;
        }
        all
    }

    /// Those who do not obey a reign yet.
    pub fn below(&self, asked: Reign) -> impl Iterator<Item = u64> {
        let below = self.each.iter().filter(move |(_, insider)| insider.obeyed.epoch < asked.epoch);
        below.map(|(number, _)| *number)
    }

    /// Whether all of them have taken an epoch.
    pub fn obey(&self, epoch: u16) -> bool {
        self.each.values().all(|insider| insider.obeyed.epoch >= epoch)
    }

    /// One obeys a reign.
    pub fn confirm(&mut self, number: u64, reign: Reign) {
        if let Some(insider) = self.each.get_mut(&number) {
            insider.obeyed = insider.obeyed.or_later(reign);
        }
    }

    /// See [`crate::Link::is_waited_for_in`].
    pub fn is_waited_for_in(&self, number: u64, reign: Reign) -> bool {
        self.each.get(&number).is_some_and(|Insider { obeyed, asked }| {
            reign.knows_what_is_known_in(*obeyed) || reign.knows_what_is_known_in(*asked)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A2: Reign = Reign { epoch: 2, id: 7 };
    const B2: Reign = Reign { epoch: 2, id: 8 };

    #[test]
    fn those_who_were_there_are_waited_for_until_each_has_confirmed_or_left() {
        let mut insiders = Insiders::new(Reign::numbered(1));
        assert!(insiders.raise(Reign::numbered(1)), "none is there");
        let (confirms, leaves) = (insiders.enter(), insiders.enter());
        assert!(!insiders.raise(A2) && !insiders.obey(2) && insiders.obey(1));
        let late = insiders.enter();
        assert_eq!(insiders.below(A2).collect::<Vec<_>>(), [confirms, leaves]);
        insiders.confirm(confirms, Reign::numbered(1));
        insiders.confirm(late, A2);
        assert!(!insiders.obey(2), "an older reign's answer, and that of one who is not waited for");
        insiders.confirm(confirms, A2);
        assert!(!insiders.obey(2) && insiders.below(A2).eq([leaves]));
        insiders.leave(leaves);
        assert!(insiders.obey(2) && insiders.raise(A2));
    }

    #[test]
    fn one_is_waited_for_in_the_reign_that_it_began_in_or_was_asked_for() {
        let mut insiders = Insiders::new(Reign::numbered(1));
        insiders.mounted(Reign { epoch: 1, id: 5 });
        let early = insiders.enter();
        assert!(insiders.is_waited_for_in(early, Reign { epoch: 1, id: 5 }) && !insiders.is_waited_for_in(early, A2));
        insiders.raise(A2);
        assert_eq!(insiders.reign(), A2);
        let late = insiders.enter();
        for number in [early, late] {
            assert!(insiders.is_waited_for_in(number, A2) && !insiders.is_waited_for_in(number, B2));
        }
        insiders.confirm(early, A2);
        assert!(!insiders.is_waited_for_in(early, Reign { epoch: 1, id: 5 }));
        insiders.leave(late);
        assert!(!insiders.is_waited_for_in(late, A2));
    }
}

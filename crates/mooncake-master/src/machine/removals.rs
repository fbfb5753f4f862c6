//! Removals of very many objects, in slices, so that no other call waits for longer than one of them. A removal takes
//! what was there when it began, and stops when the mutation that asked for it is abandoned.

use mooncake_core::{Candidate, Core, Effects, Origin, Remembered, RemoveAll, Time};
use mooncake_wire::message::{self, reply};

use super::requests::CountedReply;

/// A removal under way.
#[derive(Debug)]
pub struct Removal {
    cursor: RemoveAll,
    /// The mutation that asked for it, if one did.
    origin: Option<Origin>,
}

impl Removal {
    /// The answer to a repeat, or to what is not to be done at all. `None`: it is to be done.
    pub fn answered_before(core: &mut Core, origin: Origin) -> Option<CountedReply> {
        match core.admit(origin) {
            Ok(Some(Remembered::RemoveAll(removed))) => Some(reply(removed)),
            Ok(Some(other)) => Some(CountedReply::bad(format!("this sequence was answered with {other:?}"))),
            Ok(None) => None,
            Err(refused) => Some(CountedReply::refused(&refused, 1)),
        }
    }

    /// Begins now; without `force` it spares what was looked up a moment ago.
    pub fn begin(core: &mut Core, force: bool, origin: Option<Origin>) -> Removal {
        Removal { cursor: RemoveAll::new(core, force), origin }
    }

    /// Removes what is there in the next `budget` slots. True when it is through or abandoned.
    pub fn take_all(&mut self, core: &mut Core, now: Time, budget: usize, effects: &mut Effects) -> bool {
        self.is_abandoned(core) || core.remove_all_slice(now, &mut self.cursor, budget, effects)
    }

    /// Shows what it may take in the next `budget` slots, of about `bytes` bytes of keys. True when there is no more.
    pub fn show(
        &mut self,
        core: &Core,
        now: Time,
        budget: usize,
        bytes: usize,
        out: impl FnMut(Candidate, &[u8]),
    ) -> bool {
        core.remove_candidates(now, &mut self.cursor, budget, bytes, out)
    }

    /// Removes those of the candidates that were chosen and are still there. True when it is abandoned.
    pub fn take(&mut self, core: &mut Core, now: Time, chosen: &[Candidate], effects: &mut Effects) -> bool {
        let abandoned = self.is_abandoned(core);
        if !abandoned {
            core.remove_chosen(now, &mut self.cursor, chosen, effects);
        }
        abandoned
    }

    /// Objects removed so far.
    pub fn removed(&self) -> u64 {
        self.cursor.removed
    }

    /// Looked at under the same lock as what follows: no later request of its client comes between.
    fn is_abandoned(&self, core: &Core) -> bool {
        self.origin.is_some_and(|origin| core.is_abandoned(origin))
    }
}

/// Remembers, for repeats, how many a removal has taken.
pub fn remember(core: &mut Core, origin: Origin, removed: u64, effects: &mut Effects) {
    core.remember(origin, Remembered::RemoveAll(removed), effects);
}

/// The answer to a removal that is through.
pub fn reply(removed: u64) -> CountedReply {
    CountedReply { body: reply::Body::RemoveAll(message::RemoveAllReply { removed }), tally: None }
}

#[cfg(test)]
mod tests {
    use mooncake_core::{Ended, PutConfig, PutStarted, StartOutcome};
    use mooncake_ids::SessionId;

    use super::super::testbed::Testbed;
    use super::*;

    /// A mutation of the session.
    fn origin(session: SessionId, sequence: u64) -> Origin {
        Origin { session, sequence, answered_below: 0 }
    }

    /// Stores an object under "k" and its number.
    fn put(testbed: &mut Testbed, session: SessionId, number: u64) {
        let key = format!("k{number}").into_bytes();
        let Testbed { core, now, effects, .. } = testbed;
        let config = PutConfig::default();
        let start = origin(session, 100 + 2 * number);
        let started = core.put_start(*now, start, &[(&key, 10)], &config, false, effects);
        let Ok(PutStarted::Now(outcomes)) = started else { panic!("{started:?}") };
        let [StartOutcome::Placed(replicas)] = &outcomes[..] else { panic!("{outcomes:?}") };
        let ended = Ended { replicas: [(replicas[0].rid, true)].into_iter().collect(), crc32c: 0, stays: false };
        core.put_end(*now, origin(session, 101 + 2 * number), &[ended], effects).unwrap();
    }

    /// A master with objects 0 to 4, and their owner.
    fn with_objects() -> (Testbed, SessionId) {
        let mut testbed = Testbed::new();
        let session = testbed.owner().session;
        (0..5).for_each(|number| put(&mut testbed, session, number));
        (testbed, session)
    }

    #[test]
    fn it_takes_in_slices_what_was_there_when_it_began_and_a_repeat_is_told_the_same() {
        let (mut testbed, session) = with_objects();
        let nine = origin(session, 9);
        assert!(Removal::answered_before(&mut testbed.core, nine).is_none());
        let mut removal = Removal::begin(&mut testbed.core, true, Some(nine));
        put(&mut testbed, session, 5);
        let mut slices = 1;
        while !removal.take_all(&mut testbed.core, testbed.now, 2, &mut testbed.effects) {
            slices += 1;
        }
        assert!(slices > 2 && testbed.core.peek(b"k5").is_some());
        assert_eq!((removal.removed(), testbed.stats().keys), (5, 1));
        remember(&mut testbed.core, nine, removal.removed(), &mut testbed.effects);
        let again = Removal::answered_before(&mut testbed.core, nine).unwrap();
        assert_eq!(again.body, reply(5).body);
        let reused = Removal::answered_before(&mut testbed.core, origin(session, 100)).unwrap();
        assert!(matches!(reused.body, reply::Body::Refusal(_)), "a put had that number: {reused:?}");
    }

    #[test]
    fn it_stops_when_its_client_gives_it_up() {
        let (mut testbed, session) = with_objects();
        let nine = origin(session, 9);
        let Testbed { core, now, effects, .. } = &mut testbed;
        let mut all = Removal::begin(core, true, Some(nine));
        assert!(!all.take_all(core, *now, 2, effects));
        let mut chosen = Removal::begin(core, true, Some(nine));
        let mut shown = Vec::new();
        chosen.show(core, *now, 100, 1 << 20, |candidate, _| shown.push(candidate));
        core.abandon(session, &[9]);
        assert!(all.take_all(core, *now, 2, effects) && chosen.take(core, *now, &shown, effects));
        assert_eq!((core.stats().keys, shown.len()), (3, 3));
    }

    #[test]
    fn of_what_it_shows_it_takes_what_is_chosen() {
        let (mut testbed, session) = with_objects();
        let nine = origin(session, 9);
        let Testbed { core, now, effects, .. } = &mut testbed;
        let mut removal = Removal::begin(core, true, Some(nine));
        let mut chosen = Vec::new();
        while !removal.show(core, *now, 2, 1 << 20, |candidate, key| {
            if key == b"k1" || key == b"k4" {
                chosen.push(candidate);
            }
        }) {}
        assert!(!removal.take(core, *now, &chosen, effects));
        assert_eq!((removal.removed(), core.stats().keys), (2, 3));
        assert!(core.peek(b"k1").is_none() && core.peek(b"k2").is_some());
    }
}

//! What a put does with what a master and owners say, step by step.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use mooncake_ids::Rid;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_wire::message::Extent;

use super::*;
use crate::machine::ready;
use crate::machine::rounds::CHANGED_KEYS;

/// What a master and owners say, step by step, and what they were told.
#[derive(Default)]
struct Script {
    now: Cell<Duration>,
    session: Cell<u64>,
    /// Another one begins behind each End.
    changes_session: Cell<bool>,
    /// Or that of each reservation.
    session_of_round: RefCell<VecDeque<u64>>,
    /// Answers to reservations: the kind of each key's slot, and how long that takes.
    slots: RefCell<VecDeque<(Vec<put_slot::Kind>, Duration)>>,
    /// What writing a replica gives, by its rid; else its own checksum.
    writes: RefCell<VecDeque<(u64, Result<u32, Unwritten>)>>,
    /// Replicas that were written, or tried.
    written: RefCell<Vec<u64>>,
    /// Answers to Ends; none left: all are committed.
    ends: RefCell<VecDeque<Result<Option<Vec<put_end_reply::Outcome>>, StoreError>>>,
    interrupted: Cell<bool>,
    /// Why the segments of what is placed cannot be had.
    unmet: RefCell<Option<StoreError>>,
    /// Bytes of each key; 0: one.
    key_bytes: usize,
    replicas: u64,
    next_rid: Cell<u64>,
    told: RefCell<Vec<String>>,
}

#[derive(Clone)]
struct Session(u64);

impl ReservationOrigin for Session {
    fn is_of_session(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

const CRC: u32 = 7;

impl Script {
    fn new(slots: &[(&[put_slot::Kind], u64)]) -> Script {
        let slots = slots.iter().map(|(kinds, ms)| (kinds.to_vec(), Duration::from_millis(*ms))).collect();
        Script { slots: RefCell::new(slots), replicas: 1, next_rid: Cell::new(2), ..Script::default() }
    }

    fn say(&self, text: String) {
        self.told.borrow_mut().push(text);
    }

    fn put(&self, keys: usize) -> Vec<Result<PutOutcome, StoreError>> {
        self.put_with(&vec![1024; keys], Duration::from_secs(1))
    }

    fn put_with(&self, sizes: &[u64], timeout: Duration) -> Vec<Result<PutOutcome, StoreError>> {
        ready(put(self, sizes, sizes.iter().map(|_| None).collect(), timeout))
    }

    fn reserved(&self) -> Vec<String> {
        self.told().into_iter().filter(|told| told.starts_with("reserve")).collect()
    }

    fn told(&self) -> Vec<String> {
        self.told.take()
    }
}

fn replica(rid: Rid) -> Replica {
    Replica { rid: rid.0, extents: vec![Extent::default()] }
}

fn words(rids: &[Rid]) -> Vec<u64> {
    rids.iter().map(|rid| rid.0).collect()
}

impl PutDriver for Script {
    type ReservationOrigin = Session;

    fn now(&self) -> Duration {
        self.now.get()
    }

    fn key_bytes(&self, _: usize) -> usize {
        self.key_bytes.max(1)
    }

    fn replicas(&self) -> usize {
        self.replicas as usize
    }

    fn is_current(&self, origin: &Session) -> bool {
        origin.0 == self.session.get()
    }

    async fn reserve(
        &self,
        indices: &[usize],
        wait: bool,
        first_rid: Rid,
    ) -> Result<(Vec<PutSlot>, Session), StoreError> {
        self.say(format!("reserve {indices:?} wait {wait} first {}", first_rid.0));
        if let Some(session) = self.session_of_round.borrow_mut().pop_front() {
            self.session.set(session);
        }
        let Some((kinds, takes)) = self.slots.borrow_mut().pop_front() else { return Err(Cause::Closed.into()) };
        self.now.set(self.now.get() + takes);
        let full = kinds.iter().position(|kind| *kind == put_slot::Kind::Full);
        let slots = kinds.into_iter().enumerate().map(|(nth, kind)| {
            let count = if kind == put_slot::Kind::Placed { self.replicas } else { 0 };
            let replicas = (0..count).map(|_| replica(Rid(self.next_rid.replace(self.next_rid.get() + 2)))).collect();
            let reason = if full == Some(nth) { "said once".to_owned() } else { String::new() };
            PutSlot { kind: kind.into(), replicas, reason }
        });
        Ok((slots.collect(), Session(self.session.get())))
    }

    async fn meet(&self, _: &Session, _: &[PlacedKey]) -> Result<(), StoreError> {
        self.unmet.take().map_or(Ok(()), Err)
    }

    async fn write_all(&self, _: &Session, placed: &[PlacedKey]) -> (Vec<Result<Written, Unwritten>>, bool) {
        let written = placed.iter().map(|placed| {
            ready(write_key(&placed.slot.replicas, async |replica: &Replica| {
                self.written.borrow_mut().push(replica.rid);
                let mut writes = self.writes.borrow_mut();
                match writes.front() {
                    Some((rid, _)) if *rid == replica.rid => writes.pop_front().unwrap().1,
                    _ => Ok(CRC),
                }
            }))
        });
        (written.collect(), self.interrupted.get())
    }

    async fn end(&self, _: &Session, ended: Vec<Ended>) -> Result<Option<Vec<i32>>, StoreError> {
        let said: Vec<Vec<(u64, bool)>> =
            ended.iter().map(|one| one.replicas.iter().map(|it| (it.rid, it.good)).collect()).collect();
        self.say(format!("end {said:?}"));
        self.session.set(self.session.get() + u64::from(self.changes_session.get()));
        let committed = || Ok(Some(vec![put_end_reply::Outcome::Committed; ended.len()]));
        let outcomes = self.ends.borrow_mut().pop_front().unwrap_or_else(committed)?;
        Ok(outcomes.map(|outcomes| outcomes.into_iter().map(i32::from).collect()))
    }

    async fn abort(&self, _: &Session, rids: Vec<Rid>, settled: bool) {
        self.say(format!("abort {:?} settled {settled}", words(&rids)));
    }

    fn abort_later(&self, _: &Session, rids: Vec<Rid>, settled: bool) {
        if !rids.is_empty() {
            self.say(format!("abort later {:?} settled {settled}", words(&rids)));
        }
    }

    async fn pause(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    fn confused(&self) -> StoreError {
        Cause::Closed.into()
    }
}

use put_end_reply::Outcome::{Committed, Superseded};
use put_slot::Kind::{Busy, Exists, Full, Placed as Given};

fn stored(result: &Result<PutOutcome, StoreError>) -> Option<u32> {
    match result {
        Ok(PutOutcome::Stored { replicas }) => Some(*replicas),
        _ => None,
    }
}

fn broken(settled: bool) -> Unwritten {
    Unwritten { error: Cause::Transfer("broken".into()).into(), final_word: false, passing: false, settled }
}

#[test]
fn what_an_end_says_of_each_is_told_of_that_key() {
    let script = Script::new(&[(&[Given, Exists, Given, Given], 1), (&[Given], 1)]);
    script.ends.borrow_mut().push_back(Ok(Some(vec![Committed, Committed, Superseded])));
    script.ends.borrow_mut().push_back(Ok(Some(vec![Superseded])));
    let results = script.put(4);
    // The one that was superseded is placed anew, and no other.
    assert_eq!(script.told()[2], "reserve [3] wait true first 2");
    assert_eq!([stored(&results[0]), stored(&results[2])], [Some(1), Some(1)]);
    assert!(matches!(&results[1], Ok(PutOutcome::Existed)));
    assert!(results[3].is_err());
}

#[test]
fn a_copy_that_was_not_written_is_ended_as_bad_and_given_up_once_nothing_can_land() {
    for settled in [true, false] {
        let script = Script { replicas: 2, ..Script::new(&[(&[Given], 1)]) };
        script.writes.borrow_mut().push_back((2, Err(broken(settled))));
        assert_eq!(stored(&script.put(1)[0]), Some(1));
        let mut told = vec!["reserve [0] wait true first 0", "end [[(2, false), (4, true)]]"];
        if settled {
            told.push("abort [2] settled true");
        }
        assert_eq!(script.told(), told);
    }
}

#[test]
fn a_put_whose_bytes_may_still_land_is_not_given_up_as_settled() {
    for settled in [true, false] {
        let script = Script { replicas: 2, ..Script::new(&[(&[Given], 1), (&[Given], 1)]) };
        script.writes.borrow_mut().extend([(2, Err(broken(true))), (4, Err(broken(settled)))]);
        assert_eq!(stored(&script.put(1)[0]), Some(2), "it was placed anew");
        assert_eq!(script.told()[1], format!("abort [2, 4] settled {settled}"));
    }
}

#[test]
fn copies_that_differ_are_no_copies_of_one_object() {
    let script = Script { replicas: 2, ..Script::new(&[(&[Given], 1)]) };
    script.writes.borrow_mut().push_back((4, Ok(CRC + 1)));
    assert_eq!(stored(&script.put(1)[0]), Some(1));
    assert_eq!(script.told()[1..], ["end [[(2, true), (4, false)]]", "abort [4] settled true"]);
}

#[test]
fn an_end_without_an_answer_gives_its_placements_up_as_soon_as_the_master_is_there() {
    let script = Script { replicas: 2, ..Script::new(&[(&[Given, Given], 1)]) };
    script.writes.borrow_mut().push_back((4, Err(broken(false))));
    script.ends.borrow_mut().push_back(Err(Cause::Closed.into()));
    assert!(script.put(2).iter().all(Result::is_err));
    assert_eq!(script.told()[2..], ["abort later [6, 8] settled true", "abort later [2, 4] settled false"]);
}

#[test]
fn the_master_spares_what_a_call_has_stored_in_the_same_session_only() {
    for changes in [false, true] {
        let script = Script::new(&[(&[Given, Busy, Busy], 1), (&[Given, Busy], 1), (&[Given], 1)]);
        script.changes_session.set(changes);
        assert!(script.put(3).iter().all(|result| stored(result) == Some(1)));
        let reserved = script.reserved();
        let first = if changes { 0 } else { 2 };
        assert_eq!(reserved[1], format!("reserve [1, 2] wait true first {first}"));
        assert_eq!(reserved[2], format!("reserve [2] wait true first {first}"));
    }
    // The second round came in another session, the third comes in that one.
    let script = Script::new(&[(&[Given, Busy, Busy], 1), (&[Given, Busy], 1), (&[Given], 1)]);
    script.session_of_round.borrow_mut().extend([0, 1, 1]);
    assert!(script.put(3).iter().all(|result| stored(result) == Some(1)));
    assert_eq!(script.told()[4], "reserve [2] wait true first 4");
}

#[test]
fn what_ended_with_its_session_is_placed_anew() {
    let script = Script::new(&[(&[Given], 1), (&[Given], 1)]);
    script.ends.borrow_mut().push_back(Ok(None));
    assert_eq!(stored(&script.put(1)[0]), Some(1));
    assert_eq!(script.told().len(), 4);
}

#[test]
fn an_interrupted_put_stores_nothing() {
    let script = Script::new(&[(&[Given, Busy, Given], 1)]);
    script.interrupted.set(true);
    let results = script.put(3);
    assert!(results.iter().all(|result| matches!(result, Err(error) if matches!(error.cause(), Cause::Interrupted))));
    assert_eq!(script.told()[1..], ["abort [2, 4] settled true"]);
}

#[test]
fn keys_wait_only_while_the_call_holds_nothing_and_no_longer_than_its_timeout() {
    let script = Script::new(&[(&[Busy, Given], 1), (&[Busy], 600), (&[Full], 600)]);
    let results = script.put(2);
    assert_eq!(stored(&results[1]), Some(1));
    assert!(matches!(&results[0], Err(error) if matches!(error.cause(), Cause::Busy { .. })));
    let told = script.told();
    assert_eq!(
        (told[0].as_str(), told[2].as_str()),
        ("reserve [0, 1] wait false first 0", "reserve [0] wait true first 2")
    );
    assert_eq!(told.len(), 3, "a wait without progress was the master's last word");
}

#[test]
fn why_there_is_no_room_is_said_of_every_key_though_the_master_says_it_once() {
    let script = Script::new(&[(&[Full, Busy, Full], 600), (&[Full, Busy, Full], 600)]);
    let results = script.put(3);
    for index in [0, 2] {
        let is_said = matches!(cause(&results[index]), Cause::NoSpace { reason, .. } if reason == "said once");
        assert!(is_said, "{:?}", results[index]);
    }
    assert!(matches!(cause(&results[1]), Cause::Busy { .. }));
}

fn cause(result: &Result<PutOutcome, StoreError>) -> &Cause {
    result.as_ref().expect_err("it is not stored").cause()
}

#[test]
fn no_more_is_reserved_at_a_time_than_may_be_and_what_was_refused_comes_behind_the_rest() {
    let half = ROUND_BYTES / 2;
    let script = Script::new(&[(&[Busy, Given], 1), (&[Given], 1), (&[Given], 1), (&[Given], 1)]);
    let results = script.put_with(&[half, half, 1, 2 * ROUND_BYTES], Duration::from_secs(1));
    assert!(results.iter().all(|result| stored(result) == Some(1)));
    let rounds =
        ["[0, 1] wait false first 0", "[2] wait false first 2", "[3] wait false first 2", "[0] wait true first 2"];
    assert_eq!(script.reserved(), rounds.map(|round| format!("reserve {round}")));

    let script = Script { key_bytes: ROUND_KEY_BYTES / 2, ..Script::new(&[(&[Given, Given], 1), (&[Given], 1)]) };
    assert!(script.put(3).iter().all(|result| stored(result) == Some(1)));
    assert_eq!(script.reserved()[1], "reserve [2] wait false first 2");

    let script = Script::new(&[(&vec![Exists; CHANGED_KEYS], 1), (&[Given], 1)]);
    assert_eq!(script.put(CHANGED_KEYS + 1).len(), CHANGED_KEYS + 1);
    assert_eq!(script.reserved()[1], format!("reserve [{CHANGED_KEYS}] wait false first 0"));

    let half = CHANGED_KEYS / 2;
    let script = Script { replicas: 2, ..Script::new(&[(&vec![Exists; half], 1), (&[Exists], 1)]) };
    assert_eq!(script.put(half + 1).len(), half + 1, "two replicas are as much work as two keys");
    assert_eq!(script.reserved()[1], format!("reserve [{half}] wait false first 0"));
}

#[test]
fn a_key_whose_placements_come_to_nothing_is_given_up_after_some_of_them() {
    let script = Script::new(&[(&[Given][..], 1); ATTEMPTS as usize + 3]);
    script.ends.borrow_mut().extend((0..ATTEMPTS + 3).map(|_| Ok(Some(vec![Superseded]))));
    let results = script.put_with(&[1024], Duration::from_secs(100));
    assert!(matches!(cause(&results[0]), Cause::Superseded { attempts: ATTEMPTS }), "{results:?}");
    assert_eq!(script.reserved().len(), ATTEMPTS as usize);
    let pauses = RETRY_PAUSE * ATTEMPTS;
    assert_eq!(script.now.get(), pauses + Duration::from_millis(u64::from(ATTEMPTS)), "each try after a pause");
}

#[test]
fn only_time_in_which_nothing_gets_on_counts_towards_the_timeout() {
    let busy: Vec<(&[put_slot::Kind], u64)> =
        vec![(&[Given, Busy, Busy, Busy], 600), (&[Given, Busy, Busy], 600), (&[Exists, Busy], 600), (&[Given], 600)];
    let script = Script::new(&busy);
    let results = script.put(4);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    // Nothing gets on where what was placed is not stored.
    let script = Script::new(&[(&[Given], 600), (&[Given], 600), (&[Given], 600)]);
    script.ends.borrow_mut().extend((0..3).map(|_| Ok(Some(vec![Superseded]))));
    assert!(script.put(1)[0].is_err());
    assert_eq!(script.reserved().len(), 2);
    // With a timeout of zero the put does not wait in the master, and a key is not tried again.
    let script = Script::new(&[(&[Busy], 1), (&[Given], 1)]);
    assert!(script.put_with(&[1024], Duration::ZERO)[0].is_err());
    assert_eq!(script.reserved(), ["reserve [0] wait false first 0"]);
}

#[test]
fn placements_whose_segments_are_not_known_are_given_up() {
    let script = Script::new(&[(&[Given, Exists, Given], 1)]);
    script.unmet.replace(Some(Cause::Interrupted.into()));
    let results = script.put(3);
    assert!([0, 2].iter().all(|index| matches!(cause(&results[*index]), Cause::Interrupted)));
    assert!(matches!(&results[1], Ok(PutOutcome::Existed)));
    assert_eq!(script.told()[1..], ["abort [2, 4] settled true"]);
    assert!(script.written.borrow().is_empty());
}

#[test]
fn an_answer_that_does_not_fit_is_no_answer() {
    let script = Script::new(&[(&[Given, Given], 1)]);
    script.ends.borrow_mut().push_back(Ok(Some(vec![Committed])));
    assert!(script.put(2).iter().all(|result| matches!(cause(result), Cause::Closed)));
    assert_eq!(script.told()[2..], ["abort later [2, 4] settled true"]);
    let script = Script::new(&[(&[put_slot::Kind::Unspecified, Given], 1)]);
    let results = script.put(2);
    assert!(matches!(cause(&results[0]), Cause::Closed) && stored(&results[1]) == Some(1));
}

#[test]
fn a_failed_end_fails_its_keys_with_its_own_reason() {
    let script = Script { replicas: 2, ..Script::new(&[(&[Given, Given], 1)]) };
    script.writes.borrow_mut().push_back((4, Err(broken(true))));
    script.ends.borrow_mut().push_back(Err(Cause::Interrupted.into()));
    assert!(script.put(2).iter().all(|result| matches!(cause(result), Cause::Interrupted)));
    // Nothing can land in the replica that failed.
    assert_eq!(script.told()[2..], ["abort later [2, 4, 6, 8] settled true"]);
}

#[test]
fn an_interrupt_ends_the_keys_that_were_not_reserved_yet() {
    let script = Script { key_bytes: ROUND_KEY_BYTES, ..Script::new(&[(&[Given], 1), (&[Given], 1)]) };
    script.interrupted.set(true);
    let results = script.put(3);
    assert!(results.iter().all(|result| matches!(cause(result), Cause::Interrupted)), "{results:?}");
    assert_eq!(script.told(), ["reserve [0] wait false first 0", "abort [2] settled true"]);
}

#[test]
fn nothing_is_copied_from_a_callers_memory_that_has_failed() {
    let script = Script { replicas: 3, ..Script::new(&[(&[Given], 1), (&[Given], 1)]) };
    let gone = Unwritten { final_word: true, ..broken(true) };
    script.writes.borrow_mut().push_back((4, Err(gone)));
    assert!(matches!(cause(&script.put(1)[0]), Cause::Transfer(_)));
    assert_eq!(*script.written.borrow(), [2, 4]);
    assert_eq!(script.told()[1..], ["abort [2, 4, 6] settled true"]);
}

#[test]
fn its_mutant_is_noticed() {
    assert!(is_noticed_by(
        Mutant::UnwrittenCopiesAreGood,
        a_copy_that_was_not_written_is_ended_as_bad_and_given_up_once_nothing_can_land
    ));
}

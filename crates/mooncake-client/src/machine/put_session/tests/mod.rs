mod waiting;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use mooncake_ids::Rid;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_wire::message::{Ended, PutSlot, ReplicaOutcome};

use super::book::REPLICAS_HELD_MAX;
use super::*;
use crate::machine::filling::tests::{combined, sum_of};
use crate::machine::progress::Progress;
use crate::machine::put::{self, Written};
use crate::machine::ready;
use crate::machine::rounds::CHANGED_KEYS;

/// A session of the store.
#[derive(Debug, Clone, PartialEq)]
struct Session(u64);

impl put::ReservationOrigin for Session {
    fn is_of_session(&self, other: &Self) -> bool {
        self == other
    }
}

/// A pool that gives each key what the test says, and one memory for each placement.
struct Pool {
    sessions: RefCell<PutSessions<Session, ()>>,
    progress: RefCell<Progress>,
    /// Kind and number of replicas for the next keys; placed, one replica, behind them.
    slots: RefCell<Vec<(put_slot::Kind, u64)>>,
    next_rid: Cell<u64>,
    /// Replicas that are asked for of each key.
    replicas: Cell<usize>,
    /// Whether each request to reserve was to wait.
    waits: RefCell<Vec<bool>>,
    memory: RefCell<BTreeMap<u64, Vec<u8>>>,
    ended: RefCell<Vec<Ended>>,
    /// Replicas that each request to end named.
    ends: RefCell<Vec<usize>>,
    /// What the next ends are answered, if it is not that all are committed.
    answers: RefCell<Vec<Result<Option<Vec<i32>>, StoreError>>>,
    /// What the next look-ups find for each of their keys, if it is not nothing.
    found: RefCell<Vec<Result<Vec<Rid>, StoreError>>>,
    aborted: RefCell<Vec<(Vec<u64>, bool)>>,
    read_back: RefCell<Vec<u64>>,
    /// A replica is not read back while it is this one.
    unread: Cell<u64>,
    /// The caller interrupts its call while that one is read back.
    interrupts: Cell<bool>,
    now: Cell<Duration>,
    /// A write stands still while this is so.
    is_still: Cell<bool>,
    /// After so many looks the caller has interrupted its call.
    looks_left: Cell<u32>,
    /// The master answers no request to reserve while this is so.
    stands: Cell<bool>,
    /// Replicas whose segments were Gone before their session began.
    lost: RefCell<Vec<u64>>,
    /// Why there is no room.
    why: RefCell<String>,
}

const KEY: &[u8] = b"key";

impl Pool {
    fn new() -> Pool {
        Pool {
            sessions: RefCell::default(),
            progress: RefCell::default(),
            slots: RefCell::default(),
            next_rid: Cell::new(2),
            replicas: Cell::new(1),
            waits: RefCell::default(),
            memory: RefCell::default(),
            ended: RefCell::default(),
            ends: RefCell::default(),
            answers: RefCell::default(),
            found: RefCell::default(),
            aborted: RefCell::default(),
            read_back: RefCell::default(),
            unread: Cell::default(),
            interrupts: Cell::default(),
            now: Cell::default(),
            is_still: Cell::new(false),
            looks_left: Cell::new(u32::MAX),
            stands: Cell::new(false),
            lost: RefCell::default(),
            why: RefCell::new("why".into()),
        }
    }

    /// With a session of the key.
    fn with_session(size: u64, replicas: u64) -> Pool {
        let pool = Pool::new();
        pool.replicas.set(replicas as usize);
        pool.start(&[KEY], size).remove(0).unwrap();
        pool.replicas.set(1);
        pool
    }

    fn start(&self, keys: &[&[u8]], size: u64) -> Vec<Result<(), StoreError>> {
        ready(start(self, keys, &vec![size; keys.len()], keys.iter().map(|_| None).collect()))
    }

    /// The same of a call that pauses.
    fn start_at_last(&self, keys: &[&[u8]], size: u64) -> Vec<Result<(), StoreError>> {
        let sizes = vec![size; keys.len()];
        let mut call = pin!(start(self, keys, &sizes, keys.iter().map(|_| None).collect()));
        loop {
            if let Poll::Ready(started) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return started;
            }
        }
    }

    /// Writes bytes to all replicas, but to those that `fails` knows.
    async fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        fails: impl Fn(u64) -> Option<Unwritten>,
    ) -> Result<(), StoreError> {
        self.write_of(KEY, offset, bytes, fails).await
    }

    async fn write_of(
        &self,
        key: &[u8],
        offset: u64,
        bytes: &[u8],
        fails: impl Fn(u64) -> Option<Unwritten>,
    ) -> Result<(), StoreError> {
        write_part(self, key, (offset, bytes.len() as u64), async |reserved, replica| {
            if let Some(unwritten) = fails(replica.rid) {
                return Err(unwritten);
            }
            while self.is_still.get() {
                self.pause(POLL_INTERVAL).await;
            }
            let mut memory = self.memory.borrow_mut();
            let memory = memory.entry(replica.rid).or_insert_with(|| vec![0; reserved.size as usize]);
            memory[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(sum_of(bytes))
        })
        .await
    }

    fn fill(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        ready(self.write(offset, bytes, |_| None))
    }

    fn end(&self) -> Result<(), StoreError> {
        ready(end(self, &[KEY])).remove(0)
    }

    fn abort(&self) -> Result<(), StoreError> {
        ready(abort(self, &[KEY])).remove(0)
    }
}

fn unwritten(settled: bool) -> Unwritten {
    Unwritten { error: Cause::Transfer("the owner is gone".into()).into(), final_word: false, passing: false, settled }
}

/// Once later.
struct Later(bool);

impl Future for Later {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl PutDriver for Pool {
    type ReservationOrigin = Session;

    fn now(&self) -> Duration {
        self.now.get()
    }

    fn key_bytes(&self, _: usize) -> usize {
        3
    }

    fn replicas(&self) -> usize {
        self.replicas.get()
    }

    fn is_current(&self, _: &Session) -> bool {
        true
    }

    async fn reserve(&self, indices: &[usize], wait: bool, _: Rid) -> Result<(Vec<PutSlot>, Session), StoreError> {
        self.waits.borrow_mut().push(wait);
        while self.stands.get() {
            self.pause(POLL_INTERVAL).await;
        }
        let slot = |_: &usize| {
            let mut slots = self.slots.borrow_mut();
            let (kind, replicas) =
                if slots.is_empty() { (put_slot::Kind::Placed, self.replicas.get() as u64) } else { slots.remove(0) };
            let replicas = if kind == put_slot::Kind::Placed { replicas } else { 0 };
            let replica = |_| {
                self.next_rid.set(self.next_rid.get() + 2);
                Replica { rid: self.next_rid.get() - 2, ..Replica::default() }
            };
            PutSlot {
                kind: kind.into(),
                replicas: (0..replicas).map(replica).collect(),
                reason: self.why.borrow().clone(),
            }
        };
        Ok((indices.iter().map(slot).collect(), Session(1)))
    }

    async fn meet(&self, _: &Session, _: &[PlacedKey]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn write_all(&self, _: &Session, _: &[PlacedKey]) -> (Vec<Result<Written, Unwritten>>, bool) {
        unreachable!("sessions write by parts")
    }

    async fn end(&self, _: &Session, ended: Vec<Ended>) -> Result<Option<Vec<i32>>, StoreError> {
        let committed = vec![put_end_reply::Outcome::Committed.into(); ended.len()];
        self.ends.borrow_mut().push(ended.iter().map(|ended| ended.replicas.len()).sum());
        self.ended.borrow_mut().extend(ended);
        let mut answers = self.answers.borrow_mut();
        if answers.is_empty() { Ok(Some(committed)) } else { answers.remove(0) }
    }

    async fn abort(&self, _: &Session, rids: Vec<Rid>, settled: bool) {
        self.aborted.borrow_mut().push((rids.iter().map(|rid| rid.0).collect(), settled));
    }

    fn abort_later(&self, _: &Session, _: Vec<Rid>, _: bool) {
        unreachable!("sessions leave nothing behind")
    }

    async fn pause(&self, time: Duration) {
        self.now.set(self.now.get() + time);
        Later(false).await;
    }

    fn confused(&self) -> StoreError {
        Cause::Closed.into()
    }
}

impl PutSessionDriver for Pool {
    type MetSegments = ();
    const COMBINE: Combine = combined;

    fn put_sessions(&self) -> impl DerefMut<Target = PutSessions<Session, ()>> {
        RefMut::map(self.sessions.borrow_mut(), |sessions| sessions)
    }

    fn hold(&self, rids: Vec<Rid>) -> Arc<HeldReservations> {
        self.progress.borrow_mut().hold(self.now.get(), rids)
    }

    fn met_segments(&self, _: &Session, _: &[Replica]) {}

    fn is_lost(&self, _: &Reserved<Session, ()>, replica: &Replica) -> bool {
        self.lost.borrow().contains(&replica.rid)
    }

    async fn rids_of(&self, _: &Session, keys: &[&[u8]]) -> Result<Vec<Vec<Rid>>, StoreError> {
        let found = self.found.borrow_mut().pop().unwrap_or(Ok(Vec::new()))?;
        Ok(vec![found; keys.len()])
    }

    fn is_interrupted(&self) -> bool {
        let left = self.looks_left.get();
        self.looks_left.set(left.saturating_sub(u32::from(left < u32::MAX)));
        left == 0
    }

    async fn sum_of(&self, _: &Reserved<Session, ()>, replica: &Replica) -> Result<u32, Unwritten> {
        self.read_back.borrow_mut().push(replica.rid);
        if self.unread.get() == replica.rid && self.interrupts.get() {
            return Err(Unwritten { error: Cause::Interrupted.into(), final_word: true, ..unwritten(true) });
        }
        if self.unread.get() == replica.rid {
            return Err(Unwritten { passing: true, ..unwritten(true) });
        }
        Ok(sum_of(&self.memory.borrow()[&replica.rid]))
    }
}

fn is_over(result: Result<(), StoreError>) -> bool {
    result.is_err_and(|error| matches!(error.cause(), Cause::SessionOver { .. }))
}

/// Why arguments were refused.
fn refusal(result: Result<(), StoreError>) -> String {
    match result.unwrap_err().cause() {
        Cause::InvalidParams(reason) => reason.clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn an_object_of_parts_in_any_order_ends_with_the_checksum_of_the_whole_and_nothing_is_read_back() {
    let pool = Pool::with_session(9, 2);
    for (offset, bytes) in [(6, &b"ghi"[..]), (0, b"abc"), (3, b"def")] {
        pool.fill(offset, bytes).unwrap();
    }
    pool.end().unwrap();
    let outcome = |rid| ReplicaOutcome { rid, good: true };
    let ended = Ended { replicas: vec![outcome(2), outcome(4)], crc32c: sum_of(b"abcdefghi"), stays: true };
    assert_eq!((&*pool.ended.borrow(), pool.read_back.borrow().len()), (&vec![ended], 0));
    assert!(refusal(pool.fill(0, b"z")).contains("no put session"), "it is over with its end");
}

#[test]
fn what_was_written_over_a_part_of_something_is_read_back_and_summed() {
    let pool = Pool::with_session(6, 2);
    pool.fill(0, b"abcdef").unwrap();
    pool.fill(2, b"XY").unwrap();
    pool.end().unwrap();
    assert_eq!((&pool.read_back.borrow()[..], pool.ended.borrow()[0].crc32c), (&[2, 4][..], sum_of(b"abXYef")));
}

#[test]
fn a_byte_that_was_never_written_refuses_its_key_which_may_be_filled_and_ended_then_or_aborted() {
    let pool = Pool::with_session(9, 1);
    pool.fill(0, b"abc").unwrap();
    pool.fill(7, b"hi").unwrap();
    assert!(refusal(pool.end()).starts_with("key \"key\": bytes 3 to 7 of 9 were never written"));
    assert!(pool.ended.borrow().is_empty());
    pool.fill(3, b"defg").unwrap();
    pool.end().unwrap();
    pool.start(&[KEY], 9).remove(0).unwrap();
    refusal(pool.end());
    pool.abort().unwrap();
    assert_eq!(*pool.aborted.borrow(), [(vec![4], true)]);
    assert!(refusal(pool.abort()).contains("no put session"));
}

#[test]
fn an_end_waits_for_writes_that_are_under_way_and_no_other_begins_then() {
    let pool = Pool::with_session(6, 1);
    pool.fill(0, b"abc").unwrap();
    pool.is_still.set(true);
    let (mut write, mut over) = (pin!(pool.write(3, b"def", |_| None)), pin!(pool.write(4, b"E", |_| None)));
    let mut ending = pin!(end(&pool, &[KEY]));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(context).is_pending());
    assert!(over.as_mut().poll(context).is_pending(), "others write that byte");
    for _ in 0..5 {
        assert!(ending.as_mut().poll(context).is_pending(), "what is being written is not known");
    }
    assert!(refusal(ready(pool.write(0, b"x", |_| None))).contains("being ended"));
    pool.is_still.set(false);
    assert!(matches!(write.as_mut().poll(context), Poll::Ready(Ok(()))));
    let Poll::Ready(Err(late)) = over.as_mut().poll(context) else { panic!("it has not begun") };
    assert!(refusal(Err(late)).contains("being ended"));
    let Poll::Ready(ended) = ending.as_mut().poll(context) else { panic!("nothing is under way") };
    ended.into_iter().for_each(|ended| ended.unwrap());
    assert_eq!(pool.ended.borrow()[0].crc32c, sum_of(b"abcdef"));
}

#[test]
fn what_the_master_may_have_heard_of_is_not_written_again_and_may_be_told_once_more() {
    let pool = Pool::with_session(3, 1);
    pool.fill(0, b"abc").unwrap();
    pool.answers.borrow_mut().push(Err(Cause::Transfer("no answer".into()).into()));
    assert!(matches!(pool.end().unwrap_err().cause(), Cause::Transfer(_)));
    assert!(refusal(pool.fill(0, b"x")).contains("say it again"));
    pool.end().unwrap();
    let ended = pool.ended.borrow();
    assert_eq!((ended.len(), &ended[0]), (2, &ended[1]), "the same is told");
}

#[test]
fn a_key_that_is_said_to_be_aborted_is_none_that_an_end_has_made_an_object() {
    use put_end_reply::Outcome::{Committed, Revoked, Superseded};
    let ended_without_an_answer = || {
        let pool = Pool::with_session(3, 2);
        pool.fill(0, b"abc").unwrap();
        pool.answers.borrow_mut().push(Err(Cause::Transfer("no answer".into()).into()));
        pool.end().unwrap_err();
        pool
    };
    let answered = |outcome: put_end_reply::Outcome, found: Vec<Rid>| {
        let pool = ended_without_an_answer();
        pool.answers.borrow_mut().push(Ok(Some(vec![outcome.into()])));
        pool.found.borrow_mut().push(Ok(found));
        let told = pool.abort();
        let asked = &pool.ended.borrow()[1];
        assert!(asked.replicas.iter().all(|outcome| !outcome.good) && asked.replicas.len() == 2);
        assert!(refusal(pool.abort()).contains("no put session"), "it is over");
        (told, pool.aborted.take())
    };
    let (told, aborted) = answered(Revoked, vec![]);
    told.unwrap();
    assert_eq!(aborted, [(vec![2, 4], true)], "it is room at once");
    // The end was carried out, as the master remembers or as the key tells.
    for (outcome, found) in [(Committed, vec![]), (Superseded, vec![Rid(9), Rid(4)])] {
        let (told, aborted) = answered(outcome, found);
        assert!(refusal(told).contains("its end has made the object") && aborted.is_empty());
    }
    assert!(is_over(answered(Superseded, vec![Rid(9)]).0), "something else took it back");
    // As long as there is no telling, its session goes on.
    let pool = ended_without_an_answer();
    pool.answers.borrow_mut().push(Err(Cause::Transfer("no answer".into()).into()));
    assert!(matches!(pool.abort().unwrap_err().cause(), Cause::Transfer(_)));
    pool.end().unwrap();
    // Of the session that an end was sent in nothing is known any more.
    let pool = ended_without_an_answer();
    pool.answers.borrow_mut().push(Ok(None));
    assert!(is_over(pool.abort()));
}

#[test]
fn a_session_that_its_caller_wants_no_more_is_renewed_no_more_though_the_master_cannot_be_told() {
    let no_answer = || Err(Cause::Transfer("no answer".into()).into());
    let renewed = |pool: &Pool, second| pool.progress.borrow_mut().moved(Duration::from_secs(second));
    let pool = Pool::with_session(3, 2);
    pool.fill(0, b"abc").unwrap();
    pool.answers.borrow_mut().extend([no_answer(), no_answer()]);
    pool.end().unwrap_err();
    assert_eq!(renewed(&pool, 60), [Rid(2), Rid(4)], "an end is said again");
    pool.abort().unwrap_err();
    assert_eq!(renewed(&pool, 120), [Rid(0); 0], "it ends by its deadline, if its caller does not come again");
    pool.answers.borrow_mut().push(Ok(Some(vec![put_end_reply::Outcome::Revoked.into()])));
    pool.abort().unwrap();
}

#[test]
fn a_session_that_lapsed_keeps_its_key_from_nobody() {
    let pool = Pool::with_session(3, 1);
    pool.now.set(Duration::from_secs(599));
    assert!(refusal(pool.start(&[KEY], 3).remove(0)).contains("already"));
    pool.now.set(Duration::from_secs(600));
    pool.start(&[KEY], 3).remove(0).unwrap();
    pool.fill(0, b"abc").unwrap();
    pool.end().unwrap();
}

#[test]
fn an_end_without_an_answer_keeps_its_key_from_nobody_once_nothing_renews_it() {
    let no_answer = || Err(Cause::Transfer("no answer".into()).into());
    let ended = || {
        let pool = Pool::with_session(3, 1);
        pool.fill(0, b"abc").unwrap();
        pool.answers.borrow_mut().extend([no_answer(), no_answer()]);
        pool.end().unwrap_err();
        assert!(refusal(pool.start(&[KEY], 3).remove(0)).contains("already"), "it may be said again");
        pool
    };
    let starts = |pool: &Pool| {
        pool.answers.borrow_mut().clear();
        pool.start(&[KEY], 3).remove(0).unwrap();
        pool.fill(0, b"ABC").unwrap();
        pool.end().unwrap();
    };
    let pool = ended();
    pool.abort().unwrap_err();
    starts(&pool);
    let pool = ended();
    pool.now.set(Duration::from_secs(600));
    starts(&pool);
    let pool = ended();
    assert!(pool.sessions.borrow_mut().segment_gone(|_, _| true).is_empty());
    starts(&pool);
    let pool = ended();
    pool.sessions.borrow_mut().session_over(|_| false);
    starts(&pool);
    // What was sent as good is none that was spoilt, whatever became of its segment behind that.
    let pool = ended();
    assert!(pool.sessions.borrow_mut().segment_gone(|_, _| true).is_empty());
    pool.answers.borrow_mut().clear();
    pool.end().unwrap();
    assert!(pool.aborted.borrow().is_empty());
}

#[test]
fn a_session_whose_segments_are_gone_is_over_and_keeps_its_key_and_its_room_from_nobody() {
    let pool = Pool::with_session(3, 2);
    let gone = |rid| pool.sessions.borrow_mut().segment_gone(|_, replica| replica.rid == rid);
    pool.fill(0, b"ab").unwrap();
    assert!(gone(2).is_empty(), "it goes on with the other replica");
    assert!(refusal(pool.start(&[KEY], 3).remove(0)).contains("already"));
    let aborted = gone(4);
    assert_eq!(aborted.iter().map(|aborted| aborted.settled).collect::<Vec<_>>(), [true], "one of another segment");
    assert!(is_over(pool.fill(2, b"c")) && is_over(pool.abort()));
    assert!(refusal(pool.abort()).contains("no put session"), "it is told once");
    // As many as there may be, of which nobody asks again.
    let names: Vec<[u8; 8]> = (0..REPLICAS_HELD_MAX as u64).map(u64::to_le_bytes).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let start_all = || pool.start(&keys, 3).into_iter().filter(Result::is_ok).count();
    assert_eq!(start_all(), REPLICAS_HELD_MAX);
    assert!(matches!(pool.start(&[KEY], 3).remove(0).unwrap_err().cause(), Cause::NoSpace { .. }));
    assert!(pool.sessions.borrow_mut().segment_gone(|_, _| true).is_empty(), "they have reserved nothing elsewhere");
    pool.start(&[KEY], 3).remove(0).unwrap();
    pool.abort().unwrap();
    assert_eq!(start_all(), REPLICAS_HELD_MAX, "of the same keys");
}

#[test]
fn sessions_of_a_store_that_has_a_new_one_with_its_master_are_over_and_so_are_those_that_begin_too_late() {
    let pool = Pool::with_session(3, 1);
    pool.sessions.borrow_mut().session_over(|_| true);
    pool.fill(0, b"ab").unwrap();
    pool.sessions.borrow_mut().session_over(|_| false);
    assert!(is_over(pool.end()));
    pool.lost.borrow_mut().extend([4, 6, 10]);
    pool.replicas.set(2);
    pool.start(&[KEY], 3).remove(0).unwrap();
    assert_eq!(pool.aborted.take(), [(vec![4, 6], true)]);
    assert!(is_over(pool.fill(0, b"abc")));
    pool.start(&[KEY], 3).remove(0).unwrap();
    pool.fill(0, b"abc").unwrap();
    pool.end().unwrap();
    let good: Vec<_> = pool.ended.borrow()[0].replicas.iter().map(|outcome| (outcome.rid, outcome.good)).collect();
    assert_eq!(good, [(8, true), (10, false)]);
}

#[test]
fn a_session_whose_last_segment_goes_while_it_is_ended_is_over() {
    // With a hole: the end is refused, and nothing is left to be filled.
    let pool = Pool::with_session(6, 1);
    pool.is_still.set(true);
    let mut write = pin!(write_part(&pool, KEY, (0, 3), async |_, _| {
        while pool.is_still.get() {
            pool.pause(POLL_INTERVAL).await;
        }
        Err(Unwritten { passing: true, ..unwritten(true) })
    }));
    let mut ending = pin!(end(&pool, &[KEY]));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(context).is_pending() && ending.as_mut().poll(context).is_pending());
    pool.sessions.borrow_mut().segment_gone(|_, _| true);
    pool.is_still.set(false);
    assert!(write.as_mut().poll(context).is_ready());
    let Poll::Ready(ended) = ending.as_mut().poll(context) else { panic!("nothing is under way") };
    assert!(ended.into_iter().all(|ended| ended.is_err()));
    pool.start(&[KEY], 6).remove(0).unwrap();
}

#[test]
fn an_end_that_comes_too_late_is_one_that_was_done_where_its_key_says_so() {
    let late = || Ok(Some(vec![put_end_reply::Outcome::Superseded.into()]));
    for (found, done) in [(vec![Rid(9), Rid(4)], true), (vec![Rid(9)], false), (vec![], false)] {
        let pool = Pool::with_session(3, 2);
        pool.fill(0, b"abc").unwrap();
        pool.answers.borrow_mut().extend([late(), late()]);
        // Where there is no telling it may be ended once more.
        pool.found.borrow_mut().extend([Ok(found), Err(Cause::Transfer("no answer".into()).into())]);
        assert!(matches!(pool.end().unwrap_err().cause(), Cause::Transfer(_)));
        let ended = pool.end();
        assert!(if done { ended.is_ok() } else { is_over(ended) });
        assert!(refusal(pool.end()).contains("no put session") && pool.aborted.borrow().is_empty());
    }
}

#[test]
fn a_copy_that_lacks_a_part_is_ended_as_bad_and_a_key_without_a_good_one_is_over() {
    let pool = Pool::with_session(6, 2);
    pool.fill(0, b"abc").unwrap();
    ready(pool.write(3, b"def", |rid| (rid == 2).then(|| unwritten(true)))).unwrap();
    pool.end().unwrap();
    let outcomes: Vec<bool> = pool.ended.borrow()[0].replicas.iter().map(|outcome| outcome.good).collect();
    assert_eq!((outcomes, &pool.aborted.borrow()[..]), (vec![false, true], &[(vec![2], true)][..]));

    for settled in [true, false] {
        let pool = Pool::with_session(6, 2);
        pool.fill(0, b"abc").unwrap();
        assert!(is_over(ready(pool.write(3, b"def", |_| Some(unwritten(settled))))));
        assert_eq!(*pool.aborted.borrow(), [(vec![2, 4], settled)], "its key is free at once");
        assert!(is_over(pool.fill(0, b"abc")) && is_over(pool.end()));
        assert!(pool.ended.borrow().is_empty());
        pool.start(&[KEY], 6).remove(0).unwrap();
    }
}

#[test]
fn a_copy_that_one_of_two_writes_at_a_time_may_still_touch_is_not_told_as_one_that_nothing_touches() {
    for settled in [[false, true], [true, false], [true, true]] {
        let pool = Pool::with_session(6, 2);
        pool.is_still.set(true);
        let context = &mut Context::from_waker(Waker::noop());
        let mut first = pin!(pool.write(0, b"abc", |rid| (rid == 2).then(|| unwritten(settled[0]))));
        let mut second = pin!(pool.write(3, b"def", |rid| (rid == 2).then(|| unwritten(settled[1]))));
        assert!(first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending());
        pool.is_still.set(false);
        assert!(matches!(first.as_mut().poll(context), Poll::Ready(Ok(()))));
        assert!(matches!(second.as_mut().poll(context), Poll::Ready(Ok(()))));
        pool.end().unwrap();
        let told = if settled == [true, true] { vec![(vec![2], true)] } else { Vec::new() };
        assert_eq!(*pool.aborted.borrow(), told, "its fence has to prove that: {settled:?}");
    }
}

#[test]
fn a_write_that_comes_when_what_was_reserved_has_lapsed_says_so() {
    for (after, lapsed) in [(599, false), (620, true)] {
        let pool = Pool::with_session(3, 1);
        pool.now.set(pool.now.get() + Duration::from_secs(after));
        let error = ready(pool.write(0, b"abc", |_| Some(unwritten(true)))).unwrap_err().to_string();
        assert!(error.contains("after ten minutes") == lapsed && error.contains("the owner is gone"), "{error}");
    }
}

#[test]
fn a_fault_of_the_callers_own_leaves_a_hole_that_it_can_fill() {
    let pool = Pool::with_session(3, 2);
    pool.fill(0, b"abc").unwrap();
    let fault = |settled| Unwritten { error: Cause::Interrupted.into(), final_word: true, passing: false, settled };
    let outcome = ready(pool.write(1, b"BC", |rid| (rid == 4).then(|| fault(true))));
    assert!(matches!(outcome.unwrap_err().cause(), Cause::Interrupted));
    assert!(refusal(pool.end()).contains("bytes 1 to 3 of 3"), "its replicas may differ there");
    pool.fill(1, b"bc").unwrap();
    pool.end().unwrap();
    assert!(pool.ended.borrow()[0].crc32c == sum_of(b"abc") && pool.aborted.borrow().is_empty());
    // Something of it may still land.
    let pool = Pool::with_session(3, 2);
    ready(pool.write(0, b"abc", |rid| (rid == 4).then(|| fault(false)))).unwrap_err();
    assert!(is_over(pool.end()) && *pool.aborted.borrow() == [(vec![2, 4], false)]);
}

#[test]
fn what_passes_ends_no_session_and_is_made_good_by_the_same_once_more() {
    let passing = |settled| Unwritten { passing: true, ..unwritten(settled) };
    let pool = Pool::with_session(6, 2);
    pool.fill(0, b"abc").unwrap();
    // Of one replica nothing can come any more, and the other one is to be written in a moment.
    let outcome = ready(pool.write(3, b"def", |rid| Some(if rid == 2 { unwritten(true) } else { passing(true) })));
    assert!(matches!(outcome.unwrap_err().cause(), Cause::Transfer(_)));
    assert!(refusal(pool.end()).contains("bytes 3 to 6 of 6"));
    ready(pool.write(3, b"def", |rid| (rid == 2).then(|| unwritten(true)))).unwrap();
    pool.fill(1, b"BC").unwrap();
    pool.unread.set(4);
    assert!(matches!(pool.end().unwrap_err().cause(), Cause::Transfer(_)), "it is not known what is there");
    pool.fill(2, b"C").unwrap();
    pool.unread.set(0);
    pool.end().unwrap();
    assert_eq!(pool.ended.borrow()[0].crc32c, sum_of(b"aBCdef"));
    assert_eq!(*pool.aborted.borrow(), [(vec![2], true)]);
    // Something of it may still land.
    let pool = Pool::with_session(3, 1);
    assert!(is_over(ready(pool.write(0, b"abc", |_| Some(passing(false))))));
}

#[test]
fn a_key_has_one_session_and_those_that_get_none_hear_why() {
    use put_slot::Kind::{Busy, Exists, Full, Placed, TooLarge};
    let pool = Pool::with_session(3, 1);
    assert!(refusal(pool.start(&[KEY], 3).remove(0)).contains("a put session already"));
    pool.slots.borrow_mut().extend([(Placed, 1), (Exists, 0), (Busy, 0), (Full, 0), (TooLarge, 0), (Full, 0)]);
    let started = pool.start(&[b"a", b"b", b"c", b"d", b"e", b"a"], 3);
    assert!(started[0].is_ok());
    let causes: Vec<&Cause> = started[1..].iter().map(|started| started.as_ref().unwrap_err().cause()).collect();
    let [Cause::Exists, Cause::Busy { .. }, Cause::NoSpace { .. }, Cause::TooLarge { .. }, twice] = causes[..] else {
        panic!("{causes:?}")
    };
    assert!(matches!(twice, Cause::InvalidParams(_)));
    assert!(matches!(refusal(pool.fill(2, b"ab")), reason if reason.contains("is to have 3 bytes")));
}

#[test]
fn reserving_waits_only_as_long_as_the_call_holds_nothing() {
    let pool = Pool::new();
    pool.slots.borrow_mut().extend(vec![(put_slot::Kind::Full, 0); CHANGED_KEYS]);
    let names: Vec<Vec<u8>> = (0..3 * CHANGED_KEYS).map(|number| number.to_string().into_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let started = pool.start(&keys, 3);
    assert_eq!(*pool.waits.borrow(), [true, true, false]);
    assert_eq!(started.iter().filter(|started| started.is_ok()).count(), 2 * CHANGED_KEYS);
}

#[test]
fn what_a_master_had_no_time_to_make_room_for_is_asked_for_again() {
    use put_slot::Kind::{Full, Placed};
    let pool = Pool::new();
    // One of three, one of the other two, and no more.
    pool.slots.borrow_mut().extend([(Placed, 1), (Full, 0), (Full, 0), (Placed, 1), (Full, 0), (Full, 0)]);
    let started = pool.start(&[b"a", b"b", b"c"], 3);
    assert!(started[0].is_ok() && started[1].is_ok(), "{started:?}");
    assert!(matches!(started[2].as_ref().unwrap_err().cause(), Cause::NoSpace { .. }));
    assert_eq!(*pool.waits.borrow(), [true, false, false]);
}

#[test]
fn memory_that_is_still_being_populated_is_asked_for_again_by_a_call_that_holds_something() {
    use put_slot::Kind::{Full, Placed};
    let pool = Pool::new();
    *pool.why.borrow_mut() = format!("{STILL_POPULATED}; 3 bytes are held");
    pool.slots.borrow_mut().extend([(Placed, 1), (Full, 0)].into_iter().chain([(Full, 0); 100]));
    assert!(pool.start_at_last(&[b"a", b"b"], 3).iter().all(Result::is_ok));
    assert!(pool.waits.borrow()[1..].iter().all(|wait| !wait), "the master parks nothing of it");
    // Without end it is not, nor where something else is the matter.
    for (why, asks) in [(pool.why.take(), 250..=252), ("objects hold it".to_owned(), 2..=2)] {
        pool.waits.borrow_mut().clear();
        *pool.why.borrow_mut() = why;
        pool.slots.borrow_mut().extend([(Placed, 1)].into_iter().chain([(Full, 0); 1_000]));
        let started = pool.start_at_last(&[b"c", b"d"], 3);
        assert!(matches!(started[1].as_ref().unwrap_err().cause(), Cause::NoSpace { .. }));
        assert!(asks.contains(&pool.waits.borrow().len()), "{}", pool.waits.borrow().len());
        pool.slots.borrow_mut().clear();
        ready(abort(&pool, &[b"c"]));
    }
}

#[test]
fn what_was_aborted_is_over_and_a_store_that_closes_gives_all_up() {
    for reply in [Ok(None), Ok(Some(vec![put_end_reply::Outcome::Superseded.into()]))] {
        let pool = Pool::with_session(3, 1);
        pool.fill(0, b"abc").unwrap();
        pool.answers.borrow_mut().push(reply);
        assert!(is_over(pool.end()));
        pool.start(&[KEY], 3).remove(0).unwrap();
        let all = pool.sessions.borrow_mut().close();
        assert!(all.len() == 1 && all[0].settled && all[0].reserved.replicas[0].rid == 4);
        ready(abort_placements(&pool, all));
        assert_eq!(*pool.aborted.borrow(), [(vec![4], true)]);
    }
}

#[test]
fn an_end_or_an_abort_touches_no_session_that_its_key_was_given_since() {
    // Two calls end the same key, and the one that waits for another key hears of it when the key is being filled anew.
    let pool = Pool::with_session(6, 1);
    pool.start(&[b"x"], 3).remove(0).unwrap();
    pool.fill(0, b"abcdef").unwrap();
    let context = &mut Context::from_waker(Waker::noop());
    pool.is_still.set(true);
    let mut late = pin!(pool.write_of(b"x", 0, b"xyz", |_| None));
    assert!(late.as_mut().poll(context).is_pending());
    let mut both = pin!(end(&pool, &[KEY, b"x"]));
    assert!(both.as_mut().poll(context).is_pending(), "something of the other one is being written");
    pool.end().unwrap();
    pool.replicas.set(2);
    pool.start(&[KEY], 6).remove(0).unwrap();
    pool.is_still.set(false);
    ready(pool.write(0, b"ghi", |rid| (rid == 6).then(|| unwritten(true)))).unwrap();
    pool.is_still.set(true);
    let mut part = pin!(pool.write(3, b"jkl", |_| None));
    assert!(part.as_mut().poll(context).is_pending());
    pool.is_still.set(false);
    assert!(matches!(late.as_mut().poll(context), Poll::Ready(Ok(()))));
    let Poll::Ready(ended) = both.as_mut().poll(context) else { panic!("nothing is under way") };
    ended.into_iter().for_each(|ended| ended.unwrap());
    assert_eq!(*pool.aborted.borrow(), [], "a replica of it may be being written");
    assert!(matches!(part.as_mut().poll(context), Poll::Ready(Ok(()))));
    pool.end().unwrap();
    assert_eq!(pool.ended.borrow().last().unwrap().crc32c, sum_of(b"ghijkl"));

    // What waits for a write that ends the session finds another one behind it.
    for ends in [true, false] {
        let pool = Pool::with_session(6, 1);
        pool.is_still.set(true);
        let mut fails = pin!(write_part(&pool, KEY, (0, 6), async |_, _| {
            while pool.is_still.get() {
                pool.pause(POLL_INTERVAL).await;
            }
            Err(unwritten(false))
        }));
        assert!(fails.as_mut().poll(context).is_pending());
        let mut call = pin!(async { if ends { end(&pool, &[KEY]).await } else { abort(&pool, &[KEY]).await } });
        assert!(call.as_mut().poll(context).is_pending());
        pool.is_still.set(false);
        assert!(matches!(fails.as_mut().poll(context), Poll::Ready(Err(_))));
        pool.start(&[KEY], 6).remove(0).unwrap();
        pool.fill(0, b"ghijkl").unwrap();
        let Poll::Ready(outcome) = call.as_mut().poll(context) else { panic!("nothing is under way") };
        assert_eq!(is_over(outcome.into_iter().next().unwrap()), ends);
        assert_eq!((&pool.aborted.borrow()[..], pool.ended.borrow().len()), (&[(vec![2], false)][..], 0));
        pool.end().unwrap();
    }
}

#[test]
fn no_request_names_more_copies_than_keys_of_one_each() {
    let pool = Pool::new();
    pool.replicas.set(3);
    let names: Vec<Vec<u8>> = (0..CHANGED_KEYS).map(|number| number.to_string().into_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for ends in [true, false] {
        pool.waits.borrow_mut().clear();
        assert!(pool.start(&keys, 3).iter().all(Result::is_ok));
        assert_eq!(pool.waits.borrow().len(), 4);
        keys.iter().for_each(|key| ready(pool.write_of(key, 0, b"abc", |_| None)).unwrap());
        let outcomes = if ends { ready(end(&pool, &keys)) } else { ready(abort(&pool, &keys)) };
        assert!(outcomes.iter().all(Result::is_ok));
    }
    let aborted: Vec<usize> = pool.aborted.borrow().iter().map(|(rids, _)| rids.len()).collect();
    for asked in [&*pool.ends.borrow(), &aborted] {
        assert!(asked.iter().all(|replicas| *replicas <= CHANGED_KEYS), "{asked:?}");
        assert_eq!(asked.iter().sum::<usize>(), 3 * CHANGED_KEYS);
    }
}

#[test]
fn sessions_hold_no_more_copies_than_the_beat_renews_in_time() {
    let pool = Pool::new();
    pool.replicas.set(8);
    let names: Vec<Vec<u8>> = (0..REPLICAS_HELD_MAX / 8 + 1).map(|number| number.to_string().into_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let last = pool.start(&keys, 3).pop().unwrap();
    assert!(matches!(last.unwrap_err().cause(), Cause::NoSpace { .. }));
    assert!(ready(abort(&pool, &keys[..1])).remove(0).is_ok());
    assert!(pool.start(&keys[REPLICAS_HELD_MAX / 8..], 3).remove(0).is_ok());
    let (mut renewed, began) = (BTreeSet::new(), pool.now.get());
    for beat in 0..40 {
        renewed.extend(pool.progress.borrow_mut().moved(began + Duration::from_millis(500 * beat)));
    }
    assert_eq!(renewed.len(), REPLICAS_HELD_MAX, "within twenty seconds");
}

#[test]
fn calls_that_start_sessions_at_a_time_hold_no_more_copies_together_than_one_may() {
    let pool = Pool::new();
    pool.replicas.set(8);
    let names: Vec<Vec<u8>> = (0..REPLICAS_HELD_MAX / 8 + 1).map(|number| number.to_string().into_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let (first, others) = keys.split_at(REPLICAS_HELD_MAX / 16);
    pool.stands.set(true);
    let (some, rest) = (vec![3; first.len()], vec![3; others.len()]);
    let mut one = pin!(start(&pool, first, &some, first.iter().map(|_| None).collect()));
    let mut other = pin!(start(&pool, others, &rest, others.iter().map(|_| None).collect()));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(one.as_mut().poll(context).is_pending() && other.as_mut().poll(context).is_pending());
    pool.stands.set(false);
    let Poll::Ready(one) = one.as_mut().poll(context) else { panic!("the master answers") };
    let Poll::Ready(mut other) = other.as_mut().poll(context) else { panic!("the master answers") };
    let last = other.pop().unwrap().unwrap_err().to_string();
    assert!(one.iter().chain(&other).all(Result::is_ok), "{last}");
    let own = other.len() * 8;
    assert!(last.contains(&format!(
        "hold {REPLICAS_HELD_MAX} copies of objects, {own} of them by this call, and all may hold"
    )));
    // What came to nothing is given back.
    ready(abort(&pool, first));
    pool.slots.borrow_mut().extend(vec![(put_slot::Kind::Busy, 0); first.len()]);
    assert!(ready(start(&pool, first, &some, first.iter().map(|_| None).collect())).iter().all(Result::is_err));
    assert!(ready(start(&pool, first, &some, first.iter().map(|_| None).collect())).iter().all(Result::is_ok));
}

#[test]
fn copies_that_no_client_is_there_for_refuse_no_key() {
    let pool = Pool::new();
    let names: Vec<Vec<u8>> = (0..REPLICAS_HELD_MAX + 2).map(|number| number.to_string().into_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let (most, beyond) = keys.split_at(REPLICAS_HELD_MAX - 1);
    pool.replicas.set(64);
    pool.slots.borrow_mut().extend(vec![(put_slot::Kind::Placed, 1); most.len()]);
    let started = pool.start(most, 3);
    assert!(started.iter().all(Result::is_ok), "{:?}", started.iter().find(|started| started.is_err()));
    assert!(pool.aborted.borrow().is_empty());
    // The last replica is there for a key that has one, and none that has two may hold it.
    pool.slots.borrow_mut().push((put_slot::Kind::Placed, 2));
    let asked = pool.waits.borrow().len();
    let refused = pool.start(beyond, 3);
    assert_eq!(pool.waits.borrow().len() - asked, 1, "no more keys are asked for");
    assert!(refused.iter().all(|refused| refused.as_ref().unwrap_err().to_string().contains("and all may hold 16384")));
    let aborted: Vec<usize> = pool.aborted.borrow().iter().map(|(rids, _)| rids.len()).collect();
    assert_eq!(aborted, [2]);
    pool.slots.borrow_mut().push((put_slot::Kind::Placed, 1));
    assert_eq!(pool.start(beyond, 3).iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!((pool.sessions.borrow().replicas, pool.sessions.borrow().promised), (REPLICAS_HELD_MAX, 0));
}

#[test]
fn its_mutants_are_noticed() {
    let hole = a_byte_that_was_never_written_refuses_its_key_which_may_be_filled_and_ended_then_or_aborted;
    assert!(is_noticed_by(Mutant::HolesAreEnded, hole));
    let waits = an_end_waits_for_writes_that_are_under_way_and_no_other_begins_then;
    assert!(is_noticed_by(Mutant::EndsDoNotWaitForWrites, waits));
    let sent = what_the_master_may_have_heard_of_is_not_written_again_and_may_be_told_once_more;
    assert!(is_noticed_by(Mutant::SealedSessionsAreWritten, sent));
    let asks = a_key_that_is_said_to_be_aborted_is_none_that_an_end_has_made_an_object;
    assert!(is_noticed_by(Mutant::AbortsDoNotAsk, asks));
    let others = an_end_or_an_abort_touches_no_session_that_its_key_was_given_since;
    assert!(is_noticed_by(Mutant::SessionsGoByName, others));
}

//! Calls that wait: for owners that are away and for writes of others, until their callers have had enough.

use super::*;
use crate::machine::put_session::{ASK_AGAIN, OWNERS_AWAY};

/// Polls a call until it is over.
fn at_last<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    loop {
        if let Poll::Ready(over) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return over;
        }
    }
}

fn was_interrupted(result: Result<(), StoreError>) -> bool {
    matches!(result.unwrap_err().cause(), Cause::Interrupted)
}

#[test]
fn an_end_waits_for_owners_that_are_away_and_may_be_said_again_or_aborted_behind_that() {
    use put_end_reply::Outcome::{Committed, Hidden, Revoked};
    let reply = |outcome: put_end_reply::Outcome| Ok(Some(vec![outcome.into()]));
    let pool = Pool::with_session(3, 1);
    pool.fill(0, b"abc").unwrap();
    pool.answers.borrow_mut().extend([reply(Hidden), reply(Hidden), reply(Committed)]);
    at_last(end(&pool, &[KEY])).remove(0).unwrap();
    assert!(pool.ended.borrow().len() == 3 && pool.ended.borrow().iter().all(|ended| ended.stays));
    assert!(refusal(pool.end()).contains("no put session") && pool.aborted.borrow().is_empty());
    for is_aborted in [false, true] {
        pool.start(&[KEY], 3).remove(0).unwrap();
        pool.fill(0, b"abc").unwrap();
        let began = pool.now.get();
        pool.answers.borrow_mut().extend(std::iter::repeat_with(|| reply(Hidden)).take(1_000));
        let error = at_last(end(&pool, &[KEY])).remove(0).unwrap_err();
        assert!(matches!(error.cause(), Cause::TransferTimeout(why) if why.contains("away")), "{error}");
        let waited = pool.now.get() - began;
        assert!(waited > OWNERS_AWAY && waited < OWNERS_AWAY + 2 * ASK_AGAIN, "{waited:?}");
        assert!(refusal(pool.fill(0, b"abc")).contains("has come to nothing yet"), "what was sent is not changed");
        pool.answers.borrow_mut().clear();
        pool.answers.borrow_mut().push(reply(if is_aborted { Revoked } else { Committed }));
        if is_aborted { pool.abort() } else { pool.end() }.unwrap();
    }
}

#[test]
fn a_call_that_waits_for_others_ends_when_its_caller_interrupts_it() {
    let pool = Pool::with_session(6, 1);
    let context = &mut Context::from_waker(Waker::noop());
    pool.fill(0, b"abcdef").unwrap();
    pool.is_still.set(true);
    let mut write = pin!(pool.write(0, b"abc", |_| None));
    assert!(write.as_mut().poll(context).is_pending());
    pool.looks_left.set(3);
    assert!(was_interrupted(at_last(pool.write(2, b"cd", |_| None))), "a write of some of the same bytes");
    pool.looks_left.set(3);
    assert!(was_interrupted(at_last(end(&pool, &[KEY])).remove(0)));
    pool.looks_left.set(3);
    at_last(abort(&pool, &[KEY])).remove(0).unwrap();
    assert_eq!(*pool.aborted.borrow(), [(vec![2], false)], "something of it may still land: a fence proves the end");
    // An end whose owners are away is not told what came of it.
    pool.is_still.set(false);
    pool.looks_left.set(u32::MAX);
    assert!(at_last(write).is_err());
    pool.start(&[KEY], 3).remove(0).unwrap();
    pool.fill(0, b"abc").unwrap();
    pool.answers.borrow_mut().extend([(); 9].map(|()| Ok(Some(vec![put_end_reply::Outcome::Hidden.into()]))));
    pool.looks_left.set(3);
    assert!(was_interrupted(at_last(end(&pool, &[KEY])).remove(0)));
    assert!(pool.answers.borrow().len() > 4, "it asks no more");
}

#[test]
fn an_end_that_is_interrupted_while_it_reads_back_loses_nothing() {
    for unread in [2, 4] {
        let pool = Pool::with_session(6, 2);
        pool.fill(0, b"abcd").unwrap();
        pool.fill(2, b"CDEF").unwrap();
        pool.unread.set(unread);
        pool.interrupts.set(true);
        assert!(matches!(pool.end().unwrap_err().cause(), Cause::Interrupted));
        pool.unread.set(0);
        pool.interrupts.set(false);
        pool.fill(0, b"AB").unwrap();
        pool.end().unwrap();
        let ended = pool.ended.borrow();
        assert!(ended.len() == 1 && ended[0].crc32c == sum_of(b"ABCDEF"));
        assert!(ended[0].replicas.iter().all(|replica| replica.good) && pool.aborted.borrow().is_empty());
    }
}

#[test]
fn an_interrupted_start_asks_for_no_more() {
    let pool = Pool::new();
    let names: Vec<[u8; 8]> = (0..4 * CHANGED_KEYS as u64).map(u64::to_le_bytes).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    pool.looks_left.set(1);
    assert!(pool.start(&keys, 3).into_iter().all(was_interrupted));
    assert_eq!(pool.waits.borrow().len(), 1, "requests");
    assert_eq!(pool.aborted.borrow().iter().map(|(rids, _)| rids.len()).sum::<usize>(), CHANGED_KEYS);
}

#[test]
fn an_interrupted_start_takes_back_what_it_has_begun_and_nothing_else() {
    let pool = Pool::with_session(3, 1);
    pool.looks_left.set(1);
    let started = pool.start(&[b"a", KEY, b"b"], 3);
    let causes: Vec<_> = started.iter().map(|result| result.as_ref().unwrap_err().cause()).collect();
    let interrupted = |at: usize| matches!(causes[at], Cause::Interrupted);
    assert!(interrupted(0) && !interrupted(1) && interrupted(2), "{causes:?}");
    assert_eq!(*pool.aborted.borrow(), [(vec![4, 6], true)]);
    pool.looks_left.set(u32::MAX);
    pool.fill(0, b"abc").unwrap();
    pool.end().unwrap();
    assert!(pool.start(&[b"a", b"b"], 3).iter().all(Result::is_ok));
}

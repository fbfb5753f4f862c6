//! Requests that repeat, come late or are given up, and the replies that are kept for them.

use mooncake_core::{Config, Origin, STEP_OBJECTS};
use mooncake_ids::{Rid, SessionId};

use super::fresh;
use crate::pool::{Pool, REQUEST};

/// Mutations that a client waits for behind others that it has the answers to.
const UNSETTLED: u64 = 4_096;

pub fn late_and_given_up(pool: &mut Pool) {
    // Behind as many that it committed as are remembered of it.
    let new = fresh(pool, 2 * REQUEST as u64);
    for new in new.chunks(REQUEST) {
        pool.put(7, new, "put_start, 512 keys in a full pool");
    }
    let unknown = (0..REQUEST as u64).map(|nth| vec![Rid::new(1, 1 + nth)]).collect();
    pool.end(7, unknown, "put_end, 512 puts that are no more");
    let first = pool.origin(7).sequence;
    let unanswered = Config::default().unanswered_max as u64;
    for _ in 0..unanswered {
        let origin = Origin { answered_below: first, ..pool.origin(7) };
        pool.quietly(|core, now, fx| core.unpin(now, origin, &[], fx)).expect("known");
    }
    let unsettled: Vec<u64> = (first..first + UNSETTLED).collect();
    pool.hold("a client has the answers to all but 4,096 requests", |core, _, _| {
        core.settle_replies(SessionId(7), first + UNSETTLED, &unsettled);
    });
    let abandoned: Vec<u64> = (first + unanswered..first + 2 * unanswered).collect();
    pool.hold("a client gives 1,024 requests up", |core, _, _| core.abandon(SessionId(7), &abandoned));
    let origin = Origin { answered_below: first, sequence: first + UNSETTLED, session: SessionId(7) };
    let refused =
        pool.hold("a request of too many that are not answered", |core, now, fx| core.unpin(now, origin, &[], fx));
    assert!(refused.is_err(), "1,024 are not answered");
    pool.core.settle_replies(SessionId(7), first + 2 * UNSETTLED, &[]);
    pool.tick("tick, 1,024 replies are forgotten");
    while pool.quietly(|core, now, fx| core.background(now, STEP_OBJECTS, fx)) {}
}

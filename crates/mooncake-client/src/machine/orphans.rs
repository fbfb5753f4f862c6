//! Placements that a call has left behind. The client does not know those of a put
//! whose answer never came: it sends the same request, with its sequence, until the
//! master tells what it did. It knows those of a put that it could not end, or
//! abort. Either way it aborts them as soon as it reaches the master, so that no key
//! stays busy and no space stays taken until the reservation's deadline
//! (docs/safety.md, rule 6).

use std::ops::DerefMut;
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;
use mooncake_wire::message::{Abort, PutStartReply, Request, reply, request};

use crate::machine::call::{CallDriver, Session, finish_in, repeat};
use crate::machine::sequences::Sequences;

/// Most puts remembered; beyond it the master's deadline does it.
const ORPHANS_MAX: usize = 256;

/// Pause between two tries to tell a master that does not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What aborting needs of its store.
pub trait OrphanDriver {
    /// Session of the store with a master.
    type Session: Session;

    /// The store's, under their lock.
    fn orphans(&self) -> impl DerefMut<Target = OrphanedPuts<Self::Session>>;

    /// The store's, under their lock.
    fn sequences(&self) -> impl DerefMut<Target = Sequences>;

    /// Whether the store is in this session now.
    fn is_current(&self, session: &Self::Session) -> bool;

    /// Has a worker begin that does [`run`]. False: there is none to be had.
    fn start_worker(&self) -> bool;

    /// A call to the master, from now on, with the timeout of a look-up.
    fn call(&self) -> impl CallDriver<Session = Self::Session>;
}

/// Takes charge of a `PutStart` without an answer.
pub fn add<D: OrphanDriver>(driver: &D, session: D::Session, request: Request) {
    let sequence = request.sequence;
    let mut orphans = driver.orphans();
    match orphans.add(session, request) {
        true => keep_running(driver, &mut orphans),
        // The client asks no more, so the master need not keep the reply.
        false => driver.sequences().answered(sequence),
    }
}

/// Takes charge of placements that the master could not be told to abort, or to end. `settled`: nothing of this
/// client touches any replica of them again.
pub fn abort<D: OrphanDriver>(driver: &D, session: &D::Session, rids: Vec<Rid>, settled: bool) {
    // An earlier session's placements ended with it. In this one their rids may be those of other clients, as numbers
    // begin anew with another log (docs/safety.md, rule 6).
    if rids.is_empty() || !driver.is_current(session) {
        return;
    }
    let mut orphans = driver.orphans();
    if orphans.abort(session.clone(), rids, settled) {
        keep_running(driver, &mut orphans);
    }
}

fn keep_running<D: OrphanDriver>(driver: &D, orphans: &mut OrphanedPuts<D::Session>) {
    // Where no thread is to be had, the next orphan tries again; until then the deadlines of the reservations run.
    if !orphans.running {
        orphans.running = driver.start_worker();
    }
}

/// Aborts what is left behind, until nothing is.
pub async fn run<D: OrphanDriver>(driver: &D) {
    loop {
        // The lock is not held during the call: callers leave more behind meanwhile.
        let next = driver.orphans().first();
        let Some((session, orphan)) = next else { return };
        let call = driver.call();
        match attempt(&call, &session, orphan).await {
            Some(unsent) => {
                let answered = driver.orphans().done(unsent);
                if let Some(sequence) = answered {
                    driver.sequences().answered(sequence);
                }
            }
            None => call.pause(RETRY_PAUSE).await,
        }
    }
}

/// What is left of it. `None`: there is no telling yet.
async fn attempt<D: CallDriver>(call: &D, session: &D::Session, orphan: Orphan) -> Option<Option<Abort>> {
    // The placements end with their session: there is nothing to abort in another one (docs/safety.md, rule 6).
    if call.is_stopped() || !call.is_current(session) {
        return Some(None);
    }
    match orphan {
        Orphan::Unanswered(mut request) => {
            let outcome = repeat(call, session, &mut request).await?;
            Some(outcome.ok().and_then(|reply| placed(reply.body)))
        }
        Orphan::Known(abort) => {
            let mut request = Request { body: Some(request::Body::Abort(abort)), ..Request::default() };
            match finish_in(call, session, &mut request).await {
                Err(failure) if !failure.is_final() && !mutant!(PlacementsAreAbortedOnce) => None,
                _ => Some(None),
            }
        }
    }
}

/// What is left behind, in the order in which it was. `S`: the session that it belongs to.
#[derive(Debug)]
pub struct OrphanedPuts<S> {
    waiting: Vec<(S, Orphan)>,
    /// A worker is at it.
    pub(crate) running: bool,
}

/// What one put left behind.
#[derive(Debug, Clone)]
pub enum Orphan {
    /// A `PutStart` without an answer.
    Unanswered(Box<Request>),
    /// Placements. What was committed meanwhile stays: the master aborts only what is unfinished.
    Known(Abort),
}

impl<S> Default for OrphanedPuts<S> {
    fn default() -> Self {
        Self { waiting: Vec::new(), running: false }
    }
}

impl<S: Clone> OrphanedPuts<S> {
    /// Takes charge of a `PutStart` without an answer. False: there are too many, and the client does not ask for its
    /// answer again.
    pub fn add(&mut self, session: S, mut request: Request) -> bool {
        if let Some(request::Body::PutStart(start)) = &mut request.body {
            // No caller wants the room any more that it would wait for.
            start.wait = false;
        }
        self.push(session, Orphan::Unanswered(Box::new(request)))
    }

    /// Takes charge of placements. `settled`: nothing of this client touches any replica of them again. False: there
    /// are too many.
    pub fn abort(&mut self, session: S, rids: Vec<Rid>, settled: bool) -> bool {
        let rids = rids.into_iter().map(|rid| rid.0).collect();
        self.push(session, Orphan::Known(Abort { rids, writer_done: settled }))
    }

    fn push(&mut self, session: S, orphan: Orphan) -> bool {
        let has_room = self.waiting.len() < ORPHANS_MAX;
        if has_room {
            self.waiting.push((session, orphan));
        }
        has_room
    }

    /// What the worker is to do now; it ends when that is nothing.
    pub fn first(&mut self) -> Option<(S, Orphan)> {
        let next = self.waiting.first().cloned();
        // In the same hold of the lock: an orphan that comes behind this starts another worker.
        self.running = next.is_some();
        next
    }

    /// The first one is through, but for `unsent`. Gives the sequence that is answered with it, if it has one.
    pub fn done(&mut self, unsent: Option<Abort>) -> Option<u64> {
        let (_, first) = self.waiting.first_mut()?;
        let answered = match first {
            Orphan::Unanswered(request) => Some(request.sequence),
            Orphan::Known(_) => None,
        };
        match unsent {
            Some(abort) => *first = Orphan::Known(abort),
            None => drop(self.waiting.remove(0)),
        }
        answered
    }
}

/// What a put was given. Its writer never learned of it, so it says that nothing of it can land: the owner asks no
/// process that maps the segment (docs/safety.md, rule 7).
pub fn placed(reply: reply::Body) -> Option<Abort> {
    let reply::Body::PutStart(PutStartReply { slots }) = reply else { return None };
    let rids: Vec<u64> = slots.iter().flat_map(|slot| &slot.replicas).map(|replica| replica.rid).collect();
    (!rids.is_empty()).then_some(Abort { rids, writer_done: true })
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::{PutSlot, PutStart, Replica};

    use super::*;

    #[test]
    fn what_a_put_without_an_answer_was_given_is_given_up_once_the_answer_is_here() {
        let mut orphans = OrphanedPuts::default();
        let start = PutStart { wait: true, ..PutStart::default() };
        let request = Request { sequence: 5, body: Some(request::Body::PutStart(start)), ..Request::default() };
        assert!(orphans.add("session", request));
        let Some((_, Orphan::Unanswered(again))) = orphans.first() else { panic!("nothing is asked again") };
        let Some(request::Body::PutStart(start)) = &again.body else { panic!("{again:?}") };
        assert!(!start.wait && again.sequence == 5, "with its sequence, and nothing is waited for");
        let slot = PutSlot { replicas: vec![Replica { rid: 2, extents: Vec::new() }], ..PutSlot::default() };
        let reply = reply::Body::PutStart(PutStartReply { slots: vec![slot] });
        assert_eq!(orphans.done(placed(reply)), Some(5));
        let Some((_, Orphan::Known(abort))) = orphans.first() else { panic!("nothing is aborted") };
        assert_eq!(abort, Abort { rids: vec![2], writer_done: true });
        assert_eq!((orphans.done(None), orphans.first().is_none(), orphans.running), (None, true, false));
    }

    #[test]
    fn beyond_so_many_the_deadline_of_the_master_does_it() {
        let mut orphans = OrphanedPuts::default();
        assert!((0..ORPHANS_MAX as u64).all(|rid| orphans.abort((), vec![Rid(rid)], true)));
        assert!(!orphans.abort((), vec![Rid(9)], true));
        orphans.done(None);
        assert!(orphans.abort((), vec![Rid(9)], true));
    }
}

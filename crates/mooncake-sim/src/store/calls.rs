//! Calls of a store to its master: the product's own, over a connection each.

use std::future::Future;
use std::ops::DerefMut;
use std::pin::pin;
use std::time::Duration;

use mooncake_client::machine::call::{self, Call, CallDriver, Failure, WaitEnded, keep_waiting};
use mooncake_client::machine::orphans::{self, OrphanDriver, OrphanedPuts};
use mooncake_client::machine::pins::Pins;
use mooncake_client::machine::reachability::Reachability;
use mooncake_client::machine::sequences::Sequences;
use mooncake_ids::Rid;
use mooncake_wire::message::{AttachCall, LogPosition, Reply, Request, hello, refusal, reply, request};

use crate::master::{FromMaster, ToMaster};
use crate::store::{Session, Store};
use crate::world::World;

pub use mooncake_client::machine::call::IfUnanswered;

/// For how long a look-up waits.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(500);

/// A wait looks up this often.
const SLICE: Duration = Duration::from_millis(50);

/// A reply, and what its segment numbers mean.
pub type SessionReply = call::SessionReply<Session>;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// None came in time.
    Late,
    /// The store is closed.
    Closed,
    /// The caller wants to stop.
    Interrupted,
    /// This process is a forked child of the store's.
    Forked,
    /// The master refuses.
    Refused(String),
}

impl From<Failure<Broken>> for NoAnswer {
    fn from(failure: Failure<Broken>) -> Self {
        match failure {
            Failure::Refused(refusal) if refusal.kind() == refusal::Kind::BadRequest => {
                NoAnswer::Refused(refusal.reason)
            }
            Failure::Closed => NoAnswer::Closed,
            Failure::Interrupted => NoAnswer::Interrupted,
            Failure::Forked => NoAnswer::Forked,
            Failure::Confused => unreachable!("masters of this world answer with something"),
            _ => NoAnswer::Late,
        }
    }
}

impl Store {
    /// A call that changes nothing.
    pub async fn query(&self, body: request::Body, timeout: Duration) -> Result<SessionReply, NoAnswer> {
        Ok(call::query(&self.caller(timeout), &mut request(body), true).await?)
    }

    /// A call that changes something: made once, however often it is sent.
    pub async fn mutate(
        &self,
        body: request::Body,
        timeout: Duration,
        if_unanswered: IfUnanswered,
    ) -> Result<SessionReply, NoAnswer> {
        Ok(call::mutate(&self.caller(timeout), &mut request(body), if_unanswered).await?)
    }

    /// A mutation that ends something.
    pub async fn finish(&self, body: request::Body, timeout: Duration) -> Result<SessionReply, NoAnswer> {
        Ok(call::finish(&self.caller(timeout), &mut request(body)).await?)
    }

    /// The same of placements of this session. `None`: it is over, and they with it.
    pub async fn finish_in(
        &self,
        session: &Session,
        body: request::Body,
        timeout: Duration,
    ) -> Result<Option<SessionReply>, NoAnswer> {
        Ok(call::finish_in(&self.caller(timeout), session, &mut request(body)).await?)
    }

    /// [`Store::finish`] of what must not be carried out behind the caller's back.
    pub async fn finish_now(&self, body: request::Body, timeout: Duration) -> Result<SessionReply, NoAnswer> {
        Ok(call::finish_now(&self.caller(timeout), &mut request(body)).await?)
    }

    /// Has placements aborted as soon as the master can be told.
    pub fn abort_later(&self, session: &Session, rids: Vec<Rid>, settled: bool) {
        orphans::abort(self, session, rids, settled);
    }

    fn caller(&self, timeout: Duration) -> Caller<'_> {
        let began = self.inner.world.now();
        Caller { store: self, began, deadline: began + timeout }
    }
}

fn request(body: request::Body) -> Request {
    Request { body: Some(body), ..Request::default() }
}

/// A call.
struct Caller<'a> {
    store: &'a Store,
    began: Duration,
    deadline: Duration,
}

/// A connection did not come about, or broke.
struct Broken;

type NoReply = call::NoReply<Session, Broken>;

impl call::Session for Session {
    fn is(&self, other: &Session) -> bool {
        (self.id, self.secret) == (other.id, other.secret)
    }
}

impl CallDriver for Caller<'_> {
    type Session = Session;
    type Broken = Broken;

    fn now(&self) -> Duration {
        self.world().now()
    }

    fn began(&self) -> Duration {
        self.began
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn lookup_timeout(&self) -> Duration {
        LOOKUP_TIMEOUT
    }

    fn is_forked(&self) -> bool {
        self.store.inner.is_forked
    }

    fn is_stopped(&self) -> bool {
        self.store.inner.stopped.get()
    }

    fn is_interrupted(&self) -> bool {
        self.store.is_interrupted()
    }

    fn is_current(&self, session: &Session) -> bool {
        OrphanDriver::is_current(self.store, session)
    }

    fn next_id(&self) -> u64 {
        self.world().number()
    }

    fn reachability(&self) -> &Reachability {
        &self.store.inner.reachability
    }

    fn sequences(&self) -> impl DerefMut<Target = Sequences> {
        self.store.inner.sequences.borrow_mut()
    }

    fn pins(&self) -> impl DerefMut<Target = Pins> {
        self.store.inner.pins.borrow_mut()
    }

    fn position(&self) -> impl DerefMut<Target = LogPosition> {
        self.store.inner.position.borrow_mut()
    }

    async fn exchange(&self, call: &mut Call<'_, Self>) -> Result<(), NoReply> {
        let (store, is_interruptible) = (self.store, call.is_interruptible());
        assert!(!store.inner.is_forked, "seed {}: a forked child calls its parent's master", self.world().seed());
        let session = store.session().ok_or(NoReply::Broken(Broken))?;
        let role = hello::Role::Attach(AttachCall { session: session.id, secret: session.secret });
        let opening = store.open(session.master, role, store.position(), self.deadline + SLICE);
        let opened = self.wait(is_interruptible, opening).await?;
        let ((up, mut down), reply) = opened.ok_or(NoReply::Broken(Broken))?;
        match reply.refusal {
            Some(refusal) if refusal.kind() == refusal::Kind::UnknownSession => return Err(NoReply::Session(session)),
            Some(refusal) => return Err(NoReply::Refused(refusal)),
            None => {}
        }
        call.connected(&session, |_| None)?;
        let ended: Vec<Rid> = match &call.request().body {
            Some(request::Body::PutEnd(end)) => {
                end.ended.iter().flat_map(|ended| ended.replicas.iter().map(|it| Rid(it.rid))).collect()
            }
            Some(request::Body::Abort(abort)) => abort.rids.iter().copied().map(Rid).collect(),
            _ => Vec::new(),
        };
        ended.into_iter().for_each(|rid| store.ledger().assert_ended_in_own_session(session.id, rid));
        up.send(ToMaster::Call(call.request().clone())).map_err(|_| NoReply::Broken(Broken))?;
        if self.world().percent(self.world().loss()) {
            // The connection breaks, before or behind what is asked for.
            let cut = up.cutter();
            self.world().after(self.world().below(3_000), cut);
        }
        let heard = self.wait(is_interruptible, down.next()).await?;
        self.world().stall().await;
        match heard {
            Ok(FromMaster::Reply(heard)) if heard.id == call.request().id => {
                self.assert_granted(call.request(), &heard);
                call.heard(heard, reply.instance[..].try_into().unwrap_or_default())
            }
            _ => Err(NoReply::Broken(Broken)),
        }
    }

    /// Each try has a connection of its own.
    fn drop_idle(&self, _: Option<&Broken>) {}

    fn ping(&self) {
        self.store.ping();
    }

    fn resume_anew(&self) {
        self.store.resume();
    }

    async fn pause(&self, time: Duration) {
        self.world().sleep(time).await;
    }

    async fn another_session(&self, lost: &Session, is_interruptible: bool) {
        while self.is_current(lost) && self.now() < self.deadline && keep_waiting(self, is_interruptible).is_ok() {
            self.pause(Duration::from_millis(20)).await;
        }
    }

    fn leave_behind(&self, session: Session, request: Request) {
        orphans::add(self.store, session, request);
    }

    fn ended(&self, _: &Request) {}
}

impl Caller<'_> {
    fn world(&self) -> &World {
        &self.store.inner.world
    }

    /// Stores ask for nothing that a master refuses, but in a session that is over, or about a segment that it takes
    /// for gone or for another's.
    ///
    /// # Panics
    ///
    /// Where it refuses anything else.
    fn assert_granted(&self, asked: &Request, reply: &Reply) {
        if let Some(reply::Body::Refusal(refusal)) = &reply.body {
            let is_of_segment = matches!(asked.body, Some(request::Body::Mount(_) | request::Body::Unmount(_)));
            let (seed, reason) = (self.world().seed(), &refusal.reason);
            let is_expected = is_of_segment || refusal.kind() == refusal::Kind::UnknownSession;
            assert!(is_expected, "seed {seed}: the master refuses: {reason}: {:?}", asked.body);
        }
    }

    /// Waits for a future as long as the call's timeout lasts.
    async fn wait<F: Future>(&self, is_interruptible: bool, future: F) -> Result<F::Output, NoReply> {
        let mut future = pin!(future);
        loop {
            let slice = self.deadline.min(self.now() + SLICE);
            if let Some(output) = self.world().until(slice, future.as_mut()).await {
                return Ok(output);
            }
            keep_waiting(self, is_interruptible).map_err(NoReply::Ended)?;
            if self.now() >= self.deadline {
                return Err(NoReply::Ended(WaitEnded::Late));
            }
        }
    }
}

impl OrphanDriver for Store {
    type Session = Session;

    fn orphans(&self) -> impl DerefMut<Target = OrphanedPuts<Session>> {
        self.inner.orphans.borrow_mut()
    }

    fn sequences(&self) -> impl DerefMut<Target = Sequences> {
        self.inner.sequences.borrow_mut()
    }

    fn is_current(&self, session: &Session) -> bool {
        self.session().is_some_and(|current| call::Session::is(&current, session))
    }

    fn start_worker(&self) -> bool {
        let store = self.clone();
        self.inner.world.spawn(self.inner.process, async move { orphans::run(&store).await });
        true
    }

    fn call(&self) -> impl CallDriver<Session = Session> {
        self.caller(LOOKUP_TIMEOUT)
    }
}

//! One call to the master on its caller's thread: what [`crate::machine::call`] needs, over the connections of
//! [`Control`].

use std::ops::DerefMut;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mooncake_os::{Deadline, forked, is_short_of_descriptors};
use mooncake_wire::message::{LogPosition, Refusal, Reply, Request, refusal, request};
use mooncake_wire::{FRAME_BYTES_MAX, RequestKind};
use parking_lot::Mutex;

use crate::connection_error::ConnectionError;
use crate::error::{Cause, StoreError};
use crate::machine::call::{self, Call, CallDriver, Failure, Obstacle, WaitEnded, keep_waiting};
use crate::machine::pins::Pins;
use crate::machine::reachability::Reachability;
use crate::machine::sequences::Sequences;
use crate::machine::{orphans, ready};
use crate::session::Session;
use crate::session::connection::Connection;
use crate::session::control::{CONNECTIONS_MAX, Control, LONG_CALLS_MAX, Queued};
use crate::transfer_error::out_of_descriptors;

/// Why a try gave no reply.
pub(crate) type NoReply = call::NoReply<Arc<Session>, ConnectionError>;

/// A reply, and what its segment numbers mean.
pub(crate) type SessionReply = call::SessionReply<Arc<Session>>;

/// Carries out one call on its caller's thread, within its time.
pub(crate) struct Caller<'a> {
    control: &'a Arc<Control>,
    started: Instant,
    deadline: Instant,
    /// What it has waited for connections that other calls had.
    queued: Mutex<Queued>,
}

impl<'a> Caller<'a> {
    /// Of a call that begins now.
    pub fn new(control: &'a Arc<Control>, timeout: Duration) -> Self {
        let started = Instant::now();
        Caller { control, started, deadline: started + timeout, queued: Mutex::default() }
    }

    /// What the caller is told of a failure.
    pub fn error(&self, what: &'static str, failure: Failure<ConnectionError>) -> StoreError {
        let control = self.control;
        let master = || control.masters.to_string();
        match failure {
            Failure::Forked => Cause::Forked.into(),
            Failure::Closed => Cause::Closed.into(),
            Failure::Interrupted => Cause::Interrupted.into(),
            Failure::Over => Cause::Superseded { attempts: 0 }.into(),
            Failure::Confused => control.confused(what),
            Failure::Unreachable => {
                control.unreachable("it has not answered for a while; calls fail at once until it does")
            }
            Failure::NoAnswer { last: Some(Obstacle::Broken(ConnectionError::Io(error))), .. }
                if is_short_of_descriptors(&error) =>
            {
                out_of_descriptors(&format_args!("{what} needs a connection to master {}: {error}", master())).into()
            }
            Failure::NoAnswer { last, waited } => {
                let waited = waited.as_millis();
                control.unreachable(&match last {
                    None => format!("{what} has waited for {waited} ms"),
                    Some(Obstacle::SessionLost) => {
                        format!("{what}: the master does not know this session any more (tried for {waited} ms)")
                    }
                    Some(Obstacle::Broken(error)) => format!("{what}: {error} (tried for {waited} ms)"),
                })
            }
            Failure::Late { waited } => {
                let Queued { time: queued, among_long } = *self.queued.lock();
                // What took too long were other calls of this store.
                if queued * 2 > waited {
                    let (limit, calls) = match among_long {
                        true => (LONG_CALLS_MAX, "puts that wait for room and other long calls"),
                        false => (CONNECTIONS_MAX, "calls to its master"),
                    };
                    return Cause::NoConnection { master: master(), what, limit, calls, queued, waited }.into();
                }
                Cause::CallTimeout { master: master(), what, waited }.into()
            }
            Failure::Refused(Refusal { kind, reason }) => match refusal::Kind::try_from(kind) {
                Ok(refusal::Kind::BadRequest) => Cause::BadRequest { master: master(), what, reason }.into(),
                _ => Cause::Refused { master: master(), what, reason }.into(),
            },
            Failure::TooOld(feature, software) => {
                Cause::MasterTooOld { master: master(), software, feature: feature.name() }.into()
            }
        }
    }
}

impl call::Session for Arc<Session> {
    fn is(&self, other: &Self) -> bool {
        Session::is(self, other)
    }
}

impl CallDriver for Caller<'_> {
    type Session = Arc<Session>;
    type Broken = ConnectionError;

    fn now(&self) -> Duration {
        self.control.now()
    }

    fn began(&self) -> Duration {
        self.control.time(self.started)
    }

    fn deadline(&self) -> Duration {
        self.control.time(self.deadline)
    }

    fn lookup_timeout(&self) -> Duration {
        self.control.lookup_timeout
    }

    fn is_forked(&self) -> bool {
        forked()
    }

    fn is_stopped(&self) -> bool {
        self.control.is_stopped()
    }

    fn is_interrupted(&self) -> bool {
        self.control.is_interrupted()
    }

    fn is_current(&self, session: &Arc<Session>) -> bool {
        self.control.session().is(session)
    }

    fn next_id(&self) -> u64 {
        self.control.next_id()
    }

    fn reachability(&self) -> &Reachability {
        &self.control.reachability
    }

    fn sequences(&self) -> impl DerefMut<Target = Sequences> {
        self.control.sequences.lock()
    }

    fn pins(&self) -> impl DerefMut<Target = Pins> {
        self.control.pins.lock()
    }

    fn position(&self) -> impl DerefMut<Target = LogPosition> {
        self.control.position_lock()
    }

    async fn exchange(&self, call: &mut Call<'_, Self>) -> Result<(), NoReply> {
        let (control, is_interruptible) = (self.control, call.is_interruptible());
        let ended = OnceLock::new();
        let ends = || keep_waiting(self, is_interruptible).map_err(|why| ended.set(why)).is_err();
        let deadline = Deadline { began: self.started, until: self.deadline, interrupted: &ends };
        // A hook only says that the wait is over.
        let why = |lost| match (lost, ended.get()) {
            (NoReply::Ended(WaitEnded::Interrupted), Some(why)) => NoReply::Ended(*why),
            (lost, _) => lost,
        };
        let long = call.request().body.as_ref().is_some_and(may_take_long);
        loop {
            let mut pooled = control.check_out(long, &deadline, &self.queued).map_err(why)?;
            let (session, connection) = &mut pooled;
            if let Err(lost) = call.connected(session, |body| connection.lacks(body)) {
                match lost {
                    NoReply::TooOld(..) => {
                        drop(pooled);
                        control.give_room_back(long);
                    }
                    _ => control.check_in(long, pooled),
                }
                return Err(lost);
            }
            match exchange(connection, call.request(), &deadline) {
                Ok(reply) => {
                    let instance = connection.instance();
                    control.check_in(long, pooled);
                    return call.heard(reply, instance);
                }
                Err(error) => {
                    // Most likely the master has given its place to another client. The same request may go over
                    // another one at once, as after every connection that broke.
                    let goes_on = connection.is_closed_by(&error) && Instant::now() < self.deadline;
                    drop(pooled);
                    control.give_room_back(long);
                    if !goes_on {
                        return Err(why(error.into()));
                    }
                    tracing::debug!(master = %control.masters, %error, "a call connection was closed at rest");
                    control.drop_closed();
                }
            }
        }
    }

    fn drop_idle(&self, broken: Option<&ConnectionError>) {
        if let Some(error) = broken {
            tracing::debug!(master = %self.control.masters, %error, "call connection lost");
        }
        self.control.drop_idle();
    }

    fn ping(&self) {
        self.control.ping();
    }

    fn resume_anew(&self) {
        self.control.resume_anew();
    }

    async fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    async fn another_session(&self, lost: &Arc<Session>, is_interruptible: bool) {
        self.control.wait_while(|control| {
            control.session().is(lost) && Instant::now() < self.deadline && keep_waiting(self, is_interruptible).is_ok()
        });
    }

    fn leave_behind(&self, session: Arc<Session>, request: Request) {
        orphans::add(self.control, session, request);
    }

    fn ended(&self, request: &Request) {
        if let (Some(metrics), Some(body)) = (&self.control.metrics, &request.body) {
            metrics.asked(RequestKind::of(body), self.started);
        }
    }
}

impl From<ConnectionError> for NoReply {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Interrupted => NoReply::Ended(WaitEnded::Interrupted),
            ConnectionError::Deadline => NoReply::Ended(WaitEnded::Late),
            broken @ (ConnectionError::Io(_) | ConnectionError::Frame(_) | ConnectionError::Wrong(_)) => {
                NoReply::Broken(broken)
            }
        }
    }
}

fn may_take_long(body: &request::Body) -> bool {
    match body {
        request::Body::PutStart(start) => start.wait,
        request::Body::RemoveAll(_) | request::Body::RemoveByRegex(_) => true,
        _ => false,
    }
}

// Every put is here twice: what it gives is large, and moved once less so.
#[inline(always)]
fn exchange(connection: &mut Connection, request: &Request, deadline: &Deadline<'_>) -> Result<Reply, ConnectionError> {
    connection.send(request, deadline)?;
    let reply: Reply = connection.receive(FRAME_BYTES_MAX, deadline)?;
    if reply.id != request.id {
        let confused = std::io::Error::new(std::io::ErrorKind::InvalidData, "answer to another request");
        return Err(confused.into());
    }
    Ok(reply)
}

impl Control {
    /// A call that changes nothing, or that may be made twice.
    pub fn query(
        self: &Arc<Self>,
        what: &'static str,
        body: request::Body,
        timeout: Duration,
    ) -> Result<SessionReply, StoreError> {
        let (caller, mut request) = (Caller::new(self, timeout), request(body));
        ready(call::query(&caller, &mut request, true)).map_err(|failure| caller.error(what, failure))
    }

    /// A query that the caller's interrupt hook does not end, nor hears of: any thread may make it.
    pub fn query_on_any_thread(
        self: &Arc<Self>,
        what: &'static str,
        body: request::Body,
        timeout: Duration,
    ) -> Result<SessionReply, StoreError> {
        let (caller, mut request) = (Caller::new(self, timeout), request(body));
        ready(call::query(&caller, &mut request, false)).map_err(|failure| caller.error(what, failure))
    }

    /// [`call::mutate`].
    pub fn mutate(
        self: &Arc<Self>,
        what: &'static str,
        body: request::Body,
        timeout: Duration,
        if_unanswered: call::IfUnanswered,
    ) -> Result<SessionReply, StoreError> {
        let (caller, mut request) = (Caller::new(self, timeout), request(body));
        ready(call::mutate(&caller, &mut request, if_unanswered)).map_err(|failure| caller.error(what, failure))
    }

    /// [`call::finish`].
    pub fn finish(
        self: &Arc<Self>,
        what: &'static str,
        body: request::Body,
        timeout: Duration,
    ) -> Result<SessionReply, StoreError> {
        let (caller, mut request) = (Caller::new(self, timeout), request(body));
        ready(call::finish(&caller, &mut request)).map_err(|failure| caller.error(what, failure))
    }

    /// [`call::finish_in`].
    pub fn finish_in(
        self: &Arc<Self>,
        session: &Arc<Session>,
        what: &'static str,
        body: request::Body,
        timeout: Duration,
    ) -> Result<Option<SessionReply>, StoreError> {
        let (caller, mut request) = (Caller::new(self, timeout), request(body));
        ready(call::finish_in(&caller, session, &mut request)).map_err(|failure| caller.error(what, failure))
    }

    /// [`call::finish_now`].
    pub fn finish_now(
        self: &Arc<Self>,
        what: &'static str,
        body: request::Body,
        timeout: Duration,
    ) -> Result<SessionReply, StoreError> {
        let (caller, mut request) = (Caller::new(self, timeout), request(body));
        ready(call::finish_now(&caller, &mut request)).map_err(|failure| caller.error(what, failure))
    }
}

fn request(body: request::Body) -> Request {
    Request { body: Some(body), ..Request::default() }
}

//! Calls to the master: a bounded pool of connections, one checked out per
//! call, and what makes a retry safe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::forked;
use mooncake_wire::message::{
    AnchorUp, AttachCall, LogPosition, Refusal, Reply, Request, anchor_up, hello, refusal, reply, request,
};
use mooncake_wire::{Feature, MAX_FRAME, RequestKind};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::bell::Bell;
use crate::connection::{Address, Connection, ConnectionError, Patience, SLICE};
use crate::directory::Numbering;
use crate::error::{Cause, StoreError};
use crate::machine::deaths::Deaths;
use crate::machine::orphans::Orphans;
use crate::machine::parts::Parts;
use crate::machine::pins::Pins;
use crate::machine::position::raise;
use crate::machine::progress::Progress;
use crate::machine::reachability::Reachability;
use crate::machine::sequences::Sequences;
use crate::machine::suspects::Suspects;
use crate::machine::wants::Wants;
use crate::master_address::MasterAddress;
use crate::metrics::Metrics;
use crate::options::{InterruptHook, StoreOptions};
use crate::orphans;
use crate::session::Session;

/// Most call connections of a store; more callers than that wait for one.
const MAX_CONNECTIONS: usize = 64;

/// Most of them for calls that the master may take seconds over, so that the others never wait for these.
const MAX_LONG: usize = 48;

/// Rest between two tries to reach a master that refuses connections.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// A reply that shows the master alive this recently keeps a long call waiting.
const LONG_CALL_SILENCE: Duration = Duration::from_millis(1_200);

/// What becomes of a mutation whose answer never came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// Whatever it did may stay; what it has not done yet, it is not to do behind the calls that follow.
    Stays,
    /// Placements that it may have been given are found out and given up.
    GivesUpPlacements,
    /// Pins that it may have been given are voided.
    VoidsPins,
}

/// A reply, and what its segment numbers mean.
#[derive(Debug)]
pub(crate) struct Answer {
    pub body: reply::Body,
    pub numbering: Numbering,
    /// Session that the call was made in.
    pub session: Arc<Session>,
}

/// One store's side of the control protocol.
pub(crate) struct Control {
    pub masters: MasterAddress,
    pub lookup_timeout: Duration,
    /// Time is counted from here on.
    origin: Instant,
    pub reach: Reachability,
    pub pins: Mutex<Pins>,
    pub progress: Mutex<Progress>,
    pub sequences: Mutex<Sequences>,
    pub bell: Bell,
    pub orphans: Mutex<Orphans<Arc<Session>>>,
    pub suspects: Mutex<Suspects>,
    /// Of readers of this store's memory.
    pub deaths: Mutex<Deaths>,
    /// None: nothing is counted.
    pub metrics: Option<Metrics>,
    interrupted: Option<InterruptHook>,
    session: RwLock<Arc<Session>>,
    /// Notified when `session` changes.
    changed: Condvar,
    changes: Mutex<u64>,
    position: Mutex<LogPosition>,
    next_id: AtomicU64,
    pool: Mutex<Pool>,
    freed: Condvar,
    /// Messages that the anchor is to send.
    up: Mutex<Vec<AnchorUp>>,
    /// What the anchor's last try to come back ran into.
    trouble: Mutex<Option<String>>,
    /// Of the anchor.
    pub wants: Wants,
    stopped: AtomicBool,
}

#[derive(Default)]
struct Pool {
    idle: Vec<(Arc<Session>, Connection)>,
    open: usize,
    /// Lent to calls that may take long.
    long: usize,
}

impl Control {
    pub fn new(
        options: &StoreOptions,
        masters: MasterAddress,
        session: Session,
        position: LogPosition,
    ) -> std::io::Result<Self> {
        Ok(Control {
            masters,
            lookup_timeout: options.lookup_timeout,
            origin: Instant::now(),
            reach: Reachability::default(),
            pins: Mutex::default(),
            progress: Mutex::default(),
            sequences: Mutex::default(),
            bell: Bell::new()?,
            orphans: Mutex::default(),
            suspects: Mutex::default(),
            deaths: Mutex::default(),
            metrics: options.metrics.then(|| Metrics::new(options.cluster_id.clone())),
            interrupted: options.interrupted.clone(),
            session: RwLock::new(Arc::new(session)),
            changed: Condvar::new(),
            changes: Mutex::new(0),
            position: Mutex::new(position),
            next_id: AtomicU64::new(1),
            pool: Mutex::default(),
            freed: Condvar::new(),
            up: Mutex::default(),
            trouble: Mutex::default(),
            wants: Wants::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Since the origin.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// That time since the origin.
    pub fn instant(&self, time: Duration) -> Instant {
        self.origin + time
    }

    // -------------------------------------------------------------- session

    pub fn session(&self) -> Arc<Session> {
        self.session.read().clone()
    }

    /// The anchor has a session, perhaps the same one with another process.
    pub fn set_session(&self, session: Session) {
        *self.session.write() = Arc::new(session);
        self.drop_idle();
        *self.changes.lock() += 1;
        self.changed.notify_all();
        self.reach.pong(self.now());
    }

    pub fn position(&self) -> LogPosition {
        *self.position.lock()
    }

    pub fn note_position(&self, seen: &LogPosition) {
        if raise(&mut self.position.lock(), seen) {
            self.resume_anew();
        }
    }

    // --------------------------------------------------------------- anchor

    /// Hands the anchor a message to send.
    pub fn tell(&self, body: anchor_up::Body) {
        self.up.lock().push(AnchorUp { body: Some(body) });
        self.bell.ring();
    }

    /// Has the anchor decide something. No I/O meanwhile: calls of the store wait for the same locks.
    pub fn decide<R>(&self, decide: impl FnOnce(&mut Parts<'_>) -> R) -> R {
        decide(&mut Parts {
            pins: &mut self.pins.lock(),
            sequences: &mut self.sequences.lock(),
            progress: &mut self.progress.lock(),
            deaths: &mut self.deaths.lock(),
            position: &mut self.position.lock(),
            up: &mut self.up.lock(),
            reach: &self.reach,
            wants: &self.wants,
        })
    }

    /// Has the anchor end the session with its last view.
    pub fn end(&self) {
        self.wants.end();
        self.bell.ring();
    }

    /// Has the anchor ask for a pong now.
    pub fn ping(&self) {
        self.wants.ping();
        self.bell.ring();
    }

    /// Has the anchor give the master a fresh list of what this store holds.
    pub fn resume_anew(&self) {
        self.wants.resume();
        self.bell.ring();
    }

    /// Notes why there is no connection. True if that is news.
    pub fn explain(&self, trouble: Option<&str>) -> bool {
        let mut known = self.trouble.lock();
        let news = known.as_deref() != trouble;
        *known = trouble.map(str::to_owned);
        news
    }

    /// Ends every wait and every later call.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.bell.ring();
        self.changed.notify_all();
        self.freed.notify_all();
        self.drop_idle();
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    // ---------------------------------------------------------------- calls

    /// A call that changes nothing, or that may be made twice.
    pub fn query(&self, what: &'static str, body: request::Body, patience: Duration) -> Result<Answer, StoreError> {
        let request = Request { body: Some(body), ..Request::default() };
        self.call(what, request, patience, Bounds::heeding()).map_err(|failed| failed.error)
    }

    /// A query that the caller's interrupt hook does not end, nor hears of: any thread may make it.
    pub fn query_on_any_thread(
        &self,
        what: &'static str,
        body: request::Body,
        patience: Duration,
    ) -> Result<Answer, StoreError> {
        let request = Request { body: Some(body), ..Request::default() };
        self.call(what, request, patience, Bounds::default()).map_err(|failed| failed.error)
    }

    /// A mutation that ends something: it goes out although the caller wants to stop.
    pub fn finish(&self, what: &'static str, body: request::Body, patience: Duration) -> Result<Answer, StoreError> {
        let sequence = self.sequences.lock().begin();
        let request = Request { sequence, body: Some(body), ..Request::default() };
        let answer = self.call(what, request, patience, Bounds::default());
        self.sequences.lock().answered(sequence);
        answer.map_err(|failed| failed.error)
    }

    /// [`Control::finish`] of placements of this session. `None`: it is over, and they with it. In another one their
    /// rids may be those of somebody else's placements, as numbers begin anew with another log.
    pub fn finish_in(
        &self,
        session: &Session,
        what: &'static str,
        body: request::Body,
        patience: Duration,
    ) -> Result<Option<Answer>, StoreError> {
        let sequence = self.sequences.lock().begin();
        let request = Request { sequence, body: Some(body), ..Request::default() };
        let answer = self.call(what, request, patience, Bounds { session: Some(session), heed: false });
        self.sequences.lock().answered(sequence);
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(failed) if failed.is_over => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    /// [`Control::finish`] of what must not be carried out behind the caller's back: when the call fails it was done
    /// before the next one, or never is.
    pub fn finish_now(
        &self,
        what: &'static str,
        body: request::Body,
        patience: Duration,
    ) -> Result<Answer, StoreError> {
        let sequence = self.sequences.lock().begin();
        let request = Request { sequence, body: Some(body), ..Request::default() };
        let answer = self.call(what, request, patience, Bounds::default());
        match &answer {
            Err(failed) if failed.sent => self.sequences.lock().abandoned(sequence),
            _ => self.sequences.lock().answered(sequence),
        }
        answer.map_err(|failed| failed.error)
    }

    /// A call that changes something: made once, however often it is sent.
    pub fn mutate(
        self: &Arc<Self>,
        what: &'static str,
        body: request::Body,
        patience: Duration,
        abandoned: Abandoned,
    ) -> Result<Answer, StoreError> {
        let sequence = self.sequences.lock().begin();
        let request = Request { sequence, body: Some(body), ..Request::default() };
        match self.call(what, request, patience, Bounds::heeding()) {
            Ok(answer) => {
                if abandoned != Abandoned::VoidsPins || self.pins.lock().may_settle(sequence) {
                    self.sequences.lock().answered(sequence);
                }
                Ok(answer)
            }
            Err(failed) => {
                let failed = *failed;
                match abandoned {
                    Abandoned::GivesUpPlacements if failed.sent => orphans::add(self, failed.session, failed.request),
                    Abandoned::VoidsPins if failed.sent => {
                        self.sequences.lock().abandoned(sequence);
                        self.resume_anew();
                    }
                    Abandoned::Stays if failed.sent => self.sequences.lock().abandoned(sequence),
                    _ => self.sequences.lock().answered(sequence),
                }
                Err(failed.error)
            }
        }
    }

    /// Sends a mutation of this session once more, with the sequence that it had. `None`: there is no telling yet.
    pub fn repeat(
        &self,
        session: &Session,
        request: &Request,
        patience: Duration,
    ) -> Option<Result<Answer, StoreError>> {
        let bounds = Bounds { session: Some(session), heed: false };
        match self.call("a repeated request", request.clone(), patience, bounds) {
            Ok(answer) => Some(Ok(answer)),
            Err(failed) => {
                let is_refused = matches!(failed.error.cause(), Cause::Refused { .. } | Cause::BadRequest { .. });
                (failed.is_over || is_refused).then_some(Err(failed.error))
            }
        }
    }

    fn call(
        &self,
        what: &'static str,
        request: Request,
        patience: Duration,
        bounds: Bounds<'_>,
    ) -> Result<Answer, Box<Failed>> {
        let started = Instant::now();
        let kind = request.body.as_ref().map(RequestKind::of);
        let outcome = self.exchange_until(what, request, started, patience, bounds);
        if let (Some(metrics), Some(kind)) = (&self.metrics, kind) {
            metrics.asked(kind, started);
        }
        outcome
    }

    fn exchange_until(
        &self,
        what: &'static str,
        mut request: Request,
        started: Instant,
        patience: Duration,
        bounds: Bounds<'_>,
    ) -> Result<Answer, Box<Failed>> {
        let deadline = started + patience;
        let mut sent = false;
        let mut is_over = false;
        let mut session = self.session();
        let mut last = String::new();
        let mut asked_anew = false;
        let mut queued = Queued::default();
        let long = request.body.as_ref().is_some_and(may_take_long);
        let error = loop {
            if let Err(error) = self.may_call() {
                break error;
            }
            let check = || self.keep_waiting(started, bounds.heed);
            let patience = Patience { deadline, check: &check };
            request.id = self.next_id.fetch_add(1, Ordering::Relaxed);
            self.sequences.lock().tell(&mut request);
            let outcome = self.checkout(long, &patience, &mut queued).and_then(|(attached, mut connection)| {
                session = attached;
                if !bounds.include(&session) {
                    self.check_in(long, Some((session.clone(), connection)));
                    return Err(CallError::SessionLost);
                }
                if let Some((feature, software)) = request.body.as_ref().and_then(|body| connection.lacks(body)) {
                    self.check_in(long, None);
                    return Err(CallError::TooOld(feature, software));
                }
                sent = true;
                let reply = exchange(&mut connection, &request, &patience);
                let instance = connection.instance();
                self.check_in(long, reply.is_ok().then(|| (session.clone(), connection)));
                reply.map(|reply| (reply, instance))
            });
            match outcome {
                Ok((reply, instance)) => match self.accept(what, reply, instance, &session) {
                    Ok(Accepted::Answer(answer)) => {
                        self.sequences.lock().told_abandoned(&request.abandoned);
                        return Ok(answer);
                    }
                    Ok(Accepted::SessionLost) if bounds.session.is_some() => {
                        is_over = true;
                        break self.over(&session);
                    }
                    Ok(Accepted::SessionLost) => {
                        last = "the master does not know this session any more".into();
                        self.session_lost(&session, &patience);
                    }
                    Err(error) => break error,
                },
                Err(CallError::SessionLost) if bounds.session.is_some() => {
                    is_over = true;
                    break self.over(&session);
                }
                Err(CallError::SessionLost) => {
                    last = "the master does not know this session any more".into();
                    self.session_lost(&session, &patience);
                }
                Err(CallError::Refused(refusal)) => break self.refused(what, refusal),
                // A connection of the pool may be to a master that is no more: one that was made just now is not.
                Err(CallError::TooOld(..)) if !asked_anew => {
                    asked_anew = true;
                    self.drop_idle();
                }
                Err(CallError::TooOld(feature, software)) => {
                    let (master, feature) = (self.masters.to_string(), feature.name());
                    break Cause::MasterTooOld { master, software, feature }.into();
                }
                Err(CallError::Connection(ConnectionError::Interrupted)) => break Cause::Interrupted.into(),
                Err(CallError::Connection(ConnectionError::Deadline)) => {
                    break self.expired(what, started, &last, &queued);
                }
                Err(CallError::Connection(error)) => {
                    tracing::debug!(master = %self.masters, %error, "call connection lost");
                    last = error.to_string();
                    self.drop_idle();
                    self.ping();
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            if Instant::now() >= deadline {
                break self.expired(what, started, &last, &queued);
            }
        };
        Err(Box::new(Failed { error, sent, session, request, is_over }))
    }

    fn may_call(&self) -> Result<(), StoreError> {
        if forked() {
            return Err(Cause::Forked.into());
        }
        if self.is_stopped() {
            return Err(Cause::Closed.into());
        }
        if self.reach.is_unreachable() {
            return Err(self.unreachable("it has not answered for a while; calls fail at once until it does"));
        }
        Ok(())
    }

    /// Looks up at every slice of a wait.
    fn keep_waiting(&self, started: Instant, heed: bool) -> Result<(), ConnectionError> {
        if heed && self.interrupted.as_ref().is_some_and(|interrupted| interrupted()) {
            return Err(ConnectionError::Interrupted);
        }
        let waited = started.elapsed();
        if self.is_stopped() || self.reach.is_unreachable() {
            return Err(ConnectionError::Deadline);
        }
        // A call may be long; a master that says nothing meanwhile ends it early.
        if waited > self.lookup_timeout && self.reach.silence(self.now()) > LONG_CALL_SILENCE {
            return Err(ConnectionError::Deadline);
        }
        Ok(())
    }

    fn expired(&self, what: &'static str, started: Instant, last: &str, queued: &Queued) -> StoreError {
        if self.is_stopped() {
            return Cause::Closed.into();
        }
        let alive = self.reach.expired(started.saturating_duration_since(self.origin));
        self.ping();
        if alive && last.is_empty() {
            let (master, waited) = (self.masters.to_string(), started.elapsed());
            // What took too long were other calls of this store.
            if queued.time * 2 > waited {
                let (limit, calls) = match queued.among_long {
                    true => (MAX_LONG, "puts that wait for room and other long calls"),
                    false => (MAX_CONNECTIONS, "calls to its master"),
                };
                return Cause::NoConnection { master, what, limit, calls, queued: queued.time, waited }.into();
            }
            return Cause::CallTimeout { master, what, waited }.into();
        }
        let waited = started.elapsed().as_millis();
        match last {
            "" => self.unreachable(&format!("{what} has waited for {waited} ms")),
            last => self.unreachable(&format!("{what}: {last} (tried for {waited} ms)")),
        }
    }

    fn unreachable(&self, reason: &str) -> StoreError {
        let reason = match &*self.trouble.lock() {
            Some(trouble) => format!("{reason}; last try to reconnect: {trouble}"),
            None => reason.to_owned(),
        };
        Cause::MasterUnreachable { master: self.masters.to_string(), reason }.into()
    }

    fn refused(&self, what: &'static str, refusal: Refusal) -> StoreError {
        let (master, reason) = (self.masters.to_string(), refusal.reason.clone());
        match refusal.kind() {
            refusal::Kind::BadRequest => Cause::BadRequest { master, what, reason },
            _ => Cause::Refused { master, what, reason },
        }
        .into()
    }

    /// An answer to something else than what was asked.
    pub fn confused(&self, what: &'static str) -> StoreError {
        Cause::Protocol { master: self.masters.to_string(), what }.into()
    }

    fn accept(
        &self,
        what: &'static str,
        reply: Reply,
        instance: [u8; 16],
        session: &Arc<Session>,
    ) -> Result<Accepted, StoreError> {
        let mut log_id = 0;
        if let Some(position) = &reply.position {
            log_id = position.log_id;
            self.note_position(position);
        }
        match reply.body {
            Some(reply::Body::Refusal(refusal)) if refusal.kind() == refusal::Kind::UnknownSession => {
                Ok(Accepted::SessionLost)
            }
            Some(reply::Body::Refusal(refusal)) => Err(self.refused(what, refusal)),
            Some(body) => {
                let numbering = Numbering::new(log_id, instance);
                Ok(Accepted::Answer(Answer { body, numbering, session: session.clone() }))
            }
            None => Err(self.confused(what)),
        }
    }

    /// What was asked belongs to a session that is over: has the anchor find out that this one is, if it does not know.
    fn over(&self, lost: &Session) -> StoreError {
        if self.session().is(lost) {
            self.resume_anew();
        }
        Cause::Superseded { attempts: 0 }.into()
    }

    /// Has the anchor find out, and waits until it has another session.
    fn session_lost(&self, lost: &Session, patience: &Patience<'_>) {
        let mut changes = self.changes.lock();
        if !self.session().is(lost) {
            return;
        }
        self.resume_anew();
        while self.session().is(lost) && Instant::now() < patience.deadline && (patience.check)().is_ok() {
            self.changed.wait_for(&mut changes, SLICE);
        }
    }

    // ----------------------------------------------------------------- pool

    fn checkout(
        &self,
        long: bool,
        patience: &Patience<'_>,
        queued: &mut Queued,
    ) -> Result<(Arc<Session>, Connection), CallError> {
        let session = self.session();
        let mut pool = self.pool.lock();
        loop {
            if !long || pool.long < MAX_LONG {
                while let Some((attached, connection)) = pool.idle.pop() {
                    if attached.is(&session) && attached.instance == session.instance {
                        pool.long += usize::from(long);
                        return Ok((attached, connection));
                    }
                    pool.open -= 1;
                }
                if pool.open < MAX_CONNECTIONS {
                    pool.open += 1;
                    pool.long += usize::from(long);
                    break;
                }
            }
            (patience.check)()?;
            if Instant::now() >= patience.deadline {
                return Err(ConnectionError::Deadline.into());
            }
            let began = Instant::now();
            queued.among_long = long && pool.long >= MAX_LONG;
            self.freed.wait_for(&mut pool, SLICE);
            queued.time += began.elapsed();
        }
        drop(pool);
        let opened = self.attach(&session, patience);
        if opened.is_err() {
            self.check_in(long, None);
        }
        opened.map(|connection| (session, connection))
    }

    /// A connection comes back, or one that is no more.
    fn check_in(&self, long: bool, connection: Option<(Arc<Session>, Connection)>) {
        let mut pool = self.pool.lock();
        pool.long -= usize::from(long);
        match connection {
            Some(connection) if !self.is_stopped() => pool.idle.push(connection),
            _ => pool.open -= 1,
        }
        drop(pool);
        // Not one: it may be of those that may not have it.
        self.freed.notify_all();
    }

    fn drop_idle(&self) {
        if forked() {
            return;
        }
        let mut pool = self.pool.lock();
        pool.open -= pool.idle.len();
        pool.idle.clear();
    }

    fn attach(&self, session: &Session, patience: &Patience<'_>) -> Result<Connection, CallError> {
        if let Some(unix) = &session.unix {
            match self.attach_at(unix, session, patience) {
                // Another process may have taken the name.
                Ok((connection, instance)) if instance == session.instance => return Ok(connection),
                Ok(_) => {
                    tracing::debug!(master = %self.masters, "another master has its Unix socket by now; using TCP")
                }
                Err(CallError::Connection(error @ (ConnectionError::Io(_) | ConnectionError::Frame(_)))) => {
                    tracing::debug!(master = %self.masters, %error, "its Unix socket cannot be used; using TCP");
                }
                Err(other) => return Err(other),
            }
        }
        self.attach_at(&session.master, session, patience).map(|(connection, _)| connection)
    }

    fn attach_at(
        &self,
        address: &Address,
        session: &Session,
        patience: &Patience<'_>,
    ) -> Result<(Connection, Vec<u8>), CallError> {
        let role = hello::Role::Attach(AttachCall { session: session.id, secret: session.secret });
        let (connection, reply) = Connection::open(address, role, self.position(), patience)?;
        match reply.refusal {
            Some(refusal) if refusal.kind() == refusal::Kind::UnknownSession => Err(CallError::SessionLost),
            Some(refusal) => Err(CallError::Refused(refusal)),
            None => Ok((connection, reply.instance.to_vec())),
        }
    }
}

#[cfg(test)]
impl Control {
    /// Of session 7, in epoch 1, with a master that is not there.
    pub fn alone() -> Arc<Control> {
        use mooncake_wire::message::HelloReply;

        let options = StoreOptions::new("127.0.0.1", "127.0.0.1:1");
        let masters = MasterAddress::parse(&options.master).unwrap();
        let at = Address::Tcp(([127, 0, 0, 1], 1).into());
        let session = Session::new(&HelloReply { session: 7, ..HelloReply::default() }, at, None, &[0; 16]);
        let position = LogPosition { log_id: 1, epoch: 1, lsn: 1, reign: 0 };
        Arc::new(Control::new(&options, masters, session, position).unwrap())
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("masters", &self.masters)
            .field("session", &self.session().id)
            .finish_non_exhaustive()
    }
}

struct Failed {
    error: StoreError,
    /// The master may have got it.
    sent: bool,
    session: Arc<Session>,
    request: Request,
    /// The only session that it may be made in is no more.
    is_over: bool,
}

/// What a call keeps to.
#[derive(Default, Clone, Copy)]
struct Bounds<'a> {
    /// What it is about belongs to this session: it is made there or not at all.
    session: Option<&'a Session>,
    /// The caller's interrupt hook may end it.
    heed: bool,
}

impl Bounds<'_> {
    fn heeding() -> Self {
        Bounds { heed: true, ..Bounds::default() }
    }

    fn include(&self, session: &Session) -> bool {
        self.session.is_none_or(|own| own.is(session))
    }
}

/// What a call has waited for connections that others had.
#[derive(Default)]
struct Queued {
    time: Duration,
    /// For one of those that long calls may have, when it was looked up last.
    among_long: bool,
}

enum Accepted {
    Answer(Answer),
    SessionLost,
}

enum CallError {
    Connection(ConnectionError),
    SessionLost,
    Refused(Refusal),
    /// What the master does not know, and what it is.
    TooOld(Feature, String),
}

impl From<ConnectionError> for CallError {
    fn from(error: ConnectionError) -> Self {
        CallError::Connection(error)
    }
}

fn may_take_long(body: &request::Body) -> bool {
    match body {
        request::Body::PutStart(start) => start.wait,
        request::Body::RemoveAll(_) | request::Body::RemoveByRegex(_) => true,
        _ => false,
    }
}

fn exchange(connection: &mut Connection, request: &Request, patience: &Patience<'_>) -> Result<Reply, CallError> {
    connection.send(request, patience)?;
    let reply: Reply = connection.receive(MAX_FRAME, patience)?;
    if reply.id != request.id {
        let confused = std::io::Error::new(std::io::ErrorKind::InvalidData, "answer to another request");
        return Err(ConnectionError::Io(confused).into());
    }
    Ok(reply)
}

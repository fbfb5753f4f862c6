//! What the threads of a store share on their way to the master: the session, a bounded pool of connections, one
//! checked out per call, and the locks of the machines.

use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mooncake_os::{Deadline, Waker, forked};
use mooncake_wire::message::{AnchorUp, AttachCall, LogPosition, anchor_up, hello, refusal};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::connection_error::ConnectionError;
use crate::discovery::masters::MasterAddress;
use crate::error::{Cause, StoreError};
use crate::kept::KeptMemory;
use crate::machine::anchor_context::AnchorContext;
use crate::machine::deaths::Deaths;
use crate::machine::numbering::Numbering;
use crate::machine::orphans::OrphanedPuts;
use crate::machine::pins::Pins;
use crate::machine::progress::Progress;
use crate::machine::reachability::Reachability;
use crate::machine::replica_reports::ReplicaReports;
use crate::machine::sequences::Sequences;
use crate::machine::wants::Wants;
use crate::metrics::Metrics;
use crate::options::{InterruptHook, StoreOptions};
use crate::session::Session;
use crate::session::caller::NoReply;
use crate::session::connection::{Address, Connection};

#[cfg(test)]
mod tests;

/// Most call connections of a store; more callers than that wait for one.
pub(crate) const CONNECTIONS_MAX: usize = 64;

/// A call connection that was idle for so long is closed, if it is not one of the last that are left.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// So many stay idle for ever: the calls after a pause do not wait for a connection.
const KEPT: usize = 2;

/// Most of them for calls that the master may take seconds over, so that the others never wait for these.
pub(crate) const LONG_CALLS_MAX: usize = 48;

/// One store's side of the control protocol.
pub(crate) struct Control {
    pub masters: MasterAddress,
    /// What the pool calls itself, by which tiers say whose they are; empty where its master told none.
    pub cluster_id: String,
    pub lookup_timeout: Duration,
    /// Segments of this host are mapped.
    pub maps_memory: bool,
    /// Time is counted from here on.
    time_origin: Instant,
    pub reachability: Reachability,
    pub pins: Mutex<Pins>,
    pub progress: Mutex<Progress>,
    pub sequences: Mutex<Sequences>,
    pub waker: Waker,
    pub orphans: Mutex<OrphanedPuts<Arc<Session>>>,
    pub replica_reports: Mutex<ReplicaReports>,
    /// Of readers of this store's memory.
    pub deaths: Mutex<Deaths>,
    /// Where this store's own memory outlives its process.
    pub kept: OnceLock<Arc<KeptMemory>>,
    /// None: nothing is counted.
    pub metrics: Option<Metrics>,
    interrupted: Option<InterruptHook>,
    session: RwLock<Arc<Session>>,
    /// Notified when `session` changes.
    changed: Condvar,
    changes: Mutex<()>,
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
    /// In use by calls that may take long.
    long: usize,
}

impl Control {
    pub fn new(
        options: &StoreOptions,
        masters: MasterAddress,
        session: Session,
        position: LogPosition,
        cluster_id: String,
    ) -> std::io::Result<Self> {
        Ok(Control {
            masters,
            cluster_id,
            lookup_timeout: options.lookup_timeout,
            maps_memory: options.shared_memory,
            time_origin: Instant::now(),
            reachability: Reachability::default(),
            pins: Mutex::default(),
            progress: Mutex::default(),
            sequences: Mutex::default(),
            waker: Waker::new()?,
            orphans: Mutex::default(),
            replica_reports: Mutex::default(),
            deaths: Mutex::default(),
            kept: OnceLock::new(),
            metrics: options.metrics.then(|| Metrics::new(options.cluster_id.clone())),
            interrupted: options.interrupted.clone(),
            session: RwLock::new(Arc::new(session)),
            changed: Condvar::new(),
            changes: Mutex::default(),
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

    /// Since the time origin.
    pub fn now(&self) -> Duration {
        self.time_origin.elapsed()
    }

    /// Since the time origin at that time.
    pub fn time(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.time_origin)
    }

    /// That time since the time origin.
    pub fn instant(&self, time: Duration) -> Instant {
        self.time_origin + time
    }

    // -------------------------------------------------------------- session

    pub fn session(&self) -> Arc<Session> {
        self.session.read().clone()
    }

    /// The anchor has a session, perhaps the same one with another process.
    pub fn set_session(&self, session: Session) {
        *self.session.write() = Arc::new(session);
        self.drop_idle();
        // A waiter has looked at the session before this, or waits already.
        drop(self.changes.lock());
        self.changed.notify_all();
        self.reachability.pong(self.now());
    }

    pub fn position(&self) -> LogPosition {
        *self.position.lock()
    }

    /// Whose segment numbers the master's words mean.
    pub fn numbering(&self) -> Numbering {
        let instance = self.session().instance[..].try_into().unwrap_or_default();
        Numbering { log_id: self.position().log_id, instance }
    }

    pub fn position_lock(&self) -> impl DerefMut<Target = LogPosition> {
        self.position.lock()
    }

    // --------------------------------------------------------------- anchor

    /// Hands the anchor a message to send.
    pub fn tell(&self, body: anchor_up::Body) {
        self.up.lock().push(AnchorUp { body: Some(body) });
        self.waker.wake();
    }

    /// Has the anchor decide something. No I/O meanwhile: calls of the store wait for the same locks.
    pub fn decide<R>(&self, decide: impl FnOnce(&mut AnchorContext<'_>) -> R) -> R {
        decide(&mut AnchorContext {
            pins: &mut self.pins.lock(),
            sequences: &mut self.sequences.lock(),
            progress: &mut self.progress.lock(),
            deaths: &mut self.deaths.lock(),
            position: &mut self.position.lock(),
            up: &mut self.up.lock(),
            reachability: &self.reachability,
            wants: &self.wants,
        })
    }

    /// Has the anchor end the session with its last view.
    pub fn end(&self) {
        self.wants.end();
        self.waker.wake();
    }

    /// Has the anchor ask for a pong now.
    pub fn ping(&self) {
        self.wants.ping();
        self.waker.wake();
    }

    /// Has the anchor give the master a fresh list of what this store holds.
    pub fn resume_anew(&self) {
        self.wants.resume();
        self.waker.wake();
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
        self.waker.wake();
        self.changed.notify_all();
        self.freed.notify_all();
        self.drop_idle();
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    // ---------------------------------------------------------------- calls

    /// A number for a request: no other request of this store has it, and so none on its connection.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the caller's interrupt hook says so.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.as_ref().is_some_and(|interrupted| interrupted())
    }

    pub fn unreachable(&self, reason: &str) -> StoreError {
        let reason = match &*self.trouble.lock() {
            Some(trouble) => format!("{reason}; last try to reconnect: {trouble}"),
            None => reason.to_owned(),
        };
        Cause::MasterUnreachable { master: self.masters.to_string(), reason }.into()
    }

    /// An answer to something else than what was asked.
    pub fn confused(&self, what: &'static str) -> StoreError {
        Cause::Protocol { master: self.masters.to_string(), what }.into()
    }

    /// Waits as long as this holds, which is looked up at every slice and when there is another session.
    pub fn wait_while(&self, holds: impl Fn(&Self) -> bool) {
        let mut changes = self.changes.lock();
        while holds(self) {
            self.changed.wait_for(&mut changes, Deadline::SLICE);
        }
    }

    // ----------------------------------------------------------------- pool

    /// A connection of the current session. `long`: the call may take long.
    // Every put is here twice: what it gives is large, and moved once less so.
    #[inline(always)]
    pub fn check_out(
        &self,
        long: bool,
        deadline: &Deadline<'_>,
        queued: &Mutex<Queued>,
    ) -> Result<(Arc<Session>, Connection), NoReply> {
        let session = self.session();
        let mut pool = self.pool.lock();
        loop {
            if !long || pool.long < LONG_CALLS_MAX {
                while let Some((of, connection)) = pool.idle.pop() {
                    let is_current = of.is(&session) && of.instance == session.instance;
                    if is_current && !connection.was_closed_while_idle() {
                        pool.long += usize::from(long);
                        return Ok((of, connection));
                    }
                    pool.open -= 1;
                }
                if pool.open < CONNECTIONS_MAX {
                    pool.open += 1;
                    pool.long += usize::from(long);
                    break;
                }
            }
            let began = Instant::now();
            let among_long = long && pool.long >= LONG_CALLS_MAX;
            self.freed.wait_for(&mut pool, deadline.slice());
            // What came back while the hook was asked is seen as well: the pool is looked at behind it.
            MutexGuard::unlocked(&mut pool, || deadline.check()).map_err(ConnectionError::from)?;
            let mut queued = queued.lock();
            *queued = Queued { time: queued.time + began.elapsed(), among_long };
        }
        drop(pool);
        let opened = self.attach(&session, deadline);
        if opened.is_err() {
            self.give_room_back(long);
        }
        opened.map(|connection| (session, connection))
    }

    /// A connection comes back.
    pub fn check_in(&self, long: bool, mut connection: (Arc<Session>, Connection)) {
        connection.1.goes_idle();
        let mut pool = self.pool.lock();
        pool.long -= usize::from(long);
        match self.is_stopped() {
            false => pool.idle.push(connection),
            true => pool.open -= 1,
        }
        drop(pool);
        // Not one: that one may be a long call, which may not have it.
        self.freed.notify_all();
    }

    /// A connection is no more, or did not come about.
    pub fn give_room_back(&self, long: bool) {
        let mut pool = self.pool.lock();
        pool.long -= usize::from(long);
        pool.open -= 1;
        drop(pool);
        self.freed.notify_all();
    }

    /// Closes what no call has had for long. A master has room for so many, of all its clients.
    pub fn close_idle(&self) {
        let mut pool = self.pool.lock();
        let surplus = pool.idle.len().saturating_sub(KEPT);
        // The connections that came back last are used first: the others have been idle for longer.
        let over = pool.idle[..surplus].iter().take_while(|(_, connection)| connection.idle_for() > IDLE_MAX).count();
        let closed: Vec<_> = pool.idle.drain(..over).collect();
        pool.open -= over;
        drop(pool);
        drop(closed);
    }

    /// A call has found that the master closed the connection that it has checked out: drops the other ones that the
    /// master has closed, so that no call tries them.
    pub fn drop_closed(&self) {
        let mut pool = self.pool.lock();
        let closed: Vec<_> = pool.idle.extract_if(.., |(_, connection)| connection.was_closed()).collect();
        pool.open -= closed.len();
        drop(pool);
        drop(closed);
    }

    /// Closes what no call has.
    pub fn drop_idle(&self) {
        if forked() {
            return;
        }
        let mut pool = self.pool.lock();
        pool.open -= pool.idle.len();
        pool.idle.clear();
    }

    fn attach(&self, session: &Arc<Session>, deadline: &Deadline<'_>) -> Result<Connection, NoReply> {
        if let Some(unix) = &session.unix {
            match self.attach_at(unix, session, deadline) {
                // Another process may have taken the name.
                Ok((connection, instance)) if instance == session.instance => return Ok(connection),
                Ok(_) => {
                    tracing::debug!(master = %self.masters, "another master has its Unix socket by now; using TCP")
                }
                Err(NoReply::Broken(error)) => {
                    tracing::debug!(master = %self.masters, %error, "its Unix socket cannot be used; using TCP");
                }
                Err(other) => return Err(other),
            }
        }
        self.attach_at(&session.master, session, deadline).map(|(connection, _)| connection)
    }

    fn attach_at(
        &self,
        address: &Address,
        session: &Arc<Session>,
        deadline: &Deadline<'_>,
    ) -> Result<(Connection, Vec<u8>), NoReply> {
        let role = hello::Role::Attach(AttachCall { session: session.id, secret: session.secret });
        let (connection, reply) = Connection::open(address, role, self.position(), deadline)?;
        match reply.refusal {
            Some(refusal) if refusal.kind() == refusal::Kind::UnknownSession => Err(NoReply::Session(session.clone())),
            Some(refusal) => Err(NoReply::Refused(refusal)),
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
        let position = LogPosition { log_id: 1, epoch: 1, lsn: 1, epoch_id: 0 };
        Arc::new(Control::new(&options, masters, session, position, String::new()).unwrap())
    }

    /// All that no call has have been idle for so long already.
    fn was_idle_for(&self, time: Duration) {
        self.pool.lock().idle.iter_mut().for_each(|(_, connection)| connection.was_idle_for(time));
    }

    /// Connections that there are, those of them that no call has, and those that calls have that may take long.
    fn connections(&self) -> (usize, usize, usize) {
        let pool = self.pool.lock();
        (pool.open, pool.idle.len(), pool.long)
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

/// What a call has waited for connections that others had.
#[derive(Default, Clone, Copy)]
pub(crate) struct Queued {
    pub time: Duration,
    /// For one of the connections that long calls may have, when it was looked up last.
    pub among_long: bool,
}

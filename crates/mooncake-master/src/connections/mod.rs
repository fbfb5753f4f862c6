//! Which connections there are, and which one goes where there are too many.
//!
//! What a connection is for turns out with its hello. Until then it is a stranger. Where there are too many strangers,
//! the oldest one goes, of the address with the most of them. Anchors have a reserve of their own: each session has
//! one, and sessions are limited elsewhere. Calls have a share: where it is full, one goes that is idle, of the client
//! that has the most, which opens another one when it needs it. So neither strangers nor calls ever keep an anchor out,
//! without which its session ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::SessionId;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::peer::Peer;

/// How many connections there may be of each kind that has a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Before their hello, and those for calls that have no place yet.
    pub strangers: usize,
    /// For calls.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { strangers: 2_048, calls: 16_384 }
    }
}

impl Limits {
    /// As many as leave descriptors for anchors and files in a process that may have so many.
    pub fn within(self, descriptors: usize) -> Limits {
        Limits { strangers: self.strangers.min(descriptors / 8), calls: self.calls.min(descriptors / 2) }
    }
}

/// A connection that answered a call, or began, so short a time ago is not idle: the next call may be on its way.
const IDLE_FROM: Duration = Duration::from_millis(20);

/// Behind a search in vain there is no other one for so long, microseconds. Otherwise each connection that waits for a
/// place would look at all connections every few milliseconds.
const VAIN: u64 = 2_000;

/// All connections. Each may be ended from outside: at the stop, when its session is over, and to make room.
#[derive(Debug)]
pub struct Connections {
    time_origin: Instant,
    limits: Limits,
    next: AtomicU64,
    table: Mutex<Table>,
    /// All are to end, also connections that begin meanwhile.
    ended: AtomicBool,
    displaced: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    all: HashMap<u64, Connected>,
    strangers: Groups<Peer, ()>,
    /// Anchors whose hello is being answered.
    greeted: usize,
    calls: Groups<SessionId, Arc<Idle>>,
    /// None was idle since before then, when one was searched for last.
    in_vain: u64,
}

#[derive(Debug)]
struct Connected {
    kind: Kind,
    task: Option<AbortHandle>,
}

#[derive(Debug)]
enum Kind {
    Stranger(Peer),
    Greeted,
    Anchor(SessionId),
    Calls(SessionId),
    /// Told to end, for the sake of others.
    Displaced,
}

/// Since when a connection for calls has had none, as it says itself.
#[derive(Debug)]
pub struct Idle {
    time_origin: Instant,
    /// Microseconds after the time origin; 0 during a call.
    since: AtomicU64,
}

impl Idle {
    /// A call is answered.
    pub fn begins(&self) {
        self.since.store(self.time_origin.elapsed().as_micros().max(1) as u64, Ordering::Relaxed);
    }

    /// A call has come.
    pub fn ends(&self) {
        self.since.store(0, Ordering::Relaxed);
    }
}

/// No place for a connection, not even in another one's stead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A connection's entry; gone when dropped, which the end of its task does.
#[derive(Debug)]
pub struct Entry {
    connections: Arc<Connections>,
    number: u64,
}

impl Entry {
    /// Enters a connection that starts.
    pub fn new(connections: &Arc<Connections>, peer: Peer) -> Result<Entry, Full> {
        let number = connections.enter(peer)?;
        Ok(Entry { connections: connections.clone(), number })
    }

    /// Says which task reads the hello, unless the one behind that is known already.
    pub fn set_first_task(connections: &Connections, number: u64, task: AbortHandle) {
        connections.with(number, |entry| _ = entry.task.get_or_insert(task));
    }

    /// Says which task goes on behind the hello; it may have ended by now.
    pub fn set_task(connections: &Connections, number: u64, task: AbortHandle) {
        connections.with(number, |entry| entry.task = Some(task));
    }

    /// Names the connection.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The hello asks for an anchor: the connection makes no room for others any more.
    pub fn asks_for_anchor(&self) {
        self.connections.change(self.number, Kind::Greeted);
    }

    /// It is a session's anchor.
    pub fn is_anchor(&self, session: SessionId) {
        self.connections.change(self.number, Kind::Anchor(session));
    }

    /// It is for a session's calls, if there is a place for it or another one can give up its own.
    pub fn is_for_calls(&self, session: SessionId) -> Result<Arc<Idle>, Full> {
        self.connections.take_place(self.number, session)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.connections.table.lock().remove(self.number);
    }
}

impl Connections {
    /// None yet.
    pub fn new(limits: Limits) -> Connections {
        Connections {
            time_origin: Instant::now(),
            limits,
            next: AtomicU64::new(0),
            table: Mutex::default(),
            ended: AtomicBool::new(false),
            displaced: AtomicU64::new(0),
        }
    }

    /// How many there may be.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    fn enter(&self, peer: Peer) -> Result<u64, Full> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut table = self.table.lock();
        if table.strangers.count + table.greeted >= self.limits.strangers {
            let oldest = table.oldest_stranger().ok_or(Full)?;
            self.displace(&mut table, oldest);
        }
        table.strangers.add(peer, number, ());
        table.all.insert(number, Connected { kind: Kind::Stranger(peer), task: None });
        Ok(number)
    }

    fn take_place(&self, number: u64, session: SessionId) -> Result<Arc<Idle>, Full> {
        let mut table = self.table.lock();
        if table.calls.count >= self.limits.calls {
            let longest = table.longest_idle(self.idle_before()).ok_or(Full)?;
            self.displace(&mut table, longest);
        }
        let idle = Arc::new(Idle { time_origin: self.time_origin, since: AtomicU64::new(0) });
        idle.begins();
        table.change(number, Kind::Calls(session));
        table.calls.add(session, number, idle.clone());
        Ok(idle)
    }

    fn idle_before(&self) -> u64 {
        self.time_origin.elapsed().saturating_sub(IDLE_FROM).as_micros() as u64
    }

    /// Ends a connection that can be spared: the process is out of descriptors. False: there is none.
    pub fn make_room(&self) -> bool {
        let mut table = self.table.lock();
        let found = table.longest_idle(self.idle_before()).or_else(|| table.oldest_stranger());
        if let Some(number) = found {
            self.displace(&mut table, number);
        }
        found.is_some()
    }

    fn displace(&self, table: &mut Table, number: u64) {
        table.change(number, Kind::Displaced);
        if let Some(task) = table.all.get(&number).and_then(|entry| entry.task.as_ref()) {
            task.abort();
        }
        self.displaced.fetch_add(1, Ordering::Relaxed);
    }

    fn change(&self, number: u64, kind: Kind) {
        self.table.lock().change(number, kind);
    }

    fn with(&self, number: u64, change: impl FnOnce(&mut Connected)) {
        if let Some(entry) = self.table.lock().all.get_mut(&number) {
            change(entry);
            let ends = matches!(entry.kind, Kind::Displaced) || self.ended.load(Ordering::Relaxed);
            if let Some(task) = entry.task.as_ref().filter(|_| ends) {
                task.abort();
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.lock().all.len()
    }

    /// How many have gone for the sake of others, since the start.
    pub fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    /// Sessions that have a connection.
    pub fn sessions(&self) -> BTreeSet<SessionId> {
        let table = self.table.lock();
        let session = |entry: &Connected| match entry.kind {
            Kind::Anchor(session) | Kind::Calls(session) => Some(session),
            _ => None,
        };
        table.all.values().filter_map(session).collect()
    }

    /// Ends the connections of sessions that are over.
    pub fn end_where(&self, over: impl Fn(SessionId) -> bool) {
        for entry in self.table.lock().all.values() {
            if let (Kind::Anchor(session) | Kind::Calls(session), Some(task)) = (&entry.kind, &entry.task)
                && over(*session)
            {
                task.abort();
            }
        }
    }

    /// Ends all.
    pub fn end_all(&self) {
        // Each thread that takes the lock after this one sees it.
        self.ended.store(true, Ordering::Relaxed);
        for entry in self.table.lock().all.values() {
            if let Some(task) = &entry.task {
                task.abort();
            }
        }
    }
}

impl Table {
    /// A connection is something else from now on, if it still is.
    fn change(&mut self, number: u64, kind: Kind) {
        let Some(entry) = self.all.get_mut(&number) else { return };
        self.greeted += usize::from(matches!(kind, Kind::Greeted));
        let former = std::mem::replace(&mut entry.kind, kind);
        self.is_no_more(number, &former);
    }

    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.all.remove(&number) {
            self.is_no_more(number, &entry.kind);
        }
    }

    fn is_no_more(&mut self, number: u64, former: &Kind) {
        match former {
            Kind::Stranger(peer) => self.strangers.remove(peer, number),
            Kind::Greeted => self.greeted -= 1,
            Kind::Calls(session) => self.calls.remove(session, number),
            Kind::Anchor(_) | Kind::Displaced => {}
        }
    }

    fn oldest_stranger(&self) -> Option<u64> {
        let oldest = self.strangers.members.values().filter_map(|of| Some((of.len(), of.first_key_value()?)));
        oldest.max_by_key(|(count, (number, ()))| (*count, Reverse(**number))).map(|(_, (number, ()))| *number)
    }

    /// The one that is idle for longest, of the client with the most connections among the clients that have one that
    /// is idle since before then.
    fn longest_idle(&mut self, before: u64) -> Option<u64> {
        if before < self.in_vain + VAIN && self.in_vain > 0 {
            return None;
        }
        let mut clients: Vec<_> = self.calls.members.values().collect();
        clients.sort_unstable_by_key(|of| Reverse(of.len()));
        let found = clients.into_iter().find_map(|of| {
            let since = of.iter().map(|(number, idle)| (idle.since.load(Ordering::Relaxed), *number));
            since.filter(|(since, _)| (1..=before).contains(since)).min().map(|(_, number)| number)
        });
        self.in_vain = if found.is_none() { before } else { 0 };
        found
    }
}

/// Connections by what they have in common, each lot by age.
#[derive(Debug)]
struct Groups<K, V> {
    members: HashMap<K, BTreeMap<u64, V>>,
    count: usize,
}

impl<K, V> Default for Groups<K, V> {
    fn default() -> Self {
        Groups { members: HashMap::new(), count: 0 }
    }
}

impl<K: Eq + Hash, V> Groups<K, V> {
    fn add(&mut self, key: K, number: u64, value: V) {
        self.members.entry(key).or_default().insert(number, value);
        self.count += 1;
    }

    fn remove(&mut self, key: &K, number: u64) {
        let Some(of) = self.members.get_mut(key) else { return };
        self.count -= usize::from(of.remove(&number).is_some());
        if of.is_empty() {
            self.members.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;

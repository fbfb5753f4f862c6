//! Get sessions: objects that are looked up once, and then read in parts as often as their reader wants. The master is
//! asked nothing more: the stamps of what was copied decide whether the bytes are still the object's (docs/safety.md,
//! rule 2). A session holds nothing in the pool. It is over for a key when no placement that the look-up gave can be
//! read any more. Each read says so until the callers have ended the session, or one begins it anew. A failure that
//! passes, such as that of an owner that stands still, ends no session.

use std::collections::HashMap;
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;
use mooncake_wire::message::{Object, Replica};

use crate::error::{Cause, StoreError};
use crate::key::check_key;
use crate::machine::get::{Fetched, GetDriver, LostReplica, ROUND_KEYS, Unread, read_any_replica};
use crate::machine::rounds::rounds;

/// Most keys with a session at a time, some 1.5 KB each. Callers leave sessions behind: SGLang's direct linker starts
/// sessions for many keys, and ends none of them if one is missing.
const SESSIONS_MAX: usize = 1 << 17;

/// What get sessions need of their store.
pub trait GetSessionDriver: GetDriver {
    /// The segments of an object's replicas, however long ago the look-up was.
    type MetSegments;

    /// The store's sessions, locked.
    fn get_sessions(&self) -> impl DerefMut<Target = GetSessions<Self::MetSegments, Self::Numbering>>;

    /// An existence query: what is there is protected for a while.
    fn protect(&self, keys: &[&[u8]]) -> impl Future<Output = Result<(), StoreError>>;

    /// The segments of an object that was just looked up.
    fn met_segments(&self, object: &Object, numbering: Self::Numbering) -> Self::MetSegments;
}

/// The keys of a store that have a session.
#[derive(Debug)]
pub struct GetSessions<M, N> {
    open: HashMap<Box<[u8]>, OpenSession<M, N>>,
    /// How often one was begun or read.
    uses: u64,
}

/// One key's session. Each begin looks the key up anew, and the session ends when each begin has had its end, or to
/// make room for others.
#[derive(Debug)]
struct OpenSession<M, N> {
    found: Arc<Found<M, N>>,
    begun: u32,
    /// `uses` at its last begin or read: the smallest goes first.
    used: u64,
    /// Why nothing of what was found can be read.
    over: Option<Box<str>>,
}

/// What was looked up.
#[derive(Debug)]
pub struct Found<M, N> {
    /// The object, without the replicas that could not be read.
    pub object: Object,
    /// Replicas that could not be read for a reason that passes, while another one could: they are tried again when
    /// none of those is left.
    aside: Vec<Replica>,
    /// What the segment numbers of its extents mean.
    pub numbering: N,
    /// Their segments.
    pub met: Arc<M>,
}

impl<M, N> Default for GetSessions<M, N> {
    fn default() -> Self {
        Self { open: HashMap::new(), uses: 0 }
    }
}

impl<M, N: Copy> GetSessions<M, N> {
    /// What the session of a key has found, or that there is none.
    pub fn find(&mut self, key: &[u8]) -> Result<Arc<Found<M, N>>, StoreError> {
        self.uses += 1;
        match self.open.get_mut(key) {
            Some(OpenSession { over: Some(reason), .. }) => {
                Err(Cause::SessionOver { reason: reason.to_string() }.into())
            }
            Some(open) => {
                open.used = self.uses;
                Ok(open.found.clone())
            }
            None => Err(Cause::InvalidParams("this key has no get session; start one first".into()).into()),
        }
    }

    /// One of the callers that began the session of a key needs it no more.
    pub fn end(&mut self, key: &[u8]) {
        if let Some(open) = self.open.get_mut(key) {
            open.begun -= 1;
            if open.begun == 0 {
                self.open.remove(key);
            }
        }
    }

    /// The store is closed.
    pub fn clear(&mut self) {
        self.open = HashMap::new();
    }

    fn begin(&mut self, key: &[u8], found: Found<M, N>) {
        let found = Arc::new(found);
        self.uses += 1;
        let used = self.uses;
        if let Some(open) = self.open.get_mut(key) {
            (open.found, open.over, open.used) = (found, None, used);
            open.begun = open.begun.saturating_add(1);
            return;
        }
        self.open.insert(key.into(), OpenSession { found, begun: 1, used, over: None });
    }

    /// Makes room for so many more sessions, or fewer where some are missing or there. What callers have left behind is
    /// no reason to refuse others: sessions that are over go first, then the ones unused for longest, an eighth of all
    /// at a time.
    fn make_room(&mut self, keys: usize) {
        if self.open.len() + keys <= SESSIONS_MAX {
            return;
        }
        self.open.retain(|_, open| open.over.is_none());
        let excess = (self.open.len() + keys).saturating_sub(SESSIONS_MAX);
        if excess > 0 {
            let mut used: Vec<u64> = self.open.values().map(|open| open.used).collect();
            let last = (excess + SESSIONS_MAX / 8).min(used.len()) - 1;
            let last = *used.select_nth_unstable(last).1;
            self.open.retain(|_, open| open.used > last);
        }
    }

    /// Drops replicas that could not be read from what was looked up. Those that failed for a reason that passes are
    /// set aside, and tried again when no other is left. If none is left at all the session is over, for this reason.
    fn lose(&mut self, key: &[u8], of: &Arc<Found<M, N>>, lost: &[LostReplica], reason: &str) {
        let Some(open) = self.open.get_mut(key).filter(|open| Arc::ptr_eq(&open.found, of)) else { return };
        let (mut object, mut aside) = (of.object.clone(), of.aside.clone());
        let lost_as = |replica: &Replica| lost.iter().find(|lost| lost.rid == Rid(replica.rid));
        let passing = |replica: &&Replica| {
            lost_as(replica).is_some_and(|lost| lost.passing && !mutant!(PassingFailuresEndGetSessions))
        };
        aside.extend(object.replicas.iter().filter(passing).cloned());
        object.replicas.retain(|replica| lost_as(replica).is_none());
        if object.replicas.is_empty() {
            object.replicas = std::mem::take(&mut aside);
        }
        if object.replicas.is_empty() && !mutant!(StaleSessionsStay) {
            open.over = Some(reason.into());
        }
        open.found = Arc::new(Found { object, aside, numbering: of.numbering, met: of.met.clone() });
    }
}

/// Begins a session for each of these keys that is there. Twice the same key is begun twice.
pub async fn start<D: GetSessionDriver>(driver: &D, keys: &[&[u8]]) -> Vec<Result<(), StoreError>> {
    let mut results: Vec<Result<(), StoreError>> = keys.iter().map(|key| check_key(key)).collect();
    let valid: Vec<usize> = (0..keys.len()).filter(|&index| results[index].is_ok()).collect();
    let valid_keys: Vec<&[u8]> = valid.iter().map(|&index| keys[index]).collect();
    let mut rest = &valid[..];
    for round_keys in rounds(&valid_keys, ROUND_KEYS) {
        let (round, others) = rest.split_at(round_keys.len());
        rest = others;
        // Protected first: what the look-up finds stays for a while.
        let found = match driver.protect(round_keys).await {
            Ok(()) => driver.lookup(round_keys).await,
            Err(error) => Err(error),
        };
        let (objects, numbering) = match found {
            Ok(found) => found,
            Err(error) => {
                round.iter().for_each(|&index| results[index] = Err(error.clone()));
                continue;
            }
        };
        let found: Vec<_> = objects
            .into_iter()
            .map(|object| Found {
                met: Arc::new(driver.met_segments(&object, numbering)),
                object,
                aside: Vec::new(),
                numbering,
            })
            .collect();
        let mut sessions = driver.get_sessions();
        sessions.make_room(found.len());
        for (&index, found) in round.iter().zip(found) {
            if found.object.replicas.is_empty() {
                results[index] = Err(Cause::NotFound.into());
            } else {
                sessions.begin(keys[index], found);
            }
        }
    }
    results
}

/// Reads parts of an object in the session of its key, by `read`, from the first of its replicas that can be read.
pub async fn read<D: GetSessionDriver>(
    driver: &D,
    key: &[u8],
    found: &Arc<Found<D::MetSegments, D::Numbering>>,
    read: impl AsyncFnMut(&Replica) -> Result<(), Unread>,
) -> Result<(), StoreError> {
    let mut lost = Vec::new();
    let fetched = read_any_replica(driver, key, &found.object, found.numbering, &mut lost, read).await;
    if !lost.is_empty() && !matches!(fetched, Fetched::Failed(_)) {
        let reason = if let Fetched::Lost(reason) = &fetched { reason } else { "" };
        driver.get_sessions().lose(key, found, &lost, reason);
    }
    match fetched {
        Fetched::Done(_) => Ok(()),
        Fetched::Failed(error) => Err(error),
        Fetched::Lost(reason) if !found.aside.is_empty() || lost.iter().any(|lost| lost.passing) => {
            Err(Cause::NotRead { reason }.into())
        }
        Fetched::Lost(reason) => Err(Cause::SessionOver { reason }.into()),
    }
}

#[cfg(test)]
mod tests;

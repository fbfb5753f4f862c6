//! The store: what callers hold.

use std::path::Path as FilePath;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use mooncake_ids::GRANULE;
use mooncake_memory::{ForeignRange, Registry, Source, total_of_sources};
use mooncake_os::{ProcessIdentity, forked, watch_forks};
use mooncake_segment::LinkReport;
use parking_lot::Mutex;

use crate::anchor::{self, StoreContext};
use crate::call::describe::ReplicaDescriptor;
use crate::call::get::{GetInto, Receive, bytes_of};
use crate::call::put::PutItem;
use crate::call::put_session::PutRanges;
use crate::call::query::RemoveOutcome;
use crate::call::ranges::{GetRanges, RangeOutcome};
use crate::call::view::View;
use crate::descriptors;
use crate::discovery::masters::MasterAddress;
use crate::error::{Cause, ErrorKind, StoreError};
use crate::inner::Inner;
use crate::kept;
use crate::machine::put::PutOutcome;
use crate::metrics::{Metrics, Operation};
use crate::options::{PutOptions, StoreOptions};
use crate::report;
use crate::segment_id::SegmentId;
use crate::segments::directory::Directory;
use crate::segments::links::LinkSet;
use crate::segments::owner::{Backing, Ownership, SegmentOwner, random_key};
use crate::segments::owner_events::OwnerEvents;
use crate::segments::server::claim_again;
use crate::session::control::Control;
use crate::session::opening;
use crate::store::start::Start;
use crate::tier::StoreTiers;

/// A call that waits looks so often whether it is to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Smallest segment.
const SEGMENT_MIN: u64 = GRANULE;

/// A client of the pool, and with a segment of its own also one of its hosts.
///
/// Clones are the same client. Several in one process are several clients:
/// replicas of one object may go to each of them. All calls may be made from
/// any thread; they block that thread only, and every one of them has a
/// deadline.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

/// Whether a store can work now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The master answers.
    Ok,
    /// The store is closed.
    Closed,
    /// The master does not answer.
    MasterUnreachable,
}

impl Store {
    /// Sets a store up: takes a name, begins a session with the master, and
    /// gives its memory to the pool.
    pub fn connect(options: StoreOptions) -> Result<Store, StoreError> {
        watch_forks();
        if forked() {
            return Err(Cause::Forked.into());
        }
        let masters = MasterAddress::parse(&options.master)?.alone()?;
        check_sizes(&options)?;
        if options.raise_descriptors {
            descriptors::raise();
        }
        let process = ProcessIdentity::current().map_err(setup("naming this process"))?;
        let mark = random_key().map_err(setup("making a mark of this process"))?;

        let events = OwnerEvents::new();
        let interrupted = || options.interrupted.as_ref().is_some_and(|interrupted| interrupted());
        let begin = |keep| kept::begin(keep, process.boot_id, &interrupted);
        let beginning = options.keep.as_ref().map(begin).transpose()?;
        let (name, advertised, server, port) = claim_again(&options, beginning.as_ref(), &events)?;
        let identity = opening::identity(&name, &process, mark);
        let at = Start { masters: &masters, identity: &identity, process: &process, interrupted: &interrupted };
        let (opened, session, kept) = at.open(beginning, server.as_ref(), &advertised)?;

        let (storage, cluster_id) = (opened.reply.storage.clone(), opened.reply.cluster_id.clone());
        let tiers_allowed = !opened.reply.no_tiers;
        let control = Control::new(&options, masters, session, opened.position(), cluster_id)
            .map_err(setup("making an eventfd"))?;
        let control = Arc::new(control);
        events.report_to(control.clone());
        let directory = Arc::<Directory>::default();
        let links =
            LinkSet::new(&options, mark, control.clone(), directory.clone()).map_err(setup("starting links"))?;
        let shared = Arc::new(StoreContext {
            control: control.clone(),
            links,
            directory,
            owner: OnceLock::new(),
            tiers: StoreTiers::default(),
            put_sessions: Mutex::default(),
            name: name.clone(),
            process,
        });
        let (kept, claimed) = kept.unzip();
        kept.iter().for_each(|kept| _ = control.kept.set(kept.clone()));
        let mut lends = false;
        if let Some(server) = server {
            let ownership = Ownership { server, huge_pages: options.huge_pages, name, advertised, process, kept };
            let owner = SegmentOwner::prepare(control, ownership)?;
            let owner = shared.owner.get_or_init(|| owner);
            // Before the anchor hears what the master asks of it.
            lends = claimed.flatten().is_some_and(|claimed| owner.take_over(claimed));
        }
        let anchor = anchor::start(shared.clone(), identity, opened)?;
        let inner = Inner::new(shared.clone(), options, anchor, port);
        if let Err(error) = inner.lend(lends, tiers_allowed) {
            // What was taken over is left to the next process: it finds all of it where this one did.
            if !lends {
                inner.close();
            }
            return Err(error);
        }
        if let Some(storage) = storage {
            inner.share(storage);
        }
        inner.settings.keep.iter().for_each(|keep| keep.holder.begun());
        let inner = Arc::new(inner);
        if let Some(every) = inner.settings.metric_interval.filter(|_| inner.settings.metrics) {
            let thread = report::start(&inner, every).map_err(setup("starting the report of metrics"))?;
            inner.reporter.get_or_init(|| thread);
        }
        Ok(Store { inner })
    }

    /// "host:port": this client's name, its segment's, and what
    /// [`PutOptions::preferred_segments`] names.
    pub fn hostname(&self) -> &str {
        &self.inner.shared.name
    }

    /// Asks the master whether it is there.
    pub fn health(&self) -> Health {
        if self.is_closed() {
            return Health::Closed;
        }
        match self.inner.check().and_then(|()| self.inner.ping()) {
            Ok(()) => Health::Ok,
            Err(error) if error.kind() == ErrorKind::Closed => Health::Closed,
            Err(_) => Health::MasterUnreachable,
        }
    }

    /// Takes the segment out of the pool and ends the session. Views survive.
    /// Closing twice is closing once; dropping the last clone closes too.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Ends, and leaves the memory and the tiers to the next process: [`StoreOptions::keep`]. To be followed by the end
    /// of this one, until which peers are served. A store whose memory does not outlive it closes.
    pub fn leave(&self) {
        self.inner.leave();
    }

    /// Whether it has been closed.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }

    /// Registered memory, for [`Source::foreign`] and [`mooncake_memory::Destination::foreign`].
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Registers memory: pieces inside it are copied directly.
    pub fn register(&self, range: ForeignRange) -> Result<(), StoreError> {
        self.inner.check()?;
        self.inner.registry.register(range).map_err(|error| Cause::Register(error).into())
    }

    /// Forgets registered memory by its first address.
    pub fn unregister(&self, addr: usize) -> Result<(), StoreError> {
        self.inner.check()?;
        match self.inner.registry.unregister(addr) {
            true => Ok(()),
            false => Err(Cause::NotRegistered { addr }.into()),
        }
    }

    /// Stores one object: the concatenation of the pieces.
    pub fn put(&self, key: &[u8], value: &[Source<'_>], options: &PutOptions) -> Result<PutOutcome, StoreError> {
        let lost = || Err(Cause::Superseded { attempts: 0 }.into());
        self.put_batch(&[PutItem { key, value }], options).pop().unwrap_or_else(lost)
    }

    /// Stores objects; a result per object.
    pub fn put_batch(&self, items: &[PutItem<'_>], options: &PutOptions) -> Vec<Result<PutOutcome, StoreError>> {
        if let Err(error) = self.inner.check() {
            return items.iter().map(|_| Err(error.clone())).collect();
        }
        let timer = self.inner.timer();
        let results = self.inner.put_batch(items, options);
        if let Some(timer) = timer {
            let stored =
                items.iter().zip(&results).filter(|(_, result)| matches!(result, Ok(PutOutcome::Stored { .. })));
            let bytes = stored.map(|(item, _)| total_of_sources(item.value)).sum();
            timer.moved(Operation::write(options.replace, items.len()), bytes);
        }
        results
    }

    /// Stores one object in the place of what is there: [`PutOptions::replace`].
    pub fn upsert(&self, key: &[u8], value: &[Source<'_>], options: &PutOptions) -> Result<PutOutcome, StoreError> {
        self.put(key, value, &PutOptions { replace: true, ..options.clone() })
    }

    /// Stores objects in the place of what is there; a result per object. Of a
    /// key that is in the batch twice the last value counts.
    pub fn upsert_batch(&self, items: &[PutItem<'_>], options: &PutOptions) -> Vec<Result<PutOutcome, StoreError>> {
        self.put_batch(items, &PutOptions { replace: true, ..options.clone() })
    }

    /// One object's bytes; `None` is a miss.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.get_batch_with(&[key], |_, size| Ok(vec![0; size as usize])).pop().unwrap_or(Ok(None))
    }

    /// Objects into memory that `alloc(index, size)` makes once the size is
    /// known (once more, should the object have changed in between).
    pub fn get_batch_with<K: AsRef<[u8]>, B: Receive>(
        &self,
        keys: &[K],
        alloc: impl FnMut(usize, u64) -> Result<B, StoreError>,
    ) -> Vec<Result<Option<B>, StoreError>> {
        if let Err(error) = self.inner.check() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let timer = self.inner.timer();
        let (results, bytes) = self.inner.get_batch_with(&keys, alloc);
        if let Some(timer) = timer {
            timer.moved(Operation::get(keys.len()), bytes);
        }
        results
    }

    /// Objects into the caller's memory. Bytes read per object; `None` is a miss.
    pub fn get_into(&self, items: &mut [GetInto<'_>]) -> Vec<Result<Option<u64>, StoreError>> {
        if let Err(error) = self.inner.check() {
            return items.iter().map(|_| Err(error.clone())).collect();
        }
        let timer = self.inner.timer();
        let results = self.inner.get_into(items);
        if let Some(timer) = timer {
            timer.moved(Operation::get_into(items.len()), bytes_of(&results));
        }
        results
    }

    /// Parts of objects into the caller's memory, with one look-up for all. An
    /// outcome per part; those of an object that is not there are misses.
    pub fn get_ranges(&self, items: &mut [GetRanges<'_>]) -> Vec<Vec<RangeOutcome>> {
        if let Err(error) = self.inner.check() {
            return items.iter().map(|item| item.ranges.iter().map(|_| Err(error.clone())).collect()).collect();
        }
        let timer = self.inner.timer();
        let results = self.inner.get_ranges(items);
        if let Some(timer) = timer {
            timer.moved(Operation::GetRanges, results.iter().map(|outcomes| bytes_of(outcomes)).sum());
        }
        results
    }

    /// Looks objects up to read them in parts, [by ranges](Store::read_in_sessions), with no further question to the
    /// master. As an existence query it has them stay for a second at least; it holds nothing longer than that. Begun
    /// twice, a session is looked up anew and ends when it is ended twice, whether or not it was over in between.
    /// [`ErrorKind::NotFound`] for what is not there.
    pub fn start_get_sessions<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), StoreError>> {
        if let Err(error) = self.inner.check() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.inner.start_get_sessions(&keys)
    }

    /// Parts of objects into the caller's memory, each in the session of its key: bytes read for each key, all of its
    /// parts or none. [`ErrorKind::SessionOver`] where no placement that the session knows can be read any more: it is
    /// over then.
    /// [`ErrorKind::NotFound`], as of any get, where one may be in a moment: an owner stands still, say.
    /// A part that the object does not have is [`ErrorKind::InvalidParams`].
    pub fn read_in_sessions(&self, items: &mut [GetRanges<'_>]) -> Vec<Result<u64, StoreError>> {
        if let Err(error) = self.inner.check() {
            return items.iter().map(|_| Err(error.clone())).collect();
        }
        let timer = self.inner.timer();
        let results = self.inner.read_in_sessions(items);
        if let Some(timer) = timer {
            timer.moved(Operation::GetRanges, results.iter().flatten().sum());
        }
        results
    }

    /// Ends get sessions; one that there is not is none to end.
    pub fn end_get_sessions<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<(), StoreError> {
        self.inner.check()?;
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.inner.end_get_sessions(&keys);
        Ok(())
    }

    /// Reserves room for objects of these sizes, to be [filled in parts](Store::write_in_sessions) by any threads, in
    /// any order, and then [ended](Store::end_put_sessions) or [aborted](Store::abort_put_sessions). What is
    /// reserved stays so for ten minutes at most (for 30 s where a master that runs does not hear this client, and its
    /// key yields to others at once then), and counts among what a client may have unfinished: beyond that, and beyond
    /// 16,384 replicas in put sessions of this store, [`ErrorKind::NoSpace`].
    /// [`ErrorKind::Exists`] for what is there, [`ErrorKind::Busy`] for what others put, [`ErrorKind::InvalidParams`]
    /// for a key that has a session of this store.
    pub fn start_put_sessions<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        sizes: &[u64],
        options: &PutOptions,
    ) -> Vec<Result<(), StoreError>> {
        let refused = match self.inner.check() {
            Err(error) => Some(error),
            Ok(()) if options.replace => Some(Cause::InvalidParams("a put session replaces nothing".into()).into()),
            Ok(()) if keys.len() != sizes.len() => {
                Some(Cause::InvalidParams(format!("{} keys and {} sizes", keys.len(), sizes.len())).into())
            }
            Ok(()) => None,
        };
        if let Some(error) = refused {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.inner.start_put_sessions(&keys, sizes, options)
    }

    /// Parts of objects, each in the put session of its key, into all of its replicas: bytes written for each key.
    /// Bytes may be written again; the last ones count. [`ErrorKind::InvalidParams`] for a part that the object is not
    /// to have, and where there is no session; [`ErrorKind::SessionOver`] where what was reserved is lost. After
    /// another failure, as of the caller's memory, the parts of that key are not written, and may be once more.
    pub fn write_in_sessions(&self, items: &[PutRanges<'_>]) -> Vec<Result<u64, StoreError>> {
        if let Err(error) = self.inner.check() {
            return items.iter().map(|_| Err(error.clone())).collect();
        }
        let timer = self.inner.timer();
        let results = self.inner.write_in_sessions(items);
        if let Some(timer) = timer {
            timer.moved(Operation::write(false, items.len()), results.iter().flatten().sum());
        }
        results
    }

    /// Makes objects of what was filled, once all writes that are under way have ended. A key of which a byte was never
    /// written is refused ([`ErrorKind::InvalidParams`], with the first hole) and keeps its session, and so does one of
    /// which the master could not be told: it may be ended again, or aborted. [`ErrorKind::SessionOver`] where what was
    /// reserved is lost.
    pub fn end_put_sessions<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), StoreError>> {
        if let Err(error) = self.inner.check() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.inner.end_put_sessions(&keys)
    }

    /// Aborts the put sessions of keys (Mooncake's *revoke*): what this says `Ok` of never becomes an object. Where an
    /// end was sent, the master is asked: [`ErrorKind::InvalidParams`] where that has made the object, as for a key
    /// without a session, [`ErrorKind::SessionOver`] where something else has aborted it; as long as the master does
    /// not answer, the session goes on.
    pub fn abort_put_sessions<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), StoreError>> {
        if let Err(error) = self.inner.check() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.inner.abort_put_sessions(&keys)
    }

    /// Objects in place, pinned and verified; `None` is a miss.
    pub fn view<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<View>, StoreError>> {
        if let Err(error) = self.inner.check() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let timer = self.inner.timer();
        let views = self.inner.view_batch(&keys);
        if let Some(timer) = timer {
            let bytes = views.iter().flatten().flatten().map(|view| view.len() as u64).sum();
            timer.moved(Operation::get_buffer(keys.len()), bytes);
        }
        views
    }

    /// Which of the keys are there. What is found stays for a second at least,
    /// so that a load that follows does not miss. Keys that no object can have
    /// are not there.
    pub fn exists<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>, StoreError> {
        self.inner.check()?;
        self.inner.exists(keys, false, false, |reply, index| reply.found[index] != 0)
    }

    /// Sizes of the objects that are there; protects like [`Store::exists`].
    pub fn sizes<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<u64>>, StoreError> {
        self.inner.check()?;
        self.inner.exists(keys, true, None, |reply, index| (reply.found[index] != 0).then(|| reply.sizes[index]))
    }

    /// Removes objects at once, whatever is being read. Without `force` objects
    /// that were looked up a moment ago stay.
    pub fn remove<K: AsRef<[u8]>>(&self, keys: &[K], force: bool) -> Result<Vec<RemoveOutcome>, StoreError> {
        self.inner.check()?;
        self.inner.remove(keys, force)
    }

    /// Drops the replicas of objects that lie on segments of that name, all of them if it is empty; an object leaves
    /// with its last one. [`RemoveOutcome::Removed`] says that a replica was dropped, [`RemoveOutcome::Protected`] that
    /// the object was looked up a moment ago, has a pin, or is under a view, [`RemoveOutcome::Busy`] that it is being
    /// put or replaced.
    pub fn clear_replicas<K: AsRef<[u8]>>(&self, keys: &[K], segment: &str) -> Result<Vec<RemoveOutcome>, StoreError> {
        self.inner.check()?;
        self.inner.clear_replicas(keys, segment)
    }

    /// Removes every object that is there now; how many those were.
    pub fn remove_all(&self, force: bool) -> Result<u64, StoreError> {
        self.inner.check()?;
        self.inner.remove_all(force)
    }

    /// Removes the objects that are there now and in whose keys the pattern is
    /// found, anywhere; how many those were. Without `force` those stay that
    /// were looked up a moment ago.
    ///
    /// Patterns are searched for in linear time, by the syntax of the `regex`
    /// crate, `\d`, `\w` and `\s` being ASCII: look-around and
    /// back-references are refused ([`Cause::BadPattern`]).
    pub fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, StoreError> {
        self.inner.check()?;
        self.inner.remove_by_regex(pattern, force)
    }

    /// Where the replicas of objects lie; `None` = not there. Protects what it
    /// finds like [`Store::exists`].
    pub fn describe<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<ReplicaDescriptor>>>, StoreError> {
        self.inner.check()?;
        self.inner.describe(keys)
    }

    /// Gives the pool another `bytes` of memory, rounded up to whole pages: the
    /// segment's id, and its bytes. It has this store's name, as its first one
    /// has; a store without one begins to listen for data here.
    pub fn mount_memory(&self, bytes: u64) -> Result<(SegmentId, u64), StoreError> {
        self.inner.check()?;
        check_segment(bytes)?;
        self.inner.mount(Backing::Memory(bytes))
    }

    /// Gives the pool `bytes` of a file or of an object in `/dev/shm`, from
    /// `offset` on, which begins a page; whole granules of 1,024 bytes count.
    /// Their contents are overwritten.
    ///
    /// A process that may write to a file may truncate it, and a process that
    /// touches its memory then is killed. So no other process maps it: peers reach
    /// it over TCP, on this host too. A range that another segment has is refused.
    pub fn mount_file(&self, path: &FilePath, offset: u64, bytes: u64) -> Result<(SegmentId, u64), StoreError> {
        self.inner.check()?;
        check_segment(bytes)?;
        self.inner.mount(Backing::File { path: path.to_owned(), offset, bytes })
    }

    /// Takes a segment out of the pool and gives its memory back. With a grace it
    /// takes no new objects from now on, and can be read until that is over;
    /// the call does not wait for it.
    pub fn unmount_segment(&self, id: SegmentId, grace: Duration) -> Result<(), StoreError> {
        self.inner.check()?;
        match self.inner.shared.owner.get() {
            Some(owner) => owner.unmount(id, grace),
            None => Err(Cause::NoSuchSegment { id: id.to_string() }.into()),
        }
    }

    /// Leaves this store's tiers when the grace is over, for which the call waits: what lies there is read no more, and
    /// is there again when a process takes the folders. Without a tier it returns at once.
    pub fn leave_tier(&self, grace: Duration) -> Result<(), StoreError> {
        self.inner.check()?;
        let tiers = &self.inner.shared.tiers;
        if tiers.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        while began.elapsed() < grace {
            self.inner.check()?;
            if self.inner.is_interrupted() {
                return Err(Cause::Interrupted.into());
            }
            thread::sleep(LOOK_INTERVAL.min(grace.saturating_sub(began.elapsed())));
        }
        tiers.close(false);
        Ok(())
    }

    /// Reads of objects, and of parts of them, that tiers have answered.
    pub fn tier_reads(&self) -> u64 {
        self.inner.shared.links.tier_reads()
    }

    /// What this store has counted, as Prometheus reads it; `None` with [`StoreOptions::metrics`] off. See
    /// `docs/metrics.md`.
    pub fn metrics_page(&self) -> Option<String> {
        self.inner.shared.control.metrics.as_ref().map(Metrics::page)
    }

    /// What this store has counted, in one line for people; `None` with [`StoreOptions::metrics`] off.
    pub fn metrics_summary(&self) -> Option<String> {
        self.inner.shared.control.metrics.as_ref().map(|metrics| metrics.read().summary(None))
    }

    /// The master, "host:port".
    pub fn master(&self) -> String {
        self.inner.shared.control.masters.to_string()
    }

    /// How the segments met so far are reached.
    pub fn links(&self) -> Vec<LinkReport> {
        if forked() { Vec::new() } else { self.inner.shared.links.report() }
    }

    /// Why the last miss was one that the master did not know of: a replica
    /// that could not be read. `None` if there was none.
    pub fn last_miss_cause(&self) -> Option<String> {
        if forked() { None } else { self.inner.last_miss.lock().as_ref().map(|(_, cause)| cause.clone()) }
    }

    /// As [`Store::last_miss_cause`], if a call of this thread noted it and
    /// no caller took it yet: what an edge that answers misses with a plain code
    /// can say besides.
    pub fn take_miss_cause(&self) -> Option<String> {
        if forked() {
            return None;
        }
        let mut last = self.inner.last_miss.lock();
        last.take_if(|(thread, _)| *thread == thread::current().id()).map(|(_, cause)| cause)
    }
}

fn check_segment(bytes: u64) -> Result<(), StoreError> {
    if bytes < SEGMENT_MIN {
        let reason = format!("a segment of {bytes} bytes; the smallest has {SEGMENT_MIN}");
        return Err(Cause::InvalidParams(reason).into());
    }
    Ok(())
}

fn check_sizes(options: &StoreOptions) -> Result<(), StoreError> {
    let size = options.global_segment_size;
    if size != 0 && size < SEGMENT_MIN {
        let reason = format!("global_segment_size is {size} bytes; it is 0 (give no memory) or at least {SEGMENT_MIN}");
        return Err(Cause::InvalidParams(reason).into());
    }
    Ok(())
}

fn setup<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> StoreError {
    move |error| Cause::Setup { what, reason: error.to_string() }.into()
}

mod start;
#[cfg(test)]
mod tests;

#[cfg(test)]
impl Store {
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

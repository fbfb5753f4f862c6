//! Where segments are: the numbers of placements, resolved once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::{FileSystemUuid, Rid, SegmentUuid};
use mooncake_segment::SegmentAddress;
use mooncake_wire::message::{Replica, Segment, Segments, reply, request};
use parking_lot::{Mutex, RwLock};

use crate::descriptors::{self, MAPPED, REACHED};
use crate::error::StoreError;
use crate::machine::directory as machine;
use crate::machine::numbering::Numbering;
use crate::process::process;
use crate::session::control::Control;

/// Segments met so far, for all threads of a store: [`machine::directory`](crate::machine::directory).
#[derive(Debug, Default)]
pub(crate) struct Directory {
    known: RwLock<machine::Directory<Arc<SegmentAddress>>>,
    /// Tiers that did not answer, and when the master was asked about them.
    asked_anew: Mutex<BTreeMap<u32, Instant>>,
    /// Segments whose owners did not answer, and when the master was asked about them.
    asked_moved: Mutex<BTreeMap<SegmentUuid, Instant>>,
    /// Segments whose owners have ended, and whether there are any: what calls look at.
    ended: Mutex<Vec<Ended>>,
    any_ended: AtomicBool,
    /// A tier was met, ever.
    has_tiers: AtomicBool,
    /// Of tiers that were met, the file systems that clients share.
    file_systems: RwLock<HashMap<SegmentUuid, FileSystemUuid>>,
}

/// A segment whose owner has ended: the master is asked until it is somewhere else, or Gone.
#[derive(Debug)]
struct Ended {
    former: Arc<SegmentAddress>,
    asked: Option<Instant>,
}

/// Between two questions where a segment is whose owner does not answer. A call waits for the answer.
const MOVED_PAUSE: Duration = Duration::from_millis(200);

/// Between two questions where a tier is that does not answer.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// Rids of replicas, each with its segment where that has been met.
pub(crate) type MetSegments = Vec<(Rid, Option<Arc<SegmentAddress>>)>;

/// The segment of that replica.
pub(crate) fn segment_of(met: &MetSegments, rid: Rid) -> Option<&Arc<SegmentAddress>> {
    met.iter().find(|(other, _)| *other == rid)?.1.as_ref()
}

impl Directory {
    /// The segments of these from now on, under whatever numbering others are met.
    pub fn met_segments(&self, numbering: Numbering, replicas: &[Replica]) -> MetSegments {
        let segment = |replica: &Replica| self.find(numbering, replica.extents.first()?.segment);
        replicas.iter().map(|replica| (Rid(replica.rid), segment(replica))).collect()
    }

    /// The segment of a placement, if it has been met.
    pub fn find(&self, numbering: Numbering, number: u32) -> Option<Arc<SegmentAddress>> {
        self.known.read().find(numbering, number).cloned()
    }

    /// Asks the master once for every segment of some placements not met before.
    pub fn meet<'r>(
        &self,
        control: &Arc<Control>,
        numbering: Numbering,
        replicas: impl Iterator<Item = &'r Replica>,
    ) -> Result<(), StoreError> {
        let mut missing = self.known.read().missing(numbering, replicas);
        let is_needed = !missing.is_empty();
        missing.extend(self.due_after_ends(Instant::now()));
        if missing.is_empty() {
            return Ok(());
        }
        match self.ask(control, missing) {
            Err(error) if is_needed => Err(error),
            // The placements need nothing that the master has not said.
            _ => Ok(()),
        }
    }

    /// The segments whose owners have ended, and that the master is to be asked about now.
    fn due_after_ends(&self, now: Instant) -> Vec<u32> {
        if !self.any_ended.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut ended = self.ended.lock();
        let mut due = Vec::new();
        ended.retain_mut(|Ended { former, asked }| {
            let Some((number, _)) = self.find_by_uuid(former.uuid).filter(|(_, found)| found == former) else {
                return false;
            };
            if asked.is_none_or(|at| now.duration_since(at) >= MOVED_PAUSE) {
                *asked = Some(now);
                due.push(number);
            }
            true
        });
        self.any_ended.store(!ended.is_empty(), Ordering::Relaxed);
        due
    }

    fn ask(&self, control: &Arc<Control>, numbers: Vec<u32>) -> Result<(), StoreError> {
        const WHAT: &str = "a query for segments";
        let body = request::Body::Segments(Segments { numbers });
        let reply = control.query(WHAT, body, control.lookup_timeout)?;
        let reply::Body::Segments(found) = reply.body else { return Err(control.confused(WHAT)) };
        for segment in &found.segments {
            let uuid = SegmentUuid::try_from(&segment.uuid[..]);
            if let (Ok(uuid), Ok(on)) = (uuid, FileSystemUuid::try_from(&segment.file_system[..])) {
                self.file_systems.write().insert(uuid, on);
            }
        }
        let found = found.segments.into_iter();
        let segments = found.filter_map(|segment| Some((segment.number, Arc::new(address(segment)?))));
        let segments: Vec<_> = segments.collect();
        if segments.iter().any(|(_, address)| address.is_tier()) {
            self.has_tiers.store(true, Ordering::Relaxed);
        }
        let mut known = self.known.write();
        known.met(reply.numbering, segments.into_iter());
        let count = known.count();
        drop(known);
        let each = if control.maps_memory { MAPPED } else { REACHED };
        descriptors::warn_if_too_few(count, "segments of this pool", each);
        Ok(())
    }

    /// On which of the file systems that clients share a tier lies, if it does on one.
    pub fn file_system(&self, tier: &SegmentAddress) -> Option<FileSystemUuid> {
        self.file_systems.read().get(&tier.uuid).copied()
    }

    /// Whether this store has met any tier: without one, nothing is to be looked for there.
    #[inline]
    pub fn has_tiers(&self) -> bool {
        self.has_tiers.load(Ordering::Relaxed)
    }

    /// Asks the master anew where a tier is that does not answer at an address: another process may have it by now. Not
    /// more often than once a second. `None` if it is where it was.
    pub fn renew(
        &self,
        control: &Arc<Control>,
        numbering: Numbering,
        replica: &Replica,
        former: &SegmentAddress,
    ) -> Option<Arc<SegmentAddress>> {
        let number = replica.extents.first()?.segment;
        let is_other = |found: &Arc<SegmentAddress>| **found != *former;
        if let Some(found) = self.find(numbering, number).filter(is_other) {
            return Some(found);
        }
        let mut asked = self.asked_anew.lock();
        let now = Instant::now();
        asked.retain(|_, at| now.duration_since(*at) < RENEWAL_PAUSE);
        if asked.contains_key(&number) {
            return None;
        }
        asked.insert(number, now);
        drop(asked);
        self.known.write().forget(number);
        self.meet(control, numbering, std::iter::once(replica)).ok()?;
        self.find(numbering, number).filter(is_other)
    }

    /// Where a segment is whose owner does not answer at an address: another process may have its memory by now, and
    /// the master is asked, five times a second at most. `None` if it is where it was.
    pub fn moved(&self, control: &Arc<Control>, former: &SegmentAddress) -> Option<Arc<SegmentAddress>> {
        let (number, found) = self.find_by_uuid(former.uuid)?;
        if *found != *former {
            return Some(found);
        }
        let mut asked = self.asked_moved.lock();
        let now = Instant::now();
        asked.retain(|_, at| now.duration_since(*at) < MOVED_PAUSE);
        if asked.contains_key(&former.uuid) {
            return None;
        }
        asked.insert(former.uuid, now);
        drop(asked);
        // What is known stays meanwhile: other calls may reach it.
        self.ask(control, vec![number]).ok()?;
        self.find_by_uuid(former.uuid).map(|(_, found)| found).filter(|found| **found != *former)
    }

    fn find_by_uuid(&self, uuid: SegmentUuid) -> Option<(u32, Arc<SegmentAddress>)> {
        self.known.read().find_where(|address| address.uuid == uuid).map(|(number, found)| (number, found.clone()))
    }

    /// The owner of a segment has ended. Calls that meet it ask where the memory is by then. What is known stays
    /// meanwhile: a call that is under way may find it in a mapping.
    pub fn owner_ended(&self, uuid: SegmentUuid) {
        if let Some((_, former)) = self.find_by_uuid(uuid) {
            self.ended.lock().push(Ended { former, asked: None });
            self.any_ended.store(true, Ordering::Relaxed);
        }
    }

    /// The segment is Gone.
    pub fn forget(&self, number: u32) {
        self.known.write().forget(number);
    }

    /// Another session began, perhaps with another master.
    pub fn start_over(&self) {
        self.known.write().start_over();
    }
}

fn address(segment: Segment) -> Option<SegmentAddress> {
    let endpoint = segment.endpoint?;
    Some(SegmentAddress {
        uuid: segment.uuid[..].try_into().ok()?,
        bytes: segment.bytes,
        name: segment.name,
        boot_id: endpoint.boot_id[..].try_into().unwrap_or_default(),
        unix_socket: endpoint.unix_socket,
        tcp: endpoint.tcp,
        access_key: endpoint.access_key,
        process: endpoint.process.and_then(process),
        tier_file_blocks: segment.tier_file_blocks,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use mooncake_wire::message::{Extent, LogPosition, Reply, SegmentsReply};

    use super::*;
    use crate::scripted_master::{Client, Lender, reply_to};

    fn numbering(log_id: u64) -> Numbering {
        Numbering { log_id, instance: [1; 16] }
    }

    fn replica(segment: u32) -> Replica {
        Replica { rid: 2, extents: vec![Extent { segment, ..Extent::default() }] }
    }

    #[test]
    fn a_number_means_what_the_log_says_that_gave_it_out() {
        let (client, _, _opened, _caller) = Client::without_thread();
        let control = &client.shared.control;
        let (lender, directory) = (Lender::start(), Directory::default());
        let segment = lender.segment();
        client.master.answers(move |request| {
            let segments = vec![segment.clone()];
            Some(reply_to(request, reply::Body::Segments(SegmentsReply { segments })))
        });
        // The placement is of log 5, and the master that is asked has log 1 by now.
        directory.meet(control, numbering(5), [&replica(1)].into_iter()).unwrap();
        assert!(directory.find(numbering(5), 1).is_none());
        let found = directory.find(numbering(1), 1).expect("it has been met");
        assert_eq!((found.uuid, found.bytes), (lender.memory.uuid(), lender.memory.bytes()));
        let asked = client.master.asked().len();
        directory.meet(control, numbering(1), [&replica(1), &replica(1)].into_iter()).unwrap();
        assert_eq!(client.master.asked().len(), asked, "nothing is asked twice");
        directory.meet(control, numbering(1), [&replica(1), &replica(3), &replica(3)].into_iter()).unwrap();
        let last = client.master.asked().pop();
        assert_eq!(last, Some(request::Body::Segments(Segments { numbers: vec![3] })));
        directory.meet(control, numbering(5), [&replica(1)].into_iter()).unwrap();
        assert_eq!(client.master.asked().len(), asked + 2, "of another log it is another one");
        directory.forget(1);
        assert!(directory.find(numbering(1), 1).is_none());
    }

    #[test]
    fn a_segment_whose_owner_does_not_answer_is_where_the_master_says_and_that_is_asked_now_and_then() {
        let (client, _, _opened, _caller) = Client::without_thread();
        let control = &client.shared.control;
        let (lender, directory) = (Lender::start(), Directory::default());
        let tenure = Arc::new(AtomicU64::new(1));
        let (segment, owner) = (lender.segment(), tenure.clone());
        client.master.answers(move |request| {
            let Some(request::Body::Segments(asked)) = &request.body else { return None };
            let mut segment = Segment { number: asked.numbers[0], ..segment.clone() };
            segment.endpoint.as_mut()?.unix_socket = format!("owner-{}", owner.load(Ordering::SeqCst));
            let segments = vec![segment];
            Some(reply_to(request, reply::Body::Segments(SegmentsReply { segments })))
        });
        directory.meet(control, numbering(1), [&replica(1)].into_iter()).unwrap();
        let former = directory.find(numbering(1), 1).unwrap();
        assert_eq!(directory.moved(control, &former), None, "it is where it was");
        let asked = client.master.asked().len();
        tenure.store(2, Ordering::SeqCst);
        assert_eq!(directory.moved(control, &former), None, "a moment ago it was");
        assert_eq!(client.master.asked().len(), asked);
        std::thread::sleep(MOVED_PAUSE);
        let found = directory.moved(control, &former).expect("it has another owner");
        assert_eq!((&*found.unix_socket, found.uuid), ("owner-2", former.uuid));
        assert_eq!(directory.moved(control, &former), Some(found), "that is known by now");
        assert_eq!(client.master.asked().len(), asked + 1);
        directory.owner_ended(former.uuid);
        tenure.store(3, Ordering::SeqCst);
        let met = || directory.find(numbering(1), 1).unwrap().unix_socket.clone();
        assert_eq!(met(), "owner-2", "a call that is under way may find it there");
        for _ in 0..2 {
            directory.meet(control, numbering(1), [&replica(1)].into_iter()).unwrap();
        }
        assert_eq!((met(), client.master.asked().len()), ("owner-3".to_owned(), asked + 2));
    }

    #[test]
    fn numbers_of_an_earlier_log_are_asked_for_again() {
        let (client, _, _opened, _caller) = Client::without_thread();
        let control = &client.shared.control;
        let (lender, other, directory) = (Lender::start(), Lender::start(), Directory::default());
        let log = Arc::new(AtomicU64::new(1));
        let (log_id, own, others) = (log.clone(), lender.segment(), other.segment());
        client.master.answers(move |request| {
            let log_id = log_id.load(Ordering::SeqCst);
            let Some(request::Body::Segments(asked)) = &request.body else { return None };
            let of =
                |number: &u32| Segment { number: *number, ..if log_id == 1 { own.clone() } else { others.clone() } };
            let segments = asked.numbers.iter().map(of).collect();
            let reply = reply_to(request, reply::Body::Segments(SegmentsReply { segments }));
            Some(Reply { position: Some(LogPosition { log_id, ..reply.position.unwrap() }), ..reply })
        });
        directory.meet(control, numbering(1), [&replica(5), &replica(6)].into_iter()).unwrap();
        // The log was lost, and its numbers are given to other segments.
        log.store(2, Ordering::SeqCst);
        directory.meet(control, numbering(2), [&replica(6)].into_iter()).unwrap();
        assert!(directory.find(numbering(2), 5).is_none() && directory.find(numbering(1), 6).is_none());
        directory.meet(control, numbering(2), [&replica(5)].into_iter()).unwrap();
        let found = [5, 6].map(|number| directory.find(numbering(2), number).unwrap().uuid);
        assert_eq!(found, [other.memory.uuid(); 2]);
        directory.start_over();
        assert!(directory.find(numbering(2), 5).is_none());
    }
}

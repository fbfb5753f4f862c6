//! The thread that has the folder: it mounts the tier with each session, writes what is ordered, and carries words
//! between [`mooncake_tier::owner`] and the master.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid, TierUuid};
use mooncake_memory::Destination;
use mooncake_os::{Deadline, forked};
use mooncake_segment::{RecordAddress, RecordError, Records, SegmentAddress};
use mooncake_tier::health::Fitness;
use mooncake_tier::owner::{Source, ToMaster};
use mooncake_wire::message::{
    Closing, Rechecked, Replica, Tier, TierLeave, TierMount, TierOrder, TierRecheck, TierReclaim, TierWritten,
    anchor_up, reply, request,
};
use mooncake_wire::pack_keys;

use super::folder::{TierFolder, delete_unknown};
use super::promoter::Promoter;
use super::records::FolderRecords;
use super::source::{Copied, OwnExtent};
use super::{StoreTier, Surroundings, Word};
use crate::error::{ErrorKind, StoreError};
use crate::options::TierOptions;
use crate::segments::owner::random_key;

/// How long it waits for words while nothing is on its way to the disk.
const REST: Duration = Duration::from_millis(50);

/// How long it waits for the disk before it looks for words.
const DISK_WAIT: Duration = Duration::from_millis(1);

/// Between two tries to mount.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A store whose memory goes waits so long for another order: the master looks through a million objects meanwhile.
const QUIET: Duration = Duration::from_millis(300);

/// Time that the disk has for what is read back when the tier is mounted.
const PROOF_LIMIT: Duration = Duration::from_secs(60);

/// Time for a copy of another process's memory.
const COPY_LIMIT: Duration = Duration::from_secs(3);

/// How often it looks for folders that no log of this pool knows.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How long a process of before may take to leave its folder, before another one is made.
const LEAVING_LIMIT: Duration = Duration::from_secs(5);

/// How often it looks whether one has.
const LEFT_EVERY: Duration = Duration::from_millis(100);

/// The folder that a process of before leaves, or a new one; none if the store closes before.
fn waited_for(tier: &StoreTier, options: &TierOptions, surroundings: &Surroundings) -> Option<TierFolder> {
    let (control, until) = (&surroundings.control, Instant::now() + LEAVING_LIMIT);
    loop {
        // What is said of a session is said again when the tier is mounted.
        if tier.heard(LEFT_EVERY).iter().any(|word| matches!(word, Word::Close { .. }))
            || control.is_stopped()
            || forked()
        {
            return None;
        }
        match TierFolder::take_or_wait(options, control, &[], Instant::now() < until) {
            Ok(Some(folder)) => return Some(folder),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "no folder for a tier: this store keeps none");
                return None;
            }
        }
    }
}

pub(super) fn run(tier: &StoreTier, options: TierOptions, folder: Option<TierFolder>, surroundings: &Surroundings) {
    let Some(folder) = folder.or_else(|| waited_for(tier, &options, surroundings)) else { return };
    tier.is_of(Some(folder.uuid));
    let (records, access_key) = (records_of(&folder), random_key().unwrap_or(1));
    let mut driver = Driver {
        tier,
        options,
        folder,
        records,
        access_key,
        surroundings,
        began: Instant::now(),
        mount_at: Some(Instant::now()),
        mounted: false,
        hidden: false,
        refused: None,
        useless: Vec::new(),
        looked_at: None,
        unreachable: None,
        promoter: Promoter::new(),
    };
    driver.serve();
    let control = &surroundings.control;
    let (mut closing, mut busy_at, mut waiting) = (None, Instant::now(), VecDeque::new());
    while !forked() && (closing.is_some() || !control.is_stopped()) {
        let rest = if waiting.is_empty() && driver.is_resting() { REST } else { Duration::ZERO };
        for word in tier.heard(rest) {
            match word {
                Word::Close { with_memory } if closing.is_none() => {
                    closing = Some((Instant::now() + driver.options.close_limit, with_memory));
                    busy_at = Instant::now();
                    if with_memory {
                        driver.closes();
                    }
                }
                Word::Close { .. } => {}
                // It came while this thread had another folder.
                Word::Gone(uuid) if uuid != driver.folder.uuid => {}
                // One that is Gone is mounted no more: the master's answer has another one begun.
                Word::Mount | Word::Gone(_) => {
                    // The others are of a session before.
                    waiting.retain(|word| matches!(word, Word::Recheck(_)));
                    driver.forget_session();
                }
                word => waiting.push_back(word),
            }
        }
        // One that waits for another process is enough: whatever else has come is not to wait as long.
        while let Some(word) = waiting.pop_front()
            && !driver.obey(word)
        {}
        driver.go_on(closing.is_none());
        if let Some((until, with_memory)) = closing {
            driver.folder.tier.sync_at_once();
            if !waiting.is_empty() || !driver.folder.tier.is_idle() {
                busy_at = Instant::now();
            }
            let quiet = if with_memory && driver.mounted { QUIET } else { Duration::ZERO };
            let is_idle = waiting.is_empty() && driver.folder.tier.is_idle();
            if is_idle && busy_at.elapsed() >= quiet || Instant::now() >= until {
                break;
            }
        }
    }
    driver.leave();
}

/// Who has what is to be written.
enum Holder {
    /// This store.
    Own(Arc<dyn Source>),
    /// Another process.
    Other(Arc<SegmentAddress>),
}

struct Driver<'a> {
    tier: &'a StoreTier,
    options: TierOptions,
    folder: TierFolder,
    records: Arc<FolderRecords>,
    access_key: u64,
    surroundings: &'a Surroundings,
    began: Instant,
    /// The tier is to be mounted then.
    mount_at: Option<Instant>,
    mounted: bool,
    /// It was left, as its disk stands still.
    hidden: bool,
    /// Why it is not, as was said.
    refused: Option<String>,
    /// Folders that the master does not know.
    useless: Vec<PathBuf>,
    /// When it looked for such folders of earlier processes.
    looked_at: Option<Instant>,
    /// The segment of another process that could not be read, and until when it is not tried again.
    unreachable: Option<(u32, Instant)>,
    promoter: Promoter,
}

fn records_of(folder: &TierFolder) -> Arc<FolderRecords> {
    Arc::new(FolderRecords::new(folder.folder.clone(), folder.uuid, folder.geometry))
}

impl Driver<'_> {
    fn serve(&self) {
        let (uuid, served): (_, Arc<dyn Records>) = (segment_uuid(self.folder.uuid), self.records.clone());
        self.surroundings.owner.server().add_tier(uuid, self.folder.capacity, self.access_key, served);
    }

    fn serve_no_more(&self) {
        self.surroundings.owner.server().remove_tier(segment_uuid(self.folder.uuid));
    }

    /// Nothing in the folder is of the master's log, and will be: another one is begun.
    fn begin_another(&mut self) {
        self.useless.push(self.folder.path.clone());
        match TierFolder::take(&self.options, &self.surroundings.control, &self.useless) {
            Ok(folder) => {
                self.serve_no_more();
                self.records = records_of(&folder);
                self.tier.is_of(Some(folder.uuid));
                drop(std::mem::replace(&mut self.folder, folder).tier.into_lock());
                self.serve();
                // The day that the other one has begins with the next look.
                (self.mount_at, self.looked_at) = (Some(Instant::now()), None);
            }
            Err(error) => {
                self.useless.pop();
                self.mount_at = Some(Instant::now() + LOOK_EVERY);
                tracing::warn!(%error, "no folder for another tier; it is tried again in a minute");
            }
        }
    }

    /// Nothing is to be done before a word comes, or some time has passed.
    fn is_resting(&self) -> bool {
        let is_due = self.mount_at.is_some_and(|at| at <= Instant::now());
        !is_due && (self.folder.tier.is_idle() || self.folder.tier.is_resting())
    }

    /// What memory has, and the tier has not, is to be ordered.
    fn closes(&self) {
        if self.mounted {
            let within_ms = u64::try_from(self.options.close_limit.as_millis()).unwrap_or(u64::MAX);
            self.surroundings.control.tell(anchor_up::Body::Closing(Closing { within_ms }));
        }
    }

    fn forget_session(&mut self) {
        self.folder.tier.anchor_lost();
        (self.mounted, self.mount_at) = (false, Some(Instant::now()));
    }

    /// True if it waited for another process.
    fn obey(&mut self, word: Word) -> bool {
        match word {
            // What comes while it is not mounted is of a session before.
            Word::Order(order) if self.mounted => return self.order(order),
            Word::Promote(order) if self.mounted => {
                self.promoter.ask(order, self.records.clone(), self.surroundings);
            }
            Word::Retire(retire) if self.mounted => {
                let epoch = u16::try_from(retire.epoch).unwrap_or(u16::MAX);
                self.folder.tier.retire(epoch, &retire.files);
            }
            Word::Recheck(recheck) => self.recheck(&recheck),
            Word::Order(_) | Word::Promote(_) | Word::Retire(_) => {}
            Word::Mount | Word::Gone(_) | Word::Close { .. } => {}
        }
        false
    }

    fn go_on(&mut self, takes_more: bool) {
        if takes_more && self.mount_at.is_some_and(|at| at <= Instant::now()) {
            self.mount();
        }
        if self.mounted {
            let log_id = self.surroundings.control.position().log_id;
            self.folder.tier.is_of_log(log_id);
            if self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                self.looked_at = Some(Instant::now());
                delete_unknown(&self.options, log_id, &self.useless);
            }
        }
        if self.records.is_failing() {
            self.folder.tier.fails(self.began.elapsed(), "many reads of it failed within a minute");
        }
        let wait = if self.folder.tier.is_idle() { Duration::ZERO } else { DISK_WAIT };
        for said in self.folder.tier.poll(self.began.elapsed(), wait) {
            if self.mounted {
                self.say(said);
            }
        }
        let is_hung = self.folder.tier.fitness() == Fitness::Hung;
        if is_hung && self.mounted {
            self.hide();
        } else if is_hung != std::mem::replace(&mut self.hidden, is_hung) && !is_hung {
            self.mount_at = Some(Instant::now());
        }
    }

    /// The disk stands still: no reader is sent here before it has answered.
    fn hide(&mut self) {
        let path = self.folder.path.display();
        tracing::error!(%path, "the disk of the tier stands still: what it has is not read until it answers");
        let leave = request::Body::TierLeave(TierLeave { uuid: self.folder.uuid.0.to_vec().into() });
        let control = &self.surroundings.control;
        if let Err(error) = control.finish("hiding the tier", leave, control.lookup_timeout) {
            tracing::debug!(%error, "the tier is not hidden yet");
            return;
        }
        self.folder.tier.anchor_lost();
        (self.mounted, self.hidden, self.mount_at) = (false, true, None);
    }

    fn mount(&mut self) {
        let control = &self.surroundings.control;
        let until = Instant::now() + PROOF_LIMIT;
        let time_left = || match control.is_stopped() || self.tier.is_closing() {
            true => Duration::ZERO,
            false => until.saturating_duration_since(Instant::now()),
        };
        let Some(proof) = self.folder.tier.proof(time_left) else {
            self.mount_at = Some(Instant::now() + RETRY_PAUSE);
            let path = self.folder.path.display();
            tracing::warn!(%path, "the disk does not answer what the tier has; it is asked again");
            return;
        };
        let session = control.session();
        let endpoint = self.surroundings.owner.tier_endpoint(self.access_key);
        let mount = TierMount {
            tier: Some(Tier {
                uuid: self.folder.uuid.0.to_vec().into(),
                secret: self.folder.secret.to_vec().into(),
                name: self.surroundings.owner.name().to_owned(),
                bytes: self.folder.capacity,
                file_blocks: self.folder.geometry.file_blocks(),
                endpoint: Some(endpoint),
            }),
            is_new: proof.is_new,
            head: proof.head,
            files: proof.files.into_iter().collect(),
            appended: proof.appended.into_iter().collect(),
            suspects: proof.suspects.into_iter().collect(),
            proven: proof.proven.iter().map(|rid| rid.0).collect(),
        };
        const WHAT: &str = "mounting the tier";
        let answer = control.query_on_any_thread(WHAT, request::Body::TierMount(mount), control.lookup_timeout * 4);
        let path = self.folder.path.display();
        match answer.map(|answer| answer.body) {
            Ok(reply::Body::TierMount(mounted)) if !mounted.unknown.is_empty() => {
                tracing::warn!(%path, reason = mounted.unknown, "another folder is begun");
                self.begin_another();
            }
            Ok(reply::Body::TierMount(mounted)) => {
                self.folder.tier.mounted(mounted.head);
                (self.mounted, self.mount_at, self.refused) = (true, None, None);
                let records: u64 = mounted.files.iter().map(|file| u64::from(file.records)).sum();
                tracing::info!(%path, session = session.id, records, "tier mounted");
            }
            other => {
                let error = other.err().unwrap_or_else(|| control.confused(WHAT));
                self.mount_at = Some(Instant::now() + RETRY_PAUSE);
                // Once, however often it is tried, as long as the reason is the same.
                let reason = error.to_string();
                if error.kind() != ErrorKind::Closed && self.refused.as_ref() != Some(&reason) {
                    tracing::warn!(%path, %error, "the tier is not mounted yet");
                    self.refused = Some(reason);
                }
            }
        }
    }

    /// True if it waited for another process.
    fn order(&mut self, order: TierOrder) -> bool {
        let (rid, object_id) = (Rid(order.rid), Rid(order.object_id));
        let (source, waited) = match order.source.as_ref().and_then(|replica| Some((replica, self.holder(replica)?))) {
            None => (None, false),
            Some((_, Holder::Own(source))) => (Some(source), false),
            Some((replica, Holder::Other(address))) => {
                let segment = replica.extents[0].segment;
                let is_unreachable = |(of, until): (u32, Instant)| of == segment && Instant::now() < until;
                if self.unreachable.is_some_and(is_unreachable) {
                    (None, false)
                } else {
                    let copied = self.copied(replica, &address, order.crc32c);
                    if copied.is_none() {
                        self.unreachable = Some((segment, Instant::now() + RETRY_PAUSE));
                    }
                    (copied, true)
                }
            }
        };
        match source {
            Some(source) => self.folder.tier.order(rid, object_id, order.key.to_vec(), order.crc32c, source),
            None => self.folder.tier.refuse(rid),
        }
        waited
    }

    /// None if the object is nowhere that this store knows.
    fn holder(&self, replica: &Replica) -> Option<Holder> {
        let Surroundings { control, owner, segments } = self.surroundings;
        let [extent] = &replica.extents[..] else { return None };
        let numbering = control.numbering();
        segments.directory().meet(control, numbering, std::iter::once(replica)).ok()?;
        let address = segments.directory().find(numbering, extent.segment)?;
        let (rid, offset, len) = (Rid(replica.rid), extent.offset, extent.length);
        Some(match owner.memory(address.uuid) {
            Some(memory) => Holder::Own(Arc::new(OwnExtent { memory, rid, offset, len })),
            None => Holder::Other(address),
        })
    }

    /// A copy of another process's memory.
    fn copied(&self, replica: &Replica, address: &SegmentAddress, crc32c: u32) -> Option<Arc<dyn Source>> {
        let [extent] = &replica.extents[..] else { return None };
        let (rid, offset, len, segments) =
            (Rid(replica.rid), extent.offset, extent.length, &self.surroundings.segments);
        let never = || false;
        let deadline = Deadline::after(COPY_LIMIT, &never);
        let link = segments.links().link(address, &deadline).ok()?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        link.read(rid, offset, &mut [Destination::new(&mut bytes)], Some(crc32c), &deadline).ok()?;
        Some(Arc::new(Copied(bytes)))
    }

    fn recheck(&self, recheck: &TierRecheck) {
        let Some(replica) = &recheck.replica else { return };
        let [extent] = &replica.extents[..] else { return };
        let key_bytes = u32::try_from(recheck.key.len()).unwrap_or(u32::MAX);
        let record = RecordAddress { rid: Rid(replica.rid), offset: extent.offset, size: extent.length, key_bytes };
        const PART: u64 = 4 << 20;
        let mut buffer = vec![0; extent.length.min(PART) as usize];
        let parts = (0..extent.length.max(1)).step_by(PART as usize);
        let read = parts.into_iter().try_for_each(|from| {
            let len = (extent.length - from).min(PART) as usize;
            self.records.read(&record, from, &mut buffer[..len])
        });
        // A disk that has no time, or fails, says nothing of the record. Its next reader asks once more.
        if matches!(read, Err(RecordError::Busy | RecordError::Failed)) {
            return;
        }
        let is_good = read.is_ok();
        if !is_good {
            tracing::warn!(rid = format_args!("{:#x}", replica.rid), "a record of this tier is bad");
        }
        let rechecked = Rechecked { uuid: recheck.tier.clone(), rid: replica.rid, good: is_good };
        self.surroundings.control.tell(anchor_up::Body::Rechecked(rechecked));
    }

    fn say(&mut self, said: ToMaster) {
        let tier = || self.folder.uuid.0.to_vec().into();
        let control = &self.surroundings.control;
        match said {
            ToMaster::Written { written, window, sealed } => {
                let written = TierWritten {
                    tier: tier(),
                    rids: written.iter().map(|(rid, _)| rid.0).collect(),
                    addresses: written.iter().map(|(_, address)| address.map_or(0, |address| address.0 + 1)).collect(),
                    window,
                    sealed: sealed.iter().map(|file| file.0).collect(),
                };
                control.tell(anchor_up::Body::TierWritten(written));
            }
            ToMaster::Reclaim { file, records } => {
                let keys: Vec<&[u8]> = records.iter().map(|(key, _)| &key[..]).collect();
                let rids = records.iter().map(|(_, rid)| rid.0).collect();
                let body = TierReclaim { tier: tier(), file: file.0, keys: Some(pack_keys(&keys)), rids, last: false };
                match self.reclaim(body) {
                    Ok(rids) => self.folder.tier.judged(&rids.into_iter().map(Rid).collect::<Vec<_>>()),
                    Err(error) => {
                        tracing::debug!(%error, "a file of the tier is not given up yet");
                        self.folder.tier.leave_off();
                    }
                }
            }
            ToMaster::Reclaimed(file) => {
                let none = Some(pack_keys(&[] as &[&[u8]]));
                let body = TierReclaim { tier: tier(), file: file.0, keys: none, rids: Vec::new(), last: true };
                if let Err(error) = self.reclaim(body) {
                    tracing::debug!(%error, "a file of the tier is not given up yet");
                    self.folder.tier.leave_off();
                }
            }
        }
    }

    fn reclaim(&self, body: TierReclaim) -> Result<Vec<u64>, StoreError> {
        const WHAT: &str = "giving up a file of the tier";
        let control = &self.surroundings.control;
        let timeout = control.lookup_timeout * 4;
        match control.finish(WHAT, request::Body::TierReclaim(body), timeout)?.body {
            reply::Body::TierReclaim(judged) => Ok(judged.rids),
            _ => Err(control.confused(WHAT)),
        }
    }

    fn leave(self) {
        self.serve_no_more();
        self.promoter.close();
        let control = &self.surroundings.control;
        if self.mounted {
            let leave = request::Body::TierLeave(TierLeave { uuid: self.folder.uuid.0.to_vec().into() });
            if let Err(error) = control.finish("leaving the tier", leave, control.lookup_timeout) {
                tracing::debug!(%error, "the master learns by the end of this session that the tier is left");
            }
        }
        // The next process may have the folder from here on.
        drop(self.folder.tier.into_lock());
    }
}

/// A tier is named on a lane as a segment is.
fn segment_uuid(uuid: TierUuid) -> SegmentUuid {
    SegmentUuid(uuid.0)
}

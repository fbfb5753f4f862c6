//! One link per segment, made at first use by the best path.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Instant;

use mooncake_memory::{ProcessIdentity, forked, watch_forks};
use parking_lot::Mutex;

use super::attachment::Attachment;
use super::options::{LinkEvents, LinkOptions, LinkReport, Path, SegmentAddress};
use super::pool::LanePool;
use super::watcher::Watcher;
use super::{Kind, Link};
use crate::error::{LinkError, ServerError};
use crate::wait::Wait;
use crate::wire::{Hello, LANE_VERSION, Purpose};
use crate::{Uuid, local};

/// The links of one store.
#[derive(Debug)]
pub struct Links {
    options: LinkOptions,
    process: ProcessIdentity,
    watcher: Arc<Watcher>,
    least_epoch: Arc<AtomicU16>,
    closed: AtomicBool,
    slots: Mutex<HashMap<Uuid, Arc<Slot>>>,
}

/// Held while a link is being made, so that it is made once.
type Slot = Mutex<SlotState>;

#[derive(Debug, Default)]
struct SlotState {
    link: Option<Arc<Link>>,
    failed: Option<(Instant, String)>,
}

impl Links {
    /// No links yet.
    pub fn new(options: LinkOptions, events: Box<dyn LinkEvents>) -> Result<Links, ServerError> {
        watch_forks();
        let watcher = Watcher::new(events).map_err(|source| ServerError::Os { what: "eventfd", source })?;
        Ok(Links {
            options,
            process: ProcessIdentity::current()?,
            watcher,
            least_epoch: Arc::default(),
            closed: AtomicBool::new(false),
            slots: Mutex::default(),
        })
    }

    /// The link to a segment, made now if there is none.
    pub fn link(&self, address: &SegmentAddress, wait: &Wait<'_>) -> Result<Arc<Link>, LinkError> {
        if forked() {
            return Err(LinkError::Forked);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(LinkError::Closed);
        }
        let slot = self.slots.lock().entry(address.uuid).or_default().clone();
        let mut state = loop {
            if let Some(state) = slot.try_lock_for(wait.slice()) {
                break state;
            }
            if wait.is_over() || (wait.interrupted)() {
                return Err(LinkError::Cancelled { segment: address.label().to_string() });
            }
        };
        if let Some(link) = &state.link
            && !link.is_over()
        {
            return Ok(link.clone());
        }
        state.link = None;
        if let Some((at, reason)) = &state.failed
            && at.elapsed() < self.options.retry_after
        {
            let segment = address.label().to_string();
            return Err(LinkError::Avoided { segment, ago: at.elapsed(), reason: reason.clone() });
        }
        match self.connect(address, wait) {
            Ok(link) => {
                tracing::info!(segment = &*address.label(), path = %link.path(), reason = link.reason(), "link");
                let link = Arc::new(link);
                state.failed = None;
                state.link = Some(link.clone());
                Ok(link)
            }
            Err(_) if wait.is_over() || (wait.interrupted)() => {
                Err(LinkError::Cancelled { segment: address.label().to_string() })
            }
            Err(reason) => {
                state.failed = Some((Instant::now(), reason.clone()));
                Err(LinkError::NoPath { segment: address.label().to_string(), reason })
            }
        }
    }

    /// The segment is Gone. Mapped peers of a dead owner give its memory back,
    /// all but the pinned extents `(offset, length)` and those of own views; the
    /// mapping ends with the last view.
    pub fn forget(&self, uuid: Uuid, pinned: &[(u64, u64)]) {
        if forked() {
            return;
        }
        let slot = self.slots.lock().remove(&uuid);
        // The mapping may outlive its slot under views: the watcher knows it too.
        for attachment in self.watcher.attachments(&uuid) {
            attachment.forget(pinned);
        }
        if let Some(slot) = slot
            && let Some(link) = slot.lock().link.take()
        {
            link.forget();
        }
    }

    /// The master's epoch was raised: writes of older placements are refused
    /// here from now on.
    pub fn drain_epoch(&self, epoch: u16) {
        self.least_epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Every link that is up.
    pub fn report(&self) -> Vec<LinkReport> {
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        // A slot that is locked is being connected: there is nothing to report yet.
        slots.iter().filter_map(|slot| Some(slot.try_lock()?.link.as_ref()?.report())).collect()
    }

    /// Drops every link. Views and their mappings last as long as the views.
    pub fn close(&self) {
        if forked() {
            return;
        }
        self.closed.store(true, Ordering::Release);
        let slots: Vec<Arc<Slot>> = self.slots.lock().drain().map(|(_, slot)| slot).collect();
        for slot in slots {
            if let Some(link) = slot.lock().link.take() {
                link.forget();
            }
        }
    }

    fn connect(&self, address: &SegmentAddress, wait: &Wait<'_>) -> Result<Link, String> {
        let paths = self.options.paths;
        let mut reasons: Vec<String> = Vec::new();
        let link = |kind, reason| Link::new(address, kind, reason, self.least_epoch.clone());

        match local::find(&address.uuid) {
            Some(_) if !paths.local => reasons.push("the own process's memory is switched off".into()),
            Some(served) if served.access_key == address.access_key => {
                return Ok(link(Kind::Local(served), "the segment belongs to this process".into()));
            }
            Some(_) => reasons.push("wrong access key for a segment of this process".into()),
            None if paths == super::Paths::only(Path::Local) => {
                reasons.push("the segment belongs to another process".into());
            }
            None => {}
        }

        let hello = Hello {
            version: LANE_VERSION,
            purpose: Purpose::Lane,
            session: self.options.session,
            access_key: address.access_key,
            uuid: address.uuid,
            pid: self.process.pid,
            start_time: self.process.start_time,
        };
        if !paths.shared_memory {
            reasons.push("shared memory is switched off".into());
        } else if address.boot_id != self.process.boot_id {
            reasons.push("another host".into());
        } else if address.unix_socket.is_empty() {
            reasons.push("its owner offers no shared memory".into());
        } else {
            let attach = Hello { purpose: Purpose::Attach, ..hello };
            match Attachment::open(address, &self.options, &attach, &self.watcher, wait) {
                Ok(attachment) => return Ok(link(Kind::Shared(attachment), "same host".into())),
                Err(reason) => reasons.push(format!("no shared memory: {reason}")),
            }
        }

        if paths.tcp {
            let connected = LanePool::new(address, &self.options, hello).and_then(|pool| {
                let at = pool.try_connect(wait).map_err(|e| e.to_string())?;
                Ok((pool, at))
            });
            match connected {
                Ok((pool, at)) => {
                    reasons.push(format!("connected to {at}"));
                    return Ok(link(Kind::Tcp(Box::new(pool)), reasons.join("; ")));
                }
                Err(reason) => reasons.push(format!("no TCP: {reason}")),
            }
        } else {
            reasons.push("TCP is switched off".into());
        }
        Err(reasons.join("; "))
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.close();
    }
}

//! The link to one incarnation of a peer: its paths, one of each transport that reaches the peer, tried in the order of
//! the transports.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mooncake_os::Deadline;
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::local_node::LocalNode;
use crate::protocol::segment_document::SegmentDocument;
use crate::request::Request;
use crate::transport::{Path, PathError, PathStatus, PeerInfo, Reach};

/// Most paths and reasons for detours that the log gets of one link.
const REASONS_MAX: usize = 16;

/// No path has been taken yet.
const NO_PATH: usize = usize::MAX;

pub(crate) struct Link {
    pub document: SegmentDocument,
    /// One for each transport.
    paths: Box<[Reach]>,
    /// The number of the path that was taken last.
    taken: AtomicUsize,
    detours: Mutex<Detours>,
}

/// Requests that went by another path than the best that works.
#[derive(Default)]
struct Detours {
    /// Why, last time; none if they went by the best.
    last: Option<Cow<'static, str>>,
    /// What the log has: paths, and the reasons for detours to them.
    told: Vec<(usize, Option<Cow<'static, str>>)>,
}

impl Link {
    /// Meets the peer: asks for its segment document, and looks for the paths.
    pub fn meet(node: &LocalNode, name: &str, deadline: &Deadline<'_>) -> Result<Link, EngineError> {
        let (mut document, host) = node.document_of(name, deadline)?;
        let peer = PeerInfo { name, host: &host, document: &document };
        let paths = node.transports.iter().map(|transport| transport.path_to(&node.context, &peer, deadline));
        let paths = paths.collect::<Result<Box<[Reach]>, EngineError>>()?;
        // Buffers are looked up at the peer when a request needs them. The first is kept for `first_buffer`; a document
        // may list thousands.
        document.buffers.truncate(1);
        document.buffers.shrink_to_fit();
        if let Some(ours) = &mut document.ours {
            ours.tcp_only.truncate(1);
        }
        let (taken, detours) = (AtomicUsize::new(NO_PATH), Mutex::default());
        let link = Link { document, paths, taken, detours };
        if link.open_paths().next().is_none() {
            return Err(link.no_path(name));
        }
        Ok(link)
    }

    pub fn is_same_incarnation(&self, other: &Link) -> bool {
        let key = |link: &Link| (link.document.engine_id(), link.document.tcp_data_port);
        key(self) == key(other) && self.document.devices == other.document.devices
    }

    /// Carries requests out by the first path that does so; gives the number of its transport.
    pub fn transfer(
        &self,
        node: &LocalNode,
        name: &str,
        requests: &[Request],
        deadline: &Deadline<'_>,
    ) -> Result<usize, EngineError> {
        let mut detour = None;
        for (nth, path) in self.open_paths() {
            // Bytes of writes that were abandoned on other paths must not land after these.
            self.open_paths()
                .filter(|(other, _)| *other != nth)
                .try_for_each(|(_, other)| other.retire_abandoned(&node.context, deadline))?;
            match path.transfer(&node.context, requests, deadline) {
                Ok(()) => {
                    self.note(node, name, nth, detour);
                    return Ok(nth);
                }
                Err(PathError::Down) => {}
                Err(PathError::Unsuitable(reason)) => detour = Some(reason),
                Err(PathError::Failed(error)) => return Err(error),
            }
        }
        Err(self.no_path(name))
    }

    fn open_paths(&self) -> impl Iterator<Item = (usize, &dyn Path)> {
        self.paths.iter().enumerate().filter_map(|(nth, path)| match path {
            Reach::Path(path) => Some((nth, &**path)),
            Reach::Unreachable(_) => None,
        })
    }

    fn no_path(&self, name: &str) -> EngineError {
        EngineError::malformed(name, format!("no way leads there: {}", self.reason(self.paths.len())))
    }

    /// Logs each path that is taken once, and each reason for a detour.
    fn note(&self, node: &LocalNode, name: &str, nth: usize, detour: Option<Cow<'static, str>>) {
        if self.taken.load(Ordering::Relaxed) == nth && detour.is_none() {
            return;
        }
        self.taken.store(nth, Ordering::Relaxed);
        let is_new = {
            let mut detours = self.detours.lock();
            detours.last.clone_from(&detour);
            let this = (nth, detour);
            let is_new = detours.told.len() < REASONS_MAX && !detours.told.contains(&this);
            if is_new {
                detours.told.push(this);
            }
            is_new
        };
        if is_new {
            tracing::info!(peer = name, path = node.transports[nth].name(), reason = self.reason(nth), "link");
        }
    }

    /// Closes connections that no call needs.
    pub fn close_idle(&self, now: Instant) {
        self.open_paths().for_each(|(_, path)| path.close_idle(now));
    }

    /// At the engine's end.
    pub fn close(&self) {
        self.open_paths().for_each(|(_, path)| path.close());
    }

    /// The path that bytes took last, or will take as far as is known; and why.
    pub fn path(&self, node: &LocalNode) -> (&'static str, String) {
        let is_open = |path: &dyn Path| !matches!(path.status(), PathStatus::Down(_));
        let nth = match self.taken.load(Ordering::Relaxed) {
            NO_PATH => match self.open_paths().find(|(_, path)| is_open(*path)) {
                Some((_, path)) if matches!(path.status(), PathStatus::Untried) => return ("untried", String::new()),
                Some((nth, _)) => nth,
                None => return ("none", self.reason(self.paths.len())),
            },
            nth => nth,
        };
        (node.transports[nth].name(), self.reason(nth))
    }

    /// Details of a path, and why no path before it is taken.
    fn reason(&self, nth: usize) -> String {
        let status = |path: &Reach| match path {
            Reach::Path(path) => path.status(),
            Reach::Unreachable(reason) => PathStatus::Down(reason.clone()),
        };
        let detour = || self.detours.lock().last.clone().map(Cow::into_owned);
        let before = self.paths[..nth].iter().filter_map(|path| match status(path) {
            PathStatus::Down(reason) => Some(reason),
            PathStatus::Untried | PathStatus::Up(_) => detour(),
        });
        let mut all: Vec<String> = before.collect();
        if let Some(PathStatus::Up(more)) = self.paths.get(nth).map(status)
            && !more.is_empty()
        {
            all.push(more);
        }
        all.join("; ")
    }
}

//! The ways to one life of a peer, one for each transport that leads there: tried in the order of the transports.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::error::EngineError;
use crate::local_node::Home;
use crate::protocol::descriptor::Descriptor;
use crate::request::Request;
use crate::transport::stall::Patience;
use crate::transport::{Met, Reach, Standing, Undone, Way};

/// Most reasons for a detour that are told of one route.
const MOST_REASONS: usize = 16;

/// No way has been taken yet.
const NONE: usize = usize::MAX;

pub(crate) struct Route {
    pub descriptor: Descriptor,
    /// As many as there are transports.
    ways: Box<[Reach]>,
    /// The number of the one that was taken last.
    taken: AtomicUsize,
    detours: Mutex<Detours>,
}

/// Requests that went by another way than the best that is open.
#[derive(Default)]
struct Detours {
    /// Why, the last time.
    last: Option<Cow<'static, str>>,
    /// Ways, and detours to them by their reasons, that the log has.
    told: Vec<(usize, Option<Cow<'static, str>>)>,
}

impl Route {
    /// Fetches the description, and looks for the ways.
    pub fn find(home: &Home, name: &str, patience: &Patience<'_>) -> Result<Arc<Route>, EngineError> {
        let (mut descriptor, host) = home.look_up(name, patience)?;
        // What is lent there is asked for when it is wanted; of thousands of buffers nothing else is to be kept.
        descriptor.buffers.truncate(1);
        descriptor.buffers.shrink_to_fit();
        let met = Met { name, host: &host, descriptor: &descriptor };
        let ways = home.transports.iter().map(|transport| transport.reach(home, &met, patience));
        let ways = ways.collect::<Result<Box<[Reach]>, EngineError>>()?;
        let (taken, detours) = (AtomicUsize::new(NONE), Mutex::default());
        let route = Route { descriptor, ways, taken, detours };
        if route.open_ways().next().is_none() {
            return Err(route.no_way(name));
        }
        let route = Arc::new(route);
        home.routes.keep(&route);
        Ok(route)
    }

    pub fn is_same_life(&self, other: &Route) -> bool {
        let key = |route: &Route| (route.descriptor.engine_id(), route.descriptor.tcp_data_port);
        key(self) == key(other)
    }

    /// Carries requests out by the first way that does; gives the number of its transport.
    pub fn transfer(
        &self,
        home: &Home,
        name: &str,
        requests: &[Request],
        patience: &Patience<'_>,
    ) -> Result<usize, EngineError> {
        let mut detour = None;
        for (nth, way) in self.open_ways() {
            // What went by others before must not land after this.
            self.open_ways()
                .filter(|(other, _)| *other != nth)
                .try_for_each(|(_, other)| other.settle(home, patience))?;
            match way.carry(home, requests, patience) {
                Ok(()) => {
                    self.note(home, name, nth, detour);
                    return Ok(nth);
                }
                Err(Undone::NoWay) => {}
                Err(Undone::OtherWay(reason)) => detour = Some(reason),
                Err(Undone::Broken(error)) => return Err(error),
            }
        }
        Err(self.no_way(name))
    }

    fn open_ways(&self) -> impl Iterator<Item = (usize, &dyn Way)> {
        self.ways.iter().enumerate().filter_map(|(nth, way)| match way {
            Reach::By(way) => Some((nth, &**way)),
            Reach::Not(_) => None,
        })
    }

    fn no_way(&self, name: &str) -> EngineError {
        EngineError::malformed(name, format!("no way leads there: {}", self.reason(self.ways.len())))
    }

    /// The log has each way that is taken once, and each reason for a detour.
    fn note(&self, home: &Home, name: &str, nth: usize, detour: Option<Cow<'static, str>>) {
        if self.taken.load(Ordering::Relaxed) == nth && detour.is_none() {
            return;
        }
        self.taken.store(nth, Ordering::Relaxed);
        let is_new = {
            let mut detours = self.detours.lock();
            detours.last.clone_from(&detour);
            let this = (nth, detour);
            let is_new = detours.told.len() < MOST_REASONS && !detours.told.contains(&this);
            if is_new {
                detours.told.push(this);
            }
            is_new
        };
        if is_new {
            tracing::info!(peer = name, path = home.transports[nth].name(), reason = self.reason(nth), "link");
        }
    }

    /// Lets go of connections that nobody needs.
    pub fn sweep(&self, now: Instant) {
        self.open_ways().for_each(|(_, way)| way.sweep(now));
    }

    /// The way that bytes took last, or that they will take for all that is known; and why.
    pub fn path(&self, home: &Home) -> (&'static str, String) {
        let is_open = |way: &dyn Way| !matches!(way.standing(), Standing::Shut(_));
        let nth = match self.taken.load(Ordering::Relaxed) {
            NONE => match self.open_ways().find(|(_, way)| is_open(*way)) {
                Some((_, way)) if matches!(way.standing(), Standing::Untried) => return ("untried", String::new()),
                Some((nth, _)) => nth,
                None => return ("none", self.reason(self.ways.len())),
            },
            nth => nth,
        };
        (home.transports[nth].name(), self.reason(nth))
    }

    /// What there is to say of a way, and why none before it is taken.
    fn reason(&self, nth: usize) -> String {
        let standing = |way: &Reach| match way {
            Reach::By(way) => way.standing(),
            Reach::Not(reason) => Standing::Shut(reason.clone()),
        };
        let detour = || self.detours.lock().last.clone().map(Cow::into_owned);
        let before = self.ways[..nth].iter().filter_map(|way| match standing(way) {
            Standing::Shut(reason) => Some(reason),
            Standing::Untried | Standing::Open(_) => detour(),
        });
        let mut all: Vec<String> = before.collect();
        if let Some(Standing::Open(more)) = self.ways.get(nth).map(standing)
            && !more.is_empty()
        {
            all.push(more);
        }
        all.join("; ")
    }
}

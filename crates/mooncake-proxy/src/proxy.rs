//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use mooncake_http::Behind;
use mooncake_metrics::SAMPLE_EVERY;
use parking_lot::Mutex;

use crate::access_log::AccessLog;
use crate::admission::Admission;
use crate::body::Bodies;
use crate::counts::Counts;
use crate::history::{History, Sample};
use crate::instances::fleet::Fleet;
use crate::instances::upstream::Upstream;
use crate::options::ProxyOptions;
use crate::routing::scheduling::Scheduler;

/// Bytes of one change of the fleet, and of all that are being read.
const CHANGE_MAX: usize = 64 << 10;
const CHANGES_MAX: usize = 1 << 20;

pub(crate) struct Proxy {
    pub options: ProxyOptions,
    pub fleet: Fleet,
    pub scheduler: Scheduler,
    pub upstream: Upstream,
    pub admission: Admission,
    pub bodies: Bodies,
    /// Bodies of what an operator sends.
    pub changes: Bodies,
    /// Clients that have not taken yet what was written for them.
    pub behind: Arc<Behind>,
    /// No further requests are taken.
    pub is_stopping: AtomicBool,
    pub counts: Counts,
    pub history: Mutex<History>,
    /// When it was last looked which instances are to be checked.
    pub checked_at: Mutex<Instant>,
    pub log: Option<AccessLog>,
    /// Sent to instances for callers that bring none.
    pub authorization: Option<HeaderValue>,
    pub began: Instant,
    /// Random, so that two proxies' requests have different names.
    incarnation: String,
    asked: AtomicU64,
}

impl Proxy {
    pub fn new(options: ProxyOptions) -> std::io::Result<Arc<Proxy>> {
        let incarnation: [u8; 8] = mooncake_os::random_bytes()?;
        let key = options.upstream_key.as_ref().map(|key| HeaderValue::try_from(format!("Bearer {key}")));
        let authorization = key.transpose().map_err(std::io::Error::other)?;
        let scheduler = Scheduler::new(options.scheduling, options.instance_cache);
        let upstream = Upstream::new(options.connect_timeout);
        let admission = Admission::new(options.running_max, options.waiting_max);
        let bodies = Bodies::new(options.body_max, options.bodies_max, options.body_timeout);
        // The log's thread calls it, and not a thread that answers requests: it may have to wait.
        let write = |line: String| tracing::info!("{line}");
        let log = options.access_log.then(|| AccessLog::begin(write)).transpose()?;
        let changes = Bodies::new(CHANGE_MAX, CHANGES_MAX, options.body_timeout);
        Ok(Arc::new(Proxy {
            fleet: Fleet::default(),
            scheduler,
            upstream,
            admission,
            bodies,
            changes,
            behind: Arc::default(),
            is_stopping: AtomicBool::new(false),
            counts: Counts::default(),
            history: Mutex::default(),
            checked_at: Mutex::new(Instant::now()),
            log,
            authorization,
            began: Instant::now(),
            incarnation: mooncake_os::hex(&incarnation),
            asked: AtomicU64::new(0),
            options,
        }))
    }

    /// Waits until the requests under way are over and their answers taken, or their time is.
    pub async fn drained(&self) {
        let end = Instant::now() + self.options.drain_timeout;
        let left = || (self.admission.under_way() + self.admission.waiting(), self.behind.count());
        while left() != (0, 0) && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (requests, answers) = left();
        if (requests, answers) != (0, 0) {
            tracing::warn!(requests, answers, "stopped with requests under way, or answers that were not taken");
        }
    }

    /// What has been counted until now.
    pub fn sample(&self, now: Instant) -> Sample {
        let requests = (self.admission.under_way(), self.admission.waiting());
        Sample { at: now, totals: self.counts.totals(), times: self.counts.times(), requests }
    }

    /// Takes samples, for ever: pages tell what was before they were opened.
    pub async fn sample_for_ever(self: Arc<Proxy>) {
        let mut tick = tokio::time::interval(SAMPLE_EVERY);
        loop {
            tick.tick().await;
            let now = Instant::now();
            self.history.lock().take(self.sample(now));
            self.fleet.all().iter().chain(&self.fleet.leaving()).for_each(|one| one.sample(now));
        }
    }

    /// All that is counted, as Prometheus reads it.
    pub fn metrics_page(&self) -> String {
        let left_out = self.log.as_ref().map_or(0, AccessLog::left_out);
        self.counts.page((self.admission.waiting(), self.admission.under_way()), left_out, &self.fleet)
    }

    /// A name that no other request has.
    pub fn name_request(&self) -> String {
        format!("{}-{}", self.incarnation, self.asked.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

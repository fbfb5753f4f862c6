//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::http::HeaderValue;

use crate::admission::Admission;
use crate::counts::Counts;
use crate::fleet::Fleet;
use crate::options::ProxyOptions;
use crate::scheduling::Scheduler;
use crate::upstream::Upstream;

pub(crate) struct Proxy {
    pub options: ProxyOptions,
    pub fleet: Fleet,
    pub scheduler: Scheduler,
    pub upstream: Upstream,
    pub admission: Admission,
    pub counts: Counts,
    /// Sent to instances for callers that bring none.
    pub authorization: Option<HeaderValue>,
    pub began: Instant,
    /// Random, so that two proxies' requests have different names.
    life: String,
    asked: AtomicU64,
}

impl Proxy {
    pub fn new(options: ProxyOptions) -> std::io::Result<Arc<Proxy>> {
        let life: [u8; 8] = mooncake_memory::random_bytes()?;
        let key = options.upstream_key.as_ref().map(|key| HeaderValue::try_from(format!("Bearer {key}")));
        let authorization = key.transpose().map_err(std::io::Error::other)?;
        let (scheduler, upstream) = (Scheduler::new(options.scheduling), Upstream::new(options.connect_timeout));
        let admission = Admission::new(options.most_running, options.most_waiting);
        Ok(Arc::new(Proxy {
            fleet: Fleet::default(),
            scheduler,
            upstream,
            admission,
            counts: Counts::default(),
            authorization,
            began: Instant::now(),
            life: mooncake_memory::hex(&life),
            asked: AtomicU64::new(0),
            options,
        }))
    }

    /// A name that no other request has.
    pub fn name_request(&self) -> String {
        format!("{}-{}", self.life, self.asked.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

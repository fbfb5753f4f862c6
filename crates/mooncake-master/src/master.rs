//! A master: replays its log, serves, stops.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mooncake_core::Config as CoreConfig;
use mooncake_http::{BindError, bind};
use mooncake_ids::SessionId;
use mooncake_metadata_server::MetadataServer;
use mooncake_os::{Guarded, descriptor_limit};
use mooncake_wire::message::ProcessIdentity;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::connections::Connections;
use crate::history::Sample;
use crate::log::{Compactor, Log, LogError};
use crate::log_opening::{Opened, open_log};
use crate::lost_log;
use crate::machine::convert::SoftPinTtl;
use crate::machine::hello;
use crate::machine::processes::{self, Known, LeftOpen, ProcessDriver};
use crate::metrics::summary;
use crate::process_watch::{self, ProcessWatch};
use crate::replaying::Replaying;
use crate::settings::{Settings, Wal};
use crate::shared::{Identity, Shared, Threads};
use crate::ticker::Ticker;
use crate::{control, events, http, random, reading};

const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Why a master does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Something of the system failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What failed.
        source: io::Error,
    },
}

/// A master that serves. Stop it with [`Master::shutdown`].
#[derive(Debug)]
pub struct Master {
    shared: Arc<Shared>,
    rpc_address: SocketAddr,
    metrics_address: SocketAddr,
    /// Serves until it is dropped.
    _metadata: Option<MetadataServer>,
    tasks: Vec<JoinHandle<()>>,
    ticker: Option<Ticker>,
    compactor: Option<Compactor>,
}

/// Starts a master. It accepts connections from the first moment on, and
/// answers them once its log is replayed.
pub async fn serve(settings: Settings) -> Result<Master, StartError> {
    for note in &settings.notes {
        tracing::warn!("{note}");
    }
    ignore_file_size_signal()?;
    let rpc = bind("the control server", "rpc_port", settings.rpc_address, settings.rpc_port)?;
    let web = bind("metrics", "metrics_port", settings.metrics_address, settings.metrics_port)?;
    let system = |what| move |source| StartError::System { what, source };
    let metadata = match settings.metadata_server {
        Some(at) => {
            let listener = bind("the metadata server", "http_metadata_server_port", at.ip(), at.port())?;
            Some(MetadataServer::start(listener).map_err(system("the metadata server"))?)
        }
        None => None,
    };
    let rpc_address = rpc.local_addr().map_err(system("address of the control server"))?;
    let metrics_address = web.local_addr().map_err(system("address of the metrics server"))?;
    let instance = random::bytes();
    let unix = if settings.unix_socket { bind_unix(rpc_address.port(), &instance) } else { None };
    let boot_id = mooncake_os::boot_id().unwrap_or_else(|error| {
        tracing::warn!(%error, "no boot id: no client counts as being on this host");
        random::bytes()
    });
    warn_when_open(&settings);

    let identity = Identity {
        told: hello::Identity {
            instance,
            boot_id,
            unix_socket: unix.as_ref().map(|(_, name)| name.clone()).unwrap_or_default(),
            lookup_protect_ms: settings.core.lookup_protect_ms,
            cluster_id: settings.cluster_id.clone(),
            storage: settings.core.shared_storage.clone(),
            tiers_allowed: settings.core.tiers_allowed,
            pages: metrics_address.to_string(),
        },
        soft_pin: SoftPinTtl { default_ms: settings.soft_pin_ttl_ms, max_ms: settings.core.soft_pin_ttl_max_ms },
        after_bulk_free: settings.after_bulk_free,
        rpc_address: rpc_address.to_string(),
        events: settings.events.clone(),
    };
    let reporting = settings.metric_reporting;
    // From here on it says that it is alive and not ready.
    let serving = Arc::new(OnceLock::new());
    let pages = tokio::spawn(mooncake_http::accept(
        http::pages(serving.clone()),
        Guarded::new(web),
        mooncake_http::Limits::default(),
    ));
    let started = tokio::task::spawn_blocking(move || start_core(&settings, identity)).await;
    let started = started.map_err(|e| StartError::System { what: "replay", source: e.into() }).flatten();
    let started = started.and_then(|Started { shared, compactor, open }| {
        processes::judge(&*shared, open);
        let ticker = Ticker::start(shared.clone()).map_err(system("starting the ticker"))?;
        Ok((shared, compactor, ticker))
    });
    let (shared, compactor, ticker) = started.inspect_err(|_| pages.abort())?;
    let _ = serving.set(shared.clone());
    let mut tasks = vec![tokio::spawn(control::accept_tcp(shared.clone(), rpc)), pages];
    if let Some((listener, _)) = unix {
        tasks.push(tokio::spawn(control::accept_unix(shared.clone(), listener)));
    }
    tracing::info!("Master service started on port {}", rpc_address.port());
    tracing::info!("HTTP metrics server started on port {}", metrics_address.port());
    tasks.push(tokio::spawn(report(shared.clone(), reporting)));
    tasks.push(tokio::spawn(sample(shared.clone())));
    let log = shared.clone();
    tasks.push(tokio::spawn(lost_log::watch(move || log.log.is_lost(), || tracing::error!("{}", lost_log::REMINDER))));
    if let Some(metadata) = &metadata {
        tracing::info!("HTTP metadata server started on port {}", metadata.address().port());
    }
    Ok(Master { shared, rpc_address, metrics_address, _metadata: metadata, tasks, ticker: Some(ticker), compactor })
}

impl Master {
    /// Where the control server listens.
    pub fn rpc_address(&self) -> SocketAddr {
        self.rpc_address
    }

    /// Where the HTTP server listens.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics_address
    }

    /// Asks the core, and so returns as long as calls can be answered: for a watchdog.
    pub fn prober(&self) -> impl Fn() + Send + Clone + 'static {
        let shared = self.shared.clone();
        move || shared.read(|_, _| ())
    }

    /// Returns when the master cannot go on: its log broke and could not be renamed away.
    pub async fn failed(&self) {
        self.shared.failed.notified().await;
    }

    /// Stops serving, ends every connection and closes the log.
    pub async fn shutdown(mut self) {
        for task in &self.tasks {
            task.abort();
        }
        // First the log: what is under way from here on is not answered, and a restart knows nothing of it.
        self.shared.log.close();
        self.shared.connections.end_all();
        let threads = (self.ticker.take(), self.compactor.take());
        if tokio::task::spawn_blocking(move || drop(threads)).await.is_err() {
            tracing::error!("a background thread panicked");
        }
        for task in self.tasks.drain(..) {
            // Aborted: ends as cancelled.
            let _ = task.await;
        }
        for _ in 0..100 {
            if self.shared.connections.len() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

struct Started {
    shared: Arc<Shared>,
    compactor: Option<Compactor>,
    open: LeftOpen,
}

/// Opens the log, replays it, decides on the epoch, and begins.
fn start_core(settings: &Settings, identity: Identity) -> Result<Started, StartError> {
    let began = Instant::now();
    let mut replaying = Replaying::new(CoreConfig { epoch_seed: random::number(), ..settings.core.clone() });
    let opened = open_log(settings, &identity.told.boot_id, &mut replaying)?;
    let Replaying { core, open, .. } = replaying;
    let (mut wanted, mut torn_bytes) = (None, 0);
    let (log, raised) = match opened {
        Some(opened) => {
            let Opened { mut sink, found, next_epoch } = opened;
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            sink.keep_with(&found, settings.compact_min, sender, &settings.witness_folder);
            wanted = Some(receiver);
            torn_bytes = found.cut_bytes;
            (Log::new(found.log_id, found.last_lsn, Some(sink), settings.wal == Wal::Fsync), next_epoch.raised())
        }
        None => (Log::new(random::number(), 0, None, false), None),
    };
    if let Some(epoch) = raised {
        tracing::warn!(epoch, "nothing vouches that this log is whole: the epoch is raised");
    }
    log.replayed(torn_bytes, began.elapsed());
    let log = Arc::new(log);
    log.set_epoch(core.epoch());
    let processes = ProcessWatch::new().map_err(|source| StartError::System { what: "watching processes", source })?;
    let threads = Threads::start().map_err(|source| StartError::System { what: "threads for connections", source })?;
    let connections = Connections::new(settings.connections.within(descriptor_limit()));
    let shared = Arc::new(Shared::new(core, log.clone(), identity, connections, threads, processes));
    shared
        .apply(|core, now, effects| core.begin(now, raised, effects))
        .map_err(|e| StartError::System { what: "writing to the log", source: io::Error::other(e) })?;
    log.set_epoch(shared.read(|core, _| core.epoch()));
    let compactor = match wanted {
        Some(wanted) => Some(
            Compactor::start(log, shared.clone(), wanted, settings.after_bulk_free, settings.snapshot_interval)
                .map_err(|source| StartError::System { what: "starting the compactor", source })?,
        ),
        None => None,
    };
    Ok(Started { shared, compactor, open })
}

impl ProcessDriver for Shared {
    type Process = OwnedFd;

    fn find(&self, identity: &ProcessIdentity) -> Known<OwnedFd> {
        process_watch::find(identity)
    }

    fn watch(&self, session: SessionId, process: OwnedFd) {
        self.processes.watch_pidfd(session, process);
    }

    fn tell_gone(&self, session: SessionId) {
        tracing::info!(session = session.0, "client process ended while the master was away");
    }
}

async fn sample(shared: Arc<Shared>) {
    loop {
        // At once: what is counted from here on has rates.
        let now = Instant::now();
        shared.clients.sample(now);
        let (stats, last_rid) = shared.read(|core, _| (core.stats(), core.last_rid()));
        shared.births.lock().take(last_rid, now);
        let sample = Sample::of(&stats, &shared.metrics.read(), &shared.log.read(), now);
        shared.history.lock().take(sample);
        tokio::time::sleep(mooncake_metrics::SAMPLE_EVERY).await;
    }
}

/// Without lines in the output, too, the page with the summary has rates of the last seconds.
async fn report(shared: Arc<Shared>, in_output: bool) {
    let mut said = summary::Said::default();
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        if in_output && let Some(line) = said.news(reading::summary_line(&shared)) {
            tracing::info!(target: events::FIGURES, "Master Metrics: {line}");
        }
        *shared.summarized.lock() = summary::Previous::start(&shared.metrics);
    }
}

/// The Unix socket is a shortcut: without it clients of this host use TCP.
fn bind_unix(port: u16, instance: &[u8; 16]) -> Option<(UnixListener, String)> {
    let suffix = mooncake_os::hex(&instance[..6]);
    let name = format!("mooncake-master-{port}-{suffix}");
    let open = || {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    };
    match open() {
        Ok(listener) => Some((listener, name)),
        Err(error) => {
            tracing::warn!(%error, "no Unix socket; clients of this host use TCP");
            None
        }
    }
}

fn warn_when_open(settings: &Settings) {
    for (what, address) in [("rpc_address", settings.rpc_address), ("metrics_host", settings.metrics_address)] {
        if !address.is_loopback() {
            tracing::warn!(
                "NO AUTHENTICATION: --{what}={address} lets everybody who reaches this port read, replace and remove \
                 the pool's objects. Bind a trusted network's address, or 127.0.0.1, unless a firewall guards it"
            );
        }
    }
}

/// A log that meets a file-size limit is to fail its append, not to kill the process.
pub(crate) fn ignore_file_size_signal() -> Result<(), StartError> {
    let kind = tokio::signal::unix::SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    match tokio::signal::unix::signal(kind) {
        // The handler stays when the stream goes.
        Ok(_) => Ok(()),
        Err(source) => Err(StartError::System { what: "handling SIGXFSZ", source }),
    }
}

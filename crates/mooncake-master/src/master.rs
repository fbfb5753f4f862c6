//! A master: replays its log, serves, stops.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mooncake_core::{Config as CoreConfig, Reign};
use mooncake_http::{BindError, bind};
use mooncake_ids::SessionId;
use mooncake_metadata_server::MetadataServer;
use mooncake_os::{Guarded, descriptor_limit};
use mooncake_wire::message::ProcessIdentity;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::control::connections::Connections;
use crate::log::{Compactor, Folder, FoundWitness, Log, LogError, Recovered, Sink, Witness, log_id_of, recover};
use crate::machine::convert::SoftPinTtl;
use crate::machine::hello;
use crate::machine::processes::{self, Known, LeftOpen, ProcessDriver};
use crate::machine::start::{self, Epoch, Found, NoEpochLeft, Witnessed};
use crate::metrics::summary;
use crate::process_watch::{self, ProcessWatch};
use crate::replaying::Replaying;
use crate::settings::{LogFolder, Settings, Wal};
use crate::shared::{Identity, Shared, Threads};
use crate::ticker::Ticker;
use crate::{control, http, random};

const REPORT_EVERY: Duration = Duration::from_secs(10);
/// How often it is said that the log is lost.
const REMIND_EVERY: Duration = Duration::from_secs(3600);

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
        },
        soft_pin: SoftPinTtl { default_ms: settings.soft_pin_ttl_ms, max_ms: settings.core.soft_pin_ttl_max_ms },
        after_bulk_free: settings.after_bulk_free,
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
    let mut replaying = Replaying::new(CoreConfig { reign_seed: random::number(), ..settings.core.clone() });
    let opened = open_log(settings, &identity.told.boot_id, &mut replaying)?;
    let Replaying { core, open, .. } = replaying;
    let (mut wanted, mut torn_bytes) = (None, 0);
    let (log, raised) = match opened {
        Some(opened) => {
            let Opened { mut sink, found, epoch } = opened;
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            sink.keep_with(&found, settings.compact_min, sender, &settings.witness_folder);
            wanted = Some(receiver);
            torn_bytes = found.cut_bytes;
            (Log::new(found.log_id, found.last_lsn, Some(sink), settings.wal == Wal::Fsync), epoch.raised())
        }
        None => (Log::new(random::number(), 0, None, false), None),
    };
    if let Some(epoch) = raised {
        tracing::warn!(epoch, "nothing vouches that this log is whole: the epoch is raised");
    }
    log.replayed(torn_bytes, began.elapsed());
    let log = Arc::new(log);
    log.set_reign(core.reign());
    let processes = ProcessWatch::new().map_err(|source| StartError::System { what: "watching processes", source })?;
    let threads = Threads::start().map_err(|source| StartError::System { what: "threads for connections", source })?;
    let connections = Connections::new(settings.connections.within(descriptor_limit()));
    let shared = Arc::new(Shared::new(core, log.clone(), identity, connections, threads, processes));
    shared
        .apply(|core, now, effects| core.begin(now, raised, effects))
        .map_err(|e| StartError::System { what: "writing to the log", source: io::Error::other(e) })?;
    log.set_reign(shared.read(|core, _| core.reign()));
    let compactor = match wanted {
        Some(wanted) => Some(
            Compactor::start(log, shared.clone(), wanted, settings.after_bulk_free)
                .map_err(|source| StartError::System { what: "starting the compactor", source })?,
        ),
        None => None,
    };
    Ok(Started { shared, compactor, open })
}

struct Opened {
    sink: Sink,
    found: Recovered,
    /// The one to begin with.
    epoch: Epoch,
}

fn open_log(settings: &Settings, boot_id: &[u8; 16], replaying: &mut Replaying) -> Result<Option<Opened>, StartError> {
    let path = match &settings.log_folder {
        LogFolder::Given(path) | LogFolder::Default(path) => path,
        LogFolder::None => {
            if settings.wal != Wal::Off {
                tracing::warn!("no log: with any port and without --wal_dir a restart forgets every object");
            }
            return Ok(None);
        }
    };
    if settings.wal == Wal::Off {
        rename_old_log_away(path, &settings.witness_folder)?;
        return Ok(None);
    }
    let folder = match Folder::open(path) {
        Ok(folder) => folder,
        // Nobody asked for this very place, and no old log can be in it: a cache without a log is better than none.
        Err(LogError::Folder { source, .. })
            if matches!(settings.log_folder, LogFolder::Default(_)) && !path.join("current").exists() =>
        {
            tracing::error!(
                path = %path.display(), error = %source,
                "NO LOG: the state folder cannot be made, so a restart will forget every object. \
                 Give a writable folder with --wal_dir, or say --wal=off"
            );
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let began = Instant::now();
    let found = recover(&folder.current(), boot_id, replaying)?;
    let fresh = found.is_none();
    let found = found.unwrap_or_else(|| Recovered { log_id: random::number(), ..Recovered::default() });
    let (known, free) = match Witness::find(&settings.witness_folder, found.log_id) {
        Some(FoundWitness { seen, witness }) => (Some(seen), witness),
        None => (None, None),
    };
    if known.is_some() && free.is_none() {
        tracing::error!(
            path = %path.display(),
            "ANOTHER MASTER of this host runs, or stands still, on a copy of this log: end it. Each client that meets \
             both has the epoch raised"
        );
    }
    let log =
        (!fresh).then_some(Found { last_lsn: found.last_lsn, reign: replaying.reign, last_boot: found.last_boot });
    let witness = known.map(|seen| Witnessed { seen, held: free.is_none() });
    let start = start::decide(log, boot_id, witness);
    let start = start.map_err(|NoEpochLeft { epoch }| LogError::NoEpochLeft { path: folder.current(), epoch })?;
    let kept = free.filter(|_| start.epoch == Epoch::Kept);
    let witness = open_witness(&settings.witness_folder, &found, start.highest, kept)?;
    if fresh {
        tracing::info!(path = %path.display(), "no log yet: one begins there");
        if let LogFolder::Default(path) = &settings.log_folder {
            let others = others_of(&settings.cluster_id, path);
            if !others.is_empty() {
                tracing::warn!(
                    others = others.join(" "),
                    "this pool had a log under another port, which is another pool: its objects are not in this one. \
                     --rpc_port chooses it, mooncake state gc removes it"
                );
            }
        }
    } else {
        tracing::info!(
            path = %path.display(), lsn = found.last_lsn, milliseconds = began.elapsed().as_millis() as u64,
            bytes = found.snapshot_bytes + found.segment_bytes, objects = replaying.core.objects(), "log replayed"
        );
    }
    let sink = Sink::open(folder, found.log_id, found.last_lsn, *boot_id, witness)?;
    Ok(Some(Opened { sink, found, epoch: start.epoch }))
}

/// The witness of a log from here on, if there can be one: the one that vouches for it, or another. `seen` is the
/// highest reign known of the log.
fn open_witness(
    folder: &Path,
    found: &Recovered,
    seen: Reign,
    kept: Option<Witness>,
) -> Result<Option<Witness>, LogError> {
    let opened = match kept {
        Some(mut witness) => {
            witness.store_raised(found.last_lsn, seen).inspect_err(|_| witness.remove()).map(|()| witness)
        }
        // It is written once the raised epoch is in the log. This start may end before that, with a file of this boot
        // in the log, for which what it said must not vouch.
        None => Witness::anew(folder, found.log_id, Some(seen)),
    };
    match opened {
        Ok(witness) => Ok(Some(witness)),
        Err(source) if Witness::find(folder, found.log_id).is_some() => {
            Err(LogError::Io { action: "replacing the witness of the log in", path: folder.to_owned(), source })
        }
        Err(error) => {
            tracing::warn!(%error, "no witness: the next start raises the epoch");
            Ok(None)
        }
    }
}

/// Logs of the same cluster id that lie beside a state folder: those of other ports.
fn others_of(cluster_id: &str, path: &Path) -> Vec<String> {
    let entries = path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    let is_other = |other: &PathBuf| {
        let name = other.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let port = name.strip_prefix(cluster_id).and_then(|rest| rest.strip_prefix('-'));
        other != path && port.is_some_and(|port| port.parse::<u16>().is_ok()) && other.join("current").exists()
    };
    let others = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_other);
    others.filter_map(|other| Some(other.file_name()?.to_str()?.to_owned())).collect()
}

fn rename_old_log_away(path: &Path, witness_folder: &Path) -> Result<(), StartError> {
    if !path.join("current").exists() {
        return Ok(());
    }
    let folder = Folder::open(path)?;
    let log_id = log_id_of(&folder.current());
    if let Some(away) = folder.rename_away()? {
        if let Some(log_id) = log_id {
            Witness::remove_of(witness_folder, log_id);
        }
        tracing::warn!(renamed_to = %away.display(), "this run has no log: the old one is renamed away and will not be \
            read again");
    }
    Ok(())
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

/// Without lines in the output, too, the page with the summary has rates of the last seconds.
async fn report(shared: Arc<Shared>, in_output: bool) {
    let (mut said, mut lost_since) = (summary::Said::default(), None);
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        if shared.log.is_lost() {
            let told = *lost_since.get_or_insert_with(Instant::now);
            if told.elapsed() >= REMIND_EVERY {
                lost_since = Some(Instant::now());
                tracing::error!(
                    "STILL WITHOUT A LOG: a restart forgets every object. POST /api/v1/start_log to the metrics port \
                     begins a new one"
                );
            }
        } else {
            lost_since = None;
        }
        if in_output && let Some(line) = said.news(summary::line(&shared)) {
            tracing::info!("Master Metrics: {line}");
        }
        *shared.summarized.lock() = summary::Previous::start(&shared.metrics);
    }
}

/// The Unix socket is a shortcut: without it clients of this host use TCP.
fn bind_unix(port: u16, instance: &[u8; 16]) -> Option<(UnixListener, String)> {
    let suffix: String = instance[..6].iter().map(|byte| format!("{byte:02x}")).collect();
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

#[cfg(test)]
mod tests {
    use mooncake_core::{Effects, Record, SegmentNo};
    use mooncake_ids::SegmentUuid;

    use super::*;

    const BOOT: [u8; 16] = [7; 16];

    fn opened(settings: &Settings) -> Opened {
        open_log(settings, &BOOT, &mut Replaying::new(CoreConfig::default())).unwrap().unwrap()
    }

    #[test]
    fn a_start_that_ends_before_it_raised_the_epoch_leaves_that_to_the_next_one() {
        let folder = std::env::temp_dir().join(format!("mooncake-start-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("witness")).unwrap();
        let settings = Settings {
            wal: Wal::On,
            log_folder: LogFolder::Given(folder.join("log")),
            witness_folder: folder.join("witness"),
            ..Settings::default()
        };
        let log_id = opened(&settings).found.log_id;
        let known = Witness::find(&settings.witness_folder, log_id).unwrap();
        known.witness.unwrap().store_raised(50, Reign::default()).unwrap();
        for start in 1..=3 {
            let opened = opened(&settings);
            assert!(matches!(opened.epoch, Epoch::Raised(_)), "start {start}");
        }
        let Opened { sink, found, .. } = opened(&settings);
        let log = Log::new(found.log_id, found.last_lsn, Some(sink), false);
        let mut raised = Effects { records: vec![Record::Epoch(2)], ..Effects::default() };
        log.commit(log.enqueue(&mut raised).unwrap(), |_| {}).unwrap();
        drop(log);
        let after = opened(&settings);
        assert_eq!(after.epoch, Epoch::Kept, "the raised epoch is in the log");
        drop(after);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// The state folder of a master, and what the hosts that it moves between remember of its log.
    struct Hosts(std::path::PathBuf);

    impl Hosts {
        fn new(name: &str) -> Hosts {
            let folder = std::env::temp_dir().join(format!("mooncake-hosts-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            Hosts(folder)
        }

        fn settings(&self, host: u8) -> Settings {
            let witness_folder = self.0.join(format!("witness-{host}"));
            std::fs::create_dir_all(&witness_folder).unwrap();
            Settings {
                wal: Wal::On,
                log_folder: LogFolder::Given(self.0.join("log")),
                witness_folder,
                ..Settings::default()
            }
        }

        fn open(&self, host: u8) -> Result<Opened, StartError> {
            open_log(&self.settings(host), &[host; 16], &mut Replaying::new(CoreConfig::default())).map(Option::unwrap)
        }

        /// One reign on a host: it raises the epoch if it must, and appends this many frames. Says to which, or that it
        /// did not have to. A new log begins with the epoch that is given.
        fn reign(&self, host: u8, first: u16, frames: usize) -> Option<u16> {
            let opened = self.open(host).unwrap();
            let Opened { sink, found, epoch } = opened;
            let raised = epoch.raised();
            let log = Log::new(found.log_id, found.last_lsn, Some(sink), false);
            let append = |record| {
                let mut effects = Effects { records: vec![record], ..Effects::default() };
                log.commit(log.enqueue(&mut effects).unwrap(), |_| {}).unwrap();
            };
            if let Some(epoch) = raised.or((epoch == Epoch::First).then_some(first)) {
                append(Record::Epoch(epoch));
            }
            let nothing = Record::SegmentForgotten { uuid: SegmentUuid([1; 16]), number: SegmentNo(1) };
            (0..frames).for_each(|_| append(nothing.clone()));
            raised
        }

        fn last_file(&self) -> std::path::PathBuf {
            let entries = std::fs::read_dir(self.0.join("log/current")).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            names.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
            names.sort();
            names.pop().unwrap()
        }
    }

    impl Drop for Hosts {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_witness_does_not_vouch_for_a_log_that_another_host_has_cut() {
        let hosts = Hosts::new("cut");
        hosts.reign(1, 1, 20);
        assert_eq!(hosts.reign(1, 0, 5), None, "the same host, the same boot: nothing is missing");
        assert_eq!(hosts.reign(2, 0, 30), Some(2), "host 2 knows nothing of it");
        // Its power fails: the end of what it told is lost.
        let file = hosts.last_file();
        let size = std::fs::metadata(&file).unwrap().len();
        std::fs::File::options().write(true).open(&file).unwrap().set_len(size / 2 - 3).unwrap();
        // Back on host 1, which has not been restarted. Starts that end before the epoch is raised leave that to the
        // next.
        for start in 1..=3 {
            assert_ne!(hosts.open(1).unwrap().epoch, Epoch::Kept, "start {start}");
        }
        assert_eq!(hosts.reign(1, 0, 5), Some(3));
        assert_eq!(hosts.reign(1, 0, 5), None, "from here on it is host 1's again");
    }

    #[test]
    fn an_epoch_that_the_host_has_seen_of_a_log_is_not_begun_again_by_an_older_copy_of_it() {
        let hosts = Hosts::new("copy");
        hosts.reign(1, 1, 20);
        let (log, copy) = (hosts.0.join("log/current"), hosts.0.join("copy"));
        copy_files(&log, &copy);
        assert_eq!(hosts.reign(2, 0, 30), Some(2));
        assert_eq!(hosts.reign(1, 0, 30), Some(3));
        assert_eq!(hosts.reign(1, 0, 30), None);
        std::fs::remove_dir_all(&log).unwrap();
        copy_files(&copy, &log);
        // A start that ends before it has raised the epoch leaves what it knew to the next one.
        for start in 1..=2 {
            assert_eq!(hosts.open(1).unwrap().epoch.raised(), Some(4), "start {start}");
        }
        assert_eq!(hosts.reign(1, 0, 5), Some(4));
        // Host 2 has seen less; the clients that have seen more tell it by the reign.
        std::fs::remove_dir_all(&log).unwrap();
        copy_files(&copy, &log);
        assert_eq!(hosts.reign(2, 0, 5), Some(3));
    }

    #[test]
    fn a_log_of_which_nothing_is_left_does_not_begin_its_first_epoch_again() {
        let hosts = Hosts::new("empty");
        hosts.reign(1, 1, 20);
        let header = std::fs::File::options().write(true).open(hosts.last_file()).unwrap();
        header.set_len(64).unwrap();
        let opened = hosts.open(2).unwrap();
        assert_eq!((opened.found.last_lsn, opened.epoch.raised()), (0, Some(2)));
    }

    fn copy_files(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    #[test]
    fn a_log_without_a_higher_epoch_does_not_start_when_it_needs_one() {
        let hosts = Hosts::new("last-epoch");
        hosts.reign(1, 65_535, 3);
        assert_eq!(hosts.reign(1, 0, 3), None, "nothing is missing, so that none is needed");
        for start in 1..=2 {
            let refused = hosts.open(2).err().expect("no epoch is left").to_string();
            assert!(refused.contains("65535") && refused.contains("mv "), "start {start}: {refused}");
        }
        std::fs::rename(hosts.0.join("log/current"), hosts.0.join("moved-away")).unwrap();
        assert_eq!(hosts.open(2).unwrap().epoch, Epoch::First);
    }
}

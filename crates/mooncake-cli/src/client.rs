//! `mooncake client`: a process that lends memory to the pool.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_client::{
    ErrorKind, KeepOptions, MemoryHolder, NodeInfo, NodeInfoPort, NodeInfoServer, SizeError, Store, StoreError,
    StoreOptions, masters, parse_size,
};
use mooncake_client_http::ClientServer;
use mooncake_http::bind_remedy;
use mooncake_master::{address, resolve};
use mooncake_settings::environment::Reader;
use mooncake_settings::{CLIENT, Given, SettingError, Source, Support, environment};

use crate::holder::{KeeperConnection, ServiceManager};
use crate::logging::{self, announce};
use crate::{descriptors, flags, service, signals};

/// How long between two tries to reach a master that is not there yet.
const RETRY: Duration = Duration::from_millis(500);
/// How often that is said.
const SAY: Duration = Duration::from_secs(10);

/// Why a storage node did not start.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A size on the command line.
    #[error("flag --{flag}: {source}")]
    Size {
        /// The flag.
        flag: &'static str,
        /// What is wrong with it.
        source: SizeError,
    },
    /// A segment of no bytes.
    #[error("flag --global_segment_size is 0: a storage node without memory has nothing to do")]
    NothingToLend,
    /// The wildcard address, and no way to tell how others reach this machine.
    #[error("no address of this machine leads to the master {master}: {source}; --host={host} takes all, name one")]
    NoRoute {
        /// The flag's value.
        host: String,
        /// The master.
        master: String,
        /// What failed.
        source: std::io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal.
    #[error("--log_dir: {0}")]
    Log(std::io::Error),
    /// The port of the service.
    #[error("flag --port={port}: {source}; another storage node on this host? --port=0 takes any free port")]
    Port {
        /// As given.
        port: u16,
        /// What failed.
        source: std::io::Error,
    },
    /// The thread that tells there.
    #[error("telling processes of this host where the pool is: {0}")]
    NodeInfoServer(std::io::Error),
    /// The port of the HTTP server.
    #[error("cannot listen on {address} for HTTP: {source}; {}", bind_remedy(source, "http_port"))]
    Http {
        /// Where.
        address: SocketAddr,
        /// What failed.
        source: std::io::Error,
    },
    /// Nothing would have the memory.
    #[error(
        "flag --keep: nothing holds the memory over a restart; run under a service manager with a store of descriptors \
         (systemd: Type=notify, FileDescriptorStoreMax=), or name a keeper: --keeper=PATH"
    )]
    NoHolder,
    /// A keeper.
    #[error("flag --keeper={path}: {source}; is mooncake keeper --socket={path} running as this user?")]
    Keeper {
        /// As given.
        path: String,
        /// What failed.
        source: std::io::Error,
    },
    /// Signals.
    #[error("signal handling: {0}")]
    Signals(std::io::Error),
}

/// Runs until a signal says that it is over.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), ClientError> {
    let Some(given) = flags::read(&CLIENT, args)? else { return Ok(()) };
    logging::start(CLIENT.name, &given, None).map_err(ClientError::Log)?;
    descriptors::raise_limit();
    logging::say_settings(in_force(&given));
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    given.notes.iter().for_each(|line| tracing::info!("{line}"));
    environment::remarks(Reader::Store, variables).iter().for_each(|line| tracing::warn!("{line}"));
    if !matches!(given.text("metadata_server"), None | Some("" | "P2PHANDSHAKE")) {
        tracing::info!("--metadata_server is accepted, but the store needs none: peers meet through the master");
    }
    if !matches!(given.text_or_default("protocol"), "" | "tcp") {
        tracing::info!(
            "--protocol={} is accepted, but bytes move by shared memory and TCP",
            given.text_or_default("protocol")
        );
    }
    let signals::Signals { ended, is_interrupt } = signals::watch().map_err(ClientError::Signals)?;
    let keep = keep(&given)?;
    // It says that there is no store while the master is waited for.
    let pages = serve_pages(&given)?;
    // Before there is a session, and memory.
    let port = introducer_port(&given)?;
    let Some(store) = connect(&given, &ended, keep.as_ref())? else { return Ok(()) };
    if let Some(pages) = &pages {
        pages.show(&store);
    }
    let _introducer = introduce(&given, &store, port)?;
    announce(&format!(
        "Mooncake client ready: segment {} of {} bytes, master {}",
        store.hostname(),
        size(&given, "global_segment_size")?,
        given.text_or_default("master_server_address")
    ));
    service::is_ready();
    let fed_every = service::watchdog_interval();
    while !ended.load(Ordering::Acquire) {
        signals::wait(fed_every);
        // What the store's threads hold is to be had: a process of which this is not true is of no use.
        if fed_every.is_some() {
            _ = store.links();
            service::is_alive();
        }
    }
    service::is_stopping();
    if keep.is_some() && !is_interrupt.load(Ordering::Relaxed) {
        tracing::info!("leaving: the memory of {} waits for the next process, if it is held", store.hostname());
        store.leave();
        return Ok(());
    }
    tracing::info!("closing: peers stop using the memory of {}", store.hostname());
    store.close();
    Ok(())
}

/// Settings that the user chose, and where: on the command line, or in the environment.
fn in_force(given: &Given) -> Vec<(&'static str, String, String)> {
    let flags = given.effective().filter(|(_, _, source)| *source != Source::Default);
    let flags = flags.map(|(name, value, source)| (name, value.to_owned(), source.to_string()));
    let variables = environment::VARIABLES.iter().filter(|variable| variable.support == Support::Supported);
    let set = variables.filter_map(|variable| Some((variable.name, std::env::var(variable.name).ok()?)));
    flags.chain(set.map(|(name, value)| (name, value, "environment".to_owned()))).collect()
}

/// Health and metrics over HTTP, where that was asked for.
fn serve_pages(given: &Given) -> Result<Option<ClientServer>, ClientError> {
    if !given.boolean("enable_http_server") {
        return Ok(None);
    }
    let host = address(given, "http_host")?;
    let address = SocketAddr::new(host, given.number("http_port").unwrap_or(9300));
    let pages = ClientServer::open(address).map_err(|source| ClientError::Http { address, source })?;
    announce(&format!("HTTP server started on port {}", pages.address().port()));
    Ok(Some(pages))
}

/// Where this node tells processes of its host where the pool is (`setup_dummy`). None if
/// the port is taken and no setting asked for it: several nodes may live on one host.
fn introducer_port(given: &Given) -> Result<Option<NodeInfoPort>, ClientError> {
    let port = given.number("port").unwrap_or(50_052);
    let host = given.text_or_default("host");
    let ip = match host.parse::<SocketAddr>() {
        Ok(both) => both.ip(),
        // A name has been resolved by the store already; here its own sockets do.
        Err(_) => resolve(host.split(':').next().unwrap_or(host)).unwrap_or(IpAddr::from([127, 0, 0, 1])),
    };
    if !ip.is_loopback() {
        tracing::warn!(
            "NO AUTHENTICATION: --host={host} lets everybody who reaches this node's ports read and write what it \
             holds of the pool. Bind a trusted network's address, or 127.0.0.1, unless a firewall guards it"
        );
    }
    match NodeInfoPort::listen(SocketAddr::new(ip, port)) {
        Ok(listening) => Ok(Some(listening)),
        Err(error) if given.text("port").is_none() => {
            tracing::warn!("port {port}: {error}; setup_dummy does not find the pool through this node (see --port)");
            Ok(None)
        }
        Err(source) => Err(ClientError::Port { port, source }),
    }
}

/// Tells there.
fn introduce(given: &Given, store: &Store, port: Option<NodeInfoPort>) -> Result<Option<NodeInfoServer>, ClientError> {
    let Some(port) = port else { return Ok(None) };
    let introduction = NodeInfo::new(given.text_or_default("master_server_address"), store.hostname());
    let introducer = NodeInfoServer::start(port, &introduction).map_err(ClientError::NodeInfoServer)?;
    tracing::info!("setup_dummy of this host finds the pool at port {}", introducer.address().port());
    Ok(Some(introducer))
}

/// What holds the memory from this process to the next, where that was asked for.
fn keep(given: &Given) -> Result<Option<KeepOptions>, ClientError> {
    if !given.boolean("keep") {
        return Ok(None);
    }
    let holder: Arc<dyn MemoryHolder> = match given.text_or_default("keeper") {
        "" => Arc::new(ServiceManager::of_this_process().ok_or(ClientError::NoHolder)?),
        path => {
            let failed = |source| ClientError::Keeper { path: path.to_owned(), source };
            Arc::new(KeeperConnection::open(Path::new(path)).map_err(failed)?)
        }
    };
    let time = Duration::from_millis(given.number("keep_ms").unwrap_or(60_000));
    Ok(Some(KeepOptions { time, holder }))
}

/// Sets the store up; a master that is not there yet is waited for. None when a signal came first.
fn connect(given: &Given, ended: &Arc<AtomicBool>, keep: Option<&KeepOptions>) -> Result<Option<Store>, ClientError> {
    let mut said: Option<Instant> = None;
    while !ended.load(Ordering::Relaxed) {
        let options = options(given, ended).map(|options| StoreOptions { keep: keep.cloned(), ..options });
        let error = match options.and_then(|options| Ok(Store::connect(options)?)) {
            Ok(store) => return Ok(Some(store)),
            Err(error) if may_pass(&error) => error,
            Err(error) => return Err(error),
        };
        if said.is_none_or(|at| at.elapsed() > SAY) {
            tracing::warn!("trying again every {RETRY:?}: {error}");
            said = Some(Instant::now());
        }
        std::thread::sleep(RETRY);
    }
    Ok(None)
}

/// A master, its name or the network may come yet.
fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::NoRoute { .. } => true,
        ClientError::Store(error) => {
            matches!(error.kind(), ErrorKind::MasterUnreachable | ErrorKind::Timeout | ErrorKind::Interrupted)
        }
        _ => false,
    }
}

fn options(given: &Given, ended: &Arc<AtomicBool>) -> Result<StoreOptions, ClientError> {
    let master = given.text_or_default("master_server_address").to_owned();
    let (hostname, bind) = names(given.text_or_default("host"), &master)?;
    let mut options = StoreOptions::new(hostname, master).from_env()?;
    options.global_segment_size = size(given, "global_segment_size")?;
    if options.global_segment_size == 0 {
        return Err(ClientError::NothingToLend);
    }
    options.local_buffer_size = size(given, "local_buffer_size")?;
    if let Some(list) = given.text("tcp_addresses").filter(|list| !list.trim().is_empty()) {
        options = options.with_tcp_addresses("--tcp_addresses", list)?;
    }
    // Without `--host` as an address of its own, the list says where.
    options.bind_address = options.bind_address.or(bind.filter(|_| options.tcp_addresses.is_empty()));
    if given.boolean("enable_offload") {
        options = options.with_tier("")?;
    }
    let ended = Arc::clone(ended);
    options.interrupted = Some(Arc::new(move || ended.load(Ordering::Relaxed)));
    Ok(options)
}

fn size(given: &Given, flag: &'static str) -> Result<u64, ClientError> {
    parse_size(given.text_or_default(flag)).map_err(|source| ClientError::Size { flag, source })
}

/// The name that others use for this client, and what to listen on where that is something else.
pub fn names(host: &str, master: &str) -> Result<(String, Option<IpAddr>), ClientError> {
    let (address, port) = match host.parse::<SocketAddr>() {
        Ok(both) => (both.ip(), Some(both.port())),
        Err(_) => match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(address) => (address, None),
            // A name: the store looks it up.
            Err(_) => return Ok((host.to_owned(), None)),
        },
    };
    if !address.is_unspecified() {
        return Ok((host.to_owned(), None));
    }
    let own = own_address(&masters(master)?).map_err(|source| ClientError::NoRoute {
        host: host.to_owned(),
        master: master.to_owned(),
        source,
    })?;
    let name = match (own, port) {
        (IpAddr::V4(own), Some(port)) => format!("{own}:{port}"),
        (IpAddr::V6(own), Some(port)) => format!("[{own}]:{port}"),
        (own, None) => own.to_string(),
    };
    Ok((name, Some(address)))
}

/// The address of this machine on the way to the first master that has one. Connecting a datagram socket sends nothing.
fn own_address(masters: &[(String, u16)]) -> std::io::Result<IpAddr> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for (host, port) in masters {
        let peers = (host.as_str(), *port).to_socket_addrs().map(|peers| peers.collect());
        let peers: Vec<SocketAddr> = peers.unwrap_or_else(|error| {
            last = error;
            Vec::new()
        });
        for peer in peers {
            let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            match UdpSocket::bind(any).and_then(|socket| socket.connect(peer).and_then(|()| socket.local_addr())) {
                Ok(own) => return Ok(own.ip()),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wildcard_is_listened_on_and_a_real_address_is_named() {
        let (name, bind) = names("0.0.0.0", "127.0.0.1:50051").unwrap();
        assert_eq!((name.as_str(), bind), ("127.0.0.1", Some("0.0.0.0".parse().unwrap())));
        let (name, _) = names("0.0.0.0:12345", "127.0.0.1:50051").unwrap();
        assert_eq!(name, "127.0.0.1:12345");
    }

    #[test]
    fn a_second_master_is_refused() {
        let error = names("0.0.0.0", "nowhere.invalid:1, 127.0.0.1:50051").unwrap_err();
        assert!(!may_pass(&error) && error.to_string().contains("2 masters"), "{error}");
    }

    #[test]
    fn a_master_whose_name_has_no_address_yet_is_waited_for_and_one_that_is_none_is_not() {
        let error = names("0.0.0.0", "nowhere.invalid:50051").unwrap_err();
        assert!(may_pass(&error) && error.to_string().contains("nowhere.invalid:50051"), "{error}");
        for none in ["nowhere", "nowhere:99999", ""] {
            let error = names("0.0.0.0", none).unwrap_err();
            assert!(!may_pass(&error) && error.to_string().contains("host:port"), "{error}");
        }
    }

    #[test]
    fn an_address_or_a_name_is_taken_as_it_is() {
        for host in ["127.0.0.1", "127.0.0.1:12345", "node-7", "[::1]:12345"] {
            assert_eq!(names(host, "127.0.0.1:50051").unwrap(), (host.to_owned(), None));
        }
    }

    #[test]
    fn flags_of_the_reference_are_understood() {
        let args = "--master_server_address=127.0.0.1:1 --metadata_server=P2PHANDSHAKE --host=127.0.0.1 --port=51160 \
                    --global_segment_size 1073741824 --protocol=tcp --threads 4 --tenant_id=default --noenable_offload";
        let Ok(Some(given)) = flags::read(&CLIENT, args.split_whitespace().map(str::to_owned)) else { panic!() };
        let ended = Arc::new(AtomicBool::new(false));
        assert_eq!(options(&given, &ended).unwrap().global_segment_size, 1 << 30);
        assert_eq!(given.notes.len(), 2, "{:?}", given.notes);
    }
}

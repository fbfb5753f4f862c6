//! The engine: one segment, its peers, transfers in the caller's thread and in the background.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::{Bounce, ForeignRange, Guarded, PeerProcess, forked, hex, random_bytes};
use parking_lot::Mutex;

use crate::address;
use crate::batch::{BatchId, Batches, Status, TaskStatus};
use crate::buffers::{Buffer, Buffers};
use crate::calls::Calls;
use crate::descriptor::{Descriptor, Ours, Protocols};
use crate::errands::Errands;
use crate::error::EngineError;
use crate::frame::EngineId;
use crate::handshake::{self, Kind, Message, NotifyBody};
use crate::host_frame::{SECRET_LEN, Secret};
use crate::known_peers::{Known, KnownPeers};
use crate::listening::{self, Listening};
use crate::mappable::Mappable;
use crate::metadata::{HttpMetadata, Metadata, Registry};
use crate::notify::{Inbox, Notify};
use crate::options::EngineOptions;
use crate::peer::{Lingering, MappedPeers, Pace, Patience, Peer, Routes, SameHost, StripeThreads, Tcp};
use crate::publisher::Publisher;
use crate::server::{Ports, Room, Server, listen_on_host};
use crate::silent_peers::SilentPeers;
use crate::topology::Topology;
use crate::transport::Transports;
use crate::workers::Workers;
use crate::writers::Writers;

/// Longest that memory which is given up is waited for, while somebody is at it. Each of them is for one system call at a time.
const GIVING_UP: Duration = Duration::from_secs(10);

/// Longest that who asks for something in the background is kept by a peer that has not been met.
const SOON: Duration = Duration::from_millis(100);

/// Longest that a call waits for the metadata service, whatever it asks of it.
const SERVICE: Duration = Duration::from_secs(10);

/// Which way a request's bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// From the peer's memory to the local one.
    Read = 0,
    /// From the local memory to the peer's.
    Write = 1,
}

/// Bytes to be moved.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The direction.
    pub opcode: Opcode,
    /// This process's end, and how many bytes. It needs not be registered. Nobody else may use it until the request has
    /// ended.
    pub local: ForeignRange,
    /// Address in the peer's process, inside one of its registered buffers.
    pub remote: u64,
}

/// A peer that this engine has opened; 0 is itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    /// This engine.
    pub const SELF: PeerId = PeerId(0);
}

/// A range that an engine has registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// First address.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Where it lies: `cpu:0`, `cuda:1`, `*`.
    pub location: String,
    /// Peers may read and write it; else it is the local end of transfers alone.
    pub lent: bool,
}

/// What peers see of an engine, and what serves them.
pub(crate) struct Home {
    pub id: EngineId,
    pub name: String,
    pub options: EngineOptions,
    pub buffers: Buffers,
    pub transports: Transports,
    /// What peers of this host may map.
    pub mappable: Arc<Mappable>,
    pub inbox: Inbox,
    /// Which devices are near which memory; discovered if none is given.
    pub topology: Mutex<Option<Topology>>,
    pub stripe_threads: StripeThreads,
    pub errands: Errands,
    /// Of handshakes that are coming in.
    pub room: Arc<Room>,
    /// Copies within this process that nobody has checked.
    pub myself: PeerProcess,
    /// What is mapped of peers' memory.
    pub mapped: MappedPeers,
    /// The ways to peers.
    pub routes: Routes,
    /// Writes that were given up and that peers may be at.
    pub lingering: Arc<Lingering>,
    /// Connections that peers write by.
    pub writers: Arc<Writers>,
    secret: Box<[u8; SECRET_LEN]>,
    pub registry: Option<Registry>,
    /// What the metadata tells peers: an address, or a host's name.
    advertised: Option<String>,
    pub publisher: Publisher,
    /// The answer to who asks for the document, and which state of the buffers it tells.
    described: Mutex<Option<(u64, Arc<[u8]>)>>,
}

impl Home {
    /// The segment document.
    fn describe(&self) -> String {
        self.describe_with(&self.buffers.lent())
    }

    /// The message that answers whoever asks for the segment document. All who ask share one.
    pub fn description(&self) -> Arc<[u8]> {
        // Looked at first: what changes meanwhile is told the next who asks.
        let state = self.buffers.changes();
        let mut described = self.described.lock();
        match &*described {
            Some((then, message)) if *then == state => message.clone(),
            _ => {
                let message: Arc<[u8]> = Message::new(Kind::Metadata, self.describe()).encode().into();
                *described = Some((state, message.clone()));
                message
            }
        }
    }

    fn describe_with(&self, lent: &[Arc<Buffer>]) -> String {
        let mut document = Descriptor {
            name: self.name.clone(),
            protocol: Protocols::NONE,
            tcp_data_host: String::new(),
            tcp_data_port: 0,
            tcp_proto_version: 1,
            timestamp: crate::address::timestamp(),
            buffers: Vec::new(),
            ours: Some(Ours { id: hex(&self.id), boot: String::new(), unix: String::new() }),
        };
        self.transports.iter().for_each(|transport| transport.describe(lent, &mut document));
        document.encode()
    }

    /// Whether a peer's name is this engine's own.
    fn is_called(&self, name: &str) -> bool {
        let is_same_address =
            || address::split_peer(name).is_some_and(|at| address::split_peer(&self.name) == Some(at));
        name == self.name || (self.registry.is_none() && is_same_address())
    }

    pub fn secret(&self) -> Secret {
        Secret { addr: self.secret.as_ptr().expose_provenance() as u64, bytes: *self.secret }
    }

    /// The host and the addresses where a peer's handshakes are answered: its name says so, or the metadata.
    pub fn handshake_at(&self, name: &str, patience: &Patience<'_>) -> Result<(String, Vec<SocketAddr>), EngineError> {
        let (host, port) = match &self.registry {
            Some(registry) => registry.handshake(name, patience)?,
            None => {
                let no_address = || EngineError::InvalidArgument(format!("{name:?} is no host:port"));
                address::split_peer(name).map(|(host, port)| (host.to_owned(), port)).ok_or_else(no_address)?
            }
        };
        let addresses = address::resolve(&host, port, &self.errands, patience)?;
        Ok((host, addresses))
    }

    /// A peer's description and its host.
    pub fn look_up(&self, name: &str, patience: &Patience<'_>) -> Result<(Descriptor, String), EngineError> {
        let (host, addresses) = self.handshake_at(name, patience)?;
        let json = match &self.registry {
            Some(registry) => registry.segment(name, patience)?.into_bytes(),
            None => {
                // Nobody reads in the question what the asker lends.
                let ask = Message::new(Kind::Metadata, self.describe_with(&[]));
                let (connect, longest) = (self.options.connect_timeout, crate::descriptor::LONGEST);
                handshake::ask(name, &addresses, &ask, connect, patience, longest)?
            }
        };
        Ok((Descriptor::decode(name, &json)?, host))
    }

    /// Tells the metadata what is registered now.
    pub fn tell(&self) -> Result<(), EngineError> {
        match &self.registry {
            Some(registry) => registry.publish(&self.name, &self.describe()),
            None => Ok(()),
        }
    }
}

/// What threads of the engine share.
pub(crate) struct Core {
    pub home: Arc<Home>,
    pub workers: Workers,
    silent: Arc<SilentPeers>,
    peers: KnownPeers,
    calls: Calls,
}

/// A transfer engine. It may be used by any number of threads.
pub struct Engine {
    pub(crate) core: Arc<Core>,
    batches: Batches,
    server: Mutex<Option<Server>>,
    /// Nobody touches memory any more that it was lent or given.
    ended: AtomicBool,
    port: u16,
    data_port: u16,
}

impl Engine {
    /// Starts an engine that needs no service to be found. `host` is the name or address that peers reach this host by,
    /// with or without a port (which is not used: the engine takes a free one, and [`Engine::name`] says which).
    pub fn new(host: &str, options: EngineOptions) -> Result<Engine, EngineError> {
        Engine::start(host, options, None, &|| false)
    }

    /// Starts an engine that is found by its name in a metadata service. `cluster` keeps the names of several clusters in
    /// one service apart; it may be empty.
    pub fn with_metadata(
        name: &str,
        options: EngineOptions,
        service: Box<dyn Metadata>,
        cluster: &str,
    ) -> Result<Engine, EngineError> {
        Engine::with_metadata_with(name, options, service, cluster, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call. What the service was told until then is taken back
    /// in the background.
    pub fn with_metadata_with(
        name: &str,
        options: EngineOptions,
        service: Box<dyn Metadata>,
        cluster: &str,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Engine, EngineError> {
        Engine::start(name, options, Some(Registry::new(Arc::from(service), cluster)), interrupted)
    }

    /// Starts an engine by Mooncake's connection string: `P2PHANDSHAKE`, or the URL of a metadata service, `http://` or
    /// `https://`. A service that does not answer is waited for some 15 s at most.
    pub fn connect(metadata: &str, name: &str, options: EngineOptions, cluster: &str) -> Result<Engine, EngineError> {
        Engine::connect_with(metadata, name, options, cluster, &|| false)
    }

    /// The same; `interrupted` is as in [`Engine::with_metadata_with`].
    pub fn connect_with(
        metadata: &str,
        name: &str,
        options: EngineOptions,
        cluster: &str,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Engine, EngineError> {
        match metadata.split_once("://") {
            None if metadata == "P2PHANDSHAKE" => Engine::start(name, options, None, interrupted),
            Some(("http" | "https", _)) => {
                let service = Box::new(HttpMetadata::new(metadata));
                Engine::with_metadata_with(name, options, service, cluster, interrupted)
            }
            _ => Err(EngineError::InvalidArgument(format!(
                "metadata server {metadata:?}: this version has P2PHANDSHAKE, http:// and https://"
            ))),
        }
    }

    fn start(
        name: &str,
        options: EngineOptions,
        registry: Option<Registry>,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Engine, EngineError> {
        let (host, _) = address::split(name);
        if host.is_empty() {
            return Err(EngineError::InvalidArgument("an engine needs the name of its host".into()));
        }
        let os = |what| EngineError::socket("this engine", what);
        let told = options.told(host, registry.is_some());
        let fixed = registry.as_ref().and_then(|_| options.fixed_port(name));
        let Listening { handshake, data, port, data_port } =
            listening::begin(&options, told.as_deref().unwrap_or(""), fixed)?;
        let id: EngineId = random_bytes().map_err(os("random bytes"))?;
        let secret: [u8; SECRET_LEN] = random_bytes().map_err(os("random bytes"))?;
        let unix = format!("mooncake-engine-{}", hex(&id));
        // Where there is no such socket, same-host peers use TCP.
        let door = if options.same_host { listen_on_host(&unix).ok().map(Guarded::new) } else { None };
        let unix = if door.is_some() { unix } else { String::new() };
        let ports = Ports { handshake, data, host: door };
        let errands = registry.as_ref().map_or_else(Errands::default, Registry::errands);
        let patience = Patience::lasting(options.connect_timeout, interrupted);
        let advertised = match (&registry, told) {
            (Some(_), Some(told)) => Some(told),
            (Some(registry), None) => Some(registry.own_address(&patience)?.to_string()),
            (None, _) => None,
        };
        let memory = |error: mooncake_memory::MemoryError| EngineError::Memory(error.to_string());
        let mappable = Arc::new(Mappable::new().map_err(memory)?);
        options.warn_of_what_is_not_there();
        let transports: Transports =
            Arc::new([Box::new(SameHost::new(unix, mappable.clone())), Box::new(Tcp::new(data_port))]);
        let home = Arc::new(Home {
            id,
            name: if registry.is_some() { name.to_owned() } else { address::join(host, port) },
            buffers: Buffers::new(transports.clone()),
            transports,
            mappable,
            inbox: Inbox::default(),
            topology: Mutex::new(options.topology.clone()),
            stripe_threads: StripeThreads::default(),
            errands,
            room: Arc::default(),
            described: Mutex::default(),
            myself: PeerProcess::myself().map_err(|error| EngineError::Memory(error.to_string()))?,
            mapped: MappedPeers::default(),
            routes: Routes::default(),
            lingering: Arc::default(),
            writers: Arc::default(),
            secret: Box::new(secret),
            options,
            registry,
            advertised,
            publisher: Publisher::default(),
        });
        let server = Server::start(home.clone(), ports, home.options.server_threads)?;
        if let Some(host) = &home.advertised {
            let patience = Patience::lasting(SERVICE, interrupted);
            if let Err(error) = Publisher::begin(&home, host, port, &patience) {
                // Best effort: the next engine of the name replaces what is left.
                let _ = Publisher::end(&home, &patience);
                return Err(error);
            }
        }
        let (workers, peers, calls) = (Workers::default(), KnownPeers::default(), Calls::default());
        let core = Arc::new(Core { home, workers, silent: Arc::default(), peers, calls });
        Ok(Engine {
            core,
            batches: Batches::default(),
            server: Mutex::new(Some(server)),
            ended: AtomicBool::new(false),
            port,
            data_port,
        })
    }

    /// The name that peers open: `host:port`, or what the metadata service knows it by.
    pub fn name(&self) -> &str {
        &self.core.home.name
    }

    /// Where its handshakes are answered, as peers reach it: `ip:port`, or the name of its host and the port.
    pub fn address(&self) -> String {
        let host = match &self.core.home.advertised {
            Some(host) => host,
            None => address::split(self.name()).0,
        };
        address::join(host, self.port)
    }

    /// Port of its handshakes.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Port of its data.
    pub fn data_port(&self) -> u16 {
        self.data_port
    }

    // ------------------------------------------------------------- memory

    /// Lends ranges to peers: all of them, or none and an error. Until they are [given up](Engine::unregister) or the
    /// engine is closed, any peer reads and writes them at any time. A metadata service that does not answer is waited for 10 s.
    ///
    /// After [`EngineError::BufferBusy`] a peer had found them already, and is still at one of them: that one is to be given up
    /// before its memory is used for something else.
    pub fn register(&self, ranges: &[ForeignRange], location: &str) -> Result<(), EngineError> {
        self.register_with(ranges, location, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call: nothing is lent then.
    pub fn register_with(
        &self,
        ranges: &[ForeignRange],
        location: &str,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), EngineError> {
        self.check()?;
        let home = &self.core.home;
        home.buffers.register(ranges, location, true)?;
        let Err(error) = Publisher::publish(home, &Patience::lasting(SERVICE, interrupted)) else { return Ok(()) };
        let addresses: Vec<usize> = ranges.iter().map(|range| range.addr()).collect();
        let taken_back = home.buffers.unregister(&addresses, &Patience::lasting(GIVING_UP, interrupted));
        // The service may have learned of them, or may yet.
        Publisher::publish_unseen(home);
        taken_back.and(Err(error))
    }

    /// Registers ranges to be the local end of transfers alone: all of them, or none and an error. No peer is told of them, and
    /// none reaches them. The transports that there are need no such registration.
    pub fn register_local(&self, ranges: &[ForeignRange], location: &str) -> Result<(), EngineError> {
        self.check()?;
        self.core.home.buffers.register(ranges, location, false)
    }

    /// Gives a range up, by its first address. After `Ok` nobody touches that memory any more. Fails with
    /// [`EngineError::BufferBusy`] where somebody still does after 10 s: then the range takes no new requests, stays the
    /// engine's, and giving it up again waits again. A metadata service that does not answer is waited for 10 s more.
    pub fn unregister(&self, addr: usize) -> Result<(), EngineError> {
        self.unregister_all(&[addr])
    }

    /// The same for several, which are waited for together; all that can be are given up, and the error is that of the first
    /// that could not.
    pub fn unregister_all(&self, addresses: &[usize]) -> Result<(), EngineError> {
        self.unregister_all_with(addresses, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call: with `Ok` if they are given up by then, with
    /// [`EngineError::BufferBusy`] if somebody is still at one.
    pub fn unregister_all_with(
        &self,
        addresses: &[usize],
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), EngineError> {
        self.check()?;
        let home = &self.core.home;
        let given_up = home.buffers.unregister(addresses, &Patience::lasting(GIVING_UP, interrupted));
        if let Err(error) = Publisher::publish(home, &Patience::lasting(SERVICE, interrupted)) {
            // Peers that still try are refused.
            tracing::warn!(%error, "the metadata still names buffers that were given up");
        }
        given_up
    }

    /// All registered ranges, by ascending address; in a forked child none.
    pub fn registered(&self) -> Vec<Registered> {
        if forked() {
            return Vec::new();
        }
        let one = |buffer: Arc<Buffer>| Registered {
            addr: buffer.range.addr(),
            len: buffer.range.len(),
            location: buffer.location.clone(),
            lent: buffer.lent,
        };
        self.core.home.buffers.all().into_iter().map(one).collect()
    }

    // -------------------------------------------------------------- peers

    /// Meets a peer by its name; the same name gives the same id. The own name is [`PeerId::SELF`].
    pub fn open(&self, name: &str) -> Result<PeerId, EngineError> {
        self.open_with(name, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms while the peer's answer is waited for, and true ends the call.
    pub fn open_with(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        self.core.open(name, interrupted)
    }

    /// As [`Engine::open`], for requests of a batch: it keeps its caller for 0.1 s at most. A peer that has not answered by then
    /// is met by the thread that carries the requests out, and until their deadline.
    pub fn open_soon(&self, name: &str) -> Result<PeerId, EngineError> {
        self.open_soon_with(name, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call.
    pub fn open_soon_with(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        self.core.open_soon(name, interrupted)
    }

    /// Address of the first buffer that a peer has registered, as it says at this moment; none if it has none.
    pub fn first_buffer(&self, name: &str) -> Result<Option<u64>, EngineError> {
        self.first_buffer_with(name, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call.
    pub fn first_buffer_with(
        &self,
        name: &str,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<u64>, EngineError> {
        self.check()?;
        let name = name.trim_start_matches('/');
        if self.core.home.is_called(name) {
            return Ok(self.registered().iter().find(|buffer| buffer.lent).map(|buffer| buffer.addr as u64));
        }
        let patience = Patience { interrupted, ..self.core.patience(0) };
        let peer = self.core.meet(name, &patience)?;
        Ok(peer.route().descriptor.buffers.first().map(|buffer| buffer.addr))
    }

    /// Whether an engine answers under that name.
    pub fn probe(&self, name: &str) -> Result<(), EngineError> {
        self.probe_with(name, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call.
    pub fn probe_with(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<(), EngineError> {
        self.check()?;
        let patience = Patience::lasting(self.core.home.options.connect_timeout, interrupted);
        self.core.say(name, &Message::new(Kind::Probe, "{}".into()), &patience)
    }

    /// Leaves a message with a peer, which keeps it until it [asks](Engine::take_notifies). One that is longer than
    /// [`EngineOptions::handshake_max`] is refused: so it would be there.
    pub fn notify(&self, peer: PeerId, notify: &Notify) -> Result<(), EngineError> {
        self.notify_with(peer, notify, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call.
    pub fn notify_with(
        &self,
        peer: PeerId,
        notify: &Notify,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), EngineError> {
        self.check()?;
        let patience = Patience::lasting(self.core.home.options.connect_timeout, interrupted);
        self.core.send_notify(peer, notify, &patience)
    }

    /// Messages that peers have left, oldest first; in a forked child none.
    pub fn take_notifies(&self) -> Vec<Notify> {
        if forked() { Vec::new() } else { self.core.home.inbox.take() }
    }

    // ---------------------------------------------------------- transfers

    /// Moves bytes now, in this thread. `Ok` when all bytes of all requests are in place; after an error some of them
    /// may be, and nothing touches the local memory any more. [`Engine::close`] ends it with [`EngineError::Closed`].
    pub fn transfer(&self, peer: PeerId, requests: &[Request]) -> Result<(), EngineError> {
        self.transfer_with(peer, requests, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call.
    pub fn transfer_with(
        &self,
        peer: PeerId,
        requests: &[Request],
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), EngineError> {
        self.check()?;
        self.core.carry_out(peer, requests, &Patience { interrupted, ..self.core.patience(total(requests)?) })
    }

    /// A batch for so many requests; [`Engine::free`] ends it. In a forked child it is none.
    pub fn allocate(&self, capacity: usize) -> BatchId {
        self.batches.allocate(capacity)
    }

    /// Adds requests to a batch, to be carried out in the background, in no order.
    /// `notify` is left with its peer once all of the batch is in place, before the batch says so.
    pub fn submit(
        &self,
        batch: BatchId,
        requests: Vec<(PeerId, Request)>,
        notify: Option<(PeerId, Notify)>,
    ) -> Result<(), EngineError> {
        self.check()?;
        let batch = self.batches.get(batch)?;
        for (peer, _) in &requests {
            self.core.peers.get(*peer)?;
        }
        let lengths = requests.iter().map(|(_, request)| request.local.len() as u64);
        let bytes = lengths.fold(0, u64::saturating_add);
        let deadline = self.core.patience(bytes).deadline;
        let empty = requests.is_empty();
        let tasks = batch.add(requests, notify, deadline)?;
        if empty {
            return Ok(());
        }
        let added = Workers::add(&self.core, &batch, &tasks, deadline);
        if let Err(error) = added {
            let failed = Err(error);
            if batch.end(&tasks, &failed).is_some() {
                batch.finish(tasks.len());
            }
            return failed;
        }
        Ok(())
    }

    /// How far one request of a batch is, by its number in the order of their adding.
    pub fn task_status(&self, batch: BatchId, task: usize) -> Result<TaskStatus, EngineError> {
        let found = self.batches.get(batch)?.task(task);
        found.ok_or_else(|| EngineError::InvalidArgument(format!("the batch has no request number {task}")))
    }

    /// How far a batch is as a whole: failed as soon as one request has.
    pub fn status(&self, batch: BatchId) -> Result<Status, EngineError> {
        Ok(self.batches.get(batch)?.status())
    }

    /// Waits until no request of a batch is under way; [`EngineError::Timeout`] if that takes longer.
    pub fn wait(&self, batch: BatchId, patience: Duration) -> Result<Status, EngineError> {
        let batch = self.batches.get(batch)?;
        if batch.wait(patience) {
            return Ok(batch.status());
        }
        Err(EngineError::Timeout { peer: self.name().to_owned(), what: "a batch", waited: patience })
    }

    /// `hook` is called once no request of a batch is under way: by the thread that ended the last one, which it must not
    /// keep; at once if none is. Gives a number for [`Engine::forget`].
    pub fn when_done(&self, batch: BatchId, hook: Box<dyn FnOnce() + Send>) -> Result<u64, EngineError> {
        Ok(self.batches.get(batch)?.when_done(hook))
    }

    /// Takes back what [`Engine::when_done`] was given, if it has not been called.
    pub fn forget(&self, batch: BatchId, hook: u64) {
        if let Ok(batch) = self.batches.get(batch) {
            batch.forget(hook);
        }
    }

    /// When the last request of a batch has ended at the latest.
    pub fn deadline(&self, batch: BatchId) -> Result<Option<Instant>, EngineError> {
        Ok(*self.batches.get(batch)?.deadline.lock())
    }

    /// Why a request of a batch failed, the first that did.
    pub fn batch_error(&self, batch: BatchId) -> Result<Option<String>, EngineError> {
        Ok(self.batches.get(batch)?.error())
    }

    /// Ends a batch. Its requests must have ended.
    pub fn free(&self, batch: BatchId) -> Result<(), EngineError> {
        self.batches.free(batch)
    }

    /// Ends the engine: peers are served no more, calls that are under way fail with [`EngineError::Closed`], and so does what
    /// waits. After `Ok`, nobody touches memory any more that it was lent, or that a transfer was given. Fails with
    /// [`EngineError::CallsUnderWay`] or [`EngineError::BufferBusy`] where somebody still does after some 10 s, and at once
    /// within a call of the same engine's, in its `interrupted`; it may be called again, and waits again. A metadata service
    /// that does not answer is waited for 10 s more.
    pub fn close(&self) -> Result<(), EngineError> {
        self.close_with(&|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call: with `Ok` if all memory is free by then.
    pub fn close_with(&self, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<(), EngineError> {
        if forked() || self.ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (core, home) = (&self.core, &self.core.home);
        core.calls.close();
        core.silent.close();
        core.workers.close(interrupted);
        if let Err(error) = Publisher::end(home, &Patience::lasting(SERVICE, interrupted)) {
            tracing::warn!(%error, "the metadata may name an engine that has ended for some time");
        }
        // Who closes it at the same time waits here.
        *self.server.lock() = None;
        let patience = Patience::lasting(GIVING_UP, interrupted);
        // All are done, whatever becomes of the first.
        let (calls, buffers) = (core.calls.wait(&patience), home.buffers.unregister_everything(&patience));
        calls.and(buffers).and(home.lingering.wait_for_all(&patience))?;
        self.ended.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn check(&self) -> Result<(), EngineError> {
        self.core.check()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "memory is still in use at its engine's end");
        }
    }
}

impl Core {
    fn check(&self) -> Result<(), EngineError> {
        if forked() {
            return Err(EngineError::Forked);
        }
        if self.calls.is_closed() { Err(EngineError::Closed) } else { Ok(()) }
    }

    fn patience(&self, bytes: u64) -> Patience<'static> {
        let began = Instant::now();
        let deadline = began + self.home.options.transfer_timeout + Duration::from_nanos(bytes);
        Patience { began, deadline, interrupted: &|| false }
    }

    fn open(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        let patience = Patience { interrupted, ..self.patience(0) };
        self.find(name, false, |name| Ok(self.peers.keep(name, Some(self.meet(name, &patience)?))))
    }

    fn open_soon(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        let patience = Patience::lasting(SOON, interrupted);
        self.find(name, true, |name| {
            // That it takes longer says nothing of the peer.
            let met = self.silent.check(&self.home, name, &patience).and_then(|()| self.look_for(name, &patience));
            match met {
                Ok(peer) => Ok(self.peers.keep(name, Some(peer))),
                Err(error @ (EngineError::Interrupted | EngineError::Silent { .. })) => Err(error),
                Err(_) if patience.is_over() => Ok(self.peers.keep(name, None)),
                Err(error) => Err(error),
            }
        })
    }

    /// The id of a peer that was met, or `soon` will be; what `meet` gives if it was not.
    fn find(
        &self,
        name: &str,
        soon: bool,
        meet: impl FnOnce(&str) -> Result<PeerId, EngineError>,
    ) -> Result<PeerId, EngineError> {
        self.check()?;
        let name = name.trim_start_matches('/');
        if name.is_empty() {
            return Err(EngineError::InvalidArgument("a peer has a name".into()));
        }
        if self.home.is_called(name) {
            return Ok(PeerId::SELF);
        }
        match self.peers.id_of(name, !soon) {
            Some(id) => Ok(id),
            // Without a lock: others go on.
            None => meet(name),
        }
    }

    /// Asks a peer for its description, unless it is known not to answer.
    fn meet(&self, name: &str, patience: &Patience<'_>) -> Result<Arc<Peer>, EngineError> {
        self.silent.call(&self.home, name, patience, || self.look_for(name, patience))
    }

    fn look_for(&self, name: &str, patience: &Patience<'_>) -> Result<Arc<Peer>, EngineError> {
        Peer::open(&self.home, name, patience).map(Arc::new)
    }

    /// All that were met.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.met()
    }

    pub fn peer_name(&self, id: PeerId) -> String {
        match self.peers.get(id) {
            Ok(Some(known)) => known.name.to_string(),
            _ => self.home.name.clone(),
        }
    }

    /// Carries requests out, in this thread: all or an error. The end of the engine ends it, and waits for it.
    pub fn carry_out(&self, peer: PeerId, requests: &[Request], patience: &Patience<'_>) -> Result<(), EngineError> {
        let _call = self.calls.enter()?;
        let interrupted = || self.calls.is_closed() || (patience.interrupted)();
        match self.move_bytes(peer, requests, &Patience { interrupted: &interrupted, ..*patience }) {
            Err(EngineError::Interrupted) if self.calls.is_closed() => Err(EngineError::Closed),
            result => result,
        }
    }

    fn move_bytes(&self, peer: PeerId, requests: &[Request], patience: &Patience<'_>) -> Result<(), EngineError> {
        total(requests)?;
        let Some(Known { name, peer: met }) = self.peers.get(peer)? else {
            return requests.iter().try_for_each(|request| self.copy_here(request, patience));
        };
        let peer = match met {
            Some(peer) => peer,
            None => {
                let peer = self.meet(&name, patience)?;
                self.peers.keep(&name, Some(peer.clone()));
                peer
            }
        };
        self.silent.call(&self.home, &name, patience, || peer.transfer(&self.home, requests, patience))
    }

    /// A request to the own segment.
    fn copy_here(&self, request: &Request, patience: &Patience<'_>) -> Result<(), EngineError> {
        const STEP: usize = 4 << 20;
        let (addr, len) = (request.remote, request.local.len());
        if len == 0 {
            return Ok(());
        }
        let outside = || EngineError::NotRegistered { owner: self.home.name.clone(), addr, len: len as u64 };
        let buffer = self.home.buffers.find(addr, len as u64).ok_or_else(outside)?;
        let (pace, mut bounce) = (Pace::new(&self.home.name, patience, Duration::MAX), Bounce::new());
        for at in (0..len).step_by(STEP) {
            pace.check("copying within the process")?;
            let step = STEP.min(len - at);
            let _in_use = buffer.enter().ok_or_else(outside)?;
            let (here, there) = (request.local.part(at, step), buffer.part(addr + at as u64, step as u64));
            let (from, into) = match request.opcode {
                Opcode::Read => (there, here),
                Opcode::Write => (here, there),
            };
            let (source, mut target) = (self.home.buffers.source(from), self.home.buffers.target(into));
            let copied = if source.is_on_device() || target.is_on_device() {
                bounce.copy(&source, &mut target).map_err(|error| error.to_string())
            } else {
                let from = from.addr() as u64;
                self.home.myself.pull(from, &mut target).map_err(|error| error.to_string())
            };
            copied.map_err(EngineError::Memory)?;
        }
        Ok(())
    }

    pub fn send_notify(&self, peer: PeerId, notify: &Notify, patience: &Patience<'_>) -> Result<(), EngineError> {
        let Some(Known { name, .. }) = self.peers.get(peer)? else {
            self.home.inbox.push(notify.clone());
            return Ok(());
        };
        let body = NotifyBody { name: notify.name.clone(), notify_msg: notify.message.clone() };
        let json = serde_json::to_string(&body).expect("strings are JSON");
        let message = Message::new(Kind::Notify, json);
        let (len, most) = (message.len(), self.home.options.handshake_max);
        if len > most {
            let why = format!("a message of {len} bytes; handshakes have {most} at most (MC_HANDSHAKE_MAX_LENGTH)");
            return Err(EngineError::InvalidArgument(why));
        }
        self.say(&name, &message, patience)
    }

    /// When a batch is done it is told of while the batch has time, and the engine goes on.
    pub fn tell_of_batch(&self, to: PeerId, notify: &Notify, deadline: Instant) -> Result<(), EngineError> {
        let interrupted = || self.calls.is_closed();
        let patience = Patience::lasting(self.home.options.connect_timeout, &interrupted);
        let deadline = deadline.min(patience.deadline);
        self.send_notify(to, notify, &Patience { deadline, ..patience })
    }

    fn say(&self, name: &str, message: &Message, patience: &Patience<'_>) -> Result<(), EngineError> {
        let name = name.trim_start_matches('/');
        self.silent.call(&self.home, name, patience, || {
            let (_, addresses) = self.home.handshake_at(name, patience)?;
            let (connect, longest) = (self.home.options.connect_timeout, self.home.options.handshake_max);
            handshake::ask(name, &addresses, message, connect, patience, longest).map(drop)
        })
    }
}

/// Bytes of all requests; an error if that is more than there can be, or a range runs over the end of all addresses.
fn total(requests: &[Request]) -> Result<u64, EngineError> {
    let mut bytes = 0_u64;
    for Request { local, remote, .. } in requests {
        let len = local.len() as u64;
        for addr in [*remote, local.addr() as u64] {
            if addr.checked_add(len).is_none() {
                return Err(EngineError::InvalidArgument(format!("{len} bytes at {addr:#x} are no memory")));
            }
        }
        bytes = bytes.checked_add(len).ok_or_else(|| {
            EngineError::InvalidArgument(format!("{} requests of more bytes than can be counted", requests.len()))
        })?;
    }
    Ok(bytes)
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("name", &self.name()).finish_non_exhaustive()
    }
}

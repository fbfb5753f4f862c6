//! The engine: one segment, its peers, transfers in the caller's thread and in the background.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::request::{PeerId, Request, total};
use mooncake_memory::{ForeignRange, PeerProcess};
use mooncake_net::{join_host_port, listen_abstract};
use mooncake_os::{
    DESCRIPTORS_OF_OTHERS_MAX, Deadline, Guarded, descriptor_limit, forked, hex, raise_descriptor_limit, random_bytes,
};
use parking_lot::Mutex;

use crate::batch::workers::Workers;
use crate::batch::{BatchId, Batches, Status, TaskStatus};
use crate::error::EngineError;
use crate::local_node::LocalNode;
use crate::memory::buffers::{Buffer, Buffers};
use crate::memory::mappable::Mappable;
use crate::metadata::publisher::Publisher;
use crate::metadata::{EngineDirectory, HttpMetadata, Metadata};
use crate::notify::{Inbox, Notify};
use crate::options::{EngineOptions, Protocol, blocking_pool};
use crate::peers::calls::Calls;
use crate::peers::initiator::Initiator;
use crate::peers::links::Links;
use crate::peers::registry::PeerRegistry;
use crate::peers::unresponsive::UnresponsivePeers;
use crate::protocol::handshake::{Kind, Message};
use crate::protocol::ids::EngineId;
use crate::protocol::peer_name;
use crate::protocol::same_host::SECRET_LEN;
use crate::server::listen::{self, Listeners};
use crate::server::{Ports, Server, ServerContext};
use crate::transport::Transports;
use crate::transport::context::Context;
use crate::transport::rdma::Rdma;
use crate::transport::same_host::SameHost;
use crate::transport::tcp::Tcp;

/// Longest that unregistering waits for copies that are under way. Each of them is one system call at a time.
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest that a call waits for the metadata service.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(10);

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

/// A transfer engine. It may be used by any number of threads.
pub struct Engine {
    pub(crate) initiator: Arc<Initiator>,
    workers: Arc<Workers>,
    batches: Batches,
    server: Mutex<Option<Server>>,
    /// Tells the metadata service what is registered, if there is one.
    publisher: Option<Arc<Publisher>>,
    /// What the service tells peers: an address, or a host's name.
    advertised: Option<String>,
    /// Closed, and nothing touches memory of its callers any more.
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

    /// Starts an engine that is found by its name in a metadata service. `cluster` keeps the names of several clusters
    /// in one service apart; it may be empty.
    pub fn with_metadata(
        name: &str,
        options: EngineOptions,
        service: Box<dyn Metadata>,
        cluster: &str,
    ) -> Result<Engine, EngineError> {
        Engine::with_metadata_with(name, options, service, cluster, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call. What the service was told until then is
    /// taken back in the background.
    pub fn with_metadata_with(
        name: &str,
        options: EngineOptions,
        service: Box<dyn Metadata>,
        cluster: &str,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Engine, EngineError> {
        Engine::start(name, options, Some(Arc::new(EngineDirectory::new(Arc::from(service), cluster))), interrupted)
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
        directory: Option<Arc<EngineDirectory>>,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Engine, EngineError> {
        let (host, _) = peer_name::split(name);
        if host.is_empty() {
            return Err(EngineError::InvalidArgument("an engine needs the name of its host".into()));
        }
        if options.raise_descriptors
            && let Err(error) = raise_descriptor_limit(DESCRIPTORS_OF_OTHERS_MAX)
        {
            let limit = descriptor_limit();
            tracing::warn!(%error, limit, "the limit of open files cannot be raised; a peer takes several of them");
        }
        let os = EngineError::os;
        let told = options.told(host, directory.is_some());
        let fixed = directory.as_ref().and_then(|_| options.fixed_port(name));
        let Listeners { handshake, data, port, data_port, data_at } =
            listen::begin(&options, told.as_deref().unwrap_or(""), fixed)?;
        let id: EngineId = random_bytes().map_err(os("random bytes"))?;
        let secret: [u8; SECRET_LEN] = random_bytes().map_err(os("random bytes"))?;
        let unix = format!("mooncake-engine-{}", hex(&id));
        // Without it, peers of this host use TCP.
        let host_listener = if options.same_host { listen_abstract(&unix).ok().map(Guarded::new) } else { None };
        let unix = if host_listener.is_some() { unix } else { String::new() };
        let ports = Ports { handshake, data, host: host_listener };
        let blocking_pool = directory.as_ref().map_or_else(blocking_pool, |directory| directory.blocking_pool());
        let deadline = Deadline::after(options.connect_timeout, interrupted);
        let advertised = match (&directory, told) {
            (Some(_), Some(told)) => Some(told),
            (Some(directory), None) => Some(directory.own_address(&deadline)?.to_string()),
            (None, _) => None,
        };
        let memory = |error: mooncake_memory::MemoryError| EngineError::Memory(error.to_string());
        let mappable = Arc::new(Mappable::new().map_err(memory)?);
        let same_host = Arc::new(SameHost::new(unix, mappable.clone()));
        let rdma = open_rdma(&options, directory.is_some()).map(|rdma| Arc::new(rdma) as _);
        let tcp = Arc::new(Tcp::new(data_port, data_at));
        let transports: Transports = [same_host as _].into_iter().chain(rdma).chain([tcp as _]).collect();
        let topology = Mutex::new(options.topology.clone());
        let context = Context {
            buffers: Buffers::new(transports.iter().map(|transport| transport.clone() as _).collect()),
            blocking_pool,
            secret: Box::new(secret),
            own_process: PeerProcess::myself().map_err(|error| EngineError::Memory(error.to_string()))?,
            directory: OnceLock::new(),
            options,
        };
        let node = Arc::new(LocalNode {
            id,
            name: if directory.is_some() { name.to_owned() } else { join_host_port(host, port) },
            context,
            transports,
            inbox: Inbox::default(),
            topology,
            described: Mutex::default(),
            directory,
        });
        let asks: Weak<LocalNode> = Arc::downgrade(&node);
        node.context.directory.get_or_init(|| asks);
        let links = Arc::<Links>::default();
        let housekeeping = {
            let (transports, links) = (node.transports.clone(), links.clone());
            move |now| {
                transports.iter().for_each(|transport| transport.sweep(now));
                links.close_idle(now);
            }
        };
        let server = Server::start(ServerContext::new(node.clone(), mappable), ports, Box::new(housekeeping))?;
        let publisher = node.directory.clone().map(|directory| {
            let described = node.clone();
            Arc::new(Publisher::new(directory, &node.name, Box::new(move || described.describe())))
        });
        if let (Some(publisher), Some(host)) = (&publisher, &advertised) {
            let deadline = Deadline::after(SERVICE_TIMEOUT, interrupted);
            if let Err(error) = publisher.begin(host, port, &deadline) {
                // Best effort: the next engine of the name replaces what is left.
                let _ = publisher.end(&deadline);
                return Err(error);
            }
        }
        let unresponsive = Arc::new(UnresponsivePeers::new(node.clone()));
        let (peers, calls) = (PeerRegistry::default(), Calls::default());
        let initiator = Arc::new(Initiator { node, unresponsive, peers, links, calls });
        let workers = Arc::new(Workers::new(initiator.clone()));
        Ok(Engine {
            initiator,
            workers,
            batches: Batches::default(),
            server: Mutex::new(Some(server)),
            publisher,
            advertised,
            ended: AtomicBool::new(false),
            port,
            data_port,
        })
    }

    /// The name that peers open: `host:port`, or what the metadata service knows it by.
    pub fn name(&self) -> &str {
        &self.initiator.node.name
    }

    /// Where its handshakes are answered, as peers reach it: `ip:port`, or the name of its host and the port.
    pub fn address(&self) -> String {
        let host = match &self.advertised {
            Some(host) => host,
            None => peer_name::split(self.name()).0,
        };
        join_host_port(host, self.port)
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

    /// Lends ranges to peers: all of them, or none and an error. Until they are [unregistered](Engine::unregister) or
    /// the engine is closed, any peer reads and writes them at any time. A metadata service that does not answer is
    /// waited for 10 s.
    ///
    /// After [`EngineError::BufferBusy`] a peer had found them already, and still copies to or from one of them: that
    /// one is to be unregistered before its memory is used for something else.
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
        let node = &self.initiator.node;
        node.context.buffers.register(ranges, location, true)?;
        let Err(error) = self.publish(interrupted) else { return Ok(()) };
        let addresses: Vec<usize> = ranges.iter().map(|range| range.addr()).collect();
        let taken_back = node.context.buffers.unregister(&addresses, &Deadline::after(UNREGISTER_TIMEOUT, interrupted));
        // The service may have the document with them, or may get it yet.
        if let Some(publisher) = &self.publisher {
            publisher.publish_unseen(node.context.buffers.len());
        }
        taken_back.and(Err(error))
    }

    /// Registers ranges to be the local end of transfers alone: all of them, or none and an error. No peer is told of
    /// them, and none reaches them. The transports that there are have no need of it but RDMA: what is not registered
    /// is copied through memory that is.
    pub fn register_local(&self, ranges: &[ForeignRange], location: &str) -> Result<(), EngineError> {
        self.check()?;
        self.initiator.node.context.buffers.register(ranges, location, false)
    }

    /// Unregisters a range, by its first address. After `Ok` nothing touches that memory any more. Fails with
    /// [`EngineError::BufferBusy`] if a copy is still under way after 10 s: then the range takes no new requests, stays
    /// the engine's, and unregistering it again waits again. A metadata service that does not answer is waited for 10 s
    /// more.
    pub fn unregister(&self, addr: usize) -> Result<(), EngineError> {
        self.unregister_all(&[addr])
    }

    /// The same for several, which are waited for together. All that can be are unregistered; the error is that of the
    /// first that could not.
    pub fn unregister_all(&self, addresses: &[usize]) -> Result<(), EngineError> {
        self.unregister_all_with(addresses, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call: with `Ok` if they are free by then, with
    /// [`EngineError::BufferBusy`] if not.
    pub fn unregister_all_with(
        &self,
        addresses: &[usize],
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), EngineError> {
        self.check()?;
        let node = &self.initiator.node;
        let given_up = node.context.buffers.unregister(addresses, &Deadline::after(UNREGISTER_TIMEOUT, interrupted));
        if let Err(error) = self.publish(interrupted) {
            // No error: peers that still use them are refused.
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
        self.initiator.node.context.buffers.all().into_iter().map(one).collect()
    }

    // -------------------------------------------------------------- peers

    /// Meets a peer by its name; the same name gives the same id. The own name is [`PeerId::SELF`].
    pub fn open(&self, name: &str) -> Result<PeerId, EngineError> {
        self.open_with(name, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms while the peer's answer is waited for, and true ends the call.
    pub fn open_with(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        self.initiator.open(name, interrupted)
    }

    /// As [`Engine::open`], for requests of a batch: it keeps its caller for 0.1 s at most. A peer that has not
    /// answered by then is met by the thread that carries the requests out, and until their deadline.
    pub fn open_soon(&self, name: &str) -> Result<PeerId, EngineError> {
        self.open_soon_with(name, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call.
    pub fn open_soon_with(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        self.initiator.open_soon(name, interrupted)
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
        if self.initiator.node.is_called(name) {
            return Ok(self.registered().iter().find(|buffer| buffer.lent).map(|buffer| buffer.addr as u64));
        }
        let deadline = Deadline { interrupted, ..self.initiator.deadline(0) };
        let peer = self.initiator.meet(name, &deadline)?;
        Ok(peer.link().document.first_buffer())
    }

    /// Whether an engine answers under that name.
    pub fn probe(&self, name: &str) -> Result<(), EngineError> {
        self.probe_with(name, &|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call.
    pub fn probe_with(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<(), EngineError> {
        self.check()?;
        let deadline = Deadline::after(self.initiator.node.context.options.connect_timeout, interrupted);
        self.initiator.say(name, &Message::new(Kind::Probe, "{}".into()), &deadline)
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
        let deadline = Deadline::after(self.initiator.node.context.options.connect_timeout, interrupted);
        self.initiator.send_notify(peer, notify, &deadline)
    }

    /// Messages that peers have left, oldest first; in a forked child none.
    pub fn take_notifies(&self) -> Vec<Notify> {
        if forked() { Vec::new() } else { self.initiator.node.inbox.take() }
    }

    // ---------------------------------------------------------- transfers

    /// Refuses ranges of this process that begin in memory that is registered here and run out of it. Transfers look by
    /// themselves, before anything moves; this is for callers that touch such memory by other means. In a forked child
    /// none is.
    pub fn check_local(&self, ranges: impl IntoIterator<Item = ForeignRange>) -> Result<(), EngineError> {
        // A thread of the parent may have held the lock at the fork, and nothing unlocks it here.
        if forked() { Ok(()) } else { self.initiator.node.context.buffers.check_local(ranges) }
    }

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
        let bytes = total(requests)?;
        self.check_local(requests.iter().map(|request| request.local))?;
        self.initiator.transfer(peer, requests, &Deadline { interrupted, ..self.initiator.deadline(bytes) })
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
            self.initiator.peers.get(*peer)?;
        }
        self.check_local(requests.iter().map(|(_, request)| request.local))?;
        let lengths = requests.iter().map(|(_, request)| request.local.len() as u64);
        let bytes = lengths.fold(0, u64::saturating_add);
        let deadline = self.initiator.deadline(bytes).until;
        let empty = requests.is_empty();
        let tasks = batch.add(requests, notify, deadline)?;
        if empty {
            return Ok(());
        }
        let added = self.workers.add(&batch, &tasks, deadline);
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
    pub fn wait(&self, batch: BatchId, timeout: Duration) -> Result<Status, EngineError> {
        let batch = self.batches.get(batch)?;
        if batch.wait(timeout) {
            return Ok(batch.status());
        }
        Err(EngineError::Timeout { peer: self.name().to_owned(), what: "a batch", waited: timeout })
    }

    /// `hook` is called once no request of a batch is under way: by the thread that ended the last one, which it must
    /// not keep; at once if none is. Gives a number for [`Engine::forget`].
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

    /// Ends the engine: it serves peers no more, and calls that are under way or wait fail with
    /// [`EngineError::Closed`]. After `Ok` nothing touches memory any more that it was lent, or that a transfer was
    /// given.
    ///
    /// Fails with [`EngineError::CallsUnderWay`] or [`EngineError::BufferBusy`] if something still does after about
    /// 10 s; and at once if it is called in the `interrupted` of a call of this engine. It may be called again, and
    /// waits again. A metadata service that does not answer is waited for 10 s more.
    pub fn close(&self) -> Result<(), EngineError> {
        self.close_with(&|| false)
    }

    /// The same; `interrupted` is asked every 50 ms, and true ends the call: with `Ok` if all memory is free by then.
    pub fn close_with(&self, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<(), EngineError> {
        if forked() || self.ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (initiator, node) = (&self.initiator, &self.initiator.node);
        initiator.calls.close();
        initiator.unresponsive.close();
        self.workers.close(interrupted);
        let ended =
            self.publisher.as_ref().map(|publisher| publisher.end(&Deadline::after(SERVICE_TIMEOUT, interrupted)));
        if let Some(Err(error)) = ended {
            tracing::warn!(%error, "the metadata may name an engine that has ended for some time");
        }
        // A second caller of `close` waits here.
        *self.server.lock() = None;
        let deadline = Deadline::after(UNREGISTER_TIMEOUT, interrupted);
        // Each is waited for, whatever becomes of the ones before.
        let (calls, buffers) = (initiator.calls.wait(&deadline), node.context.buffers.unregister_all(&deadline));
        initiator.links.close();
        let transports = node.transports.iter().map(|transport| transport.finish(&deadline));
        let transports = transports.fold(Ok(()), Result::and);
        calls.and(buffers).and(transports)?;
        self.ended.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn check(&self) -> Result<(), EngineError> {
        self.initiator.check()
    }

    /// Publishes what is registered to the metadata service, if there is one.
    fn publish(&self, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<(), EngineError> {
        let Some(publisher) = &self.publisher else { return Ok(()) };
        publisher.publish(self.initiator.node.context.buffers.len(), &Deadline::after(SERVICE_TIMEOUT, interrupted))
    }
}

/// The cards that there are, where RDMA may be used. Where it was asked for and cannot be, one line says why.
fn open_rdma(options: &EngineOptions, has_service: bool) -> Option<Rdma> {
    let is_asked_for = options.protocols.contains(&Protocol::Rdma);
    // A service has one document of an engine for all peers: earlier versions would find no way by one of RDMA.
    let is_free = options.protocols.is_empty() && !has_service;
    if options.force_tcp || !(is_asked_for || is_free) {
        return None;
    }
    let opened = match options.bind.filter(IpAddr::is_loopback) {
        Some(bind) => Err(format!("an engine that listens on {bind} alone lends nothing to other hosts")),
        None => Rdma::open(options.topology.as_ref(), &options.rdma),
    };
    match opened {
        Ok(rdma) => Some(rdma),
        Err(reason) if is_asked_for => {
            tracing::warn!(protocol = "rdma", instead = "tcp", reason, "a protocol that was asked for is not there");
            None
        }
        Err(reason) => {
            tracing::debug!(reason, "no RDMA");
            None
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "memory is still in use at its engine's end");
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("name", &self.name()).finish_non_exhaustive()
    }
}

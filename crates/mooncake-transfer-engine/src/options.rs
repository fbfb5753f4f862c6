//! Settings of an engine.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Once;
use std::time::Duration;

use mooncake_net::{AddressListError, parse_addresses};
use mooncake_os::BlockingPool;
use mooncake_rdma::{RdmaOptions, Topology};
use mooncake_settings::environment::{self, BadVariable, Reader, parsed, switch};
use mooncake_verbs::Mtu;

use crate::error::EngineError;
use crate::protocol::peer_name;

/// Most threads of an engine at a time that ask resolvers and metadata services. One more call waits for one of them.
const BLOCKING_THREADS_MAX: usize = 16;

/// A network, as Mooncake's interfaces name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `tcp`.
    Tcp,
    /// `rdma`.
    Rdma,
}

impl Protocol {
    /// Those that a `protocol` names: one, or none if it is empty. An error if this project knows no such network.
    pub fn named(protocol: &str) -> Result<Vec<Protocol>, EngineError> {
        match protocol.to_ascii_lowercase().as_str() {
            "" => Ok(Vec::new()),
            "tcp" => Ok(vec![Protocol::Tcp]),
            "rdma" => Ok(vec![Protocol::Rdma]),
            _ => Err(EngineError::InvalidArgument(format!("protocol {protocol:?}: this version has tcp and rdma"))),
        }
    }
}

/// Settings of an [`Engine`](crate::Engine). The defaults are Mooncake's.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Ports that the engine takes its two from: 15000-17000.
    pub ports: RangeInclusive<u16>,
    /// Where it listens, whatever peers are told; an address that this host has not is an error.
    pub bind: Option<IpAddr>,
    /// Where it listens if that is what peers are told to reach it by and this host has it. Without either it listens
    /// on all addresses.
    pub bind_if_told: Option<IpAddr>,
    /// Addresses of this host in its networks: data is listened for on each of them, unless [`EngineOptions::bind`]
    /// says where, and peers are told them all. If there is none: data is listened for where handshakes are.
    pub tcp_addresses: Vec<IpAddr>,
    /// An address of a peer that failed, where the peer has others, is left out for so long.
    pub tcp_address_pause: Duration,
    /// Address or name of this host that peers are told who find the engine by a metadata service. If there is none:
    /// the address that it listens on, or else the one towards that service.
    pub advertise: Option<String>,
    /// Of an engine that is found by a metadata service, host and port of its handshakes are those in its name; this
    /// port where the name has none.
    pub port_of_name: Option<u16>,
    /// Which network devices are near which memory; discovered if none is given.
    pub topology: Option<Topology>,
    /// Networks that may be used, by the `protocol` of Mooncake's interfaces: all that there are if none is named. What
    /// is not there is warned of, and [`Protocol::Tcp`] taken. Copies within the host use no network:
    /// [`EngineOptions::same_host`].
    pub protocols: Vec<Protocol>,
    /// No RDMA, whatever the protocols are.
    pub force_tcp: bool,
    /// How RDMA devices are used.
    pub rdma: RdmaOptions,
    /// Copies between processes of one host are used where they work.
    pub same_host: bool,
    /// A transfer takes at most so long, and a nanosecond for each byte more.
    pub transfer_timeout: Duration,
    /// A connection is made in this time or not at all.
    pub connect_timeout: Duration,
    /// A transfer in which no byte moves for so long has failed.
    pub stall_timeout: Duration,
    /// Longest handshake message, bytes.
    pub handshake_max: usize,
    /// TCP connections to a peer over which one large request is spread; 0: by the number of processors.
    pub stripes: usize,
    /// Raise the process's limit of open files to what it may be, at most 65,536.
    pub raise_descriptors: bool,
    /// Threads that serve peers.
    pub server_threads: usize,
    /// Most threads that carry out batches in the background.
    pub worker_threads: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            ports: 15_000..=17_000,
            bind: None,
            bind_if_told: None,
            tcp_addresses: Vec::new(),
            tcp_address_pause: Duration::from_secs(30),
            advertise: None,
            port_of_name: None,
            topology: None,
            protocols: Vec::new(),
            force_tcp: false,
            rdma: RdmaOptions::default(),
            same_host: true,
            transfer_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            handshake_max: 1 << 20,
            stripes: 0,
            raise_descriptors: true,
            server_threads: 4,
            worker_threads: 16,
        }
    }
}

impl EngineOptions {
    /// The environment over these settings. A value that means nothing is an error that names it.
    pub fn from_env(mut self, var: impl Fn(&str) -> Option<String>) -> Result<EngineOptions, EngineError> {
        let number = |name| parsed::<u64>(name, &var).map_err(wrong);
        let seconds = |name| Ok::<_, EngineError>(number(name)?.map(Duration::from_secs));
        if let Some(on) = switch("MC_SHM", &var).map_err(wrong)? {
            self.same_host = on;
        }
        if let Some(on) = switch("MOONCAKE_RAISE_DESCRIPTORS", &var).map_err(wrong)? {
            self.raise_descriptors = on;
        }
        if let Some(timeout) = seconds("MC_TRANSFER_TIMEOUT")? {
            self.transfer_timeout = timeout.max(Duration::from_secs(5));
        }
        if let Some(timeout) = seconds("MC_HANDSHAKE_CONNECT_TIMEOUT")? {
            self.connect_timeout = timeout;
        }
        if let Some(timeout) = seconds("MC_TCP_STATUS_TIMEOUT_SEC")? {
            self.stall_timeout = timeout;
        }
        if let Some(bytes) = number("MC_HANDSHAKE_MAX_LENGTH")? {
            self.handshake_max = bytes as usize;
        }
        let lanes = match number("MC_TCP_LANES_PER_PEER")? {
            None => number("MC_TCP_MAX_CONNECTIONS_PER_PEER")?,
            lanes => lanes,
        };
        if let Some(lanes) = lanes {
            self.stripes = lanes as usize;
        }
        let address = |name| parsed::<IpAddr>(name, &var).map_err(wrong);
        if let Some(address) = address("MC_TE_BIND_ADDRESS")? {
            self.bind = Some(address);
        }
        if let Some(address) = address("MC_TCP_BIND_ADDRESS")? {
            (self.advertise, self.bind_if_told) = (Some(address.to_string()), Some(address));
        }
        if let Some(list) = parsed::<String>(TCP_ADDRESSES, &var).map_err(wrong)? {
            self.tcp_addresses = parse_addresses(&list).map_err(|error| bad_addresses(&list, &error))?;
        }
        if let Some(pause) = number("MC_TCP_ADDRESS_PAUSE_MS")? {
            self.tcp_address_pause = Duration::from_millis(pause);
        }
        if var("MC_LEGACY_RPC_PORT_BINDING").is_some() {
            self.port_of_name = Some(number("MC_HANDSHAKE_PORT")?.map_or(12_001, |port| port as u16));
        }
        self.force_tcp |= var("MC_FORCE_TCP").is_some();
        self.rdma = rdma_from_env(self.rdma, &var)?;
        if ["MC_CUSTOM_TOPO_JSON", "MC_TE_FILTERS"].iter().any(|name| var(name).is_some()) {
            self.topology = Some(Topology::from_env("", &var));
        }
        let port = |name, default| Ok::<u16, EngineError>(parsed(name, &var).map_err(wrong)?.unwrap_or(default));
        let (first, last) =
            (port("MC_MIN_RPC_PORT", *self.ports.start())?, port("MC_MAX_RPC_PORT", *self.ports.end())?);
        // Ports below are the system's, those in the middle it gives to outgoing connections: Mooncake's rule.
        let is_usable = |port: u16| port >= 1024 && !(32_768..=60_999).contains(&port);
        if is_usable(first) && is_usable(last) && first <= last {
            self.ports = first..=last;
        } else {
            tracing::warn!(
                "MC_MIN_RPC_PORT {first} and MC_MAX_RPC_PORT {last} are no range of ports (both from 1024 on, neither \
                 from 32768 to 60999, the first not above the last); ports are taken from {} to {}",
                self.ports.start(),
                self.ports.end()
            );
        }
        Ok(self)
    }

    /// Warns of the variables of this process that do nothing for engines; once a process.
    pub fn warn_ignored_variables() {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            environment::remarks(Reader::Engine, variables).iter().for_each(|remark| tracing::warn!("{remark}"));
        });
    }

    /// What peers are told to reach an engine by whose name has this host; none if that takes a look at the metadata
    /// service.
    pub(crate) fn told(&self, host: &str, has_service: bool) -> Option<String> {
        if !has_service || self.port_of_name.is_some() {
            return Some(host.to_owned());
        }
        let listens_on = self.bind.filter(|ip| !ip.is_unspecified());
        self.advertise.clone().or_else(|| listens_on.map(|ip| ip.to_string()))
    }

    /// Which port an engine has that its name is to tell.
    pub(crate) fn fixed_port(&self, name: &str) -> Option<u16> {
        self.port_of_name.map(|default| peer_name::split(name).1.unwrap_or(default))
    }

    pub(crate) fn stripes(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // Each stream keeps one processor busy at either end.
        if self.stripes > 0 { self.stripes } else { (processors / 2).clamp(1, 4) }
    }
}

/// The environment over settings of RDMA.
fn rdma_from_env(rdma: RdmaOptions, var: &impl Fn(&str) -> Option<String>) -> Result<RdmaOptions, EngineError> {
    let number = |name| parsed::<u64>(name, var).map_err(wrong);
    let small = |name| Ok::<_, EngineError>(number(name)?.map(|number| number as u8));
    let mtu = number("MC_MTU")?.and_then(|bytes| Mtu::of_bytes(bytes as u32));
    Ok(RdmaOptions {
        port: small("MC_IB_PORT")?.unwrap_or(rdma.port),
        gid_index: small("MC_GID_INDEX")?.or(rdma.gid_index),
        partition: number("MC_PKEY_INDEX")?.map_or(rdma.partition, |index| index as u16),
        mtu: mtu.unwrap_or(rdma.mtu),
        queue_pairs: number("MC_NUM_QP_PER_EP")?.map_or(rdma.queue_pairs, |count| count as usize),
        send_depth: number("MC_MAX_WR")?.map_or(rdma.send_depth, |depth| depth as u32),
        slice_bytes: number("MC_SLICE_SIZE")?.map_or(rdma.slice_bytes, |bytes| bytes as usize),
        region_bytes: number("MC_MAX_MR_SIZE")?.unwrap_or(rdma.region_bytes),
        traffic_class: small("MC_IB_TC")?.or(rdma.traffic_class),
        service_level: small("MC_IB_SL")?.or(rdma.service_level),
        rail_pause: number("MC_RDMA_RAIL_PAUSE_SECONDS")?.map_or(rdma.rail_pause, Duration::from_secs),
    })
}

/// Threads that ask name resolvers and metadata services for an engine.
pub(crate) fn blocking_pool() -> BlockingPool {
    BlockingPool::new(BLOCKING_THREADS_MAX, "mooncake-errand")
}

const TCP_ADDRESSES: &str = "MC_TCP_ADDRESSES";

/// A list of addresses that means nothing here.
pub(crate) fn bad_addresses(list: &str, error: &AddressListError) -> EngineError {
    EngineError::InvalidArgument(format!("{TCP_ADDRESSES}={list:?}: {error}"))
}

fn wrong(bad: BadVariable) -> EngineError {
    EngineError::InvalidArgument(bad.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<EngineOptions, EngineError> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        EngineOptions::default().from_env(find)
    }

    #[test]
    fn the_environment_lies_over_the_defaults() {
        let none = with(&[]).unwrap();
        assert_eq!(
            (none.ports, none.transfer_timeout, none.same_host),
            (15_000..=17_000, Duration::from_secs(30), true)
        );
        let some = with(&[
            ("MC_SHM", "0"),
            ("MC_TRANSFER_TIMEOUT", "1"),
            ("MC_MIN_RPC_PORT", "20000"),
            ("MC_MAX_RPC_PORT", "20010"),
            ("MC_TCP_LANES_PER_PEER", "8"),
            ("MC_TCP_MAX_CONNECTIONS_PER_PEER", "2"),
            ("MC_TCP_BIND_ADDRESS", "::1"),
            ("MC_TE_BIND_ADDRESS", "127.0.0.2"),
            ("MC_FORCE_TCP", "1"),
            ("MC_GID_INDEX", "3"),
            ("MC_MTU", "1024"),
            ("MC_NUM_QP_PER_EP", "4"),
            ("MC_IB_TC", "106"),
            ("MC_RDMA_RAIL_PAUSE_SECONDS", "7"),
            ("MC_TCP_ADDRESSES", "127.0.0.3, [::1]"),
            ("MC_TCP_ADDRESS_PAUSE_MS", "500"),
        ]);
        let some = some.unwrap();
        assert_eq!(
            (some.ports, some.transfer_timeout, some.same_host),
            (20_000..=20_010, Duration::from_secs(5), false)
        );
        assert!(some.force_tcp && !none.force_tcp && none.rdma == RdmaOptions::default());
        let rdma = &some.rdma;
        assert_eq!((rdma.gid_index, rdma.mtu.bytes(), rdma.queue_pairs, rdma.port), (Some(3), 1024, 4, 1));
        assert_eq!((rdma.traffic_class, rdma.service_level, rdma.rail_pause.as_secs()), (Some(106), None, 7));
        assert_eq!((some.stripes, some.advertise.as_deref()), (8, Some("::1")));
        assert_eq!((some.bind, some.bind_if_told), ("127.0.0.2".parse().ok(), "::1".parse().ok()));
        assert_eq!(some.tcp_addresses, ["127.0.0.3".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(some.tcp_address_pause, Duration::from_millis(500));
        assert_eq!(with(&[("MC_TCP_MAX_CONNECTIONS_PER_PEER", "3")]).unwrap().stripes, 3, "its name of old");
    }

    #[test]
    fn ports_out_of_rule_are_those_of_the_default() {
        for (first, last) in
            [("40000", "40010"), ("15000", "40000"), ("1000", "2000"), ("16000", "15000"), ("", "14000")]
        {
            let options = with(&[("MC_MIN_RPC_PORT", first), ("MC_MAX_RPC_PORT", last)]).unwrap();
            assert_eq!(options.ports, 15_000..=17_000, "{first}-{last}");
        }
    }

    #[test]
    fn a_name_tells_the_port_where_that_is_asked_for() {
        assert_eq!(with(&[("MC_HANDSHAKE_PORT", "9")]).unwrap().fixed_port("h:5"), None);
        let on = ("MC_LEGACY_RPC_PORT_BINDING", "0");
        assert_eq!(with(&[on]).unwrap().fixed_port("h:5"), Some(5));
        assert_eq!(with(&[on]).unwrap().fixed_port("h"), Some(12_001));
        assert_eq!(with(&[on, ("MC_HANDSHAKE_PORT", "9")]).unwrap().fixed_port("h"), Some(9));
    }

    #[test]
    fn values_without_a_meaning_are_named() {
        for (name, value) in [
            ("MC_SHM", "maybe"),
            ("MC_TRANSFER_TIMEOUT", "soon"),
            ("MC_TCP_LANES_PER_PEER", "17"),
            ("MC_HANDSHAKE_MAX_LENGTH", "1"),
            ("MC_TCP_MAX_CONNECTIONS_PER_PEER", "0"),
            ("MC_MIN_RPC_PORT", "70000"),
            ("MC_TCP_BIND_ADDRESS", "here"),
            ("MC_TE_BIND_ADDRESS", "there"),
            ("MC_MTU", "1500"),
            ("MC_IB_PORT", "0"),
            ("MC_SLICE_SIZE", "1"),
            ("MC_TCP_ADDRESSES", "10.0.0.1,nowhere"),
            ("MC_TCP_ADDRESSES", "10.0.0.1,10.0.0.1"),
            ("MC_TCP_ADDRESS_PAUSE_MS", "soon"),
        ] {
            let error = with(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}

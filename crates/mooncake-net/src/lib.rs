//! Blocking sockets, whatever is sent over them: connecting and resolving until a deadline, waiting for bytes, awake at
//! first, keeping connections for the next call, sharing one request out over several addresses, what a TCP connection
//! is told, and which faults of peers are logged.
#![forbid(unsafe_code)]

mod address_list;
mod connect;
mod host_port;
mod local_end;
mod peer_log;
mod pool;
mod resolve;
mod spin;
mod spread;
mod tcp;
mod unix;

pub use address_list::{ADDRESSES_MAX, AddressListError, check_addresses, parse_addresses};
pub use connect::{ConnectError, connect, connect_from};
pub use host_port::{join_host_port, split_host_port};
pub use local_end::LocalNetworks;
pub use peer_log::{Due, PeerLog};
pub use pool::{Connect, Connection, Pool, PoolLimits, Taken};
pub use resolve::{ResolveError, resolve, resolve_without_deadline};
pub use spin::{
    MOMENT, PollHistory, busy_poll, busy_poll_behind, busy_polls_max, has_hung_up, is_readable, recv_busy_poll,
    recv_busy_poll_behind,
};
pub use spread::addresses::Addresses;
pub use spread::queue::{ChunkQueue, LEFT_BEHIND, Next};
pub use spread::{CHUNK_BYTES, ONE_ADDRESS_BYTES_MAX, Spread};
pub use tcp::{keep_alive, stays_within_host, unpace};
pub use unix::{connect_abstract, connect_abstract_until, listen_abstract, receive_with_fds};

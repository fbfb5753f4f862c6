//! The session of a store with its master.

pub(crate) mod absence;
pub(crate) mod caller;
pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod master_info;
pub(crate) mod opening;
pub(crate) mod orphaned_puts;
pub(crate) mod reservation_origin;

use std::net::IpAddr;

use mooncake_wire::message::HelloReply;

use crate::session::connection::Address;

/// What call connections need to attach.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub id: u64,
    pub secret: u64,
    /// Random id of the master's process.
    pub instance: Vec<u8>,
    pub master: Address,
    /// The same service on this host's Unix socket.
    pub unix: Option<Address>,
    /// This host's address on the way to the master.
    pub local_ip: Option<IpAddr>,
}

impl Session {
    /// Ids start over with another log; with the secret they are unique.
    pub fn is(&self, other: &Session) -> bool {
        self.id == other.id && self.secret == other.secret
    }

    pub fn new(reply: &HelloReply, master: Address, local_ip: Option<IpAddr>, boot_id: &[u8; 16]) -> Self {
        let same_host = reply.boot_id[..] == boot_id[..] && !reply.unix_socket.is_empty();
        Session {
            id: reply.session,
            secret: reply.secret,
            instance: reply.instance.to_vec(),
            master,
            unix: same_host.then(|| Address::Unix(reply.unix_socket.trim_start_matches(['@', '\0']).to_owned())),
            local_ip,
        }
    }
}

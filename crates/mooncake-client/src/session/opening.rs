//! Connections to a master that are to be a session's anchor: how they are made.

use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use mooncake_os::{Deadline, ProcessIdentity};
use mooncake_wire::Feature;
use mooncake_wire::message::{HelloReply, LogPosition, Refusal, hello, refusal};

use crate::connection_error::{ConnectionError, WrongPort};
use crate::discovery::masters::MasterAddress;
use crate::discovery::storage_node::NodeInfo;
use crate::error::{Cause, StoreError};
use crate::kept::Reclaim;
use crate::machine::session::{Identity, RECONNECT, TRY};
use crate::process::wire_process;
use crate::session::Session;
use crate::session::connection::{Address, Connection};

/// Reaches a master of the list and begins a session.
pub(crate) fn open_first(
    masters: &MasterAddress,
    identity: &Identity,
    process: &ProcessIdentity,
    interrupted: &(dyn Fn() -> bool + Sync),
) -> Result<(Opened, Session), StoreError> {
    open_as(masters, &mut || identity.open(), process, interrupted)?.map_err(|refusal| {
        Cause::Refused { master: masters.to_string(), what: "to begin a session", reason: refusal.reason }.into()
    })
}

/// The same of a process that claims memory, each time anew. `None`: the master keeps nothing of that.
pub(crate) fn open_heir(
    masters: &MasterAddress,
    identity: &Identity,
    (process, interrupted): (&ProcessIdentity, &(dyn Fn() -> bool + Sync)),
    claim: impl Fn() -> Reclaim,
) -> Result<Option<(Opened, Session, Reclaim)>, StoreError> {
    let until = Instant::now() + TRY;
    loop {
        let mut shown = None;
        let mut role = || {
            let reclaim = shown.insert(claim());
            identity.claim(reclaim.claim.clone())
        };
        let opened = open_as(masters, &mut role, process, interrupted)?;
        match (opened, shown) {
            (Ok((opened, session)), Some(reclaim)) => {
                // An older master has begun a session without it.
                let is_heir = Feature::Kept.is_in(opened.reply.features);
                return Ok(is_heir.then_some((opened, session, reclaim)));
            }
            (Err(refusal), _) if refusal.kind() == refusal::Kind::NotKept => return Ok(None),
            // Of this very process, and its reply was lost.
            (Err(refusal), _) if refusal.kind() == refusal::Kind::OldClaim && Instant::now() < until => {}
            (Err(refusal), _) => {
                let (master, what) = (masters.to_string(), "to give memory that is kept");
                return Err(Cause::Refused { master, what, reason: refusal.reason }.into());
            }
            (Ok(_), None) => return Ok(None),
        }
    }
}

/// A session that was begun, or why the master refuses it.
type Begun = Result<(Opened, Session), Refusal>;

fn open_as(
    masters: &MasterAddress,
    role: &mut dyn FnMut() -> hello::Role,
    process: &ProcessIdentity,
    interrupted: &(dyn Fn() -> bool + Sync),
) -> Result<Begun, StoreError> {
    let (mut reasons, mut no_master) = (Vec::new(), None);
    let cut_until = Instant::now() + TRY;
    let mut index = 0;
    while index < masters.len() {
        let deadline = Deadline::after(TRY, interrupted);
        match open_at(masters, index, role(), LogPosition::default(), &deadline) {
            Ok(opened) => match opened.reply.refusal.clone() {
                None => {
                    let session = opened.session(process);
                    return Ok(Ok((opened, session)));
                }
                Some(refusal) => return Ok(Err(refusal)),
            },
            Err(Unreached::Interrupted) => return Err(Cause::Interrupted.into()),
            // A master with too many connections that have not identified themselves yet ends the oldest.
            Err(Unreached::Cut(_)) if Instant::now() < cut_until => {
                std::thread::sleep(RECONNECT);
                continue;
            }
            Err(Unreached::NoMaster(error)) => {
                no_master.get_or_insert(error);
            }
            Err(Unreached::Cut(reason) | Unreached::Failed(reason)) => reasons.push(reason),
        }
        index += 1;
    }
    // Of the addresses that were tried it is the one that will never be a master's.
    if let Some(error) = no_master {
        return Err(error);
    }
    Err(Cause::MasterUnreachable { master: masters.to_string(), reason: reasons.join("; ") }.into())
}

/// A connection whose hello has been answered.
pub(crate) struct Opened {
    pub connection: Connection,
    pub reply: HelloReply,
    address: Address,
}

impl Opened {
    /// The session that the reply is about.
    pub fn session(&self, process: &ProcessIdentity) -> Session {
        Session::new(&self.reply, self.address.clone(), self.connection.local_ip(), &process.boot_id)
    }

    /// Position in the master's log.
    pub fn position(&self) -> LogPosition {
        self.reply.position.unwrap_or_default()
    }
}

/// Why there is no such connection.
pub(crate) enum Unreached {
    Interrupted,
    /// A peer listens there, and hung up before an answer.
    Cut(String),
    Failed(String),
    /// What listens there will never be a master.
    NoMaster(StoreError),
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreached::Interrupted => f.write_str("interrupted"),
            Unreached::Cut(reason) | Unreached::Failed(reason) => f.write_str(reason),
            Unreached::NoMaster(error) => error.fmt(f),
        }
    }
}

/// Reaches the master of this number in the list.
pub(crate) fn open_at(
    masters: &MasterAddress,
    index: usize,
    role: hello::Role,
    highest: LogPosition,
    deadline: &Deadline<'_>,
) -> Result<Opened, Unreached> {
    let addresses = masters.resolve(index, deadline).map_err(|error| match error {
        ConnectionError::Interrupted => Unreached::Interrupted,
        error => Unreached::Failed(error.to_string()),
    })?;
    let mut reason = "it has no address".to_owned();
    let mut cut = false;
    for address in addresses {
        let at = Address::Tcp(address);
        match Connection::open(&at, role.clone(), highest, deadline) {
            Ok((connection, reply)) => return Ok(Opened { connection, reply, address: at }),
            Err(ConnectionError::Interrupted) => return Err(Unreached::Interrupted),
            Err(ConnectionError::Wrong(port)) => return Err(Unreached::NoMaster(wrong(port, address).into())),
            Err(error) => {
                cut = matches!(&error, ConnectionError::Io(error) if is_cut(error));
                reason = format!("{address}: {error}");
            }
        }
    }
    Err(if cut { Unreached::Cut(reason) } else { Unreached::Failed(reason) })
}

fn wrong(port: WrongPort, address: SocketAddr) -> Cause {
    match port {
        WrongPort::Http => Cause::SpeaksHttp { address },
        WrongPort::Data => Cause::IsOwner { address },
        WrongPort::Node => {
            let master = NodeInfo::ask(&address.to_string(), None).map(|node| node.master).ok();
            Cause::IsNode { address, master }
        }
    }
}

fn is_cut(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// How the store identifies itself.
pub(crate) fn identity(name: &str, process: &ProcessIdentity, mark: u64) -> Identity {
    Identity { name: name.to_owned(), process: wire_process(process), mark }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::discovery::storage_node::{NodeInfoPort, NodeInfoServer};
    use crate::scripted_master::{TIMEOUT, frame, hello_reply};

    #[test]
    fn a_master_that_hangs_up_before_it_answers_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let masters = MasterAddress::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let master = std::thread::spawn(move || {
            for _ in 0..2 {
                drop(listener.accept().unwrap());
            }
            let (mut caller, _) = listener.accept().unwrap();
            caller.write_all(&frame(&hello_reply(7))).unwrap();
            caller
        });
        let process = ProcessIdentity::current().unwrap();
        let opened = open_first(&masters, &identity("host:1", &process, 3), &process, &|| false);
        let (_, session) = opened.map_err(|error| error.to_string()).unwrap();
        assert_eq!(session.id, 7);
        drop(master.join().unwrap());
    }

    /// What a store is told of an address where a server answers its hello so.
    fn told_of(reply: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let masters = MasterAddress::parse(&at.to_string()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut caller, _) = listener.accept().unwrap();
            let _ = caller.read(&mut [0; 4096]).unwrap();
            caller.write_all(&reply).unwrap();
        });
        let process = ProcessIdentity::current().unwrap();
        let error = open_first(&masters, &identity("host:1", &process, 3), &process, &|| false).map(drop).unwrap_err();
        server.join().unwrap();
        assert_eq!(error.kind(), crate::error::ErrorKind::MasterUnreachable);
        error.to_string().replace(&at.to_string(), "IT")
    }

    #[test]
    fn a_port_that_is_no_masters_control_port_is_named_as_what_it_is_and_with_what_to_do() {
        let http = told_of(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".to_vec());
        assert_eq!(http, "IT speaks HTTP; is it the master's metrics port? Its control port is 50051 by default");
        let owner = told_of([&mooncake_wire::LANE_PREFACE[..], &[0; 56]].concat());
        assert!(owner.starts_with("IT is the data port of a storage node") && owner.contains("50051"), "{owner}");
        let node = told_of(b"{\"master\":\"host:7\"}\n".to_vec());
        assert!(node.starts_with("IT is the port of a storage node") && node.contains("50051"), "{node}");
        let told = NodeInfo::new("host:7", "a");
        let port = NodeInfoPort::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let serves = NodeInfoServer::start(port, &told).unwrap();
        let masters = MasterAddress::parse(&serves.address().to_string()).unwrap();
        let process = ProcessIdentity::current().unwrap();
        let error = open_first(&masters, &identity("host:1", &process, 3), &process, &|| false).map(drop).unwrap_err();
        assert!(error.to_string().ends_with("its master is host:7"), "{error}");
    }

    #[test]
    fn where_no_master_is_reached_each_one_is_named_and_an_interrupt_ends_it_at_once() {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (one, other) = (free(), free());
        let masters = MasterAddress::parse(&format!("{one},{other}")).unwrap();
        let process = ProcessIdentity::current().unwrap();
        let identity = identity("host:1", &process, 3);
        let began = Instant::now();
        let error = open_first(&masters, &identity, &process, &|| false).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("{one}: ")) && error.contains(&format!("{other}: ")), "{error}");
        let interrupted = || true;
        let error = open_first(&masters, &identity, &process, &interrupted).map(drop).unwrap_err();
        assert!(matches!(error.cause(), Cause::Interrupted), "{error}");
        assert!(began.elapsed() < TIMEOUT);
    }
}

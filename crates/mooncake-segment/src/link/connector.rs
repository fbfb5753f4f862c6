//! Finds the best way to a segment.

use std::sync::Arc;

use mooncake_os::{Deadline, Permits, ProcessIdentity};

use super::idle_lanes::IdleLanes;
use super::networks::Networks;
use super::options::{LinkOptions, Path, Paths, SegmentAddress};
use super::shared_memory::give_back_thread::GiveBackThread;
use super::shared_memory::watcher::Watcher;
use super::shared_memory::{Attachment, NoSharedMemory};
use super::{Kind, Link};
use crate::local;
use crate::machine::LeastEpoch;
use crate::protocol::frames::{Hello, Purpose};

/// What every link of a store is made from.
#[derive(Debug)]
pub(super) struct Connector {
    pub options: LinkOptions,
    pub process: ProcessIdentity,
    pub watcher: Arc<Watcher>,
    pub give_back_thread: Arc<GiveBackThread>,
    pub least_epoch: Arc<LeastEpoch>,
    pub idle_lanes: Arc<IdleLanes>,
    /// For large requests over several addresses.
    pub threads: Arc<Permits>,
}

/// A link that was made.
pub(super) struct Made {
    pub link: Link,
    /// What kept it from being shared memory may have passed the next time.
    pub better_later: bool,
}

/// No link could be made.
pub(super) struct NoPath {
    /// What was tried, and why each failed.
    pub reason: String,
    /// The last attempt failed because this process lacks something, not the owner.
    pub is_short_of_descriptors: bool,
    /// The last attempt may go well in a moment.
    pub passing: bool,
}

impl Connector {
    /// A link by the best path that works now.
    pub(super) fn connect(&self, address: &SegmentAddress, deadline: &Deadline<'_>) -> Result<Made, NoPath> {
        let paths = self.options.paths;
        let (mut is_short_of_descriptors, mut is_passing) = (false, false);
        let mut reasons: Vec<String> = Vec::new();
        let mut better_later = false;
        let made = |kind, reason, better_later| Made { link: self.link(address, kind, reason), better_later };

        match local::find(&address.uuid) {
            Some(_) if !paths.local => reasons.push("the own process's memory is switched off".into()),
            Some(served) if served.access_key == address.access_key => {
                let reason = "the segment belongs to this process".into();
                let insider = served.insiders.enter(self.watcher.events());
                return Ok(made(Kind::Local(served, insider), reason, false));
            }
            Some(_) => reasons.push("wrong access key for a segment of this process".into()),
            None if paths == Paths::only(Path::Local) => {
                reasons.push("the segment belongs to another process".into());
            }
            None => {}
        }

        if !paths.shared_memory {
            reasons.push("shared memory is switched off".into());
        } else if address.boot_id != self.process.boot_id {
            reasons.push("another host".into());
        } else if address.unix_socket.is_empty() {
            reasons.push("its owner offers no shared memory".into());
        } else {
            match self.map(address, deadline) {
                Ok(link) => return Ok(Made { link, better_later }),
                Err(NoSharedMemory { reason, passing, is_short }) => {
                    (better_later, is_passing) = (passing, passing);
                    is_short_of_descriptors = is_short;
                    reasons.push(format!("no shared memory: {reason}"));
                }
            }
        }

        if paths.tcp {
            let hello = self.hello(address, Purpose::Lane);
            let networks = Networks::new(address, &self.options, &hello, &self.idle_lanes, self.threads.clone());
            let connected = networks.and_then(|networks| {
                let at = networks.try_connect(deadline).map_err(|e| {
                    is_short_of_descriptors = e.is_short_of_descriptors();
                    is_passing = e.is_passing();
                    e.to_string()
                })?;
                Ok((networks, at))
            });
            match connected {
                Ok((networks, at)) => {
                    reasons.push(format!("connected to {at}"));
                    return Ok(made(Kind::Tcp(Box::new(networks)), reasons.join("; "), better_later));
                }
                Err(reason) => reasons.push(format!("no TCP: {reason}")),
            }
        } else {
            reasons.push("TCP is switched off".into());
        }
        Err(NoPath { reason: reasons.join("; "), is_short_of_descriptors, passing: is_passing })
    }

    /// A link over shared memory.
    pub(super) fn map(&self, address: &SegmentAddress, deadline: &Deadline<'_>) -> Result<Link, NoSharedMemory> {
        let hello = self.hello(address, Purpose::Attach);
        let attachment =
            Attachment::open(address, &self.options, &hello, &self.watcher, &self.give_back_thread, deadline)?;
        Ok(self.link(address, Kind::Shared(attachment), "same host".into()))
    }

    fn link(&self, address: &SegmentAddress, kind: Kind, reason: String) -> Link {
        Link::new(address, kind, reason, self.least_epoch.clone())
    }

    fn hello(&self, address: &SegmentAddress, purpose: Purpose) -> Hello {
        address.hello(purpose, self.options.session, &self.process)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::time::{Duration, Instant};

    use super::super::fixture::{Quiet, mapping, owner};
    use super::super::links::Links;
    use super::*;
    use crate::epoch::Epoch;
    use crate::error::LinkError;
    use crate::protocol::frames::{HELLO_LEN, HelloReply, LANE_VERSION, Status};
    use mooncake_ids::SegmentUuid;

    #[test]
    fn a_path_that_failed_for_want_of_descriptors_is_no_reason_where_another_one_failed_for_its_own() {
        let (_server, memory, mut address) = owner(1 << 20, Quiet);
        let name = format!("mooncake-test-short-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // Of another process, which lets all in; for its descriptors there is no room here.
        address.uuid = SegmentUuid([7; 16]);
        address.unix_socket = name;
        let reply = HelloReply {
            version: LANE_VERSION,
            status: Status::Ok,
            epoch: Epoch::default(),
            bytes: memory.bytes(),
            uuid: address.uuid,
            features: 0,
            tenure: 0,
        };
        std::thread::spawn(move || {
            for caller in listener.incoming() {
                let mut caller = caller.unwrap();
                caller.read_exact(&mut [0; HELLO_LEN]).unwrap();
                caller.write_all(&reply.encode()).unwrap();
            }
        });
        let link = |options: LinkOptions, address: &SegmentAddress| {
            let links = Links::new(options, Box::new(Quiet)).unwrap();
            links.link(address, &Deadline::at(Instant::now() + Duration::from_secs(5))).map(drop).unwrap_err()
        };
        let short = link(mapping(), &address);
        assert!(matches!(short, LinkError::OutOfDescriptors { .. }), "{short}");
        // Nobody listens there any more.
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        address.tcp = vec![closed.to_string()];
        let refused = link(LinkOptions::new(2), &address);
        assert!(matches!(&refused, LinkError::NoPath { reason, .. } if reason.contains("no TCP")), "{refused}");
    }
}

//! The connections that owe their hello, and which of them goes where there are too many.
//!
//! The oldest goes, of the place that has the most of them: a flood of strangers shows strangers out, and a member that
//! has just connected from elsewhere goes on. One that has said hello is heard, however many there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use mooncake_os::peer_credentials;

use super::pending::{Caller, Pending, Progress};
use crate::readiness::{Readiness, Ready};

/// Where callers come from that count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Address(IpAddr),
    /// A process of this process's user.
    Process(u32),
    /// Another user of this host: all processes of it, for it may have any number of them.
    User(u32),
    /// The kernel does not say.
    Unknown,
}

impl Place {
    fn of(caller: &Caller) -> Place {
        match caller {
            Caller::Tcp(_, peer) => Place::Address(peer.ip()),
            Caller::Unix(stream) => match peer_credentials(&**stream) {
                Ok(peer) if peer.is_own_user() => Place::Process(peer.pid),
                Ok(peer) => Place::User(peer.uid),
                Err(_) => Place::Unknown,
            },
        }
    }
}

/// By the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Callers {
    all: BTreeMap<u64, (Pending, Place)>,
    of: HashMap<Place, BTreeSet<u64>>,
    last: u64,
}

impl Callers {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Takes a fresh connection in; its stream must be non-blocking. `number` makes the number by which it is waited
    /// for of its own.
    pub(super) fn enter(
        &mut self,
        caller: Caller,
        now: Instant,
        readiness: &Readiness,
        number: impl FnOnce(u64) -> u64,
    ) -> io::Result<()> {
        let place = Place::of(&caller);
        let pending = Pending::new(caller, now);
        self.last += 1;
        readiness.add(pending.fd(), number(self.last), Ready::IN)?;
        self.of.entry(place).or_default().insert(self.last);
        self.all.insert(self.last, (pending, place));
        Ok(())
    }

    /// Takes in what one has said. `None`: there is no such one any more.
    pub(super) fn advance(&mut self, id: u64) -> Option<Progress> {
        self.all.get_mut(&id).map(|(pending, _)| pending.advance())
    }

    /// Takes one out.
    pub(super) fn leave(&mut self, id: u64, readiness: &Readiness) -> Option<Pending> {
        let (pending, place) = self.all.remove(&id)?;
        if let Some(others) = self.of.get_mut(&place) {
            others.remove(&id);
            if others.is_empty() {
                self.of.remove(&place);
            }
        }
        readiness.remove(pending.fd());
        Some(pending)
    }

    /// The next one whose time is over, and when that is: the oldest, for all have the same.
    pub(super) fn next_overdue(&self) -> Option<(u64, Instant)> {
        self.all.first_key_value().map(|(id, (pending, _))| (*id, pending.deadline()))
    }

    /// The one that goes first.
    pub(super) fn first_to_go(&self) -> Option<u64> {
        let oldest = self.of.values().filter_map(|of| Some((of.len(), *of.first()?)));
        oldest.max_by_key(|(count, id)| (*count, Reverse(*id))).map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use mooncake_os::Guarded;

    use super::*;

    /// A caller that is said to come from there, and its own end.
    fn from(place: [u8; 4], listener: &TcpListener) -> (TcpStream, Caller) {
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        (ours, Caller::Tcp(Guarded::new(stream), SocketAddr::from((place, 1))))
    }

    #[test]
    fn of_the_place_with_the_most_callers_the_oldest_goes_first() {
        let (listener, readiness) = (TcpListener::bind("127.0.0.1:0").unwrap(), Readiness::new().unwrap());
        let (mut callers, mut kept, now) = (Callers::default(), Vec::new(), Instant::now());
        let [member, flood, other] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]];
        for place in [member, flood, flood, other, flood, other] {
            let (ours, caller) = from(place, &listener);
            callers.enter(caller, now, &readiness, |id| id).unwrap();
            kept.push(ours);
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        callers.enter(Caller::Unix(Guarded::new(theirs)), now, &readiness, |id| id).unwrap();
        let gone: Vec<u64> = std::iter::from_fn(|| {
            let id = callers.first_to_go()?;
            assert!(callers.leave(id, &readiness).is_some() && callers.leave(id, &readiness).is_none());
            Some(id)
        })
        .collect();
        // The member, who came first, goes when nobody has more than one.
        assert_eq!(gone, [2, 3, 4, 1, 5, 6, 7]);
        assert!(callers.of.is_empty() && callers.len() == 0);
        drop(ours);
    }
}

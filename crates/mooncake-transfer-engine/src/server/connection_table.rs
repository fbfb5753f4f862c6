//! The connections of a server, each under a token that names it as long as it lasts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Connection;

/// How many of the longest idle are looked at for one that has sent nothing.
const CANDIDATES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct ConnectionTable {
    /// With a generation, so that an event of a connection that has ended finds none.
    list: Vec<(u32, Option<Arc<Connection>>)>,
    free: Vec<u32>,
    used: usize,
}

impl ConnectionTable {
    /// Number of connections.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Gives the token of a connection that is there from now on.
    pub fn add(&mut self, connection: Arc<Connection>) -> u64 {
        self.used += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.list.push((0, None));
            self.list.len() as u32 - 1
        });
        let entry = &mut self.list[index as usize];
        entry.1 = Some(connection);
        u64::from(entry.0) << 32 | u64::from(index)
    }

    pub fn get(&self, token: u64) -> Option<Arc<Connection>> {
        let (generation, connection) = self.list.get(token as u32 as usize)?;
        connection.clone().filter(|_| u64::from(*generation) == token >> 32)
    }

    /// The descriptor is closed, and thereby out of the epoll, when the last holder drops the connection.
    pub fn remove(&mut self, token: u64) {
        if self.get(token).is_none() {
            return;
        }
        let index = token as u32;
        let entry = &mut self.list[index as usize];
        // The four highest tokens are not of connections.
        entry.0 = (entry.0 + 1) & 0x7fff_ffff;
        entry.1 = None;
        self.used -= 1;
        self.free.push(index);
    }

    pub fn all(&self) -> impl Iterator<Item = (u64, Arc<Connection>)> + '_ {
        let used = self.list.iter().enumerate();
        used.filter_map(|(index, (generation, connection))| {
            Some((u64::from(*generation) << 32 | index as u64, connection.clone()?))
        })
    }

    /// Cuts the connection that has been idle for longest; false if none has been for so long. One that has sent
    /// something is not idle.
    pub fn cut_longest_idle(&mut self, at_least: Duration) -> bool {
        let now = Instant::now();
        let mut passed = None;
        for _ in 0..CANDIDATES_MAX {
            let still = self.all().filter_map(|(token, connection)| {
                let idle_rank = connection.peer.try_lock()?.idle_rank()?;
                (now.saturating_duration_since(idle_rank.since) >= at_least).then_some((idle_rank, token))
            });
            let Some(one) = still.filter(|one| Some(*one) > passed).min() else { return false };
            let speaks = |connection: &Connection| {
                connection.peer.try_lock().is_none_or(|peer| mooncake_net::is_readable(peer.fd()))
            };
            if !self.get(one.1).is_some_and(|connection| speaks(&connection)) {
                self.remove(one.1);
                return true;
            }
            passed = Some(one);
        }
        false
    }
}

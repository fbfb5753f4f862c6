//! The connections of a server, and which one has to go when there are too many.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::progress::Progress;

/// Connections of one address that count as few: addresses with no more are not told apart by how many they have.
const FEW_CONNECTIONS: usize = 8;

/// The connections of a server.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    limit: usize,
    /// Connections with a request under way go last.
    spares_busy: bool,
    entries: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    last: u64,
    here: HashMap<u64, (IpAddr, Arc<Progress>)>,
}

/// A connection that counts until this is dropped, or another one takes its place.
#[derive(Debug)]
pub(crate) struct Entry {
    table: Arc<ConnectionTable>,
    number: u64,
    progress: Arc<Progress>,
}

impl ConnectionTable {
    pub fn new(limit: usize, spares_busy: bool) -> ConnectionTable {
        ConnectionTable { limit, spares_busy, entries: Mutex::default() }
    }

    /// Lets one in. When there are as many as may be, another one goes: of the address with the most connections, so
    /// that no address can starve another, the one that has done nothing for the longest. Refusing the newcomer instead
    /// would let a crowd that stands still keep all others out.
    pub fn admit(self: &Arc<ConnectionTable>, peer: IpAddr) -> Entry {
        let peer = address_group(peer);
        let progress = Arc::new(Progress::new());
        let mut entries = self.entries.lock();
        if entries.here.len() >= self.limit
            && let Some(number) = least_active(&entries.here, peer, self.spares_busy)
            && let Some((_, other)) = entries.here.remove(&number)
        {
            other.cut();
        }
        entries.last += 1;
        let number = entries.last;
        entries.here.insert(number, (peer, progress.clone()));
        drop(entries);
        Entry { table: self.clone(), number, progress }
    }
}

impl Entry {
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.entries.lock().here.remove(&self.number);
    }
}

fn least_active(here: &HashMap<u64, (IpAddr, Arc<Progress>)>, newcomer: IpAddr, spares_busy: bool) -> Option<u64> {
    let mut shares = HashMap::from([(newcomer, 1)]);
    for (peer, _) in here.values() {
        *shares.entry(*peer).or_insert(0) += 1;
    }
    let largest = here.values().map(|(peer, _)| shares[peer]).max()?.max(FEW_CONNECTIONS);
    let of_the_largest = here.iter().filter(|(_, (peer, _))| shares[peer].max(FEW_CONNECTIONS) == largest);
    of_the_largest
        .min_by_key(|(_, (_, progress))| (spares_busy && progress.is_busy(), progress.alive_at()))
        .map(|(number, _)| *number)
}

/// The group that an address belongs to: one host has as many IPv6 addresses of its network as it likes.
fn address_group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_here(table: &ConnectionTable, entry: &Entry) -> bool {
        table.entries.lock().here.contains_key(&entry.number)
    }

    #[test]
    fn the_one_that_stands_still_longest_makes_room() {
        let table = Arc::new(ConnectionTable::new(3, false));
        let peer: IpAddr = "127.0.0.1".parse().unwrap();
        let early = table.admit(peer);
        let still = table.admit(peer);
        let late = table.admit(peer);
        early.progress().asked();
        let newcomer = table.admit(peer);
        assert!(!is_here(&table, &still), "it did nothing since it came");
        assert!([&early, &late, &newcomer].into_iter().all(|entry| is_here(&table, entry)));
        drop((still, early));
        let next = table.admit(peer);
        assert!([&late, &newcomer, &next].into_iter().all(|entry| is_here(&table, entry)), "there was room");
    }

    #[test]
    fn an_address_with_many_pushes_out_its_own() {
        let table = Arc::new(ConnectionTable::new(20, false));
        let quiet: Vec<Entry> = (0..FEW_CONNECTIONS).map(|_| table.admit("10.0.0.1".parse().unwrap())).collect();
        let greedy: Vec<Entry> =
            (0..100).map(|host| table.admit(Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, host).into())).collect();
        assert!(quiet.iter().all(|entry| is_here(&table, entry)), "they came first and did nothing since");
        assert_eq!(greedy.iter().filter(|entry| is_here(&table, entry)).count(), 20 - FEW_CONNECTIONS);
        assert!(is_here(&table, &greedy[99]));
    }

    #[test]
    fn whoever_waits_for_an_answer_makes_room_last_where_that_is_wanted() {
        let table = Arc::new(ConnectionTable::new(2, true));
        let peer: IpAddr = "127.0.0.1".parse().unwrap();
        let (waits, idle) = (table.admit(peer), table.admit(peer));
        let busy = waits.progress().asked();
        drop(idle.progress().asked());
        let newcomer = table.admit(peer);
        assert!(is_here(&table, &waits) && !is_here(&table, &idle) && is_here(&table, &newcomer));
        drop((busy, idle));
        drop(newcomer.progress().asked());
        let _next = table.admit(peer);
        assert!(!is_here(&table, &waits), "it has its answer, and has done nothing since");
    }

    #[test]
    fn one_host_is_one_address_however_it_is_written() {
        let same = |a: &str, b: &str| address_group(a.parse().unwrap()) == address_group(b.parse().unwrap());
        assert!(same("::ffff:10.0.0.1", "10.0.0.1") && same("fd00::1", "fd00::ffff:2"));
        assert!(!same("10.0.0.1", "10.0.0.2") && !same("fd00::1", "fd00:0:0:1::1"));
    }
}

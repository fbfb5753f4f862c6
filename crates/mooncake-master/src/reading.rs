//! What the pages tell of this master, read as of one moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use mooncake_core::ClientView;
use mooncake_ids::SessionId;

use crate::clients::{Client, Usage};
use crate::machine::segment_list::{self, Listed};
use crate::metrics::summary::{self, Figures};
use crate::metrics::{CLIENTS_TOLD, ClientFigures, Reading, TierReading};
use crate::shared::Shared;

/// Everything.
pub fn read(shared: &Shared) -> Reading {
    let (stats, quarantine_age_us, tier_order_age_us) =
        shared.read(|core, now| (core.stats(), core.quarantine_age_us(now), core.tier_order_age_us(now)));
    let live = segment_list::list(shared).into_iter().filter(Listed::is_live);
    let tiers = shared.read(|core, now| core.tiers().map(|tier| TierReading::of(&tier, now)).collect());
    let (clients, clients_untold) = figures_of(&clients(shared));
    let segments = live.map(|segment| (segment.name, segment.used, segment.capacity)).collect();
    Reading {
        stats,
        quarantine_age_us,
        tier_order_age_us,
        segments,
        tiers,
        clients,
        clients_untold,
        shell: shared.metrics.read(),
        log: shared.log.read(),
        epoch: shared.log.epoch().number.into(),
        lsn: shared.log.lsn(),
        connections: shared.connections.len() as u64,
        displaced: shared.connections.displaced(),
        peer_faults: shared.peers.faults(),
    }
}

/// The summary line, without a prefix, with the rates since the last periodic one.
pub fn summary_line(shared: &Shared) -> String {
    let previous = shared.summarized.lock();
    let stats = shared.read(|core, _| core.stats());
    summary::line(&Figures { stats, log: shared.log.stats(), shell: &shared.metrics }, &previous)
}

/// Figures of those that have been here for longest, and the number of the others. Of two of one name the younger one
/// is among these.
fn figures_of(clients: &[ClientReading]) -> (Vec<ClientFigures>, u64) {
    let mut names = BTreeSet::new();
    let told = clients.iter().filter(|client| names.insert(&client.name)).take(CLIENTS_TOLD);
    let told: Vec<ClientFigures> = told.map(ClientReading::figures).collect();
    let untold = (clients.len() - told.len()) as u64;
    (told, untold)
}

/// Clients copied while the core is held once.
const AT_ONCE: usize = 256;

/// A client that is not over, as it was a moment ago. Figures are bytes, unless another unit is said.
#[derive(Debug)]
pub struct ClientReading {
    pub session: SessionId,
    /// "host:port".
    pub name: String,
    /// For how long it is away, microseconds.
    pub away_us: Option<u64>,
    /// Its process has ended, and its memory waits for the next one.
    pub is_bereft: bool,
    /// Segments that it lends.
    pub segments: usize,
    pub lent: u64,
    pub used: u64,
    pub pinned: u64,
    /// How many it has.
    pub views: u64,
    pub viewed: u64,
    pub unfinished: u64,
    /// What it said of itself, and asks for.
    pub seen: Arc<Client>,
}

impl ClientReading {
    fn figures(&self) -> ClientFigures {
        let Usage { gets, got_bytes, puts, put_bytes, .. } = self.seen.usage();
        let (lent, viewed, unfinished) = (self.lent, self.viewed, self.unfinished);
        ClientFigures { name: self.name.clone(), lent, viewed, unfinished, gets, got_bytes, puts, put_bytes }
    }
}

/// All clients, by their sessions.
pub fn clients(shared: &Shared) -> Vec<ClientReading> {
    let (mut all, mut next, now) = (Vec::new(), Some(SessionId(0)), Instant::now());
    while let Some(first) = next {
        next = shared.read(|core, at| {
            let mut views = core.clients_from(at, first);
            all.extend(views.by_ref().take(AT_ONCE).map(|view| read_client(shared, &view, now)));
            views.next().map(|view| view.session)
        });
    }
    all
}

fn read_client(shared: &Shared, view: &ClientView<'_>, now: Instant) -> ClientReading {
    ClientReading {
        session: view.session,
        name: view.spec.name.clone(),
        away_us: view.away_us,
        is_bereft: view.is_bereft,
        segments: view.segments,
        lent: view.lent,
        used: view.used,
        pinned: view.pinned,
        views: view.views,
        viewed: view.viewed,
        unfinished: view.unfinished,
        seen: shared.clients.of(view.session, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_have_been_here_for_longest_have_figures_and_the_others_are_counted() {
        let client = |number: u64, name: String| ClientReading {
            session: SessionId(number),
            name,
            away_us: None,
            is_bereft: false,
            segments: 0,
            lent: number,
            used: 0,
            pinned: 0,
            views: 0,
            viewed: 0,
            unfinished: 0,
            seen: Arc::default(),
        };
        let clients: Vec<_> = (0..200).map(|number| client(number, format!("h:{}", number / 2))).collect();
        let (told, untold) = figures_of(&clients);
        assert_eq!((told.len(), untold), (100, 100));
        assert!(told.iter().zip(0..).all(|(client, nth)| client.lent == 2 * nth), "the elder ones of each name");
        let clients: Vec<_> = (0..200).map(|number| client(number, format!("h:{number}"))).collect();
        let (told, untold) = figures_of(&clients);
        assert_eq!((told.len(), untold), (CLIENTS_TOLD, 72));
    }
}

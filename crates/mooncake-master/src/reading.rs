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

/// Figures of clients that are here, the eldest ones first, and of others if there is room; and the number of those
/// that have none. Of two that have one name the second one is among these.
fn figures_of(clients: &[ClientReading]) -> (Vec<ClientFigures>, u64) {
    let mut names = BTreeSet::new();
    let (here, others): (Vec<_>, Vec<_>) = clients.iter().partition(|client| client.is_here());
    let told = here.into_iter().chain(others).filter(|client| names.insert(&client.view.name)).take(CLIENTS_TOLD);
    let told: Vec<ClientFigures> = told.map(ClientReading::figures).collect();
    let untold = (clients.len() - told.len()) as u64;
    (told, untold)
}

/// Clients and their segments that are looked at while the core is held once.
const AT_ONCE: usize = 256;

/// A client that is not over, as it was a moment ago.
#[derive(Debug)]
pub struct ClientReading {
    /// What it lends and holds.
    pub view: ClientView,
    /// What it said of itself, and asks for.
    pub seen: Arc<Client>,
}

impl ClientReading {
    fn is_here(&self) -> bool {
        self.view.away_us.is_none() && !self.view.is_bereft
    }

    fn figures(&self) -> ClientFigures {
        let Usage { gets, got_bytes, puts, put_bytes, .. } = self.seen.usage();
        let ClientView { lent, pinned, stored, viewed, unfinished, .. } = self.view;
        let name = self.view.name.clone();
        ClientFigures { name, lent, pinned, stored, viewed, unfinished, gets, got_bytes, puts, put_bytes }
    }
}

/// All clients, by their sessions.
pub fn clients(shared: &Shared) -> Vec<ClientReading> {
    let (mut views, mut next) = (Vec::new(), Some(SessionId(0)));
    while let Some(first) = next {
        next = shared.read(|core, now| {
            let mut looked = 0;
            for view in core.clients_from(now, first) {
                looked += 1 + view.segments;
                let session = view.session;
                views.push(view);
                if looked >= AT_ONCE {
                    return Some(SessionId(session.0 + 1));
                }
            }
            None
        });
    }
    let now = Instant::now();
    views.into_iter().map(|view| ClientReading { seen: shared.clients.of(view.session, now), view }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn client(number: u64, name: String, away_us: Option<u64>) -> ClientReading {
        let view = ClientView {
            session: SessionId(number),
            name,
            away_us,
            is_bereft: false,
            segments: 0,
            lent: number,
            used: 0,
            pinned: 0,
            viewed: 0,
            unfinished: 0,
            stored_objects: 0,
            stored: 0,
        };
        ClientReading { view, seen: Arc::default() }
    }

    #[test]
    fn those_that_have_been_here_for_longest_have_figures_and_the_others_are_counted() {
        let clients: Vec<_> = (0..200).map(|number| client(number, format!("h:{}", number / 2), None)).collect();
        let (told, untold) = figures_of(&clients);
        assert_eq!((told.len(), untold), (100, 100));
        assert!(told.iter().zip(0..).all(|(client, nth)| client.lent == 2 * nth), "the elder ones of each name");
        let clients: Vec<_> = (0..200).map(|number| client(number, format!("h:{number}"), None)).collect();
        let (told, untold) = figures_of(&clients);
        assert_eq!((told.len(), untold), (CLIENTS_TOLD, 72));
    }

    #[test]
    fn one_that_is_back_under_its_name_is_told_and_not_the_one_that_is_away() {
        let clients = [client(1, "h:1".to_owned(), Some(5)), client(2, "h:1".to_owned(), None)];
        let (told, untold) = figures_of(&clients);
        assert_eq!((told.len(), told[0].lent, untold), (1, 2, 1));
    }
}

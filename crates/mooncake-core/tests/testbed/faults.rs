//! What goes wrong, and when.

use super::{Event, World};

/// Chances are percent, or per mille per fault event where it says so.
#[derive(Debug, Clone)]
pub struct Faults {
    pub clients: usize,
    pub loss: u64,
    pub repeat: u64,
    pub delay_us: u64,
    /// Longest time between two granules of a write.
    pub write_us: u64,
    /// Per mille, every 20 ms.
    pub master_crash: u64,
    pub client_crash: u64,
    pub freeze: u64,
    pub anchor_break: u64,
    /// A crash of the master loses the end of its log.
    pub cut_tail: bool,
    /// Nothing goes wrong any more, and no new work begins.
    pub quiet: bool,
}

impl Faults {
    pub fn none() -> Faults {
        Faults {
            clients: 5,
            loss: 0,
            repeat: 0,
            delay_us: 300,
            write_us: 500,
            master_crash: 0,
            client_crash: 0,
            freeze: 0,
            anchor_break: 0,
            cut_tail: false,
            quiet: false,
        }
    }

    pub fn network() -> Faults {
        Faults { loss: 5, repeat: 5, delay_us: 4_000, anchor_break: 8, ..Faults::none() }
    }

    pub fn everything() -> Faults {
        Faults { master_crash: 3, client_crash: 6, freeze: 10, ..Faults::network() }
    }
}

impl World {
    pub fn fault(&mut self) {
        if self.faults.quiet {
            return;
        }
        self.after(20_000, Event::Fault);
        if self.dice.below(1000) < self.faults.master_crash {
            self.master_crash();
        }
        let client = self.dice.below(self.clients.len() as u64) as usize;
        if self.dice.below(1000) < self.faults.client_crash {
            self.client_crash(client);
        }
        if self.dice.below(1000) < self.faults.freeze && self.clients[client].frozen_until <= self.now {
            // Some are shorter than what makes a session away, some longer than a reservation or a session lasts.
            let ms = [50, 700, 4_000, 9_000, 25_000][self.dice.below(5) as usize];
            self.clients[client].frozen_until = self.now + ms * 1000;
            self.tally.freezes += 1;
        }
        if self.dice.below(1000) < self.faults.anchor_break {
            self.break_anchor(client);
        }
    }

    /// The rest of the run is without new faults and new work; who is frozen still wakes up when he does.
    pub fn calm_down(&mut self) {
        self.faults = Faults { clients: self.faults.clients, quiet: true, ..Faults::none() };
    }
}

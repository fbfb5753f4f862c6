//! Everything that is looked at, read once.

use mooncake_settings::Given;

use super::addresses::{self, Addresses};
use super::clock;
use super::descriptors::{self, Descriptors};
use super::finding::{Area, Finding};
use super::installation::{self, Installation};
use super::limits::{self, Limits};
use super::litter::{self, Litter};
use super::log;
use super::master;
use super::memory::{self, Memory};
use super::pool::Pool;
use super::reach::{self, Reached};
use super::segments::{self, Segments};
use super::sharing::{self, Sharing};
use super::state::{self, State};

/// What was read. Checks judge it and look at nothing else.
#[derive(Debug, Clone)]
pub struct Readings {
    /// The master, and what it says.
    pub pool: Pool,
    /// Addresses and ports of this host.
    pub addresses: Addresses,
    /// Whether members answer.
    pub reached: Reached,
    /// Members of this host, as their processes are seen.
    pub sharing: Sharing,
    /// Files that a process may have open.
    pub descriptors: Descriptors,
    /// Other limits of a process.
    pub limits: Limits,
    /// Memory of the host.
    pub memory: Memory,
    /// What segments are made of.
    pub segments: Segments,
    /// Where the master's log lies.
    pub state: State,
    /// What masters have left.
    pub litter: Option<Litter>,
    /// What is installed; none: a disk does not answer.
    pub installation: Option<Installation>,
}

impl Readings {
    /// Reads all of it. Without a master what is this host's is read all the same.
    pub fn read(given: &Given) -> Readings {
        let installation = Installation::begin();
        let pool = Pool::read(given);
        let addresses = Addresses::read(&pool.address);
        Readings {
            reached: Reached::read(&pool, &addresses.listeners),
            addresses,
            sharing: Sharing::read(&pool),
            descriptors: Descriptors::read(),
            limits: Limits::read(),
            memory: Memory::read(),
            segments: Segments::read(),
            state: State::read(&pool),
            litter: Litter::read(),
            installation: installation.wait(),
            pool,
        }
    }

    /// What all checks say, area by area, the worst of each first.
    pub fn judged(&self) -> Vec<Finding> {
        let pool = &self.pool;
        let mut all = [
            master::judge(pool),
            addresses::judge(&self.addresses, pool),
            reach::judge(&self.reached),
            sharing::judge(&self.sharing, pool),
            descriptors::judge(&self.descriptors, pool),
            limits::judge(&self.limits),
            memory::judge(&self.memory, pool),
            segments::judge(&self.segments),
            clock::judge(pool),
            log::judge(pool),
            state::judge(&self.state, pool),
            litter::judge(self.litter),
            installation::judge(self.installation.as_ref()),
        ]
        .concat();
        all.sort_by_key(|finding| (finding.area, finding.severity));
        debug_assert!(Area::ALL.iter().all(|area| all.iter().any(|finding| finding.area == *area)));
        all
    }
}

//! The core, one operation at a time.

use mooncake_core::{Core, Effects, Time};

/// What machines that take several steps with the core need of their master.
pub trait CoreDriver {
    /// Why nothing is carried out any more.
    type Closed;

    /// Asks the core something that changes nothing durable.
    fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R;

    /// Carries one operation out: what it did is in the log, and told, when this returns.
    fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Self::Closed>;
}

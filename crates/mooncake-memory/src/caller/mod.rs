//! Memory of callers: borrowed, or foreign, which is checked before it is used directly and copied by the kernel or a
//! driver otherwise.

pub(crate) mod bounce;
pub(crate) mod foreign;
pub(crate) mod neighbours;
pub(crate) mod piece;
pub(crate) mod reach;
pub(crate) mod recycled;
pub(crate) mod registry;
pub(crate) mod trial;

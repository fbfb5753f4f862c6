//! Memory of callers, without a borrow of it here: tried out before it is touched.

pub(crate) mod bounce;
pub(crate) mod foreign;
pub(crate) mod neighbours;
pub(crate) mod piece;
pub(crate) mod reach;
pub(crate) mod recycled;
pub(crate) mod registry;

//! `mooncake.engine`: the transfer engine.

pub(crate) mod class;
pub(crate) mod held_engine;
pub(crate) mod shared_segment;
pub(crate) mod transfer_call;

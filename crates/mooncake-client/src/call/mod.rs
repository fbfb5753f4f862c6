//! What a store is asked to do, one file a kind of call.

pub(crate) mod close;
pub(crate) mod describe;
pub(crate) mod direct;
pub(crate) mod fan_out;
pub(crate) mod get;
pub(crate) mod get_session;
pub(crate) mod put;
pub(crate) mod put_session;
pub(crate) mod query;
pub(crate) mod ranges;
pub(crate) mod refused;
pub(crate) mod view;

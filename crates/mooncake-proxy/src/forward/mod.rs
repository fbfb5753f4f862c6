//! The way of one request through prefill and decode.

pub(crate) mod account;
pub(crate) mod decode;
pub(crate) mod flow;
pub(crate) mod prefill;
pub(crate) mod relay;

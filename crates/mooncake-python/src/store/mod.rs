//! `mooncake.store`: the client of the pool.

pub(crate) mod buffer_handle;
pub(crate) mod class;
pub(crate) mod object_memory;
pub(crate) mod open_stores;
pub(crate) mod options;
pub(crate) mod ranges;
pub(crate) mod reading;
pub(crate) mod replicate_config;
pub(crate) mod segments;
pub(crate) mod sessions;
pub(crate) mod setup;
pub(crate) mod tensor_memory;
pub(crate) mod writing;

//! `mooncake._native`: names, integer codes and quirks of the Python surface.
//!
//! There is no logic here that the Rust client has not. What this edge promises:
//! arguments are taken over before the GIL is released, it is released around
//! whatever may wait, classes are frozen (several threads call one store at
//! once), conversion failures are TypeErrors, failures are the reference's
//! integers with the reason in `last_error()`, and no panic reaches Python.
//! The module installs no signal handler, allocator, subscriber or panic hook.

// Before those that use its macro.
#[macro_use]
mod docs;

mod buffer_handle;
mod buffers;
mod call;
mod code;
mod engine;
mod enums;
mod flag;
mod held_engine;
mod host_memory;
mod integer;
mod interrupt;
mod key;
mod last_error;
mod log;
mod notice;
mod object_memory;
mod open_stores;
mod options;
mod ranges;
mod reading;
mod registry;
mod replicate_config;
mod segments;
mod sequence;
mod sessions;
mod setup;
mod shared_segment;
mod store;
mod tensor_memory;
mod text;
mod transfer_call;
mod value;
mod writing;

use pyo3::prelude::*;

/// The native module.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::MooncakeDistributedStore>()?;
    module.add_class::<replicate_config::ReplicateConfig>()?;
    module.add_class::<buffer_handle::BufferHandle>()?;
    module.add_class::<interrupt::Interrupt>()?;
    module.add_class::<enums::ObjectDataType>()?;
    module.add_class::<enums::SoftPinAction>()?;
    module.add_class::<enums::ReplicaStatus>()?;
    module.add_class::<enums::TaskType>()?;
    module.add_class::<enums::TaskStatus>()?;
    module.add_class::<engine::TransferEngine>()?;
    module.add_class::<transfer_call::TransferNotify>()?;
    module.add_class::<engine::InnerTransferEngine>()?;
    module.add_class::<shared_segment::SharedSegment>()?;
    registry::add_to(module)?;
    host_memory::add_to(module)?;
    tensor_memory::add_to(module)
}

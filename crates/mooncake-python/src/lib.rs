//! `mooncake._native`: names, integer codes and quirks of the Python surface.
//!
//! There is no logic here that the Rust client has not. What this edge promises:
//! arguments are taken over before the GIL is released, it is released around
//! whatever may wait, classes are frozen (several threads call one store at
//! once), conversion failures are TypeErrors, failures are Mooncake's
//! integers with the reason in `last_error()`, and no panic reaches Python.
//! The module installs no signal handler, allocator, subscriber or panic hook.

// Before the modules that use its macro.
#[macro_use]
mod docs;

mod code;
mod convert;
mod engine;
mod entry;
mod host_memory;
mod registry;
mod store;

use pyo3::prelude::*;

/// The native module.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::class::MooncakeDistributedStore>()?;
    module.add_class::<store::replicate_config::ReplicateConfig>()?;
    module.add_class::<store::buffer_handle::BufferHandle>()?;
    module.add_class::<entry::interrupt::Interrupt>()?;
    module.add_class::<convert::enums::ObjectDataType>()?;
    module.add_class::<convert::enums::SoftPinAction>()?;
    module.add_class::<convert::enums::ReplicaStatus>()?;
    module.add_class::<convert::enums::TaskType>()?;
    module.add_class::<convert::enums::TaskStatus>()?;
    module.add_class::<engine::class::TransferEngine>()?;
    module.add_class::<engine::transfer_call::TransferNotify>()?;
    module.add_class::<engine::class::InnerTransferEngine>()?;
    module.add_class::<engine::shared_segment::SharedSegment>()?;
    registry::add_to(module)?;
    host_memory::add_to(module)?;
    store::tensor_memory::add_to(module)
}

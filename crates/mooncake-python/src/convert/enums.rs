//! Enumerations of the Python surface, with the numbers of Mooncake. They behave like pybind11's:
//! made from a number, indexes, hashed as their number, copied and pickled; equal to members of their own class only.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::convert::integer::unsigned;

/// Defines classes by their members, each with its name and number.
macro_rules! enumerations {
    ($($(#[$doc:meta])* $class:ident { $($member:ident = $number:literal $name:literal,)* })*) => {$(
        $(#[$doc])*
        #[pyclass(frozen, eq, from_py_object, module = "mooncake.store", rename_all = "SCREAMING_SNAKE_CASE")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the members are documented by their names in Python")]
        pub enum $class {
            $($member = $number,)*
        }

        impl $class {
            const MEMBERS: &[(&str, Self)] = &[$(($name, Self::$member),)*];
        }

        #[pymethods]
        impl $class {
            #[new]
            fn new(value: &Bound<'_, PyAny>) -> PyResult<Self> {
                let number = unsigned(value, "value")?;
                let found = Self::MEMBERS.iter().find(|(_, member)| *member as u64 == number);
                found.map(|(_, member)| *member).ok_or_else(|| {
                    PyValueError::new_err(format!("{number} is no member of {}", stringify!($class)))
                })
            }

            /// The members by their names.
            #[classattr]
            fn __members__(py: Python<'_>) -> PyResult<Py<PyDict>> {
                let members = PyDict::new(py);
                for (name, member) in Self::MEMBERS {
                    members.set_item(name, *member)?;
                }
                Ok(members.unbind())
            }

            /// The number.
            #[getter]
            fn value(&self) -> u64 {
                *self as u64
            }

            /// The name without the class.
            #[getter]
            fn name(&self) -> &'static str {
                let found = Self::MEMBERS.iter().find(|(_, member)| member == self);
                found.map_or("???", |(name, _)| name)
            }

            fn __int__(&self) -> u64 {
                self.value()
            }

            fn __index__(&self) -> u64 {
                self.value()
            }

            fn __hash__(&self) -> u64 {
                self.value()
            }

            fn __str__(&self) -> String {
                format!("{}.{}", stringify!($class), self.name())
            }

            fn __repr__(&self) -> String {
                format!("<{}.{}: {}>", stringify!($class), self.name(), self.value())
            }

            fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (u64,)) {
                (py.get_type::<Self>(), (self.value(),))
            }
        }
    )*};
}

enumerations! {
    /// What an object holds; a label only.
    ObjectDataType {
        Unknown = 0 "UNKNOWN",
        Kvcache = 1 "KVCACHE",
        Tensor = 2 "TENSOR",
        Weight = 3 "WEIGHT",
        Sample = 4 "SAMPLE",
        Activation = 5 "ACTIVATION",
        Gradient = 6 "GRADIENT",
        OptimizerState = 7 "OPTIMIZER_STATE",
        Metadata = 8 "METADATA",
        General = 9 "GENERAL",
    }

    /// What a put does to an object's soft pin.
    SoftPinAction {
        Preserve = 0 "PRESERVE",
        Enable = 1 "ENABLE",
        Disable = 2 "DISABLE",
    }

    /// How far a replica is.
    ReplicaStatus {
        Undefined = 0 "UNDEFINED",
        Initialized = 1 "INITIALIZED",
        Processing = 2 "PROCESSING",
        Complete = 3 "COMPLETE",
        Removed = 4 "REMOVED",
        Failed = 5 "FAILED",
    }

    /// What a task does with a replica.
    TaskType {
        ReplicaCopy = 0 "REPLICA_COPY",
        ReplicaMove = 1 "REPLICA_MOVE",
    }

    /// How far a task is.
    TaskStatus {
        Pending = 0 "PENDING",
        Processing = 1 "PROCESSING",
        Failed = 2 "FAILED",
        Success = 3 "SUCCESS",
    }
}

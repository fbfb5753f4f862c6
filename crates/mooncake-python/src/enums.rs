//! Enumerations of the Python surface, with the numbers of the reference.

use pyo3::prelude::*;

/// What an object holds; a label only.
#[pyclass(frozen, eq, eq_int, hash, from_py_object, module = "mooncake.store", rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ObjectDataType {
    Unknown = 0,
    Kvcache = 1,
    Tensor = 2,
    Weight = 3,
    Sample = 4,
    Activation = 5,
    Gradient = 6,
    OptimizerState = 7,
    Metadata = 8,
    General = 9,
}

#[pymethods]
impl ObjectDataType {
    /// The number.
    #[getter]
    fn value(&self) -> i32 {
        *self as i32
    }

    /// The name without the class.
    #[getter]
    fn name(&self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Kvcache => "KVCACHE",
            Self::Tensor => "TENSOR",
            Self::Weight => "WEIGHT",
            Self::Sample => "SAMPLE",
            Self::Activation => "ACTIVATION",
            Self::Gradient => "GRADIENT",
            Self::OptimizerState => "OPTIMIZER_STATE",
            Self::Metadata => "METADATA",
            Self::General => "GENERAL",
        }
    }
}

/// What a put does to an object's soft pin.
#[pyclass(frozen, eq, eq_int, hash, from_py_object, module = "mooncake.store", rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum SoftPinAction {
    Preserve = 0,
    Enable = 1,
    Disable = 2,
}

#[pymethods]
impl SoftPinAction {
    /// The number.
    #[getter]
    fn value(&self) -> i32 {
        *self as i32
    }

    /// The name without the class.
    #[getter]
    fn name(&self) -> &'static str {
        match self {
            Self::Preserve => "PRESERVE",
            Self::Enable => "ENABLE",
            Self::Disable => "DISABLE",
        }
    }
}

/// How far a replica is.
#[pyclass(frozen, eq, eq_int, hash, from_py_object, module = "mooncake.store", rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ReplicaStatus {
    Undefined = 0,
    Initialized = 1,
    Processing = 2,
    Complete = 3,
    Removed = 4,
    Failed = 5,
}

#[pymethods]
impl ReplicaStatus {
    /// The number.
    #[getter]
    fn value(&self) -> i32 {
        *self as i32
    }

    /// The name without the class.
    #[getter]
    fn name(&self) -> &'static str {
        match self {
            Self::Undefined => "UNDEFINED",
            Self::Initialized => "INITIALIZED",
            Self::Processing => "PROCESSING",
            Self::Complete => "COMPLETE",
            Self::Removed => "REMOVED",
            Self::Failed => "FAILED",
        }
    }
}

/// What a task does with a replica.
#[pyclass(frozen, eq, eq_int, hash, from_py_object, module = "mooncake.store", rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TaskType {
    ReplicaCopy = 0,
    ReplicaMove = 1,
}

#[pymethods]
impl TaskType {
    /// The number.
    #[getter]
    fn value(&self) -> i32 {
        *self as i32
    }

    /// The name without the class.
    #[getter]
    fn name(&self) -> &'static str {
        match self {
            Self::ReplicaCopy => "REPLICA_COPY",
            Self::ReplicaMove => "REPLICA_MOVE",
        }
    }
}

/// How far a task is.
#[pyclass(frozen, eq, eq_int, hash, from_py_object, module = "mooncake.store", rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TaskStatus {
    Pending = 0,
    Processing = 1,
    Failed = 2,
    Success = 3,
}

#[pymethods]
impl TaskStatus {
    /// The number.
    #[getter]
    fn value(&self) -> i32 {
        *self as i32
    }

    /// The name without the class.
    #[getter]
    fn name(&self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Processing => "PROCESSING",
            Self::Failed => "FAILED",
            Self::Success => "SUCCESS",
        }
    }
}

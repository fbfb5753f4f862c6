//! How an object is to be placed and kept.

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::enums::{ObjectDataType, SoftPinAction};
use crate::convert::flag::Flag;
use crate::convert::integer::unsigned;
use crate::convert::text::{text, texts};

/// Fields as they stand at one moment.
#[derive(Debug, Clone)]
pub struct Fields {
    /// Replicas in memory, each on another client.
    pub replica_num: u64,
    /// Replicas on NVMe-oF segments.
    pub nof_replica_num: u64,
    /// Replicas on a shared file system.
    pub dfs_replica_num: u64,
    /// Soft pin of the object.
    pub soft_pin_action: SoftPinAction,
    /// Lifetime of the soft pin, or the default of 30 minutes.
    pub soft_pin_ttl_ms: Option<u64>,
    /// Never evicted.
    pub with_hard_pin: bool,
    /// Segment names to try first.
    pub preferred_segments: Vec<String>,
    /// One such name, older form.
    pub preferred_segment: String,
    /// Names of NVMe-oF segments.
    pub preferred_nof_segments: Vec<String>,
    /// Prefer the writer's own host.
    pub prefer_alloc_in_same_node: bool,
    /// A label.
    pub data_type: ObjectDataType,
    /// A group per key.
    pub group_ids: Option<Vec<String>>,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            replica_num: 1,
            nof_replica_num: 0,
            dfs_replica_num: 0,
            soft_pin_action: SoftPinAction::Preserve,
            soft_pin_ttl_ms: None,
            with_hard_pin: false,
            preferred_segments: Vec::new(),
            preferred_segment: String::new(),
            preferred_nof_segments: Vec::new(),
            prefer_alloc_in_same_node: false,
            data_type: ObjectDataType::Unknown,
            group_ids: None,
        }
    }
}

/// How an object is placed and kept. Read when a call is made; one object may be used by several threads and changed
/// between calls.
#[pyclass(frozen, subclass, module = "mooncake.store")]
#[derive(Default)]
pub struct ReplicateConfig(Mutex<Fields>);

impl ReplicateConfig {
    /// The fields now.
    pub fn fields(&self) -> Fields {
        self.0.lock().clone()
    }
}

#[pymethods]
impl ReplicateConfig {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Replicas in memory, each on another client: 1, the default, to 64.
    #[getter]
    fn replica_num(&self) -> u64 {
        self.0.lock().replica_num
    }

    #[setter]
    fn set_replica_num(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = unsigned(value, "replica_num")?;
        self.0.lock().replica_num = value;
        Ok(())
    }

    /// Replicas on segments of NVMe over fabrics. There are none in this version: -600 unless it is 0.
    #[getter]
    fn nof_replica_num(&self) -> u64 {
        self.0.lock().nof_replica_num
    }

    #[setter]
    fn set_nof_replica_num(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = unsigned(value, "nof_replica_num")?;
        self.0.lock().nof_replica_num = value;
        Ok(())
    }

    /// Replicas on a shared file system, 0 or 1. There are none in this version: -600 unless it is 0.
    #[getter]
    fn dfs_replica_num(&self) -> u64 {
        self.0.lock().dfs_replica_num
    }

    #[setter]
    fn set_dfs_replica_num(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = unsigned(value, "dfs_replica_num")?;
        if value > 1 {
            return Err(PyValueError::new_err(format!("dfs_replica_num is 0 or 1, not {value}")));
        }
        self.0.lock().dfs_replica_num = value;
        Ok(())
    }

    /// What a put does to the object's soft pin, which eviction passes over while it finds others.
    #[getter]
    fn soft_pin_action(&self) -> SoftPinAction {
        self.0.lock().soft_pin_action
    }

    #[setter]
    fn set_soft_pin_action(&self, value: SoftPinAction) {
        self.0.lock().soft_pin_action = value;
    }

    /// How long a soft pin lasts, in milliseconds; None: 30 minutes.
    #[getter]
    fn soft_pin_ttl_ms(&self) -> Option<u64> {
        self.0.lock().soft_pin_ttl_ms
    }

    #[setter]
    fn set_soft_pin_ttl_ms(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = if value.is_none() { None } else { Some(unsigned(value, "soft_pin_ttl_ms")?) };
        self.0.lock().soft_pin_ttl_ms = value;
        Ok(())
    }

    /// Never evicted.
    #[getter]
    fn with_hard_pin(&self) -> bool {
        self.0.lock().with_hard_pin
    }

    #[setter]
    fn set_with_hard_pin(&self, with_hard_pin: Flag) {
        self.0.lock().with_hard_pin = with_hard_pin.0;
    }

    /// Segments to try first, by name: `get_hostname()` of their clients.
    #[getter]
    fn preferred_segments(&self) -> Vec<String> {
        self.0.lock().preferred_segments.clone()
    }

    #[setter]
    fn set_preferred_segments(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = texts(value, "preferred_segments")?;
        self.0.lock().preferred_segments = value;
        Ok(())
    }

    /// One such name, as older programs give it.
    #[getter]
    fn preferred_segment(&self) -> String {
        self.0.lock().preferred_segment.clone()
    }

    #[setter]
    fn set_preferred_segment(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = text(value, "preferred_segment")?;
        self.0.lock().preferred_segment = value;
        Ok(())
    }

    /// Names of segments of NVMe over fabrics. There are none in this version.
    #[getter]
    fn preferred_nof_segments(&self) -> Vec<String> {
        self.0.lock().preferred_nof_segments.clone()
    }

    #[setter]
    fn set_preferred_nof_segments(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = texts(value, "preferred_nof_segments")?;
        self.0.lock().preferred_nof_segments = value;
        Ok(())
    }

    /// The writer's own host is tried first: for `batch_put_from_multi_buffers` and put sessions, with one replica.
    #[getter]
    fn prefer_alloc_in_same_node(&self) -> bool {
        self.0.lock().prefer_alloc_in_same_node
    }

    #[setter]
    fn set_prefer_alloc_in_same_node(&self, prefer_alloc_in_same_node: Flag) {
        self.0.lock().prefer_alloc_in_same_node = prefer_alloc_in_same_node.0;
    }

    /// What the object holds; a label only.
    #[getter]
    fn data_type(&self) -> ObjectDataType {
        self.0.lock().data_type
    }

    #[setter]
    fn set_data_type(&self, value: ObjectDataType) {
        self.0.lock().data_type = value;
    }

    /// A group for each key of the call; None: no groups.
    #[getter]
    fn group_ids(&self) -> Option<Vec<String>> {
        self.0.lock().group_ids.clone()
    }

    #[setter]
    fn set_group_ids(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = if value.is_none() { None } else { Some(texts(value, "group_ids")?) };
        self.0.lock().group_ids = value;
        Ok(())
    }

    fn __copy__(&self) -> Self {
        Self(Mutex::new(self.fields()))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        self.__copy__()
    }

    fn __str__(&self) -> String {
        let f = self.fields();
        format!(
            "ReplicateConfig: {{ replica_num: {}, nof_replica_num: {}, dfs_replica_num: {}, soft_pin_action: {:?}, \
             soft_pin_ttl_ms: {:?}, with_hard_pin: {}, preferred_segments: {:?}, preferred_segment: {:?}, \
             preferred_nof_segments: {:?}, prefer_alloc_in_same_node: {}, data_type: {:?}, group_ids: {:?} }}",
            f.replica_num,
            f.nof_replica_num,
            f.dfs_replica_num,
            f.soft_pin_action,
            f.soft_pin_ttl_ms,
            f.with_hard_pin,
            f.preferred_segments,
            f.preferred_segment,
            f.preferred_nof_segments,
            f.prefer_alloc_in_same_node,
            f.data_type,
            f.group_ids,
        )
    }

    fn __repr__(&self) -> String {
        self.__str__()
    }
}

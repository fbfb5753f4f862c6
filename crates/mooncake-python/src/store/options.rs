//! From `ReplicateConfig` to the client's own options.

use mooncake_client::{PinKind, PutOptions};
use pyo3::prelude::*;

use crate::convert::enums::SoftPinAction;
use crate::store::replicate_config::{Fields, ReplicateConfig};

/// Which kind of put asks: only the forms whose objects lie in several buffers know `prefer_alloc_in_same_node`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `put`, `put_from` and their batches.
    Plain,
    /// `batch_put_from_multi_buffers`, and put sessions.
    MultiBuffers,
}

/// Reads a config as it stands now. An Err is the reason of a -600.
pub fn put_options(config: Option<&Bound<'_, ReplicateConfig>>, keys: usize, form: Form) -> Result<PutOptions, String> {
    let fields = config.map(|config| config.get().fields()).unwrap_or_default();
    check(&fields, keys, form)?;
    let pin = if fields.with_hard_pin {
        PinKind::Hard
    } else if fields.soft_pin_action == SoftPinAction::Enable {
        PinKind::Soft { ttl_ms: fields.soft_pin_ttl_ms }
    } else if fields.soft_pin_action == SoftPinAction::Disable {
        PinKind::Cleared
    } else {
        PinKind::None
    };
    let mut preferred_segments = fields.preferred_segments;
    if preferred_segments.is_empty() && !fields.preferred_segment.is_empty() {
        preferred_segments.push(fields.preferred_segment);
    }
    Ok(PutOptions {
        replica_num: fields.replica_num.min(u64::from(u32::MAX)) as u32,
        preferred_segments,
        pin,
        prefer_local: fields.prefer_alloc_in_same_node,
        groups: fields.group_ids.unwrap_or_default(),
        ..PutOptions::default()
    })
}

fn check(fields: &Fields, keys: usize, form: Form) -> Result<(), String> {
    if fields.replica_num == 0 {
        return Err("replica_num is 0: an object needs at least one copy in memory".into());
    }
    if fields.nof_replica_num > 0 || fields.dfs_replica_num > 0 {
        return Err("nof_replica_num and dfs_replica_num: there are no NVMe-oF or file-system replicas".into());
    }
    if fields.soft_pin_ttl_ms.is_some() && fields.soft_pin_action != SoftPinAction::Enable {
        let action = match fields.soft_pin_action {
            SoftPinAction::Disable => "DISABLE takes the pin away",
            _ => "PRESERVE leaves the pin as it is",
        };
        return Err(format!("soft_pin_ttl_ms is for soft_pin_action ENABLE: {action}"));
    }
    if fields.prefer_alloc_in_same_node {
        if form == Form::Plain {
            return Err("prefer_alloc_in_same_node is for batch_put_from_multi_buffers and put sessions only".into());
        }
        if fields.replica_num != 1 {
            return Err(format!("prefer_alloc_in_same_node needs replica_num 1, not {}", fields.replica_num));
        }
    }
    match &fields.group_ids {
        Some(groups) if groups.len() != keys => Err(format!("group_ids has {} entries for {keys} keys", groups.len())),
        _ => Ok(()),
    }
}

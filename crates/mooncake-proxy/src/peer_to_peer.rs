//! KV cache straight from a prefill to a decode instance, as vLLM's `MooncakeConnector` has it: what each of them is told.
//!
//! The prefill instance's bootstrap service says which engine it is. The prefill instance keeps the blocks of a transfer
//! until the decode instance has asked it for them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::address::InstanceAddress;
use crate::upstream::{Failure, Upstream};

/// For the bootstrap service's answer: it has nothing to compute.
const PATIENCE: Duration = Duration::from_secs(5);

/// One prompt's way from one instance to another.
pub(crate) struct Transfer {
    id: String,
    bootstrap: String,
    engine: String,
}

#[derive(Deserialize)]
struct Rank {
    engine_id: String,
}

impl Transfer {
    /// Asks a prefill instance's bootstrap service for its engine; none if the instance has no such service.
    pub async fn prepare(
        upstream: &Upstream,
        address: &InstanceAddress,
        name: &str,
    ) -> Result<Option<Transfer>, Failure> {
        let Some(bootstrap) = address.bootstrap() else { return Ok(None) };
        let (status, answer) = upstream.get(&bootstrap, "/query", PATIENCE).await?;
        if !status.is_success() {
            return Err(Failure::Status(status));
        }
        let ranks: BTreeMap<String, Rank> = serde_json::from_slice(&answer)
            .map_err(|error| Failure::BrokeOff(format!("its bootstrap service: {error}")))?;
        let first = ranks.into_values().next();
        let Rank { engine_id: engine } =
            first.ok_or_else(|| Failure::BrokeOff("its bootstrap service knows no engine yet".into()))?;
        Ok(Some(Transfer { id: format!("xfer-{name}"), bootstrap: format!("http://{bootstrap}"), engine }))
    }

    /// `kv_transfer_params` of the prefill request.
    pub fn for_prefill(&self) -> String {
        json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": self.id}).to_string()
    }

    /// `kv_transfer_params` of the decode request.
    pub fn for_decode(&self) -> String {
        json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "transfer_id": self.id,
            "remote_bootstrap_addr": self.bootstrap,
            "remote_engine_id": self.engine,
        })
        .to_string()
    }
}

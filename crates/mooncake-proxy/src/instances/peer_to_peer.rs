//! KV cache straight from a prefill to a decode instance, as vLLM's `MooncakeConnector` has it: what each of them is
//! told.
//!
//! The prefill instance's bootstrap service says which engines it has, one for each data-parallel rank. An engine keeps
//! the blocks of a transfer until the decode instance has asked it for them.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::json;

use crate::instances::instance::Instance;
use crate::instances::upstream::{Failure, Upstream};

/// For the bootstrap service's answer: it has nothing to compute.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(5);

/// Which of several engines behind one address computes a prompt.
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// Engines of a prefill instance by rank.
pub(crate) type Engines = BTreeMap<u32, String>;

#[derive(Deserialize)]
struct Rank {
    engine_id: String,
}

/// Asks a prefill instance's bootstrap service for its engines.
pub(crate) async fn engines(upstream: &Upstream, bootstrap: &str) -> Result<Engines, Failure> {
    let broke_off = |why: String| Failure::BrokeOff(format!("its bootstrap service: {why}"));
    let (status, answer) = upstream.get(bootstrap, "/query", BOOTSTRAP_TIMEOUT).await.map_err(|error| match error {
        // The instance itself may be there all the same.
        Failure::Unreachable(why) => broke_off(why),
        other => other,
    })?;
    if !status.is_success() {
        return Err(broke_off(status.to_string()));
    }
    let ranks: BTreeMap<u32, Rank> = serde_json::from_slice(&answer).map_err(|error| broke_off(error.to_string()))?;
    if ranks.is_empty() {
        return Err(broke_off("it knows no engine yet".into()));
    }
    Ok(ranks.into_iter().map(|(rank, one)| (rank, one.engine_id)).collect())
}

/// One prompt's way from a prefill instance to the decode instance that fetches it.
pub(crate) struct Transfer {
    id: String,
    bootstrap: String,
    engine: String,
    /// Said only where there is a choice.
    rank: Option<u32>,
}

impl Transfer {
    /// Chooses an engine of a prefill instance; none if the instance has no bootstrap service. Engines that were asked
    /// for at a check are known; they are forgotten when the instance goes.
    pub async fn prepare(upstream: &Upstream, instance: &Instance, name: &str) -> Result<Option<Transfer>, Failure> {
        let Some(bootstrap) = instance.address.bootstrap() else { return Ok(None) };
        if !instance.knows_engines() {
            instance.set_engines(engines(upstream, &bootstrap).await?);
        }
        let chosen = instance.next_engine();
        let (rank, engine) = chosen.ok_or_else(|| Failure::BrokeOff("its engines have just gone".into()))?;
        Ok(Some(Transfer { id: format!("xfer-{name}"), bootstrap: format!("http://{bootstrap}"), engine, rank }))
    }

    /// Headers of the prefill request.
    pub fn name_rank(&self, headers: &mut HeaderMap) {
        if let Some(rank) = self.rank {
            // A caller's own choice was of some other engine.
            headers.insert(RANK, HeaderValue::from(rank));
        }
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

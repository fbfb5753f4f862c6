//! Checks of instances: at intervals, and before one is added.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::instances::address::InstanceAddress;
use crate::instances::instance::{Instance, Kind};
use crate::instances::peer_to_peer::engines;
use crate::instances::upstream::Failure;
use crate::proxy::Proxy;

/// For an answer that needs no computation.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an instance, which those that tell it name, cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("{0}")]
    Failure(#[from] Failure),
    #[error("it does not list its models as OpenAI's API does: {0}")]
    NoModels(String),
    #[error("it serves {serves}, not {model}")]
    OtherModel { serves: String, model: String },
}

/// Models of an instance that are named: there may be an adapter for each customer.
const NAMED_MAX: usize = 3;

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

impl Proxy {
    /// Asks an instance for its models.
    pub async fn probe(&self, address: &InstanceAddress) -> Result<(), Unfit> {
        let mut headers = HeaderMap::new();
        headers.extend(self.authorization.clone().map(|key| (header::AUTHORIZATION, key)));
        let asked = self.upstream.get_with(&address.authority(), "/v1/models", &headers, ANSWER_TIMEOUT).await;
        let (status, body) = asked?;
        if !status.is_success() {
            return Err(Failure::Status(status).into());
        }
        let models: Models = serde_json::from_slice(&body).map_err(|error| Unfit::NoModels(error.to_string()))?;
        let Some(model) = &self.options.model else { return Ok(()) };
        if models.data.iter().any(|one| last_component(&one.id) == last_component(model)) {
            return Ok(());
        }
        let mut serves: Vec<String> = models.data.iter().take(NAMED_MAX).map(|one| one.id.clone()).collect();
        if let more @ 1.. = models.data.len().saturating_sub(NAMED_MAX) {
            serves.push(format!("and {more} more"));
        }
        Err(Unfit::OtherModel { serves: serves.join(", "), model: model.clone() })
    }

    /// Checks all instances, each when it is time, for ever. Instances that leave are checked, too: a request that
    /// waits there for a first byte must not do so in vain. One that is slow to answer holds up no other's check.
    pub async fn check_for_ever(self: Arc<Proxy>) {
        let mut checks = JoinSet::new();
        let mut tick = tokio::time::interval(self.options.check_interval);
        loop {
            tick.tick().await;
            let now = Instant::now();
            *self.checked_at.lock() = now;
            let all = self.fleet.all().into_iter().chain(self.fleet.leaving());
            for instance in all.filter(|one| one.is_to_be_checked(now)) {
                if instance.is_being_checked.swap(true, Ordering::Relaxed) {
                    continue;
                }
                let proxy = self.clone();
                checks.spawn(async move {
                    proxy.check(&instance).await;
                    instance.is_being_checked.store(false, Ordering::Relaxed);
                });
            }
            while checks.try_join_next().is_some() {}
        }
    }

    async fn check(&self, instance: &Instance) {
        match self.look_at(instance).await {
            Ok(()) => {
                instance.is_proven.store(true, Ordering::Relaxed);
                instance.succeeded();
            }
            Err(Unfit::Failure(failure)) if !failure.counts_against_instance() => {
                tracing::warn!(instance = %instance.address, %failure, "not checked");
            }
            Err(unfit) => {
                // One that is slow to answer may have much to do.
                let gone = !matches!(&unfit, Unfit::Failure(failure) if !failure.is_gone());
                instance.failed(Instant::now(), &unfit.to_string(), gone);
                if gone {
                    self.scheduler.forget(instance.number);
                } else if !instance.is_well() && self.fleet.has_well(instance.kind) {
                    // Requests that wait for it go to a well one. Where all are slow, none is better to wait for.
                    instance.hangs.notify_waiters();
                }
            }
        }
    }

    async fn look_at(&self, instance: &Instance) -> Result<(), Unfit> {
        let address = &instance.address;
        if !instance.is_proven.load(Ordering::Relaxed) {
            self.probe(address).await?;
        } else {
            let (status, _) = self.upstream.get(&address.authority(), "/health", ANSWER_TIMEOUT).await?;
            if !status.is_success() {
                return Err(Failure::Status(status).into());
            }
        }
        if instance.kind == Kind::Prefill
            && let Some(bootstrap) = address.bootstrap()
        {
            instance.set_engines(engines(&self.upstream, &bootstrap).await?);
        }
        Ok(())
    }
}

fn last_component(model: &str) -> &str {
    model.trim_end_matches('/').rsplit('/').next().unwrap_or(model)
}

//! Whether instances are well: asked at intervals, and before one is added.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::address::InstanceAddress;
use crate::instance::Instance;
use crate::proxy::Proxy;
use crate::upstream::Failure;

/// For an answer that needs no computation.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why an instance cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("{address}: {failure}")]
    Failure { address: InstanceAddress, failure: Failure },
    #[error("{address} does not list its models as OpenAI's API does: {why}")]
    NoModels { address: InstanceAddress, why: String },
    #[error("{address} serves {serves}, not {model}")]
    OtherModel { address: InstanceAddress, serves: String, model: String },
}

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
        let failed = |failure| Unfit::Failure { address: address.clone(), failure };
        let mut headers = HeaderMap::new();
        headers.extend(self.authorization.clone().map(|key| (header::AUTHORIZATION, key)));
        let asked = self.upstream.get_with(&address.authority(), "/v1/models", &headers, PATIENCE).await;
        let (status, body) = asked.map_err(failed)?;
        if !status.is_success() {
            return Err(failed(Failure::Status(status)));
        }
        let models: Models = serde_json::from_slice(&body)
            .map_err(|error| Unfit::NoModels { address: address.clone(), why: error.to_string() })?;
        let Some(model) = &self.options.model else { return Ok(()) };
        if models.data.iter().any(|one| last_component(&one.id) == last_component(model)) {
            return Ok(());
        }
        let serves: Vec<String> = models.data.into_iter().map(|one| one.id).collect();
        Err(Unfit::OtherModel { address: address.clone(), serves: serves.join(", "), model: model.clone() })
    }

    /// Checks all instances, each when it is time, for ever.
    pub async fn check_for_ever(self: Arc<Proxy>) {
        let mut checks = JoinSet::new();
        let mut tick = tokio::time::interval(self.options.check_interval);
        loop {
            tick.tick().await;
            let now = Instant::now();
            for instance in self.fleet.all().into_iter().filter(|one| one.is_to_be_checked(now)) {
                let proxy = self.clone();
                checks.spawn(async move { proxy.check(&instance).await });
            }
            while checks.join_next().await.is_some() {}
        }
    }

    async fn check(&self, instance: &Instance) {
        let result = if instance.is_proven.load(Ordering::Relaxed) {
            let asked = self.upstream.get(&instance.address.authority(), "/health", PATIENCE).await;
            match asked {
                Ok((status, _)) if !status.is_success() => Err(Failure::Status(status).to_string()),
                Ok(_) => Ok(()),
                Err(failure) => Err(failure.to_string()),
            }
        } else {
            self.probe(&instance.address).await.map_err(|unfit| unfit.to_string())
        };
        match result {
            Ok(()) => {
                instance.is_proven.store(true, Ordering::Relaxed);
                instance.succeeded();
            }
            Err(why) => {
                // Whoever answers there next may be somebody else.
                instance.is_proven.store(false, Ordering::Relaxed);
                instance.failed(Instant::now(), &why, true);
                self.scheduler.forget(instance.number);
            }
        }
    }
}

fn last_component(model: &str) -> &str {
    model.trim_end_matches('/').rsplit('/').next().unwrap_or(model)
}

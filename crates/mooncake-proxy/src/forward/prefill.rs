//! A prefill instance computes the prompt; if none does, the decode instance has to.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::response::Response;
use serde::Deserialize;
use tokio::sync::watch;

use crate::counts::DecodeOnlyReason;
use crate::forward::account::Account;
use crate::forward::flow::{ATTEMPTS, Asked, another_may_answer, passed_on};
use crate::instances::instance::{Instance, Kind, Lease};
use crate::instances::peer_to_peer::Transfer;
use crate::instances::upstream::{Failure, whole};
use crate::proxy::Proxy;
use crate::routing::scheduling::Route;

/// What the prompt's computation left for the decode instance.
pub(crate) enum PrefillOutcome {
    /// Nothing: it computes the prompt.
    DecodeOnly,
    /// Blocks in the pool that it finds by itself.
    IntoPool,
    /// Blocks that it fetches.
    Transfer(PendingTransfer),
    /// The request is wrong: the answer.
    Refused(Response),
}

/// A transfer whose blocks wait at their prefill instance.
pub(crate) struct PendingTransfer {
    /// `kv_transfer_params` for the decode instance that fetches them.
    pub parameters: String,
    /// Changed when the instance begins to rest: a decode server that waits for its blocks does so for minutes.
    rested: watch::Receiver<()>,
    /// The instance has work until they are fetched.
    _lease: Lease,
}

/// What one instance did.
enum InstanceOutcome {
    IntoPool,
    /// The parameters for the decode instance that fetches it.
    ToTransfer(String),
    /// No decode instance can fetch it.
    InVain,
    Refused(Response),
}

impl PendingTransfer {
    /// Returns when the blocks will not come any more.
    pub async fn lost(&mut self) {
        // Its other end is the instance's, which the lease holds.
        let _ = self.rested.changed().await;
    }
}

impl Proxy {
    /// Has the prompt computed. If no instance does it, the decode instance computes it.
    pub async fn prefill(&self, asked: &Asked<'_>, account: &mut Account) -> PrefillOutcome {
        let began = Instant::now();
        let decode = self.fleet.available(Kind::Decode, &[]);
        let mut tried = Vec::new();
        let mut reason = DecodeOnlyReason::NoPrefill;
        while tried.len() < ATTEMPTS {
            let mut available = self.fleet.available(Kind::Prefill, &tried);
            if !asked.is_one_sequence {
                // A transfer has one name, and the engine would ask for each sequence's blocks by it: it would be given
                // another prompt's blocks, or wait for blocks that no instance sends.
                let all = available.len();
                available.retain(|one: &Arc<Instance>| one.address.bootstrap().is_none());
                if available.is_empty() && all > 0 {
                    reason = DecodeOnlyReason::NotFetchable;
                }
            }
            let mut lease = match self.scheduler.prefill(&available, &decode, &asked.prompt) {
                Route::Prefill(lease) => lease,
                Route::None => break,
                Route::DecodeOnly => {
                    reason = DecodeOnlyReason::Chosen;
                    break;
                }
            };
            tried.push(lease.instance.number);
            let rested = lease.instance.rests();
            let computed = tokio::select! {
                computed = self.prefill_at(&lease, asked) => computed,
                () = lease.instance.hangs.notified() => Err(Failure::Hangs),
            };
            let computed = match computed {
                Ok(computed) => computed,
                Err(failure) => {
                    self.note(&lease, &failure, account);
                    continue;
                }
            };
            lease.instance.succeeded();
            lease.took();
            lease.computed();
            account.prefilled(&lease.instance, began.elapsed());
            match computed {
                InstanceOutcome::Refused(response) => return PrefillOutcome::Refused(response),
                InstanceOutcome::IntoPool => return PrefillOutcome::IntoPool,
                InstanceOutcome::ToTransfer(parameters) => {
                    return PrefillOutcome::Transfer(PendingTransfer { parameters, rested, _lease: lease });
                }
                InstanceOutcome::InVain => {
                    reason = DecodeOnlyReason::NotFetchable;
                    break;
                }
            }
        }
        self.counts.decode_only(reason);
        PrefillOutcome::DecodeOnly
    }

    async fn prefill_at(&self, lease: &Lease, asked: &Asked<'_>) -> Result<InstanceOutcome, Failure> {
        let transfer = Transfer::prepare(&self.upstream, &lease.instance, &asked.name).await?;
        let mut headers = asked.headers.clone();
        if let Some(transfer) = &transfer {
            transfer.name_rank(&mut headers);
        }
        let body = asked.fields.for_prefill(transfer.as_ref().map(Transfer::for_prefill).as_deref());
        let (authority, timeout) = (lease.instance.address.authority(), self.options.prefill_timeout);
        let answer = self.upstream.post(&authority, asked.path, headers, body.into(), timeout).await?;
        let status = answer.status();
        if another_may_answer(status) {
            return Err(Failure::Status(status));
        }
        if status.is_client_error() {
            return Ok(InstanceOutcome::Refused(passed_on(answer, timeout).await?));
        }
        // The answer's one token is of no use, but it says that the computation is over.
        let answer = whole(answer, timeout).await?;
        Ok(match transfer {
            None => InstanceOutcome::IntoPool,
            Some(transfer) if goes_on(&answer) => InstanceOutcome::ToTransfer(transfer.for_decode()),
            Some(_) => InstanceOutcome::InVain,
        })
    }
}

/// Whether a prefill instance's answer was cut after its token, as it was asked. vLLM keeps the blocks of no other for
/// a transfer, and a decode instance that asks for them waits for minutes.
fn goes_on(answer: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        choices: Vec<Choice>,
    }
    #[derive(Deserialize)]
    struct Choice {
        #[serde(default)]
        finish_reason: Option<String>,
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(answer) else { return false };
    let reasons = answer.choices.into_iter().filter_map(|choice| choice.finish_reason);
    reasons.into_iter().all(|reason| reason == "length" || reason == "tool_calls")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_fetched_only_if_the_answer_was_cut_after_its_token() {
        let goes_on = |answer: &'static str| goes_on(&Bytes::from_static(answer.as_bytes()));
        for cut in [r#"{"choices":[{"finish_reason":"length"}]}"#, r#"{"choices":[{"text":"a"}],"x":1}"#, "{}"] {
            assert!(goes_on(cut), "{cut}");
        }
        for over in [r#"{"choices":[{"finish_reason":"stop"}]}"#, "", "[1]", "{", r#"{"choices":5}"#] {
            assert!(!goes_on(over), "{over}");
        }
    }
}

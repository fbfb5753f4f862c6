//! What clients say that they have seen of a log, and how far that is believed.
//!
//! A client that has seen more of this very log than there is proves that the log has lost its end: rids after that end
//! may be in use. Another log's higher epoch is one that this client's segments may already obey. Both raise the epoch.
//! There are only 65,535 of them and each raise closes every segment for a moment, so that what anybody can claim costs
//! from a budget: true claims are rare and small, lies run dry.

use std::time::{Duration, Instant};

use mooncake_wire::message::{LogPosition, Refusal, refusal};

/// Epochs that claims may use up at once.
const BUDGET_MAX: u32 = 1024;
/// What the smallest raise costs.
const RAISE_COST: u32 = 32;
/// One epoch of the budget comes back after so long.
const REFILL: Duration = Duration::from_secs(60);
/// Between two lines about refused claims.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The budget of claims.
#[derive(Debug)]
pub struct EpochClaims {
    left: u32,
    refilled: Instant,
    told: Option<Instant>,
}

impl EpochClaims {
    /// A full budget.
    pub fn new(now: Instant) -> EpochClaims {
        EpochClaims { left: BUDGET_MAX, refilled: now, told: None }
    }

    /// Judges what an admitted client has seen by what this master has: the epoch to raise to, if any. Refused claims are
    /// logged; the client cannot be served, as its memory may obey what this master has not reached.
    pub fn judge(&mut self, now: Instant, own: LogPosition, seen: &LogPosition) -> Result<Option<u16>, Refusal> {
        let ahead = match seen.log_id == own.log_id {
            true => (seen.epoch, seen.lsn) > (own.epoch, own.lsn),
            false => seen.epoch > own.epoch,
        };
        if !ahead {
            return Ok(None);
        }
        let raised = seen.epoch.max(own.epoch).saturating_add(1);
        let cost = (raised - own.epoch).max(RAISE_COST);
        self.refill(now);
        let kind = match u16::try_from(raised) {
            Ok(raised) if cost <= self.left => {
                self.left -= cost;
                tracing::warn!(
                    seen_epoch = seen.epoch,
                    seen_lsn = seen.lsn,
                    own_epoch = own.epoch,
                    raised,
                    "a client has seen more than this log holds: the epoch is raised"
                );
                return Ok(Some(raised));
            }
            Ok(_) if cost <= BUDGET_MAX => refusal::Kind::Overloaded,
            _ => refusal::Kind::BadRequest,
        };
        if self.told.is_none_or(|told| now.duration_since(told) >= TELL_EVERY) {
            self.told = Some(now);
            tracing::error!(
                seen_log = format!("{:016x}", seen.log_id),
                seen_epoch = seen.epoch,
                seen_lsn = seen.lsn,
                own_epoch = own.epoch,
                "a client claims to have seen far more than this log holds; it is NOT BELIEVED and not served. If it \
                 belongs to another pool, give it that pool's master; if not, somebody plays with the control port"
            );
        }
        let reason = format!(
            "epoch {} is not believed by a master in epoch {}: that is too far ahead, or too many such claims came",
            seen.epoch, own.epoch
        );
        Err(Refusal { kind: kind.into(), reason })
    }

    fn refill(&mut self, now: Instant) {
        let earned = now.duration_since(self.refilled).as_secs() / REFILL.as_secs();
        self.refilled += REFILL * u32::try_from(earned).unwrap_or(u32::MAX).min(u32::from(u16::MAX));
        self.left = self.left.saturating_add(u32::try_from(earned).unwrap_or(u32::MAX)).min(BUDGET_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 7;

    fn at(log_id: u64, epoch: u32, lsn: u64) -> LogPosition {
        LogPosition { log_id, epoch, lsn }
    }

    #[test]
    fn what_this_master_has_reached_itself_is_never_refused() {
        let now = Instant::now();
        let mut claims = EpochClaims::new(now);
        for epoch in [1, 64_511, 64_512, 65_535] {
            assert_eq!(claims.judge(now, at(OWN, epoch, 9), &at(OWN, epoch, 9)), Ok(None));
            assert_eq!(claims.judge(now, at(OWN, epoch, 9), &at(OWN + 1, epoch, 99)), Ok(None));
        }
    }

    #[test]
    fn a_true_claim_raises_to_just_above_what_was_seen() {
        let now = Instant::now();
        let mut claims = EpochClaims::new(now);
        assert_eq!(claims.judge(now, at(OWN, 3, 9), &at(OWN, 3, 10)), Ok(Some(4)));
        assert_eq!(claims.judge(now, at(OWN, 4, 9), &at(OWN + 1, 9, 1)), Ok(Some(10)));
        assert_eq!(
            claims.judge(now, at(OWN, 10, 9), &at(OWN, 3, 99)),
            Ok(None),
            "the next one of the same kind is covered"
        );
    }

    #[test]
    fn no_claims_however_many_use_up_the_epochs() {
        let mut now = Instant::now();
        let mut claims = EpochClaims::new(now);
        for far in [1025, 30_000, 65_534, 65_535, u32::MAX] {
            let refused = claims.judge(now, at(OWN, 1, 9), &at(OWN + 1, far, 1)).unwrap_err();
            assert_eq!(refused.kind(), refusal::Kind::BadRequest, "{far}");
        }
        let mut epoch = 1;
        for day in 1..=7 {
            for minute in 0..24 * 60u64 {
                now += Duration::from_secs(60);
                let near = at(OWN, epoch, minute + 1);
                let far = at(OWN + 1, epoch + 1000, 1);
                for claim in [near, far, near] {
                    if let Ok(Some(raised)) = claims.judge(now, at(OWN, epoch, 0), &claim) {
                        epoch = u32::from(raised);
                    }
                }
            }
            assert!(epoch <= 1024 + day * 24 * 60 + 1, "epoch {epoch} on day {day}");
        }
        assert!(epoch < 12_000, "{epoch}");
        let end = u32::from(u16::MAX);
        let mut fresh = EpochClaims::new(now);
        assert!(fresh.judge(now, at(OWN, end, 1), &at(OWN, end, 2)).is_err(), "there is nothing to raise to");
    }
}

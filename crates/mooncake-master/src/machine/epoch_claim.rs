//! What clients say that they have seen of a log, and how far the master believes that (`docs/safety.md`, rule 18).
//!
//! A client's hello shows the highest position that it has seen. Each of these raises the epoch, to one that neither
//! the client nor this master has seen:
//!
//! - More of this very log than there is. The log has lost its end, and rids after that end may be in use.
//! - This epoch's number with another id. Another continuation of the log began that epoch.
//! - An epoch of another log, this master's or a higher one. That log has given out its rids, and this client may still
//!   name or write them. A higher one the client's segments may already obey.
//!
//! The same epoch under another log id is this log before or after its file was lost.
//!
//! There are only 65,535 epochs, and each raise closes every segment for a moment. So each claim costs from two
//! budgets, of raises and of epochs: true claims are rare and small, lies run dry. The epochs of a master without a log
//! end with it, and each restart of it leaves the engines that outlive it one ahead. Its budget of epochs comes back
//! fast and adds up, so that an engine that has outlived any number of restarts is let in after a while.

use mooncake_mutant::mutant;
use std::time::Duration;

use mooncake_wire::message::{LogPosition, Refusal, refusal};

/// Epochs that claims may use up at once.
const BUDGET_MAX: u32 = 1024;
/// What the smallest raise costs.
const RAISE_COST: u32 = 32;
/// One epoch of the budgets comes back after so long.
const REFILL: Duration = Duration::from_secs(60);
/// The same of the epochs without a log: all that there are in 65 minutes.
const REFILL_WITHOUT_LOG: Duration = Duration::from_millis(60);
/// Between two lines about refused claims.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What a client's hello shows.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// The highest that it has seen of any log.
    pub position: LogPosition,
    /// It is of a version that knows epoch ids: one without an id is of an older master.
    pub says_epoch_ids: bool,
}

/// The budgets of claims.
#[derive(Debug)]
pub struct EpochClaims {
    /// Pays for raises, however small.
    raises: Budget,
    /// Pays for the epochs that they skip.
    epochs: Budget,
    told: Option<Duration>,
}

/// What is left of something that comes back with time.
#[derive(Debug)]
struct Budget {
    left: u32,
    max: u32,
    every: Duration,
    refilled: Duration,
}

impl Budget {
    fn new(now: Duration, max: u32, every: Duration) -> Budget {
        Budget { left: BUDGET_MAX, max, every, refilled: now }
    }

    fn refill(&mut self, now: Duration) {
        let earned = now.saturating_sub(self.refilled).as_millis() / self.every.as_millis();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX).min(u32::from(u16::MAX));
        self.refilled += self.every * earned;
        self.left = self.left.saturating_add(earned).min(self.max);
    }

    /// How long until this much is there; `None`: it never is.
    fn wait_for(&self, cost: u32) -> Option<Duration> {
        (cost <= self.max).then(|| self.every * cost.saturating_sub(self.left))
    }
}

impl EpochClaims {
    /// Full budgets of a master with a log, which keeps the epochs that are used up.
    pub fn new(now: Duration) -> EpochClaims {
        EpochClaims::of(now, Budget::new(now, BUDGET_MAX, REFILL))
    }

    /// Full budgets of a master without a log.
    pub fn without_log(now: Duration) -> EpochClaims {
        EpochClaims::of(now, Budget::new(now, u32::from(u16::MAX), REFILL_WITHOUT_LOG))
    }

    fn of(now: Duration, epochs: Budget) -> EpochClaims {
        EpochClaims { raises: Budget::new(now, BUDGET_MAX, REFILL), epochs, told: None }
    }

    /// Judges what an admitted client has seen by what this master has: the epoch to raise to, if any. A refused claim
    /// is logged. The master cannot serve that client, as its memory may obey what this master has not reached.
    pub fn judge(&mut self, now: Duration, own: LogPosition, shown: &Shown) -> Result<Option<u16>, Refusal> {
        let Shown { position: seen, says_epoch_ids } = shown;
        // An epoch without an id is an older master's, or any master's as an older client tells it: it may be this one.
        // A client of a version with ids would have told this one's. The first epoch of a log is begun once.
        let may_be_this = seen.epoch_id == 0 && (!says_epoch_ids || own.epoch == 1);
        let other_of_its_number = seen.epoch == own.epoch && seen.epoch_id != own.epoch_id && !may_be_this;
        let is_of_this = seen.is_of_log_of(&own);
        // Of this log, what it lacks. Of another log, this very epoch too: the rids that it gave out in that are not
        // this log's (`docs/safety.md`, rule 18).
        let ahead = match is_of_this {
            true => other_of_its_number || (seen.epoch, seen.lsn) > (own.epoch, own.lsn),
            false => seen.epoch >= own.epoch,
        };
        // Above the last epoch there is none. The master has reached that epoch itself, so it serves a client of
        // another log in it as it is.
        if !ahead
            || mutant!(ClientsAreNotBelieved)
            || (!is_of_this && seen.epoch == own.epoch && own.epoch == u32::from(u16::MAX))
        {
            return Ok(None);
        }
        // Above what either side has seen.
        let raised = seen.epoch.max(own.epoch).saturating_add(1);
        let cost = raised - own.epoch;
        self.raises.refill(now);
        self.epochs.refill(now);
        let wait = self.raises.wait_for(RAISE_COST).zip(self.epochs.wait_for(cost)).map(|(one, other)| one.max(other));
        let kind = match u16::try_from(raised) {
            Ok(raised) if wait.is_some_and(|wait| wait.is_zero()) => {
                self.raises.left -= RAISE_COST;
                self.epochs.left -= cost;
                tracing::warn!(
                    seen_epoch = seen.epoch,
                    seen_lsn = seen.lsn,
                    own_epoch = own.epoch,
                    raised,
                    "a client has seen more than this log holds, or another epoch of this number: the epoch is raised"
                );
                return Ok(Some(raised));
            }
            Ok(_) if cost <= BUDGET_MAX => refusal::Kind::Overloaded,
            _ => refusal::Kind::BadRequest,
        };
        if self.told.is_none_or(|told| now.saturating_sub(told) >= TELL_EVERY) {
            self.told = Some(now);
            tracing::error!(
                seen_log = format!("{:016x}", seen.log_id),
                seen_epoch = seen.epoch,
                seen_lsn = seen.lsn,
                own_epoch = own.epoch,
                believed_in_s = wait.map(|wait| wait.as_secs()),
                "a client claims to have seen far more than this log holds; it is NOT BELIEVED and not served. If it \
                 belongs to another pool, give it that pool's master; if it has outlived very many restarts of this \
                 one, start it again or wait; if neither, somebody plays with the control port"
            );
        }
        let remedy = match wait {
            Some(wait) if u16::try_from(raised).is_ok() => {
                format!("tried again in {} s it is; a new process is served at once", wait.as_secs() + 1)
            }
            _ => "this process must be started again".to_owned(),
        };
        let reason = format!(
            "epoch {} is not believed by a master in epoch {}: that is too far ahead, or too many such claims came; \
             {remedy}",
            seen.epoch, own.epoch
        );
        Err(Refusal { kind: kind.into(), reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 7;
    /// Since the time origin, whatever that is.
    const NOW: Duration = Duration::from_secs(1_000);

    fn at(log_id: u64, epoch: u32, lsn: u64) -> LogPosition {
        LogPosition { log_id, epoch, lsn, epoch_id: 0 }
    }

    impl EpochClaims {
        /// Of a client of a version without epoch ids, or of one with them that names one.
        fn believe_old(&mut self, now: Duration, own: LogPosition, seen: &LogPosition) -> Result<Option<u16>, Refusal> {
            self.judge(now, own, &Shown { position: *seen, says_epoch_ids: false })
        }
    }

    #[test]
    fn a_client_that_would_have_told_the_epochs_id_has_not_seen_this_one() {
        let now = NOW;
        let mut claims = EpochClaims::new(now);
        let mut judge = |epoch_id, epoch| {
            let own = LogPosition { epoch_id, ..at(OWN, epoch, 90) };
            claims.judge(now, own, &Shown { position: at(OWN, epoch, 10), says_epoch_ids: true })
        };
        assert_eq!(judge(5, 2), Ok(Some(3)), "an older master has begun that epoch");
        assert_eq!(judge(0, 2), Ok(None), "and this log is that one's");
        assert_eq!(judge(5, 1), Ok(None), "the first one is begun once");
    }

    #[test]
    fn two_epochs_of_one_number_are_both_left() {
        let now = NOW;
        let mut claims = EpochClaims::new(now);
        let of = |epoch_id, lsn| LogPosition { epoch_id, ..at(OWN, 2, lsn) };
        assert_eq!(claims.believe_old(now, of(5, 90), &of(6, 10)), Ok(Some(3)), "however little it has seen of it");
        assert_eq!(claims.believe_old(now, of(0, 90), &of(6, 10)), Ok(Some(3)), "also beside one without an id");
        assert_eq!(claims.believe_old(now, of(5, 90), &of(5, 10)), Ok(None));
        assert_eq!(claims.believe_old(now, of(5, 90), &of(0, 10)), Ok(None), "an older client does not say");
        let later = LogPosition { epoch: 3, ..of(7, 0) };
        assert_eq!(claims.believe_old(now, later, &of(6, 10)), Ok(None), "once is enough");
        let last = |epoch_id| LogPosition { epoch: 65_535, ..of(epoch_id, 0) };
        assert!(claims.believe_old(now, last(5), &last(6)).is_err(), "there is nothing to raise to");
    }

    #[test]
    fn an_epoch_that_goes_on_under_another_log_id_is_the_same_one() {
        let mut claims = EpochClaims::new(NOW);
        let of = |log_id, epoch, epoch_id, lsn| LogPosition { epoch_id, ..at(log_id, epoch, lsn) };
        for epoch in [1, 2, 65_535] {
            let own = of(OWN + 2, epoch, 5, 90);
            for former in [OWN, OWN + 1] {
                assert_eq!(
                    claims.believe_old(NOW, own, &of(former, epoch, 5, 89)),
                    Ok(None),
                    "this process has lost that log"
                );
            }
        }
        let own = of(OWN + 2, 2, 5, 90);
        assert_eq!(claims.believe_old(NOW, own, &of(OWN, 2, 5, 91)), Ok(Some(3)), "and the end of this one, too");
        assert_eq!(claims.believe_old(NOW, own, &of(OWN, 2, 6, 1)), Ok(Some(3)), "another epoch of that number");
        assert_eq!(claims.believe_old(NOW, own, &of(OWN, 2, 0, 1)), Ok(Some(3)), "one that is not known");
        assert_eq!(claims.believe_old(NOW, own, &of(OWN, 3, 5, 1)), Ok(Some(4)), "another epoch");
    }

    #[test]
    fn what_this_master_has_reached_itself_is_never_refused() {
        let now = NOW;
        let mut claims = EpochClaims::new(now);
        for epoch in [1, 64_511, 64_512, 65_535] {
            assert_eq!(claims.believe_old(now, at(OWN, epoch, 9), &at(OWN, epoch, 9)), Ok(None));
            assert_eq!(claims.believe_old(now, at(OWN, epoch, 9), &at(OWN + 1, epoch - 1, 99)), Ok(None));
            let raised = (epoch < 65_535).then(|| epoch as u16 + 1);
            assert_eq!(claims.believe_old(now, at(OWN, epoch, 9), &at(OWN + 1, epoch, 99)), Ok(raised));
        }
    }

    #[test]
    fn an_epoch_whose_rids_another_log_gave_out_is_not_this_logs() {
        let now = NOW;
        let mut claims = EpochClaims::without_log(now);
        let engine = at(OWN + 1, 1, 40);
        assert_eq!(claims.believe_old(now, at(OWN, 1, 0), &engine), Ok(Some(2)));
        assert_eq!(claims.believe_old(now, at(OWN, 2, 3), &engine), Ok(None), "once is enough for all that come back");
        assert_eq!(claims.believe_old(now, at(OWN, 2, 3), &at(OWN, 2, 3)), Ok(None), "they have seen this log by then");
        assert_eq!(
            claims.believe_old(now, at(OWN, 1, 0), &LogPosition::default()),
            Ok(None),
            "a new one has seen nothing"
        );
        for after in 2..=(BUDGET_MAX / RAISE_COST) {
            let after = after as u16;
            assert_eq!(
                claims.believe_old(now, at(OWN, after.into(), 0), &at(OWN + 1, after.into(), 0)),
                Ok(Some(after + 1))
            );
        }
        let refused = claims.believe_old(now, at(OWN, 40, 0), &at(OWN + 1, 40, 0)).unwrap_err();
        assert_eq!(refused.kind(), refusal::Kind::Overloaded, "such claims have the budget that all have");
    }

    #[test]
    fn a_true_claim_raises_to_just_above_what_was_seen() {
        let now = NOW;
        let mut claims = EpochClaims::new(now);
        assert_eq!(claims.believe_old(now, at(OWN, 3, 9), &at(OWN, 3, 10)), Ok(Some(4)));
        assert_eq!(claims.believe_old(now, at(OWN, 4, 9), &at(OWN + 1, 9, 1)), Ok(Some(10)));
        assert_eq!(
            claims.believe_old(now, at(OWN, 10, 9), &at(OWN, 3, 99)),
            Ok(None),
            "the next one of the same kind is covered"
        );
    }

    #[test]
    fn whoever_outlived_very_many_restarts_without_a_log_is_let_in_after_a_while() {
        let mut now = NOW;
        let mut claims = EpochClaims::without_log(now);
        let survivor = at(OWN + 1, 1500, 9);
        let mut seconds = 0;
        let raised = loop {
            match claims.believe_old(now, at(OWN, 1, 9), &survivor) {
                Ok(raised) => break raised,
                Err(_) => seconds += 1,
            }
            assert!(seconds < 60, "not after {seconds} seconds");
            now += Duration::from_secs(1);
        };
        assert_eq!((raised, seconds), (Some(1501), 29));
    }

    #[test]
    fn without_a_log_even_the_last_epochs_are_reached_within_an_hour_or_so() {
        let start = NOW;
        let mut claims = EpochClaims::without_log(start);
        let survivor = at(OWN + 1, 65_534, 9);
        let refused = claims.believe_old(start, at(OWN, 1, 9), &survivor).unwrap_err();
        assert!(refused.reason.contains("in 3871 s it is;"), "{}", refused.reason);
        assert!(claims.believe_old(start + Duration::from_secs(3600), at(OWN, 1, 9), &survivor).is_err());
        let late = start + Duration::from_secs(3871);
        assert_eq!(claims.believe_old(late, at(OWN, 1, 9), &survivor), Ok(Some(65_535)));
        let none = claims.believe_old(late, at(OWN, 1, 9), &at(OWN + 1, 65_535, 9)).unwrap_err();
        assert!(none.reason.contains("started again"), "{}", none.reason);
    }

    #[test]
    fn without_a_log_no_more_raises_are_believed_than_with_one() {
        let mut now = NOW;
        let mut claims = EpochClaims::without_log(now);
        let (mut epoch, mut raises) = (1, 0);
        for minute in 0..24 * 60 {
            now += Duration::from_secs(60);
            for _ in 0..3 {
                if let Ok(Some(raised)) = claims.believe_old(now, at(OWN, epoch, 0), &at(OWN, epoch, minute + 1)) {
                    epoch = u32::from(raised);
                    raises += 1;
                }
            }
        }
        // The first minute finds a full budget.
        assert_eq!((raises, epoch), (BUDGET_MAX / RAISE_COST + (24 * 60 - 1) / RAISE_COST, raises + 1));
    }

    #[test]
    fn no_claims_however_many_use_up_the_epochs() {
        let mut now = NOW;
        let mut claims = EpochClaims::new(now);
        for far in [1025, 30_000, 65_534, 65_535, u32::MAX] {
            let refused = claims.believe_old(now, at(OWN, 1, 9), &at(OWN + 1, far, 1)).unwrap_err();
            assert_eq!(refused.kind(), refusal::Kind::BadRequest, "{far}");
        }
        let mut epoch = 1;
        for day in 1..=7 {
            for minute in 0..24 * 60u64 {
                now += Duration::from_secs(60);
                let near = at(OWN, epoch, minute + 1);
                let far = at(OWN + 1, epoch + 1000, 1);
                for claim in [near, far, near] {
                    if let Ok(Some(raised)) = claims.believe_old(now, at(OWN, epoch, 0), &claim) {
                        epoch = u32::from(raised);
                    }
                }
            }
            assert!(epoch <= 1024 + day * 24 * 60 + 1, "epoch {epoch} on day {day}");
        }
        assert!(epoch < 12_000, "{epoch}");
        let end = u32::from(u16::MAX);
        let mut fresh = EpochClaims::new(now);
        assert!(fresh.believe_old(now, at(OWN, end, 1), &at(OWN, end, 2)).is_err(), "there is nothing to raise to");
    }
}

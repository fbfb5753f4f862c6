//! A master that goes on without its log has said so once, when it lost it. It says so again every hour: the next
//! restart forgets every object, and an operator has to find that among the last lines of its output.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Time between two reminders.
const REMIND_EVERY: Duration = Duration::from_secs(3600);

/// For a line of output, and with what to do.
pub const REMINDER: &str = "STILL WITHOUT A LOG: a restart forgets every object. POST /api/v1/start_log to the metrics \
                            port begins a new one";

/// Has `remind` called once an hour while the log is lost, for ever.
pub async fn watch(is_lost: impl Fn() -> bool, remind: impl Fn()) {
    let mut told = None;
    loop {
        sleep(POLL_INTERVAL).await;
        if !is_lost() {
            told = None;
        } else if told.get_or_insert_with(Instant::now).elapsed() >= REMIND_EVERY {
            told = Some(Instant::now());
            remind();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const HOUR: u64 = 3600;

    #[tokio::test(start_paused = true)]
    async fn a_lost_log_is_told_of_every_hour_until_another_one_begins() {
        let (began, told) = (Instant::now(), RefCell::new(Vec::new()));
        let is_lost = || {
            let second = began.elapsed().as_secs();
            (1_000..1_000 + 3 * HOUR).contains(&second) || second >= 20_000
        };
        let watch = watch(is_lost, || told.borrow_mut().push(began.elapsed().as_secs() / 60));
        tokio::time::timeout(Duration::from_secs(20_000 + HOUR + 60), watch).await.unwrap_err();
        let minutes = [1_000 + HOUR, 1_000 + 2 * HOUR, 20_000 + HOUR].map(|second| second / 60);
        assert_eq!(*told.borrow(), minutes, "and not in the hour in which another one began");
    }
}

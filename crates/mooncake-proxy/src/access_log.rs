//! A line for each request, written by a thread of its own: the reader of the log may be slow, and no request waits for
//! that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

/// Lines that wait to be written. What comes then is left out, and counted.
const WAITING: usize = 8 << 10;

/// Between two looks for lines: to wake the thread for each one would cost more than to write it.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);

/// For the lines that wait when it ends.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes lines.
#[derive(Debug)]
pub(crate) struct AccessLog {
    /// None: it ends.
    lines: Option<SyncSender<String>>,
    /// Closed by the thread when all of them are written.
    ended: Mutex<Receiver<()>>,
    left_out: AtomicU64,
}

impl AccessLog {
    /// Begins; `write` is called for each line, on a thread that ends with the log.
    pub fn begin(mut write: impl FnMut(String) + Send + 'static) -> std::io::Result<AccessLog> {
        let (lines, taken) = sync_channel(WAITING);
        let (at_its_end, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("access-log".into());
        thread.spawn(move || {
            while let Ok(first) = taken.recv() {
                std::thread::sleep(WRITE_INTERVAL);
                std::iter::once(first).chain(taken.try_iter()).for_each(&mut write);
            }
            drop(at_its_end);
        })?;
        Ok(AccessLog { lines: Some(lines), ended: Mutex::new(ended), left_out: AtomicU64::new(0) })
    }

    pub fn say(&self, line: String) {
        if self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_err()) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that the thread did not take in time.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.lines = None;
        // The thread never sends: the channel is closed, or the time is over.
        let _ = self.ended.get_mut().recv_timeout(END_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_nobody_reads_holds_up_nobody() {
        let (go, wait) = channel::<()>();
        let (wrote, written) = channel();
        let log = AccessLog::begin(move |line| {
            let _ = wait.recv();
            wrote.send(line).unwrap();
        })
        .unwrap();
        let lines = WAITING + 100;
        (0..lines).for_each(|number| log.say(number.to_string()));
        let left_out = log.left_out() as usize;
        // One may be in the writer's hands.
        assert!(left_out == 100 || left_out == 99, "{left_out}");
        drop((go, log));
        let written: Vec<String> = written.try_iter().collect();
        assert_eq!(written.len(), lines - left_out, "what was taken is written before it ends");
        assert_eq!(
            (&*written[0], &*written[WAITING - 1]),
            ("0", &*(WAITING - 1).to_string()),
            "first come, first written"
        );
    }
}

//! A line for each request, written by a thread of its own: whoever reads the log may be slow, and no request waits for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Lines that wait to be written. What comes then is left out, and counted.
const WAITING: usize = 8 << 10;

/// Takes lines.
#[derive(Debug)]
pub(crate) struct AccessLog {
    lines: SyncSender<String>,
    left_out: AtomicU64,
}

impl AccessLog {
    /// Begins; `write` is called for each line, on a thread that ends with the log.
    pub fn begin(mut write: impl FnMut(String) + Send + 'static) -> std::io::Result<AccessLog> {
        let (lines, taken) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("access-log".into());
        thread.spawn(move || taken.iter().for_each(&mut write))?;
        Ok(AccessLog { lines, left_out: AtomicU64::new(0) })
    }

    pub fn say(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that nobody took in time.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

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
        let written: Vec<String> = written.iter().collect();
        assert_eq!(written.len(), lines - left_out);
        assert_eq!(
            (&*written[0], &*written[WAITING - 1]),
            ("0", &*(WAITING - 1).to_string()),
            "first come, first written"
        );
    }
}

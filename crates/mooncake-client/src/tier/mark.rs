//! The mark of a folder that a log of this pool does not know (`docs/safety.md`, rule T11): a file in it, whose age
//! says for how long that was seen.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mooncake_tier::medium::folder::read_short;
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

/// The name of the file.
pub(super) const UNKNOWN: &str = "unknown";

/// Longest content of it that is looked at.
const BYTES_MAX: u64 = 128;

/// A clock that is set after the boot of its host is right by then.
const CLOCK_IS_RIGHT_AFTER: Duration = Duration::from_secs(60 * 60);

/// This log was seen not to know the folder, from now on.
pub(super) fn make(path: &Path, log_id: u64) -> std::io::Result<()> {
    // What is no file of records, or of any, is not waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path.join(UNKNOWN))?;
    file.write_all(text(log_id, &Now::get()).as_bytes())
}

/// A log that knows the folder has it: what another one did not know begins anew.
pub(super) fn remove(path: &Path) {
    _ = fs::remove_file(path.join(UNKNOWN));
}

/// Whether this log was seen not to know the folder, by whichever process.
pub(super) fn is_of(path: &Path, log_id: u64) -> bool {
    read_short(&path.join(UNKNOWN), BYTES_MAX).is_ok_and(|mark| mark.lines().next() == Some(&first_line(log_id)))
}

/// For how long some log was seen not to know the folder; none if it is not marked.
pub(super) fn age(path: &Path) -> Option<Duration> {
    let file = path.join(UNKNOWN);
    let mark = read_short(&file, BYTES_MAX).ok()?;
    // A clock that was set meanwhile says nothing of it.
    let by_clock = fs::metadata(&file).ok()?.modified().ok();
    let by_clock = by_clock.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
    Some(age_of(&mark, by_clock, Now::get()))
}

fn age_of(mark: &str, by_clock: Duration, now: Now) -> Duration {
    let made = mark.lines().nth(1).and_then(|line| line.split_once(' '));
    let made = made.and_then(|(boot, at)| Some((boot, at.parse::<i64>().ok()?)));
    match made {
        Some((boot, at)) if boot == now.boot => {
            Duration::from_secs(u64::try_from(now.seconds.saturating_sub(at)).unwrap_or(0))
        }
        // Made before this boot, or by another host.
        _ if now.seconds >= CLOCK_IS_RIGHT_AFTER.as_secs() as i64 => by_clock,
        _ => Duration::ZERO,
    }
}

/// A time that no one sets: of this boot, and seconds since it began.
struct Now {
    boot: String,
    seconds: i64,
}

impl Now {
    fn get() -> Now {
        let boot = mooncake_os::boot_id().map(|id| mooncake_os::hex(&id)).unwrap_or_default();
        Now { boot, seconds: clock_gettime(ClockId::Boottime).tv_sec }
    }
}

fn first_line(log_id: u64) -> String {
    format!("{log_id:016x}")
}

fn text(log_id: u64, Now { boot, seconds }: &Now) -> String {
    format!("{}\n{boot} {seconds}\n", first_line(log_id))
}

/// For tests: the mark was made so long ago.
#[cfg(test)]
pub(super) fn make_older(path: &Path, log_id: u64, ago: Duration) {
    let now = Now::get();
    let then = Now { seconds: now.seconds - ago.as_secs() as i64, ..now };
    fs::write(path.join(UNKNOWN), text(log_id, &then)).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_clock_that_is_set_makes_no_mark_older_and_another_boot_asks_it_once_it_is_right() {
        let at = |boot: &str, seconds| Now { boot: boot.to_owned(), seconds };
        let mark = text(7, &at("b1", 5_000));
        assert_eq!(age_of(&mark, 50_000 * HOUR, at("b1", 5_060)), Duration::from_secs(60), "the clock came later");
        assert_eq!(age_of(&mark, Duration::ZERO, at("b1", 5_000 + 7_200)), 2 * HOUR);
        assert_eq!(age_of(&mark, 30 * HOUR, at("b2", 60)), Duration::ZERO);
        assert_eq!(age_of(&mark, 30 * HOUR, at("b2", 3_600)), 30 * HOUR);
        // Of a version that wrote no boot, or of whatever else.
        for other in ["0000000000000007\n", "", "7\nb1\n", "7\nb1 x\n"] {
            assert_eq!(age_of(other, 30 * HOUR, at("b1", 60)), Duration::ZERO, "{other:?}");
            assert_eq!(age_of(other, 30 * HOUR, at("b1", 3_600)), 30 * HOUR, "{other:?}");
        }
    }

    #[test]
    fn what_is_no_file_is_no_mark_and_holds_nobody_up() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!((age(place.path()), is_of(place.path(), 7)), (None, false));
        make(place.path(), 7).unwrap();
        assert!(age(place.path()).is_some_and(|age| age < HOUR) && is_of(place.path(), 7) && !is_of(place.path(), 8));
        remove(place.path());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.path().join(UNKNOWN),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert_eq!((age(place.path()), is_of(place.path(), 7)), (None, false));
        assert!(make(place.path(), 7).is_err());
    }
}

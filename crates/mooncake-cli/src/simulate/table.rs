//! A simulation on a terminal.

use crate::simulate::report::{Report, Size};
use crate::terminal::{Paint, bytes, duration, number, plain};

/// Cells of a bar, of which the last is what memory for all blocks finds.
const BAR: usize = 30;

/// The whole of it.
pub fn text(report: &Report, paint: Paint) -> String {
    let mut out = head(report);
    let title = format!("{:>9} {:>7} {:>8}  {:<BAR$} {:>8} {:>9}", "MEMORY", "OF ALL", "FOUND", "", "BEST", "ANYWHERE");
    out += &format!("\n{}\n", paint.bold(&title));
    for size in &report.sizes {
        out += &line(report, size, paint);
    }
    out += &legend(report);
    out += &format!("\n{}\n", answer(report, paint));
    let missing: Vec<&Size> = report.sizes.iter().filter(|size| size.point.not_stored > 0).collect();
    if let Some(size) = missing.first() {
        out += &paint.yellow(&format!(
            "With {} {} blocks were not stored, as all that was there was in use: that is less than requests have in \
             hand at a time.\n",
            bytes(size.bytes as f64),
            number(size.point.not_stored as f64)
        ));
    }
    out
}

fn head(report: &Report) -> String {
    format!(
        "{}: {} requests in {} ask for {} blocks, {} of them distinct.\n\
         A block has {} (--block_size), all of them {}.\n",
        plain(&report.name),
        number(report.requests as f64),
        duration(report.span_ms as f64 / 1e3),
        number(report.blocks as f64),
        number(f64::from(report.distinct)),
        bytes(report.rules.block_bytes as f64),
        bytes(report.rules.bytes_of(report.distinct) as f64)
    )
}

fn line(report: &Report, size: &Size, paint: Paint) -> String {
    let all = report.possible.max(1) as f64;
    let cells = |blocks: u64| (((blocks as f64 / all).min(1.0) * BAR as f64).round() as usize).min(BAR);
    let found = cells(size.point.found);
    let best = cells(size.point.best);
    let bar = "█".repeat(found) + &"▒".repeat(best - found) + &"·".repeat(BAR - best);
    format!(
        "{:>9} {:>7} {:>8}  {} {:>8} {:>9}\n",
        bytes(size.bytes as f64),
        percent(report.of_all(size)),
        percent(report.share(size.point.found)),
        paint.green(&bar),
        percent(report.share(size.point.best)),
        percent(report.share(size.point.any))
    )
}

/// `5.3 %`, `100 %`.
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    if value >= 99.95 { format!("{value:.0} %") } else { format!("{value:.1} %") }
}

fn legend(report: &Report) -> String {
    format!(
        "\nFOUND     blocks that lead a prompt, up to the first that is missing: engines need not compute them.\n\
         \x20         A bar ends at what memory for all blocks finds: {}.\n\
         BEST      the most that any order of eviction could find (▒), if it knew what comes.\n\
         ANYWHERE  with those that are there behind one that is missing, of which engines make no use.\n",
        percent(report.share(report.possible))
    )
}

/// How much memory that is.
fn answer(report: &Report, paint: Paint) -> String {
    let possible = percent(report.share(report.possible));
    let Some(least) = &report.least else {
        return "No pool finds any of these blocks: none leads a prompt for a second time.".to_owned();
    };
    paint.bold(&format!(
        "With {} ({} of all) a pool finds {}, which is {} of what is possible ({possible}).",
        bytes(least.bytes as f64),
        percent(report.of_all(least)),
        percent(report.share(least.point.found)),
        percent(least.point.found as f64 / report.possible.max(1) as f64),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::report::report_for_tests;

    #[test]
    fn a_table_fits_a_terminal_and_ends_with_the_answer() {
        let mut report = report_for_tests(&[6, 60, 600], Some(550));
        report.name = "conversation_trace.jsonl".to_owned();
        let told = text(&report, Paint(false));
        assert!(told.lines().all(|line| line.chars().count() <= 100), "{told}");
        assert!(told.starts_with("conversation_trace.jsonl: 12,031 requests in 60 s ask for 1,000 blocks"), "{told}");
        assert!(told.contains("  37.5 GB   100 %   30.0 %  "), "{told}");
        let answer =
            "With 34.4 GB (91.7 % of all) a pool finds 27.5 %, which is 91.4 % of what is possible (30.1 %).\n";
        assert!(told.ends_with(answer), "{told}");
        report.sizes[0].point.not_stored = 7;
        assert!(text(&report, Paint(false)).contains("With 384 MB 7 blocks were not stored"));
    }

    #[test]
    fn where_nothing_comes_back_no_memory_helps() {
        let told = text(&report_for_tests(&[6], None), Paint(false));
        assert!(told.ends_with("none leads a prompt for a second time.\n"), "{told}");
        assert!(!told.contains('\u{1b}'), "a name is no command of a terminal");
    }

    #[test]
    fn a_share_has_a_digit_behind_the_point_unless_it_is_all() {
        assert_eq!([0.0, 0.0534, 0.9994, 0.9996, 1.0].map(percent), ["0.0 %", "5.3 %", "99.9 %", "100 %", "100 %"]);
    }
}

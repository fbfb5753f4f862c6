//! Amounts of bytes and of time, for people.

/// `1536` as `1.50 KB`, with Mooncake's units (of 1024).
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// `3 d 4 h`, `14 s`, `0.2 s`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..=9 => format!("{seconds:.1} s"),
        10..=119 => format!("{whole} s"),
        120..=7_199 => format!("{} min", whole / 60),
        7_200..=172_799 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_read_like_the_references() {
        assert_eq!(super::bytes(0), "0.00 B");
        assert_eq!(super::bytes(1023), "1023.00 B");
        assert_eq!(super::bytes(1536), "1.50 KB");
        assert_eq!(super::bytes(64 << 30), "64.00 GB");
    }

    #[test]
    fn times_read_as_people_say_them() {
        assert_eq!(
            [0.2, 14.0, 600.0, 7_260.0, 273_600.0].map(super::duration),
            ["0.2 s", "14 s", "10 min", "2 h 1 min", "3 d 4 h"]
        );
    }
}

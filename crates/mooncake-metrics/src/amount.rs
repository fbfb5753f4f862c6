//! Amounts of bytes, for people.

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

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_read_like_the_references() {
        assert_eq!(super::bytes(0), "0.00 B");
        assert_eq!(super::bytes(1023), "1023.00 B");
        assert_eq!(super::bytes(1536), "1.50 KB");
        assert_eq!(super::bytes(64 << 30), "64.00 GB");
    }
}

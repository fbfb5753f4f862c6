//! Sizes as people write them.

/// Why a size was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size; write bytes as a number, or a number with k, kb, m, mb, g, gb, t or tb (1024-based)")]
pub struct SizeError {
    /// What was written.
    pub text: String,
}

/// Bytes of "4GB", "512 MB", "1.5g" or "1073741824". Units are 1024-based, as in
/// Mooncake, and their case does not matter.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let refused = || SizeError { text: text.to_owned() };
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits + exponent(&lower[digits..]));
    let shift = match unit.trim_start() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(refused()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(refused);
    }
    match number.parse::<f64>() {
        Ok(number) if number * ((1u64 << shift) as f64) < u64::MAX as f64 => {
            Ok((number * (1u64 << shift) as f64) as u64)
        }
        _ => Err(refused()),
    }
}

/// Length of what is the `e9` of "1e9", if the text begins so.
fn exponent(text: &str) -> usize {
    let Some(after) = text.strip_prefix('e') else { return 0 };
    let digits = after.strip_prefix('+').unwrap_or(after);
    let count = digits.bytes().take_while(u8::is_ascii_digit).count();
    if count == 0 { 0 } else { text.len() - digits.len() + count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_engines_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1073741824", 1 << 30),
            ("4GB", 4 << 30),
            ("4 GB", 4 << 30),
            ("512 MB", 512 << 20),
            (" 16m ", 16 << 20),
            ("1.5g", 3 << 29),
            ("3.125 GiB", 3_355_443_200),
            ("2TB", 2 << 40),
            ("7b", 7),
            ("1e9", 1_000_000_000),
            ("1.5E+3kb", 1_536_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_its_text() {
        for text in ["", "GB", "-1", "4 XB", "1..5g", "infinite", "99999999999 TB", "1e", "e9", "1e-9", "0x10", "４GB"]
        {
            assert_eq!(parse_size(text), Err(SizeError { text: text.to_owned() }), "{text}");
        }
    }
}

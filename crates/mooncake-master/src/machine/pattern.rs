//! Patterns that keys are removed by.

use regex::bytes::{Regex, RegexBuilder};

/// Longest pattern, bytes.
const LONGEST: usize = 4 << 10;

/// Most bytes of a compiled pattern; time for a key grows with it.
const COMPILED_MAX: usize = 64 << 10;

/// A pattern that is searched for in time linear in the key, so that no client can stop the master with one.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Refuses, with the reason, what is no pattern or is none of that kind: look-around, back-references.
    pub fn new(pattern: &str) -> Result<Pattern, String> {
        if pattern.len() > LONGEST {
            return Err(format!("a pattern has at most {LONGEST} bytes, not {}", pattern.len()));
        }
        // Keys are bytes, and so is what Mooncake searches: classes are ASCII unless the pattern needs more.
        let build = |unicode| {
            RegexBuilder::new(pattern)
                .unicode(unicode)
                .size_limit(COMPILED_MAX)
                .dfa_size_limit(2 * COMPILED_MAX)
                .build()
        };
        build(false).or_else(|_| build(true)).map(Pattern).map_err(|error| error.to_string())
    }

    /// Whether it is found anywhere in a key.
    pub fn is_in(&self, key: &[u8]) -> bool {
        self.0.is_match(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_anywhere_and_in_any_bytes() {
        for (pattern, key, found) in [
            ("b", &b"abc"[..], true),
            ("^b", b"abc", false),
            ("^a.c$", b"abc", true),
            (r"^kv/\d+@[a-f]{2}$", b"kv/123@ab", true),
            (r"\d", "\u{0663}".as_bytes(), false),
            ("a.*b", b"a\xff\xfeb", true),
            ("ключ", "мой-ключ-1".as_bytes(), true),
            ("[а-я]+-1", "мой-ключ-1".as_bytes(), true),
            ("", b"anything", true),
            ("(?i)ABC", b"xabcx", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().is_in(key), found, "{pattern}");
        }
    }

    #[test]
    fn what_cannot_be_searched_in_linear_time_is_refused_with_the_reason() {
        for (pattern, reason) in [
            ("(a", "unclosed group"),
            ("[", "unclosed character class"),
            ("a**?+{", "repetition"),
            (r"(a)\1", "backreferences"),
            ("(?=a)b", "look-around"),
            ("(?<!a)b", "look-around"),
            ("((a{1000}){1000}){1000}", "size limit"),
            (&"a".repeat(5000), "at most 4096 bytes, not 5000"),
        ] {
            let refused = Pattern::new(pattern).unwrap_err();
            assert!(refused.contains(reason), "{pattern}: {refused}");
        }
    }
}

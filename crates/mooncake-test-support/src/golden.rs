//! Golden files: the bytes of a format, an item a line. A test makes every item anew and compares it with the file.
//!
//! A line that changes is a format that changes: files that earlier versions have written, and peers of theirs, have
//! the former one. Where that is meant, and where an item is new, `MOONCAKE_GOLDEN=write cargo test -p PACKAGE` writes
//! the file and says what it wrote.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

const HEAD: &str = "# A line that changes is a format that changes. MOONCAKE_GOLDEN=write writes what is new.\n";

/// Values of all variants of an enum, each with its name, in the order in which they are given. It does not compile
/// without one: whoever adds a variant gives it a golden line.
#[macro_export]
macro_rules! every {
    ($enum:ident { $($variant:ident $(($($value:expr),* $(,)?))? $({ $($field:tt)* })?),* $(,)? }) => {{
        #[allow(unreachable_patterns, reason = "a variant may be given twice, with other values")]
        const fn knows_all(value: &$enum) {
            match value {
                $($enum::$variant { .. } => {})*
            }
        }
        let _ = knows_all;
        let all: Vec<(&'static str, $enum)> =
            vec![$((stringify!($variant), $enum::$variant $(($($value),*))? $({ $($field)* })?)),*];
        all
    }};
}

/// The items of one file, in their order.
#[derive(Debug, Default)]
pub struct Golden {
    items: Vec<(String, String)>,
}

impl Golden {
    /// An item whose line has hexadecimal digits.
    pub fn bytes(&mut self, name: impl Into<String>, bytes: impl AsRef<[u8]>) {
        let hex = bytes.as_ref().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        self.text(name, hex);
    }

    /// An item that people read, of one line.
    pub fn text(&mut self, name: impl Into<String>, text: impl Into<String>) {
        let (name, text) = (name.into(), text.into());
        assert!(!name.contains(char::is_whitespace) && !text.is_empty() && !text.contains('\n'), "{name:?}: {text:?}");
        assert!(self.items.iter().all(|(other, _)| *other != name), "{name} is there twice");
        self.items.push((name, text));
    }

    /// Compares with the file of that name in the package's `crates/*/tests/golden`, or writes it.
    #[track_caller]
    pub fn check(self, file: &str) {
        // Asked for when it runs: a checkout that was moved keeps what cargo built in it.
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
        let path = Path::new(&package).join("tests/golden").join(file);
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        let differences = self.differences(&kept);
        if differences.is_empty() {
            return;
        }
        if std::env::var_os("MOONCAKE_GOLDEN").is_none_or(|wish| wish != "write") {
            panic!("{} has other lines, so a format has changed:\n{differences}", path.display());
        }
        let lines = self.items.iter().map(|(name, value)| format!("{name} {value}\n"));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for golden files");
        std::fs::write(&path, lines.fold(HEAD.to_owned(), |text, line| text + &line)).expect("a golden file");
        // Past what the test harness keeps to itself.
        let _ = writeln!(std::io::stderr(), "{} is written:\n{differences}", path.display());
    }

    /// Lines that are in one of the two only, or in another order.
    fn differences(&self, kept: &str) -> String {
        let kept: Vec<_> = kept.lines().filter(|line| !line.starts_with('#')).collect();
        let kept: Vec<_> = kept.iter().map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
        let now: Vec<_> = self.items.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let (was, is) = (BTreeMap::from_iter(kept.clone()), BTreeMap::from_iter(now.clone()));
        let mut out = String::new();
        for (sign, lines, others) in [('-', &kept, &is), ('+', &now, &was)] {
            for (name, value) in lines.iter().filter(|(name, value)| others.get(name) != Some(value)) {
                let _ = writeln!(out, "{sign} {name} {value}");
            }
        }
        if out.is_empty() && kept != now { "the same lines in another order\n".to_owned() } else { out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_that_differs_is_said() {
        let mut golden = Golden::default();
        golden.bytes("a", [1, 0xab]);
        golden.text("b", "two words");
        let kept = format!("{HEAD}a 01ab\nb two words\n");
        assert_eq!(golden.differences(&kept), "");
        assert_eq!(golden.differences(&kept.replace("01ab", "01")), "- a 01\n+ a 01ab\n");
        assert_eq!(golden.differences(&kept.replace("a 01ab\n", "")), "+ a 01ab\n");
        assert_eq!(golden.differences(&format!("{kept}c 00\n")), "- c 00\n");
        assert_eq!(golden.differences(&format!("{kept}a 01ab\n")), "the same lines in another order\n");
    }

    #[test]
    fn variants_of_all_kinds_are_named() {
        #[derive(Debug, PartialEq)]
        enum Kind {
            Unit,
            Tuple(u8, u8),
            Fields { one: u8 },
        }
        let all = every!(Kind { Unit, Tuple(1, 2), Fields { one: 3 }, Tuple(4, 5) });
        let expected = [
            ("Unit", Kind::Unit),
            ("Tuple", Kind::Tuple(1, 2)),
            ("Fields", Kind::Fields { one: 3 }),
            ("Tuple", Kind::Tuple(4, 5)),
        ];
        assert_eq!(all, expected);
    }
}

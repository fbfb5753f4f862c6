//! The text of `--help`.

use std::fmt::Write;

use crate::programs::Program;
use crate::setting::{Setting, Support, Type};

/// What works first, then the rest with its reasons.
pub(crate) fn help(program: &Program) -> String {
    let mut out =
        format!("{}\n\nFlags (--name=value or --name value; switches also --name and --noname):\n", program.about);
    let mut section = |title: &str, with: fn(&Support) -> bool| {
        let mut found: Vec<&Setting> = program.settings.iter().filter(|setting| with(&setting.support)).collect();
        if found.is_empty() {
            return;
        }
        if !title.is_empty() {
            found.sort_by_key(|setting| setting.name);
            let _ = writeln!(out, "\n{title}");
        }
        for setting in found {
            let default = if setting.default.is_empty() { "\"\"" } else { setting.default };
            let choices = match setting.value {
                Type::OneOf(choices) => format!("; {}", choices.join(" | ")),
                _ => String::new(),
            };
            let _ = writeln!(out, "  --{} (default {default}{choices})\n      {}", setting.name, setting.help);
        }
    };
    section("", |support| *support == Support::Supported);
    section("Accepted without effect:", |support| matches!(support, Support::NoEffect));
    section("Settings of what it does not have, accepted without effect:", |support| {
        matches!(support, Support::Inactive)
    });
    section("What it does not have; refused when switched on:", |support| matches!(support, Support::Refused { .. }));
    out
}

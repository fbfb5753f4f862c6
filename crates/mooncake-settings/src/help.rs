//! The text of `--help`.

use std::fmt::Write;

use crate::programs::Program;
use crate::setting::{Kind, Setting, Type};

/// What works first, then the rest with its reasons.
pub(crate) fn help(program: &Program) -> String {
    let mut out =
        format!("{}\n\nFlags (--name=value or --name value; switches also --name and --noname):\n", program.about);
    let mut section = |title: &str, with: fn(&Kind) -> bool| {
        let mut found: Vec<&Setting> = program.settings.iter().filter(|setting| with(&setting.kind)).collect();
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
    section("", |kind| *kind == Kind::Done);
    section("Accepted without effect:", |kind| matches!(kind, Kind::Accepted));
    section("Settings of what it does not have, accepted without effect:", |kind| matches!(kind, Kind::Idle));
    section("What it does not have; refused when switched on:", |kind| matches!(kind, Kind::Refused { .. }));
    out
}

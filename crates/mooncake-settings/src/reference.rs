//! `docs/settings.md`, made from the tables.

use std::fmt::Write;

use crate::environment;
use crate::programs::PROGRAMS;
use crate::setting::{Setting, Support};
use crate::tables::{engine, families, mooncake_config};

/// The page.
pub fn reference_page() -> String {
    let mut out = String::from(
        "# Settings\n\nMade from the registry in `crates/mooncake-settings` by `make reference`; a test fails when it \
         is stale. Durations are milliseconds or carry `ms`, `s`, `m` or `h`; sizes are bytes or carry `KB`, `MB`, \
         `GB` or `TB`, powers of 1024.\n",
    );
    for program in PROGRAMS {
        let _ = writeln!(out, "\n## `{}`\n", program.name);
        if program.find("config_path").is_some() {
            out.push_str(
                "Flags, or keys of the file that `--config_path` names (`.yaml`, `.yml` or `.json`; nested keys are \
                 joined by dots); a flag on the command line wins. `--flagfile=PATH` reads flags from a file, one a \
                 line.\n\n",
            );
        }
        tables(&mut out, program.settings);
    }
    out.push_str(
        "\n## Environment of clients\n\nRead by `setup()`, `setup_dummy()` and `mooncake_client`, each time. \
         Arguments say what to do; these say how.\n\n",
    );
    tables(&mut out, environment::VARIABLES);
    out.push_str("\n## Environment of transfer engines\n\nRead by `TransferEngine.initialize()`.\n\n");
    tables(&mut out, engine::VARIABLES);
    out.push_str("\n## Environment of every process\n\n");
    tables(&mut out, environment::PROCESS_VARIABLES);
    out.push_str(
        "\n## `mooncake.json`\n\nRead by `mooncake.mooncake_config.MooncakeConfig`. Where `MOONCAKE_CONFIG_PATH` names \
         a file, that file says everything, and its first three keys must be there; else the variables do.\n\n\
         | key | variable |\n|---|---|\n",
    );
    for value in mooncake_config::VALUES {
        let _ = writeln!(out, "| `{}` | `{}` |", value.attribute, value.variable.name);
    }
    out.push('\n');
    let mut variables = vec![mooncake_config::CONFIG_PATH];
    variables.extend(mooncake_config::VALUES.iter().map(|value| value.variable));
    tables(&mut out, &variables);
    out.push_str(
        "\n## Variables of Mooncake's without effect\n\nAccepted; `setup` and engines say in one line why, and name \
         what they do not know at all. A star stands for the rest of a name. Engines and their connectors read the \
         last ones: nothing is said of those.\n\n| name | why |\n|---|---|\n",
    );
    let engines = families::READ_BY_ENGINES.iter().map(|name| (*name, "read by engines"));
    for (name, why) in families::FAMILIES.iter().copied().chain(engines) {
        let _ = writeln!(out, "| `{name}` | {why} |");
    }
    out
}

fn tables(out: &mut String, settings: &[Setting]) {
    rows(out, "| name | type | default | what it does |", settings, |support| *support == Support::Supported);
    type Wanted = fn(&Support) -> bool;
    let rest: [(&str, Wanted); 3] = [
        ("Accepted without effect", |support| matches!(support, Support::NoEffect)),
        ("Of what is not there, accepted without effect", |support| matches!(support, Support::Inactive)),
        ("Not there; refused when switched on", |support| matches!(support, Support::Refused { .. })),
    ];
    for (title, with) in rest {
        if settings.iter().any(|setting| with(&setting.support)) {
            let _ = writeln!(out, "\n{title}:\n");
            rows(out, "| name | type | default | why, or what is missing |", settings, with);
        }
    }
}

fn rows(out: &mut String, head: &str, settings: &[Setting], with: fn(&Support) -> bool) {
    let _ = writeln!(out, "{head}\n|---|---|---|---|");
    for setting in settings.iter().filter(|setting| with(&setting.support)) {
        let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        let help = setting.help.replace('|', "\\|").replace('<', "&lt;");
        let _ = writeln!(out, "| `{}` | {} | {default} | {help} |", setting.name, setting.value.name());
    }
}

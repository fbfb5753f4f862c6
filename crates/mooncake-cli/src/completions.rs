//! `mooncake completions`: scripts by which shells complete commands and flags.

use std::fmt::Write;

use mooncake_settings::{COMPLETIONS, Setting, SettingError, Support, Type};

use crate::commands::{self, Command};
use crate::flags;
use crate::logging::say;

/// Why there is no script.
#[derive(Debug, thiserror::Error)]
pub enum CompletionsError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Another shell.
    #[error("no script for {0:?}: there is one for bash, zsh and fish")]
    Shell(String),
}

/// Prints one.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), CompletionsError> {
    let Some(given) = flags::read(&COMPLETIONS, args)? else { return Ok(()) };
    say(&match given.operands[0].as_str() {
        "bash" => bash(),
        "zsh" => format!("autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{}", bash()),
        "fish" => fish(),
        other => return Err(CompletionsError::Shell(other.to_owned())),
    });
    Ok(())
}

/// Commands on the search path that are one of `mooncake`.
fn shims() -> impl Iterator<Item = (&'static str, &'static Command)> {
    let named = commands::all().filter_map(|command| Some((command.program?.name, command)));
    named.filter(|(name, _)| !name.contains(' '))
}

fn names() -> Vec<&'static str> {
    ["mooncake"].into_iter().chain(shims().map(|(name, _)| name)).collect()
}

/// Flags that do something, as they are typed.
fn flags_of(command: &Command) -> impl Iterator<Item = (&'static Setting, String)> {
    let settings = command.program.map_or(&[][..], |program| program.settings);
    let works = settings.iter().filter(|setting| setting.support == Support::Supported);
    works.map(|setting| {
        let value = if setting.value == Type::Bool { "" } else { "=" };
        (setting, format!("--{}{value}", setting.name))
    })
}

fn bash() -> String {
    let mut out = "_mooncake() {\n    local words=\"${COMP_WORDS[*]:0:COMP_CWORD}\" all=\n    \
                   local now=\"${COMP_WORDS[COMP_CWORD]}\"\n    \
                   case \"$words\" in\n"
        .to_owned();
    // Words are whole: `stat` is not the beginning of `state`.
    let mut case = |words: &str, flags: &[String]| {
        let words = words.replace(' ', "\\ ");
        let _ = writeln!(out, "        *{words}|*{words}\\ *) all=\"{} --help\" ;;", flags.join(" "));
    };
    for command in commands::all() {
        let flags: Vec<String> = flags_of(command).map(|(_, flag)| flag).collect();
        case(&format!("mooncake {}", command.words), &flags);
    }
    for (name, command) in shims() {
        let flags: Vec<String> = flags_of(command).map(|(_, flag)| flag).collect();
        case(name, &flags);
    }
    let mut first: Vec<&str> = Vec::new();
    for command in commands::all() {
        let word = command.words.split(' ').next().unwrap_or_default();
        if !first.contains(&word) {
            first.push(word);
        }
    }
    for group in ["state", "tier"] {
        let second = commands::all().filter_map(|command| command.words.strip_prefix(group)?.strip_prefix(' '));
        let second: Vec<&str> = second.collect();
        let _ = writeln!(out, "        *mooncake\\ {group}) all=\"{}\" ;;", second.join(" "));
    }
    let _ = writeln!(out, "        *) all=\"{}\" ;;\n    esac", first.join(" "));
    // Flags where one is begun, files elsewhere; what ends in = has its value behind it, without a space.
    out += "    COMPREPLY=()\n    \
            [[ $now == -* || $all != *--help ]] && COMPREPLY=($(compgen -W \"$all\" -- \"$now\"))\n    \
            [[ ${COMPREPLY[0]-} == *= ]] && type compopt >/dev/null 2>&1 && compopt -o nospace\n    return 0\n}\n";
    let _ = writeln!(out, "complete -o default -F _mooncake {}", names().join(" "));
    out
}

fn fish() -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    let mut out = String::new();
    for command in commands::all() {
        let (first, second) = command.words.split_once(' ').unwrap_or((command.words, ""));
        let about = quoted(command.about);
        let seen = match second {
            "" => {
                let _ = writeln!(out, "complete -c mooncake -n __fish_use_subcommand -f -a {first} -d '{about}'");
                format!("__fish_seen_subcommand_from {first}")
            }
            second => {
                let _ = writeln!(out, "complete -c mooncake -n __fish_use_subcommand -f -a {first}");
                let seen = format!("__fish_seen_subcommand_from {first}");
                let _ = writeln!(out, "complete -c mooncake -n '{seen}' -f -a {second} -d '{about}'");
                format!("{seen}; and __fish_seen_subcommand_from {second}")
            }
        };
        for (setting, _) in flags_of(command) {
            let value = if setting.value == Type::Bool { "" } else { " -r" };
            let help = quoted(setting.help);
            let _ = writeln!(out, "complete -c mooncake -n '{seen}' -l {}{value} -d '{help}'", setting.name);
        }
    }
    for (name, command) in shims() {
        for (setting, _) in flags_of(command) {
            let value = if setting.value == Type::Bool { "" } else { " -r" };
            let _ = writeln!(out, "complete -c {name} -l {}{value} -d '{}'", setting.name, quoted(setting.help));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::process::{Command as Process, Stdio};

    use super::*;

    /// What bash offers behind such words.
    fn offered(words: &str) -> Vec<String> {
        let ask = format!(
            "{}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); compopt() {{ :; }}; _mooncake\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            bash()
        );
        let done = Process::new("bash").args(["--norc", "-c", &ask]).stderr(Stdio::inherit()).output().unwrap();
        String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_offers_commands_then_their_flags() {
        assert_eq!(offered("mooncake sta"), ["status", "stat", "state"]);
        assert_eq!(offered("mooncake state \"\""), ["ls", "gc"]);
        assert_eq!(offered("mooncake status --j"), ["--json"]);
        assert_eq!(offered("mooncake tier list --ma"), ["--master="]);
        assert_eq!(offered("mooncake_master --rpc_p"), ["--rpc_port="]);
        assert_eq!(offered("mooncake put KEY \"\""), [""], "files, by bash itself");
    }

    #[test]
    fn each_command_has_a_line_for_fish() {
        let script = fish();
        assert!(commands::all().all(|command| script.contains(&format!("'{}'", command.about))), "{script}");
    }
}

//! The commands of `mooncake`, by what they are for: help, completions and manual pages are made of this table.

use mooncake_settings::{
    BENCH, CLIENT, COMPLETIONS, DOCTOR, ENGINE_BENCH, ENGINE_SWEEP, EXPLAIN, GET, KEEPER, LS, MAN, MASTER,
    METADATA_SERVER, PROXY, PUT, Program, RM, SHOW_LINK, SIMULATE, STAT, STATE_GC, STATE_LS, STATUS, TIER_FORGET,
    TIER_LIST, TOP, TOPOLOGY_DUMP,
};

/// One command.
pub struct Command {
    /// What is typed behind `mooncake`.
    pub words: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Its flags.
    pub program: Option<&'static Program>,
}

/// Commands of one kind.
pub struct Group {
    /// What they are for.
    pub title: &'static str,
    /// The commands.
    pub commands: &'static [Command],
}

const fn command(words: &'static str, about: &'static str, program: &'static Program) -> Command {
    Command { words, about, program: Some(program) }
}

/// All of them.
pub const GROUPS: &[Group] = &[
    Group {
        title: "Run a pool",
        commands: &[
            command("master", "metadata master (also: mooncake_master)", &MASTER),
            command("client", "storage node: lends memory to the pool (also: mooncake_client)", &CLIENT),
            command("keeper", "holds the memory of a storage node over its restarts", &KEEPER),
            command("proxy", "sends requests to prefill and decode instances (also: mooncake_proxy)", &PROXY),
            command(
                "metadata-server",
                "metadata of engines over HTTP (also: mooncake_http_metadata_server)",
                &METADATA_SERVER,
            ),
            command("simulate", "how much memory a pool needs, by a trace of requests", &SIMULATE),
        ],
    },
    Group {
        title: "Look at a pool",
        commands: &[
            command("status", "how a pool is: what is wrong, memory, hits, traffic, nodes, clients", &STATUS),
            command("top", "the same as it changes, on a terminal", &TOP),
            command("doctor", "what is wrong with a pool or with this machine, and what mends it", &DOCTOR),
            command("ls", "objects, with size, age, place", &LS),
            command("stat", "all that is known of one object", &STAT),
            command("tier list", "tiers that a master knows", &TIER_LIST),
            command("explain", "what an error code means, and what to do", &EXPLAIN),
        ],
    },
    Group {
        title: "Use a pool",
        commands: &[
            command("put", "stores a file, or the standard input", &PUT),
            command("get", "writes an object to a file, or to the standard output", &GET),
            command("rm", "removes objects", &RM),
            command("bench", "how fast a pool stores and reads from here", &BENCH),
            command("tier forget", "has a master forget a tier that is gone for good, or all", &TIER_FORGET),
        ],
    },
    Group {
        title: "Transfer engines",
        commands: &[
            command("engine-bench", "speed of transfer engines (also: transfer_engine_bench)", &ENGINE_BENCH),
            command("engine-sweep", "the same over many sizes (also: tebench)", &ENGINE_SWEEP),
            command("show-link", "by which path an engine reaches a peer (also: show_link)", &SHOW_LINK),
            command(
                "topology-dump",
                "network devices near memory (also: transfer_engine_topology_dump)",
                &TOPOLOGY_DUMP,
            ),
        ],
    },
    Group {
        title: "This machine",
        commands: &[
            command("state ls", "what masters have left here: state folders, witnesses", &STATE_LS),
            command("state gc", "removes what is not in use of that", &STATE_GC),
            command("completions", "a script by which a shell completes commands and flags", &COMPLETIONS),
            command("man", "manual pages", &MAN),
            Command { words: "version", about: "version of this binary", program: None },
            Command { words: "help", about: "this text", program: None },
        ],
    },
];

/// Every command.
pub fn all() -> impl Iterator<Item = &'static Command> {
    GROUPS.iter().flat_map(|group| group.commands)
}

/// The text of `mooncake help`.
pub fn help() -> String {
    let mut out = "mooncake: a distributed KV-cache pool for LLM inference\n".to_owned();
    for Group { title, commands } in GROUPS {
        out += &format!("\n{title}:\n");
        for Command { words, about, .. } in *commands {
            out += &format!("  mooncake {words:<16} {about}\n");
        }
    }
    out + "\nmooncake COMMAND --help lists the flags of a command. Those that look at a pool, or use it, take\n\
           --master=HOST:PORT (127.0.0.1:50051; MOONCAKE_MASTER), and learn from it where its pages are.\n"
}

#[cfg(test)]
mod tests {
    use mooncake_settings::PROGRAMS;

    use super::*;

    #[test]
    fn every_program_is_a_command_and_help_fits_a_terminal() {
        for program in PROGRAMS {
            let known = all().filter(|command| command.program.is_some_and(|it| std::ptr::eq(it, program))).count();
            assert_eq!(known, 1, "{}", program.name);
        }
        assert!(help().lines().all(|line| line.len() <= 100), "{}", help());
    }
}

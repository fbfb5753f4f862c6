//! The programs, each with its settings.

use crate::setting::{HelpGroup, Setting};
use crate::tables;

/// A program with settings.
#[derive(Debug)]
pub struct Program {
    /// What it is called on a command line.
    pub name: &'static str,
    /// How messages speak of one: "this master".
    pub noun: &'static str,
    /// What `--help` begins with.
    pub about: &'static str,
    /// Its settings, in the order of `--help`.
    pub settings: &'static [Setting],
    /// Words without dashes that it takes.
    pub operands: Operands,
    /// Its settings by what they are for, where there are many.
    pub groups: &'static [HelpGroup],
}

/// Words without dashes that a command takes: what it is about.
#[derive(Debug, Clone, Copy)]
pub struct Operands {
    /// What one is, for messages: "KEY".
    pub name: &'static str,
    /// The fewest of them.
    pub least: usize,
    /// The most of them.
    pub most: usize,
}

impl Operands {
    /// It takes none.
    pub const NONE: Operands = Operands { name: "", least: 0, most: 0 };
}

/// `mooncake_master`.
pub static MASTER: Program = Program {
    name: "mooncake_master",
    noun: "this master",
    about: "\
mooncake_master: directory of a KV-cache pool. It knows where objects lie; the bytes stay with the clients.

Usage: mooncake_master [--flag=value ...]

A pool on one machine:     mooncake_master --rpc_address=127.0.0.1 --metrics_host=127.0.0.1
A pool in a network:       mooncake_master --rpc_address=10.0.0.5
Without a log on disk:     mooncake_master --wal=off
With a file of settings:   mooncake_master --config_path=master.yaml
What would be in force:    mooncake_master --config_path=master.yaml --check_config

Clients connect to port 50051, metrics are at http://HOST:9003/metrics. The log of what is stored where lies in
$MOONCAKE_STATE_DIR, $XDG_STATE_HOME/mooncake, /var/lib/mooncake (root) or ~/.local/state/mooncake, and a
restarted master goes on from there.",
    settings: tables::master::SETTINGS,
    operands: Operands::NONE,
    groups: tables::master::GROUPS,
};

/// `mooncake_client`.
pub static CLIENT: Program = Program {
    name: "mooncake_client",
    noun: "this storage node",
    about: "\
mooncake_client: lends memory of this machine to a pool, until SIGTERM.

Usage: mooncake_client [--flag=value ...]

Four gigabytes for a pool: mooncake_client --master_server_address=10.0.0.5:50051 --global_segment_size=4GB
With a tier on a disk:     MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/mnt/nvme/kv mooncake_client --enable_offload ...
Kept over an upgrade:      mooncake_client --keep --keeper=/run/mooncake/keeper ...

The keeper is another process: mooncake keeper --socket=/run/mooncake/keeper. Under systemd --keep needs none
(docs/kept-memory.md).",
    settings: tables::client::SETTINGS,
    operands: Operands::NONE,
    groups: tables::client::GROUPS,
};
/// `mooncake keeper`.
pub static KEEPER: Program = Program {
    name: "mooncake keeper",
    noun: "this keeper",
    about: "\
mooncake keeper: holds the memory of one storage node of its user from one process of that to the next.

Usage: mooncake keeper --socket=PATH

The storage node:          mooncake client --keep --keeper=PATH ...",
    settings: tables::keeper::SETTINGS,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake_http_metadata_server`.
pub static METADATA_SERVER: Program = Program {
    name: "mooncake_http_metadata_server",
    noun: "this metadata server",
    about: "\
mooncake_http_metadata_server: a small store over HTTP in which transfer engines publish how to reach them.

Usage: mooncake_http_metadata_server [--host=ADDRESS] [--port=PORT]

The store needs none: give its clients P2PHANDSHAKE.",
    settings: tables::metadata_server::SETTINGS,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake_proxy`.
pub static PROXY: Program = Program {
    name: "mooncake_proxy",
    noun: "this proxy",
    about: "\
mooncake_proxy: front door of disaggregated inference. A prefill instance computes a prompt, a decode instance answers.

Usage: mooncake_proxy --model=MODEL --prefill HOST:PORT ... --decode HOST:PORT ... [--port=PORT]

Through the pool:          mooncake_proxy --model=Qwen3-8B -p 10.0.0.1:8100 10.0.0.2:8100 -d 10.0.0.3:8200
From instance to instance: mooncake_proxy --model=Qwen3-8B -p 10.0.0.1:8100:8998 -d 10.0.0.3:8200

The flags of Mooncake's vllm_v1_proxy_server work as well: --prefiller-host A B --prefiller-port 8100 8100,
--decoder-host, --decoder-port; and those of vLLM's proxy for MooncakeConnector: --prefill http://10.0.0.1:8100 8998.

It answers /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics, /status, and / with a page. With
ADMIN_API_KEY set, POST /instances/add and /instances/remove change the instances. OPENAI_API_KEY is sent to them for
callers that bring no key.",
    settings: tables::proxy::SETTINGS,
    operands: Operands::NONE,
    groups: &[],
};

/// `transfer_engine_bench`.
pub static ENGINE_BENCH: Program = Program {
    name: "transfer_engine_bench",
    noun: "this bench",
    about: "\
transfer_engine_bench: how fast transfer engines move bytes between two processes.

Usage: transfer_engine_bench --mode=target
       transfer_engine_bench --segment_id=NAME [--operation=write] [--block_size=1MB]

The target prints its name and lends memory until Ctrl-C. The initiator's last line says what it reached.",
    settings: tables::engine_tools::BENCH,
    operands: Operands::NONE,
    groups: &[],
};

/// `tebench`.
pub static ENGINE_SWEEP: Program = Program {
    name: "tebench",
    noun: "this bench",
    about: "\
tebench: how fast transfer engines move bytes, over many sizes of requests, of batches, and numbers of threads.

Usage: tebench
       tebench --target_seg_name=NAME [--op_type=write] [--max_batch_size=32] [--max_num_threads=4] [--json]

Without --target_seg_name it is a target: it prints the command of an initiator and lends memory until Ctrl-C. The
initiator prints a line for each combination; latencies are those of batches.",
    settings: tables::engine_tools::SWEEP,
    operands: Operands::NONE,
    groups: &[],
};

/// `show_link`.
pub static SHOW_LINK: Program = Program {
    name: "show_link",
    noun: "this tool",
    about: "\
show_link: by which path a transfer engine of this machine reaches its peers, and why.

Usage: show_link --segment_id=NAME[,NAME] [--json]

It reads a few bytes of each peer that lends memory.",
    settings: tables::engine_tools::LINKS,
    operands: Operands::NONE,
    groups: &[],
};

/// `transfer_engine_topology_dump`.
pub static TOPOLOGY_DUMP: Program = Program {
    name: "transfer_engine_topology_dump",
    noun: "this tool",
    about: "\
transfer_engine_topology_dump: which network devices of this machine are near which memory.

Usage: transfer_engine_topology_dump [--device-name=mlx5_0,mlx5_1]",
    settings: tables::engine_tools::TOPOLOGY,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake state ls`.
pub static STATE_LS: Program = Program {
    name: "mooncake state ls",
    noun: "this command",
    about: "\
mooncake state ls: state folders of masters on this machine and the witnesses of their logs, and which are in use.

Usage: mooncake state ls [--state_dir=FOLDER] [--json]",
    settings: tables::state::LS,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake state gc`.
pub static STATE_GC: Program = Program {
    name: "mooncake state gc",
    noun: "this command",
    about: "\
mooncake state gc: removes state folders of masters, with the witnesses of their logs. A pool whose folder goes is empty
when its master starts again. What is in use stays.

--older_than also removes witnesses of logs outside --state_dir: those of masters with another --wal_dir and, as root,
of other users' masters. It cannot tell whether such a log is still there. A master that starts with a log whose witness
is gone begins a new epoch, and loses no object.

Usage: mooncake state gc --name=mooncake_cluster-50051 [--dry_run]
       mooncake state gc --older_than=168h [--dry_run]",
    settings: tables::state::GC,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake tier list`.
pub static TIER_LIST: Program = Program {
    name: "mooncake tier list",
    noun: "this command",
    about: "\
mooncake tier list: the tiers that a master knows, whether they can be read, and what objects have in them.

Usage: mooncake tier list [--master=HOST:PORT] [--json]

BYTES are those of its objects, OF is what its files may have, USED is the share. STATE is one of these; docs/tiers.md
says what to do:

  live       it is read and written
  checking   its owner has just mounted it; it is read once the master has dropped what the folder does not prove
  hidden     it is not read, and not forgotten for 7 days: its owner, its folder or its disk is away
  adopted    a folder of an earlier process, which OWNER has beside its own: it is read, and given up first
  read-only  it is read, and not written: its disk fails or does not answer, or it is full and gives nothing up",
    settings: tables::tier::LIST,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake tier forget`.
pub static TIER_FORGET: Program = Program {
    name: "mooncake tier forget",
    noun: "this command",
    about: "\
mooncake tier forget: has a master forget a tier that never comes back, or all of them, with the objects that only they
have. One that is in use goes as well: its owner begins another folder. The folder is deleted a day later by a store
with its path; move it away within that time to keep its files.

Usage: mooncake tier forget UUID [--master=HOST:PORT]
       mooncake tier forget all [--master=HOST:PORT]",
    settings: tables::tier::FORGET,
    operands: Operands { name: "UUID", least: 1, most: 1 },
    groups: &[],
};

/// `mooncake status`.
pub static STATUS: Program = Program {
    name: "mooncake status",
    noun: "this command",
    about: "\
mooncake status: how a pool is. What is wrong comes first, with what to do; then memory, hits, traffic, latencies, the
clients that lend memory, and those that use it most.

Usage: mooncake status [--master=HOST:PORT] [--json | --watch]

Its exit code is 0 where nothing is wrong, 1 where something is an error, and 2 where no master answers, or the command
line is wrong.",
    settings: tables::pool::STATUS,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake top`.
pub static TOP: Program = Program {
    name: "mooncake top",
    noun: "this command",
    about: "\
mooncake top: a pool as it changes, on a terminal: figures with their last five minutes, the clients that lend memory,
and those that use it.

Usage: mooncake top [--master=HOST:PORT]

Keys: q ends it, n and c show nodes or clients, s sorts by the next column, / filters, arrows scroll, space holds the
picture.",
    settings: tables::pool::TOP,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake doctor`.
pub static DOCTOR: Program = Program {
    name: "mooncake doctor",
    noun: "this command",
    about: "\
mooncake doctor: what is wrong with a pool and with this machine as a part of it, each with the command or the setting
that mends it: the master and its problems, addresses and ports, shared memory with each member of this host, limits,
clocks, the master's log, and what is installed. It changes nothing, and looks as the user that runs it.

Usage: mooncake doctor [--master=HOST:PORT] [--json]

Of each line, x is an error, ! a warning, - what could not be looked at. Its exit code is 1 where something is an error,
and else 0. Without a master that is the error, and this machine is looked at all the same.",
    settings: tables::pool::DOCTOR,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake ls`.
pub static LS: Program = Program {
    name: "mooncake ls",
    noun: "this command",
    about: "\
mooncake ls: objects of a pool, in no order: size, age, where they lie, what keeps them, key.

Usage: mooncake ls [PREFIX] [--limit=1000] [--json]

AGE is that of the object; '-' is older than its master. Of KEEPS, s is a soft pin, h a hard one, v a view of a reader,
and p the protection of a look-up. Keys stand in one line each: control characters are percent-encoded, and all commands
take keys so with --encoded.",
    settings: tables::pool::LS,
    operands: Operands { name: "PREFIX", least: 0, most: 1 },
    groups: &[],
};

/// `mooncake stat`.
pub static STAT: Program = Program {
    name: "mooncake stat",
    noun: "this command",
    about: "\
mooncake stat: all that is known of an object. Asking changes nothing: it is neither protected nor counted.

Usage: mooncake stat KEY [--json]",
    settings: tables::pool::STAT,
    operands: Operands { name: "KEY", least: 1, most: 1 },
    groups: &[],
};

/// `mooncake put`.
pub static PUT: Program = Program {
    name: "mooncake put",
    noun: "this command",
    about: "\
mooncake put: stores a file, or what comes from the standard input.

Usage: mooncake put KEY FILE
       COMMAND | mooncake put KEY

A key that is there already stays as it is; --replace replaces it.",
    settings: tables::pool::PUT,
    operands: Operands { name: "KEY", least: 1, most: 2 },
    groups: &[],
};

/// `mooncake get`.
pub static GET: Program = Program {
    name: "mooncake get",
    noun: "this command",
    about: "\
mooncake get: writes an object to a file, or to the standard output.

Usage: mooncake get KEY FILE
       mooncake get KEY | COMMAND

Its exit code is 1 where there is no such object.",
    settings: tables::pool::GET,
    operands: Operands { name: "KEY", least: 1, most: 2 },
    groups: &[],
};

/// `mooncake rm`.
pub static RM: Program = Program {
    name: "mooncake rm",
    noun: "this command",
    about: "\
mooncake rm: removes objects.

Usage: mooncake rm KEY ...
       mooncake rm --prefix=PREFIX

What was looked up in the last two seconds stays, and is told; --force removes it as well. Its exit code is 1 where a
key is not there, or stays.",
    settings: tables::pool::RM,
    operands: Operands { name: "KEY", least: 0, most: usize::MAX },
    groups: &[],
};

/// `mooncake bench`.
pub static BENCH: Program = Program {
    name: "mooncake bench",
    noun: "this command",
    about: "\
mooncake bench: how fast a pool stores and reads from this machine. It stores objects under keys of its own, looks them
up, reads them, and removes them.

Usage: mooncake bench [--size=1MB] [--count=256] [--threads=1] [--json]

Its objects need room: size times count. Where the pool is in use they push others out; --lend=1GB brings the room
along, on this machine, for as long as it runs. The floor is how fast this machine copies memory.",
    settings: tables::pool::BENCH,
    operands: Operands::NONE,
    groups: &[],
};

/// `mooncake simulate`.
pub static SIMULATE: Program = Program {
    name: "mooncake simulate",
    noun: "this command",
    about: "\
mooncake simulate: how much memory a pool needs. It replays a trace of requests through the master's own code, with
pools of several sizes, and tells what share of the blocks each finds, beside the most that any order of eviction could.

Usage: mooncake simulate TRACE [--block_size=64MB] [--svg=FILE]
       mooncake simulate TRACE --capacity=256GB,1TB [--json]
       zcat TRACE.gz | mooncake simulate -

A trace is as Mooncake publishes them: a JSON object a line with timestamp, in ms, and hash_ids, the blocks of a prompt
in order. Of each request the blocks up to the first that is missing are found; the rest is computed and stored.",
    settings: tables::simulate::SIMULATE,
    operands: Operands { name: "TRACE", least: 1, most: 1 },
    groups: &[],
};

/// `mooncake explain`.
pub static EXPLAIN: Program = Program {
    name: "mooncake explain",
    noun: "this command",
    about: "\
mooncake explain: what an error code of the store means, and what to do.

Usage: mooncake explain -706
       mooncake explain OBJECT_HAS_LEASE
       mooncake explain            (all of them)",
    settings: &[],
    operands: Operands { name: "CODE", least: 0, most: 1 },
    groups: &[],
};

/// `mooncake completions`.
pub static COMPLETIONS: Program = Program {
    name: "mooncake completions",
    noun: "this command",
    about: "\
mooncake completions: a script by which a shell completes commands and flags.

Usage: source <(mooncake completions bash)
       source <(mooncake completions zsh)
       mooncake completions fish > ~/.config/fish/completions/mooncake.fish",
    settings: &[],
    operands: Operands { name: "bash, zsh or fish", least: 1, most: 1 },
    groups: &[],
};

/// `mooncake man`.
pub static MAN: Program = Program {
    name: "mooncake man",
    noun: "this command",
    about: "\
mooncake man: the manual page of a program, in the form that man reads.

Usage: mooncake man mooncake_master | man -l -
       mooncake man            (what pages there are)",
    settings: &[],
    operands: Operands { name: "PROGRAM", least: 0, most: 1 },
    groups: &[],
};

/// All of them.
pub static PROGRAMS: [&Program; 26] = [
    &MASTER,
    &CLIENT,
    &KEEPER,
    &METADATA_SERVER,
    &PROXY,
    &ENGINE_BENCH,
    &ENGINE_SWEEP,
    &SHOW_LINK,
    &TOPOLOGY_DUMP,
    &STATE_LS,
    &STATE_GC,
    &TIER_LIST,
    &TIER_FORGET,
    &STATUS,
    &TOP,
    &DOCTOR,
    &LS,
    &STAT,
    &PUT,
    &GET,
    &RM,
    &BENCH,
    &SIMULATE,
    &EXPLAIN,
    &COMPLETIONS,
    &MAN,
];

impl Program {
    /// A setting by its name.
    pub fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

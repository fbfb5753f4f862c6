//! `mooncake show-link`: by which path bytes go to peers, and why.

use mooncake_settings::SHOW_LINK;
use mooncake_transfer_engine::{Engine, Opcode};

use super::load::{Ends, Load};
use super::{ToolError, begin, connect, lend};
use crate::logging::say;

/// What the path is found out with.
const BYTES: u64 = 64;

/// Meets the peers that are named, reads a few bytes of each that lends memory, and shows the links; then says which of
/// them could not be met.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), ToolError> {
    let Some(given) = begin(&SHOW_LINK, args)? else { return Ok(()) };
    let alone = given.boolean("discover_only");
    let json = given.boolean("json") || alone;
    let names = if alone { "" } else { given.text_or_default("segment_id") };
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<&str> = names.collect();
    if names.is_empty() && !json {
        let why = "peers to meet, by the names that they print; with --json alone, or --discover_only, this machine's \
            devices are shown";
        return Err(ToolError::Needed { name: "segment_id", what: "NAME[,NAME]", why });
    }
    let engine = connect(given.text_or_default("metadata_server"), given.text_or_default("local_server_name"))?;
    let failed: Vec<String> = names.iter().filter_map(|name| Some(meet(&engine, name).err()?.to_string())).collect();
    if json {
        say(&format!("{}\n", engine.show_links(true)));
    } else if failed.len() < names.len() {
        say(&engine.show_links(false));
    }
    if failed.is_empty() { Ok(()) } else { Err(ToolError::Peers(failed)) }
}

fn meet(engine: &Engine, name: &str) -> Result<(), ToolError> {
    let peer = engine.open(name)?;
    if let Some(remote) = engine.first_buffer(name)? {
        let memory = lend(engine, BYTES)?;
        let load = Load { opcodes: vec![Opcode::Read], block: BYTES, batch: 1, threads: 1, pause: Default::default() };
        load.run(&Ends { engine, memory, remotes: vec![(peer, remote)] }, Default::default())?;
    }
    Ok(())
}

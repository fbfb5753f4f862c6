//! The pool in one page: give memory, share blocks, read them back by copy and
//! in place.
//!
//! Start a master (`mooncake_master`), then
//! `cargo run --example hello_pool -- localhost:50051`.

use mooncake_client::{Destination, GetInto, PutItem, PutOptions, PutOutcome, Source, Store, StoreError, StoreOptions};

/// Bytes of one block of key-value cache.
const BLOCK: usize = 256 << 10;

fn main() -> Result<(), StoreError> {
    let master = std::env::args().nth(1).unwrap_or_else(|| "localhost:50051".to_owned());
    hello_pool(&master)
}

/// What `main` does, for a master that listens at `master`.
pub fn hello_pool(master: &str) -> Result<(), StoreError> {
    // A node gives 64 MiB of its memory to the pool...
    let mut options = StoreOptions::new("localhost", master).from_env()?;
    options.global_segment_size = 64 << 20;
    let node = Store::connect(options)?;
    println!("{} is part of the pool", node.hostname());

    // ...and an engine that gives nothing uses it. Its views may hold 16 MiB.
    let mut options = StoreOptions::new("localhost", master).from_env()?;
    options.global_segment_size = 0;
    options.local_buffer_size = 16 << 20;
    let engine = Store::connect(options)?;

    // A batch of puts is one round trip to reserve and one to commit. A value
    // is a list of pieces, here a small header and the block itself.
    let blocks: Vec<(String, Vec<u8>)> = (0..8u8).map(|n| (format!("prefix/{n}"), vec![n; BLOCK])).collect();
    let pieces: Vec<[Source<'_>; 2]> =
        blocks.iter().map(|(key, block)| [Source::new(key.as_bytes()), Source::new(block)]).collect();
    let items: Vec<PutItem<'_>> =
        blocks.iter().zip(&pieces).map(|((key, _), value)| PutItem { key: key.as_bytes(), value }).collect();
    for ((key, _), outcome) in blocks.iter().zip(engine.put_batch(&items, &PutOptions::default())) {
        match outcome? {
            PutOutcome::Stored { replicas } => println!("{key}: stored, {replicas} copy"),
            PutOutcome::Existed => println!("{key}: somebody was faster"),
        }
    }

    // Ask what is there; what is found stays at least a second for the load.
    let wanted: Vec<String> = (0..10).map(|n| format!("prefix/{n}")).collect();
    let hits = engine.exists(&wanted)?.into_iter().take_while(|found| *found).count();
    println!("{hits} of {} blocks are there", wanted.len());

    // Load the hits into memory of our own, each checked against its checksum.
    let mut buffers: Vec<Vec<u8>> = wanted[..hits].iter().map(|key| vec![0; key.len() + BLOCK]).collect();
    let mut gets: Vec<GetInto<'_>> = wanted
        .iter()
        .zip(&mut buffers)
        .map(|(key, buffer)| GetInto { key: key.as_bytes(), destinations: vec![Destination::new(buffer)] })
        .collect();
    let loaded: Vec<Option<u64>> = engine.get_into(&mut gets).into_iter().collect::<Result<_, _>>()?;
    drop(gets);
    println!("{} bytes loaded", loaded.into_iter().flatten().sum::<u64>());

    // Or look at one in place: pinned, it stays even when it is removed.
    if let Some(view) = engine.view(&["prefix/3"]).remove(0)? {
        engine.remove(&["prefix/3"], true)?;
        println!("a view of {} bytes, copied: {}", view.len(), view.is_private_copy());
    }
    for link in engine.links() {
        println!("{} by {}: {}", link.name, link.path, link.reason);
    }

    engine.close();
    node.close();
    Ok(())
}

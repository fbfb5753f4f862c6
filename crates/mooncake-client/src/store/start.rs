//! How a store comes to its session: with memory that it took over, or without.

use std::sync::Arc;

use mooncake_os::ProcessIdentity;
use mooncake_segment::SegmentServer;

use crate::discovery::listen_address::Advertised;
use crate::discovery::masters::MasterAddress;
use crate::error::{Cause, StoreError};
use crate::kept::{Adopted, Beginning, KeptMemory};
use crate::machine::session::Identity;
use crate::segments::owner::{ClaimedMemory, endpoints};
use crate::session::Session;
use crate::session::opening::{self, Opened};

/// What a store knows before it has a session.
pub(super) struct Start<'a> {
    pub masters: &'a MasterAddress,
    pub identity: &'a Identity,
    pub process: &'a ProcessIdentity,
    pub interrupted: &'a (dyn Fn() -> bool + Sync),
}

/// The memory that is to outlive this process, and what the master has given of it.
type Kept = (Arc<KeptMemory>, Option<ClaimedMemory>);

impl Start<'_> {
    /// Begins a session. What was taken over is served first, as peers may come as soon as the master knows of it; what
    /// no master keeps is served no more.
    pub fn open(
        &self,
        beginning: Option<Beginning>,
        server: Option<&Arc<SegmentServer>>,
        advertised: &Advertised,
    ) -> Result<(Opened, Session, Option<Kept>), StoreError> {
        let Some((Beginning { kept, adopted, is_heir }, server)) = beginning.zip(server) else {
            let (opened, session) = self.open_plain()?;
            return Ok((opened, session, None));
        };
        let failed = |what| move |error: std::io::Error| Cause::Setup { what, reason: error.to_string() };
        kept.served_by(server);
        kept.is_named(&self.identity.name).map_err(failed("writing the state of memory"))?;
        for Adopted { memory, access_key, tenure } in &adopted {
            server.inherit(memory.clone(), *access_key, *tenure).map_err(failed("serving memory that was kept"))?;
        }
        if is_heir {
            let claim = || kept.claim(endpoints(&kept, server, advertised, (self.process, None)));
            let claimed = opening::open_heir(self.masters, self.identity, (self.process, self.interrupted), claim)?;
            if let Some((opened, session, reclaim)) = claimed {
                kept.claimed(&reclaim);
                let gone = opened.reply.gone_segments.iter().filter_map(|uuid| uuid[..].try_into().ok()).collect();
                return Ok((opened, session, Some((kept, Some(ClaimedMemory { adopted, gone })))));
            }
            tracing::warn!(
                master = %self.masters,
                "the master keeps nothing of the memory that was taken over; this process makes its own"
            );
        }
        kept.renounced();
        for Adopted { memory, .. } in adopted {
            server.remove(memory.uuid());
            kept.forget(memory.uuid());
        }
        let (opened, session) = self.open_plain()?;
        Ok((opened, session, Some((kept, None))))
    }

    fn open_plain(&self) -> Result<(Opened, Session), StoreError> {
        opening::open_first(self.masters, self.identity, self.process, self.interrupted)
    }
}

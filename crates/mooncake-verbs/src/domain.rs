//! Protection domains.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use mooncake_os::forked;

use crate::abi::IbvPd;
use crate::context::Context;
use crate::error::VerbsError;

/// A protection domain: its queue pairs reach its regions, and no others.
pub struct Domain {
    context: Arc<Context>,
    handle: NonNull<IbvPd>,
}

// SAFETY: the library locks for itself.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one, of which there is nothing yet.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Domain>, VerbsError> {
        context.alive("ibv_alloc_pd")?;
        // SAFETY: an open context.
        let handle = unsafe { (context.library().calls.alloc_pd)(context.handle().as_ptr()) };
        let handle = NonNull::new(handle).ok_or_else(|| context.refused("ibv_alloc_pd"))?;
        Ok(Arc::new(Domain { context: context.clone(), handle }))
    }

    /// Of which device it is.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn handle(&self) -> NonNull<IbvPd> {
        self.handle
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        // SAFETY: made once, given back once; its regions and queue pairs held it, and are gone.
        let rc = unsafe { (self.context.library().calls.dealloc_pd)(self.handle.as_ptr()) };
        if let Err(error) = self.context.check("ibv_dealloc_pd", rc) {
            tracing::warn!(%error, "a protection domain stays until this process ends");
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.context).finish()
    }
}

//! The servers of all stores.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mooncake_ids::SegmentUuid;

use crate::server::Server;
use crate::world::ProcessId;

/// The servers of all stores, by their processes. Clones are the same list.
#[derive(Clone, Default)]
pub(crate) struct Servers {
    all: Rc<RefCell<BTreeMap<ProcessId, Vec<Server>>>>,
}

impl Servers {
    pub fn add(&self, server: &Server) {
        self.all.borrow_mut().entry(server.process()).or_default().push(server.clone());
    }

    pub fn of(&self, process: ProcessId, uuid: &SegmentUuid) -> Option<Server> {
        let all = self.all.borrow();
        all.get(&process)?.iter().find(|server| server.find(uuid).is_some()).cloned()
    }
}

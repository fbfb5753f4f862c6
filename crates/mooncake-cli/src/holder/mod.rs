//! What holds the memory of a storage node from one of its processes to the next.

mod keeper;
mod service_manager;

pub use keeper::{KeeperConnection, Said};
pub use service_manager::ServiceManager;

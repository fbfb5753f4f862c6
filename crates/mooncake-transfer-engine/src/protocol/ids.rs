//! Names of lives of engines and of their connections.

/// Identifies one life of an engine.
pub(crate) type EngineId = [u8; 16];

/// Names one connection; only its initiator and its target know it.
pub(crate) type ConnectionName = [u8; 16];

//! Names of incarnations of engines and of their connections.

/// Identifies one incarnation of an engine.
pub(crate) type EngineId = [u8; 16];

/// Names one connection; only its initiator and its target know it.
pub(crate) type ConnectionName = [u8; 16];

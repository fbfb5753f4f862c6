//! First bytes of every connection: they tell kinds of traffic apart on one
//! port, and let a listener drop strangers before it parses anything.

/// Highest control-protocol version spoken here.
pub const VERSION: u32 = 1;

/// Length of every preface, bytes.
pub const PREFACE_LEN: usize = 8;

/// Opens a control connection (anchor or call).
pub const CONTROL_PREFACE: [u8; PREFACE_LEN] = *b"\xf0MCRS-C1";

/// Opens a data lane to a segment's owner.
pub const LANE_PREFACE: [u8; PREFACE_LEN] = *b"\xf0MCRS-D1";

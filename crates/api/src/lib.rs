//! The contract between carma's client and its daemon: wire types, parsing of what users write, and
//! the client over the Unix socket.
//!
//! HTTP/1.1 with JSON bodies over a Unix socket. Every answer has a top-level `"version"`. Keys end
//! in their unit (`_mib`, `_ms`, `_s`, `_w`, `_j`, `_pct`); a value that is not known is `null`.

pub mod client;
pub mod job_file;
pub mod output;
pub mod parse;
pub mod record;
pub mod wire;

pub use client::{Client, ClientError, LogPiece};

/// Version of the wire format and of every `--json` output.
pub const VERSION: u32 = 1;

/// Largest request body that the daemon reads, bytes.
pub const MAX_BODY: usize = 4 << 20;

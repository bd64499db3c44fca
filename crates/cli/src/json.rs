//! JSON for programs.

use crate::failure::Failure;
use serde_json::Value;
use std::io::{self, BufWriter, Write};

/// Prints an answer of the daemon as it is, indented.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

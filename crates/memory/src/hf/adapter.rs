//! `adapter_config.json` of PEFT.

use super::fields::Fields;
use super::parse::printable;
use crate::{Error, Lora};
use serde_json::Value;

/// Largest file that is read, bytes.
const MOST_BYTES: usize = 1 << 20;

/// Reads the adapters of a LoRA: their rank and which layers get one.
///
/// # Errors
/// Not JSON, another method than LoRA, fields of the wrong type.
pub fn adapter(text: &str) -> Result<Lora, Error> {
    const PLACE: &str = "adapter_config.json";
    if text.len() > MOST_BYTES {
        return Err(Error::bad(PLACE, format!("{} bytes; at most 1 MiB is read", text.len())));
    }
    let value: Value = serde_json::from_str(text)
        .map_err(|e| Error::bad(PLACE, format!("not JSON: {}", printable(&e.to_string()))))?;
    let Value::Object(map) = &value else {
        return Err(Error::bad(PLACE, "expected an object { ... } as PEFT saves it"));
    };
    let f = Fields::new(PLACE, map);
    match f.text(&["peft_type"])? {
        None | Some("LORA") => {}
        Some(other) => {
            let other: String = printable(other).chars().take(40).collect();
            return Err(Error::bad(format!("{PLACE}, peft_type"), format!("expected LORA, found {other}")));
        }
    }
    let rank = f.number(&["r"], 1, 1 << 16)?.unwrap_or(8) as u32;
    let targets = match f.get(&["target_modules"]) {
        Some((_, Value::String(one))) if one == "all-linear" => {
            return Err(Error::bad(
                format!("{PLACE}, target_modules"),
                "`all-linear` names no layers; give their names with --lora-targets",
            ));
        }
        Some((_, Value::String(one))) => vec![one.clone()],
        _ => f.texts(&["target_modules"])?.into_iter().map(str::to_owned).collect(),
    };
    Ok(Lora { rank, targets })
}

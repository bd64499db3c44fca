//! Typed fields of a JSON object, with the field's name in every error.

use crate::Error;
use serde_json::{Map, Value};

/// A JSON object and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    /// File, and the object's path in it.
    place: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) const fn new(place: &'a str, map: &'a Map<String, Value>) -> Self {
        Self { place, map }
    }

    fn bad(&self, name: &str, what: &str, found: &Value) -> Error {
        // What was found is shown, but not a megabyte of it.
        let mut found = found.to_string();
        if found.len() > 60 {
            let end = (0..=57).rev().find(|i| found.is_char_boundary(*i)).unwrap_or(0);
            found.truncate(end);
            found.push_str("...");
        }
        Error::bad(format!("{}, {name}", self.place), format!("expected {what}, found {found}"))
    }

    /// The first of these names that is there and not null.
    pub(super) fn get(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        names.iter().find_map(|name| Some((*name, self.map.get(*name).filter(|v| !v.is_null())?)))
    }

    /// A whole number between `least` and `most`.
    pub(super) fn number(&self, names: &[&'static str], least: u64, most: u64) -> Result<Option<u64>, Error> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        // `12.0` is a number too; `1e18` is one that is refused below.
        let number = value.as_u64().or_else(|| {
            let f = value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0)?;
            Some(if f < u64::MAX as f64 { f as u64 } else { u64::MAX })
        });
        match number {
            Some(n) if (least..=most).contains(&n) => Ok(Some(n)),
            _ => Err(self.bad(name, &format!("a whole number from {least} to {most}"), value)),
        }
    }

    /// A number of any kind, as dropout probabilities are.
    pub(super) fn float(&self, names: &[&'static str]) -> Result<Option<f64>, Error> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.bad(name, "a number", value))
    }

    /// Whether a probability is above zero.
    pub(super) fn chance(&self, names: &[&'static str]) -> Result<Option<bool>, Error> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        match value.as_f64() {
            Some(p) if (0.0..=1.0).contains(&p) => Ok(Some(p > 0.0)),
            _ => Err(self.bad(name, "a probability between 0 and 1", value)),
        }
    }

    pub(super) fn boolean(&self, names: &[&'static str]) -> Result<Option<bool>, Error> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(name, "true or false", value))
    }

    pub(super) fn text(&self, names: &[&'static str]) -> Result<Option<&'a str>, Error> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(name, "a text", value))
    }

    /// A list of texts.
    pub(super) fn texts(&self, names: &[&'static str]) -> Result<Vec<&'a str>, Error> {
        let Some((name, value)) = self.get(names) else { return Ok(Vec::new()) };
        let list = value.as_array().and_then(|l| l.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        list.ok_or_else(|| self.bad(name, "a list of texts", value))
    }

    /// A list of whole numbers between `least` and `most`.
    pub(super) fn numbers(
        &self,
        name: &'static str,
        least: u64,
        most: u64,
    ) -> Result<Option<Vec<u64>>, Error> {
        let Some((_, value)) = self.get(&[name]) else { return Ok(None) };
        let list = value.as_array().and_then(|l| l.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        match list {
            Some(list) if list.iter().all(|n| (least..=most).contains(n)) => Ok(Some(list)),
            _ => Err(self.bad(name, &format!("a list of whole numbers from {least} to {most}"), value)),
        }
    }

    /// How many entries a list or an object has.
    pub(super) fn length(&self, name: &'static str) -> Option<u64> {
        match self.map.get(name)? {
            Value::Array(list) => Some(list.len() as u64),
            Value::Object(map) => Some(map.len() as u64),
            _ => None,
        }
    }

    /// An object inside.
    pub(super) fn object(&self, name: &'static str) -> Result<Option<&'a Map<String, Value>>, Error> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.bad(name, "an object", other)),
        }
    }

    /// A number, or a pair of equal meaning (`image_size` as `[224, 224]`): the larger.
    pub(super) fn side(&self, names: &[&'static str], least: u64, most: u64) -> Result<Option<u64>, Error> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        let sides: Option<Vec<u64>> = match value {
            Value::Array(list) => list.iter().map(Value::as_u64).collect(),
            Value::Object(map) => map.values().map(Value::as_u64).collect(),
            other => other.as_u64().map(|n| vec![n]),
        };
        match sides.and_then(|s| s.into_iter().max()) {
            Some(n) if (least..=most).contains(&n) => Ok(Some(n)),
            _ => Err(self.bad(name, &format!("a whole number from {least} to {most}"), value)),
        }
    }
}

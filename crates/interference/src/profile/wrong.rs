//! What is wrong with a file of profiles that cannot be read: which task, which key.

use super::{BadProfile, Kernels, Metrics, Profile, Profiles, Rate, Stat};
use serde::de::DeserializeOwned;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// What other programs write for a number that is none.
const NO_NUMBERS: [&str; 6] = ["nan", "-nan", "inf", "-inf", "infinity", "-infinity"];
/// Most characters that are quoted of what a file holds.
const QUOTED: usize = 200;

/// A plain number, or an object of the form `T`; `expected` is said of anything else.
pub(super) fn number_or_object<'de, T, D>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    T: Deserialize<'de> + From<f64>,
    D: Deserializer<'de>,
{
    struct Visitor<T>(&'static str, PhantomData<T>);

    impl<'de, T: Deserialize<'de> + From<f64>> serde::de::Visitor<'de> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_f64<E>(self, number: f64) -> Result<T, E> {
            Ok(number.into())
        }

        fn visit_u64<E>(self, number: u64) -> Result<T, E> {
            Ok((number as f64).into())
        }

        fn visit_i64<E>(self, number: i64) -> Result<T, E> {
            Ok((number as f64).into())
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_any(Visitor(expected, PhantomData))
}

/// Why this text was refused with this error.
pub(super) fn explain(text: &str, error: &serde_json::Error) -> BadProfile {
    // Text that is no JSON only because of values such as NaN can still say where they are.
    let (repaired, bad) = if error.is_syntax() { quoted(text) } else { (text.to_owned(), Vec::new()) };
    let found = serde_json::from_str(&repaired).ok().and_then(|file| of_file(&file));
    let mut what = match (&found, bad.first()) {
        (Some(found), Some(bad)) => format!("{found}; `{}` is no value of JSON", clip(bad)),
        (Some(found), None) => found.clone(),
        (None, _) => clip(&error.to_string()),
    };
    if bad.iter().any(|bad| NO_NUMBERS.contains(&bad.to_ascii_lowercase().as_str())) {
        what.push_str("; JSON has no NaN and no Infinity: leave the key of what was not measured out");
    }
    BadProfile(format!("not a file of solo profiles: {what}; `carma profile` writes such files"))
}

fn clip(text: &str) -> String {
    text.chars().take(QUOTED).collect()
}

/// The text with what is no JSON value outside of strings as strings, and those values.
fn quoted(text: &str) -> (String, Vec<&str>) {
    let (mut repaired, mut bad) = (String::with_capacity(text.len()), Vec::new());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '{' | '}' | '[' | ']' | ',' | ':' => 1,
            c if c.is_whitespace() => c.len_utf8(),
            _ => rest
                .find(|c: char| c.is_whitespace() || matches!(c, '"' | '{' | '}' | '[' | ']' | ',' | ':'))
                .unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        let is_value = first == '"' || token.len() == first.len_utf8() && !first.is_alphanumeric();
        if is_value || serde_json::from_str::<Value>(token).is_ok() {
            repaired.push_str(token);
        } else {
            repaired.push_str(&Value::from(token).to_string());
            bad.push(token);
        }
        rest = after;
    }
    (repaired, bad)
}

/// Bytes of the string at the start of the text, quotes included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The first task that cannot be read and its key, or a key of the file.
fn of_file(file: &Value) -> Option<String> {
    let file = file.as_object()?;
    let tasks = file.get("tasks").and_then(Value::as_array).into_iter().flatten();
    for (at, task) in tasks.enumerate() {
        let Err(error) = Profile::deserialize(task) else { continue };
        let name = task.get("name").and_then(Value::as_str);
        let place = name
            .map_or_else(|| format!("task {} of the list", at + 1), |name| format!("task `{}`", clip(name)));
        let key = task.as_object().and_then(|task| wrong_key::<Profile>(json!({"name": ""}), task));
        return Some(match key {
            Some((key, error)) => {
                let (key, error) = within(key, error, task);
                format!("{place}: {}: {}", clip(&key), said(&error))
            }
            None => format!("{place}: {}", said(&error)),
        });
    }
    let (key, error) = wrong_key::<Profiles>(json!({"version": 1, "tasks": []}), file)?;
    Some(format!("{}: {}", clip(&key), said(&error)))
}

/// In the words of the format's documentation.
fn said(error: &serde_json::Error) -> String {
    clip(&error.to_string().replace("expected f64", "expected a number"))
}

/// The first key whose value makes an object of `base` one that is no `T`.
fn wrong_key<T: DeserializeOwned>(
    base: Value,
    object: &Map<String, Value>,
) -> Option<(String, serde_json::Error)> {
    object.iter().find_map(|(key, value)| {
        let mut one = base.clone();
        one.as_object_mut()?.insert(key.clone(), value.clone());
        T::deserialize(one).err().map(|error| (key.clone(), error))
    })
}

/// As far down in a task as a key can be blamed, with the error there.
fn within(mut path: String, mut error: serde_json::Error, task: &Value) -> (String, serde_json::Error) {
    let mut value = task.get(&path);
    while let Some(object) = value.and_then(Value::as_object) {
        let below = match path.as_str() {
            "metrics" => wrong_key::<Metrics>(json!({}), object),
            "kernels" => wrong_key::<Kernels>(json!(Kernels::default()), object),
            "rate" => wrong_key::<Rate>(json!({"per_s": 1.0}), object),
            "rate_by_threads_pct" => wrong_key::<BTreeMap<u8, f64>>(json!({}), object),
            path if path.starts_with("metrics.") => wrong_key::<Stat>(json!({"mean": 0.0}), object),
            _ => None,
        };
        let Some((key, why)) = below else { break };
        value = object.get(&key);
        path = format!("{path}.{key}");
        error = why;
    }
    (path, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(tasks: &str) -> String {
        let text = format!(r#"{{"version": 1, "tasks": [{{"name": "ok", "rate": 1}}, {tasks}]}}"#);
        Profiles::read(&text).unwrap_err().to_string()
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_named_by_task_and_key() {
        let number_or = "expected a number or an object with";
        for (task, said) in [
            (
                r#"{"name": "a", "rate": "fast"}"#,
                format!("task `a`: rate: invalid type: string \"fast\", {number_or}"),
            ),
            (r#"{"name": "a", "rate": {"per_s": "9"}}"#, "task `a`: rate.per_s: invalid type: string".into()),
            (
                r#"{"name": "a", "rate": {"per_s": 9, "source": "x"}}"#,
                "task `a`: rate.source: unknown variant `x`".into(),
            ),
            (r#"{"name": "a", "rate": {"unit": "it"}}"#, "task `a`: rate: missing field `per_s`".into()),
            (
                r#"{"name": "a", "metrics": {"drama_pct": 1, "smact_pct": "41"}}"#,
                format!("task `a`: metrics.smact_pct: invalid type: string \"41\", {number_or} `mean`"),
            ),
            (
                r#"{"name": "a", "metrics": {"smact_pct": {"mean": 4, "p95": "5"}}}"#,
                "task `a`: metrics.smact_pct.p95: invalid type: string \"5\", expected a number".into(),
            ),
            (
                r#"{"name": "a", "metrics": {"smact_pct": {"p95": 5}}}"#,
                "metrics.smact_pct: missing field `mean`".into(),
            ),
            (
                r#"{"name": "a", "metrics": {"smact_pct": [4]}}"#,
                "task `a`: metrics.smact_pct: invalid type: seq".into(),
            ),
            (r#"{"name": "a", "metrics": 7}"#, "task `a`: metrics: invalid type: integer `7`".into()),
            (
                r#"{"name": "a", "kernels": {"threads": "many"}}"#,
                "task `a`: kernels.threads: invalid type: string \"many\", expected a number".into(),
            ),
            (r#"{"name": "a", "kernels": {"threads": 5}}"#, "task `a`: kernels: missing field".into()),
            (
                r#"{"name": "a", "rate_by_threads_pct": {"50": "x"}}"#,
                "task `a`: rate_by_threads_pct.50: invalid type".into(),
            ),
            (r#"{"rate": 5}"#, "task 2 of the list: missing field `name`".into()),
            (r#"{"name": 5}"#, "task 2 of the list: name: invalid type: integer `5`".into()),
            ("7", "task 2 of the list: invalid type: integer `7`".into()),
            (
                r#"{"name": "a", "metrics": {"smact_pct": 1, "sm_active_pct": 2}}"#,
                "task `a`: metrics: duplicate field `smact_pct`".into(),
            ),
        ] {
            let error = refused(task);
            assert!(error.starts_with("not a file of solo profiles: ") && error.contains(&said), "{error}");
        }
        let error = Profiles::read(r#"{"version": 1, "gpu": 5, "tasks": []}"#).unwrap_err().to_string();
        assert!(error.contains(": gpu: invalid type: integer `5`"), "{error}");
        let long = format!(r#"{{"name": "a", "rate": "{}"}}"#, "é".repeat(9000));
        assert!(refused(&long).len() < 1000);
    }

    #[test]
    fn what_python_writes_for_no_number_is_named() {
        for (task, place) in [
            (r#"{"name": "a", "metrics": {"smact_pct": NaN}}"#, "task `a`: metrics.smact_pct: "),
            (
                r#"{"name": "a", "metrics": {"smact_pct": {"mean": -Infinity}}}"#,
                "task `a`: metrics.smact_pct.mean: ",
            ),
            (r#"{"name": "a \"b, NaN\\", "rate": Infinity}"#, "task `a \"b, NaN\\`: rate: "),
            (r#"{"name": "a", "kernels": {"threads": nan}}"#, "task `a`: kernels.threads: "),
            // Of a key that is not read.
            (r#"{"name": "a", "loss": NaN}"#, "expected value at line 1"),
        ] {
            let error = refused(task);
            assert!(error.contains(place), "{error}");
            assert!(error.contains("JSON has no NaN and no Infinity: leave the key"), "{error}");
        }
        // No JSON for another reason: nothing is said of NaN.
        for (task, said) in [
            (r#"{"name": "NaN", "rate": 1e999}"#, "task `NaN`: rate: "),
            (r#"{"name": "NaN", "rate": }"#, "expected value at line 1"),
            (r#"{"name": "NaN", "rate": 1"#, "at line 1"),
        ] {
            let error = refused(task);
            assert!(error.contains(said) && !error.contains("JSON has no"), "{error}");
        }
    }
}

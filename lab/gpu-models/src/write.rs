//! A model file with other values in it.

/// A new value of a constant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change {
    /// Its key: `mps.sm`.
    pub(super) key: String,
    pub(super) value: f64,
    /// Where it comes from.
    pub(super) source: String,
}

/// The text with the constants replaced; comments, order and everything else stay. A key that is not
/// there stays away.
pub(super) fn with(text: &str, changes: &[Change]) -> String {
    let mut table = String::new();
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = format!("{}.", name.trim());
        }
        let key = line.split('=').next().map(|key| format!("{table}{}", key.trim()));
        match changes.iter().rev().find(|change| Some(&change.key) == key.as_ref()) {
            Some(Change { key, value, source }) => {
                let short = key.rsplit('.').next().unwrap_or(key);
                let source = source.replace(['"', '\\'], "'");
                out.push_str(&format!("{short} = {{ value = {value:?}, source = \"{source}\" }}"));
            }
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_constant_changes() {
        let text = "# c\nname = \"X\"\n[power]\nsmact = { value = 0.2, source = \"a\" }\n\n[mps]\n# sm\nsm = { value = 1, source = \"b\" }\n";
        let change = Change { key: "mps.sm".into(), value: 1.0, source: "a \"fit\"".into() };
        let expected = text.replace("value = 1, source = \"b\"", "value = 1.0, source = \"a 'fit'\"");
        assert_eq!(with(text, &[change]), expected);
        assert_eq!(with(text, &[]), text);
    }
}

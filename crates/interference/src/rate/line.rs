//! What one line says of progress.

use super::Said;

/// Counts above this are no counts.
const MOST: f64 = 1e15;
/// Longest label, bytes.
const LONGEST_LABEL: usize = 40;
/// Label of the steps of a build.
const BUILDING: &str = "building";
/// Most reports of one line.
const MOST_REPORTS: usize = 4;

/// Reads a line without colours and line end.
pub(super) fn read(line: &str) -> Vec<Said> {
    if let Bar::Found(said) = tqdm(line) {
        return of_epochs(line).or_else(|| epoch_column(line)).into_iter().chain(said).collect();
    }
    if let Some(said) = keras(line).or_else(|| rich(line)) {
        return of_epochs(line).into_iter().chain([said]).collect();
    }
    if is_result(line) {
        return Vec::new();
    }
    let mut found = words(line);
    found.extend(brackets(line, &found));
    if let Some((per_s, unit)) = gauge(line) {
        match found.iter_mut().rev().find(|said| said.unit != "epochs") {
            Some(said) => said.per_s = Some(per_s),
            None => {
                found.push(Said { unit, count: None, total: None, per_s: Some(per_s), label: String::new() })
            }
        }
    }
    found.truncate(MOST_REPORTS);
    found
}

/// Which epoch of how many a bar is of, by the words before it: `Epoch 3/10:  45%|###`.
fn of_epochs(line: &str) -> Option<Said> {
    let words = words(line.split('|').next()?.split(is_line).next()?);
    words.into_iter().find(|said| said.unit == "epochs" && said.total.is_some())
}

/// The same by the first of YOLO's columns before the bar, whose header says `Epoch`: `      1/100      2.34G      1.234 ...: 45%|###`.
fn epoch_column(line: &str) -> Option<Said> {
    let (columns, _) = line.split_once('|')?;
    let (count, rest) = number(columns.trim_start())?;
    let (total, rest) = number(rest.strip_prefix('/')?)?;
    let is = rest.starts_with("  ") && count.fract() == 0.0 && (1.0..=total).contains(&count);
    is.then(|| Said {
        unit: "epochs".into(),
        count: Some(count),
        total: Some(total),
        per_s: None,
        label: String::new(),
    })
}

/// The Hugging Face Trainer's closing dictionaries: of an evaluation, or averages of the whole run.
fn is_result(line: &str) -> bool {
    line.trim_start().starts_with('{') && (line.contains("eval_") || line.contains("train_runtime"))
}

// ---- bars

enum Bar {
    /// A bar, perhaps one that counts bytes.
    Found(Option<Said>),
    Absent,
}

/// tqdm: `desc:  45%|####    | 450/1000 [00:12<00:15, 36.2it/s, loss=0.3]`, or `450it [00:12, 36.2it/s]`.
fn tqdm(line: &str) -> Bar {
    for (at, _) in line.match_indices('[') {
        let Some(rest) = clock(&line[at + 1..]) else { continue };
        let rest = match rest.strip_prefix('<') {
            Some(left) => clock(left).or_else(|| left.strip_prefix('?')).unwrap_or(left),
            None => rest,
        };
        let rest = rest.trim_start_matches([',', ' ']);
        let speed = rest.split([',', ']']).next().unwrap_or_default();
        let (label, counts) = match line[..at].rsplit_once('|') {
            Some((before, counts)) => (before.split('|').next().unwrap_or_default(), counts),
            None => ("", &line[..at]),
        };
        let Some((count, total, counted, before)) = trailing_count(counts) else { continue };
        let (per_s, unit) = speed_of(speed).unwrap_or((None, String::new()));
        let unit = if unit.is_empty() { counted } else { unit };
        // A download or a copy is not the task's work.
        if matches!(unit.trim_start_matches(['k', 'K', 'M', 'G', 'T']), "B" | "iB" | "b" | "bytes") {
            return Bar::Found(None);
        }
        let unit = normal_unit(&unit).unwrap_or_else(|| "it".to_owned());
        let label = label_of(if label.is_empty() { before } else { label });
        return Bar::Found(Some(Said { unit, count: Some(count), total, per_s, label }));
    }
    Bar::Absent
}

/// A time as tqdm writes it, `00:12` or `1:02:03`; returns what follows.
fn clock(text: &str) -> Option<&str> {
    let mut rest = digits(text)?;
    rest = digits(rest.strip_prefix(':')?)?;
    if let Some(more) = rest.strip_prefix(':').and_then(digits) {
        rest = more;
    }
    Some(rest)
}

fn digits(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len() && text.len() - rest.len() <= 4).then_some(rest)
}

/// The count at the end of a text: `450/1000`, `4.50k/10.0k`, `450it`, `450 img`. Also its unit and what stands before.
fn trailing_count(text: &str) -> Option<(f64, Option<f64>, String, &str)> {
    let text = text.trim_end();
    if let Some((before, after)) = text.rsplit_once('/') {
        let before = before.trim_end();
        let start = before.rfind(|c: char| !(c.is_ascii_alphanumeric() || ".,".contains(c)));
        let (lead, done) =
            before.split_at(start.map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8)));
        let (count, _) = scaled(done)?;
        let after = after.trim_start();
        if after.starts_with('?') {
            return Some((count, None, String::new(), lead));
        }
        let (total, unit) = scaled(after)?;
        return Some((count, Some(total), unit.trim().to_owned(), lead));
    }
    let (lead, last) = text.rsplit_once(char::is_whitespace).unwrap_or(("", text));
    if let Some((count, unit)) = scaled(last) {
        return Some((count, None, unit.to_owned(), lead));
    }
    let (lead, number) = lead.trim_end().rsplit_once(char::is_whitespace).unwrap_or(("", lead.trim_end()));
    let (count, rest) = scaled(number)?;
    rest.is_empty().then(|| (count, None, last.to_owned(), lead))
}

/// A number that may bear a thousands' letter, as tqdm's `unit_scale` writes it.
fn scaled(text: &str) -> Option<(f64, &str)> {
    let (value, rest) = number(text)?;
    let factor = match rest.chars().next() {
        Some('k') => 1e3,
        Some('M') => 1e6,
        Some('G') => 1e9,
        Some('T') => 1e12,
        _ => return Some((value, rest)),
    };
    (value * factor <= MOST).then(|| (value * factor, &rest[1..]))
}

/// `36.2it/s`, `?it/s`, `2.30s/it`, `1.2kit/s`, `36.2 img/s`: items a second, if it says, and their unit.
fn speed_of(text: &str) -> Option<(Option<f64>, String)> {
    let text = text.trim();
    let (value, rest) = match text.strip_prefix('?') {
        Some(rest) => (None, rest),
        None => {
            let (value, rest) = number(text)?;
            (Some(value), rest)
        }
    };
    let (over, under) = rest.trim().split_once('/')?;
    if under == "s" {
        let (factor, unit) = match over.chars().next() {
            Some('k') if over.len() > 1 => (1e3, &over[1..]),
            Some('M') if over.len() > 1 => (1e6, &over[1..]),
            Some('G') if over.len() > 1 => (1e9, &over[1..]),
            _ => (1.0, over),
        };
        return Some((value.map(|value| value * factor), unit.trim().to_owned()));
    }
    let seconds = seconds_of(over)?;
    Some((value.filter(|v| *v > 0.0).map(|value| 1.0 / (value * seconds)), under.trim().to_owned()))
}

fn seconds_of(unit: &str) -> Option<f64> {
    match unit.trim() {
        "s" | "sec" => Some(1.0),
        "ms" => Some(1e-3),
        "us" | "\u{b5}s" | "\u{3bc}s" => Some(1e-6),
        _ => None,
    }
}

/// Keras: `120/938 [==>.....] - ETA: 5s - loss: 0.3`, `938/938 [=====] - 3s 3ms/step`, `120/938 ━━━━ 5s 12ms/step`,
/// `120/Unknown 2s 12ms/step`.
fn keras(line: &str) -> Option<Said> {
    let (count, rest) = number(line.trim_start())?;
    let rest = rest.strip_prefix('/')?;
    let (total, rest) = match rest.strip_prefix("Unknown") {
        Some(rest) => (None, rest),
        None => {
            let (total, rest) = number(rest)?;
            (Some(total), rest)
        }
    };
    let after = rest.trim_start();
    let mut chars = after.chars();
    let is_bar = match chars.next() {
        Some('[') => chars.next().is_some_and(|c| "=>.".contains(c)),
        Some(c) => is_line(c),
        None => false,
    };
    let speed =
        after.split_whitespace().find_map(|word| word.ends_with("/step").then(|| speed_of(word)).flatten());
    if !(is_bar || speed.is_some()) || count.fract() != 0.0 {
        return None;
    }
    let per_s = speed.and_then(|(per_s, _)| per_s);
    Some(Said { unit: "steps".into(), count: Some(count), total, per_s, label: String::new() })
}

/// Characters of which rich and Keras 3 draw bars.
const fn is_line(c: char) -> bool {
    matches!(c, '\u{2501}' | '\u{2578}' | '\u{257a}' | '\u{2500}')
}

/// Lightning's rich bar: `Epoch 0/9 ━━━╸━━ 450/1000 0:00:12 • 0:00:15 36.20it/s v_num: 0.000`.
fn rich(line: &str) -> Option<Said> {
    let start = line.find(is_line)?;
    let end = line.rfind(is_line)?;
    let after = line.get(end..)?.trim_start_matches(is_line);
    let mut found = None;
    let mut speed = None;
    for word in after.split_whitespace() {
        if found.is_none()
            && let Some((done, total)) = word.split_once('/')
            && let (Some((done, "")), Some((total, ""))) = (number(done), number(total))
        {
            found = Some((done, total));
        }
        if speed.is_none() && word.contains("/s") {
            speed = speed_of(word);
        }
    }
    let (count, total) = found?;
    let (per_s, unit) = speed.unwrap_or((None, String::new()));
    let unit = normal_unit(&unit).unwrap_or_else(|| "it".to_owned());
    Some(Said { unit, count: Some(count), total: Some(total), per_s, label: label_of(&line[..start]) })
}

// ---- words

/// The unit that a word before a number stands for.
fn counted_by(word: &str) -> Option<&'static str> {
    Some(match word {
        "epoch" | "epochs" | "ep" => "epochs",
        "step" | "steps" | "global_step" | "train_step" | "training_step" => "steps",
        "iter" | "iters" | "iteration" | "iterations" => "it",
        "batch" | "batches" | "minibatch" => "batches",
        "update" | "updates" | "num_updates" => "updates",
        _ => return None,
    })
}

/// `step 120/938`, `iter: 120`, `Epoch [3/10]`, `'epoch': 0.5`, `iteration      100/  5000`, `step 5 of 10`.
fn words(line: &str) -> Vec<Said> {
    let mut found: Vec<Said> = Vec::new();
    let mut at = 0;
    let is_word = |c: char| c.is_ascii_alphabetic() || c == '_';
    while let Some(start) = line[at..].find(is_word).map(|skip| at + skip) {
        let end = line[start..].find(|c| !is_word(c)).map_or(line.len(), |length| start + length);
        at = end;
        let Some(unit) = counted_by(&line[start..end].to_ascii_lowercase()) else { continue };
        // `ms/step`, `x1step`, `per step`.
        let before = line[..start].trim_end();
        if line[..start].ends_with(|c: char| c == '/' || c == '-' || c == '.' || c.is_alphanumeric())
            || before.ends_with(" per")
        {
            continue;
        }
        let rest = &line[end..];
        let value = rest.trim_start_matches([' ', ':', '=', '[', '(', '#', '\'', '"', '\t']);
        if rest.len() - value.len() > 12 || rest.len() == value.len() {
            continue;
        }
        let Some((count, rest)) = number(value) else { continue };
        let (total, rest) = total_after(rest);
        // `step 5s`, `epoch 1.2.3`; and a fraction of a step is a time.
        let is_cut = rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '%')
            || (rest.starts_with('.') && rest[1..].starts_with(|c: char| c.is_ascii_digit()));
        if is_cut || (unit != "epochs" && count.fract() != 0.0) || found.iter().any(|said| said.unit == unit)
        {
            continue;
        }
        let label = label_of(&line[..start]);
        // A rank or a time stamp before it tells nothing.
        found.push(Said { unit: unit.to_owned(), count: Some(count), total, per_s: None, label });
    }
    found
}

/// `/1000`, ` / 1000` or ` of 1000` after a count.
fn total_after(rest: &str) -> (Option<f64>, &str) {
    let trimmed = rest.trim_start_matches([' ', '\t']);
    let after = trimmed.strip_prefix('/').or_else(|| trimmed.strip_prefix("of "));
    match after.and_then(|after| number(after.trim_start_matches([' ', '\t']))) {
        Some((total, rest)) => (Some(total), rest),
        None => (None, rest),
    }
}

/// `[  10/5005]`, `[640/60000 (1%)]`, `(10/5005)`, and fairseq's `epoch 001:  100 / 3000 loss=12`.
/// Not what a word before it has named already.
fn brackets(line: &str, known: &[Said]) -> Option<Said> {
    let opens = line.match_indices(['[', '(']).map(|(at, open)| (at, if open == "[" { ']' } else { ')' }));
    let fairseq = line.match_indices(": ").map(|(at, _)| (at, ' '));
    for (at, close) in opens.chain(fairseq) {
        let inside = line[at + 1..].trim_start();
        let Some((count, rest)) = number(inside) else { continue };
        let Some(rest) = rest.trim_start().strip_prefix('/') else { continue };
        let Some((total, rest)) = number(rest.trim_start()) else { continue };
        let ends = rest.is_empty()
            || rest.starts_with(close)
            || (close == ']' && rest.trim_start().starts_with('('));
        let is_known = known.iter().any(|said| said.count == Some(count) && said.total == Some(total));
        if ends && !is_known && count <= total && count.fract() == 0.0 && total.fract() == 0.0 {
            let builds = close == ']' && line[..at].trim().is_empty() && is_build(rest);
            let label = if builds { BUILDING.to_owned() } else { label_of(&line[..at]) };
            return Some(Said {
                unit: "it".into(),
                count: Some(count),
                total: Some(total),
                per_s: None,
                label,
            });
        }
    }
    None
}

/// Whether what stands behind a count in brackets is a step of ninja or CMake, as where PyTorch builds an extension:
/// `[4/8] c++ -MMD ...`, `[4/8] Building CXX object ...`.
fn is_build(rest: &str) -> bool {
    const COMPILERS: [&str; 8] = ["c++", "g++", "clang++", "cc", "gcc", "clang", "nvcc", "hipcc"];
    let first = rest.trim_start_matches([']', ' ']).split(' ').next().unwrap_or_default();
    let program = first.rsplit('/').next().unwrap_or_default();
    matches!(first, "Building" | "Linking" | "Compiling") || COMPILERS.contains(&program)
}

/// `812.3 samples/s`, `tokens/sec: 5210`, `2.3 s/it`, `135 ms/step`, `30 fps`: items a second and their unit.
fn gauge(line: &str) -> Option<(f64, String)> {
    for (at, _) in line.match_indices('/') {
        let (before, after) = (&line[..at], &line[at + 1..]);
        let under_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let under = &after[..under_end];
        let over_start = before
            .rfind(|c: char| !c.is_ascii_alphabetic())
            .map_or(0, |p| p + before[p..].chars().next().map_or(1, char::len_utf8));
        let over = &before[over_start..];
        if matches!(under, "s" | "sec" | "second") {
            let Some(unit) = item(over) else { continue };
            let rest = &after[under_end..];
            let named = rest.trim_start_matches([' ', '\'', '"', ':', '=']);
            let value = match number(named) {
                // `tokens/sec: 5210` may well follow another figure.
                Some((value, _)) if rest.trim_start().starts_with([':', '=', '\'', '"']) => Some(value),
                _ => number_before(&before[..over_start]),
            };
            if let Some(value) = value.filter(|v| *v > 0.0) {
                return Some((value, unit));
            }
        } else if let (Some(seconds), Some(unit)) = (seconds_of(over), item(under))
            && let Some(value) = number_before(&before[..over_start]).filter(|v| *v > 0.0)
        {
            return Some((1.0 / (value * seconds), unit));
        }
    }
    None
}

/// Items whose rate is progress. Bytes, operations and the like are not.
fn item(word: &str) -> Option<String> {
    const ITEMS: [&str; 26] = [
        "it",
        "its",
        "iter",
        "iters",
        "iteration",
        "iterations",
        "step",
        "steps",
        "sample",
        "samples",
        "image",
        "images",
        "img",
        "imgs",
        "token",
        "tokens",
        "tok",
        "toks",
        "example",
        "examples",
        "seq",
        "seqs",
        "sequences",
        "batch",
        "batches",
        "frames",
    ];
    let word = word.to_ascii_lowercase();
    ITEMS.contains(&word.as_str()).then(|| normal_unit(&word)).flatten()
}

/// The number that a text ends in.
fn number_before(text: &str) -> Option<f64> {
    let text = text.trim_end();
    let start = text
        .rfind(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
        .map_or(0, |p| p + text[p..].chars().next().map_or(1, char::len_utf8));
    let (value, rest) = number(text[start..].trim_start_matches([',', '.']))?;
    rest.is_empty().then_some(value)
}

// ---- pieces

/// An unsigned number at the beginning of a text, `1200`, `1,200`, `0.5`, and what follows.
pub(super) fn number(text: &str) -> Option<(f64, &str)> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    let mut plain = String::new();
    let mut point = false;
    while end < bytes.len().min(24) {
        match bytes[end] {
            b @ b'0'..=b'9' => plain.push(char::from(b)),
            // A point ends a sentence unless a figure follows.
            b'.' if !point && end > 0 && digit(end + 1) => {
                point = true;
                plain.push('.');
            }
            b',' if !point && end > 0 && (1..=3).all(|n| digit(end + n)) && !digit(end + 4) => {}
            _ => break,
        }
        end += 1;
    }
    if end == 0 || digit(end) {
        return None;
    }
    let value: f64 = plain.parse().ok()?;
    (value <= MOST).then(|| (value, &text[end..]))
}

/// One word that may be a unit, e.g. `tokens`.
pub(super) fn unit_word(text: &str) -> Option<String> {
    let is_word = text.chars().all(|c| c.is_ascii_alphabetic() || c == '_' || c == '-');
    (is_word && text.len() <= 24 && text.starts_with(|c: char| c.is_ascii_alphabetic())).then(|| normal(text))
}

fn normal_unit(text: &str) -> Option<String> {
    unit_word(text.trim())
}

/// One spelling for each usual unit; others stay as they are.
fn normal(unit: &str) -> String {
    match unit {
        "its" | "iter" | "iters" | "iteration" | "iterations" => "it",
        "step" => "steps",
        "sample" => "samples",
        "img" | "imgs" | "image" => "images",
        "tok" | "toks" | "token" => "tokens",
        "example" => "examples",
        "seq" | "seqs" => "sequences",
        "batch" => "batches",
        "epoch" => "epochs",
        other => other,
    }
    .to_owned()
}

/// The words of a text, in lower case, without figures and signs.
fn label_of(text: &str) -> String {
    let mut label = String::new();
    let words = text.split(|c: char| !c.is_alphabetic()).filter(|word| word.chars().count() > 1);
    for word in words {
        let word = word.to_lowercase();
        if label.len() + word.len() >= LONGEST_LABEL {
            break;
        }
        if !label.is_empty() {
            label.push(' ');
        }
        label.push_str(&word);
    }
    label
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;

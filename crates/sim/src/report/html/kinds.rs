//! Colours of kinds of tasks.

use super::text::Short;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Colours for kinds of their own; one more is for all others.
const OWN: usize = 7;

/// Kinds of tasks in the order of their time on GPUs, so that a colour means the same in every drawing of a page. All but the
/// first few share a grey.
#[derive(Debug)]
pub struct Kinds<'a>(Vec<&'a str>);

impl<'a> Kinds<'a> {
    /// Of tasks by kind and time; a kind may come again and again.
    #[must_use]
    pub fn of(times: impl IntoIterator<Item = (&'a str, f64)>) -> Self {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (kind, time) in times {
            *sums.entry(kind).or_default() += time;
        }
        let mut kinds: Vec<(&str, f64)> = sums.into_iter().collect();
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self(kinds.into_iter().map(|(kind, _)| kind).collect())
    }

    /// A kind's colour: `f0` to `f7` of the page's style, and as `on0` to `on7` of what is written on it.
    #[must_use]
    pub fn colour(&self, kind: &str) -> usize {
        self.0.iter().take(OWN).position(|known| *known == kind).unwrap_or(OWN)
    }

    /// The items of a legend.
    pub fn legend(&self, out: &mut String) {
        let mut item = |colour: usize, name: &str| {
            let _ = write!(
                out,
                r#"<li><svg class="block" viewBox="0 0 10 10" aria-hidden="true"><rect class="f{colour}" width="10" height="10" rx="2"/></svg>{}</li>"#,
                Short(name, 40)
            );
        };
        for (colour, name) in self.0.iter().enumerate().take(OWN) {
            item(colour, name);
        }
        match self.0.get(OWN..) {
            None | Some([]) => {}
            // The last colour needs not stand for many.
            Some([one]) => item(OWN, one),
            Some(others) => item(OWN, &format!("{} others", others.len())),
        }
    }
}

/// How many characters are to be written on a bar so wide: a glyph of this size is about 6.2 wide. None where it is too low, or
/// has room for less than a word.
#[must_use]
pub fn room_on_bar(wide: f64, thick: f64) -> usize {
    let room = ((wide - 8.0) / 6.2).floor();
    if thick >= 12.0 && room >= 4.0 { room as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_of_most_time_have_colours_of_their_own() {
        let names: Vec<String> = (0..10).map(|n| format!("kind{n}")).collect();
        let legend = |most: usize| {
            let times = names.iter().take(most).enumerate();
            let kinds = Kinds::of(times.map(|(n, name)| (name.as_str(), 100.0 - n as f64)));
            let mut out = String::new();
            kinds.legend(&mut out);
            (kinds.colour("kind0"), kinds.colour("kind6"), kinds.colour("kind9"), out)
        };
        let (first, seventh, last, out) = legend(10);
        assert_eq!((first, seventh, last), (0, 6, 7));
        assert!(out.contains("3 others") && !out.contains("kind7") && out.matches("<li>").count() == 8);
        assert!(legend(8).3.contains("kind7") && !legend(7).3.contains("others"));
    }
}

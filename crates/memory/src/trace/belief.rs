//! Whether a trace is of what is asked: the same program, arguments and batch.

use super::Header;
use crate::estimate::times;
use crate::history::{Facts, Signature};
use crate::{Error, Estimate, MiB};

/// What a trace is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Script and arguments, or `-m`, module and arguments; empty: not known.
    pub program: Vec<String>,
    /// Samples a step, where they were said.
    pub batch: Option<u64>,
    /// Fingerprint of its script and of what configures it, where they could be read.
    pub edition: Option<String>,
    /// There is a command whose program (no `program`) or text (no `edition`) could not be read.
    pub unread: bool,
}

/// Widening for the same program with other arguments.
const OTHER_ARGUMENTS: f64 = 0.40;

impl Asked {
    /// Whether script or configuration were edited since a trace was made, as far as both are known. How much what is asked takes has
    /// no bound then.
    #[must_use]
    pub fn is_of_another_edition(&self, made: &Header) -> bool {
        self.edition.as_ref().zip(made.edition.as_ref()).is_some_and(|(asked, made)| asked != made)
    }

    /// The estimate of a trace, as far as it is believed for what is asked. `batches` are those of its data loaders
    /// that may have trained.
    ///
    /// # Errors
    /// A trace of another program.
    pub fn of(&self, mut estimate: Estimate, header: &Header, batches: &[u64]) -> Result<Estimate, Error> {
        let made = header.program();
        let said = |words: &[String]| {
            let mut words = words.to_vec();
            if let Some(script) = words.first_mut() {
                *script = stem(script).to_owned();
            }
            let name = words.iter().find(|word| *word != "-m").cloned().unwrap_or_default();
            (name, Signature::of(&Facts { command: &words, ..Facts::default() }))
        };
        let mut its_batch = header.options.batch_size;
        let mut asked_batch = self.batch;
        if let (Some(made), false) = (&made, self.program.is_empty()) {
            let ((name, its), (asked, wanted)) = (said(made), said(&self.program));
            if name != asked {
                return Err(Error::bad(
                    "the trace",
                    format!(
                        "it is of `{}`, not of `{asked}`, so it says nothing here; \
                         `carma dry-run -o LOG -- COMMAND` makes one",
                        header.what
                    ),
                ));
            }
            if its.program != wanted.program {
                estimate.widen(
                    OTHER_ARGUMENTS,
                    &format!("the trace is of the same program with other arguments, `{}`", header.what),
                );
                estimate.apart();
            }
            its_batch = its.batch.or(its_batch);
            asked_batch = wanted.batch.or(asked_batch);
        } else if made.is_some() && self.unread {
            estimate.widen(
                OTHER_ARGUMENTS,
                &format!("the trace is of `{}`; whether the command runs that is not known", header.what),
            );
            estimate.apart();
        }
        // A trace that was made of what is asked notes no edition then.
        if self.unread && !self.program.is_empty() && header.edition.is_some() {
            estimate.widen(
                OTHER_ARGUMENTS,
                "whether the script was edited since the trace was made is not known: its text could not be read",
            );
            estimate.apart();
        }
        if self.is_of_another_edition(header) {
            estimate.widen(
                OTHER_ARGUMENTS,
                "the script or a file that configures it was edited since the trace was made, so its peak has no bound",
            );
            estimate.apart();
        }
        let Some(asked) = asked_batch else { return Ok(estimate) };
        // Of several it is not known which trained: from the smallest everything grows the most.
        match its_batch.or_else(|| batches.iter().copied().min()) {
            Some(made) if made != asked => scale(&mut estimate, made, asked),
            _ => {}
        }
        Ok(estimate)
    }
}

/// An estimate for another batch than the trace's: between nothing and everything grows with it.
fn scale(estimate: &mut Estimate, made: u64, asked: u64) {
    let context = estimate.parts.map_or(MiB::ZERO, |parts| parts.context_mib);
    let factor = asked as f64 / made.max(1) as f64;
    let scaled = |mib: MiB| context + times(mib - context, factor);
    let how = if asked > made {
        (estimate.use_mib, estimate.upper_mib) = (scaled(estimate.use_mib), scaled(estimate.upper_mib));
        "as if all of it grew with the batch, which is too much rather than too little"
    } else {
        estimate.need_mib = scaled(estimate.need_mib);
        "which takes no more"
    };
    estimate.reasons.push(format!("the trace is of a batch of {made}, not of {asked}, {how}"));
    estimate.apart();
}

impl Estimate {
    /// Not what the trace itself says: what runs teach of it is kept apart.
    fn apart(&mut self) {
        self.parts = None;
        self.source = "allocator/trace-of-another-run".to_owned();
    }
}

fn stem(script: &str) -> &str {
    script.rsplit('/').next().unwrap_or(script)
}

impl Header {
    /// Script and arguments that were traced; `None` where a function was.
    fn program(&self) -> Option<Vec<String>> {
        if !self.command.is_empty() {
            return Some(self.command.clone());
        }
        // Logs from before there was a command: a function is `MODULE:NAME`.
        let words: Vec<String> = self.what.split_whitespace().map(str::to_owned).collect();
        let is_entry = words.len() == 1 && words[0].contains(':');
        (!is_entry && !words.is_empty()).then_some(words)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::trace::End;
    use crate::{Parts, Tier};

    fn header(line: &str) -> Header {
        Header {
            command: line.split_whitespace().map(str::to_owned).collect(),
            what: line.into(),
            ..Header::default()
        }
    }

    fn estimate() -> Estimate {
        Estimate {
            need_mib: MiB(900),
            use_mib: MiB(1500),
            upper_mib: MiB(1600),
            tier: Tier::Trace,
            source: "allocator/trace".into(),
            family: "bert".into(),
            parts: Some(Parts { context_mib: MiB(500), ..Parts::default() }),
            elastic: false,
            reasons: vec!["bound: 3 %: a trace".into()],
        }
    }

    fn ask(made: &Header, line: &str, batch: Option<u64>) -> Result<Estimate, Error> {
        let program = line.split_whitespace().map(str::to_owned).collect();
        Asked { program, batch, edition: None, unread: false }.of(estimate(), made, &[32])
    }

    #[test]
    fn a_trace_is_believed_for_what_it_was_made_with() {
        let made = header("train.py --model a --epochs 3");
        for same in ["/w/train.py --epochs 90 --model a", "train.py --model a --lr 3", ""] {
            assert_eq!(ask(&made, same, None).unwrap(), estimate(), "{same}");
        }
        assert_eq!(ask(&made, "train.py --model a", Some(32)).unwrap(), estimate());
        let other = ask(&made, "other.py --model a", None).unwrap_err().to_string();
        assert!(other.contains("`train.py --model a --epochs 3`, not of `other.py`"), "{other}");
        let wide = ask(&made, "train.py --model b", None).unwrap();
        assert_eq!((wide.use_mib, wide.upper_mib), (MiB(1500), MiB(1964)));
        assert!(wide.reasons[0].contains("other arguments") && wide.parts.is_none(), "{wide:?}");
    }

    #[test]
    fn where_the_program_or_its_text_is_not_known_a_trace_is_believed_less() {
        let of = |program: &[&str], edition: Option<&str>, unread| {
            let made = Header { edition: edition.map(str::to_owned), ..header("t.py") };
            let program = program.iter().map(ToString::to_string).collect();
            Asked { program, unread, ..Asked::default() }.of(estimate(), &made, &[]).unwrap()
        };
        for (wide, why) in [
            (of(&[], None, true), "the trace is of `t.py`; whether"),
            (of(&["t.py"], Some("1"), true), "edited since"),
        ] {
            assert_eq!((wide.use_mib, wide.upper_mib), (MiB(1500), MiB(1964)));
            assert!(wide.reasons[0].contains(why) && wide.parts.is_none(), "{wide:?}");
        }
        // No command is asked for; a trace of what is asked.
        assert_eq!((of(&[], None, false), of(&["t.py"], None, true)), (estimate(), estimate()));
    }

    #[test]
    fn another_batch_is_scaled() {
        let made = header("train.py --bs 32");
        let larger = ask(&made, "train.py --bs 128", None).unwrap();
        assert_eq!((larger.need_mib, larger.use_mib, larger.upper_mib), (MiB(900), MiB(4500), MiB(4900)));
        assert!(larger.reasons[1].contains("a batch of 32, not of 128"), "{larger:?}");
        let smaller = ask(&made, "train.py --bs 16", None).unwrap();
        assert_eq!((smaller.need_mib, smaller.use_mib, smaller.upper_mib), (MiB(700), MiB(1500), MiB(1600)));
        // Where neither command says it, what the loaders had.
        let silent = header("train.py");
        assert_eq!(ask(&silent, "train.py", Some(64)).unwrap().use_mib, MiB(2500));
        // A loader of an evaluation has a larger one as a rule, and may be any of them.
        for batches in [[32, 64], [64, 32]] {
            let asked = |batch| Asked {
                program: vec!["train.py".into()],
                batch: Some(batch),
                edition: None,
                unread: false,
            };
            let of = |batch| asked(batch).of(estimate(), &silent, &batches).unwrap();
            assert_eq!((of(64).use_mib, of(128).use_mib, of(32)), (MiB(2500), MiB(4500), estimate()));
        }
        let end = End { batch_sizes: vec![32, 64], train_batch_sizes: vec![64], ..End::default() };
        assert_eq!(
            (end.trained(), End { train_batch_sizes: vec![], ..end.clone() }.trained()),
            (&[64][..], &[32, 64][..])
        );
        // A function has no command; its batch counts.
        let entry = Header { what: "net.py:make".into(), ..Header::default() };
        assert_eq!(ask(&entry, "other.py", None).unwrap(), estimate());
        assert_eq!(ask(&entry, "other.py", Some(64)).unwrap().use_mib, MiB(2500));
        // An edition that one of them does not know is not compared.
        let of = |made: Option<&str>, asked: Option<&str>| {
            let text = |edition: Option<&str>| edition.map(str::to_owned);
            let made = Header { edition: text(made), ..header("train.py") };
            let asked = Asked { program: vec!["train.py".into()], edition: text(asked), ..Asked::default() };
            (asked.is_of_another_edition(&made), asked.of(estimate(), &made, &[]).unwrap())
        };
        for (made, asked) in [(Some("1"), Some("1")), (Some("1"), None), (None, Some("1")), (None, None)] {
            assert_eq!(of(made, asked), (false, estimate()));
        }
        let (is_other, wide) = of(Some("1"), Some("2"));
        assert!(is_other && wide.reasons[0].contains("edited since") && wide.parts.is_none(), "{wide:?}");
        assert_eq!((wide.use_mib, wide.upper_mib), (MiB(1500), MiB(1964)));
        // Logs of before have their words in one text.
        let old = Header { what: "train.py --model a".into(), ..Header::default() };
        assert!(ask(&old, "other.py", None).is_err() && ask(&old, "train.py --model a", None).is_ok());
    }
}

//! Whatever users write is read without harm: an error, never a panic, and nothing invented.

use carma_api::job_file::{rad, toml};
use carma_api::parse;
use carma_api::wire::SubmitRequest;
use proptest::prelude::*;
use std::path::Path;

proptest! {
    #[test]
    fn any_text_as_a_rad_file(text in "(\\PC{0,60}\n){0,14}") {
        if let Ok(job) = rad::parse(Path::new("x.rad"), &text).map(|job| job.request) {
            prop_assert!(job.gpus.is_some_and(|n| n > 0));
            prop_assert!(job.command.iter().any(|w| w.contains("python")));
        }
    }

    #[test]
    fn a_rad_file_with_one_line_replaced(line in 0usize..12, text in "\\PC{0,40}") {
        let good = "# c\nconda activate tf\npython x.py --bs 2\nm\nd\n32\nexclusive\n2\n788\n1.5\n2\n8000";
        let mut lines: Vec<&str> = good.lines().collect();
        lines[line] = &text;
        match rad::parse(Path::new("x.rad"), &lines.join("\n")).map(|job| job.request) {
            Ok(job) => prop_assert!(job.gpus.is_some()),
            Err(e) => prop_assert!(e.line.is_some_and(|line| line >= 1) && !e.what.is_empty()),
        }
    }

    #[test]
    fn words_are_the_shells(words in proptest::collection::vec("[a-zA-Z0-9_./=,:-]{1,12}( [a-z]{1,5})?", 1..8)) {
        let quoted: Vec<String> = words.iter().map(|w| format!("'{w}'")).collect();
        prop_assert_eq!(rad::words(&quoted.join("  ")), Ok(words));
    }

    #[test]
    fn any_text_as_a_toml_job(text in "\\PC{0,200}") {
        let _ = toml::parse(Path::new("x.toml"), &text);
    }

    #[test]
    fn any_text_as_a_size_or_span(text in "\\PC{0,20}", number in -1e12f64..1e12, unit in "[a-zA-Z]{0,3}") {
        for text in [text, format!("{number}{unit}")] {
            if let Ok(size) = parse::memory(&text) {
                prop_assert!(size.0 >= 1 && size.0 <= 1_000_000_000);
            }
            if let Ok(span) = parse::duration(&text) {
                prop_assert!(span.0 >= 1);
            }
        }
    }

    #[test]
    fn any_bytes_as_a_submission(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = serde_json::from_slice::<SubmitRequest>(&bytes);
    }
}

use super::*;

#[test]
fn what_is_absent_is_said() {
    let data = Data { shared: "/nonexistent".into(), h200: "/nonexistent".into(), threads: 1 };
    let lines = run(&data, None);
    assert!(lines.iter().all(|l| l.value.is_none() && l.note.starts_with("skipped: ")), "{lines:?}");
    assert!(PARTS.iter().all(|part| lines.iter().any(|l| l.part == *part)), "{lines:?}");
    assert!(run(&data, Some("lucid")).iter().all(|l| l.part == "lucid"));
}

#[test]
fn scratch() {
    let t0 = std::time::Instant::now();
    for part in std::env::var("PART").map_or(PARTS.map(String::from).to_vec(), |p| vec![p]) {
        for l in run(&Data::find(None), Some(&part)) {
            let v = l
                .value
                .map_or("-".to_owned(), |v| format!("{:.1} ({:.1}-{:.1}) n={}", v.mean, v.low, v.high, v.n));
            println!(
                "{:8} {:60} {:28} {} {} {:?} {:?} {}",
                l.part,
                l.test,
                l.who,
                v,
                l.unit,
                l.median,
                l.target.map(|t| (t.text, t.holds)),
                l.note
            );
        }
        println!("{:?}", t0.elapsed());
    }
}

use super::*;

fn text(family: Family, count: usize, seed: u64) -> String {
    let mut out = Vec::new();
    generate(family, count, seed, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_seed_decides() {
    for family in Family::ALL {
        assert_eq!(text(family, 20, 7), text(family, 20, 7));
        assert_ne!(text(family, 20, 7), text(family, 20, 8));
    }
}

#[test]
#[ignore]
fn write_out() {
    for family in Family::ALL {
        std::fs::write(format!("/tmp/gen-{}.csv", family.as_str()), text(family, 3300, 1)).unwrap();
    }
}

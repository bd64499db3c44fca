//! Where and when tables were made.

/// The processor's name.
pub(super) fn processor() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("unknown");
    cpu.trim_matches([':', ' ', '\t']).to_owned()
}

/// Today's date.
pub(super) fn today() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%d").to_string()
}

/// As many threads as there are processors.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

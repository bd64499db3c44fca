//! `carma gpus`: the GPUs, and what is on them.

use super::queue::named_gpus;
use super::usage::{Unit, counted, metered};
use super::{Context, now_ms, unwritten};
use crate::cli::GpusArgs;
use carma_api::ClientError;
use carma_api::wire::{ForeignView, GpuView, GpusReply, TenantView};
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, JOINED, Screen, clean, print, spared_line, sparing, stamp, wrap};
use carma_core::model::SharingMode;
use carma_core::units::{MiB, Millis};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::Duration;

/// A reading older than this many milliseconds is pointed out.
const OLD_MS: u64 = 5_000;
/// Characters of a UUID that are shown at least: `GPU-` and eight digits.
const UUID_SHOWN: usize = 12;

/// Between two looks at the least, in milliseconds.
const QUICKEST_MS: u64 = 100;
/// Moves a terminal's cursor to the upper left corner, and clears what is below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Lists them.
pub(crate) fn run(context: &Context, args: &GpusArgs) -> Outcome {
    match args.watch {
        Some(every) => watch(context, Duration::from_millis(every.0.max(QUICKEST_MS))),
        None => context.listing("/v1/gpus", args.json, render),
    }
}

/// Lists them again and again: on a terminal in one place, elsewhere one below the other. A daemon that restarts is waited for.
fn watch(context: &Context, every: Duration) -> Outcome {
    let mut client = context.client()?;
    let mut lost = None;
    loop {
        // Its width may have changed.
        let screen = Screen::stdout();
        match client.get::<GpusReply>("/v1/gpus") {
            Ok(reply) => {
                lost = None;
                let text = format!("{}\n{}", stamp(reply.now_ms, &screen), render(&reply, &screen));
                if io::stdout().is_terminal() {
                    print(&in_place(&text, &screen))?;
                } else {
                    print(&format!("{text}\n"))?;
                }
            }
            Err(e) if comes_back(&e) => {
                let news = lost.is_none();
                let since = *lost.get_or_insert_with(now_ms);
                let why = Failure::from(e).message.unwrap_or_default();
                let text = format!("{}: {}. Trying again until Ctrl-C", stamp(since, &screen), clean(&why));
                if io::stdout().is_terminal() {
                    let lines: String =
                        wrap(&text, &screen, 0).iter().map(|line| format!("{line}\n")).collect();
                    print(&in_place(&lines, &screen))?;
                } else if news {
                    eprintln!("{text}");
                }
            }
            Err(e) => return Err(e.into()),
        }
        std::thread::sleep(every);
    }
}

/// Whether the daemon may answer again after such an error: it restarts, or is busy.
fn comes_back(error: &ClientError) -> bool {
    match error {
        ClientError::NoDaemon { .. } | ClientError::Silent { .. } | ClientError::Broken { .. } => true,
        ClientError::Refused { status, .. } => *status == 503,
    }
}

/// A text over what the terminal shows, cut where that would scroll.
fn in_place(text: &str, screen: &Screen) -> String {
    let height = screen.height.map_or(usize::MAX, |height| usize::from(height.max(2)) - 1);
    let cut = if text.lines().count() > height { height - 1 } else { height };
    let mut shown: String = text.lines().take(cut).map(|line| format!("{line}\n")).collect();
    if cut < height {
        shown.push_str("…\n");
    }
    format!("{CLEAR}{shown}")
}

/// A column whose value may be unknown.
struct Metric {
    title: &'static str,
    value: fn(&GpuView) -> Option<String>,
}

const METRICS: [Metric; 3] = [
    Metric { title: "SMACT", value: |g| g.smact.map(share) },
    Metric { title: "SMOCC", value: |g| g.smocc.map(share) },
    Metric { title: "DRAMA", value: |g| g.drama.map(share) },
];
/// Says less than SMACT, so it is shown only where a GPU does not tell that.
const UTIL: Metric = Metric { title: "UTIL", value: |g| g.gpu_util.map(share) };
const MEMORY: Metric = Metric {
    title: "MEM",
    value: |g| g.memory_used_mib.map(|used| format!("{}/{}", gib(used), MiB(g.memory_mib))),
};
const FREE: Metric =
    Metric { title: "FREE", value: |g| g.memory_free_for_placement_mib.map(|free| MiB(free).to_string()) };
const POWER: Metric = Metric { title: "POWER", value: |g| g.power_w.map(|w| format!("{w:.0} W")) };

/// A column of the table, and what stands in it for a GPU.
struct Shown {
    column: Column,
    value: Box<dyn Fn(&GpuView) -> String>,
}

impl Shown {
    fn new(column: Column, value: impl Fn(&GpuView) -> String + 'static) -> Self {
        Self { column, value: Box::new(value) }
    }
}

/// What a narrow screen may go without, the most needed first.
const SPARED: [&str; 8] = ["MEM", "SMACT", "FREE", "NAME", "POWER", "DRAMA", "SMOCC", "UUID"];

fn render(reply: &GpusReply, screen: &Screen) -> String {
    let gpus = &reply.gpus;
    if gpus.is_empty() {
        return "The daemon has no GPUs. `carma doctor` looks for what is missing.\n".into();
    }
    let mut text = unwritten(reply.unwritten.as_ref(), reply.now_ms, screen);
    if gpus.iter().any(|g| g.kind == "virtual") {
        text.push_str("Virtual GPUs: a model, not a measurement\n");
    }
    let (metrics, unknown) = known_metrics(gpus);
    let columns = columns(gpus, &metrics);
    let titles: Vec<Column> = columns.iter().map(|shown| shown.column).collect();
    let row = |gpu| columns.iter().map(|shown| (shown.value)(gpu)).collect();
    let rows: Vec<Vec<String>> = gpus.iter().map(row).collect();
    let (table, spared) = sparing(&titles, &rows, &SPARED, None, screen);
    text.push_str(&table);
    let mut below = notes(reply, &metrics, &unknown, &spared);
    let of_gpus: Vec<_> = gpus.iter().filter_map(|gpu| gpu.metered.clone()).collect();
    below.extend(metered(&of_gpus, Unit::of(counted(&of_gpus)), screen));
    for line in below.lines() {
        let indent = line.len() - line.trim_start().len();
        for part in wrap(line.trim_start(), screen, indent) {
            let _ = writeln!(text, "{:indent$}{part}", "");
        }
    }
    text
}

fn columns(gpus: &[GpuView], metrics: &[&'static Metric]) -> Vec<Shown> {
    let mut columns = vec![
        // Another GPU may have the index of one that is gone.
        Shown::new(Column::Right("GPU"), |gpu| if is_gone(gpu) { "-".into() } else { gpu.index.to_string() }),
        Shown::new(Column::Left("NAME"), |gpu| gpu.name.clone()),
    ];
    // A virtual GPU's UUID is its name and its index again.
    if gpus.iter().any(|gpu| gpu.kind != "virtual") {
        let length = uuid_length(gpus);
        columns.push(Shown::new(Column::Left("UUID"), move |gpu| gpu.uuid.chars().take(length).collect()));
    }
    columns.push(Shown::new(Column::Left("STATUS"), |gpu| gpu.status.clone()));
    let metric = |metric: &&'static Metric| {
        let value = metric.value;
        Shown::new(Column::Right(metric.title), move |gpu| value(gpu).unwrap_or_else(|| "-".into()))
    };
    columns.extend(metrics.iter().map(metric));
    columns.push(Shown::new(Column::Left("JOBS"), |gpu| jobs(&gpu.tenants)));
    columns
}

/// The columns that some GPU has a value for, and the titles of the others.
fn known_metrics(gpus: &[GpuView]) -> (Vec<&'static Metric>, Vec<&'static str>) {
    let known = |m: &Metric| gpus.iter().any(|g| (m.value)(g).is_some());
    let (mut shown, mut unknown) = (Vec::new(), Vec::new());
    for metric in METRICS.iter().chain([&MEMORY, &FREE, &POWER]) {
        if known(metric) {
            shown.push(metric);
        } else {
            unknown.push(metric.title);
        }
    }
    if gpus.iter().any(|g| g.smact.is_none() && g.gpu_util.is_some()) {
        shown.insert(0, &UTIL);
    }
    (shown, unknown)
}

fn notes(reply: &GpusReply, metrics: &[&Metric], unknown: &[&str], spared: &[&str]) -> String {
    let mut text = String::new();
    let length = uuid_length(&reply.gpus);
    for gpu in &reply.gpus {
        if let Some(status) = gpu.status_text.as_ref().filter(|_| is_gone(gpu)) {
            let uuid: String = gpu.uuid.chars().take(length).collect();
            let _ = writeln!(text, "{}, once GPU {}: {}", clean(&uuid), gpu.index, clean(status));
        } else if let Some(status) = &gpu.status_text {
            // Most say so in their own words.
            let said =
                if status.starts_with(&gpu.status) { String::new() } else { format!("{}: ", gpu.status) };
            let _ = writeln!(text, "GPU {}: {}{}", gpu.index, clean(&said), clean(status));
        }
        match gpu.age_ms {
            Some(age) if age > OLD_MS => {
                let _ = writeln!(text, "GPU {}: last reading is {} old", gpu.index, Millis(age));
            }
            None if gpu.status_text.is_none() => {
                let _ = writeln!(text, "GPU {}: not read yet", gpu.index);
            }
            _ => {}
        }
    }
    text.push_str(&time_sliced(&reply.gpus));
    let foreign: Vec<String> = reply
        .gpus
        .iter()
        .filter(|gpu| !gpu.foreign.is_empty())
        .map(|gpu| {
            let who: Vec<String> = gpu.foreign.iter().map(foreign).collect();
            format!("  GPU {}: {}\n", gpu.index, who.join("; "))
        })
        .collect();
    if !foreign.is_empty() {
        let _ = write!(text, "Not started by carma:\n{}", foreign.concat());
    }
    let shown = |title: &&str| metrics.iter().any(|m| m.title == *title) && !spared.contains(title);
    let means: Vec<&str> = METRICS.iter().map(|m| m.title).filter(shown).collect();
    if !means.is_empty() {
        let _ = writeln!(text, "{}: mean over the last {}.", means.join(", "), Millis(reply.window_ms));
    }
    if !unknown.is_empty() {
        let _ = writeln!(text, "Not known on any of these GPUs, so not shown: {}.", unknown.join(", "));
    }
    if let Some(line) = spared_line(spared) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Which GPUs are time-sliced because MPS cannot be had there, those of one reason in a line.
fn time_sliced(gpus: &[GpuView]) -> String {
    let mut reasons: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let there: Vec<&GpuView> = gpus.iter().filter(|gpu| !is_gone(gpu)).collect();
    for gpu in there.iter().filter(|gpu| gpu.sharing == Some(SharingMode::TimeSlice)) {
        if let Some(why) = &gpu.no_mps {
            reasons.entry(why).or_default().push(gpu.index);
        }
    }
    let line = |(why, of): (&str, Vec<u32>)| {
        let gpus = if of.len() == there.len() { "All GPUs".into() } else { named_gpus(&of) };
        format!("{gpus}: time-sliced, without MPS: {}\n", clean(why))
    };
    reasons.into_iter().map(line).collect()
}

/// Whether it was in this machine once and is not any more.
fn is_gone(gpu: &GpuView) -> bool {
    gpu.status == "gone"
}

/// As the papers and the gates write activity.
fn share(value: f64) -> String {
    format!("{value:.2}")
}

fn gib(mib: u64) -> String {
    let tenths = (u128::from(mib) * 10 + 512) / 1024;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// `3 (9.0 GiB), 7 (4.1 GiB, starting)`.
fn jobs(tenants: &[TenantView]) -> String {
    let one = |tenant: &TenantView| {
        let memory = tenant.observed_mib.map_or_else(|| "-".into(), |m| MiB(m).to_string());
        // Of one that is not exclusive, all is reserved until it is known what it takes.
        let alone = match (tenant.exclusive, tenant.reservation.as_str()) {
            (true, _) => ", exclusive",
            (false, "whole") => ", whole GPU reserved",
            _ => "",
        };
        let starting = if tenant.settled { "" } else { ", starting" };
        format!("{} ({memory}{alone}{starting})", tenant.job)
    };
    if tenants.is_empty() {
        return "-".into();
    }
    // A line is broken between jobs, and not within one.
    tenants.iter().map(|tenant| one(tenant).replace(' ', &JOINED.to_string())).collect::<Vec<_>>().join(", ")
}

fn foreign(process: &ForeignView) -> String {
    let user = process.user.as_deref().map(|u| format!(" {}", clean(u))).unwrap_or_default();
    let memory = process.memory_mib.map_or_else(|| "memory unknown".into(), |m| MiB(m).to_string());
    format!("pid {}{user} {memory}", process.pid)
}

/// How many characters tell all UUIDs apart, as a UUID's beginning is enough to name a GPU.
fn uuid_length(gpus: &[GpuView]) -> usize {
    let longest = gpus.iter().map(|g| g.uuid.chars().count()).max().unwrap_or(0);
    (UUID_SHOWN..longest)
        .find(|n| {
            let short = |g: &GpuView| g.uuid.chars().take(*n).collect::<String>();
            let distinct: std::collections::BTreeSet<String> = gpus.iter().map(short).collect();
            distinct.len() == gpus.len()
        })
        .unwrap_or(longest)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gpu(index: u32) -> GpuView {
        GpuView {
            index,
            uuid: format!("GPU-{index}b2c3d4e-1111-2222-3333-444455556666"),
            name: "NVIDIA H200".into(),
            kind: "gpu".into(),
            status: "ok".into(),
            status_text: None,
            age_ms: Some(90),
            memory_mib: 143_771,
            memory_used_mib: Some(22_938),
            memory_free_for_placement_mib: Some(99_123),
            smact: Some(0.553),
            smocc: Some(0.21),
            drama: Some(0.4),
            gpu_util: Some(0.97),
            mem_util: Some(0.41),
            gract: Some(0.96),
            tensor: Some(0.3),
            fp64: None,
            fp32: Some(0.1),
            fp16: Some(0.2),
            pcie_tx_mib_s: Some(12),
            pcie_rx_mib_s: Some(345),
            sm_clock_mhz: Some(1980),
            power_w: Some(412.4),
            energy_j: Some(1e6),
            metered: None,
            sharing: Some(SharingMode::Mps),
            no_mps: None,
            tenants: vec![],
            foreign: vec![],
        }
    }

    fn tenant(job: u64, observed_mib: Option<u64>) -> TenantView {
        TenantView {
            job,
            reserved_mib: Some(10_240),
            reservation: "memory".into(),
            observed_mib,
            settled: observed_mib.is_some(),
            exclusive: false,
        }
    }

    fn reply(gpus: Vec<GpuView>) -> GpusReply {
        GpusReply { version: 1, now_ms: 0, window_ms: 10_000, gpus, unwritten: None }
    }

    #[test]
    fn who_is_on_which() {
        let mut busy = gpu(0);
        busy.tenants = vec![tenant(3, Some(9216)), tenant(7, None)];
        busy.foreign = vec![
            ForeignView { pid: 4711, user: Some("bob".into()), memory_mib: Some(9318) },
            ForeignView { pid: 9, user: None, memory_mib: None },
        ];
        let mut lost = gpu(1);
        lost.status = "lost".into();
        lost.status_text = Some("the GPU has fallen off the bus".into());
        (lost.age_ms, lost.smact, lost.power_w, lost.memory_used_mib) = (Some(65_000), None, None, None);
        lost.gpu_util = None;
        insta::assert_snapshot!(render(&reply(vec![busy, lost]), &Screen::of_width(None)), @r"
        GPU  NAME         UUID          STATUS  SMACT  SMOCC  DRAMA             MEM      FREE  POWER  JOBS
          0  NVIDIA H200  GPU-0b2c3d4e  ok       0.55   0.21   0.40  22.4/140.4 GiB  96.8 GiB  412 W  3 (9.0 GiB), 7 (-, starting)
          1  NVIDIA H200  GPU-1b2c3d4e  lost        -   0.21   0.40               -  96.8 GiB      -  -
        GPU 1: lost: the GPU has fallen off the bus
        GPU 1: last reading is 1 min 5 s old
        Not started by carma:
          GPU 0: pid 4711 bob 9.1 GiB; pid 9 memory unknown
        SMACT, SMOCC, DRAMA: mean over the last 10 s.
        ");
    }

    #[test]
    fn one_that_is_gone_has_no_index() {
        let sliced = |mut gpu: GpuView| {
            (gpu.sharing, gpu.no_mps) = (Some(SharingMode::TimeSlice), Some("no control program".into()));
            gpu
        };
        let gone = GpuView {
            uuid: "GPU-aaaa1111-1111-2222-3333-444455556666".into(),
            status: "gone".into(),
            status_text: Some("no longer in this machine".into()),
            age_ms: None,
            memory_used_mib: None,
            memory_free_for_placement_mib: None,
            ..gpu(0)
        };
        let text = render(&reply(vec![sliced(gone), sliced(gpu(0))]), &Screen::of_width(None));
        let row =
            |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap().to_owned();
        assert!(row("-  NVIDIA H200").contains("GPU-aaaa1111  gone"), "{text}");
        assert!(row("0  NVIDIA H200").contains("GPU-0b2c3d4e  ok"), "{text}");
        assert!(text.contains("\nGPU-aaaa1111, once GPU 0: no longer in this machine\n"), "{text}");
        assert!(text.contains("\nAll GPUs: time-sliced, without MPS: no control program\n"), "{text}");
    }

    #[test]
    fn what_nobody_knows_is_absent_not_zero() {
        let mut old = gpu(0);
        old.name = "NVIDIA A100-SXM4-40GB".into();
        (old.smact, old.smocc, old.drama) = (None, None, None);
        insta::assert_snapshot!(render(&reply(vec![old]), &Screen::of_width(None)), @r"
        GPU  NAME                   UUID          STATUS  UTIL             MEM      FREE  POWER  JOBS
          0  NVIDIA A100-SXM4-40GB  GPU-0b2c3d4e  ok      0.97  22.4/140.4 GiB  96.8 GiB  412 W  -
        Not known on any of these GPUs, so not shown: SMACT, SMOCC, DRAMA.
        ");
    }

    #[test]
    fn one_gpu_of_two_tells_utilisation_alone() {
        let mut old = gpu(1);
        old.name = "NVIDIA A100-SXM4-40GB".into();
        (old.smact, old.smocc, old.drama) = (None, None, None);
        insta::assert_snapshot!(render(&reply(vec![gpu(0), old]), &Screen::of_width(None)), @r"
        GPU  NAME                   UUID          STATUS  UTIL  SMACT  SMOCC  DRAMA             MEM      FREE  POWER  JOBS
          0  NVIDIA H200            GPU-0b2c3d4e  ok      0.97   0.55   0.21   0.40  22.4/140.4 GiB  96.8 GiB  412 W  -
          1  NVIDIA A100-SXM4-40GB  GPU-1b2c3d4e  ok      0.97      -      -      -  22.4/140.4 GiB  96.8 GiB  412 W  -
        SMACT, SMOCC, DRAMA: mean over the last 10 s.
        ");
    }

    #[test]
    fn a_model_is_called_one() {
        let mut virtual_gpu = gpu(0);
        virtual_gpu.kind = "virtual".into();
        virtual_gpu.name = "Virtual A100-40GB".into();
        virtual_gpu.memory_mib = 40_960;
        let mut alone = tenant(3, Some(9216));
        alone.exclusive = true;
        virtual_gpu.tenants = vec![alone];
        virtual_gpu.memory_free_for_placement_mib = Some(0);
        insta::assert_snapshot!(render(&reply(vec![virtual_gpu]), &Screen::of_width(Some(80))), @r"
        Virtual GPUs: a model, not a measurement
        GPU  STATUS  SMACT  DRAMA            MEM   FREE  POWER  JOBS
          0  ok       0.55   0.40  22.4/40.0 GiB  0 MiB  412 W  3 (9.0 GiB, exclusive)
        SMACT, DRAMA: mean over the last 10 s.
        Not shown, as this screen is narrow: NAME, SMOCC.
        ");
    }

    #[test]
    fn a_narrow_screen_gets_what_fits() {
        let mut busy = gpu(0);
        busy.tenants = vec![tenant(3, Some(9216)), tenant(7, None)];
        busy.foreign = (0..4)
            .map(|pid| ForeignView { pid: 4711 + pid, user: Some("bob".into()), memory_mib: Some(9318) })
            .collect();
        let of = |width: u16| {
            let text = render(&reply(vec![busy.clone(), gpu(1)]), &Screen::of_width(Some(width)));
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}:\n{text}");
            text
        };
        insta::assert_snapshot!(of(80), @r"
        GPU  NAME         STATUS  SMACT             MEM      FREE  JOBS
          0  NVIDIA H200  ok       0.55  22.4/140.4 GiB  96.8 GiB  3 (9.0 GiB),
                                                                   7 (-, starting)
          1  NVIDIA H200  ok       0.55  22.4/140.4 GiB  96.8 GiB  -
        Not started by carma:
          GPU 0: pid 4711 bob 9.1 GiB; pid 4712 bob 9.1 GiB; pid 4713 bob 9.1 GiB; pid
          4714 bob 9.1 GiB
        SMACT: mean over the last 10 s.
        Not shown, as this screen is narrow: POWER, DRAMA, SMOCC, UUID.
        ");
        insta::assert_snapshot!(of(60), @r"
        GPU  STATUS  SMACT             MEM  POWER  JOBS
          0  ok       0.55  22.4/140.4 GiB  412 W  3 (9.0 GiB),
                                                   7 (-, starting)
          1  ok       0.55  22.4/140.4 GiB  412 W  -
        Not started by carma:
          GPU 0: pid 4711 bob 9.1 GiB; pid 4712 bob 9.1 GiB; pid
          4713 bob 9.1 GiB; pid 4714 bob 9.1 GiB
        SMACT: mean over the last 10 s.
        Not shown, as this screen is narrow: FREE, NAME, DRAMA,
        SMOCC, UUID.
        ");
        insta::assert_snapshot!(of(120), @r"
        GPU  NAME         UUID          STATUS  SMACT  SMOCC  DRAMA             MEM      FREE  POWER  JOBS
          0  NVIDIA H200  GPU-0b2c3d4e  ok       0.55   0.21   0.40  22.4/140.4 GiB  96.8 GiB  412 W  3 (9.0 GiB),
                                                                                                      7 (-, starting)
          1  NVIDIA H200  GPU-1b2c3d4e  ok       0.55   0.21   0.40  22.4/140.4 GiB  96.8 GiB  412 W  -
        Not started by carma:
          GPU 0: pid 4711 bob 9.1 GiB; pid 4712 bob 9.1 GiB; pid 4713 bob 9.1 GiB; pid 4714 bob 9.1 GiB
        SMACT, SMOCC, DRAMA: mean over the last 10 s.
        ");
        // The number of a job is not torn apart.
        busy.tenants = vec![tenant(6, Some(13_312)), tenant(13, Some(1024))];
        let narrow = render(&reply(vec![busy.clone(), gpu(1)]), &Screen::of_width(Some(50)));
        assert!(narrow.lines().all(|line| line.chars().count() <= 50), "{narrow}");
        assert!(narrow.contains("  6 (13.0 GiB),\n") && narrow.contains(" 13 (1.0 GiB)\n"), "{narrow}");
    }

    #[test]
    fn what_would_scroll_is_cut() {
        let screen = |height| Screen { height, ..Screen::of_width(Some(80)) };
        assert_eq!(in_place("a\nb\nc\n", &screen(Some(4))), format!("{CLEAR}a\nb\nc\n"));
        assert_eq!(in_place("a\nb\nc\n", &screen(Some(3))), format!("{CLEAR}a\n…\n"));
        assert_eq!(in_place("a\nb\nc\n", &screen(None)), format!("{CLEAR}a\nb\nc\n"));
    }

    #[test]
    fn as_much_of_a_uuid_as_tells_them_apart() {
        let named = |uuid: &str| GpuView { uuid: uuid.into(), ..gpu(0) };
        assert_eq!(uuid_length(&[gpu(0), gpu(1)]), 12);
        assert_eq!(uuid_length(&[named("GPU-11111111-2a"), named("GPU-11111111-2b")]), 15);
        assert_eq!(uuid_length(&[named("x")]), 1);
    }
}

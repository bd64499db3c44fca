//! `carma gpus`: the GPUs, and who is on them.

use super::Context;
use super::queue::gpu_list;
use super::usage::metered;
use crate::cli::GpusArgs;
use carma_api::wire::{ForeignView, GpuView, GpusReply, TenantView};
use carma_cli::failure::Outcome;
use carma_cli::{Column, Screen, Table, clean, print, stamp};
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

/// Lists them again and again: on a terminal in one place, elsewhere one below the other.
fn watch(context: &Context, every: Duration) -> Outcome {
    let mut client = context.client()?;
    loop {
        let reply: GpusReply = client.get("/v1/gpus")?;
        // Its width may have changed.
        let screen = Screen::stdout();
        let head = format!("{}\n", stamp(reply.now_ms, &screen));
        let text = render(&reply, &screen);
        if io::stdout().is_terminal() {
            print(&format!("{CLEAR}{head}{text}"))?;
        } else {
            print(&format!("{head}{text}\n"))?;
        }
        std::thread::sleep(every);
    }
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

fn render(reply: &GpusReply, screen: &Screen) -> String {
    let gpus = &reply.gpus;
    if gpus.is_empty() {
        return "The daemon has no GPUs. `carma doctor` looks for what is missing.\n".into();
    }
    let mut text = String::new();
    if gpus.iter().any(|g| g.kind == "virtual") {
        text.push_str("Virtual GPUs: a model, not a measurement\n");
    }
    let all_virtual = gpus.iter().all(|g| g.kind == "virtual");
    let (metrics, unknown) = known_metrics(gpus);

    let mut columns = vec![Column::Right("GPU"), Column::Left("NAME")];
    // A virtual GPU's UUID is its name and its index again.
    if !all_virtual {
        columns.push(Column::Left("UUID"));
    }
    columns.push(Column::Left("STATUS"));
    columns.extend(metrics.iter().map(|m| Column::Right(m.title)));
    columns.push(Column::Left("JOBS"));
    let uuid_length = uuid_length(gpus);
    let mut table = Table::new(columns, screen);
    for gpu in gpus {
        let mut row = vec![gpu.index.to_string(), gpu.name.clone()];
        if !all_virtual {
            row.push(gpu.uuid.chars().take(uuid_length).collect());
        }
        row.push(gpu.status.clone());
        row.extend(metrics.iter().map(|m| (m.value)(gpu).unwrap_or_else(|| "-".into())));
        row.push(jobs(&gpu.tenants));
        table.row(row);
    }
    text.push_str(&table.render());
    text.push_str(&notes(reply, &metrics, &unknown));
    let of_gpus: Vec<_> = gpus.iter().filter_map(|gpu| gpu.metered.clone()).collect();
    text.extend(metered(&of_gpus, screen));
    text
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

fn notes(reply: &GpusReply, metrics: &[&Metric], unknown: &[&str]) -> String {
    let mut text = String::new();
    for gpu in &reply.gpus {
        if let Some(status) = &gpu.status_text {
            let _ = writeln!(text, "GPU {}: {}: {}", gpu.index, clean(&gpu.status), clean(status));
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
    let means: Vec<&str> =
        METRICS.iter().map(|m| m.title).filter(|t| metrics.iter().any(|m| m.title == *t)).collect();
    if !means.is_empty() {
        let _ = writeln!(text, "{}: mean over the last {}.", means.join(", "), Millis(reply.window_ms));
    }
    if !unknown.is_empty() {
        let _ = writeln!(text, "Not known on any of these GPUs, so not shown: {}.", unknown.join(", "));
    }
    text
}

/// Which GPUs are time-sliced because MPS cannot be had there, those of one reason in a line.
fn time_sliced(gpus: &[GpuView]) -> String {
    let mut reasons: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for gpu in gpus.iter().filter(|gpu| gpu.sharing == Some(SharingMode::TimeSlice)) {
        if let Some(why) = &gpu.no_mps {
            reasons.entry(why).or_default().push(gpu.index);
        }
    }
    let line = |(why, of): (&str, Vec<u32>)| {
        let gpus = if of.len() == gpus.len() { "All GPUs".into() } else { format!("GPU {}", gpu_list(&of)) };
        format!("{gpus}: time-sliced, without MPS: {}\n", clean(why))
    };
    reasons.into_iter().map(line).collect()
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
    tenants.iter().map(one).collect::<Vec<_>>().join(", ")
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
        GpusReply { version: 1, now_ms: 0, window_ms: 10_000, gpus }
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
        GPU  NAME               STATUS  SMACT  SMOCC  DRAMA            MEM   FREE  POWER  JOBS
          0  Virtual A100-40GB  ok       0.55   0.21   0.40  22.4/40.0 GiB  0 MiB  412 W  3 (9.0 GiB, exclusive)
        SMACT, SMOCC, DRAMA: mean over the last 10 s.
        ");
    }

    #[test]
    fn as_much_of_a_uuid_as_tells_them_apart() {
        let named = |uuid: &str| GpuView { uuid: uuid.into(), ..gpu(0) };
        assert_eq!(uuid_length(&[gpu(0), gpu(1)]), 12);
        assert_eq!(uuid_length(&[named("GPU-11111111-2a"), named("GPU-11111111-2b")]), 15);
        assert_eq!(uuid_length(&[named("x")]), 1);
    }
}

//! What the daemon expects of a job's memory, and what it learns from runs: the decision core's
//! forecasts come from here, as integers.

use crate::config::MemoryConfig;
use crate::gist::{Gist, MOST_MIB, cut};
use carma_api::VERSION;
use carma_api::wire::{
    EstimateView, LearnedContext, LearnedRatio, LearnedRuns, MemoryReply, PartsView, SubmitRequest,
};
use carma_core::explain::Reason;
use carma_core::model::{Attempt, Basis, Computed, Estimates, Estimator, ExitStatus, Forecasts, JobId};
use carma_core::reading::GpuInfo;
use carma_core::recovery::Blame;
use carma_core::units::MiB;
use carma_memory::auto::{self, Question, Settings};
use carma_memory::history::{self, History, HistoryRow, Observed, Outcome, Place, Run};
use carma_memory::{Estimate, Tier};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Jobs of one program that are told news of an end.
const MOST_TOLD: usize = 256;

/// What is expected of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// For the core.
    pub computed: Computed,
    /// The same with what it rests on, for people.
    pub view: EstimateView,
    /// The largest peak of runs of the very command, of all types of GPU on which it ran. `None`: it never ran.
    pub measured: Option<MiB>,
}

impl Expected {
    /// Names what the user declared, where what earlier runs took goes before it.
    pub(crate) fn name_declared(&mut self, declared: Option<MiB>) {
        let Computed { upper, basis, .. } = self.computed;
        if let Some(declared) = declared.filter(|declared| self.computed.overrules(*declared)) {
            let reason = format!("{upper} by {basis}, which goes before the {declared} declared");
            self.view.reasons.insert(0, reason);
        }
    }
}

/// Expects and learns.
pub struct Memory {
    /// Shared with the requests that list it.
    history: Arc<History>,
    driver: String,
    settings: Settings,
    /// Estimators whose answers count.
    chain: Vec<String>,
    /// Jobs that are not over: a run of the same program tells more of them.
    gists: HashMap<JobId, Arc<Gist>>,
    /// The same by program.
    jobs: HashMap<u64, BTreeSet<JobId>>,
}

/// What is learned, as it was when it was asked for.
#[derive(Debug)]
pub struct Learned {
    history: Arc<History>,
    coverage: f64,
    of: Option<u32>,
}

impl Learned {
    /// As it travels. There may be many rows: the engine has others make them.
    #[must_use]
    pub fn tell(&self) -> MemoryReply {
        let seen = |user: u32| self.of.is_none_or(|uid| uid == user);
        let programs = self.history.programs().filter(|(_, program)| seen(program.user));
        let runs = programs.flat_map(|(_, program)| program.anchors.iter().map(move |a| (program, a)));
        let runs = runs.map(|(program, anchor)| LearnedRuns {
            uid: program.user,
            command: program.label.clone(),
            batch_size: anchor.batch,
            gpu: anchor.place.gpu.clone(),
            framework: anchor.place.framework.clone(),
            driver: anchor.place.driver.clone(),
            runs: anchor.runs,
            max_mib: anchor.max_mib,
            min_mib: anchor.min_mib,
            at_least_mib: anchor.at_least_mib,
            growing: anchor.growing,
            context_mib: anchor.context_mib,
            simulated_by: anchor.sim.as_ref().map(|s| s.source.clone()),
            simulated_mib: anchor.sim.as_ref().map(|s| s.net_mib),
        });
        let groups = self.history.groups().filter(|(user, ..)| seen(*user));
        let ratios = groups.map(|(_, key, group)| LearnedRatio {
            group: key.replace('|', " / "),
            runs: group.len() as u64,
            median: group.median(),
            bound_factor: group.quantile(self.coverage),
        });
        let contexts = self.history.contexts().filter(|(user, ..)| user.is_none_or(seen));
        let contexts = contexts.map(|(_, key, context)| {
            let mut words = key.split('|').map(str::to_owned);
            let mut word = || words.next().unwrap_or_default();
            let (gpu, driver, framework) = (word(), word(), word());
            LearnedContext {
                gpu,
                driver,
                framework,
                mib: context.size().map(|size| size.0),
                probed: context.is_probed(),
            }
        });
        MemoryReply {
            version: VERSION,
            runs: runs.collect(),
            ratios: ratios.collect(),
            contexts: contexts.collect(),
        }
    }
}

impl Memory {
    /// With what was stored. Rows that are not understood are left out, and the log says so: what was
    /// learned must never keep the daemon from running.
    #[must_use]
    pub fn new(config: &MemoryConfig, driver: String, rows: &[HistoryRow]) -> Self {
        let mut memory = Self {
            history: Arc::default(),
            driver,
            settings: settings(config),
            gists: HashMap::new(),
            jobs: HashMap::new(),
            chain: chain(config),
        };
        memory.restore(rows);
        memory
    }

    /// Goes back to what was stored.
    pub fn restore(&mut self, rows: &[HistoryRow]) {
        self.history = Arc::default();
        for row in rows {
            if let Err(e) = Arc::make_mut(&mut self.history).load(row) {
                tracing::warn!("a row of the memory history is left out: {e}");
            }
        }
    }

    /// What changed since the last time.
    pub fn changes(&mut self) -> Vec<HistoryRow> {
        Arc::make_mut(&mut self.history).changes().unwrap_or_else(|e| {
            tracing::warn!("what was learned of memory cannot be stored: {e}");
            Vec::new()
        })
    }

    /// Leaves out of what the client sent what does not count here, and the reasons of all but the best: no other is shown.
    #[must_use]
    pub fn counted(&self, mut gist: Gist) -> Gist {
        // `allocator` stands for all of its front ends, `allocator/summary` for one.
        let counts = |source: &str| {
            self.chain.iter().any(|name| source == name || source.split('/').next() == Some(name))
        };
        gist.estimates.retain(|e| counts(&e.source));
        let best = gist.estimates.iter().enumerate().min_by_key(|(_, e)| e.tier).map(|(at, _)| at);
        for (_, other) in gist.estimates.iter_mut().enumerate().filter(|(at, _)| Some(*at) != best) {
            other.reasons = Vec::new();
        }
        gist
    }

    /// What runs of this job's program teach is news to it, until it is over. `gist`: with what counts.
    pub fn await_news(&mut self, job: JobId, gist: Arc<Gist>) {
        self.over(job);
        self.jobs.entry(gist.signature.program).or_default().insert(job);
        self.gists.insert(job, gist);
    }

    /// What forecasts need of a job that is not over. `None`: it was accepted in an earlier life of the daemon, and not read yet.
    #[must_use]
    pub fn gist(&self, job: JobId) -> Option<Arc<Gist>> {
        self.gists.get(&job).cloned()
    }

    /// The job is over.
    pub fn over(&mut self, job: JobId) {
        let Some(program) = self.gists.remove(&job).map(|gist| gist.signature.program) else { return };
        if let Some(jobs) = self.jobs.get_mut(&program) {
            jobs.remove(&job);
            if jobs.is_empty() {
                self.jobs.remove(&program);
            }
        }
    }

    /// The first jobs of this job's program of which `waits` is true: a run of it is news to them.
    #[must_use]
    pub fn news_to(&self, job: JobId, waits: impl Fn(JobId) -> bool) -> Vec<JobId> {
        let jobs = self.gists.get(&job).and_then(|gist| self.jobs.get(&gist.signature.program));
        jobs.into_iter().flatten().copied().filter(|job| waits(*job)).take(MOST_TOLD).collect()
    }

    /// What is expected of a job on these GPUs: of several types, the largest bound. `None`: nothing is
    /// known but what the user says, if that.
    #[must_use]
    pub fn expect<'a>(&self, gist: &Gist, gpus: impl Iterator<Item = &'a GpuInfo>) -> Option<Expected> {
        let mut places: BTreeMap<Place, MiB> = BTreeMap::new();
        for gpu in gpus {
            let memory = places.entry(self.place(gist, gpu)).or_default();
            *memory = gpu.memory.max(*memory);
        }
        let mut measured = None;
        let answers = places.iter().filter_map(|(place, memory)| {
            let question = Question {
                signature: &gist.signature,
                place,
                estimates: &gist.estimates,
                declared_mib: gist.declared,
                gpu_mib: *memory,
                elastic: gist.elastic,
            };
            let answer = auto::answer(&self.history, &question, &self.settings)?;
            measured = measured.max(answer.peak);
            // The user's own number reaches the core by itself.
            Some(answer).filter(|answer| answer.estimate.tier != Tier::Declared)
        });
        let answer = answers.max_by_key(|a| a.estimate.upper_mib)?;
        let basis = basis(answer.estimate.tier)?;
        // A share between 0 and 1 by the configuration.
        let coverage = (self.settings.coverage * 100.0).round() as u8;
        let mib = |mib: MiB| mib.clamp(MiB(1), MiB(MOST_MIB));
        let measured = measured.map(mib);
        // A share is one of the GPU that the client computed it for.
        let sent = gist.shares.iter().find(|(source, _)| *source == answer.estimate.source);
        let share = sent.filter(|_| basis == Basis::Share).map(|(_, gpu)| *gpu);
        let computed = Computed {
            need: mib(answer.estimate.need_mib),
            likely: mib(answer.estimate.use_mib),
            upper: mib(answer.estimate.upper_mib),
            basis,
            coverage,
            elastic: answer.elastic,
            of_gpu: share.map(mib),
        };
        let view = EstimateView {
            coverage_pct: Some(coverage),
            elastic: answer.elastic,
            of_gpu_mib: share.map(|mib| mib.0),
            ..to_view(&answer.estimate)
        };
        Some(Expected { computed, view, measured })
    }

    /// What runs of a job's command take at most on these GPUs, whatever its user declares. `None`: nothing is known.
    #[must_use]
    pub fn took<'a>(&self, gist: &Gist, gpus: impl Iterator<Item = &'a GpuInfo>) -> Option<MiB> {
        let undeclared = Gist { declared: gist.declared.map(|_| MiB(1)), ..gist.clone() };
        Some(self.expect(&undeclared, gpus)?.computed.upper)
    }

    /// Learns from an attempt that is over.
    pub fn learn(&mut self, gist: &Gist, attempt: &Attempt, gpus: &[&GpuInfo]) {
        let Some(first) = gpus.first() else { return };
        let place = self.place(gist, first);
        if gpus.iter().any(|gpu| self.place(gist, gpu) != place) {
            // Which of the types its peak was on is not recorded.
            return;
        }
        let observed = observed(attempt);
        Arc::make_mut(&mut self.history).learn(&Run {
            signature: &gist.signature,
            place: &place,
            outcome: observed.outcome(),
            limit: attempt.placement.cap,
            completed: observed.completed,
            growing: attempt.seen.is_some_and(|seen| seen.growing),
            estimates: &gist.estimates,
        });
    }

    /// Takes a probe of a context. `false`: the number cannot be one.
    pub fn probe(&mut self, gpu: &GpuInfo, framework: &str, mib: u64) -> bool {
        let place = Place { gpu: gpu.name.clone(), framework: cut(framework), driver: self.driver.clone() };
        Arc::make_mut(&mut self.history).probe(&place, MiB(mib))
    }

    /// Everything learned, as `of` may see it: all users' runs for `None`.
    #[must_use]
    pub fn learned(&self, of: Option<u32>) -> Learned {
        Learned { history: self.history.clone(), coverage: self.settings.coverage, of }
    }

    fn place(&self, gist: &Gist, gpu: &GpuInfo) -> Place {
        Place { gpu: gpu.name.clone(), framework: gist.framework.clone(), driver: self.driver.clone() }
    }
}

/// What is known of a job's memory by source: what runs of the command took, what the client's front ends say, and
/// numbers typed into its job file, which go before those of the front ends.
pub(crate) fn forecasts(request: &SubmitRequest, gist: &Gist, expected: Option<&Expected>) -> Forecasts {
    let estimates = Estimates::by(|estimator| {
        let typed = match estimator {
            Estimator::Measured => return measured(request, expected),
            Estimator::Horus => request.horus_mib,
            Estimator::Faketensor => request.faketensor_mib,
            Estimator::Gpumemnet => request.gpumemnet_mib,
            _ => None,
        };
        typed.map(MiB).or_else(|| Some(gist.sent.iter().find(|(by, _)| *by == estimator)?.1))
    });
    Forecasts {
        declared: request.gpu_memory_mib.map(MiB),
        estimates,
        computed: expected.map(|expected| expected.computed),
    }
}

/// What carma saw a command take goes before what the user says that it took.
fn measured(request: &SubmitRequest, expected: Option<&Expected>) -> Option<MiB> {
    expected.and_then(|expected| expected.measured).or(request.measured_mib.map(MiB))
}

/// The estimators whose answers count.
pub(crate) fn chain(config: &MemoryConfig) -> Vec<String> {
    config.estimators.clone().unwrap_or_else(|| vec!["allocator".to_owned(), "share".to_owned()])
}

pub(crate) fn settings(config: &MemoryConfig) -> Settings {
    let default = Settings::default();
    let share = |percent: Option<u64>, otherwise: f64| percent.map_or(otherwise, |p| p as f64 / 100.0);
    let margins = default.margins;
    let few = share(config.exact_margin_percent, margins.exact_few);
    Settings {
        coverage: config.coverage.unwrap_or(default.coverage),
        margins: history::Margins {
            exact_few: few,
            exact_many: margins.exact_many.min(few),
            scaled: share(config.scaled_margin_percent, margins.scaled),
            growing: share(config.growing_margin_percent, margins.growing),
        },
    }
}

/// Whether an attempt that is over says anything of the memory that it took.
#[must_use]
pub fn teaches(attempt: &Attempt) -> bool {
    observed(attempt).outcome() != Outcome::Ignored
}

fn observed(attempt: &Attempt) -> Observed {
    let peak = attempt.peak.unwrap_or_default();
    let cut_off = match &attempt.verdict {
        Reason::OutOfMemoryRetry { blame, .. } | Reason::OutOfMemoryFinal { blame, .. } => match blame {
            Blame::OwnCap { cap } => Some(*cap),
            Blame::WholeGpu { capacity } => Some(*capacity),
            // Whichever job was to blame, it wanted more than it was seen to hold.
            Blame::OwnForecast { .. }
            | Blame::Contention { .. }
            | Blame::Unknown { .. }
            | Blame::Neighbour { .. } => Some(peak),
        },
        // It was still growing.
        Reason::GrowthGuard { .. } => Some(peak),
        _ => None,
    };
    // One that has saved its work to be moved also ends with code 0, and may have been about to take more.
    let completed = attempt.verdict == Reason::Completed
        && attempt.exit.as_ref().is_some_and(|e| e.status == ExitStatus::Code(0));
    // carma ended it, and not for its memory.
    let is_other_cause = matches!(
        attempt.verdict,
        Reason::Evicted(_)
            | Reason::MadeRoom { .. }
            | Reason::RequeuedByUser { .. }
            | Reason::Cancelled { .. }
            | Reason::TimeLimit { .. }
    );
    Observed {
        peak: attempt.peak,
        active_ms: attempt.seen.map_or(0, |seen| seen.active.0),
        still_ms: attempt.seen.map_or(0, |seen| seen.still.0),
        unseen_ms: attempt.seen.map_or(0, |seen| seen.unseen.0),
        completed,
        settled: is_other_cause && attempt.seen.is_some_and(|seen| seen.settled),
        out_of_memory_at: cut_off.filter(|m| !m.is_zero()),
        cap: attempt.placement.cap,
    }
}

const fn basis(tier: Tier) -> Option<Basis> {
    Some(match tier {
        Tier::Exact => Basis::Exact,
        Tier::Scaled => Basis::Scaled,
        Tier::Share => Basis::Share,
        Tier::Trace => Basis::Trace,
        Tier::Graph => Basis::Graph,
        Tier::Config => Basis::Config,
        Tier::Summary => Basis::Summary,
        Tier::Formula => Basis::Formula,
        Tier::Declared => return None,
    })
}

/// An estimate as it travels.
#[must_use]
pub fn to_view(estimate: &Estimate) -> EstimateView {
    EstimateView {
        need_mib: estimate.need_mib.0,
        use_mib: estimate.use_mib.0,
        upper_mib: estimate.upper_mib.0,
        tier: estimate.tier.to_string(),
        source: estimate.source.clone(),
        family: estimate.family.clone(),
        parts: estimate.parts.map(|p| PartsView {
            context_mib: p.context_mib.0,
            allocated_mib: p.allocated_mib.0,
            reserved_mib: p.reserved_mib.0,
            workspace_mib: p.workspace_mib.0,
        }),
        coverage_pct: None,
        elastic: estimate.elastic,
        of_gpu_mib: None,
        reasons: estimate.reasons.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gist::{MOST_REASONS, MOST_TEXT, from_view};
    use carma_core::explain::Eviction;
    use carma_core::model::{Exit, Floor, SeenMemory};
    use carma_core::reading::GpuKind;
    use carma_core::units::{Fraction, Millis};

    fn gpu(name: &str, kind: GpuKind) -> GpuInfo {
        GpuInfo {
            uuid: name.into(),
            index: 0,
            name: name.into(),
            memory: MiB::gib(40),
            kind,
            has_activity: true,
            no_mps: None,
        }
    }

    fn request(line: &str) -> SubmitRequest {
        SubmitRequest {
            command: line.split(' ').map(str::to_owned).collect(),
            cwd: "/w".into(),
            ..SubmitRequest::default()
        }
    }

    fn attempt(peak: u64, verdict: Reason) -> Attempt {
        let exit = if verdict == Reason::Completed { 0 } else { 1 };
        Attempt {
            exit: Some(Exit::of(ExitStatus::Code(exit))),
            peak: Some(MiB(peak)),
            seen: Some(SeenMemory {
                active: Millis::secs(29),
                still: Millis::secs(25),
                growing: false,
                unseen: Millis::ZERO,
                settled: false,
            }),
            verdict,
            ..crate::view::tests::attempt(Some(Millis::ZERO), Millis::secs(30))
        }
    }

    fn gist(memory: &Memory, request: &SubmitRequest, uid: u32) -> Arc<Gist> {
        Arc::new(memory.counted(Gist::of(request, uid)))
    }

    fn expect(memory: &Memory, request: &SubmitRequest, uid: u32, gpus: &[&GpuInfo]) -> Option<Expected> {
        memory.expect(&gist(memory, request, uid), gpus.iter().copied())
    }

    fn learn(memory: &mut Memory, request: &SubmitRequest, attempt: &Attempt, gpus: &[&GpuInfo]) {
        memory.learn(&gist(memory, request, 7), attempt, gpus);
    }

    fn memory() -> Memory {
        Memory::new(&MemoryConfig::default(), "580".into(), &[])
    }

    #[test]
    fn a_run_teaches_the_next_and_survives_storage() {
        let mut memory = memory();
        let (a100, h200) = (gpu("A100", GpuKind::Whole), gpu("H200", GpuKind::Whole));
        let job = request("python t.py --epochs 3");
        assert!(expect(&memory, &job, 7, &[&a100]).is_none());
        learn(&mut memory, &job, &attempt(4000, Reason::Completed), &[&a100]);
        let rows = memory.changes();
        memory.restore(&rows);
        let again = request("python t.py --epochs 90");
        let Expected { computed, view, measured } = expect(&memory, &again, 7, &[&a100]).unwrap();
        assert_eq!(measured, Some(MiB(4000)));
        assert_eq!((computed.basis, computed.upper, computed.coverage), (Basis::Exact, MiB(4200), 95));
        assert_eq!((view.tier.as_str(), view.source.as_str()), ("exact", "history"));
        // On several types the widest; other users learn nothing.
        let wider = expect(&memory, &again, 7, &[&a100, &h200]).unwrap();
        assert_eq!((wider.computed.basis, wider.measured), (Basis::Scaled, Some(MiB(4000))));
        assert!(expect(&memory, &again, 8, &[&a100]).is_none());
        // Virtual GPUs have names of their own.
        let model = gpu("Virtual A100", GpuKind::Virtual);
        let of_model = expect(&memory, &again, 7, &[&model]).unwrap();
        assert_eq!((of_model.computed.basis, of_model.measured), (Basis::Scaled, None));
        let listed = memory.learned(Some(7));
        assert!(Arc::ptr_eq(&listed.history, &memory.history), "nothing is copied for it");
        assert_eq!(memory.learned(Some(7)).tell().runs.len(), 1);
        assert_eq!(memory.learned(Some(8)).tell().runs.len(), 0);
        assert_eq!(memory.learned(None).tell().runs[0].command, "python t.py");
    }

    #[test]
    fn what_runs_took_is_known_though_more_is_declared() {
        let (mut memory, a100) = (memory(), gpu("A100", GpuKind::Whole));
        let job = SubmitRequest { gpu_memory_mib: Some(38_000), ..request("python t.py") };
        let took = |memory: &Memory| memory.took(&gist(memory, &job, 7), [&a100].into_iter());
        assert_eq!(took(&memory), None);
        learn(&mut memory, &job, &attempt(30_000, Reason::Cancelled { by: "a".into() }), &[&a100]);
        assert!(expect(&memory, &job, 7, &[&a100]).is_none(), "what its user says counts");
        let less = SubmitRequest { gpu_memory_mib: Some(8_000), ..job.clone() };
        let upper = expect(&memory, &less, 7, &[&a100]).unwrap().computed.upper;
        assert_eq!((took(&memory), upper > MiB(30_000)), (Some(upper), true));
    }

    #[test]
    fn runs_under_another_share_of_jax_are_of_another_task() {
        let (mut memory, a100) = (memory(), gpu("A100", GpuKind::Whole));
        let whole = request("python jj.py");
        let mut fifth = whole.clone();
        fifth.env.insert("XLA_PYTHON_CLIENT_MEM_FRACTION".into(), ".2".into());
        learn(&mut memory, &fifth, &attempt(8400, Reason::Completed), &[&a100]);
        assert!(expect(&memory, &fifth, 7, &[&a100]).is_some());
        assert!(expect(&memory, &whole, 7, &[&a100]).is_none());
    }

    #[test]
    fn others_see_nothing_of_what_a_users_runs_teach() {
        let (mut memory, a100) = (memory(), gpu("A100", GpuKind::Whole));
        let mut job = request("t.py");
        job.estimates = vec![EstimateView {
            need_mib: 3000,
            use_mib: 3000,
            upper_mib: 3000,
            tier: "trace".into(),
            source: "allocator/trace".into(),
            parts: Some(PartsView { context_mib: 500, reserved_mib: 2500, ..PartsView::default() }),
            ..EstimateView::default()
        }];
        learn(&mut memory, &job, &attempt(3100, Reason::Completed), &[&a100]);
        let seen = |of| {
            let learned = memory.learned(of).tell();
            (learned.ratios.len(), learned.contexts.len())
        };
        assert_eq!([seen(None), seen(Some(7)), seen(Some(8))], [(3, 1), (3, 1), (0, 0)]);
        assert_eq!(memory.learned(Some(7)).tell().contexts[0].gpu, "A100");
    }

    #[test]
    fn every_source_has_its_number() {
        let sent = |source: &str, use_mib: u64| EstimateView {
            need_mib: use_mib,
            use_mib,
            upper_mib: 2 * use_mib,
            tier: "formula".into(),
            source: source.into(),
            ..EstimateView::default()
        };
        let mut job = request("t.py");
        job.estimates = vec![
            sent("allocator/summary", 100),
            sent("faketensor/raw", 200),
            sent("faketensor", 300),
            sent("gpumemnet-transformer/hf-config", 400),
            sent("horus", 500),
            // Only carma measures, and nothing is kept of an estimator that it does not know.
            sent("measured", 600),
            sent("oracle", 700),
        ];
        job.horus_mib = Some(50);
        job.gpu_memory_mib = Some(10);
        job.measured_mib = Some(60);
        let known = forecasts(&job, &Gist::of(&job, 7), None);
        let expected = [
            (Estimator::Measured, 60),
            (Estimator::Horus, 50),
            (Estimator::Faketensor, 300),
            (Estimator::Allocator, 200),
            (Estimator::FaketensorRaw, 200),
            (Estimator::GpumemnetTransformer, 400),
        ];
        assert!(known.estimates.iter().eq(expected.map(|(by, mib)| (by, MiB(mib)))), "{known:?}");
        assert_eq!((known.declared, known.computed), (Some(MiB(10)), None));
        let mut memory = memory();
        let a100 = gpu("A100", GpuKind::Whole);
        learn(&mut memory, &job, &attempt(4000, Reason::Completed), &[&a100]);
        let known = forecasts(&job, &Gist::of(&job, 7), expect(&memory, &job, 7, &[&a100]).as_ref());
        assert_eq!(known.estimates.of(Estimator::Measured), Some(MiB(4000)));
        let mut expected = expect(&memory, &job, 7, &[&a100]).unwrap();
        let reasons = expected.view.reasons.clone();
        expected.name_declared(Some(expected.computed.upper));
        assert_eq!(expected.view.reasons, reasons);
        expected.name_declared(Some(MiB(10)));
        let both = format!(
            "{} by earlier runs of the same command, which goes before the 10 MiB declared",
            expected.computed.upper
        );
        assert_eq!(expected.view.reasons[0], both);
    }

    #[test]
    fn what_clients_send_has_a_place_among_the_forecasts() {
        // A share is of the GPU that a job lands on, not a number of MiB.
        let others = ["auto", "declared", "share"];
        let known = |name: &&str| !others.contains(name) && !name.contains('/');
        let names = carma_memory::estimators::names().filter(known);
        let ours = Estimator::ALL.into_iter().filter(|e| *e != Estimator::Measured).map(Estimator::name);
        let (names, ours): (BTreeSet<&str>, BTreeSet<&str>) = (names.collect(), ours.collect());
        assert_eq!(names, ours);
    }

    #[test]
    fn news_goes_to_the_first_jobs_of_the_program_that_wait() {
        let mut memory = memory();
        for id in 1..=1000 {
            let command = if id % 2 == 0 { "even.py" } else { "odd.py" };
            let gist = gist(&memory, &request(&format!("{command} --epochs {id}")), 7);
            memory.await_news(JobId(id), gist);
        }
        // The same program of another user is another.
        memory.await_news(JobId(1001), gist(&memory, &request("odd.py"), 8));
        let runs = |id: JobId| id.0 <= 100;
        let told = memory.news_to(JobId(1), |id| !runs(id));
        assert_eq!((told.len(), told[0], told[255]), (MOST_TOLD, JobId(101), JobId(611)));
        // Those that are over make room for the next.
        (101..=501).for_each(|id| memory.over(JobId(id)));
        assert_eq!(memory.news_to(JobId(1), |id| !runs(id))[0], JobId(503));
        (1..=1001).for_each(|id| memory.over(JobId(id)));
        memory.over(JobId(1));
        assert!(memory.news_to(JobId(1), |_| true).is_empty() && memory.jobs.is_empty());
    }

    #[test]
    fn an_attempt_that_was_moved_is_not_complete() {
        let mut saved = attempt(4000, Reason::RequeuedByUser { by: "a".into() });
        saved.exit = Some(Exit::of(ExitStatus::Code(0)));
        assert!(!observed(&saved).completed && observed(&attempt(4000, Reason::Completed)).completed);
    }

    #[test]
    fn a_job_that_was_evicted_when_it_stood_still_does_not_come_back_for_the_whole_gpu() {
        let evicted = || {
            let (slowdown, limit) = (Fraction(75_400), Fraction(27_800));
            Reason::Evicted(Eviction { job: JobId(3), slowdown, limit, apart: Vec::new(), together: None })
        };
        let upper_after = |verdict: Reason, settled: bool| {
            let (mut memory, a100) = (memory(), gpu("A100", GpuKind::Whole));
            let job = request("t.py");
            let mut ended = attempt(8000, verdict);
            ended.exit = Some(Exit::of(ExitStatus::Signal(15)));
            ended.seen = ended.seen.map(|seen| SeenMemory { settled, ..seen });
            learn(&mut memory, &job, &ended, &[&a100]);
            expect(&memory, &job, 7, &[&a100]).map(|expected| expected.computed.upper)
        };
        assert_eq!(upper_after(evicted(), true), Some(MiB(12_000)));
        // It had not come to its steps, or ended by itself.
        assert_eq!(upper_after(evicted(), false), Some(MiB::gib(40)));
        assert_eq!(upper_after(Reason::ExitUnknown, true), Some(MiB::gib(40)));
    }

    #[test]
    fn running_out_of_memory_is_a_lower_bound() {
        let oom = |blame| Reason::OutOfMemoryRetry {
            blame,
            next: Some(Floor::ExclusiveGpu),
            retries: 1,
            max_retries: 5,
        };
        let cases = [
            (oom(Blame::OwnCap { cap: MiB(6000) }), Some(6000)),
            (oom(Blame::WholeGpu { capacity: MiB(40_960) }), Some(40_960)),
            (oom(Blame::Contention { peak: None }), Some(4000)),
            (oom(Blame::Unknown { peak: None }), Some(4000)),
            (oom(Blame::Neighbour { job: None, pid: None, user: None }), Some(4000)),
            (Reason::Completed, None),
        ];
        for (verdict, expected) in cases {
            assert_eq!(
                observed(&attempt(4000, verdict.clone())).out_of_memory_at,
                expected.map(MiB),
                "{verdict}"
            );
        }
    }

    #[test]
    fn what_a_client_claims_is_kept_within_reason() {
        let view = EstimateView {
            need_mib: u64::MAX,
            use_mib: 0,
            upper_mib: 0,
            tier: "summary".into(),
            source: "allocator/summary".into(),
            reasons: vec!["x\u{7}".repeat(1000); 1000],
            parts: Some(PartsView { context_mib: u64::MAX, ..PartsView::default() }),
            ..EstimateView::default()
        };
        let estimate = from_view(&view).unwrap();
        assert!(estimate.need_mib <= estimate.use_mib && estimate.use_mib <= estimate.upper_mib);
        assert_eq!((estimate.reasons.len(), estimate.reasons[0].len()), (MOST_REASONS, MOST_TEXT));
        // Only the daemon says what earlier runs took.
        for tier in ["exact", "scaled", "declared", "", "oracle"] {
            assert_eq!(from_view(&EstimateView { tier: tier.into(), ..view.clone() }), None);
        }
        // Estimators that the configuration does not name do not count.
        let mut job = request("t.py");
        job.estimates = vec![EstimateView { source: "horus".into(), ..view.clone() }];
        let a100 = gpu("A100", GpuKind::Whole);
        assert!(expect(&memory(), &job, 7, &[&a100]).is_none());
        let config = MemoryConfig { estimators: Some(vec!["horus".into()]), ..MemoryConfig::default() };
        let memory = Memory::new(&config, "1".into(), &[]);
        assert!(expect(&memory, &job, 7, &[&a100]).is_some());
    }

    #[test]
    fn rows_of_another_version_do_not_stop_the_daemon() {
        let rows = [
            HistoryRow { table: history::Table::Program, key: "zz".into(), body: Some("{}".into()) },
            HistoryRow { table: history::Table::Context, key: "a|b|c".into(), body: Some("[1".into()) },
        ];
        let memory = Memory::new(&MemoryConfig::default(), "1".into(), &rows);
        assert_eq!(memory.learned(None).tell().runs.len(), 0);
    }
}

//! The full text of a reason, for those who may read the job.

use super::refusal::holders;
use super::{Aside, Eviction, Filling, Narrowed, NoGpu, Reason, Refusal, UserLimit};
use crate::policy::NeedSource;
use crate::spec::JobId;
use crate::units::{Fraction, MiB};
use std::fmt;

/// A fault under MPS and the jobs that died of it with this one.
pub(super) fn fault_under_mps(others: &[JobId]) -> String {
    let mut text = "a fatal GPU fault under MPS".to_owned();
    if !others.is_empty() {
        let ids: Vec<String> = others.iter().map(ToString::to_string).collect();
        let jobs = if ids.len() == 1 { "job" } else { "jobs" };
        text.push_str(&format!(" took {jobs} {} down", ids.join(", ")));
    }
    text
}

/// What became of the MPS server under a job, and whose doing it is held to be.
pub(super) fn torn_down(culprit: Option<JobId>) -> String {
    match culprit {
        Some(job) => {
            format!("a fatal GPU fault under MPS, put down to job {job}, ended all clients on its GPU")
        }
        None => "the MPS server was torn down under it, or took it on no more".into(),
    }
}

const fn was(gpus: &[u32]) -> &'static str {
    if gpus.len() == 1 { "was" } else { "were" }
}

fn list(gpus: &[u32]) -> String {
    let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
    format!("GPU{} {}", if gpus.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// "20.0 GiB (declared) + 2.0 GiB guard"; `total` includes the guard. `exact`: in mebibytes.
fn amount(total: MiB, guard: MiB, source: Option<NeedSource>, exact: bool) -> String {
    let mut text = (total - guard).text(exact);
    if let Some(source) = source {
        text.push_str(&format!(" ({source})"));
    }
    if guard > MiB::ZERO {
        text.push_str(&format!(" + {} guard", guard.text(exact)));
    }
    text
}

const MILLIS_PER_HOUR: u64 = 3_600_000;

/// A kilowatt for an hour.
const JOULES_PER_KWH: u64 = 3_600_000;

/// In units of so many, with one decimal, rounded down: what is short of a limit must not look as if it had reached it.
fn tenths(amount: u64, unit: u64) -> String {
    let tenths = u128::from(amount) * 10 / u128::from(unit);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// "1 job", "2 jobs".
fn count(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// What a job that found no GPUs is told, by the GPU that came closest; of one that comes back to the GPU that it left, also what takes it
/// to another.
fn no_gpu(
    f: &mut fmt::Formatter<'_>,
    gpus: u32,
    need: (Option<MiB>, MiB, Option<NeedSource>),
    detail: &NoGpu,
) -> fmt::Result {
    closest_gpu(f, gpus, need, detail)?;
    match detail.left_by.filter(|_| detail.may_move) {
        Some(job) => write!(f, "; `carma move {job}` takes it to another one"),
        None => Ok(()),
    }
}

fn closest_gpu(
    f: &mut fmt::Formatter<'_>,
    gpus: u32,
    (need, guard, source): (Option<MiB>, MiB, Option<NeedSource>),
    detail: &NoGpu,
) -> fmt::Result {
    if let Some(left) = detail.too_few_left(gpus) {
        let are = if left == 1 { "1 is" } else { &format!("{left} are") };
        return write!(
            f,
            "it asks for {gpus} GPUs, and {are} left in this machine: it cannot start until there are more"
        );
    }
    let all = detail.refusals.len() + detail.fitting as usize;
    let Some((index, refusal)) = detail.closest() else {
        return f.write_str("there is no GPU");
    };
    if let (Refusal::Busy { holders: h }, Some(_)) = (refusal, detail.left_by) {
        write!(f, "GPU {index}, which it left, is in use")?;
        return holders(f, h);
    }
    if matches!(refusal, Refusal::Busy { holders } if !holders.is_empty()) {
        return match (gpus, all) {
            (1, 1) => f.write_str("needs an idle GPU; the only one is in use"),
            (1, _) => write!(f, "needs an idle GPU; none of {all} is idle"),
            (_, _) => write!(f, "needs {gpus} idle GPUs; {} of {all} idle", detail.fitting),
        };
    }
    if gpus > 1 {
        write!(f, "{} of {gpus} GPUs found; ", detail.fitting)?;
    }
    if let Refusal::Memory { free, holders: h } = refusal {
        let exact = need.is_some_and(|need| need.only_looks_like(*free));
        if let Some(need) = need {
            write!(f, "need {}; ", amount(need, guard, source, exact))?;
        }
        write!(f, "best is GPU {index} with {} free", free.text(exact))?;
        return holders(f, h);
    }
    if detail.refusals.len() > 1 {
        f.write_str("closest is ")?;
    }
    // Another may have its index by now.
    let once = if *refusal == Refusal::Gone { "once " } else { "" };
    write!(f, "{once}GPU {index}: {refusal}")
}

impl fmt::Display for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, memory, free, left, held, exceeded } = self;
        write!(f, "GPU {gpu} was about to run full, {free} of {memory} free")?;
        if left < free {
            write!(f, " ({} of it reserved for others)", *free - *left)?;
        }
        write!(f, "; it was the last to come of the jobs that grow, and held {held}")?;
        match exceeded {
            Some(reserved) => write!(f, " where no more than {reserved} could be reserved"),
            None => Ok(()),
        }
    }
}

/// Of a job that is to end, and why.
pub(super) fn ending(why: &str) -> String {
    format!("it is being ended: {why}")
}

/// Of a job that was slowed down by too much: by the limit that was asked for, or by the policy's, of which its user need not know.
fn slowed_down(
    job: JobId,
    slowdown: Fraction,
    limit: Fraction,
    by_policy: bool,
    together: Option<Fraction>,
) -> String {
    if let Some(together) = together {
        format!("it and its neighbours, job {job} among them, did {together} together of what one does alone")
    } else if by_policy {
        format!(
            "job {job} was slowed down by {slowdown}, and the policy lets no job be slowed down by more than {limit}"
        )
    } else {
        format!("job {job} was slowed down by {slowdown}, and its limit is {limit}")
    }
}

/// Why the policy suspended a job, and what the job waits for.
pub(super) fn set_aside(cause: &Aside, waits: Option<String>) -> String {
    let why = match cause {
        Aside::GrowthGuard(filling) => format!("growth guard: {filling}"),
        Aside::Evicted { job, slowdown, limit, by_policy, together } => {
            slowed_down(*job, *slowdown, *limit, *by_policy, *together)
        }
        Aside::Room { job } => format!("it makes room for job {job}"),
        Aside::Spread => "it moves to an idle GPU".to_owned(),
    };
    let waits =
        waits.map_or_else(|| "comes back by itself".into(), |waits| format!("waits for room: {waits}"));
    format!("suspended by carma: {why}; {waits}")
}

/// The limit that a user has reached.
fn user_limit(user: &str, limit: &UserLimit) -> String {
    match limit {
        UserLimit::Jobs { most } => format!("{user} may have {} running at once", count(*most, "job")),
        UserLimit::Gpus { wanted, used, most } => {
            format!("asks for {}; {user} has {used} of at most {most}", count(*wanted, "GPU"))
        }
        UserLimit::GpuHours { used, most, left } => {
            let (used, most) = (tenths(used.0, MILLIS_PER_HOUR), count(*most, "GPU-hour"));
            format!("{user} has used {used} of {most} in this period; the next one begins in {left}")
        }
        UserLimit::Energy { used_j, most_j, left } => {
            let (unit, name) = if *most_j < JOULES_PER_KWH { (1000, "kJ") } else { (JOULES_PER_KWH, "kWh") };
            let (used, most) = (tenths(*used_j, unit), tenths(*most_j, unit));
            format!("{user} has used {used} of {most} {name} in this period; the next one begins in {left}")
        }
    }
}

impl fmt::Display for Narrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { percent, job, limit, upper, keeps } = self;
        write!(f, "{percent} % of the threads, so that job {job} keeps its limit of {limit}")?;
        if let (Some(upper), Some(keeps)) = (upper, keeps) {
            write!(
                f,
                " (with all of them this one would keep {keeps}, job {job} be slowed down by up to {upper})"
            )?;
        }
        Ok(())
    }
}

impl Reason {
    /// The text of [`Self::PlacedShared`].
    fn placed_shared(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::PlacedShared {
            gpus,
            need,
            source,
            fullest,
            free,
            neighbours,
            smact,
            order,
            candidates,
            sharing,
            predicted,
            over,
            threads,
            floor,
        } = self
        else {
            return Ok(());
        };
        let reserved = need.map_or("nothing".into(), |m| amount(m, MiB::ZERO, *source, false));
        let (on, others) = (list(gpus), count(*neighbours, "other"));
        write!(f, "{on} shared by {sharing}: {reserved} reserved of {free} free beside {others}")?;
        if let Some(gpu) = fullest {
            write!(f, " on GPU {gpu}")?;
        }
        if let Some(smact) = smact {
            write!(f, ", SMACT {smact}")?;
        }
        if *candidates as usize > gpus.len() {
            write!(f, "; {} of {candidates} that would do", order.describe())?;
        } else {
            f.write_str("; no other would do")?;
        }
        if let Some(narrowed) = threads {
            write!(f, "; {narrowed}")?;
        }
        if let Some(floor) = floor {
            write!(f, "; {floor} of its speed is enough, since it has waited for long")?;
        }
        for (i, task) in predicted.iter().enumerate() {
            let before = if i == 0 { "; predicted progress: " } else { ", " };
            write!(f, "{before}job {} {}", task.job, task.expected)?;
        }
        if !over.is_empty() {
            let jobs: Vec<String> = over.iter().map(|job| format!("job {job}")).collect();
            write!(f, "; expected to be over by then: {}", jobs.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlacedIdle { gpus, need, source } => match need {
                Some(need) => {
                    let need = amount(*need, MiB::ZERO, *source, false);
                    write!(f, "{} {} idle; {need} reserved", list(gpus), was(gpus))
                }
                None => write!(f, "{} {} idle", list(gpus), was(gpus)),
            },
            Self::PlacedShared { .. } => self.placed_shared(f),
            Self::NoGpu { gpus, need, guard, source, detail } => {
                write!(f, "{}(", self.code())?;
                no_gpu(f, *gpus, (*need, *guard, *source), detail)?;
                f.write_str(")")
            }
            Self::Behind { job, overtaken_for: None } => {
                write!(f, "Priority(job {job} is first, and may not be overtaken)")
            }
            Self::Behind { job, overtaken_for: Some(t) } => {
                write!(f, "Priority(job {job} is first and has waited for more than {t})")
            }
            Self::Later { last } => {
                write!(f, "Priority(those before it go first, and up to job {last} none of them finds room)")
            }
            Self::UserLimit { user, limit } => write!(f, "UserLimit({})", user_limit(user, limit)),
            Self::Held { by, operator: false } => write!(f, "Held(by {by}; `carma release` lets it go)"),
            Self::Held { by, operator: true } => {
                write!(f, "Held(by {by}; only an operator or root may let it go)")
            }
            Self::UserGone { user, uid, now: Some(now) } => {
                write!(
                    f,
                    "UserGone(user {uid} was {user} when this was submitted and is {now} now, as whom it is not started; \
                     an operator may `carma cancel` it)"
                )
            }
            Self::UserGone { user, uid, now: None } => {
                write!(
                    f,
                    "UserGone(there is no user {user}, {uid}, any more; `carma cancel` it, or `carma release` it once the \
                     user is back)"
                )
            }
            Self::Pause { error, .. } => write!(f, "LaunchPause({error}; tried again in a moment)"),
            Self::Launching => f.write_str("starting"),
            Self::NotPlannedYet => f.write_str("just submitted"),
            Self::Judging => {
                f.write_str("JudgingFault(it died of a fault under MPS; whose is being found out)")
            }
            Self::Completed => f.write_str("completed"),
            Self::CommandFailed { status, evidence } => {
                write!(f, "the command failed: {status}")?;
                match evidence {
                    Some(e) => write!(f, "; log: {}", e.line),
                    None => Ok(()),
                }
            }
            Self::NotStarted { why } => write!(f, "the command was not started: {why}"),
            Self::NotLaunched { why } => {
                write!(f, "not started, through no fault of its own: {why}; it is tried again")
            }
            Self::LaunchFailed { error } => write!(f, "could not be started: {error}"),
            Self::ExitUnknown => {
                f.write_str("its supervisor is gone, so nobody saw how it ended; its log may tell")
            }
            Self::Cancelled { by } => write!(f, "cancelled by {by}"),
            Self::RequeuedByUser { by } => write!(f, "put back into the queue by {by}"),
            Self::Evicted(eviction) => {
                let Eviction { job, slowdown, limit, apart: _, together } = *eviction;
                let why = slowed_down(job, slowdown, limit, eviction.is_by_policy(), together);
                write!(f, "evicted: {why}; requeued without charge")
            }
            Self::GrowthGuard { filling, next } => {
                write!(f, "growth guard: {filling}; requeued without charge")?;
                match next {
                    Some(next) => write!(f, ", with {next}"),
                    None => Ok(()),
                }
            }
            Self::MadeRoom { job } => write!(f, "made room for job {job}; requeued without charge"),
            Self::SetAside { cause, waits } => {
                f.write_str(&set_aside(cause, waits.as_ref().map(ToString::to_string)))
            }
            Self::Suspended { by, host } => {
                write!(f, "suspended by {by}; `carma resume` lets it go on")?;
                match *host {
                    MiB::ZERO => Ok(()),
                    host => write!(f, "; {host} of its memory are in the host's"),
                }
            }
            Self::Ending { why } => f.write_str(&ending(&why.to_string())),
            Self::Moving { off: true } => f.write_str("it is being suspended"),
            Self::Moving { off: false } => f.write_str("it is being put back on its GPU"),
            Self::Moved { by, from } => write!(f, "moved here from GPU {from} by {by}"),
            Self::RunsOn { why } => write!(f, "could not be suspended or moved, and runs on: {why}"),
            Self::NotResumed { why, until: _ } => {
                write!(f, "NotResumed(it stays suspended: {why}; tried again in a moment)")
            }
            Self::Stuck { why } => {
                write!(f, "could neither run nor stay suspended: {why}; requeued without charge")
            }
            Self::TimeLimit { limit } => write!(f, "over its time limit of {limit}"),
            Self::OutOfMemoryRetry { blame, next, retries, max_retries } => {
                write!(f, "out of GPU memory: {blame}; retried")?;
                if let Some(next) = next {
                    write!(f, " with {next}")?;
                }
                match (blame.is_own_fault(), max_retries) {
                    (false, _) => f.write_str(" (not charged to its retries)"),
                    (true, most) if retries <= most => write!(f, " (retry {retries} of {most})"),
                    (true, 1) => f.write_str(" (beyond its only retry, since there is a larger GPU)"),
                    (true, most) => write!(f, " (beyond its {most} retries, since there is a larger GPU)"),
                }
            }
            Self::OutOfMemoryFinal { blame, why } => write!(f, "out of GPU memory: {blame}; {why}"),
            Self::HostOutOfMemory { line } => {
                write!(f, "out of host memory, which another GPU does not help; log: {line}")
            }
            Self::HostMemoryLimit { limit, peak, killed: _ } => {
                match limit {
                    Some(limit) => write!(f, "out of host memory: it reached its limit of {limit}")?,
                    None => f.write_str("out of host memory: the machine had none left")?,
                }
                if let Some(peak) = peak {
                    write!(f, "; it had {peak} at most")?;
                }
                f.write_str("; the kernel killed it (memory.events of its cgroup)")
            }
            Self::FaultVictim { culprit, line } => {
                write!(f, "{}; requeued without charge; log: {line}", torn_down(*culprit))
            }
            Self::FaultSuspect { line, others, because } => {
                let text = fault_under_mps(others);
                let last = "requeued without charge, to run outside MPS";
                write!(f, "{text}, and this job is suspected ({because}); {last}; log: {line}")
            }
            Self::FaultCulprit { line, victims, because } => {
                let text = fault_under_mps(victims);
                write!(f, "{text} ({because}); this command no longer runs under MPS; log: {line}")
            }
            Self::GpuLost { line } => write!(f, "its GPU went away: {line}"),
        }
    }
}

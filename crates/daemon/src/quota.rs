//! What users may submit: the limits of `[limits]` that are no matter of placement.

use crate::config::limits::UserLimits;
use crate::refused::Refused;
use carma_api::wire::SubmitRequest;
use carma_core::model::JobId;
use carma_core::state::Usage;
use carma_core::units::MiB;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

/// What the submissions of all live jobs take, by user. The journal stores equal environments once, so they count once;
/// the rest (commands, paths, estimates) counts for each job.
#[derive(Default)]
pub struct Submissions {
    /// By a hash with keys of this process: no user can make two environments that pass for one.
    hasher: RandomState,
    /// User, hash of the environment, bytes of the rest.
    jobs: BTreeMap<JobId, (u32, u64, u64)>,
    users: HashMap<u32, OfUser>,
}

#[derive(Default)]
struct OfUser {
    bytes: u64,
    /// Size and number of jobs by hash.
    kinds: HashMap<u64, (u64, u32)>,
}

/// What an environment takes.
fn size(env: &BTreeMap<String, String>) -> u64 {
    env.iter().map(|(key, value)| key.len() as u64 + value.len() as u64 + 2).sum()
}

impl Submissions {
    /// What a user's would take with this one, of which `rest` is not environment.
    fn with(&self, uid: u32, env: &BTreeMap<String, String>, rest: u64) -> u64 {
        let Some(user) = self.users.get(&uid) else { return size(env) + rest };
        let known = user.kinds.contains_key(&self.hasher.hash_one(env));
        user.bytes + rest + if known { 0 } else { size(env) }
    }

    /// A job was accepted.
    pub fn add(&mut self, job: JobId, uid: u32, env: &BTreeMap<String, String>, rest: u64) {
        let hash = self.hasher.hash_one(env);
        let user = self.users.entry(uid).or_default();
        let (size, jobs) = user.kinds.entry(hash).or_insert_with(|| (size(env), 0));
        if *jobs == 0 {
            user.bytes += *size;
        }
        *jobs += 1;
        user.bytes += rest;
        self.jobs.insert(job, (uid, hash, rest));
    }

    /// A job is over.
    pub fn over(&mut self, job: JobId) {
        let Some((uid, hash, rest)) = self.jobs.remove(&job) else { return };
        let Some(user) = self.users.get_mut(&uid) else { return };
        user.bytes -= rest;
        if let Some((size, jobs)) = user.kinds.get_mut(&hash) {
            *jobs -= 1;
            if *jobs == 0 {
                user.bytes -= *size;
                user.kinds.remove(&hash);
            }
        }
        if user.kinds.is_empty() {
            self.users.remove(&uid);
        }
    }
}

/// Bytes as people write them.
fn amount(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..10_485_760 => format!("{} KiB", bytes.div_ceil(1024)),
        _ => MiB(bytes.div_ceil(1 << 20)).to_string(),
    }
}

/// Bytes of a size in a configuration.
const fn bytes(mib: MiB) -> u64 {
    mib.0.saturating_mul(1 << 20)
}

/// Whether a user may submit this job at all.
///
/// # Errors
/// 403 for what the user may never have: which limit, how much there is, what to do.
pub fn may_ever(request: &SubmitRequest, limits: &UserLimits) -> Result<(), Refused> {
    let never = |text: String| Err(Refused::new(403, "not_allowed", text));
    let (priority, min, max) = (request.priority, limits.priority_min, limits.priority_max);
    if priority > max {
        return never(format!(
            "priority {priority} is above {max}, the highest that you may give (limits.priority-max); higher ones are for operators and root"
        ));
    }
    if priority < min {
        return never(format!(
            "priority {priority} is below {min}, the lowest that there is for you (limits.priority-min)"
        ));
    }
    let wanted = request.gpus.unwrap_or(1);
    if let Some(most) = limits.gpus.filter(|most| wanted > *most) {
        return never(format!(
            "the job asks for {wanted} GPUs, and you may have {most} at once (limits.gpus): ask for fewer"
        ));
    }
    if limits.running_jobs == Some(0) {
        return never("you may run no jobs here (limits.running-jobs = 0): ask the administrator".into());
    }
    let own = size(&request.env);
    if let Some(most) = limits.environment.filter(|most| own > bytes(*most)) {
        return never(format!(
            "the job's environment takes {}, and {most} is allowed (limits.environment): unset what the job does not need",
            amount(own)
        ));
    }
    Ok(())
}

fn later(text: String) -> Refused {
    Refused::new(429, "limit", text)
}

/// Whether one more job of a user may wait now, whatever it is.
///
/// # Errors
/// 429 where too many wait.
pub fn may_wait(limits: &UserLimits, usage: Usage) -> Result<(), Refused> {
    match limits.pending_jobs.filter(|most| usage.waiting >= *most) {
        Some(most) => Err(later(format!(
            "you have {} jobs waiting, and {most} may (limits.pending-jobs): submit more when some have started, or cancel some",
            usage.waiting
        ))),
        None => Ok(()),
    }
}

/// Whether a user may submit this job now; `rest`: bytes that it takes beside its environment.
///
/// # Errors
/// 429 for what is too much now: which limit, how much there is, what to do.
pub fn may_now(
    (request, rest): (&SubmitRequest, u64),
    uid: u32,
    limits: &UserLimits,
    usage: Usage,
    submissions: &Submissions,
) -> Result<(), Refused> {
    may_wait(limits, usage)?;
    let all = submissions.with(uid, &request.env, rest);
    if let Some(most) = limits.environment_total.filter(|most| all > bytes(*most)) {
        return Err(later(format!(
            "with this job the environments and commands of your jobs would take {}, and {most} is allowed (limits.environment-total): submit it when some are over, or give jobs the same environment, which counts once",
            amount(all)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submission::Submission;

    fn one(key: &str, kib: usize) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), "x".repeat(kib * 1024))])
    }

    /// Of so many KiB, in variables of half of what the system takes at most.
    fn env(key: &str, kib: usize) -> BTreeMap<String, String> {
        let parts = (0..kib).step_by(64).map(|at| 64.min(kib - at));
        parts.enumerate().map(|(n, part)| (format!("{key}{n}"), "x".repeat(part * 1024))).collect()
    }

    fn check(
        request: &SubmitRequest,
        uid: u32,
        limits: &UserLimits,
        usage: Usage,
        submissions: &Submissions,
    ) -> Result<u64, Refused> {
        let submission = Submission::check(request.clone(), uid, limits)?;
        may_now((submission.request(), submission.rest()), uid, limits, usage, submissions)
            .map(|()| submission.rest())
    }

    fn refused(request: &SubmitRequest, limits: &UserLimits, usage: Usage) -> (u16, String) {
        let refused = check(request, 1, limits, usage, &Submissions::default()).unwrap_err();
        (refused.status, refused.text)
    }

    #[test]
    fn equal_environments_count_once_and_are_given_back() {
        let mut all = Submissions::default();
        for n in 0..100 {
            all.add(JobId(n), 1, &one("A", 1000), 10);
        }
        all.add(JobId(100), 1, &one("B", 500), 10);
        all.add(JobId(101), 2, &one("C", 1), 10);
        assert_eq!(all.with(1, &one("A", 1000), 10), 1500 * 1024 + 6 + 1020);
        assert_eq!(all.with(1, &one("D", 1), 0), 1501 * 1024 + 9 + 1010);
        assert_eq!(all.with(3, &one("A", 1), 5), 1024 + 3 + 5);
        for n in (0..=101).chain(0..2) {
            all.over(JobId(n));
        }
        assert!(all.jobs.is_empty() && all.users.is_empty());
    }

    #[test]
    fn a_refusal_says_the_limit_the_number_and_what_to_do() {
        let (limits, none) = (UserLimits::default(), Usage::default());
        let job = || SubmitRequest { command: vec!["x".into()], cwd: "/".into(), ..SubmitRequest::default() };
        assert!(check(&job(), 1, &limits, none, &Submissions::default()).is_ok());
        let (status, text) = refused(&SubmitRequest { priority: i32::MAX, ..job() }, &limits, none);
        assert!(status == 403 && text.contains("2147483647 is above 0"), "{text}");
        let (status, text) = refused(&SubmitRequest { priority: -1001, ..job() }, &limits, none);
        assert!(status == 403 && text.contains("below -1000"), "{text}");
        let (status, text) = refused(&SubmitRequest { env: env("A", 1024), ..job() }, &limits, none);
        assert!(status == 403 && text.contains("takes 1025 KiB, and 1 MiB is allowed"), "{text}");
        let full = Usage { waiting: 10_000, ..none };
        let (status, text) = refused(&job(), &limits, full);
        assert!(status == 429 && text.contains("10000 jobs waiting"), "{text}");
        let few = UserLimits { gpus: Some(1), ..limits };
        let (status, text) = refused(&SubmitRequest { gpus: Some(2), ..job() }, &few, none);
        assert!(status == 403 && text.contains("asks for 2 GPUs, and you may have 1"), "{text}");
        let mut submissions = Submissions::default();
        for n in 0..64 {
            submissions.add(JobId(n), 1, &env(&format!("K{n}"), 1000), 100);
        }
        let large = SubmitRequest { env: env("L", 1000), ..job() };
        let of = |uid| check(&large, uid, &limits, none, &submissions);
        assert!(of(1).is_ok(), "62.5 + 1 MiB");
        for n in 64..66 {
            submissions.add(JobId(n), 1, &env(&format!("K{n}"), 1000), 100);
        }
        let refused = check(&large, 1, &limits, none, &submissions).unwrap_err();
        assert!(refused.status == 429 && refused.text.contains("environment-total"), "{}", refused.text);
        assert!(check(&large, 2, &limits, none, &submissions).is_ok());
        // What is no environment counts for each job.
        let mut submissions = Submissions::default();
        let long = SubmitRequest { command: vec!["x".repeat(100_000); 10], ..job() };
        for n in 0..67 {
            let rest = check(&long, 1, &limits, none, &submissions).unwrap();
            submissions.add(JobId(n), 1, &long.env, rest);
        }
        let refused = check(&long, 1, &limits, none, &submissions).unwrap_err();
        assert!(
            refused.status == 429 && refused.text.contains("environments and commands"),
            "{}",
            refused.text
        );
        assert!(check(&large, 1, &UserLimits::NONE, full, &submissions).is_ok());
    }
}

//! `carma predict`: how far tasks that share a GPU will slow each other down, and which go well together.

mod observe;
mod render;

use super::{Context, encoded};
use crate::cli::predict::PredictArgs;
use carma_api::wire::SlowdownsReply;
use carma_cli::failure::{Failure, Outcome};
use carma_cli::{Column, Screen, Table, clean, figure, print, print_json};
use carma_core::model::SharingMode;
use carma_interference::group::{Forecast, GpuType, Group, Member, Mode, Objective};
use carma_interference::kace::trained::Trained;
use carma_interference::measured::{Measured, text_of};
use carma_interference::online::SlowdownModel;
use carma_interference::outlook::mode;
use carma_interference::predict::best_split;
use carma_interference::predict::policy::{Lacks, Policy, share_progress};
use carma_interference::profile::{NOT_READ, Profile, Profiles};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Most that is read of any file.
const MOST_BYTES: u64 = 256 << 20;

/// What `--threads best` says where it finds none.
const NO_SPLIT: &str =
    "best: no limits; no split of the threads in steps of 10 % is predicted to do better\n";

/// Runs the verb.
pub(crate) fn run(context: &Context, args: &PredictArgs) -> Outcome {
    if let Some(file) = &args.observe {
        return observe::run(args, file);
    }
    let mut known = Known::load(args)?;
    let (profiles, sharing) = match &args.profiles {
        Some(file) => (profiles(file)?, Mode::Mps),
        None => known.ask(context, args)?,
    };
    warn_of_unread(args, &profiles);
    let gpu = gpu(args, &profiles);
    let sharing = args.sharing.unwrap_or(sharing);
    let jobs = args.jobs.iter().map(u64::to_string);
    let names = args.members.iter().cloned().chain(jobs).collect();
    let asked = Asked { args, names, sharing, profiles: &profiles, gpu: &gpu, known: &known };
    if let Some(target) = &args.target { asked.rank(target) } else { asked.group() }
}

fn read(path: &Path) -> Result<String, Failure> {
    carma_files::read_text(path, MOST_BYTES).map_err(|e| Failure::usage(e.to_string()))
}

/// A file of measurements, or the log of a measurement under way, whose last line may be torn.
fn read_measured(path: &Path) -> Result<String, Failure> {
    let bytes = carma_files::read(path, MOST_BYTES).map_err(|e| Failure::usage(e.to_string()))?;
    // What is wrong with other bytes, reading them as text says.
    text_of(bytes).or_else(|_| read(path))
}

/// Profiles from a file of their own, or from one of measurements, which holds them too.
fn profiles(file: &Path) -> Result<Profiles, Failure> {
    let text = read_measured(file)?;
    // Its tasks without numbers would pass for profiles: what is wrong with it must be said.
    let mut profiles = if Measured::is_meant(&text) {
        Measured::read(&text).map_err(|e| bad(file, &e))?.profiles
    } else {
        Profiles::read(&text).map_err(|e| bad(file, &e))?
    };
    // Asked of another type, it is doubted whose word for it is the file's.
    for task in &mut profiles.tasks {
        task.gpu = task.gpu.take().or_else(|| profiles.gpu.clone());
    }
    Ok(profiles)
}

/// A misspelt metric is as good as none, which widens bounds without a word.
fn warn_of_unread(args: &PredictArgs, profiles: &Profiles) {
    let groups = args.members.iter().chain(&args.target).chain(&args.candidates);
    let named: Vec<&str> = groups.flat_map(|names| names.split('+')).map(str::trim).collect();
    for task in profiles.tasks.iter().filter(|task| named.contains(&task.name.as_str())) {
        for remark in task.remarks.iter().filter(|remark| remark.starts_with(NOT_READ)) {
            eprintln!("{}", clean(&format!("note: task `{}`: {remark}", task.name)));
        }
    }
}

/// A model of `carma lab kace train`.
///
/// # Errors
/// The file cannot be read, or is none.
pub(crate) fn kace_model(path: &Path) -> Result<Trained, Failure> {
    let text = read(path)?;
    Trained::read(&path.display().to_string(), &text).map_err(|e| Failure::usage(e.to_string()))
}

fn bad(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

/// The files beside the profiles.
struct Known {
    model: SlowdownModel,
    kace: Option<Trained>,
    measured: Option<Measured>,
}

impl Known {
    fn load(args: &PredictArgs) -> Result<Self, Failure> {
        let model = match &args.model {
            Some(path) => SlowdownModel::read(&read(path)?).map_err(|e| bad(path, &e))?,
            None => SlowdownModel::shipped(),
        };
        let kace = match &args.kace_model {
            Some(path) => Some(kace_model(path)?),
            None => Trained::shipped(),
        };
        let measured = match &args.measured {
            Some(path) => Some(Measured::read(&read_measured(path)?).map_err(|e| bad(path, &e))?),
            None => None,
        };
        Ok(Self { model, kace, measured })
    }

    /// What the daemon knows of the jobs that are named, and how jobs share there. Its model is taken, unless
    /// another is given.
    fn ask(&mut self, context: &Context, args: &PredictArgs) -> Result<(Profiles, Mode), Failure> {
        let named = args.members.iter().chain(&args.target).chain(&args.candidates);
        let mut jobs: Vec<u64> = args.jobs.clone();
        for name in named.flat_map(|names| names.split('+')) {
            jobs.push(name.trim().parse().map_err(|_| {
                Failure::usage(format!("'{name}' is no number of a job"))
                    .hint("without --profiles FILE the tasks are jobs of the daemon")
            })?);
        }
        jobs.sort_unstable();
        jobs.dedup();
        let numbers: Vec<String> = jobs.iter().map(u64::to_string).collect();
        let of_type = args.gpu.as_ref().map_or_else(String::new, |gpu| format!("&gpu={}", encoded(gpu)));
        let path = format!("/v1/slowdowns?jobs={}{of_type}", numbers.join(","));
        let reply: SlowdownsReply = context.client()?.get(&path)?;
        if let Some(unknown) = reply.unknown.first() {
            return Err(Failure::usage(format!(
                "job {unknown} was not seen alone on a {} yet, so nothing can be predicted of it",
                clean(&reply.gpu)
            ))
            .hint("a job is profiled in its first half minute alone on a GPU; or use `carma profile` and --profiles"));
        }
        let wrong = |e: String| Failure::new(format!("the daemon's answer is not understood: {e}"));
        let profiles = Profiles::read(&reply.profiles.to_string()).map_err(|e| wrong(e.to_string()))?;
        if args.model.is_none() {
            self.model = SlowdownModel::read(&reply.model.to_string()).map_err(|e| wrong(e.to_string()))?;
        }
        Ok((profiles, mode(reply.sharing.unwrap_or(SharingMode::TimeSlice))))
    }
}

/// `a=60,b=30,a=10`: percentages by name, in order.
fn percentages(threads: &str) -> Result<BTreeMap<&str, Vec<f64>>, Failure> {
    let mut by_name = BTreeMap::<&str, Vec<f64>>::new();
    for part in threads.split(',') {
        let pct = part.rsplit_once('=').and_then(|(name, pct)| Some((name, pct.trim().parse().ok()?)));
        let (name, pct) = pct.ok_or_else(|| {
            Failure::usage(format!("--threads: `{part}`, expected NAME=PERCENT, or `best` alone"))
        })?;
        by_name.entry(name.trim()).or_default().push(pct);
    }
    Ok(by_name)
}

fn gpu(args: &PredictArgs, profiles: &Profiles) -> GpuType {
    let measured_on = || profiles.tasks.iter().find_map(|t| t.gpu.as_deref());
    GpuType::named(args.gpu.as_deref().or(profiles.gpu.as_deref()).or_else(measured_on).unwrap_or(""))
}

/// What was asked, about which tasks, of which predictor.
struct Asked<'a> {
    args: &'a PredictArgs,
    /// The group's members.
    names: Vec<String>,
    sharing: Mode,
    profiles: &'a Profiles,
    gpu: &'a GpuType,
    known: &'a Known,
}

impl Asked<'_> {
    fn profile(&self, name: &str) -> Result<&Profile, Failure> {
        self.profiles.task(name.trim()).map_err(|e| Failure::usage(e.to_string()))
    }

    /// Members with their thread percentages; `--threads best` is looked for.
    fn members(&self) -> Result<Vec<Member<'_>>, Failure> {
        let mut members = Vec::new();
        for name in &self.names {
            members.push(Member::of(self.profile(name)?));
        }
        let Some(threads) = &self.args.threads else { return Ok(members) };
        if self.sharing != Mode::Mps {
            return Err(Failure::usage("--threads: only MPS knows thread percentages; take --sharing mps"));
        }
        if threads == "best" {
            if self.args.policy != "online" {
                return Err(Failure::usage(format!(
                    "--threads best: only policy online looks for a split, not {}",
                    self.args.policy
                ))
                .hint("leave --policy out, or say the percentages: --threads NAME=PERCENT,..."));
            }
            return best_split(&self.known.model, self.gpu, &members, self.args.objective)
                .map_err(|e| Failure::usage(format!("--threads best: {e}")));
        }
        for (name, pcts) in percentages(threads)? {
            let mut named: Vec<_> = members.iter_mut().filter(|m| m.profile.name == name).collect();
            if named.is_empty() {
                return Err(Failure::usage(format!("--threads: `{name}` is not in --group")));
            }
            // One percentage is for all of that name.
            if pcts.len() > 1 && pcts.len() != named.len() {
                return Err(Failure::usage(format!(
                    "--threads: {} percentages for `{name}`, which is in --group {} times; give one for all, or one each",
                    pcts.len(),
                    named.len()
                )));
            }
            for (member, pct) in named.iter_mut().zip(pcts.iter().cycle()) {
                member.threads_pct = Some(*pct);
            }
        }
        Ok(members)
    }

    fn of<'a>(&'a self, members: &'a [Member<'a>]) -> Group<'a> {
        Group { gpu: self.gpu, sharing: self.sharing, members }
    }

    /// The policy's value of a group, and what it says of each task.
    fn judge(&self, group: &Group<'_>) -> Result<(f64, Said), Failure> {
        group.check().map_err(|e| Failure::usage(e.to_string()))?;
        let fail = |e: Lacks| Failure::usage(e.to_string());
        let policy = match self.args.policy.as_str() {
            "share" => Policy::Share,
            "memcap" => Policy::Memcap,
            "sm" => Policy::Sm,
            "mem" => Policy::Mem,
            "random" => Policy::Random,
            "kace" => match &self.known.kace {
                Some(trained) => Policy::Kace(trained),
                None => {
                    return Err(Failure::new("the KACE model that carma ships cannot be read")
                        .hint("train one with `carma lab kace train`, then give --kace-model FILE"));
                }
            },
            "xu" => {
                return Err(Failure::usage(
                    "policy xu needs PCIe bandwidths and kernel lengths, which solo profiles do not hold: placing by \
                     kernel length is covered by a patent",
                )
                .hint("`carma lab kace eval` compares it offline, on KACE's own data"));
            }
            "oracle" => return self.oracle(group),
            _ => Policy::Online(&self.known.model),
        };
        let score = policy.score(group, self.args.objective).map_err(fail)?;
        let said = match policy {
            Policy::Online(model) => {
                Said::Forecast(model.predict(group).map_err(|e| Failure::usage(e.to_string()))?)
            }
            Policy::Share => Said::Progress(share_progress(group).map_err(fail)?),
            Policy::Kace(_) | Policy::Memcap | Policy::Sm | Policy::Mem | Policy::Random => Said::Score,
        };
        Ok((score, said))
    }

    /// What was measured of that very group.
    fn oracle(&self, group: &Group<'_>) -> Result<(f64, Said), Failure> {
        let Some(measured) = &self.known.measured else {
            return Err(Failure::usage(
                "policy oracle is hindsight: it needs what was measured of every group",
            )
            .hint("give --measured FILE, as `carma bench interference` writes it"));
        };
        let pct = |member: &Member<'_>| member.threads_pct.unwrap_or(100.0).round() as u8;
        // Each with its position, so that a task of one order is found in another.
        let mut wanted: Vec<(&str, u8, usize)> =
            (0..).zip(group.members).map(|(at, m)| (m.profile.name.as_str(), pct(m), at)).collect();
        wanted.sort_unstable();
        let mut progress = vec![0.0; wanted.len()];
        let (mut sum, mut count) = (0.0, 0_u32);
        for window in
            measured.combinations.iter().filter(|w| w.sharing == group.sharing && !w.progress.is_empty())
        {
            let of = |i: usize| window.threads_pct.get(i).copied().unwrap_or(100);
            let names = window.members.iter().enumerate().map(|(i, name)| (name.as_str(), of(i), i));
            let mut names: Vec<(&str, u8, usize)> = names.collect();
            names.sort_unstable();
            let pairs = || names.iter().zip(&wanted);
            if names.len() == wanted.len() && pairs().all(|(a, b)| (a.0, a.1) == (b.0, b.1)) {
                for ((.., from), (.., to)) in pairs() {
                    progress[*to] += window.progress.get(*from).copied().unwrap_or_default();
                }
                sum += match self.args.objective {
                    Objective::WeightedSpeedup => window.progress.iter().sum::<f64>(),
                    Objective::MaxMin => window.progress.iter().copied().fold(f64::INFINITY, f64::min),
                    Objective::Throughput => window.rates.iter().sum::<f64>(),
                };
                count += 1;
            }
        }
        if count == 0 {
            let names: Vec<&str> = wanted.iter().map(|(name, ..)| *name).collect();
            return Err(Failure::usage(format!(
                "policy oracle: {} under {} was not measured",
                names.join(" + "),
                group.sharing
            )));
        }
        progress.iter_mut().for_each(|progress| *progress /= f64::from(count));
        Ok((sum / f64::from(count), Said::Progress(progress)))
    }

    fn group(&self) -> Outcome {
        let members = self.members()?;
        let group = self.of(&members);
        let (score, said) = self.judge(&group)?;
        if self.args.json {
            let mut whole = self.head();
            let mut answer = said.json(&members);
            if !matches!(said, Said::Forecast(_)) {
                answer["score"] = json!(score);
            }
            if self.args.threads.is_some() {
                add_threads(&mut answer, &members);
            }
            merge(&mut whole, answer);
            print_json(&whole)?;
            return Ok(0);
        }
        let screen = Screen::stdout();
        let scored = || format!("{} of this group: {}; higher is better\n", self.args.policy, figure(score));
        print(&match &said {
            Said::Forecast(forecast) => {
                let best = self.args.threads.as_deref() == Some("best");
                let unlimited = best && members.iter().all(|member| member.threads_pct.is_none());
                render::group(forecast, &members, &screen) + if unlimited { NO_SPLIT } else { "" }
            }
            Said::Progress(progress) => render::progress(progress, &members, &screen) + &scored(),
            Said::Score => scored(),
        })?;
        Ok(0)
    }

    fn head(&self) -> Value {
        json!({
            "version": carma_api::VERSION,
            "gpu": self.gpu.name,
            "gpu_measured": self.gpu.measured,
            "sharing": self.sharing,
            "policy": self.args.policy,
        })
    }

    fn rank(&self, target: &str) -> Outcome {
        let target = self.profile(target)?;
        let mut ranked = Vec::new();
        for candidate in &self.args.candidates {
            let mut members = vec![Member::of(target)];
            for name in candidate.split('+') {
                members.push(Member::of(self.profile(name)?));
            }
            let group = self.of(&members);
            let (score, said) = self.judge(&group)?;
            ranked.push((candidate, score, said, members));
        }
        // Of equals the first named stays first.
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        if self.args.json {
            let candidates: Vec<Value> = ranked
                .iter()
                .map(|(name, score, said, members)| {
                    let mut one = json!({"candidate": name, "score": score});
                    if !matches!(said, Said::Score) {
                        merge(&mut one, said.json(members));
                    }
                    one
                })
                .collect();
            let mut whole = self.head();
            merge(&mut whole, json!({"target": target.name, "candidates": candidates}));
            print_json(&whole)?;
        } else {
            let screen = Screen::stdout();
            let columns = vec![
                Column::Left("CANDIDATE"),
                Column::Right("SCORE"),
                Column::Right("SUM"),
                Column::Right("MIN"),
                Column::Left("PROGRESS"),
            ];
            let mut table = Table::new(columns, &screen);
            for (name, score, said, members) in &ranked {
                let progress = said.progress();
                let figures = progress.as_ref().map(|progress| (sum(progress), least(progress)));
                let number = |of: Option<f64>| of.map_or_else(|| "-".to_owned(), |of| format!("{of:.2}"));
                let each = members.iter().zip(progress.iter().flatten());
                let each: Vec<String> = each.map(|(m, p)| format!("{} {p:.2}", m.profile.name)).collect();
                table.row([
                    (*name).clone(),
                    figure(*score),
                    number(figures.map(|(sum, _)| sum)),
                    number(figures.map(|(_, least)| least)),
                    each.join(", "),
                ]);
            }
            print(&table.render())?;
        }
        Ok(0)
    }
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

/// What a policy says of a group besides its value.
enum Said {
    /// Of each task how far it gets, with bounds.
    Forecast(Forecast),
    /// Of each task how far it gets, in the order of the members.
    Progress(Vec<f64>),
    /// Nothing of single tasks.
    Score,
}

impl Said {
    /// Progress of each member, if the policy says so much.
    fn progress(&self) -> Option<Vec<f64>> {
        match self {
            Self::Forecast(forecast) => Some(forecast.tasks.iter().map(|t| t.progress.expected).collect()),
            Self::Progress(progress) => Some(progress.clone()),
            Self::Score => None,
        }
    }

    fn json(&self, members: &[Member<'_>]) -> Value {
        match self {
            Self::Forecast(forecast) => forecast_json(forecast, members),
            Self::Progress(progress) => {
                let task = |(m, p): (&Member<'_>, &f64)| {
                    let slowdown = (*p > 0.0).then(|| 1.0 / p);
                    json!({"name": m.profile.name, "progress": {"expected": p}, "slowdown": slowdown})
                };
                let tasks: Vec<Value> = members.iter().zip(progress).map(task).collect();
                json!({"tasks": tasks, "sum": sum(progress), "min": least(progress)})
            }
            Self::Score => {
                let tasks: Vec<Value> = members.iter().map(|m| json!({"name": m.profile.name})).collect();
                json!({ "tasks": tasks })
            }
        }
    }
}

fn sum(progress: &[f64]) -> f64 {
    progress.iter().sum()
}

fn least(progress: &[f64]) -> f64 {
    progress.iter().copied().fold(f64::INFINITY, f64::min)
}

/// With the units of rates, which the learner does not know.
fn forecast_json(forecast: &Forecast, members: &[Member<'_>]) -> Value {
    let mut value = json!(forecast);
    for (task, member) in tasks_of(&mut value).zip(members) {
        if let (Some(rate), Some(unit)) =
            (task.get_mut("rate").and_then(Value::as_object_mut), render::unit(member))
        {
            rate.insert("unit".into(), json!(unit));
        }
    }
    value
}

/// The percentage of each task; `null`: no limit.
fn add_threads(answer: &mut Value, members: &[Member<'_>]) {
    for (task, member) in tasks_of(answer).zip(members) {
        task["threads_pct"] = json!(member.threads_pct);
    }
}

fn tasks_of(answer: &mut Value) -> impl Iterator<Item = &mut Value> {
    answer.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten()
}

//! `carma predict`: how far tasks that share a GPU will slow each other down, and who goes well with whom.

use super::Context;
use crate::cli::predict::PredictArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Column, Screen, Table, clean, print, print_json, replace, wrap};
use carma_api::wire::SlowdownsReply;
use carma_core::model::SharingMode;
use carma_interference::foresee::mode;
use carma_interference::kace::predictor::Trained;
use carma_interference::measured::Measured;
use carma_interference::online::{Model, Observed};
use carma_interference::predict::policy::{Lacks, Policy};
use carma_interference::predict::{Forecast, GpuType, Group, Member, Mode, Objective, best_split};
use carma_interference::profile::{NOT_READ, Profile, Profiles};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Most that is read of any file.
const MOST_BYTES: u64 = 256 << 20;

/// Runs the verb.
pub(crate) fn run(context: &Context, args: &PredictArgs) -> Outcome {
    if let Some(file) = &args.observe {
        return observe(args, file);
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
    let place = path.display();
    let unreadable = |e: std::io::Error| Failure::usage(format!("{place}: cannot be read: {e}"));
    // Devices and pipes say nothing of their length: no more is read than a file may have.
    let mut bytes = Vec::new();
    File::open(path).and_then(|f| f.take(MOST_BYTES + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Failure::usage(format!(
            "{place}: larger than {} MiB, no such file is",
            MOST_BYTES >> 20
        )));
    }
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{place}: is not text in UTF-8")))
}

/// Profiles from a file of their own, or from one of measurements, which holds them too.
fn profiles(file: &Path) -> Result<Profiles, Failure> {
    let text = read(file)?;
    if text.contains("\"combination")
        && let Ok(measured) = Measured::read(&text)
    {
        return Ok(measured.profiles);
    }
    Profiles::read(&text).map_err(|e| bad(file, &e))
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

fn bad(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

/// The files beside the profiles.
struct Known {
    model: Model,
    kace: Option<Trained>,
    measured: Option<Measured>,
}

impl Known {
    fn load(args: &PredictArgs) -> Result<Self, Failure> {
        let model = match &args.model {
            Some(path) => Model::read(&read(path)?).map_err(|e| bad(path, &e))?,
            None => Model::shipped(),
        };
        let kace = match &args.kace_model {
            Some(path) => {
                let text = read(path)?;
                Some(
                    Trained::read(&path.display().to_string(), &text)
                        .map_err(|e| Failure::usage(e.to_string()))?,
                )
            }
            None => None,
        };
        let measured = match &args.measured {
            Some(path) => Some(Measured::read(&read(path)?).map_err(|e| bad(path, &e))?),
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
        let reply: SlowdownsReply =
            context.client()?.get(&format!("/v1/slowdowns?jobs={}", numbers.join(",")))?;
        if let Some(unknown) = reply.unknown.first() {
            return Err(Failure::usage(format!(
                "job {unknown} was not seen alone on a {} yet, so nothing can be predicted of it",
                reply.gpu
            ))
            .hint("a job is profiled in its first half minute alone on a GPU; or use `carma profile` and --profiles"));
        }
        let wrong = |e: String| Failure::new(format!("the daemon's answer is not understood: {e}"));
        let profiles = Profiles::read(&reply.profiles.to_string()).map_err(|e| wrong(e.to_string()))?;
        if args.model.is_none() {
            self.model = Model::read(&reply.model.to_string()).map_err(|e| wrong(e.to_string()))?;
        }
        Ok((profiles, mode(reply.sharing.unwrap_or(SharingMode::TimeSlice))))
    }
}

fn gpu(args: &PredictArgs, profiles: &Profiles) -> GpuType {
    let measured_on = || profiles.tasks.iter().find_map(|t| t.gpu.as_deref());
    GpuType::named(args.gpu.as_deref().or(profiles.gpu.as_deref()).or_else(measured_on).unwrap_or(""))
}

/// What was asked, about which tasks, of whom.
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
            return best_split(&self.known.model, self.gpu, &members, self.args.objective)
                .map_err(|e| Failure::usage(format!("--threads best: {e}")));
        }
        for part in threads.split(',') {
            let pct = part.split_once('=').and_then(|(name, pct)| Some((name, pct.parse::<f64>().ok()?)));
            let (name, pct) = pct.ok_or_else(|| {
                Failure::usage(format!("--threads: `{part}`, expected NAME=PERCENT, or `best` alone"))
            })?;
            let mut found = false;
            for member in members.iter_mut().filter(|m| m.profile.name == name.trim()) {
                member.threads_pct = Some(pct);
                found = true;
            }
            if !found {
                return Err(Failure::usage(format!("--threads: `{name}` is not in --group")));
            }
        }
        Ok(members)
    }

    fn of<'a>(&'a self, members: &'a [Member<'a>]) -> Group<'a> {
        Group { gpu: self.gpu, sharing: self.sharing, members }
    }

    /// The policy's value of a group.
    fn score(&self, group: &Group<'_>) -> Result<f64, Failure> {
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
                    return Err(Failure::usage("policy kace predicts with what it was trained to")
                        .hint("train it with `carma kace train`, then give --kace-model FILE"));
                }
            },
            "xu" => {
                return Err(Failure::usage(
                    "policy xu needs PCIe bandwidths and kernel lengths, which solo profiles do not hold: placing by \
                     kernel length is covered by a patent",
                )
                .hint("`carma kace eval` compares it offline, on KACE's own data"));
            }
            "oracle" => return self.oracle(group),
            _ => Policy::Online(&self.known.model),
        };
        policy.score(group, self.args.objective).map_err(fail)
    }

    /// What was measured of that very group.
    fn oracle(&self, group: &Group<'_>) -> Result<f64, Failure> {
        let Some(measured) = &self.known.measured else {
            return Err(Failure::usage(
                "policy oracle is hindsight: it needs what was measured of every group",
            )
            .hint("give --measured FILE, as `carma bench interference` writes it"));
        };
        let pct = |member: &Member<'_>| member.threads_pct.unwrap_or(100.0).round() as u8;
        let mut wanted: Vec<(&str, u8)> =
            group.members.iter().map(|m| (m.profile.name.as_str(), pct(m))).collect();
        wanted.sort_unstable();
        let (mut sum, mut count) = (0.0, 0_u32);
        for window in
            measured.combinations.iter().filter(|w| w.sharing == group.sharing && !w.progress.is_empty())
        {
            let of = |i: usize| window.threads_pct.get(i).copied().unwrap_or(100);
            let names = window.members.iter().enumerate().map(|(i, name)| (name.as_str(), of(i)));
            let mut names: Vec<(&str, u8)> = names.collect();
            names.sort_unstable();
            if names == wanted {
                sum += match self.args.objective {
                    Objective::WeightedSpeedup => window.progress.iter().sum::<f64>(),
                    Objective::MaxMin => window.progress.iter().copied().fold(f64::INFINITY, f64::min),
                    Objective::Throughput => window.rates.iter().sum::<f64>(),
                };
                count += 1;
            }
        }
        if count == 0 {
            let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
            return Err(Failure::usage(format!(
                "policy oracle: {} under {} was not measured",
                names.join(" + "),
                group.sharing
            )));
        }
        Ok(sum / f64::from(count))
    }

    fn forecasts(&self) -> bool {
        self.args.policy == "online"
    }

    fn group(&self) -> Outcome {
        let members = self.members()?;
        let group = self.of(&members);
        let score = self.score(&group)?;
        let forecast = if self.forecasts() {
            Some(self.known.model.predict(&group).map_err(|e| Failure::usage(e.to_string()))?)
        } else {
            group.check().map_err(|e| Failure::usage(e.to_string()))?;
            None
        };
        if self.args.json {
            let mut whole = self.head();
            let tasks = forecast.as_ref().map(|f| forecast_json(f, &members));
            merge(&mut whole, tasks.unwrap_or_else(|| json!({"score": score})));
            print_json(&whole)?;
        } else if let Some(forecast) = &forecast {
            print(&render(forecast, &members, &Screen::stdout()))?;
        } else {
            print(&format!("{} of this group: {score:.3}; higher is better\n", self.args.policy))?;
        }
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
            let score = self.score(&group)?;
            let forecast = if self.forecasts() {
                Some(self.known.model.predict(&group).map_err(|e| Failure::usage(e.to_string()))?)
            } else {
                None
            };
            ranked.push((candidate, score, forecast, members));
        }
        // Of equals the first named stays first.
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        if self.args.json {
            let candidates: Vec<Value> = ranked
                .iter()
                .map(|(name, score, forecast, members)| {
                    let mut one = json!({"candidate": name, "score": score});
                    if let Some(forecast) = forecast {
                        merge(&mut one, forecast_json(forecast, members));
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
            for (name, score, forecast, _) in &ranked {
                let number = |f: fn(&Forecast) -> f64| {
                    forecast.as_ref().map_or_else(|| "-".to_owned(), |forecast| format!("{:.2}", f(forecast)))
                };
                let each = forecast.iter().flat_map(|f| &f.tasks);
                let each: Vec<String> =
                    each.map(|t| format!("{} {:.2}", t.name, t.progress.expected)).collect();
                table.row([
                    (*name).clone(),
                    format!("{score:.3}"),
                    number(|f| f.sum),
                    number(|f| f.min),
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

fn forecast_json(forecast: &Forecast, members: &[Member<'_>]) -> Value {
    let mut value = json!(forecast);
    if let Some(tasks) = value.get_mut("tasks").and_then(Value::as_array_mut) {
        for (task, member) in tasks.iter_mut().zip(members) {
            if let Some(pct) = member.threads_pct {
                task["threads_pct"] = json!(pct);
            }
        }
    }
    value
}

fn render(forecast: &Forecast, members: &[Member<'_>], screen: &Screen) -> String {
    let split = members.iter().any(|m| m.threads_pct.is_some());
    let mut columns = vec![Column::Left("TASK")];
    if split {
        columns.push(Column::Right("THREADS"));
    }
    columns.extend([
        Column::Right("PROGRESS"),
        Column::Right("90 % BOUNDS"),
        Column::Right("SLOWDOWN"),
        Column::Right("PRIOR"),
        Column::Right("RATE"),
        Column::Left("OBSERVED"),
    ]);
    let mut table = Table::new(columns, screen);
    for (task, member) in forecast.tasks.iter().zip(members) {
        let p = task.progress;
        let mut row = vec![task.name.clone()];
        if split {
            row.push(member.threads_pct.map_or_else(|| "-".to_owned(), |pct| format!("{pct:.0} %")));
        }
        row.extend([
            format!("{:.2}", p.expected),
            format!("{:.2}-{:.2}", p.lower, p.upper),
            format!("{:.2}", task.slowdown),
            format!("{:.2}", task.prior),
            task.rate.map_or_else(|| "-".to_owned(), |r| format!("{:.3}/s", r.expected)),
            task.observations.to_string(),
        ]);
        table.row(row);
    }
    let mut text = table.render();
    let _ =
        writeln!(text, "\nsum {:.2} of {}, least {:.2}", forecast.sum, forecast.tasks.len(), forecast.min);
    for reason in &forecast.reasons {
        for line in wrap(&format!("- {reason}"), screen, 2) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// `--observe`: learns and keeps.
fn observe(args: &PredictArgs, file: &Path) -> Outcome {
    let Some(path) = &args.model else {
        return Err(Failure::usage("--observe needs --model FILE to keep what is learned"));
    };
    let measured = Measured::read(&read(file)?).map_err(|e| bad(file, &e))?;
    let mut model =
        if path.exists() { Model::read(&read(path)?).map_err(|e| bad(path, &e))? } else { Model::new() };
    let gpu = GpuType::named(args.gpu.as_deref().unwrap_or(&measured.machine.gpu));
    let (mut learned, mut skipped) = (0_u32, Vec::new());
    for window in measured.combinations.iter().filter(|w| w.k() > 1) {
        let named = window.members.join(" + ");
        if let Some(why) = &window.failed {
            skipped.push(format!("{named}: {why}"));
            continue;
        }
        let profiles: Result<Vec<&Profile>, _> =
            window.members.iter().map(|name| measured.profiles.task(name)).collect();
        let profiles = match profiles {
            Ok(profiles) => profiles,
            Err(e) => {
                skipped.push(format!("{named}: {e}"));
                continue;
            }
        };
        let members: Vec<Member<'_>> = profiles
            .iter()
            .enumerate()
            .map(|(i, profile)| Member {
                threads_pct: window.threads_pct.get(i).map(|pct| f64::from(*pct)),
                ..Member::of(profile)
            })
            .collect();
        let group = Group { gpu: &gpu, sharing: window.sharing, members: &members };
        let some = |values: &[f64]| values.iter().map(|v| Some(*v)).collect();
        let observed = if window.progress.is_empty() {
            Observed::Rates(some(&window.rates))
        } else {
            Observed::Progress(some(&window.progress))
        };
        match model.observe(&group, &observed) {
            Ok(l) => {
                learned += u32::from(l.used > 0);
                skipped.extend(l.skipped.into_iter().map(|why| format!("{named}: {why}")));
            }
            Err(e) => skipped.push(format!("{named}: {e}")),
        }
    }
    if args.no_classes {
        model.forget_all_classes();
    }
    let text = model.to_json().map_err(|e| Failure::new(e.to_string()))?;
    replace(path, text.as_bytes())
        .map_err(|e| Failure::new(format!("{}: cannot be written: {e}", path.display())))?;
    if args.json {
        let version = carma_api::VERSION;
        print_json(&json!({"version": version, "learned": learned, "skipped": skipped, "model": path}))?;
    } else {
        let mut text = format!("learned from {learned} windows; {} has it\n", path.display());
        for why in &skipped {
            let _ = writeln!(text, "skipped: {why}");
        }
        print(&text)?;
    }
    Ok(0)
}

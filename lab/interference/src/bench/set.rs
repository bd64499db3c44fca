//! A data set of measured combinations, and the protocols that all of them share.

use super::stats::{Clustered, Dice};
use crate::kace::Error;
use carma_interference::group::{GpuType, Group, Member, Mode};
use carma_interference::online::{Observed, SlowdownModel};
use carma_interference::profile::Profile;
use carma_nn::parallel;
use std::collections::BTreeMap;

/// Measured combinations of tasks on one type of GPU.
#[derive(Debug, Clone)]
pub(crate) struct Set {
    pub gpu: GpuType,
    pub tasks: Vec<Profile>,
    /// What is held out together, one for each task.
    pub families: Vec<String>,
    pub rows: Vec<Together>,
    /// The rows of each session, where it is known in which they were measured.
    pub sessions: Vec<Vec<Together>>,
}

/// Tasks that shared a GPU.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Together {
    pub tasks: Vec<usize>,
    pub sharing: Mode,
    /// Thread percentages; empty: none.
    pub threads: Vec<f64>,
    /// Speed together over speed alone.
    pub progress: Vec<f64>,
}

impl Together {
    pub(crate) fn sum(&self) -> f64 {
        self.progress.iter().sum()
    }

    /// The sum where no task is faster beside others than alone: more is noise of the measurement.
    pub(crate) fn sum_up_to_1(&self) -> f64 {
        self.progress.iter().map(|p| p.min(1.0)).sum()
    }

    /// Who shared, and how: what two measurements of the same have in common.
    fn seats(&self) -> (&[usize], Mode, Vec<u64>) {
        (&self.tasks, self.sharing, self.threads.iter().map(|pct| pct.to_bits()).collect())
    }
}

/// Parts into which families are divided to learn how far off predictions of new tasks are.
pub(crate) const PARTS: usize = 5;

/// Families, each with a model that has learned from all rows without it.
#[derive(Debug)]
pub(crate) struct Folds<'a>(Vec<(&'a str, SlowdownModel)>);

/// Learns from rows of several sets at once.
pub(crate) fn teach(model: &mut SlowdownModel, rows: &[(&Set, &Together)]) {
    let members: Vec<Vec<Member<'_>>> = rows.iter().map(|(set, row)| set.members(row)).collect();
    let groups: Vec<(Group<'_>, Observed)> = rows
        .iter()
        .zip(&members)
        .map(|((set, row), members)| (set.group(row, members), observed(row)))
        .collect();
    // It refuses only what `checked` does.
    let _ = model.teach(&groups);
}

fn observed(row: &Together) -> Observed {
    Observed::Progress(row.progress.iter().map(|p| Some(*p)).collect())
}

/// Errors, and whether bounds held.
#[derive(Debug, Clone, Default)]
pub(crate) struct Errors {
    /// |predicted / measured - 1|, by task.
    pub error: Clustered,
    /// 1 where the measured value lies within the bounds, by task.
    pub covered: Clustered,
    /// Upper over lower bound.
    pub width: Clustered,
}

impl Errors {
    /// Adds another's.
    pub(crate) fn extend(&mut self, other: Self) {
        self.error.join(other.error);
        self.covered.join(other.covered);
        self.width.join(other.width);
    }
}

impl Set {
    /// The set, if all of it can be predicted and learned from.
    ///
    /// # Errors
    /// A profile that makes no sense, progress that is none.
    pub(crate) fn checked(self, place: &str) -> Result<Self, Error> {
        for task in &self.tasks {
            task.check().map_err(|e| Error::new(place, e.to_string()))?;
        }
        let sound = |p: &f64| p.is_finite() && *p > 0.0;
        if let Some(row) = self.rows.iter().find(|row| !row.progress.iter().all(sound)) {
            let names: Vec<&str> = row.tasks.iter().map(|t| self.tasks[*t].name.as_str()).collect();
            return Err(Error::new(place, format!("{}: progress {:?}", names.join(" + "), row.progress)));
        }
        Ok(self)
    }

    pub(crate) fn members(&self, row: &Together) -> Vec<Member<'_>> {
        let of = |(at, task): (usize, &usize)| Member {
            profile: &self.tasks[*task],
            threads_pct: row.threads.get(at).copied(),
        };
        row.tasks.iter().enumerate().map(of).collect()
    }

    pub(crate) fn observe(&self, model: &mut SlowdownModel, row: &Together) {
        let members = self.members(row);
        // It refuses only what `checked` does.
        let _ = model.observe(&self.group(row, &members), &observed(row));
    }

    /// The rows as one observation of many groups.
    fn teach(&self, model: &mut SlowdownModel, rows: &[&Together]) {
        teach(model, &rows.iter().map(|row| (self, *row)).collect::<Vec<_>>());
    }

    pub(crate) fn group<'a>(&'a self, row: &Together, members: &'a [Member<'a>]) -> Group<'a> {
        Group { gpu: &self.gpu, sharing: row.sharing, members }
    }

    /// Predicted progress with bounds, of each member.
    pub(crate) fn predict(
        &self,
        model: &SlowdownModel,
        row: &Together,
    ) -> Option<carma_interference::group::Forecast> {
        let members = self.members(row);
        model.predict(&self.group(row, &members)).ok()
    }

    fn has_family(&self, row: &Together, family: &str) -> bool {
        row.tasks.iter().any(|t| self.families[*t] == family)
    }

    /// The families, each once.
    pub(crate) fn distinct_families(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.families.iter().map(String::as_str).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn add(&self, errors: &mut Errors, model: &SlowdownModel, row: &Together, only: Option<&str>) {
        let Some(forecast) = self.predict(model, row) else { return };
        for ((task, measured), said) in row.tasks.iter().zip(&row.progress).zip(&forecast.tasks) {
            if only.is_none_or(|family| self.families[*task] == family) {
                let name = &self.tasks[*task].name;
                let p = said.progress;
                errors.error.add(name, (p.expected / measured - 1.0).abs());
                errors.covered.add(name, f64::from(u8::from((p.lower..=p.upper).contains(measured))));
                errors.width.add(name, p.upper / p.lower);
            }
        }
    }

    /// A model that has learned from these rows.
    fn taught<'a>(&self, rows: impl Iterator<Item = &'a Together>) -> SlowdownModel {
        let mut model = SlowdownModel::new();
        self.teach(&mut model, &rows.collect::<Vec<_>>());
        model
    }

    pub(crate) fn without(&self, families: &[&str]) -> Vec<&Together> {
        self.rows.iter().filter(|r| families.iter().all(|f| !self.has_family(r, f))).collect()
    }

    /// A model that has learned from all rows without these families. How far off it is about new tasks it knows from
    /// leaving out, five times, a fifth of the other families too.
    pub(crate) fn taught_without(&self, families: &[&str]) -> SlowdownModel {
        let mut model = self.taught(self.without(families).into_iter());
        let others: Vec<&str> =
            self.distinct_families().into_iter().filter(|f| !families.contains(f)).collect();
        for part in 0..PARTS.min(others.len()) {
            let part: Vec<&str> = others.iter().copied().skip(part).step_by(PARTS).collect();
            let less = self.taught(self.without(&[families, &part].concat()).into_iter());
            for row in self.without(families) {
                self.calibrate(&mut model, &less, row, &part);
            }
        }
        model
    }

    /// Tells the model how far off the other's prediction of these families' tasks is.
    pub(crate) fn calibrate(
        &self,
        model: &mut SlowdownModel,
        by: &SlowdownModel,
        row: &Together,
        part: &[&str],
    ) {
        let of = |(p, task): (&f64, &usize)| part.contains(&self.families[*task].as_str()).then_some(*p);
        let progress: Vec<Option<f64>> = row.progress.iter().zip(&row.tasks).map(of).collect();
        if progress.iter().any(Option::is_some) {
            let members = self.members(row);
            // It refuses only what `checked` does.
            let _ = model.calibrate(by, &self.group(row, &members), &Observed::Progress(progress));
        }
    }

    /// For each family a model that has learned from all rows without it.
    pub(crate) fn folds(&self, threads: usize) -> Folds<'_> {
        let families = self.distinct_families();
        let models = parallel(&families, threads, |family| self.taught_without(&[family]));
        Folds(families.into_iter().zip(models).collect())
    }

    /// Leave one family out: learns from rows without it, predicts its tasks in rows with it.
    pub(crate) fn cold(&self, folds: &Folds<'_>) -> Errors {
        let mut errors = Errors::default();
        for (family, model) in &folds.0 {
            for row in self.rows.iter().filter(|r| self.has_family(r, family)) {
                self.add(&mut errors, model, row, Some(family));
            }
        }
        errors
    }

    /// The prior alone on all rows.
    pub(crate) fn prior(&self) -> Errors {
        self.told(&SlowdownModel::new())
    }

    /// What this model says of all rows.
    pub(crate) fn told(&self, model: &SlowdownModel) -> Errors {
        let mut errors = Errors::default();
        self.rows.iter().for_each(|row| self.add(&mut errors, model, row, None));
        errors
    }

    /// The rows under one way of sharing, those with thread limits or those without.
    pub(crate) fn only(&self, sharing: Mode, split: bool) -> Self {
        let of = |rows: &Vec<Together>| {
            let mut rows = rows.clone();
            rows.retain(|r| r.sharing == sharing && r.threads.is_empty() != split);
            rows
        };
        let sessions = self.sessions.iter().map(of).filter(|rows| !rows.is_empty()).collect();
        Self { rows: of(&self.rows), sessions, ..self.clone() }
    }

    /// Learns from `observations` random rows, predicts the others.
    pub(crate) fn online(&self, observations: usize, repeats: u64) -> Errors {
        let mut errors = Errors::default();
        for seed in 0..repeats {
            let mut rows: Vec<&Together> = self.rows.iter().collect();
            Dice::new(seed).shuffle(&mut rows);
            let (first, rest) = rows.split_at(observations.min(rows.len()));
            let mut model = SlowdownModel::new();
            first.iter().for_each(|row| self.observe(&mut model, row));
            rest.iter().for_each(|row| self.add(&mut errors, &model, row, None));
        }
        errors
    }

    /// Learns from all of `before` and then from `observations` random rows of this set, predicts the others.
    pub(crate) fn transfer(&self, before: &Self, observations: usize, repeats: u64) -> Errors {
        let mut errors = Errors::default();
        for seed in 0..repeats {
            let model = self.taught_after(before, observations, seed);
            let rest = self.in_order(seed).into_iter().skip(observations);
            rest.for_each(|row| self.add(&mut errors, &model, row, None));
        }
        errors
    }

    fn in_order(&self, seed: u64) -> Vec<&Together> {
        let mut rows: Vec<&Together> = self.rows.iter().collect();
        Dice::new(seed + 1000).shuffle(&mut rows);
        rows
    }

    /// As [`Set::transfer`] learns.
    pub(crate) fn taught_after(&self, before: &Self, observations: usize, seed: u64) -> SlowdownModel {
        let mut model = before.taught(before.rows.iter());
        self.in_order(seed).into_iter().take(observations).for_each(|row| self.observe(&mut model, row));
        model
    }

    /// Sum of rates, in the units of the solo rates.
    pub(crate) fn throughput(&self, row: &Together) -> f64 {
        let rate = |t: &usize| self.tasks[*t].rate.as_ref().map_or(0.0, |r| r.per_s);
        row.tasks.iter().zip(&row.progress).map(|(t, p)| rate(t) * p).sum()
    }

    /// Choice of partners for every target of held-out families: measured value of the chosen row over the
    /// best one's, by target. `score` is asked with what was learned without the family.
    pub(crate) fn select(
        &self,
        folds: &Folds<'_>,
        value: impl Fn(&Together) -> f64,
        score: impl Fn(&SlowdownModel, &Together) -> f64,
    ) -> Clustered {
        self.select_among(&[self], folds, value, score)
    }

    /// As [`Set::select`], but what was chosen is valued by what each session measured.
    pub(crate) fn select_in_sessions(
        &self,
        folds: &Folds<'_>,
        score: impl Fn(&SlowdownModel, &Together) -> f64,
    ) -> Clustered {
        let sessions: Vec<Self> = self.each_session().collect();
        let sessions: Vec<&Self> = sessions.iter().collect();
        self.select_among(&sessions, folds, Together::sum, score)
    }

    /// Chooses among the rows of each of the others, which have the same tasks.
    fn select_among(
        &self,
        others: &[&Self],
        folds: &Folds<'_>,
        value: impl Fn(&Together) -> f64,
        score: impl Fn(&SlowdownModel, &Together) -> f64,
    ) -> Clustered {
        let mut chosen = Clustered::default();
        for (family, model) in &folds.0 {
            for set in others {
                chosen.extend(set.choices(model, |t| self.families[t] == *family, &value, &score));
            }
        }
        chosen
    }

    /// Choice of partners for every target by what needs to learn nothing more.
    pub(crate) fn choose(&self, score: impl Fn(&Together) -> f64) -> Clustered {
        let mut chosen = Clustered::default();
        chosen.extend(self.choices(&SlowdownModel::new(), |_| true, Together::sum, |_, row| score(row)));
        chosen
    }

    /// What measuring is worth: for each two sessions that measured the same combinations, the error of the one's
    /// numbers as predictions of the other's, and what the one's best choices are worth in the other. `None`: no two
    /// did.
    pub(crate) fn measured_again(&self) -> Option<(Clustered, Clustered)> {
        let (mut errors, mut chosen) = (Clustered::default(), Clustered::default());
        for (a, from) in self.each_session().enumerate() {
            let known: BTreeMap<_, &Together> = from.rows.iter().map(|row| (row.seats(), row)).collect();
            for (_, mut to) in self.each_session().enumerate().filter(|(b, _)| *b != a) {
                to.rows.retain(|row| known.contains_key(&row.seats()));
                for row in &to.rows {
                    for ((task, said), measured) in
                        row.tasks.iter().zip(&known[&row.seats()].progress).zip(&row.progress)
                    {
                        errors.add(&self.tasks[*task].name, (said / measured - 1.0).abs());
                    }
                }
                let score = |_: &SlowdownModel, row: &Together| known[&row.seats()].sum();
                chosen.extend(to.choices(&SlowdownModel::new(), |_| true, Together::sum, score));
            }
        }
        let any = errors.values().next().is_some();
        any.then_some((errors, chosen))
    }

    fn each_session(&self) -> impl Iterator<Item = Self> {
        self.sessions.iter().map(|rows| Self { rows: rows.clone(), sessions: Vec::new(), ..self.clone() })
    }

    /// For each target that is asked about, by number of members and sharing: the chosen row's value over
    /// the best.
    pub(crate) fn choices(
        &self,
        model: &SlowdownModel,
        asked: impl Fn(usize) -> bool,
        value: impl Fn(&Together) -> f64,
        score: impl Fn(&SlowdownModel, &Together) -> f64,
    ) -> Vec<(String, f64)> {
        let mut out = Vec::new();
        for target in (0..self.tasks.len()).filter(|t| asked(*t)) {
            for sharing in [Mode::TimeSlice, Mode::Mps] {
                for k in 2..=8 {
                    let rows: Vec<&Together> = self
                        .rows
                        .iter()
                        .filter(|r| r.sharing == sharing && r.tasks.len() == k && r.tasks.contains(&target))
                        .filter(|r| r.threads.is_empty())
                        .collect();
                    let best = rows.iter().map(|r| value(r)).fold(0.0, f64::max);
                    if rows.len() < 2 || best <= 0.0 {
                        continue;
                    }
                    let scores: Vec<f64> = rows.iter().map(|r| score(model, r)).collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    // Of equals each is as likely: their mean.
                    let equal: Vec<f64> = rows
                        .iter()
                        .zip(&scores)
                        .filter(|(_, s)| **s >= top - 1e-12)
                        .map(|(r, _)| value(r) / best)
                        .collect();
                    out.push((
                        self.tasks[target].name.clone(),
                        equal.iter().sum::<f64>() / equal.len() as f64,
                    ));
                }
            }
        }
        out
    }
}

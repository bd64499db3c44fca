//! What a predictor's choices are worth: sum of throughput of the chosen row over that of the best row.

use super::Error;
use super::protocol::{Case, Protocol, Split};
use super::table::Collocation;
use carma_nn::parallel;

/// Learns from rows.
pub trait Scorer: Sync {
    /// Learns from a split's rows. Asked once a split.
    ///
    /// # Errors
    /// Nothing can be learned from these rows.
    fn fit<'s>(&'s self, train: &[&Collocation]) -> Result<Box<dyn Fitted + 's>, Error>;
}

/// Has learned, and scores.
pub trait Fitted {
    /// One number for each test row of a case; the highest is chosen, the first of several. Only orders matter.
    ///
    /// # Errors
    /// A row can't be scored.
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error>;
}

/// A scorer from a function of the training rows and the case.
pub fn per_case<F>(f: F) -> impl Scorer
where
    F: Fn(&[&Collocation], &Case<'_>) -> Result<Vec<f64>, Error> + Sync,
{
    PerCase(f)
}

struct PerCase<F>(F);

struct PerCaseFitted<'s, F> {
    f: &'s F,
    train: Vec<Collocation>,
}

impl<F: Fn(&[&Collocation], &Case<'_>) -> Result<Vec<f64>, Error> + Sync> Scorer for PerCase<F> {
    fn fit<'s>(&'s self, train: &[&Collocation]) -> Result<Box<dyn Fitted + 's>, Error> {
        Ok(Box::new(PerCaseFitted { f: &self.0, train: train.iter().map(|r| (*r).clone()).collect() }))
    }
}

impl<F: Fn(&[&Collocation], &Case<'_>) -> Result<Vec<f64>, Error>> Fitted for PerCaseFitted<'_, F> {
    fn scores(&self, case: &Case<'_>) -> Result<Vec<f64>, Error> {
        (self.f)(&self.train.iter().collect::<Vec<_>>(), case)
    }
}

/// What became of one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Index of the split.
    pub split: usize,
    /// Of the split.
    pub n_occur: Option<u32>,
    /// Of the split.
    pub seed: Option<u32>,
    /// The target.
    pub target: String,
    /// Index of the chosen test row; `None` for random choice, and where averaged choices differ.
    pub chosen: Option<usize>,
    /// Sum of throughput of the choice over the best, 0 to 1.
    pub ratio: f64,
}

/// The best sum of throughput of a case, items/s.
#[must_use]
pub fn oracle(case: &Case<'_>) -> f64 {
    best_of_case(case, &Collocation::sum)
}

/// Lets a scorer choose in every case, in the order of the protocol. The result doesn't depend on the number of
/// threads.
///
/// # Errors
/// The scorer's; a score that is not a number, or too few of them.
pub fn evaluate(scorer: &dyn Scorer, protocol: &Protocol<'_>, threads: usize) -> Result<Vec<Scored>, Error> {
    evaluate_by(scorer, protocol, threads, &Collocation::sum)
}

/// As [`evaluate`], but a row is worth what `worth` says (0 or more) instead of its sum of throughput.
///
/// # Errors
/// As there.
pub fn evaluate_by(
    scorer: &dyn Scorer,
    protocol: &Protocol<'_>,
    threads: usize,
    worth: &(dyn Fn(&Collocation) -> f64 + Sync),
) -> Result<Vec<Scored>, Error> {
    let at: Vec<usize> = (0..protocol.splits.len()).collect();
    let parts = parallel(&at, threads, |i| one_split(scorer, *i, &protocol.splits[*i], worth));
    let mut all = Vec::with_capacity(protocol.cases());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}

fn one_split(
    scorer: &dyn Scorer,
    at: usize,
    split: &Split<'_>,
    worth: &dyn Fn(&Collocation) -> f64,
) -> Result<Vec<Scored>, Error> {
    let fitted = scorer.fit(&split.train)?;
    let decide = |case: &Case<'_>| {
        let scores = fitted.scores(case)?;
        let bad = |what: String| Error::new(format!("target {}", case.target), what);
        if scores.len() != case.test.len() {
            return Err(bad(format!("{} scores for {} rows", scores.len(), case.test.len())));
        }
        if scores.iter().any(|s| s.is_nan()) {
            return Err(bad("a score is not a number".to_owned()));
        }
        // The first of the highest, as argmax everywhere.
        let mut chosen = 0;
        for (i, score) in scores.iter().enumerate() {
            if *score > scores[chosen] {
                chosen = i;
            }
        }
        let row = case.test.get(chosen).ok_or_else(|| bad("no row to choose from".to_owned()))?;
        Ok(scored(at, split, case, Some(chosen), worth(row) / best_of_case(case, worth)))
    };
    split.cases.iter().map(decide).collect()
}

fn scored(at: usize, split: &Split<'_>, case: &Case<'_>, chosen: Option<usize>, ratio: f64) -> Scored {
    Scored {
        split: at,
        n_occur: split.n_occur,
        seed: split.seed,
        target: case.target.to_owned(),
        chosen,
        // Where nothing ran at all every choice is as good.
        ratio: if ratio.is_finite() { ratio } else { 1.0 },
    }
}

fn best_of_case(case: &Case<'_>, worth: &dyn Fn(&Collocation) -> f64) -> f64 {
    case.test.iter().map(|row| worth(row)).fold(0.0, f64::max)
}

/// Random choice, by expectation: the mean over all test rows.
#[must_use]
pub fn random(protocol: &Protocol<'_>) -> Vec<Scored> {
    random_by(protocol, &Collocation::sum)
}

/// As [`random`], with rows worth what `worth` says.
#[must_use]
pub fn random_by(protocol: &Protocol<'_>, worth: &dyn Fn(&Collocation) -> f64) -> Vec<Scored> {
    let mut all = Vec::with_capacity(protocol.cases());
    for (at, split) in protocol.splits.iter().enumerate() {
        for case in &split.cases {
            let mean = case.test.iter().map(|r| worth(r)).sum::<f64>() / case.test.len().max(1) as f64;
            all.push(scored(at, split, case, None, mean / best_of_case(case, worth)));
        }
    }
    all
}

/// Of several scorers' results on one protocol the better in each case: hindsight, no policy.
#[must_use]
pub fn best_of(results: &[&[Scored]]) -> Vec<Scored> {
    let Some((first, others)) = results.split_first() else { return Vec::new() };
    let mut best = first.to_vec();
    for result in others {
        for (b, r) in best.iter_mut().zip(*result) {
            if r.ratio > b.ratio {
                *b = r.clone();
            }
        }
    }
    best
}

/// The mean of several results of one protocol, case by case: of a scorer that draws, by several seeds.
#[must_use]
pub fn averaged(results: &[Vec<Scored>]) -> Vec<Scored> {
    let Some((first, others)) = results.split_first() else { return Vec::new() };
    let mean = |(i, case): (usize, &Scored)| {
        let all = || others.iter().filter_map(|r| r.get(i));
        let sum: f64 = case.ratio + all().map(|c| c.ratio).sum::<f64>();
        let chosen = case.chosen.filter(|c| all().all(|o| o.chosen == Some(*c)));
        Scored { ratio: sum / results.len() as f64, chosen, ..case.clone() }
    };
    first.iter().enumerate().map(mean).collect()
}

/// Mean ratio over all cases, 0 to 1; 0 for none.
#[must_use]
pub fn mean_of(scored: &[Scored]) -> f64 {
    scored.iter().map(|s| s.ratio).sum::<f64>() / scored.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kace::protocol;
    use crate::kace::table::Table;

    fn table() -> Table {
        let text = "workload1,workload2,w1throughput,w2throughput,w1sm%,w2sm%\n\
            a_batch2-inf,b_batch2-inf,1,3,10,20\n\
            a_batch2-inf,c_batch2-inf,2,6,10,40\n\
            c_batch2-inf,b_batch2-inf,1,1,40,20\n";
        Table::parse("t.csv", text.as_bytes()).unwrap()
    }

    #[test]
    fn the_choice_is_divided_by_the_best() {
        let table = table();
        let protocol = protocol::unseen("u", &table).unwrap();
        let least = per_case(|_, case| {
            Ok(case.test.iter().map(|r| -r.members[0].features[0] - r.members[1].features[0]).collect())
        });
        let scored = evaluate(&least, &protocol, 2).unwrap();
        let ratios: Vec<(&str, f64)> = scored.iter().map(|s| (s.target.as_str(), s.ratio)).collect();
        assert_eq!(ratios, [("a_batch2-inf", 0.5), ("b_batch2-inf", 1.0), ("c_batch2-inf", 1.0)]);
        let random = random(&protocol);
        assert_eq!(random[0].ratio, 0.75);
        assert_eq!(best_of(&[&scored, &random])[0].ratio, 0.75);
        let both = averaged(&[scored.clone(), random]);
        assert_eq!((both[0].ratio, both[0].chosen), (0.625, None));
        assert_eq!(evaluate(&least, &protocol, 1).unwrap(), scored);
    }

    #[test]
    fn the_first_of_equals_is_chosen_and_nonsense_is_refused() {
        let table = table();
        let protocol = protocol::unseen("u", &table).unwrap();
        let equal = per_case(|_, case| Ok(vec![1.0; case.test.len()]));
        assert!(evaluate(&equal, &protocol, 1).unwrap().iter().all(|s| s.chosen == Some(0)));
        let nan = per_case(|_, case| Ok(vec![f64::NAN; case.test.len()]));
        assert!(evaluate(&nan, &protocol, 1).unwrap_err().to_string().contains("not a number"));
        let few = per_case(|_, _| Ok(vec![]));
        assert!(evaluate(&few, &protocol, 1).unwrap_err().to_string().contains("0 scores for 2 rows"));
    }
}

//! Draws tasks and numbers, the same for the same seed on every machine.
//!
//! The generator is PCG64, which is specified bit by bit, and everything made of its numbers is integer
//! arithmetic, exact floating-point operations, or the portable logarithm of `libm`; the C library's may
//! differ in the last digit from machine to machine.

use super::error::TraceError;
use super::{Catalogue, CatalogueTask, Trace, Weight};
use rand::Rng;
use rand_pcg::Pcg64;
use std::sync::Arc;

/// Percentages of light, medium and heavy tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix([u8; 3]);

impl Mix {
    /// Reads `65/27/8`; two numbers (`83/17`) are medium and heavy, as the CARMA evaluation names its
    /// traces without light tasks.
    ///
    /// # Errors
    /// What is wrong, without a place.
    pub fn parse(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u8>> = text.split('/').map(|part| part.trim().parse().ok()).collect();
        let mix = match numbers.as_deref() {
            Some([light, medium, heavy]) => [*light, *medium, *heavy],
            Some([medium, heavy]) => [0, *medium, *heavy],
            _ => return Err(format!("expected percentages light/medium/heavy like 65/27/8, found `{text}`")),
        };
        match mix.iter().map(|n| u32::from(*n)).sum::<u32>() {
            100 => Ok(Self(mix)),
            sum => Err(format!("the percentages {text} make {sum}, not 100")),
        }
    }
}

/// Independent sequences of random numbers, so that, say, more users do not change the arrivals.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stream {
    Arrivals = 1,
    Tasks = 2,
    Users = 3,
}

/// Random numbers.
pub(crate) struct Dice(Pcg64);

impl Dice {
    pub(crate) fn new(seed: u64, stream: Stream) -> Self {
        Self(Pcg64::new(u128::from(seed), stream as u128))
    }

    /// One of `0..n`; 0 when there is none.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        // The upper half of a product: even but for 2^-64.
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// In [0, 1), in steps of 2^-53.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential of mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.unit())
    }
}

/// Draws tasks of a catalogue by weight.
pub(crate) struct Tasks<'a> {
    mix: Mix,
    by_weight: [Vec<&'a Arc<CatalogueTask>>; 3],
    dice: Dice,
}

impl<'a> Tasks<'a> {
    pub(crate) fn new(catalogue: &'a Catalogue, mix: Mix, seed: u64) -> Result<Self, TraceError> {
        let of = |weight| catalogue.tasks.values().filter(|task| task.weight == Some(weight)).collect();
        let by_weight = Weight::ALL.map(of);
        for ((percent, tasks), weight) in mix.0.iter().zip(&by_weight).zip(Weight::ALL) {
            let tasks: &Vec<&Arc<CatalogueTask>> = tasks;
            let weight = weight.as_str();
            if *percent > 0 && tasks.is_empty() {
                let what = format!(
                    "the mix asks for {percent} % {weight} tasks, and the catalogue has none of class {weight}"
                );
                return Err(TraceError::general(what));
            }
            if let Some(task) = tasks.iter().find(|task| *percent > 0 && task.duration.is_none()) {
                let what =
                    format!("the task {} has no run time in the catalogue, and cannot be drawn", task.name);
                return Err(TraceError::general(what));
            }
        }
        Ok(Self { mix, by_weight, dice: Dice::new(seed, Stream::Tasks) })
    }

    pub(crate) fn next(&mut self) -> Arc<CatalogueTask> {
        let percent = self.dice.below(100);
        let [light, medium, _] = self.mix.0.map(u64::from);
        let tasks = match percent {
            p if p < light => &self.by_weight[0],
            p if p < light + medium => &self.by_weight[1],
            _ => &self.by_weight[2],
        };
        let at = self.dice.below(tasks.len() as u64) as usize;
        // A weight that can come up has tasks: `new` saw to it.
        tasks.get(at).map(|task| Arc::clone(task)).unwrap_or_default()
    }
}

/// Gives each job of a trace a task drawn from a catalogue, as the CARMA evaluation did with Philly's
/// arrivals: the task's run time, GPUs, memory and activity take the place of the job's own; arrival,
/// name and user stay.
///
/// # Errors
/// A weight of the mix without tasks, or a task without run time.
pub fn assign(trace: &mut Trace, catalogue: &Catalogue, mix: Mix, seed: u64) -> Result<(), TraceError> {
    let mut tasks = Tasks::new(catalogue, mix, seed)?;
    for job in &mut trace.jobs {
        let task = tasks.next();
        job.task = Some(Arc::clone(&task.name));
        (job.duration, job.gpus, job.memory) = (None, None, None);
        job.activity = super::Activity::default();
    }
    Ok(())
}

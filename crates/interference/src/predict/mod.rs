//! Choices among groups: the best split of a GPU's threads, and groups ranked by policy.

pub mod policy;

use crate::group::{BadGroup, GpuType, Group, Member, Mode, Objective};
use crate::online::SlowdownModel;

/// Parts that the threads of a GPU are split into.
const PARTS: u32 = 10;

/// The MPS thread percentages, in tenths, that suit an objective best, unlimited for all included. Solo curves
/// (`rate_by_threads_pct`) make it sure.
///
/// # Errors
/// As [`Group::check`]; one member or more than five.
pub fn best_split<'a>(
    model: &SlowdownModel,
    gpu: &GpuType,
    members: &[Member<'a>],
    objective: Objective,
) -> Result<Vec<Member<'a>>, BadGroup> {
    if !(2..=5).contains(&members.len()) {
        return Err(BadGroup(format!("{} tasks; a split is looked for among 2 to 5", members.len())));
    }
    let value = |members: &[Member<'a>]| {
        let forecast = model.predict(&Group { gpu, sharing: Mode::Mps, members })?;
        Ok::<f64, BadGroup>(forecast.value(objective))
    };
    let with = |parts: &[u32]| -> Vec<Member<'a>> {
        let pct = |part: &u32| Some(f64::from(part * 100 / PARTS));
        members.iter().zip(parts).map(|(m, part)| Member { threads_pct: pct(part), ..*m }).collect()
    };
    let mut best: Vec<Member<'a>> = members.iter().map(|m| Member { threads_pct: None, ..*m }).collect();
    let mut most = value(&best)?;
    let mut parts = vec![1; members.len()];
    // Every way to share ten parts: the last member takes what the others leave.
    loop {
        let taken: u32 = parts[..parts.len() - 1].iter().sum();
        if taken < PARTS {
            let last = parts.len() - 1;
            parts[last] = PARTS - taken;
            let tried = with(&parts);
            let now = value(&tried)?;
            if now > most {
                (best, most) = (tried, now);
            }
        }
        let Some(at) = (0..parts.len() - 1).find(|i| parts[*i] < PARTS - 1) else { return Ok(best) };
        parts[at] += 1;
        parts[..at].fill(1);
    }
}

#[cfg(test)]
mod tests;

//! GPU types under the law of slowdown, and types from users' files.

use carma_hardware::{FileError, GpuType, GpuTypes};
use carma_interference::power::{Power, PowerLaw as _};
use carma_interference::share::{Capacities, Demand, Mode, Scratch, Tenant, share_into};
use std::path::Path;
use std::sync::Arc;

/// The largest file of a GPU type that is read, bytes: the built-in ones have two thousand.
const LARGEST: u64 = 1 << 20;

/// Reads a file and adds its type, whose name is returned.
///
/// # Errors
/// The file can't be read, or [`GpuType::parse`] refuses it.
pub fn add_file(types: &mut GpuTypes, path: &Path) -> Result<Arc<str>, FileError> {
    let file = path.display().to_string();
    let text = carma_files::read_text(path, LARGEST)
        .map_err(|e| FileError { file: file.clone(), why: e.why.to_string() })?;
    let gpu = GpuType::parse(&text, &file)?;
    let name = Arc::clone(&gpu.name);
    types.add(gpu);
    Ok(name)
}

/// The share law with the constants of one type of GPU, or of a MIG instance of one.
///
/// A task's demand is in shares of the *whole* GPU, as are [`Law::run`]'s results; alone on a MIG
/// instance a task goes at
///
/// ```text
/// 1 / ((1 - GRACT) + max(GRACT, SMACT / part of SMs, DRAM / part of bandwidth))
/// ```
///
/// of its speed alone on the whole: host time stays, kernels that filled more than the part take
/// longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law {
    /// Power and clock.
    pub power: Power,
    /// How much several tasks can use together.
    pub capacities: Capacities,
}

/// What a GPU does with a set of tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuState {
    /// What the tenants use together, as in `carma_interference::share::Outcome::used`, the clock's
    /// effect included. `gract` is what a counter shows.
    pub used: Demand,
    /// Power drawn, watts.
    pub power_w: f64,
    /// SM clock over the clock without a power limit, in (0, 1].
    pub clock: f64,
}

impl From<&GpuType> for Law {
    fn from(gpu: &GpuType) -> Self {
        Self { power: gpu.power, capacities: gpu.capacities }
    }
}

impl Law {
    /// The law, power and clock together, for tenants that share in one mode. Replaces what is
    /// in `progress` by each tenant's speed over its speed alone on a whole GPU; allocates nothing
    /// once the buffers have grown.
    ///
    /// Power is asked for by the activity at the full clock; where that is more than the limit, the
    /// clock falls and slows what depends on it, DRAM and PCIe traffic with it.
    pub fn run(
        &self,
        mode: Mode,
        tenants: &[Tenant],
        scratch: &mut Scratch,
        progress: &mut Vec<f64>,
    ) -> GpuState {
        let mut used = share_into(mode, tenants, &self.capacities, scratch, progress);
        let power_w = self.power.drawn_w(&used);
        let clock = self.power.clock(&used);
        if clock < 1.0 {
            // Slower kernels are resident for longer: GRACT, SMACT and tensor activity stay.
            (used.dram, used.pcie) = (0.0, 0.0);
            for (tenant, p) in tenants.iter().zip(progress) {
                *p /= self.power.longer(&tenant.demand, clock);
                used.dram += tenant.demand.dram * *p;
                used.pcie += tenant.demand.pcie * *p;
            }
        }
        GpuState { used, power_w, clock }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_interference::share::share;

    fn alone(gpu: &GpuType, gract: f64, sm: f64, dram: f64) -> (f64, f64) {
        let task = Tenant::new(Demand { gract, sm, dram, ..Demand::default() });
        let (mut scratch, mut progress) = (Scratch::default(), Vec::new());
        let state = Law::from(gpu).run(Mode::TimeSlice, &[task], &mut scratch, &mut progress);
        (progress[0], state.power_w)
    }

    #[test]
    fn an_instance_does_its_part_of_the_whole() {
        let whole = GpuType::find("A100-40GB").unwrap();
        let one = whole.slice("1G.5GB").unwrap();
        assert!((alone(&one, 1.0, 0.5, 0.1).0 - 2.0 / 7.0).abs() < 1e-12);
        assert!((alone(&one, 0.6, 0.1, 0.2).0 - 1.0 / (0.4 + 1.6)).abs() < 1e-12);
        assert_eq!(alone(&one, 0.3, 0.04, 0.03).0, 1.0);
        assert!((alone(&one, 0.0, 0.0, 0.0).1 * 7.0 - whole.power.idle_w).abs() < 1e-9);
    }

    #[test]
    fn a_gpu_that_nobody_has_measured_follows_the_prior() {
        assert_eq!(Law::from(&GpuType::find("CUSTOM-40GB").unwrap()).capacities, Capacities::prior());
    }

    #[test]
    fn a_power_limit_slows_what_follows_the_clock() {
        let mut law = Law::from(&GpuType::find("H200").unwrap());
        law.power = Power { idle_w: 50.0, cap_w: 350.0, gract: 0.3, smact: 1.2, dram: 0.0, ..law.power };
        let busy = Tenant::new(Demand { gract: 0.6, sm: 0.4, ..Demand::default() });
        let (mut scratch, mut progress) = (Scratch::default(), Vec::new());
        let alone = law.run(Mode::Mps, &[busy], &mut scratch, &mut progress);
        assert_eq!((alone.clock, progress[0]), (1.0, 1.0));
        let state = law.run(Mode::Mps, &[busy; 2], &mut scratch, &mut progress);
        // What they would do at the full clock asks for more than the board may draw.
        let full = share(Mode::Mps, &[busy; 2], &law.capacities);
        let expected =
            (1.0 / (0.3 * full.used.gract + 1.2 * full.used.sm)).powf(1.0 / law.power.clock_exponent);
        assert!(expected < 0.95 && (state.clock - expected).abs() < 1e-12 && state.power_w == 350.0);
        assert!((progress[0] - full.progress[0] * expected).abs() < 1e-12);
        assert_eq!(state.used.sm, full.used.sm);
    }

    #[test]
    fn a_file_that_is_not_there_is_said() {
        let error = add_file(&mut GpuTypes::built_in(), "/nowhere/x.toml".as_ref()).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
}

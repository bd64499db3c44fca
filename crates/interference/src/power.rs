//! Power of a GPU from its activity, and what a power limit does to its clock.
//!
//! ```text
//! asked = idle + (cap - idle) * (a_gract GRACT + a_smact SMACT + a_dram DRAM + a_tensor TENSOR)
//! drawn = min(asked, cap)
//! f     = ((cap - idle) / (asked - idle))^(1/alpha)     where asked > cap, otherwise 1
//! t_i(f) = 1 + b_i (1/f - 1)                            b_i: share of the time that follows the clock
//! p_i  := p_i * min(1, t_i(f_i) / t_i(f))               f_i: clock when the task is alone
//! ```
//!
//! Power that is linear in DCGM's activity fields is the usual model of it. That summed power above
//! the limit lowers the clock, and that the clock divides every latency, is iGniter's (TPDS 2023),
//! which takes the fall as linear in the excess; the power law `dynamic power ~ f^alpha` is the
//! textbook one (`alpha` = 3 where voltage follows frequency, 1 where it does not) and can't fall
//! below 0. The factors and `alpha` belong to a type of GPU and come from its model file.

use crate::share::Demand;

/// Share of the theoretical DRAM bandwidth that can be had, the same as
/// [`crate::share::Capacities::prior`]'s.
const ACHIEVABLE_DRAM: f64 = 0.8;

pub use carma_hardware::Power;

/// What the law makes of a GPU type's constants.
pub trait PowerLaw {
    /// Power that this activity asks for at the full clock, watts. May be above the limit. Activities
    /// are taken between 0 and 1.
    fn asked_w(&self, activity: &Demand) -> f64;

    /// Power that is drawn, watts: what is asked for, at most the limit.
    fn drawn_w(&self, activity: &Demand) -> f64;

    /// [`clock_factor`] at this activity.
    fn clock(&self, activity: &Demand) -> f64;

    /// How much longer a task's kernels take at `clock` than when it was alone on the GPU, at least 1.
    /// What it did alone was measured under the same limit: a task that reaches the limit by itself
    /// has its own lower clock in its speed alone already.
    fn longer(&self, alone: &Demand, clock: f64) -> f64;
}

impl PowerLaw for Power {
    fn asked_w(&self, activity: &Demand) -> f64 {
        let share = |value: f64| if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.0 };
        let load = self.gract * share(activity.gract)
            + self.smact * share(activity.sm)
            + self.dram * share(activity.dram)
            + self.tensor * share(activity.tensor);
        self.idle_w + (self.cap_w - self.idle_w) * load.max(0.0)
    }

    fn drawn_w(&self, activity: &Demand) -> f64 {
        self.asked_w(activity).min(self.cap_w)
    }

    fn clock(&self, activity: &Demand) -> f64 {
        clock_factor(self.asked_w(activity), self.idle_w, self.cap_w, self.clock_exponent)
    }

    fn longer(&self, alone: &Demand, clock: f64) -> f64 {
        if clock >= 1.0 {
            return 1.0;
        }
        let bound = clock_bound(alone);
        let stretch = |clock: f64| 1.0 + bound * (1.0 / clock - 1.0);
        (stretch(clock) / stretch(self.clock(alone))).max(1.0)
    }
}

/// Clock under a power limit over the clock without, in (0, 1]: `((cap - idle) / (asked - idle))^(1/alpha)`
/// where more is asked for than the limit, otherwise 1. All powers in watts. Nonsense (not finite, a
/// limit not above idle, `alpha` not positive) gives 1.
#[must_use]
pub fn clock_factor(asked_w: f64, idle_w: f64, cap_w: f64, alpha: f64) -> f64 {
    let sound = [asked_w, idle_w, cap_w, alpha].iter().all(|v| v.is_finite()) && alpha > 0.0;
    if !sound || asked_w <= cap_w || cap_w <= idle_w {
        return 1.0;
    }
    ((cap_w - idle_w) / (asked_w - idle_w)).powf(1.0 / alpha).max(1e-3)
}

/// Share of a task's time that follows the SM clock, 0 to 1, from what it does alone: of its engine
/// time (GRACT) the part in which it does not wait for DRAM, whose clock is another. Our own
/// assumption; host time hides behind others' kernels as soon as a GPU is loaded enough to reach its
/// power limit, so it does not count.
#[must_use]
pub fn clock_bound(alone: &Demand) -> f64 {
    let gract = alone.gract.max(alone.sm).max(alone.tensor);
    // Not a number compares as false and ends here as well.
    if gract > 0.0 { (1.0 - alone.dram.max(0.0) / ACHIEVABLE_DRAM / gract).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOARD: Power = Power {
        idle_w: 50.0,
        cap_w: 250.0,
        gract: 0.2,
        smact: 0.5,
        dram: 0.8,
        tensor: 0.1,
        clock_exponent: 2.0,
    };

    fn activity(gract: f64, sm: f64, dram: f64) -> Demand {
        Demand { gract, sm, dram, ..Demand::default() }
    }

    #[test]
    fn power_is_linear_up_to_the_limit() {
        assert_eq!(BOARD.drawn_w(&Demand::default()), 50.0);
        assert!((BOARD.drawn_w(&activity(1.0, 0.4, 0.1)) - (50.0 + 200.0 * 0.48)).abs() < 1e-9);
        assert_eq!(BOARD.drawn_w(&activity(1.0, 1.0, 1.0)), 250.0);
        assert_eq!(BOARD.clock(&activity(1.0, 0.4, 0.1)), 1.0);
        // It asks for 1.5 times the dynamic power that there is.
        let clock = BOARD.clock(&activity(1.0, 1.0, 1.0));
        assert!((clock - (1.0_f64 / 1.5).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn only_what_follows_the_clock_slows_down() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        close(BOARD.longer(&activity(0.5, 0.4, 0.0), 0.8), 1.25);
        close(BOARD.longer(&activity(1.0, 0.2, 0.8), 0.8), 1.0);
        close(BOARD.longer(&activity(0.5, 0.4, 0.2), 0.8), 1.125);
        close(BOARD.longer(&activity(0.5, 0.4, 0.0), 1.0), 1.0);
        assert_eq!(clock_bound(&Demand::default()), 0.0);
        assert_eq!(clock_bound(&activity(1.0, 0.9, 0.8)), 0.0);
    }

    #[test]
    fn a_task_that_reaches_the_limit_alone_goes_at_its_own_speed_alone() {
        let hungry = activity(1.0, 1.0, 0.6);
        let clock = BOARD.clock(&hungry);
        assert!(clock < 1.0);
        assert_eq!(BOARD.longer(&hungry, clock), 1.0);
        assert!(BOARD.longer(&hungry, clock * 0.9) > 1.0);
    }

    proptest! {
        #[test]
        fn a_clock_is_a_factor(asked in any::<f64>(), idle in any::<f64>(), cap in any::<f64>(), alpha in any::<f64>()) {
            let f = clock_factor(asked, idle, cap, alpha);
            prop_assert!(f > 0.0 && f <= 1.0);
        }

        #[test]
        fn more_work_never_raises_the_clock(a in 0.0..1.0_f64, b in 0.0..1.0_f64, more in 0.0..1.0_f64) {
            let (low, high) = (activity(1.0, a, b), activity(1.0, (a + more).min(1.0), b));
            prop_assert!(BOARD.clock(&high) <= BOARD.clock(&low));
            prop_assert!(BOARD.drawn_w(&high) >= BOARD.drawn_w(&low));
        }
    }
}

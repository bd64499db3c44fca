//! The law behind the predictor: tasks that wait for their turn.
//!
//! [`crate::share`] divides resources by water-filling, which serves light tasks first. Measured light
//! tasks are not served first: most of them wait for their kernels, and their kernels wait for those of
//! others. Here a task spends `1 - g` of its time alone on the host and `g` on the GPU; only the second
//! part stretches, by the rate `r` at which its kernels run among others':
//!
//! ```text
//! q_j     chance that j has a kernel on the GPU
//! r_i   = min over SMs, DRAM and tensor pipes of
//!         SMs, engine:  min(1, C w_i / (w_i a_i + sum over j != i of q_j w_j a_j))       C: capacity
//!         the others:   min(1, L w_i), with the level L at which
//!                       min(1, L w_i) a_i + sum over j != i of min(1, L w_j) q_j a_j = 1
//! e_i   = g_i / r_i                                            GPU time for what takes 1 alone
//! t_i   = (1 - o_i) (1 - g_i + e_i) + o_i max(1, e_i)          o_i: share that the host queues ahead
//! q_i   = min(1, e_i / t_i)                                    and so on until nothing moves
//! p_i   = 1 / t_i
//! ```
//!
//! `a` is what a task's kernels take of the resource while they run; `w` its weight. With `g` = 1 this
//! is weighted proportional sharing of `C`; with `o` = 1 host time hides behind the queue and light
//! tasks are served first, as in water-filling. Everything moves one way (a larger `q` slows all others,
//! a slower task has a larger `q`), and it starts from the least, so the least solution is found and a
//! newcomer never speeds anyone up. A capacity below 1 is a loss through sharing: it holds in proportion
//! to the chance that anyone else is there.

use crate::share::{Mode, Tenant};

/// One member of a group, in the law's terms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Client {
    /// `g`: share of its time alone in which it has a kernel on the GPU, 0 to 1.
    pub engine: f64,
    /// SMs that its kernels fill while they run, 0 to 1.
    pub fill: f64,
    /// DRAM bandwidth that its kernels take while they run, share of what can be had.
    pub dram: f64,
    /// Tensor activity while its kernels run, 0 to 1.
    pub tensor: f64,
    /// Mean share of the host link.
    pub pcie: f64,
    /// `w`, positive; only ratios matter.
    pub weight: f64,
    /// `o`: 0 waits for every kernel, 1 always has the next one queued.
    pub overlap: f64,
    /// Its speed alone under its thread limit over its speed alone without, in (0, 1].
    pub limit: f64,
    /// Its thread limit as a share of the SMs; 1: none.
    pub cap: f64,
}

/// Nothing is slower than this: a progress of 0 would hang for ever.
pub(crate) const LEAST: f64 = 1e-6;
const ROUNDS: usize = 40;

/// Room to work in, kept between calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scratch {
    q: Vec<f64>,
    speed_alone: Vec<f64>,
}

/// Progress of each client in (0, 1]. `capacity` of engine time or SMs, above 0.
#[must_use]
pub fn progress(mode: Mode, clients: &[Client], capacity: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(clients.len());
    progress_into(mode, clients, capacity, &mut Scratch::default(), &mut out);
    out
}

pub(crate) fn progress_into(
    mode: Mode,
    clients: &[Client],
    capacity: f64,
    scratch: &mut Scratch,
    out: &mut Vec<f64>,
) {
    out.clear();
    let Scratch { q, speed_alone } = scratch;
    q.clear();
    q.extend(clients.iter().map(|c| c.engine));
    // Rate of its kernels alone under its thread limit: 1/limit = 1 - g + g/rate.
    speed_alone.clear();
    speed_alone.extend(clients.iter().map(|c| {
        let stretch = 1.0 / c.limit.clamp(LEAST, 1.0) - 1.0;
        if c.engine > 0.0 { 1.0 / (1.0 + stretch / c.engine) } else { 1.0 }
    }));
    let apart = apart(mode, clients);
    out.resize(clients.len(), 1.0);
    for _ in 0..ROUNDS {
        let mut moved = 0.0_f64;
        for (i, c) in clients.iter().enumerate() {
            let others = || clients.iter().zip(&*q).enumerate().filter(move |(j, _)| *j != i);
            // Under a thread limit kernels run slower, and take less of the rest.
            let wants = |of: fn(&Client) -> f64| {
                let others = others().map(|(j, (other, q))| (q * of(other) * speed_alone[j], other.weight));
                served((of(c) * speed_alone[i], c.weight), others, 1.0)
            };
            let mut rate = 1.0_f64;
            // Tasks whose thread limits leave room for each other have SMs of their own.
            if apart < 1.0 {
                // A loss through sharing holds as often as anyone else is there.
                let quiet: f64 = others().map(|(_, (_, q))| 1.0 - q).product();
                let loss = (1.0 - capacity).max(0.0) * quiet;
                let load: f64 = others().map(|(_, (other, q))| q * other.weight * fill(mode, other)).sum();
                let load = load + c.weight * fill(mode, c);
                let shared = if load > 0.0 { ((capacity + loss) * c.weight / load).min(1.0) } else { 1.0 };
                rate = apart + (1.0 - apart) * shared;
            }
            if mode == Mode::Mps {
                rate = rate.min(wants(|c| c.dram)).min(wants(|c| c.tensor));
            }
            let busy = c.engine / (rate * speed_alone[i]).max(LEAST);
            let time = (1.0 - c.overlap) * (1.0 - c.engine + busy) + c.overlap * busy.max(1.0);
            let now = (busy / time).min(1.0);
            moved = moved.max((now - q[i]).abs());
            out[i] = (1.0 / time).clamp(LEAST, 1.0);
            // In place: as sure as by rounds, and faster.
            q[i] = now;
        }
        if moved < 1e-9 {
            break;
        }
    }
    let link: f64 = clients.iter().map(|c| c.pcie).sum();
    if link > 1.0 {
        let tenants: Vec<Tenant> = clients
            .iter()
            .map(|c| Tenant::new(crate::share::Demand { pcie: c.pcie, ..Default::default() }))
            .collect();
        let divided = crate::share::share(mode, &tenants, &crate::share::Capacities::prior());
        for (p, by_link) in out.iter_mut().zip(divided.progress) {
            *p = p.min(by_link);
        }
    }
}

/// How far thread limits keep clients on SMs of their own: 1 where the limits leave room for each other, 0 where they
/// overlap by as much as the smallest has, or there are none; straight between, as one percent more changes little.
fn apart(mode: Mode, clients: &[Client]) -> f64 {
    if mode != Mode::Mps || clients.len() < 2 {
        return 0.0;
    }
    let sum: f64 = clients.iter().map(|c| c.cap).sum();
    let least = clients.iter().map(|c| c.cap).fold(1.0, f64::min);
    (1.0 - (sum - 1.0 - 1e-9).max(0.0) / least.max(LEAST)).clamp(0.0, 1.0)
}

/// Rate at which one's kernels run among others': weighted water-filling of `capacity` over what each takes
/// while it runs, the others' times the chance that they run. (Wants, weight) of it and of the others.
fn served(own: (f64, f64), others: impl Iterator<Item = (f64, f64)> + Clone, capacity: f64) -> f64 {
    if own.0 <= 0.0 || own.0 + others.clone().map(|(wants, _)| wants).sum::<f64>() <= capacity {
        return 1.0;
    }
    // The level rises from the even one: a task that has all that it wants below it leaves the rest to the others.
    let mut level = 0.0;
    loop {
        let (mut left, mut weighted, mut next) = (capacity, 0.0, f64::INFINITY);
        for (wants, weight) in others.clone().chain([own]) {
            if level * weight >= 1.0 {
                left -= wants;
            } else if wants > 0.0 {
                weighted += wants * weight;
                next = next.min(1.0 / weight);
            }
        }
        let raised = left / weighted;
        // Nothing left, or nobody to raise it for: not a number ends here as well.
        if level * own.1 >= 1.0 || raised.is_nan() || raised <= level {
            return (level * own.1).min(1.0);
        }
        level = raised;
        if raised < next {
            return (level * own.1).min(1.0);
        }
    }
}

/// What a client's kernels take of the divided resource while they run: all of the engine under
/// time-slicing, their part of the SMs under MPS.
fn fill(mode: Mode, c: &Client) -> f64 {
    match mode {
        Mode::TimeSlice => 1.0,
        Mode::Mps => c.fill.min(c.cap),
    }
}

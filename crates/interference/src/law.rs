//! The law of sharing: tasks that wait for their turn. The predictor learns with it; the simulator and virtual GPUs divide by
//! it through [`crate::share`], which makes clients of what a task does alone.
//!
//! A task spends `1 - g` of its time alone on the host and `g` on the GPU; only the second part stretches, by the rate
//! `r` at which its kernels run among others'. A step of it that ends before its answer is read waits at least once
//! more:
//!
//! ```text
//! q_j     chance that j has a kernel on the GPU
//! A_i   = sum over j != i of q_j a_j                           how much of the SMs (of the engine) the others take
//! r_i   = min over SMs, DRAM and tensor pipes of
//!         SMs, engine:  f_i + (1 - f_i) min(1, C / (a_i + sum over j != i of q_j a_j rho_ij))   C: capacity
//!                       f_i = u_i min(1, (1 - sum over j != i of c_j) / a_i), from 0     MPS: SMs that thread limits keep the
//!                                                                                        others off; c: limit, 1 without one;
//!                                                                                        u: 1 with a limit, else 0.8
//!                       rho_ij = w_j / w_i where i is the heavier, (w_j / w_i)^(1 + h x_i) where j is,
//!                       x_i = A_i - 1, from 0 to 3                                       h: crowding
//!                       MPS: not below the chance that none of the others would run if it were alone
//!         the others:   min(1, L w_i), with the level L at which
//!                       min(1, L w_i) a_i + sum over j != i of min(1, L w_j) q_j a_j = 1
//! e_i   = g_i / r_i                                            GPU time for what takes 1 alone
//! d_i   = MPS: (1 - f_i) (s / T_i) (A_i + a_i - 1), 0 to 8     waiting of a step of T_i seconds: s seconds for
//!         time-slice: (s / T_i - g_i), from 0, A_i / C         each that it finds before it
//! t_i   = (1 - o_i) (1 - g_i + e_i + d_i) + o_i max(1, e_i)    o_i: share that the host queues ahead
//! q_i   = min(1, e_i / t_i)                                    and so on until nothing moves
//! p_i   = 1 / t_i
//! ```
//!
//! `a` is what a task's kernels take of the resource while they run: all of the engine under time-slicing, part of the
//! SMs under MPS; `w` its weight.
//!
//! - With `g` = 1 this is weighted proportional sharing of `C`; with `o` = 1 host time hides behind the queue and light
//!   tasks are served first, as in water-filling.
//! - Kernels are served in the order in which they come. While SMs are free a short kernel finds room at once; the more
//!   of the GPU is taken, the more it waits for all of the long ones: that is `h`.
//! - The driver gives each process a slice of some milliseconds. One whose step is shorter than that and which waits for
//!   its answer gives the rest of the slice away, and waits for all the others' before each step: that is `s` under
//!   time-slicing. Under MPS a step waits for kernels under way.
//!
//! Where no step waits for its answer everything moves one way (a larger `q` slows all others, a slower task has a larger
//! `q`), and it starts from the least, so the least solution is found and a newcomer never speeds anyone up. A task that waits
//! longer because of a newcomer leaves others more of the GPU meanwhile. A capacity below 1 is a loss through
//! sharing: it holds in proportion to the chance that anyone else is there.
//!
//! Source of form and constants: fitted to our own measurements on H200s, `docs/research/interference.md`.

use crate::mode::Mode;

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
    /// Logarithm of its weight; only differences matter.
    pub log_weight: f64,
    /// `o`: 0 waits for every kernel, 1 always has the next one queued.
    pub overlap: f64,
    /// Steps a second alone, each of which it may wait for; 0: not known, and taken for long.
    pub steps_per_s: f64,
    /// Its speed alone under its thread limit over its speed alone without, in (0, 1].
    pub limit: f64,
    /// Its thread limit as a share of the SMs; 1: none.
    pub cap: f64,
}

/// What the GPU and the way of sharing add.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// `C`: of engine time or SMs, above 0.
    pub capacity: f64,
    /// `h`, not negative. Under MPS alone.
    pub crowding: f64,
    /// `s`, seconds, not negative.
    pub wait_s: f64,
}

/// Nothing is slower than this: a progress of 0 would hang for ever.
pub(crate) const LEAST: f64 = 1e-6;
const ROUNDS: usize = 40;
/// The largest change of a `q` that ends the rounds: slopes are taken by differences, and need it small.
const SETTLED: f64 = 1e-9;
/// Beyond these crowding and waiting grow no more: nothing was measured there.
const CROWDED: f64 = 3.0;
const BEFORE: f64 = 8.0;
/// How the rate of kernels goes with the SMs that they get of those that they fill: 17 tasks with half and a quarter of an H200's
/// threads (bench/h200/LIMITED_DATA.md).
const LACKING: f64 = 0.9;
/// What SMs of its own are worth to a task whose kernels also run on others: of the same pairs.
const UNEVEN: f64 = 0.8;
/// What sums of thread limits are off by.
const ROUNDING: f64 = 1e-9;

/// Room to work in, kept between calls.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    /// `q` of each client, as the last call left it.
    pub(crate) q: Vec<f64>,
    fill: Vec<f64>,
    /// Of each, the share of its kernels on SMs of its own.
    apart: Vec<f64>,
    speed_alone: Vec<f64>,
    weight: Vec<f64>,
    /// `w_j / w_i`, and its logarithm where that is above 0.
    ratio: Vec<(f64, f64)>,
}

/// Progress of each client in (0, 1].
#[must_use]
pub fn progress(mode: Mode, clients: &[Client], constants: Constants) -> Vec<f64> {
    let mut out = Vec::with_capacity(clients.len());
    progress_into(mode, clients, constants, &mut Scratch::default(), &mut out);
    out
}

/// [`progress`] without allocation once the buffers have grown. Replaces what is in `out`.
pub fn progress_into(
    mode: Mode,
    clients: &[Client],
    constants: Constants,
    scratch: &mut Scratch,
    out: &mut Vec<f64>,
) {
    begin(clients, scratch);
    settle(mode, clients, constants, scratch, out);
}

/// From the least: everyone alone.
pub(crate) fn begin(clients: &[Client], scratch: &mut Scratch) {
    scratch.q.clear();
    scratch.q.extend(clients.iter().map(|c| c.engine));
}

/// Speed alone of a task whose kernels may fill only `cap` of the SMs, over its speed alone without a limit: host time
/// stays, kernels take longer by a little less than what they lack.
pub(crate) fn limited(engine: f64, fill: f64, cap: f64) -> f64 {
    let rate = (cap / fill.max(1e-3)).clamp(LEAST, 1.0).powf(LACKING);
    1.0 / (1.0 - engine + engine / rate)
}

/// [`progress_into`] from where the last call with this scratch ended, for clients that differ by little from its.
pub(crate) fn settle(
    mode: Mode,
    clients: &[Client],
    constants: Constants,
    scratch: &mut Scratch,
    out: &mut Vec<f64>,
) {
    settle_to(SETTLED, mode, clients, constants, scratch, out);
}

/// [`settle`] until no `q` moves by more than this.
pub(crate) fn settle_to(
    settled: f64,
    mode: Mode,
    clients: &[Client],
    constants: Constants,
    scratch: &mut Scratch,
    out: &mut Vec<f64>,
) {
    let n = clients.len();
    out.clear();
    out.resize(n, 1.0);
    if let ([c], [q]) = (clients, &mut scratch.q[..]) {
        // Exactly what it does alone.
        out[0] = c.limit.clamp(LEAST, 1.0);
        *q = (1.0 - (1.0 - c.engine) * out[0]).clamp(0.0, 1.0);
        return;
    }
    scratch.fill(mode, clients);
    let Scratch { q, fill, apart, speed_alone, weight, ratio } = scratch;
    let Constants { capacity, crowding, wait_s } = constants;
    // What would be enough for all at once never binds.
    let binds = |of: fn(&Client) -> f64| {
        mode == Mode::Mps && clients.iter().zip(&*speed_alone).map(|(c, s)| of(c) * s).sum::<f64>() > 1.0
    };
    let (dram_binds, tensor_binds) = (binds(|c| c.dram), binds(|c| c.tensor));
    for _ in 0..ROUNDS {
        let mut moved = 0.0_f64;
        for (i, c) in clients.iter().enumerate() {
            let (own, apart) = (fill[i], apart[i]);
            let ratio = &ratio[i * n..][..n];
            let (mut taken, mut quiet, mut free, mut load) = (0.0, 1.0, 1.0, own);
            for j in (0..n).filter(|j| *j != i) {
                let takes = q[j] * fill[j];
                taken += takes;
                quiet *= 1.0 - q[j];
                free *= 1.0 - clients[j].engine;
                load += takes * ratio[j].0;
            }
            let mut rate = 1.0_f64;
            // A loss through sharing holds as often as anyone else is there.
            let held = capacity + (1.0 - capacity).max(0.0) * quiet;
            if apart < 1.0 {
                let crowded =
                    if mode == Mode::Mps { crowding * (taken - 1.0).clamp(0.0, CROWDED) } else { 0.0 };
                if crowded > 0.0 {
                    for (j, (times, heavier)) in ratio.iter().enumerate() {
                        if j != i && *heavier > 0.0 {
                            load += q[j] * fill[j] * times * (crowded * heavier).exp_m1();
                        }
                    }
                }
                // However heavy the others, it runs when they would not run alone either. Time slices are equal.
                let least = if mode == Mode::Mps { free } else { 0.0 };
                let shared = if load > 0.0 { (held / load).max(least).min(1.0) } else { 1.0 };
                rate = apart + (1.0 - apart) * shared;
            }
            // Under a thread limit kernels run slower, and take less of the rest.
            let wants = |of: fn(&Client) -> f64| {
                let others = (0..n).filter(|j| *j != i);
                let others = others.map(|j| (q[j] * of(&clients[j]) * speed_alone[j], weight[j]));
                served((of(c) * speed_alone[i], weight[i]), others, 1.0)
            };
            if dram_binds {
                rate = rate.min(wants(|c| c.dram));
            }
            if tensor_binds {
                rate = rate.min(wants(|c| c.tensor));
            }
            let busy = c.engine / (rate * speed_alone[i]).max(LEAST);
            let wait = match mode {
                Mode::TimeSlice => (wait_s * c.steps_per_s - c.engine).max(0.0) * taken / held,
                Mode::Mps => (1.0 - apart) * wait_s * c.steps_per_s * (taken + own - 1.0).clamp(0.0, BEFORE),
            };
            // Exactly 1 where nothing stretches.
            let stretch = (busy - c.engine).max(0.0);
            let time = 1.0 + (1.0 - c.overlap) * (stretch + wait) + c.overlap * (busy - 1.0).max(0.0);
            let now = (busy / time).min(1.0);
            moved = moved.max((now - q[i]).abs());
            out[i] = (1.0 / time).clamp(LEAST, c.limit.clamp(LEAST, 1.0));
            // In place: as sure as by rounds, and faster.
            q[i] = now;
        }
        if moved < settled {
            break;
        }
    }
    // Copies overlap with kernels, and each is served in turn: the link is divided by itself.
    let total: f64 = clients.iter().map(|c| c.pcie).sum();
    if total > 1.0 {
        for (i, c) in clients.iter().enumerate() {
            let others = clients
                .iter()
                .enumerate()
                .filter(|(j, _)| *j != i)
                .map(|(_, c)| (c.pcie, 1.0 / c.pcie.max(LEAST)));
            out[i] = out[i].min(served((c.pcie, 1.0 / c.pcie.max(LEAST)), others, 1.0).max(LEAST));
        }
    }
}

impl Scratch {
    fn fill(&mut self, mode: Mode, clients: &[Client]) {
        self.fill.clear();
        self.fill.extend(clients.iter().map(|c| fill(mode, c)));
        self.apart.clear();
        self.apart.extend(apart(mode, clients));
        // Rate of its kernels alone under its thread limit: 1/limit = 1 - g + g/rate.
        self.speed_alone.clear();
        self.speed_alone.extend(clients.iter().map(|c| {
            let stretch = 1.0 / c.limit.clamp(LEAST, 1.0) - 1.0;
            if c.engine > 0.0 { 1.0 / (1.0 + stretch / c.engine) } else { 1.0 }
        }));
        let middle = clients.iter().map(|c| c.log_weight).sum::<f64>() / clients.len().max(1) as f64;
        self.weight.clear();
        self.weight.extend(clients.iter().map(|c| (c.log_weight - middle).clamp(-12.0, 12.0).exp()));
        self.ratio.clear();
        for i in clients {
            self.ratio.extend(clients.iter().map(|j| {
                let log = (j.log_weight - i.log_weight).clamp(-12.0, 12.0);
                if log == 0.0 { (1.0, 0.0) } else { (log.exp(), log.max(0.0)) }
            }));
        }
    }
}

/// Share of each client's kernels that runs as on SMs of its own, since the others' thread limits keep them off these: as far as its
/// kernels find room there.
fn apart(mode: Mode, clients: &[Client]) -> impl Iterator<Item = f64> {
    let caps: f64 = clients.iter().map(|c| c.cap).sum();
    clients.iter().map(move |c| match mode {
        Mode::TimeSlice => 0.0,
        Mode::Mps => {
            let room = 1.0 - (caps - c.cap);
            // Without a limit of its own its blocks are everywhere, and each kernel ends with its last one.
            let worth = if c.cap < 1.0 { 1.0 } else { UNEVEN };
            // Rounding is no SM.
            if room < ROUNDING {
                0.0
            } else {
                worth * ((room + ROUNDING) / fill(mode, c).max(LEAST)).min(1.0)
            }
        }
    })
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
        // Nothing left, or no task to raise it for: not a number ends here as well.
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

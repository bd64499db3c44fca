//! What is to blame for an out-of-memory.
//!
//! What the next attempt gets is in [`super::ladder`].

use super::around::Span;
use super::evidence::Said;
use crate::spec::JobId;
use crate::units::MiB;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What is to blame for an out-of-memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The job ran into its hard cap.
    OwnCap {
        /// The cap.
        cap: MiB,
    },
    /// The job wanted more than was forecast for it.
    OwnForecast {
        /// What it wanted at least.
        wanted: MiB,
        /// What was forecast.
        forecast: MiB,
    },
    /// The job was alone on the GPU and does not fit.
    WholeGpu {
        /// The GPU's memory.
        capacity: MiB,
    },
    /// The job stayed within its forecast; a neighbour filled the GPU.
    Neighbour {
        /// Which job, if it was one of ours.
        job: Option<JobId>,
        /// The process, if it was not ours.
        pid: Option<u32>,
        /// Its owner.
        user: Option<Arc<str>>,
    },
    /// No forecast, several tenants: together they were too much.
    Contention {
        /// Most memory seen of this job, where known.
        peak: Option<MiB>,
    },
    /// Neither its own doing nor a neighbour's can be shown.
    Unknown {
        /// Most memory seen of this job, where known.
        peak: Option<MiB>,
    },
}

impl Blame {
    /// Whether the retry is charged to the job.
    #[must_use]
    pub const fn is_own_fault(&self) -> bool {
        !matches!(self, Self::Neighbour { .. })
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnCap { cap } => write!(f, "culprit, it reached its own cap of {cap}"),
            Self::OwnForecast { wanted, forecast } => {
                write!(f, "culprit, it wanted {wanted} where {forecast} was expected")
            }
            Self::WholeGpu { capacity } => {
                write!(f, "culprit, it was alone on a GPU of {capacity} and does not fit")
            }
            Self::Neighbour { job: Some(job), .. } => {
                write!(f, "victim, job {job} took more than was reserved for it")
            }
            Self::Neighbour { pid: Some(pid), user, .. } => {
                write!(f, "victim, pid {pid}")?;
                if let Some(user) = user {
                    write!(f, " of {user}")?;
                }
                f.write_str(" (not ours) filled the GPU")
            }
            Self::Neighbour { .. } => f.write_str("victim, the GPU was full without its doing"),
            Self::Contention { peak: Some(peak) } => {
                write!(f, "no forecast to judge by, it held {peak} when the shared GPU was full")
            }
            Self::Contention { peak: None } => {
                f.write_str("no forecast to judge by, the shared GPU was full")
            }
            Self::Unknown { peak } => {
                let shown =
                    "nothing shows that it exceeded what was reserved for it, nor that the GPU was full";
                match peak {
                    Some(peak) => write!(f, "unknown, {shown}; it was seen to hold {peak}"),
                    None => write!(f, "unknown, {shown}; it was not seen at all"),
                }
            }
        }
    }
}

/// What is known at an out-of-memory, about the GPU where it happened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OomFacts {
    /// Most memory seen of the job on one GPU.
    pub peak: Option<MiB>,
    /// What it held when it was last seen.
    pub held: Option<MiB>,
    /// What the failing allocation wanted on top.
    pub wanted: Option<MiB>,
    /// What else its message says.
    pub said: Said,
    /// Forecast or floor that its placement was made with.
    pub forecast: Option<MiB>,
    /// Its hard cap.
    pub cap: Option<MiB>,
    /// That, where less is reserved for it: it had not taken all when its memory settled, and others were lent the rest.
    pub lent: Option<MiB>,
    /// The GPU's memory.
    pub capacity: MiB,
    /// Whether others were beside it.
    pub shared: bool,
    /// What all others held, by the looks around its end.
    pub others: Option<Span>,
    /// The neighbour that exceeded what was reserved for it the most.
    pub offender: Option<JobId>,
    /// The largest foreign process that was there before its end and after.
    pub foreign: Option<(u32, Option<Arc<str>>)>,
}

/// Sizes closer than this are equal: frameworks print hundredths of a GiB, and the driver counts in pages.
const ROUNDING: MiB = MiB(16);
/// What CUDA calls a GPU's total is this share of what NVML does at least, percent: 96.1 on a T4, 99.6 on an H200.
const CUDA_TOTAL: u64 = 95;
/// A GPU is full at this share where it is not known what an allocation wanted, percent.
const FULL: u64 = 98;

impl OomFacts {
    /// What the message says, if it can be about this GPU: a total that is neither the GPU's nor the cap's comes from
    /// another GPU, or from nowhere.
    fn message(&self) -> Said {
        match self.said.total {
            Some(total) if !self.is_whole(total) && !self.is_cap(total) => {
                Said { allowed: self.said.allowed, ..Said::default() }
            }
            _ => self.said,
        }
    }

    fn is_whole(&self, total: MiB) -> bool {
        total >= self.capacity.percent(CUDA_TOTAL) && total <= self.capacity + ROUNDING
    }

    fn is_cap(&self, total: MiB) -> bool {
        self.cap.is_some_and(|cap| total.0.abs_diff(cap.0) <= ROUNDING.0)
    }

    /// Whether a message that names this GPU can mean it: one that tells its total tells the right one.
    pub(crate) fn may_be_meant(&self) -> bool {
        self.said.total.is_some_and(|total| self.is_whole(total) || self.is_cap(total))
    }

    /// Whether it was seen to have wanted more than it was given here.
    pub(crate) fn exceeds(&self) -> bool {
        let seen = |held: MiB| held + self.wanted.unwrap_or_default();
        let reached = self.peak.max(self.held.map(seen));
        let given = self.cap.or(self.forecast);
        given.is_some_and(|given| reached.is_some_and(|reached| reached > given + ROUNDING))
    }

    /// What was left to it here at the worst.
    pub(crate) fn left(&self) -> MiB {
        let held = self.peak.unwrap_or_default();
        let free = self.capacity - self.others.map_or(MiB::ZERO, |o| o.most) - held;
        self.cap.map_or(free, |cap| free.min(cap - held))
    }

    /// What it held in the end, as far as is known: by its message, or as it was last seen. The message counts one
    /// process of perhaps several.
    fn held(&self) -> Option<MiB> {
        self.message().held.max(self.held)
    }

    /// What the job wanted at least: the most that it was seen to hold, and what it held in the end plus the
    /// allocation that failed.
    pub(crate) fn reached(&self) -> Option<MiB> {
        let end = match (self.held(), self.wanted) {
            (None, None) => None,
            (held, wanted) => Some(held.unwrap_or_default() + wanted.unwrap_or_default()),
        };
        self.peak.max(end)
    }

    /// What it could have had at the worst, and at the best, by the looks: the GPU's memory but for what others held.
    fn room(&self) -> Option<Span> {
        self.others.map(|o| Span { least: self.capacity - o.most, most: self.capacity - o.least })
    }

    /// Whether the message's own numbers say that the GPU, not a limit of the job's, had too little left.
    fn said_full(&self) -> Option<bool> {
        let said = self.message();
        let (free, wanted) = (said.free?, self.wanted?);
        match said.total {
            // Under a cap the driver shows what is left of the cap, unless the GPU has less.
            Some(total) if self.is_cap(total) && !self.is_whole(total) => {
                Some(free + ROUNDING < wanted && free + ROUNDING < total - said.held?)
            }
            Some(_) => Some(free < wanted),
            None => None,
        }
    }

    /// Whether the looks show that the GPU was full, as far as ten looks a second can: at the best it had less left
    /// than the failing allocation wanted, or the job could not have got what was reserved for it even so.
    fn seen_full(&self, reserved: MiB) -> bool {
        let Some(room) = self.room() else { return false };
        let left = |held| room.most - held;
        match (self.wanted, self.held) {
            // Whatever it held was within the room, so that it wanted no more than its share in all.
            (Some(wanted), _) if room.most + wanted <= reserved => true,
            (Some(wanted), Some(held)) => left(held) < wanted,
            (Some(_), None) => false,
            (None, held) => left(held.unwrap_or_default()) <= self.capacity.percent(100 - FULL),
        }
    }

    /// What a failure proves of the job's need where its own message says nothing: it had all that others left it,
    /// or all of its cap.
    pub(super) fn proven(&self) -> Option<MiB> {
        if self.message().held.is_some() {
            return None;
        }
        let room = self.room()?.least;
        Some(self.cap.map_or(room, |cap| cap.min(room)))
    }
}

/// Culprit or victim: did it exceed its own cap or forecast, or was it denied what was reserved for it?
///
/// A job is a victim only if it wanted no more than was reserved for it **and** the GPU could not give it that. Both
/// come from the looks around its end, in which others are known as an interval ([`Span`]): between two looks a job
/// can take gigabytes, so what was seen of the job itself proves little, but what was seen of the others before its
/// end and after it bounds what it could have had. Where they leave it what was reserved for it at the worst, a failure is
/// its own doing however little of it was seen; where they deny it that even at the best, the GPU was full. In between,
/// and where no look was taken, the numbers of its message decide; and where those are missing, it is not known.
///
/// The message is the job's own, and a job may lie. It may always accuse itself. To excuse itself it must say that it
/// held and wanted little on a GPU without room, and is believed where the looks allow both; where they show room, what
/// it says against them is at best unknown, which is charged. So a lie gains a retry that is not charged, at most
/// `max_free_retries` times and only on a GPU that was short of memory or that was not looked at, and then a GPU alone
/// (which any user may ask for). It costs no other user anything: what is named as having filled the GPU is taken from the
/// looks, and is charged nothing for it.
pub(crate) fn blame(facts: &OomFacts) -> Blame {
    let said = facts.message();
    let reached = facts.reached();
    let said_full = facts.said_full();
    let unknown = Blame::Unknown { peak: facts.peak };
    // A limit that it set itself.
    if let Some(cap) = said.allowed {
        let over = said.held.zip(facts.wanted).is_some_and(|(held, wanted)| held + wanted > cap);
        if said_full.map_or(over, |full| !full) {
            return Blame::OwnCap { cap };
        }
    }
    if let Some(cap) = facts.cap {
        let at_cap = |reached: MiB| match facts.wanted {
            Some(_) => reached > cap + ROUNDING,
            None => reached >= cap.percent(FULL),
        };
        let says_so = said_full == Some(false) && said.total.is_some_and(|total| facts.is_cap(total));
        // Where the driver enforces a cap and no other job was there, nothing else explains the failure, unless its own
        // numbers say that another was.
        let alone = !facts.shared && said_full != Some(true);
        if reached.is_some_and(at_cap) || says_so || alone {
            return Blame::OwnCap { cap };
        }
    }
    // Alone and without a cap it had all there is, whatever was forecast, unless it says that it had not.
    if !facts.shared {
        let all = reached.max(facts.proven()).is_none_or(|r| r >= facts.capacity.percent(90));
        return if all || said_full.is_none() {
            Blame::WholeGpu { capacity: facts.capacity }
        } else {
            unknown
        };
    }
    let Some(reserved) = facts.forecast.or(facts.cap).map(|m| m.min(facts.capacity)) else {
        return if said_full == Some(false) { unknown } else { Blame::Contention { peak: facts.peak } };
    };
    if let Some(wanted) = reached.filter(|r| *r > reserved + ROUNDING) {
        return Blame::OwnForecast { wanted, forecast: reserved };
    }
    let neighbour = || Blame::Neighbour {
        job: facts.offender,
        pid: facts.foreign.as_ref().map(|(pid, _)| *pid),
        user: facts.foreign.as_ref().and_then(|(_, user)| user.clone()),
    };
    // That it held little is known only if its message or a look says so.
    let excused = said_full == Some(true) && facts.held().is_some();
    match facts.room() {
        // It could have had what was reserved for it, so it wanted more; or it says otherwise, against the looks.
        Some(_) if said_full == Some(false) => unknown,
        Some(room) if room.least >= reserved => match facts.cap {
            _ if excused => unknown,
            Some(cap) if room.least >= cap => Blame::OwnCap { cap },
            _ => Blame::OwnForecast { wanted: room.least.max(reserved + MiB(1)), forecast: reserved },
        },
        Some(room) if room.most < reserved && facts.seen_full(reserved) => neighbour(),
        _ if excused => neighbour(),
        _ => unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: MiB = MiB(40_960);

    /// 9,000 MiB held and 500 wanted of 10,240 that were expected, beside others that held 12 to 13 GiB.
    fn facts() -> OomFacts {
        OomFacts {
            peak: Some(MiB(9_000)),
            held: Some(MiB(9_000)),
            wanted: Some(MiB(500)),
            forecast: Some(MiB(10_240)),
            capacity: CAPACITY,
            shared: true,
            others: Some(Span { least: MiB(12_000), most: MiB(13_000) }),
            ..OomFacts::default()
        }
    }

    /// Others held this much, before and after.
    fn beside(mib: u64) -> Option<Span> {
        Some(Span { least: MiB(mib), most: MiB(mib) })
    }

    /// As PyTorch says it.
    fn said(total: MiB, free: u64, held: u64) -> Said {
        Said { gpu: Some(0), total: Some(total), free: Some(MiB(free)), held: Some(MiB(held)), allowed: None }
    }

    #[test]
    fn who_exceeded_what_was_expected_is_the_culprit_on_a_full_gpu_too() {
        let over = OomFacts {
            wanted: Some(MiB(2_000)),
            others: beside(30_000),
            offender: Some(JobId(3)),
            ..facts()
        };
        assert!(matches!(blame(&over), Blame::OwnForecast { wanted: MiB(11_000), .. }));
        let grown = OomFacts { peak: Some(MiB(12_000)), held: Some(MiB(500)), ..facts() };
        assert!(matches!(blame(&grown), Blame::OwnForecast { wanted: MiB(12_000), .. }));
        // Its own word is enough against it.
        let says = OomFacts { peak: None, held: None, said: said(CAPACITY, 100, 10_000), ..facts() };
        assert!(matches!(blame(&says), Blame::OwnForecast { wanted: MiB(10_500), .. }));
    }

    #[test]
    fn who_was_denied_what_was_reserved_for_it_is_a_victim() {
        let denied = OomFacts { others: beside(31_700), offender: Some(JobId(3)), ..facts() };
        assert!(matches!(blame(&denied), Blame::Neighbour { job: Some(JobId(3)), .. }));
        assert!(!blame(&denied).is_own_fault());
        // Hardly seen, but the rest of the room and what it wanted are less than its share.
        let unseen = OomFacts { peak: None, held: None, others: beside(32_000), ..facts() };
        assert!(matches!(blame(&unseen), Blame::Neighbour { .. }));
        // It may have taken more than its share of this room between looks.
        let unsure = OomFacts { wanted: Some(MiB(3_000)), ..unseen };
        assert_eq!(blame(&unsure), Blame::Unknown { peak: None });
        assert!(blame(&unsure).is_own_fault());
        // Nor is a GPU full that is, by all looks, but nearly so.
        let room = OomFacts { others: beside(31_000), wanted: Some(MiB(900)), ..facts() };
        assert_eq!(blame(&room), Blame::Unknown { peak: Some(MiB(9_000)) });
        // Without a size, it counts as full from 98 % on.
        let silent = OomFacts { wanted: None, ..facts() };
        let used = |others| blame(&OomFacts { others: beside(others), ..silent.clone() });
        assert!(matches!(used(31_300), Blame::Neighbour { .. }));
        assert!(matches!(used(30_900), Blame::Unknown { .. }));
    }

    #[test]
    fn nobody_is_a_victim_on_a_gpu_that_had_room() {
        // The job allocated between two looks: hardly anything was seen of it (defect D1).
        let reported = OomFacts {
            peak: Some(MiB(450)),
            held: Some(MiB(450)),
            wanted: Some(MiB(1_480)),
            forecast: Some(MiB(4_096)),
            cap: Some(MiB(4_096)),
            others: beside(9_216),
            foreign: Some((4711, None)),
            ..facts()
        };
        assert_eq!(blame(&reported), Blame::OwnCap { cap: MiB(4_096) });
        let uncapped = OomFacts { cap: None, ..reported };
        assert_eq!(
            blame(&uncapped),
            Blame::OwnForecast { wanted: CAPACITY - MiB(9_216), forecast: MiB(4_096) }
        );
        let silent = OomFacts { peak: None, held: None, wanted: None, ..uncapped };
        assert!(matches!(blame(&silent), Blame::OwnForecast { .. }));
        // A neighbour came or went meanwhile: it is not known.
        let moved = OomFacts { others: Some(Span { least: MiB(9_000), most: MiB(39_000) }), ..silent };
        assert_eq!(blame(&moved), Blame::Unknown { peak: None });
        assert_eq!(blame(&OomFacts { others: None, ..moved }), Blame::Unknown { peak: None });
    }

    #[test]
    fn a_message_decides_where_the_looks_do_not() {
        let full = said(CAPACITY, 300, 9_000);
        let moved = Some(Span { least: MiB(12_000), most: MiB(39_000) });
        for others in [moved, None] {
            let facts = OomFacts { others, said: full, ..facts() };
            assert!(matches!(blame(&facts), Blame::Neighbour { .. }), "{others:?}");
            let room = OomFacts { said: said(CAPACITY, 600, 9_000), ..facts.clone() };
            assert!(matches!(blame(&room), Blame::Unknown { .. }), "{others:?}");
            // The total of another GPU, and of none.
            for total in [MiB::gib(80), MiB(1)] {
                let other = OomFacts { said: Said { total: Some(total), ..full }, ..facts.clone() };
                assert!(matches!(blame(&other), Blame::Unknown { .. }), "{total}");
            }
        }
        // Against the looks it excuses no job, and it does not make a stranger's fault of it either.
        let lies = OomFacts { said: full, foreign: Some((4711, None)), ..facts() };
        assert_eq!(blame(&lies), Blame::Unknown { peak: Some(MiB(9_000)) });
        // As CUDA counts a GPU's memory.
        let cuda = OomFacts { others: None, said: said(MiB(40_339), 300, 9_000), ..facts() };
        assert!(matches!(blame(&cuda), Blame::Neighbour { .. }));
    }

    #[test]
    fn a_cap_is_told_apart_from_a_full_gpu() {
        let cap = Some(MiB(10_240));
        // The driver shows the cap as the total. What is free is what is left of it, or of the GPU.
        let own = OomFacts { cap, others: None, said: said(MiB(10_240), 240, 10_000), ..facts() };
        assert_eq!(blame(&own), Blame::OwnCap { cap: MiB(10_240) });
        let fits = OomFacts { wanted: Some(MiB(200)), ..own.clone() };
        assert_eq!(blame(&fits), Blame::OwnCap { cap: MiB(10_240) });
        let gpu = OomFacts { cap, others: None, said: said(MiB(10_240), 40, 9_000), ..facts() };
        assert!(matches!(blame(&gpu), Blame::Neighbour { .. }));
        // At its cap as seen, without a size; and with the last bit that it needs.
        let silent = OomFacts { cap, peak: Some(MiB(10_100)), wanted: None, ..facts() };
        assert_eq!(blame(&silent), Blame::OwnCap { cap: MiB(10_240) });
        let last = OomFacts { cap, wanted: Some(MiB(1_240)), others: beside(31_700), ..facts() };
        assert!(matches!(blame(&last), Blame::Neighbour { .. }));
        // History knew of less than was asked for, and the GPU could give no more than it said.
        let asked = OomFacts { cap: Some(MiB(20_480)), others: beside(25_000), wanted: None, ..facts() };
        assert!(matches!(blame(&asked), Blame::OwnForecast { wanted: MiB(15_960), .. }));
        // A limit that it set itself.
        let allowed = Said { allowed: Some(MiB(9_200)), ..said(CAPACITY, 20_000, 9_000) };
        let own = OomFacts { said: allowed, forecast: None, ..facts() };
        assert_eq!(blame(&own), Blame::OwnCap { cap: MiB(9_200) });
    }

    #[test]
    fn alone_it_had_all_there_is() {
        let alone = OomFacts { shared: false, others: beside(500), ..facts() };
        assert_eq!(blame(&alone), Blame::WholeGpu { capacity: CAPACITY });
        let capped = OomFacts { cap: Some(MiB(11_000)), ..alone.clone() };
        assert!(matches!(blame(&capped), Blame::OwnCap { .. }));
        // No other process was seen, but the memory that its error message counts means that there was one.
        let odd = OomFacts { said: said(CAPACITY, 100, 9_000), ..alone };
        assert!(matches!(blame(&odd), Blame::Unknown { .. }));
    }

    #[test]
    fn without_a_forecast_nobody_can_be_told_to_have_exceeded_it() {
        let unknown = OomFacts { forecast: None, others: beside(31_000), ..facts() };
        assert_eq!(blame(&unknown), Blame::Contention { peak: Some(MiB(9_000)) });
        let room = OomFacts { said: said(CAPACITY, 5_000, 9_000), ..unknown };
        assert!(matches!(blame(&room), Blame::Unknown { .. }));
    }
}

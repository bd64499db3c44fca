//! One-word names of the reasons, for programs. They are printed and never change.

use super::{Reason, Refusal};
use crate::policy::GateVerdict;

impl Reason {
    /// Slurm-like one-word name of the reason, stable for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::PlacedIdle { .. } => "PlacedIdle",
            Self::PlacedShared { .. } => "PlacedShared",
            Self::NoGpu { gpus, detail, .. } if detail.too_few_left(*gpus).is_some() => "GpuUnavailable",
            Self::NoGpu { detail, .. } => match detail.closest() {
                Some((_, Refusal::Memory { .. } | Refusal::TooSmall { .. } | Refusal::Slice)) => "GpuMemory",
                Some((_, Refusal::Gate(GateVerdict::Missing(_)))) => "MetricMissing",
                Some((_, Refusal::Gate(_) | Refusal::Full { .. } | Refusal::Pack { .. })) => "GpuBusy",
                Some((_, Refusal::Held { .. })) => "Priority",
                Some((_, Refusal::Progress(objection))) if objection.is_of_a_limit() => "MaxSlowdown",
                Some((_, Refusal::Progress(_))) => "GpuBusy",
                Some((_, Refusal::Starting { .. })) => "StartingNeighbour",
                Some((_, Refusal::Rising { .. })) => "RisingNeighbour",
                Some((_, Refusal::Stale { .. } | Refusal::Unhealthy { .. } | Refusal::Gone)) => {
                    "GpuUnavailable"
                }
                Some((_, Refusal::Drained { .. })) => "GpuDrained",
                Some((_, Refusal::MpsCooldown { .. })) => "MpsCooldown",
                Some((_, Refusal::Busy { .. } | Refusal::Exclusive { .. })) | None => "Resources",
            },
            Self::Behind { .. } | Self::Later { .. } => "Priority",
            Self::UserLimit { .. } => "UserLimit",
            Self::Held { .. } => "Held",
            Self::UserGone { .. } => "UserGone",
            Self::Pause { .. } => "LaunchPause",
            Self::Launching => "Launching",
            Self::NotPlannedYet => "NotPlannedYet",
            Self::Judging => "JudgingFault",
            Self::Completed => "Completed",
            Self::CommandFailed { .. } => "NonZeroExit",
            Self::NotStarted { .. } => "NotStarted",
            Self::NotLaunched { .. } => "NotLaunched",
            Self::LaunchFailed { .. } => "LaunchFailed",
            Self::ExitUnknown => "ExitUnknown",
            Self::Cancelled { .. } => "Cancelled",
            Self::RequeuedByUser { .. } => "Requeued",
            Self::Evicted(_) => "Evicted",
            Self::GrowthGuard { .. } => "GrowthGuard",
            Self::MadeRoom { .. } => "MadeRoom",
            Self::SetAside { .. } => "SetAside",
            Self::Suspended { .. } => "Suspended",
            Self::Ending { .. } => "Ending",
            Self::Moving { off: true } => "Suspending",
            Self::Moving { off: false } => "Resuming",
            Self::Moved { .. } => "Moved",
            Self::RunsOn { .. } => "NotSuspended",
            Self::NotResumed { .. } => "NotResumed",
            Self::Stuck { .. } => "Stuck",
            Self::TimeLimit { .. } => "TimeLimit",
            Self::OutOfMemoryRetry { .. } => "OutOfMemoryRetry",
            Self::OutOfMemoryFinal { .. } => "OutOfMemory",
            Self::HostOutOfMemory { .. } => "HostOutOfMemory",
            Self::HostMemoryLimit { .. } => "HostMemoryLimit",
            Self::FaultVictim { .. } => "MpsFaultVictim",
            Self::FaultSuspect { .. } => "MpsFaultSuspect",
            Self::FaultCulprit { .. } => "MpsFault",
            Self::GpuLost { .. } => "GpuLost",
        }
    }
}

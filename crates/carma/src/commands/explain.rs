//! `carma explain`: why a job waits, or why it went where it went.

use super::{Context, show};
use crate::cli::ShowArgs;
use carma_api::wire::ExplainReply;
use carma_cli::failure::Outcome;
use carma_cli::{Block, Screen, clean, wrap};
use std::fmt::Write as _;

/// Explains the job.
pub(crate) fn run(context: &Context, args: &ShowArgs) -> Outcome {
    context.listing(&format!("/v1/jobs/{}/explain", args.id), args.json, render)
}

fn render(reply: &ExplainReply, screen: &Screen) -> String {
    let job = &reply.job;
    let mut block = Block::default();
    block.line("job", format!("{} ({}) of {}", job.id, job.name, job.user));
    block.line("state", &job.state).line("reason", &job.reason.text).line("policy", &reply.policy);
    block.line_if("expected", reply.estimate.as_ref().map(show::expected));
    block.line_if("run time", job.run_time.as_ref().map(show::run_time));
    block.line_if("left", show::left(job));
    let mut text = block.render(screen);
    if let Some(estimate) = &reply.estimate {
        text.push_str(&show::reasons(estimate, screen));
    }
    if !reply.gpus.is_empty() {
        text.push_str("\nWhat each GPU says to it now:\n");
        let widest = reply.gpus.iter().map(|g| g.gpu.to_string().len()).max().unwrap_or(1);
        for verdict in &reply.gpus {
            let word = if verdict.fits { "yes" } else { "no" };
            let head = format!("  GPU {:>widest$}  {word:<3}  ", verdict.gpu);
            for (i, line) in wrap(&clean(&verdict.text), screen, head.len()).iter().enumerate() {
                let head = if i == 0 { head.clone() } else { " ".repeat(head.len()) };
                let _ = writeln!(text, "{}", format!("{head}{line}").trim_end());
            }
        }
    }
    if !reply.attempts.is_empty() {
        text.push_str(&show::attempts(&reply.attempts, screen));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::queue::tests::job;
    use super::*;
    use carma_api::wire::{EstimateView, GpuVerdict};

    #[test]
    fn a_job_that_waits() {
        let verdict = |gpu, fits, text: &str| GpuVerdict { gpu, fits, text: text.into() };
        let reply = ExplainReply {
            version: 1,
            job: job(
                12,
                "PENDING",
                "GpuMemory",
                "GpuMemory(2 of 3 GPUs found; need 20.0 GiB (declared); best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours)",
            ),
            policy: "oracle-bf".into(),
            estimate: None,
            gpus: vec![
                verdict(0, true, "20.5 GiB free beside 1 job(s)"),
                verdict(
                    1,
                    false,
                    "12.3 GiB free: 9.1 GiB held by pid 4711 of bob, not ours; 18.0 GiB held by job 3",
                ),
                verdict(10, false, "drained by root"),
            ],
            attempts: vec![],
        };
        insta::assert_snapshot!(render(&reply, &Screen::of_width(Some(70))), @r"
        job:    12 (train12) of alice
        state:  PENDING
        reason: GpuMemory(2 of 3 GPUs found; need 20.0 GiB (declared); best is
                GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not
                ours)
        policy: oracle-bf

        What each GPU says to it now:
          GPU  0  yes  20.5 GiB free beside 1 job(s)
          GPU  1  no   12.3 GiB free: 9.1 GiB held by pid 4711 of bob, not
                       ours; 18.0 GiB held by job 3
          GPU 10  no   drained by root
        ");
    }

    #[test]
    fn a_job_that_runs() {
        let detail = show::tests::detail();
        let reply = ExplainReply {
            version: 1,
            job: detail.job,
            policy: "carma".into(),
            estimate: Some(EstimateView {
                tier: "exact".into(),
                source: "history".into(),
                use_mib: 4096,
                upper_mib: 4301,
                need_mib: 4096,
                reasons: vec!["2 runs of this command on H200 took 4096 MiB at most".into()],
                ..EstimateView::default()
            }),
            gpus: vec![],
            attempts: detail.attempts,
        };
        let text = render(&reply, &Screen::of_width(None));
        assert!(
            text.contains("expected: 4.0 GiB to 4.2 GiB, cannot run below 4.0 GiB (history, tier exact)"),
            "{text}"
        );
        assert!(text.contains("  - 2 runs of this command on H200"), "{text}");
        assert!(text.contains("\nattempt 2\n  placed:  GPU 0 shared by time-slice"), "{text}");
        assert!(!text.contains("What each GPU"), "{text}");
    }
}

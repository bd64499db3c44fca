//! Out-of-memory crashes: how many, what they cost, and each of the first ones.

use super::text::{Esc, Short, count, span};
use super::{Origin, block, open};
use crate::event::outcome::{Oom, RunResult};
use std::fmt::Write as _;

/// The most crashes listed one by one.
const LISTED: usize = 50;

/// Writes the section.
pub(super) fn section(out: &mut String, runs: &[RunResult], names: &[String], origin: Origin) {
    open(out, "ooms", "Out-of-memory crashes");
    out.push_str(
        "<div class=\"wide\"><table><thead><tr><th class=\"text\">Policy</th><th class=\"text\">Precondition of sharing</th><th>OOM crashes</th><th>Jobs affected</th>\
         <th>Lost GPU time</th><th>Mean extra wait</th></tr></thead><tbody>",
    );
    for (i, (run, name)) in runs.iter().zip(names).enumerate() {
        let s = &run.summary;
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{} {}</th><td class=\"words\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            block(i),
            Short(name, 60),
            Short(&run.precondition, 120),
            count(s.oom),
            count(s.oom_jobs),
            // Without a crash there is nothing to tell a time of.
            if s.oom == 0 { "–".into() } else { span(s.oom_lost_gpu_s) },
            if s.oom == 0 { "–".into() } else { span(s.oom_wait_s) },
        );
    }
    out.push_str("</tbody></table></div>\n");
    out.push_str(
        "<p class=\"remark\">Extra wait: from a job’s first crash to the start of the attempt that completed.</p>\n",
    );
    let total: usize = runs.iter().map(|r| r.ooms.len()).sum();
    if total > 0 {
        list(out, runs, names, total);
    } else if runs.iter().any(|r| r.summary.oom > 0) {
        super::absent(
            out,
            match origin {
                Origin::Simulated => {
                    "The result does not hold the crashes one by one. It does after <code>carma simulate --json --detail</code>."
                }
                Origin::Recorded | Origin::RecordedVirtual => {
                    "<code>carma show</code> says of each attempt why it ran out of memory."
                }
            },
        );
    }
    out.push_str("</section>\n");
}

fn list(out: &mut String, runs: &[RunResult], names: &[String], total: usize) {
    out.push_str(
        "<h3>Each crash</h3><div class=\"wide\"><table><thead><tr><th class=\"text\">Policy</th><th>Time</th>\
         <th class=\"text\">Job</th><th class=\"text\">Task</th><th>GPU</th><th>Wanted</th><th>Free</th><th>Lost</th></tr></thead><tbody>",
    );
    let all = runs.iter().zip(names).flat_map(|(run, name)| run.ooms.iter().map(move |oom| (run, name, oom)));
    for (run, name, oom) in all.take(LISTED) {
        let job = usize::try_from(oom.job).ok().and_then(|job| run.jobs.get(job));
        let Oom { at, task, gpu, wanted, free, lost, .. } = oom;
        let _ = writeln!(
            out,
            "<tr><td class=\"text\">{}</td><td>{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{gpu}</td>\
             <td>{wanted}</td><td>{free}</td><td>{}</td></tr>",
            Short(name, 40),
            span(at.as_secs_f64()),
            Short(job.map_or("–", |j| &j.id), 40),
            Esc(if task.is_empty() { "–" } else { task }),
            span(lost.as_secs_f64()),
        );
    }
    out.push_str("</tbody></table></div>\n");
    if total > LISTED {
        let _ = writeln!(
            out,
            "<p class=\"remark\">The first {LISTED} of {}, policy by policy.</p>",
            count(total as u64)
        );
    }
}

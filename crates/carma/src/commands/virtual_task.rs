//! `carma virtual-task`: a model of a training script, for virtual GPUs.

use crate::cli::{Cli, Verb, VirtualTaskArgs};
use carma_cli::failure::{GENERAL, Outcome};
use carma_core::units::Millis;
use carma_process::progress::{ENV_FILE, ENV_SOCKET};
use carma_virtual_gpu::task::{Growth, Progress, TaskEnv, TaskSpec, run as run_task};
use clap::Parser;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

/// Runs the task to its end.
pub(crate) fn run(args: &VirtualTaskArgs) -> Outcome {
    let mut err = io::stderr();
    let env = match TaskEnv::from_vars(|name| std::env::var(name).ok()) {
        Ok(env) => env,
        // In the task's own words, as carma reads them in the logs of real ones.
        Err(error) => {
            let _ = writeln!(err, "{error}");
            return Ok(GENERAL);
        }
    };
    Ok(run_task(&spec(args, |name| std::env::var_os(name)), &env, &mut io::stdout(), &mut err))
}

/// What is wrong with these options; [`run`] would say the same when it is too late.
///
/// # Errors
/// In one line.
pub(crate) fn check(options: &[String]) -> Result<(), String> {
    let words = ["carma", "virtual-task"].into_iter().chain(options.iter().map(String::as_str));
    let cli = Cli::try_parse_from(words).map_err(|e| {
        let text = e.to_string();
        // Behind an empty line there is only how it is used.
        let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
        let line = lines.collect::<Vec<_>>().join(" ");
        line.strip_prefix("error: ").unwrap_or("these options only ask for help").to_owned()
    })?;
    match cli.verb {
        Verb::VirtualTask(args) => spec(&args, |_| None).check().map_err(|e| {
            let text = e.to_string();
            text.strip_prefix("virtual task: ").unwrap_or(&text).to_owned()
        }),
        _ => Ok(()),
    }
}

fn spec(args: &VirtualTaskArgs, var: impl Fn(&str) -> Option<OsString>) -> TaskSpec {
    let seconds = Millis::as_secs_f64;
    // Like a script with the line of the manual in it, it runs as well where steps are not counted.
    let to = |name| var(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let default = if args.latency.is_some() { "silent" } else { "lines" };
    let progress = match args.progress.as_deref().unwrap_or(default) {
        "lines" => Progress::Lines,
        "bar" => Progress::Bar,
        "datagrams" => to(ENV_SOCKET).map_or(Progress::Silent, Progress::Datagrams),
        "file" => to(ENV_FILE).map_or(Progress::Silent, Progress::File),
        _ => Progress::Silent,
    };
    TaskSpec {
        memory: args.memory,
        sm: args.sm,
        gract: args.gract,
        occupancy: args.occupancy,
        dram: args.dram,
        work_s: seconds(args.work),
        startup_s: seconds(args.startup),
        loads_late: args.loads_late,
        fault_after: args.fault_after.map(seconds),
        grow: args.grow_to.zip(args.grow_after).map(|(to, after)| Growth {
            after_s: seconds(after),
            over_s: seconds(args.grow_over),
            to,
        }),
        exit_code: args.exit_code,
        progress,
        latency_us: args.latency,
        ignore_term: args.ignore_term,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_core::units::MiB;

    #[test]
    fn what_is_wrong_is_one_line() {
        let check = |words: &str| check(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(check("--memory=2G --work=2s"), Ok(()));
        for (words, part) in [
            ("--nonsense", "unexpected argument '--nonsense' found"),
            ("--memory=lots", "'lots' is not a size"),
            ("--sm=2", "a share from 0 to 1"),
            ("--grow-to=3G", "--grow-after"),
            ("--help", "only ask for help"),
        ] {
            let why = check(words).unwrap_err();
            assert!(why.contains(part) && !why.contains('\n'), "{words}: {why}");
        }
    }

    fn of(words: &[&str]) -> TaskSpec {
        match Cli::parse_from([&["carma", "virtual-task"], words].concat()).verb {
            Verb::VirtualTask(args) => spec(&args, |name| Some(format!("/{name}").into())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_the_models() {
        assert_eq!(of(&[]), TaskSpec::default());
    }

    #[test]
    fn every_option_arrives() {
        let words = "--memory 9G --sm 0.6 --gract 0.7 --occupancy 0.2 --dram 0.1 --work 90s --startup 0 --loads-late \
                     --fault-after 5s --grow-to 12G --grow-after 500ms --grow-over 2s --exit-code 3 --progress file --latency 8ms --ignore-term";
        let expected = TaskSpec {
            memory: MiB::gib(9),
            sm: 0.6,
            gract: Some(0.7),
            occupancy: Some(0.2),
            dram: Some(0.1),
            work_s: 90.0,
            startup_s: 0.0,
            loads_late: true,
            fault_after: Some(5.0),
            grow: Some(Growth { after_s: 0.5, over_s: 2.0, to: MiB::gib(12) }),
            exit_code: 3,
            progress: Progress::File("/CARMA_HEARTBEAT".into()),
            latency_us: Some(8_000),
            ignore_term: true,
        };
        assert_eq!(of(&words.split_whitespace().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn a_server_tells_of_steps_where_it_is_asked_to() {
        let server = |words: &[&str]| of(&[&["--latency=8ms"], words].concat()).progress;
        assert_eq!(server(&[]), Progress::Silent);
        assert_eq!(server(&["--progress", "lines"]), Progress::Lines);
    }
}

//! How the processes of a phase are started and warmed up.

use super::Session;
use crate::Error;
use crate::interference::plan::{ALL, Member};
use crate::interference::protocol::News;
use crate::interference::resident::{Launch, Resident, end_all};
use crate::interference::tasks::Hold;
use carma_interference::share::Mode;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

impl Session<'_, '_> {
    fn launch(&mut self, member: Member) -> Result<Result<Resident, String>, Error> {
        let mut env: Vec<(String, String)> = Vec::new();
        let task = &self.stage.file.tasks[member.task];
        env.extend(self.stage.file.env.clone());
        env.extend(task.env.clone());
        env.extend(self.stage.gpu.env.clone());
        if self.phase.sharing == Mode::Mps {
            env.extend(self.stage.gpu.mps((member.pct < ALL).then_some(member.pct))?);
        }
        // The helper for Python is found wherever the task lies.
        let given = env.iter().rev().find(|(key, _)| key == "PYTHONPATH").map(|(_, value)| value.clone());
        let given = given.or_else(|| std::env::var("PYTHONPATH").ok()).filter(|value| !value.is_empty());
        let helper = self.stage.folder.display().to_string();
        env.push(("PYTHONPATH".into(), given.map_or(helper.clone(), |given| format!("{helper}:{given}"))));
        self.sockets += 1;
        let name = self.name(member);
        let launch = Launch {
            member,
            command: &task.command,
            cwd: task.cwd.as_deref().unwrap_or(Path::new(".")),
            env,
            hold: task.hold,
            folder: self.stage.folder.join(format!("{}.{}", self.number, self.sockets)),
            output: self.output(&name),
            name,
        };
        Ok(Resident::start(launch))
    }

    fn output(&self, name: &str) -> PathBuf {
        self.stage.logs.join(format!("{}-{}.log", name.replace(['/', '%'], ""), self.phase.sharing))
    }

    /// Starts processes, some at a time, and lets them warm up one after the other.
    pub(super) fn start(&mut self, members: &[Member]) -> Result<(), Error> {
        let began = Instant::now();
        let patience = Duration::from_secs_f64(self.stage.file.startup_s);
        let mut todo = members.iter().rev().copied().collect::<Vec<_>>();
        let mut loading: Vec<Resident> = Vec::new();
        let mut queue: Vec<Resident> = Vec::new();
        let mut warming: Option<(Resident, Instant)> = None;
        let mut dead = Vec::new();
        while !(todo.is_empty() && loading.is_empty() && queue.is_empty() && warming.is_none()) {
            if self.stage.over(Duration::ZERO) {
                for resident in loading.into_iter().chain(queue).chain(warming.map(|(r, _)| r)).chain(dead) {
                    self.lost.insert(resident.member, "the time was over before it was ready".into());
                    self.alive.insert(resident.member, resident);
                }
                return Ok(());
            }
            while loading.len() < self.stage.file.start_at_once
                && let Some(member) = todo.pop()
            {
                *self.starts.entry(member).or_default() += 1;
                match self.launch(member)? {
                    Ok(resident) => loading.push(resident),
                    Err(why) => self.lose(member, &why),
                }
            }
            let mut still = Vec::new();
            for mut resident in loading {
                match resident.hear(Duration::ZERO) {
                    Some(News::Hello) => queue.push(resident),
                    Some(News::Gone(why)) => {
                        self.lose(resident.member, &why);
                        dead.push(resident);
                    }
                    _ if resident.started.elapsed() > patience => {
                        let why = format!(
                            "{} within {:.0} s (startup_s)",
                            match self.stage.file.tasks[resident.member.task].hold {
                                Hold::Pace =>
                                    "it does not use carma_bench: it did not connect to CARMA_BENCH",
                                Hold::Stop => "it told of no progress, by heartbeats or in what it prints,",
                            },
                            patience.as_secs_f64()
                        );
                        self.lose(resident.member, &why);
                        dead.push(resident);
                    }
                    _ => still.push(resident),
                }
            }
            loading = still;
            match warming.take() {
                None if !queue.is_empty() => {
                    let next = queue.remove(0);
                    next.warm();
                    warming = Some((next, Instant::now()));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
                Some((mut resident, since)) => match resident.hear(Duration::from_millis(5)) {
                    Some(News::Ready(memory_mib)) => {
                        resident.memory_mib = memory_mib;
                        self.lost.remove(&resident.member);
                        self.alive.insert(resident.member, resident);
                    }
                    Some(News::Gone(why)) => {
                        self.lose(resident.member, &why);
                        dead.push(resident);
                    }
                    _ if since.elapsed() > patience => {
                        let why =
                            format!("it was not warm within {:.0} s (startup_s)", patience.as_secs_f64());
                        self.lose(resident.member, &why);
                        dead.push(resident);
                    }
                    _ => warming = Some((resident, since)),
                },
            }
        }
        end_all(dead);
        self.startup = began.elapsed().as_secs_f64();
        Ok(())
    }

    fn lose(&mut self, member: Member, why: &str) {
        self.say(&format!("{}: {why}", self.name(member)));
        self.lost.insert(member, why.to_owned());
    }
}

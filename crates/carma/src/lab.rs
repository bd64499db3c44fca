//! The second binary, `carma-lab`: where it is, and what it is asked.

use carma_cli::failure::Failure;
use carma_memory::gpumemnet::{Answer, AuthorsNetworks, Ensemble, ModelLayers, Question};
use carma_memory::{Error, Estimate, ModelTask};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Its name.
const NAME: &str = "carma-lab";

/// A command that runs it: beside this binary, else on the PATH, as git and cargo do.
///
/// # Errors
/// It is in neither place; the hint says how to get it.
pub(crate) fn command() -> Result<Command, Failure> {
    let beside = std::env::current_exe().ok().and_then(|me| Some(me.parent()?.join(NAME)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).map(|folder| folder.join(NAME));
    beside.into_iter().chain(named).find(|file| file.is_file()).map(Command::new).ok_or_else(|| {
        Failure::new(format!("{NAME} is neither beside carma nor on the PATH")).hint(
            "build it with `cargo build --release -p carma-lab`, or copy it from a release to where carma is",
        )
    })
}

/// The networks of GPUMemNet's authors, run by `carma-lab`.
#[derive(Debug)]
pub(crate) struct LabNetworks {
    /// Folder of their checkpoints.
    pub(crate) weights: PathBuf,
}

impl AuthorsNetworks for LabNetworks {
    fn estimate(&self, ensemble: Ensemble, model: &ModelLayers, task: &ModelTask) -> Result<Estimate, Error> {
        let bad = |what: String| Error::bad(NAME, what);
        let question = Question { ensemble, model: model.clone(), task: task.clone() };
        let question = serde_json::to_vec(&question).map_err(|e| bad(e.to_string()))?;
        let mut command = command()
            .map_err(|e| bad([e.message, e.hint].into_iter().flatten().collect::<Vec<_>>().join("; ")))?;
        command.args(["gpumemnet", "ask", "--weights"]).arg(&self.weights);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| bad(format!("cannot be started: {e}")))?;
        if let Some(mut input) = child.stdin.take() {
            // One that does not read says why below.
            let _ = input.write_all(&question);
        }
        let output = child.wait_with_output().map_err(|e| bad(e.to_string()))?;
        if !output.status.success() {
            return Err(bad(format!("ended with {}", output.status)));
        }
        serde_json::from_slice::<Answer>(&output.stdout)
            .map_err(|e| bad(format!("its answer is not understood: {e}")))?
            .into_result()
    }
}

//! Programs that take a share of the GPU, whatever their model: known by name and settings.
//!
//! Names and defaults are those of the programs' own documentation (vLLM `CacheConfig`; SGLang server arguments; JAX
//! "GPU memory allocation"; TensorFlow "Use a GPU"). What goes above a share (CUDA graphs, activations, a context) was
//! not measured here: it is a bound by what they document.

use super::{Command, is_true};
use crate::estimate::times;
use crate::{Estimate, MiB, Platform, Tier};

/// vLLM since 0.15; 0.90 before.
const VLLM: f64 = 0.92;
/// CUDA graphs of vLLM, beside the share.
const VLLM_GRAPHS: f64 = 0.03;
/// SGLang leaves so much of a GPU to activations and CUDA graphs by default, at the most.
const SGLANG_REST: f64 = 0.20;
/// JAX.
const JAX: f64 = 0.75;

/// How much a program takes of each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Taken {
    /// A share of the GPU's memory, and a bound of it.
    Share {
        /// What it is set to.
        likely: f64,
        /// With what comes beside.
        upper: f64,
        /// A CUDA context comes beside it.
        context: bool,
    },
    /// A fixed amount beside the CUDA context.
    Memory(MiB),
    /// As much as it needs, which is not known beforehand.
    Grows,
}

/// A program that takes memory by its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Taker {
    /// `vLLM`, `SGLang`, `JAX`, `TensorFlow`.
    pub program: &'static str,
    /// How much.
    pub taken: Taken,
    /// What it was read from, and how to change it.
    pub why: String,
}

impl Taker {
    /// Of a command: the program that takes GPU memory by its settings, if it is one.
    #[must_use]
    pub fn of(command: &Command) -> Option<Self> {
        vllm(command).or_else(|| sglang(command)).or_else(|| jax(command)).or_else(|| tensorflow(command))
    }

    /// What it takes of a GPU; `None`: that depends on the model.
    #[must_use]
    pub fn estimate(&self, platform: &Platform) -> Option<Estimate> {
        let total = platform.gpu.total_mib;
        let (use_mib, upper_mib) = match self.taken {
            Taken::Share { likely, upper, context } => {
                let beside = if context { platform.context_mib } else { MiB::ZERO };
                (times(total, likely) + beside, times(total, upper) + beside)
            }
            Taken::Memory(mib) => (mib + platform.context_mib, mib + times(platform.context_mib, 1.5)),
            Taken::Grows => return None,
        };
        let use_mib = use_mib.min(total);
        Some(Estimate {
            need_mib: use_mib,
            use_mib,
            upper_mib: upper_mib.clamp(use_mib, total),
            tier: Tier::Share,
            source: format!("share/{}", self.program.to_ascii_lowercase()),
            family: "unknown".to_owned(),
            parts: None,
            elastic: false,
            reasons: vec![
                self.why.clone(),
                format!(
                    "one {} has {} MiB; which model it is makes no difference",
                    platform.gpu.name, total.0
                ),
            ],
        })
    }
}

/// A share as a user writes it: `0.5`.
fn share(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|share| *share > 0.0 && *share <= 1.0)
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1000.0).round() / 10.0)
}

fn is_run(command: &Command, program: &str) -> bool {
    let module = |path: &str| path.split('.').next() == Some(program);
    command.program() == program || command.module().is_some_and(module) || command.imports(program)
}

/// A setting of the command line, else of the script's text.
fn setting(command: &Command, name: &str) -> Option<f64> {
    let said = Command::option(&command.words, &[name]).and_then(share);
    said.or_else(|| command.keyword(&name.replace('-', "_")).filter(|share| *share > 0.0 && *share <= 1.0))
}

fn vllm(command: &Command) -> Option<Taker> {
    if !is_run(command, "vllm") || Command::option(&command.words, &["device"]) == Some("cpu") {
        return None;
    }
    let said = setting(command, "gpu-memory-utilization");
    let likely = said.unwrap_or(VLLM);
    let why = match said {
        Some(_) => format!("vLLM takes {} of each GPU: gpu-memory-utilization", percent(likely)),
        None => format!(
            "vLLM takes {} of each GPU unless told otherwise (90 % before version 0.15): --gpu-memory-utilization",
            percent(likely)
        ),
    };
    let taken = Taken::Share { likely, upper: likely + VLLM_GRAPHS, context: false };
    Some(Taker { program: "vLLM", taken, why })
}

fn sglang(command: &Command) -> Option<Taker> {
    if !is_run(command, "sglang") || Command::option(&command.words, &["device"]) == Some("cpu") {
        return None;
    }
    let said = setting(command, "mem-fraction-static");
    let (likely, why) = match said {
        Some(said) => (
            said,
            format!(
                "SGLang takes {} of each GPU for weights and KV cache, activations and CUDA graphs beside it: \
                 mem-fraction-static",
                percent(said)
            ),
        ),
        None => (
            1.0 - SGLANG_REST / 2.0,
            "SGLang takes nearly all of each GPU unless told otherwise: --mem-fraction-static".to_owned(),
        ),
    };
    let taken = Taken::Share { likely, upper: (likely + SGLANG_REST).min(1.0), context: false };
    Some(Taker { program: "SGLang", taken, why })
}

fn jax(command: &Command) -> Option<Taker> {
    if !["jax", "flax", "optax", "haiku", "equinox"].iter().any(|package| is_run(command, package)) {
        return None;
    }
    let platforms = command.variable("JAX_PLATFORMS").or_else(|| command.variable("JAX_PLATFORM_NAME"));
    if platforms == Some("cpu") {
        return None;
    }
    let grows = |why: &str| {
        Some(Taker { program: "JAX", taken: Taken::Grows, why: format!("JAX allocates as it goes: {why}") })
    };
    if command.variable("XLA_PYTHON_CLIENT_ALLOCATOR") == Some("platform") {
        return grows("XLA_PYTHON_CLIENT_ALLOCATOR=platform");
    }
    if command.variable("XLA_PYTHON_CLIENT_PREALLOCATE").is_some_and(|text| !is_true(text)) {
        return grows("XLA_PYTHON_CLIENT_PREALLOCATE is off");
    }
    let names = ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"];
    let said = names.iter().find_map(|name| Some((*name, share(command.variable(name)?)?)));
    let (likely, why) = match said {
        Some((name, likely)) => {
            (likely, format!("JAX takes {} of each GPU at once: {name}", percent(likely)))
        }
        None => (
            JAX,
            format!(
                "JAX takes {} of each GPU at once unless told otherwise: XLA_PYTHON_CLIENT_PREALLOCATE=false or \
                 XLA_CLIENT_MEM_FRACTION=.30 (XLA_PYTHON_CLIENT_MEM_FRACTION before)",
                percent(JAX)
            ),
        ),
    };
    Some(Taker { program: "JAX", taken: Taken::Share { likely, upper: likely + 0.02, context: true }, why })
}

fn tensorflow(command: &Command) -> Option<Taker> {
    let keras = command.imports("keras")
        && matches!(command.variable("KERAS_BACKEND"), None | Some("tensorflow"))
        && !command.imports("torch");
    // Beside PyTorch it is there for its logs or its data.
    let named = is_run(command, "tensorflow") && !command.imports("torch");
    let hidden = command.mentions("set_visible_devices([]");
    if hidden || !(keras || named) {
        return None;
    }
    let taker = |taken, why: String| Some(Taker { program: "TensorFlow", taken, why });
    let grows = command.variable("TF_FORCE_GPU_ALLOW_GROWTH").is_some_and(is_true)
        || ["set_memory_growth(", "allow_growth"].iter().any(|text| command.mentions(text));
    if grows {
        return taker(Taken::Grows, "TensorFlow allocates as it goes: memory growth is on".to_owned());
    }
    if let Some(mib) = command.keyword("memory_limit").filter(|mib| *mib >= 1.0 && *mib < 1e9) {
        return taker(Taken::Memory(MiB(mib as u64)), format!("TensorFlow takes {mib} MiB: memory_limit"));
    }
    if let Some(likely) = command.keyword("per_process_gpu_memory_fraction").filter(|s| *s > 0.0 && *s <= 1.0)
    {
        let why =
            format!("TensorFlow takes {} of each GPU: per_process_gpu_memory_fraction", percent(likely));
        return taker(Taken::Share { likely, upper: likely + 0.02, context: true }, why);
    }
    taker(
        Taken::Share { likely: 1.0, upper: 1.0, context: false },
        "TensorFlow takes all of each GPU that it sees unless told otherwise: TF_FORCE_GPU_ALLOW_GROWTH=true"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::command;
    use super::*;

    fn of(line: &str, script: &str) -> Option<(&'static str, Taken)> {
        Taker::of(&command(line, script)).map(|taker| (taker.program, taker.taken))
    }

    /// Likely share of a taker of this name.
    fn likely(line: &str, script: &str, program: &str) -> f64 {
        match of(line, script) {
            Some((name, Taken::Share { likely, upper, .. })) => {
                assert!(name == program && upper >= likely && upper <= 1.1, "{name} {upper}");
                likely
            }
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn servers_of_language_models() {
        for (line, script, expected) in [
            ("vllm serve meta-llama/Llama-3-8B", "", VLLM),
            ("/opt/v/bin/vllm serve m --gpu-memory-utilization 0.5", "", 0.5),
            ("python -m vllm.entrypoints.openai.api_server --gpu_memory_utilization=0.35", "", 0.35),
            ("python chat.py", "from vllm import LLM\nllm = LLM(model='m', gpu_memory_utilization=0.4)", 0.4),
            ("python chat.py", "import vllm", VLLM),
        ] {
            assert_eq!(likely(line, script, "vLLM"), expected, "{line}");
        }
        assert_eq!(likely("python -m sglang.launch_server --mem-fraction-static 0.6", "", "SGLang"), 0.6);
        assert!(likely("sglang serve --model-path m", "", "SGLang") >= 0.9);
        // A share that is none is not believed.
        assert_eq!(likely("vllm serve m --gpu-memory-utilization 90", "", "vLLM"), VLLM);
        assert_eq!(of("vllm serve m --device cpu", ""), None);
    }

    #[test]
    fn jax_and_tensorflow() {
        let jax = "import jax\n";
        assert_eq!(likely("python t.py", jax, "JAX"), JAX);
        assert_eq!(likely("env XLA_CLIENT_MEM_FRACTION=.3 python t.py", jax, "JAX"), 0.3);
        assert_eq!(
            likely("XLA_PYTHON_CLIENT_MEM_FRACTION=.5 python t.py", "from flax import nnx", "JAX"),
            0.5
        );
        assert_eq!(likely("env -u A XLA_PYTHON_CLIENT_MEM_FRACTION=.2 python t.py", jax, "JAX"), 0.2);
        let words = ["sh", "-c", "export XLA_PYTHON_CLIENT_MEM_FRACTION=.2; python t.py"].map(str::to_owned);
        let exported = Command::new(&words, &std::collections::BTreeMap::new()).with_script(jax.as_bytes());
        assert!(Taker::of(&exported).unwrap().why.contains("takes 20 %"));
        assert_eq!(of("python t.py -m vllm", ""), None);
        for line in [
            "XLA_PYTHON_CLIENT_PREALLOCATE=false python t.py",
            "XLA_PYTHON_CLIENT_ALLOCATOR=platform python t.py",
        ] {
            assert_eq!(of(line, jax), Some(("JAX", Taken::Grows)));
        }
        let in_script = "import os\nos.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'\nimport jax";
        assert_eq!(of("python t.py", in_script), Some(("JAX", Taken::Grows)));
        assert_eq!(of("JAX_PLATFORMS=cpu python t.py", jax), None);
        let tf = "import tensorflow as tf\n";
        assert_eq!(likely("python t.py", tf, "TensorFlow"), 1.0);
        assert_eq!(likely("python t.py", "import keras", "TensorFlow"), 1.0);
        assert_eq!(of("TF_FORCE_GPU_ALLOW_GROWTH=true python t.py", tf), Some(("TensorFlow", Taken::Grows)));
        let limited = format!("{tf}tf.config.LogicalDeviceConfiguration(memory_limit=4096)");
        assert_eq!(of("python t.py", &limited), Some(("TensorFlow", Taken::Memory(MiB(4096)))));
        for other in [
            "import torch\nimport tensorflow as tf",
            "import jaxtyping",
            "import torch",
            "import tensorflow as tf\ntf.config.set_visible_devices([], 'GPU')",
        ] {
            assert_eq!(of("python t.py", other), None, "{other}");
        }
    }

    #[test]
    fn a_share_is_of_the_type_of_gpu() {
        let taker = Taker::of(&command("vllm serve m --gpu-memory-utilization 0.5", "")).unwrap();
        let on = |name| taker.estimate(&Platform::lookup(name, (2, 11)).unwrap()).unwrap();
        let (small, large) = (on("A100-40GB"), on("H200"));
        assert_eq!((large.use_mib, large.tier), (MiB(71_886), Tier::Share));
        assert_eq!(large.upper_mib, MiB(76_199));
        assert!(small.use_mib < MiB(21_000) && small.upper_mib > small.use_mib);
        assert_eq!(large.source, "share/vllm");
        let all = Taker::of(&command("python t.py", "import tensorflow")).unwrap();
        let all = all.estimate(&Platform::lookup("H200", (2, 11)).unwrap()).unwrap();
        assert_eq!((all.use_mib, all.upper_mib), (MiB(143_771), MiB(143_771)));
        let grows =
            Taker::of(&command("TF_FORCE_GPU_ALLOW_GROWTH=1 python t.py", "import tensorflow")).unwrap();
        assert_eq!(grows.estimate(&Platform::lookup("H200", (2, 11)).unwrap()), None);
    }
}

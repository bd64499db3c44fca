//! The tracer on functions whose peaks are known by arithmetic, with a Python that has PyTorch:
//! `CARMA_TEST_TORCH_PYTHON`, or `python3`. Without one the tests say so and pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_memory::trace::{Replay, Status, TRACER, read, replay};
use carma_memory::{MIB, Platform};
use std::path::PathBuf;
use std::process::Command;

fn python() -> Option<String> {
    let python = std::env::var("CARMA_TEST_TORCH_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import torch"]).output().is_ok_and(|o| o.status.success());
    if !found {
        println!("SKIPPED: no Python with PyTorch; CARMA_TEST_TORCH_PYTHON names one");
    }
    found.then_some(python)
}

/// A folder of the test's own, gone with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Traces `make()` of a module and replays its log.
fn traced(name: &str, module: &str, options: &[&str]) -> Option<Replay> {
    run(name, module, &[&["entry", "-o", "log"], options, &["net.py:make"]].concat())
}

/// Traces a module that ends by itself and replays its log.
fn run(name: &str, module: &str, arguments: &[&str]) -> Option<Replay> {
    let run = started(name, module, arguments)?;
    assert_eq!(run.end.status, Status::Complete);
    Some(run)
}

/// Traces a module and replays its log.
fn started(name: &str, module: &str, arguments: &[&str]) -> Option<Replay> {
    let python = python()?;
    let folder = Folder(std::env::temp_dir().join(format!("carma-tracer-{name}-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    for (file, text) in TRACER {
        std::fs::write(folder.0.join(file), text).unwrap();
    }
    std::fs::write(folder.0.join("net.py"), module).unwrap();
    let out =
        Command::new(python).current_dir(&folder.0).arg("carma_trace.py").args(arguments).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let log = std::fs::read(folder.0.join("log")).unwrap();
    Some(replay(&mut read(&log[..]).unwrap(), &Platform::lookup("H200", (2, 11)).unwrap()).unwrap())
}

/// Tensors of 64 MiB: one weight, and what is made of it.
fn accumulating(body: &str) -> String {
    format!(
        "import torch\n\
         class Twice(torch.autograd.Function):\n    \
             @staticmethod\n    \
             def forward(ctx, x): return x * 2\n    \
             @staticmethod\n    \
             def backward(ctx, g):\n        \
                 a = g * 3\n        \
                 return a + g * 4\n\
         class Net(torch.nn.Module):\n    \
             def __init__(self):\n        \
                 super().__init__()\n        \
                 self.weight = torch.nn.Parameter(torch.empty(4096, 4096))\n    \
             def forward(self, x):\n        \
                 h = self.weight * 2\n        \
                 {body}\n\
         def make():\n    \
             model = Net()\n    \
             return model, torch.zeros(1), None, torch.optim.SGD(model.parameters(), lr=1)\n"
    )
}

#[test]
fn the_engine_adds_gradients_in_place() {
    // Three uses of `h`. The weight, the sum so far, the next part: 192 MiB; 256 if each sum were a new tensor.
    let sum = "return (h * 3).sum() + (h * 4).sum() + (h * 5).sum()";
    let Some(run) = traced("sum", &accumulating(sum), &[]) else { return };
    assert_eq!(run.peak.max_allocated / MIB, 192);
    assert!(run.peak.allocated < MIB, "{} bytes left", run.peak.allocated);
}

#[test]
fn sums_that_a_formula_makes_are_new_tensors() {
    // The weight, both products and their sum. The incoming gradient is one number, expanded.
    let Some(run) = traced("formula", &accumulating("return Twice.apply(h).sum()"), &[]) else { return };
    assert_eq!(run.peak.max_allocated / MIB, 256);
}

#[test]
fn a_gradient_that_somebody_holds_is_left_alone() {
    // One part of the sum is kept: the weight, that part, the other, and their sum.
    let held = "return Hold.apply(h).sum() + (h * 4).sum()";
    let hold = "class Hold(torch.autograd.Function):\n    \
                    @staticmethod\n    \
                    def forward(ctx, x): return x * 2\n    \
                    @staticmethod\n    \
                    def backward(ctx, g):\n        \
                        Hold.kept = g * 3\n        \
                        return Hold.kept\n";
    let module = accumulating(held).replacen("class Twice", &format!("{hold}class Twice"), 1);
    let Some(run) = traced("held", &module, &[]) else { return };
    assert_eq!(run.peak.max_allocated / MIB, 256);
}

#[test]
fn cross_entropy_under_autocast_keeps_half_precision() {
    // 4096 rows, 8192 classes: 64 MiB in bf16, 128 in fp32.
    let module = "import torch\n\
                  def make():\n    \
                      model = torch.nn.Linear(16, 8192)\n    \
                      batch = torch.zeros(4096, 16), torch.zeros(4096, dtype=torch.long)\n    \
                      return model, batch, torch.nn.CrossEntropyLoss()\n";
    let Some(run) = traced("loss", module, &["--precision", "bf16-autocast", "--optimizer", "sgd"]) else {
        return;
    };
    // Logits, logarithms, their copy in fp32 for the loss, its gradient in fp32; and two workspaces of 32 MiB.
    // Logarithms in fp32 would make it 512.
    assert_eq!(run.peak.max_allocated / MIB, 64 + 64 + 128 + 128 + 64);
}

#[test]
fn attention_whose_mask_lies_otherwise_keeps_its_scores() {
    // 4 samples, 8 heads, 1024 rows: scores of 128 MiB in fp32, the mask of dropout 32.
    let module = |mask: &str| {
        format!(
            "import torch\n\
             class Net(torch.nn.Module):\n    \
                 def __init__(self):\n        \
                     super().__init__()\n        \
                     self.bias = torch.nn.Parameter(torch.zeros(1024, 1024, 8))\n    \
                 def forward(self, x):\n        \
                     mask = self.bias.permute(2, 0, 1).unsqueeze(0){mask}\n        \
                     for _ in range(2):\n            \
                         x = torch.nn.functional.scaled_dot_product_attention(x, x, x, mask, 0.1)\n        \
                     return x.mean()\n\
             def make():\n    \
                 return Net(), torch.zeros(4, 8, 1024, 64)\n"
        )
    };
    let options = ["--optimizer", "sgd"];
    let Some(parts) = traced("parts", &module(""), &options) else { return };
    let Some(fused) = traced("fused", &module(".contiguous()"), &options) else { return };
    // Kept twice: probabilities, the mask of dropout, what is left of them. The fused kernel keeps none of it.
    assert!(parts.peak.max_allocated > 2 * (128 + 32 + 128) * MIB, "{}", parts.peak.max_allocated / MIB);
    assert!(fused.peak.max_allocated < 2 * (128 + 32 + 128) * MIB, "{}", fused.peak.max_allocated / MIB);
}

#[test]
fn weights_are_converted_for_each_use_in_inference_mode() {
    // Eight layers of 64 MiB; converted ones are 32 MiB each, and all of them are kept outside of inference mode.
    let module = |mode: &str| {
        format!(
            "import torch\n\
             class Net(torch.nn.Sequential):\n    \
                 def forward(self, x):\n        \
                     with torch.{mode}():\n            \
                         return super().forward(x)\n\
             def make():\n    \
                 return Net(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(8)]), torch.zeros(1, 4096)\n"
        )
    };
    let options = ["--precision", "bf16-autocast", "--mode", "infer"];
    let Some(inference) = traced("inference", &module("inference_mode"), &options) else { return };
    let Some(plain) = traced("no-grad", &module("no_grad"), &options) else { return };
    assert_eq!(inference.peak.max_allocated / MIB, 8 * 64 + 32 + 32);
    assert_eq!(plain.peak.max_allocated / MIB, 8 * 64 + 8 * 32 + 32);
}

#[test]
fn operators_of_torchvision_calculate_in_single_precision_under_autocast() {
    // Features of 32 MiB in bf16 and boxes in fp32: for a moment both features and answer also in fp32.
    let script = "import torch\n\
         library = torch.library.Library('torchvision', 'DEF')\n\
         library.define('pool_for_test(Tensor features, Tensor boxes) -> Tensor')\n\
         def pool(features, boxes):\n    \
             assert features.dtype == boxes.dtype == torch.float32\n    \
             return torch.empty_like(features)\n\
         library.impl('pool_for_test', pool, 'Meta')\n\
         features = torch.zeros(4096, 4096, dtype=torch.bfloat16, device='cuda')\n\
         out = torch.ops.torchvision.pool_for_test(features, torch.zeros(128, 1, device='cuda'))\n\
         assert out.dtype == torch.bfloat16\n";
    let Some(run) = run("torchvision", script, &["run", "-o", "log", "--", "net.py"]) else { return };
    assert_eq!(run.peak.max_allocated / MIB, 32 + 64 + 64 + 32);
}

#[test]
fn positions_that_are_converted_stay_known() {
    // 258 rows of 256 KiB: how many, says the difference of two positions in fp32.
    let script = "import torch\n\
         positions = torch.arange(0, 256, device='cuda').to(torch.float32)\n\
         first = positions.new_tensor([-3])\n\
         at = torch.cat([first, positions[1:]])\n\
         out = torch.zeros(int(at[-1] - at[0]), 1 << 18, device='cuda', dtype=torch.uint8)\n";
    let Some(run) = run("positions", script, &["run", "-o", "log", "--", "net.py"]) else { return };
    assert_eq!(run.peak.max_allocated / (MIB / 4), 258);
}

/// An iteration is over when each optimizer has stepped: twelve calls of `step()` are two of them with six optimizers.
#[test]
fn an_optimizer_for_each_parameter() {
    let script = "import torch\n\
         m = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()\n\
         of = {p: torch.optim.SGD([p], lr=0.1) for p in m.parameters()}\n\
         def step(p):\n    \
             of[p].step()\n    \
             of[p].zero_grad()\n\
         for p in m.parameters():\n    \
             p.register_post_accumulate_grad_hook(step)\n\
         for _ in range(50):\n    \
             m(torch.zeros(8, 64, device='cuda')).sum().backward()\n";
    let Some(replay) = run("each", script, &["run", "-o", "log", "--", "net.py"]) else { return };
    assert_eq!((replay.end.steps, replay.end.backwards), (3, 3));
}

/// 4 MiB more with each step, within one segment.
#[test]
fn a_run_goes_on_while_tensors_take_more() {
    let script = |kept: &str| {
        format!(
            "import torch\n\
             m = torch.nn.Linear(1024, 1024).cuda()\n\
             o = torch.optim.SGD(m.parameters(), lr=0.1)\n\
             kept = []\n\
             for _ in range(50):\n    \
                 kept.append({kept})\n    \
                 m(torch.zeros(8, 1024, device='cuda')).sum().backward()\n    \
                 o.step()\n    \
                 o.zero_grad()\n"
        )
    };
    let words = ["run", "-o", "log", "--", "net.py"];
    let Some(rising) = run("rising", &script("torch.zeros(1 << 20, device='cuda')"), &words) else { return };
    assert_eq!((rising.end.steps, rising.rise), (12, Some(4 * MIB)));
    let Some(steady) = run("steady", &script("torch.zeros(1, device='cuda')"), &words) else { return };
    assert_eq!((steady.end.steps, steady.rise), (3, None));
}

#[test]
fn a_run_ends_where_tensors_are_more_than_the_gpu_has() {
    let script = "import torch\n\
         kept = []\n\
         while True:\n    \
             kept.append(torch.zeros(1 << 28, device='cuda'))\n";
    let words = ["run", "-o", "log", "--total-mib", "8192", "--", "net.py"];
    let Some(run) = started("endless", script, &words) else { return };
    assert_eq!(run.end.status, Status::Partial);
    let why = run.end.reason.unwrap();
    assert!(why.contains("stopped at net.py:4, where tensors alone took more than the GPU has"), "{why}");
    assert_eq!(run.peak.max_allocated / MIB, 9216);
}

#[test]
fn a_program_that_asks_for_free_memory_is_noted() {
    let script = "import torch\n\
         free, total = torch.cuda.mem_get_info()\n\
         x = torch.zeros(free // 16, device='cuda')\n";
    let Some(run) = run("free", script, &["run", "-o", "log", "--", "net.py"]) else { return };
    assert!(run.end.asks_free && run.end.doubts[0].contains("net.py:2"), "{:?}", run.end);
}

//! GPUMemNet and DNNPerf among the other estimators: an answer, or why there is none.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use carma_memory::estimators::{Known, run};
use carma_memory::{Lora, MiB, Mode, ModelTask, Platform};

const LEARNED: [&str; 3] = ["gpumemnet", "gpumemnet-transformer", "dnnperf"];
const PUBLISHED: [&str; 2] = ["gpumemnet-published", "gpumemnet-published-transformer"];

const SUMMARY: &str = "\
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Conv2d-1         [-1, 64, 112, 112]           9,408
       BatchNorm2d-2         [-1, 64, 112, 112]             128
              ReLU-3         [-1, 64, 112, 112]               0
            Conv2d-4           [-1, 64, 56, 56]          36,864
              ReLU-5           [-1, 64, 56, 56]               0
 AdaptiveAvgPool2d-6             [-1, 64, 1, 1]               0
            Linear-7                 [-1, 1000]          65,000
================================================================
Total params: 111,400
----------------------------------------------------------------
Input size (MB): 0.57
";

const BERT: &str = r#"{"model_type":"bert","architectures":["BertForMaskedLM"],"vocab_size":30522,"hidden_size":256,
    "num_hidden_layers":4,"num_attention_heads":4,"intermediate_size":1024,"max_position_embeddings":512,
    "type_vocab_size":2,"hidden_act":"gelu"}"#;

fn platform() -> Platform {
    Platform::lookup("H200", (2, 11)).unwrap()
}

fn task() -> ModelTask {
    ModelTask { batch_size: 32, ..ModelTask::default() }
}

fn summary() -> Known {
    Known { summary: Some(SUMMARY.to_owned()), ..Known::default() }
}

#[test]
fn each_answers_side_by_side_with_the_others() {
    let language = Known { hf_config: Some(BERT.to_owned()), ..Known::default() };
    let tokens = ModelTask { seq_len: Some(128), ..task() };
    for (known, task, front_end, family) in
        [(summary(), task(), "summary", "cnn"), (language, tokens, "hf-config", "transformer")]
    {
        let answers = run("all", &known, &task, &platform()).unwrap();
        let of = |name: &str| answers.iter().find(|a| a.estimator == name).unwrap();
        for name in LEARNED {
            let estimate = of(name).result.as_ref().unwrap();
            assert_eq!(estimate.source, format!("{name}/{front_end}"));
            assert!(estimate.need_mib <= estimate.use_mib && estimate.use_mib <= estimate.upper_mib);
            assert!(estimate.need_mib >= platform().context_mib && !estimate.reasons.is_empty());
            if name != "dnnperf" {
                assert_eq!(estimate.family, family);
            }
        }
        for name in PUBLISHED {
            let error = of(name).result.as_ref().unwrap_err().to_string();
            assert!(error.contains("--gpumemnet-weights"), "{error}");
        }
    }
}

#[test]
fn what_they_cannot_answer_is_said_and_harms_no_other() {
    for (task, word) in [
        (ModelTask { mode: Mode::Infer, ..task() }, "inference"),
        (ModelTask { lora: Some(Lora { rank: 8, targets: Vec::new() }), ..task() }, "adapters"),
    ] {
        let answers = run("all", &summary(), &task, &platform()).unwrap();
        for name in LEARNED {
            let answer = answers.iter().find(|a| a.estimator == name).unwrap();
            let error = answer.result.as_ref().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(answers.iter().any(|a| a.estimator == "allocator" && a.result.is_ok()));
    }
    let several = ModelTask { gpus: 2, ..task() };
    for name in LEARNED {
        let answer = run(name, &summary(), &several, &platform()).unwrap().remove(0).result.unwrap();
        assert!(answer.reasons.iter().any(|r| r.contains("as on one GPU")), "{:?}", answer.reasons);
    }
}

#[test]
fn a_language_model_is_asked_about_with_its_own_length() {
    let long = |seq: u64| ModelTask { seq_len: Some(seq), ..task() };
    let known = Known { hf_config: Some(BERT.to_owned()), ..Known::default() };
    for name in LEARNED {
        let mib = |seq| run(name, &known, &long(seq), &platform()).unwrap().remove(0).result.unwrap().use_mib;
        let (MiB(short), MiB(long)) = (mib(64), mib(512));
        let MiB(context) = platform().context_mib;
        assert!(long - context > 3 * (short - context), "{name}: {short} {long}");
    }
}

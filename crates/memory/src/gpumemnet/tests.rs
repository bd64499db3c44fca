//! What carma brings along is read and answers; what is foreign or damaged is refused.

use super::*;
use crate::{Gpu, MiB, ModelTask, Platform};

fn platform() -> Platform {
    Platform {
        gpu: Gpu { name: "A100-40GB".to_owned(), compute_capability: (8, 0), total_mib: MiB(40_960) },
        torch: (2, 7),
        context_mib: MiB(500),
        context_saves: crate::ContextSaves::default(),
        context_source: "test".to_owned(),
        alloc: crate::alloc::Settings::default(),
    }
}

#[test]
fn kinds_of_layers() {
    for (class, kind) in [
        ("Linear", LayerKind::Linear),
        ("Conv2d", LayerKind::Conv),
        ("Conv2dSame", LayerKind::Conv),
        ("ConvTranspose2d", LayerKind::Conv),
        ("Conv2dNormActivation", LayerKind::Other),
        ("ConvBNReLU", LayerKind::Other),
        ("SeparableConv2d", LayerKind::Other),
        ("BatchNorm2d", LayerKind::BatchNorm),
        ("LlamaRMSNorm", LayerKind::LayerNorm),
        ("LayerNorm2d", LayerKind::LayerNorm),
        ("MaxPool2d", LayerKind::Pool),
        ("BertPooler", LayerKind::Other),
        ("AdaptiveAvgPool2d", LayerKind::AdaptivePool),
        ("BertEmbeddings", LayerKind::Other),
        ("Embedding", LayerKind::Embedding),
        ("Dropout2d", LayerKind::Dropout),
        ("Softmax", LayerKind::Function(None)),
        ("ReLU6", LayerKind::of("ReLU")),
        ("NewGELUActivation", LayerKind::of("GELU")),
        ("Sequential", LayerKind::Other),
    ] {
        assert_eq!(LayerKind::of(class), kind, "{class}");
    }
}

#[test]
fn the_most_frequent_function_is_encoded() {
    let layers =
        ["SiLU", "ReLU6", "ReLU"].map(|k| Layer { kind: LayerKind::of(k), activations: 1, params: 0 });
    let model = ModelLayers::new(Family::Cnn, layers.into());
    assert_eq!(FUNCTIONS[model.function(&FUNCTIONS)], "ReLU");
    assert_eq!(model.distinct().len(), 2);
}

#[test]
fn the_weights_in_the_repository_fit_this_carma() {
    let all = shipped().unwrap();
    let bytes: usize = all.iter().map(|(_, b)| b.write().len()).sum();
    assert!(bytes < 1_000_000, "{bytes} bytes; they are part of every binary");
    for (name, bundle) in all {
        let network = bundle.any().unwrap();
        assert!(name.contains(network.family().as_str()) && name.contains(network.ensemble().as_str()));
        assert_eq!(bundle.folds.len(), 3, "{name}");
        let seen: usize = bundle.folds.iter().map(|f| f.test.len()).sum();
        assert_eq!(seen, network.trained_on().rows, "{name}");
    }
}

#[test]
fn a_summary_gets_an_answer() {
    let text = "\
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Linear-1                 [-1, 2048]       4,196,352
              ReLU-2                 [-1, 2048]               0
            Linear-3                   [-1, 10]          20,490
================================================================
Total params: 4,216,842
----------------------------------------------------------------";
    let summary = crate::summary::parse(text).unwrap();
    let task = ModelTask { batch_size: 512, ..ModelTask::default() };
    for ensemble in Ensemble::ALL {
        let small = estimate(ensemble, &summary, &task, &platform()).unwrap();
        // 80 MiB of parameters and states, some activations, 500 MiB of context.
        assert!((560..800).contains(&small.use_mib.0), "{small:?}");
        assert!(small.need_mib <= small.use_mib && small.use_mib <= small.upper_mib);
        let large = ModelTask { batch_size: 512 * 64, ..task.clone() };
        let large = estimate(ensemble, &summary, &large, &platform()).unwrap();
        assert!(large.upper_mib > small.upper_mib + MiB(500), "{large:?}");
    }
}

#[test]
fn foreign_and_damaged_weights_are_refused() {
    let bytes = shipped().unwrap()[0].1.write();
    let says = |bytes: &[u8]| Bundle::read("w.net", bytes).unwrap_err().to_string();
    let mut newer = bytes.clone();
    newer[16] = 9;
    assert!(says(&newer).contains("version 9"), "{}", says(&newer));
    let mut flipped = bytes.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    assert!(says(&flipped).contains("checksum"));
    assert!(says(b"hello").contains("first bytes"));
    for cut in (0..bytes.len()).step_by(97) {
        assert!(Bundle::read("w", &bytes[..cut]).is_err());
    }
}

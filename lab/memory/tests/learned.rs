//! The authors' networks beside the other estimators, and the bounds of ours on real models.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use carma_lab_memory::bench::{Data, h200};
use carma_lab_memory::gpumemnet::Folder;
use carma_memory::estimators::{Known, run};
use carma_memory::{ModelTask, Platform};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
fn the_published_networks_say_the_upper_edge_of_a_class() {
    let weights: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/gpumemnet/weights");
    if !weights.is_dir() {
        eprintln!("skipped: ../shared/data/gpumemnet/weights is absent");
        return;
    }
    let known = Known { authors: Some(Arc::new(Folder(weights))), ..summary() };
    for name in PUBLISHED {
        let estimate = run(name, &known, &task(), &platform()).unwrap().remove(0).result.unwrap();
        assert_eq!((estimate.use_mib.0 % 8000, estimate.upper_mib), (0, estimate.use_mib));
    }
    let nowhere = Known { authors: Some(Arc::new(Folder("/nowhere".into()))), ..summary() };
    let error = run(PUBLISHED[0], &nowhere, &task(), &platform()).unwrap().remove(0).result.unwrap_err();
    assert!(error.to_string().contains("mlp4cnn.ckpt"), "{error}");
}

#[test]
fn bounds_cover_the_real_models_that_they_were_widened_for() {
    let data = Data::of_repository(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")));
    for name in LEARNED {
        let all = h200::over_bounds(&data, name).unwrap();
        assert!(all.len() > 150, "{name}: {}", all.len());
        for family in ["cnn", "transformer", ""] {
            // The graph model has one network for all.
            if (name == "dnnperf") != family.is_empty() {
                continue;
            }
            let mut over: Vec<f64> =
                all.iter().filter(|(f, _)| family.is_empty() || f == family).map(|(_, v)| *v).collect();
            over.sort_by(f64::total_cmp);
            let rank = ((over.len() + 1) as f64 * 0.95).ceil() as usize;
            let quantile = over[rank.min(over.len()) - 1];
            // Not above it, and not needlessly far below.
            assert!((0.95..=1.0).contains(&quantile), "{name}, {family}: {quantile}");
        }
    }
}

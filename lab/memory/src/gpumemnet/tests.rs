//! Training is deterministic, predictions stand alone, files come back, foreign ones are refused.

use super::*;
use carma_memory::gpumemnet::{
    Bundle, Ensemble, Family, Head, Layer, LayerKind, Measured, ModelLayers, Sample, network, shipped,
};
use carma_memory::{Gpu, MiB, ModelTask, Optimizer, Platform};
use std::num::NonZeroUsize;

/// Tasks whose memory follows a rule: 400 MiB of context, 20 bytes a parameter, 8 an activation. Every
/// seventh ended out of memory at four fifths of that.
pub(super) fn made_up(n: usize) -> Data {
    let samples = (0..n)
        .map(|i| {
            let (width, depth) = (64 << (i % 5), 2 + i % 4);
            let linear = Layer { kind: LayerKind::Linear, activations: width, params: width * width + width };
            let relu = Layer { kind: LayerKind::of("ReLU"), activations: width, params: 0 };
            let layers = (0..depth).flat_map(|_| [linear, relu]).collect();
            let model = ModelLayers::new(Family::Mlp, layers);
            let task = ModelTask { batch_size: 64 * (1 + (i as u64 * 7) % 61), ..ModelTask::default() };
            let bytes = 20 * model.params + 8 * task.batch_size * model.activations(|_| true);
            let mib = 400 + (bytes >> 20) + 2;
            let measured = if i % 7 == 3 { Measured::AtLeast(mib * 4 / 5) } else { Measured::Peak(mib) };
            Sample { id: format!("s{i}"), model, task, measured }
        })
        .collect();
    Data { name: "made-up".to_owned(), family: Family::Mlp, context_mib: 400, samples, skipped: 0 }
}

fn quick(ensemble: Ensemble) -> Options {
    Options { epochs: 4, threads: NonZeroUsize::new(1), ..Options::new(ensemble, 7) }
}

fn platform() -> Platform {
    Platform {
        gpu: Gpu { name: "A100-40GB".to_owned(), compute_capability: (8, 0), total_mib: MiB(40_960) },
        torch: (2, 7),
        context_mib: MiB(500),
        context_saves: carma_memory::ContextSaves::default(),
        context_source: "test".to_owned(),
        alloc: carma_memory::alloc::Settings::default(),
    }
}

#[test]
fn the_same_seed_gives_the_same_network_on_any_number_of_threads() {
    let data = made_up(80);
    for ensemble in Ensemble::ALL {
        let one = train(&data, &quick(ensemble), &[]).unwrap();
        let three = train(&data, &Options { threads: NonZeroUsize::new(3), ..quick(ensemble) }, &[]).unwrap();
        assert!(one == three, "{ensemble}");
        let other = train(&data, &Options { seed: 8, ..quick(ensemble) }, &[]).unwrap();
        assert!(one.members != other.members, "{ensemble}");
    }
}

#[test]
fn neither_batch_mates_nor_the_order_of_layers_change_a_prediction() {
    let data = made_up(120);
    for ensemble in Ensemble::ALL {
        let network = train(&data, &quick(ensemble), &[]).unwrap();
        let all: Vec<&Sample> = data.samples.iter().collect();
        let together = network.outlook_all(&all);
        for (i, sample) in data.samples.iter().enumerate().step_by(17) {
            let alone = network.outlook(&sample.model, &sample.task);
            let close = |a: f64, b: f64| (a - b).abs() < 1e-4 * a.abs().max(1.0);
            assert!(close(alone.at(0.5), together[i].at(0.5)), "{ensemble} {i}");
            let mut turned = sample.model.clone();
            turned.layers.reverse();
            // The last layer of all is a feature; keep it last.
            let first = turned.layers.remove(0);
            turned.layers.push(first);
            assert!(close(alone.at(0.5), network.outlook(&turned, &sample.task).at(0.5)), "{ensemble} {i}");
        }
    }
}

#[test]
fn it_learns_a_rule_and_lower_bounds_do_not_pull_it_down() {
    let data = made_up(300);
    let options = Options { epochs: 30, ..quick(Ensemble::Mlp) };
    let folds = cross_validate(&data, &options, 3).unwrap();
    let mut seen = vec![0; data.samples.len()];
    for fold in &folds {
        let test: Vec<&Sample> = fold.test.iter().map(|i| &data.samples[*i]).collect();
        let score = score(&fold.network, &test, 1000, 100, 0.95);
        assert!(score.accuracy > 0.9 && score.mre < 0.1, "{score:?}");
        // Calibrated on 22 tasks: 95 % is not to be had so exactly.
        assert!(score.covered > 0.75, "{score:?}");
        fold.test.iter().for_each(|i| seen[*i] += 1);
    }
    assert!(seen.iter().all(|n| *n == 1), "each task is tested once");
}

#[test]
fn classes_can_be_learned_as_published() {
    let data = made_up(300);
    let head = Head::Classes { width_mib: 1000, count: 8 };
    let options = Options { epochs: 30, head, ..quick(Ensemble::Mlp) };
    let fold = cross_validate(&data, &options, 3).unwrap().swap_remove(0);
    let test: Vec<&Sample> = fold.test.iter().map(|i| &data.samples[*i]).collect();
    let score = score(&fold.network, &test, 1000, 7, 0.95);
    assert!(score.accuracy > 0.85, "{score:?}");
}

#[test]
fn answers_are_ordered_grow_with_coverage_and_beyond_the_training_data() {
    let data = made_up(200);
    let network = train(&data, &Options { epochs: 40, ..quick(Ensemble::Mlp) }, &[]).unwrap();
    let sample = &data.samples[50];
    let at = |coverage| network.estimate(&sample.model, &sample.task, &platform(), coverage);
    let (low, high) = (at(0.8), at(0.98));
    assert!(low.need_mib <= low.use_mib && low.use_mib <= low.upper_mib);
    assert!(low.upper_mib <= high.upper_mib);
    let largest = &data.samples[199 / 5 * 5 - 1];
    let task = ModelTask { batch_size: 64 * 61 * 40, ..ModelTask::default() };
    let far = network.estimate(&largest.model, &task, &platform(), 0.95);
    let near = network.estimate(&largest.model, &largest.task, &platform(), 0.95);
    assert!(
        far.upper_mib.0 > 10 * near.upper_mib.0.saturating_sub(500),
        "{} {}",
        far.upper_mib,
        near.upper_mib
    );
    assert!(far.reasons.iter().any(|r| r.contains("larger than anything")), "{:?}", far.reasons);
}

#[test]
fn weights_come_back_from_their_file() {
    let data = made_up(120);
    for ensemble in Ensemble::ALL {
        let options = Options { epochs: 2, ..quick(ensemble) };
        let folds = cross_validate(&data, &options, 3).unwrap();
        let whole = Some(train(&data, &options, &folds).unwrap());
        let bundle = Bundle { whole, folds };
        let bytes = bundle.write();
        // Not assert_eq: it would print a hundred thousand numbers.
        assert!(Bundle::read("w", &bytes).unwrap() == bundle, "{ensemble}");
        assert_eq!(bundle.whole.unwrap().trained_on(), &data.fingerprint());
    }
}

#[test]
fn own_and_authors_rows_are_read() {
    let own = "id,family,batch_size,optimizer,precision,cap_mib,status,params,reserved_mib,context_mib,layer_list,alloc_retries\n\
        a,mlp,8,adamw,bf16,65536,SUCCESSFUL,300,120,500,Linear:16:272x2 Flatten:16:0 ReLU:16:0,0\n\
        b,mlp,8,sgd,fp32,256,OOM,300,200,510,Linear:16:272,0\n\
        c,mlp,8,sgd,fp32,256,SUCCESSFUL,300,250,520,Linear:16:272,3\n\
        d,mlp,8,sgd,fp32,256,ERROR,,,,,\n";
    let data = Data::parse("own.csv", own.as_bytes()).unwrap();
    assert_eq!((data.context_mib, data.skipped, data.samples.len()), (510, 1, 3));
    let measured: Vec<Measured> = data.samples.iter().map(|s| s.measured).collect();
    assert_eq!(measured, [Measured::Peak(630), Measured::AtLeast(766), Measured::AtLeast(760)]);
    assert_eq!(data.samples[0].model.layers.len(), 3, "a reshape is no layer");
    assert_eq!(data.samples[0].task.optimizer, Optimizer::Adamw);

    let authors = "Filename,Depth,Activations-Params,Total Parameters,Batch Size,Max GPU Memory (MiB)\n\
        x,1,\"[('linear', 5, 30), ('ReLU', 5, 0)]\",30,4,1445\n";
    let data = Data::parse("authors.csv", authors.as_bytes()).unwrap();
    assert_eq!(data.samples[0].model.activations(|_| true), 10);
    assert_eq!(data.context_mib, 1429);

    for (text, word) in [
        ("a,b\n1,2\n", "reserved_mib"),
        (&own.replace("adamw", "lion"), "optimizer: `lion`"),
        (&own.replace("Linear:16:272x2", "Linear:16:272x99999999"), "too many"),
        (&own.replace("Linear:16:272x2", "Linear:16"), "layer_list"),
        (&own.replace("a,mlp,8", "a,mlp,-8"), "line 2: batch_size"),
        (&own.replace("b,mlp", "b,cnn"), "one family"),
    ] {
        let error = Data::parse("own.csv", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
}

/// Our own measurements of a family, as they are in the repository.
fn committed(family: Family) -> std::path::PathBuf {
    let file = format!("../../bench/h200/results/dataset-{family}.csv.gz");
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

#[test]
fn the_weights_are_of_the_measurements_in_the_repository_and_calibrated_on_them() {
    for family in Family::ALL {
        let data = Data::read(&committed(family)).unwrap();
        for (name, bundle) in shipped().unwrap() {
            let Some(whole) = bundle.whole.as_ref().filter(|n| n.family() == family) else { continue };
            assert_eq!(whole.trained_on(), &data.fingerprint(), "{name} is stale: train it again");
            let now = train::calibrate(&data, &bundle.folds);
            for ((level, now), (_, then)) in now.levels.iter().zip(&whole.card.coverage.levels) {
                assert!(
                    (now - then).abs() < 1e-3,
                    "{name}, {level}: calibrated {then}, now {now}; train it again"
                );
            }
        }
    }
}

#[test]
fn the_operators_of_a_graph_stand_for_modules() {
    // Language models: what the networks say by the list of modules and by our graph of the same row.
    for family in [Family::Cnn, Family::Transformer] {
        let file = committed(family);
        let data = Data::read(&file).unwrap();
        let bytes = crate::dataset::contents(&file).unwrap();
        let rows: std::collections::BTreeMap<String, crate::dnnperf::Cells> =
            csv::Reader::from_reader(bytes.as_slice())
                .deserialize::<crate::dnnperf::Cells>()
                .map(|row| row.unwrap())
                .map(|row| (row["id"].clone(), row))
                .collect();
        let network = network(family, Ensemble::Mlp).unwrap();
        let mut ratios: Vec<f64> = data
            .samples
            .iter()
            .step_by(37)
            .map(|s| {
                let graph = crate::dnnperf::graph(&rows[&s.id]).unwrap();
                let model = ModelLayers::of_graph(&graph, &s.task).unwrap();
                assert_eq!(model.family, family, "{}", s.id);
                assert_eq!(model.params, s.model.params, "{}", s.id);
                network.outlook(&model, &s.task).at(0.0) / network.outlook(&s.model, &s.task).at(0.0)
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let (low, middle, high) =
            (ratios[ratios.len() / 10], ratios[ratios.len() / 2], ratios[ratios.len() * 9 / 10]);
        println!("{family}: {low:.3} {middle:.3} {high:.3} of {}", ratios.len());
        assert!((0.9..1.1).contains(&middle) && low > 0.75 && high < 1.35, "{family}: {low} {middle} {high}");
    }
}

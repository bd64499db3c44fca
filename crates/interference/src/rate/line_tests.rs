//! Lines as the tools print them. Written for these tests; the forms are those of tqdm 4, Keras 2 and 3, Lightning 2,
//! transformers 4 and 5, and of well-known training scripts.

use super::*;
use crate::rate::Kind;

/// `unit count/total @per_s "label"` for each report.
fn told(line: &str) -> String {
    let figure =
        |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{}", (v * 1e4).round() / 1e4));
    let one = |said: &Said| {
        let mut text = format!("{} {}", said.unit, figure(said.count));
        if said.total.is_some() {
            text.push_str(&format!("/{}", figure(said.total)));
        }
        if said.per_s.is_some() {
            text.push_str(&format!(" @{}", figure(said.per_s)));
        }
        if !said.label.is_empty() {
            text.push_str(&format!(" {:?}", said.label));
        }
        text
    };
    read(line).iter().map(one).collect::<Vec<_>>().join("; ")
}

fn check(cases: &[(&str, &str)]) {
    for (line, expected) in cases {
        assert_eq!(told(line), *expected, "{line}");
    }
}

#[test]
fn tqdm_bars() {
    check(&[
        (" 45%|████▌     | 450/1000 [00:12<00:15, 36.2it/s]", "it 450/1000 @36.2"),
        (" 45%|████▌     | 450/1000 [00:12<00:15, 36.20it/s, loss=0.312, acc=91/100]", "it 450/1000 @36.2"),
        (
            "Epoch 3/10:  45%|####5     | 450/1000 [1:00:12<2:00:15,  2.30s/it]",
            "epochs 3/10; it 450/1000 @0.4348 \"epoch\"",
        ),
        // YOLO's columns.
        (
            "      1/100      2.34G      1.234      2.345      1.345         32        640:  45%|####5     | 450/1000 [00:12<00:15, 36.2it/s]",
            "epochs 1/100; it 450/1000 @36.2",
        ),
        ("  0%|          | 0/1000 [00:00<?, ?it/s]", "it 0/1000"),
        ("450it [00:12, 36.20it/s]", "it 450 @36.2"),
        ("train: 450it [00:12, 36.20it/s, loss=2]", "it 450 @36.2 \"train\""),
        ("100%|██████████| 60/60 [00:02<00:00, 29.1img/s]", "images 60/60 @29.1"),
        ("  7%|▋         | 7/100 [00:07<01:33,  1.00 img/s]", "images 7/100 @1"),
        ("450 img [00:12, 36.2 img/s]", "images 450 @36.2"),
        (" 12%|█▏        | 1.20k/10.0k [00:01<00:08, 1.05ktok/s]", "tokens 1200/10000 @1050"),
        ("30%|███       | 3/10 [00:30<01:10, 10.05s/it]", "it 3/10 @0.0995"),
        (
            "Map:  45%|████▌ | 4500/10000 [00:04<00:05, 1034.12 examples/s]",
            "examples 4500/10000 @1034.12 \"map\"",
        ),
        (
            "Loading checkpoint shards: 100%|██████████| 3/3 [00:02<00:00,  1.21it/s]",
            "it 3/3 @1.21 \"loading checkpoint shards\"",
        ),
        ("  5%|▌         | 50/1000 [00:30<09:40,  1.64it/s]", "it 50/1000 @1.64"),
        // Cut at the edge of the terminal.
        (" 45%|██▌  | 450/1000 [00:12<00:15, 36.2it/s, los", "it 450/1000 @36.2"),
    ]);
}

#[test]
fn downloads_are_no_progress() {
    check(&[
        ("model.safetensors:  45%|████▌     | 450M/1.00G [00:12<00:15, 36.2MB/s]", ""),
        ("100%|██████████| 170M/170M [00:03<00:00, 48.1MiB/s]", ""),
        ("data.bin: 12.0kB [00:00, 9.31MB/s]", ""),
        ("wrote 3 files at 120 MB/s", ""),
    ]);
}

#[test]
fn keras_bars() {
    check(&[
        (
            "120/938 [==>...........................] - ETA: 5s - loss: 0.3812 - accuracy: 0.8876",
            "steps 120/938",
        ),
        ("  1/938 [..............................] - ETA: 4:12 - loss: 2.3812", "steps 1/938"),
        (
            "938/938 [==============================] - 3s 3ms/step - loss: 0.25 - accuracy: 0.92",
            "steps 938/938 @333.3333",
        ),
        ("120/938 [==>...] - ETA: 5s - 12ms/step", "steps 120/938 @83.3333"),
        ("120/938 ━━━━━━━━━━━━━━━━━━━━ 9s 12ms/step - accuracy: 0.81 - loss: 0.61", "steps 120/938 @83.3333"),
        ("938/938 ━━━━━━━━━━━━━━━━━━━━ 14s 2s/step - loss: 0.2", "steps 938/938 @0.5"),
        ("    120/Unknown  2s 12ms/step - loss: 0.61", "steps 120 @83.3333"),
        ("    120/Unknown - 2s 450us/step - loss: 0.61", "steps 120 @2222.2222"),
        ("Epoch 3/10", "epochs 3/10"),
    ]);
}

#[test]
fn lightning_bars() {
    check(&[
        (
            "Epoch 0:  45%|████▌     | 450/1000 [00:12<00:15, 36.20it/s, v_num=0, train_loss=0.5]",
            "it 450/1000 @36.2 \"epoch\"",
        ),
        (
            "Epoch 12/49 ━━━━━━━━━━╸━━━━━━━━ 450/1000 0:00:12 • 0:00:15 36.20it/s v_num: 0.000",
            "epochs 12/49; it 450/1000 @36.2 \"epoch\"",
        ),
        ("Validation ━━━━━━━━━━━━ 3/10 0:00:01 • -:--:-- 0.00it/s", "it 3/10 @0 \"validation\""),
        (
            "Validation DataLoader 0:  50%|█████     | 5/10 [00:00<00:00, 52.3it/s]",
            "it 5/10 @52.3 \"validation dataloader\"",
        ),
        (
            "Sanity Checking DataLoader 0:   0%|          | 0/2 [00:00<?, ?it/s]",
            "it 0/2 \"sanity checking dataloader\"",
        ),
    ]);
    for (line, kind) in [
        ("Epoch 0:  45%|████▌ | 450/1000 [00:12<00:15, 36.20it/s]", Kind::Work),
        ("[ 10/5005] loss 3.2", Kind::Work),
        ("[4/8] accuracy 0.9", Kind::Work),
        ("Validation DataLoader 0:  50%|█████ | 5/10 [00:00<00:00, 52.3it/s]", Kind::Evaluating),
        (
            "  Class  Images  Box(P  R  mAP50  mAP50-95): 50%|███ | 2/4 [00:01<00:01, 1.9it/s]",
            Kind::Evaluating,
        ),
        (
            "Loading safetensors checkpoint shards:  60% Completed | 3/5 [00:02<00:01,  1.21it/s]",
            Kind::Preparing,
        ),
        ("Sanity Checking DataLoader 0:  50%|█████ | 1/2 [00:00<00:00, 52.3it/s]", Kind::Preparing),
        ("Map (num_proc=4):  45%|████▌ | 4500/10000 [00:04<00:05, 1034.12 examples/s]", Kind::Preparing),
        ("Filter: 45%|████▌ | 4500/10000 [00:04<00:05, 1034.12 examples/s]", Kind::Preparing),
        ("Generating train split: 4500 examples [00:04, 1034.12 examples/s]", Kind::Preparing),
        (
            "Applying chat template to train dataset: 45%|████▌ | 45/100 [00:04<00:05, 10.3 examples/s]",
            Kind::Preparing,
        ),
        (
            "Saving the dataset (0/1 shards): 45%|████▌ | 45/100 [00:04<00:05, 10.3 examples/s]",
            Kind::Preparing,
        ),
        (
            "val: Scanning /data/val2017... 9 images, 0 corrupt: 45%|████▌ | 9/20 [00:00<00:00, 91it/s]",
            Kind::Preparing,
        ),
        ("train: Caching images (1.2GB RAM): 45%|████▌ | 9/20 [00:00<00:00, 91it/s]", Kind::Preparing),
        ("Generating: 45%|████▌ | 9/20 [00:00<00:00, 91it/s]", Kind::Work),
        ("Saving images: 45%|████▌ | 9/20 [00:00<00:00, 91it/s]", Kind::Work),
        ("Capturing CUDA graph shapes: 100%|██████| 67/67 [00:17<00:00,  3.79it/s]", Kind::Preparing),
        ("[4/8] c++ -MMD -MF main.o.d -c main.cpp -o main.o", Kind::Preparing),
        ("[1/3] /usr/local/cuda/bin/nvcc --generate-dependencies-with-compile", Kind::Preparing),
        ("[12/90] Building CXX object a.o", Kind::Preparing),
    ] {
        assert_eq!(read(line)[0].kind(), kind, "{line}");
    }
}

#[test]
fn trainer_dictionaries() {
    check(&[
        (
            "{'loss': 0.5312, 'grad_norm': 1.24, 'learning_rate': 4.5e-05, 'epoch': 0.5}",
            "epochs 0.5 \"loss grad norm learning rate\"",
        ),
        (
            "{'loss': '0.5312', 'grad_norm': '1.24', 'learning_rate': '4.5e-05', 'epoch': '0.53'}",
            "epochs 0.53 \"loss grad norm learning rate\"",
        ),
        ("{'eval_loss': 0.41, 'eval_runtime': 2.1, 'eval_samples_per_second': 97.0, 'epoch': 1.0}", ""),
        ("{'train_runtime': 61.2, 'train_steps_per_second': 8.1, 'train_loss': 0.6, 'epoch': 3.0}", ""),
        ("{\"epoch\": 2, \"step\": 120, \"loss\": 0.31}", "epochs 2; steps 120 \"epoch\""),
    ]);
}

#[test]
fn words_of_scripts() {
    check(&[
        ("step 120/938  9.8 it/s", "steps 120/938 @9.8"),
        ("Step: 120, loss 2.31", "steps 120"),
        ("step=120 loss=2.31 lr=0.001", "steps 120"),
        ("[2026-11-21 10:00:01] INFO global_step 1,200: loss = 2.3", "steps 1200 \"info\""),
        ("iter 120: loss 2.3112, time 135.20ms, mfu 31.07%", "it 120"),
        (
            " iteration      100/  500000 | consumed samples:        51200 | elapsed time per iteration (ms): 512.1 |",
            "it 100/500000",
        ),
        (
            "Epoch: [3][  120/5005]\tTime  0.521 ( 0.534)\tData  0.001 ( 0.004)\tLoss 2.31",
            "epochs 3; it 120/5005 \"epoch\"",
        ),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.285", "epochs 1 \"train\"; it 640/60000 \"train epoch\""),
        ("Epoch [1][50/7330]  lr: 2.0e-02, eta: 1:03:22, time: 0.512", "epochs 1; it 50/7330 \"epoch\""),
        ("Epoch [3/10], Step [100/600], Loss: 0.12", "epochs 3/10; steps 100/600 \"epoch\""),
        ("epoch 001:  100 / 3000 loss=12.1, ppl=4410", "epochs 1; it 100/3000 \"epoch\""),
        ("eta: 0:12:00  iter: 19  total_loss: 1.2  time: 0.21  data_time: 0.01", "it 19 \"eta\""),
        ("Training step 5 of 10", "steps 5/10 \"training\""),
        ("| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.3 | loss 7.63", "epochs 1"),
        ("epoch: 3", "epochs 3"),
        ("[ 12/345] images/sec: 812.5", "it 12/345 @812.5"),
    ]);
}

#[test]
fn what_is_no_progress() {
    check(&[
        ("batch size 64, learning rate 0.1", ""),
        ("batch_size=64 max_steps=1000 num_epochs: 3 warmup_steps: 100", ""),
        ("avg step 0.124 s", ""),
        ("step took 12ms; 3 per step 5", ""),
        ("2026/11/21 10:00:01 starting on 4/8 GPUs", ""),
        ("epoch 1.2.3", ""),
        ("checkpoint-step-500.pt", ""),
        ("step 99999999999999999999999999999999", ""),
        ("[12/3]", ""),
        ("", ""),
        ("/s", ""),
        ("1/s", ""),
        ("[00:12]", ""),
        ("[00:12<", ""),
        ("é/é [00:12<é", ""),
    ]);
}

#[test]
fn rates_without_a_count() {
    check(&[
        ("throughput: 812.3 samples/s", "samples - @812.3"),
        ("tokens/sec: 5,210", "tokens - @5210"),
        ("12.3 it/s", "it - @12.3"),
        ("2.0s/it", "it - @0.5"),
        ("135 ms/step", "steps - @7.4074"),
        ("speed 30.5 imgs/second loss 0.2", "images - @30.5"),
        ("tok/s=0", ""),
        ("lr=1e-4 tokens/sec: 5210 loss=0.3", "tokens - @5210"),
        ("'samples/s': 97.5", "samples - @97.5"),
    ]);
}

//! Graphs of rows; training; files.

use super::*;
use carma_memory::dnnperf::Bundle;
use carma_memory::{MiB, ModelTask, Optimizer, Platform};
use std::io::Write as _;
use std::num::NonZeroUsize;

fn cells(text: &str) -> Cells {
    text.split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

#[test]
fn parameters_of_graphs_are_those_of_pytorch() {
    // Counted with `sum(p.numel() for p in model.parameters())` over dataset/python/families.py.
    for (row, params) in [
        ("family=mlp batch_size=4 inputs=10 widths=20-30 outputs=5 activation=ReLU batch_norm=true", 1105),
        (
            "family=cnn batch_size=2 image=32 in_channels=3 classes=10 blocks=c16k3s1-r16-r32s2-s24k3s1-p-d8-t16 \
             head=32 activation=SiLU batch_norm=true dropout=0.1",
            23_994,
        ),
        (
            "family=transformer arch=decoder batch_size=2 seq_len=16 vocab=100 embedding=32 heads=4 layers=2 ff=64 \
             activation=GELU classes=0",
            24_064,
        ),
        (
            "family=transformer arch=llama batch_size=2 seq_len=16 vocab=100 embedding=32 heads=4 kv_heads=2 \
             layers=2 ff=64 activation=SwiGLU classes=0 norm_first=true",
            24_992,
        ),
        (
            "family=transformer arch=encoder-decoder batch_size=2 seq_len=16 vocab=100 embedding=32 heads=4 layers=2 \
             ff=64 activation=GELU classes=7",
            46_759,
        ),
        (
            "family=transformer arch=encoder batch_size=2 seq_len=16 vocab=100 embedding=32 heads=4 layers=2 ff=64 \
             activation=GELU classes=0 tied=true",
            20_864,
        ),
    ] {
        assert_eq!(graph(&cells(row)).unwrap().parameters(), params, "{row}");
    }
}

#[test]
fn bad_rows_are_refused() {
    for (row, word) in [
        ("family=gan", "gan"),
        ("family=mlp batch_size=4 inputs=10 widths=20-x outputs=5", "widths"),
        ("family=cnn batch_size=2 image=32 blocks=z9 classes=2", "z9"),
        ("family=mlp batch_size=9999999999999 inputs=10 widths=20 outputs=5", "2^32"),
        ("family=mlp batch_size=4000000000 inputs=4000000000 widths=20 outputs=5", "no GPU"),
        ("family=transformer batch_size=2 seq_len=4 vocab=10 embedding=8 heads=1 layers=99999 ff=8", "1000"),
    ] {
        let error = graph(&cells(row)).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
}

/// A data set whose memory follows a rule, as a file.
fn data(folder: &std::path::Path) -> std::path::PathBuf {
    let path = folder.join("dataset-mlp.csv");
    let mut file = std::fs::File::create(&path).unwrap();
    writeln!(
        file,
        "id,family,batch_size,inputs,widths,outputs,activation,optimizer,status,cap_mib,reserved_mib,context_mib,layer_list"
    )
    .unwrap();
    for i in 0..110_u64 {
        let (width, batch, depth) = (64 << (i % 5), 32 * (1 + (i * 7) % 61), 1 + i % 4);
        let widths = vec![width.to_string(); depth as usize].join("-");
        let params = 64 * width + (depth - 1) * width * width + width * 10;
        let mib = 4 + ((20 * params + 8 * batch * width * depth) >> 20);
        writeln!(
            file,
            "m{i},mlp,{batch},64,{widths},10,ReLU,adam,SUCCESSFUL,,{mib},400,Linear:{width}:{params}x{depth}"
        )
        .unwrap();
    }
    path
}

#[test]
fn it_learns_and_comes_back_from_its_file() {
    let folder = std::env::temp_dir().join(format!("carma-dnnperf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let graphs = read(&[data(&folder)]).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(graphs.len(), 110);
    let one = train(&graphs, &[], 3, NonZeroUsize::new(1)).unwrap();
    let two = train(&graphs, &[], 3, NonZeroUsize::new(2)).unwrap();
    assert!(one == two, "the number of threads matters");
    let bundle = Bundle { whole: Some(one.clone()), folds: Vec::new() };
    let bytes = bundle.write();
    assert!(Bundle::read("p", &bytes).unwrap() == bundle);
    for cut in (0..bytes.len()).step_by(101) {
        assert!(Bundle::read("p", &bytes[..cut]).is_err());
    }
    // 256 wide, 4 deep: 4 MiB of states, less of activations; and a hundred times as many samples.
    let platform = Platform::lookup("H200", (2, 11)).unwrap();
    let row = |batch: u64| {
        let row = format!(
            "family=mlp batch_size={batch} inputs=64 widths=1024-1024-1024-1024 outputs=10 activation=ReLU"
        );
        let task = ModelTask { batch_size: batch, optimizer: Optimizer::Adam, ..ModelTask::default() };
        one.estimate(&graph(&cells(&row)).unwrap(), &task, &platform, 0.95)
    };
    let (near, far) = (row(1024), row(1024 * 100));
    let beside = |mib| platform.context_mib + MiB(mib);
    assert!((beside(20)..beside(400)).contains(&near.use_mib), "{near:?}");
    assert!(far.use_mib > near.use_mib + MiB(500), "{far:?}");
    assert!(far.reasons.iter().any(|r| r.contains("larger than anything")));
}

//! Whatever a file holds, reading it ends in a value or in an error: never in a panic, never in a call of
//! what it asks for. Runs as tests on random input from a seed, and under libFuzzer with `cargo bolero test`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use carma_lab_memory::dnnperf as lab_dnnperf;
use carma_lab_memory::gpumemnet::{Data, Options, checkpoint, train};
use carma_memory::gpumemnet::{
    Bundle, Ensemble, Family, Head, Layer, LayerKind, Measured, ModelLayers, Sample,
};
use carma_memory::{Error, ModelTask, dnnperf};
use carma_seeded::check;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

const ITERATIONS: usize = 3000;

/// CRC-32, bit by bit: written apart from the reader's.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
        crc
    })
}

/// A zip archive with one stored file `data.pkl` and one storage.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in [("data.pkl", pickle), ("data/0", &[0; 64][..])] {
        let at = (out.len() as u32).to_le_bytes();
        let head = [
            &crc32(data).to_le_bytes()[..],
            &(data.len() as u32).to_le_bytes(),
            &(data.len() as u32).to_le_bytes(),
            &(name.len() as u16).to_le_bytes(),
        ]
        .concat();
        out.extend([&b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0"[..], &head, &[0, 0], name.as_bytes(), data].concat());
        let row = [&b"PK\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0"[..], &head, &[0; 12], &at, name.as_bytes()];
        directory.extend(row.concat());
    }
    let at = out.len() as u32;
    out.extend_from_slice(&directory);
    let size = (directory.len() as u32).to_le_bytes();
    out.extend([&b"PK\x05\x06\0\0\0\0\x02\0\x02\0"[..], &size, &at.to_le_bytes(), &[0, 0]].concat());
    out
}

/// Pieces of pickles: instructions with their operands, allowed names and others.
const PIECES: &[&[u8]] = &[
    b"\x80\x02",
    b"}",
    b"]",
    b")",
    b"(",
    b"N",
    b"\x88",
    b"\x89",
    b"K\x01",
    b"K\0",
    b"M\xff\xff",
    b"J\xff\xff\xff\xff",
    b"\x8a\x09123456789",
    b"\x8a\x01\xff",
    b"G12345678",
    b"q\0",
    b"q\x01",
    b"h\0",
    b"h\x01",
    b"t",
    b"\x85",
    b"\x86",
    b"\x87",
    b"s",
    b"u",
    b"a",
    b"e",
    b"R",
    b"b",
    b"Q",
    b".",
    b"X\x07\0\0\0storage",
    b"X\x01\0\0\x000",
    b"X\x0a\0\0\0state_dict",
    b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch\nLongStorage\n",
    b"cposix\nsystem\n",
    b"cbuiltins\nexec\n",
    b"\x93",
    b"\x8c\x02os",
    b"i",
    b"o",
    b"\x81",
    b"\x92",
    b"P0\n",
    b"I1\n",
    b"\xff",
];

#[test]
fn any_bytes_as_a_checkpoint() {
    check!(ITERATIONS).for_each(|bytes: &[u8]| {
        let _ = checkpoint::read(bytes);
        let _ = checkpoint::read(&archive(bytes));
    });
}

#[test]
fn any_pieces_as_a_pickle() {
    check!(ITERATIONS).with_type::<Vec<u8>>().for_each(|choices| {
        let pickle: Vec<u8> =
            choices.iter().flat_map(|c| PIECES[usize::from(*c) % PIECES.len()]).copied().collect();
        // A foreign name that is reached ends the reading; nothing after it counts.
        let foreign = |name: &str| name.contains("posix") || name.contains("builtins");
        match checkpoint::read(&archive(&pickle)) {
            Ok(tensors) => assert!(tensors.iter().all(|(name, _)| !foreign(name))),
            Err(Error::Bad { what, .. }) => assert!(!foreign(&what) || what.contains("refused"), "{what}"),
            Err(other) => panic!("{other}"),
        }
    });
}

/// Weights of a quickly trained network.
fn weights() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let layer = |n| Layer { kind: LayerKind::Linear, activations: n, params: n * n };
        let samples = (1..70_u64)
            .map(|i| Sample {
                id: i.to_string(),
                model: ModelLayers::new(Family::Mlp, vec![layer(i * 10)]),
                task: ModelTask { batch_size: i, ..ModelTask::default() },
                measured: Measured::Peak(500 + i * i),
            })
            .collect();
        let data = Data { name: "t".into(), family: Family::Mlp, context_mib: 400, samples, skipped: 0 };
        let head = Head::Classes { width_mib: 1000, count: 4 };
        let options = Options {
            head,
            epochs: 1,
            threads: NonZeroUsize::new(1),
            ..Options::new(Ensemble::Transformer, 1)
        };
        Bundle { whole: Some(train(&data, &options, &[]).unwrap()), folds: vec![] }.write()
    })
}

/// With the checksum made right, so that what lies behind it is reached.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len().saturating_sub(4);
    let sum = crc32(&bytes[..body]).to_le_bytes();
    bytes.truncate(body);
    bytes.extend_from_slice(&sum);
    bytes
}

#[test]
fn any_change_of_weights() {
    assert!(
        Bundle::read("w", &resealed(weights().to_vec())).is_ok(),
        "the checksum is computed as it should"
    );
    check!(ITERATIONS / 3).with_type::<Vec<(u16, u8)>>().for_each(|changes| {
        let mut bytes = weights().to_vec();
        let len = bytes.len();
        for (at, to) in changes.iter().take(6) {
            // Mostly the header: that is where lies are believed.
            bytes[usize::from(*at) % len.min(6000)] = *to;
        }
        if let Ok(bundle) = Bundle::read("w", &resealed(bytes))
            && let Some(network) = &bundle.whole
        {
            let model = ModelLayers::new(
                Family::Mlp,
                vec![Layer { kind: LayerKind::Linear, activations: 9, params: 9 }],
            );
            let _ = network.outlook(&model, &ModelTask::default());
        }
    });
}

#[test]
fn any_bytes_as_weights_and_as_data() {
    check!(ITERATIONS).for_each(|bytes: &[u8]| {
        let _ = Bundle::read("w", bytes);
        let _ = Data::parse("d.csv", bytes);
        for columns in [
            "family,status,reserved_mib,layer_list,batch_size,params,cap_mib",
            "Activations-Params,Batch Size",
        ] {
            let _ = Data::parse("d.csv", &[columns.as_bytes(), b"\nmlp,SUCCESSFUL,", bytes].concat());
        }
    });
}

/// Words of rows, good and bad.
const WORDS: &[&str] = &[
    "mlp",
    "cnn",
    "transformer",
    "",
    "0",
    "1",
    "7",
    "64",
    "4294967295",
    "18446744073709551615",
    "-3",
    "x",
    "true",
    "c16k3s1-r16-d8-t4-p-s9k5s2",
    "p-p-p-p-p-p-p-p",
    "c0k0s0",
    "c4294967295k4294967295s1",
    "c99999999999k9s1",
    "16-32",
    "-",
    "llama",
    "decoder",
    "encoder-decoder",
    "PReLU",
    "ReLU",
];
const COLUMNS: &[&str] = &[
    "batch_size",
    "inputs",
    "outputs",
    "widths",
    "activation",
    "inplace",
    "batch_norm",
    "dropout",
    "image",
    "in_channels",
    "classes",
    "blocks",
    "head",
    "vocab",
    "seq_len",
    "embedding",
    "layers",
    "heads",
    "kv_heads",
    "ff",
    "norm_first",
    "tied",
    "arch",
];

#[test]
fn any_row_as_a_graph() {
    check!(ITERATIONS).with_type::<(u8, Vec<u8>)>().for_each(|(family, choices)| {
        let mut cells: lab_dnnperf::Cells = COLUMNS
            .iter()
            .zip(choices)
            .map(|(c, w)| ((*c).to_owned(), WORDS[usize::from(*w) % WORDS.len()].to_owned()))
            .collect();
        cells.insert("family".to_owned(), WORDS[usize::from(*family) % 3].to_owned());
        let _ = lab_dnnperf::graph(&cells);
    });
}

/// Every two cells of a good row at the ends of what a size can be: no sum or product runs over.
#[test]
fn sizes_at_their_limits_in_a_good_row() {
    const ENDS: [&str; 4] = ["0", "4294967295", "4294967296", "18446744073709551615"];
    const GOOD: [(&str, &str); 22] = [
        ("batch_size", "8"),
        ("inputs", "32"),
        ("outputs", "10"),
        ("widths", "64-64"),
        ("activation", "PReLU"),
        ("batch_norm", "true"),
        ("dropout", "0.1"),
        ("image", "32"),
        ("in_channels", "3"),
        ("classes", "10"),
        ("blocks", "c16k3s1-r16-d8-t4-p-s9k5s2"),
        ("head", "32"),
        ("vocab", "100"),
        ("seq_len", "16"),
        ("embedding", "64"),
        ("layers", "2"),
        ("heads", "4"),
        ("kv_heads", "2"),
        ("ff", "128"),
        ("norm_first", "true"),
        ("tied", "false"),
        ("arch", "encoder-decoder"),
    ];
    // A column of words takes a word of the size.
    let word = |column: &str, end: &str| match column {
        "blocks" => format!("c16k3s1-r{end}-d{end}-t{end}-s{end}k{end}s1-c{end}k{end}s1-d{end}"),
        "widths" | "head" => format!("{end}-{end}"),
        _ => end.to_owned(),
    };
    for family in ["mlp", "cnn", "transformer"] {
        let mut good: lab_dnnperf::Cells =
            GOOD.iter().map(|(c, w)| ((*c).to_owned(), (*w).to_owned())).collect();
        good.insert("family".to_owned(), family.to_owned());
        lab_dnnperf::graph(&good).unwrap();
        for (i, (one, _)) in GOOD.iter().enumerate() {
            for (other, _) in &GOOD[i..] {
                for (a, b) in ENDS.iter().flat_map(|a| ENDS.iter().map(move |b| (a, b))) {
                    let mut cells = good.clone();
                    cells.insert((*one).to_owned(), word(one, a));
                    cells.insert((*other).to_owned(), word(other, b));
                    let _ = lab_dnnperf::graph(&cells);
                }
            }
        }
    }
}

#[test]
fn any_bytes_as_a_graph_model() {
    check!(ITERATIONS).for_each(|bytes: &[u8]| {
        let _ = dnnperf::Bundle::read("w", bytes);
        let sealed =
            [b"carma-dnnperf-g\n\x01\0\0\0", &(bytes.len() as u32).to_le_bytes()[..], bytes, &[0; 4]]
                .concat();
        let _ = dnnperf::Bundle::read("w", &resealed(sealed));
    });
}

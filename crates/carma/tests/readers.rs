//! Every option of `carma` that names a file, with names that lead to no file.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing helper may end the test")]

mod hostile;

use hostile::Program;

const CARMA: Program = Program {
    binary: env!("CARGO_BIN_EXE_carma"),
    readers: &[
        (2, "estimate --gpu H200 --batch-size 1 --summary @"),
        (2, "estimate --gpu H200 --batch-size 1 --hf-config @"),
        (2, "estimate --gpu H200 --batch-size 1 --safetensors @"),
        (2, "estimate --gpu H200 --batch-size 1 --onnx @"),
        (2, "estimate --gpu H200 --batch-size 1 --trace @"),
        (2, "submit --file @"),
        (2, "submit --rad @"),
        (2, "submit --summary @ --batch-size 1 -- true"),
        (2, "submit --trace @ -- true"),
        (2, "run --rad @"),
        (2, "config check @"),
        (2, "serve --config @ --gpus virtual:1xH200"),
        (2, "simulate --cluster 1xH200 --policy exclusive --trace @"),
        (2, "simulate --cluster 1xH200 --policy exclusive --trace t.csv --catalogue @"),
        (2, "simulate --cluster 1xH200 --policy exclusive --trace t.csv --gpu-model @"),
        (2, "trace show @"),
        (2, "trace import philly -o o.csv @"),
        (2, "report -o o.html @"),
        (2, "predict --group a,b --profiles @"),
        (2, "predict --group a,b --profiles p.json --model @"),
        (2, "predict --group a,b --profiles p.json --kace-model @"),
        (2, "predict --group a,b --profiles p.json --measured @"),
        (2, "predict --model m.json --observe @"),
        (2, "bench interference -o b.json --tasks @"),
        (2, "bench interference -o b.json --tasks tasks.toml --groups @"),
        (2, "bench trace -o b --gpus virtual:1xH200 --tasks @"),
        (2, "bench trace -o b --gpus virtual:1xH200 --tasks tasks.toml --arrivals @"),
        (2, "bench collocation -o b --gpus virtual:1xH200 --tasks @"),
    ],
    files: &[
        ("t.csv", "job,arrival_s,duration_s,gpus\n1,0,10,1\n"),
        ("p.json", r#"{"version":1,"tasks":[{"name":"a","rate":1},{"name":"b","rate":2}]}"#),
        ("tasks.toml", "[[task]]\nname = \"a\"\ncommand = [\"true\"]\n"),
    ],
    piecewise: &[("trace", "the line is longer"), ("--safetensors", "holds no JSON")],
};

#[test]
fn devices_and_pipes_are_refused_by_every_reader() {
    CARMA.refuses_devices_and_pipes();
}

#[test]
fn a_file_of_a_tebibyte_is_refused_by_every_reader() {
    CARMA.refuses_a_tebibyte();
}

#[test]
fn an_empty_device_is_an_empty_file() {
    let dir = CARMA.folder();
    let output = CARMA.run(dir.path(), "config check @", "/dev/null");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

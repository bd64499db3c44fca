//! A checkpoint made by hand, and hostile ones.

use super::*;

/// A zip archive of stored files.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in files {
        let at = out.len() as u32;
        let size = (data.len() as u32).to_le_bytes();
        let crc = crc32fast::hash(data).to_le_bytes();
        let len = (name.len() as u16).to_le_bytes();
        out.extend_from_slice(b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0");
        for part in [&crc[..], &size, &size, &len, &[0, 0], name.as_bytes(), data] {
            out.extend_from_slice(part);
        }
        directory.extend_from_slice(b"PK\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0");
        for part in [&crc[..], &size, &size, &len, &[0; 12], &at.to_le_bytes(), name.as_bytes()] {
            directory.extend_from_slice(part);
        }
    }
    let at = out.len() as u32;
    let count = (files.len() as u16).to_le_bytes();
    let size = (directory.len() as u32).to_le_bytes();
    out.extend_from_slice(&directory);
    for part in [&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &size, &at.to_le_bytes(), &[0, 0]] {
        out.extend_from_slice(part);
    }
    out
}

fn text(s: &str) -> Vec<u8> {
    [b"X", &(s.len() as u32).to_le_bytes()[..], s.as_bytes()].concat()
}

/// `{"state_dict": OrderedDict(w=tensor(storage 0, 2 x 3))}` as protocol 2.
fn good(shape: &[u8], stride: &[u8]) -> Vec<u8> {
    let tuple = |items: &[u8]| {
        let mut all = b"(".to_vec();
        items.iter().for_each(|n| all.extend_from_slice(&[b'K', *n]));
        all.push(b't');
        all
    };
    [
        &b"\x80\x02}"[..],
        &text("state_dict"),
        b"ccollections\nOrderedDict\n)R",
        &text("w"),
        b"ctorch._utils\n_rebuild_tensor_v2\n((",
        &text("storage"),
        b"ctorch\nFloatStorage\n",
        &text("0"),
        &text("cpu"),
        b"K\x06tQK\0",
        &tuple(shape),
        &tuple(stride),
        b"\x89ccollections\nOrderedDict\n)RtRss.",
    ]
    .concat()
}

fn numbers() -> Vec<u8> {
    (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

fn refusal(pickle: &[u8]) -> String {
    read(&archive(&[("a/data.pkl", pickle), ("a/data/0", &numbers())])).unwrap_err().to_string()
}

#[test]
fn reads_a_tensor() {
    let tensors = read(&archive(&[
        ("a/data.pkl", &good(&[2, 3], &[3, 1])),
        ("a/byteorder", b"little"),
        ("a/data/0", &numbers()),
    ]))
    .unwrap();
    let w = tensors.get("w").unwrap();
    assert_eq!((w.shape.as_slice(), w.data.as_slice()), (&[2, 3][..], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0][..]));
    assert!(tensors.get("v").unwrap_err().to_string().contains("no such tensor"));
}

#[test]
fn hostile_pickles_are_refused_by_name() {
    let system = b"\x80\x02cposix\nsystem\nX\x02\0\0\0id\x85R.";
    assert!(refusal(system).contains("`posix.system`"), "{}", refusal(system));
    let stack_global = b"\x80\x02\x8c\x05posix\x8c\x06system\x93.";
    assert!(refusal(stack_global).contains("0x8c"), "{}", refusal(stack_global));
    for (pickle, word) in [
        (&b"\x80\x02cbuiltins\neval\n."[..], "builtins.eval"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
        (b"\x80\x02(iposix\nsystem\n.", "0x69"),
        (b"\x80\x02}\x81.", "0x81"),
        (b"\x80\x02}R.", "empty stack"),
        (b"\x80\x02K\x01K\x02R.", "tuple"),
        (b"\x80\x04}.", "protocol 4"),
        (b"\x80\x02j\x09\0\0\0.", "memo 9"),
        (b"\x80\x02u.", "mark"),
        (b"\x80\x02X\xff\xff\xff\xffabc", "cut off"),
        (b"\x80\x02", "cut off"),
        (b"\x80\x02K\x01.", "dictionary"),
    ] {
        assert!(refusal(pickle).contains(word), "{word}: {}", refusal(pickle));
    }
}

#[test]
fn a_dictionary_that_holds_itself_is_no_trouble() {
    let pickle = b"\x80\x02}q\0X\x01\0\0\0ah\0s.";
    let tensors = read(&archive(&[("data.pkl", pickle)])).unwrap();
    assert_eq!(tensors.iter().count(), 0);
}

#[test]
fn shapes_that_lie_are_refused() {
    assert!(refusal(&good(&[2, 4], &[4, 1])).contains("too short"));
    assert!(refusal(&good(&[255, 255, 255, 255], &[0, 0, 0, 1])).contains("row-major"));
    assert!(refusal(&good(&[3, 2], &[1, 3])).contains("row-major"));
    assert!(refusal(&good(&[2, 3], &[1])).contains("do not match"));
}

#[test]
fn archives_that_lie_are_refused() {
    let good = good(&[2, 3], &[3, 1]);
    let whole = archive(&[("a/data.pkl", &good), ("a/data/0", &numbers())]);
    for cut in [0, 10, whole.len() / 2, whole.len() - 1] {
        assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
    }
    let says = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    let mut flipped = whole.clone();
    flipped[60] ^= 1;
    assert!(says(&flipped).contains("checksum"), "{}", says(&flipped));
    assert!(says(&archive(&[("a", b"x")])).contains("data.pkl"));
    assert!(says(&archive(&[("a", b"x"), ("a", b"y")])).contains("twice"));
    assert!(says(&archive(&[("a/data.pkl", &good)])).contains("a/data/0"));
    let mut packed = whole;
    let directory = packed.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    packed[directory + 10] = 8;
    assert!(says(&packed).contains("compressed"));
}

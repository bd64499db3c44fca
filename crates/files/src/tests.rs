use super::*;
use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::time::Duration;

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn just_enough_is_read_and_one_byte_more_is_not() {
    let eight = file(b"12345678");
    assert_eq!(read(eight.path(), 8).unwrap(), b"12345678");
    let said = read(eight.path(), 7).unwrap_err().to_string();
    let named = format!("{}: has 8 bytes, at most 7 bytes are read of such a file", eight.path().display());
    assert_eq!(said, named);
    assert_eq!(read_stream(&b"12345678"[..], 8).unwrap(), b"12345678");
    assert!(matches!(read_stream(&b"12345678"[..], 7), Err(Why::Longer { limit: 7 })));
}

#[test]
fn a_sparse_file_larger_than_any_memory_is_refused_by_its_length() {
    let huge = tempfile::NamedTempFile::new().unwrap();
    huge.as_file().set_len(1 << 42).unwrap();
    let said = read(huge.path(), MOST).unwrap_err().to_string();
    assert!(said.ends_with("has 4096 GiB, at most 64 MiB are read of such a file"), "{said}");
}

#[test]
fn files_whose_length_nobody_says_are_bounded_as_well() {
    // Files of /proc have the length 0.
    assert!(!read(Path::new("/proc/self/maps"), MOST).unwrap().is_empty());
    assert!(matches!(read(Path::new("/proc/self/maps"), 10).unwrap_err().why, Why::Longer { limit: 10 }));
}

#[test]
fn only_regular_files_are_opened_and_nothing_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    // In a thread, so that a wait for the pipe's writer fails the test rather than hangs it.
    let (tell, told) = std::sync::mpsc::channel();
    let paths = [pipe, socket, link, "/dev/zero".into(), dir.path().to_owned(), dir.path().join("none")];
    std::thread::spawn(move || {
        let _ = tell.send(paths.map(|path| open(&path).unwrap_err().why.to_string()));
    });
    let said = told.recv_timeout(Duration::from_secs(60)).expect("a reader waits");
    let copy = "not a regular file; copy what it holds into a file and name that";
    assert_eq!(said[0], format!("is a pipe, {copy}"));
    assert_eq!(said[1], format!("is a socket, {copy}"));
    assert_eq!(said[2], format!("is a device, {copy}"));
    assert_eq!(said[3], said[2]);
    assert_eq!(said[4], "is a directory; name a file in it");
    assert!(said[5].starts_with("cannot be read: No such file"), "{}", said[5]);
    assert_eq!(read(Path::new("/dev/null"), 1).unwrap(), b"");
}

#[test]
fn text_says_where_it_is_none() {
    let said = read_text(file(b"a\nb\xff").path(), MOST).unwrap_err().why.to_string();
    assert_eq!(said, "is not text in UTF-8: byte 4, in line 2");
}

#[test]
fn a_line_that_is_too_long_is_told_by_its_number() {
    assert_eq!(too_long_line(b"abc\nabcd\nabcde", 3), Some(2));
    assert_eq!(too_long_line(b"abc\nabcd\nabcde", 4), Some(3));
    assert_eq!(too_long_line(b"abc\nabcd\nabcde", 5), None);
}

#[test]
fn gzip_is_unpacked_to_the_limit() {
    let zeros = packed(&vec![0; 1 << 20]);
    assert!(zeros.len() < 2000);
    let bomb = file(&zeros);
    assert_eq!(read_unpacked(bomb.path(), 1 << 20).unwrap().len(), 1 << 20);
    let said = read_unpacked(bomb.path(), (1 << 20) - 1).unwrap_err().why.to_string();
    assert_eq!(said, "unpacks to more than 1048575 bytes, which is the most that is read of such a file");
    assert_eq!(read_unpacked(file(b"plain").path(), 5).unwrap(), b"plain");
    let cut = file(&zeros[..zeros.len() / 2]);
    assert!(matches!(read_unpacked(cut.path(), MOST).unwrap_err().why, Why::Gzip(_)));
}

#[test]
fn a_bounded_reader_passes_on_what_it_may_and_no_more() {
    carma_seeded::check!(3000).with_type::<(Vec<u8>, u8)>().for_each(|(bytes, limit)| {
        let mut out = Vec::new();
        let read = Bounded::new(bytes.as_slice(), u64::from(*limit)).read_to_end(&mut out);
        let fits = bytes.len() <= usize::from(*limit);
        assert_eq!(read.is_ok(), fits);
        assert_eq!(out, bytes[..bytes.len().min(usize::from(*limit))]);
    });
}

#[test]
fn any_bytes_unpack_or_are_refused() {
    carma_seeded::check!(3000).with_type::<(bool, Vec<u8>)>().for_each(|(head, bytes)| {
        let mut all = if *head { packed(b"x")[..10].to_vec() } else { Vec::new() };
        all.extend_from_slice(bytes);
        if let Ok(out) = unpack(all, 4096) {
            assert!(out.len() <= 4096.max(bytes.len() + 10));
        }
    });
}

#[test]
fn a_mistake_is_shown_with_its_line() {
    assert_eq!(mistake("a = 1\n  b = \n", 9, "no value"), "line 2, `b =`: no value");
    let long = "é".repeat(70);
    assert_eq!(mistake(&long, 3, "odd"), format!("line 1, `{}...`: odd", "é".repeat(60)));
    // A place that is none: after the end, and inside a character.
    assert_eq!(mistake("a\n", 99, "cut off"), "line 2, ``: cut off");
    assert_eq!(line_at("é\né", 4), 2);
}

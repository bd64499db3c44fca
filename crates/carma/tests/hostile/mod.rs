//! Options that name a file, given names that lead to no file: a device that never ends, a pipe without a writer, a
//! file larger than any memory. The tests of `carma` and of `carma-lab` each list their own options.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A program and its readers.
pub(crate) struct Program {
    /// Path of the binary.
    pub(crate) binary: &'static str,
    /// Exit code, then the words of the command line; `@` is the file.
    pub(crate) readers: &'static [(i32, &'static str)],
    /// Names and contents of other files that the command lines name.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// For readers that go piece by piece: words of the command line, and what is said of a first piece without sense.
    pub(crate) piecewise: &'static [(&'static str, &'static str)],
}

impl Program {
    /// Where it runs: the other files, `pipe` and `huge`.
    pub(crate) fn folder(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in self.files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let status = Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap();
        assert!(status.success());
        std::fs::File::create(dir.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
        dir
    }

    /// Runs it with a file.
    pub(crate) fn run(&self, dir: &Path, words: &str, file: &str) -> Output {
        // More memory than this is what a reader without a bound takes; `timeout` ends one that waits.
        let script = "ulimit -v 4000000; exec timeout -k 5 120 \"$@\"";
        Command::new("sh")
            .args(["-c", script, "sh", self.binary])
            .args(words.split(' ').map(|word| if word == "@" { file } else { word }))
            .current_dir(dir)
            .env("CARMA_SOCKET", dir.join("none.sock"))
            .env("HOME", dir)
            .stdin(Stdio::null())
            .output()
            .expect("sh can be run")
    }

    /// Every reader refuses devices and pipes, and says what they are.
    pub(crate) fn refuses_devices_and_pipes(&self) {
        for (file, kind) in [("/dev/zero", "a device"), ("pipe", "a pipe")] {
            self.refuses(file, |_, said| said.contains(&format!("is {kind}, not a regular file")));
        }
    }

    /// Every reader refuses a file of a tebibyte, and says how large it is and how large it may be.
    pub(crate) fn refuses_a_tebibyte(&self) {
        self.refuses("huge", |words, said| {
            let bounded = said.contains("has 1024 GiB, at most ") && said.contains("are read of such a file");
            bounded || self.piecewise.iter().any(|(verb, why)| words.contains(verb) && said.contains(why))
        });
    }

    fn refuses(&self, file: &str, why: impl Fn(&str, &str) -> bool) {
        let dir = self.folder();
        let mut wrong = Vec::new();
        for (code, words) in self.readers {
            let output = self.run(dir.path(), words, file);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.code() != Some(*code) || !said.contains(file) || !why(words, &said) {
                wrong.push(format!("{words} with {file}: {:?} {said}", output.status));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

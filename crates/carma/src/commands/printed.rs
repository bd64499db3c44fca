//! What a command prints about its work, where the work is something else.

use carma_cli::failure::Failure;

/// Lines about what was done. Where standard output is closed, or the disk that it goes to is full, the work goes on.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    failed: Option<Failure>,
}

impl Printed {
    /// Prints, unless that has failed before.
    pub(crate) fn add<E: Into<Failure>>(&mut self, print: impl FnOnce() -> Result<(), E>) {
        if self.failed.is_none() {
            self.failed = print().err().map(Into::into);
        }
    }

    /// The exit code: that of the work; where all of it was done, that of a failure to print. A reader who has enough is none.
    pub(crate) fn end(self, code: u8) -> u8 {
        match self.failed {
            Some(failure) if !failure.is_closed_pipe() => {
                failure.tell();
                if code == 0 { failure.code } else { code }
            }
            _ => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_full_disk_shows_in_the_code_and_a_closed_pipe_does_not() {
        for (kind, of_work, shown) in [
            (ErrorKind::BrokenPipe, 0, 0),
            (ErrorKind::BrokenPipe, 3, 3),
            (ErrorKind::StorageFull, 0, 1),
            (ErrorKind::StorageFull, 3, 3),
        ] {
            let mut printed = Printed::default();
            printed.add(|| Ok::<_, Error>(()));
            printed.add(|| Err(Error::from(kind)));
            printed.add(|| -> Result<(), Error> { unreachable!("it has failed before") });
            assert_eq!(printed.end(of_work), shown, "{kind} {of_work}");
        }
    }
}

//! `GET /v1/jobs/{id}/log`

use super::connections::blocking;
use super::{Asked, Failure, Shared, job_id, no_such_job, show};
use crate::messages::Peer;
use crate::refused::Refused;
use crate::run::launch::kept_log;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderName;
use carma_api::wire::{LOG_AT, LOG_END};
use rustix::fs::{SeekFrom, seek};
use serde::Deserialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Bytes of one answer.
const MOST: u64 = 256 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    /// First byte.
    #[serde(default)]
    from: u64,
    /// Bytes at most.
    length: Option<u64>,
}

/// Hands out a piece of a log that carma keeps. What was cut out of a log that was too long is passed over: a header says
/// where the piece begins, another how long the log is now.
pub(super) async fn log(
    State(app): Shared,
    peer: Peer,
    Path(id): Path<String>,
    Asked(options): Asked<Options>,
) -> Result<([(HeaderName, String); 2], Bytes), Failure> {
    let id = job_id(&id)?;
    let Some(stored) = app.readers.read(move |reader| Ok(reader.job(id)?)).await? else {
        return Err(no_such_job(id, app.view().await?.0.next_id()));
    };
    // By the journal's history, where it is over by now: a job that is not live in this view was over before.
    let (state, _) = app.view().await?;
    let over = app.readers.read({
        let state = state.clone();
        move |reader| show::find(reader, &state, id)
    });
    let over = over.await?;
    let subject = show::subject(&state, over.as_ref(), id)?;
    if !app.asker(&peer).may_read(&subject.job().spec.user) {
        let text = format!("the log of job {id} belongs to another user");
        return Err(Refused::new(403, "not_allowed", text).into());
    }
    if stored.request.output.is_some() {
        let text = format!("the output of job {id} goes to a file of its owner's: {}", stored.log);
        return Err(Refused::new(409, "conflict", text).into());
    }
    let path = kept_log(&app.log_dir, id);
    match blocking(move || read(&path, &options)).await? {
        Ok((at, end, bytes)) => {
            let header = |name: &'static str, value: u64| (HeaderName::from_static(name), value.to_string());
            Ok(([header(LOG_AT, at), header(LOG_END, end)], bytes.into()))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Refused::new(404, "no_log", format!("job {id} has no output yet, or its log was removed"))
                .into())
        }
        Err(e) => {
            Err(Refused::new(500, "internal", format!("the log of job {id} cannot be read: {e}")).into())
        }
    }
}

/// Where the piece begins, where the log ends, and the piece.
fn read(path: &std::path::Path, options: &Options) -> io::Result<(u64, u64, Vec<u8>)> {
    // carma's own directory, which no user may enter.
    let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let end = meta.len();
    if options.from >= end {
        return Ok((end, end, Vec::new()));
    }
    // Where the file system does not tell, all is data.
    let at = seek(&file, SeekFrom::Data(options.from)).unwrap_or(options.from);
    let hole = seek(&file, SeekFrom::Hole(at)).unwrap_or(end);
    let length = options.length.unwrap_or(MOST).min(MOST).min(hole.saturating_sub(at));
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = file.read_at(&mut bytes, at)?;
    bytes.truncate(read);
    Ok((at, end, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_out_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        let file = File::create(&path).unwrap();
        file.write_all_at(b"head", 0).unwrap();
        file.write_all_at(b"tail", 1 << 20).unwrap();
        let piece = |from| read(&path, &Options { from, length: None }).unwrap();
        let end = (1 << 20) + 4;
        let (at, length, bytes) = piece(0);
        assert!(at == 0 && length == end && bytes.starts_with(b"head"));
        // The rest of a block is part of it.
        let (at, _, bytes) = piece(bytes.len() as u64);
        assert!(at <= 1 << 20 && bytes.ends_with(b"tail"), "{at} {}", bytes.len());
        assert_eq!(piece(end), (end, end, Vec::new()));
        assert!(read(&dir.path().join("2.log"), &Options { from: 0, length: None }).is_err());
    }
}

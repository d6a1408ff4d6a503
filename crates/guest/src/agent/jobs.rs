//! Commands that outlive the stream that asked for them: see [`cofferdam_guest::job`].
//!
//! ```text
//! job --unknown name--> exec --frames--> keep --files, end--> news
//!  '------known name--------------------------------------------+--> followers, each from its own byte on
//! ```
//! A command is read as fast as it writes: nobody who follows slowly, or not at all, holds it up. What a
//! file does not take is counted as dropped.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cofferdam_guest::frame::{self, Decoder, Kind};
use cofferdam_guest::job::{JobRequest, MAX_JOBS, is_name};
use cofferdam_guest::wire::ExecEnd;
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::watch;

use super::answer::{self, Answer, refuse};
use super::exec;
use super::reaper::Reaper;

/// Where output is kept: beside the agent, which nobody but root may enter.
const DIR: &str = "/.cofferdam/jobs";
/// One read of a file, and so one frame.
const READ_BYTES: usize = 16 * 1024;
/// Frames between the command and its files: see [`super::answer`].
const QUEUED_FRAMES: usize = 8;

/// The jobs of this sandbox, the oldest first.
#[derive(Default)]
pub struct Jobs {
    known: Mutex<VecDeque<Arc<Job>>>,
}

struct Job {
    name: String,
    /// What is in the files, and the last frame's payload once it is there.
    so_far: watch::Sender<JobProgress>,
    /// Standard output, standard error.
    files: [PathBuf; 2],
}

#[derive(Debug, Clone, Default)]
struct JobProgress {
    written: [u64; 2],
    end: Option<Bytes>,
}

impl Jobs {
    /// Answers `POST /v1/job`: starts the job unless its name is known, and streams its output.
    pub fn job(&self, reaper: &Arc<Reaper>, request: JobRequest) -> Response<Answer> {
        if !is_name(&request.name) || request.exec.jail.is_some() {
            return refuse(StatusCode::BAD_REQUEST, "no job has this name, or a jail");
        }
        let job = match self.find_or_start(reaper, &request) {
            Ok(job) => job,
            Err(error) => {
                return refuse(StatusCode::INSUFFICIENT_STORAGE, format!("its output: {error}"));
            }
        };
        let (frames, response) = answer::frames();
        tokio::spawn(follow(job, [request.stdout, request.stderr], frames));
        response
    }

    fn find_or_start(&self, reaper: &Arc<Reaper>, request: &JobRequest) -> io::Result<Arc<Job>> {
        // Held until the job is known: two who ask at once start one.
        let mut known = self.lock();
        if let Some(job) = known.iter().find(|job| job.name == request.name) {
            return Ok(Arc::clone(job));
        }
        let (job, files) = Job::make(&request.name)?;
        if known.len() >= MAX_JOBS {
            let ended = known.iter().position(|job| job.so_far.borrow().end.is_some());
            let oldest = ended.and_then(|at| known.remove(at));
            oldest.ok_or(io::ErrorKind::QuotaExceeded)?.forget();
        }
        known.push_back(Arc::clone(&job));
        drop(known);
        let (frames, kept) = tokio::sync::mpsc::channel(QUEUED_FRAMES);
        tokio::spawn(exec::exec(Arc::clone(reaper), request.exec.clone(), frames));
        tokio::spawn(keep(Arc::clone(&job), files, kept));
        Ok(job)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn make(name: &str) -> io::Result<(Arc<Self>, [File; 2])> {
        DirBuilder::new().recursive(true).mode(0o700).create(DIR)?;
        let [out, err] = ["out", "err"].map(|kind| PathBuf::from(format!("{DIR}/{name}.{kind}")));
        let open = |path: &PathBuf| {
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
        };
        let opened = [open(&out)?, open(&err)?];
        let (name, so_far) = (name.to_owned(), watch::Sender::default());
        Ok((Arc::new(Self { name, so_far, files: [out, err] }), opened))
    }

    fn forget(&self) {
        for path in &self.files {
            // What is left is the sandbox's, and goes with it.
            let _ = fs::remove_file(path);
        }
    }
}

/// Writes what a command prints, up to its end.
async fn keep(job: Arc<Job>, mut files: [File; 2], mut frames: Receiver<Bytes>) {
    let mut decoder = Decoder::default();
    let mut lost = [0, 0];
    while let Some(piece) = frames.recv().await {
        decoder.push(&piece);
        while let Ok(Some((kind, payload))) = decoder.next_frame() {
            let stream = match kind {
                Kind::Stdout => 0,
                Kind::Stderr => 1,
                _ => {
                    let end = with_lost(&payload, lost);
                    job.so_far.send_modify(|so_far| so_far.end = Some(end));
                    return;
                }
            };
            let length = u64::try_from(payload.len()).unwrap_or(u64::MAX);
            let [out, err] = &mut files;
            let file = if stream == 0 { out } else { err };
            let [lost_out, lost_err] = &mut lost;
            let lost = if stream == 0 { lost_out } else { lost_err };
            // After a hole nothing more is taken, or what follows would look like what is missing.
            if *lost > 0 || file.write_all(&payload).is_err() {
                *lost += length;
                continue;
            }
            job.so_far.send_modify(|so_far| {
                if let Some(written) = so_far.written.get_mut(stream) {
                    *written += length;
                }
            });
        }
    }
}

/// The end, with what no file took.
fn with_lost(payload: &Bytes, [out, err]: [u64; 2]) -> Bytes {
    match serde_json::from_slice::<ExecEnd>(payload) {
        Ok(mut end) => {
            end.dropped_stdout = end.dropped_stdout.saturating_add(out);
            end.dropped_stderr = end.dropped_stderr.saturating_add(err);
            serde_json::to_vec(&end).unwrap_or_default().into()
        }
        Err(_) => payload.clone(),
    }
}

/// Sends what there is from these bytes on, and what comes, up to the end; or until nobody listens.
async fn follow(job: Arc<Job>, mut from: [u64; 2], frames: Sender<Bytes>) {
    let mut news = job.so_far.subscribe();
    loop {
        let so_far = news.borrow_and_update().clone();
        for (stream, kind) in [(0, Kind::Stdout), (1, Kind::Stderr)] {
            let (Some(path), Some(at), Some(upto)) =
                (job.files.get(stream), from.get_mut(stream), so_far.written.get(stream))
            else {
                return;
            };
            if send_file(path, kind, at, *upto, &frames).await.is_none() {
                return;
            }
        }
        if let Some(end) = so_far.end {
            let _ = frames.send(frame::encode(Kind::End, &end)).await;
            return;
        }
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = frames.closed() => return,
        }
    }
}

/// `None`: nobody listens, or the file is gone, which ends the answer before its end frame.
async fn send_file(
    path: &Path,
    kind: Kind,
    at: &mut u64,
    upto: u64,
    frames: &Sender<Bytes>,
) -> Option<()> {
    if *at >= upto {
        return Some(());
    }
    let file = File::open(path).ok()?;
    let mut buffer = vec![0; READ_BYTES];
    while *at < upto {
        let most = usize::try_from(upto - *at).unwrap_or(READ_BYTES).min(READ_BYTES);
        let count = file.read_at(buffer.get_mut(..most)?, *at).ok().filter(|count| *count > 0)?;
        frames.send(frame::encode(kind, buffer.get(..count)?)).await.ok()?;
        *at += u64::try_from(count).ok()?;
    }
    Some(())
}

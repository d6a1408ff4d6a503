//! `sandbox cp`: one file into a long-lived sandbox, or out of it.
//!
//! **Inside, a path is resolved by the sandbox alone: a link leads to another place of the sandbox. Outside, only the file
//! that this very call names is written: a new one, which has its name once it is whole, and never through a link.**

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use cofferdam_contracts::id::LiveId;
use reqwest::{Body, Method};
use tokio::sync::mpsc;

use super::client::{Client, segment};
use super::envd::{Envd, answered};
use super::exit::{Exit, Misuse};
use super::outfile::Target;
use super::output;

/// One read of what is sent.
const READ_BYTES: usize = 64 * 1024;
/// Pieces between the reader and the connection.
const QUEUED: usize = 4;

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// File to copy: a path, SANDBOX:PATH, or - for standard input
    pub from: String,
    /// Where to: a path, SANDBOX:PATH, or - for standard output
    pub to: String,
    /// Whose the file is inside, and whose home relative paths begin in: user or root
    #[arg(long, default_value = "user")]
    pub user: String,
    /// Replace a file of this host that exists
    #[arg(long)]
    pub force: bool,
}

/// A path of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SandboxPath<'a> {
    id: &'a str,
    path: &'a str,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    Inside(SandboxPath<'a>),
    Host(&'a Path),
    Stream,
}

impl<'a> Side<'a> {
    fn of(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((id, path)) if LiveId::parse(id).is_ok() => Self::Inside(SandboxPath { id, path }),
            _ if text == "-" => Self::Stream,
            _ => Self::Host(Path::new(text)),
        }
    }
}

/// The last name of a path that the caller wrote; a file of this host never gets a name that a server chose.
fn last_name(path: &str) -> anyhow::Result<&str> {
    let name = path.rsplit('/').next().unwrap_or_default();
    match name {
        "" | "." | ".." | "~" => {
            Err(Misuse(format!("{path}: it does not end in a file's name")).into())
        }
        name => Ok(name),
    }
}

pub(crate) async fn cp(client: &Client, args: &CpArgs) -> anyhow::Result<Exit> {
    match (Side::of(&args.from), Side::of(&args.to)) {
        (Side::Inside(_), Side::Inside(_)) => {
            Err(Misuse("one side is of this host: copy it out, then in".to_owned()).into())
        }
        (Side::Inside(from), to) => out(client, args, from, to).await,
        (from, Side::Inside(to)) => into(client, args, from, to).await,
        _ => {
            let why = "neither side is SANDBOX:PATH; `cofferdam sandbox ls` lists the sandboxes";
            Err(Misuse(why.to_owned()).into())
        }
    }
}

fn route(args: &CpArgs, path: &str) -> String {
    format!("/files?path={}&username={}", segment(path), segment(&args.user))
}

async fn out(
    client: &Client,
    args: &CpArgs,
    from: SandboxPath<'_>,
    to: Side<'_>,
) -> anyhow::Result<Exit> {
    let SandboxPath { id, path } = from;
    let named = match to {
        Side::Host(dir) if dir.is_dir() => Some(dir.join(last_name(path)?)),
        Side::Host(file) => Some(file.to_path_buf()),
        Side::Stream | Side::Inside(_) => None,
    };
    let target = named.as_deref().map(|path| Target { path, force: args.force });
    if let Some(target) = &target {
        target.check()?;
    }
    let envd = Envd::of(client, id).await?;
    let mut answer = answered(envd.request(Method::GET, &route(args, path))).await?;
    let mut draft = target.map(|target| target.begin()).transpose()?;
    while let Some(piece) = answer.chunk().await.context("the file broke off")? {
        match draft.as_mut() {
            Some(draft) => draft.write(&piece)?,
            None => output::raw(&piece),
        }
    }
    if let Some(draft) = draft {
        draft.commit()?;
    }
    Ok(Exit::Ok)
}

async fn into(
    client: &Client,
    args: &CpArgs,
    from: Side<'_>,
    to: SandboxPath<'_>,
) -> anyhow::Result<Exit> {
    let SandboxPath { id, path } = to;
    let (source, path): (Box<dyn Read + Send>, String) = match from {
        Side::Host(file) => (Box::new(regular(file)?), destination(path, file)?),
        Side::Stream | Side::Inside(_) => {
            last_name(path)?;
            (Box::new(io::stdin()), path.to_owned())
        }
    };
    let envd = Envd::of(client, id).await?;
    let request = envd.request(Method::POST, &route(args, &path));
    let request = request.header("content-type", "application/octet-stream");
    answered(request.body(pieces(source))).await?;
    Ok(Exit::Ok)
}

/// Opens a file of this host. A FIFO without a writer would block, so only regular files are read.
fn regular(path: &Path) -> anyhow::Result<File> {
    let named = || path.display().to_string();
    let found = path.metadata().with_context(named)?;
    if !found.is_file() {
        let why = format!(
            "{}: not a regular file; for a directory: tar -c DIR | cofferdam sandbox cp - SANDBOX:a.tar",
            named()
        );
        return Err(Misuse(why).into());
    }
    File::open(path).with_context(named)
}

/// Below a directory inside, as a path that ends in `/` names it, the file keeps its name.
fn destination(path: &str, file: &Path) -> anyhow::Result<String> {
    if !path.is_empty() && !path.ends_with('/') {
        return last_name(path).map(|_| path.to_owned());
    }
    let name = PathBuf::from(file.file_name().unwrap_or_default());
    let name = name.to_str().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Misuse(format!("{}: name the file inside", file.display())))?;
    Ok(format!("{path}{name}"))
}

/// A body of what is read, as it is read. On a thread of its own: nothing waits for a source that says nothing.
fn pieces(mut source: Box<dyn Read + Send>) -> Body {
    let (sender, receiver) = mpsc::channel::<io::Result<Vec<u8>>>(QUEUED);
    std::thread::spawn(move || {
        loop {
            let mut buffer = vec![0; READ_BYTES];
            let piece = match source.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    buffer.truncate(count);
                    Ok(buffer)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_last = piece.is_err();
            if sender.blocking_send(piece).is_err() || is_last {
                return;
            }
        }
    });
    Body::wrap_stream(futures_util::stream::unfold(
        receiver,
        |mut receiver: mpsc::Receiver<_>| async move {
            receiver.recv().await.map(|piece| (piece, receiver))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_inside_only_where_a_sandbox_is_named() {
        let id = "a1".repeat(10);
        let inside = format!("{id}:/etc/x:y");
        let wanted = SandboxPath { id: &id, path: "/etc/x:y" };
        assert_eq!(Side::of(&inside), Side::Inside(wanted));
        assert_eq!(Side::of("-"), Side::Stream);
        for host in ["a:b", "./a1", "C:/x", "", "sandbox:x"] {
            assert_eq!(Side::of(host), Side::Host(Path::new(host)), "{host}");
        }
    }

    #[test]
    fn a_file_keeps_its_name_below_a_directory_and_no_name_leaves_it() {
        let file = Path::new("/srv/a.txt");
        assert_eq!(destination("dir/", file).unwrap(), "dir/a.txt");
        assert_eq!(destination("", file).unwrap(), "a.txt");
        assert_eq!(destination("dir/b", file).unwrap(), "dir/b");
        assert!(destination("", Path::new("/")).is_err());
        for bad in ["", "a/", "..", "a/..", "."] {
            assert!(last_name(bad).is_err(), "{bad}");
        }
    }
}

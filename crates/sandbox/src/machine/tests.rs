//! The disk as a client sees it that means no good, and files that change under it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream as Socket;
use std::path::Path;

use cofferdam_ambient::{clock, random};
use cofferdam_contracts::id::SandboxId;
use serde_json::json;

use super::disk::Reader;
use super::stored_machine::StoredMachine;
use super::*;
use crate::not_run::not_run;
use crate::{Class, Host, HostConfig, enter_private_mounts, provision};

fn image_of(dir: &Path) -> Arc<Image> {
    let root = tree::look(dir, None, &mut 0).unwrap();
    Arc::new(Image::of(root).unwrap())
}

fn none() -> Arc<Image> {
    Arc::new(Image::of(tree::directory([])).unwrap())
}

fn whole(reader: &mut Reader, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    reader.read(1024 * 1024, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn a_file_is_on_the_disk_and_one_that_is_exchanged_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "the first bytes").unwrap();
    symlink("/etc/passwd", dir.path().join("link")).unwrap();
    let image = image_of(dir.path());
    let disk = || Arc::new(Disk::new(Arc::clone(&image), none()).unwrap());
    let reader = || Reader::new(CurrentDisk::new(disk()));
    let bytes = whole(&mut reader(), image.size()).unwrap();
    let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(holds("the first bytes") && holds("/etc/passwd") && !holds("root:x:0:0"));
    fs::remove_file(dir.path().join("a")).unwrap();
    symlink("/etc/passwd", dir.path().join("a")).unwrap();
    assert!(whole(&mut reader(), image.size()).is_err(), "a link is not followed");
    fs::remove_file(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a"), "the other bytes").unwrap();
    assert!(whole(&mut reader(), image.size()).is_err(), "another file of the same name and size");
}

#[test]
fn a_client_gets_only_the_disk_and_one_that_writes_is_left() {
    let theirs = serve(&CurrentDisk::new(Arc::new(Disk::new(none(), none()).unwrap()))).unwrap();
    let mut client = Socket::from(theirs);
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).unwrap();
    client.write_all(&[0, 0, 0, 3]).unwrap();
    client.write_all(b"IHAVEOPT\0\0\0\x07\0\0\0\0").unwrap();
    let mut answer = [0; 20 + 12 + 20];
    client.read_exact(&mut answer).unwrap();
    let mut ask = |kind: u8, offset: u64, length: u32| {
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind, 1, 2, 3, 4, 5, 6, 7, 8];
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        client.write_all(&request).unwrap();
        let mut answer = [0; 16];
        client.read_exact(&mut answer).map(|()| (answer[7], answer[8]))
    };
    assert_eq!(ask(0, disk::SIZE, 512).unwrap(), (22, 1));
    assert_eq!(ask(0, u64::MAX, 512).unwrap(), (22, 1));
    assert_eq!(ask(0, 0, u32::MAX).unwrap(), (22, 1));
    assert_eq!(ask(4, 0, 512).unwrap(), (1, 1));
    assert!(ask(1, 0, 512).is_err());
}

/// A host that is left whatever becomes of its test, or of the machines that it was asked for.
pub(crate) struct Left(pub(crate) Host);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl std::ops::Deref for Left {
    type Target = Host;
    fn deref(&self) -> &Host {
        &self.0
    }
}

/// A host of machines and a plan of one; `None` where it makes none, which is said.
pub(crate) fn machines(state: &Path) -> Option<(Left, Plan)> {
    enter_private_mounts().unwrap();
    let config = HostConfig { state_dir: state.to_owned(), ..HostConfig::default() };
    let host = Left(Host::detect(config).unwrap());
    let request = json!({
        "envRef": "host", "cmd": ["true"], "timeoutMs": 20_000,
        "limits": {"memMB": 128, "diskMB": 8, "pids": 32},
        "spec": {"isolation": {"class_min": Class::Microvm.as_str()}},
    });
    let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap();
    let request = serde_json::from_value(request).unwrap();
    match crate::plan(&request, &id, host.facts()) {
        Ok(plan) => Some((host, plan)),
        Err(absent) => {
            not_run("the class microvm", &absent.to_string());
            None
        }
    }
}

#[test]
fn nobody_writes_to_a_stored_machine() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    let machine = host.facts().machine.as_ref().unwrap();
    let stored = StoredMachine::make(machine, &plan.runtime, Shape::of(&plan, machine)).unwrap();
    let mut file = fs::OpenOptions::new().read(true).write(true).open(stored.path()).unwrap();
    assert_eq!(file.write(b"x").unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert!(file.set_len(0).is_err());
}

#[test]
fn a_stored_machine_that_does_not_come_to_life_is_booted_instead_and_not_tried_again() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    host.machines().pool().put(&plan, host.facts(), StoredMachine::of(b"not what was stored"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = provision(&host, &plan, &[]).await.unwrap();
        assert!(!sandbox.boot().is_restored);
        assert!(host.machines().pool().take(&plan, host.facts()).is_none());
        let evidence = sandbox.wipe("task-end").await;
        assert_eq!(evidence.status, cofferdam_contracts::sandbox::WipeStatus::Verified);
    });
}

#[test]
fn a_stored_machine_that_nobody_takes_is_given_up() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    let pool = Pool::with_idle(1_000);
    let is_stored = pool.warm(&plan, host.facts());
    assert!(is_stored);
    let clock = Stopwatch::start();
    while !pool.is_empty() {
        assert!(clock.elapsed_ms() < 30_000, "it is kept for ever");
        clock::sleep_blocking(std::time::Duration::from_millis(20));
    }
    assert!(pool.take(&plan, host.facts()).is_none());
}

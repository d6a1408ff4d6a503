//! The embedded database, with the machine's real PostgreSQL: its births, deaths and sharing.
//!
//! One file: births, deaths and sharing are told apart by the same few processes, which stand at its end.

use crate::not_run;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::env;
use cofferdam_ledger::cluster::{Cluster, ClusterError, Search};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use not_run::not_run;

const HELPER_STATE: &str = "CLUSTER_TEST_STATE";
const HELPER_URL: &str = "CLUSTER_TEST_URL";

/// A directory like `mktemp -d` makes; what a failed test left running in it is killed.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        let private = PermissionsExt::from_mode(0o700);
        let mut builder = tempfile::Builder::new();
        Self(builder.prefix("cofferdam-cluster-").permissions(private).tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let homes = [self.path().to_owned(), self.path().join("private/state")];
        for base in homes.map(|state| state.join("database")) {
            let elsewhere = std::fs::read_to_string(base.join("elsewhere")).ok();
            let home = elsewhere.as_ref().map_or(base, |path| PathBuf::from(path.trim()));
            if let Some(pid) = pid_in(&home).filter(|pid| alive(*pid)) {
                kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
                wait_until("a killed server is gone", || !alive(pid));
            }
            if elsewhere.is_some() {
                std::fs::remove_dir_all(home).unwrap();
            }
        }
    }
}

/// Another process with a cluster: this test binary, running only [`helper_process`].
struct Helper {
    child: Child,
    stdin: ChildStdin,
    said: BufReader<std::process::ChildStdout>,
}

impl Helper {
    fn spawn(state: &Path) -> Self {
        Self::spawn_by(state, Command::new(std::env::current_exe().unwrap()))
    }

    fn spawn_by(state: &Path, mut command: Command) -> Self {
        command.args(["--exact", "cluster::helper_process", "--ignored", "--nocapture"]);
        command.env(HELPER_STATE, state).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, said }
    }

    /// Waits for its cluster and gives the server's pid and URL.
    fn ready(&mut self) -> (i32, String) {
        let line = self.said.by_ref_lines().find(|line| line.starts_with("ready "));
        let line = line.expect("the helper starts its cluster");
        let mut words = line.split(' ').skip(1);
        (words.next().unwrap().parse().unwrap(), words.next().unwrap().to_owned())
    }

    fn stop(mut self) {
        self.stdin.write_all(b"stop\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

trait Lines {
    fn by_ref_lines(&mut self) -> impl Iterator<Item = String>;
}

impl<R: BufRead> Lines for R {
    fn by_ref_lines(&mut self) -> impl Iterator<Item = String> {
        self.lines().map_while(Result::ok)
    }
}

#[tokio::test]
#[ignore = "a process of the other tests"]
async fn helper_process() {
    let Some(state) = env::var_os(HELPER_STATE) else { return };
    let cluster = Cluster::start(Path::new(&state)).await.unwrap();
    println!("\nready {} {}", cluster.pid(), cluster.url());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if line == "stop\n" {
        cluster.stop().await.unwrap();
    }
}

fn pid_in(home: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(home.join("data/postmaster.pid")).ok()?;
    text.lines().next()?.parse().ok()
}

/// Runs still; a zombie has no arguments.
fn alive(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let waiting = Stopwatch::start();
    while !done() {
        assert!(waiting.elapsed() < Duration::from_secs(20), "waited for: {what}");
        clock::sleep_blocking(Duration::from_millis(2));
    }
}

async fn sql(url: &str, text: &'static str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let value = sqlx::query_scalar(text).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    value
}

async fn remember(url: &str) {
    sql(url, "with t as (select 1) select count(*) from t").await;
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql("create table kept (x bigint); insert into kept values (42)")
        .execute(&mut connection)
        .await
        .unwrap();
}

async fn remembers(url: &str) {
    assert_eq!(sql(url, "select x from kept").await, 42);
}

#[tokio::test]
async fn starts_from_nothing_answers_sql_and_stops_without_a_trace() {
    let state = Scratch::new();
    let clock = Stopwatch::start();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let first = clock.elapsed_ms();
    assert_eq!(sql(&cluster.url(), "select 1::bigint").await, 1);
    remember(&cluster.url()).await;
    let pid = cluster.pid();
    let clock = Stopwatch::start();
    cluster.stop().await.unwrap();
    let stop = clock.elapsed_ms();
    assert!(!alive(pid) && pid_in(&state.path().join("database")).is_none());

    let clock = Stopwatch::start();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let again = clock.elapsed_ms();
    remembers(&cluster.url()).await;
    let clock = Stopwatch::start();
    let joined = Cluster::start(state.path()).await.unwrap();
    let join = clock.elapsed_ms();
    assert_eq!(joined.pid(), cluster.pid());
    cluster.stop().await.unwrap();
    remembers(&joined.url()).await;
    joined.stop().await.unwrap();
    println!("from nothing {first} ms, stop {stop} ms, start {again} ms, join {join} ms");
}

#[tokio::test]
async fn listens_on_its_socket_alone_as_an_unprivileged_user() {
    let state = Scratch::new();
    let cluster = Cluster::start(state.path()).await.unwrap();
    assert_eq!(
        sql(
            &cluster.url(),
            "select count(*) from pg_settings where name = 'listen_addresses' and setting = ''"
        )
        .await,
        1
    );
    assert_eq!(sql(&cluster.url(), "select count(*) from pg_settings where name in ('fsync', 'synchronous_commit', 'full_page_writes') and setting = 'on'").await, 3);
    let home = cluster.home();
    for private in ["data", "s"] {
        let meta = home.join(private).metadata().unwrap();
        assert_eq!(meta.mode() & 0o777, 0o700, "{private}");
        assert_ne!(meta.uid(), 0, "{private}");
    }
    let owner = std::fs::metadata(format!("/proc/{}", cluster.pid())).unwrap().uid();
    assert_ne!(owner, 0);
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_dropped_cluster_ends_and_its_data_is_reused() {
    let state = Scratch::new();
    let cluster = Cluster::start(state.path()).await.unwrap();
    remember(&cluster.url()).await;
    let pid = cluster.pid();
    drop(cluster);
    // at once: the start has to wait for the shutdown
    let cluster = Cluster::start(state.path()).await.unwrap();
    assert!(cluster.pid() != pid && !alive(pid));
    remembers(&cluster.url()).await;
    let pid = cluster.pid();
    drop(cluster);
    wait_until("the dropped cluster's server is gone", || !alive(pid));
}

#[tokio::test]
async fn a_killed_parent_leaves_a_usable_cluster_that_a_later_stop_ends() {
    let state = Scratch::new();
    let mut helper = Helper::spawn(state.path());
    let (pid, url) = helper.ready();
    remember(&url).await;
    helper.kill();
    assert!(alive(pid));
    remembers(&url).await;
    let cluster = Cluster::start(state.path()).await.unwrap();
    assert_eq!((cluster.pid(), cluster.url()), (pid, url));
    remembers(&cluster.url()).await;
    cluster.stop().await.unwrap();
    assert!(!alive(pid));
}

#[tokio::test]
async fn two_processes_share_it_and_the_last_one_stops_it() {
    let state = Scratch::new();
    let mut one = Helper::spawn(state.path());
    let mut two = Helper::spawn(state.path()); // at once, on an empty directory
    let (pid, url) = one.ready();
    assert_eq!(two.ready(), (pid, url.clone()));
    one.stop();
    assert_eq!(sql(&url, "select 1::bigint").await, 1);
    two.stop();
    assert!(!alive(pid));
}

#[tokio::test]
async fn many_starts_and_stops_at_once_leave_nothing_running() {
    let state = Scratch::new();
    let warm = Cluster::start(state.path()).await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..8 {
        let state = state.path().to_owned();
        tasks.push(tokio::spawn(async move {
            let cluster = Cluster::start(&state).await.unwrap();
            assert_eq!(sql(&cluster.url(), "select 1::bigint").await, 1);
            match n % 2 {
                0 => cluster.stop().await.unwrap(),
                _ => drop(cluster),
            }
        }));
    }
    warm.stop().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let home = state.path().join("database");
    wait_until("the last user's goodbye ends the server", || pid_in(&home).is_none());
}

#[tokio::test]
async fn a_killed_server_recovers_what_was_committed() {
    let state = Scratch::new();
    let other = Scratch::new();
    let neighbour = Cluster::start(other.path()).await.unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    remember(&cluster.url()).await;
    let (home, pid) = (cluster.home().to_owned(), cluster.pid());
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    wait_until("the killed server is gone", || !alive(pid));
    cluster.stop().await.unwrap();

    // the pid was given to somebody else meanwhile: to a server of the same user, even
    let file = home.join("data/postmaster.pid");
    let text = std::fs::read_to_string(&file).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    std::fs::write(&file, format!("{}\n{rest}", neighbour.pid())).unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    assert_ne!(cluster.pid(), neighbour.pid());
    remembers(&cluster.url()).await;
    cluster.stop().await.unwrap();

    std::fs::write(&file, "").unwrap(); // what a power loss may leave
    let cluster = Cluster::start(state.path()).await.unwrap();
    remembers(&cluster.url()).await;
    cluster.stop().await.unwrap();
    assert_eq!(sql(&neighbour.url(), "select 1::bigint").await, 1);
    neighbour.stop().await.unwrap();
}

#[tokio::test]
async fn a_parent_killed_at_any_moment_of_the_first_start_does_no_harm() {
    let state = Scratch::new();
    let home = state.path().join("database");
    for moment in ["data.new", "data.new/base/1/PG_VERSION", "data.new/base/5", "data"] {
        let helper = Helper::spawn(state.path());
        wait_until(moment, || home.join(moment).exists());
        helper.kill();
        assert_eq!(home.join("data").exists(), moment == "data");
    }
    let cluster = Cluster::start(state.path()).await.unwrap();
    assert_eq!(sql(&cluster.url(), "select 1::bigint").await, 1);
    assert!(!home.join("data.new").exists() && !home.join("bootstrap.sql").exists());
    let pid = cluster.pid();
    cluster.stop().await.unwrap();
    assert!(!alive(pid));
}

#[tokio::test]
async fn a_private_state_directory_is_opened_for_traversal_at_most() {
    let state = Scratch::new();
    assert_eq!(state.path().metadata().unwrap().mode() & 0o777, 0o700);
    let cluster = Cluster::start(state.path()).await.unwrap();
    assert!(cluster.home().starts_with(state.path()));
    let mode = state.path().metadata().unwrap().mode() & 0o777;
    assert_eq!(mode, if geteuid().is_root() { 0o711 } else { 0o700 });
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_state_directory_in_a_private_home_keeps_its_files_elsewhere() {
    if !geteuid().is_root() {
        return not_run("root", "only root's database runs as another user");
    }
    let scratch = Scratch::new();
    let private = scratch.path().join("private");
    let state = private.join("state");
    let cluster = Cluster::start(&state).await.unwrap();
    let (home, pid) = (cluster.home().to_owned(), cluster.pid());
    assert!(home.starts_with("/var/lib/cofferdam/clusters"), "{}", home.display());
    for untouched in [scratch.path(), &state] {
        assert_eq!(untouched.metadata().unwrap().mode() & 0o777, 0o700);
    }
    let named = std::fs::read_to_string(home.join("state-directory")).unwrap();
    assert_eq!(Path::new(named.trim()), state);
    remember(&cluster.url()).await;
    cluster.stop().await.unwrap();
    assert!(!alive(pid));

    let cluster = Cluster::start(&state).await.unwrap();
    assert_eq!(cluster.home(), home);
    remembers(&cluster.url()).await;
    cluster.stop().await.unwrap();
    drop(scratch);
    assert!(!home.exists());
}

#[tokio::test]
async fn a_long_or_odd_path_gets_a_socket_elsewhere_that_stop_removes() {
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for name in [&"x".repeat(120), "a b'c\"d$e,ü"] {
        let state = scratch.path().join(name);
        let cluster = Cluster::start(&state).await.unwrap();
        let pid = cluster.pid();
        let host = cluster.url().split_once("host=").unwrap().1.replace("%2F", "/");
        let socket_dir = PathBuf::from(host.split('&').next().unwrap());
        assert!(socket_dir.is_dir() && !socket_dir.starts_with(&state), "{}", cluster.url());
        assert_eq!(sql(&cluster.url(), "select 1::bigint").await, 1);
        cluster.stop().await.unwrap();
        assert!(!alive(pid) && !socket_dir.exists());
    }
}

/// A connection, as another user of the host: what [`log_in_as`] starts.
#[tokio::test]
#[ignore = "a process of the other tests"]
async fn helper_login() {
    let Some(url) = env::var(HELPER_URL) else { return };
    match PgConnection::connect(&url).await {
        Ok(_) => println!("\nsaid in"),
        Err(error) => println!("\nsaid {error}"),
    }
}

/// What the database says to a process of this user.
fn log_in_as(user: &User, program: &Path, url: &str) -> String {
    let mut command = Command::new(program);
    command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    command
        .args(["--exact", "cluster::helper_login", "--ignored", "--nocapture"])
        .env(HELPER_URL, url);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find_map(|line| line.strip_prefix("said "));
    said.unwrap_or_else(|| panic!("{output:?}")).to_owned()
}

#[tokio::test]
async fn l6_the_ledger_is_no_superuser_and_the_servers_own_user_cannot_log_in() {
    if !geteuid().is_root() {
        return not_run("root", "only root's database runs as another user");
    }
    let (state, shared) = (Scratch::new(), Scratch::new());
    std::fs::set_permissions(shared.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = shared.path().join("helper");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let mine = "select count(*) from pg_roles where rolname = current_user and (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)";
    assert_eq!(sql(&cluster.url(), mine).await, 0, "the ledger has rights beyond its database");
    assert_eq!(sql(&cluster.superuser_url(), mine).await, 1);
    let trusted =
        "select count(*) from pg_hba_file_rules where auth_method not in ('peer', 'reject')";
    assert_eq!(sql(&cluster.superuser_url(), trusted).await, 0);
    let uid = std::fs::metadata(format!("/proc/{}", cluster.pid())).unwrap().uid();
    let user = User::from_uid(nix::unistd::Uid::from_raw(uid)).unwrap().unwrap();
    for url in
        [cluster.url(), cluster.superuser_url(), cluster.url().replace("//ledger@", "//postgres@")]
    {
        let said = log_in_as(&user, &program, &url);
        let refused =
            said.contains("Peer authentication failed") || said.contains("pg_hba.conf rejects");
        assert!(refused, "{} as {url}: {said}", user.name);
    }
    remember(&cluster.url()).await;
    cluster.stop().await.unwrap();
}

/// As every cluster was made before there were two roles: one superuser, trusted.
#[tokio::test]
async fn l6_a_cluster_of_before_is_brought_over_without_loss() {
    let state = Scratch::new();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let owner = "DO $$ BEGIN ALTER DATABASE cofferdam OWNER TO cofferdam; END $$;
        create schema app; create type app.kind as enum ('a'); create sequence app.n;
        create table app.t (id bigint generated always as identity, s bigserial, k app.kind default 'a');
        insert into app.t (k) values ('a'); create view app.v as select * from app.t;
        create function app.f() returns bigint language sql as 'select count(*) from app.t';
        create table kept (x bigint); insert into kept values (42)";
    let mut connection = PgConnection::connect(&cluster.superuser_url()).await.unwrap();
    sqlx::raw_sql(owner).execute(&mut connection).await.unwrap();
    sqlx::raw_sql("DROP OWNED BY ledger; DROP ROLE ledger").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let home = cluster.home().to_owned();
    cluster.stop().await.unwrap();
    std::fs::remove_file(home.join("data/cofferdam-roles")).unwrap();
    for law in ["hba.conf", "ident.conf"] {
        std::fs::remove_file(home.join(law)).unwrap();
    }
    for _ in 0..2 {
        let cluster = Cluster::start(state.path()).await.unwrap();
        remembers(&cluster.url()).await;
        assert_eq!(sql(&cluster.url(), "select app.f()").await, 1);
        let foreign = "select (select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname in ('app', 'public') and pg_get_userbyid(c.relowner) <> 'ledger')
          + (select count(*) from pg_namespace where nspname = 'app' and pg_get_userbyid(nspowner) <> 'ledger')
          + (select count(*) from pg_proc where proname = 'f' and pg_get_userbyid(proowner) <> 'ledger')
          + (select count(*) from pg_type where typname = 'kind' and pg_get_userbyid(typowner) <> 'ledger')
          + (select count(*) from pg_database where datname = 'cofferdam' and pg_get_userbyid(datdba) <> 'ledger')";
        assert_eq!(sql(&cluster.url(), foreign).await, 0);
        assert!(!home.join("roles.sql").exists());
        cluster.stop().await.unwrap();
    }
}

#[tokio::test]
async fn an_ordinary_user_has_a_cluster_of_her_own() {
    let Some(nobody) = User::from_name("nobody").unwrap().filter(|_| geteuid().is_root()) else {
        return not_run("root", "only root becomes nobody");
    };
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = scratch.path().join("helper");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let home = scratch.path().join("private");
    std::fs::create_dir(&home).unwrap();
    std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700)).unwrap();
    chown(&home, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).unwrap();

    let mut command = Command::new(&program);
    command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw()).current_dir("/");
    let mut helper = Helper::spawn_by(&home.join("state"), command);
    let (pid, url) = helper.ready();
    assert_eq!(std::fs::metadata(format!("/proc/{pid}")).unwrap().uid(), nobody.uid.as_raw());
    remember(&url).await;
    // root joins, and the owner's goodbye leaves the server to it
    let cluster = Cluster::start(&home.join("state")).await.unwrap();
    assert_eq!(cluster.pid(), pid);
    helper.stop();
    remembers(&cluster.url()).await;
    cluster.stop().await.unwrap();
    assert!(!alive(pid));
}

#[tokio::test]
async fn a_machine_without_the_server_gets_the_remedy() {
    let state = Scratch::new();
    let search = Search { dirs: vec!["/nonexistent".into()], pg_config: false };
    let error = Cluster::start_with(state.path(), &search).await.unwrap_err();
    assert!(matches!(error, ClusterError::NoServer { .. }));
    let text = error.to_string();
    assert!(text.contains("apt-get install postgresql") && text.contains("DATABASE_URL"), "{text}");
}

#[tokio::test]
async fn files_of_a_missing_version_are_left_alone() {
    let state = Scratch::new();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let version = cluster.home().join("data/PG_VERSION");
    remember(&cluster.url()).await;
    cluster.stop().await.unwrap();
    let real = std::fs::read_to_string(&version).unwrap();
    std::fs::write(&version, "9\n").unwrap();
    let error = Cluster::start(state.path()).await.unwrap_err();
    assert!(error.to_string().contains("apt-get install postgresql-9"), "{error}");
    std::fs::write(&version, real).unwrap();
    let cluster = Cluster::start(state.path()).await.unwrap();
    remembers(&cluster.url()).await;
    cluster.stop().await.unwrap();
}

/// A small file system, gone with its owner.
struct Mounted(PathBuf);

impl Mounted {
    fn new(dir: PathBuf, flags: MsFlags) -> Option<Self> {
        std::fs::create_dir(&dir).unwrap();
        let made = mount(Some("tmpfs"), &dir, Some("tmpfs"), flags, Some("size=20m,mode=755"));
        made.ok().map(|()| Self(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

#[tokio::test]
async fn a_full_or_unwritable_disk_is_called_so() {
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let Some(small) = Mounted::new(scratch.path().join("small"), MsFlags::empty()) else {
        return not_run("a small file system", "mounting one is not permitted here");
    };
    let full = Cluster::start(&small.0).await.unwrap_err();
    assert!(matches!(full, ClusterError::DiskFull { .. }), "{full}");
    let fixed = Mounted::new(scratch.path().join("fixed"), MsFlags::MS_RDONLY).unwrap();
    let unwritable = Cluster::start(&fixed.0.join("new")).await.unwrap_err().to_string();
    assert!(unwritable.contains("Read-only file system"), "{unwritable}");
}

#[tokio::test]
async fn an_idle_cluster_is_small_and_quiet() {
    let state = Scratch::new();
    let cluster = Cluster::start(state.path()).await.unwrap();
    let pids = || {
        let children = format!("/proc/{0}/task/{0}/children", cluster.pid());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let mut pids: Vec<i32> = children.split_whitespace().flat_map(str::parse).collect();
        pids.push(cluster.pid());
        pids
    };
    let kb = |pid: &i32, field: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field).map(str::to_owned));
        line.map_or(0, |line| line.trim_matches([':', ' ', 'k', 'B']).parse::<u64>().unwrap())
    };
    clock::sleep(Duration::from_secs(1)).await;
    let sum = |field: &str| pids().iter().map(|pid| kb(pid, field)).sum::<u64>();
    let (pss, rss) = (sum("Pss"), sum("Rss"));
    println!("{} processes: PSS {pss} kB, RSS {rss} kB", pids().len());
    assert!(pss < 40_000, "{pss} kB");
    cluster.stop().await.unwrap();
}

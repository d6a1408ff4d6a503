//! Who may be whom in the private database.
//!
//! | role | what | who logs in as it |
//! |---|---|---|
//! | `ledger` | owns the database and all that is in it; nothing beyond | this state directory's owner, root |
//! | `cofferdam` | superuser of the cluster: maintenance by hand, `ALTER SYSTEM` | this state directory's owner, root |
//!
//! The kernel says who is at the other end of the socket (`peer`), so there is no password to keep and none
//! to lose. **No other user of the host logs in, not even the one that runs the server**; that one owns the
//! files all the same, so nothing else should run as it (`adduser --system --group cofferdam`).

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::{Uid, User, geteuid};

use super::account::Account;
use super::error::ClusterError;
use super::names::{LEDGER, NAME};
use super::server::Server;
use super::{directories, init, lock, postmaster};

/// Says, in the data directory, that the roles are these: it moves with the files.
const MARKER: &str = "cofferdam-roles";

/// Makes the ledger's role and its database, as entries of a single-user server.
pub(super) fn bootstrap() -> String {
    format!("CREATE ROLE {LEDGER} LOGIN;\n\nCREATE DATABASE {NAME} OWNER {LEDGER};\n\n")
}

/// Gives a cluster from before this split its second role, and that role all that the superuser
/// owned in the database. Repeated, it changes nothing.
const SPLIT: &str = r"
DO $$
DECLARE r record;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'ledger') THEN
    CREATE ROLE ledger LOGIN;
  END IF;
  ALTER ROLE ledger LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS;
  ALTER DATABASE cofferdam OWNER TO ledger;
  FOR r IN SELECT nspname FROM pg_namespace
            WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'public') LOOP
    EXECUTE format('ALTER SCHEMA %I OWNER TO ledger', r.nspname);
  END LOOP;
  FOR r IN SELECT c.oid::regclass AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
              AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND (d.deptype = 'e' OR (c.relkind = 'S' AND d.deptype IN ('a', 'i')))) LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO ledger', r.name);
  END LOOP;
  FOR r IN SELECT p.oid::regprocedure AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                    AND d.deptype = 'e') LOOP
    EXECUTE format('ALTER ROUTINE %s OWNER TO ledger', r.name);
  END LOOP;
  FOR r IN SELECT t.oid::regtype AS name FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
             LEFT JOIN pg_class c ON c.oid = t.typrelid
            WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
              AND (t.typtype IN ('e', 'd', 'r') OR c.relkind = 'c')
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
                    AND d.deptype = 'e') LOOP
    EXECUTE format('ALTER TYPE %s OWNER TO ledger', r.name);
  END LOOP;
END $$;

";

/// Brings the roles of `data` up to date. No server runs on it, and none starts meanwhile.
pub(super) async fn split(
    home: &Path,
    data: &Path,
    account: &Account,
    server: &Server,
    config: &Path,
) -> Result<(), ClusterError> {
    let path = home.join("roles.sql");
    if data.join(MARKER).exists() {
        return init::remove_script(&path);
    }
    // One that outlives its killed parent holds the script, its standard input: it is waited for.
    let mut script = lock::exclusive(&path).await?;
    postmaster::disown_pid_file(data)?;
    let written = script.set_len(0).and_then(|()| script.write_all(SPLIT.as_bytes()));
    written.and_then(|()| script.rewind()).map_err(ClusterError::io("write", &path))?;
    let mut setting = std::ffi::OsString::from("config_file=");
    setting.push(config);
    let mut command = account.command(server.bin.join("postgres"), home);
    command.args(["--single", "-j", "-c", "exit_on_error=true", "-c"]).arg(setting);
    command.arg("-D").arg(data).arg(NAME).stdin(init::held(&script, &path)?);
    init::run("postgres --single", home, command).await?;
    mark(data)?;
    directories::sync(data)?;
    init::remove_script(&path)
}

/// Says that the roles of these files are this version's.
pub(super) fn mark(data: &Path) -> Result<(), ClusterError> {
    let path = data.join(MARKER);
    // Root writes into the database user's directory here, so it follows no link.
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(&path);
    match made.and_then(|file: File| file.sync_all()) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(ClusterError::io("write", &path)(error))
        }
        _ => Ok(()),
    }
}

/// Writes who may log in, for a server that is about to start.
pub(super) fn write_law(home: &Path, state: &Path) -> Result<(), ClusterError> {
    let owner = state.metadata().map_err(ClusterError::io("look at", state))?.uid();
    let mut users = vec![0, geteuid().as_raw(), owner];
    users.sort_unstable();
    users.dedup();
    let names: Vec<String> = users
        .into_iter()
        .filter_map(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten())
        .map(|user| user.name)
        .collect();
    for (file, text) in [("hba.conf", law()), ("ident.conf", map(&names))] {
        let path = home.join(file);
        std::fs::write(&path, text).map_err(ClusterError::io("write", &path))?;
        directories::set_mode(&path, 0o644)?;
    }
    Ok(())
}

fn law() -> String {
    format!(
        "# Written by cofferdam at every start.\n\
         local {NAME} {LEDGER} peer map=owner\n\
         local all {NAME} peer map=owner\n\
         local all all reject\n"
    )
}

fn map(names: &[String]) -> String {
    let mut text = "# Written by cofferdam at every start.\n".to_owned();
    for name in names.iter().filter(|name| !name.contains(['"', '\n'])) {
        for role in [LEDGER, NAME] {
            text.push_str(&format!("owner \"{name}\" {role}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l6_nobody_is_trusted_and_only_the_named_users_are_mapped() {
        assert!(!law().contains("trust") && law().ends_with("local all all reject\n"));
        let text = map(&["root".into(), "a\"b".into()]);
        assert!(text.ends_with("owner \"root\" ledger\nowner \"root\" cofferdam\n"), "{text}");
        assert!(!text.contains("a\"b"));
    }

    #[test]
    fn l6_a_script_is_one_entry() {
        // A single-user server takes a semicolon and an empty line for an entry's end.
        assert_eq!(SPLIT.matches(";\n\n").count(), 1);
        assert!(SPLIT.ends_with("$$;\n\n"));
    }
}

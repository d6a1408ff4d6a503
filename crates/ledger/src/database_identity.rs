//! Where the database is, and which one it is (`app.database_place`), so that a restored or cloned one is told apart.

use std::str::FromStr;

use cofferdam_contracts::canonical::digest_bytes;
use sqlx::postgres::PgConnectOptions;

use crate::Ledger;
use crate::error::Result;

/// Where a URL leads, for people: the database and its server, never a name of a user or a password.
#[must_use]
pub fn location(url: &str) -> String {
    let Ok(options) = PgConnectOptions::from_str(url) else {
        return "an address that cannot be read".to_owned();
    };
    let name = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{name} in {}", socket.display()),
        None => format!("{name} at {}:{}", options.get_host(), options.get_port()),
    }
}

/// The identity of one ledger's database.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseIdentity<'a> {
    ledger: &'a Ledger,
}

impl Ledger {
    /// Where the database is, and which one it is.
    #[must_use]
    pub fn place(&self) -> DatabaseIdentity<'_> {
        DatabaseIdentity { ledger: self }
    }
}

impl<'a> DatabaseIdentity<'a> {
    /// Where the engine connects, so that its connections are watched as ours are.
    #[must_use]
    pub fn engine_url(self) -> &'a str {
        &self.ledger.engine_url
    }

    /// Where the database is without a wire before it.
    pub(crate) fn direct(self) -> &'a str {
        &self.ledger.direct
    }

    /// Before this process becomes another user, for good: connections go on being made.
    ///
    /// # Errors
    /// What is on this host for them cannot be given away.
    pub fn give(self, uid: u32, gid: u32) -> std::io::Result<()> {
        self.ledger.wires.as_ref().map_or(Ok(()), |wires| wires.give(uid, gid))
    }

    /// Whether this is the database that the row was written in, rather than a copy of it.
    pub async fn is_same(self) -> Result<bool> {
        Ok(sqlx::query_scalar(
            "SELECT coalesce(bool_and(identity = app.database_identity()), true) FROM app.database_place",
        )
        .fetch_one(self.ledger.pool())
        .await?)
    }

    /// Says that this database is the one that counts from now on: its original is gone.
    pub async fn adopt(self) -> Result<()> {
        sqlx::query(
            "UPDATE app.database_place SET identity = app.database_identity(), since = clock_timestamp(),
                    installation = gen_random_uuid()::text
              WHERE identity <> app.database_identity()",
        )
        .execute(self.ledger.pool())
        .await?;
        Ok(())
    }

    /// Which installation it is, whatever URL led here; `None` where nothing of ours, or only an older version's, is in it.
    pub async fn installation(self) -> Result<Option<String>> {
        if !self.has_table("app.database_place").await? {
            return Ok(None);
        }
        // As JSON, since an older version's table has no such column.
        let name = "SELECT to_jsonb(p)->>'installation' FROM app.database_place p";
        let name: Option<Option<String>> =
            sqlx::query_scalar(name).fetch_optional(self.ledger.pool()).await?;
        Ok(name.flatten())
    }

    /// Whether a key was made in this database, revoked or not.
    pub async fn has_key(self, secret: &str) -> Result<bool> {
        if !self.has_table("app.api_keys").await? {
            return Ok(false);
        }
        let query = "SELECT EXISTS (SELECT 1 FROM app.api_keys WHERE key_hash = $1)";
        let hash = digest_bytes(secret.as_bytes());
        Ok(sqlx::query_scalar(query).bind(hash.as_str()).fetch_one(self.ledger.pool()).await?)
    }

    async fn has_table(self, name: &str) -> Result<bool> {
        let query = "SELECT to_regclass($1) IS NOT NULL";
        Ok(sqlx::query_scalar(query).bind(name).fetch_one(self.ledger.pool()).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::location;

    #[test]
    fn whereabouts_name_the_database_and_no_password() {
        for (url, said) in [
            ("postgres://me:secret@db.example/fleet?sslmode=require", "fleet at db.example:5432"),
            ("postgresql://me:secret@10.0.0.1:6000/fleet", "fleet at 10.0.0.1:6000"),
            ("postgres://ledger@localhost/cofferdam?host=%2Frun%2Fpg", "cofferdam in /run/pg"),
            ("postgres://:secret@[", "an address that cannot be read"),
        ] {
            assert_eq!(location(url), said, "{url}");
        }
    }
}

//! `app.database_place`: which database this is, so that a restored or cloned one is told apart.

use crate::Ledger;
use crate::error::Result;

impl Ledger {
    /// Whether this is the database that the row was written in, rather than a copy of it.
    pub async fn place_is_kept(&self) -> Result<bool> {
        Ok(sqlx::query_scalar(
            "SELECT coalesce(bool_and(identity = app.database_identity()), true) FROM app.database_place",
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Says that this database is the one that counts from now on: its original is gone.
    pub async fn place_adopt(&self) -> Result<()> {
        sqlx::query(
            "UPDATE app.database_place SET identity = app.database_identity(), since = clock_timestamp()
              WHERE identity <> app.database_identity()",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}

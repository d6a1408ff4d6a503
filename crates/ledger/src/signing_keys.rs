//! `app.signing_keys`: which signing key this installation uses, by its fingerprint.

use cofferdam_contracts::id::Digest;

use crate::error::{Result, id};
use crate::families::Keys;

impl Keys<'_> {
    /// The fingerprint of the key in force; `None` before the first process has brought one.
    pub async fn signing_key(self) -> Result<Option<Digest>> {
        let found: Option<String> =
            sqlx::query_scalar("SELECT fingerprint FROM app.signing_keys WHERE retired_at IS NULL")
                .fetch_optional(self.pool())
                .await?;
        found.map(|text| id("signing_keys.fingerprint", &text)).transpose()
    }

    /// Puts a key in force where none is; of two that try at once, one wins. The one in force.
    pub async fn signing_key_register(self, fingerprint: &Digest) -> Result<Option<Digest>> {
        sqlx::query(
            "INSERT INTO app.signing_keys (fingerprint) SELECT $1
              WHERE NOT EXISTS (SELECT 1 FROM app.signing_keys WHERE retired_at IS NULL)
             ON CONFLICT DO NOTHING",
        )
        .bind(fingerprint.as_str())
        .execute(self.pool())
        .await?;
        self.signing_key().await
    }

    /// Retires the key in force and puts another one there: every secret and link of the old one is
    /// worth nothing from then on.
    pub async fn signing_key_replace(
        self,
        fingerprint: &Digest,
        audit: &crate::audit::Audit<'_>,
    ) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query(
            "UPDATE app.signing_keys SET retired_at = clock_timestamp() WHERE retired_at IS NULL",
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query("INSERT INTO app.signing_keys (fingerprint) VALUES ($1)")
            .bind(fingerprint.as_str())
            .execute(&mut *tx)
            .await?;
        crate::audit::append(&mut tx, audit).await?;
        tx.commit().await?;
        Ok(())
    }
}

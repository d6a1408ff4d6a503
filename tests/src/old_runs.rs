//! Rows of ended runs, many at once: what a sandboxed run of one task leaves, without having run.

use sqlx::{AssertSqlSafe, Executor, PgPool};

const SQL: &str = include_str!("old_runs.sql");

/// Writes so many ended runs of a tenant, past every trigger, as one that ran for weeks has them. Once a tenant and database.
pub async fn write(sql: &PgPool, tenant: &str, runs: u32) {
    let text = SQL.replace("$TENANT", tenant).replace("$RUNS", &runs.to_string());
    let mut conn = crate::superuser(sql).await;
    conn.execute(AssertSqlSafe(text)).await.expect("the rows");
}

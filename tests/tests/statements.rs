//! How many statements a run costs the database: a promise that one more read in a hot path would break.

use cofferdam_tests::Home;
use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::statements::{cost, log_all};

use crate::support::assert_proven;

const VALUE: &str = "id: value\nv: '1'\nplan: {tasks: [{name: keep, value: kept}]}\n";
const SANDBOX: &str =
    "id: hello\nv: '1'\nplan: {tasks: [{name: t, exec: {run: [/bin/true], timeout: 30s}}]}\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_costs_few_statements() {
    let postgres = Postgres::start().await;
    log_all(&postgres.sql().await).await;
    let home = Home::on(&postgres.url());
    let up = home.up();
    for (recipe, most) in [(VALUE, 19.5), (SANDBOX, 32.0)] {
        let cost = cost(&postgres, &up, recipe, 30).await;
        eprintln!("{:.1} statements a run, {:.1} a second without one", cost.each, cost.idle);
        assert!(cost.each <= most, "{} statements a run of {recipe}", cost.each);
    }
    drop(up);
    assert_proven(&home);
}

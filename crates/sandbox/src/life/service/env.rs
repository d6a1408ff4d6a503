//! How a task finds its services: the variables that clients and images use.
//!
//! Those of Testcontainers are set too, and are no compatibility: its clients ask a Docker engine for containers, which
//! no sandbox has. Tests that use one declare the service and connect to it.

use std::collections::BTreeMap;

use crate::spec::service::{PlannedService, Program};

/// Where every service listens, as its clients see it.
pub(super) const HOST: &str = "127.0.0.1";
/// PostgreSQL's superuser and its first database.
pub(super) const POSTGRES_USER: &str = "postgres";

/// The variables of one service.
pub(super) fn of(service: &PlannedService, password: &str) -> BTreeMap<String, String> {
    let port = service.port.to_string();
    let prefix = service.name.replace('-', "_").to_ascii_uppercase();
    let mut env = BTreeMap::from([
        (format!("{prefix}_HOST"), HOST.to_owned()),
        (format!("{prefix}_PORT"), port.clone()),
        // What starts containers itself looks here for them, and does not wait for one that cleans up.
        ("TESTCONTAINERS_HOST_OVERRIDE".to_owned(), HOST.to_owned()),
        ("TESTCONTAINERS_RYUK_DISABLED".to_owned(), "true".to_owned()),
    ]);
    let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
    match service.program {
        Program::Postgres(_) => {
            let user = POSTGRES_USER;
            set("DATABASE_URL", &format!("postgresql://{user}:{password}@{HOST}:{port}/{user}"));
            for (client, image, value) in [
                ("PGHOST", "POSTGRES_HOST", HOST),
                ("PGPORT", "POSTGRES_PORT", port.as_str()),
                ("PGUSER", "POSTGRES_USER", user),
                ("PGPASSWORD", "POSTGRES_PASSWORD", password),
                ("PGDATABASE", "POSTGRES_DB", user),
            ] {
                set(client, value);
                set(image, value);
            }
        }
        Program::Redis(_) => {
            // None has a password, as wherever tests find one: only this sandbox reaches it.
            set("REDIS_URL", &format!("redis://{HOST}:{port}/0"));
        }
        Program::Command { .. } | Program::Image(_) => {}
    }
    env
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::service::Probe;

    use super::*;

    #[test]
    fn clients_find_their_variables() {
        let mut service = PlannedService {
            name: "postgres".into(),
            program: Program::Postgres("/x".into()),
            port: 5_433,
            probe: Probe::Postgres,
            ready_ms: 1,
        };
        let env = of(&service, "pw");
        assert_eq!(env["DATABASE_URL"], "postgresql://postgres:pw@127.0.0.1:5433/postgres");
        assert_eq!((env["PGPORT"].as_str(), env["POSTGRES_DB"].as_str()), ("5433", "postgres"));
        service.name = "my-api".into();
        service.program = Program::Command { argv: Vec::new(), env: BTreeMap::new(), user: None };
        let env = of(&service, "pw");
        assert_eq!(
            (env["MY_API_HOST"].as_str(), env["MY_API_PORT"].as_str()),
            ("127.0.0.1", "5433")
        );
        assert!(!env.values().any(|value| value.contains("pw")));
    }
}

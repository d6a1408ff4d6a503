//! `@cargo`: the index that cargo has used on this machine, and where that index says its files are.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_ambient::env;
use serde_json::Value;

use super::client::Mirror;

pub(super) fn mirror() -> Result<Mirror, String> {
    let home = env::var("CARGO_HOME").map(PathBuf::from).or_else(|| {
        Some(PathBuf::from(env::var("HOME").filter(|home| !home.is_empty())?).join(".cargo"))
    });
    read(&home.ok_or("neither CARGO_HOME nor HOME is set")?)
}

fn read(home: &Path) -> Result<Mirror, String> {
    for name in ["config.toml", "config"] {
        let text = fs::read_to_string(home.join(name)).unwrap_or_default();
        let replaced = |line: &str| line.trim_start().starts_with("replace-with");
        if text.lines().any(replaced) {
            // No variable of cargo's replaces a source, so the sandbox's cargo would not follow.
            return Err(
                "cargo's sources are replaced by a file, which a sandbox does not see".into()
            );
        }
    }
    let mut mirror = Mirror::default();
    let indexes = fs::read_dir(home.join("registry/index"));
    for index in indexes.into_iter().flatten().flatten() {
        let name = index.file_name().to_string_lossy().into_owned();
        // The directory is called after the index's host and a hash.
        let Some((host, _)) = name.rsplit_once('-') else { continue };
        let said = fs::read(index.path().join("config.json")).unwrap_or_default();
        let said: Value = serde_json::from_slice(&said).unwrap_or_default();
        let Some(files) = said.get("dl").and_then(Value::as_str) else { continue };
        mirror.origin(&format!("https://{host}/"))?;
        mirror.origin(files.split('{').next().unwrap_or(files))?;
    }
    if mirror.origins.is_empty() {
        return Err(
            "cargo has not used its index on this machine: run `cargo search x` once".into()
        );
    }
    Ok(mirror)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_was_used_is_found_with_its_files() {
        let home = tempfile::tempdir().unwrap();
        assert!(read(home.path()).is_err());
        let index = home.path().join("registry/index/index.example-0123456789abcdef");
        fs::create_dir_all(&index).unwrap();
        fs::write(index.join("config.json"), r#"{"dl": "https://f.example:444/{crate}"}"#).unwrap();
        let mirror = read(home.path()).unwrap();
        let all: Vec<_> = mirror.origins.iter().map(|o| (o.name.as_str(), o.port)).collect();
        assert_eq!(all, [("index.example", 443), ("f.example", 444)]);
        fs::write(home.path().join("config.toml"), "[source.x]\nreplace-with = \"y\"\n").unwrap();
        assert!(read(home.path()).is_err());
    }
}

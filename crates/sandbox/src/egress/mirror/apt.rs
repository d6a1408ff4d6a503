//! `@apt`: the archives of apt's source lists.

use std::fs;
use std::path::{Path, PathBuf};

use super::client::{Mirror, ask};

pub(super) async fn mirror() -> Result<Mirror, String> {
    let mut mirror = read(Path::new("/etc/apt"))?;
    // `Acquire::http::Proxy "http://...";`
    let said = ask("apt-config", &["dump", "Acquire::http::Proxy"]).await?;
    let proxy = said.split('"').nth(1).filter(|proxy| !matches!(*proxy, "" | "DIRECT"));
    if let Some(proxy) = proxy {
        mirror.proxy(proxy)?;
    }
    Ok(mirror)
}

fn read(etc: &Path) -> Result<Mirror, String> {
    let mut files: Vec<PathBuf> = vec![etc.join("sources.list")];
    let parts = fs::read_dir(etc.join("sources.list.d"));
    files.extend(parts.into_iter().flatten().flatten().map(|entry| entry.path()));
    let mut mirror = Mirror::default();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let sources = match file.extension().and_then(|name| name.to_str()) {
            Some("list") => lines(&text),
            Some("sources") => stanzas(&text),
            _ => Vec::new(),
        };
        // Archives on disks need no network.
        for source in sources.iter().filter(|source| source.starts_with("http")) {
            mirror.origin(source)?;
        }
    }
    Ok(mirror)
}

/// `deb [options] uri suite component...`
fn lines(text: &str) -> Vec<String> {
    let source = |line: &str| {
        let rest = line.trim().strip_prefix("deb")?;
        let rest = rest.strip_prefix("-src").unwrap_or(rest).trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        rest.split_whitespace().next().map(str::to_owned)
    };
    text.lines().filter_map(source).collect()
}

/// Paragraphs of fields; a disabled one counts for nothing.
fn stanzas(text: &str) -> Vec<String> {
    let field = |stanza: &str, name: &str| {
        let line = stanza.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.trim().eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        });
        line.unwrap_or_default()
    };
    text.split("\n\n")
        .filter(|stanza| !field(stanza, "Enabled").eq_ignore_ascii_case("no"))
        .flat_map(|stanza| {
            field(stanza, "URIs").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_lists_are_read() {
        let etc = tempfile::tempdir().unwrap();
        let parts = etc.path().join("sources.list.d");
        fs::create_dir(&parts).unwrap();
        let list = "# deb http://no.example x\ndeb [arch=amd64] http://a.example:81/d x main\n\
                    deb-src https://b.example x\ndeb file:/srv x\n";
        fs::write(etc.path().join("sources.list"), list).unwrap();
        let sources = "Types: deb\nURIs: http://c.example/d https://d.example\nSuites: x\n\n\
                       Enabled: no\nURIs: http://off.example\n";
        fs::write(parts.join("x.sources"), sources).unwrap();
        fs::write(parts.join("y.sources.disabled"), "URIs: http://off.example\n").unwrap();
        let mirror = read(etc.path()).unwrap();
        let all: Vec<_> = mirror.origins.iter().map(|o| (o.name.as_str(), o.port)).collect();
        assert_eq!(
            all,
            [("a.example", 81), ("b.example", 443), ("c.example", 80), ("d.example", 443)]
        );
    }
}

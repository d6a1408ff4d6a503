//! Wall times as recipes write them: a language profile, or a duration.

use crate::profile::Language;
use crate::sandbox::MAX_TIMEOUT_MS;

/// A wall time as somebody wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wall {
    /// So many milliseconds.
    Ms(u64),
    /// What the profile says when the plan is compiled.
    Profile(Language),
}

/// `python`, `500ms`, `90s`, `5m`, `2h` into milliseconds, a profile as it is by default.
pub fn parse(text: &str) -> Result<u64, String> {
    Ok(match read(text)? {
        Wall::Ms(ms) => ms,
        Wall::Profile(language) => language.profile().exec_timeout_ms,
    })
}

/// `python`, `500ms`, `90s`, `5m`, `2h`.
pub fn read(text: &str) -> Result<Wall, String> {
    if let Some(language) = Language::parse(text) {
        return Ok(Wall::Profile(language));
    }
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(hint(text)),
    };
    let ms =
        number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(|| hint(text))?;
    if ms == 0 || ms > MAX_TIMEOUT_MS {
        return Err(format!("{text:?} is not between 1ms and 24h"));
    }
    Ok(Wall::Ms(ms))
}

fn hint(text: &str) -> String {
    let names: Vec<&str> = Language::ALL.iter().map(|language| language.as_str()).collect();
    format!(
        "{text:?} is neither a duration (500ms, 90s, 5m, 2h) nor a profile ({})",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn durations_and_profiles() {
        assert_eq!(parse("90s"), Ok(90_000));
        assert_eq!(parse("python"), Ok(300_000));
        for bad in ["", "0s", "25h", "5", "-1s", "1.5m", "cobol", "99999999999999999999s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}

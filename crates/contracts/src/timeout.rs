//! Wall times as recipes write them: a language profile, or a duration.

use crate::sandbox::MAX_TIMEOUT_MS;

/// The default wall time of each language's test or build command, in milliseconds. Compiled
/// languages get longer because their tests compile first.
pub const PROFILES: &[(&str, u64)] = &[
    ("python", 300_000),
    ("node", 300_000),
    ("go", 600_000),
    ("rust", 1_200_000),
    ("java", 900_000),
    ("dotnet", 900_000),
    ("shell", 120_000),
];

/// `python`, `500ms`, `90s`, `5m`, `2h` into milliseconds.
pub fn parse(text: &str) -> Result<u64, String> {
    if let Some((_, ms)) = PROFILES.iter().find(|(name, _)| *name == text) {
        return Ok(*ms);
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
    Ok(ms)
}

fn hint(text: &str) -> String {
    let names: Vec<&str> = PROFILES.iter().map(|(name, _)| *name).collect();
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

//! Queries of requests: what they ask for, and by the page.

use std::fmt::Display;
use std::str::FromStr;

/// A value of the query, decoded. The first one counts.
pub(crate) fn value(value: &str, name: &str) -> Option<String> {
    let pairs = value.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)?;
    decoded(value)
}

/// Percent-decoded text; `None` where it is not UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// The pairs of a query, as they are. A name without a value has an empty one.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Rows of one page, at most.
pub(crate) const MAX_PAGE: u8 = 100;

/// A number of a query, of the rows of a page.
pub(crate) fn rows<N>(name: &str, value: &str) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display + From<u8>,
{
    bounded(name, value, N::from(MAX_PAGE))
}

/// A number of a query, of rows or entries: at least one of them.
pub(crate) fn bounded<N>(name: &str, value: &str, most: N) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display + From<u8>,
{
    let number = value.parse().ok().filter(|number| *number >= N::from(1) && *number <= most);
    number.ok_or_else(|| format!("{name} must be between 1 and {most}"))
}

/// Whether a query wants the newest entries of a log first.
pub(crate) fn is_backward(direction: &str) -> Result<bool, String> {
    match direction {
        "forward" => Ok(false),
        "backward" => Ok(true),
        _ => Err("direction is neither forward nor backward".to_owned()),
    }
}

/// Leaves so many rows; whether there were more.
pub(crate) fn cut<T>(rows: &mut Vec<T>, limit: usize) -> bool {
    let more = rows.len() > limit;
    rows.truncate(limit);
    more
}

#[cfg(test)]
mod tests {
    use crate::answer::page;

    use super::*;

    #[test]
    fn a_query_is_pairs_and_a_number_of_it_has_bounds() {
        let all: Vec<_> = pairs("a=1&&b&c=x=y").collect();
        assert_eq!(all, [("a", "1"), ("b", ""), ("c", "x=y")]);
        assert_eq!((bounded("limit", "1", 5u32), bounded("limit", "5", 5i64)), (Ok(1), Ok(5)));
        for bad in ["0", "6", "-1", "x", ""] {
            assert_eq!(bounded("limit", bad, 5usize).unwrap_err(), "limit must be between 1 and 5");
        }
    }

    #[test]
    fn a_page_is_cut_from_what_was_read_and_names_the_next() {
        let mut rows = vec![1, 2, 3];
        assert!(!cut(&mut rows, 3) && cut(&mut rows, 2));
        assert_eq!(rows, [1, 2]);
        let value = serde_json::json!(rows);
        assert_eq!(page(&value, Some("2")).headers()["x-next-token"], "2");
        assert!(!page(&value, None).headers().contains_key("x-next-token"));
    }
}

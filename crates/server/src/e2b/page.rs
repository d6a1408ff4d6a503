//! Lists of E2B's API by the page: what a query asks for, and where the next page begins.

use std::fmt::Display;
use std::str::FromStr;

use axum::body::Body;
use axum::http::{HeaderValue, Response};
use serde_json::Value;

use super::shape;

/// The pairs of a query, as they are. A name without a value has an empty one.
pub(super) fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// A number of a query, of rows or entries: at least one of them.
pub(super) fn bounded<N>(name: &str, value: &str, most: N) -> Result<N, String>
where
    N: FromStr + PartialOrd + Display + From<u8>,
{
    let number = value.parse().ok().filter(|number| *number >= N::from(1) && *number <= most);
    number.ok_or_else(|| format!("{name} must be between 1 and {most}"))
}

/// Whether a query wants the newest entries of a log first.
pub(super) fn is_backward(direction: &str) -> Result<bool, String> {
    match direction {
        "forward" => Ok(false),
        "backward" => Ok(true),
        _ => Err("direction is neither forward nor backward".to_owned()),
    }
}

/// Leaves so many rows; whether there were more.
pub(super) fn cut<T>(rows: &mut Vec<T>, limit: usize) -> bool {
    let more = rows.len() > limit;
    rows.truncate(limit);
    more
}

/// A page, with the token of the next one.
pub(super) fn answer(rows: &Value, next: Option<&str>) -> Response<Body> {
    let mut response = shape::json_of(200, rows);
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    response
}

#[cfg(test)]
mod tests {
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
        assert_eq!(answer(&value, Some("2")).headers()["x-next-token"], "2");
        assert!(!answer(&value, None).headers().contains_key("x-next-token"));
    }
}

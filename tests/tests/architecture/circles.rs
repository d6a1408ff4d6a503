//! Files that import each other in a circle can only be read together: in every crate such circles are small.

use super::ARROWS;
use super::arrows::{arrows, circles};

/// Files of one circle: such as two halves of one thing and what both are made of.
const MAX_CIRCLE: usize = 3;
/// Larger ones: the crate, how many files, and what takes it apart. A line goes with its circle, and none is added.
const LARGER: &[(&str, usize, &str)] = &[];

#[test]
fn no_circle_of_any_crate_has_more_than_three_files() {
    let mut wrong = Vec::new();
    for (name, _) in ARROWS {
        let large: Vec<_> =
            circles(arrows(name)).into_iter().filter(|circle| circle.len() > MAX_CIRCLE).collect();
        let listed: Vec<usize> =
            LARGER.iter().filter(|(of, ..)| of == name).map(|(_, count, _)| *count).collect();
        let sizes: Vec<usize> = large.iter().map(|circle| circle.len()).collect();
        if sizes != listed {
            wrong.push(format!("{name}: {listed:?} are listed, there are {large:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

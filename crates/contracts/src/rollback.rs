//! What puts a project back to what it was, links included. Pure.
//!
//! ```text
//! now + before -> take away what no patch holds -> the change back, its modes last -> links, before those modes
//! ```

use crate::tree_change::{Node, Tree, TreeChange, TreeChangeError, TreeStep};

/// One thing to do in a tree, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RollbackStep {
    /// A step of a patch.
    Tree(TreeStep),
    /// Makes a symbolic link to a target.
    Link(String, String),
}

/// What leads from a tree back to what it was before.
///
/// # Errors
/// [`TreeChangeError::Special`] where a socket, a pipe, a device or a name that is not UTF-8 is gone: nothing here can
/// make it again. Otherwise as [`TreeChange::between`] and [`TreeChange::steps`].
pub fn roll_back(now: &Tree, before: &Tree) -> Result<Vec<RollbackStep>, TreeChangeError> {
    let (mut now, mut wanted) = (now.clone(), before.clone());
    let is_other = |path: &String, node: &Node| before.get(path) != Some(node);
    let made: Vec<String> = now
        .iter()
        .filter(|(path, node)| node.is_special() && is_other(path, node))
        .map(|(path, _)| path.clone())
        .collect();
    let mut steps = Vec::new();
    for path in made {
        now.remove(&path);
        steps.push(RollbackStep::Tree(TreeStep::Remove(path)));
    }
    let mut links = Vec::new();
    for (path, node) in before {
        if let Node::Link { target } = node
            && now.get(path) != Some(node)
        {
            wanted.remove(path);
            links.push(RollbackStep::Link(path.clone(), target.clone()));
        }
    }
    let change = TreeChange::between(&now, &wanted)?.steps()?;
    let first_mode = change.iter().position(|step| matches!(step, TreeStep::Mode(..)));
    let (change, modes) = change.split_at(first_mode.unwrap_or(change.len()));
    steps.extend(change.iter().cloned().map(RollbackStep::Tree));
    steps.append(&mut links);
    steps.extend(modes.iter().cloned().map(RollbackStep::Tree));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Node {
        Node::File { mode: 0o644, bytes: text.as_bytes().to_vec() }
    }

    fn link(target: &str) -> Node {
        Node::Link { target: target.to_owned() }
    }

    fn tree(nodes: &[(&str, Node)]) -> Tree {
        nodes.iter().map(|(path, node)| ((*path).to_owned(), node.clone())).collect()
    }

    /// As an executor does it; nothing is made where something stands, or outside a directory.
    fn done(tree: &Tree, steps: Vec<RollbackStep>) -> Tree {
        let mut tree = tree.clone();
        let make = |tree: &mut Tree, path: String, node: Node| {
            let dir = path.rsplit_once('/').map(|(dir, _)| dir);
            let holder = dir.and_then(|dir| tree.get(dir));
            assert!(dir.is_none() || matches!(holder, Some(Node::Dir { mode: 0o755 })), "{path}");
            tree.insert(path, node)
        };
        for step in steps {
            match step {
                RollbackStep::Tree(TreeStep::Remove(path)) => {
                    tree.retain(|at, _| *at != path && !at.starts_with(&format!("{path}/")));
                }
                RollbackStep::Tree(TreeStep::Mkdir(path)) => {
                    assert!(make(&mut tree, path, Node::Dir { mode: 0o755 }).is_none());
                }
                RollbackStep::Tree(TreeStep::Write(path, mode, bytes)) => {
                    let was = make(&mut tree, path, Node::File { mode, bytes });
                    assert!(!was.is_some_and(|was| was.is_special()));
                }
                RollbackStep::Tree(TreeStep::Mode(path, mode)) => {
                    assert!(tree.insert(path, Node::Dir { mode }).is_some());
                }
                RollbackStep::Link(path, target) => {
                    assert!(make(&mut tree, path, Node::Link { target }).is_none());
                }
            }
        }
        tree
    }

    #[test]
    fn links_directories_modes_and_files_are_as_they_were_whatever_stands_there_now() {
        let dir = |mode| Node::Dir { mode };
        let pipe = Node::Other { what: "pipe".to_owned() };
        let before = tree(&[
            ("a", file("a")),
            ("empty", dir(0o711)),
            ("kept", link("a")),
            ("latest", link("releases/2")),
            ("locked", dir(0o555)),
            ("locked/in", link("../a")),
            ("pipe", pipe.clone()),
            ("turned", link("a")),
        ]);
        let all = before.clone();
        let without = |gone: &[&str]| {
            let mut tree = before.clone();
            tree.retain(|path, _| !gone.contains(&path.as_str()));
            tree
        };
        let with = |nodes: &[(&str, Node)]| {
            let mut tree = before.clone();
            tree.extend(self::tree(nodes));
            tree
        };
        for now in [
            all.clone(),
            without(&["latest"]),
            without(&["empty"]),
            without(&["locked", "locked/in"]),
            with(&[("turned", link("elsewhere")), ("empty", dir(0o700))]),
            with(&[("turned", file("a file now")), ("new", link("/etc/passwd"))]),
            with(&[("turned", dir(0o755)), ("turned/x", file("x")), ("turned/y", link("x"))]),
            with(&[("a", link("kept")), ("other", pipe.clone())]),
            with(&[("empty", link("a"))]),
        ] {
            let steps = roll_back(&now, &before).unwrap();
            assert_eq!(done(&now, steps), before, "{now:?}");
        }
        assert!(roll_back(&all, &before).unwrap().is_empty());
        let lost = roll_back(&without(&["pipe"]), &before).unwrap_err();
        assert_eq!(lost, TreeChangeError::Special("pipe".to_owned()));
    }
}

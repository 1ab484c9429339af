//! Where the watched directories are, as far as the events so far tell.
//!
//! Names follow from the order of events, not from the disk, which is ahead
//! of them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::kernel::Descriptor;

/// Where a directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// It is the one that the client watches.
    Top,
    /// In another one.
    Below { above: Descriptor, name: OsString },
    /// It was moved or removed, and what comes next decides about it.
    Detached,
}

#[derive(Debug)]
struct Node {
    place: Place,
    below: BTreeMap<OsString, Descriptor>,
}

/// The watched directories.
#[derive(Debug)]
pub(super) struct Tree {
    top: Descriptor,
    nodes: HashMap<Descriptor, Node>,
}

impl Tree {
    /// Only the directory that the client watches.
    pub(super) fn new(top: Descriptor) -> Self {
        let node = Node {
            place: Place::Top,
            below: BTreeMap::new(),
        };
        Self {
            top,
            nodes: HashMap::from([(top, node)]),
        }
    }

    /// The directory that the client watches.
    pub(super) fn top(&self) -> Descriptor {
        self.top
    }

    /// How many directories are watched.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a directory is known.
    pub(super) fn contains(&self, directory: Descriptor) -> bool {
        self.nodes.contains_key(&directory)
    }

    /// The directory of that name in another one.
    pub(super) fn child(&self, above: Descriptor, name: &OsStr) -> Option<Descriptor> {
        self.nodes.get(&above)?.below.get(name).copied()
    }

    /// Whether a directory is known but has no place.
    pub(super) fn is_detached(&self, directory: Descriptor) -> bool {
        self.nodes
            .get(&directory)
            .is_some_and(|node| node.place == Place::Detached)
    }

    /// Path from the top; none when the directory is not below it now.
    pub(super) fn path(&self, directory: Descriptor) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = directory;
        loop {
            match &self.nodes.get(&at)?.place {
                Place::Top => return Some(names.into_iter().rev().collect()),
                Place::Below { above, name } => {
                    names.push(name.as_os_str());
                    at = *above;
                }
                Place::Detached => return None,
            }
        }
    }

    /// Puts a directory, new or known, into another one. Not into itself or
    /// what is below it: mounts can make a directory appear there.
    pub(super) fn attach(&mut self, directory: Descriptor, above: Descriptor, name: &OsStr) {
        if !self.contains(above) || self.is_within(above, directory) {
            return;
        }
        self.detach(directory);
        if let Some(before) = self.child(above, name) {
            self.detach(before);
        }
        if let Some(node) = self.nodes.get_mut(&above) {
            node.below.insert(name.to_owned(), directory);
        }
        let place = Place::Below {
            above,
            name: name.to_owned(),
        };
        self.nodes
            .entry(directory)
            .and_modify(|node| node.place = place.clone())
            .or_insert(Node {
                place,
                below: BTreeMap::new(),
            });
    }

    /// Takes a directory, with all below it, from its place.
    pub(super) fn detach(&mut self, directory: Descriptor) {
        let Some(node) = self.nodes.get_mut(&directory) else {
            return;
        };
        if node.place == Place::Top {
            return;
        }
        let place = std::mem::replace(&mut node.place, Place::Detached);
        if let Place::Below { above, name } = place
            && let Some(above) = self.nodes.get_mut(&above)
        {
            above.below.remove(&name);
        }
    }

    /// Forgets one directory. Those below it lose their place.
    pub(super) fn forget(&mut self, directory: Descriptor) {
        self.detach(directory);
        if let Some(node) = self.nodes.remove(&directory) {
            for below in node.below.into_values() {
                if let Some(node) = self.nodes.get_mut(&below) {
                    node.place = Place::Detached;
                }
            }
        }
    }

    /// Forgets a directory with all below it, and says which.
    pub(super) fn forget_all(&mut self, directory: Descriptor) -> Vec<Descriptor> {
        self.detach(directory);
        let mut forgotten = vec![directory];
        let mut next = 0;
        while let Some(&at) = forgotten.get(next) {
            if let Some(node) = self.nodes.remove(&at) {
                forgotten.extend(node.below.into_values());
            }
            next += 1;
        }
        forgotten
    }

    /// Whether `directory` is `other` or below it.
    fn is_within(&self, directory: Descriptor, other: Descriptor) -> bool {
        let mut at = directory;
        loop {
            if at == other {
                return true;
            }
            match self.nodes.get(&at).map(|node| &node.place) {
                Some(Place::Below { above, .. }) => at = *above,
                Some(Place::Top | Place::Detached) | None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: Descriptor = Descriptor(1);
    const A: Descriptor = Descriptor(2);
    const B: Descriptor = Descriptor(3);
    const C: Descriptor = Descriptor(4);

    fn tree() -> Tree {
        let mut tree = Tree::new(TOP);
        tree.attach(A, TOP, OsStr::new("a"));
        tree.attach(B, A, OsStr::new("b"));
        tree.attach(C, B, OsStr::new("c"));
        tree
    }

    fn paths(tree: &Tree) -> [Option<String>; 4] {
        [TOP, A, B, C].map(|directory| Some(tree.path(directory)?.to_str()?.to_owned()))
    }

    #[test]
    fn names_follow_moves() {
        let mut tree = tree();
        let some = |path: &str| Some(path.to_owned());
        assert_eq!(
            paths(&tree),
            [some(""), some("a"), some("a/b"), some("a/b/c")]
        );
        tree.detach(B);
        assert_eq!(paths(&tree), [some(""), some("a"), None, None]);
        tree.attach(B, TOP, OsStr::new("x"));
        assert_eq!(paths(&tree), [some(""), some("a"), some("x"), some("x/c")]);
        assert_eq!(tree.child(A, OsStr::new("b")), None);
    }

    #[test]
    fn a_name_taken_over_detaches_who_had_it() {
        let mut tree = tree();
        tree.attach(C, TOP, OsStr::new("a"));
        assert!(tree.is_detached(A));
        assert_eq!(tree.child(TOP, OsStr::new("a")), Some(C));
        tree.forget(A);
        assert_eq!(tree.child(TOP, OsStr::new("a")), Some(C));
        assert!(tree.is_detached(B));
    }

    #[test]
    fn no_directory_gets_below_itself() {
        let mut tree = tree();
        tree.attach(TOP, B, OsStr::new("mount"));
        tree.attach(A, C, OsStr::new("mount"));
        assert_eq!(tree.path(TOP), Some(PathBuf::new()));
        assert_eq!(tree.path(C), Some(PathBuf::from("a/b/c")));
    }

    #[test]
    fn what_is_forgotten_is_gone_with_all_below() {
        let mut tree = tree();
        assert_eq!(tree.forget_all(A), [A, B, C]);
        assert_eq!((tree.len(), tree.child(TOP, OsStr::new("a"))), (1, None));
    }
}

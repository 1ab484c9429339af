//! Installed packages as `dpkg-query` lists them, and what they depend on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One installed package.
#[derive(Debug, Default, Clone)]
pub(super) struct Package {
    pub(super) version: String,
    essential: bool,
    /// Each inner list is a choice.
    depends: Vec<Vec<String>>,
    provides: Vec<String>,
}

pub(super) fn parse_packages(text: &str) -> BTreeMap<String, Package> {
    let mut packages = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        let [name, version, essential, status, depends, provides] = fields[..] else {
            continue;
        };
        if !status.starts_with("ii") {
            continue;
        }
        let bare = |text: &str| {
            text.split([' ', '(', ':'])
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let names = |list: &str, separator: char| -> Vec<String> {
            list.split(separator)
                .map(|one| bare(one.trim()))
                .filter(|one| !one.is_empty())
                .collect()
        };
        let package = Package {
            version: version.to_owned(),
            essential: essential == "yes",
            depends: depends
                .split(',')
                .map(|choice| names(choice, '|'))
                .filter(|choice| !choice.is_empty())
                .collect(),
            provides: names(provides, ','),
        };
        packages.insert(name.to_owned(), package);
    }
    packages
}

/// The wanted and the essential packages with all they depend on, and the
/// wanted ones that are not installed.
pub(super) fn closure(
    installed: &BTreeMap<String, Package>,
    wanted: &[&str],
) -> (BTreeSet<String>, Vec<String>) {
    let mut providers: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, package) in installed {
        for provided in &package.provides {
            providers.entry(provided).or_insert(name);
        }
    }
    let find = |name: &str| -> Option<String> {
        if installed.contains_key(name) {
            Some(name.to_owned())
        } else {
            providers.get(name).map(|name| (*name).to_owned())
        }
    };
    let mut missing = Vec::new();
    let mut pending: VecDeque<String> = installed
        .iter()
        .filter(|(_, package)| package.essential)
        .map(|(name, _)| name.clone())
        .collect();
    for name in wanted {
        match find(name) {
            Some(found) => pending.push_back(found),
            None => missing.push((*name).to_owned()),
        }
    }
    let mut chosen = BTreeSet::new();
    while let Some(name) = pending.pop_front() {
        if !chosen.insert(name.clone()) {
            continue;
        }
        let depends = installed
            .get(&name)
            .map(|package| package.depends.as_slice())
            .unwrap_or_default();
        pending.extend(
            depends
                .iter()
                .filter_map(|choice| choice.iter().find_map(|one| find(one))),
        );
    }
    (chosen, missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closure_follows_choices_and_provided_names() {
        let text = "base-files\t1\tyes\tii \t, awk\t\nmawk\t1\tno\tii \t, libc6 (>= 2)\tawk\nlibc6\t2\tno\tii \t, \t\n\
                    git\t3\tno\tii \t, nothing | perl:any, libc6\t\nperl\t5\tno\tii \t, \t\ngone\t1\tno\trc \t, \t\n";
        let (chosen, missing) = closure(&parse_packages(text), &["git", "gone"]);
        assert_eq!(
            chosen.into_iter().collect::<Vec<_>>(),
            ["base-files", "git", "libc6", "mawk", "perl"]
        );
        assert_eq!(missing, ["gone"]);
    }
}

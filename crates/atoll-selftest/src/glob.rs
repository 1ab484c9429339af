//! Names of cases with `*` in them.

/// A pattern in which `*` stands for any text; without one it names a case or a whole group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    pattern: String,
}

impl Glob {
    /// The pattern `pattern`.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self {
            pattern: pattern.to_owned(),
        }
    }

    /// Whether `name` is one of those that are meant.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let group = name.split('.').next().unwrap_or(name);
        self.pattern == group || matches(self.pattern.as_bytes(), name.as_bytes())
    }
}

fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|start| matches(rest, &name[start..])),
        Some((first, rest)) => name
            .split_first()
            .is_some_and(|(character, remaining)| first == character && matches(rest, remaining)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text_and_groups_for_all_of_their_cases() {
        let hits = |pattern: &str| {
            ["mounts.bind", "mounts.proc", "proc.masked"]
                .into_iter()
                .filter(|name| Glob::new(pattern).matches(name))
                .collect::<Vec<_>>()
        };
        assert_eq!(hits("mounts"), ["mounts.bind", "mounts.proc"]);
        assert_eq!(hits("*.bind"), ["mounts.bind"]);
        assert_eq!(hits("*proc*"), ["mounts.proc", "proc.masked"]);
        assert_eq!(hits("mount"), Vec::<&str>::new());
        assert_eq!(hits("*").len(), 3);
    }
}

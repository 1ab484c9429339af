//! Which contexts there are, in the order in which they were made. The
//! default ones of Python and JavaScript are there from the beginning, though
//! their kernels start when somebody needs them.

use std::sync::{Arc, Mutex, PoisonError};

use super::context::{Context, Use};
use super::language::Language;

/// Most contexts at once.
pub(super) const CONTEXTS_MAX: usize = 256;

/// Contexts that are always listed.
const ALWAYS: [Language; 2] = [Language::Python, Language::JavaScript];

/// All contexts.
#[derive(Default)]
pub(super) struct Table(Mutex<Vec<Arc<Context>>>);

impl Table {
    fn with<T>(&self, work: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All of them.
    pub(super) fn all(&self, cwd: &str) -> Vec<Arc<Context>> {
        self.with(|contexts| {
            for language in &ALWAYS {
                default_of(contexts, language, cwd);
            }
            contexts.clone()
        })
    }

    /// The one with that id.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Context>> {
        self.with(|contexts| contexts.iter().find(|context| context.id == id).cloned())
    }

    /// The one that clients mean who only name a language, or nothing.
    pub(super) fn default_context(&self, language: &Language, cwd: &str) -> Arc<Context> {
        self.with(|contexts| {
            for always in &ALWAYS {
                default_of(contexts, always, cwd);
            }
            default_of(contexts, language, cwd)
        })
    }

    /// Adds one; `None` when there are too many.
    pub(super) fn insert(&self, context: Arc<Context>) -> Option<()> {
        self.with(|contexts| {
            let named = contexts.iter().filter(|one| one.purpose == Use::Named);
            if named.count() >= CONTEXTS_MAX {
                return None;
            }
            contexts.push(context);
            Some(())
        })
    }

    /// Takes one out.
    pub(super) fn remove(&self, id: &str) -> Option<Arc<Context>> {
        self.with(|contexts| {
            let at = contexts.iter().position(|context| context.id == id)?;
            Some(contexts.remove(at))
        })
    }
}

fn default_of(contexts: &mut Vec<Arc<Context>>, language: &Language, cwd: &str) -> Arc<Context> {
    let is_it =
        |context: &&Arc<Context>| context.purpose == Use::Default && context.language == *language;
    if let Some(context) = contexts.iter().find(is_it) {
        return Arc::clone(context);
    }
    let context = Arc::new(Context::new(language.clone(), cwd.to_owned(), Use::Default));
    contexts.push(Arc::clone(&context));
    context
}

#[cfg(test)]
mod tests {
    use super::*;

    fn languages(table: &Table) -> Vec<String> {
        let all = table.all("/home/user");
        all.iter()
            .map(|context| context.language.name().to_owned())
            .collect()
    }

    #[test]
    fn two_are_always_there_and_new_ones_come_last() {
        let table = Table::default();
        assert_eq!(languages(&table), ["python", "javascript"]);
        let bash = table.default_context(&Language::Bash, "/");
        assert_eq!(table.default_context(&Language::Bash, "/").id, bash.id);
        let own = Arc::new(Context::new(
            Language::Python,
            "/tmp".to_owned(),
            Use::Named,
        ));
        table.insert(Arc::clone(&own)).unwrap();
        assert_eq!(
            languages(&table),
            ["python", "javascript", "bash", "python"]
        );
        assert_ne!(table.default_context(&Language::Python, "/").id, own.id);
        assert!(table.remove(&own.id).is_some());
        assert!(table.remove(&own.id).is_none());
        let first = table.default_context(&Language::Python, "/");
        assert!(table.remove(&first.id).is_some());
        assert_eq!(languages(&table), ["javascript", "bash", "python"]);
    }

    #[test]
    fn there_are_only_so_many() {
        let table = Table::default();
        let one = || Arc::new(Context::new(Language::Python, String::new(), Use::Named));
        for _ in 0..CONTEXTS_MAX {
            table.insert(one()).unwrap();
        }
        assert!(table.insert(one()).is_none());
        // Those that nobody made still come.
        assert_eq!(languages(&table).len(), CONTEXTS_MAX + 2);
    }
}

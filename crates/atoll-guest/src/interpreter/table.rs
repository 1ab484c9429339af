//! Which contexts there are, in the order in which they were made. The
//! default ones of Python and JavaScript are there from the beginning, though
//! their kernels start when somebody needs them.

use std::sync::{Arc, Mutex, PoisonError};

use super::context::{Context, Use};
use super::language::Language;

/// Most contexts at once, whoever made them.
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

    /// The one that clients mean who only name a language, or nothing;
    /// `None` when there are too many.
    pub(super) fn default_context(&self, language: &Language, cwd: &str) -> Option<Arc<Context>> {
        self.with(|contexts| {
            for always in &ALWAYS {
                default_of(contexts, always, cwd);
            }
            let is_new = !contexts.iter().any(|one| is_default(one, language));
            if is_new && contexts.len() >= CONTEXTS_MAX {
                return None;
            }
            Some(default_of(contexts, language, cwd))
        })
    }

    /// Adds one after those that are always there; `None` when there are too many.
    pub(super) fn insert(&self, context: Arc<Context>, cwd: &str) -> Option<()> {
        self.with(|contexts| {
            for always in &ALWAYS {
                default_of(contexts, always, cwd);
            }
            if contexts.len() >= CONTEXTS_MAX {
                return None;
            }
            contexts.push(context);
            Some(())
        })
    }

    /// Takes out one that never had a kernel, unless it is always there.
    pub(super) fn forget(&self, context: &Arc<Context>) {
        let is_always = context.purpose == Use::Default && ALWAYS.contains(&context.language);
        if !is_always && !context.has_started() {
            self.with(|contexts| contexts.retain(|one| !Arc::ptr_eq(one, context)));
        }
    }

    /// Takes one out.
    pub(super) fn remove(&self, id: &str) -> Option<Arc<Context>> {
        self.with(|contexts| {
            let at = contexts.iter().position(|context| context.id == id)?;
            Some(contexts.remove(at))
        })
    }
}

fn is_default(context: &Context, language: &Language) -> bool {
    context.purpose == Use::Default && context.language == *language
}

fn default_of(contexts: &mut Vec<Arc<Context>>, language: &Language, cwd: &str) -> Arc<Context> {
    if let Some(context) = contexts.iter().find(|one| is_default(one, language)) {
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

    fn of(table: &Table, language: &Language) -> Arc<Context> {
        table.default_context(language, "/").unwrap()
    }

    #[test]
    fn two_are_always_there_and_new_ones_come_last() {
        let table = Table::default();
        assert_eq!(languages(&table), ["python", "javascript"]);
        let bash = of(&table, &Language::Bash);
        assert_eq!(of(&table, &Language::Bash).id, bash.id);
        let own = Arc::new(Context::new(
            Language::Python,
            "/tmp".to_owned(),
            Use::Named,
        ));
        table.insert(Arc::clone(&own), "/").unwrap();
        assert_eq!(
            languages(&table),
            ["python", "javascript", "bash", "python"]
        );
        assert_ne!(of(&table, &Language::Python).id, own.id);
        assert!(table.remove(&own.id).is_some());
        assert!(table.remove(&own.id).is_none());
        let first = of(&table, &Language::Python);
        assert!(table.remove(&first.id).is_some());
        assert_eq!(languages(&table), ["javascript", "bash", "python"]);
    }

    #[test]
    fn there_are_only_so_many_whoever_made_them() {
        let table = Table::default();
        let one = || Arc::new(Context::new(Language::Python, String::new(), Use::Named));
        for number in 2..CONTEXTS_MAX {
            if number % 2 == 0 {
                table.insert(one(), "/").unwrap();
            } else {
                of(&table, &Language::Kernel(format!("k{number}")));
            }
        }
        assert!(table.insert(one(), "/").is_none());
        assert!(table.default_context(&Language::Bash, "/").is_none());
        // Those that are there still are.
        assert_eq!(languages(&table).len(), CONTEXTS_MAX);
        let kernel = of(&table, &Language::Kernel("k3".to_owned()));
        of(&table, &Language::Python);
        table.forget(&kernel);
        table.forget(&of(&table, &Language::Python));
        assert_eq!(languages(&table).len(), CONTEXTS_MAX - 1);
        of(&table, &Language::Bash);
    }
}

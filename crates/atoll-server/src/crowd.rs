//! How many requests there are for each sandbox: one of them must not take
//! what all share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts requests by sandbox.
#[derive(Debug)]
pub(crate) struct Crowd {
    limit: usize,
    present: Mutex<HashMap<String, usize>>,
}

/// A request that is not over.
#[derive(Debug)]
pub(crate) struct InCrowd {
    crowd: Arc<Crowd>,
    id: String,
}

impl Crowd {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            present: Mutex::default(),
        })
    }

    /// How many there may be for one sandbox.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Counts a request for the sandbox `id`, if there is room for it.
    pub(crate) fn enter(self: &Arc<Self>, id: &str) -> Option<InCrowd> {
        let mut present = self.lock();
        let count = present.entry(id.to_owned()).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(InCrowd {
            crowd: Arc::clone(self),
            id: id.to_owned(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InCrowd {
    fn drop(&mut self) {
        let mut present = self.crowd.lock();
        if let Some(count) = present.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                present.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sandbox_has_its_own_room() {
        let crowd = Crowd::new(2);
        let held = [crowd.enter("a"), crowd.enter("a"), crowd.enter("b")];
        assert!(held.iter().all(Option::is_some));
        assert!(crowd.enter("a").is_none());
        assert!(crowd.enter("b").is_some());
        drop(held);
        assert!(crowd.lock().is_empty());
    }
}

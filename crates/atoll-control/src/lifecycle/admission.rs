//! How many sandboxes a tenant has at once. Counted where they are made, so
//! that many creations at once do not slip past a number in the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_store::db::TenantId;

/// Places of all tenants.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    limit: usize,
    taken: Arc<Mutex<HashMap<TenantId, usize>>>,
}

/// A place, until dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    admission: Admission,
    tenant: TenantId,
}

impl Admission {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            taken: Arc::default(),
        }
    }

    /// A place for one more sandbox of `tenant`, if there is one.
    pub(super) fn enter(&self, tenant: TenantId) -> Option<Admitted> {
        let mut taken = self.lock();
        let count = taken.entry(tenant).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        drop(taken);
        Some(self.admitted(tenant))
    }

    /// The place of a sandbox that is there already.
    pub(super) fn enter_anyway(&self, tenant: TenantId) -> Admitted {
        *self.lock().entry(tenant).or_default() += 1;
        self.admitted(tenant)
    }

    fn admitted(&self, tenant: TenantId) -> Admitted {
        Admitted {
            admission: self.clone(),
            tenant,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut taken = self.admission.lock();
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_its_places_and_gets_them_back() {
        let admission = Admission::new(2);
        let (ours, theirs) = (TenantId::random(), TenantId::random());
        let first = admission.enter(ours).unwrap();
        let second = admission.enter(ours);
        assert!(second.is_some() && admission.enter(ours).is_none());
        assert!(admission.enter(theirs).is_some());
        drop(first);
        let again = admission.enter(ours);
        assert!(again.is_some() && admission.enter(ours).is_none());
        // What was there before the limit counts, and is not turned away.
        let more = admission.enter_anyway(ours);
        drop((again, second));
        assert!(admission.enter(ours).is_some());
        drop(more);
        assert!(admission.lock().is_empty());
    }
}

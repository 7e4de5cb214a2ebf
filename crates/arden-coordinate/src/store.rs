//! The state of all nodes in etcd: users, groups, shares, settings, pools, volumes. Each record is a key; one more is changed by
//! every commit, and its revision is the state's.

use std::{path::Path, sync::Arc};

use arden_admin::{
    AdminError,
    error::Result,
    state::{Change, Commit, Contents, Records, Revision, StateStore, Table},
};
use tokio::sync::watch;

use crate::{
    etcd::{Etcd, If, STEPS_MAX, Then},
    keys::{self, Names},
    membership::Membership,
    trust::Trust,
};

/// Behind the prefix of the state; no table has this name.
const REVISION: &str = "revision";

/// The state in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    etcd: Arc<Etcd>,
    trust: Arc<Trust>,
    names: Names,
    newest: watch::Sender<Revision>,
}

fn table(name: &str) -> Option<Table> {
    Table::ALL.into_iter().find(|t| t.name() == name)
}

impl EtcdStore {
    pub fn new(etcd: &Arc<Etcd>, trust: &Arc<Trust>) -> Arc<EtcdStore> {
        let newest = watch::Sender::new(Revision::default());
        Arc::new(EtcdStore { etcd: etcd.clone(), trust: trust.clone(), names: trust.names().clone(), newest })
    }

    /// The state of the cluster that the daemon on `state_dir` is a node of.
    ///
    /// # Errors
    /// Failed, when the state directory cannot be read.
    pub fn of(etcd: &Arc<Etcd>, state_dir: &Path, membership: &Membership) -> Result<Arc<EtcdStore>> {
        let trust = Trust::new(state_dir, &membership.names(), keys::encode(&membership.cluster))?;
        let store = EtcdStore::new(etcd, &trust);
        // The newest revision is told from the start.
        store.changed(store.read()?.revision.0);
        Ok(store)
    }

    /// The watch says that another node may have changed the state.
    pub(crate) fn changed(&self, etcd_revision: u64) {
        self.newest.send_if_modified(|newest| {
            let later = etcd_revision > newest.0;
            newest.0 = newest.0.max(etcd_revision);
            later
        });
    }

    /// What others changed meanwhile may not have been told: who waits for changes looks for them.
    pub(crate) fn may_have_changed(&self) {
        self.newest.send_modify(|_| ());
    }

    fn key(&self, table: Table, key: &str) -> String {
        format!("{}{}/{key}", self.names.state(), table.name())
    }

    fn step(&self, change: &Change) -> Then {
        let key = self.key(change.table, &change.key);
        match &change.value {
            Some(value) => Then::Put(key, value.clone(), 0),
            None => Then::Delete(key),
        }
    }
}

impl StateStore for EtcdStore {
    fn read(&self) -> Result<Contents> {
        let prefix = self.names.state();
        // An etcd that was emptied has no state either: it must not be taken for one without users and shares.
        let floor = self.trust.floor();
        let found = self.etcd.read_now(&prefix, &self.names.cluster())?;
        self.trust.check(&found, floor)?;
        let (mut records, mut revision) = (Records::new(), Revision::default());
        for pair in found.pairs {
            let Some(name) = pair.key.strip_prefix(&prefix) else { continue };
            match name.split_once('/') {
                None if name == REVISION => revision = Revision(pair.mod_revision),
                Some((of, key)) if table(of).is_some() => {
                    if let Some(table) = table(of) {
                        records.insert((table, key.to_string()), pair.value);
                    }
                }
                // A later version may keep more; this one must not lose it, and does not touch it.
                _ => {}
            }
        }
        Ok(Contents { revision, records })
    }

    fn newest(&self) -> Result<Revision> {
        let key = format!("{}{REVISION}", self.names.state());
        let floor = self.trust.floor();
        let found = self.etcd.read_now(&key, &self.names.cluster())?;
        self.trust.check(&found, floor)?;
        Ok(found.get(&key).map_or_else(Revision::default, |pair| Revision(pair.mod_revision)))
    }

    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit> {
        if changes.len() > STEPS_MAX {
            let error = format!("{} records would change at once, of at most {STEPS_MAX}", changes.len());
            return Err(AdminError::invalid(error, "make the change in parts"));
        }
        if i64::try_from(expected.0).is_err() {
            // None of etcd's.
            return Ok(Commit::Outdated);
        }
        let revision = format!("{}{REVISION}", self.names.state());
        let mut then: Vec<Then> = changes.iter().map(|c| self.step(c)).collect();
        then.push(Then::Put(revision.clone(), Vec::new(), 0));
        match self.trust.change(&self.etcd, vec![If::Changed(revision, expected.0)], then)? {
            Some(made) => {
                self.changed(made);
                Ok(Commit::Done(Revision(made)))
            }
            None => Ok(Commit::Outdated),
        }
    }

    fn watch(&self) -> watch::Receiver<Revision> {
        self.newest.subscribe()
    }
}

//! Quotas: the limits that were set, and what files take, counted from what their users see of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use arden_store::{
    quota::{NONE, Quota},
    store::NodeRef,
};
use arden_volume::Volume;
use arden_wire::dtyp::Sid;

use super::{model::Model, ops::owner};

/// Who has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// As [`owner`] numbers them.
    Owner(u8),
    /// By the model's number.
    Folder(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub threshold: u64,
    pub limit: u64,
    /// What was taken when the limit was set: more than the larger of both is never taken.
    pub taken: u64,
}

/// Threshold and limit, by owner or path.
pub type Limits = BTreeMap<String, (u64, u64)>;

impl Model {
    pub fn limits_by_name(&self, paths: &HashMap<u64, String>) -> Limits {
        let named = |(subject, l): (&Subject, &Limit)| {
            let name = match subject {
                Subject::Owner(n) => owner(*n).to_string(),
                Subject::Folder(id) => format!("{}/", paths.get(id)?),
            };
            Some((name, (l.threshold, l.limit)))
        };
        self.limits.iter().filter_map(named).collect()
    }
}

/// What files take, by owner and by path.
#[derive(Default)]
pub struct Usage {
    by_owner: BTreeMap<Vec<u8>, u64>,
    /// Bytes and paths of each file.
    files: BTreeMap<u64, (u64, Vec<String>)>,
}

impl Usage {
    pub fn see(&mut self, node: &NodeRef, path: &str) {
        let stat = node.stat().unwrap();
        let seen = self.files.contains_key(&stat.id.file);
        let file = self.files.entry(stat.id.file).or_default();
        file.1.push(path.to_owned());
        if !seen {
            let snapshots = |name: &str| -> u64 {
                let stream = if name.is_empty() { Some(node.clone()) } else { node.named_stream(name).unwrap() };
                stream.unwrap().stream_snapshots().unwrap().iter().map(|s| s.allocation).sum()
            };
            file.0 = node.streams().unwrap().iter().map(|s| s.allocation + snapshots(&s.name)).sum();
            if let Some(owner) = &node.security().unwrap().owner {
                *self.by_owner.entry(owner.encode()).or_default() += file.0;
            }
        }
    }

    pub fn first_path(&self, file: u64) -> &str {
        &self.files[&file].1[0]
    }

    /// The limits that the volume has, of which each count has to be right.
    pub fn checked_limits(&self, vol: &Volume) -> Limits {
        let (users, folders) = (vol.user_quotas().unwrap(), vol.folder_quotas().unwrap());
        let mut out = Limits::new();
        if users.is_empty() && folders.is_empty() {
            return out;
        }
        let mut note = |name: String, q: Quota| {
            if (q.threshold, q.limit) != (NONE, NONE) {
                out.insert(name, (q.threshold, q.limit));
            }
        };
        let mut owners: BTreeSet<Vec<u8>> =
            self.by_owner.iter().filter(|(_, n)| **n > 0).map(|(o, _)| o.clone()).collect();
        for (sid, q) in users {
            let taken = self.by_owner.get(&sid.encode()).copied().unwrap_or(0);
            assert_eq!(q.used_bytes, taken, "quota of {sid}: counted, and seen");
            owners.remove(&sid.encode());
            note(sid.to_string(), q);
        }
        let uncounted: Vec<_> = owners.iter().map(|o| Sid::parse(o)).collect();
        assert!(uncounted.is_empty(), "no quota of {uncounted:?}");
        for (ino, q) in folders {
            let path = format!("{}/", self.first_path(ino));
            // One with several names counts where the first of them is, which nobody sees.
            let bytes = |f: &dyn Fn(&[String]) -> bool| -> u64 {
                self.files.values().filter(|(_, paths)| f(paths)).map(|(bytes, _)| bytes).sum()
            };
            let sure = bytes(&|paths| paths.iter().all(|p| p.starts_with(&path)));
            let most = bytes(&|paths| paths.iter().any(|p| p.starts_with(&path)));
            let q_used = q.used_bytes;
            assert!(sure <= q_used && q_used <= most, "quota of {path}: {q_used} counted, {sure} to {most} seen");
            note(path, q);
        }
        out
    }
}

/// Nobody got over a limit since it was set.
pub fn check(vol: &Volume, model: &Model) {
    for (subject, l) in &model.limits {
        if let Subject::Owner(n) = subject
            && let Ok(Some(q)) = vol.user_quota(owner(*n))
        {
            assert!(q.used_bytes <= l.limit.max(l.taken), "{} bytes taken, limit {l:?}", q.used_bytes);
        }
    }
}

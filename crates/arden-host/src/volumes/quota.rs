//! Quotas of volumes: the names and paths of administration to the SIDs and file numbers of a volume, and back.

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    volume::{NewQuota, QuotaInfo, QuotaKind, QuotaSubject},
};
use arden_store::{
    name::NtPath,
    quota::{NONE, Quota, QuotaControl},
    store::{FileStore, Lookup},
};
use arden_volume::{Durability, Volume, VolumeStore};
use arden_wire::dtyp::Sid;

use super::{Volumes, refusal};

fn limit(n: u64) -> Option<u64> {
    (n != NONE).then_some(n)
}

fn info(kind: QuotaKind, name: String, q: &Quota) -> QuotaInfo {
    QuotaInfo { kind, name, used_bytes: q.used_bytes, soft_bytes: limit(q.threshold), hard_bytes: limit(q.limit) }
}

fn defaults(c: &QuotaControl) -> QuotaInfo {
    let q = Quota { threshold: c.threshold, limit: c.limit, ..Quota::default() };
    info(QuotaKind::Default, String::new(), &q)
}

/// The number of a directory that exists.
fn folder(volume: &std::sync::Arc<Volume>, path: &str) -> Result<u64> {
    let missing = || {
        let text = format!("{path:?} is no directory of the volume");
        AdminError::new(ErrorKind::NotFound, text, "paths begin at the volume's root, not at a share's")
    };
    let store = VolumeStore::new(volume.clone(), Durability::Plain);
    let parsed = NtPath::parse(path.trim_matches('/')).map_err(|_| missing())?;
    match store.lookup(&parsed) {
        Ok(Lookup::Found(node)) if node.is_directory() => Ok(node.id().file),
        _ => Err(missing()),
    }
}

/// A SID of the state, which holds valid ones only; what is not one is nobody's.
fn sid(text: &str) -> Sid {
    text.parse().unwrap_or_else(|_| Sid::new(0, &[0]))
}

enum Subject {
    Default,
    User(Sid, String),
    Folder(u64, String),
}

impl Volumes {
    fn subject(&self, name: &str, user: Option<&String>, path: Option<&String>) -> Result<Subject> {
        match (user, path) {
            (None, None) => Ok(Subject::Default),
            (Some(user), None) => {
                let state = self.state.snapshot();
                let text = state.sid_of(user)?;
                Ok(Subject::User(sid(&text), state.name_of(&text)))
            }
            (None, Some(path)) => {
                let (volume, _) = Volumes::volume(self, name)?;
                Ok(Subject::Folder(folder(&volume, path)?, path.clone()))
            }
            _ => Err(AdminError::invalid("a quota is of a user or of a folder", "name one of them")),
        }
    }

    pub(super) fn show_quotas(&self, name: &str) -> Result<Vec<QuotaInfo>> {
        let (volume, _) = Volumes::volume(self, name)?;
        let failed = |e| refusal(name, e);
        let state = self.state.snapshot();
        let mut out = Vec::new();
        for (sid, q) in volume.user_quotas().map_err(failed)? {
            out.push(info(QuotaKind::User, state.name_of(&sid.to_string()), &q));
        }
        let store = VolumeStore::new(volume.clone(), Durability::Plain);
        for (ino, q) in volume.folder_quotas().map_err(failed)? {
            let path = match store.lookup_id(ino) {
                Ok(node) => node.path().join("/"),
                Err(_) => format!("(deleted, {ino})"),
            };
            out.push(info(QuotaKind::Folder, format!("/{path}"), &q));
        }
        let control = volume.quota_control().map_err(failed)?;
        if !out.is_empty() || control != QuotaControl::default() {
            out.insert(0, defaults(&control));
        }
        Ok(out)
    }

    pub(super) fn limit(&self, name: &str, new: &NewQuota) -> Result<QuotaInfo> {
        let (volume, _) = Volumes::volume(self, name)?;
        let failed = |e| refusal(name, e);
        let (soft, hard) = (new.soft_bytes.unwrap_or(NONE), new.hard_bytes.unwrap_or(NONE));
        if soft.min(hard) > i64::MAX as u64 && (new.soft_bytes.is_some() || new.hard_bytes.is_some()) {
            return Err(AdminError::invalid("a quota has at most 63 bits", "choose a smaller one"));
        }
        match self.subject(name, new.user.as_ref(), new.folder.as_ref())? {
            Subject::Default => {
                volume.begin_counting().map_err(failed)?;
                let control = volume.quota_control().map_err(failed)?;
                let control = QuotaControl { threshold: soft, limit: hard, ..control };
                volume.set_quota_control(&control).map_err(failed)?;
                Ok(defaults(&control))
            }
            Subject::User(sid, who) => {
                volume.set_user_quota(&sid, soft, hard).map_err(failed)?;
                let q = volume.user_quota(&sid).map_err(failed)?.unwrap_or_default();
                Ok(info(QuotaKind::User, who, &q))
            }
            Subject::Folder(ino, path) => {
                volume.set_folder_quota(ino, soft, hard).map_err(failed)?;
                let all = volume.folder_quotas().map_err(failed)?;
                let q = all.iter().find(|(i, _)| *i == ino).map(|(_, q)| *q).unwrap_or_default();
                Ok(info(QuotaKind::Folder, path, &q))
            }
        }
    }

    pub(super) fn unlimit(&self, name: &str, of: &QuotaSubject) -> Result<()> {
        let (volume, _) = Volumes::volume(self, name)?;
        let failed = |e| refusal(name, e);
        let was_there = match self.subject(name, of.user.as_ref(), of.folder.as_ref())? {
            Subject::Default => {
                let control = volume.quota_control().map_err(failed)?;
                let limited = control.threshold != NONE || control.limit != NONE;
                if limited {
                    let free = QuotaControl { threshold: NONE, limit: NONE, ..control };
                    volume.set_quota_control(&free).map_err(failed)?;
                }
                limited
            }
            Subject::User(sid, _) => volume.remove_user_quota(&sid).map_err(failed)?,
            Subject::Folder(ino, _) => volume.remove_folder_quota(ino).map_err(failed)?,
        };
        let whose = of.user.as_ref().or(of.folder.as_ref()).map_or("default", String::as_str);
        if was_there { Ok(()) } else { Err(AdminError::not_found("quota", whose)) }
    }
}

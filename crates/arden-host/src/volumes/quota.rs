//! Quotas of volumes: names and paths to SIDs and numbers for the daemon, and the command line.

use arden_admin::{
    AdminError, ErrorKind,
    client::segment,
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
use clap::{Args, Subcommand};

use super::{Volumes, refusal};
use crate::{
    commands::Out,
    storage::{bytes, size},
    table::Table,
    users::sid,
};

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

#[derive(Debug, Args)]
pub struct Whose {
    /// A user, a group, or a SID: what the owner of files has
    #[arg(long, required_unless_present_any = ["folder", "default"], conflicts_with_all = ["folder", "default"])]
    user: Option<String>,
    /// A directory, from the volume's root: what lies below it
    #[arg(long, conflicts_with = "default")]
    folder: Option<String>,
    /// Users without a quota of their own
    #[arg(long)]
    default: bool,
}

#[derive(Debug, Subcommand)]
pub enum QuotaVerb {
    /// Limit a user or a folder; a limit that is not given is none
    #[command(
        after_help = "Example:\n  arden quota set docs --user alice --soft 8g --hard 10g\n  arden quota set docs --folder /projects --hard 1t"
    )]
    Set {
        volume: String,
        #[command(flatten)]
        whose: Whose,
        /// Passing it is logged
        #[arg(long, value_parser = bytes)]
        soft: Option<u64>,
        /// It is never passed: the volume is full for who would
        #[arg(long, value_parser = bytes)]
        hard: Option<u64>,
    },
    /// What users and folders have, and may have
    #[command(after_help = "Example:\n  arden quota list docs --json")]
    List { volume: String },
    /// Take a limit away
    #[command(after_help = "Example:\n  arden quota remove docs --user alice")]
    Remove {
        volume: String,
        #[command(flatten)]
        whose: Whose,
    },
}

pub fn run(out: &Out, verb: QuotaVerb) -> Result<()> {
    let path = |name: &str| format!("/v1/volumes/{}/quotas", segment(name));
    match verb {
        QuotaVerb::Set { volume, whose, soft, hard } => {
            let new = NewQuota { user: whose.user, folder: whose.folder, soft_bytes: soft, hard_bytes: hard };
            let q: QuotaInfo = out.client.put_body(&path(&volume), &new)?;
            out.show(&[q], |all| table(all));
        }
        QuotaVerb::List { volume } => {
            let all: Vec<QuotaInfo> = out.client.get(&path(&volume))?;
            out.show(&all, |all| table(all));
        }
        QuotaVerb::Remove { volume, whose } => {
            let of = QuotaSubject { user: whose.user, folder: whose.folder };
            out.client.send_only("POST", &format!("{}/remove", path(&volume)), &of)?;
            out.done("quota removed".into());
        }
    }
    Ok(())
}

fn table(all: &[QuotaInfo]) -> String {
    let text = |n: Option<u64>| n.map_or("none".to_string(), size);
    let mut t = Table::new(&["OF", "NAME", "USED", "SOFT", "HARD"]);
    for q in all {
        let kind = match q.kind {
            QuotaKind::Default => "default",
            QuotaKind::User => "user",
            QuotaKind::Folder => "folder",
        };
        t.row([kind.into(), q.name.clone(), size(q.used_bytes), text(q.soft_bytes), text(q.hard_bytes)]);
    }
    t.text("nothing is counted; `arden quota set VOLUME --user NAME --hard 10g` begins to")
}

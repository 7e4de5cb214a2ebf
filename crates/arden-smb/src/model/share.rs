//! What the server exports, and whom it lets in.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use arden_auth::Token;
use arden_store::fs::Fs;
use arden_wire::{access, dtyp::Sid};

use crate::model::wire::Target;

/// Allows or denies share access to one user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareAce {
    pub sid: Sid,
    pub allow: bool,
    /// Access mask: FILE_GENERIC_READ|EXECUTE (read), that and write and DELETE (change), or FILE_ALL_ACCESS (full).
    pub mask: u32,
}

/// Says whether a share may be served at this moment: a node of a cluster serves what it owns while its lease is good.
pub trait Gate: Send + Sync {
    /// A request may start.
    fn may_start(&self) -> bool;
    /// What was done may be answered.
    fn may_answer(&self) -> bool;
    /// The ownership that it stands for. None: other nodes forward nothing to this share.
    fn target(&self) -> Option<Target> {
        None
    }
}

/// The gates of what a message asked for, which are looked at once more when its answers leave.
#[derive(Default)]
pub struct Gates {
    gates: Vec<Arc<dyn Gate>>,
    /// Requests of another node are for this ownership alone.
    only: Option<Target>,
    has_refused: bool,
}

impl Gates {
    /// For a request that another node forwards to the owner of `target`: no other share may be asked.
    pub fn of_owner(target: Target) -> Gates {
        Gates { only: Some(target), ..Gates::default() }
    }

    /// Whether a request for `share` may start. Its answer is bound by the same gate.
    #[must_use]
    pub fn pass(&mut self, share: &Share) -> bool {
        let Some(gate) = &share.gate else {
            self.has_refused |= self.only.is_some();
            return self.only.is_none();
        };
        if !gate.may_start() || self.only.is_some_and(|only| gate.target() != Some(only)) {
            self.has_refused = true;
            return false;
        }
        if !self.gates.iter().any(|g| Arc::ptr_eq(g, gate)) {
            self.gates.push(gate.clone());
        }
        true
    }

    /// Whether another node asks, which takes this one for the owner.
    #[must_use]
    pub fn are_of_owner(&self) -> bool {
        self.only.is_some()
    }

    /// The share that is asked for is not served here.
    pub fn refuse(&mut self) {
        self.has_refused = true;
    }

    /// Whether a share may not be served here, or not under this ownership.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Whether all answers may leave.
    #[must_use]
    pub fn may_answer(&self) -> bool {
        self.gates.iter().all(|gate| gate.may_answer())
    }
}

/// How many sessions have tree connects to a share, as their [`TreeConnects`](super::TreeConnects) count them.
#[derive(Debug, Clone, Default)]
pub struct ShareUsers(Arc<AtomicUsize>);

impl ShareUsers {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
    pub(super) fn are_of(&self, share: &Share) -> bool {
        Arc::ptr_eq(&self.0, &share.users.0)
    }
    /// One more.
    pub(super) fn begin(&self) -> ShareUsers {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.clone()
    }
    /// One less.
    pub(super) fn end(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One export.
#[derive(Clone)]
pub struct Share {
    pub name: String,
    pub comment: String,
    /// For srvsvc only: what an administrator calls the place.
    pub path: String,
    /// None for IPC$, and for a share that is not served here.
    pub fs: Option<Arc<Fs>>,
    pub read_only: bool,
    /// Unencrypted requests are refused.
    pub encrypt: bool,
    /// Every write is on stable storage before it is acknowledged, whatever the client asked.
    pub write_through: bool,
    /// Persistent handles, and every change on stable storage before it is acknowledged. Needs an `Fs` that keeps handles.
    pub continuously_available: bool,
    /// STYPE_CLUSTER_SOFS, [MS-SRVS] 2.2.2.4, where nodes of a cluster serve it.
    pub scale_out: bool,
    pub hidden: bool,
    pub access_based_enumeration: bool,
    /// Users at a time; more are refused.
    pub users_max: Option<u32>,
    /// Users there are. What replaces the share has the same.
    pub users: ShareUsers,
    /// Empty: everyone who is authenticated, full.
    pub access: Vec<ShareAce>,
    /// None: it may always be served.
    pub gate: Option<Arc<dyn Gate>>,
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Share").field("name", &self.name).field("path", &self.path).finish_non_exhaustive()
    }
}

const WRITE_BITS: u32 = access::FILE_WRITE_DATA
    | access::FILE_APPEND_DATA
    | access::FILE_WRITE_EA
    | access::FILE_WRITE_ATTRIBUTES
    | access::FILE_DELETE_CHILD
    | access::DELETE
    | access::WRITE_DAC
    | access::WRITE_OWNER;

impl Share {
    pub fn ipc() -> Share {
        Share {
            name: "IPC$".into(),
            comment: "Remote IPC".into(),
            path: String::new(),
            fs: None,
            read_only: false,
            encrypt: false,
            write_through: false,
            continuously_available: false,
            scale_out: false,
            hidden: true,
            access_based_enumeration: false,
            users_max: None,
            users: ShareUsers::default(),
            access: Vec::new(),
            gate: None,
        }
    }

    /// Whether every change is on stable storage before it is acknowledged.
    pub fn is_durable(&self) -> bool {
        self.write_through || self.continuously_available
    }

    /// [MS-SMB2] 3.3.1.6 Share.IsCA.
    pub fn keeps_handles(&self) -> bool {
        self.continuously_available && self.fs.as_ref().is_some_and(|fs| fs.handles().is_some())
    }

    /// Whether nodes of a cluster serve it as STYPE_CLUSTER_SOFS: clients of SMB 3 are granted no more than the caching of reads,
    /// [MS-SMB2] 3.3.5.9. Another node has a share without files.
    pub fn is_scale_out(&self) -> bool {
        self.scale_out && (self.gate.is_some() || self.fs.is_none())
    }

    /// It is IPC$, which has named pipes instead of files.
    pub fn is_pipe(&self) -> bool {
        self.name == "IPC$"
    }

    /// What this share lets `who` have at most, [MS-SMB2] 3.3.5.7 MaximalAccess. 0: nothing.
    pub fn ceiling(&self, who: &Token) -> u32 {
        let mut mask = access::FILE_ALL_ACCESS;
        if !self.access.is_empty() {
            let applies = |ace: &&ShareAce| ace.sid == who.user || who.groups.contains(&ace.sid);
            let (mut allowed, mut denied) = (0, 0);
            for ace in self.access.iter().filter(applies) {
                if ace.allow {
                    allowed |= ace.mask;
                } else {
                    denied |= ace.mask;
                }
            }
            mask = allowed & !denied;
        }
        if self.read_only { mask & !WRITE_BITS } else { mask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            user: Sid::new(5, &[21, 1, 2, 3, 1000]),
            user_name: "u".into(),
            groups: vec![Sid::new(5, &[32, 545])],
            privileges: 0,
        }
    }

    #[test]
    fn deny_beats_allow_and_read_only_beats_both() {
        let mut share = Share::ipc();
        assert_eq!(share.ceiling(&token()), access::FILE_ALL_ACCESS);
        share.access.push(ShareAce { sid: Sid::new(5, &[32, 545]), allow: true, mask: access::FILE_ALL_ACCESS });
        share.access.push(ShareAce { sid: token().user, allow: false, mask: access::DELETE });
        assert_eq!(share.ceiling(&token()), access::FILE_ALL_ACCESS & !access::DELETE);
        share.read_only = true;
        assert_eq!(share.ceiling(&token()) & access::FILE_WRITE_DATA, 0);
        share.access.remove(0);
        assert_eq!(share.ceiling(&token()), 0);
    }
}

//! Context handles: opaque 20 bytes to the client, an object here. They belong to an association group, which is
//! the pipes that one client process has open, [MS-RPCE] 3.3.1.1.2. Bounded; gone with the group's last pipe.

use arden_wire::dtyp::Sid;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

/// More open handles than this in one group are refused.
const HANDLES_MAX: usize = 256;

/// The object behind a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Object {
    LsaPolicy,
    SamServer,
    SamDomain(Sid),
    SamUser(u32),
    SamGroup(u32),
    SamAlias(Sid),
}

pub(crate) type HandleBytes = [u8; 20];
pub(crate) const NULL_HANDLE: HandleBytes = [0; 20];

/// The handles of an association group.
pub(crate) type Group = Arc<Mutex<Handles>>;

/// All groups of the process, with the user that each belongs to.
static GROUPS: Mutex<Groups> = Mutex::new(Groups { last: 0, open: BTreeMap::new() });

struct Groups {
    last: u32,
    open: BTreeMap<u32, (Sid, Weak<Mutex<Handles>>)>,
}

/// Joins a group by its number, or makes a new one for 0. `None` for a group that is not there, or is somebody else's.
pub(crate) fn join_group(number: u32, user: &Sid) -> Option<(u32, Group)> {
    let mut groups = GROUPS.lock();
    if number != 0 {
        let (owner, group) = groups.open.get(&number)?;
        return if owner == user { Some((number, group.upgrade()?)) } else { None };
    }
    groups.open.retain(|_, (_, group)| group.strong_count() > 0);
    loop {
        groups.last = groups.last.wrapping_add(1);
        let number = groups.last;
        if number != 0 && !groups.open.contains_key(&number) {
            let group = Group::default();
            groups.open.insert(number, (user.clone(), Arc::downgrade(&group)));
            return Some((number, group));
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Handles {
    next: u64,
    objects: BTreeMap<u64, Object>,
}

impl Handles {
    /// A new handle, or `None` when there are too many.
    pub(crate) fn open(&mut self, object: Object) -> Option<HandleBytes> {
        if self.objects.len() >= HANDLES_MAX {
            return None;
        }
        self.next += 1;
        self.objects.insert(self.next, object);
        let mut bytes = NULL_HANDLE;
        bytes[4..8].copy_from_slice(b"ARDN");
        bytes[12..].copy_from_slice(&self.next.to_le_bytes());
        Some(bytes)
    }

    fn number(handle: &HandleBytes) -> Option<u64> {
        let mut number = [0; 8];
        number.copy_from_slice(&handle[12..]);
        (handle[..12] == *b"\0\0\0\0ARDN\0\0\0\0").then_some(u64::from_le_bytes(number))
    }

    pub(crate) fn get(&self, handle: &HandleBytes) -> Option<&Object> {
        self.objects.get(&Self::number(handle)?)
    }

    /// Whether there was such a handle of a kind that `mine` says is the caller's interface's.
    pub(crate) fn close(&mut self, handle: &HandleBytes, mine: fn(&Object) -> bool) -> bool {
        if !self.get(handle).is_some_and(mine) {
            return false;
        }
        Self::number(handle).is_some_and(|n| self.objects.remove(&n).is_some())
    }
}

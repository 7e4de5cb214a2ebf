//! Context handles: 20 opaque bytes for the client, an object here. They belong to an association group, the pipes that
//! one client process has open, [MS-RPCE] 3.3.1.1.1. The number is limited by [`HANDLES_MAX`]; the last pipe of the
//! group drops them.

use arden_wire::dtyp::Sid;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

/// Open handles of one group; further ones are refused.
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

/// The handles of one association group.
pub(crate) type Group = Arc<Mutex<Handles>>;

/// All association groups of the process, each with its user.
static GROUPS: Mutex<Groups> = Mutex::new(Groups { last: 0, open: BTreeMap::new() });

struct Groups {
    last: u32,
    open: BTreeMap<u32, (Sid, Weak<Mutex<Handles>>)>,
}

/// Joins the group with this number, or makes a group for number 0. `None` for a group that does not exist or belongs
/// to another user.
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
    /// Makes a handle; `None` when [`HANDLES_MAX`] are open.
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

    /// Closes a handle; false when there is none, or when `mine` says that its object belongs to another interface.
    pub(crate) fn close(&mut self, handle: &HandleBytes, mine: fn(&Object) -> bool) -> bool {
        if !self.get(handle).is_some_and(mine) {
            return false;
        }
        Self::number(handle).is_some_and(|n| self.objects.remove(&n).is_some())
    }
}

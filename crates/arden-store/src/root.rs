//! The descriptor of a root that nobody gave one, the same for a shared directory and a new volume.

use arden_wire::{
    access::FILE_ALL_ACCESS,
    dtyp::{
        Ace, Acl, CONTAINER_INHERIT_ACE as CI, INHERIT_ONLY_ACE as IO, OBJECT_INHERIT_ACE as OI,
        SE_DACL_AUTO_INHERITED, SecurityDescriptor, well_known as wk,
    },
};

/// Read, write, execute and delete, without changing permissions.
const MODIFY: u32 = 0x0013_01BF;

/// Administrators and the system may do everything, everyone who logged on may work, and who makes something may do
/// everything with it.
pub fn default_descriptor() -> SecurityDescriptor {
    let aces = vec![
        Ace::allow(&wk::BUILTIN_ADMINISTRATORS, FILE_ALL_ACCESS, OI | CI),
        Ace::allow(&wk::SYSTEM, FILE_ALL_ACCESS, OI | CI),
        Ace::allow(&wk::CREATOR_OWNER, FILE_ALL_ACCESS, OI | CI | IO),
        Ace::allow(&wk::AUTHENTICATED_USERS, MODIFY, OI | CI),
    ];
    let mut sd = SecurityDescriptor::with_dacl(&wk::BUILTIN_ADMINISTRATORS, &wk::SYSTEM, Acl::new(aces));
    // As on a Windows volume: what is inherited below is marked so.
    sd.control |= SE_DACL_AUTO_INHERITED;
    sd
}

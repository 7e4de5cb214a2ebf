//! One tree under four shares that differ in what they permit; an administrator and two users without privileges.

use std::sync::Arc;

use arden_smb::{Share, ShareAce};
use arden_store::fs::Fs;
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{
    FileTime,
    dtyp::{Ace, CONTAINER_INHERIT_ACE, OBJECT_INHERIT_ACE, Sid, well_known},
};

use crate::client::*;

pub const ADMIN: &str = USER;
pub const ALICE: &str = "alice";
pub const MALLORY: &str = "mallory";

/// Shares of the one tree.
pub const FULL: &str = "full";
pub const CHANGE: &str = "change";
pub const READ: &str = "read";
/// With no access list, but for reading only.
pub const PROTECTED: &str = "protected";
pub const SHARES: [&str; 4] = [FULL, CHANGE, READ, PROTECTED];

/// Access masks as the administration's "change" and "read" have them.
pub const CHANGE_MASK: u32 = 0x0013_01BF;
pub const READ_MASK: u32 = 0x0012_00A9;

pub const DENIED: NtStatus = NtStatus::ACCESS_DENIED;
pub const BOTH: u8 = OBJECT_INHERIT_ACE | CONTAINER_INHERIT_ACE;

/// What the share leaves to everyone.
pub fn ceiling(share: &str) -> u32 {
    match share {
        FULL => ALL_ACCESS,
        CHANGE => CHANGE_MASK,
        _ => READ_MASK,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Directory,
    Volume,
}
pub const KINDS: [Kind; 2] = [Kind::Directory, Kind::Volume];

pub struct World {
    pub lab: Lab,
    pub volume: Option<Arc<Volume>>,
    rids: [u32; 2],
}

impl World {
    pub fn on(kind: Kind) -> World {
        let lab = Lab::new();
        let rids = [ALICE, MALLORY].map(|user| lab.users.add_user(user, PASSWORD, &[]));
        let (fs, volume) = match kind {
            Kind::Directory => (lab.server.trees.share(SHARE).unwrap().fs.clone().unwrap(), None),
            Kind::Volume => {
                let device = Arc::new(MemDevice::new(128 << 20));
                Volume::format(&*device, "v", 3, FileTime(1)).unwrap();
                let options = VolumeOptions { background: false, ..VolumeOptions::default() };
                let vol = Volume::open(device, options).unwrap();
                let store = VolumeStore::new(vol.clone(), Durability::Plain);
                (Fs::new(store, lab.server.trees.table.clone()), Some(vol))
            }
        };
        let permitting = |name: &str, mask| {
            let ace = ShareAce { sid: well_known::EVERYONE.clone(), allow: true, mask };
            Share { access: vec![ace], ..share(name, &fs) }
        };
        lab.server.trees.set_shares(vec![
            permitting(FULL, ALL_ACCESS),
            permitting(CHANGE, CHANGE_MASK),
            permitting(READ, READ_MASK),
            Share { read_only: true, ..share(PROTECTED, &fs) },
            Share { access_based_enumeration: true, ..share("seen", &fs) },
        ]);
        World { lab, volume, rids }
    }

    pub fn client(&self, user: &str, share: &str) -> Client {
        let mut c = self.lab.connect();
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        c.logon(&logon(user));
        c.connect(share);
        c
    }

    pub fn sid(&self, user: &str) -> Sid {
        Sid::new(5, &[21, 1, 2, 3, if user == ALICE { self.rids[0] } else { self.rids[1] }])
    }

    pub fn admin(&self) -> Client {
        self.client(ADMIN, FULL)
    }
}

pub fn everyone(mask: u32, flags: u8) -> Ace {
    Ace::allow(&well_known::EVERYONE, mask, flags)
}

pub fn admins() -> Ace {
    Ace::allow(&well_known::BUILTIN_ADMINISTRATORS, ALL_ACCESS, BOTH)
}

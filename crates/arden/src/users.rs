//! The accounts of the state as authentication reads them, always from the newest snapshot.

use std::{collections::HashMap, sync::Arc};

use arden_admin::{State, state::Snapshot};
use arden_auth::{GroupRecord, MemoryUsers, NtHash, UserDb, UserRecord};
use arden_wire::dtyp::Sid;
use parking_lot::Mutex;

/// The accounts of the newest snapshot of the state.
pub struct LiveUsers {
    state: Arc<State>,
    name: String,
    loaded: Mutex<(Arc<Snapshot>, Arc<MemoryUsers>)>,
}

impl LiveUsers {
    /// The accounts of `state`.
    pub fn new(state: Arc<State>) -> LiveUsers {
        let snapshot = state.snapshot();
        let name = snapshot.server_name();
        let users = load(&snapshot, &name);
        LiveUsers { state, name, loaded: Mutex::new((snapshot, users)) }
    }

    fn current(&self) -> Arc<MemoryUsers> {
        let snapshot = self.state.snapshot();
        let mut loaded = self.loaded.lock();
        if !Arc::ptr_eq(&loaded.0, &snapshot) {
            *loaded = (snapshot.clone(), load(&snapshot, &self.name));
        }
        loaded.1.clone()
    }
}

/// Parses a SID of the state, which holds valid ones only; any other text gives the SID of nobody.
pub fn sid(text: &str) -> Sid {
    text.parse().unwrap_or_else(|_| Sid::new(0, &[0]))
}

fn load(snapshot: &Snapshot, name: &str) -> Arc<MemoryUsers> {
    let mut groups_of: HashMap<&str, Vec<Sid>> = HashMap::new();
    for group in snapshot.groups.values() {
        let group_sid = sid(&group.sid);
        for member in &group.members {
            groups_of.entry(member.as_str()).or_default().push(group_sid.clone());
        }
    }
    let users = snapshot.users.values().filter_map(|u| {
        Some(UserRecord {
            name: u.name.clone(),
            full_name: u.full_name.clone(),
            comment: String::new(),
            rid: u.rid,
            nt_hash: NtHash::from_hex(&u.nt_hash)?,
            groups: groups_of.get(snapshot.user_sid(u).as_str()).cloned().unwrap_or_default(),
            disabled: u.disabled,
        })
    });
    let groups = snapshot.groups.values();
    let groups = groups.map(|g| GroupRecord { name: g.name.clone(), comment: g.comment.clone(), sid: sid(&g.sid) });
    let memory = MemoryUsers::new(name, sid(&snapshot.machine_sid));
    memory.replace(users.collect(), groups.collect());
    Arc::new(memory)
}

impl UserDb for LiveUsers {
    fn machine_sid(&self) -> Sid {
        self.current().machine_sid()
    }
    fn machine_name(&self) -> String {
        self.name.clone()
    }
    fn user(&self, name: &str) -> Option<UserRecord> {
        self.current().user(name)
    }
    fn users(&self) -> Vec<UserRecord> {
        self.current().users()
    }
    fn groups(&self) -> Vec<GroupRecord> {
        self.current().groups()
    }
    fn user_by_rid(&self, rid: u32) -> Option<UserRecord> {
        self.current().user_by_rid(rid)
    }
    fn group(&self, sid: &Sid) -> Option<GroupRecord> {
        self.current().group(sid)
    }
    fn groups_named(&self, name: &str) -> Vec<GroupRecord> {
        self.current().groups_named(name)
    }
}

//! The redb file under the state: tables, schema version, and writing the difference of two snapshots.
//! Records are JSON, so that a field can be added without a new schema.

use std::{collections::BTreeMap, os::unix::fs::OpenOptionsExt, path::Path};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::{Serialize, de::DeserializeOwned};

use super::Snapshot;
use crate::error::{AdminError, Result};

/// Version of the tables below. One line for each bump:
/// 1: meta, users, groups, shares.
const SCHEMA: u32 = 1;

type Table = TableDefinition<'static, &'static str, &'static [u8]>;
const META: Table = TableDefinition::new("meta");
const USERS: Table = TableDefinition::new("users");
const GROUPS: Table = TableDefinition::new("groups");
const SHARES: Table = TableDefinition::new("shares");
const POOLS: Table = TableDefinition::new("pools");
const VOLUMES: Table = TableDefinition::new("volumes");
const DISKS: Table = TableDefinition::new("disks");

/// The state is small, and readers use the snapshot: redb's cache needs next to nothing.
const CACHE_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Disk {
    db: Database,
}

fn failed(e: impl std::fmt::Display) -> AdminError {
    AdminError::failed(format!("the state store failed: {e}"), "check the disk that holds the state directory")
}

impl Disk {
    pub fn open(path: &Path) -> Result<(Disk, Snapshot)> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let db = redb::Builder::new().set_cache_size(CACHE_BYTES).create_file(file).map_err(failed)?;
        let disk = Disk { db };
        let snapshot = disk.load()?;
        Ok((disk, snapshot))
    }

    fn load(&self) -> Result<Snapshot> {
        let mut s = Snapshot::empty();
        let meta: BTreeMap<String, serde_json::Value> = self.read(META)?;
        let Some(schema) = meta.get("schema") else { return Ok(s) };
        if schema.as_u64() != Some(u64::from(SCHEMA)) {
            return Err(AdminError::failed(
                format!("the state has schema {schema}, this program knows {SCHEMA}"),
                "run the version of Arden that wrote it, or a newer one",
            ));
        }
        fn field<T: DeserializeOwned>(meta: &BTreeMap<String, serde_json::Value>, name: &str) -> Result<T> {
            let value = meta.get(name).cloned().unwrap_or_default();
            serde_json::from_value(value).map_err(|e| failed(format!("meta {name}: {e}")))
        }
        s.machine_sid = field(&meta, "machine_sid")?;
        let guid: String = field(&meta, "server_guid")?;
        s.server_guid = u128::from_str_radix(&guid, 16).map_err(failed)?;
        s.next_rid = field(&meta, "next_rid")?;
        s.settings = field(&meta, "settings")?;
        s.users = self.read(USERS)?;
        s.groups = self.read(GROUPS)?;
        s.shares = self.read(SHARES)?;
        s.pools = self.read(POOLS)?;
        s.disks = self.read(DISKS)?;
        s.volumes = self.read(VOLUMES)?;
        Ok(s)
    }

    fn read<T: DeserializeOwned>(&self, table: Table) -> Result<BTreeMap<String, T>> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = match tx.open_table(table) {
            Ok(t) => t,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
            Err(e) => return Err(failed(e)),
        };
        let mut out = BTreeMap::new();
        for row in table.iter().map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            let record =
                serde_json::from_slice(value.value()).map_err(|e| failed(format!("record {:?}: {e}", key.value())))?;
            out.insert(key.value().to_string(), record);
        }
        Ok(out)
    }

    /// One transaction, on stable storage when this returns.
    pub fn commit(&mut self, old: &Snapshot, new: &Snapshot) -> Result<()> {
        let mut tx = self.db.begin_write().map_err(failed)?;
        tx.set_durability(redb::Durability::Immediate).map_err(failed)?;
        write_difference(&tx, META, &meta(old)?, &meta(new)?)?;
        write_difference(&tx, USERS, &old.users, &new.users)?;
        write_difference(&tx, GROUPS, &old.groups, &new.groups)?;
        write_difference(&tx, SHARES, &old.shares, &new.shares)?;
        write_difference(&tx, POOLS, &old.pools, &new.pools)?;
        write_difference(&tx, DISKS, &old.disks, &new.disks)?;
        write_difference(&tx, VOLUMES, &old.volumes, &new.volumes)?;
        tx.commit().map_err(failed)
    }
}

fn meta(s: &Snapshot) -> Result<BTreeMap<String, serde_json::Value>> {
    let mut m = BTreeMap::new();
    if !s.machine_sid.is_empty() {
        m.insert("schema".to_string(), SCHEMA.into());
        m.insert("machine_sid".to_string(), s.machine_sid.clone().into());
        m.insert("server_guid".to_string(), format!("{:032x}", s.server_guid).into());
        m.insert("next_rid".to_string(), s.next_rid.into());
        m.insert("settings".to_string(), serde_json::to_value(&s.settings).map_err(failed)?);
    }
    Ok(m)
}

fn write_difference<T: Serialize + PartialEq>(
    tx: &WriteTransaction,
    table: Table,
    old: &BTreeMap<String, T>,
    new: &BTreeMap<String, T>,
) -> Result<()> {
    let mut table = tx.open_table(table).map_err(failed)?;
    for key in old.keys().filter(|k| !new.contains_key(*k)) {
        table.remove(key.as_str()).map_err(failed)?;
    }
    for (key, record) in new.iter().filter(|(k, v)| old.get(*k) != Some(v)) {
        let bytes = serde_json::to_vec(record).map_err(failed)?;
        table.insert(key.as_str(), bytes.as_slice()).map_err(failed)?;
    }
    Ok(())
}

//! The records of a store as a [`Snapshot`], and the difference of two snapshots as changes of records. Records are
//! JSON: a field can be added without a new schema.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Snapshot,
    store::{Change, Records, Table},
};
use crate::error::{AdminError, Result};

/// Version of the records. One line for each bump:
/// 1: meta, users, groups, shares; pools, disks, volumes and addresses came without one.
const SCHEMA: u32 = 1;

fn failed(e: impl std::fmt::Display) -> AdminError {
    AdminError::failed(format!("the state store failed: {e}"), "check the disk that holds the state directory")
}

fn table<T: DeserializeOwned>(records: &Records, table: Table) -> Result<BTreeMap<String, T>> {
    let rows = records.range((table, String::new())..).take_while(|((of, _), _)| *of == table);
    let row = |((_, key), bytes): (&(Table, String), &Vec<u8>)| {
        let record = serde_json::from_slice(bytes).map_err(|e| failed(format!("record {key:?}: {e}")))?;
        Ok((key.clone(), record))
    };
    rows.map(row).collect()
}

/// Decodes the records. No records give an empty snapshot without an identity.
///
/// # Errors
/// Failed, when a record cannot be decoded or has a later schema.
pub(super) fn snapshot(records: &Records) -> Result<Snapshot> {
    let mut s = Snapshot::empty();
    let meta: BTreeMap<String, serde_json::Value> = table(records, Table::Meta)?;
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
    s.users = table(records, Table::Users)?;
    s.groups = table(records, Table::Groups)?;
    s.shares = table(records, Table::Shares)?;
    s.pools = table(records, Table::Pools)?;
    s.disks = table(records, Table::Disks)?;
    s.volumes = table(records, Table::Volumes)?;
    s.addresses = table(records, Table::Addresses)?;
    Ok(s)
}

/// The changes that turn the records of `old` into those of `new`.
///
/// # Errors
/// Failed, when a record cannot be encoded as JSON.
pub(super) fn difference(old: &Snapshot, new: &Snapshot) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    compare(&mut changes, Table::Meta, &meta(old)?, &meta(new)?)?;
    compare(&mut changes, Table::Users, &old.users, &new.users)?;
    compare(&mut changes, Table::Groups, &old.groups, &new.groups)?;
    compare(&mut changes, Table::Shares, &old.shares, &new.shares)?;
    compare(&mut changes, Table::Pools, &old.pools, &new.pools)?;
    compare(&mut changes, Table::Disks, &old.disks, &new.disks)?;
    compare(&mut changes, Table::Volumes, &old.volumes, &new.volumes)?;
    compare(&mut changes, Table::Addresses, &old.addresses, &new.addresses)?;
    Ok(changes)
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

fn compare<T: Serialize + PartialEq>(
    changes: &mut Vec<Change>,
    table: Table,
    old: &BTreeMap<String, T>,
    new: &BTreeMap<String, T>,
) -> Result<()> {
    let gone = old.keys().filter(|k| !new.contains_key(*k));
    changes.extend(gone.map(|key| Change { table, key: key.clone(), value: None }));
    for (key, record) in new.iter().filter(|(k, v)| old.get(*k) != Some(v)) {
        let value = Some(serde_json::to_vec(record).map_err(failed)?);
        changes.push(Change { table, key: key.clone(), value });
    }
    Ok(())
}

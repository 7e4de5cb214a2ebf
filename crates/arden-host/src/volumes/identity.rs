//! Which device a volume's record means, and whether the volume on it is the record's: the pool of its space, and the volume's
//! id. Refuses to guess between two spaces, and to open one volume under the name of another.

use std::collections::BTreeMap;

use arden_admin::{AdminError, ErrorKind, error::Result, names::key, volume::VolumeRecord};
use arden_block::Device;
use arden_volume::Superblock;

use super::{Volumes, refusal};

/// An id as records have it.
pub(super) fn text(id: u128) -> String {
    format!("{id:032x}")
}

/// The pool that a record names.
///
/// # Errors
/// Failed, when it is no id of a pool.
pub(super) fn pool_of(record: &VolumeRecord) -> Result<Option<u128>> {
    let parsed = record.pool.as_deref().map(|pool| u128::from_str_radix(pool, 16)).transpose();
    parsed.map_err(|e| {
        let error = format!("volume {:?} has the wrong pool {:?}: {e}", record.name, record.pool);
        AdminError::failed(error, close_and_attach(&record.name))
    })
}

fn close_and_attach(name: &str) -> String {
    format!("`arden volume close {name}`, then `arden volume attach {name}` with its space and --pool")
}

/// Refuses a record without an id where that of another volume may mean the same space.
fn check_claims(all: &BTreeMap<String, VolumeRecord>, record: &VolumeRecord, pool: &Option<String>) -> Result<()> {
    if record.id.is_some() || record.space.is_none() {
        return Ok(());
    }
    let is_rival = |other: &&VolumeRecord| {
        let same_pool = match &other.pool {
            None => record.pool.is_none(),
            named => named == pool,
        };
        key(&other.name) != key(&record.name) && other.space == record.space && same_pool
    };
    let Some(rival) = all.values().find(is_rival) else { return Ok(()) };
    Err(AdminError::new(
        ErrorKind::Conflict,
        format!("volume {:?} is recorded on {} as volume {:?} is", rival.name, record.device(), record.name),
        format!("say where each belongs: {}, likewise for {}", close_and_attach(&record.name), rival.name),
    ))
}

fn other_volume(record: &VolumeRecord, is: &str, found: &Superblock) -> AdminError {
    AdminError::new(
        ErrorKind::Conflict,
        format!(
            "{} has the volume {} (label {:?}), but volume {:?} is {is}",
            record.device(),
            text(found.id),
            found.label,
            record.name
        ),
        format!("bring its own device back; or, to use what is there: {}", close_and_attach(&record.name)),
    )
}

impl Volumes {
    /// The record with the pool and the id of what is on its device.
    ///
    /// # Errors
    /// Conflict, when another volume is there, or another record may mean it; those of reading the superblock.
    pub(super) fn identified(
        &self,
        record: &VolumeRecord,
        pool: Option<u128>,
        device: &dyn Device,
    ) -> Result<VolumeRecord> {
        let found = Superblock::read(device).map_err(|e| refusal(&record.device(), e))?;
        let (pool, id) = (pool.map(text), text(found.id));
        if let Some(is) = record.id.as_ref().filter(|is| **is != id) {
            return Err(other_volume(record, is, &found));
        }
        check_claims(&self.state.snapshot().volumes, record, &pool)?;
        Ok(VolumeRecord { pool, id: Some(id), ..record.clone() })
    }

    /// Refuses to take a device for the record's where another volume is on it, or may be. One without a readable superblock is
    /// taken for what its place says.
    ///
    /// # Errors
    /// Conflict.
    pub(super) fn check_own(&self, record: &VolumeRecord, pool: Option<u128>, device: &dyn Device) -> Result<()> {
        match Superblock::read(device) {
            Ok(_) => self.identified(record, pool, device).map(|_| ()),
            Err(_) => check_claims(&self.state.snapshot().volumes, record, &pool.map(text)),
        }
    }

    /// Confirms that the volume on the device is the record's, and completes a record of an earlier version. What is recorded
    /// already does not change.
    ///
    /// # Errors
    /// As [`Volumes::identified`]; those of changing the state.
    pub(super) fn confirm(&self, record: &VolumeRecord, pool: Option<u128>, device: &dyn Device) -> Result<()> {
        let complete = self.identified(record, pool, device)?;
        if complete == *record {
            return Ok(());
        }
        self.state.change(|s| {
            check_claims(&s.volumes, record, &complete.pool)?;
            let name = &record.name;
            let known = s.volumes.get_mut(&key(name)).ok_or_else(|| AdminError::not_found("volume", name))?;
            if (&known.pool, &known.id, &known.space) != (&record.pool, &record.id, &record.space) {
                let error = format!("the record of volume {name:?} was changed meanwhile");
                return Err(AdminError::new(ErrorKind::Conflict, error, "try again"));
            }
            (known.pool, known.id) = (complete.pool.clone(), complete.id.clone());
            Ok(())
        })?;
        tracing::info!(volume = record.name, id = complete.id, pool = complete.pool, "recorded what the volume is");
        Ok(())
    }
}

#[cfg(test)]
mod tests;

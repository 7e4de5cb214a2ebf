//! The pools as the API administers them. Every change of what is stored follows the change on the disks, but for the path of a disk
//! that is added: after a crash between the two the disks' labels count, and `pool import` reads them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arden_admin::{
    AdminError, ErrorKind, Storage,
    error::Result,
    names::key,
    storage::{
        AddDisk, ColumnInfo, DiskInfo, DiskLabel, DiskQuery, DiskWipe, ExportRecord, GroupMap, JobChange, JobInfo,
        NewExport, NewJob, NewPool, NewSpace, PoolChange, PoolDiskChange, PoolImport, PoolInfo, PoolRecord,
        SpaceChange, SpaceDelete, SpaceInfo,
    },
};
use arden_block::identify;
use arden_space::{CreateOptions, Layout, Pool, PoolHost, Provision, Right, SpaceError, check_interleave, read_header};

use super::{
    Adopts, OpenPool, Pools, check_unused, devices, hosted, new_record, newest_epoch, pool_id, refusal, reserve, show,
    start_export,
};

const INTERLEAVE_BYTES: u64 = 256 << 10;

/// The pools behind the API.
pub struct PoolAdmin(pub Arc<Pools>);

/// Each disk is named once, by whatever path.
fn check_single(disks: &[PathBuf]) -> Result<()> {
    let real = |disk: &PathBuf| std::fs::canonicalize(disk).unwrap_or_else(|_| disk.clone());
    let mut seen = std::collections::BTreeSet::new();
    match disks.iter().find(|disk| !seen.insert(real(disk))) {
        Some(twice) => {
            Err(AdminError::invalid(format!("{} is named twice", twice.display()), "name each disk of the pool once"))
        }
        None => Ok(()),
    }
}

fn absolute(paths: &[PathBuf]) -> Result<()> {
    match paths.iter().find(|p| !p.is_absolute()) {
        Some(p) => Err(AdminError::invalid(format!("{} is not an absolute path", p.display()), "give the full path")),
        None => Ok(()),
    }
}

fn check_pool_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 64 || name.chars().any(|c| c.is_control() || c == '/') {
        return Err(AdminError::invalid(
            format!("{name:?} cannot be a pool's name"),
            "use 1 to 64 bytes, without slashes",
        ));
    }
    Ok(())
}

impl PoolAdmin {
    fn name_is_free(&self, name: &str) -> Result<()> {
        check_pool_name(name)?;
        if self.0.state.snapshot().pools.contains_key(&key(name)) {
            return Err(AdminError::exists("pool", name, "choose another name"));
        }
        Ok(())
    }

    /// Records an open pool, so that it is opened again when the daemon starts. In a cluster it is closed, and becomes the cluster's.
    fn remember(&self, record: &PoolRecord, open: Arc<OpenPool>) -> Result<()> {
        if self.0.member {
            open.close()?;
            return self.give_to_cluster(record);
        }
        self.keep_record(record)?;
        self.0.keep(record, open);
        Ok(())
    }

    fn keep_record(&self, record: &PoolRecord) -> Result<()> {
        self.0.state.change(|s| {
            s.pools.insert(key(&record.name), record.clone());
            Ok(())
        })
    }

    /// The nodes have to know the pool already when they hear that the cluster has it.
    fn give_to_cluster(&self, record: &PoolRecord) -> Result<()> {
        let adopt = |epoch| {
            self.keep_record(record)?;
            self.cluster()?.adopt(pool_id(record)?, epoch)
        };
        newest_epoch(record).and_then(adopt).map_err(|e| {
            let hint = "the pool is made and closed: `arden pool import` with its disks tries it again";
            AdminError::new(e.kind, format!("the cluster did not take the pool {}: {}", record.name, e.error), hint)
        })
    }

    fn cluster(&self) -> Result<Arc<dyn Adopts>> {
        let starting = || AdminError::new(ErrorKind::Conflict, "this node is just starting", "try again");
        self.0.cluster.get().cloned().ok_or_else(starting)
    }

    /// Waits until a node of the cluster owns the pool, and tells of it. The caller does not hold `Pools::changing`: a pool that comes to
    /// this node is opened under it.
    fn once_owned(&self, record: &PoolRecord) -> Result<PoolInfo> {
        if self.0.member {
            self.cluster()?.await_owner(pool_id(record)?)?;
        }
        self.info(record)
    }

    /// A pool that other nodes may write to is not opened beside them, whoever is sure of what.
    fn check_not_of_cluster(&self, name: &str, id: u128) -> Result<()> {
        match self.0.member && self.cluster()?.has(id) {
            true => Err(AdminError::exists("pool", name, "the cluster has it: `arden pool list` shows its owner")),
            false => Ok(()),
        }
    }

    /// The caller holds `Pools::changing`.
    fn add(&self, pool: &str, add: &AddDisk) -> Result<()> {
        let open = self.0.opened(pool)?;
        devices::check_empty(&add.disk, add.force)?;
        self.check_unshared(&add.disk, add.force)?;
        let (path, spare, labels) = (add.disk.clone(), add.hot_spare, self.0.labels());
        let guard = open.guard.clone();
        // First: a path too many only has others looked at too, but a disk in use that no path leads to keeps the pool closed.
        self.0.change_record(pool, |r| {
            r.devices.retain(|d| *d != add.disk);
            r.devices.push(add.disk.clone());
        })?;
        let added = open.ask(move |p| async move {
            let dev = reserve::open_device(p.rt(), &path, &labels, guard.as_ref()).await?;
            p.add_disk(dev, spare).await
        });
        if let Err(error) = added {
            self.take_back_path(pool, &open, &add.disk);
            return Err(error);
        }
        Ok(())
    }

    /// A disk was not added. Where that is not certain its path stays.
    fn take_back_path(&self, pool: &str, open: &OpenPool, disk: &Path) {
        let name = disk.display().to_string();
        let is_added = open.ask(move |p| async move { Ok(p.status().disks.iter().any(|d| d.name == name)) });
        if is_added.is_ok_and(|is| !is)
            && let Err(error) = self.0.change_record(pool, |r| r.devices.retain(|d| d != disk))
        {
            tracing::warn!(pool, disk = %disk.display(), "the path of a disk that was not added stays: {error}");
        }
    }

    /// Users of a share must not get at the disks of a pool.
    fn check_unshared(&self, disk: &Path, force: bool) -> Result<()> {
        if force { Ok(()) } else { self.0.sharing.check_device(disk) }
    }

    fn info(&self, record: &PoolRecord) -> Result<PoolInfo> {
        let slot = self.0.pools.lock().get(&key(&record.name)).cloned();
        let Some(open) = slot.as_ref().and_then(|s| s.open.clone()) else {
            return Ok(show::closed(record, slot.as_ref().map_or(self.0.never_opened(), |s| &s.reason)));
        };
        let (status, levels) = open.ask(|p| async move { Ok((p.status(), p.warning_levels())) })?;
        Ok(show::pool(record, &open, &status, levels))
    }

    fn space_info(&self, pool: &str, open: &OpenPool, name: &str) -> Result<SpaceInfo> {
        let status = open.ask(|p| async move { Ok(p.status()) })?;
        let space = status.spaces.iter().find(|s| s.name == name);
        let record = self.0.record(pool)?;
        space.map(|s| show::space(&record.name, open, s)).ok_or_else(|| AdminError::not_found("space", name))
    }

    /// The open pool, once it is sure that it has the space.
    fn with_space(&self, pool: &str, name: &str) -> Result<Arc<OpenPool>> {
        let open = self.0.opened(pool)?;
        self.space_info(pool, &open, name)?;
        Ok(open)
    }

    fn create(&self, new: &NewPool) -> Result<Arc<OpenPool>> {
        let (name, main, spare, force) = (new.name.clone(), new.disks.clone(), new.hot_spares.clone(), new.force);
        let labels = self.0.labels();
        let host = PoolHost::start(move |rt| {
            Box::pin(async move {
                let open = |list: &[PathBuf]| {
                    let all = list.iter().map(|p| devices::open_device(&rt, p, &labels));
                    all.collect::<std::result::Result<Vec<_>, _>>()
                };
                let (main, spare) = (open(&main)?, open(&spare)?);
                for d in main.iter().chain(&spare) {
                    if read_header(&**d).await?.is_some() && !force {
                        return Err(SpaceError::Refused(format!("{} belongs to a pool", d.info().name)));
                    }
                }
                Pool::create(&rt, &name, main, spare, CreateOptions::default()).await
            })
        });
        let host = host.map_err(refusal)?;
        let id = host.call(|p| async move { Ok(p.status().id) }).map_err(refusal)?;
        Ok(hosted(host, id, None))
    }

    /// Which pool the labels of an import name, and its disks.
    fn found(&self, import: &PoolImport) -> Result<(String, u128, Vec<devices::Found>)> {
        let mut found = devices::scan(&devices::candidates(&import.disks));
        let known: Vec<String> = self.0.state.snapshot().pools.values().map(|p| p.id.clone()).collect();
        let cluster = if self.0.member { Some(self.cluster()?) } else { None };
        // One that was made while etcd did not answer may be known, and not be the cluster's yet.
        let is_known = |id: u128| match &cluster {
            Some(cluster) => cluster.has(id),
            None => known.contains(&format!("{id:032x}")),
        };
        if import.name.is_none() {
            found.retain(|f| !is_known(f.pool_id));
        }
        if let Some(name) = &import.name {
            found.retain(|f| f.pool_name == *name);
        }
        let Some(first) = found.first() else {
            let error = "no disk of a pool that is not known here was found";
            return Err(AdminError::new(ErrorKind::NotFound, error, "name the disks, or the directory of disk files"));
        };
        let (name, id) = (first.pool_name.clone(), first.pool_id);
        let mut others: Vec<&str> = found.iter().filter(|f| f.pool_id != id).map(|f| f.pool_name.as_str()).collect();
        others.dedup();
        if !others.is_empty() {
            let error = format!("disks of several pools were found: {name}, {}", others.join(", "));
            return Err(AdminError::new(ErrorKind::Conflict, error, "say which with --name"));
        }
        Ok((name, id, found))
    }
}

impl Storage for PoolAdmin {
    fn disks(&self, query: &DiskQuery) -> Result<Vec<DiskInfo>> {
        absolute(&query.disks)?;
        let labels = self.0.labels();
        if !query.disks.is_empty() {
            return query.disks.iter().map(|p| devices::info(p, &labels)).collect();
        }
        let mut all = identify::block_devices();
        let snapshot = self.0.state.snapshot();
        all.extend(snapshot.pools.values().flat_map(|p| p.devices.clone()));
        all.extend(snapshot.disks.keys().map(PathBuf::from));
        all.sort();
        all.dedup();
        Ok(all.iter().filter_map(|p| devices::info(p, &labels).ok()).collect())
    }

    fn label_disk(&self, label: &DiskLabel) -> Result<DiskInfo> {
        absolute(std::slice::from_ref(&label.disk))?;
        if let Some(m) = label.media.as_deref().filter(|m| !m.is_empty() && devices::parse_media(m).is_none()) {
            return Err(AdminError::invalid(
                format!("{m:?} is no medium"),
                "one of unknown, rotating, ssd, nvme; empty for what the system says",
            ));
        }
        devices::info(&label.disk, &self.0.labels())?;
        self.0.state.change(|s| {
            let path = label.disk.display().to_string();
            let mut record = s.disks.remove(&path).unwrap_or_default();
            for (to, from) in [
                (&mut record.model, &label.model),
                (&mut record.serial, &label.serial),
                (&mut record.media, &label.media),
            ] {
                if let Some(text) = from {
                    *to = Some(text.clone()).filter(|t| !t.is_empty());
                }
            }
            if record != Default::default() {
                s.disks.insert(path, record);
            }
            Ok(())
        })?;
        devices::info(&label.disk, &self.0.labels())
    }

    fn wipe_disk(&self, wipe: &DiskWipe) -> Result<()> {
        absolute(std::slice::from_ref(&wipe.disk))?;
        let _one = self.0.changing.lock();
        devices::wipe(&wipe.disk, wipe.force)
    }

    fn pools(&self) -> Result<Vec<PoolInfo>> {
        self.0.state.snapshot().pools.values().map(|r| self.info(r)).collect()
    }

    fn pool(&self, name: &str) -> Result<PoolInfo> {
        self.info(&self.0.record(name)?)
    }

    fn create_pool(&self, new: &NewPool) -> Result<PoolInfo> {
        let all: Vec<PathBuf> = new.disks.iter().chain(&new.hot_spares).cloned().collect();
        absolute(&all)?;
        check_single(&all)?;
        let one = self.0.changing.lock();
        self.name_is_free(&new.name)?;
        for d in &all {
            devices::check_empty(d, new.force)?;
            self.check_unshared(d, new.force)?;
        }
        let open = self.create(new)?;
        let id = open.ask(|p| async move { Ok(p.status().id) })?;
        let record = new_record(new.name.clone(), id, all);
        self.remember(&record, open)?;
        drop(one);
        self.once_owned(&record)
    }

    fn import_pool(&self, import: &PoolImport) -> Result<PoolInfo> {
        absolute(&import.disks)?;
        absolute(&import.discard)?;
        let one = self.0.changing.lock();
        let (name, id, found) = self.found(import)?;
        self.check_not_of_cluster(&name, id)?;
        // Importing a known pool that is closed is how a decision about a split reaches it.
        let known = self.0.state.snapshot().pools.values().find(|p| pool_id(p).is_ok_and(|x| x == id)).cloned();
        if let Some(k) = &known
            && self.0.opened(&k.name).is_ok()
        {
            return Err(AdminError::exists("pool", &k.name, "it is open here"));
        }
        if known.is_none() {
            self.name_is_free(&name)?;
        }
        let discard = devices::scan(&import.discard).iter().map(|f| f.disk_id).collect();
        let paths = found.into_iter().map(|f| f.path).collect();
        let record = PoolRecord { devices: paths, ..known.unwrap_or_else(|| new_record(name, id, Vec::new())) };
        let right = if import.take_from_cluster { Right::FromCluster } else { Right::Alone };
        let import = || self.remember(&record, self.0.open(&record, discard, right)?);
        if self.0.member {
            let cluster = self.cluster()?;
            cluster.begin_import(id)?;
            let imported = import();
            cluster.end_import(id);
            imported?;
        } else {
            import()?;
        }
        drop(one);
        let mut info = self.once_owned(&record)?;
        info.events.extend(self.0.volumes_to_attach(&record, &info));
        Ok(info)
    }

    fn change_pool(&self, name: &str, change: &PoolChange) -> Result<PoolInfo> {
        let _one = self.0.changing.lock();
        let open = self.0.opened(name)?;
        if let Some(levels) = change.warn_percent {
            open.ask(move |p| async move { p.set_warning_levels(levels).await })?;
        }
        if let Some(seconds) = change.grace_seconds {
            self.0.change_record(name, |r| r.grace_seconds = seconds)?;
            open.ask(move |p| async move {
                p.set_grace_ms(seconds.saturating_mul(1000));
                Ok(())
            })?;
        }
        let Some(to) = change.name.as_deref() else { return self.pool(name) };
        if key(to) != key(name) {
            self.name_is_free(to)?;
        }
        check_pool_name(to)?;
        let label = to.to_string();
        open.ask(move |p| async move { p.rename(&label).await })?;
        self.0.state.change(|s| {
            if let Some(r) = s.pools.remove(&key(name)) {
                s.pools.insert(key(to), PoolRecord { name: to.to_string(), ..r });
            }
            Ok(())
        })?;
        let mut pools = self.0.pools.lock();
        if let Some(slot) = pools.remove(&key(name)) {
            pools.insert(key(to), slot);
        }
        drop(pools);
        self.0.jobs.lock().values_mut().filter(|j| key(&j.pool) == key(name)).for_each(|j| j.pool = to.to_string());
        self.pool(to)
    }

    fn forget_pool(&self, name: &str) -> Result<()> {
        let mut one = Some(self.0.changing.lock());
        let record = self.0.record(name)?;
        if let Ok(open) = self.0.opened(name) {
            let status = open.ask(|p| async move { Ok(p.status()) })?;
            status.spaces.iter().try_for_each(|s| check_unused(&open, &s.name))?;
            if !self.0.member {
                open.close()?;
            }
        }
        if self.0.member {
            // The ownership closes it, which changes what is locked here.
            drop(one.take());
            self.cluster()?.let_go(pool_id(&record)?)?;
        }
        let _one = one.unwrap_or_else(|| self.0.changing.lock());
        self.0.pools.lock().remove(&key(name));
        self.0.jobs.lock().retain(|_, j| key(&j.pool) != key(name));
        self.0.state.change(|s| {
            s.pools.remove(&key(name));
            Ok(())
        })
    }

    fn add_disk(&self, pool: &str, add: &AddDisk) -> Result<PoolInfo> {
        absolute(std::slice::from_ref(&add.disk))?;
        let _one = self.0.changing.lock();
        self.add(pool, add)?;
        self.pool(pool)
    }

    fn change_disk(&self, pool: &str, disk: u16, change: &PoolDiskChange) -> Result<PoolInfo> {
        let (open, retire) = (self.0.opened(pool)?, change.retire);
        open.ask(move |p| async move { if retire { p.retire(disk).await } else { p.keep_disk(disk).await } })?;
        self.pool(pool)
    }

    fn start_job(&self, pool: &str, new: &NewJob) -> Result<JobInfo> {
        new.add.iter().try_for_each(|add| absolute(std::slice::from_ref(&add.disk)))?;
        let _one = self.0.changing.lock();
        if let Some(add) = &new.add {
            // A job that is refused adds nothing.
            self.0.check_new_job(pool, new)?;
            self.add(pool, add)?;
        }
        self.0.new_job(pool, new)
    }

    fn jobs(&self) -> Result<Vec<JobInfo>> {
        self.0.all_jobs()
    }

    fn job(&self, id: u64) -> Result<JobInfo> {
        self.0.job_info(id)
    }

    fn change_job(&self, id: u64, change: &JobChange) -> Result<JobInfo> {
        self.0.pause_job(id, change.paused)
    }

    fn cancel_job(&self, id: u64) -> Result<()> {
        self.0.stop_job(id)
    }

    fn spaces(&self) -> Result<Vec<SpaceInfo>> {
        Ok(self.pools()?.into_iter().flat_map(|p| p.spaces).collect())
    }

    fn create_space(&self, pool: &str, new: &NewSpace) -> Result<SpaceInfo> {
        let _one = self.0.changing.lock();
        let open = self.0.opened(pool)?;
        let layout = Layout::parse(&new.layout).ok_or_else(|| {
            let hint = "one of simple, mirror2, mirror3, parity, dual-parity";
            AdminError::invalid(format!("{:?} is no layout", new.layout), hint)
        })?;
        let interleave = new.interleave_bytes.unwrap_or(INTERLEAVE_BYTES);
        check_interleave(interleave).map_err(|e| AdminError::invalid(e.to_string(), "the default is 256k"))?;
        if self.spaces()?.iter().any(|s| s.name == new.name) {
            return Err(AdminError::exists("space", &new.name, "choose another name"));
        }
        let (name, columns, size) = (new.name.clone(), new.columns.map(usize::from), new.size_bytes);
        let provision = if new.fixed { Provision::Fixed } else { Provision::Thin };
        open.ask(move |p| async move {
            let size = match size {
                Some(n) => n,
                None => p.room_for(layout, columns, interleave)?,
            };
            if size == 0 {
                return Err(SpaceError::OutOfSpace);
            }
            p.create_space(&name, layout, columns, interleave, size, provision).await.map(|_| ())
        })?;
        self.space_info(pool, &open, &new.name)
    }

    fn space(&self, pool: &str, name: &str) -> Result<SpaceInfo> {
        self.space_info(pool, &*self.0.opened(pool)?, name)
    }

    fn space_map(&self, pool: &str, name: &str) -> Result<Vec<GroupMap>> {
        let open = self.with_space(pool, name)?;
        let name = name.to_string();
        let map = open.ask(move |p| async move { p.space_map(p.space_named(&name)?.id()) })?;
        let column = |c: &arden_space::ColumnPlace| ColumnInfo {
            disk: c.disk,
            slab: c.slab,
            state: if !c.online {
                "missing"
            } else if c.stale {
                "stale"
            } else {
                "whole"
            }
            .to_string(),
            moving_to: c.moving_to,
        };
        Ok(map.iter().map(|(g, c)| GroupMap { group: *g as u64, columns: c.iter().map(column).collect() }).collect())
    }

    fn grow_space(&self, pool: &str, name: &str, change: &SpaceChange) -> Result<SpaceInfo> {
        let open = self.with_space(pool, name)?;
        let (space, size) = (name.to_string(), change.size_bytes);
        open.ask(move |p| async move { p.space_named(&space)?.grow(size).await })?;
        self.space_info(pool, &open, name)
    }

    fn delete_space(&self, pool: &str, name: &str, delete: &SpaceDelete) -> Result<()> {
        let open = self.with_space(pool, name)?;
        // Kept from everybody else until it is deleted.
        let _looked_at = if delete.force { None } else { Some(self.0.without_volume(name, open.id)?) };
        let _one = self.0.changing.lock();
        if delete.force {
            check_unused(&open, name)?;
        }
        let name = name.to_string();
        open.ask(move |p| async move {
            let id = p.space_named(&name)?.id();
            p.delete_space(id).await
        })
    }

    fn export_space(&self, pool: &str, name: &str, new: &NewExport) -> Result<SpaceInfo> {
        let _one = self.0.changing.lock();
        let open = self.with_space(pool, name)?;
        check_unused(&open, name)?;
        if new.nbd.strip_prefix("unix:").is_some_and(|p| !Path::new(p).is_absolute()) {
            return Err(AdminError::invalid(format!("{} is not an absolute path", new.nbd), "give the full path"));
        }
        start_export(&open, name, &new.nbd)?;
        let record = ExportRecord { space: name.to_string(), nbd: new.nbd.clone() };
        self.0.change_record(pool, |r| {
            r.exports.retain(|e| e.space != record.space);
            r.exports.push(record.clone());
        })?;
        self.space_info(pool, &open, name)
    }

    fn unexport_space(&self, pool: &str, name: &str) -> Result<SpaceInfo> {
        let _one = self.0.changing.lock();
        let open = self.with_space(pool, name)?;
        self.0.change_record(pool, |r| r.exports.retain(|e| e.space != name))?;
        let export = open.exports.lock().remove(name);
        if let Some(e) = export {
            e.stop();
        }
        self.space_info(pool, &open, name)
    }
}

//! Jobs, the long work on pools: one at a time for each pool, with progress, pause and cancel. Unfinished jobs are in the
//! state store and continue after a restart. Refuses a second job on a pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    names::key,
    storage::{JobInfo, JobKind, JobRecord, JobState, NewJob, PoolRecord},
};
use arden_space::{Pool, SpaceError, SpaceResult};

use super::{OpenPool, Pools, devices};

/// Finished jobs that are still shown.
const FINISHED_MAX: usize = 20;

/// A job, running or finished.
pub struct Job {
    pub pool: String,
    pub record: JobRecord,
    pub state: JobState,
    pub result: String,
    /// Where the disk that is to leave lies.
    pub path: String,
}

/// A message of a pool's thread to the watcher.
pub struct Finished {
    pub id: u64,
    pub result: SpaceResult<String>,
}

/// The part of a pool's progress that belongs to a kind of job.
fn parts(kind: JobKind) -> &'static [&'static str] {
    match kind {
        JobKind::Scrub => &["scrub", "resync"],
        JobKind::Repair => &["repair", "resync"],
        JobKind::Rebalance => &["rebalance"],
        JobKind::RemoveDisk => &["drain"],
    }
}

async fn work(pool: &Pool, job: &JobRecord) -> SpaceResult<String> {
    match job.kind {
        JobKind::Scrub => {
            let r = pool.scrub_from(job.scrub_at.0, job.scrub_at.1 as usize).await?;
            let found =
                format!("{} bytes read, {} healed, {} undecided, {} lost", r.bytes, r.healed, r.undecided, r.lost);
            let wrong = match (r.undecided, r.lost) {
                (0, 0) => return Ok(found),
                (_, 0) => {
                    "copies differ, and none is known to be right; the checksums of a volume decide when it is read"
                }
                _ => {
                    "what is lost could not be read from any disk: bring back missing disks, or restore it from a backup"
                }
            };
            Err(SpaceError::Refused(format!("{found}: {wrong}")))
        }
        JobKind::Repair => {
            let r = pool.repair().await?;
            if r.left > 0 {
                let rule = "columns have no room on other disks; add a disk, then repair again";
                return Err(SpaceError::Refused(format!("{} columns rebuilt, {} {rule}", r.moved, r.left)));
            }
            let rebuilt = format!("{} columns rebuilt", r.moved);
            let offline = pool.status().spaces.into_iter().filter(|s| s.groups_offline > 0).map(|s| s.name);
            let offline: Vec<String> = offline.collect();
            if !offline.is_empty() {
                let rule = "more disks are missing than the layout tolerates; bring them back";
                return Err(SpaceError::Refused(format!("{rebuilt}, but offline: {}: {rule}", offline.join(", "))));
            }
            Ok(rebuilt)
        }
        JobKind::Rebalance => pool.rebalance().await.map(|r| format!("{} columns moved", r.moved)),
        JobKind::RemoveDisk => {
            let disk = job.disk.unwrap_or(u16::MAX);
            let gone = format!("disk {disk} is empty and no longer in the pool");
            if !pool.status().disks.iter().any(|d| d.index == disk) {
                // The daemon ended between the last step and the book-keeping.
                return Ok(gone);
            }
            match pool.remove_disk(disk).await {
                Ok(()) => Ok(gone),
                Err(e) => {
                    if e != SpaceError::Closed {
                        pool.keep_disk(disk).await?;
                    }
                    Err(e)
                }
            }
        }
    }
}

impl Pools {
    /// Refuses a job that cannot be started now. The caller holds `Pools::changing`.
    pub(super) fn check_new_job(&self, name: &str, new: &NewJob) -> Result<()> {
        let open = self.opened(name)?;
        if (new.kind == JobKind::RemoveDisk) != new.disk.is_some() || new.add.is_some() && new.disk.is_none() {
            return Err(AdminError::invalid(
                "remove-disk takes the number of a disk, other jobs no disk",
                "see the API",
            ));
        }
        if let Some(disk) = new.disk {
            let known = open.ask(move |p| async move { Ok(p.status().disks.iter().any(|d| d.index == disk)) })?;
            if !known {
                let hint = format!("`arden pool show {name}` shows its disks");
                return Err(AdminError::new(ErrorKind::NotFound, format!("pool {name:?} has no disk {disk}"), hint));
            }
        }
        self.check_no_job(name)
    }

    pub(super) fn new_job(self: &Arc<Pools>, name: &str, new: &NewJob) -> Result<JobInfo> {
        self.check_new_job(name, new)?;
        let open = self.opened(name)?;
        let record = self.change_job_record(name, |r, id| {
            let record = JobRecord { id, kind: new.kind, disk: new.disk, paused: false, scrub_at: (0, 0) };
            r.jobs.push(record.clone());
            record
        })?;
        let id = record.id;
        self.run_job(name, &open, record)?;
        self.job_info(id)
    }

    /// Changes a pool's record with a number for a job that no other has: none that was here, nor one that any node works on.
    fn change_job_record<T>(&self, name: &str, mut edit: impl FnMut(&mut PoolRecord, u64) -> T) -> Result<T> {
        let mut id = 0;
        let result = self.state.change(|s| {
            let last = s.pools.values().flat_map(|p| &p.jobs).map(|j| j.id).max().unwrap_or(0);
            id = self.next_job.load(Ordering::SeqCst).max(last + 1);
            let record = s.pools.get_mut(&key(name)).ok_or_else(|| AdminError::not_found("pool", name))?;
            Ok(edit(record, id))
        })?;
        self.next_job.fetch_max(id + 1, Ordering::SeqCst);
        Ok(result)
    }

    /// A job of a pool that came here gets another number where a job of another pool has its own.
    fn renumber(&self, name: &str, job: &mut JobRecord) -> Result<()> {
        let is_others = |j: &Job| key(&j.pool) != key(name) && j.record_is_open();
        if !self.jobs.lock().get(&job.id).is_some_and(is_others) {
            return Ok(());
        }
        let old = job.id;
        job.id = self.change_job_record(name, |r, id| {
            r.jobs.iter_mut().filter(|j| j.id == old).for_each(|j| j.id = id);
            id
        })?;
        tracing::info!(
            pool = name,
            job = old,
            number = job.id,
            "the job goes on under another number: a job of another pool has its own"
        );
        Ok(())
    }

    fn check_no_job(&self, name: &str) -> Result<()> {
        let jobs = self.jobs.lock();
        let active = |j: &&Job| matches!(j.state, JobState::Running | JobState::Paused);
        match jobs.values().filter(active).find(|j| key(&j.pool) == key(name)) {
            Some(j) => Err(AdminError::new(
                ErrorKind::Conflict,
                format!("job {} ({}) works on pool {name:?}", j.record.id, j.record.kind),
                format!("wait for it, or stop it with `arden job cancel {}`", j.record.id),
            )),
            None => Ok(()),
        }
    }

    /// Starts a job that the state store has.
    pub(super) fn run_job(self: &Arc<Pools>, name: &str, open: &OpenPool, mut record: JobRecord) -> Result<()> {
        self.renumber(name, &mut record)?;
        let (disk, paused) = (record.disk, record.paused);
        let path = open.ask(move |p| async move {
            p.set_cancelled(false);
            p.set_paused(paused);
            let status = p.status();
            Ok(status.disks.into_iter().find(|d| Some(d.index) == disk).map_or_else(String::new, |d| d.name))
        })?;
        let state = if paused { JobState::Paused } else { JobState::Running };
        let job = Job { pool: name.to_string(), record: record.clone(), state, result: String::new(), path };
        {
            let mut jobs = self.jobs.lock();
            jobs.insert(record.id, job);
            let done: Vec<u64> =
                jobs.iter().filter(|j| !j.1.record_is_open()).map(|(&id, _)| id).rev().skip(FINISHED_MAX).collect();
            done.iter().for_each(|id| drop(jobs.remove(id)));
        }
        let (id, tell) = (record.id, self.finished.lock().clone());
        let run = move |pool: Pool| async move { work(&pool, &record).await };
        let done = move |result| {
            let _ = tell.send(Finished { id, result });
        };
        open.caller.submit(run, done).map_err(super::refusal)
    }

    /// A job has ended on its pool's thread.
    pub(super) fn job_finished(&self, f: Finished) {
        if self.stopping.load(Ordering::SeqCst) || f.result == Err(SpaceError::Closed) {
            return;
        }
        let (pool, kind, path, text) = {
            let mut jobs = self.jobs.lock();
            let Some(job) = jobs.get_mut(&f.id) else { return };
            (job.state, job.result) = match f.result {
                Ok(text) => (JobState::Done, text),
                Err(SpaceError::Cancelled) => (JobState::Cancelled, "stopped on request".to_string()),
                Err(e) => (JobState::Failed, e.to_string()),
            };
            let left = job.state == JobState::Done && job.record.kind == JobKind::RemoveDisk;
            let path = left.then(|| job.path.clone());
            (job.pool.clone(), job.record.kind, path, format!("{}: {}", job.state, job.result))
        };
        tracing::info!(job = f.id, pool, %kind, "job {text}");
        if let Ok(open) = self.opened(&pool) {
            let reset = open.ask(|p| async move {
                p.set_cancelled(false);
                p.set_paused(false);
                Ok(())
            });
            if let Err(e) = reset {
                tracing::error!(pool, "{e}");
            }
        }
        let changed = self.change_record(&pool, |r| {
            r.jobs.retain(|j| j.id != f.id);
            r.devices.retain(|d| path.as_deref().is_none_or(|p| !devices::is_same(d, std::path::Path::new(p))));
        });
        if let Err(e) = changed {
            tracing::error!(job = f.id, "{e}");
        }
    }

    /// Remembers how far scrubs are, so that a restart does not begin again.
    pub(super) fn remember_scrubs(&self) {
        let running: Vec<(u64, String, (u32, u64))> = {
            let jobs = self.jobs.lock();
            let scrubs = jobs.values().filter(|j| j.record.kind == JobKind::Scrub && j.record_is_open());
            scrubs.map(|j| (j.record.id, j.pool.clone(), j.record.scrub_at)).collect()
        };
        for (id, pool, before) in running {
            let Ok(open) = self.opened(&pool) else { continue };
            let Ok(at) = open.ask(|p| async move { Ok(p.scrub_at()) }) else { continue };
            let at = (at.0, at.1 as u64);
            if at > before {
                if let Some(j) = self.jobs.lock().get_mut(&id) {
                    j.record.scrub_at = at;
                }
                let set = |r: &mut PoolRecord| {
                    r.jobs.iter_mut().filter(|j| j.id == id).for_each(|j| j.scrub_at = at);
                };
                if let Err(e) = self.change_record(&pool, set) {
                    tracing::error!(job = id, "{e}");
                }
            }
        }
    }

    pub(super) fn job_info(&self, id: u64) -> Result<JobInfo> {
        let (mut info, active) = {
            let jobs = self.jobs.lock();
            let job = jobs.get(&id).ok_or_else(|| AdminError::not_found("job", &id.to_string()))?;
            (job.info(), job.record_is_open())
        };
        if active && let Ok(open) = self.opened(&info.pool) {
            let kind = info.kind;
            let progress = open.ask(move |p| async move {
                let all = p.status().progress;
                Ok(parts(kind).iter().find_map(|w| all.iter().find(|x| x.0 == *w).map(|x| (x.1, x.2))))
            })?;
            (info.done, info.total) = progress.unwrap_or((0, 0));
        }
        Ok(info)
    }

    pub(super) fn all_jobs(&self) -> Result<Vec<JobInfo>> {
        let ids: Vec<u64> = self.jobs.lock().keys().copied().collect();
        ids.into_iter().map(|id| self.job_info(id)).collect()
    }

    fn active_job(&self, id: u64) -> Result<String> {
        let jobs = self.jobs.lock();
        let job = jobs.get(&id).ok_or_else(|| AdminError::not_found("job", &id.to_string()))?;
        if !job.record_is_open() {
            let error = format!("job {id} is {}", job.state);
            return Err(AdminError::new(ErrorKind::Conflict, error, "start another one"));
        }
        Ok(job.pool.clone())
    }

    pub(super) fn pause_job(&self, id: u64, paused: bool) -> Result<JobInfo> {
        let pool = self.active_job(id)?;
        self.change_record(&pool, |r| r.jobs.iter_mut().filter(|j| j.id == id).for_each(|j| j.paused = paused))?;
        self.opened(&pool)?.ask(move |p| async move {
            p.set_paused(paused);
            Ok(())
        })?;
        if let Some(j) = self.jobs.lock().get_mut(&id).filter(|j| j.record_is_open()) {
            j.state = if paused { JobState::Paused } else { JobState::Running };
        }
        self.job_info(id)
    }

    pub(super) fn stop_job(&self, id: u64) -> Result<()> {
        let pool = self.active_job(id)?;
        self.opened(&pool)?.ask(|p| async move {
            p.set_cancelled(true);
            p.set_paused(false);
            Ok(())
        })
    }
}

impl Job {
    pub fn record_is_open(&self) -> bool {
        matches!(self.state, JobState::Running | JobState::Paused)
    }

    fn info(&self) -> JobInfo {
        JobInfo {
            id: self.record.id,
            pool: self.pool.clone(),
            kind: self.record.kind,
            disk: self.record.disk,
            state: self.state,
            done: 0,
            total: 0,
            result: self.result.clone(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{os::unix::fs::FileExt, path::PathBuf};

    use arden_admin::{
        state::{State, StateDirectory},
        storage::{AddDisk, NewPool, NewSpace, Storage},
    };
    use arden_block::Device;

    use super::*;
    use crate::{pools::admin::PoolAdmin, sharing::NothingShared, volumes::device};

    const BYTE: u8 = 0xa7;

    /// A server's pools, on files.
    pub struct Bench {
        directory: PathBuf,
        pub pools: Arc<Pools>,
    }

    impl Bench {
        pub fn new(name: &str) -> Bench {
            let directory = std::env::temp_dir().join(format!("arden-jobs-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir_all(&directory).unwrap();
            let state = State::open(&Arc::new(StateDirectory::open(&directory).unwrap())).unwrap();
            Bench { directory, pools: Pools::start(&Arc::new(state), Arc::new(NothingShared)).unwrap() }
        }

        fn admin(&self) -> PoolAdmin {
            PoolAdmin(self.pools.clone())
        }

        /// The job, when it has ended.
        fn ended(&self, mut job: JobInfo) -> JobInfo {
            while matches!(job.state, JobState::Running | JobState::Paused) {
                std::thread::sleep(std::time::Duration::from_millis(10));
                job = self.pools.job_info(job.id).unwrap();
            }
            job
        }

        fn run(&self, kind: JobKind) -> JobInfo {
            self.ended(self.admin().start_job("one", &NewJob { kind, disk: None, add: None }).unwrap())
        }

        /// The pool `one` with a space, the first block of which is on its disks.
        fn space(&self, layout: &str) {
            self.pool("one");
            let space = NewSpace {
                name: "s".into(),
                layout: layout.into(),
                columns: None,
                interleave_bytes: None,
                size_bytes: Some(16 << 20),
                fixed: false,
            };
            self.admin().create_space("one", &space).unwrap();
            let device = device::open(self.pools.take_space("s", None, "a test").unwrap(), || ()).unwrap();
            device.write(0, &[BYTE; 4096]).unwrap();
            device.flush().unwrap();
        }

        /// Overwrites what has the pattern of the first block on one disk; what it has besides stays.
        fn spoil(&self, disk: &str) {
            let path = self.directory.join(disk);
            let mut bytes = std::fs::read(&path).unwrap();
            let found: Vec<usize> =
                (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..at + 4096] == [BYTE; 4096]).collect();
            assert!(!found.is_empty());
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            for at in found {
                bytes[at] = !BYTE;
                file.write_all_at(&bytes[at..at + 4096], at as u64).unwrap();
            }
        }

        fn disk(&self, name: &str, mib: u64) -> PathBuf {
            let path = self.directory.join(name);
            std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
            path
        }

        pub fn pool(&self, name: &str) {
            let disks = (0..2).map(|n| self.disk(&format!("{name}-{n}"), 128)).collect();
            self.admin()
                .create_pool(&NewPool { name: name.into(), disks, hot_spares: Vec::new(), force: false })
                .unwrap();
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            self.pools.stop();
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    /// Nodes number the jobs of their pools alike, and a pool moves with its jobs.
    #[test]
    fn a_job_that_comes_with_its_pool_takes_no_number_of_another() {
        let bench = Bench::new("numbers");
        ["one", "two"].iter().for_each(|name| bench.pool(name));
        let scrub = |id| JobRecord { id, kind: JobKind::Scrub, disk: None, paused: true, scrub_at: (0, 0) };
        let pools = &bench.pools;
        for name in ["one", "two"] {
            pools.change_record(name, |r| r.jobs.push(scrub(7))).unwrap();
            let mut record = scrub(7);
            pools.renumber(name, &mut record).unwrap();
            // As if it ran: one on a pool without data ends at once.
            let (result, path) = (String::new(), String::new());
            let job = Job { pool: name.into(), record, state: JobState::Paused, result, path };
            pools.jobs.lock().insert(job.record.id, job);
        }
        let numbers = |name: &str| pools.record(name).unwrap().jobs.iter().map(|j| j.id).collect::<Vec<_>>();
        assert_eq!((numbers("one"), numbers("two")), (vec![7], vec![8]));
        // The end of one is not the end of the other.
        pools.job_finished(Finished { id: 7, result: Ok(String::new()) });
        assert_eq!((numbers("one"), numbers("two")), (vec![], vec![8]));
        // And a new one has no number that a job of another node may have.
        pools.change_record("two", |r| r.jobs.push(scrub(90))).unwrap();
        let new = NewJob { kind: JobKind::Scrub, disk: None, add: None };
        assert_eq!(pools.new_job("one", &new).unwrap().id, 91);
    }

    #[test]
    fn a_replacement_that_is_refused_adds_no_disk() {
        let bench = Bench::new("replace");
        bench.pool("one");
        let (pools, admin) = (&bench.pools, bench.admin());
        let record = JobRecord { id: 5, kind: JobKind::Scrub, disk: None, paused: true, scrub_at: (0, 0) };
        let (result, path) = (String::new(), String::new());
        pools.jobs.lock().insert(5, Job { pool: "one".into(), record, state: JobState::Paused, result, path });
        let replace = |disk, new| {
            let add = Some(AddDisk { disk: new, hot_spare: false, force: false });
            admin.start_job("one", &NewJob { kind: JobKind::RemoveDisk, disk, add })
        };
        let disks = || admin.pool("one").unwrap().disks.len();
        let new = bench.disk("third", 128);
        assert_eq!(replace(Some(0), new.clone()).unwrap_err().error, "job 5 (scrub) works on pool \"one\"");
        pools.jobs.lock().clear();
        assert_eq!(replace(Some(7), new.clone()).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(replace(None, new.clone()).unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(disks(), 2);
        replace(Some(0), bench.disk("small", 1)).unwrap_err();
        assert!(disks() == 2 && pools.all_jobs().unwrap().is_empty(), "what cannot be added replaces nothing");
        let job = bench.ended(replace(Some(0), new).unwrap());
        assert_eq!(job.state, JobState::Done, "{}", job.result);
        let indices: Vec<u16> = admin.pool("one").unwrap().disks.iter().map(|d| d.index).collect();
        assert_eq!(indices, [1, 2]);
    }

    #[test]
    fn a_scrub_that_leaves_something_wrong_has_failed() {
        let bench = Bench::new("scrub");
        bench.space("mirror2");
        let job = bench.run(JobKind::Scrub);
        assert_eq!(job.state, JobState::Done, "{}", job.result);
        bench.spoil("one-1");
        let job = bench.run(JobKind::Scrub);
        assert_eq!(job.state, JobState::Failed, "{}", job.result);
        assert!(job.result.contains("1 undecided, 0 lost: copies differ"), "{}", job.result);
    }

    #[test]
    fn a_repair_that_leaves_a_space_offline_has_failed() {
        let bench = Bench::new("repair");
        bench.space("simple");
        let job = bench.run(JobKind::Repair);
        assert_eq!(job.state, JobState::Done, "{}", job.result);
        let open = bench.pools.opened("one").unwrap();
        std::fs::remove_file(bench.directory.join("one-1")).unwrap();
        open.ask(|p| async move { p.fail(1, "a test").await }).unwrap();
        let job = bench.run(JobKind::Repair);
        assert_eq!(job.state, JobState::Failed, "{}", job.result);
        assert!(job.result.contains("but offline: s: more disks are missing"), "{}", job.result);
        let job = bench.run(JobKind::Scrub);
        assert_eq!(job.state, JobState::Failed, "{}", job.result);
        assert!(job.result.contains("what is lost could not be read"), "{}", job.result);
    }

    #[test]
    fn the_path_of_a_disk_that_was_not_added_does_not_stay() {
        let bench = Bench::new("paths");
        bench.pool("one");
        let add = |disk| bench.admin().add_disk("one", &AddDisk { disk, hot_spare: false, force: false });
        let paths = || bench.pools.record("one").unwrap().devices.len();
        assert!(add(bench.disk("small", 1)).is_err());
        assert_eq!(paths(), 2);
        add(bench.disk("third", 128)).unwrap();
        assert_eq!(paths(), 3);
    }
}

//! A directory, two clients, and what the table told them.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use arden_auth::Token;
pub use arden_store::fs::lease_state::{letters as text, of_letters as state};
use arden_store::{
    commit::{Cause, CommitScope},
    dir::{DirOptions, DirStore},
    error::NotDone,
    fs::*,
    name::NtPath,
    table::OpenTable,
};
pub use arden_wire::access::*;
use arden_wire::dtyp::SecurityDescriptor;
use parking_lot::Mutex;

#[derive(Default)]
pub struct Log(Mutex<Vec<String>>, Mutex<Option<Box<dyn Fn() + Send>>>);

impl Log {
    /// What is to be done whenever a request goes on, while the table tells of it.
    pub fn on_resume(&self, f: impl Fn() + Send + 'static) {
        *self.1.lock() = Some(Box::new(f));
    }
}

impl OpenOwner for Log {
    fn oplock_break(&self, _scope: &CommitScope, open: OpenId, to: OplockLevel, ack: bool) {
        self.0.lock().push(format!("oplock {} {to:?}{}", open.0, if ack { "!" } else { "" }));
    }
    fn lease_break(&self, _scope: &CommitScope, b: &LeaseBreak) {
        let ack = if b.ack { "!" } else { "" };
        self.0.lock().push(format!("lease {} {}>{}{ack}", b.key, text(b.from), text(b.to)));
    }
    fn resume(&self, wait: WaitId) {
        self.0.lock().push(format!("resume {}", wait.0));
        if let Some(f) = &*self.1.lock() {
            f();
        }
    }
}

pub struct World {
    pub fs: Arc<Fs>,
    pub table: Arc<OpenTable>,
    pub log: Arc<Log>,
    pub owner: Owner,
    pub who: Arc<Token>,
    pub dir: PathBuf,
    pub scope: CommitScope,
    pub now: Instant,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a create asks for; built up from [`want`].
#[derive(Clone)]
pub struct Want {
    pub path: String,
    pub access: u32,
    pub share: u32,
    pub disposition: Disposition,
    pub options: u32,
    pub attributes: u32,
    pub cache: CacheRequest,
    pub client: ClientId,
    pub security: Option<SecurityDescriptor>,
    pub who: Option<Arc<Token>>,
}

pub const RWD: u32 = 7;

/// Open or create with full access, everything shared.
pub fn want(path: &str) -> Want {
    Want {
        path: path.to_owned(),
        access: FILE_ALL_ACCESS,
        share: RWD,
        disposition: Disposition::OpenIf,
        options: 0,
        attributes: 0,
        cache: CacheRequest::None,
        client: ClientId(1),
        security: None,
        who: None,
    }
}

impl Want {
    pub fn access(mut self, access: u32) -> Want {
        self.access = access;
        self
    }
    pub fn share(mut self, share: u32) -> Want {
        self.share = share;
        self
    }
    pub fn disposition(mut self, d: Disposition) -> Want {
        self.disposition = d;
        self
    }
    pub fn existing(self) -> Want {
        self.disposition(Disposition::Open)
    }
    pub fn options(mut self, options: u32) -> Want {
        self.options |= options;
        self
    }
    pub fn directory(self) -> Want {
        self.options(OPT_DIRECTORY_FILE)
    }
    pub fn attributes(mut self, a: u32) -> Want {
        self.attributes = a;
        self
    }
    pub fn lease(mut self, key: u128, s: &str) -> Want {
        let l = LeaseRequest { key, state: state(s), parent_key: None, epoch: 0, version: 2 };
        self.cache = CacheRequest::Lease(l);
        self
    }
    pub fn parent_lease(mut self, parent: u128) -> Want {
        if let CacheRequest::Lease(l) = &mut self.cache {
            l.parent_key = Some(parent);
        }
        self
    }
    pub fn oplock(mut self, level: OplockLevel) -> Want {
        self.cache = CacheRequest::Oplock(level);
        self
    }
    pub fn security(mut self, sd: &SecurityDescriptor) -> Want {
        self.security = Some(sd.clone());
        self
    }
    pub fn who(mut self, who: &Arc<Token>) -> Want {
        self.who = Some(who.clone());
        self
    }
    pub fn client(mut self, c: u128) -> Want {
        self.client = ClientId(c);
        self
    }
}

impl World {
    pub fn new() -> World {
        World::with(OpenTable::new(TableLimits::default()))
    }

    pub fn with(table: Arc<OpenTable>) -> World {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("arden-fs-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let store = DirStore::open(&dir, DirOptions::default()).unwrap();
        let log = Arc::new(Log::default());
        let owner = Owner::new(log.clone());
        let fs = Fs::new(store, table.clone());
        World {
            fs,
            table,
            log,
            owner,
            who: Arc::new(Token::system()),
            dir,
            scope: CommitScope::begin(),
            now: Instant::now(),
        }
    }

    pub fn cause(&self) -> Cause<'_> {
        self.scope.at(self.now)
    }

    pub fn try_open(&self, w: &Want) -> Result<Step<Opened>, OpenError> {
        self.raw_open(w, &NtPath::parse(&w.path)?)
    }

    pub fn raw_open(&self, w: &Want, path: &NtPath) -> Result<Step<Opened>, OpenError> {
        self.raw_open_as(self.table.reserve_open(), w, path)
    }

    fn raw_open_as(&self, id: OpenId, w: &Want, path: &NtPath) -> Result<Step<Opened>, OpenError> {
        self.raw_open_in(id, w, path, self.cause(), false)
    }

    fn raw_open_in(
        &self,
        id: OpenId,
        w: &Want,
        path: &NtPath,
        cause: Cause<'_>,
        durable: bool,
    ) -> Result<Step<Opened>, OpenError> {
        let request = OpenRequest {
            id,
            owner: &self.owner,
            path,
            by_id: None,
            desired_access: w.access,
            share_access: w.share,
            disposition: w.disposition,
            options: w.options,
            attributes: w.attributes,
            allocation: None,
            security: w.security.as_ref(),
            eas: &[],
            cache: w.cache,
            client: w.client,
            mark: None,
            who: w.who.as_ref().unwrap_or(&self.who),
            access_ceiling: FILE_ALL_ACCESS,
            durable,
            keeps: None,
            cause,
        };
        self.fs.open(&request)
    }

    /// In the world's own scope.
    pub fn open_durable(&self, w: Want, durable: bool) -> Arc<Open> {
        self.open_in(w, &self.scope, durable)
    }
    pub fn open_in(&self, w: Want, scope: &CommitScope, durable: bool) -> Arc<Open> {
        let path = NtPath::parse(&w.path).unwrap();
        match self.raw_open_in(self.table.reserve_open(), &w, &path, scope.at(self.now), durable) {
            Ok(Step::Done(o)) => o.open,
            other => panic!("{}: {other:?}", w.path),
        }
    }

    #[track_caller]
    pub fn opened(&self, w: Want) -> Opened {
        match self.try_open(&w) {
            Ok(Step::Done(o)) => o,
            other => panic!("{}: {other:?}", w.path),
        }
    }
    pub fn open_as(&self, id: OpenId, w: Want) -> Arc<Open> {
        match self.raw_open_as(id, &w, &NtPath::parse(&w.path).unwrap()) {
            Ok(Step::Done(o)) => o.open,
            other => panic!("{}: {other:?}", w.path),
        }
    }
    #[track_caller]
    pub fn open(&self, w: Want) -> Arc<Open> {
        self.opened(w).open
    }
    #[track_caller]
    pub fn fails(&self, w: Want) -> NotDone {
        match self.try_open(&w) {
            Err(OpenError::NotDone(e)) => e,
            other => panic!("{}: {other:?}", w.path),
        }
    }
    #[track_caller]
    pub fn waits(&self, w: &Want) -> WaitId {
        match self.try_open(w) {
            Ok(Step::Wait(id)) => id,
            other => panic!("{}: {other:?}", w.path),
        }
    }
    /// What was told since the last call.
    pub fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.0.lock())
    }
    pub fn lease_of(&self, open: &Arc<Open>) -> String {
        match self.fs.cache(open) {
            CacheGrant::Lease { state, breaking, .. } => format!("{}{}", text(state), if breaking { "?" } else { "" }),
            CacheGrant::Oplock(level) => format!("{level:?}"),
        }
    }
    pub fn close(&self, open: Arc<Open>) {
        self.fs.close(&self.scope, &open);
    }
    /// Deletes by opening for it.
    pub fn unlink(&self, path: &str) -> Result<(), OpenError> {
        let w = want(path).existing().access(DELETE).options(OPT_DELETE_ON_CLOSE);
        match self.try_open(&w)? {
            Step::Done(o) => self.fs.close(&self.scope, &o.open),
            Step::Wait(_) => panic!("has to wait"),
        }
        Ok(())
    }
    pub fn write(&self, open: &Arc<Open>, offset: u64, data: &[u8]) -> Result<(), NotDone> {
        self.fs.write(open, offset, data, arden_store::store::Wait::Yes, self.cause())
    }
    pub fn read(&self, open: &Arc<Open>, offset: u64, len: usize) -> Result<Vec<u8>, NotDone> {
        let mut buf = vec![0; len];
        let n = self.fs.read(&self.scope, open, offset, &mut buf, arden_store::store::Wait::Yes)?;
        buf.truncate(n);
        Ok(buf)
    }
    pub fn rename(&self, open: &Arc<Open>, to: &str, replace: bool) -> Result<Step<()>, NotDone> {
        let how = NameChange { replace, ..NameChange::default() };
        self.fs.rename(open, &NtPath::parse(to).unwrap(), how, self.cause())
    }
    pub fn list(&self, open: &Arc<Open>, pattern: &str) -> Result<Vec<String>, NotDone> {
        let mut names = Vec::new();
        self.fs.query_directory(open, pattern, true, false, false, &mut |e| {
            names.push(e.name.clone());
            Emitted::Taken
        })?;
        names.sort();
        Ok(names)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

//! A directory store that does something right before it takes a name away or gives it to another file.

use std::sync::Arc;

use arden_store::{commit::ChangedBy, error::StoreError, name::NtPath, store::*};
use arden_wire::dtyp::SecurityDescriptor;
use parking_lot::Mutex;

type Act = Box<dyn FnOnce() + Send>;

/// What is to be done before the next such change.
#[derive(Default)]
pub struct Hook(Mutex<Option<Act>>);

impl Hook {
    pub fn before_change(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock() = Some(Box::new(act));
    }
    fn run(&self) {
        let act = self.0.lock().take();
        if let Some(act) = act {
            act();
        }
    }
}

pub struct Hooked {
    pub store: Arc<dyn FileStore>,
    pub hook: Arc<Hook>,
}

impl Hooked {
    fn node(&self, node: NodeRef) -> NodeRef {
        Arc::new(HookedNode { node, hook: self.hook.clone() })
    }
}

struct HookedNode {
    node: NodeRef,
    hook: Arc<Hook>,
}

impl HookedNode {
    fn like(&self, node: NodeRef) -> NodeRef {
        Arc::new(HookedNode { node, hook: self.hook.clone() })
    }
}

impl FileStore for Hooked {
    fn volume(&self) -> VolumeInfo {
        self.store.volume()
    }
    fn space(&self) -> Result<SpaceInfo> {
        self.store.space()
    }
    fn root(&self) -> NodeRef {
        self.node(self.store.root())
    }
    fn lookup(&self, path: &NtPath) -> Result<Lookup> {
        Ok(match self.store.lookup(path)? {
            Lookup::Found(node) => Lookup::Found(self.node(node)),
            Lookup::Missing { parent, base } => {
                Lookup::Missing { parent: self.node(parent), base: base.map(|b| self.node(b)) }
            }
            Lookup::Symlink { link, unparsed_components } => {
                Lookup::Symlink { link: self.node(link), unparsed_components }
            }
        })
    }
    fn lookup_id(&self, id: u64) -> Result<NodeRef> {
        Ok(self.node(self.store.lookup_id(id)?))
    }
    fn watch(&self, sink: Arc<dyn ChangeSink>) -> Result<()> {
        self.store.watch(sink)
    }
}

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            Node::$name(&*self.node, $($arg),*)
        })*
    };
}

impl Node for HookedNode {
    passed_on! {
        id() -> FileId;
        born() -> u64;
        is_directory() -> bool;
        stream() -> Option<&str>;
        path() -> Vec<String>;
        trail() -> Trail;
        is_above(other: &dyn Node) -> Result<bool>;
        place() -> (u64, String);
        stat() -> Result<Stat>;
        set_basic(by: ChangedBy, update: &BasicUpdate) -> Result<()>;
        security() -> Result<Arc<SecurityDescriptor>>;
        child_security(name: &str) -> Result<Arc<SecurityDescriptor>>;
        set_security(by: ChangedBy, sd: &SecurityDescriptor) -> Result<()>;
        read_at(offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize>;
        write_at(by: ChangedBy, offset: u64, data: &[u8], wait: Wait) -> Result<()>;
        set_end_of_file(by: ChangedBy, size: u64) -> Result<()>;
        set_allocation(by: ChangedBy, size: u64) -> Result<()>;
        release_allocation(by: ChangedBy) -> ();
        zero_range(by: ChangedBy, offset: u64, len: u64) -> Result<()>;
        allocated_ranges(offset: u64, len: u64, max: usize) -> Result<Vec<(u64, u64)>>;
        set_sparse(by: ChangedBy, sparse: bool) -> Result<()>;
        copy_from(by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<u64>;
        clone_from(by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<()>;
        sync() -> Result<()>;
        streams() -> Result<Vec<StreamEntry>>;
        eas() -> Result<Vec<Ea>>;
        set_eas(by: ChangedBy, eas: &[Ea]) -> Result<()>;
        reparse() -> Result<(u32, Vec<u8>)>;
        set_reparse(by: ChangedBy, tag: u32, data: &[u8]) -> Result<()>;
        delete_reparse(by: ChangedBy, tag: u32) -> Result<()>;
        object_id() -> Result<Option<u128>>;
        set_object_id(by: ChangedBy, id: u128) -> Result<()>;
        create_mark() -> Result<Option<u128>>;
        list() -> Result<Box<dyn DirCursor>>;
        is_empty_directory() -> Result<bool>;
        as_any() -> &dyn std::any::Any;
    }
    fn named_stream(&self, name: &str) -> Result<Option<NodeRef>> {
        Ok(self.node.named_stream(name)?.map(|n| self.like(n)))
    }
    fn create_stream(&self, by: ChangedBy, name: &str) -> Result<NodeRef> {
        Ok(self.like(self.node.create_stream(by, name)?))
    }
    fn create_stream_marked(&self, _by: ChangedBy, _name: &str, _mark: u128) -> Result<NodeRef> {
        Err(StoreError::NotSupported.into())
    }
    fn create_child(&self, by: ChangedBy, name: &str, new: &NewFile<'_>) -> Result<NodeRef> {
        self.hook.run();
        Ok(self.like(self.node.create_child(by, name, new)?))
    }
    fn create_child_marked(&self, _by: ChangedBy, _name: &str, _new: &NewFile<'_>, _mark: u128) -> Result<NodeRef> {
        Err(StoreError::NotSupported.into())
    }
    fn rename_stream(&self, by: ChangedBy, name: Option<&str>, replace: bool) -> Result<()> {
        self.hook.run();
        self.node.rename_stream(by, name, replace)
    }
    fn rename_replacing(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()> {
        self.hook.run();
        self.node.rename_replacing(by, directory, name, replace)
    }
    fn link_replacing(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()> {
        self.hook.run();
        self.node.link_replacing(by, directory, name, replace)
    }
    fn unlink(&self, by: ChangedBy) -> Result<()> {
        self.hook.run();
        self.node.unlink(by)
    }
}

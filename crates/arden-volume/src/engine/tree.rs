//! The tree on the device: a copy-on-write B+tree that is changed by whole sorted batches, one for each checkpoint. A
//! pointer carries the checksum of what it leads to, so that the root vouches for everything. Old nodes stay untouched
//! until the new root is durable. Refuses to know what keys mean.

pub mod overlay;
mod rows;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arden_block::{BLOCK_BYTES, Device};
use arden_lock::{Mutex, ranks};

use rows::Rows;

use crate::{
    disk::{
        device::read_checked,
        error::{VolError, VolResult},
        keys::{Key, Val},
        run::Run,
        treenode::{CAPACITY, Draft, ENTRY_MAX, LEVEL_MAX, NODE_BLOCKS, NODE_BYTES, Node, Ptr, entry_bytes},
    },
    engine::alloc::AllocLock,
};

/// Changes in memory; None takes a key away.
pub type Layer = BTreeMap<Key, Option<Val>>;
/// The root's pointer and level; None for the empty tree.
pub type Root = Option<(Ptr, u8)>;

const SHARDS: usize = 16;
/// A node emptier than this is joined with a neighbour.
const UNDERFULL: usize = CAPACITY / 4;
/// Nodes that a shard keeps, however little memory there is.
const SHARD_NODES_MIN: usize = 2;
/// Nodes written with one call.
const WRITE_NODES_MAX: usize = (1 << 20) / NODE_BYTES;
/// Places of forgotten nodes in the order of a shard, besides as many as there are nodes.
const FORGOTTEN_MAX: usize = 64;
/// Nodes that wait in memory for being written.
const PENDING_NODES_MAX: usize = 512;

/// A node in memory.
struct Cached {
    node: Node,
    ptr: Ptr,
    /// It was used since it last had its turn to make way.
    hot: bool,
    /// Of its place in the order.
    stamp: u64,
}

/// Of the number of a block, which the volume chooses and no client.
#[derive(Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u64(&mut self, n: u64) {
        let product = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // A table takes the lowest bits; in those of the product are only the lowest of the number, which all of a shard share.
        self.0 = product ^ (product >> 32);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A part of the nodes in memory, by their block.
#[derive(Default)]
struct Shard {
    nodes: HashMap<u64, Cached, BuildHasherDefault<BlockHasher>>,
    /// The order in which they have their turn to make way: block and stamp. A stamp that its node does not have belongs to one
    /// that was forgotten.
    order: VecDeque<(u64, u64)>,
    stamps: u64,
    bytes: usize,
}

impl Shard {
    fn keep(&mut self, ptr: &Ptr, node: Node) {
        self.bytes += node.weight();
        if let Some(old) = self.nodes.get_mut(&ptr.block) {
            self.bytes -= old.node.weight();
            (old.node, old.ptr, old.hot) = (node, *ptr, false);
            return;
        }
        self.stamps += 1;
        self.order.push_back((ptr.block, self.stamps));
        self.nodes.insert(ptr.block, Cached { node, ptr: *ptr, hot: false, stamp: self.stamps });
    }

    /// Nodes make way until the others take no more than so many bytes.
    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let Some((block, stamp)) = self.order.pop_front() else { break };
            match self.nodes.get_mut(&block) {
                Some(cached) if cached.stamp == stamp && cached.hot => {
                    cached.hot = false;
                    self.order.push_back((block, stamp));
                }
                Some(cached) if cached.stamp == stamp => self.take(block),
                _ => {}
            }
        }
    }

    fn take(&mut self, block: u64) {
        if let Some(old) = self.nodes.remove(&block) {
            self.bytes -= old.node.weight();
        }
    }

    /// Its place in the order stays, until such places are as many as the others.
    fn forget(&mut self, block: u64) {
        self.take(block);
        if self.order.len() > 2 * self.nodes.len() + FORGOTTEN_MAX {
            let nodes = &self.nodes;
            self.order.retain(|(block, stamp)| nodes.get(block).is_some_and(|cached| cached.stamp == *stamp));
        }
    }
}

pub struct Tree {
    device: Arc<dyn Device>,
    shards: [Mutex<Shard, ranks::TreeNodes>; SHARDS],
    shard_bytes_max: AtomicUsize,
    rows: Rows,
    /// Somebody looked for a node since it was last asked.
    used: AtomicBool,
}

fn of_a_shard(cache_bytes: usize) -> usize {
    (cache_bytes / SHARDS).max(SHARD_NODES_MIN * NODE_BYTES)
}

impl Tree {
    pub fn new(device: Arc<dyn Device>, cache_bytes: usize) -> Tree {
        Tree {
            device,
            shards: std::array::from_fn(|_| Mutex::default()),
            shard_bytes_max: AtomicUsize::new(of_a_shard(cache_bytes)),
            rows: Rows::default(),
            used: AtomicBool::new(false),
        }
    }

    /// From now on nodes in memory take at most so much, or half a MiB where that is more; what is more than that goes at once.
    pub fn set_cache_bytes(&self, cache_bytes: usize) {
        let each = of_a_shard(cache_bytes);
        self.shard_bytes_max.store(each, Ordering::Relaxed);
        self.shards.iter().for_each(|shard| shard.lock().shrink(each));
    }

    /// What nodes in memory take, in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    /// Whether somebody looked for a node since the last call.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn shard(&self, block: u64) -> &Mutex<Shard, ranks::TreeNodes> {
        &self.shards[(block / NODE_BLOCKS) as usize % SHARDS]
    }

    pub fn load(&self, ptr: &Ptr, level: u8) -> VolResult<Node> {
        // Most find it noted already: the line stays in all processors' caches.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        if let Some(cached) = self.shard(ptr.block).lock().nodes.get_mut(&ptr.block)
            && cached.ptr == *ptr
            && cached.node.level() == level
        {
            cached.hot = true;
            return Ok(cached.node.clone());
        }
        let mut blocks = vec![0; NODE_BYTES];
        let offset = ptr.block.checked_mul(BLOCK_BYTES).ok_or(VolError::Corrupt("pointer in the tree"))?;
        read_checked(&*self.device, offset, &mut blocks, &ptr.check())?;
        let node = Node::open(ptr, &blocks, level)?;
        self.remember(ptr, node.clone());
        Ok(node)
    }

    fn remember(&self, ptr: &Ptr, node: Node) {
        let mut shard = self.shard(ptr.block).lock();
        shard.keep(ptr, node);
        shard.shrink(self.shard_bytes_max.load(Ordering::Relaxed));
    }

    pub fn forget(&self, block: u64) {
        self.shard(block).lock().forget(block);
    }

    pub fn get(&self, root: &Root, key: &[u8]) -> VolResult<Option<Val>> {
        self.get_hashed(root, key, overlay::hash(key))
    }

    /// Of a key whose hash ([`overlay::hash`]) is known.
    pub fn get_hashed(&self, root: &Root, key: &[u8], hash: u64) -> VolResult<Option<Val>> {
        if let Some(known) = self.rows.get(root, key, hash) {
            return Ok(known);
        }
        let found = self.look_up(root, key)?;
        self.rows.keep(root, key, hash, found.as_ref());
        Ok(found)
    }

    fn look_up(&self, root: &Root, key: &[u8]) -> VolResult<Option<Val>> {
        let Some((mut ptr, mut level)) = *root else { return Ok(None) };
        loop {
            let node = self.load(&ptr, level)?;
            if level == 0 {
                return Ok(node.find(key).ok().map(|at| node.entry(at).1.into()));
            }
            ptr = node.ptr(node.child_for(key))?;
            level -= 1;
        }
    }

    /// Entries from `start` on and before `end`, in order, until `take` answers false.
    pub fn scan(
        &self,
        root: &Root,
        start: &[u8],
        end: &[u8],
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> VolResult<()> {
        if let Some((ptr, level)) = root {
            self.scan_node(ptr, *level, start, end, take)?;
        }
        Ok(())
    }

    fn scan_node(
        &self,
        ptr: &Ptr,
        level: u8,
        start: &[u8],
        end: &[u8],
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> VolResult<bool> {
        let node = self.load(ptr, level)?;
        if level == 0 {
            for i in node.lower_bound(start)..node.len() {
                let (key, value) = node.entry(i);
                if key >= end || !take(key, value) {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        for i in node.child_for(start)..node.len() {
            if i > 0 && node.key(i) >= end {
                return Ok(false);
            }
            if !self.scan_node(&node.ptr(i)?, level - 1, start, end, take)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Every node's pointer and level, from the root down; what is below a node only where `f` answers true. Leaves are
    /// not read.
    pub fn visit(&self, root: &Root, f: &mut dyn FnMut(&Ptr, u8) -> VolResult<bool>) -> VolResult<()> {
        match root {
            Some((_, level)) if *level > LEVEL_MAX => Err(VolError::Corrupt("the tree is too deep")),
            Some((ptr, level)) => self.visit_node(ptr, *level, f),
            None => Ok(()),
        }
    }

    fn visit_node(&self, ptr: &Ptr, level: u8, f: &mut dyn FnMut(&Ptr, u8) -> VolResult<bool>) -> VolResult<()> {
        if !f(ptr, level)? || level == 0 {
            return Ok(());
        }
        let node = self.load(ptr, level)?;
        for i in 0..node.len() {
            self.visit_node(&node.ptr(i)?, level - 1, f)?;
        }
        Ok(())
    }

    /// The tree with `batch` applied. Nodes are written, not flushed; what the old tree alone used is in `freed`.
    ///
    /// # Errors
    /// Nothing is changed. Where nodes were written, none may be written with this `birth` again.
    pub fn apply(&self, root: &Root, batch: &Layer, birth: u64, alloc: &AllocLock) -> Result<Applied, Unapplied> {
        let (freed, made, writes) = Default::default();
        let mut work = Work { tree: self, birth, alloc, freed, made, writes, wrote: false };
        match work.run(root, batch) {
            Ok(root) => Ok(Applied { root, freed: work.freed }),
            Err(error) => {
                let mut a = alloc.lock();
                for block in work.made {
                    self.forget(block);
                    a.cancel(Run { start: block, len: NODE_BLOCKS });
                }
                Err(Unapplied { error, wrote: work.wrote })
            }
        }
    }
}

#[derive(Debug)]
pub struct Unapplied {
    pub error: VolError,
    /// Nodes may be on the device.
    pub wrote: bool,
}

pub struct Applied {
    pub root: Root,
    /// Nodes that the new tree does not use.
    pub freed: Vec<Ptr>,
}

/// A child of a node under construction.
enum Item {
    Old(Key, Ptr),
    New(Key, Draft),
}

type Change<'a> = (&'a [u8], Option<&'a [u8]>);

struct Work<'a> {
    tree: &'a Tree,
    birth: u64,
    alloc: &'a AllocLock,
    freed: Vec<Ptr>,
    made: Vec<u64>,
    writes: Vec<(u64, Vec<u8>)>,
    wrote: bool,
}

impl Work<'_> {
    fn run(&mut self, root: &Root, batch: &Layer) -> VolResult<Root> {
        let changes: Vec<Change<'_>> = batch.iter().map(|(k, v)| (k.as_slice(), v.as_deref())).collect();
        if changes.is_empty() {
            return Ok(*root);
        }
        if changes.iter().any(|(k, v)| entry_bytes(k, v.unwrap_or(&[])) > ENTRY_MAX) {
            return Err(VolError::Refused("an entry is too large"));
        }
        let (mut items, mut level) = match root {
            Some((ptr, level)) => (self.change(ptr, *level, &changes)?, *level),
            None => (merge_leaf(&Node::from(&Draft::new(0)), &changes), 0),
        };
        while items.len() > 1 {
            let entries = self.write_nodes(items)?;
            level += 1;
            if level > LEVEL_MAX {
                return Err(VolError::Refused("the tree is too deep"));
            }
            items = pack(level, &entries);
        }
        let mut root = match items.pop() {
            None => None,
            Some(Item::Old(_, ptr)) => Some((ptr, level)),
            // A root with one child is not needed.
            Some(Item::New(_, draft)) if draft.level > 0 && draft.len() == 1 => Some((draft.first_ptr()?, level - 1)),
            Some(Item::New(_, draft)) => Some((self.write_node(&draft)?, level)),
        };
        self.write_out()?;
        while let Some((ptr, level)) = root.filter(|(_, l)| *l > 0) {
            let node = self.tree.load(&ptr, level)?;
            if node.len() > 1 {
                break;
            }
            root = Some((node.ptr(0)?, level - 1));
            self.freed.push(ptr);
        }
        Ok(root)
    }

    fn change(&mut self, ptr: &Ptr, level: u8, changes: &[Change<'_>]) -> VolResult<Vec<Item>> {
        let node = self.tree.load(ptr, level)?;
        self.freed.push(*ptr);
        if level == 0 {
            return Ok(merge_leaf(&node, changes));
        }
        let mut out: Vec<Item> = Vec::with_capacity(node.len() + 4);
        let mut from = 0;
        for i in 0..node.len() {
            let to = if i + 1 < node.len() {
                let next = node.key(i + 1);
                from + changes[from..].partition_point(|(k, _)| *k < next)
            } else {
                changes.len()
            };
            let child = node.ptr(i)?;
            if from == to {
                self.add(&mut out, Item::Old(node.key(i).to_vec(), child), level - 1)?;
            } else {
                for item in self.change(&child, level - 1, &changes[from..to])? {
                    self.add(&mut out, item, level - 1)?;
                }
            }
            from = to;
        }
        let entries = self.write_nodes(out)?;
        Ok(pack(level, &entries))
    }

    /// Appends a child; joins it with the one before when either is nearly empty.
    fn add(&mut self, out: &mut Vec<Item>, item: Item, level: u8) -> VolResult<()> {
        let thin = |i: &Item| matches!(i, Item::New(_, n) if n.used() < UNDERFULL);
        let join = out.last().is_some_and(|last| thin(last) || thin(&item));
        if !join {
            out.push(item);
            return Ok(());
        }
        let Some(last) = out.pop() else { return Ok(()) };
        let size = |me: &Self, i: &Item| -> VolResult<usize> {
            Ok(match i {
                Item::New(_, n) => n.used(),
                Item::Old(_, p) => me.tree.load(p, level)?.used(),
            })
        };
        if size(self, &last)? + size(self, &item)? > CAPACITY * 3 / 4 {
            out.push(last);
            out.push(item);
            return Ok(());
        }
        let (key, mut draft) = self.own(last, level)?;
        let (_, other) = self.own(item, level)?;
        draft.append(&other);
        out.push(Item::New(key, draft));
        Ok(())
    }

    fn own(&mut self, item: Item, level: u8) -> VolResult<(Key, Draft)> {
        match item {
            Item::New(key, draft) => Ok((key, draft)),
            Item::Old(key, ptr) => {
                self.freed.push(ptr);
                Ok((key, Draft::from(&self.tree.load(&ptr, level)?)))
            }
        }
    }

    fn write_nodes(&mut self, items: Vec<Item>) -> VolResult<Vec<(Key, Ptr)>> {
        items
            .into_iter()
            .map(|item| match item {
                Item::Old(key, ptr) => Ok((key, ptr)),
                Item::New(key, draft) => Ok((key, self.write_node(&draft)?)),
            })
            .collect()
    }

    fn write_node(&mut self, draft: &Draft) -> VolResult<Ptr> {
        let block = self.alloc.lock().reserve_node(NODE_BLOCKS)?;
        self.made.push(block);
        let mut ptr = Ptr { block, birth: self.birth, sum: 0 };
        let bytes = draft.seal(&mut ptr);
        self.tree.remember(&ptr, draft.into());
        self.writes.push((block, bytes));
        if self.writes.len() >= PENDING_NODES_MAX {
            self.write_out()?;
        }
        Ok(ptr)
    }

    fn write_out(&mut self) -> VolResult<()> {
        let mut writes = std::mem::take(&mut self.writes);
        writes.sort_unstable_by_key(|(block, _)| *block);
        let mut together = Vec::new();
        let neighbours = |a: &(u64, Vec<u8>), b: &(u64, Vec<u8>)| a.0 + NODE_BLOCKS == b.0;
        for run in writes.chunk_by(neighbours).flat_map(|run| run.chunks(WRITE_NODES_MAX)) {
            self.wrote = true;
            let bytes = match run {
                [(_, alone)] => alone,
                run => {
                    together.clear();
                    run.iter().for_each(|(_, bytes)| together.extend_from_slice(bytes));
                    &together
                }
            };
            self.tree.device.write(run[0].0 * BLOCK_BYTES, bytes)?;
        }
        Ok(())
    }
}

/// Fills nodes evenly.
struct Packer {
    level: u8,
    target: usize,
    out: Vec<Item>,
    current: Draft,
}

impl Packer {
    fn new(level: u8, total: usize) -> Packer {
        let nodes = total.div_ceil(CAPACITY * 15 / 16).max(1);
        let target = if nodes == 1 { CAPACITY } else { total.div_ceil(nodes) };
        Packer { level, target, out: Vec::new(), current: Draft::new(level) }
    }
    fn push(&mut self, key: &[u8], value: &[u8]) {
        if self.current.used() >= self.target || self.current.used() + entry_bytes(key, value) > CAPACITY {
            self.close();
        }
        if self.current.is_empty() {
            self.current = Draft::for_many(self.level);
        }
        self.current.push(key, value);
    }
    fn close(&mut self) {
        if !self.current.is_empty() {
            let draft = std::mem::replace(&mut self.current, Draft::new(self.level));
            self.out.push(Item::New(draft.first_key().to_vec(), draft));
        }
    }
    fn finish(mut self) -> Vec<Item> {
        self.close();
        self.out
    }
}

fn merge_leaf(node: &Node, changes: &[Change<'_>]) -> Vec<Item> {
    let more: usize = changes.iter().map(|(k, v)| v.map_or(0, |v| entry_bytes(k, v))).sum();
    let mut packer = Packer::new(0, node.used() + more);
    let mut old = (0..node.len()).map(|i| node.entry(i)).peekable();
    for (key, value) in changes {
        while let Some((key, value)) = old.next_if(|(k, _)| k < key) {
            packer.push(key, value);
        }
        old.next_if(|(k, _)| k == key);
        if let Some(value) = value {
            packer.push(key, value);
        }
    }
    old.for_each(|(key, value)| packer.push(key, value));
    packer.finish()
}

fn pack(level: u8, children: &[(Key, Ptr)]) -> Vec<Item> {
    let total = children.iter().map(|(k, _)| 4 + k.len() + Ptr::BYTES).sum();
    let mut packer = Packer::new(level, total);
    let mut value = Vec::with_capacity(Ptr::BYTES);
    for (key, ptr) in children {
        value.clear();
        ptr.encode(&mut value);
        packer.push(key, &value);
    }
    packer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::device::MemDevice;
    use arden_block::rng::Rng;

    fn all(tree: &Tree, root: &Root) -> Vec<(Key, Vec<u8>)> {
        let mut out = Vec::new();
        tree.scan(root, &[], &[0xFF; 8], &mut |k, v| {
            out.push((k.to_vec(), v.to_vec()));
            true
        })
        .unwrap();
        out
    }

    #[test]
    fn nodes_in_memory_stay_within_their_room_and_leave_no_trace_when_they_are_forgotten() {
        let mut shard = Shard::default();
        let mut draft = Draft::new(0);
        draft.push(&[1; 8], &[2; 1000]);
        let node = Node::from(&draft);
        let ptr = |block| Ptr { block, birth: 1, sum: 0 };
        for block in 0..10_000 {
            shard.keep(&ptr(block), node.clone());
            shard.shrink(100 * node.weight());
        }
        assert_eq!((shard.nodes.len(), shard.bytes), (100, 100 * node.weight()));
        assert!((9900..10_000).all(|block| shard.nodes.contains_key(&block)), "the oldest make way");
        // Forgotten and written again, as blocks are with every checkpoint.
        for round in 0..1000 {
            let block = 9900 + round % 100;
            shard.forget(block);
            shard.keep(&ptr(block), node.clone());
            assert!(shard.order.len() <= 2 * shard.nodes.len() + FORGOTTEN_MAX + 1, "{}", shard.order.len());
        }
        if let Some(cached) = shard.nodes.get_mut(&9900) {
            cached.hot = true;
        }
        shard.shrink(node.weight());
        assert_eq!(shard.nodes.keys().copied().collect::<Vec<_>>(), [9900], "what was used stays longest");
        shard.shrink(0);
        assert_eq!((shard.nodes.len(), shard.bytes, shard.order.len()), (0, 0, 0));
    }

    #[test]
    fn agrees_with_a_map_and_leaks_no_node() {
        for seed in 0..4 {
            let mut rng = Rng::new(seed);
            let device = Arc::new(MemDevice::new(64 << 20));
            let tree = Tree::new(device.clone(), 1 << 20);
            let alloc = Mutex::new(crate::engine::alloc::Alloc::new((64 << 20) / 4096));
            let (mut root, mut map): (Root, BTreeMap<Key, Vec<u8>>) = (None, BTreeMap::new());
            for birth in 1..40 {
                let mut batch = Layer::new();
                let deletes = rng.below(100);
                for _ in 0..rng.below(600) {
                    let key = rng.below(3000).to_be_bytes()[6..].repeat(1 + rng.below(2) as usize);
                    let value = (rng.below(100) >= deletes).then(|| vec![birth as u8; rng.below(200) as usize * 5]);
                    match &value {
                        Some(v) => map.insert(key.clone(), v.clone()),
                        None => map.remove(&key),
                    };
                    batch.insert(key, value.map(Into::into));
                }
                let done = tree.apply(&root, &batch, birth, &alloc).unwrap();
                for Ptr { block, .. } in done.freed {
                    tree.forget(block);
                    alloc.lock().cancel(Run { start: block, len: NODE_BLOCKS });
                }
                root = done.root;
                // From the device alone.
                let cold = Tree::new(device.clone(), 1 << 20);
                let want: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(all(&cold, &root), want, "seed {seed} birth {birth}");
                for (k, v) in map.iter().take(20) {
                    assert_eq!(cold.get(&root, k).unwrap().as_deref(), Some(v.as_slice()));
                }
                let mut nodes = 0;
                cold.visit(&root, &mut |_, _| {
                    nodes += 1;
                    Ok(true)
                })
                .unwrap();
                let a = alloc.lock();
                assert_eq!(a.total_blocks() - a.free_blocks(), nodes * NODE_BLOCKS, "seed {seed} birth {birth}");
            }
        }
    }
}

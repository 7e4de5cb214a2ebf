//! The model's state: one tree of files with streams, links and descriptors, and the opens on it, in the terms of
//! [MS-FSA] 2.1.1. It knows names, not the server's ids.

use std::collections::{BTreeMap, BTreeSet};

use arden_wire::smb2::FileId;

use super::acl::{Sd, Token};

pub type NodeId = usize;

pub const ATTR_READONLY: u32 = 1;
pub const ATTR_HIDDEN: u32 = 2;
pub const ATTR_SYSTEM: u32 = 4;
/// The attributes that the model compares.
pub const ATTR_COMPARED: u32 = ATTR_READONLY | ATTR_HIDDEN | ATTR_SYSTEM;

#[derive(Debug, Clone)]
pub struct Node {
    pub directory: bool,
    pub sd: Sd,
    pub attributes: u32,
    /// By upper-case name: the name and the data; "" is the unnamed stream.
    pub streams: BTreeMap<String, (String, Vec<u8>)>,
    /// By upper-case name of the stream: its snapshots, oldest first, each with its name and the data.
    pub snapshots: BTreeMap<String, Vec<(String, Vec<u8>)>>,
    /// By upper-case name.
    pub eas: BTreeMap<String, Vec<u8>>,
    /// A reparse point's tag and data.
    pub reparse: Option<(u32, Vec<u8>)>,
    /// By upper-case name: the name and the node.
    pub children: BTreeMap<String, (String, NodeId)>,
}

impl Node {
    pub fn new(directory: bool, sd: Sd) -> Node {
        let mut streams = BTreeMap::new();
        if !directory {
            streams.insert(String::new(), Default::default());
        }
        Node {
            directory,
            sd,
            attributes: 0,
            streams,
            snapshots: BTreeMap::new(),
            eas: BTreeMap::new(),
            reparse: None,
            children: BTreeMap::new(),
        }
    }
}

/// A directory entry: the directory and the upper-case name. None stands for the root of a share.
pub type Link = Option<(NodeId, String)>;

#[derive(Debug, Clone)]
pub struct Handle {
    pub session: usize,
    pub share: usize,
    pub node: NodeId,
    /// Upper case.
    pub stream: String,
    pub link: Link,
    pub granted: u32,
    pub share_mode: u32,
    pub delete_on_close: bool,
    /// The stream went away under it; another of its name is another stream.
    pub gone: bool,
    pub id: FileId,
}

#[derive(Debug, Default)]
pub struct Tree {
    pub nodes: Vec<Node>,
    /// Links and streams that go away with their last open.
    pub doomed: BTreeSet<(NodeId, String)>,
    pub doomed_streams: BTreeSet<(NodeId, String)>,
    /// Files that had several names.
    pub linked_twice: BTreeSet<NodeId>,
}

/// What a path leads to.
#[derive(Debug, Clone)]
pub struct Target {
    pub parent: Option<NodeId>,
    pub name: String,
    pub node: Option<NodeId>,
}

impl Target {
    pub fn link(&self) -> Link {
        self.parent.map(|p| (p, upper(&self.name)))
    }
}

pub fn upper(name: &str) -> String {
    name.to_uppercase()
}

impl Tree {
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    pub fn child(&self, parent: NodeId, name: &str) -> Option<NodeId> {
        self.nodes[parent].children.get(&upper(name)).map(|(_, n)| *n)
    }

    /// The node at `path` below `root`.
    ///
    /// # Errors
    /// Why there is no way to its directory.
    pub fn resolve(&self, root: NodeId, path: &str) -> Result<Target, &'static str> {
        let mut target = Target { parent: None, name: String::new(), node: Some(root) };
        for name in path.split('\\').filter(|n| !n.is_empty()) {
            let parent = target.node.ok_or("no such path")?;
            let node = &self.nodes[parent];
            if !node.directory {
                return Err("a file on the way");
            }
            if node.reparse.is_some() {
                return Err("a symbolic link on the way");
            }
            if target.link().is_some_and(|l| self.doomed.contains(&l)) {
                return Err("a deleted directory on the way");
            }
            target = Target { parent: Some(parent), name: name.into(), node: self.child(parent, name) };
        }
        Ok(target)
    }

    pub fn leads_to(&self, link: &(NodeId, String), node: NodeId) -> bool {
        self.nodes[link.0].children.get(&link.1).is_some_and(|(_, n)| *n == node)
    }

    pub fn insert(&mut self, parent: NodeId, name: &str, node: NodeId) {
        self.nodes[parent].children.insert(upper(name), (name.into(), node));
    }

    pub fn remove(&mut self, link: &(NodeId, String)) {
        self.nodes[link.0].children.remove(&link.1);
        self.doomed.remove(link);
    }

    /// Links to `node`.
    pub fn links(&self, node: NodeId) -> usize {
        self.nodes.iter().flat_map(|n| n.children.values()).filter(|(_, n)| *n == node).count()
    }

    /// Of those names the ones that are to be deleted when nobody has them open.
    pub fn doomed_links(&self, node: NodeId) -> usize {
        self.doomed.iter().filter(|l| self.leads_to(l, node)).count()
    }

    /// Whether `inner` is `outer` or below it.
    pub fn is_below(&self, outer: NodeId, inner: NodeId) -> bool {
        outer == inner || self.nodes[outer].children.values().any(|(_, child)| self.is_below(*child, inner))
    }

    /// All directory entries below `root`, with their paths.
    pub fn walk(&self, root: NodeId, prefix: &str, out: &mut Vec<(String, NodeId)>) {
        for (name, node) in self.nodes[root].children.values() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}\\{name}") };
            out.push((path.clone(), *node));
            self.walk(*node, &path, out);
        }
    }

    /// The rights on an existing file with those that its directory adds, [MS-FSA] 2.1.5.1.2.1.
    pub fn grants(&self, node: NodeId, parent: Option<NodeId>, who: &Token) -> u32 {
        self.without_privileges(node, parent, who) | self.nodes[node].sd.grants(who)
    }

    /// The same without SeTakeOwnershipPrivilege.
    pub fn without_privileges(&self, node: NodeId, parent: Option<NodeId>, who: &Token) -> u32 {
        use super::acl::{DELETE, DELETE_CHILD, READ_ATTRIBUTES, READ_DATA};
        let mut granted = self.nodes[node].sd.without_privileges(who);
        let above = parent.map_or(0, |p| self.nodes[p].sd.grants(who));
        if above & DELETE_CHILD != 0 {
            granted |= DELETE;
        }
        if above & READ_DATA != 0 {
            granted |= READ_ATTRIBUTES;
        }
        granted
    }

    /// Takes away what the closing of `handle` deletes; `rest` are the other opens. [MS-FSA] 2.1.5.5.
    pub fn close(&mut self, handle: &Handle, rest: &[&Handle]) {
        if handle.delete_on_close && !handle.gone {
            if !handle.stream.is_empty() {
                self.doomed_streams.insert((handle.node, handle.stream.clone()));
            } else if let (Some(link), true) = (&handle.link, self.nodes[handle.node].children.is_empty()) {
                self.doomed.insert(link.clone());
            }
        }
        let key = (handle.node, handle.stream.clone());
        let stream_in_use = rest.iter().any(|h| h.node == handle.node && h.stream == handle.stream && !h.gone);
        if self.doomed_streams.contains(&key) && !stream_in_use {
            self.doomed_streams.remove(&key);
            self.nodes[handle.node].streams.remove(&handle.stream);
            self.nodes[handle.node].snapshots.remove(&handle.stream);
        }
        if let Some(link) = &handle.link {
            let link_in_use = rest.iter().any(|h| h.node == handle.node && h.link.as_ref() == Some(link));
            if self.doomed.contains(link) && !link_in_use {
                self.remove(link);
            }
        }
    }
}

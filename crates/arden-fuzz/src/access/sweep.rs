//! Compares the whole tree, as the store has it, with the model: names, data, streams, descriptors, attributes,
//! extended attributes, reparse points.

use std::collections::BTreeMap;

use arden_store::{
    name::NtPath,
    store::{Lookup, NodeRef, Wait},
};

use super::{
    judge,
    tree::{ATTR_COMPARED, NodeId, upper},
    world::{World, stored},
};

type Check = Result<(), String>;

impl World {
    /// # Errors
    /// The first difference.
    pub fn sweep(&self) -> Check {
        let root = self.store.root();
        self.compare("", self.roots[0], &root)
    }

    pub fn lookup(&self, path: &str) -> Result<NodeRef, String> {
        let parsed = NtPath::parse(path).map_err(|e| format!("{path}: {e}"))?;
        match self.store.lookup(&parsed) {
            Ok(Lookup::Found(node)) => Ok(node),
            Ok(_) => Err(format!("{path}: not in the store")),
            Err(e) => Err(format!("{path}: {e}")),
        }
    }

    fn compare(&self, path: &str, id: NodeId, node: &NodeRef) -> Check {
        let model = &self.tree.nodes[id];
        let fail = |what: String| Err(format!("the tree differs at \"{path}\": {what}"));
        let stat = node.stat().map_err(|e| format!("{path}: {e}"))?;
        if stat.directory != model.directory {
            return fail("file or directory".into());
        }
        if stat.attributes & ATTR_COMPARED != model.attributes {
            return fail(format!("attributes {:#x}, model {:#x}", stat.attributes & ATTR_COMPARED, model.attributes));
        }
        let sd = node.security().map_err(|e| format!("{path}: {e}"))?;
        let sd = stored(&sd).ok_or("a descriptor that does not decode")?;
        if !judge::matches_one(&sd, std::slice::from_ref(&model.sd), true) {
            return fail(format!("descriptor\n  store {sd:?}\n  model {:?}", model.sd));
        }
        self.compare_streams(path, id, node)?;
        let eas = node.eas().map_err(|e| format!("{path}: {e}"))?;
        let eas: BTreeMap<String, Vec<u8>> = eas.into_iter().map(|e| (upper(&e.name), e.value)).collect();
        if eas != model.eas {
            return fail(format!("EAs {eas:?}, model {:?}", model.eas));
        }
        if let Some((tag, data)) = &model.reparse {
            let there = node.reparse().map_err(|e| format!("{path}: reparse point: {e}"))?;
            if there != (*tag, data.clone()) {
                return fail("reparse point".into());
            }
        } else if stat.attributes & 0x400 != 0 {
            return fail("a reparse point".into());
        }
        if !model.directory {
            return Ok(());
        }
        let mut cursor = node.list().map_err(|e| format!("{path}: {e}"))?;
        let mut names = Vec::new();
        while let Some(entry) = cursor.peek(&|_| true).map_err(|e| format!("{path}: {e}"))? {
            cursor.advance();
            if entry.name != "." && entry.name != ".." {
                names.push(upper(&entry.name));
            }
        }
        names.sort();
        let expected: Vec<&String> = model.children.keys().collect();
        if names.iter().collect::<Vec<_>>() != expected {
            return fail(format!("entries {names:?}, model {expected:?}"));
        }
        for (name, child) in model.children.values() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}\\{name}") };
            self.compare(&path, *child, &self.lookup(&path)?)?;
        }
        Ok(())
    }

    fn compare_streams(&self, path: &str, id: NodeId, node: &NodeRef) -> Check {
        let model = &self.tree.nodes[id];
        let streams = node.streams().map_err(|e| format!("{path}: {e}"))?;
        let mut names: Vec<String> = streams.iter().map(|s| upper(&s.name)).collect();
        names.sort();
        let expected: Vec<&String> = model.streams.keys().collect();
        if names.iter().collect::<Vec<_>>() != expected {
            return Err(format!("the tree differs at \"{path}\": streams {names:?}, model {expected:?}"));
        }
        for (key, (name, data)) in &model.streams {
            let node = if key.is_empty() { node.clone() } else { self.lookup(&format!("{path}:{name}"))? };
            let size = node.stat().map_err(|e| format!("{path}:{name}: {e}"))?.end_of_file as usize;
            let mut bytes = vec![0; size];
            let mut at = 0;
            while at < size {
                let n = node.read_at(at as u64, &mut bytes[at..], Wait::Yes).map_err(|e| format!("{path}: {e}"))?;
                if n == 0 {
                    break;
                }
                at += n;
            }
            if bytes != *data {
                return Err(format!(
                    "the tree differs at \"{path}:{name}\": {size} bytes {:02x?}, model {} {:02x?}",
                    &bytes[..size.min(48)],
                    data.len(),
                    &data[..data.len().min(48)]
                ));
            }
        }
        Ok(())
    }
}

//! Makes opens and closes, and compares what came of them with the oracle.

use arden_wire::{NtStatus, fscc::file_class, smb2::create::tag};

use super::{
    acl,
    judge::{self, Action, Plan, Verdict},
    op::Create,
    tree::{ATTR_COMPARED, Handle, Node, Target, upper},
    world::{ADMIN, StoreKind, World},
};
use crate::client::{self, Created, Want, want};

pub type Check = Result<(), String>;

impl Verdict {
    /// # Errors
    /// The server did what the model forbids, or refused what it allows.
    pub fn check(&self, status: NtStatus, what: &str) -> Check {
        let ok = status.is_success() || status == NtStatus::BUFFER_OVERFLOW;
        if ok && !self.refuse.is_empty() {
            return Err(format!("{what}: {status}, but the model refuses it: {}", self.refuse.join("; ")));
        }
        if !ok && self.refuse.is_empty() && self.may_refuse.is_empty() {
            return Err(format!("{what}: {status}, but the model allows it"));
        }
        Ok(())
    }
}

impl World {
    /// The path as it goes over the wire and as the model knows it.
    pub fn spell(&mut self, root: usize, path: &str) -> (String, String) {
        let plain = path.replace('?', "");
        // A directory whose names are not in memory finds nothing by 8.3 names.
        if !path.contains(['?', '~']) || self.kind == StoreKind::Directory {
            return (plain.clone(), plain);
        }
        let mut wire: Vec<String> = Vec::new();
        let mut known = String::new();
        for part in path.split('\\') {
            let name = part.trim_start_matches('?');
            let short = if part.starts_with('?') { self.short_name(root, &known, name) } else { None };
            // A name that was made of an 8.3 name once may be the 8.3 name of another entry now.
            let long = if short.is_none() && name.contains('~') { self.long_name(root, &known, name) } else { None };
            wire.push(short.unwrap_or_else(|| name.to_string()));
            let name = long.as_deref().unwrap_or(name);
            known = if known.is_empty() { name.to_string() } else { format!("{known}\\{name}") };
        }
        (wire.join("\\"), known)
    }

    /// The long name of the entry that has this 8.3 name. None where it is the whole name of an entry, or of nothing.
    fn long_name(&mut self, root: usize, directory: &str, name: &str) -> Option<String> {
        let whole = if directory.is_empty() { name.to_string() } else { format!("{directory}\\{name}") };
        if self.tree.resolve(root, &whole).is_ok_and(|t| t.node.is_some()) {
            return None;
        }
        let entries = self.listed(root, directory, "*")?;
        entries.into_iter().find(|(_, short)| upper(short) == upper(name)).map(|(long, _)| long)
    }

    /// Long and 8.3 names of a directory, as the administrator sees them.
    fn listed(&mut self, root: usize, directory: &str, pattern: &str) -> Option<Vec<(String, String)>> {
        let share = self.roots.iter().position(|r| *r == root)?;
        let backup = arden_wire::access::OPT_OPEN_FOR_BACKUP_INTENT;
        let open = want(directory).access(acl::READ_DATA).existing().options(backup);
        let reply = self.call(ADMIN, share, &open.req());
        if !reply.status().is_success() {
            return None;
        }
        let id = Created::parse(&reply).id;
        let reply =
            self.call(ADMIN, share, &client::query_directory(id, file_class::BOTH_DIRECTORY, 1, pattern, 65536));
        let entries = reply.status().is_success().then(|| client::entries(reply.buffer(), file_class::BOTH_DIRECTORY));
        self.call(ADMIN, share, &client::close(id));
        let short = |bytes: &[u8]| {
            let len = usize::from(bytes[68]);
            let units: Vec<u16> =
                bytes[70..70 + len].chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]])).collect();
            String::from_utf16(&units).unwrap_or_default()
        };
        Some(entries?.into_iter().map(|(long, bytes)| (long, short(&bytes))).collect())
    }

    /// The 8.3 name of an entry, as the administrator sees it. None where it is the whole name of another entry, which is
    /// found first: 8.3 names are made from the long name alone, so that a listing does not know of that entry.
    fn short_name(&mut self, root: usize, directory: &str, name: &str) -> Option<String> {
        let entries = self.listed(root, directory, name)?;
        let (_, short) = entries.into_iter().find(|(long, short)| upper(long) == upper(name) && !short.is_empty())?;
        let whole = if directory.is_empty() { short.clone() } else { format!("{directory}\\{short}") };
        let taken = self.tree.resolve(root, &whole).is_ok_and(|t| t.node.is_some());
        (!taken).then_some(short)
    }

    pub fn close_slot(&mut self, slot: usize) -> Check {
        let Some(handle) = self.handles[slot].take() else { return Ok(()) };
        let reply = self.call(handle.session, handle.share, &client::close(handle.id));
        if !reply.status().is_success() {
            return Err(format!("CLOSE of the session's own open: {}", reply.status()));
        }
        self.after_close(&handle);
        Ok(())
    }

    /// What the end of an open deletes: a name with its own last open, and names that nobody has open with that of the file.
    pub fn after_close(&mut self, handle: &Handle) {
        let World { tree, handles, .. } = self;
        let rest: Vec<&Handle> = handles.iter().flatten().collect();
        tree.close(handle, &rest);
        let in_use = rest.iter().any(|h| h.node == handle.node);
        if !in_use {
            let links: Vec<_> =
                self.tree.doomed.iter().filter(|l| self.tree.leads_to(l, handle.node)).cloned().collect();
            links.iter().for_each(|link| self.tree.remove(link));
        }
    }

    fn want(&self, c: &Create, wire: &str) -> Want {
        let name = if c.stream.is_empty() { wire.to_string() } else { format!("{wire}:{}", c.stream) };
        let mut w = want(&name)
            .access(c.desired)
            .disposition(c.disposition)
            .options(c.options)
            .attributes(c.attributes)
            .share(c.share_mode);
        if let Some((sd, parts)) = &c.sd {
            w = w.context(tag::SD_BUFFER, sd.encode(*parts));
        }
        if !c.eas.is_empty() {
            let list: Vec<(&str, &[u8])> = c.eas.iter().map(|(n, v)| (n.as_str(), &v[..])).collect();
            w = w.context(tag::EA_BUFFER, client::eas(&list));
        }
        if c.maximal {
            w = w.context(tag::MAXIMAL_ACCESS, Vec::new());
        }
        w
    }

    pub fn create(&mut self, c: &Create) -> Check {
        self.close_slot(c.slot)?;
        let root = self.roots[c.share];
        let (wire, path) = self.spell(root, &c.path);
        let who = self.token(c.session);
        let request = self.want(c, &wire).req();
        let plan = match self.tree.resolve(root, &path) {
            // Deletion of the inner share's root is nobody's plan.
            Ok(t) if t.node == Some(self.inner) && c.options & 0x1000 != 0 => return Ok(()),
            // A new file of an 8.3 name may be given the long name of one that went, [MS-FSA] 2.1.5.1.1 (TunnelCacheList).
            Ok(t) if t.node.is_none() && t.name.contains('~') => return Ok(()),
            Ok(target) => judge::open(&self.tree, &self.shares[c.share], &who, c, target, &self.opens()),
            Err(why) => {
                let reply = self.call(c.session, c.share, &request);
                let verdict = Verdict { refuse: vec![why], ..Verdict::default() };
                return verdict.check(reply.status(), "CREATE");
            }
        };
        let reply = self.call(c.session, c.share, &request);
        plan.verdict.check(reply.status(), "CREATE")?;
        if !reply.status().is_success() {
            return Ok(());
        }
        self.opened(c, plan, &Created::parse(&reply))
    }

    fn opened(&mut self, c: &Create, plan: Plan, created: &Created) -> Check {
        if created.action != plan.action as u32 {
            return Err(format!("CREATE: action {}, the model has {:?}", created.action, plan.action));
        }
        let node = match (plan.target.node, plan.action) {
            (None, _) => self.new_node(c, &plan)?,
            (Some(node), Action::Created) => {
                // A stream of a reparse point is the server's matter.
                let entry = (plan.stream.clone(), Vec::new());
                self.tree.nodes[node].streams.insert(upper(&plan.stream), entry);
                node
            }
            (Some(node), Action::Opened) => node,
            (Some(node), _) => {
                self.overwritten(c, node)?;
                node
            }
        };
        let reply = self.call(c.session, c.share, &client::query_info(created.id, 1, file_class::ACCESS, 0, &[], 64));
        let granted = match reply.buffer() {
            [a, b, c, d, ..] => u32::from_le_bytes([*a, *b, *c, *d]),
            _ => return Err(format!("FileAccessInformation: {}", reply.status())),
        };
        self.handles[c.slot] = Some(Handle {
            session: c.session,
            share: c.share,
            node,
            stream: if plan.directory { String::new() } else { upper(&plan.stream) },
            link: plan.target.link(),
            granted,
            share_mode: c.share_mode,
            delete_on_close: c.options & 0x1000 != 0,
            gone: false,
            id: created.id,
        });
        let (least, most) = (plan.at_least, plan.at_most);
        if granted & !most != 0 || least & !granted != 0 {
            return Err(format!(
                "CREATE: granted {granted:#x}, the model has {least:#x} to {most:#x}: over {:#x}, under {:#x}",
                granted & !most,
                least & !granted
            ));
        }
        if c.maximal {
            self.check_maximal(c, &plan.target, node, created)?;
        }
        Ok(())
    }

    /// SMB2_CREATE_QUERY_MAXIMAL_ACCESS_RESPONSE, [MS-SMB2] 3.3.5.9.5: of the descriptor, of what the directory adds,
    /// and below the ceiling or not.
    fn check_maximal(&self, c: &Create, target: &Target, node: usize, created: &Created) -> Check {
        let Some(data) = created.context(tag::MAXIMAL_ACCESS) else {
            return Err("CREATE: no maximal access in the response".into());
        };
        let word = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let (status, said) = (word(0), word(4));
        let who = self.token(c.session);
        let plain = self.tree.nodes[node].sd.grants(&who);
        let with_parent = self.tree.grants(node, target.parent, &who);
        let ceiling = self.shares[c.share].ceiling(&who);
        let cleared = !(acl::WRITE_DATA | acl::APPEND_DATA | acl::DELETE_CHILD);
        let read_only = self.tree.nodes[node].attributes & 1 != 0;
        let fits = |mask: u32| said == mask || said == mask & ceiling || read_only && said == mask & ceiling & cleared;
        let bare = self.tree.nodes[node].sd.without_privileges(&who);
        let bare_with_parent = self.tree.without_privileges(node, target.parent, &who);
        if status == 0 && ![plain, with_parent, bare, bare_with_parent].into_iter().any(fits) {
            return Err(format!(
                "CREATE: maximal access {said:#x}, the model has {plain:#x}, with the directory {with_parent:#x}, \
                 ceiling {ceiling:#x}"
            ));
        }
        Ok(())
    }

    fn new_node(&mut self, c: &Create, plan: &Plan) -> Result<usize, String> {
        let who = self.token(c.session);
        let parent = plan.target.parent.expect("a new file has a directory");
        let given = c.sd.as_ref().map(|(sd, parts)| (sd, *parts));
        let allowed = acl::created(&self.tree.nodes[parent].sd, plan.directory, &who, given);
        let mut node = Node::new(plan.directory, allowed[0].clone());
        node.attributes = c.attributes & ATTR_COMPARED;
        for (name, value) in &c.eas {
            node.eas.insert(upper(name), value.clone());
        }
        if !c.stream.is_empty() {
            node.streams.insert(upper(&c.stream), (c.stream.clone(), Vec::new()));
        }
        let id = self.tree.add(node);
        self.tree.insert(parent, &plan.target.name, id);
        let path = self.path_of(id).unwrap_or_default();
        let stored = self.stored_sd(&path).ok_or_else(|| format!("CREATE: \"{path}\" is not in the store"))?;
        if !judge::matches_one(&stored, &allowed, who.privileged) {
            return Err(format!("CREATE: \"{path}\" has the descriptor\n  {stored:?}\n  the model has {allowed:?}"));
        }
        self.tree.nodes[id].sd = stored;
        Ok(id)
    }

    /// The data go; of other streams and EAs a store may keep some.
    fn overwritten(&mut self, c: &Create, node: usize) -> Check {
        let path = self.path_of(node);
        let there = path.and_then(|p| self.lookup(&p).ok());
        let model = &mut self.tree.nodes[node];
        if let Some(stream) = model.streams.get_mut(&upper(&c.stream)) {
            stream.1.clear();
        }
        if !c.stream.is_empty() {
            return Ok(());
        }
        model.attributes = c.attributes & ATTR_COMPARED;
        let Some(there) = there else { return Ok(()) };
        if let Ok(streams) = there.streams() {
            model.streams.retain(|key, _| streams.iter().any(|s| upper(&s.name) == *key));
            for h in self.handles.iter_mut().flatten().filter(|h| h.node == node && !h.stream.is_empty()) {
                h.gone |= !model.streams.contains_key(&h.stream);
            }
            let left: Vec<String> = model.streams.keys().cloned().collect();
            model.snapshots.retain(|key, _| left.contains(key));
            self.tree.doomed_streams.retain(|(n, s)| *n != node || left.contains(s));
        }
        if let Ok(eas) = there.eas() {
            model.eas.retain(|key, _| eas.iter().any(|e| upper(&e.name) == *key));
            for (name, value) in &c.eas {
                if eas.iter().any(|e| upper(&e.name) == upper(name)) {
                    model.eas.insert(upper(name), value.clone());
                }
            }
        }
        // Another store over the same directory is not told, and would take the next stream of the name for the one that went.
        let other = |h: &Handle| (h.share >= judge::INNER_SHARES) != (c.share >= judge::INNER_SHARES);
        let stale = |h: &Handle| h.gone && h.node == node && other(h);
        for slot in 0..self.handles.len() {
            if self.kind == StoreKind::Directory && self.handles[slot].as_ref().is_some_and(stale) {
                self.close_slot(slot)?;
            }
        }
        Ok(())
    }

    /// Something that is not in the model must not open.
    pub fn probe(&mut self, session: usize, share: usize, path: &str, desired: u32, disposition: u32) -> Check {
        let root = self.roots[share];
        let known = self.tree.resolve(root, path).is_ok_and(|t| t.node.is_some());
        if known {
            return Ok(());
        }
        let request = want(path).access(desired).disposition(disposition).req();
        let reply = self.call(session, share, &request);
        if reply.status().is_success() {
            return Err(format!("CREATE opens \"{path}\", which is not in the model"));
        }
        Ok(())
    }
}

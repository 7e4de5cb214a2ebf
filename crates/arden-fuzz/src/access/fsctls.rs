//! FSCTLs, copies between opens, locks, watches, and opens by file id.

use arden_wire::{
    NtStatus,
    cursor::Put,
    fscc::{file_class, fsctl},
    smb2::{FileId, io::lock_flags},
    stream_snapshot,
};

use super::{
    acl,
    judge::Verdict,
    op::Fsctl,
    opens::Check,
    tree::Handle,
    world::{ADMIN, World},
};
use crate::client::{self, Created, want};

/// What a reparse point is made of, by number.
fn reparse_data(which: u8) -> (u32, Vec<u8>) {
    if which == 2 {
        // A tag that is not Microsoft's would need a GUID; this is one that servers keep and nobody follows.
        return (0x8000_0013, vec![1, 2, 3, 4]);
    }
    let target: Vec<u8> = ["..\\outside", "a"][usize::from(which)].encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut data = Vec::new();
    for n in [0, target.len(), target.len(), target.len()] {
        data.put_u16(n as u16);
    }
    data.put_u32(1);
    data.extend_from_slice(&target);
    data.extend_from_slice(&target);
    (0xA000_000C, data)
}

impl World {
    fn ioctl(&mut self, h: &Handle, code: u32, input: &[u8], max: u32) -> client::Reply {
        self.call(h.session, h.share, &client::ioctl(h.id, code, input, max))
    }

    pub fn fsctl(&mut self, slot: usize, kind: Fsctl) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let privileged = self.token(h.session).privileged;
        let n = &self.tree.nodes[h.node];
        let mut v = Verdict::default();
        let changes = acl::WRITE_DATA | acl::WRITE_ATTRIBUTES;
        let directory = n.directory && h.stream.is_empty();
        let needs = |v: &mut Verdict, right: u32| v.refuse_if(h.granted & right == 0, "the access of the FSCTL");
        v.may_refuse_if(!matches!(kind, Fsctl::ZeroData { .. }), "support");
        let (code, input, max): (u32, Vec<u8>, u32) = match kind {
            Fsctl::ZeroData { from, to } => {
                needs(&mut v, acl::WRITE_DATA);
                v.refuse_if(directory || from > to, "parameters");
                v.may_refuse_if(self.locked.contains(&h.node), "locks");
                (fsctl::SET_ZERO_DATA, client::pair(from, to), 0)
            }
            Fsctl::SetSparse(on) => {
                needs(&mut v, changes | acl::APPEND_DATA);
                (fsctl::SET_SPARSE, vec![u8::from(on)], 0)
            }
            Fsctl::Ranges => {
                needs(&mut v, acl::READ_DATA);
                (fsctl::QUERY_ALLOCATED_RANGES, client::pair(0, 1 << 20), 4096)
            }
            Fsctl::Trim => {
                let bytes = n.streams.get(&h.stream).is_some_and(|s| !s.1.is_empty());
                v.refuse_if(bytes && h.granted & acl::WRITE_DATA == 0, "FILE_WRITE_DATA");
                let input = [&[0, 0, 0, 0, 1, 0, 0, 0][..], &client::pair(0, 4096)].concat();
                (fsctl::FILE_LEVEL_TRIM, input, 4)
            }
            Fsctl::ObjectId => (fsctl::CREATE_OR_GET_OBJECT_ID, vec![], 64),
            Fsctl::GetObjectId => (fsctl::GET_OBJECT_ID, vec![], 64),
            Fsctl::SetObjectId(id) => {
                v.refuse_if(!privileged, "SeRestorePrivilege");
                (fsctl::SET_OBJECT_ID, vec![id; 64], 0)
            }
            Fsctl::SetReparse(which) => {
                needs(&mut v, changes);
                v.refuse_if(h.link.is_none() || h.node == self.inner || !n.children.is_empty(), "entries, or a root");
                if !h.stream.is_empty() || h.node == self.inner || h.link.is_none() {
                    return Ok(());
                }
                let (tag, data) = reparse_data(which);
                (fsctl::SET_REPARSE_POINT, reparse_buffer(tag, &data), 0)
            }
            Fsctl::GetReparse => (fsctl::GET_REPARSE_POINT, vec![], 4096),
            Fsctl::DeleteReparse => {
                needs(&mut v, changes);
                v.refuse_if(n.reparse.is_none(), "no reparse point");
                let tag = n.reparse.as_ref().map_or(0, |r| r.0);
                (fsctl::DELETE_REPARSE_POINT, reparse_buffer(tag, &[]), 0)
            }
            Fsctl::GetCompression => {
                v.may_refuse_if(true, "no compression");
                (fsctl::GET_COMPRESSION, vec![], 2)
            }
            Fsctl::SetCompression => {
                v.may_refuse_if(true, "no compression");
                (fsctl::SET_COMPRESSION, vec![2, 0], 0)
            }
            Fsctl::GetIntegrity => (fsctl::GET_INTEGRITY_INFORMATION, vec![], 16),
            Fsctl::SetIntegrity => (fsctl::SET_INTEGRITY_INFORMATION, vec![2, 0, 0, 0, 0, 0, 0, 0], 0),
            // Reverting is a write of the whole stream. What a snapshot's name leads to tells more than a reader may know
            // only to who has the operation's access.
            Fsctl::StreamSnapshot(which, second) => {
                let there = self.snapshot_of(&h, second).is_some();
                let (operation, needs, max) = match which {
                    0 => (stream_snapshot::Operation::Create, acl::WRITE_ATTRIBUTES, 0),
                    1 => (stream_snapshot::Operation::List, acl::READ_ATTRIBUTES, 4096),
                    2 => (stream_snapshot::Operation::QueryDeltas { from: 0, flags: 0 }, acl::READ_ATTRIBUTES, 4096),
                    _ => (stream_snapshot::Operation::Revert, acl::WRITE_ATTRIBUTES | acl::WRITE_DATA, 0),
                };
                v.refuse_if(h.granted & needs != needs, "the access of the operation");
                v.refuse_if(which == 0 && there, "a snapshot of that name");
                v.refuse_if(which >= 2 && !there, "no such snapshot");
                let input = stream_snapshot::Request::encode(operation, snapshot_name(second));
                (fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT, input, max)
            }
            Fsctl::ResumeKey => (fsctl::SRV_REQUEST_RESUME_KEY, vec![], 32),
            Fsctl::Resilient => return Ok(()),
            Fsctl::Snapshots => (fsctl::SRV_ENUMERATE_SNAPSHOTS, vec![], 64),
            Fsctl::FileUsn => (fsctl::READ_FILE_USN_DATA, vec![2, 0, 3, 0], 4096),
            Fsctl::UsnQuery | Fsctl::UsnRead | Fsctl::UsnCreate | Fsctl::UsnDelete => {
                v.refuse_if(!privileged, "the journal tells of everybody's files");
                let code = match kind {
                    Fsctl::UsnQuery => fsctl::QUERY_USN_JOURNAL,
                    Fsctl::UsnRead => fsctl::READ_USN_JOURNAL,
                    Fsctl::UsnCreate => fsctl::CREATE_USN_JOURNAL,
                    _ => fsctl::DELETE_USN_JOURNAL,
                };
                let mut input = vec![0; 16];
                input[12] = 0xFF;
                (code, if code == fsctl::READ_USN_JOURNAL { [input, vec![0; 24]].concat() } else { input }, 4096)
            }
        };
        let reply = self.ioctl(&h, code, &input, max);
        v.check(reply.status(), &format!("FSCTL {kind:?}"))?;
        if reply.status().is_success() {
            self.after_fsctl(&h, kind);
        }
        Ok(())
    }

    fn after_fsctl(&mut self, h: &Handle, kind: Fsctl) {
        let n = &mut self.tree.nodes[h.node];
        match kind {
            Fsctl::ZeroData { from, to } => {
                if let Some((_, data)) = n.streams.get_mut(&h.stream) {
                    let end = (to as usize).min(data.len());
                    data[(from as usize).min(end)..end].fill(0);
                }
            }
            // What is given up reads as zeros.
            Fsctl::Trim => {
                if let Some((_, data)) = n.streams.get_mut(&h.stream) {
                    let end = data.len().min(4096);
                    data[..end].fill(0);
                }
            }
            Fsctl::SetReparse(which) => n.reparse = Some(reparse_data(which)),
            Fsctl::DeleteReparse => n.reparse = None,
            Fsctl::StreamSnapshot(0, second) => {
                if let Some((_, data)) = n.streams.get(&h.stream) {
                    let snapshot = (snapshot_name(second).to_string(), data.clone());
                    n.snapshots.entry(h.stream.clone()).or_default().push(snapshot);
                }
            }
            // That snapshot and all later ones go.
            Fsctl::StreamSnapshot(3, second) => {
                let at = self.snapshot_of(h, second);
                let n = &mut self.tree.nodes[h.node];
                let snapshots = n.snapshots.get_mut(&h.stream);
                let reverted = snapshots.zip(at).and_then(|(list, at)| list.drain(at..).next());
                if let (Some((_, data)), Some((_, old))) = (n.streams.get_mut(&h.stream), reverted) {
                    *data = old;
                }
            }
            _ => {}
        }
    }

    /// The place of a snapshot among those of the open's stream.
    fn snapshot_of(&self, h: &Handle, second: bool) -> Option<usize> {
        let list = self.tree.nodes[h.node].snapshots.get(&h.stream)?;
        list.iter().position(|(name, _)| name == snapshot_name(second))
    }

    fn data(&self, h: &Handle) -> Option<Vec<u8>> {
        self.tree.nodes[h.node].streams.get(&h.stream).map(|s| s.1.clone())
    }

    /// Reading from one open and writing to another.
    fn transfer(&self, from: &Handle, to: &Handle, len: usize) -> Verdict {
        let mut v = Verdict::default();
        v.refuse_if(from.granted & (acl::READ_DATA | acl::EXECUTE) == 0, "FILE_READ_DATA of the source");
        v.refuse_if(to.granted & (acl::WRITE_DATA | acl::APPEND_DATA) == 0, "FILE_WRITE_DATA of the target");
        let (source, target) = (self.data(from), self.data(to));
        v.refuse_if(source.is_none() || target.is_none(), "a directory has no data");
        v.may_refuse_if(source.is_some_and(|s| s.len() < len), "the end of the source");
        v.may_refuse_if(self.locked.contains(&from.node) || self.locked.contains(&to.node), "locks");
        v
    }

    /// SRV_COPYCHUNK, [MS-SMB2] 3.3.5.15.6.
    pub fn copy(&mut self, from: usize, to: usize, write_only: bool, len: u32) -> Check {
        let (Some(from), Some(to)) = (self.handle(from), self.handle(to)) else { return Ok(()) };
        let reply = self.ioctl(&from, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
        if !reply.status().is_success() || reply.ioctl_output().len() < 24 {
            return Ok(());
        }
        let key = reply.ioctl_output()[..24].to_vec();
        let mut v = self.transfer(&from, &to, len as usize);
        v.refuse_if(!write_only && to.granted & acl::READ_DATA == 0, "FILE_READ_DATA of the target");
        v.refuse_if(from.session != to.session, "a resume key of another session");
        v.may_refuse_if(from.node == to.node && from.stream == to.stream, "the same stream");
        let code = if write_only { fsctl::SRV_COPYCHUNK_WRITE } else { fsctl::SRV_COPYCHUNK };
        let reply = self.ioctl(&to, code, &client::copy_chunks(&key, &[(0, 0, len)]), 12);
        v.check(reply.status(), "SRV_COPYCHUNK")?;
        if let (true, Some(data)) = (reply.status().is_success(), self.data(&from)) {
            self.put(&to, 0, &data[..data.len().min(len as usize)]);
        }
        Ok(())
    }

    /// FSCTL_OFFLOAD_READ and FSCTL_OFFLOAD_WRITE: the token is a capability, whoever presents it.
    pub fn offload(&mut self, from: usize, to: usize) -> Check {
        let (Some(from), Some(to)) = (self.handle(from), self.handle(to)) else { return Ok(()) };
        let mut input = Vec::new();
        for n in [32, 0, 60_000, 0] {
            input.put_u32(n);
        }
        input.put_u64(0);
        input.put_u64(4096);
        let mut v = Verdict::default();
        v.refuse_if(from.granted & (acl::READ_DATA | acl::EXECUTE) == 0, "FILE_READ_DATA of the source");
        v.may_refuse_if(true, "support");
        let reply = self.ioctl(&from, fsctl::OFFLOAD_READ, &input, 528);
        v.check(reply.status(), "FSCTL_OFFLOAD_READ")?;
        if !reply.status().is_success() || reply.ioctl_output().len() < 528 {
            return Ok(());
        }
        let token = reply.ioctl_output()[16..528].to_vec();
        let mut input = Vec::new();
        input.put_u32(544);
        input.put_u32(0);
        for n in [0, 4096, 0] {
            input.put_u64(n);
        }
        input.extend_from_slice(&token);
        let mut v = Verdict::default();
        v.refuse_if(to.granted & acl::WRITE_DATA == 0, "FILE_WRITE_DATA of the target");
        v.may_refuse_if(true, "support");
        let reply = self.ioctl(&to, fsctl::OFFLOAD_WRITE, &input, 16);
        v.check(reply.status(), "FSCTL_OFFLOAD_WRITE")?;
        if reply.status().is_success() { self.adopt_copy(&from, &to) } else { Ok(()) }
    }

    /// FSCTL_DUPLICATE_EXTENTS_TO_FILE; the source is an open of the same session.
    pub fn duplicate(&mut self, from: usize, to: usize) -> Check {
        let (Some(from), Some(to)) = (self.handle(from), self.handle(to)) else { return Ok(()) };
        let mut v = self.transfer(&from, &to, 4096);
        v.refuse_if(from.session != to.session, "an open of another session");
        v.refuse_if(to.granted & acl::WRITE_DATA == 0, "FILE_WRITE_DATA of the target");
        v.may_refuse_if(true, "support");
        let mut input = Vec::new();
        from.id.put(&mut input);
        for n in [0, 0, 4096] {
            input.put_u64(n);
        }
        let reply = self.ioctl(&to, fsctl::DUPLICATE_EXTENTS_TO_FILE, &input, 0);
        v.check(reply.status(), "FSCTL_DUPLICATE_EXTENTS_TO_FILE")?;
        if reply.status().is_success() { self.adopt_copy(&from, &to) } else { Ok(()) }
    }

    /// The target has the source's bytes, its own, or zeros, and takes over what the store has.
    fn adopt_copy(&mut self, from: &Handle, to: &Handle) -> Check {
        let (Some(source), Some(old), Some(path)) = (self.data(from), self.data(to), self.path_of(to.node)) else {
            return Ok(());
        };
        let name = self.tree.nodes[to.node].streams.get(&to.stream).map(|s| s.0.clone()).unwrap_or_default();
        let path = if to.stream.is_empty() { path } else { format!("{path}:{name}") };
        let node = self.lookup(&path)?;
        let size = node.stat().map_err(|e| e.to_string())?.end_of_file as usize;
        let mut new = vec![0; size];
        if size > 0 {
            node.read_at(0, &mut new, arden_store::store::Wait::Yes).map_err(|e| e.to_string())?;
        }
        let fits = |(i, byte): (usize, &u8)| *byte == 0 || source.get(i) == Some(byte) || old.get(i) == Some(byte);
        if !new.iter().enumerate().all(fits) {
            return Err("a copy brings bytes that neither file had".into());
        }
        if let Some((_, data)) = self.tree.nodes[to.node].streams.get_mut(&to.stream) {
            *data = new;
        }
        Ok(())
    }

    pub fn lock(&mut self, slot: usize, exclusive: bool, unlock: bool) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let n = &self.tree.nodes[h.node];
        let mut v = Verdict::default();
        v.refuse_if(n.directory && h.stream.is_empty(), "a directory has no locks");
        v.may_refuse_if(self.locked.contains(&h.node) || unlock, "locks");
        let rights = acl::READ_DATA | acl::WRITE_DATA | acl::EXECUTE | acl::APPEND_DATA;
        v.may_refuse_if(h.granted & rights == 0, "no data");
        let flags = match (unlock, exclusive) {
            (true, _) => lock_flags::UNLOCK,
            (false, true) => lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY,
            (false, false) => 1 | lock_flags::FAIL_IMMEDIATELY,
        };
        let reply = self.call(h.session, h.share, &client::lock(h.id, 0, &[(0, 10, flags)]));
        v.check(reply.status(), "LOCK")?;
        self.locked.push(h.node);
        Ok(())
    }

    /// CHANGE_NOTIFY, and its end by a cancel.
    pub fn watch(&mut self, slot: usize) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let n = &self.tree.nodes[h.node];
        let mut v = Verdict::default();
        v.refuse_if(!(n.directory && h.stream.is_empty()), "a file has no entries");
        v.refuse_if(h.granted & acl::READ_DATA == 0, "FILE_LIST_DIRECTORY");
        v.may_refuse_if(true, "changes before, or deletion");
        let tree = self.trees[h.session][h.share];
        self.requests += 1;
        let c = &mut self.clients[h.session];
        let id = c.send(&client::notify(h.id, 0, 0xFFF, 4096).tree(tree));
        let status = match c.poll(id) {
            Some(reply) => reply.status(),
            None => {
                let async_id = c.interim(id);
                c.cancel(async_id);
                _ = c.poll(id);
                NtStatus::SUCCESS
            }
        };
        v.check(status, "CHANGE_NOTIFY")
    }

    /// FILE_OPEN_BY_FILE_ID: only what lies below the share.
    pub fn open_by_id(&mut self, slot: usize, session: usize, share: usize, of: &str, desired: u32) -> Check {
        self.close_slot(slot)?;
        let (_, path) = self.spell(self.roots[0], of);
        let Ok(target) = self.tree.resolve(self.roots[0], &path) else { return Ok(()) };
        let Some(node) = target.node.filter(|n| self.tree.links(*n) == 1) else { return Ok(()) };
        let backup = arden_wire::access::OPT_OPEN_FOR_BACKUP_INTENT | arden_wire::access::OPT_OPEN_REPARSE_POINT;
        let open = want(&path).access(acl::READ_ATTRIBUTES).existing().options(backup);
        let reply = self.call(ADMIN, 0, &open.req());
        if !reply.status().is_success() {
            return Ok(());
        }
        let id = Created::parse(&reply).id;
        let reply = self.call(ADMIN, 0, &client::query_info(id, 1, file_class::INTERNAL, 0, &[], 64));
        let number = reply.buffer().get(..8).map(<[u8]>::to_vec);
        self.call(ADMIN, 0, &client::close(id));
        let Some(number) = number else { return Ok(()) };
        let who = self.token(session);
        let mut v = Verdict::default();
        let root = self.roots[share];
        let desired = desired & !acl::SYSTEM_SECURITY;
        let specific = acl::specific(desired);
        let plain = specific & !acl::MAXIMUM;
        let (least, most) =
            (self.tree.nodes[node].sd.without_privileges(&who), self.tree.grants(node, target.parent, &who));
        v.refuse_if(!self.tree.is_below(root, node), "a file outside the share");
        v.refuse_if(plain & !self.shares[share].ceiling(&who) != 0, "the share's ceiling");
        v.refuse_if(plain & !most != 0, "the descriptor");
        v.may_refuse_if(true, "support, the read-only attribute, sharing, or a parent that does not count");
        let w = want("").access(desired).existing().options(arden_wire::access::OPT_OPEN_BY_FILE_ID | 0x20_0000);
        let reply = self.call(session, share, &w.req_named(&number));
        v.check(reply.status(), "CREATE by file id")?;
        if !reply.status().is_success() {
            return Ok(());
        }
        let created = Created::parse(&reply);
        let reply = self.call(session, share, &client::query_info(created.id, 1, file_class::ACCESS, 0, &[], 64));
        let granted = reply.buffer().get(..4).map_or(0, |b| client::le_u32(b, 0));
        self.call(session, share, &client::close(created.id));
        let ceiling = self.shares[share].ceiling(&who);
        let at_most = if specific & acl::MAXIMUM != 0 { (most | plain) & ceiling } else { plain };
        let _ = (least, FileId::RELATED);
        if granted & !at_most != 0 {
            return Err(format!("CREATE by file id: granted {granted:#x}, the model has {at_most:#x}"));
        }
        Ok(())
    }
}

fn snapshot_name(second: bool) -> &'static str {
    if second { "t" } else { "s" }
}

fn reparse_buffer(tag: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(tag);
    out.put_u16(data.len() as u16);
    out.put_u16(0);
    out.extend_from_slice(data);
    out
}

//! Requests on opens, and what the oracle says of them: [MS-SMB2] 3.3.5.12 to 3.3.5.21 and [MS-FSA] 2.1.5.3 to 2.1.5.17.

use arden_wire::fscc::file_class;

use super::{
    acl::{self, Sd, Who},
    judge::{self, Verdict},
    opens::Check,
    tree::{ATTR_COMPARED, ATTR_READONLY, Handle, upper},
    world::World,
};
use crate::client::{self, Req};

impl World {
    /// The open in a slot; not one whose stream went away under it.
    pub fn handle(&self, slot: usize) -> Option<Handle> {
        let h = self.handles[slot].clone().filter(|h| !h.gone)?;
        let n = &self.tree.nodes[h.node];
        // What happens to one of several opens of a stream under a rename of another is not this model's matter.
        (n.directory && h.stream.is_empty() || n.streams.contains_key(&h.stream)).then_some(h)
    }

    pub fn read(&mut self, slot: usize, offset: u64, len: u32) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let n = &self.tree.nodes[h.node];
        let mut v = Verdict::default();
        v.refuse_if(n.directory && h.stream.is_empty(), "a directory has no data");
        v.refuse_if(h.granted & (acl::READ_DATA | acl::EXECUTE) == 0, "FILE_READ_DATA");
        v.may_refuse_if(self.locked.contains(&h.node), "locks");
        let data = n.streams.get(&h.stream).map(|s| s.1.clone()).unwrap_or_default();
        let from = (offset as usize).min(data.len());
        v.may_refuse_if(from == data.len(), "the end of the file");
        let reply = self.call(h.session, h.share, &client::read(h.id, offset, len));
        v.check(reply.status(), "READ")?;
        if reply.status().is_success() {
            let expected = &data[from..(from + len as usize).min(data.len())];
            if reply.read_data() != expected {
                return Err(format!("READ: {:02x?}, the model has {expected:02x?}", reply.read_data()));
            }
        }
        Ok(())
    }

    pub fn write(&mut self, slot: usize, offset: u64, len: usize, fill: u8) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let n = &self.tree.nodes[h.node];
        let mut v = Verdict::default();
        v.refuse_if(n.directory && h.stream.is_empty(), "a directory has no data");
        // Either right is enough, [MS-SMB2] 3.3.5.13 <364>.
        v.refuse_if(h.granted & (acl::WRITE_DATA | acl::APPEND_DATA) == 0, "FILE_WRITE_DATA or FILE_APPEND_DATA");
        v.may_refuse_if(self.locked.contains(&h.node), "locks");
        let reply = self.call(h.session, h.share, &client::write(h.id, offset, &vec![fill; len]));
        v.check(reply.status(), "WRITE")?;
        if reply.status().is_success() {
            self.put(&h, offset as usize, &vec![fill; len]);
        }
        Ok(())
    }

    /// Data in the model.
    pub fn put(&mut self, h: &Handle, offset: usize, bytes: &[u8]) {
        if let Some((_, data)) = self.tree.nodes[h.node].streams.get_mut(&h.stream) {
            if data.len() < offset + bytes.len() {
                data.resize(offset + bytes.len(), 0);
            }
            data[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    pub fn query(&mut self, slot: usize, class: u8) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let attributes = [file_class::BASIC, file_class::ALL, file_class::NETWORK_OPEN, file_class::ATTRIBUTE_TAG];
        let known = [
            file_class::STANDARD,
            file_class::INTERNAL,
            file_class::EA,
            file_class::ACCESS,
            file_class::STREAM,
            file_class::FULL_EA,
            file_class::POSITION,
            file_class::MODE,
        ];
        let mut v = Verdict::default();
        v.refuse_if(attributes.contains(&class) && h.granted & acl::READ_ATTRIBUTES == 0, "FILE_READ_ATTRIBUTES");
        v.refuse_if(class == file_class::FULL_EA && h.granted & acl::READ_EA == 0, "FILE_READ_EA");
        v.may_refuse_if(!known.contains(&class) && !attributes.contains(&class), "a class that needs support");
        v.may_refuse_if(class == file_class::FULL_EA, "no EAs");
        v.may_refuse_if(class == file_class::STREAM, "no streams");
        let reply = self.call(h.session, h.share, &client::query_info(h.id, 1, class, 0, &[], 65536));
        v.check(reply.status(), &format!("QUERY_INFO of class {class}"))?;
        if reply.status().is_success() {
            return self.check_information(&h, class, reply.buffer());
        }
        Ok(())
    }

    fn check_information(&self, h: &Handle, class: u8, data: &[u8]) -> Check {
        let n = &self.tree.nodes[h.node];
        let differs = |what: String| Err(format!("QUERY_INFO of class {class}: {what}"));
        match class {
            file_class::STANDARD => {
                let (size, links) = (client::le_u64(data, 8), client::le_u32(data, 16) as usize);
                let expected = n.streams.get(&h.stream).map_or(0, |s| s.1.len() as u64);
                if !n.directory && size != expected {
                    return differs(format!("{size} bytes, the model has {expected}"));
                }
                // Without those that are to be deleted, [MS-FSA] 2.1.5.12.27; another store does not know of them.
                let (here, pending) = (self.tree.links(h.node), self.tree.doomed_links(h.node));
                if !n.directory && !(here - pending..=here).contains(&links) {
                    return differs(format!("{links} links, the model has {here}"));
                }
            }
            file_class::ACCESS if client::le_u32(data, 0) != h.granted => {
                return differs(format!("{:#x}, at the open it was {:#x}", client::le_u32(data, 0), h.granted));
            }
            file_class::BASIC => {
                let said = client::le_u32(data, 32) & ATTR_COMPARED;
                if said != n.attributes {
                    return differs(format!("attributes {said:#x}, the model has {:#x}", n.attributes));
                }
            }
            file_class::STREAM if !data.is_empty() => {
                let mut names = stream_names(data);
                names.sort();
                let expected: Vec<String> = n.streams.keys().cloned().collect();
                if names != expected {
                    return differs(format!("{names:?}, the model has {expected:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub fn query_security(&mut self, slot: usize, parts: u32) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let mut v = Verdict::default();
        v.refuse_if(parts & 0x17 != 0 && h.granted & acl::READ_CONTROL == 0, "READ_CONTROL");
        v.refuse_if(parts & 8 != 0 && h.granted & acl::SYSTEM_SECURITY == 0, "ACCESS_SYSTEM_SECURITY");
        v.may_refuse_if(parts & 0xF == 0, "nothing asked");
        let reply = self.call(h.session, h.share, &client::query_info(h.id, 3, 0, parts, &[], 65536));
        v.check(reply.status(), "QUERY_INFO of security")?;
        if !reply.status().is_success() {
            return Ok(());
        }
        let said = Sd::decode(reply.buffer()).ok_or("QUERY_INFO of security: no descriptor")?;
        let model = &self.tree.nodes[h.node].sd;
        let nobody = Who::Unknown;
        let owner = if parts & 1 != 0 { model.owner } else { nobody };
        let group = if parts & 2 != 0 { model.group } else { nobody };
        let dacl = match (&said.dacl, &model.dacl) {
            _ if parts & 4 == 0 => said.dacl.is_none(),
            (Some(a), Some(b)) => acl::same_acl(a, b),
            (None, None) => true,
            _ => false,
        };
        let sacl = if parts & 8 != 0 { acl::same_acl(&said.sacl, &model.sacl) } else { said.sacl.is_empty() };
        if said.owner != owner || said.group != group || !dacl || !sacl {
            return Err(format!("QUERY_INFO of security, parts {parts:#x}:\n  {said:?}\n  the model has {model:?}"));
        }
        Ok(())
    }

    pub fn query_fs(&mut self, slot: usize, class: u8) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        // Nothing of one file is in there, and no access is asked.
        self.call(h.session, h.share, &client::query_info(h.id, 2, class, 0, &[], 4096));
        Ok(())
    }

    /// SET_INFO of a file class.
    pub fn set(&mut self, h: &Handle, class: u8, data: &[u8]) -> client::Reply {
        self.call(h.session, h.share, &client::set_info(h.id, 1, class, 0, data))
    }

    pub fn set_basic(&mut self, slot: usize, attributes: u32) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let mut v = Verdict::default();
        v.refuse_if(h.granted & acl::WRITE_ATTRIBUTES == 0, "FILE_WRITE_ATTRIBUTES");
        let root = h.link.is_none();
        v.may_refuse_if(root, "the root of a share");
        let reply = self.set(&h, file_class::BASIC, &client::basic(0, 0, 0, 0, attributes));
        v.check(reply.status(), "SET_INFO of FileBasicInformation")?;
        if reply.status().is_success() {
            let node = self.roots[0] == h.node;
            let n = &mut self.tree.nodes[h.node];
            // The root of a volume keeps hidden and system; which a share's root is, a server may see otherwise.
            n.attributes = attributes & ATTR_COMPARED;
            if root || node {
                let there = self.path_of(h.node).and_then(|p| self.lookup(&p).ok()).and_then(|n| n.stat().ok());
                let n = &mut self.tree.nodes[h.node];
                n.attributes = there.map_or(n.attributes, |s| s.attributes & ATTR_COMPARED);
            }
        }
        Ok(())
    }

    pub fn set_size(&mut self, slot: usize, class: u8, size: u64) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let mut v = Verdict::default();
        v.refuse_if(self.tree.nodes[h.node].directory && h.stream.is_empty(), "a directory has no size");
        v.refuse_if(h.granted & acl::WRITE_DATA == 0, "FILE_WRITE_DATA");
        v.may_refuse_if(self.locked.contains(&h.node), "locks");
        let reply = self.set(&h, class, &size.to_le_bytes());
        v.check(reply.status(), &format!("SET_INFO of class {class}"))?;
        if reply.status().is_success() {
            if let Some((_, data)) = self.tree.nodes[h.node].streams.get_mut(&h.stream) {
                if class == file_class::END_OF_FILE {
                    data.resize(size as usize, 0);
                } else {
                    // An allocation is rounded up to units of the store.
                    let units = size.next_multiple_of(4096) as usize;
                    let cut = if size == 0 { 0 } else { units };
                    let said = self.handles[slot].clone();
                    let _ = said;
                    data.truncate(cut);
                }
            }
            if class == file_class::ALLOCATION {
                self.adopt_size(&h);
            }
        }
        Ok(())
    }

    /// Takes over how far a store cuts data for a smaller allocation: to the size asked or to the end of its unit.
    fn adopt_size(&mut self, h: &Handle) {
        let Some(path) = self.path_of(h.node) else { return };
        let path = if h.stream.is_empty() { path } else { format!("{path}:{}", h.stream) };
        if let Some(stat) = self.lookup(&path).ok().and_then(|n| n.stat().ok()) {
            if let Some((_, data)) = self.tree.nodes[h.node].streams.get_mut(&h.stream) {
                data.truncate(stat.end_of_file as usize);
            }
        }
    }

    pub fn set_security(&mut self, slot: usize, sd: &Sd, parts: u32) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let who = self.token(h.session);
        let mut v = Verdict::default();
        v.refuse_if(parts & 3 != 0 && h.granted & acl::WRITE_OWNER == 0, "WRITE_OWNER");
        v.refuse_if(parts & 4 != 0 && h.granted & acl::WRITE_DAC == 0, "WRITE_DAC");
        v.refuse_if(parts & 8 != 0 && h.granted & acl::SYSTEM_SECURITY == 0, "ACCESS_SYSTEM_SECURITY");
        let ceiling = self.shares[h.share].ceiling(&who);
        v.may_refuse_if(parts & 8 != 0 && ceiling & acl::WRITE_DAC == 0, "the share's ceiling and a SACL");
        let other = sd.owner != self.tree.nodes[h.node].sd.owner;
        v.refuse_if(parts & 1 != 0 && other && !who.may_own(sd.owner), "an owner that the token may not give");
        v.may_refuse_if(parts & 1 != 0 && !who.may_own(sd.owner), "the owner that is there already");
        let request = client::set_info(h.id, 3, 0, parts, &sd.encode(parts));
        let reply = self.call(h.session, h.share, &request);
        v.check(reply.status(), "SET_INFO of security")?;
        if !reply.status().is_success() {
            return Ok(());
        }
        let mut new = self.tree.nodes[h.node].sd.clone();
        if parts & 1 != 0 {
            new.owner = sd.owner;
        }
        if parts & 2 != 0 {
            new.group = sd.group;
        }
        if parts & 8 != 0 {
            new.sacl = sd.sacl.clone();
        }
        let mut allowed = vec![new.clone()];
        if parts & 4 != 0 {
            // Macro principals may be filled in, and what the directory hands down may be kept or not.
            let parent = h.link.as_ref().map(|l| self.tree.nodes[l.0].sd.clone());
            let parent = parent.unwrap_or_else(|| Sd::new(Who::Root, Vec::new()));
            let given = Some((sd, 4));
            let options = acl::created(&parent, self.tree.nodes[h.node].directory, &who, given);
            allowed = options.into_iter().map(|o| Sd { dacl: o.dacl, protected: o.protected, ..new.clone() }).collect();
        }
        let Some(stored) = self.path_of(h.node).and_then(|p| self.stored_sd(&p)) else { return Ok(()) };
        if !judge::matches_one(&stored, &allowed, true) {
            return Err(format!("SET_INFO of security: stored\n  {stored:?}\n  the model has {allowed:?}"));
        }
        self.tree.nodes[h.node].sd = stored;
        Ok(())
    }

    pub fn set_ea(&mut self, slot: usize, name: &str, value: &[u8]) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let mut v = Verdict::default();
        v.refuse_if(h.granted & acl::WRITE_EA == 0, "FILE_WRITE_EA");
        v.may_refuse_if(self.tree.nodes[h.node].reparse.is_some(), "a reparse point");
        v.may_refuse_if(!h.stream.is_empty(), "a stream");
        let reply = self.set(&h, file_class::FULL_EA, &client::eas(&[(name, value)]));
        v.check(reply.status(), "SET_INFO of FileFullEaInformation")?;
        if reply.status().is_success() {
            let eas = &mut self.tree.nodes[h.node].eas;
            if value.is_empty() {
                eas.remove(&upper(name));
            } else {
                eas.insert(upper(name), value.to_vec());
            }
        }
        Ok(())
    }

    /// Classes that leave nothing behind: position, mode, valid data length, short name.
    pub fn set_other(&mut self, slot: usize, class: u8) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let mut v = Verdict::default();
        let privileged = self.token(h.session).privileged;
        let special = matches!(class, file_class::VALID_DATA_LENGTH | file_class::SHORT_NAME);
        v.refuse_if(special && !privileged, "a privilege");
        v.may_refuse_if(true, "support");
        let data: Vec<u8> = match class {
            file_class::MODE => vec![0; 4],
            file_class::SHORT_NAME => [&[4, 0, 0, 0][..], &[b'Q', 0, b'Q', 0]].concat(),
            _ => vec![0; 8],
        };
        if special && privileged {
            return Ok(());
        }
        let reply = self.set(&h, class, &data);
        v.check(reply.status(), &format!("SET_INFO of class {class}"))
    }

    pub fn dispose(&mut self, slot: usize, flags: u32, ex: bool) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        if h.node == self.inner {
            return Ok(());
        }
        let n = &self.tree.nodes[h.node];
        let mut v = Verdict::default();
        let deletes = flags & 1 != 0;
        let flags = if ex { flags & 0x11 } else { flags & 1 };
        let read_only = n.attributes & ATTR_READONLY != 0;
        let ignores = flags & 0x10 != 0 && h.granted & acl::WRITE_ATTRIBUTES != 0;
        v.refuse_if(h.granted & acl::DELETE == 0, "DELETE");
        v.refuse_if(deletes && read_only && !ignores, "a read-only file is not deleted");
        v.may_refuse_if(deletes && read_only, "support for deletion of read-only files");
        v.refuse_if(deletes && h.stream.is_empty() && !n.children.is_empty(), "a directory with entries");
        v.refuse_if(deletes && h.link.is_none(), "the root of a share");
        v.may_refuse_if(ex, "support");
        v.may_refuse_if(h.link.is_none(), "the root of a share");
        let reply = if ex {
            self.set(&h, file_class::DISPOSITION_EX, &flags.to_le_bytes())
        } else {
            self.set(&h, file_class::DISPOSITION, &[u8::from(deletes)])
        };
        v.check(reply.status(), "SET_INFO of FileDispositionInformation")?;
        if !reply.status().is_success() {
            return Ok(());
        }
        let key = (h.node, h.stream.clone());
        match (&h.link, h.stream.is_empty(), deletes) {
            (_, false, true) => _ = self.tree.doomed_streams.insert(key),
            (_, false, false) => _ = self.tree.doomed_streams.remove(&key),
            (Some(link), true, true) => _ = self.tree.doomed.insert(link.clone()),
            (Some(link), true, false) => _ = self.tree.doomed.remove(link),
            (None, ..) => {}
        }
        Ok(())
    }

    pub fn list(&mut self, slot: usize, class: u8, pattern: &str) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        let n = &self.tree.nodes[h.node];
        let mut v = Verdict::default();
        let directory = n.directory && h.stream.is_empty();
        v.refuse_if(!directory, "a file has no entries");
        v.refuse_if(h.granted & acl::READ_DATA == 0, "FILE_LIST_DIRECTORY");
        let all = pattern == "*";
        let expected: Vec<String> = n.children.keys().filter(|k| all || **k == upper(pattern)).cloned().collect();
        v.may_refuse_if(expected.is_empty() && !all, "no such entry");
        let mut names = Vec::new();
        let mut flags = 1;
        loop {
            let reply = self.call(h.session, h.share, &client::query_directory(h.id, class, flags, pattern, 65536));
            if flags == 0 && !reply.status().is_success() {
                break;
            }
            v.check(reply.status(), "QUERY_DIRECTORY")?;
            if !reply.status().is_success() {
                return Ok(());
            }
            names.extend(client::entry_names(reply.buffer(), class).iter().map(|n| upper(n)));
            flags = 0;
        }
        names.retain(|n| n != "." && n != "..");
        names.sort();
        if names != expected {
            return Err(format!("QUERY_DIRECTORY of {pattern}: {names:?}, the model has {expected:?}"));
        }
        Ok(())
    }

    /// The open of one session asked for by another, [MS-SMB2] 3.3.5.2.10: the session's own table counts.
    pub fn foreign(&mut self, slot: usize, session: usize, kind: u8) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        if session == h.session || self.handles.iter().flatten().any(|o| o.session == session && o.id == h.id) {
            return Ok(());
        }
        let request: Req = match kind {
            0 => client::read(h.id, 0, 10),
            1 => client::write(h.id, 0, b"foreign"),
            2 => client::close(h.id),
            3 => client::query_info(h.id, 1, file_class::ALL, 0, &[], 4096),
            4 => client::set_info(h.id, 1, file_class::DISPOSITION, 0, &[1]),
            5 => client::query_info(h.id, 3, 0, 7, &[], 4096),
            6 => client::set_info(h.id, 3, 0, 4, &Sd::new(Who::Ann, Vec::new()).encode(4)),
            _ => client::query_directory(h.id, 1, 1, "*", 4096),
        };
        let reply = self.call(session, h.share, &request);
        let verdict = Verdict { refuse: vec!["an open of another session"], ..Verdict::default() };
        verdict.check(reply.status(), &format!("request {kind} on a foreign open"))
    }
}

/// Upper-case names in FileStreamInformation, [MS-FSCC] 2.4.49.
fn stream_names(data: &[u8]) -> Vec<String> {
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        let next = client::le_u32(data, at) as usize;
        let len = client::le_u32(data, at + 4) as usize;
        let bytes = &data[at + 24..at + 24 + len];
        let name = arden_wire::cursor::utf16_string(bytes).unwrap_or_default();
        out.push(upper(name.strip_prefix(':').unwrap_or(&name).split(':').next().unwrap_or_default()));
        if next == 0 {
            return out;
        }
        at += next;
    }
}

//! What the clients of a run do, one request at a time, and what each answer has to be.

use std::time::Duration;

use arden_wire::{NtStatus, access::*, smb2::create::LEASE_FLAG_BREAK_IN_PROGRESS};

use super::{
    client::{Created, Req, Want, close, lock, lock_flags, read, want, write},
    model::{DELETE as SHARE_DELETE, Expect, FILES, Handle, Lease, Lock, READ, SLOT_BYTES, SLOTS, WRITE, lease_key},
    world::{Answer, CLIENTS, Unknown, World, content, version_of},
};
use crate::volume::under::OnSpace;

type Step = Result<(), String>;

fn want_of(h: &Handle, letters: &str) -> Want {
    let mut access = FILE_READ_ATTRIBUTES | SYNCHRONIZE;
    for (bit, right) in [(READ, FILE_READ_DATA), (WRITE, FILE_WRITE_DATA), (SHARE_DELETE, DELETE)] {
        if h.access & bit != 0 {
            access |= right;
        }
    }
    let w = want(&format!("f{}", h.file)).existing().access(access).share(h.share);
    h.lease.map_or(w.clone(), |key| w.lease(key, letters))
}

impl World {
    pub fn step(&mut self) -> Step {
        self.stats.operations += 1;
        let actor = self.rng.below(CLIENTS as u64) as usize;
        if self.actors[actor].link.is_none() {
            return if self.rng.one_in(2) { self.come_back(actor) } else { Ok(()) };
        }
        if !self.actors[actor].lazy {
            self.acknowledge(actor)?;
        }
        match self.rng.below(24) {
            0..=3 => self.create(actor),
            4..=9 => self.write(actor),
            10..=12 => self.read(actor),
            13..=18 => self.lock(actor),
            19 | 20 => self.close(actor),
            21 => {
                self.say(|| format!("client {actor}: connection lost"));
                self.drop_link(actor);
                Ok(())
            }
            22 => {
                self.actors[actor].lazy = self.rng.one_in(3);
                Ok(())
            }
            _ => {
                let time = [1_001, 7_003, 20_007, 71_011][self.rng.below(4) as usize];
                self.pass(Duration::from_millis(time))?;
                Ok(())
            }
        }
    }

    /// One of the opens of a client that it can use, by place.
    fn pick(&mut self, actor: usize, access: u32) -> Option<usize> {
        let usable = |h: &Handle| {
            h.client == actor && h.certain && h.id.is_some() && h.absent_since.is_none() && h.access & access == access
        };
        let all: Vec<usize> = (0..self.model.handles.len()).filter(|&i| usable(&self.model.handles[i])).collect();
        if all.is_empty() { None } else { Some(all[self.rng.below(all.len() as u64) as usize]) }
    }

    fn create(&mut self, actor: usize) -> Step {
        if self.actors[actor].unknown.is_some() || self.model.handles.len() >= 12 {
            return Ok(());
        }
        let file = self.rng.below(FILES as u64) as usize;
        let access = [READ, READ | WRITE, READ | WRITE, READ | WRITE | SHARE_DELETE][self.rng.below(4) as usize];
        let share = [7, 7, 7, 3, 1][self.rng.below(5) as usize];
        let letters = ["", "R", "RH", "RW", "RWH"][self.rng.below(5) as usize];
        let guid = self.next_guid;
        self.next_guid += 1;
        let handle = Handle {
            client: actor,
            file,
            guid,
            id: None,
            access,
            share,
            lease: (!letters.is_empty()).then(|| lease_key(actor, file)),
            locks: Default::default(),
            sequence: 0,
            absent_since: None,
            certain: false,
        };
        let want = want_of(&handle, letters).persistent(guid, 0);
        self.say(|| format!("client {actor}: create {guid} f{file} access {access} share {share} lease {letters:?}"));
        self.finish_create(actor, want, handle)
    }

    fn finish_create(&mut self, actor: usize, want: Want, handle: Handle) -> Step {
        let file = handle.file;
        let before = (self.model.expect_open(&handle), self.model.has_absent(file));
        self.model.handles.push(handle.clone());
        let mut answer = self.ask(actor, &want.req(), true);
        if let Answer::Pending(id) = answer {
            answer = self.wait_for(actor, id)?;
        }
        let reply = match answer {
            Answer::Reply(reply) => reply,
            Answer::Lost => {
                self.actors[actor].unknown = Some(Unknown::Create { want, handle });
                return Ok(());
            }
            Answer::Pending(_) => return Err(format!("create {} is never answered", handle.guid)),
        };
        let mine = handle.guid;
        self.model.forget(mine);
        let after = (self.model.expect_open(&handle), self.model.has_absent(file));
        let status = reply.status();
        self.say(|| format!("client {actor}: create {mine}: {status}"));
        let refusal = before.0 != Expect::Success || after.0 != Expect::Success;
        match status {
            NtStatus::SUCCESS if before.0 == Expect::Failure && after.0 == Expect::Failure => {
                Err(format!("open {mine} of f{file} is granted against the share modes of others"))
            }
            NtStatus::SUCCESS => self.opened(actor, handle, &Created::parse(&reply)),
            NtStatus::SHARING_VIOLATION if refusal => Ok(()),
            NtStatus::FILE_NOT_AVAILABLE if before.1 || after.1 => Ok(()),
            _ => Err(format!("open {mine} of f{file}: {status}, expected {before:?} or {after:?}")),
        }
    }

    /// An open was granted: leases of others lose write caching.
    fn opened(&mut self, actor: usize, mut handle: Handle, created: &Created) -> Step {
        let (file, lease, guid) = (handle.file, handle.lease, handle.guid);
        if created.durable_v2().is_none() {
            return Err(format!("open {guid} is not persistent"));
        }
        handle.id = Some(created.id);
        handle.certain = true;
        self.model.committed();
        self.model.resolve_opens(&handle);
        self.model.handles.push(handle);
        // [MS-SMB2] 2.2.14.2.11: while a break is under way the response has the state before it.
        // The client may have acknowledged it before it read this response.
        let told = created.lease_context().is_some_and(|l| l.flags & LEASE_FLAG_BREAK_IN_PROGRESS != 0);
        let is_breaking = told || self.actors[actor].owed.iter().any(|(key, _, _)| lease == Some(*key));
        if lease.is_some() && !is_breaking {
            let state = created.lease();
            *self.model.leases.entry((actor, file)).or_default() = Lease { state, lost: String::new() };
        }
        self.others_lose(file, lease, 'W', "opened")
    }

    /// Whoever cached what was just changed was told, or finds out when it returns.
    fn others_lose(&mut self, file: usize, by: Option<u128>, letter: char, what: &str) -> Step {
        for (client, f) in self.model.caching(file, by, letter) {
            if self.actors[client].link.is_some() {
                self.note_breaks(client);
                // [MS-SMB2] 3.3.5.22.2: a client that still owes an acknowledgement is told the rest after it.
                let key = lease_key(client, f);
                let owes = self.actors[client].owed.iter().any(|(k, _, _)| *k == key);
                let lease = self.model.leases.get_mut(&(client, f)).filter(|l| l.state.contains(letter));
                match lease {
                    Some(lease) if owes => lease.lost.push(letter),
                    Some(_) => return Err(format!("client {client} still caches {letter} of f{f}, which was {what}")),
                    None => {}
                }
            } else if let Some(lease) = self.model.leases.get_mut(&(client, f))
                && !lease.lost.contains(letter)
            {
                lease.lost.push(letter);
            }
        }
        Ok(())
    }

    /// A create waits for others: they acknowledge, or time passes.
    fn wait_for(&mut self, actor: usize, id: u64) -> Result<Answer, String> {
        self.stats.waits += 1;
        (0..CLIENTS).for_each(|a| self.note_breaks(a));
        for a in 0..CLIENTS {
            if !self.actors[a].lazy || self.rng.one_in(2) {
                self.acknowledge(a)?;
            }
        }
        for seconds in [0, 40, 75, 310] {
            if seconds > 0 {
                self.pass(Duration::from_millis(seconds * 1000 + 13))?;
            }
            match self.take(actor, id) {
                Answer::Pending(_) => {}
                other => return Ok(other),
            }
        }
        Ok(Answer::Pending(id))
    }

    fn write(&mut self, actor: usize) -> Step {
        let Some(at) = self.pick(actor, WRITE) else { return Ok(()) };
        let slot = self.rng.below(SLOTS);
        if self.model.handles[at].locks.get(&slot).is_some_and(|l| !l.exclusive) {
            return Ok(());
        }
        let version = self.model.version();
        let guid = self.model.handles[at].guid;
        self.finish_write(actor, guid, slot, version, false)
    }

    fn finish_write(&mut self, actor: usize, guid: u128, slot: u64, version: u32, replayed: bool) -> Step {
        let Some(at) = self.model.position(guid) else { return Ok(()) };
        let Some(id) = self.model.handles[at].id else { return Ok(()) };
        let (file, lease) = (self.model.handles[at].file, self.model.handles[at].lease);
        let expected = self.model.expect_data(at, slot, true);
        let place = slot as usize;
        if !self.model.slots[file][place].possible.contains(&version) {
            self.model.slots[file][place].possible.push(version);
        }
        let request = write(id, slot * SLOT_BYTES, &content(version));
        let request = if replayed { request.replay() } else { request };
        let reply = match self.ask(actor, &request, !replayed) {
            Answer::Reply(reply) => reply,
            Answer::Lost => {
                self.actors[actor].unknown = Some(Unknown::Write { guid, slot, version });
                return Ok(());
            }
            Answer::Pending(_) => return Err(format!("a write of f{file} waits")),
        };
        let status = reply.status();
        self.say(|| format!("client {actor}: write f{file} slot {slot} version {version} by {guid}: {status}"));
        match (status, expected) {
            (NtStatus::SUCCESS, Expect::Success | Expect::Either) => {
                self.model.slots[file][place].certain = version;
                self.model.slots[file][place].possible.clear();
                self.model.committed();
                self.model.resolve_locks(at, slot, true);
                self.others_lose(file, lease, 'R', "written")
            }
            (NtStatus::FILE_LOCK_CONFLICT, Expect::Failure | Expect::Either) => {
                if !replayed {
                    self.model.slots[file][place].possible.retain(|v| *v != version);
                }
                Ok(())
            }
            _ => Err(format!("a write of f{file} slot {slot} by {guid}: {status}, expected {expected:?}")),
        }
    }

    fn read(&mut self, actor: usize) -> Step {
        let Some(at) = self.pick(actor, READ) else { return Ok(()) };
        let slot = self.rng.below(SLOTS);
        self.read_slot(actor, at, slot)
    }

    fn read_slot(&mut self, actor: usize, at: usize, slot: u64) -> Step {
        let Some(id) = self.model.handles[at].id else { return Ok(()) };
        let (file, guid) = (self.model.handles[at].file, self.model.handles[at].guid);
        let expected = self.model.expect_data(at, slot, false);
        let reply = match self.ask(actor, &read(id, slot * SLOT_BYTES, SLOT_BYTES as u32), true) {
            Answer::Reply(reply) => reply,
            Answer::Lost => return Ok(()),
            Answer::Pending(_) => return Err(format!("a read of f{file} waits")),
        };
        let status = reply.status();
        match (status, expected) {
            (NtStatus::SUCCESS, Expect::Success | Expect::Either) => {
                let version = version_of(reply.read_data()).ok_or(format!("f{file} slot {slot} is torn"))?;
                let known = &mut self.model.slots[file][slot as usize];
                if !known.allows(version) {
                    return Err(format!("f{file} slot {slot} reads as {version}, allowed {known:?}"));
                }
                known.certain = version;
                known.possible.clear();
                Ok(())
            }
            (NtStatus::FILE_LOCK_CONFLICT, Expect::Failure | Expect::Either) => Ok(()),
            _ => Err(format!("a read of f{file} slot {slot} by {guid}: {status}, expected {expected:?}")),
        }
    }

    fn lock(&mut self, actor: usize) -> Step {
        let Some(at) = self.pick(actor, 0) else { return Ok(()) };
        let slot = self.rng.below(SLOTS);
        let exclusive = self.rng.one_in(2);
        let h = &mut self.model.handles[at];
        let Some(id) = h.id else { return Ok(()) };
        h.sequence = (h.sequence + 1) % 16;
        let (guid, sequence) = (h.guid, 1 << 4 | h.sequence);
        let unlocks = h.locks.contains_key(&slot);
        let bits = match (unlocks, exclusive) {
            (true, _) => lock_flags::UNLOCK,
            (false, true) => lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY,
            (false, false) => lock_flags::SHARED | lock_flags::FAIL_IMMEDIATELY,
        };
        let request = lock(id, sequence, &[(slot * SLOT_BYTES, SLOT_BYTES, bits)]);
        if !unlocks {
            h.locks.insert(slot, Lock { exclusive, certain: false });
        }
        self.finish_lock(actor, guid, slot, request.clone(), unlocks, true)?;
        let settled = self.actors[actor].link.is_some() && self.actors[actor].unknown.is_none();
        let is_held = self.model.position(guid).is_some_and(|i| self.model.handles[i].locks.contains_key(&slot));
        if settled && is_held != unlocks && self.rng.one_in(3) {
            self.stats.returns += 1;
            return match self.ask(actor, &request.replay(), false) {
                Answer::Reply(reply) if reply.status() != NtStatus::SUCCESS => {
                    Err(format!("a repeated LOCK of slot {slot} by {guid}: {}", reply.status()))
                }
                _ => Ok(()),
            };
        }
        Ok(())
    }

    fn finish_lock(&mut self, actor: usize, guid: u128, slot: u64, request: Req, unlocks: bool, fresh: bool) -> Step {
        let Some(at) = self.model.position(guid) else { return Ok(()) };
        let Some(held) = self.model.handles[at].locks.get_mut(&slot) else { return Ok(()) };
        held.certain = false;
        let exclusive = held.exclusive;
        let expected = self.model.expect_lock(at, slot, exclusive);
        let reply = match self.ask(actor, &request, fresh) {
            Answer::Reply(reply) => reply,
            Answer::Lost => {
                let request = if fresh { request.replay() } else { request };
                self.actors[actor].unknown = Some(Unknown::Lock { guid, slot, request, unlocks });
                return Ok(());
            }
            Answer::Pending(_) => return Err("a LOCK that fails immediately waits".into()),
        };
        let status = reply.status();
        self.say(|| {
            format!("client {actor}: slot {slot} by {guid}, unlocks {unlocks}, exclusive {exclusive}: {status}")
        });
        match (status, unlocks, expected) {
            (NtStatus::SUCCESS, true, _) => {
                self.model.committed();
                self.model.handles[at].locks.remove(&slot);
                Ok(())
            }
            (NtStatus::SUCCESS, false, Expect::Success | Expect::Either) => {
                self.model.committed();
                self.model.handles[at].locks.insert(slot, Lock { exclusive, certain: true });
                self.model.resolve_locks(at, slot, exclusive);
                Ok(())
            }
            (NtStatus::LOCK_NOT_GRANTED, false, Expect::Failure | Expect::Either) => {
                self.model.handles[at].locks.remove(&slot);
                Ok(())
            }
            _ => Err(format!(
                "slot {slot} by {guid}, unlocks {unlocks}, exclusive {exclusive}: {status}, expected {expected:?}"
            )),
        }
    }

    fn close(&mut self, actor: usize) -> Step {
        let Some(at) = self.pick(actor, 0) else { return Ok(()) };
        let guid = self.model.handles[at].guid;
        self.finish_close(actor, guid, true)
    }

    fn finish_close(&mut self, actor: usize, guid: u128, fresh: bool) -> Step {
        let Some(at) = self.model.position(guid) else { return Ok(()) };
        let Some(id) = self.model.handles[at].id else { return Ok(()) };
        self.model.handles[at].certain = false;
        match self.ask(actor, &close(id), fresh) {
            Answer::Reply(reply) => {
                let status = reply.status();
                self.say(|| format!("client {actor}: close {guid}: {status}"));
                if status != NtStatus::SUCCESS {
                    return Err(format!("close of {guid}: {status}"));
                }
                self.model.committed();
                self.model.forget(guid);
            }
            Answer::Lost => self.actors[actor].unknown = Some(Unknown::Close { guid }),
            Answer::Pending(_) => return Err(format!("the close of {guid} waits")),
        }
        Ok(())
    }

    /// A client connects anew, takes its opens up, and repeats what was not answered.
    fn come_back(&mut self, actor: usize) -> Step {
        self.stats.joins += 1;
        let count = self.actors[actor].channel_sequence.wrapping_add(1);
        self.actors[actor].channel_sequence = count;
        let link = match self.connect(actor) {
            Ok(link) => link,
            Err(_) if OnSpace::is_dead() => return Ok(()),
            Err(e) => return Err(e),
        };
        self.actors[actor].link = Some(link);
        self.say(|| format!("client {actor}: connected"));
        let mine = |h: &&Handle| h.client == actor && h.absent_since.is_some() && h.id.is_some();
        let guids: Vec<u128> = self.model.handles.iter().filter(mine).map(|h| h.guid).collect();
        for guid in guids {
            self.take_up(actor, guid)?;
            if OnSpace::is_dead() || self.actors[actor].link.is_none() {
                return Ok(());
            }
        }
        for file in 0..FILES {
            // Told once more of a break that it never answered, it is told the rest after its answer.
            self.note_breaks(actor);
            let key = lease_key(actor, file);
            if self.actors[actor].owed.iter().any(|(k, _, _)| *k == key) {
                continue;
            }
            let Some(lease) = self.model.leases.get_mut(&(actor, file)) else { continue };
            let lost = std::mem::take(&mut lease.lost);
            if let Some(letter) = lost.chars().find(|c| lease.state.contains(*c)) {
                return Err(format!("client {actor} returned and still caches {letter} of f{file}"));
            }
        }
        self.repeat(actor)
    }

    fn take_up(&mut self, actor: usize, guid: u128) -> Step {
        let Some(at) = self.model.position(guid) else { return Ok(()) };
        let h = self.model.handles[at].clone();
        let Some(id) = h.id else { return Ok(()) };
        let reply = match self.ask(actor, &want_of(&h, "RWH").reconnect_persistent(id, guid).req(), false) {
            Answer::Reply(reply) => reply,
            Answer::Lost => {
                if !OnSpace::is_dead() {
                    return Err(format!("the connection ended when {guid} was taken up"));
                }
                return Ok(());
            }
            Answer::Pending(_) => return Err(format!("the reconnect of {guid} waits")),
        };
        let status = reply.status();
        self.say(|| format!("client {actor}: reconnect of {guid}: {status}"));
        if status != NtStatus::SUCCESS {
            if h.certain {
                return Err(format!("open {guid} of client {actor} cannot be taken up: {status}"));
            }
            self.model.forget(guid);
            return Ok(());
        }
        let created = Created::parse(&reply);
        if created.id != id {
            return Err(format!("open {guid} came back as another"));
        }
        self.model.committed();
        self.model.handles[at].absent_since = None;
        if h.lease.is_some() {
            let state = created.lease();
            self.model.leases.entry((actor, h.file)).or_default().state = state;
        }
        // A break that was under way is told again.
        self.note_breaks(actor);
        Ok(())
    }

    fn repeat(&mut self, actor: usize) -> Step {
        let Some(unknown) = self.actors[actor].unknown.take() else { return Ok(()) };
        self.stats.returns += 1;
        match unknown {
            Unknown::Create { want, handle } => {
                self.model.forget(handle.guid);
                self.say(|| format!("client {actor}: create {} again", handle.guid));
                self.finish_create(actor, want.replayed(), Handle { absent_since: None, ..handle })
            }
            Unknown::Write { guid, slot, version } => self.finish_write(actor, guid, slot, version, true),
            Unknown::Lock { guid, slot, request, unlocks } => {
                self.finish_lock(actor, guid, slot, request, unlocks, false)
            }
            Unknown::Close { guid } => self.finish_close(actor, guid, false),
        }
    }

    /// Everybody is back, reads everything, and closes.
    pub fn finish(&mut self) -> Step {
        for actor in 0..CLIENTS {
            self.actors[actor].lazy = false;
            for _ in 0..3 {
                if self.actors[actor].link.is_none() {
                    self.come_back(actor)?;
                }
            }
        }
        for actor in 0..CLIENTS {
            self.acknowledge(actor)?;
            let guids: Vec<u128> = self.model.handles.iter().filter(|h| h.client == actor).map(|h| h.guid).collect();
            for guid in guids {
                for slot in 0..SLOTS {
                    let usable = |h: &Handle| h.guid == guid && h.certain && h.absent_since.is_none();
                    if self.actors[actor].link.is_some()
                        && let Some(at) = self.model.handles.iter().position(usable)
                    {
                        self.read_slot(actor, at, slot)?;
                    }
                }
                if self.actors[actor].link.is_some() && self.model.position(guid).is_some() {
                    self.finish_close(actor, guid, false)?;
                }
            }
        }
        Ok(())
    }
}

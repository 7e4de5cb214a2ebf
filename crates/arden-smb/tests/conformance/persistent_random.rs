//! Persistent handles against a naive model: clients open, lock, unlock, delete and close at random while connections and
//! servers are lost. After each loss everything that was answered holds, and nothing that was not.

use std::collections::BTreeMap;

use arden_block::rng::Rng;

use crate::client::*;

const CLIENTS: usize = 3;
const FILES: u64 = 3;
const SLOTS: u64 = 6;

struct Handle {
    client: usize,
    file: u64,
    guid: u128,
    id: FileId,
    lease: Option<u128>,
    /// Slot to exclusive.
    locks: BTreeMap<u64, bool>,
    sequence: u32,
}

struct World {
    lab: Lab,
    guids: Vec<u128>,
    clients: Vec<Client>,
    handles: Vec<Handle>,
    next_guid: u128,
}

fn how(file: u64, lease: Option<u128>) -> Want {
    let w = want(&format!("f{file}"));
    // Read caching alone, so that nobody has to wait for anybody.
    lease.map_or(w.clone(), |key| w.lease(key, "R"))
}

impl World {
    fn new() -> World {
        let lab = Lab::new();
        let clients: Vec<Client> = (0..CLIENTS).map(|_| lab.ca_client()).collect();
        let guids = clients.iter().map(|c| c.guid).collect();
        World { lab, guids, clients, handles: Vec::new(), next_guid: 1 }
    }

    fn open(&mut self, rng: &mut Rng) {
        let (client, file) = (rng.below(CLIENTS as u64) as usize, rng.below(FILES));
        let guid = self.next_guid;
        self.next_guid += 1;
        let lease = (rng.below(2) == 0).then_some(100 * (client as u128 + 1) + u128::from(file));
        let f = self.clients[client].open(how(file, lease).persistent(guid, 0));
        self.handles.push(Handle { client, file, guid, id: f.id, lease, locks: BTreeMap::new(), sequence: 0 });
    }

    fn conflicts(&self, h: usize, slot: u64, exclusive: bool) -> bool {
        self.handles.iter().enumerate().any(|(i, o)| {
            o.file == self.handles[h].file
                && o.locks.get(&slot).is_some_and(|held| if *held { i != h || exclusive } else { exclusive })
        })
    }

    fn lock(&mut self, rng: &mut Rng) {
        let h = rng.below(self.handles.len() as u64) as usize;
        let (slot, exclusive) = (rng.below(SLOTS), rng.below(2) == 0);
        let held = self.handles[h].locks.contains_key(&slot);
        if held && self.handles[h].locks[&slot] != exclusive {
            return;
        }
        let refused = !held && self.conflicts(h, slot, exclusive);
        let handle = &mut self.handles[h];
        handle.sequence = (handle.sequence + 1) % 16;
        let bits = match (held, exclusive) {
            (true, _) => lock_flags::UNLOCK,
            (false, true) => lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY,
            (false, false) => lock_flags::SHARED | lock_flags::FAIL_IMMEDIATELY,
        };
        let request = lock(handle.id, 1 << 4 | handle.sequence, &[(slot * 10, 10, bits)]);
        let c = &mut self.clients[handle.client];
        let status = c.status(&request);
        if refused {
            assert_eq!(status, NtStatus::LOCK_NOT_GRANTED);
            return;
        }
        assert_eq!(status, NtStatus::SUCCESS);
        assert_eq!(c.status(&request), NtStatus::SUCCESS, "the same again is no second time");
        if held {
            handle.locks.remove(&slot);
        } else {
            handle.locks.insert(slot, exclusive);
        }
    }

    fn close(&mut self, rng: &mut Rng) {
        let h = self.handles.swap_remove(rng.below(self.handles.len() as u64) as usize);
        self.clients[h.client].close(h.id);
    }

    /// The connections end, with the server or without; then everybody is back.
    fn lose(&mut self, crash: bool) {
        self.clients.iter_mut().for_each(Client::disconnect);
        if crash {
            self.lab.crash();
        }
        assert_eq!(self.lab.server.trees.persistent_opens(), self.handles.len());
        let mut stranger = self.lab.ca_client();
        for file in 0..FILES {
            let held = self.handles.iter().any(|h| h.file == file);
            match stranger.try_open(&how(file, None)) {
                Ok(f) => {
                    assert!(!held, "f{file} waits for its owner");
                    stranger.close(f.id);
                }
                Err(status) => assert_eq!((status, held), (NtStatus::FILE_NOT_AVAILABLE, true), "f{file}"),
            }
        }
        self.clients = self.guids.iter().map(|g| self.lab.ca_again(*g)).collect();
        for h in &self.handles {
            let again = how(h.file, h.lease).reconnect_persistent(h.id, h.guid);
            assert_eq!(self.clients[h.client].open(again).id, h.id);
        }
        self.probe();
    }

    /// A stranger finds exactly the locks of the model.
    fn probe(&self) {
        let mut stranger = self.lab.ca_client();
        for file in 0..FILES {
            let f = stranger.open(how(file, None));
            for slot in 0..SLOTS {
                for exclusive in [true, false] {
                    let free = !self
                        .handles
                        .iter()
                        .any(|h| h.file == file && h.locks.get(&slot).is_some_and(|held| *held || exclusive));
                    let bits = if exclusive { lock_flags::EXCLUSIVE } else { lock_flags::SHARED };
                    let take = lock(f.id, 0, &[(slot * 10, 10, bits | lock_flags::FAIL_IMMEDIATELY)]);
                    assert_eq!(stranger.status(&take) == NtStatus::SUCCESS, free, "f{file} slot {slot} {exclusive}");
                    if free {
                        stranger.call(&lock(f.id, 0, &[(slot * 10, 10, lock_flags::UNLOCK)])).ok();
                    }
                }
            }
            stranger.close(f.id);
        }
    }
}

#[test]
fn what_was_answered_holds_over_any_loss() {
    // With two nodes each loss takes its time.
    let seeds = if has_two_nodes() { 5 } else { 12 };
    for seed in 1..=seeds {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut w = World::new();
        for _ in 0..80 {
            match rng.below(12) {
                0..=2 => w.open(&mut rng),
                3..=9 if !w.handles.is_empty() => w.lock(&mut rng),
                10 if !w.handles.is_empty() => w.close(&mut rng),
                11 => {
                    let crash = rng.below(3) > 0;
                    w.lose(crash);
                }
                _ => {}
            }
        }
        w.lose(true);
    }
}

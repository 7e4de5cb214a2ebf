//! A disk with persistent reservations and three paths, after SPC-4: for the tests of this module.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use super::{Data, Reply, Sense, Target};

#[derive(Debug, Default)]
pub struct Disk {
    /// Key of each path, zero without one.
    pub keys: [u64; 3],
    /// Path and type.
    pub holder: Option<(usize, u8)>,
    /// Writes of each path that were accepted and not executed.
    pub accepted: [u32; 3],
    pub executed: [u32; 3],
    /// Events that a path is told of before its next command is executed.
    pub attentions: [u32; 3],
    /// Service actions of all changes.
    pub changes: Vec<u8>,
    pub persists: bool,
    /// It answers "done" to PREEMPT and does nothing.
    pub lies: bool,
    pub cannot: bool,
    /// The answer to the next PREEMPT AND ABORT is lost, and the commands are still being ended.
    pub loses_answer: bool,
    /// Paths by which it is not reached.
    pub silent: [bool; 3],
    /// Commands that came by those.
    pub unanswered: [u32; 3],
    /// The answer to the next registration is lost.
    pub loses_registered: bool,
    /// What a path answers to everything.
    pub errors: [Option<Sense>; 3],
    /// It does not answer by these paths what it can.
    pub cannot_say: [bool; 3],
    /// Keys and reservation stay over a loss of power.
    pub keeps: bool,
    /// It cannot be reset.
    pub no_reset: bool,
    pub resets: u32,
    /// Which disk each path leads to, if not this one: there nothing is known of it.
    pub others: [Option<u8>; 3],
    /// Paths that do not say where they lead.
    pub nameless: [bool; 3],
    pub inquiries: u32,
    /// By which it knows every path.
    pub name: Option<String>,
}

#[derive(Clone)]
pub struct Path {
    pub disk: Rc<RefCell<Disk>>,
    pub path: usize,
}

pub fn paths() -> [Path; 3] {
    let disk = Rc::new(RefCell::new(Disk { persists: true, ..Disk::default() }));
    [0, 1, 2].map(|path| Path { disk: disk.clone(), path })
}

impl Path {
    /// Accepts a write; false: RESERVATION CONFLICT.
    pub fn write(&self) -> bool {
        let mut d = self.disk.borrow_mut();
        if d.holder.is_some() && d.keys[self.path] == 0 {
            return false;
        }
        d.accepted[self.path] += 1;
        true
    }

    /// What was accepted happens.
    pub fn execute(&self) {
        let mut d = self.disk.borrow_mut();
        d.executed[self.path] += std::mem::take(&mut d.accepted[self.path]);
    }
}

fn reply(status: u8, sense: Option<Sense>, transferred: usize) -> io::Result<Reply> {
    Ok(Reply { status, host_status: 0, sense, transferred })
}

impl Disk {
    fn remove(&mut self, victim: u64, abort: bool, by: usize, kind: u8) -> bool {
        let of: Vec<usize> = (0..3).filter(|p| self.keys[*p] == victim && *p != by).collect();
        let held = self.holder.is_some_and(|(p, _)| self.keys[p] == victim);
        for &p in &of {
            self.keys[p] = 0;
            self.attentions[p] += 1;
            if abort {
                self.accepted[p] = 0;
            }
        }
        if held {
            self.holder = Some((by, kind));
        }
        !of.is_empty()
    }

    fn change(&mut self, by: usize, action: u8, kind: u8, list: &[u8]) -> bool {
        let word = |at: usize| u64::from_be_bytes(list[at..at + 8].try_into().unwrap());
        let (key, about) = (word(0), word(8));
        self.changes.push(action);
        if action != 6 && (key == 0 || self.keys[by] != key) {
            return false;
        }
        match action {
            0 | 6 => {
                self.keys[by] = about;
                self.keeps = list[20] & 1 == 1;
                self.holder = self.holder.filter(|(p, _)| about != 0 || *p != by);
                true
            }
            1 if self.holder.is_some_and(|(p, _)| p != by) => false,
            1 => {
                self.holder = Some((by, kind));
                true
            }
            2 => {
                self.holder = self.holder.filter(|(p, _)| *p != by);
                true
            }
            3 => {
                (self.keys, self.holder) = ([0; 3], None);
                true
            }
            4 | 5 if self.lies => true,
            4 | 5 => self.remove(about, action == 5 && !self.loses_answer, by, kind),
            _ => false,
        }
    }

    fn answer(&self, action: u8) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 1];
        match action {
            0 => {
                let keys: Vec<u8> = self.keys.iter().filter(|k| **k != 0).flat_map(|k| k.to_be_bytes()).collect();
                out.extend((keys.len() as u32).to_be_bytes());
                out.extend(keys);
            }
            1 => match self.holder {
                None => out.extend([0; 4]),
                Some((path, kind)) => {
                    out.extend(16_u32.to_be_bytes());
                    out.extend(self.keys[path].to_be_bytes());
                    out.extend([0, 0, 0, 0, 0, kind, 0, 0]);
                }
            },
            _ => out = vec![0, 8, u8::from(self.persists), 0x80, 0x20, 0, 0, 0],
        }
        out
    }
}

/// INQUIRY, page 83h: a name of the disk and one of the port.
fn identification(disk: u8, port: u8) -> Vec<u8> {
    let naa = [1, 3, 0, 8, 0x60, 0, 0, 0, 0, 0, 0, disk];
    let relative_port = [1, 0x14, 0, 4, 0, 0, 0, port];
    [&[0, 0x83, 0, 20], &naa[..], &relative_port].concat()
}

impl Target for Path {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Reply> {
        let mut d = self.disk.borrow_mut();
        if d.silent[self.path] {
            d.unanswered[self.path] += 1;
            return Err(io::ErrorKind::NotConnected.into());
        }
        if let Some(sense) = d.errors[self.path] {
            return reply(2, Some(sense), 0);
        }
        if cdb[0] == 0x12 {
            let Data::In(into) = data else { return Err(io::ErrorKind::InvalidInput.into()) };
            d.inquiries += 1;
            if d.nameless[self.path] {
                return reply(2, Some(Sense { key: 5, code: 0x24, qualifier: 0 }), 0);
            }
            let answer = identification(d.others[self.path].unwrap_or(0), self.path as u8);
            into[..answer.len()].copy_from_slice(&answer);
            return reply(0, None, answer.len());
        }
        if d.cannot_say[self.path] && cdb[..2] == [0x5E, 2] {
            return reply(2, Some(Sense { key: 4, code: 0x44, qualifier: 0 }), 0);
        }
        if d.attentions[self.path] > 0 {
            d.attentions[self.path] -= 1;
            return reply(2, Some(Sense { key: 6, code: 0x2A, qualifier: 5 }), 0);
        }
        if d.cannot {
            return reply(2, Some(Sense { key: 5, code: 0x20, qualifier: 0 }), 0);
        }
        match data {
            Data::Out(list) => {
                let done = d.change(self.path, cdb[1], cdb[2], list);
                let is_lost = match cdb[1] {
                    5 => std::mem::take(&mut d.loses_answer),
                    6 => std::mem::take(&mut d.loses_registered),
                    _ => false,
                };
                if is_lost {
                    return Ok(Reply { status: 0, host_status: 3, sense: None, transferred: 0 });
                }
                reply(if done { 0 } else { 0x18 }, None, list.len())
            }
            Data::In(into) => {
                let answer = d.answer(cdb[1]);
                let n = answer.len().min(into.len());
                into[..n].copy_from_slice(&answer[..n]);
                reply(0, None, n)
            }
            Data::None => reply(0, None, 0),
        }
    }

    fn reset(&self) -> io::Result<()> {
        let mut d = self.disk.borrow_mut();
        if d.no_reset {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        d.accepted = [0; 3];
        d.attentions.iter_mut().for_each(|a| *a += 1);
        d.resets += 1;
        Ok(())
    }

    fn initiator(&self) -> Option<String> {
        self.disk.borrow().name.clone()
    }
}

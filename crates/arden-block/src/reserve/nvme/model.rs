//! A namespace with reservations and four controllers, of which two are of one host: for the tests of this module. After the
//! specification, or with the faults of Linux's target.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use super::{Command, Namespace, Queue};
use crate::reserve::Data;

/// Host identifiers by controller.
const HOSTS: [u128; 4] = [0x51, 0x52, 0x53, 0x51];

#[derive(Debug, Default)]
pub struct Disk {
    pub hosts: [u128; 4],
    /// Host and key.
    pub keys: Vec<(u128, u64)>,
    /// Host and type.
    pub holder: Option<(u128, u8)>,
    /// Writes of each controller that were accepted and not executed.
    pub accepted: [u32; 4],
    pub executed: [u32; 4],
    /// Opcode and action of all changes.
    pub changes: Vec<(u8, u8)>,
    pub can: u8,
    pub nmic: u8,
    pub oncs: u8,
    pub ptpls: bool,
    pub ignores_cptpl: bool,
    /// Host identifiers have 64 bits.
    pub short: bool,
    /// It answers "done" to preempting and does nothing.
    pub lies: bool,
    /// Preempting by the holder changes the type and nothing else.
    pub like_linux: bool,
    /// The way fails when a preempting that aborts has taken the key, and before it has ended the commands.
    pub loses_answer: bool,
    /// The way fails once, at the change with this number in `changes`; whether that change is done.
    pub lost_change: Option<(usize, bool)>,
    aborting: Vec<u128>,
}

#[derive(Clone)]
pub struct Controller {
    pub disk: Rc<RefCell<Disk>>,
    pub n: usize,
}

pub fn controllers() -> [Controller; 4] {
    let disk = Disk { hosts: HOSTS, can: 0x09, nmic: 1, oncs: 0x20, ..Disk::default() };
    let disk = Rc::new(RefCell::new(disk));
    [0, 1, 2, 3].map(|n| Controller { disk: disk.clone(), n })
}

impl Controller {
    /// Accepts a write; false: Reservation Conflict.
    pub fn write(&self) -> bool {
        let mut d = self.disk.borrow_mut();
        if d.holder.is_some() && d.key_of(d.hosts[self.n]).is_none() {
            return false;
        }
        d.accepted[self.n] += 1;
        true
    }

    /// What was accepted happens.
    pub fn execute(&self) {
        let mut d = self.disk.borrow_mut();
        d.executed[self.n] += std::mem::take(&mut d.accepted[self.n]);
    }
}

const CONFLICT: u16 = 0x4083;
const INVALID_FIELD: u16 = 0x4002;

impl Disk {
    pub fn key_of(&self, host: u128) -> Option<u64> {
        self.keys.iter().find(|(h, _)| *h == host).map(|(_, k)| *k)
    }

    fn forget(&mut self, host: u128) {
        self.keys.retain(|(h, _)| *h != host);
        match self.holder {
            Some((_, kind @ (5 | 6))) => self.holder = self.keys.first().map(|(h, _)| (*h, kind)),
            Some((h, _)) if h == host => self.holder = None,
            _ => {}
        }
    }

    fn end_commands(&mut self) {
        for host in std::mem::take(&mut self.aborting) {
            for n in (0..4).filter(|n| self.hosts[*n] == host) {
                self.accepted[n] = 0;
            }
        }
    }

    fn register(&mut self, host: u128, action: u8, cptpl: u32, current: u64, new: u64) -> u16 {
        match (action, self.key_of(host)) {
            (0, None) => self.keys.push((host, new)),
            (0, Some(k)) if k == new => {}
            (1, Some(k)) if k == current => self.forget(host),
            (2, Some(k)) if k == current => self.keys.iter_mut().filter(|r| r.0 == host).for_each(|r| r.1 = new),
            _ => return CONFLICT,
        }
        if cptpl != 0 && !self.ignores_cptpl {
            self.ptpls = cptpl == 3;
        }
        0
    }

    fn preempt(&mut self, host: u128, abort: bool, kind: u8, victim: u64) -> u16 {
        let of = |d: &Disk, victim: u64| {
            let is = |r: &&(u128, u64)| r.0 != host && (victim == 0 || r.1 == victim);
            d.keys.iter().filter(is).map(|r| r.0).collect::<Vec<u128>>()
        };
        let mine = self.key_of(host);
        let (victims, takes) = match self.holder {
            Some((_, 5 | 6)) => (of(self, victim), victim == 0),
            Some((h, _)) if h == host && (self.like_linux || mine == Some(victim)) => (vec![], true),
            Some((h, _)) => (of(self, victim), self.key_of(h) == Some(victim)),
            None => (of(self, victim), false),
        };
        if victims.is_empty() && !takes {
            return CONFLICT;
        }
        if takes {
            self.holder = Some((host, kind));
        }
        for v in victims {
            self.forget(v);
            if abort {
                self.aborting.push(v);
            }
        }
        0
    }

    fn change(&mut self, host: u128, command: &Command, data: &[u8]) -> u16 {
        let word = |at: usize| data.get(at..at + 8).map_or(0, |w| u64::from_le_bytes(w.try_into().unwrap()));
        let (key, about) = (word(0), word(8));
        let (action, kind) = ((command.cdw10 & 7) as u8, (command.cdw10 >> 8) as u8);
        self.changes.push((command.opcode, action));
        // One change at a time: what a former one has not ended is ended first.
        self.end_commands();
        if command.opcode == 0x0D {
            return self.register(host, action, command.cdw10 >> 30, key, about);
        }
        if self.key_of(host) != Some(key) {
            return CONFLICT;
        }
        match (command.opcode, action) {
            (0x11, 0) if self.holder.is_some_and(|h| h != (host, kind)) => return CONFLICT,
            (0x11, 0) => self.holder = Some((host, kind)),
            (0x11, 1 | 2) if self.lies => {}
            (0x11, 1 | 2) => return self.preempt(host, action == 2, kind, about),
            (0x15, 0) => self.holder = self.holder.filter(|(h, _)| *h != host),
            (0x15, 1) => (self.keys, self.holder) = (vec![], None),
            _ => return INVALID_FIELD,
        }
        0
    }

    fn report(&self) -> Vec<u8> {
        let mut out = vec![0; if self.short { 24 } else { 64 }];
        (out[4], out[9]) = (self.holder.map_or(0, |h| h.1), u8::from(self.ptpls));
        let mut count = 0_u16;
        for n in 0..4 {
            let Some(key) = self.key_of(self.hosts[n]) else { continue };
            let all = matches!(self.holder, Some((_, 5 | 6)));
            let holds = all || self.holder.is_some_and(|h| h.0 == self.hosts[n]);
            out.extend([n as u8, 0, u8::from(holds), 0, 0, 0, 0, 0]);
            if self.short {
                out.extend((self.hosts[n] as u64).to_le_bytes());
                out.extend(key.to_le_bytes());
            } else {
                out.extend(key.to_le_bytes());
                out.extend(self.hosts[n].to_le_bytes());
                out.extend([0; 32]);
            }
            count += 1;
        }
        out[5..7].copy_from_slice(&count.to_le_bytes());
        out
    }

    fn answer(&self, n: usize, command: &Command) -> Result<Vec<u8>, u16> {
        let extended = command.cdw11 & 1 != 0;
        match (command.queue, command.opcode, command.cdw10) {
            (Queue::Io, 0x0E, _) if extended == self.short => Err(0x4018),
            (Queue::Io, 0x0E, _) => Ok(self.report()),
            (Queue::Admin, 0x06, 0) => {
                let mut out = vec![0; 4096];
                (out[30], out[31]) = (self.nmic, self.can);
                Ok(out)
            }
            (Queue::Admin, 0x06, 1) => {
                let mut out = vec![0; 4096];
                out[520] = self.oncs;
                Ok(out)
            }
            (Queue::Admin, 0x0A, 0x81) if extended == self.short => Err(INVALID_FIELD),
            (Queue::Admin, 0x0A, 0x81) => Ok(self.hosts[n].to_le_bytes().to_vec()),
            _ => Err(0x4001),
        }
    }
}

impl Namespace for Controller {
    fn command(&self, command: &Command, data: Data<'_>) -> io::Result<u16> {
        let mut d = self.disk.borrow_mut();
        match data {
            Data::Out(list) => {
                let (host, number) = (d.hosts[self.n], d.changes.len());
                let lost = d.lost_change.take_if(|(at, _)| *at == number);
                if let Some((_, done)) = lost {
                    if done {
                        d.change(host, command, list);
                        d.end_commands();
                    }
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let status = d.change(host, command, list);
                if d.loses_answer && !d.aborting.is_empty() {
                    d.loses_answer = false;
                    return Err(io::ErrorKind::TimedOut.into());
                }
                d.end_commands();
                Ok(status)
            }
            Data::In(into) => match d.answer(self.n, command) {
                Ok(answer) => {
                    let n = answer.len().min(into.len());
                    into[..n].copy_from_slice(&answer[..n]);
                    Ok(0)
                }
                Err(status) => Ok(status),
            },
            Data::None => Ok(0),
        }
    }
}

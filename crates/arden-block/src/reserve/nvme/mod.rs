//! Reservations of an NVMe namespace (NVM Express Base Specification, Reservations), through the kernel's passthrough. Owns what the
//! commands' answers mean.
//!
//! # What differs from SCSI
//! * A registration is of a host identifier, not of a path: all controllers of a machine have one key, so several paths (multipath of
//!   the kernel) are one registrant. Two machines with the same identifier would be one registrant too, and what is fenced on one
//!   would write by the other's key. So IEKEY is never set, and a key of another node under this machine's identifier is refused
//!   ([`NamespacePath::register`]): the namespace itself compares the key that is replaced.
//! * The types have other numbers: "write exclusive, registrants only" is 3.
//! * Register does not replace a key, and Replace does not register one.
//! * No unit attentions: events are told by a log page, which is not read. A fence counts when the report has been read.

mod codec;
mod device;
#[cfg(test)]
mod model;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

pub use codec::{
    Capabilities, Command, HostId, Queue, Registrant, Report, Reported, capabilities, has_reservations, host, report,
};
pub use device::NvmeDisk;

use codec::{Change, IDENTIFY_BYTES, Type, change};

use super::{Data, DiskPath, Reservation, ReserveError, ReserveResult, failed};

/// A command that was not executed is sent again so often.
const TRIES: usize = 8;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Room for 63 registered controllers with long identifiers; more are asked for when there are.
const REPORT_ROOM: usize = 4096;
const REPORT_ROOM_MAX: usize = 128 * 1024;

/// Status code type and status code, without the bits "more" and "do not retry".
const STATUS_MASK: u16 = 0x07FF;
const GOOD: u16 = 0x000;
const INVALID_OPCODE: u16 = 0x001;
const INVALID_FIELD: u16 = 0x002;
const HOST_IDENTIFIER_FORMAT: u16 = 0x018;
const INTERRUPTED: u16 = 0x021;
const TRANSIENT_TRANSPORT: u16 = 0x022;
const NOT_READY: u16 = 0x082;
const RESERVATION_CONFLICT: u16 = 0x083;
/// Status code type 3: the way to the namespace.
const PATH_RELATED: u16 = 0x300;

/// Whatever executes commands for one namespace.
pub trait Namespace {
    /// Gives the status of the completion.
    ///
    /// # Errors
    /// That of the system, when the command was not sent or its end is not known.
    fn command(&self, command: &Command, data: Data<'_>) -> io::Result<u16>;
}

/// A namespace as this machine's controllers reach it.
pub struct NamespacePath<N> {
    namespace: N,
    volatile: bool,
}

impl NamespacePath<NvmeDisk> {
    /// `volatile`: one that forgets reservations when its power fails is taken too.
    ///
    /// # Errors
    /// Unsupported, when the path is no NVMe namespace, or this machine reaches it as several hosts; unreachable, when it cannot be opened.
    pub fn open(path: &Path, volatile: bool) -> ReserveResult<NamespacePath<NvmeDisk>> {
        let at = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
        match NvmeDisk::open(path) {
            Ok(namespace) => Ok(NamespacePath { namespace, volatile }),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Err(ReserveError::Unsupported(at(&e))),
            Err(e) => Err(ReserveError::Unreachable(at(&e))),
        }
    }
}

/// Keys of the same node and cluster, of whatever epochs.
fn same_node(a: u64, b: u64) -> bool {
    a >> 32 == b >> 32
}

/// Of two keys that Arden made.
fn is_newer(key: u64, than: u64) -> bool {
    key as u32 > than as u32
}

/// Of the same cluster.
fn is_older(key: u64, than: u64) -> bool {
    key >> 48 == than >> 48 && is_newer(than, key)
}

impl<N: Namespace> NamespacePath<N> {
    pub fn new(namespace: N, volatile: bool) -> NamespacePath<N> {
        NamespacePath { namespace, volatile }
    }

    /// What the namespace can do.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn capabilities(&self) -> ReserveResult<Capabilities> {
        let data = self.ask(&codec::identify_namespace(), IDENTIFY_BYTES)?;
        capabilities(&data).ok_or_else(|| failed("Identify Namespace was answered with something else"))
    }

    /// The identifier by which the namespace knows this machine.
    ///
    /// # Errors
    /// Unsupported, when the controller has none.
    pub fn host(&self) -> ReserveResult<HostId> {
        let of = |extended| {
            let data = self.ask(&codec::ask_host(extended), if extended { 16 } else { 8 })?;
            host(&data, extended).ok_or_else(|| failed("the host identifier was answered with something else"))
        };
        let found = match of(true) {
            Err(ReserveError::Unsupported(_)) => of(false)?,
            other => other?,
        };
        if found.value == 0 {
            let why = "this machine has no host identifier at the controller (NVMe over Fabrics: hostid)";
            return Err(ReserveError::Unsupported(why.to_string()));
        }
        Ok(found)
    }

    /// All registrations and the reservation.
    ///
    /// # Errors
    /// Those of the disk. It is told whole or not at all.
    pub fn report(&self, extended: bool) -> ReserveResult<Report> {
        let mut room = REPORT_ROOM;
        loop {
            match report(&self.ask(&codec::ask_report(extended, room), room)?, extended) {
                Some(Reported::All(all)) => return Ok(all),
                Some(Reported::Longer(bytes)) if bytes > room && bytes <= REPORT_ROOM_MAX => {
                    room = bytes.next_multiple_of(4);
                }
                Some(Reported::Longer(bytes)) => return Err(failed(format!("the report has {bytes} bytes"))),
                None => return Err(failed("Reservation Report was answered with something else")),
            }
        }
    }

    /// As [`NamespacePath::report`], in whichever form the namespace has it.
    fn any_report(&self) -> ReserveResult<Report> {
        match self.report(true) {
            Err(ReserveError::Unsupported(_)) => self.report(false),
            other => other,
        }
    }

    fn ask(&self, command: &Command, bytes: usize) -> ReserveResult<Vec<u8>> {
        let mut data = vec![0; bytes];
        self.run(command, |n| n.command(command, Data::In(&mut data)))?;
        Ok(data)
    }

    fn order(&self, what: Change) -> ReserveResult<()> {
        let (command, data) = change(what);
        self.run(&command, |n| n.command(&command, Data::Out(&data)))
    }

    /// Sends a command until it was executed.
    fn run(&self, command: &Command, mut send: impl FnMut(&N) -> io::Result<u16>) -> ReserveResult<()> {
        let mut last = 0;
        for _ in 0..TRIES {
            let raw = send(&self.namespace).map_err(|e| ReserveError::Unreachable(e.to_string()))?;
            match raw & STATUS_MASK {
                GOOD => return Ok(()),
                RESERVATION_CONFLICT => return Err(ReserveError::Conflict),
                status @ (INVALID_OPCODE | INVALID_FIELD | HOST_IDENTIFIER_FORMAT) => {
                    let why = format!("the disk does not know {:02x}: status {status:03x}", command.opcode);
                    return Err(ReserveError::Unsupported(why));
                }
                status @ (INTERRUPTED | TRANSIENT_TRANSPORT | NOT_READY) => {
                    last = status;
                    std::thread::sleep(BUSY_PAUSE);
                }
                status if status & 0x700 == PATH_RELATED => {
                    return Err(ReserveError::Unreachable(format!("status {status:03x}")));
                }
                status => return Err(failed(format!("{:02x} ended with status {status:03x}", command.opcode))),
            }
        }
        Err(ReserveError::Unreachable(format!("it was not executed {TRIES} times: status {last:03x}")))
    }

    /// Linux's target (up to 7.3 at least) takes any preempting by the holder for a change of the reservation's type, and leaves the
    /// registrant that is named. It takes registrants away from a reservation that all hold, and all others at once when that is
    /// preempted: so the holder makes it such a one, and then its own again. At no moment has the disk no reservation. Where this ends between the
    /// steps, it is the next who comes that makes it its own.
    fn preempt_as_holder(&self, key: u64, victim: u64) -> ReserveResult<()> {
        self.order(Change::Preempt { key, victim: key, kind: Type::AllRegistrants })?;
        self.order(Change::PreemptAndAbort { key, victim, kind: Type::RegistrantsOnly })?;
        self.mend(key)
    }
}

impl<N: Namespace> DiskPath for NamespacePath<N> {
    fn check(&self) -> ReserveResult<()> {
        let missing = |what: &str| Err(ReserveError::Unsupported(what.to_string()));
        let controller = self.ask(&codec::identify_controller(), IDENTIFY_BYTES)?;
        if has_reservations(&controller) != Some(true) {
            return missing("the controller has no reservation commands");
        }
        match self.capabilities()? {
            Capabilities { reservations: false, .. } => {
                missing("the namespace has none (Linux's target: resv_enable of the namespace)")
            }
            Capabilities { registrants_only: false, .. } => {
                missing("the namespace has no type \"write exclusive, registrants only\"")
            }
            Capabilities { dispersed: true, .. } => missing("the namespace is in several NVM subsystems"),
            Capabilities { shared: false, .. } => {
                missing("the namespace is of one controller, which no other node has")
            }
            Capabilities { persists: false, .. } if !self.volatile => missing(
                "the namespace forgets reservations when its power fails (--fence-option volatile=yes takes it all the same)",
            ),
            _ => self.report(self.host()?.extended).map(drop),
        }
    }

    fn known_as(&self) -> ReserveResult<Vec<String>> {
        self.host().map(|host| vec![format!("nvme:{:032x}", host.value)])
    }

    fn keys(&self) -> ReserveResult<Vec<u64>> {
        let hosts: BTreeMap<u128, u64> = self.any_report()?.registrants.iter().map(|r| (r.host, r.key)).collect();
        Ok(hosts.into_values().collect())
    }

    fn reservation(&self) -> ReserveResult<Option<Reservation>> {
        self.any_report()?.reservation().ok_or_else(|| failed("the report names no holder, or several"))
    }

    /// A former key of the same node is replaced, as long as it is still there. Under a key of another node nothing is registered:
    /// that node has this machine's host identifier.
    fn register(&self, key: u64) -> ReserveResult<()> {
        let persists = self.capabilities()?.persists;
        let host = self.host()?;
        match self.report(host.extended)?.key_of(host.value) {
            Some(old) if old != key && !same_node(old, key) => {
                let node = old >> 32 & 0xFFFF;
                return Err(failed(format!(
                    "node {node} has registered {old:#018x} under the host identifier of this machine: each node needs one of its own"
                )));
            }
            Some(old) if old != key => self.order(Change::Replace { key: old, new: key, persists })?,
            _ => self.order(Change::Register { new: key, persists })?,
        }
        if persists && !self.report(host.extended)?.persists {
            return Err(failed("the namespace does not make the registration persist through a loss of power"));
        }
        Ok(())
    }

    fn unregister(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Unregister { key })
    }

    fn reserve(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Acquire { key })
    }

    fn release(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Release { key })
    }

    fn clear(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Clear { key })
    }

    fn preempt_and_abort(&self, key: u64, victim: u64) -> ReserveResult<()> {
        self.order(Change::PreemptAndAbort { key, victim, kind: Type::RegistrantsOnly })?;
        let report = self.any_report()?;
        let is_there = report.registrants.iter().any(|r| r.key == victim);
        let holds = report.reservation().flatten().is_some_and(|r| r.key == key);
        let superseded = report.registrants.iter().any(|r| is_newer(r.key, key));
        match (is_there, holds, superseded) {
            (true, true, false) => self.preempt_as_holder(key, victim),
            // A newer owner's key would go too. It fences this one.
            (true, true, true) => Err(ReserveError::Conflict),
            _ => Ok(()),
        }
    }

    /// Of a reservation that all registrants hold, as [`NamespacePath::preempt_as_holder`] makes it. Its end takes all other keys away. So it is ended
    /// by the newest owner alone, who takes them away in any case.
    fn mend(&self, key: u64) -> ReserveResult<()> {
        let report = self.any_report()?;
        if !report.all_hold() || !report.registrants.iter().all(|r| r.key == key || is_older(r.key, key)) {
            return Ok(());
        }
        // Key zero: the reservation, from all that hold it.
        self.order(Change::PreemptAndAbort { key, victim: 0, kind: Type::RegistrantsOnly })
    }

    /// The same registration again: one that changes nothing, behind changes under way. Linux's target executes one change at a time,
    /// and a preempting that aborts has ended with the commands that it aborts.
    fn settle(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Replace { key, new: key, persists: false })
    }
}

#[cfg(test)]
mod tests;

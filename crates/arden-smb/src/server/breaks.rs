//! Oplock and lease breaks that the open table asks for: notifications, [MS-SMB2] 3.3.4.6 and 3.3.4.7.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use arden_store::{
    commit::CommitScope,
    fs::{ClientId, LeaseBreak, OpenId, OpenOwner, OplockLevel, WaitId},
};
use arden_wire::{
    cursor::Put,
    smb2::{
        Command, Header, flags,
        io::{put_lease_break_notification, put_oplock_break},
        transform::TRANSFORM_BYTES,
    },
};

use arden_lock::{Mutex, ranks};

use crate::{
    base::metrics::count,
    model::{
        Peer, Session, SmbOpen,
        frame::{put_frame_length, seal_frame},
        wire_level,
    },
    server::{Server, deferred::Deferred},
};

/// A message that the server sends of its own accord: id all ones, no session, not signed; encrypted where the
/// session is.
fn unsolicited(session: &Session, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let encrypt = session.encrypt_data && session.keys.is_some();
    let mut frame = Vec::with_capacity(192);
    frame.put_u32(0);
    if encrypt {
        frame.put_zeros(TRANSFORM_BYTES);
    }
    Header {
        credit_charge: 0,
        status: 0,
        command: Command::OplockBreak as u16,
        credits: 0,
        flags: flags::SERVER_TO_REDIR,
        next_command: 0,
        message_id: u64::MAX,
        async_or_tree: 0,
        session_id: 0,
        signature: [0; 16],
    }
    .put(&mut frame);
    body(&mut frame);
    if encrypt {
        seal_frame(session, &mut frame[4..]);
    }
    put_frame_length(&mut frame, 0);
    frame
}

fn send_oplock_break(session: &Session, peer: &Peer, open: &SmbOpen, to: OplockLevel) {
    peer.send(unsolicited(session, |out| put_oplock_break(out, wire_level(to), open.id)));
}

fn send_lease_break(session: &Session, peer: &Peer, b: &LeaseBreak) {
    // [MS-SMB2] 2.2.23.2: the epoch belongs to version 2.
    let epoch = if b.version == 2 { b.epoch } else { 0 };
    peer.send(unsolicited(session, |out| put_lease_break_notification(out, epoch, b.ack, b.key, b.from, b.to)));
}

/// What the table says of an open.
enum Break {
    Oplock(OplockLevel, bool),
    Lease(LeaseBreak),
}

/// Opens whose CREATE is under way, by their reserved ids, each with the breaks that came meanwhile.
#[derive(Default)]
pub(crate) struct Openings(Mutex<HashMap<u64, Vec<Break>>, ranks::Openings>);

impl Openings {
    /// Keeps a break for an open that is on its way; gives it back when the open is not.
    fn note(&self, open: OpenId, b: Break) -> Option<Break> {
        match self.0.lock().get_mut(&open.0) {
            Some(breaks) => breaks.push(b),
            None => return Some(b),
        }
        None
    }

    fn first_of(&self, opens: &[OpenId]) -> Option<OpenId> {
        let openings = self.0.lock();
        opens.iter().copied().find(|id| openings.contains_key(&id.0))
    }
}

/// An open from its reservation until it is registered with the server or has failed. The table may speak of it as soon as it is
/// admitted: what it says is told when this is dropped.
pub(crate) struct Opening<'a> {
    server: &'a Server,
    pub id: OpenId,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let breaks = self.server.openings.0.lock().remove(&self.id.0);
        for b in breaks.into_iter().flatten() {
            match b {
                Break::Oplock(to, ack) => self.server.break_oplock(self.id, to, ack),
                Break::Lease(b) => self.server.break_lease(&b),
            }
        }
    }
}

impl Server {
    /// A new open; its id is the table's.
    pub(crate) fn begin_open(&self) -> Opening<'_> {
        self.begin_open_as(self.table.reserve_open())
    }

    /// The same for an open that had its id before.
    pub(crate) fn begin_open_as(&self, id: OpenId) -> Opening<'_> {
        self.openings.0.lock().insert(id.0, Vec::new());
        Opening { server: self, id }
    }

    fn break_oplock(&self, id: OpenId, to: OplockLevel, ack: bool) {
        if self.openings.note(id, Break::Oplock(to, ack)).is_none() {
            return;
        }
        count(&self.metrics.breaks, 1);
        self.keep_open(&CommitScope::begin(), id.0);
        // One that is gone has nobody to tell.
        let Some(open) = self.open(id.0) else { return };
        match open.session().and_then(|s| s.live_peer().map(|p| (s, p))) {
            Some((session, peer)) => {
                open.state.lock().breaking = ack;
                send_oplock_break(&session, &peer, &open, to);
            }
            // Its client is told when it comes back.
            None if open.is_persistent() => {}
            // [MS-SMB2] 3.3.4.6: nobody to tell. A disconnected open that loses its oplock loses its durability.
            None => self.defer(Deferred::Close(open)),
        }
    }

    /// [MS-SMB2] 3.3.4.7: breaks of leases go to the client's first connection that is there, of those on which the
    /// lease's user has a session.
    fn first_connection_of(&self, client: ClientId) -> Option<(Arc<Session>, Arc<Peer>)> {
        let mut peers = self.peers();
        peers.retain(|p| !p.is_closed());
        peers.sort_by_key(|p| p.id);
        peers.into_iter().find_map(|p| {
            let session = p.channels.read().values().map(|c| &c.session).find(|s| s.client == client)?.clone();
            Some((session, p))
        })
    }

    fn break_lease(&self, b: &LeaseBreak) {
        count(&self.metrics.breaks, 1);
        self.keep_lease(&CommitScope::begin(), b.client, b.key);
        loop {
            // Before the registered ones: an open that leaves this list is among those by then.
            let opening = self.openings.first_of(&b.opens);
            let opens: Vec<_> = b.opens.iter().filter_map(|id| self.open(id.0)).collect();
            let connected = opens.iter().any(|o| o.session().is_some());
            if let Some((session, peer)) = connected.then(|| self.first_connection_of(b.client)).flatten() {
                send_lease_break(&session, &peer, b);
                return;
            }
            match opening {
                Some(id) if self.openings.note(id, Break::Lease(b.clone())).is_some() => continue,
                Some(_) => return,
                None => {}
            }
            // [MS-SMB2] 3.3.4.7: nobody can answer, so the opens that wait for their client are given up; but the client
            // of a persistent one is told when it comes back.
            for open in opens.into_iter().filter(|o| !o.is_persistent()) {
                self.defer(Deferred::Close(open));
            }
            return;
        }
    }
}

/// The server as the owner of its opens.
pub(crate) struct Events(pub Weak<Server>);

impl OpenOwner for Events {
    fn oplock_break(&self, open: OpenId, to: OplockLevel, ack: bool) {
        if let Some(server) = self.0.upgrade() {
            server.break_oplock(open, to, ack);
        }
    }

    fn lease_break(&self, b: &LeaseBreak) {
        if let Some(server) = self.0.upgrade() {
            server.break_lease(b);
        }
    }

    fn cache_lost(&self, opens: &[OpenId]) {
        if let Some(server) = self.0.upgrade() {
            server.keep_lost(&CommitScope::begin(), opens);
        }
    }

    fn resume(&self, wait: WaitId) {
        if let Some(server) = self.0.upgrade() {
            server.resume(wait);
        }
    }
}

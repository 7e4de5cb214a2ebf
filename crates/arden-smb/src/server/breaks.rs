//! Oplock and lease breaks that the open table asks for: notifications, [MS-SMB2] 3.3.4.6 and 3.3.4.7.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use arden_store::fs::{ClientId, LeaseBreak, OpenId, OplockLevel, TableEvents, WaitId};
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

/// The table knows an open before the server does; what it says of it meanwhile is kept.
enum EarlyBreak {
    Oplock(OplockLevel, bool),
    Lease(LeaseBreak),
}

/// Opens that are being registered at one time; a break for an open that is gone may lie here until others push it out.
const EARLY_BREAKS_MAX: usize = 4096;

/// Breaks of opens that are still being registered.
#[derive(Default)]
pub(crate) struct EarlyBreaks(Mutex<HashMap<u64, EarlyBreak>, ranks::EarlyBreaks>);

impl Server {
    /// What the table said of an open that is registered now.
    pub(crate) fn tell_early_break(&self, id: OpenId) {
        let early = self.early_breaks.0.lock().remove(&id.0);
        match early {
            Some(EarlyBreak::Oplock(to, ack)) => self.break_oplock(id, to, ack),
            Some(EarlyBreak::Lease(b)) => self.break_lease(&b),
            None => {}
        }
    }

    fn note_early(&self, open: OpenId, early: EarlyBreak) {
        let mut breaks = self.early_breaks.0.lock();
        if breaks.len() >= EARLY_BREAKS_MAX {
            breaks.clear();
        }
        breaks.insert(open.0, early);
    }

    fn break_oplock(&self, id: OpenId, to: OplockLevel, ack: bool) {
        count(&self.metrics.breaks, 1);
        self.keep_open(id.0);
        let Some(open) = self.open(id.0) else { return self.note_early(id, EarlyBreak::Oplock(to, ack)) };
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
        self.keep_lease(b.client, b.key);
        let opens: Vec<_> = b.opens.iter().filter_map(|id| self.open(id.0)).collect();
        let connected = opens.iter().any(|o| o.session().is_some());
        let live = if connected { self.first_connection_of(b.client) } else { None };
        if let Some((session, peer)) = live {
            send_lease_break(&session, &peer, b);
        } else if let Some(unknown) = b.opens.iter().find(|id| self.open(id.0).is_none()) {
            self.note_early(*unknown, EarlyBreak::Lease(b.clone()));
        } else {
            // [MS-SMB2] 3.3.4.7: nobody can answer, so the opens that wait for their client are given up; but the client
            // of a persistent one is told when it comes back.
            for open in opens.into_iter().filter(|o| !o.is_persistent()) {
                self.defer(Deferred::Close(open));
            }
        }
    }
}

/// How the open table reaches the server.
pub(crate) struct Events(pub Weak<Server>);

impl TableEvents for Events {
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
            server.keep_lost(opens);
        }
    }

    fn resume(&self, wait: WaitId) {
        if let Some(server) = self.0.upgrade() {
            server.resume(wait);
        }
    }
}

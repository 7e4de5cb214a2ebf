//! What the clients are told of the server's own accord, [MS-SMB2] 3.3.4.6 and 3.3.4.7, and the other ends of what the trees
//! ask of the sessions' side.

use std::sync::Arc;

use arden_rpc::ServerView;
use arden_store::fs::{ClientId, WaitId};
use arden_wire::{
    cursor::Put,
    smb2::{
        Command, Header, flags,
        io::{BreakAck, put_lease_break_notification, put_oplock_break},
        transform::TRANSFORM_BYTES,
    },
};

use crate::{
    model::{
        seam::{Clients, Notification, Recipient},
        wire_level,
    },
    server::{Server, view::View},
    sessions::{
        Session,
        frame::{put_frame_length, seal_frame},
    },
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

fn put(out: &mut Vec<u8>, what: &Notification) {
    match what {
        Notification::OplockBreak { id, to } => put_oplock_break(out, wire_level(*to), *id),
        Notification::LeaseBreak(b) => {
            // [MS-SMB2] 2.2.23.2: the epoch belongs to version 2.
            let epoch = if b.version == 2 { b.epoch } else { 0 };
            put_lease_break_notification(out, epoch, b.ack, b.key, b.from, b.to);
        }
    }
}

impl Server {
    /// Over a connection of this node. False: there is none.
    pub fn notify_here(&self, to: Recipient, what: &Notification) -> bool {
        loop {
            let found = match to {
                Recipient::Session { id, serial } => {
                    let session = self.session(id).filter(|s| s.tables.serial == serial);
                    session.and_then(|s| s.told_peer().map(|p| (s, p)))
                }
                // [MS-SMB2] 3.3.4.7: the client's first connection that is there, of those on which the lease's user has a session.
                Recipient::Client(client) => self.client_peers.told(client),
            };
            let Some((session, peer)) = found else { return false };
            // One that ends meanwhile tells it over another, or is none of those that are there the next time.
            if peer.unacknowledged.note(self.trees.time().now, to, what) {
                let frame = unsolicited(&session, |out| put(out, what));
                session.tables.grants.send_break(move || peer.tell(frame));
                return true;
            }
        }
    }

    /// The client of a verified OPLOCK_BREAK has heard of the break, over whichever of its connections.
    pub(crate) fn acknowledged(&self, client: ClientId, message: &[u8]) {
        if let Ok(ack) = BreakAck::parse(message) {
            self.client_peers.each(client, |peer| peer.unacknowledged.forget(client, &ack));
        }
    }
}

impl Clients for Server {
    fn notify(&self, to: Recipient, what: &Notification) -> bool {
        self.notify_here(to, what) || self.forwarded.notify(to, what)
    }

    fn notify_client_at(&self, node: Option<u16>, client: ClientId, what: &Notification) -> bool {
        match node {
            None => self.notify_here(Recipient::Client(client), what),
            Some(node) => self.forwarded.notify_client_at(node, client, what),
        }
    }

    fn announce(&self, wait: WaitId) {
        self.announce_wait(wait);
    }

    fn resume(&self, wait: WaitId) {
        self.resume_request(wait);
    }

    fn forget(&self, wait: WaitId) {
        self.unpark(wait);
    }

    fn is_awaited(&self, wait: WaitId) -> bool {
        self.waits.is_awaited(wait)
    }

    fn view(&self) -> Option<Arc<dyn ServerView>> {
        Some(Arc::new(View::new(self.me.upgrade()?)))
    }
}

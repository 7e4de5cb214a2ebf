//! Sessions, leases and durable handles: what one user's connection must not do to another's, [MS-SMB2] 3.3.5.5,
//! 3.3.5.9.7, 3.3.5.9.12 and 3.3.5.22.2. Each operation leaves the model's state as it was, but for opens that it closes.

use std::sync::Arc;

use arden_auth::initiator::Initiator;
use arden_wire::{
    NtStatus,
    smb2::{Command, Dialect, create::oplock},
};

use super::{
    acl,
    opens::Check,
    world::{World, account, guid},
};
use crate::client::{self, Client, Created, Logon, Offer, Req, logon, session_setup, want};

/// A file of its own, in the root of the share `full`.
pub const LEASED: &str = "leased.bin";
const KEY: u128 = 0x1EA5E;

impl World {
    pub fn session(&mut self, session: usize, kind: u8, other: usize) -> Check {
        match kind {
            0 => self.log_off_and_on(session),
            1 => self.again(session),
            2 => self.again_as_another(session, other),
            3 => self.bind(session, other),
            4 => self.previous(session, other),
            5 => self.unsigned_leg(session),
            6 | 7 => self.foreign_lease_ack(session, other),
            _ => self.foreign_reconnect(session, other),
        }
    }

    fn connection(&self, session: usize) -> Client {
        let mut c = Client::new(&self.server, guid(session), Arc::default());
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        c
    }

    fn close_all(&mut self, session: usize) -> Check {
        let slots: Vec<usize> = (0..self.handles.len())
            .filter(|s| self.handles[*s].as_ref().is_some_and(|h| h.session == session))
            .collect();
        slots.into_iter().try_for_each(|slot| self.close_slot(slot))
    }

    /// A new connection and a new session in the place of this one.
    fn replace(&mut self, session: usize) -> Check {
        let mut c = self.connection(session);
        let Ok(_) = c.try_logon(&logon(account(self.users[session]))) else {
            return Err(format!("{} cannot log on again", account(self.users[session])));
        };
        self.clients[session] = c;
        self.connect_trees(session);
        Ok(())
    }

    fn log_off_and_on(&mut self, session: usize) -> Check {
        self.close_all(session)?;
        let status = self.clients[session].status(&Req::empty(Command::Logoff));
        if !status.is_success() {
            return Err(format!("LOGOFF: {status}"));
        }
        self.replace(session)
    }

    /// The session still answers for its user.
    fn lives(&mut self, session: usize, after: &str) -> Check {
        let open = want("").access(acl::READ_ATTRIBUTES).existing();
        let reply = self.call(session, 0, &open.req());
        let status = reply.status();
        if status.is_success() {
            self.call(session, 0, &client::close(Created::parse(&reply).id));
        }
        // The descriptor of the root may refuse; the session is there all the same.
        match status {
            s if s.is_success() || s == NtStatus::ACCESS_DENIED => Ok(()),
            s => Err(format!("a session after {after}: {s}")),
        }
    }

    fn again(&mut self, session: usize) -> Check {
        let how = logon(account(self.users[session])).again();
        self.requests += 2;
        match self.clients[session].try_logon(&how) {
            Ok(_) => self.lives(session, "reauthentication"),
            Err(status) => Err(format!("reauthentication of the same user: {status}")),
        }
    }

    /// Whether another user may take a session over is the server's matter; what it opened stays whose it was.
    fn again_as_another(&mut self, session: usize, other: usize) -> Check {
        if self.users[session] == self.users[other] {
            return Ok(());
        }
        self.close_all(session)?;
        self.requests += 2;
        let new = self.users[other];
        match self.clients[session].try_logon(&logon(account(new)).again()) {
            // From now on it is the other user who asks, on the same tree connects.
            Ok(_) => self.users[session] = new,
            Err(_) => return self.replace(session),
        }
        Ok(())
    }

    /// A channel is bound by the session's user alone, who has its key, [MS-SMB2] 3.3.5.5 (STATUS_NOT_SUPPORTED).
    fn bind(&mut self, session: usize, other: usize) -> Check {
        let keys = self.clients[session].session.clone().ok_or("no session")?;
        let (user, knows) = (self.users[other], other % 2 == 0);
        if user == self.users[session] {
            return Ok(());
        }
        self.requests += 3;
        let mut c = self.connection(if knows { session } else { other });
        let mut how = logon(account(user)).bind(&keys);
        if !knows {
            // Signed with the other user's own key.
            let own = self.clients[other].session.clone().ok_or("no session")?;
            let stolen = client::SessionKeys { id: keys.id, ..own };
            how = logon(account(user)).bind(&stolen);
        }
        c.strict = false;
        if c.try_logon(&how).is_ok() {
            return Err(format!("{} binds a channel to a session of {}", account(user), account(self.users[session])));
        }
        drop(c);
        self.lives(session, "a binding by another user")
    }

    /// PreviousSessionId of another user is ignored, [MS-SMB2] 3.3.5.5.3.
    fn previous(&mut self, session: usize, other: usize) -> Check {
        if self.users[session] == self.users[other] {
            return Ok(());
        }
        let id = self.clients[session].session_id();
        let mut c = self.connection(other);
        self.requests += 3;
        let how: Logon = logon(account(self.users[other])).previous(id);
        if let Err(status) = c.try_logon(&how) {
            return Err(format!("a logon with another user's previous session: {status}"));
        }
        drop(c);
        self.lives(session, "another user's logon that names it as the previous one")
    }

    /// Both legs of a reauthentication are requests of a session that has to sign, [MS-SMB2] 3.3.5.2.4.
    fn unsigned_leg(&mut self, session: usize) -> Check {
        self.close_all(session)?;
        let user = account(self.users[session]);
        let mut initiator = Initiator::new(user, "LAB", super::world::PASSWORD);
        let c = &mut self.clients[session];
        let id = c.session_id();
        let first = session_setup(0, 1, 0, &initiator.first()).session(id).signed(true);
        self.requests += 2;
        let reply = c.call(&first);
        if reply.status() != NtStatus::MORE_PROCESSING_REQUIRED {
            return Err(format!("the first leg of a reauthentication: {}", reply.status()));
        }
        let token = reply.slice(reply.u16(4).into(), reply.u16(6).into()).to_vec();
        let second = initiator.second(&token, [5; 24]).map_err(|e| format!("the server's token: {e}"))?;
        let unsigned = session_setup(0, 1, 0, &second).session(id).signed(false);
        let sent = c.send(&unsigned);
        let status = c.poll(sent).map(|r| r.status());
        if status.is_some_and(|s| s.is_success()) {
            return Err("the second leg of a reauthentication is accepted without a signature".into());
        }
        self.replace(session)
    }

    /// A lease of `session`, broken by another open, whose break somebody else acknowledges.
    fn foreign_lease_ack(&mut self, session: usize, other: usize) -> Check {
        let in_use = self.tree.resolve(self.roots[0], LEASED).ok().and_then(|t| t.node);
        let Some(node) = in_use.filter(|n| !self.opens().iter().any(|h| h.node == *n)) else { return Ok(()) };
        if self.users[other] == self.users[session] || self.tree.nodes[node].directory {
            return Ok(());
        }
        let opener = (0..self.users.len()).find(|s| *s != session && guid(*s) != guid(session));
        let opener = opener.ok_or("no third session")?;
        let access = acl::READ_DATA | acl::WRITE_DATA;
        let lease = want(LEASED).access(access).existing().lease(KEY, "RWH");
        let reply = self.call(session, 0, &lease.req());
        if !reply.status().is_success() {
            return Ok(());
        }
        let held = Created::parse(&reply);
        let outcome = self.broken_lease(session, other, opener, &held);
        for s in [session, opener] {
            self.clients[s].pump();
            _ = self.clients[s].breaks();
        }
        self.call(session, 0, &client::close(held.id));
        outcome
    }

    fn broken_lease(&mut self, session: usize, other: usize, opener: usize, held: &Created) -> Check {
        if !held.lease().contains('W') {
            return Ok(());
        }
        let tree = self.trees[opener][0];
        let conflict = want(LEASED).access(acl::READ_DATA).existing();
        let id = self.clients[opener].send(&conflict.req().tree(tree));
        if let Some(reply) = self.clients[opener].poll(id) {
            if reply.status().is_success() {
                self.call(opener, 0, &client::close(Created::parse(&reply).id));
            }
            return Ok(());
        }
        let foreign = self.call(other, 0, &client::lease_ack(KEY, ""));
        let taken = foreign.status().is_success();
        let own = self.clients[session].breaks();
        let to = own.iter().find_map(|b| match b {
            client::Break::Lease { to, .. } => Some(to.clone()),
            _ => None,
        });
        self.call(session, 0, &client::lease_ack(KEY, &to.unwrap_or_default()));
        match self.clients[opener].poll(id) {
            Some(reply) if reply.status().is_success() => {
                self.call(opener, 0, &client::close(Created::parse(&reply).id));
            }
            Some(_) => {}
            None => return Err("an open still waits after the lease break was acknowledged".into()),
        }
        if taken {
            return Err(format!(
                "a lease break of {} is acknowledged by a connection of {}",
                account(self.users[session]),
                account(self.users[other])
            ));
        }
        Ok(())
    }

    /// A durable handle of a lost connection, which another user asks for and then its owner.
    fn foreign_reconnect(&mut self, session: usize, other: usize) -> Check {
        let in_use = self.tree.resolve(self.roots[0], LEASED).ok().and_then(|t| t.node);
        let Some(node) = in_use.filter(|n| !self.opens().iter().any(|h| h.node == *n)) else { return Ok(()) };
        if self.users[other] == self.users[session] || self.tree.nodes[node].directory {
            return Ok(());
        }
        self.close_all(session)?;
        let create_guid = 0xC0DE + u128::from(self.requests);
        let base = || want(LEASED).access(acl::READ_DATA).existing().oplock(oplock::BATCH);
        let reply = self.call(session, 0, &base().durable_v2(create_guid, 60_000).req());
        if !reply.status().is_success() {
            return Ok(());
        }
        let held = Created::parse(&reply);
        if held.durable_v2().is_none() {
            self.call(session, 0, &client::close(held.id));
            return Ok(());
        }
        self.clients[session].disconnect();
        let mut thief = self.connection(session);
        thief.logon(&logon(account(self.users[other])));
        thief.connect(self.shares[0].name);
        self.requests += 4;
        let stolen = thief.status(&base().reconnect_v2(held.id, create_guid).req());
        drop(thief);
        self.replace(session)?;
        let reply = self.call(session, 0, &base().reconnect_v2(held.id, create_guid).req());
        if reply.status().is_success() {
            self.call(session, 0, &client::close(Created::parse(&reply).id));
        }
        if stolen.is_success() {
            return Err(format!("{} reconnects a durable handle of another user", account(self.users[other])));
        }
        if !reply.status().is_success() {
            return Err(format!("the owner's reconnect of a durable handle: {}", reply.status()));
        }
        Ok(())
    }
}

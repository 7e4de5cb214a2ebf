//! The requests behind one in its compound, for an engine that asks another for several at once.

use arden_wire::smb2::{Command, flags};

use super::{Element, FRAME_EXTRA_BYTES, is_protected};
use crate::{
    handlers::run::Behind,
    model::seam::Following,
    sessions::{Session, SessionState},
};

/// What comes behind a request in its compound.
pub(super) struct Compound<'a> {
    /// From the request on.
    pub elements: &'a [Element],
    /// The whole message.
    pub whole: &'a [u8],
    pub session: &'a Session,
    pub encrypted: bool,
    /// Bytes that the request and those behind it may answer.
    pub room: usize,
}

impl Behind for Compound<'_> {
    fn related(&self, n: usize) -> Option<Following<'_>> {
        let element = self.elements.get(n + 1)?;
        let same_session = element.channel.as_ref().is_some_and(|c| std::ptr::eq(&*c.session, self.session));
        let first = &self.elements[0].header;
        let is_ready = element.refused.is_none()
            && needs_its_tree_alone(first.command)
            && element.header.is(flags::RELATED_OPERATIONS)
            && same_session
            && self.session.state() == SessionState::Valid
            && is_protected(self.session, element, self.encrypted)
            && needs_its_tree_alone(element.header.command);
        let before: usize = self.elements[..=n].iter().map(most_that_it_answers).sum();
        let room = self.room.checked_sub(before).filter(|room| *room >= most_that_it_answers(element));
        let message = &self.whole[element.start..element.start + element.len];
        room.filter(|_| is_ready).map(|room| Following { header: element.header, message, room })
    }
}

/// By what it paid for, and for what is beside that.
fn most_that_it_answers(element: &Element) -> usize {
    (usize::from(element.header.credit_charge.max(1)) << 16) + FRAME_EXTRA_BYTES
}

/// Commands that concern neither the session nor the connection, and change no tree connect.
fn needs_its_tree_alone(command: u16) -> bool {
    use Command::{Close, Create, Flush, Lock, QueryDirectory, QueryInfo, Read, SetInfo, Write};
    let these = [Create, Close, Flush, Read, Write, Lock, QueryDirectory, QueryInfo, SetInfo];
    these.iter().any(|of| *of as u16 == command)
}

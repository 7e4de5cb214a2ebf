//! Opens of a few files that outlive their owner, as a model of share modes, byte-range locks and leases alike: the table that an owner
//! keeps in the pool, and the judge of what clients were told. A client's row of the table is durable before its open is answered.

use arden_block::{BLOCK_BYTES, Buf};

pub(super) const FILES: usize = 3;
/// The last of them only reads.
pub(super) const CLIENTS: usize = 4;
const MAGIC: &[u8] = b"OPENS";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Closed,
    Shared,
    Exclusive,
}

impl Mode {
    fn conflicts(self, other: Mode) -> bool {
        self != Mode::Closed && other != Mode::Closed && (self == Mode::Exclusive || other == Mode::Exclusive)
    }
}

type Row = [Mode; FILES];

/// What an owner knows of all clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Table {
    rows: [Row; CLIENTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Refused,
    /// It is so already.
    Known,
    /// The row has to become durable.
    Made,
}

impl Table {
    /// The table as the pool holds it: one block for each client.
    pub(super) fn read(blocks: &[u8]) -> Result<Table, String> {
        let mut table = Table::default();
        for (row, block) in table.rows.iter_mut().zip(blocks.chunks(BLOCK_BYTES as usize)) {
            if block.iter().all(|b| *b == 0) {
                continue;
            }
            if !block.starts_with(MAGIC) {
                return Err(format!("a row begins with {:02x?}", &block[..MAGIC.len()]));
            }
            for (mode, byte) in row.iter_mut().zip(&block[MAGIC.len()..]) {
                *mode = [Mode::Closed, Mode::Shared, Mode::Exclusive][usize::from(*byte).min(2)];
            }
        }
        Ok(table)
    }

    pub(super) fn row(&self, client: usize) -> Buf {
        let mut block = Buf::zeroed(BLOCK_BYTES as usize);
        block[..MAGIC.len()].copy_from_slice(MAGIC);
        for (i, mode) in self.rows[client].iter().enumerate() {
            block[MAGIC.len() + i] = *mode as u8;
        }
        block
    }

    /// The client opens the file in this mode, or closes it.
    pub(super) fn set(&mut self, client: usize, file: usize, mode: Mode) -> Change {
        if self.rows[client][file] == mode {
            return Change::Known;
        }
        let others = self.rows.iter().enumerate().filter(|(c, _)| *c != client);
        if others.into_iter().any(|(_, row)| row[file].conflicts(mode)) {
            return Change::Refused;
        }
        self.rows[client][file] = mode;
        Change::Made
    }
}

/// What clients were told of their opens, and what that allows. Knows nothing of owners.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// Granted, and not given back so far.
    held: [Row; CLIENTS],
    /// What the table may have, also of requests that are not answered.
    possible: [Row; CLIENTS],
    asked: [Option<(usize, Mode)>; CLIENTS],
    /// Since the client asked, another one may have had the file open in a mode that refuses it.
    excused: [bool; CLIENTS],
}

impl Grants {
    pub(super) fn held(&self, client: usize, file: usize) -> Mode {
        self.held[client][file]
    }

    /// A client asks for a mode of a file, for the first time.
    pub(super) fn ask(&mut self, client: usize, file: usize, mode: Mode) {
        self.asked[client] = Some((file, mode));
        if mode == Mode::Closed {
            self.held[client][file] = Mode::Closed;
            return;
        }
        self.possible[client][file] = mode;
        self.excused[client] = self.others(client).any(|d| self.possible[d][file].conflicts(mode));
        for d in 0..CLIENTS {
            if d != client && self.asked[d].is_some_and(|(f, m)| f == file && m.conflicts(mode)) {
                self.excused[d] = true;
            }
        }
    }

    fn others(&self, client: usize) -> impl Iterator<Item = usize> + use<> {
        (0..CLIENTS).filter(move |d| *d != client)
    }

    /// The client is told that it is so.
    pub(super) fn done(&mut self, client: usize) -> Result<(), String> {
        let Some((file, mode)) = self.asked[client].take() else { return Ok(()) };
        (self.held[client][file], self.possible[client][file]) = (mode, mode);
        match self.others(client).find(|d| self.held[*d][file].conflicts(mode)) {
            Some(d) => Err(format!(
                "client {client} is granted file {file} as {mode:?}, which client {d} has open as {:?}",
                self.held[d][file]
            )),
            None => Ok(()),
        }
    }

    pub(super) fn refused(&mut self, client: usize) -> Result<(), String> {
        let Some((file, mode)) = self.asked[client].take() else { return Ok(()) };
        self.possible[client][file] = Mode::Closed;
        match self.excused[client] {
            true => Ok(()),
            false => Err(format!("client {client} is refused file {file} as {mode:?}, which nobody else has open")),
        }
    }

    /// A new owner found this table: what was granted is in it, and what was given back is not.
    pub(super) fn check(&self, found: &Table) -> Result<(), String> {
        for (client, row) in found.rows.iter().enumerate() {
            for (file, mode) in row.iter().enumerate() {
                let asked = self.asked[client].filter(|a| a.0 == file);
                let (held, before) = (self.held[client][file], self.possible[client][file]);
                let fits = match asked {
                    Some((_, Mode::Closed)) => *mode == before || *mode == Mode::Closed,
                    Some((_, wanted)) => *mode == held || *mode == wanted,
                    None => *mode == held,
                };
                if !fits {
                    return Err(format!(
                        "file {file} of client {client} is found as {mode:?}: granted {held:?}, asked for {asked:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let mut t = Table::default();
        assert_eq!(t.set(0, 1, Mode::Shared), Change::Made);
        assert_eq!((t.set(1, 1, Mode::Shared), t.set(1, 1, Mode::Shared)), (Change::Made, Change::Known));
        assert_eq!(t.set(2, 1, Mode::Exclusive), Change::Refused);
        assert_eq!(t.set(2, 2, Mode::Exclusive), Change::Made);
        let blocks: Vec<u8> = (0..CLIENTS).flat_map(|c| t.row(c).to_vec()).collect();
        assert_eq!(Table::read(&blocks), Ok(t));
        assert_eq!(Table::read(&[0; 4096 * CLIENTS]), Ok(Table::default()));
    }

    #[test]
    fn two_that_exclude_each_other_are_seen() {
        let mut g = Grants::default();
        g.ask(0, 1, Mode::Shared);
        g.ask(1, 1, Mode::Shared);
        assert!(g.done(0).is_ok() && g.done(1).is_ok());
        g.ask(2, 1, Mode::Exclusive);
        g.ask(1, 1, Mode::Closed);
        assert!(g.done(2).is_err(), "client 0 has it open");
    }

    #[test]
    fn a_refusal_needs_somebody_who_may_have_it_open() {
        let mut g = Grants::default();
        g.ask(0, 0, Mode::Exclusive);
        g.ask(1, 0, Mode::Shared);
        assert!(g.refused(1).is_ok(), "client 0 may have been first");
        assert!(g.done(0).is_ok());
        g.ask(0, 0, Mode::Closed);
        assert!(g.done(0).is_ok());
        g.ask(1, 0, Mode::Shared);
        assert!(g.refused(1).is_err());
    }

    #[test]
    fn a_successor_finds_what_was_granted_and_nothing_that_was_given_back() {
        let mut g = Grants::default();
        let mut t = Table::default();
        g.ask(0, 0, Mode::Shared);
        assert!(g.check(&t).is_ok(), "not answered");
        t.set(0, 0, Mode::Shared);
        assert!(g.check(&t).is_ok() && g.done(0).is_ok() && g.check(&t).is_ok());
        assert!(g.check(&Table::default()).is_err());
        g.ask(0, 0, Mode::Closed);
        assert!(g.check(&t).is_ok() && g.done(0).is_ok());
        assert!(g.check(&t).is_err());
    }
}

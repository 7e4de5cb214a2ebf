//! What is kept of an open and of a lease, as structures and as bytes. Numbers are little-endian; the first byte of a
//! value is its version. Bytes that are not understood are `Malformed`, never a panic.

use arden_auth::Token;
use arden_wire::{
    Malformed,
    cursor::{Put, Reader},
    dtyp::Sid,
    names::{name_of_utf16, name_units, put_name_units},
};

use crate::fs::{ClientId, OpenId};

/// Of what is kept of an open. Version 2 added when the file was made, for stores that give numbers again; others keep version 1.
const VERSION: u8 = 2;
/// Of what is kept of a lease. Version 2 added the directory's change time; version 1 is still read.
const LEASE_VERSION: u8 = 2;

/// A break that its holder has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptBreak {
    pub offered: u32,
    pub required: u32,
}

/// What the open caches by: its own oplock (as lease state bits), or a lease that is kept by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptCache {
    Oplock { state: u32, breaking: Option<KeptBreak> },
    Lease { key: u128 },
}

/// The open table's part of a persistent open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptOpen {
    pub id: OpenId,
    /// The store's 64-bit id of the file.
    pub file: u64,
    /// [`crate::store::Node::born`].
    pub born: u64,
    /// Where it stood last, from the root.
    pub path: Vec<String>,
    pub stream: Option<String>,
    pub granted: u32,
    pub share: u32,
    pub options: u32,
    pub client: ClientId,
    pub who: Token,
    pub parent_key: Option<u128>,
    pub delete_on_close: bool,
    /// The file, or the stream, goes with its last open; with `Some(true)` with this one, which asked for it by POSIX rules.
    pub delete_pending: Option<bool>,
    pub cache: KeptCache,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptLease {
    pub client: ClientId,
    pub key: u128,
    pub state: u32,
    pub epoch: u16,
    pub version: u8,
    pub parent_key: Option<u128>,
    pub breaking: Option<KeptBreak>,
    /// Of a directory's lease, 0 of others: the directory's change time (FILETIME) when the state was last raised. A
    /// directory with another one was changed by somebody whose break was not kept.
    pub changed_at: u64,
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.put_u16(name_units(text) as u16);
    put_name_units(out, text);
}

fn text(r: &mut Reader<'_>) -> Result<String, Malformed> {
    let units = usize::from(r.u16()?);
    name_of_utf16(r.bytes(units * 2)?)
}

fn put_option(out: &mut Vec<u8>, value: Option<u128>) {
    out.put_u8(u8::from(value.is_some()));
    out.put_u128(value.unwrap_or(0));
}

fn option(r: &mut Reader<'_>) -> Result<Option<u128>, Malformed> {
    let there = r.u8()? != 0;
    let value = r.u128()?;
    Ok(there.then_some(value))
}

fn put_break(out: &mut Vec<u8>, b: Option<KeptBreak>) {
    out.put_u8(u8::from(b.is_some()));
    out.put_u32(b.map_or(0, |b| b.offered));
    out.put_u32(b.map_or(0, |b| b.required));
}

fn kept_break(r: &mut Reader<'_>) -> Result<Option<KeptBreak>, Malformed> {
    let there = r.u8()? != 0;
    let b = KeptBreak { offered: r.u32()?, required: r.u32()? };
    Ok(there.then_some(b))
}

fn put_token(out: &mut Vec<u8>, who: &Token) {
    who.user.put(out);
    put_text(out, &who.user_name);
    out.put_u16(who.groups.len() as u16);
    who.groups.iter().for_each(|g| g.put(out));
    out.put_u32(who.privileges);
}

fn token(r: &mut Reader<'_>) -> Result<Token, Malformed> {
    let user = Sid::read(r)?;
    let user_name = text(r)?;
    let count = r.u16()?;
    let groups = (0..count).map(|_| Sid::read(r)).collect::<Result<_, _>>()?;
    Ok(Token { user, user_name, groups, privileges: r.u32()? })
}

fn version(r: &mut Reader<'_>) -> Result<u8, Malformed> {
    let version = r.u8()?;
    if (1..=VERSION).contains(&version) { Ok(version) } else { Err(Malformed("version of a kept handle")) }
}

impl KeptOpen {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.put_u8(if self.born == 0 { 1 } else { VERSION });
        out.put_u64(self.id.0);
        out.put_u64(self.file);
        if self.born != 0 {
            out.put_u64(self.born);
        }
        out.put_u16(self.path.len() as u16);
        self.path.iter().for_each(|c| put_text(&mut out, c));
        out.put_u8(u8::from(self.stream.is_some()));
        put_text(&mut out, self.stream.as_deref().unwrap_or(""));
        out.put_u32(self.granted);
        out.put_u32(self.share);
        out.put_u32(self.options);
        out.put_u128(self.client.0);
        put_token(&mut out, &self.who);
        put_option(&mut out, self.parent_key);
        out.put_u8(u8::from(self.delete_on_close));
        out.put_u8(self.delete_pending.map_or(0, |posix| 1 + u8::from(posix)));
        match self.cache {
            KeptCache::Oplock { state, breaking } => {
                out.put_u8(0);
                out.put_u32(state);
                put_break(&mut out, breaking);
            }
            KeptCache::Lease { key } => {
                out.put_u8(1);
                out.put_u128(key);
            }
        }
        out
    }

    /// Takes its part of the bytes; the protocol's follows.
    pub fn read(r: &mut Reader<'_>) -> Result<KeptOpen, Malformed> {
        let version = version(r)?;
        let id = OpenId(r.u64()?);
        let file = r.u64()?;
        let born = if version < 2 { 0 } else { r.u64()? };
        let count = r.u16()?;
        let path = (0..count).map(|_| text(r)).collect::<Result<_, _>>()?;
        let has_stream = r.u8()? != 0;
        let stream = text(r)?;
        Ok(KeptOpen {
            id,
            file,
            born,
            path,
            stream: has_stream.then_some(stream),
            granted: r.u32()?,
            share: r.u32()?,
            options: r.u32()?,
            client: ClientId(r.u128()?),
            who: token(r)?,
            parent_key: option(r)?,
            delete_on_close: r.u8()? != 0,
            delete_pending: match r.u8()? {
                0 => None,
                n => Some(n == 2),
            },
            cache: match r.u8()? {
                0 => KeptCache::Oplock { state: r.u32()?, breaking: kept_break(r)? },
                _ => KeptCache::Lease { key: r.u128()? },
            },
        })
    }
}

impl KeptLease {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(80);
        out.put_u8(LEASE_VERSION);
        out.put_u128(self.client.0);
        out.put_u128(self.key);
        out.put_u32(self.state);
        out.put_u16(self.epoch);
        out.put_u8(self.version);
        put_option(&mut out, self.parent_key);
        put_break(&mut out, self.breaking);
        out.put_u64(self.changed_at);
        out
    }

    pub fn parse(bytes: &[u8]) -> Result<KeptLease, Malformed> {
        let r = &mut Reader::new(bytes);
        let version = r.u8()?;
        if !(1..=LEASE_VERSION).contains(&version) {
            return Err(Malformed("version of a kept lease"));
        }
        Ok(KeptLease {
            client: ClientId(r.u128()?),
            key: r.u128()?,
            state: r.u32()?,
            epoch: r.u16()?,
            version: r.u8()?,
            parent_key: option(r)?,
            breaking: kept_break(r)?,
            changed_at: if version < 2 { 0 } else { r.u64()? },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_and_short_ones_are_refused() {
        let open = KeptOpen {
            id: OpenId(1 << 40 | 7),
            file: 12,
            born: 13,
            path: vec!["a".into(), "\u{fc}b\u{1f600}".into()],
            stream: Some("s".into()),
            granted: 0x12_0116,
            share: 7,
            options: 0x40,
            client: ClientId(5),
            who: Token {
                user: Sid::new(5, &[21, 1, 2, 3, 1001]),
                user_name: "alice".into(),
                groups: vec![Sid::new(1, &[0]), Sid::new(5, &[32, 545])],
                privileges: 3,
            },
            parent_key: Some(9),
            delete_on_close: true,
            delete_pending: Some(false),
            cache: KeptCache::Oplock { state: 7, breaking: Some(KeptBreak { offered: 1, required: 0 }) },
        };
        let first = KeptOpen { born: 0, ..open.clone() };
        assert_eq!((first.encode()[0], KeptOpen::read(&mut Reader::new(&first.encode())).unwrap()), (1, first));
        let bytes = open.encode();
        assert_eq!(KeptOpen::read(&mut Reader::new(&bytes)).unwrap(), open);
        for n in 0..bytes.len() {
            assert!(KeptOpen::read(&mut Reader::new(&bytes[..n])).is_err());
        }
        let lease = KeptLease {
            client: ClientId(5),
            key: 1,
            state: 7,
            epoch: 3,
            version: 2,
            parent_key: None,
            breaking: Some(KeptBreak { offered: 3, required: 1 }),
            changed_at: 17,
        };
        assert_eq!(KeptLease::parse(&lease.encode()).unwrap(), lease);
        let mut first = lease.encode();
        first[0] = 1;
        first.truncate(first.len() - 8);
        assert_eq!(KeptLease::parse(&first).unwrap(), KeptLease { changed_at: 0, ..lease }, "version 1");
        assert!(KeptLease::parse(&lease.encode()[..20]).is_err());
    }
}

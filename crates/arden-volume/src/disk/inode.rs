//! What the values of inodes, names, streams and extents look like. docs/on-disk-volume.md has the byte diagrams.

use std::sync::Arc;

use arden_store::store::Integrity;
use arden_wire::{
    FileTime,
    access::{ATTR_DIRECTORY, ATTR_INTEGRITY_STREAM, ATTR_NORMAL, ATTR_REPARSE_POINT, ATTR_SETTABLE, ATTR_SPARSE},
    cursor::{Put, Reader},
};

use crate::disk::{
    device::{BLOCK, BlockCheck},
    error::{VolError, VolResult},
    run::Run,
};

pub const ROOT_INO: u64 = 1;
const SPARSE: u8 = 1;
const INTEGRITY: u8 = 2;
const UNENFORCED: u8 = 4;
const HAS_MARK: u8 = 8;
const HAS_SNAPSHOTS: u8 = 16;
const DIRECTORY: u8 = 1;
const HAS_OBJECT_ID: u8 = 2;

/// The snapshots of one stream. They stay with the stream's data wherever it is renamed to, also when the data is cut to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotSet {
    /// What they are found by; 0: there are none.
    pub id: u64,
    /// Blocks that all of them hold, counted in each.
    pub blocks: u64,
}

/// One stream of data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Data {
    /// What its blocks and extents are found by.
    pub sid: u64,
    pub eof: u64,
    /// Blocks that hold something.
    pub blocks: u64,
    /// Blocks that the user asked to be kept.
    pub reserved: u64,
    pub sparse: bool,
    /// Of a directory: what is made in it gets.
    pub integrity: Integrity,
    /// Which create made the file or stream, where it said so.
    pub mark: Option<u128>,
    pub snapshots: SnapshotSet,
}

impl Data {
    /// Blocks that are promised and have no place yet.
    pub fn promised(&self) -> i64 {
        let whole = if self.sparse { 0 } else { self.eof.div_ceil(BLOCK as u64) };
        self.reserved.max(whole).saturating_sub(self.blocks).min(1 << 52) as i64
    }

    pub fn allocation(&self) -> u64 {
        let whole = if self.sparse { 0 } else { self.eof.div_ceil(BLOCK as u64) };
        self.blocks.max(self.reserved).max(whole).saturating_mul(BLOCK as u64)
    }

    /// What it counts in quotas, in bytes: the allocation, and what its snapshots hold.
    pub fn charged(&self) -> u64 {
        self.allocation().saturating_add(self.snapshots.blocks.saturating_mul(BLOCK as u64))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.sid);
        out.put_u64(self.eof);
        out.put_u64(self.blocks);
        out.put_u64(self.reserved);
        let integrity = match self.integrity {
            Integrity::Unset => 0,
            Integrity::On => INTEGRITY,
            Integrity::Unenforced => INTEGRITY | UNENFORCED,
            Integrity::Off => UNENFORCED,
        };
        let mark = if self.mark.is_some() { HAS_MARK } else { 0 };
        let has_snapshots = self.snapshots != SnapshotSet::default();
        let snapshots = if has_snapshots { HAS_SNAPSHOTS } else { 0 };
        out.put_u8(if self.sparse { SPARSE } else { 0 } | integrity | mark | snapshots);
        if let Some(mark) = self.mark {
            out.put_u128(mark);
        }
        if has_snapshots {
            out.put_u64(self.snapshots.id);
            out.put_u64(self.snapshots.blocks);
        }
    }

    fn decode(r: &mut Reader<'_>) -> VolResult<Data> {
        let (sid, eof, blocks, reserved) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let flags = r.u8()?;
        let integrity = match (flags & INTEGRITY != 0, flags & UNENFORCED != 0) {
            (false, false) => Integrity::Unset,
            (true, false) => Integrity::On,
            (true, true) => Integrity::Unenforced,
            (false, true) => Integrity::Off,
        };
        let mark = if flags & HAS_MARK != 0 { Some(r.u128()?) } else { None };
        let snapshots = match flags & HAS_SNAPSHOTS != 0 {
            true => SnapshotSet { id: r.u64()?, blocks: r.u64()? },
            false => SnapshotSet::default(),
        };
        Ok(Data { sid, eof, blocks, reserved, sparse: flags & SPARSE != 0, integrity, mark, snapshots })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inode {
    pub directory: bool,
    /// ATTR_SETTABLE bits; the rest follows.
    pub attributes: u32,
    pub creation: FileTime,
    pub last_access: FileTime,
    pub last_write: FileTime,
    pub change: FileTime,
    /// 0: in use without a name, or to be taken away.
    pub links: u32,
    /// Its descriptor.
    pub sd: u64,
    pub ea_size: u32,
    pub reparse_tag: u32,
    pub object_id: Option<u128>,
    pub data: Data,
    /// Its first name. The root has none.
    pub parent: u64,
    pub name: String,
}

impl Inode {
    /// As seen through the stream with this data, or through a directory with its own.
    pub fn shown_attributes(&self, stream: &Data) -> u32 {
        let mut a = self.attributes & ATTR_SETTABLE;
        if stream.sparse {
            a |= ATTR_SPARSE;
        }
        if stream.integrity.is_set() {
            a |= ATTR_INTEGRITY_STREAM;
        }
        if self.reparse_tag != 0 {
            a |= ATTR_REPARSE_POINT;
        }
        if self.directory {
            a |= ATTR_DIRECTORY;
        }
        if a == 0 { ATTR_NORMAL } else { a }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(140 + self.name.len());
        out.put_u8(
            if self.directory { DIRECTORY } else { 0 } | if self.object_id.is_some() { HAS_OBJECT_ID } else { 0 },
        );
        out.put_u32(self.attributes);
        for t in [self.creation, self.last_access, self.last_write, self.change] {
            out.put_u64(t.0);
        }
        out.put_u32(self.links);
        out.put_u64(self.sd);
        out.put_u32(self.ea_size);
        out.put_u32(self.reparse_tag);
        self.data.encode(&mut out);
        out.put_u64(self.parent);
        if let Some(id) = self.object_id {
            out.put_u128(id);
        }
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    pub fn decode(value: &[u8]) -> VolResult<Inode> {
        let mut r = Reader::new(value);
        let flags = r.u8()?;
        let attributes = r.u32()?;
        let mut times = [FileTime(0); 4];
        for t in &mut times {
            *t = FileTime(r.u64()?);
        }
        let (links, sd, ea_size, reparse_tag) = (r.u32()?, r.u64()?, r.u32()?, r.u32()?);
        let data = Data::decode(&mut r)?;
        let parent = r.u64()?;
        let object_id = if flags & HAS_OBJECT_ID != 0 { Some(r.u128()?) } else { None };
        Ok(Inode {
            directory: flags & DIRECTORY != 0,
            attributes,
            creation: times[0],
            last_access: times[1],
            last_write: times[2],
            change: times[3],
            links,
            sd,
            ea_size,
            reparse_tag,
            object_id,
            data,
            parent,
            name: text(r.rest())?,
        })
    }
}

fn text(bytes: &[u8]) -> VolResult<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| VolError::Corrupt("name"))
}

/// What a name in a directory leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameEntry {
    pub ino: u64,
    pub name: String,
}

impl NameEntry {
    pub fn encode(ino: u64, name: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + name.len());
        out.put_u64(ino);
        out.extend_from_slice(name.as_bytes());
        out
    }
    pub fn decode(value: &[u8]) -> VolResult<NameEntry> {
        let mut r = Reader::new(value);
        Ok(NameEntry { ino: r.u64()?, name: text(r.rest())? })
    }
}

/// A named stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    pub data: Data,
    pub name: String,
}

impl Stream {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40 + self.name.len());
        self.data.encode(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out
    }
    pub fn decode(value: &[u8]) -> VolResult<Stream> {
        let mut r = Reader::new(value);
        Ok(Stream { data: Data::decode(&mut r)?, name: text(r.rest())? })
    }
}

/// A snapshot of a stream. Its data is sparse, so that it promises nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSnapshot {
    /// Later than that of every older one of the set.
    pub created: FileTime,
    pub data: Data,
    pub name: String,
}

impl StreamSnapshot {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48 + self.name.len());
        out.put_u64(self.created.0);
        self.data.encode(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out
    }
    pub fn decode(value: &[u8]) -> VolResult<StreamSnapshot> {
        let mut r = Reader::new(value);
        let created = FileTime(r.u64()?);
        Ok(StreamSnapshot { created, data: Data::decode(&mut r)?, name: text(r.rest())? })
    }
}

/// Blocks of a stream that lie together on the device, each with its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The first block of the file; it is in the key.
    pub file_block: u64,
    pub dev_block: u64,
    /// The epoch of snapshots that it was written in.
    pub birth: u32,
    pub sums: Vec<u64>,
}

/// Blocks of one extent.
pub const EXTENT_BLOCKS_MAX: u64 = 256;

impl Extent {
    pub fn len(&self) -> u64 {
        self.sums.len() as u64
    }
    pub fn end(&self) -> u64 {
        self.file_block + self.len()
    }
    /// Where it is on the device.
    pub fn run(&self) -> Run {
        Run { start: self.dev_block, len: self.len() }
    }
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12 + self.sums.len() * 8);
        out.put_u64(self.dev_block);
        out.put_u32(self.birth);
        for s in &self.sums {
            out.put_u64(*s);
        }
        out
    }
    /// Its first block of the file and the one behind it.
    pub fn blocks_of(file_block: u64, value: &[u8]) -> VolResult<(u64, u64)> {
        let sums = value.len().saturating_sub(12);
        let n = sums as u64 / 8;
        if sums % 8 != 0 || n == 0 || n > EXTENT_BLOCKS_MAX {
            return Err(VolError::Corrupt("extent"));
        }
        if file_block > u64::MAX / BLOCK as u64 - EXTENT_BLOCKS_MAX {
            return Err(VolError::Corrupt("extent"));
        }
        Ok((file_block, file_block + n))
    }
    pub fn decode(file_block: u64, value: &[u8]) -> VolResult<Extent> {
        Extent::blocks_of(file_block, value)?;
        let mut r = Reader::new(value);
        let (dev_block, birth) = (r.u64()?, r.u32()?);
        if dev_block > u64::MAX / BLOCK as u64 {
            return Err(VolError::Corrupt("extent"));
        }
        let (sums, _) = r.rest().as_chunks();
        Ok(Extent { file_block, dev_block, birth, sums: sums.iter().map(|s| u64::from_le_bytes(*s)).collect() })
    }
    pub fn check(&self) -> BlockCheck {
        BlockCheck::Sums(Arc::from(self.sums.as_slice()))
    }
    /// The blocks from `from` to `to` of the file, which are in it.
    pub fn part(&self, from: u64, to: u64) -> Extent {
        let (a, b) = ((from - self.file_block) as usize, (to - self.file_block) as usize);
        Extent {
            file_block: from,
            dev_block: self.dev_block + a as u64,
            birth: self.birth,
            sums: self.sums[a..b].to_vec(),
        }
    }
}

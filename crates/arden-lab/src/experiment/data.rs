//! Files of information workers, made from a seed with given counts, and written as copying programs write them.

use std::sync::atomic::Ordering::Relaxed;

use arden_block::rng::Rng;
use arden_measure::{
    Result,
    client::{Call, Client, requests as r},
    fail,
    load::{
        Live,
        smb::{How, open_file},
    },
};
use smb2::{
    msg::set_info::SetInfoRequest,
    types::{Command, FileId},
};

const CHUNK_BYTES: usize = 1 << 20;
/// Writes in flight of one copy.
const IN_FLIGHT: usize = 8;
const WRITEFLAG_WRITE_THROUGH: u32 = 1;

/// A tree: directories, and files with their sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    pub folders: Vec<String>,
    pub files: Vec<(String, u64)>,
}

impl Tree {
    /// A tree of `files` files in `folders` folders with `bytes` bytes in all. Sizes are log-normal: most files are
    /// small, a few hold most bytes.
    pub fn new(seed: u64, files: usize, folders: usize, bytes: u64) -> Tree {
        let mut rng = Rng::new(seed);
        let mut names: Vec<String> = Vec::with_capacity(folders);
        for i in 0..folders {
            // Half of the folders are inside another one.
            let parent = if i > 3 && rng.one_in(2) { Some(rng.below(i as u64) as usize) } else { None };
            let deep = parent.filter(|p| names[*p].matches('\\').count() < 5);
            names.push(deep.map_or(format!("Folder {i:03}"), |p| format!("{}\\Folder {i:03}", names[p])));
        }
        let mut normal = || (0..12).map(|_| rng.below(1 << 30) as f64 / f64::from(1 << 30)).sum::<f64>() - 6.0;
        let weights: Vec<f64> = (0..files).map(|_| (1.9 * normal()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let kinds = ["docx", "xlsx", "pdf", "jpg", "txt", "pptx", "msg"];
        let mut sizes: Vec<u64> = weights.iter().map(|w| ((w / sum * bytes as f64) as u64).max(1)).collect();
        // The largest file takes the rest that rounding left.
        let rest = bytes.saturating_sub(sizes.iter().sum());
        if let Some(largest) = sizes.iter_mut().max() {
            *largest += rest;
        }
        let files = sizes
            .into_iter()
            .enumerate()
            .map(|(i, size)| {
                let name = format!("Document {i:05}.{}", kinds[rng.below(kinds.len() as u64) as usize]);
                (format!("{}\\{name}", names[rng.below(folders as u64) as usize]), size)
            })
            .collect();
        Tree { folders: names, files }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.1).sum()
    }
}

/// Writes files over one connection.
pub struct Writer<'a> {
    pub client: Client,
    /// Marks every write as write-through.
    pub mark: bool,
    pool: Vec<u8>,
    turn: usize,
    live: &'a Live,
}

impl<'a> Writer<'a> {
    /// A writer over `client`; written bytes are counted in `live`.
    pub fn new(client: Client, mark: bool, live: &'a Live) -> Writer<'a> {
        let mut rng = Rng::new(11);
        let mut pool = vec![0; 4 * CHUNK_BYTES];
        for word in pool.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        Writer { client, mark, pool, turn: 0, live }
    }

    fn flags(&self) -> u32 {
        if self.mark { WRITEFLAG_WRITE_THROUGH } else { 0 }
    }

    /// Makes a file, or empties an existing one.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn create(&mut self, path: &str) -> Result<FileId> {
        match open_file(&mut self.client, path, How::Overwrite, self.mark)? {
            Ok(open) => Ok(open.id),
            Err(status) => fail!("{path}: {}", r::status_name(status)),
        }
    }

    fn set(&mut self, id: FileId, class: u8, buffer: Vec<u8>) -> Result<()> {
        let info_type = smb2::msg::query_info::InfoType::File;
        let body = SetInfoRequest { info_type, file_info_class: class, additional_information: 0, file_id: id, buffer };
        self.client.call(&[Call { command: Command::SetInfo, body: &body, charge: 1 }])
    }

    /// Sets FileEndOfFileInformation, [MS-FSCC] 2.4.14.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn set_end(&mut self, id: FileId, bytes: u64) -> Result<()> {
        self.set(id, 20, bytes.to_le_bytes().to_vec())
    }

    /// Sets FileBasicInformation, [MS-FSCC] 2.4.7: the times that a copy takes over.
    fn set_times(&mut self, id: FileId) -> Result<()> {
        let mut buffer = Vec::with_capacity(40);
        for _ in 0..4 {
            buffer.extend_from_slice(&133_000_000_000_000_000u64.to_le_bytes());
        }
        buffer.extend_from_slice(&[0; 8]);
        self.set(id, 4, buffer)
    }

    /// Writes `bytes` bytes and waits for the answer.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn write_at(&mut self, id: FileId, offset: u64, bytes: usize) -> Result<()> {
        let mut template = self.client.write_template(id, self.flags());
        self.client.queue_write_at(&mut template, offset, &self.pool[..bytes]);
        self.client.flush()?;
        self.written(bytes)
    }

    /// Takes the answer to a write of this many bytes.
    fn written(&mut self, bytes: usize) -> Result<()> {
        let mut status = 0;
        self.client.receive(|reply| status = reply.status)?;
        if status != 0 {
            fail!("write: {}", r::status_name(status));
        }
        self.live.bytes.fetch_add(bytes as u64, Relaxed);
        self.live.answers.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Writes a file from the first byte to the last, with several writes in flight.
    ///
    /// # Errors
    /// A lost connection, the server's refusal, or a stopped load.
    pub fn push(&mut self, id: FileId, bytes: u64, chunk_bytes: usize) -> Result<()> {
        let chunk = chunk_bytes as u64;
        let whole = bytes / chunk;
        let charge = u32::from(r::charge(chunk_bytes));
        let mut template = self.client.write_template(id, self.flags());
        let (mut sent, mut done) = (0, 0);
        while done < whole {
            while sent < whole && sent - done < IN_FLIGHT as u64 {
                if self.client.credits() < charge && sent > done {
                    break;
                }
                self.turn = (self.turn + 4096 + 512) % (self.pool.len() - chunk_bytes);
                let data = &self.pool[self.turn..self.turn + chunk_bytes];
                self.client.queue_write_at(&mut template, sent * chunk, data);
                self.client.flush()?;
                sent += 1;
            }
            self.written(chunk_bytes)?;
            done += 1;
            self.live.go_on()?;
        }
        let rest = (bytes - whole * chunk) as usize;
        if rest > 0 {
            self.write_at(id, whole * chunk, rest)?;
        }
        Ok(())
    }

    /// Copies a file as copying programs do: sets the size, writes the bytes, sets the times.
    ///
    /// # Errors
    /// As [`Writer::push`].
    pub fn copy(&mut self, path: &str, bytes: u64) -> Result<()> {
        let id = self.create(path)?;
        if bytes > 0 {
            self.set_end(id, bytes)?;
            self.push(id, bytes, CHUNK_BYTES)?;
        }
        self.set_times(id)?;
        self.client.close(id)
    }

    /// Writes a file as offline files synchronise it: under another name, which is then renamed.
    ///
    /// # Errors
    /// As [`Writer::push`].
    pub fn synchronise(&mut self, path: &str, bytes: u64) -> Result<()> {
        let partial = format!("{path}.tmp");
        let id = self.create(&partial)?;
        self.push(id, bytes, CHUNK_BYTES)?;
        self.set_times(id)?;
        let mut rename = r::rename(path);
        // ReplaceIfExists: an old file with the name is removed.
        rename.buffer[0] = 1;
        self.set(id, 10, rename.buffer)?;
        self.client.close(id)
    }

    /// Makes a directory, which may exist.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn folder(&mut self, path: &str) -> Result<()> {
        self.client.make_directory(path)
    }

    /// Removes as much of the tree as exists, after a failure.
    pub fn remove_what_is_there(&mut self, root: &str, tree: &Tree) {
        let files = tree.files.iter().flat_map(|(name, _)| [name.clone(), format!("{name}.tmp")]);
        for name in files.chain(tree.folders.iter().rev().cloned()) {
            let _ = self.client.delete(&format!("{root}\\{name}"));
        }
        let _ = self.client.delete(root);
    }

    /// Removes a tree: files, then folders from the deepest.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn remove(&mut self, root: &str, tree: &Tree) -> Result<()> {
        for (name, _) in &tree.files {
            self.client.delete(&format!("{root}\\{name}"))?;
        }
        for folder in tree.folders.iter().rev() {
            self.client.delete(&format!("{root}\\{folder}"))?;
        }
        self.client.delete(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_as_stated() {
        let tree = Tree::new(1, 1238, 96, 2_000_000_000);
        assert_eq!((tree.files.len(), tree.folders.len(), tree.bytes()), (1238, 96, 2_000_000_000));
        assert_eq!(tree, Tree::new(1, 1238, 96, 2_000_000_000));
        assert_ne!(tree, Tree::new(2, 1238, 96, 2_000_000_000));
        let mut sizes: Vec<u64> = tree.files.iter().map(|f| f.1).collect();
        sizes.sort_unstable();
        // The median is far below the mean, and a tenth of the files holds more than half of the bytes.
        assert!(sizes[619] * 4 < tree.bytes() / 1238);
        assert!(sizes[1238 - 124..].iter().sum::<u64>() > tree.bytes() / 2);
        for (i, folder) in tree.folders.iter().enumerate() {
            let parent = folder.rsplit_once('\\').map(|p| p.0);
            assert!(parent.is_none_or(|p| tree.folders[..i].iter().any(|f| f == p)), "parents come first");
        }
    }
}

//! Work on a part of many files that stay on a share from round to round: each round takes files at random, and leaves as many as
//! it found.

use arden_measure::{
    Result,
    client::{Call, Client, requests as r},
    fail,
    load::{Latencies, smb::persistent_where_it_can_be},
};
use smb2::{
    msg::create::CreateDisposition::{FileCreate, FileOpen},
    types::{Command, FileId},
};

use super::{
    Bench, Sample,
    job::{Job, compounds, end, record},
    listing::list,
};

/// Size in bytes of each file.
const FILE_BYTES: usize = 4096;
/// FILE_READ_DATA and FILE_READ_ATTRIBUTES.
const READ_DATA: u32 = 0x81;
/// STATUS_FILE_NOT_AVAILABLE, [MS-SMB2] 3.3.5.9: of a file whose persistent open waits for its owner.
const FILE_NOT_AVAILABLE: u32 = 0xC000_0467;

/// Files in folders of one directory.
#[derive(Debug, Clone)]
pub struct Population {
    /// Directory of the folders, relative to the share. It has to exist.
    pub root: String,
    pub folders: usize,
    pub files_in_each: usize,
}

/// The kinds of work, in the order in which each finds what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Stat,
    /// Lists folders as a whole; counted in entries.
    List,
    Rename,
    /// Deletes renamed files.
    Delete,
    /// Makes them again, under their first names.
    Create,
}

impl Act {
    /// All kinds.
    pub const ALL: [Act; 5] = [Act::Stat, Act::List, Act::Rename, Act::Delete, Act::Create];

    /// The description in tables.
    pub fn title(self) -> &'static str {
        match self {
            Act::Stat => "stat",
            Act::List => "list folders, by entries",
            Act::Rename => "rename",
            Act::Delete => "delete",
            Act::Create => "create + write 4 KiB + close",
        }
    }
}

impl Population {
    /// The number of files.
    pub fn files(&self) -> usize {
        self.folders * self.files_in_each
    }

    fn folder(&self, folder: usize) -> String {
        format!("{}\\folder-{folder:04}", self.root)
    }

    fn name(&self, file: u32) -> String {
        let (folder, n) = (file as usize / self.files_in_each, file as usize % self.files_in_each);
        format!("{}\\file of some length {n:06}.dat", self.folder(folder))
    }

    fn renamed(&self, file: u32) -> String {
        let (folder, n) = (file as usize / self.files_in_each, file as usize % self.files_in_each);
        format!("{}\\renamed of some length {n:06}.dat", self.folder(folder))
    }

    /// Whether a file can be opened under its first name.
    pub fn is_there(&self, client: &mut Client, file: u32) -> bool {
        client.open(&self.name(file), 0x0010_0080, FileOpen, 0).is_ok_and(|id| client.close(id).is_ok())
    }

    /// Opens the first `n` files with persistent handles, under their first names.
    ///
    /// # Errors
    /// A lost connection, or a refusal.
    pub fn hold(&self, client: &mut Client, n: u32) -> Result<()> {
        for file in 0..n {
            let mut body = r::create(&self.name(file), READ_DATA, FileOpen, 0);
            body.create_contexts = r::persistent(u128::from(file) + 1);
            if let Err(status) = client.try_open(&body)? {
                fail!("persistent open of {}: {}", self.name(file), r::status_name(status));
            }
        }
        Ok(())
    }

    /// Whether these files are kept for who has them open, and is not connected.
    pub fn are_kept(&self, client: &mut Client, mut files: std::ops::Range<u32>) -> bool {
        files.all(|file| {
            let body = r::create(&self.name(file), READ_DATA, FileOpen, 0);
            client.try_open(&body).is_ok_and(|open| open.is_err_and(|status| status == FILE_NOT_AVAILABLE))
        })
    }

    /// `n` different files at random, or all where there are no more; for a list, folders.
    pub fn sample(&self, n: usize, round: usize, act: Act) -> Vec<u32> {
        let all = if act == Act::List { self.folders } else { self.files() };
        // The files of a round are the same for each kind of work.
        pick(all, n, round as u64 + 1)
    }
}

/// `n` different numbers below `all`, in random order.
fn pick(all: usize, n: usize, seed: u64) -> Vec<u32> {
    let mut rng = arden_block::rng::Rng::new(seed);
    let mut numbers: Vec<u32> = (0..all as u32).collect();
    let n = n.min(all);
    for i in 0..n {
        numbers.swap(i, i + rng.below((all - i) as u64) as usize);
    }
    numbers.truncate(n);
    numbers
}

impl Bench<'_> {
    /// Makes the folders and all files of a population.
    ///
    /// # Errors
    /// A lost connection, or the first response that is not a success.
    pub fn populate(&self, population: &Population) -> Result<Sample> {
        let mut client = self.connect()?;
        for folder in 0..population.folders {
            client.make_directory(&population.folder(folder))?;
        }
        let all: Vec<u32> = (0..population.files() as u32).collect();
        self.act(population, Act::Create, &all)
    }

    /// Works on these files, or lists these folders, over all connections.
    ///
    /// # Errors
    /// As in [`Bench::populate`].
    pub fn act(&self, population: &Population, act: Act, which: &[u32]) -> Result<Sample> {
        // One folder may be all that there is to list.
        let connections = if act == Act::List { 1 } else { self.amount.connections };
        let depth = self.amount.depth.max(1);
        self.measure(connections, |i| {
            let mine = which.iter().skip(i).step_by(connections).copied().collect();
            Ok(Acts { client: self.connect()?, population, act, mine, depth })
        })
    }
}

/// The work of one connection.
struct Acts<'a> {
    client: Client,
    population: &'a Population,
    act: Act,
    mine: Vec<u32>,
    depth: usize,
}

impl Job for Acts<'_> {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        if self.act == Act::List {
            return self.list(seen);
        }
        let Acts { client, population, act, mine, depth } = self;
        let answers = if *act == Act::Delete { 2 } else { 3 };
        compounds(client, mine.len(), *depth, answers, |client, i| queue(client, population, *act, mine[i]), seen)
    }
}

impl Acts<'_> {
    fn list(&mut self, seen: &mut Latencies) -> Result<u64> {
        let mut entries = 0;
        for folder in &self.mine {
            let started = std::time::Instant::now();
            let found = list(&mut self.client, &self.population.folder(*folder as usize))?;
            let there = self.population.files_in_each;
            // With or without `.` and `..`.
            if !(there..=there + 2).contains(&found) {
                fail!("a listing has {found} entries instead of {there}");
            }
            record(seen, started);
            entries += found as u64;
        }
        Ok(entries)
    }
}

fn queue(client: &mut Client, population: &Population, act: Act, file: u32) {
    let name = population.name(file);
    let close = r::close();
    match act {
        Act::Create => {
            let mut open = r::create(&name, 0x0012_0116, FileCreate, r::NON_DIRECTORY_FILE);
            persistent_where_it_can_be(client, &mut open);
            let body = r::write(FileId::SENTINEL, vec![file as u8; FILE_BYTES]);
            let write = Call { command: Command::Write, body: &body, charge: 1 };
            client.queue(&[Call { command: Command::Create, body: &open, charge: 1 }, write, end(&close)]);
        }
        Act::Stat | Act::List => {
            let open = r::create(&name, 0x0010_0080, FileOpen, 0);
            let body = r::stat();
            let stat = Call { command: Command::QueryInfo, body: &body, charge: 1 };
            client.queue(&[Call { command: Command::Create, body: &open, charge: 1 }, stat, end(&close)]);
        }
        Act::Rename => {
            let open = r::create(&name, 0x0011_0080, FileOpen, 0);
            let body = r::rename(&population.renamed(file));
            let rename = Call { command: Command::SetInfo, body: &body, charge: 1 };
            client.queue(&[Call { command: Command::Create, body: &open, charge: 1 }, rename, end(&close)]);
        }
        Act::Delete => {
            let open = r::create(&population.renamed(file), 0x0001_0000, FileOpen, r::DELETE_ON_CLOSE);
            client.queue(&[Call { command: Command::Create, body: &open, charge: 1 }, end(&close)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_different_files_of_all_folders_and_the_same_for_each_kind_of_work() {
        let many = Population { root: "many".into(), folders: 10, files_in_each: 100 };
        let files = many.sample(500, 0, Act::Stat);
        assert_eq!((files.len(), many.files()), (500, 1000));
        let different: std::collections::BTreeSet<u32> = files.iter().copied().collect();
        assert_eq!(different.len(), 500);
        let folders: std::collections::BTreeSet<u32> = files.iter().map(|f| f / 100).collect();
        assert_eq!(folders.len(), 10);
        assert_eq!(many.sample(500, 0, Act::Delete), files);
        assert_ne!(many.sample(500, 1, Act::Stat), files);
        assert_eq!(many.sample(500, 0, Act::List).len(), 10, "folders");
        assert_eq!(many.name(999), "many\\folder-0009\\file of some length 000099.dat");
    }
}

//! Whole listings of one directory.

use std::time::Instant;

use arden_measure::{
    Result,
    client::{Call, Client, requests as r},
    fail,
    load::Latencies,
};
use smb2::{msg::create::CreateDisposition, types::Command};

use super::{
    Bench,
    job::{Job, record},
};

const LIST_FILES: usize = 2000;
const LIST_DIRECTORY: &str = "list";

/// Whole listings of one directory.
pub(super) struct Listing {
    client: Client,
    lists: usize,
}

impl Listing {
    pub(super) fn new(bench: &Bench<'_>) -> Result<Listing> {
        let mut client = bench.connect()?;
        client.make_directory(LIST_DIRECTORY)?;
        for i in 0..LIST_FILES {
            let name = format!("{LIST_DIRECTORY}\\entry with a name of some length {i:05}.txt");
            let open = r::create(&name, 0x0012_0116, CreateDisposition::FileOpenIf, r::NON_DIRECTORY_FILE);
            client.call(&[
                Call { command: Command::Create, body: &open, charge: 1 },
                Call { command: Command::Close, body: &r::close(), charge: 1 },
            ])?;
        }
        Ok(Listing { client, lists: (bench.amount.lists / bench.large_connections()).max(1) })
    }
}

/// The number of entries of a directory, which is listed as a whole.
pub(super) fn list(client: &mut Client, directory: &str) -> Result<usize> {
    let id = client.open(directory, 0x0010_0081, CreateDisposition::FileOpen, r::DIRECTORY_FILE)?;
    let mut entries = 0;
    loop {
        let body = r::list(id, entries == 0);
        client.queue(&[Call { command: Command::QueryDirectory, body: &body, charge: 1 }]);
        client.flush()?;
        let mut status = 0;
        client.receive(|reply| {
            status = reply.status;
            if status == 0 {
                entries += count_entries(reply.body);
            }
        })?;
        match status {
            0 => {}
            r::NO_MORE_FILES => break,
            _ => fail!("query directory: status 0x{status:08X}"),
        }
    }
    client.close(id)?;
    Ok(entries)
}

/// Entries of a QUERY_DIRECTORY response: they are linked by NextEntryOffset.
fn count_entries(body: &[u8]) -> usize {
    let mut at = 8;
    let mut n = 0;
    while let Some(next) = body.get(at..at + 4) {
        n += 1;
        let next = u32::from_le_bytes(next.try_into().expect("four bytes")) as usize;
        if next == 0 {
            break;
        }
        at += next;
    }
    n
}

impl Job for Listing {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        for _ in 0..self.lists {
            let started = Instant::now();
            let entries = list(&mut self.client, LIST_DIRECTORY)?;
            // With or without `.` and `..`.
            if !(LIST_FILES..=LIST_FILES + 2).contains(&entries) {
                fail!("a listing has {entries} entries");
            }
            record(seen, started);
        }
        Ok(self.lists as u64)
    }
}

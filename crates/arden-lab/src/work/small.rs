//! Compounds on many small files: create, read, stat, rename, delete.

use arden_measure::{
    Result,
    client::{Call, Client, requests as r},
    load::{Latencies, smb::persistent_where_it_can_be},
};
use smb2::{
    msg::create::{CreateDisposition, CreateRequest},
    types::{Command, FileId},
};

use super::{
    Bench, SMALL_BYTES, Work,
    job::{Job, compounds, end},
};

/// The bytes of the files of a connection.
pub(super) fn data(connection: usize) -> Vec<u8> {
    (0..SMALL_BYTES).map(|i| (i * 7 + connection) as u8).collect()
}

/// Compounds on many small files, `depth` in flight.
pub(super) struct Small {
    client: Client,
    files: Files,
    count: usize,
    depth: usize,
}

/// The files of one connection, and what is done with them.
struct Files {
    work: Work,
    connection: usize,
    data: Vec<u8>,
}

impl Small {
    pub(super) fn new(bench: &Bench<'_>, work: Work, connection: usize) -> Result<Small> {
        let mut client = bench.connect()?;
        client.make_directory(&format!("c{connection}"))?;
        let files = Files { work, connection, data: data(connection) };
        Ok(Small { client, files, count: bench.amount.files, depth: bench.amount.depth.max(1) })
    }
}

impl Files {
    fn queue(&self, client: &mut Client, i: usize) {
        const SENTINEL: FileId = FileId::SENTINEL;
        let name = format!("c{}\\file-{i:06}.dat", self.connection);
        let renamed = format!("c{}\\renamed-{i:06}.dat", self.connection);
        use CreateDisposition::{FileCreate, FileOpen};
        let close = r::close();
        let end = end(&close);
        match self.work {
            Work::Create => {
                let mut open = r::create(&name, 0x0012_0116, FileCreate, r::NON_DIRECTORY_FILE);
                persistent_where_it_can_be(client, &mut open);
                let body = r::write(SENTINEL, self.data.clone());
                three(client, &open, Call { command: Command::Write, body: &body, charge: 1 }, end);
            }
            Work::Read => {
                let mut open = r::create(&name, 0x0012_0089, FileOpen, r::NON_DIRECTORY_FILE);
                persistent_where_it_can_be(client, &mut open);
                let body = r::read(SENTINEL, SMALL_BYTES as u32);
                three(client, &open, Call { command: Command::Read, body: &body, charge: 1 }, end);
            }
            Work::Stat => {
                let open = r::create(&name, 0x0010_0080, FileOpen, 0);
                three(client, &open, Call { command: Command::QueryInfo, body: &r::stat(), charge: 1 }, end);
            }
            Work::Rename => {
                let open = r::create(&name, 0x0011_0080, FileOpen, 0);
                let body = r::rename(&renamed);
                three(client, &open, Call { command: Command::SetInfo, body: &body, charge: 1 }, end);
            }
            _ => {
                let open = r::create(&renamed, 0x0001_0000, FileOpen, r::DELETE_ON_CLOSE);
                client.queue(&[Call { command: Command::Create, body: &open, charge: 1 }, end]);
            }
        }
    }
}

fn three(client: &mut Client, open: &CreateRequest, middle: Call<'_>, end: Call<'_>) {
    client.queue(&[Call { command: Command::Create, body: open, charge: 1 }, middle, end]);
}

impl Job for Small {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        let answers = if self.files.work == Work::Delete { 2 } else { 3 };
        let Small { client, files, count, depth } = self;
        compounds(client, *count, *depth, answers, |client, i| files.queue(client, i), seen)
    }
}

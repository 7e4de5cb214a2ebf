//! Compounds on many small files: create, read, stat, rename, delete.

use std::{collections::VecDeque, time::Instant};

use arden_measure::{
    Result,
    client::{Call, Client, requests as r},
    fail,
    load::{Latencies, smb::persistent_where_it_can_be},
};
use smb2::{
    msg::create::{CreateDisposition, CreateRequest},
    types::{Command, FileId},
};

use super::{
    Bench, SMALL_BYTES, Work,
    job::{Job, record},
};

/// The bytes of the files of a connection.
pub(super) fn data(connection: usize) -> Vec<u8> {
    (0..SMALL_BYTES).map(|i| (i * 7 + connection) as u8).collect()
}

/// Compounds on many small files, `depth` in flight.
pub(super) struct Small {
    client: Client,
    work: Work,
    connection: usize,
    files: usize,
    depth: usize,
    data: Vec<u8>,
}

impl Small {
    pub(super) fn new(bench: &Bench<'_>, work: Work, connection: usize) -> Result<Small> {
        let mut client = bench.connect()?;
        client.make_directory(&format!("c{connection}"))?;
        Ok(Small {
            client,
            work,
            connection,
            files: bench.amount.files,
            depth: bench.amount.depth.max(1),
            data: data(connection),
        })
    }

    fn queue(&mut self, i: usize) {
        const SENTINEL: FileId = FileId::SENTINEL;
        let name = format!("c{}\\file-{i:06}.dat", self.connection);
        let renamed = format!("c{}\\renamed-{i:06}.dat", self.connection);
        use CreateDisposition::{FileCreate, FileOpen};
        let close = r::close();
        let end = Call { command: Command::Close, body: &close, charge: 1 };
        match self.work {
            Work::Create => {
                let mut open = r::create(&name, 0x0012_0116, FileCreate, r::NON_DIRECTORY_FILE);
                persistent_where_it_can_be(&self.client, &mut open);
                let body = r::write(SENTINEL, self.data.clone());
                self.three(&open, Call { command: Command::Write, body: &body, charge: 1 }, end);
            }
            Work::Read => {
                let mut open = r::create(&name, 0x0012_0089, FileOpen, r::NON_DIRECTORY_FILE);
                persistent_where_it_can_be(&self.client, &mut open);
                let body = r::read(SENTINEL, SMALL_BYTES as u32);
                self.three(&open, Call { command: Command::Read, body: &body, charge: 1 }, end);
            }
            Work::Stat => {
                let open = r::create(&name, 0x0010_0080, FileOpen, 0);
                self.three(&open, Call { command: Command::QueryInfo, body: &r::stat(), charge: 1 }, end);
            }
            Work::Rename => {
                let open = r::create(&name, 0x0011_0080, FileOpen, 0);
                let body = r::rename(&renamed);
                self.three(&open, Call { command: Command::SetInfo, body: &body, charge: 1 }, end);
            }
            _ => {
                let open = r::create(&renamed, 0x0001_0000, FileOpen, r::DELETE_ON_CLOSE);
                self.client.queue(&[Call { command: Command::Create, body: &open, charge: 1 }, end]);
            }
        }
    }

    fn three(&mut self, open: &CreateRequest, middle: Call<'_>, end: Call<'_>) {
        self.client.queue(&[Call { command: Command::Create, body: open, charge: 1 }, middle, end]);
    }
}

impl Job for Small {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        let answers = if self.work == Work::Delete { 2 } else { 3 };
        let mut started = VecDeque::new();
        let mut sent = 0;
        let mut got = 0;
        let mut bad = None;
        for done in 0..self.files {
            while sent < self.files && sent - done < self.depth {
                self.queue(sent);
                started.push_back(Instant::now());
                sent += 1;
            }
            self.client.flush()?;
            while got < answers {
                self.client.receive(|reply| {
                    got += 1;
                    if reply.status != 0 {
                        bad.get_or_insert((got, reply.status));
                    }
                })?;
            }
            got -= answers;
            if let Some((n, status)) = bad {
                fail!("{:?}, file {done}, request {n}: status 0x{status:08X}", self.work);
            }
            record(seen, started.pop_front().expect("one for each"));
        }
        Ok(self.files as u64)
    }
}

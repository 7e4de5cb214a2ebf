//! Operations on small files by clients that send an operation's requests in several messages, each when the one before
//! was answered.

use std::time::Instant;

use arden_measure::{
    Result,
    client::{Call, Client, requests as r},
    fail,
    load::Latencies,
};
use smb2::{
    msg::{
        close::CloseRequest,
        create::{CreateDisposition, CreateRequest},
        flush::FlushRequest,
        query_info::QueryInfoRequest,
        set_info::SetInfoRequest,
    },
    pack::Pack,
    types::{Command, FileId},
};

use super::{
    Bench, Calls, LARGEST_READ_BYTES, SMALL_BYTES, Work,
    job::{Job, record},
    small::data,
};

/// One request of an operation. All but the first are for the file that the first opened.
enum Step {
    Open(Box<CreateRequest>),
    Write,
    Flush,
    Read,
    Stat,
    Rename(String),
    Close,
}

/// The requests of an operation, by message.
type Messages = Vec<Vec<Step>>;

/// Operations on many small files, one message in flight.
pub(super) struct Steps {
    client: Client,
    work: Work,
    calls: Calls,
    /// Directory of the files.
    directory: String,
    files: usize,
    data: Vec<u8>,
    read_bytes: u32,
}

impl Steps {
    pub(super) fn new(bench: &Bench<'_>, work: Work, connection: usize) -> Result<Steps> {
        let mut client = bench.connect()?;
        let directory = format!("{}{connection}", if bench.calls == Calls::Smb2 { "smb2-" } else { "single-" });
        let read_bytes = client.terms().read_bytes_max.min(LARGEST_READ_BYTES);
        // Every answer grants credits: as many are needed as the largest read costs.
        for _ in 0..64 {
            client.make_directory(&directory)?;
            if client.credits() >= 2 * u32::from(r::charge(read_bytes as usize)) {
                break;
            }
        }
        let files = bench.amount.files;
        Ok(Steps { client, work, calls: bench.calls, directory, files, data: data(connection), read_bytes })
    }

    /// The requests of the operation on file `i`, each in a message of its own.
    fn steps(&self, i: usize) -> Vec<Step> {
        use CreateDisposition::{FileCreate, FileOpen};
        let name = format!("{}\\file-{i:06}.dat", self.directory);
        let renamed = format!("{}\\renamed-{i:06}.dat", self.directory);
        let open = |name: &str, access, disposition, options| {
            Step::Open(Box::new(r::create(name, access, disposition, options)))
        };
        match self.work {
            Work::Create => {
                vec![open(&name, 0x0012_0116, FileCreate, r::NON_DIRECTORY_FILE), Step::Write, Step::Flush, Step::Close]
            }
            Work::Read => {
                vec![open(&name, 0x0012_0089, FileOpen, r::NON_DIRECTORY_FILE), Step::Read, Step::Close]
            }
            Work::Stat => vec![open(&name, 0x0010_0080, FileOpen, 0), Step::Stat, Step::Close],
            Work::Rename => vec![open(&name, 0x0011_0080, FileOpen, 0), Step::Rename(renamed), Step::Close],
            _ => {
                // Without a row of renaming before it, the names are those of creation.
                let name = if self.calls == Calls::Smb2 { &name } else { &renamed };
                vec![open(name, 0x0001_0000, FileOpen, r::DELETE_ON_CLOSE), Step::Close]
            }
        }
    }

    fn messages(&self, i: usize) -> Messages {
        let mut steps = self.steps(i);
        match (self.calls, self.work) {
            (Calls::Smb2, Work::Create) => {
                let close = steps.split_off(3);
                vec![steps, close]
            }
            (Calls::Smb2, _) => vec![steps],
            _ => steps.into_iter().map(|step| vec![step]).collect(),
        }
    }

    fn body(&self, step: Step, file_id: FileId) -> (Command, Box<dyn Pack>, u16) {
        match step {
            Step::Open(create) => (Command::Create, create, 1),
            Step::Write => (Command::Write, Box::new(r::write(file_id, self.data.clone())), 1),
            Step::Flush => (Command::Flush, Box::new(FlushRequest { file_id }), 1),
            Step::Read => {
                let charge = r::charge(self.read_bytes as usize);
                (Command::Read, Box::new(r::read(file_id, self.read_bytes)), charge)
            }
            Step::Stat => (Command::QueryInfo, Box::new(QueryInfoRequest { file_id, ..r::stat() }), 1),
            Step::Rename(to) => (Command::SetInfo, Box::new(SetInfoRequest { file_id, ..r::rename(&to) }), 1),
            Step::Close => (Command::Close, Box::new(CloseRequest { flags: 0, file_id }), 1),
        }
    }

    /// Sends one message and waits for its answers. Returns the file that it opened, or `file_id`.
    fn send(&mut self, message: Vec<Step>, file_id: FileId) -> Result<FileId> {
        let opens = matches!(message.first(), Some(Step::Open(_)));
        let of = if opens { FileId::SENTINEL } else { file_id };
        let requests: Vec<_> = message.into_iter().map(|step| self.body(step, of)).collect();
        let calls: Vec<Call<'_>> = requests
            .iter()
            .map(|(command, body, charge)| Call { command: *command, body: &**body, charge: *charge })
            .collect();
        self.client.queue(&calls);
        self.client.flush()?;
        let (mut got, mut bad, mut opened) = (0, None, file_id);
        while got < calls.len() {
            self.client.receive(|reply| {
                let u64_at =
                    |i: usize| reply.body.get(i..i + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8")));
                let command = calls[got.min(calls.len() - 1)].command;
                if reply.status != 0 {
                    bad.get_or_insert(format!("{command:?}: {}", r::status_name(reply.status)));
                } else if command == Command::Create {
                    opened = FileId { persistent: u64_at(64), volatile: u64_at(72) };
                } else if command == Command::Read && u64_at(4) as u32 as usize != SMALL_BYTES {
                    bad.get_or_insert("a short read".to_string());
                }
                got += 1;
            })?;
        }
        match bad {
            Some(what) => fail!("{what}"),
            None => Ok(opened),
        }
    }
}

impl Job for Steps {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        for i in 0..self.files {
            let messages = self.messages(i);
            let started = Instant::now();
            let mut file_id = FileId::SENTINEL;
            for message in messages {
                file_id = self.send(message, file_id)?;
            }
            record(seen, started);
        }
        Ok(self.files as u64)
    }
}

//! The upper bound of small reads: a peer that answers every request of the size of a signed READ with the bytes of its
//! response, and does nothing else. One connection over loopback, one thread on each side.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    time::Instant,
};

use arden_measure::{Result, fail};

use crate::work::{BLOCK_BYTES, RANDOM_IN_FLIGHT};

/// Bytes of a READ request: the frame's length, [MS-SMB2] 2.1, the header, 2.2.1.2, and the body, 2.2.19.
pub const REQUEST_BYTES: usize = 4 + 64 + 49;
/// Bytes of its response, [MS-SMB2] 2.2.20.
const ANSWER_BYTES: usize = 4 + 64 + 16 + BLOCK_BYTES;
const INPUT_BYTES: usize = 256 << 10;

/// The way an echo sends its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// Each answer with its own system call.
    Plain,
    /// The answers to all requests that were received, with one system call.
    Gathered,
}

/// Takes whole requests until the peer closes the connection.
fn serve(mut socket: TcpStream, how: Echo) -> std::io::Result<()> {
    let answers = vec![0x5A; ANSWER_BYTES * RANDOM_IN_FLIGHT];
    let mut input = vec![0; REQUEST_BYTES * RANDOM_IN_FLIGHT];
    let mut here = 0;
    loop {
        match socket.read(&mut input)? {
            0 => return Ok(()),
            n => here += n,
        }
        let due = &answers[..here / REQUEST_BYTES * ANSWER_BYTES];
        match how {
            Echo::Plain => due.chunks(ANSWER_BYTES).try_for_each(|answer| socket.write_all(answer))?,
            Echo::Gathered => socket.write_all(due)?,
        }
        here %= REQUEST_BYTES;
    }
}

/// Sends requests with a constant number in flight until there are enough answers.
fn ask(socket: &mut TcpStream, answers: usize) -> Result<()> {
    let requests = vec![0x5A; REQUEST_BYTES * RANDOM_IN_FLIGHT];
    let mut input = vec![0; INPUT_BYTES];
    let (mut sent, mut here) = (0, 0);
    while here < answers * ANSWER_BYTES {
        let room = (RANDOM_IN_FLIGHT - (sent - here / ANSWER_BYTES)).min(answers - sent);
        if room > 0 {
            socket.write_all(&requests[..room * REQUEST_BYTES])?;
            sent += room;
        }
        match socket.read(&mut input)? {
            0 => fail!("the echo hung up"),
            n => here += n,
        }
    }
    Ok(())
}

/// The rate in answers a second.
///
/// # Errors
/// The connection fails.
pub fn rate(how: Echo, answers: usize) -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    peer.set_nodelay(true)?;
    let server = std::thread::spawn(move || serve(peer, how));
    let began = Instant::now();
    let asked = ask(&mut socket, answers);
    let seconds = began.elapsed().as_secs_f64();
    drop(socket);
    match server.join() {
        Ok(served) => served?,
        Err(_) => fail!("the echo stopped"),
    }
    asked?;
    Ok(answers as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_long_as_a_read() {
        use arden_measure::client::requests;
        use smb2::{
            msg::header::Header,
            pack::{Pack, WriteCursor},
            types::{Command, FileId},
        };
        let mut message = WriteCursor::new();
        message.write_zeros(4);
        Header::new_request(Command::Read).pack(&mut message);
        requests::read(FileId::SENTINEL, BLOCK_BYTES as u32).pack(&mut message);
        assert_eq!(message.into_inner().len(), REQUEST_BYTES);
    }

    #[test]
    fn every_request_is_answered() {
        for answers in [1, RANDOM_IN_FLIGHT, 10_001] {
            assert!(rate(Echo::Plain, answers).unwrap() > 0.0);
            assert!(rate(Echo::Gathered, answers).unwrap() > 0.0);
        }
    }
}

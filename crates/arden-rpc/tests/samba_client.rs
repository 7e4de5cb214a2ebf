//! Samba's Python bindings as an independent client. The pipes are served over loopback TCP, which carries the same
//! PDUs. The test does nothing where the bindings are not installed.

mod common;

use arden_rpc::open_pipe;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
};

fn serve(mut stream: TcpStream, pipe: &str, user: &str) {
    let mut pipe = open_pipe(pipe, common::context(user)).unwrap();
    let mut buffer = [0; 8192];
    while let Ok(n) = stream.read(&mut buffer) {
        if n == 0 || pipe.write(&buffer[..n]).is_err() {
            return;
        }
        while let Ok(message) = pipe.read(1 << 16) {
            if stream.write_all(&message.data).is_err() {
                return;
            }
        }
    }
}

fn listen(pipe: &'static str, user: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, pipe, user));
        }
    });
    port
}

#[test]
fn samba_understands_every_answer() {
    let python = |args: &[&str]| Command::new("/usr/bin/python3").args(args).output();
    if !python(&["-c", "import samba.dcerpc.srvsvc"]).is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: no Samba bindings for Python");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/samba_client.py");
    let ports = [
        listen("srvsvc", "root"),
        listen("lsarpc", "root"),
        listen("samr", "root"),
        listen("srvsvc", "alice"),
        listen("samr", "alice"),
    ];
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let mut args = vec![script];
    args.extend(ports.iter().map(String::as_str));
    let output = python(&args).unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

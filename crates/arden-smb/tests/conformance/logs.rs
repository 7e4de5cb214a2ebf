//! What the log says of clients that are refused.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tracing_subscriber::{fmt, layer::SubscriberExt};

use crate::client::*;

/// The lines that `action` logs on this thread.
fn logged(action: impl FnOnce()) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let layer = fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), action);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

/// A client that cannot sign finds nothing but ACCESS_DENIED: the log says who it is, and which setting refuses it.
#[test]
fn the_log_names_a_client_that_does_not_sign() {
    for (required, reason) in [(true, "setting signing_required"), (false, "SMB2_NEGOTIATE_SIGNING_REQUIRED")] {
        let lab = Lab::with(|s| s.signing_required = required);
        let mut c = lab.connect();
        c.negotiate(&Offer { mode: 2, ..Offer::up_to(Dialect::Smb311) });
        let lines = logged(|| {
            c.logon(&logon(OTHER));
            c.connect(SHARE);
            for _ in 0..3 {
                assert_eq!(c.status(&want("file").req().signed(false)), NtStatus::ACCESS_DENIED);
            }
        });
        let about: Vec<_> = lines.iter().filter(|l| l.contains("not signed")).collect();
        let [line] = about[..] else { panic!("once for the session: {about:?}") };
        for part in ["client=192.0.2.10:40000", "user=other", reason] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    // And of one that does not encrypt: for its session, and for a share.
    let lab = Lab::with(|s| s.encryption_required = true);
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(OTHER));
    let lines = logged(|| assert_eq!(c.status(&tree_connect("\\\\LAB\\share")), NtStatus::ACCESS_DENIED));
    let says = |line: &String, part: &str| line.contains("not encrypted") && line.contains(part);
    assert!(lines.iter().any(|l| says(l, "setting encryption_required")), "{lines:?}");
    let lab = Lab::new();
    let mut c = lab.client();
    c.encrypt = true;
    c.connect(SEALED);
    c.encrypt = false;
    let lines = logged(|| assert_eq!(c.status(&want("file").req()), NtStatus::ACCESS_DENIED));
    assert!(lines.iter().any(|l| says(l, "the share's encryption") && l.contains("share=sealed")), "{lines:?}");
}

/// A client that fails to log on does not choose how long the lines about it are.
#[test]
fn the_log_has_the_beginning_of_the_name_of_a_failed_logon() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    let (begin, end) = ("n".repeat(64), "m".repeat(100));
    let lines = logged(|| {
        let refused = c.try_logon(&logon(&format!("{begin}{end}")).password("wrong"));
        assert_eq!(refused.err(), Some(NtStatus::LOGON_FAILURE));
    });
    let about: Vec<_> = lines.iter().filter(|l| l.contains("logon failed")).collect();
    let [line] = about[..] else { panic!("one line: {lines:?}") };
    assert!(line.contains(&begin) && !line.contains("nm"), "{line}");
}

/// However often clients give a reason for a line, the log has one of a kind now and then.
#[test]
fn lines_are_bounded() {
    let count = |lines: &[String], part: &str| {
        let about = lines.iter().filter(|l| l.contains(part)).count();
        assert!((1..=10).contains(&about), "{about} of {part}");
    };
    let lab = Lab::new();
    let mut c = lab.client();
    let lines = logged(|| {
        for _ in 0..100 {
            for command in [Command::Echo, Command::Cancel] {
                let (_, mut message) = c.encode(&Req::new(command, vec![4, 0, 0, 0]).signed(true), false);
                message[50] ^= 1;
                c.send_bytes(message);
            }
        }
    });
    count(&lines, "wrong signature");
    count(&lines, "a CANCEL that is not signed");
    lab.pass(Duration::from_secs(2));
    let lines = logged(|| {
        let (_, mut message) = c.encode(&echo().signed(true), false);
        message[50] ^= 1;
        c.send_bytes(message);
    });
    assert!(lines.iter().any(|l| l.contains("wrong signature") && !l.contains("left_out=0")), "{lines:?}");
    let lab = Lab::with(|s| s.encryption_required = true);
    let lines = logged(|| {
        for _ in 0..100 {
            let mut c = lab.connect();
            c.negotiate(&Offer::up_to(Dialect::Smb210));
            assert_eq!(c.try_logon(&logon(USER)).err(), Some(NtStatus::ACCESS_DENIED));
        }
    });
    count(&lines, "cannot encrypt");
}

#[test]
fn lines_about_rubbish_are_bounded() {
    let lab = Lab::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lines = logged(|| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (address, server) = (listener.local_addr().unwrap(), lab.server.clone());
            let task = tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
            for _ in 0..100 {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let rubbish = [&[0, 0, 0, 64][..], &[7; 64]].concat();
                stream.write_all(&rubbish).await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
            task.abort();
        });
    });
    let about = lines.iter().filter(|l| l.contains("connection is closed")).count();
    assert!((1..=10).contains(&about), "{about}");
}

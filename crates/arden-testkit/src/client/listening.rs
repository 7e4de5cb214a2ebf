//! A server that listens on the loopback, and clients that come to it by TCP.

use std::{
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};

use super::{Client, Dialect, Lab, Offer, SHARE, echo, logon};

/// An answer is waited for so long.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

impl Lab {
    /// The node that clients connect to listens, until the runtime is dropped.
    pub fn listen(&self) -> (Runtime, SocketAddr) {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let address = self.listen_on(&runtime);
        (runtime, address)
    }

    pub fn listen_on(&self, runtime: &Runtime) -> SocketAddr {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, server) = (listener.local_addr().unwrap(), self.front().clone());
        runtime.spawn(async move { server.serve(listener, std::future::pending()).await });
        address
    }

    /// A new connection by TCP of a client of its own, nothing said yet.
    pub fn dial(&self, address: SocketAddr) -> Client {
        let mut client = self.connect();
        client.connection = None;
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(ANSWER_WAIT)).unwrap();
        client.socket = Some(socket);
        client
    }

    /// The same of this user, who is connected to the share and has thousands of credits.
    pub fn dial_as(&self, address: SocketAddr, user: &str) -> Client {
        let mut client = self.dial(address);
        client.negotiate(&Offer::up_to(Dialect::Smb311));
        client.logon(&logon(user));
        client.connect(SHARE);
        for _ in 0..2 {
            client.call(&echo().credits(8000)).ok();
        }
        client
    }
}

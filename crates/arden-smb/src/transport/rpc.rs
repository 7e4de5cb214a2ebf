//! RPC over TCP: sockets and timers of `arden_rpc::tcp`, with the admission, the logons and the throttle of SMB. A connection
//! with a logon counts as a session of its user; it ends when his account is gone or disabled, or has lost a group.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use arden_auth::{Acceptor, Step, Token};
use arden_rpc::tcp::{Authenticated, Connection, Flow, Host, Logon, LogonStep, Standing, TcpService};
use arden_wire::NtStatus;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    time::MissedTickBehavior,
};

use crate::{
    base::{admission::Met, metrics::count, time::Time},
    engine::logons::{LogonFrom, judge_logon},
    server::Server,
    trees,
};

/// Bytes that are read at once.
const READ_BYTES: usize = 8192;
/// How often a connection looks after itself.
const BEAT: Duration = Duration::from_secs(1);
/// A connection with a logon and without a call that waits ends after this time without input; a call has to be complete
/// in the time of `handshake_timeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// One of the logons under way that `Limits` allows.
struct Permit {
    server: Arc<Server>,
    ip: IpAddr,
    /// Of the connection.
    id: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.server.admission.end_setup(self.ip, self.id);
    }
}

/// What connections of one client need of the server.
struct RpcHost {
    server: Arc<Server>,
    ip: IpAddr,
    /// Of the connection.
    id: u64,
    client: Arc<str>,
}

impl Host for RpcHost {
    fn begin_logon(&self) -> Option<Box<dyn Logon>> {
        let config = &self.server.trees.config;
        if let Err(met) = self.server.admission.begin_setup(&config.limits, (self.ip, self.id), 0) {
            self.server.tell_limit(met, self.ip, "", "a logon over RPC is refused");
            return None;
        }
        let acceptor = Acceptor::new(config.users.clone(), config.identity.clone(), config.auth.clone());
        let permit = Permit { server: self.server.clone(), ip: self.ip, id: self.id };
        Some(Box::new(RpcLogon { acceptor, client: self.client.clone(), permit }))
    }
    fn random(&self) -> [u8; 16] {
        self.server.trees.random()
    }
}

/// One authentication.
struct RpcLogon {
    acceptor: Acceptor,
    client: Arc<str>,
    permit: Permit,
}

impl Logon for RpcLogon {
    fn step(&mut self, token: &[u8]) -> LogonStep {
        let server = &self.permit.server;
        let time = Time::read();
        server.trees.set_time(time);
        let unchanged = server.accounts.read();
        let step = self.acceptor.step(token, time.wall, server.trees.random());
        let from =
            LogonFrom { ip: self.permit.ip, client: &self.client, client_guid: 0, has_session_of: &|_: &str| false };
        let (step, delay) = judge_logon(server, &mut self.acceptor, step, &from, time.now);
        let answer = match step {
            Ok(Step::Continue(token)) => LogonStep::Continue(token),
            Ok(Step::Done { reply, logon }) if !logon.anonymous && !logon.guest => {
                match RpcStanding::open(server, (self.permit.ip, self.permit.id), &logon.token) {
                    Some(standing) => {
                        count(&server.trees.metrics.logons, 1);
                        tracing::info!(client = %self.client, user = %logon.token.user_name, "logged on over RPC");
                        let security = self.acceptor.message_security();
                        let logon = Authenticated { user: logon.token, security, standing: Box::new(standing) };
                        LogonStep::Done { reply, logon }
                    }
                    None => LogonStep::Refused { delay: Duration::ZERO },
                }
            }
            Ok(Step::Done { .. }) => LogonStep::Refused { delay: Duration::ZERO },
            Err(status) => {
                if matches!(
                    status,
                    NtStatus::LOGON_FAILURE | NtStatus::ACCOUNT_DISABLED | NtStatus::REQUEST_NOT_ACCEPTED
                ) {
                    count(&server.trees.metrics.logon_failures, 1);
                }
                LogonStep::Refused { delay: delay.unwrap_or_default() }
            }
        };
        drop(unchanged);
        answer
    }
}

/// A logon over RPC, counted until it is dropped.
struct RpcStanding {
    server: Arc<Server>,
    ip: IpAddr,
    user: Arc<Token>,
}

impl RpcStanding {
    /// `None`: a limit is met.
    fn open(server: &Arc<Server>, (ip, id): (IpAddr, u64), user: &Arc<Token>) -> Option<RpcStanding> {
        let limits = &server.trees.config.limits;
        let name = &user.user_name;
        let mut users = server.rpc_users.lock();
        let of_user = users.get(&user.user).copied().unwrap_or(0);
        if of_user >= limits.rpc_logons_per_user_max {
            drop(users);
            let met = Met { limit: "rpc_logons_per_user_max", value: limits.rpc_logons_per_user_max };
            server.tell_limit(met, ip, name, "a logon over RPC is refused");
            return None;
        }
        users.insert(user.user.clone(), of_user + 1);
        drop(users);
        if let Err(met) = server.admission.open_session(limits, (ip, id), &user.user, user.is_administrator()) {
            forget(server, user);
            server.tell_limit(met, ip, name, "a logon over RPC is refused");
            return None;
        }
        Some(RpcStanding { server: server.clone(), ip, user: user.clone() })
    }
}

fn forget(server: &Server, user: &Token) {
    let mut users = server.rpc_users.lock();
    if let Some(count) = users.get_mut(&user.user) {
        *count -= 1;
        if *count == 0 {
            users.remove(&user.user);
        }
    }
}

impl Standing for RpcStanding {
    fn is_good(&self) -> bool {
        !matches!(self.server.trees.standing(&self.user), trees::Standing::Lost)
    }
}

impl Drop for RpcStanding {
    fn drop(&mut self) {
        self.server.admission.close_session(self.ip, &self.user.user);
        forget(&self.server, &self.user);
    }
}

/// Accepts connections for `service` until `shutdown` is done, then ends them.
pub async fn serve_rpc(
    server: Arc<Server>,
    listener: TcpListener,
    service: Arc<TcpService>,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(false);
    tokio::pin!(shutdown);
    loop {
        let (socket, address) = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok(x) => x,
                Err(e) => {
                    tracing::warn!(error = %e, "accept failed");
                    server.admission.make_room();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let Some(mut link) = RpcClient::admitted(&server, socket, address, service.clone()) else { continue };
        let stopped = stopped.clone();
        tokio::spawn(async move {
            let reason = link.run(stopped).await;
            tracing::debug!(client = %address, reason, "RPC connection closed");
        });
    }
    stop.send_replace(true);
}

/// One connection.
struct RpcClient {
    server: Arc<Server>,
    id: u64,
    socket: TcpStream,
    connection: Connection,
    wake: Arc<Notify>,
    /// The connection has to make room for others.
    evicted: Arc<Notify>,
    logged_on: bool,
}

/// Why a connection ended.
type Ended = &'static str;

impl RpcClient {
    fn admitted(
        server: &Arc<Server>,
        socket: TcpStream,
        address: SocketAddr,
        service: Arc<TcpService>,
    ) -> Option<RpcClient> {
        let local = socket.local_addr().ok()?;
        let _ = socket.set_nodelay(true);
        let (wake, evicted, id) = (Arc::new(Notify::new()), Arc::new(Notify::new()), server.trees.next_id());
        let close = evicted.clone();
        let close = Box::new(move || close.notify_one());
        if let Err(met) = server.admission.connect(&server.trees.config.limits, address.ip(), id, close) {
            server.trees.set_time(Time::read());
            server.tell_limit(met, address.ip(), "", "an RPC connection is refused");
            return None;
        }
        let client = address.to_string().into();
        let host = Arc::new(RpcHost { server: server.clone(), ip: address.ip(), id, client });
        let signal = wake.clone();
        let wake_up = Box::new(move || signal.notify_one());
        let connection = Connection::new(service, host, address.ip(), local, wake_up);
        Some(RpcClient { server: server.clone(), id, socket, connection, wake, evicted, logged_on: false })
    }

    async fn run(&mut self, mut stopped: watch::Receiver<bool>) -> Ended {
        let evicted = self.evicted.clone();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => "the server stops",
            () = evicted.notified() => "closed to make room",
            ended = self.turns() => ended,
        }
    }

    async fn turns(&mut self) -> Ended {
        let timeout = self.server.trees.config.limits.handshake_timeout;
        let mut beat = tokio::time::interval(BEAT.min(timeout / 4).max(Duration::from_millis(10)));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut bytes = vec![0; READ_BYTES];
        let wake = self.wake.clone();
        let (began, mut last_input) = (Time::read().now, Time::read().now);
        loop {
            self.connection.answers();
            if let Err(ended) = self.flush().await {
                return ended;
            }
            tokio::select! {
                biased;
                () = wake.notified() => {}
                read = self.socket.read(&mut bytes) => match read {
                    Ok(0) => return "closed by the client",
                    Ok(n) => {
                        // The time of an incomplete call is that of its first bytes.
                        if !self.connection.has_partial_input() {
                            last_input = Time::read().now;
                        }
                        if let Err(ended) = self.take(&bytes[..n]).await {
                            return ended;
                        }
                    }
                    Err(_) => return "socket error",
                },
                _ = beat.tick() => {
                    let now = Time::read().now;
                    let silent = now.saturating_duration_since(last_input);
                    if !self.logged_on && now.saturating_duration_since(began) >= timeout {
                        return "no logon within handshake_timeout";
                    }
                    if self.connection.has_partial_input() && silent >= timeout {
                        return "half a call, then nothing";
                    }
                    if !self.connection.has_calls() && silent >= IDLE_TIMEOUT {
                        return "idle";
                    }
                    if !self.connection.is_good() {
                        return "the account is gone, disabled, or has lost a group";
                    }
                }
            }
        }
    }

    /// Processes input, and does what it leads to.
    async fn take(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let began = Time::read().now;
        let mut flow = self.connection.receive(bytes, began);
        loop {
            if !self.logged_on && self.connection.user().is_some() {
                self.logged_on = true;
                self.server.admission.set_logged_on(self.id, true);
            }
            match flow {
                Flow::Go => return Ok(()),
                Flow::More => {
                    self.flush().await?;
                    if Time::read().now.saturating_duration_since(began) > WRITE_TIMEOUT {
                        return Err("its answers are not read");
                    }
                    tokio::task::yield_now().await;
                    flow = self.connection.receive(&[], Time::read().now);
                }
                Flow::Pause(delay) => {
                    self.flush().await?;
                    tokio::time::sleep(delay).await;
                    flow = self.connection.receive(&[], Time::read().now);
                }
                Flow::Close(delay) => {
                    tokio::time::sleep(delay).await;
                    self.flush().await?;
                    return Err("closed after an error of the client");
                }
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        let output = self.connection.take_output();
        if output.is_empty() {
            return Ok(());
        }
        match tokio::time::timeout(WRITE_TIMEOUT, self.socket.write_all(&output)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err("socket error"),
            Err(_) => Err("the client does not read its answers"),
        }
    }
}

impl Drop for RpcClient {
    fn drop(&mut self) {
        self.server.admission.disconnected(self.id);
    }
}

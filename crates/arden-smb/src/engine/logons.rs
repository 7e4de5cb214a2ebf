//! What an attempt to log on leads to beside a session: the throttle's delay, and lines in the log. LOGOFF and ECHO, [MS-SMB2]
//! 3.3.5.6 and 3.3.5.17.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::{Acceptor, Attempt, Attempter, Logon, Step};
use arden_store::commit::CommitScope;
use arden_wire::{
    NtStatus,
    dtyp::Sid,
    smb2::session::{parse_empty, put_empty},
};

use crate::{
    base::metrics::count,
    engine::{
        conn::{Connection, Verdict},
        setup::{Kind, Setup},
    },
    handlers::run::{Elsewhere, GoOn},
    model::seam::Outcome,
    server::Server,
    sessions::Session,
    trees::ending::has_long_end,
};

/// A client's clock that is off by more is noted: MaxLifetime of [MS-NLMP] 3.1.1.1.
const CLOCK_SKEW_NOTED: Duration = Duration::from_secs(36 * 3600);
/// Failures from one network that are logged one by one; of more, each hundredth is.
const FAILURES_LOGGED: u32 = 100;

/// Characters of a name from a client that are logged with a logon that failed.
const NAME_CHARS_LOGGED: usize = 64;

/// The beginning of a name for the log.
fn shown(name: &str) -> &str {
    name.char_indices().nth(NAME_CHARS_LOGGED).map_or(name, |(end, _)| &name[..end])
}

/// Where a logon comes from.
pub(crate) struct LogonFrom<'a> {
    pub ip: IpAddr,
    /// For the log.
    pub client: &'a str,
    /// ClientGuid; 0 for none.
    pub client_guid: u128,
    /// Whether the client holds a session of this account.
    pub has_session_of: &'a dyn Fn(&str) -> bool,
}

/// What becomes of a step that may have judged a password, by whatever protocol it came: all share one throttle. With a
/// delay after which a wrong answer is sent. The verdict is not to be seen in any answer before this was asked.
pub(crate) fn judge_logon(
    server: &Server,
    acceptor: &mut Acceptor,
    step: Result<Step, NtStatus>,
    from: &LogonFrom<'_>,
    now: Instant,
) -> (Result<Step, NtStatus>, Option<Duration>) {
    let Some(right) = acceptor.take_verdict() else { return (step, None) };
    let account = acceptor.attempted_account();
    let has_session = (from.has_session_of)(account);
    let who = Attempter { account, address: from.ip, client_guid: from.client_guid, has_session };
    let attempt = server.throttle.lock().attempt(&who, now - server.trees.started, right);
    let (step, delay, failures, what) = match attempt {
        Attempt::Accepted => return (step, None),
        Attempt::Wrong { delay, failures } => {
            (step, delay, failures, "logon failed: a wrong password or an unknown user")
        }
        Attempt::Refused { delay, failures } => {
            let refused = Err(NtStatus::REQUEST_NOT_ACCEPTED);
            (refused, delay, failures, "logon refused: too many wrong passwords of this user wait")
        }
    };
    if failures <= FAILURES_LOGGED || failures.is_multiple_of(FAILURES_LOGGED) {
        let user = shown(acceptor.attempted_user().unwrap_or_default());
        let delay_ms = delay.as_millis() as u64;
        tracing::warn!(client = from.client, user, delay_ms, failures_of_network = failures, "{what}");
    }
    (step, Some(delay))
}

impl Connection {
    /// What becomes of a step that may have judged a password. The verdict is not to be seen in any answer before the
    /// throttle has been asked, whatever else the step did.
    pub(crate) fn throttle_logon(
        &mut self,
        setup: &mut Setup,
        step: Result<Step, NtStatus>,
        now: Instant,
    ) -> Result<Step, NtStatus> {
        let session = match &setup.kind {
            Kind::New => None,
            Kind::Reauthenticate(channel) => Some(channel.session.clone()),
            Kind::Bind(session) => Some(session.clone()),
        };
        let holds = |account: &str| {
            session.as_ref().is_some_and(|s| arden_auth::users::same_name(&s.token().user_name, account))
        };
        let from = LogonFrom {
            ip: self.peer.ip,
            client: &self.peer.address,
            client_guid: self.peer.client_guid(),
            has_session_of: &holds,
        };
        let (step, delay) = judge_logon(&self.server, &mut setup.acceptor, step, &from, now);
        if let Some(delay) = delay {
            self.held_back = delay;
        }
        step
    }

    /// The answer to a logon that failed is in `out` from `start`.
    pub(crate) fn logon_failed(&mut self, status: NtStatus, out: &mut Vec<u8>, start: usize) -> Verdict {
        let user = std::mem::take(&mut self.attempted);
        if matches!(status, NtStatus::LOGON_FAILURE | NtStatus::ACCOUNT_DISABLED | NtStatus::REQUEST_NOT_ACCEPTED) {
            count(&self.server.trees.metrics.logon_failures, 1);
        }
        if status == NtStatus::ACCOUNT_DISABLED {
            tracing::warn!(client = %self.peer.address, user = shown(&user), "logon refused: the account is disabled");
        }
        match std::mem::take(&mut self.held_back) {
            Duration::ZERO => Verdict::Go,
            delay => Verdict::Delay { delay, answer: out.split_off(start) },
        }
    }

    /// A clock that is off harms nobody here, but its owner may want to know.
    pub(crate) fn note_clock(&self, logon: &Logon, now: Instant) {
        if logon.clock_skew <= CLOCK_SKEW_NOTED {
            return;
        }
        let Some(left_out) = self.server.clocks_noted.admit(now - self.server.trees.started) else { return };
        tracing::warn!(client = %self.peer.address, user = %logon.token.user_name, workstation = %shown(&logon.workstation),
            hours = logon.clock_skew.as_secs() / 3600, left_out, "the client's clock is off");
    }
}

pub(super) fn echo(message: &[u8], out: &mut Vec<u8>) -> Outcome {
    if parse_empty(message).is_err() {
        return NtStatus::INVALID_PARAMETER.into();
    }
    done(out)
}

pub(super) fn done(out: &mut Vec<u8>) -> Outcome {
    put_empty(out);
    Outcome::Done(NtStatus::SUCCESS)
}

/// A LOGOFF that is answered when the nodes where the session had something open have closed that.
pub(super) struct Ending {
    server: Arc<Server>,
    user: Sid,
}

impl Ending {
    /// None: there is nothing to wait for.
    pub fn of(server: &Arc<Server>, session: &Session) -> Option<Arc<Ending>> {
        let user = session.token().user.clone();
        server.engine.has_endings(&user).then(|| Arc::new(Ending { server: server.clone(), user }))
    }
}

impl Elsewhere for Ending {
    fn when_answered(&self, go_on: GoOn) {
        if let Err(then) = self.server.engine.after_endings(&self.user, None, Box::new(move || go_on(false))) {
            then();
        }
    }
    fn bytes(&self) -> usize {
        size_of::<Ending>()
    }
}

/// [MS-SMB2] 3.3.5.6. Durable handles outlive their session: the same user may reclaim them from the next one.
pub(super) fn log_off(
    server: &Arc<Server>,
    session: &Arc<Session>,
    scope: &CommitScope,
    message: &[u8],
    may_block: bool,
    out: &mut Vec<u8>,
) -> Outcome {
    if parse_empty(message).is_err() {
        return NtStatus::INVALID_PARAMETER.into();
    }
    if !may_block && has_long_end(&session.tables) {
        return Outcome::Block;
    }
    server.end_session(scope, session, true, server.trees.time().now);
    done(out)
}

//! What an attempt to log on leads to beside a session: the throttle's delay, and lines in the log. LOGOFF and ECHO, [MS-SMB2]
//! 3.3.5.6 and 3.3.5.17.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::{Attempt, Attempter, Logon, Step};
use arden_store::commit::CommitScope;
use arden_wire::{
    NtStatus,
    smb2::session::{parse_empty, put_empty},
};

use crate::{
    base::metrics::count,
    engine::{
        conn::{Connection, Verdict},
        setup::{Kind, Setup},
    },
    model::seam::Outcome,
    server::Server,
    sessions::Session,
    trees::ending::has_long_end,
};

/// A client's clock that is off by more is noted: MaxLifetime of [MS-NLMP] 3.1.1.1.
const CLOCK_SKEW_NOTED: Duration = Duration::from_secs(36 * 3600);
/// Failures from one network that are logged one by one; of more, each hundredth is.
const FAILURES_LOGGED: u32 = 100;

impl Connection {
    /// What becomes of a step that may have judged a password. The verdict is not to be seen in any answer before the
    /// throttle has been asked, whatever else the step did.
    pub(crate) fn throttle_logon(
        &mut self,
        setup: &mut Setup,
        step: Result<Step, NtStatus>,
        now: Instant,
    ) -> Result<Step, NtStatus> {
        let Some(right) = setup.acceptor.take_verdict() else { return step };
        let account = setup.acceptor.attempted_account();
        let session = match &setup.kind {
            Kind::New => None,
            Kind::Reauthenticate(channel) => Some(&channel.session),
            Kind::Bind(session) => Some(session),
        };
        let who = Attempter {
            account,
            address: self.peer.ip,
            client_guid: self.peer.client_guid(),
            has_session: session.is_some_and(|s| arden_auth::users::same_name(&s.token().user_name, account)),
        };
        let attempt = self.server.throttle.lock().attempt(&who, now - self.server.trees.started, right);
        match attempt {
            Attempt::Accepted => step,
            Attempt::Wrong { delay, failures } => {
                self.held_back = delay;
                self.log_failure(setup, failures, "logon failed: a wrong password or an unknown user");
                step
            }
            Attempt::Refused { delay, failures } => {
                self.held_back = delay;
                self.log_failure(setup, failures, "logon refused: too many wrong passwords of this user wait");
                Err(NtStatus::REQUEST_NOT_ACCEPTED)
            }
        }
    }

    fn log_failure(&self, setup: &Setup, failures: u32, what: &'static str) {
        if failures > FAILURES_LOGGED && !failures.is_multiple_of(FAILURES_LOGGED) {
            return;
        }
        let user = setup.acceptor.attempted_user().unwrap_or_default();
        let delay_ms = self.held_back.as_millis() as u64;
        tracing::warn!(client = %self.peer.address, user, delay_ms, failures_of_network = failures, "{what}");
    }

    /// The answer to a logon that failed is in `out` from `start`.
    pub(crate) fn logon_failed(&mut self, status: NtStatus, out: &mut Vec<u8>, start: usize) -> Verdict {
        let user = std::mem::take(&mut self.attempted);
        if matches!(status, NtStatus::LOGON_FAILURE | NtStatus::ACCOUNT_DISABLED | NtStatus::REQUEST_NOT_ACCEPTED) {
            count(&self.server.trees.metrics.logon_failures, 1);
        }
        if status == NtStatus::ACCOUNT_DISABLED {
            tracing::warn!(client = %self.peer.address, user, "logon refused: the account is disabled");
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
        tracing::warn!(client = %self.peer.address, user = %logon.token.user_name, workstation = %logon.workstation,
            hours = logon.clock_skew.as_secs() / 3600, left_out, "the client's clock is off");
    }
}

pub(super) fn echo(message: &[u8], out: &mut Vec<u8>) -> Outcome {
    if parse_empty(message).is_err() {
        return NtStatus::INVALID_PARAMETER.into();
    }
    put_empty(out);
    Outcome::Done(NtStatus::SUCCESS)
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
    put_empty(out);
    Outcome::Done(NtStatus::SUCCESS)
}

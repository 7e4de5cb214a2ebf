//! How a daemon that serves becomes the first node of a cluster: it stops in order, executes its program anew, under the same process id and
//! with the same options, and makes the cluster before it serves. That is what any restart in order does: persistent and durable handles are kept.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use arden_admin::{
    AdminError, ErrorKind, State, StateDirectory,
    cluster::{ClusterInfo, FoundCluster, Founder},
    error::Result,
};
use arden_coordinate::{ClientFiles, EtcdFiles, Membership, NewCluster, membership};
use tokio::sync::mpsc;

use crate::{cluster, commands::Out};

/// The daemon serves as a node by then.
const SERVES_WAIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);

/// Holds what a daemon was asked for, from its stop to the start that does it.
fn asked_for(state_dir: &Path) -> PathBuf {
    state_dir.join("cluster-init.asked")
}

/// Holds the error of a cluster that could not be made, for the command that asked for it.
fn failure(state_dir: &Path) -> PathBuf {
    state_dir.join("cluster-init.failed")
}

fn conflict(error: &str, hint: &str) -> AdminError {
    AdminError::new(ErrorKind::Conflict, error, hint)
}

impl TryFrom<&FoundCluster> for Wanted {
    type Error = AdminError;

    fn try_from(new: &FoundCluster) -> Result<Wanted> {
        let files = [&new.etcd_ca, &new.etcd_cert, &new.etcd_key].map(|f| f.as_ref().map(PathBuf::from));
        if files.iter().flatten().any(|f| !f.is_absolute()) {
            return Err(AdminError::invalid("a file for TLS to etcd has no absolute path", "give the full path"));
        }
        let [ca, certificate, key] = files;
        let client = certificate.zip(key).map(|(certificate, key)| ClientFiles { certificate, key });
        Ok(Wanted(NewCluster {
            name: new.name.clone(),
            node: new.node.clone(),
            etcd: new.etcd.clone(),
            etcd_tls: ca.map(|ca| EtcdFiles { ca, client }),
            lease_seconds: new.lease_seconds,
        }))
    }
}

struct Wanted(NewCluster);

fn request(new: &NewCluster) -> FoundCluster {
    let text = |p: &PathBuf| p.display().to_string();
    let (tls, client) = (new.etcd_tls.as_ref(), new.etcd_tls.as_ref().and_then(|t| t.client.as_ref()));
    FoundCluster {
        name: new.name.clone(),
        node: new.node.clone(),
        etcd: new.etcd.clone(),
        etcd_ca: tls.map(|t| text(&t.ca)),
        etcd_cert: client.map(|c| text(&c.certificate)),
        etcd_key: client.map(|c| text(&c.key)),
        lease_seconds: new.lease_seconds,
    }
}

/// What the API calls. `begins` gets what was checked.
pub fn founder(
    directory: &Arc<StateDirectory>,
    state: &Arc<State>,
    is_demo: bool,
    begins: mpsc::Sender<NewCluster>,
) -> Founder {
    let (directory, state) = (directory.path().to_path_buf(), state.clone());
    Box::new(move |new| {
        arden_admin::names::check_server(&new.name)?;
        let Wanted(new) = Wanted::try_from(new)?;
        if is_demo {
            return Err(conflict("the daemon shows a demonstration", "start it without --demo first"));
        }
        membership::check_init(&directory, &new, &state)?;
        let _ = std::fs::remove_file(failure(&directory));
        begins.try_send(new).map_err(|_| conflict("the daemon is becoming a node already", ""))
    })
}

/// The daemon has stopped: its program is executed anew, and makes the cluster before it serves. Does not return, but with an error.
///
/// # Errors
/// The program cannot be executed.
pub fn begin_anew(state_dir: &Path, new: &NewCluster) -> Result<()> {
    let asked = serde_json::to_vec(&request(new)).unwrap_or_default();
    if let Err(e) = std::fs::write(asked_for(state_dir), asked) {
        note_failure(state_dir, &AdminError::failed(format!("{}: {e}", asked_for(state_dir).display()), ""));
    }
    let mut args = std::env::args_os();
    // Also where the file of the program was replaced.
    let mut command = Command::new("/proc/self/exe");
    args.next().into_iter().for_each(|name| _ = command.arg0(name));
    let e = command.args(args).exec();
    Err(AdminError::failed(format!("the daemon does not start again: {e}"), "start it with `arden serve`"))
}

/// Makes the cluster that the daemon was asked for, if it was, before anything else is begun. Whatever comes of it, clients are to be
/// served.
pub fn finish(state_dir: &Path) {
    let Ok(asked) = std::fs::read(asked_for(state_dir)) else { return };
    // It is tried once: at a start of another day nobody would expect it.
    let removed = std::fs::remove_file(asked_for(state_dir));
    let damaged =
        |e: &dyn std::fmt::Display| AdminError::failed(format!("{}: {e}", asked_for(state_dir).display()), "");
    let made = removed.map_err(|e| damaged(&e)).and_then(|()| {
        let asked: FoundCluster = serde_json::from_slice(&asked).map_err(|e| damaged(&e))?;
        let Wanted(new) = Wanted::try_from(&asked)?;
        membership::init(&cluster::directory(state_dir)?, &new, cluster::pools)
    });
    match made {
        Ok(m) => tracing::info!(cluster = m.cluster.name, node = m.name, "cluster made"),
        Err(e) => note_failure(state_dir, &e),
    }
}

fn note_failure(state_dir: &Path, error: &AdminError) {
    tracing::error!("the cluster is not made: {error}");
    let said = serde_json::to_vec(error).unwrap_or_default();
    if let Err(e) = std::fs::write(failure(state_dir), said) {
        tracing::error!("who asked for it is not told: {e}");
    }
}

/// Makes the cluster: by the daemon, when it runs. Says whether it does.
///
/// # Errors
/// Those of [`membership::init`].
pub fn init(out: &Out, new: &NewCluster) -> Result<(Membership, bool)> {
    match out.client.send_only("POST", "/v1/cluster", &request(new)) {
        Ok(()) => serves_as_node(out).map(|m| (m, true)),
        Err(e) if e.kind == ErrorKind::NotRunning => {
            let directory = cluster::directory(&out.state)?;
            Ok((membership::init(&directory, new, cluster::pools)?, false))
        }
        Err(e) => Err(e),
    }
}

fn serves_as_node(out: &Out) -> Result<Membership> {
    let end = Instant::now() + SERVES_WAIT;
    while Instant::now() < end {
        if let Some(m) = membership::load(&out.state)?
            && out.client.get::<ClusterInfo>("/v1/cluster").is_ok()
        {
            return Ok(m);
        }
        if let Ok(said) = std::fs::read(failure(&out.state)) {
            let _ = std::fs::remove_file(failure(&out.state));
            let unknown = || AdminError::failed("the cluster is not made", "see the daemon's log");
            return Err(serde_json::from_slice(&said).unwrap_or_else(|_| unknown()));
        }
        thread::sleep(POLL);
    }
    Err(AdminError::failed("the daemon does not serve as a node", "see its log"))
}

//! The daemon: state, servers, API, and an orderly stop. Assembly only.

use std::{
    io::IsTerminal,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use arden_admin::{
    AdminError, ClusterAdmin, Control, NoCluster, State, StateDirectory,
    api::{self, Api},
    error::Result,
};
use arden_coordinate::{ClusterApi, Member, NewCluster, membership, peers::Listener};
use arden_host::{DiskKey, PoolAdmin, Pools, Volumes, adopt_old_list};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};

use crate::{
    cli::Serve,
    demo,
    exposure::Shares,
    founding, interfaces, logging,
    ownership::{self, Owned},
    peers, printable,
    server::SmbControl,
    witness,
};

/// Runs the daemon until it is stopped.
///
/// # Errors
/// The daemon cannot start.
pub fn run(state_dir: &Path, options: Serve) -> Result<()> {
    logging::init(&options.log)?;
    founding::finish(state_dir);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads())
        .enable_all()
        .build()
        .map_err(|e| AdminError::failed(format!("no threads: {e}"), "check the limits of this user"))?;
    let founds = runtime.block_on(daemon(state_dir, options))?;
    founds.map_or(Ok(()), |new| founding::begin_anew(state_dir, &new))
}

/// The number of worker threads, which is larger than that of cores. Metadata system calls run on the workers, because
/// handing a call to another thread costs more than most calls take; those that wait for the disk must not stop all
/// others.
fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(4, |n| n.get() * 2).max(4)
}

/// Serves. Gives the cluster that is to be made of the daemon, if one is.
async fn daemon(state_dir: &Path, options: Serve) -> Result<Option<NewCluster>> {
    let no_signals = |e: std::io::Error| AdminError::failed(format!("signals: {e}"), "");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;

    let directory = Arc::new(StateDirectory::open(state_dir)?);
    let member = member(directory.clone()).await?;
    let nodes = listen_for_nodes(member.as_deref(), options.cluster_listen).await?;
    let state = state(directory.clone(), member.clone()).await?;
    let (stop, stopped) = watch::channel(false);
    let (begins, mut founds) = mpsc::channel(1);
    let is_demo = options.demo.is_some();
    let demo_dir = demo_dir(&state, &directory, options.demo, member.is_some())?;
    let (owner, home, wanted) = (state.clone(), directory.clone(), demo_dir.clone());
    let is_member = member.is_some();
    let opening = tokio::task::spawn_blocking(move || storage(&owner, &home, wanted.as_deref(), is_member));
    let (pools, volumes, password) = joined(opening.await)?;
    let smb = SmbControl::start(&state, directory.path(), &volumes, &options.listen, member.as_ref(), stopped.clone());
    let control = smb.await?;
    let listener = api::bind(&directory.socket())?;
    tracing::info!(
        state = %directory.path().display(),
        listen = control.listen().join(", "),
        shares = state.snapshot().shares.len(),
        "ready"
    );
    if let (Some(password), Some(dir), Some(address)) = (password, demo_dir, control.addresses().first()) {
        print!("{}", printable::lines(&demo::how_to_connect(directory.path(), &dir, *address, &password)));
    }

    let for_nodes = nodes.as_ref().map(Listener::address);
    let cluster: Arc<dyn ClusterAdmin> = match &member {
        Some(member) => begin_to_own(member, (&pools, &volumes, &control), &state, for_nodes)?,
        None => Arc::new(NoCluster { founder: Some(founding::founder(&directory, &state, is_demo, begins)) }),
    };
    let storage = Arc::new(PoolAdmin(pools.clone()));
    let api = Api::new(state.clone(), control.clone(), storage, volumes.clone(), cluster);
    if let Some(listener) = nodes {
        control.serve_nodes(listener, &api);
    }
    if let Some(member) = &member {
        api.follow();
        let ports = witness::Ports { mapper: options.endpoint_mapper, witness: options.witness };
        witness::start(&control, member, &state, &ports, &stopped).await;
    }
    let api = tokio::spawn(api::serve(listener, api, until(stopped)));
    let ended = tokio::select! {
        _ = interrupt.recv() => told("interrupted").map(|()| None),
        _ = terminate.recv() => told("terminated").map(|()| None),
        removed = removed(member.as_deref()) => Err(removed),
        Some(new) = founds.recv() => told("to become a node").map(|()| Some(new)),
    };
    if let Some(member) = member {
        hand_over(member, control.clone()).await;
    }
    let _ = stop.send(true);
    control.stopped().await;
    let _ = api.await;
    let end = move || {
        volumes.stop();
        pools.stop();
    };
    let _ = tokio::task::spawn_blocking(end).await;
    let _ = std::fs::remove_file(directory.socket());
    tracing::info!("stopped");
    ended
}

/// What is handed over is with its next owner while clients connect again.
async fn hand_over(member: Arc<Member>, control: Arc<SmbControl>) {
    let leave = move || {
        member.leave();
        control.give_addresses_up();
    };
    let _ = tokio::task::spawn_blocking(leave).await;
}

/// The daemon was told to stop.
fn told(how: &str) -> Result<()> {
    tracing::info!("{how}, stopping");
    Ok(())
}

/// Returns when the daemon is a node that was removed from its cluster.
async fn removed(member: Option<&Member>) -> AdminError {
    match member {
        Some(member) => {
            let removed = member.removed().await;
            tracing::error!("{removed}");
            removed
        }
        None => std::future::pending().await,
    }
}

/// Where other nodes connect, at a node of a cluster. A daemon that stands alone may become one.
async fn listen_for_nodes(member: Option<&Member>, address: Option<SocketAddr>) -> Result<Option<Listener>> {
    match member {
        Some(member) => peers::listen(member, address).await.map(Some),
        None => Ok(None),
    }
}

/// Where the demonstration is kept, if there is to be one.
fn demo_dir(
    state: &State,
    directory: &StateDirectory,
    named: Option<PathBuf>,
    is_member: bool,
) -> Result<Option<PathBuf>> {
    match (is_member, named) {
        (true, Some(_)) => Err(AdminError::invalid("--demo is for a daemon that stands alone", "leave it out")),
        (true, None) => Ok(None),
        (false, named) => Ok(demo::place(state, directory.path(), named, std::io::stdout().is_terminal())),
    }
}

type Storage = (Arc<Pools>, Arc<Volumes>, Option<String>);

/// The pools and volumes of this daemon, and the password of the demonstration.
fn storage(state: &Arc<State>, home: &StateDirectory, demo: Option<&Path>, is_member: bool) -> Result<Storage> {
    let sharing = Arc::new(Shares(state.clone()));
    let pools = match is_member {
        true => Pools::start_member(state, sharing)?,
        false => {
            adopt_old_list(state, home.path())?;
            Pools::start(state, sharing)?
        }
    };
    let volumes = Volumes::new(state, &pools);
    let password = demo.map(|dir| demo::prepare(state, &pools, &volumes, dir)).transpose()?;
    Ok((pools, volumes, password))
}

/// A node of a cluster begins to own pools, with their floating addresses.
fn begin_to_own(
    member: &Arc<Member>,
    (pools, volumes, control): (&Arc<Pools>, &Arc<Volumes>, &Arc<SmbControl>),
    state: &Arc<State>,
    for_nodes: Option<SocketAddr>,
) -> Result<Arc<dyn ClusterAdmin>> {
    let no_thread = |e| AdminError::failed(format!("no thread: {e}"), "check the limits of this user");
    let owned = Owned {
        pools: pools.clone(),
        volumes: volumes.clone(),
        control: control.clone(),
        addresses: control.look_after_addresses().map_err(no_thread)?,
        cluster: member.cluster(),
        tag: DiskKey::cluster_tag(member.cluster_id()),
    };
    ownership::follow_owners(control, member);
    let (addresses, floating) = (control.reachable(), interfaces::floating(&state.snapshot()));
    let for_nodes = for_nodes.map(|at| interfaces::reached_at(at, &floating)).unwrap_or_default();
    member.start(Arc::new(owned), addresses, for_nodes)?;
    let cluster = Arc::new(ClusterApi { member: member.clone(), state: state.clone() });
    pools.set_cluster(Arc::new(ownership::ClusterOfPools(cluster.clone())));
    Ok(cluster)
}

/// This daemon as a node of a cluster, if it is one.
async fn member(directory: Arc<StateDirectory>) -> Result<Option<Arc<Member>>> {
    let connect = move || {
        let membership = membership::load(directory.path())?;
        membership.map(|m| Member::connect(directory.path(), m)).transpose()
    };
    joined(tokio::task::spawn_blocking(connect).await)
}

/// The state of this daemon, or of the cluster.
async fn state(directory: Arc<StateDirectory>, member: Option<Arc<Member>>) -> Result<Arc<State>> {
    let open = move || match member {
        Some(member) => State::on(member.state_store()),
        None => State::open(&directory),
    };
    joined(tokio::task::spawn_blocking(open).await).map(Arc::new)
}

fn joined<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|e| Err(AdminError::failed(format!("the start failed inside: {e}"), "see the daemon's log")))
}

/// Resolves when the daemon has to stop.
pub async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

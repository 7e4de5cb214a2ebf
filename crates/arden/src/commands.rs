//! The requests that each command sends to the daemon, and the form of the answers. The state is opened by the daemon
//! only, and by `arden_host::Offline` while no daemon runs.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use arden_admin::{
    AdminError,
    client::{Client, segment},
    cluster::ClientMove,
    error::Result,
    model::{
        GroupInfo, NewGroup, NewUser, OpenInfo, SessionInfo, SessionsClosed, Settings, SettingsChange, Share,
        ShareChange, ShareKind, StatusInfo, UserChange, UserInfo,
    },
};
use serde::Serialize;

use crate::{
    cli::{self, Cli, Live, Member, Noun},
    cluster, password, printable, serve, storage,
    table::{Table, yes},
    volumes,
};

/// Runs a command that needs the daemon.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn run(cli: Cli) -> Result<()> {
    let state = cli.state.map_or_else(default_state, Ok)?;
    if let Noun::Serve(options) = cli.noun {
        return serve::run(&state, options);
    }
    let out = Out { client: Client::new(&state), state, json: cli.json };
    match cli.noun {
        Noun::Serve(_) => Ok(()),
        Noun::Lab(verb) => {
            let home =
                arden_lab::targets::daemon::Home { state: out.state.clone(), program: std::env::current_exe().ok() };
            arden_lab::cli::run(&verb, &home, out.json).map_err(|e| AdminError::failed(e.to_string(), ""))
        }
        Noun::Disk(verb) => storage::disk(&out, verb),
        Noun::Pool(verb) => storage::pool(&out, verb),
        Noun::Cluster(verb) => cluster::cluster(&out, verb),
        Noun::Node(verb) => cluster::node(&out, verb),
        Noun::Address(verb) => cluster::address(&out, verb),
        Noun::Space(verb) => storage::space(&out, verb),
        Noun::Job(verb) => storage::job(&out, verb),
        Noun::Volume(verb) => volumes::run(&out, verb),
        Noun::Quota(verb) => volumes::run_quota(&out, verb),
        Noun::Snapshot(verb) => volumes::run_snapshot(&out, verb),
        Noun::User(verb) => user(&out, verb),
        Noun::Group(verb) => group(&out, verb),
        Noun::Share(verb) => share(&out, verb),
        Noun::Session(verb) => session(&out, verb),
        Noun::Open(verb) => open(&out, verb),
        Noun::Settings(verb) => settings(&out, verb),
        Noun::Status => status(&out),
        Noun::Metrics => {
            print(&printable::lines(&out.client.get_text("/v1/metrics")?));
            Ok(())
        }
    }
}

/// The default state directory.
fn default_state() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/arden"));
    }
    let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state")));
    base.map(|b| b.join("arden"))
        .ok_or_else(|| AdminError::invalid("there is no home directory to keep the state in", "name one with --state"))
}

/// The client of a command, and the form of its output.
pub struct Out {
    pub client: Client,
    /// The daemon's directory, for commands that run without a daemon.
    pub state: PathBuf,
    json: bool,
}

/// Prints for whoever reads it. A reader that has read enough, as `head` and `grep -q` have, is no error.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => eprintln!("arden: the answer cannot be printed: {e}"),
        _ => {}
    }
}

impl Out {
    /// Prints the answer: as JSON, or in the form that `text` gives it.
    pub fn show<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) {
        if self.json {
            print(&format!("{}\n", serde_json::to_string_pretty(value).unwrap_or_default()));
        } else {
            print(&printable::lines(&text(value)));
        }
    }

    /// Reports the success of a request whose answer has no body.
    pub fn done(&self, line: String) {
        self.show(&serde_json::json!({}), |_| format!("{line}\n"));
    }
}

fn user(out: &Out, verb: cli::User) -> Result<()> {
    let path = |name: &str| format!("/v1/users/{}", segment(name));
    match verb {
        cli::User::Add { name, password, full_name, group, disabled } => {
            let password = password::get(&password, &name)?;
            let new = NewUser { name, password, full_name, groups: group, disabled };
            let user: UserInfo = out.client.post("/v1/users", &new)?;
            out.show(&user, |u| format!("user {} added\n", u.name));
        }
        cli::User::List => {
            let users: Vec<UserInfo> = out.client.get("/v1/users")?;
            out.show(&users, |users| {
                let mut t = Table::new(&["NAME", "FULL NAME", "GROUPS", "DISABLED", "SID"]);
                for u in users {
                    t.row([u.name.clone(), u.full_name.clone(), u.groups.join(","), yes(u.disabled), u.sid.clone()]);
                }
                t.text("no users; `arden user add NAME` adds one")
            });
        }
        cli::User::Remove { name } => {
            out.client.delete(&path(&name))?;
            out.done(format!("user {name} removed"));
        }
        cli::User::Passwd { name, password } => {
            // The user is looked up first: no password is asked for when it does not exist.
            let user: UserInfo = out.client.get(&path(&name))?;
            let password = Some(password::get(&password, &user.name)?);
            let change = UserChange { password, ..UserChange::default() };
            let user: UserInfo = out.client.patch(&path(&name), &change)?;
            out.show(&user, |u| format!("password of {} changed\n", u.name));
        }
        cli::User::Set { name, full_name, disabled } => {
            if full_name.is_none() && disabled.is_none() {
                return Err(AdminError::invalid("nothing to change", "see `arden user set --help`"));
            }
            let change = UserChange { full_name, disabled, ..UserChange::default() };
            let user: UserInfo = out.client.patch(&path(&name), &change)?;
            out.show(&user, |u| format!("user {} changed\n", u.name));
        }
    }
    Ok(())
}

fn group(out: &Out, verb: cli::Group) -> Result<()> {
    let path = |name: &str| format!("/v1/groups/{}", segment(name));
    match verb {
        cli::Group::Add { name, comment } => {
            let group: GroupInfo = out.client.post("/v1/groups", &NewGroup { name, comment })?;
            out.show(&group, |g| format!("group {} added\n", g.name));
        }
        cli::Group::List => {
            let groups: Vec<GroupInfo> = out.client.get("/v1/groups")?;
            out.show(&groups, |groups| {
                let mut t = Table::new(&["NAME", "MEMBERS", "COMMENT", "SID"]);
                for g in groups {
                    t.row([g.name.clone(), g.members.join(","), g.comment.clone(), g.sid.clone()]);
                }
                t.text("no groups")
            });
        }
        cli::Group::Remove { name } => {
            out.client.delete(&path(&name))?;
            out.done(format!("group {name} removed"));
        }
        cli::Group::Member(Member::Add { group, user }) => {
            let group: GroupInfo = out.client.put(&format!("{}/members/{}", path(&group), segment(&user)))?;
            out.show(&group, |g| format!("{user} is a member of {}\n", g.name));
        }
        cli::Group::Member(Member::Remove { group, user }) => {
            out.client.delete(&format!("{}/members/{}", path(&group), segment(&user)))?;
            out.done(format!("{user} is no longer a member of {group}"));
        }
    }
    Ok(())
}

/// Makes the path absolute, because the daemon has another working directory than the caller.
///
/// # Errors
/// Invalid, when the path is empty or the working directory is gone.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| AdminError::invalid(format!("{}: {e}", path.display()), "give the full path"))
}

fn share(out: &Out, verb: cli::Share) -> Result<()> {
    let path = |name: &str| format!("/v1/shares/{}", segment(name));
    match verb {
        cli::Share::Add { name, options: o } => {
            let new = Share {
                name,
                kind: if o.volume.is_some() { ShareKind::Volume } else { ShareKind::Dir },
                // Paths of a volume start at its root.
                path: o.dir.as_deref().map_or(Ok(Path::new("/").join(o.path)), absolute)?,
                volume: o.volume,
                comment: o.comment,
                read_only: o.read_only,
                encrypt: o.encrypt,
                write_through: o.write_through,
                continuously_available: o.ca,
                scale_out: o.scale_out,
                hidden: o.hidden,
                access_based_enumeration: o.access_based_enumeration,
                allow: o.allow,
                deny: o.deny,
                users_max: o.users_max,
                force: o.force,
            };
            let share: Share = out.client.post("/v1/shares", &new)?;
            out.show(&share, |s| format!("share {} added: {}\n", s.name, where_it_is(s)));
        }
        cli::Share::List => {
            let shares: Vec<Share> = out.client.get("/v1/shares")?;
            out.show(&shares, |shares| {
                let mut t = Table::new(&["NAME", "PATH", "OPTIONS", "ACCESS", "COMMENT"]);
                for s in shares {
                    t.row([s.name.clone(), where_it_is(s), options(s), access(s), s.comment.clone()]);
                }
                t.text("no shares; `arden share add NAME --dir PATH` adds one")
            });
        }
        cli::Share::Set { name, options: o } => {
            let list = |list: Vec<_>, clear: bool| (clear || !list.is_empty()).then_some(list);
            let change = ShareChange {
                path: o.dir.as_deref().map(absolute).transpose()?,
                comment: o.comment,
                read_only: o.read_only,
                encrypt: o.encrypt,
                write_through: o.write_through,
                continuously_available: o.ca,
                scale_out: o.scale_out,
                hidden: o.hidden,
                access_based_enumeration: o.access_based_enumeration,
                allow: list(o.allow, o.clear_allow),
                deny: list(o.deny, o.clear_deny),
                users_max: o.users_max,
                force: o.force,
            };
            if change == ShareChange::default() {
                return Err(AdminError::invalid("nothing to change", "see `arden share set --help`"));
            }
            let share: Share = out.client.patch(&path(&name), &change)?;
            out.show(&share, |s| format!("share {} changed\n", s.name));
        }
        cli::Share::Remove { name } => {
            out.client.delete(&path(&name))?;
            out.done(format!("share {name} removed; its files are untouched"));
        }
    }
    Ok(())
}

fn where_it_is(s: &Share) -> String {
    match &s.volume {
        Some(volume) => format!("volume {volume}: {}", s.path.display()),
        None => s.path.display().to_string(),
    }
}

fn options(s: &Share) -> String {
    let all = [
        (s.read_only, "read-only"),
        (s.encrypt, "encrypt"),
        (s.write_through, "write-through"),
        (s.continuously_available, "ca"),
        (s.scale_out, "scale-out"),
        (s.hidden, "hidden"),
        (s.access_based_enumeration, "access-based-enumeration"),
    ];
    let mut on: Vec<String> = all.iter().filter(|o| o.0).map(|o| o.1.to_string()).collect();
    on.extend(s.users_max.map(|n| format!("users-max={n}")));
    on.join(",")
}

fn access(s: &Share) -> String {
    let allow = s.allow.iter().map(|g| format!("{}:{}", g.who, g.rights));
    let deny = s.deny.iter().map(|g| format!("not {}:{}", g.who, g.rights));
    let mut all: Vec<String> = allow.chain(deny).collect();
    if s.allow.is_empty() {
        all.insert(0, "every user:full".to_string());
    }
    all.join(",")
}

fn session(out: &Out, verb: cli::Session) -> Result<()> {
    match verb {
        cli::Session::List => {
            let sessions: Vec<SessionInfo> = out.client.get("/v1/sessions")?;
            out.show(&sessions, |sessions| {
                let mut t = Table::new(&[
                    "ID",
                    "USER",
                    "CLIENT",
                    "DIALECT",
                    "SIGNING",
                    "ENCRYPTION",
                    "CHANNELS",
                    "OPENS",
                    "IDLE",
                    "NODE",
                ]);
                for s in sessions {
                    t.row([
                        s.id.to_string(),
                        s.user.clone(),
                        s.client.clone(),
                        s.dialect.clone(),
                        s.signing.clone(),
                        s.encryption.clone(),
                        s.channels.to_string(),
                        s.opens.to_string(),
                        format!("{} s", s.idle_seconds),
                        s.node.clone(),
                    ]);
                }
                t.text("no sessions")
            });
        }
        cli::Session::Close { id: Some(id), .. } => {
            out.client.delete(&format!("/v1/sessions/{}", segment(&id)))?;
            out.done(format!("session {id} closed"));
        }
        cli::Session::Move { client, to } => {
            let order = ClientMove { client, to };
            let _: ClientMove = out.client.put_body("/v1/cluster/client-moves", &order)?;
            out.done(format!("{} is told to go to {}, if it has registered", order.client, order.to));
        }
        cli::Session::Close { user, .. } => {
            let name = user.unwrap_or_default();
            let closed: SessionsClosed =
                out.client.delete_answered(&format!("/v1/users/{}/sessions", segment(&name)))?;
            out.show(&closed, |c| format!("{} sessions of {name} closed\n", c.closed));
        }
    }
    Ok(())
}

fn open(out: &Out, verb: Live) -> Result<()> {
    match verb {
        Live::List => {
            let opens: Vec<OpenInfo> = out.client.get("/v1/opens")?;
            out.show(&opens, |opens| {
                let mut t = Table::new(&[
                    "ID", "USER", "CLIENT", "SHARE", "PATH", "ACCESS", "CACHE", "DURABLE", "LOCKS", "SESSION", "NODE",
                ]);
                for o in opens {
                    t.row([
                        o.id.to_string(),
                        o.user.clone(),
                        o.client.clone(),
                        o.share.clone(),
                        o.path.clone(),
                        format!("{:#x}", o.access),
                        o.cache.clone(),
                        yes(o.durable),
                        o.locks.to_string(),
                        o.session.map(|s| s.to_string()).unwrap_or_default(),
                        o.node.clone(),
                    ]);
                }
                t.text("nothing is open")
            });
        }
        Live::Close { id } => {
            out.client.delete(&format!("/v1/opens/{}", segment(&id)))?;
            out.done(format!("open {id} closed"));
        }
    }
    Ok(())
}

fn settings(out: &Out, verb: cli::Settings) -> Result<()> {
    let settings: Settings = match verb {
        cli::Settings::Show => out.client.get("/v1/settings")?,
        cli::Settings::Set(o) => {
            let change = SettingsChange {
                server_name: o.server_name,
                comment: o.comment,
                signing_required: o.signing_required,
                encryption_required: o.encryption_required,
                multichannel: o.multichannel,
                connections_max: o.connections_max,
                sessions_max: o.sessions_max,
                opens_max: o.opens_max,
                volume_cache_bytes: o.volume_cache,
                session_lifetime_seconds: o.session_lifetime_seconds,
                machine_sid: o.machine_sid,
            };
            if change == SettingsChange::default() {
                return Err(AdminError::invalid("nothing to change", "see `arden settings set --help`"));
            }
            out.client.patch("/v1/settings", &change)?
        }
    };
    out.show(&settings, fields);
    Ok(())
}

fn status(out: &Out) -> Result<()> {
    let status: StatusInfo = out.client.get("/v1/status")?;
    out.show(&status, fields);
    Ok(())
}

/// An element of a list: a text, or what is wrong with a share.
fn in_words(value: &serde_json::Value) -> String {
    let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_string();
    if value.is_object() { format!("{}: {}", text(&value["share"]), text(&value["problem"])) } else { text(value) }
}

/// One line `name  value` for each field.
fn fields<T: Serialize>(value: &T) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    let mut t = Table::plain();
    for (name, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            serde_json::Value::String(s) => s.clone(),
            serde_json::Value::Array(a) => a.iter().map(in_words).collect::<Vec<_>>().join(", "),
            other => other.to_string(),
        };
        t.row([name.replace('_', " "), text]);
    }
    t.text("")
}

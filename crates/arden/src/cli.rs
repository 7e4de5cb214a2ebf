//! The grammar of the command line: a noun, then a verb, each with an example.

use std::{net::SocketAddr, path::PathBuf};

use arden_admin::model::{Grant, Rights};
use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: the daemon or its disk could not do it
  2  the command line or a value in it is wrong
  3  no daemon answers in the state directory
  4  there is no such user, group, share, session or open
  5  it exists already
  6  the present state forbids it

Example:
  arden serve --listen 0.0.0.0:445 &
  arden user add alice
  arden share add docs --dir /srv/docs --allow alice:change";

/// A file server for SMB 2 and 3.
#[derive(Debug, Parser)]
#[command(name = "arden", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// State directory [default: /var/lib/arden for root, else ~/.local/state/arden]
    #[arg(long, global = true, env = "ARDEN_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Answer in JSON, including errors (on stderr)
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub noun: Noun,
}

#[derive(Debug, Subcommand)]
pub enum Noun {
    /// Run the daemon until Ctrl-C or SIGTERM
    #[command(
        after_help = "Example:\n  arden --state /var/lib/arden serve --listen 0.0.0.0:445\n  arden serve --demo /tmp/demo"
    )]
    Serve(Serve),
    /// Manage users
    #[command(subcommand, after_help = "Example:\n  arden user add alice")]
    User(User),
    /// Manage groups, for access lists of shares and ACLs of files
    #[command(subcommand, after_help = "Example:\n  arden group add staff\n  arden group member add staff alice")]
    Group(Group),
    /// Manage shares: directories that clients can connect to
    #[command(subcommand, after_help = "Example:\n  arden share add docs --dir /srv/docs")]
    Share(Share),
    /// List or end sessions of clients
    #[command(subcommand, after_help = "Example:\n  arden session list\n  arden session close --user mallory")]
    Session(Session),
    /// List or close open files
    #[command(subcommand, after_help = "Example:\n  arden open list")]
    Open(Live),
    /// Show or change settings of the whole server
    #[command(subcommand, after_help = "Example:\n  arden settings set --encryption-required")]
    Settings(Settings),
    /// Manage files and block devices as disks
    #[command(subcommand, after_help = "Example:\n  arden disk list /dev/sdb /srv/disk1.img")]
    Disk(crate::storage::Disk),
    /// Manage pools: disks joined, with room for spaces
    #[command(subcommand, after_help = "Example:\n  arden pool create tank /dev/sdb /dev/sdc /dev/sdd")]
    Pool(crate::storage::PoolVerb),
    /// Make a cluster of machines that reach the same disks, and join it
    #[command(
        subcommand,
        after_help = "Example:\n  arden cluster init FILES --etcd http://10.0.0.1:2379\n  arden cluster show"
    )]
    Cluster(crate::cluster::ClusterVerb),
    /// Show the nodes of the cluster, and whether they reach each other
    #[command(subcommand, after_help = "Example:\n  arden node list")]
    Node(crate::cluster::NodeVerb),
    /// Manage floating addresses: each is at the node of the cluster that owns its pool
    #[command(
        subcommand,
        after_help = "Example:\n  arden address add 10.0.0.50/24 --interface eth0 --pool tank\n  arden address list"
    )]
    Address(crate::cluster::AddressVerb),
    /// Manage spaces: resilient virtual disks in a pool
    #[command(
        subcommand,
        after_help = "Example:\n  arden space create vm --pool tank --layout parity --size 1t\n  arden space export vm --nbd unix:/run/vm.sock"
    )]
    Space(crate::storage::SpaceVerb),
    /// Manage volumes: Arden's own file system, on a space or a file
    #[command(
        subcommand,
        after_help = "Example:\n  arden volume create docs --space vm\n  arden share add docs --volume docs --ca"
    )]
    Volume(crate::volumes::VolumeVerb),
    /// Manage quotas of users and folders of a volume
    #[command(subcommand, after_help = "Example:\n  arden quota set docs --user alice --hard 10g")]
    Quota(crate::volumes::QuotaVerb),
    /// Manage snapshots of a volume, which clients see as previous versions
    #[command(
        subcommand,
        after_help = "Example:\n  arden snapshot create docs\n  arden snapshot schedule docs hourly --every 1h --keep 24"
    )]
    Snapshot(crate::volumes::SnapshotVerb),
    /// Manage jobs of pools: scrub, repair, rebalance, emptying a disk
    #[command(subcommand, after_help = "Example:\n  arden job list")]
    Job(crate::storage::JobVerb),
    /// Measure files, disks, spaces and the shares of any SMB server, and the cost of safety
    #[command(
        subcommand,
        after_help = "Example:\n  arden lab run database --target /srv/test --outstanding 1,8..64\n  arden lab run streaming --target smb://alice@files/docs"
    )]
    Lab(arden_lab::cli::args::Verb),
    /// Show the state of the daemon
    #[command(after_help = "Example:\n  arden status --json")]
    Status,
    /// Show counters as Prometheus text
    #[command(after_help = "Example:\n  arden metrics | grep requests")]
    Metrics,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Address that clients connect to; may be given several times
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:445")]
    pub listen: Vec<SocketAddr>,
    /// In a cluster: TCP port of the endpoint mapper, by which clients find the witness service; 0: no witness
    #[arg(long, value_name = "PORT", default_value_t = 135)]
    pub endpoint_mapper: u16,
    /// In a cluster: TCP port of the witness service; 0: any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub witness: u16,
    /// Address that the other nodes of a cluster connect to, by mutual TLS; only nodes listen there [default: 0.0.0.0:7445]
    #[arg(long, value_name = "ADDR:PORT")]
    pub cluster_listen: Option<SocketAddr>,
    /// Level of the log: error, warn, info, debug, trace; also for modules: info,arden_smb=debug
    #[arg(long, env = "ARDEN_LOG", value_name = "LEVEL", default_value = "info")]
    pub log: String,
    /// Keep a mirrored volume on disk files in DIR, share it as `demo`, continuously available, with a user of the same
    /// name, and print how to connect. Without this option a daemon that is started at a terminal and has nothing to
    /// serve does so in the directory `demo` of its state directory
    #[arg(long, value_name = "DIR")]
    pub demo: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Password {
    /// The password; other users of this machine may see it while the command runs
    #[arg(long, value_name = "PW")]
    pub password: Option<String>,
    /// Read the password from the first line of standard input (the default when that is not a terminal)
    #[arg(long, conflicts_with = "password")]
    pub password_stdin: bool,
}

#[derive(Debug, Subcommand)]
pub enum User {
    /// Add a user; asks for the password when none is given
    #[command(
        after_help = "Example:\n  arden user add alice --full-name 'Alice Example' --group staff\n  echo secret | arden user add bob"
    )]
    Add {
        name: String,
        #[command(flatten)]
        password: Password,
        /// Full name of the person
        #[arg(long, default_value = "")]
        full_name: String,
        /// Make the user a member; may be given several times
        #[arg(long)]
        group: Vec<String>,
        /// Add the user without the right to log on
        #[arg(long)]
        disabled: bool,
    },
    /// List users
    #[command(after_help = "Example:\n  arden user list --json")]
    List,
    /// Remove a user and end the user's sessions
    #[command(after_help = "Example:\n  arden user remove bob")]
    Remove { name: String },
    /// Change a user's password and end the user's sessions
    #[command(after_help = "Example:\n  arden user passwd alice")]
    Passwd {
        name: String,
        #[command(flatten)]
        password: Password,
    },
    /// Change a user's full name, or disable the user
    #[command(after_help = "Example:\n  arden user set bob --disabled=true")]
    Set {
        name: String,
        /// Full name of the person
        #[arg(long)]
        full_name: Option<String>,
        /// Disable the user, which ends the user's sessions
        #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        disabled: Option<bool>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Group {
    /// Add a group
    #[command(after_help = "Example:\n  arden group add staff --comment 'Everybody on the payroll'")]
    Add {
        name: String,
        #[arg(long, default_value = "")]
        comment: String,
    },
    /// List groups and their members
    #[command(after_help = "Example:\n  arden group list")]
    List,
    /// Remove a group and end its members' sessions: clients log on again by themselves, without it
    #[command(after_help = "Example:\n  arden group remove staff")]
    Remove { name: String },
    /// Add or remove members of a group
    #[command(subcommand, after_help = "Example:\n  arden group member add staff alice")]
    Member(Member),
}

#[derive(Debug, Subcommand)]
pub enum Member {
    /// Make a user a member. The user's sessions have the group at once; open files keep the access that they were
    /// granted
    #[command(after_help = "Example:\n  arden group member add staff alice")]
    Add { group: String, user: String },
    /// Remove a member and end the user's sessions: clients log on again by themselves, without the group
    #[command(after_help = "Example:\n  arden group member remove staff alice")]
    Remove { group: String, user: String },
}

/// Parses `who:rights` of --allow and --deny.
fn grant(text: &str) -> Result<Grant, String> {
    let (who, rights) = text.rsplit_once(':').ok_or("write it as user:rights, for example alice:change")?;
    let rights: Rights = rights.parse()?;
    if who.is_empty() {
        return Err("the user or group in front of the colon is missing".to_string());
    }
    Ok(Grant { who: who.to_string(), rights })
}

#[derive(Debug, Subcommand)]
pub enum Share {
    /// Share a directory. One that holds, or is part of, files of the system or of Arden needs --force
    #[command(
        after_help = "Example:\n  arden share add docs --dir /srv/docs --encrypt --allow staff:change --allow boss:full --deny guest:read"
    )]
    Add {
        name: String,
        #[command(flatten)]
        options: Box<AddShare>,
    },
    /// List shares
    #[command(after_help = "Example:\n  arden share list --json")]
    List,
    /// Change a share; options that are not given stay as they are. Lists (--allow, --deny) are replaced as a whole.
    /// The change takes effect at once: open files with more access than their users then have are closed, and users
    /// without any access and clients that do not encrypt are disconnected
    #[command(
        after_help = "Example:\n  arden share set docs --read-only\n  arden share set docs --encrypt=false --allow staff:change"
    )]
    Set {
        name: String,
        #[command(flatten)]
        options: Box<SetShare>,
    },
    /// Remove a share and disconnect its users; the files stay
    #[command(after_help = "Example:\n  arden share remove docs")]
    Remove { name: String },
}

#[derive(Debug, Args)]
pub struct AddShare {
    /// Directory to share
    #[arg(long, value_name = "PATH", required_unless_present = "volume")]
    pub dir: Option<PathBuf>,
    /// Volume to share, instead of a directory
    #[arg(long, value_name = "VOLUME", conflicts_with = "dir")]
    pub volume: Option<String>,
    /// Directory of the volume
    #[arg(long, value_name = "PATH", requires = "volume", default_value = "/")]
    pub path: PathBuf,
    /// Comment in share lists
    #[arg(long, default_value = "")]
    pub comment: String,
    /// Let nobody write
    #[arg(long)]
    pub read_only: bool,
    /// Require every request to be encrypted
    #[arg(long)]
    pub encrypt: bool,
    /// Make every change durable before it is acknowledged
    #[arg(long)]
    pub write_through: bool,
    /// Continuously available: as --write-through, and open handles outlive the daemon
    #[arg(long)]
    pub ca: bool,
    /// In a cluster: a scale-out share, whose clients cache reads alone
    #[arg(long)]
    pub scale_out: bool,
    /// Leave the share out of share lists
    #[arg(long)]
    pub hidden: bool,
    /// Leave entries that the caller may not read out of directory listings
    #[arg(long)]
    pub access_based_enumeration: bool,
    /// Rights of a user or group: read, change or full. Without any: every user, full
    #[arg(long, value_name = "USER:RIGHTS", value_parser = grant)]
    pub allow: Vec<Grant>,
    /// Denied rights of a user or group; takes precedence over --allow
    #[arg(long, value_name = "USER:RIGHTS", value_parser = grant)]
    pub deny: Vec<Grant>,
    /// Limit of concurrent users
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub users_max: Option<u32>,
    /// Also share a directory that holds, or is part of, files of the system or of Arden
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct SetShare {
    /// Directory to share
    #[arg(long, value_name = "PATH")]
    pub dir: Option<PathBuf>,
    /// Comment in share lists
    #[arg(long)]
    pub comment: Option<String>,
    /// Let nobody write
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub read_only: Option<bool>,
    /// Require every request to be encrypted
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub encrypt: Option<bool>,
    /// Make every change durable before it is acknowledged
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub write_through: Option<bool>,
    /// Continuously available: as --write-through, and open handles outlive the daemon
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ca: Option<bool>,
    /// In a cluster: a scale-out share, whose clients cache reads alone
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub scale_out: Option<bool>,
    /// Leave the share out of share lists
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub hidden: Option<bool>,
    /// Leave entries that the caller may not read out of directory listings
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub access_based_enumeration: Option<bool>,
    /// Rights of a user or group: read, change or full
    #[arg(long, value_name = "USER:RIGHTS", value_parser = grant)]
    pub allow: Vec<Grant>,
    /// Denied rights of a user or group; takes precedence over --allow
    #[arg(long, value_name = "USER:RIGHTS", value_parser = grant)]
    pub deny: Vec<Grant>,
    /// Empty the list of --allow: every user, full
    #[arg(long, conflicts_with = "allow")]
    pub clear_allow: bool,
    /// Empty the list of --deny
    #[arg(long, conflicts_with = "deny")]
    pub clear_deny: bool,
    /// Limit of concurrent users; 0 for none
    #[arg(long, value_name = "N")]
    pub users_max: Option<u32>,
    /// Also share a directory that holds, or is part of, files of the system or of Arden
    #[arg(long, requires = "dir")]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum Session {
    /// List sessions
    #[command(after_help = "Example:\n  arden session list --json")]
    List,
    /// End a session, or all sessions of a user; their open files are closed. Clients log on again by themselves: to
    /// keep a user out, disable the user with `arden user set NAME --disabled`, which ends the sessions too
    #[command(after_help = "Example:\n  arden session close 4f00000001\n  arden session close --user mallory")]
    Close {
        /// As `list` shows it
        #[arg(required_unless_present = "user")]
        id: Option<String>,
        /// All sessions of this user
        #[arg(long, value_name = "NAME", conflicts_with = "id")]
        user: Option<String>,
    },
    /// In a cluster: tell a client to go to another node. Clients that have registered with the witness service, under this
    /// name or from this address, are told; others are not
    #[command(after_help = "Example:\n  arden session move CLIENT01.example.org --to n2")]
    Move {
        /// Name of the client as it registered, or its address
        client: String,
        /// Name of the node
        #[arg(long, value_name = "NODE")]
        to: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Live {
    /// List open files
    #[command(after_help = "Example:\n  arden open list --json")]
    List,
    /// Close an open file; its locks and caching are released
    #[command(after_help = "Example:\n  arden open close 1a")]
    Close {
        /// Id as `list` shows it
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Settings {
    /// Show all settings
    #[command(after_help = "Example:\n  arden settings show --json")]
    Show,
    /// Change settings; options that are not given stay as they are
    #[command(after_help = "Example:\n  arden settings set --server-name FILES --encryption-required=false\n  \
        arden settings set --session-lifetime-seconds 28800\n  \
        arden settings set --volume-cache 4g\n  \
        arden settings set --machine-sid S-1-5-21-1004336348-1177238915-682003330")]
    Set(SetSettings),
}

#[derive(Debug, Args)]
pub struct SetSettings {
    /// NetBIOS name, at most 15 characters; empty: the host's name
    #[arg(long)]
    pub server_name: Option<String>,
    /// Comment in server lists
    #[arg(long)]
    pub comment: Option<String>,
    /// Require clients to sign
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub signing_required: Option<bool>,
    /// Require clients to encrypt, which SMB before 3.0 cannot
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub encryption_required: Option<bool>,
    /// Allow several connections for one session
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub multichannel: Option<bool>,
    /// Time after which sessions have to authenticate again, which clients do by themselves; 0: never
    #[arg(long, value_name = "SECONDS")]
    pub session_lifetime_seconds: Option<u32>,
    /// SID of the server that this one replaces; only while there are no users and no groups but the built-in ones
    #[arg(long, value_name = "SID")]
    pub machine_sid: Option<String>,
    /// Limit of TCP connections
    #[arg(long, value_name = "N")]
    pub connections_max: Option<u32>,
    /// Limit of sessions
    #[arg(long, value_name = "N")]
    pub sessions_max: Option<u32>,
    /// Limit of open files and directories
    #[arg(long, value_name = "N")]
    pub opens_max: Option<u32>,
    /// Memory for blocks and metadata of volumes, at least 32m; 0: an eighth of the machine's memory
    #[arg(long, value_name = "SIZE", value_parser = crate::storage::bytes)]
    pub volume_cache: Option<u64>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn walk(command: &clap::Command, path: &str, seen: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Example:"), "{path} has no example");
        assert!(command.get_about().is_some(), "{path} does not say what it does");
        for example in help.lines().filter(|l| l.trim().starts_with("arden")) {
            let line = example.trim().trim_end_matches('&').split('|').next().unwrap();
            let words = words(line);
            if let Err(e) = Cli::try_parse_from(&words) {
                panic!("the example {line:?} of {path} does not parse: {e}");
            }
        }
        seen.push(path.clone());
        for sub in command.get_subcommands() {
            walk(sub, &path, seen);
        }
    }

    /// Splits a line as a shell does, single quotes included.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        parts
            .flat_map(|(i, part)| {
                let whole = vec![part.to_string()];
                if i % 2 == 1 { whole } else { part.split_whitespace().map(String::from).collect() }
            })
            .collect()
    }

    #[test]
    fn every_command_has_an_example_that_parses() {
        Cli::command().debug_assert();
        let mut seen = Vec::new();
        walk(&Cli::command(), "", &mut seen);
        assert!(seen.len() > 25, "{seen:?}");
    }

    #[test]
    fn grants_are_user_and_rights() {
        assert_eq!(grant("a:b:read").unwrap(), Grant { who: "a:b".into(), rights: Rights::Read });
        assert!(grant("alice").is_err() && grant("alice:write").is_err() && grant(":read").is_err());
    }
}

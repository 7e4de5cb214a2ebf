//! Quotas on the command line: the grammar, the requests to the daemon, and the form of its answers.

use arden_admin::{
    client::segment,
    error::Result,
    volume::{NewQuota, QuotaInfo, QuotaKind, QuotaSubject},
};
use clap::{Args, Subcommand};

use crate::{
    commands::Out,
    storage::{bytes, size},
    table::Table,
};

#[derive(Debug, Args)]
pub struct Whose {
    /// A user, a group or a SID: counts the files that it owns
    #[arg(long, required_unless_present_any = ["folder", "default"], conflicts_with_all = ["folder", "default"])]
    user: Option<String>,
    /// A directory, from the volume's root: counts the files below it
    #[arg(long, conflicts_with = "default")]
    folder: Option<String>,
    /// All users without a quota of their own
    #[arg(long)]
    default: bool,
}

#[derive(Debug, Subcommand)]
pub enum QuotaVerb {
    /// Limit a user or a folder; a limit that is not given is removed
    #[command(
        after_help = "Example:\n  arden quota set docs --user alice --soft 8g --hard 10g\n  arden quota set docs --folder /projects --hard 1t"
    )]
    Set {
        volume: String,
        #[command(flatten)]
        whose: Whose,
        /// Limit whose excess is logged
        #[arg(long, value_parser = bytes)]
        soft: Option<u64>,
        /// Limit that is never exceeded: writes beyond it fail as on a full volume
        #[arg(long, value_parser = bytes)]
        hard: Option<u64>,
    },
    /// List the usage and the limits of users and folders
    #[command(after_help = "Example:\n  arden quota list docs --json")]
    List { volume: String },
    /// Remove a limit
    #[command(after_help = "Example:\n  arden quota remove docs --user alice")]
    Remove {
        volume: String,
        #[command(flatten)]
        whose: Whose,
    },
}

/// Runs a command on quotas.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn run(out: &Out, verb: QuotaVerb) -> Result<()> {
    let path = |name: &str| format!("/v1/volumes/{}/quotas", segment(name));
    match verb {
        QuotaVerb::Set { volume, whose, soft, hard } => {
            let new = NewQuota { user: whose.user, folder: whose.folder, soft_bytes: soft, hard_bytes: hard };
            let q: QuotaInfo = out.client.put_body(&path(&volume), &new)?;
            out.show(&[q], |all| table(all));
        }
        QuotaVerb::List { volume } => {
            let all: Vec<QuotaInfo> = out.client.get(&path(&volume))?;
            out.show(&all, |all| table(all));
        }
        QuotaVerb::Remove { volume, whose } => {
            let of = QuotaSubject { user: whose.user, folder: whose.folder };
            out.client.send_only("POST", &format!("{}/remove", path(&volume)), &of)?;
            out.done("quota removed".into());
        }
    }
    Ok(())
}

fn table(all: &[QuotaInfo]) -> String {
    let text = |n: Option<u64>| n.map_or("none".to_string(), size);
    let mut t = Table::new(&["OF", "NAME", "USED", "SOFT", "HARD"]);
    for q in all {
        let kind = match q.kind {
            QuotaKind::Default => "default",
            QuotaKind::User => "user",
            QuotaKind::Folder => "folder",
        };
        t.row([kind.into(), q.name.clone(), size(q.used_bytes), text(q.soft_bytes), text(q.hard_bytes)]);
    }
    t.text("nothing is counted; `arden quota set VOLUME --user NAME --hard 10g` begins to")
}

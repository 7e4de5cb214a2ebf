//! What strangers and users can make the server keep in memory, measured: one test at a time, so that nobody else's counts.

use arden_testkit::client;

use client::*;

mod held;

static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Nobody else measures meanwhile.
fn alone() -> parking_lot::MutexGuard<'static, ()> {
    ALONE.lock()
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Three connections that begin as many logons as they can, each with as much in it as fits.
#[test]
fn logons_under_way_are_few_and_small() {
    let _alone = alone();
    let lab = Lab::new();
    let initiator = || {
        let mut i = arden_auth::initiator::Initiator::new(USER, "", PASSWORD);
        i.spnego = false;
        i.first()
    };
    let token = |len: usize| {
        let mut token = initiator();
        token.resize(len.max(token.len()), 0);
        token
    };
    let (large, largest_taken) = (token(60_000), token(1024));
    let mut clients: Vec<Client> = (0..3).map(|_| lab.connect()).collect();
    for c in &mut clients {
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        c.logon(&logon(USER));
        c.session = None;
    }
    let before = resident_bytes();
    let mut begun = 0;
    for _ in 0..2000 {
        for c in &mut clients {
            for token in [&large, &largest_taken] {
                let status = c.status(&session_setup(0, 1, 0, token).session(0));
                begun += usize::from(status == NtStatus::MORE_PROCESSING_REQUIRED);
                c.sent.clear();
            }
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    println!("{begun} logons begun, {grown} bytes more");
    assert_eq!(begun, 3 * lab.server.trees.config.limits.setups_per_connection_max);
    assert!(grown < 4 << 20, "{grown} bytes for {begun} logons");
}

//! What strangers and users can make the server keep in memory, measured: one test at a time, so that nobody else's counts.

use arden_testkit::client;

use client::*;

mod held;

const MESSAGE_BYTES: usize = 8 << 20;

static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Nobody else measures meanwhile. The allocator is as in a server that has run for a while: once a large block was given back, blocks
/// up to its size are taken from what the allocator keeps, and not each from the system.
fn alone() -> parking_lot::MutexGuard<'static, ()> {
    let alone = ALONE.lock();
    drop(std::hint::black_box(vec![1u8; MESSAGE_BYTES + (1 << 16)]));
    alone
}

/// Resident memory of this process, in bytes, without what the allocator keeps and nobody uses: how much that is depends on which
/// thread freed it.
fn resident_bytes() -> usize {
    arden_block::memory::give_back_freed();
    resident_bytes_with_freed()
}

/// Resident memory of this process, in bytes.
fn resident_bytes_with_freed() -> usize {
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

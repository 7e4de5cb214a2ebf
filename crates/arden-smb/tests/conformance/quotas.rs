//! Quotas of a volume over SMB: SMB2_0_INFO_QUOTA, [MS-SMB2] 3.3.5.20.4 and 3.3.5.21.4, FileFsControlInformation, and
//! what is left of a quota as the free space that its user sees, [MS-FSA] 2.1.5.13.7.

use std::sync::Arc;

use arden_auth::UserDb;
use arden_store::{
    fs::Fs,
    quota::{NONE, control},
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, dtyp::Sid, dtyp::well_known};

use crate::client::*;

const MB: u64 = 1 << 20;

/// A lab whose share `volume` lies on a volume.
pub fn lab() -> (Lab, Arc<Volume>) {
    on_volume(Lab::new())
}

pub fn on_volume(lab: Lab) -> (Lab, Arc<Volume>) {
    let device = Arc::new(MemDevice::new(64 << 20));
    Volume::format(&*device, "q", 3, FileTime(1)).unwrap();
    let vol = Volume::open(device, VolumeOptions { background: false, ..VolumeOptions::default() }).unwrap();
    let fs = Fs::new(VolumeStore::new(vol.clone(), Durability::Plain), lab.server.trees.table.clone());
    lab.server.trees.set_shares(vec![share("volume", &fs)]);
    (lab, vol)
}

pub fn client(lab: &Lab, user: &str) -> Client {
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(user));
    c.connect("volume");
    c
}

fn ask(
    c: &mut Client,
    id: FileId,
    (single, restart): (bool, bool),
    sids: &[u8],
    max: u32,
) -> Result<Vec<u8>, NtStatus> {
    let mut input = vec![u8::from(single), u8::from(restart), 0, 0];
    input.put_u32(sids.len() as u32);
    input.put_u64(0);
    input.extend_from_slice(sids);
    c.call(&query_info(id, info_type::QUOTA, 0, 0, &input, max)).result().map(|r| r.buffer().to_vec())
}

fn asking_for(sid: &Sid) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(0);
    out.put_u32(sid.encoded_len() as u32);
    out.extend_from_slice(&sid.encode());
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn quota(sid: &Sid, threshold: u64, limit: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(0);
    out.put_u32(sid.encoded_len() as u32);
    out.put_zeros(16);
    out.put_u64(threshold);
    out.put_u64(limit);
    out.extend_from_slice(&sid.encode());
    out
}

/// SID, used, threshold, limit of each entry.
fn entries(data: &[u8]) -> Vec<(Sid, u64, u64, u64)> {
    let (mut out, mut at) = (Vec::new(), 0);
    loop {
        let d = &data[at..];
        let sid = Sid::parse(&d[40..40 + le_u32(d, 4) as usize]).unwrap();
        out.push((sid, le_u64(d, 16), le_u64(d, 24), le_u64(d, 32)));
        match le_u32(d, 0) {
            0 => return out,
            next => at += next as usize,
        }
    }
}

fn set_quota(c: &mut Client, id: FileId, data: &[u8]) -> NtStatus {
    c.status(&set_info(id, info_type::QUOTA, 0, 0, data))
}

/// As `smbcquotas` does it.
#[test]
fn quotas_are_reached_over_their_file_of_ntfs() {
    const INDEX: &str = "$Extend\\$Quota:$Q:$INDEX_ALLOCATION";
    let (lab, _) = lab();
    let mut admin = client(&lab, USER);
    let f = admin.open(want(INDEX).existing().access(0x2_019F));
    let sid = lab.users.machine_sid().with_rid(1001);
    assert_eq!(set_quota(&mut admin, f.id, &quota(&sid, MB, 2 * MB)), NtStatus::SUCCESS);
    let all = entries(&ask(&mut admin, f.id, (false, true), &[], 4096).unwrap());
    assert!(all.contains(&(sid.clone(), 0, MB, 2 * MB)), "{all:?}");
    assert_eq!(admin.try_query_fs(f.id, fs_class::CONTROL, 48).map(|c| c.len()), Ok(48));
    let g = admin.open(want(&INDEX.to_lowercase()).existing().access(0x2_019F));
    assert_eq!(ask(&mut admin, g.id, (false, true), &asking_for(&sid), 4096).map(|d| entries(&d).len()), Ok(1));
    // One who does not manage the volume changes nothing over it, and sees himself.
    let mut other = client(&lab, OTHER);
    let f = other.open(want(INDEX).existing().access(FILE_READ_DATA));
    assert_eq!(set_quota(&mut other, f.id, &quota(&sid, NONE, NONE)), NtStatus::ACCESS_DENIED);
    assert_eq!(entries(&ask(&mut other, f.id, (false, true), &[], 4096).unwrap()).len(), 1);
    // A directory has no quotas.
    let lab = Lab::new();
    assert!(lab.client().try_open(&want(INDEX).existing()).is_err());
}

#[test]
fn quotas_are_set_listed_kept_and_deleted() {
    let (lab, vol) = lab();
    let mut admin = client(&lab, USER);
    let root = admin.open(want("").directory()).id;
    assert_eq!(ask(&mut admin, root, (false, true), &[], 4096), Err(NtStatus::NO_MORE_ENTRIES));
    let mut other = client(&lab, OTHER);
    other.put("mine", &[1; 5000]);
    let begin = [[0; 24].as_slice(), &NONE.to_le_bytes(), &NONE.to_le_bytes(), &[2, 0, 0, 0, 0, 0, 0, 0]].concat();
    let control_of = |c: &mut Client| c.try_query_fs(root, fs_class::CONTROL, 48).unwrap();
    assert_eq!(le_u32(&control_of(&mut admin), 40), 0, "nothing is counted yet");
    let set = set_info(root, info_type::FILE_SYSTEM, fs_class::CONTROL, 0, &begin);
    assert_eq!(admin.status(&set), NtStatus::SUCCESS);
    assert_eq!(control_of(&mut admin), begin);
    // What was there before is counted.
    let me = vol.user_quotas().unwrap().into_iter().find(|(s, _)| *s != *well_known::BUILTIN_ADMINISTRATORS).unwrap().0;
    assert_eq!(set_quota(&mut admin, root, &quota(&me, MB, 2 * MB)), NtStatus::SUCCESS);
    let all = entries(&ask(&mut admin, root, (false, true), &[], 4096).unwrap());
    assert!(all.contains(&(me.clone(), 8192, MB, 2 * MB)), "{all:?}");
    // From where the last one ended, and only one.
    let first = entries(&ask(&mut admin, root, (true, true), &[], 4096).unwrap());
    assert_eq!(first, all[..1]);
    let rest = ask(&mut admin, root, (false, false), &[], 4096);
    assert_eq!(rest.map(|r| entries(&r)).unwrap_or_default(), all[1..]);
    assert_eq!(ask(&mut admin, root, (false, false), &[], 4096), Err(NtStatus::NO_MORE_ENTRIES));
    assert_eq!(ask(&mut admin, root, (false, true), &[], 20), Err(NtStatus::BUFFER_TOO_SMALL));
    assert_eq!(ask(&mut admin, root, (false, true), &[1, 2, 3], 4096), Err(NtStatus::INVALID_PARAMETER));
    // A SID without an entry is answered with zeros.
    let unknown = Sid::new(5, &[21, 9, 9, 9, 9]);
    let answer = entries(&ask(&mut admin, root, (false, true), &asking_for(&unknown), 4096).unwrap());
    assert_eq!(answer, [(unknown.clone(), 0, 0, 0)]);
    // One who does not manage the volume sees himself and changes nothing.
    let root = other.open(want("").directory().access(FILE_READ_DATA | FILE_READ_ATTRIBUTES)).id;
    assert_eq!(entries(&ask(&mut other, root, (false, true), &[], 4096).unwrap()).len(), 1);
    assert_eq!(ask(&mut other, root, (false, true), &asking_for(&unknown), 4096), Err(NtStatus::ACCESS_DENIED));
    assert_eq!(set_quota(&mut other, root, &quota(&me, NONE, NONE)), NtStatus::ACCESS_DENIED);
    // The limit is kept, and what is left of it is what he sees as free.
    let f = other.open(want("more"));
    other.write(f.id, 0, &vec![7; MB as usize]);
    assert_eq!(other.try_write(f.id, MB, &vec![7; MB as usize]), Err(NtStatus::DISK_FULL));
    let full = other.try_query_fs(f.id, fs_class::FULL_SIZE, 32).unwrap();
    assert_eq!((le_u64(&full, 0), le_u64(&full, 8)), (2 * MB / 4096, (MB - 8192) / 4096));
    assert!(le_u64(&full, 16) > 20 * MB / 4096, "what is really free stays");
    let size = other.try_query_fs(f.id, fs_class::SIZE, 24).unwrap();
    assert_eq!((le_u64(&size, 0), le_u64(&size, 8)), (2 * MB / 4096, (MB - 8192) / 4096));
    assert!(vol.check(false).unwrap().is_clean());
}

#[test]
fn deleting_an_entry_and_what_cannot_be_set() {
    let (lab, _) = lab();
    let mut admin = client(&lab, USER);
    let root = admin.open(want("").directory()).id;
    let sid = Sid::new(5, &[21, 9, 9, 9, 9]);
    let deleted = u64::MAX - 1;
    assert_eq!(set_quota(&mut admin, root, &quota(&sid, NONE, deleted)), NtStatus::NO_MATCH);
    assert_eq!(set_quota(&mut admin, root, &quota(&sid, MB, MB)), NtStatus::SUCCESS);
    assert_eq!(set_quota(&mut admin, root, &quota(&sid, NONE, deleted)), NtStatus::SUCCESS);
    assert_eq!(set_quota(&mut admin, root, &quota(&sid, NONE, deleted)), NtStatus::NO_MATCH);
    assert_eq!(set_quota(&mut admin, root, &quota(&sid, MB, 1 << 63)), NtStatus::INVALID_PARAMETER);
    assert_eq!(set_quota(&mut admin, root, &[]), NtStatus::INVALID_PARAMETER);
    let admins = quota(&well_known::BUILTIN_ADMINISTRATORS, NONE, MB);
    assert_eq!(set_quota(&mut admin, root, &admins), NtStatus::ACCESS_DENIED);
    let control = admin.try_query_fs(root, fs_class::CONTROL, 48).unwrap();
    assert_eq!(le_u32(&control, 40) & (control::TRACK | control::ENFORCE), control::ENFORCE);
}

/// A token of copy offload holds data that nobody else may have any more: it counts for the user who has the token.
#[test]
fn what_only_tokens_hold_counts() {
    let (lab, vol) = lab();
    let other = lab.users.machine_sid().with_rid(1001);
    vol.set_user_quota(&other, NONE, 4 * MB).unwrap();
    let mut c = client(&lab, OTHER);
    let fill = |c: &mut Client, name: &str| {
        let f = c.open(want(name).delete_on_close()).id;
        let written = c.try_write(f, 0, &vec![7; 3 * MB as usize / 2]);
        let held = written.is_ok().then(|| crate::offload::try_token(c, f, 300_000, 0, 3 * MB / 2));
        c.close(f);
        vol.room();
        (written.err(), held)
    };
    assert!(matches!(fill(&mut c, "one"), (None, Some(Ok(_)))));
    assert_eq!(vol.user_quota(&other).unwrap().unwrap().used_bytes, 3 * MB / 2, "the file is deleted");
    // There is room for another file, and not for its token too: its client copies by itself.
    assert_eq!(fill(&mut c, "two"), (None, Some(Err(NtStatus(0xC000_A2A3)))));
    lab.pass(std::time::Duration::from_secs(301));
    vol.room();
    assert!(matches!(fill(&mut c, "three"), (None, Some(Ok(_)))));
    vol.room();
    assert_eq!(vol.user_quota(&other).unwrap().unwrap().used_bytes, 3 * MB / 2);
    // Of somebody else's file it counts for who reads.
    let mut admin = client(&lab, USER);
    let f = admin.open(want("theirs")).id;
    admin.write(f, 0, &vec![7; MB as usize]);
    let g = c.open(want("theirs").existing().access(FILE_READ_DATA)).id;
    crate::offload::token(&mut c, g, 300_000, 0, MB);
    assert_eq!(vol.user_quota(&other).unwrap().unwrap().used_bytes, 5 * MB / 2);
    assert!(vol.check(false).unwrap().is_clean());
}

//! Schemas of disks, pools, spaces and jobs for the OpenAPI document.

use serde_json::{Value, json};

use crate::openapi::{count, flag, list, object, reference, text};

fn one_of(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names})
}

fn optional(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

const MEDIA: &[&str] = &["unknown", "rotating", "ssd", "nvme"];
const HEALTH: &[&str] = &["whole", "degraded", "offline"];

pub(crate) fn schemas() -> Vec<(&'static str, Value)> {
    let mut all = disk_schemas();
    all.extend(pool_schemas());
    all.extend(space_schemas());
    all.extend(job_schemas());
    all.extend(volume_schemas());
    all.extend(upkeep_schemas());
    all.extend(snapshot_schemas());
    all
}

fn disk_schemas() -> Vec<(&'static str, Value)> {
    let paths = || list(text());
    vec![
        (
            "Disk",
            object(&[
                ("path", text(), "File or block device"),
                ("size_bytes", count(), "Whole blocks of 4096"),
                ("media", one_of(MEDIA), "From the system, or set by hand"),
                ("model", text(), "From the system, or set by hand"),
                ("serial", text(), "From the system, or set by hand"),
                ("content", text(), "What is recognisably on it"),
                ("in_use", text(), "Who uses it; empty when nobody does"),
                ("pool", text(), "Pool whose label it carries"),
            ]),
        ),
        ("DiskQuery", object(&[("disks", paths(), "Absolute paths; none: all that are known")])),
        (
            "DiskLabel",
            object(&[
                ("disk", text(), "Absolute path"),
                ("model?", text(), "Empty: what the system says"),
                ("serial?", text(), "Empty: what the system says"),
                ("media?", one_of(&["", "unknown", "rotating", "ssd", "nvme"]), "Empty: what the system says"),
            ]),
        ),
        ("DiskWipe", object(&[("disk", text(), "Absolute path"), ("force?", flag(), "Also when something is on it")])),
        (
            "AddDisk",
            object(&[
                ("disk", text(), "Absolute path"),
                ("hot_spare?", flag(), "Stands by until another disk fails"),
                ("force?", flag(), "Also when something is on it"),
            ]),
        ),
        ("PoolDiskChange", object(&[("retire", flag(), "True: it is emptied; false: it stays")])),
    ]
}

fn pool_schemas() -> Vec<(&'static str, Value)> {
    let paths = || list(text());
    let levels = || json!({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 100}});
    let disk = object(&[
        ("index", count(), "Number within the pool"),
        ("path", text(), "Where it was when it joined"),
        ("state", one_of(&["active", "spare", "retiring", "missing"]), "What it is there for"),
        ("size_bytes", count(), "Of the disk"),
        ("slabs", count(), "In all"),
        ("slabs_free", count(), "Of them"),
        ("read_errors", count(), "Since the pool was opened"),
        ("write_errors", count(), "Since the pool was opened"),
        ("latency_us", count(), "Of reads, smoothed"),
        ("slow", flag(), "Far slower than its peers; avoided for reads"),
    ]);
    let work = object(&[
        ("what", text(), "resync, repair, drain, rebalance or scrub"),
        ("done", count(), "Steps"),
        ("total", count(), "Steps; 0 when nobody knows"),
    ]);
    let pool = object(&[
        ("name", text(), "Of the pool"),
        ("id", text(), "As on its disks' labels"),
        ("state", one_of(&["open", "closed"]), "Whether it serves"),
        ("reason", text(), "Why it is closed"),
        ("epoch", count(), "Openings so far"),
        ("slab_bytes", count(), "Unit of allocation"),
        ("total_bytes", count(), "Raw"),
        ("free_bytes", count(), "Raw"),
        ("warning_percent", count(), "The highest level that is reached; 0 when none is"),
        ("warn_percent", levels(), "Levels that warn"),
        ("grace_seconds", count(), "How long a missing disk is waited for"),
        ("health", one_of(HEALTH), "Of its worst space"),
        ("disks", list(reference("PoolDisk")), "Members"),
        ("spaces", list(reference("Space")), "Cut from it"),
        ("work", list(reference("Work")), "What goes on in the background"),
        ("events", list(text()), "What happened since it was opened, newest last"),
    ]);
    vec![
        ("PoolDisk", disk),
        ("Work", work),
        ("Pool", pool),
        (
            "NewPool",
            object(&[
                ("name", text(), "1 to 64 bytes"),
                ("disks", paths(), "Absolute paths"),
                ("hot_spares?", paths(), "Stand by until a disk fails"),
                ("force?", flag(), "Also when something is on a disk"),
            ]),
        ),
        (
            "PoolImport",
            object(&[
                ("disks", paths(), "Disks, or directories of disk files; none: every block device"),
                ("name?", text(), "Which pool, when disks of several are found"),
                ("discard?", paths(), "Disks whose separate history may be thrown away"),
            ]),
        ),
        (
            "PoolChange",
            object(&[
                ("name?", text(), "New name"),
                ("grace_seconds?", count(), "How long a missing disk is waited for"),
                ("warn_percent?", levels(), "Three levels, ascending"),
            ]),
        ),
    ]
}

fn space_schemas() -> Vec<(&'static str, Value)> {
    let layouts = || one_of(&["simple", "mirror2", "mirror3", "parity", "dual-parity"]);
    let space = object(&[
        ("pool", text(), "It is cut from"),
        ("name", text(), "Of the space"),
        ("id", count(), "Within the pool"),
        ("layout", layouts(), "How it survives lost disks"),
        ("columns", count(), "Of a stripe, parity included"),
        ("interleave_bytes", count(), "Of one column in a stripe"),
        ("size_bytes", count(), "As a disk"),
        ("provision", one_of(&["thin", "fixed"]), "When slabs are taken"),
        ("health", one_of(HEALTH), "Offline: some of it cannot be read and written now"),
        ("groups", count(), "Slab groups"),
        ("groups_allocated", count(), "That have slabs"),
        ("groups_degraded", count(), "That miss something"),
        ("groups_offline", count(), "That miss too much"),
        ("allocated_bytes", count(), "Raw bytes of its slabs"),
        ("up_to_date_percent", count(), "Columns that are here and up to date"),
        ("missing", list(count()), "Disks that it lies on and that are away"),
        ("nbd", text(), "Where it is exported"),
        ("used_by", text(), "Who else uses it"),
    ]);
    let column = object(&[
        ("disk", count(), "Index in the pool"),
        ("slab", count(), "Number on that disk"),
        ("state", one_of(&["whole", "stale", "missing"]), "Of what it holds"),
        ("moving_to", optional("integer"), "Disk that takes its place"),
    ]);
    vec![
        ("Space", space),
        (
            "NewSpace",
            object(&[
                ("name", text(), "1 to 64 bytes, no other space has it"),
                ("layout", layouts(), "How it survives lost disks"),
                ("columns?", count(), "Absent: by the number of disks"),
                ("interleave_bytes?", count(), "A power of two from 64 KiB to 1 MiB; absent: 256 KiB"),
                ("size_bytes?", count(), "Absent: all the room that there is"),
                ("fixed?", flag(), "Slabs are taken now"),
            ]),
        ),
        ("SpaceChange", object(&[("size_bytes", count(), "Not less than now")])),
        ("NewExport", object(&[("nbd", text(), "unix:PATH, or ADDR:PORT of a loopback address")])),
        ("Column", column),
        ("GroupMap", object(&[("group", count(), "Number"), ("columns", list(reference("Column")), "In order")])),
    ]
}

fn job_schemas() -> Vec<(&'static str, Value)> {
    let kinds = || one_of(&["scrub", "repair", "rebalance", "remove-disk"]);
    let job = object(&[
        ("id", count(), "Number"),
        ("pool", text(), "It works on"),
        ("kind", kinds(), "What it does"),
        ("disk", optional("integer"), "Which it empties"),
        ("state", one_of(&["running", "paused", "done", "failed", "cancelled"]), "Now"),
        ("done", count(), "Steps of the present part"),
        ("total", count(), "Steps; 0 while nobody knows"),
        ("result", text(), "What came of it"),
    ]);
    vec![
        ("Job", job),
        ("NewJob", object(&[("kind", kinds(), "What to do"), ("disk?", count(), "remove-disk: which")])),
        ("JobChange", object(&[("paused", flag(), "Stop, or go on")])),
    ]
}

fn volume_schemas() -> Vec<(&'static str, Value)> {
    let volume = object(&[
        ("name", text(), "Of its own"),
        ("device", text(), "What it lies on"),
        ("closed_because", text(), "Empty while it is open"),
        ("id", text(), "Given when it was made"),
        ("total_bytes", count(), "Of the device"),
        ("free_bytes", count(), "Not promised to any file"),
        ("last_access", one_of(&["never", "relative", "always"]), "When reading moves a file's last access"),
        ("shares", list(text()), "That are on it"),
    ]);
    let place =
        || [("space?", text(), "The whole of a space"), ("file?", text(), "Absolute path of a file or block device")];
    let mut new = vec![("name", text(), "Of its own")];
    let record = object(&[&new[..], &place()[..]].concat());
    new.extend(place());
    new.push(("size_bytes?", count(), "Make the file, of this size"));
    new.push(("force?", flag(), "Also where something lies already"));
    let check = object(&[
        ("errors", list(text()), "Empty when all is as it should be"),
        ("files", count(), "Seen"),
        ("directories", count(), "Seen"),
        ("streams", count(), "Named ones"),
        ("extents", count(), "Seen"),
        ("data_bytes", count(), "In blocks of files"),
        ("shared_bytes", count(), "Of them, with several users"),
        ("tree_bytes", count(), "In metadata"),
    ]);
    vec![
        ("Volume", volume),
        ("VolumeRecord", record),
        ("NewVolume", object(&new)),
        ("NewCheck", object(&[("data?", flag(), "Also read all data")])),
        ("VolumeCheck", check),
    ]
}

fn upkeep_schemas() -> Vec<(&'static str, Value)> {
    let change = object(&[
        ("grow?", flag(), "Take in what the device has become larger by"),
        ("size_bytes?", count(), "With grow, on a regular file: make that longer first"),
        ("last_access?", one_of(&["never", "relative", "always"]), "When reading moves a file's last access"),
    ]);
    let repair = object(&[
        ("done", list(text()), "What was wrong and what was done, or would be"),
        ("left", list(text()), "What is not safe to do anything about"),
    ]);
    let damage = object(&[
        ("path", text(), "From the volume's root, the stream behind a colon; empty: metadata"),
        ("offset", count(), "In bytes"),
        ("len", count(), "In bytes"),
    ]);
    let scrub = object(&[
        ("state", one_of(&["never", "running", "done", "stopped", "failed"]), "Of the present one, or the last"),
        ("done_bytes", count(), "Read"),
        ("total_bytes", count(), "To be read"),
        ("healed_blocks", count(), "Written anew from another copy"),
        ("damaged_blocks", count(), "That no copy holds"),
        ("damage", list(reference("Damage")), "Where they are"),
        ("error", text(), "Why it failed"),
    ]);
    let subject = [("user?", text(), "A user, group or SID"), ("folder?", text(), "Path from the volume's root")];
    let limits = [("soft_bytes?", count(), "Logged when passed"), ("hard_bytes?", count(), "Never passed")];
    let limit = || json!({"type": ["integer", "null"], "minimum": 0});
    let quota = object(&[
        ("kind", one_of(&["default", "user", "folder"]), "Whose"),
        ("name", text(), "The user's name, or the folder's path"),
        ("used_bytes", count(), "Allocated"),
        ("soft_bytes", limit(), "Logged when passed"),
        ("hard_bytes", limit(), "Never passed"),
    ]);
    vec![
        ("Quota", quota),
        ("NewQuota", object(&[&subject[..], &limits[..]].concat())),
        ("QuotaSubject", object(&subject)),
        ("VolumeChange", change),
        ("VolumeDelete", object(&[("force?", flag(), "Also while shares are on it: they are removed")])),
        ("NewRepair", object(&[("dry_run?", flag(), "Only say what would be done")])),
        ("VolumeRepair", repair),
        ("NewScrub", object(&[("bytes_per_second?", count(), "0: as fast as it goes")])),
        ("VolumeScrub", scrub),
        ("Damage", damage),
    ]
}

fn snapshot_schemas() -> Vec<(&'static str, Value)> {
    let snapshot = object(&[
        ("time", text(), "As clients see it: @GMT-YYYY.MM.DD-HH.MM.SS"),
        ("label", text(), "Given when it was made; @ and a schedule's name for those that it made"),
        ("only_bytes", count(), "Data that would become free if it went"),
    ]);
    let schedule = object(&[
        ("name", text(), "Of its own"),
        ("every_seconds", count(), "One snapshot in each interval of this length"),
        ("keep", count(), "How many of its snapshots stay"),
    ]);
    vec![
        ("Snapshot", snapshot),
        ("NewSnapshot", object(&[("label?", text(), "For people")])),
        ("SnapshotSchedule", schedule),
    ]
}

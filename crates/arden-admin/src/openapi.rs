//! The API's routes as one table, and the OpenAPI 3.1 document made from it. The router is built from the
//! same table; a test sends a request to every row and compares the answers with the schemas here.

use axum::http::Method;
use serde_json::{Value, json};

use crate::openapi_storage;

/// What a successful answer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    One(&'static str),
    List(&'static str),
    /// 204.
    Nothing,
    Text,
    /// This document.
    Document,
}

#[derive(Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub operation: &'static str,
    pub summary: &'static str,
    /// Schema of the request's body.
    pub body: Option<&'static str>,
    pub answer: Answer,
    /// Statuses of errors that belong to this operation; 500 belongs to all.
    pub errors: &'static [u16],
}

impl Route {
    pub fn method(&self) -> Method {
        Method::from_bytes(self.method.as_bytes()).unwrap_or(Method::GET)
    }

    pub fn success(&self) -> u16 {
        match (self.method, self.answer) {
            (_, Answer::Nothing) => 204,
            ("POST", One(_)) => 201,
            _ => 200,
        }
    }
}

const fn get(
    path: &'static str,
    operation: &'static str,
    summary: &'static str,
    answer: Answer,
    errors: &'static [u16],
) -> Route {
    Route { method: "GET", path, operation, summary, body: None, answer, errors }
}

const fn change(
    method: &'static str,
    path: &'static str,
    operation: &'static str,
    summary: &'static str,
    body: Option<&'static str>,
    answer: Answer,
    errors: &'static [u16],
) -> Route {
    Route { method, path, operation, summary, body, answer, errors }
}

use Answer::{Document, List, Nothing, One, Text};

#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    get("/v1/status", "status", "The daemon and its server at a glance", One("Status"), &[]),
    get("/v1/settings", "settings", "What holds for the whole server", One("Settings"), &[]),
    change("PATCH", "/v1/settings", "changeSettings", "Change settings; absent fields stay", Some("SettingsChange"), One("Settings"), &[400, 409]),
    get("/v1/users", "users", "All users", List("User"), &[]),
    change("POST", "/v1/users", "addUser", "Add a user", Some("NewUser"), One("User"), &[400, 404, 409]),
    get("/v1/users/{name}", "user", "One user", One("User"), &[404]),
    change("PATCH", "/v1/users/{name}", "changeUser", "Change password, full name or whether the user is disabled; a new password or disabling ends his sessions", Some("UserChange"), One("User"), &[400, 404]),
    change("DELETE", "/v1/users/{name}", "removeUser", "Remove a user and end his sessions", None, Nothing, &[404]),
    change("DELETE", "/v1/users/{name}/sessions", "closeUserSessions", "End all sessions of a user and what they have open", None, One("SessionsClosed"), &[404]),
    get("/v1/groups", "groups", "All groups with their members", List("Group"), &[]),
    change("POST", "/v1/groups", "addGroup", "Add a group", Some("NewGroup"), One("Group"), &[400, 409]),
    get("/v1/groups/{name}", "group", "One group", One("Group"), &[404]),
    change("DELETE", "/v1/groups/{name}", "removeGroup", "Remove a group and end its members' sessions", None, Nothing, &[404, 409]),
    change("PUT", "/v1/groups/{name}/members/{user}", "addMember", "Make a user a member; his sessions go on with the group", None, One("Group"), &[404]),
    change("DELETE", "/v1/groups/{name}/members/{user}", "removeMember", "Take a member out and end his sessions", None, One("Group"), &[404]),
    get("/v1/shares", "shares", "All shares", List("Share"), &[]),
    change("POST", "/v1/shares", "addShare", "Add a share; a directory of the system or of Arden needs force", Some("Share"), One("Share"), &[400, 409]),
    get("/v1/shares/{name}", "share", "One share", One("Share"), &[404]),
    change("PATCH", "/v1/shares/{name}", "changeShare", "Change a share; absent fields stay. What clients have open becomes what the share allows by then", Some("ShareChange"), One("Share"), &[400, 404, 409]),
    change("DELETE", "/v1/shares/{name}", "removeShare", "Remove a share and disconnect its users; the files stay", None, Nothing, &[404]),
    get("/v1/sessions", "sessions", "Authenticated sessions", List("Session"), &[]),
    change("DELETE", "/v1/sessions/{id}", "closeSession", "End a session and everything it has open", None, Nothing, &[400, 404]),
    get("/v1/opens", "opens", "Open files and directories", List("Open"), &[]),
    change("DELETE", "/v1/opens/{id}", "closeOpen", "Close an open against its client's will", None, Nothing, &[400, 404]),
    get("/v1/disks", "disks", "Block devices, and the disks of known pools", List("Disk"), &[]),
    change("POST", "/v1/disks/look", "lookAtDisks", "What is known of certain files or block devices", Some("DiskQuery"), List("Disk"), &[400]),
    change("PATCH", "/v1/disks", "labelDisk", "Set model, serial or media of a disk by hand", Some("DiskLabel"), One("Disk"), &[400]),
    change("POST", "/v1/disks/wipe", "wipeDisk", "Take a disk's label away", Some("DiskWipe"), Nothing, &[400, 409]),
    get("/v1/pools", "pools", "All pools with their disks and spaces", List("Pool"), &[]),
    change("POST", "/v1/pools", "createPool", "Make a pool of disks", Some("NewPool"), One("Pool"), &[400, 409]),
    change("PUT", "/v1/pools", "importPool", "Find a pool by the labels of its disks", Some("PoolImport"), One("Pool"), &[400, 404, 409]),
    get("/v1/pools/{name}", "pool", "One pool", One("Pool"), &[404]),
    change("PATCH", "/v1/pools/{name}", "changePool", "Rename a pool, or change its grace time or warning levels", Some("PoolChange"), One("Pool"), &[400, 404, 409]),
    change("DELETE", "/v1/pools/{name}", "forgetPool", "Close a pool and forget it; its disks stay as they are", None, Nothing, &[404, 409]),
    change("POST", "/v1/pools/{name}/disks", "addDisk", "Add a disk", Some("AddDisk"), One("Pool"), &[400, 404, 409]),
    change("PATCH", "/v1/pools/{name}/disks/{disk}", "changeDisk", "Mark a disk for emptying, or keep it", Some("PoolDiskChange"), One("Pool"), &[400, 404, 409]),
    change("POST", "/v1/pools/{name}/jobs", "startJob", "Scrub, repair, rebalance, or empty a disk and take it out", Some("NewJob"), One("Job"), &[400, 404, 409]),
    get("/v1/jobs", "jobs", "Long work, finished work of late included", List("Job"), &[]),
    get("/v1/jobs/{id}", "job", "One job", One("Job"), &[400, 404]),
    change("PATCH", "/v1/jobs/{id}", "changeJob", "Pause or go on; it holds for all background work of the pool", Some("JobChange"), One("Job"), &[400, 404, 409]),
    change("DELETE", "/v1/jobs/{id}", "cancelJob", "Stop a job for good", None, Nothing, &[400, 404, 409]),
    get("/v1/spaces", "spaces", "The spaces of all open pools", List("Space"), &[]),
    change("POST", "/v1/pools/{name}/spaces", "createSpace", "Cut a space from a pool", Some("NewSpace"), One("Space"), &[400, 404, 409]),
    get("/v1/pools/{name}/spaces/{space}", "space", "One space", One("Space"), &[404]),
    get("/v1/pools/{name}/spaces/{space}/map", "spaceMap", "On which slabs a space lies", List("GroupMap"), &[404]),
    change("PATCH", "/v1/pools/{name}/spaces/{space}", "growSpace", "Make a space larger, in use", Some("SpaceChange"), One("Space"), &[400, 404, 409]),
    change("DELETE", "/v1/pools/{name}/spaces/{space}", "deleteSpace", "Delete a space and what is on it", None, Nothing, &[404, 409]),
    change("PUT", "/v1/pools/{name}/spaces/{space}/export", "exportSpace", "Serve a space as an NBD disk, after restarts too", Some("NewExport"), One("Space"), &[400, 404, 409]),
    change("DELETE", "/v1/pools/{name}/spaces/{space}/export", "unexportSpace", "End an export and hang up on its clients", None, One("Space"), &[404]),
    get("/v1/volumes", "volumes", "Volumes that this daemon opens", List("Volume"), &[]),
    change("POST", "/v1/volumes", "createVolume", "Format a space or a file", Some("NewVolume"), One("Volume"), &[400, 404, 409]),
    change("PUT", "/v1/volumes", "attachVolume", "Open a volume that exists", Some("VolumeRecord"), One("Volume"), &[400, 404, 409]),
    get("/v1/volumes/{name}", "volume", "One volume", One("Volume"), &[404]),
    change("DELETE", "/v1/volumes/{name}", "forgetVolume", "Close a volume and forget it; what is on it stays", None, Nothing, &[404, 409]),
    change("PUT", "/v1/volumes/{name}/check", "checkVolume", "Look at every structure and count", Some("NewCheck"), One("VolumeCheck"), &[400, 404, 409]),
    change("PATCH", "/v1/volumes/{name}", "changeVolume", "Grow to the device's new size in use, or say when reading moves times", Some("VolumeChange"), One("Volume"), &[400, 404, 409]),
    change("POST", "/v1/volumes/{name}/delete", "deleteVolume", "Forget a volume and overwrite what leads to its content", Some("VolumeDelete"), Nothing, &[400, 404, 409]),
    change("PUT", "/v1/volumes/{name}/repair", "repairVolume", "Mend what is safe to mend, or say what that would be", Some("NewRepair"), One("VolumeRepair"), &[400, 404, 409]),
    change("PUT", "/v1/volumes/{name}/scrub", "startVolumeScrub", "Begin to read every copy of everything and heal it", Some("NewScrub"), One("VolumeScrub"), &[400, 404, 409]),
    get("/v1/volumes/{name}/scrub", "volumeScrub", "How far the scrub is, or what the last one found", One("VolumeScrub"), &[404]),
    change("DELETE", "/v1/volumes/{name}/scrub", "stopVolumeScrub", "End the scrub", None, Nothing, &[404]),
    get("/v1/volumes/{name}/quotas", "quotas", "What users and folders of a volume have and may have", List("Quota"), &[404]),
    change("PUT", "/v1/volumes/{name}/quotas", "setQuota", "Limit a user, a folder, or all users without a limit of their own", Some("NewQuota"), One("Quota"), &[400, 404, 409]),
    change("POST", "/v1/volumes/{name}/quotas/remove", "removeQuota", "Take a limit away", Some("QuotaSubject"), Nothing, &[400, 404]),
    get("/v1/volumes/{name}/snapshots", "snapshots", "Snapshots of a volume, oldest first", List("Snapshot"), &[404, 409]),
    change("POST", "/v1/volumes/{name}/snapshots", "createSnapshot", "Keep a volume as it is now", Some("NewSnapshot"), One("Snapshot"), &[400, 404, 409]),
    change("DELETE", "/v1/volumes/{name}/snapshots/{time}", "deleteSnapshot", "Take a snapshot away and free what only it held", None, Nothing, &[404, 409]),
    get("/v1/volumes/{name}/snapshot-schedules", "snapshotSchedules", "When snapshots are made, and how many are kept", List("SnapshotSchedule"), &[404]),
    change("PUT", "/v1/volumes/{name}/snapshot-schedules", "setSnapshotSchedule", "Add or change a schedule", Some("SnapshotSchedule"), One("SnapshotSchedule"), &[400, 404]),
    change("DELETE", "/v1/volumes/{name}/snapshot-schedules/{schedule}", "removeSnapshotSchedule", "Make no more of these; those that there are stay", None, Nothing, &[404]),
    get("/v1/metrics", "metrics", "Metrics as Prometheus text", Text, &[]),
    get("/metrics", "prometheus", "The same where Prometheus looks for it", Text, &[]),
    get("/v1/openapi.json", "openapi", "This document", Document, &[]),
];

/// The OpenAPI 3.1 description.
pub fn document() -> Value {
    let mut paths = serde_json::Map::new();
    for route in ROUTES {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method.to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Arden",
            "summary": "Administration of an Arden file server",
            "description": "HTTP/1.1 on the Unix socket api.sock in the daemon's state directory.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"}
        },
        "servers": [{"url": "http://localhost"}],
        "paths": paths,
        "components": {"schemas": schemas()},
    })
}

pub(crate) fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn operation(route: &Route) -> Value {
    let json_of = |schema: Value| json!({"application/json": {"schema": schema}});
    let mut success = json!({"description": route.summary});
    match route.answer {
        One(name) => success["content"] = json_of(reference(name)),
        List(name) => success["content"] = json_of(json!({"type": "array", "items": reference(name)})),
        Text => success["content"] = json!({"text/plain": {"schema": {"type": "string"}}}),
        Document => success["content"] = json_of(json!({"type": "object"})),
        Nothing => {}
    }
    let mut responses = serde_json::Map::new();
    responses.insert(route.success().to_string(), success);
    for status in route.errors.iter().chain(&[500]) {
        let description = match status {
            400 => "The request cannot be meant that way",
            404 => "There is no such thing",
            409 => "It exists already, or the present state forbids it",
            _ => "The daemon or its disk failed",
        };
        responses
            .insert(status.to_string(), json!({"description": description, "content": json_of(reference("Error"))}));
    }
    let mut out = json!({"operationId": route.operation, "summary": route.summary, "responses": responses});
    if let Some(body) = route.body {
        out["requestBody"] = json!({"required": true, "content": json_of(reference(body))});
    }
    let parameters: Vec<Value> = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    out
}

/// `fields`: name, type, description. A `?` behind the type's name marks what may be absent from a request.
pub(crate) fn object(fields: &[(&str, Value, &str)]) -> Value {
    let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
    for (name, schema, description) in fields {
        let optional = name.ends_with('?');
        let name = name.trim_end_matches('?');
        let mut schema = schema.clone();
        schema["description"] = (*description).into();
        properties.insert(name.to_string(), schema);
        if !optional {
            required.push(name);
        }
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

pub(crate) fn text() -> Value {
    json!({"type": "string"})
}
pub(crate) fn flag() -> Value {
    json!({"type": "boolean"})
}
pub(crate) fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}
pub(crate) fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn schemas() -> Value {
    let mut all = json!({
        "Error": object(&[
            ("kind", json!({"type": "string", "enum": ["invalid", "not-found", "exists", "conflict", "not-running", "failed"]}), "Whose fault"),
            ("error", text(), "What is wrong"),
            ("hint", text(), "What to do about it"),
        ]),
        "Status": object(&[
            ("version", text(), "Of the daemon"),
            ("pid", count(), "Process id"),
            ("uptime_seconds", count(), "Since the daemon started"),
            ("listen", list(text()), "address:port that clients connect to"),
            ("server_name", text(), "NetBIOS name"),
            ("server_guid", text(), "ServerGuid of the negotiation"),
            ("machine_sid", text(), "SID that local accounts start with"),
            ("shares", count(), "Configured"),
            ("users", count(), "Known"),
            ("sessions", count(), "Authenticated"),
            ("opens", count(), "Open files and directories"),
            ("memory_bytes", count(), "Resident"),
        ]),
        "Grant": object(&[
            ("who", text(), "A user, a group, everyone, or a SID"),
            ("rights", json!({"type": "string", "enum": ["read", "change", "full"]}), "At most this"),
        ]),
        "Session": object(&[
            ("id", text(), "Hexadecimal"),
            ("user", text(), "Who logged on"),
            ("client", text(), "address:port of the first channel"),
            ("dialect", json!({"type": "string", "enum": ["2.0.2", "2.1", "3.0", "3.0.2", "3.1.1"]}), "Negotiated"),
            ("signing", text(), "Algorithm; empty when not signed"),
            ("encryption", text(), "Cipher; empty when not encrypted"),
            ("channels", count(), "Connections bound to the session"),
            ("opens", count(), "Open files and directories"),
            ("age_seconds", count(), "Since the logon"),
            ("idle_seconds", count(), "Since the last request"),
        ]),
        "SessionsClosed": object(&[("closed", count(), "Sessions that were ended")]),
        "Open": object(&[
            ("id", text(), "Hexadecimal"),
            ("session", json!({"type": ["string", "null"]}), "Null while a durable open waits for its client"),
            ("user", text(), "Who opened it"),
            ("client", text(), "address:port of the session's first channel; empty while the open waits for its client"),
            ("share", text(), "Name of the share"),
            ("path", text(), "Relative to the share, with backslashes"),
            ("access", count(), "Granted access mask"),
            ("cache", text(), "Oplock or lease that is held"),
            ("durable", flag(), "Survives a lost connection"),
            ("locks", count(), "Byte-range locks held"),
        ]),
    });
    for (name, schema) in account_schemas().into_iter().chain(share_schemas()).chain(openapi_storage::schemas()) {
        all[name] = schema;
    }
    all
}

fn account_schemas() -> Vec<(&'static str, Value)> {
    let user = [
        ("name", text(), "Compared without case"),
        ("full_name", text(), "For people"),
        ("sid", text(), "Stays with the account"),
        ("groups", list(text()), "Names of groups"),
        ("disabled", flag(), "Cannot log on"),
    ];
    let new_user = [
        ("name", text(), "At most 20 characters"),
        ("password", text(), "Only its NT hash is stored"),
        ("full_name?", text(), "For people"),
        ("groups?", list(text()), "Names of groups to join"),
        ("disabled?", flag(), "Cannot log on"),
    ];
    let user_change = [
        ("password?", text(), "Ends the user's sessions"),
        ("full_name?", text(), "For people"),
        ("disabled?", flag(), "Ends the user's sessions"),
    ];
    let group = [
        ("name", text(), "Compared without case"),
        ("comment", text(), "For people"),
        ("sid", text(), "Stays with the account"),
        ("builtin", flag(), "Made by Arden; cannot be removed"),
        ("members", list(text()), "Users, by name"),
    ];
    let new_group = [("name", text(), "Shares its names with users"), ("comment?", text(), "For people")];
    vec![
        ("User", object(&user)),
        ("NewUser", object(&new_user)),
        ("UserChange", object(&user_change)),
        ("Group", object(&group)),
        ("NewGroup", object(&new_group)),
    ]
}

fn share_schemas() -> Vec<(&'static str, Value)> {
    let grants = || list(reference("Grant"));
    let options = |limit: Value, optional: &[(&str, Value, &str)]| {
        let mut fields = optional.to_vec();
        fields.extend([
            ("comment?", text(), "Shown in share lists"),
            ("read_only?", flag(), "Nobody may write"),
            ("encrypt?", flag(), "Requests have to be encrypted"),
            ("write_through?", flag(), "Changes are on stable storage before they are acknowledged"),
            ("continuously_available?", flag(), "Also open handles outlive the daemon"),
            ("hidden?", flag(), "Left out of share lists"),
            ("access_based_enumeration?", flag(), "Listings leave out what the caller may not read"),
            ("allow?", grants(), "Empty: every authenticated user, full"),
            ("deny?", grants(), "Stronger than allow"),
            ("users_max?", limit, "Concurrent users"),
            (
                "force?",
                flag(),
                "Of a request: also a directory that holds, or is part of, what belongs to the system or to Arden",
            ),
        ]);
        object(&fields)
    };
    let share = [
        ("name", text(), "At most 80 characters; compared without case"),
        (
            "kind?",
            json!({"type": "string", "enum": ["dir", "volume"]}),
            "A directory of any Linux file system, or of a volume",
        ),
        ("volume?", text(), "The volume that the directory is on"),
        ("path", text(), "Absolute path of the directory, on a volume from its root"),
    ];
    let settings = [
        ("server_name", text(), "NetBIOS name; empty: the host's name"),
        ("comment", text(), "Shown in server lists"),
        ("signing_required", flag(), "Clients have to sign"),
        ("encryption_required", flag(), "Clients have to encrypt, which SMB before 3.0 cannot"),
        ("multichannel", flag(), "Several connections for one session"),
        ("session_lifetime_seconds", count(), "After this time sessions have to authenticate again; 0: never"),
        ("connections_max", count(), "TCP connections"),
        ("sessions_max", count(), "Sessions"),
        ("opens_max", count(), "Open files and directories"),
        ("machine_sid", text(), "SID that local accounts start with; it can be set while there are none"),
    ];
    let settings_change: Vec<_> = settings.iter().map(|(n, s, d)| (format!("{n}?"), s.clone(), *d)).collect();
    let settings_change: Vec<_> = settings_change.iter().map(|(n, s, d)| (n.as_str(), s.clone(), *d)).collect();
    vec![
        ("Share", options(json!({"type": ["integer", "null"], "minimum": 1}), &share)),
        (
            "ShareChange",
            options(json!({"type": "integer", "minimum": 0}), &[("path?", text(), "Absolute path of the directory")]),
        ),
        ("Settings", object(&settings)),
        ("SettingsChange", object(&settings_change)),
    ]
}

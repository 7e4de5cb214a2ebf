//! The requests to etcd that a node makes, by its JSON gateway, on a thread of their own. Refuses to know what the keys mean, and
//! never sends a transaction twice. Values are secret (password hashes are among them): no error and no log line has any.

use std::{future::Future, sync::Arc, thread, time::Duration};

use arden_admin::{AdminError, error::Result as AdminResult};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    etcd_tls::EtcdFiles,
    http::{Endpoints, HttpError, Lines},
};

/// A request by an administrator waits so long.
const WAIT: Duration = Duration::from_secs(5);

/// Why etcd did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdError {
    /// It was not asked, or it says that it did nothing.
    NotDone(String),
    /// No such lease.
    NoLease,
    /// It may have done it, or do it yet.
    Unknown(String),
}

impl std::fmt::Display for EtcdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EtcdError::NotDone(why) | EtcdError::Unknown(why) => f.write_str(why),
            EtcdError::NoLease => f.write_str("etcd does not know the lease"),
        }
    }
}

impl From<EtcdError> for AdminError {
    fn from(e: EtcdError) -> AdminError {
        AdminError::failed(format!("etcd: {e}"), "check that etcd runs and has a quorum, and the network to it")
    }
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: Vec<u8>,
    pub mod_revision: u64,
    pub lease: u64,
}

/// Keys as of one revision of etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    pub revision: u64,
    pub pairs: Vec<KeyValue>,
}

impl Found {
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.pairs.iter().find(|p| p.key == key)
    }
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum If {
    /// The key changed last at this revision; zero: it does not exist.
    Changed(String, u64),
    Has(String, Vec<u8>),
    OfLease(String, u64),
}

/// A step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Under the lease, when it is not zero.
    Put(String, Vec<u8>, u64),
    Delete(String),
}

/// The most steps that one transaction has: etcd takes 128, conditions included in that.
pub const STEPS_MAX: usize = 100;

fn key64(key: &str) -> String {
    BASE64.encode(key.as_bytes())
}

/// The end of the range of all keys that begin with `prefix`, which ends with a character below 0xff.
fn range_end(prefix: &str) -> String {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    BASE64.encode(&end)
}

/// Numbers of 64 bits are text in JSON, and zero is left out.
fn number(value: &Value, field: &str) -> u64 {
    match &value[field] {
        Value::String(s) => s.parse::<u64>().or_else(|_| s.parse::<i64>().map(|n| n as u64)).unwrap_or(0),
        other => other.as_u64().unwrap_or(0),
    }
}

fn text(value: &Value, field: &str) -> Option<Vec<u8>> {
    BASE64.decode(value[field].as_str().unwrap_or("")).ok()
}

fn pair(kv: &Value) -> Option<KeyValue> {
    Some(KeyValue {
        key: String::from_utf8(text(kv, "key")?).ok()?,
        value: text(kv, "value")?,
        mod_revision: number(kv, "mod_revision"),
        lease: number(kv, "lease"),
    })
}

fn condition(condition: &If) -> Value {
    match condition {
        If::Changed(key, revision) => {
            json!({"key": key64(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()})
        }
        If::Has(key, value) => {
            json!({"key": key64(key), "target": "VALUE", "result": "EQUAL", "value": BASE64.encode(value)})
        }
        If::OfLease(key, lease) => {
            json!({"key": key64(key), "target": "LEASE", "result": "EQUAL", "lease": lease.to_string()})
        }
    }
}

fn step(step: &Then) -> Value {
    match step {
        Then::Put(key, value, lease) => {
            let mut put = json!({"key": key64(key), "value": BASE64.encode(value)});
            if *lease != 0 {
                put["lease"] = lease.to_string().into();
            }
            json!({"request_put": put})
        }
        Then::Delete(key) => json!({"request_delete_range": {"key": key64(key)}}),
    }
}

/// What etcd says instead of an answer. The code is that of gRPC.
fn refusal(status: u16, body: &[u8]) -> EtcdError {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let why = value["message"].as_str().or(value["error"].as_str()).unwrap_or("no reason given").to_string();
    match value["code"].as_u64() {
        Some(5) if why.contains("lease") => EtcdError::NoLease,
        // Invalid argument, not found, permission denied, failed precondition, unauthenticated: nothing was done.
        Some(3 | 5 | 7 | 9 | 16) => EtcdError::NotDone(why),
        _ => EtcdError::Unknown(format!("{why} (status {status})")),
    }
}

/// etcd, by any of its endpoints.
#[derive(Debug)]
pub struct Etcd {
    endpoints: Endpoints,
    handle: Handle,
    /// Dropped: the thread ends.
    _stop: oneshot::Sender<()>,
}

impl Etcd {
    /// Starts the thread. Nothing is connected yet.
    ///
    /// # Errors
    /// Invalid, for a URL that is none or a file for TLS that is not usable; failed, when there is no thread.
    pub fn start(urls: &[String], tls: Option<&EtcdFiles>) -> AdminResult<Arc<Etcd>> {
        let hint = "write them as http://HOST:PORT, or https://HOST:PORT with --etcd-ca, separated by commas";
        let endpoints = Endpoints::new(urls, tls.cloned()).map_err(|e| AdminError::invalid(e, hint))?;
        if let Some(files) = tls {
            files.read().map_err(|e| AdminError::invalid(e, "check the files that were named for TLS to etcd"))?;
        }
        let no_thread = |e: std::io::Error| AdminError::failed(format!("no thread: {e}"), "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            let _ = runtime.block_on(stopped);
        };
        thread::Builder::new().name("arden-etcd".into()).spawn(run).map_err(no_thread)?;
        Ok(Arc::new(Etcd { endpoints, handle, _stop: stop }))
    }

    /// Of the thread on which requests run.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a request and waits for it. Not on etcd's own thread.
    pub fn wait<T: Send + 'static>(self: &Arc<Etcd>, ask: impl AsyncFnOnceSend<T>) -> Result<T, EtcdError> {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        let etcd = self.clone();
        self.handle.spawn(async move {
            let _ = tx.send(ask.call(etcd).await);
        });
        rx.recv().unwrap_or_else(|_| Err(EtcdError::Unknown("the thread for etcd has ended".to_string())))
    }

    async fn ask(&self, path: &str, body: &Value, wait: Duration) -> Result<Value, EtcdError> {
        let answer = self.endpoints.post(path, body.to_string().into_bytes(), wait).await;
        let (status, bytes) = answer.map_err(|e| match e {
            HttpError::NotSent(why) => EtcdError::NotDone(why),
            HttpError::NoAnswer(why) => EtcdError::Unknown(why),
        })?;
        if status != 200 {
            let error = refusal(status, &bytes);
            if matches!(error, EtcdError::Unknown(_)) {
                self.endpoints.pass_over();
            }
            return Err(error);
        }
        serde_json::from_slice(&bytes).map_err(|e| EtcdError::Unknown(format!("the answer is not understood: {e}")))
    }

    /// All keys that begin with `prefix`, and `key`, as of one revision: a linearizable read.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn read(&self, prefix: &str, key: &str, wait: Duration) -> Result<Found, EtcdError> {
        self.read_all(&[prefix.to_string()], key, wait).await
    }

    /// As [`Etcd::read`], with several prefixes of which none begins with another.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn read_all(&self, prefixes: &[String], key: &str, wait: Duration) -> Result<Found, EtcdError> {
        let range = |prefix: &String| json!({"key": key64(prefix), "range_end": range_end(prefix)});
        let mut ranges: Vec<Value> = prefixes.iter().map(|p| json!({"request_range": range(p)})).collect();
        ranges.push(json!({"request_range": {"key": key64(key)}}));
        let answer = self.ask("/v3/kv/txn", &json!({"success": ranges}), wait).await?;
        let unreadable = || EtcdError::Unknown("the answer to a read is not understood".to_string());
        let responses = answer["responses"].as_array().filter(|r| r.len() == ranges.len()).ok_or_else(unreadable)?;
        let lists = responses.iter().filter_map(|r| r["response_range"]["kvs"].as_array());
        let pairs = lists.flatten().map(|kv| pair(kv).ok_or_else(unreadable)).collect::<Result<_, _>>()?;
        match number(&answer["header"], "revision") {
            0 => Err(EtcdError::Unknown("the answer has no revision".to_string())),
            revision => Ok(Found { revision, pairs }),
        }
    }

    /// One atomic transaction. The revision at which it was applied; None: a condition did not hold.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn transact(&self, if_all: &[If], then: &[Then], wait: Duration) -> Result<Option<u64>, EtcdError> {
        let body = json!({
            "compare": if_all.iter().map(condition).collect::<Vec<_>>(),
            "success": then.iter().map(step).collect::<Vec<_>>(),
        });
        let answer = self.ask("/v3/kv/txn", &body, wait).await?;
        let revision = number(&answer["header"], "revision");
        Ok((answer["succeeded"] == true).then_some(revision))
    }

    /// A new lease, and the time to live that etcd gave it.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn grant(&self, ttl_seconds: u64, wait: Duration) -> Result<(u64, u64), EtcdError> {
        let answer = self.ask("/v3/lease/grant", &json!({"TTL": ttl_seconds.to_string()}), wait).await?;
        match (number(&answer, "ID"), number(&answer, "TTL")) {
            (0, _) => Err(EtcdError::Unknown("no lease in the answer".to_string())),
            granted => Ok(granted),
        }
    }

    /// The revision of the member that answers.
    ///
    /// # Errors
    /// See [`EtcdError`]; also when the lease has ended.
    pub async fn keep_alive(&self, lease: u64, wait: Duration) -> Result<u64, EtcdError> {
        let answer = self.ask("/v3/lease/keepalive", &json!({"ID": lease.to_string()}), wait).await?;
        match number(&answer["result"], "TTL") {
            0 if answer["result"].is_object() => Err(EtcdError::NoLease),
            0 => Err(EtcdError::Unknown("no answer about the lease".to_string())),
            _ => Ok(number(&answer["result"]["header"], "revision")),
        }
    }

    /// # Errors
    /// See [`EtcdError`].
    pub async fn revoke(&self, lease: u64, wait: Duration) -> Result<(), EtcdError> {
        self.ask("/v3/lease/revoke", &json!({"ID": lease.to_string()}), wait).await.map(drop)
    }

    /// The keys with `prefix` that change from now on, or that have changed from a revision on.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn watch(&self, prefix: &str, from: Option<u64>, wait: Duration) -> Result<Watch, EtcdError> {
        let mut create = json!({"key": key64(prefix), "range_end": range_end(prefix)});
        if let Some(from) = from {
            create["start_revision"] = from.to_string().into();
        }
        let body = json!({"create_request": create}).to_string().into_bytes();
        let lines = self.endpoints.stream("/v3/watch", body, wait).await;
        let lines = lines.map_err(|e| match e {
            HttpError::NotSent(why) | HttpError::NoAnswer(why) => EtcdError::NotDone(why),
        })?;
        Ok(Watch { lines })
    }

    /// As [`Etcd::read`], waiting.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn read_now(self: &Arc<Etcd>, prefix: &str, key: &str) -> Result<Found, EtcdError> {
        self.read_all_now(vec![prefix.to_string()], key)
    }

    /// As [`Etcd::read_all`], waiting.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn read_all_now(self: &Arc<Etcd>, prefixes: Vec<String>, key: &str) -> Result<Found, EtcdError> {
        let key = key.to_string();
        self.wait(move |etcd: Arc<Etcd>| async move { etcd.read_all(&prefixes, &key, WAIT).await })
    }

    /// Deletes all keys that begin with `prefix`; for tests.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn delete_now(self: &Arc<Etcd>, prefix: &str) -> Result<(), EtcdError> {
        let body = json!({"key": key64(prefix), "range_end": range_end(prefix)});
        self.wait(move |etcd: Arc<Etcd>| async move { etcd.ask("/v3/kv/deleterange", &body, WAIT).await.map(drop) })
    }

    /// Puts a key whatever there is; for tests.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn put_now(self: &Arc<Etcd>, key: &str, value: &[u8]) -> Result<(), EtcdError> {
        self.transact_now(Vec::new(), vec![Then::Put(key.to_string(), value.to_vec(), 0)]).map(drop)
    }

    /// As [`Etcd::transact`], waiting.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn transact_now(self: &Arc<Etcd>, if_all: Vec<If>, then: Vec<Then>) -> Result<Option<u64>, EtcdError> {
        self.wait(move |etcd: Arc<Etcd>| async move { etcd.transact(&if_all, &then, WAIT).await })
    }

    /// As [`Etcd::grant`], waiting.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn grant_now(self: &Arc<Etcd>, ttl_seconds: u64) -> Result<(u64, u64), EtcdError> {
        self.wait(move |etcd: Arc<Etcd>| async move { etcd.grant(ttl_seconds, WAIT).await })
    }
}

/// A request that runs on etcd's thread.
pub trait AsyncFnOnceSend<T>: Send + 'static {
    fn call(self, etcd: Arc<Etcd>) -> impl Future<Output = Result<T, EtcdError>> + Send;
}

impl<T, F, Fut> AsyncFnOnceSend<T> for F
where
    F: FnOnce(Arc<Etcd>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, EtcdError>> + Send,
{
    fn call(self, etcd: Arc<Etcd>) -> impl Future<Output = Result<T, EtcdError>> + Send {
        self(etcd)
    }
}

/// Changes as etcd tells of them.
pub struct Watch {
    lines: Lines,
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// It has begun, at this revision of etcd.
    Begun(u64),
    /// Keys that changed, each with its revision.
    Changed(Vec<(String, u64)>),
}

impl Watch {
    /// What comes next; may be waited for anew at any time. None: the watch has ended.
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            let line = self.lines.next().await.ok()??;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let value: Value = serde_json::from_slice(&line).ok()?;
            let result = value.get("result")?;
            if result["canceled"] == true {
                return None;
            }
            if result["created"] == true {
                return Some(Told::Begun(number(&result["header"], "revision")));
            }
            let events = result["events"].as_array().map(Vec::as_slice).unwrap_or_default();
            let change =
                |e: &Value| Some((String::from_utf8(text(&e["kv"], "key")?).ok()?, number(&e["kv"], "mod_revision")));
            return events.iter().map(change).collect::<Option<_>>().map(Told::Changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_text_and_zero_is_left_out() {
        let v = json!({"a": "7587869", "b": 5, "c": "-1"});
        assert_eq!((number(&v, "a"), number(&v, "b"), number(&v, "none")), (7_587_869, 5, 0));
        assert_eq!(number(&v, "c"), u64::MAX);
    }

    #[test]
    fn a_range_ends_behind_its_prefix() {
        assert_eq!(BASE64.decode(range_end("/a/")), Ok(b"/a0".to_vec()));
    }

    #[test]
    fn only_a_clear_no_counts_as_not_done() {
        let said = |code: u64, why: &str| refusal(400, json!({"code": code, "message": why}).to_string().as_bytes());
        assert_eq!(said(5, "etcdserver: requested lease not found"), EtcdError::NoLease);
        assert!(matches!(said(3, "etcdserver: key is not provided"), EtcdError::NotDone(_)));
        assert!(matches!(said(14, "etcdserver: request timed out"), EtcdError::Unknown(_)));
        assert!(matches!(refusal(502, b"<html>"), EtcdError::Unknown(_)));
    }
}

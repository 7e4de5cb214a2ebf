//! The Rust side of an adapter: requests as JSON lines on standard input, answers on standard output.

use std::{
    future::Future,
    io::{BufRead, Write},
};

pub use serde_json::{Value, json};

pub type Answer = Result<Value, Box<dyn std::error::Error + Send + Sync>>;

/// A client of one library. `ask` is given every request but `connect`.
pub trait Client: Sized {
    fn connect(request: &Value) -> impl Future<Output = Result<Self, Box<dyn std::error::Error + Send + Sync>>>;
    fn ask(&mut self, op: &str, request: &Value) -> impl Future<Output = Answer>;
}

/// The text of a request's field.
pub fn text<'a>(request: &'a Value, field: &str) -> &'a str {
    request[field].as_str().unwrap_or("")
}

pub fn number(request: &Value, field: &str) -> u64 {
    request[field].as_u64().unwrap_or(0)
}

/// Pairs of strings, as in `"puts": [[local, path]]`.
pub fn pairs(request: &Value, field: &str) -> Vec<(String, String)> {
    let pair = |p: &Value| (p[0].as_str().unwrap_or("").to_owned(), p[1].as_str().unwrap_or("").to_owned());
    request[field].as_array().map(|a| a.iter().map(pair).collect()).unwrap_or_default()
}

pub fn not_offered(what: &str) -> Answer {
    Ok(json!({ "na": format!("no {what}") }))
}

/// Answers requests until standard input ends.
pub async fn serve<C: Client>() {
    let mut client = None;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let request: Value = serde_json::from_str(&line).unwrap();
        let op = text(&request, "op").to_owned();
        let answer = match (&mut client, op.as_str()) {
            (_, "connect") => match C::connect(&request).await {
                Ok(c) => {
                    client = Some(c);
                    Ok(json!({}))
                }
                Err(e) => Err(e),
            },
            (Some(c), op) => c.ask(op, &request).await,
            (None, _) => Err("not connected".into()),
        };
        let answer = answer.unwrap_or_else(|e| json!({ "error": e.to_string() }));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}").and_then(|()| out.flush()).unwrap();
    }
}

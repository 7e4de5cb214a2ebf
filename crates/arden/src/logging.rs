//! Log lines on standard error, filtered by level and module. The filter has no regular expressions, which would take
//! memory in a small daemon.
//!
//! Names in log lines come from clients and disks. [`SafeFields`] writes all fields of all events: no name can be an
//! escape sequence of a terminal, another field, or another line.

use std::{
    fmt::{self, Debug},
    io::IsTerminal,
};

use arden_admin::{AdminError, error::Result};
use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    filter::{LevelFilter, Targets},
    fmt::{FormatFields, format::Writer},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::printable;

/// Starts logging to standard error.
///
/// # Errors
/// Invalid, when the filter is malformed.
pub fn init(spec: &str) -> Result<()> {
    let targets = targets(spec)?;
    let stderr = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(stderr).fmt_fields(SafeFields);
    let _ = tracing_subscriber::registry().with(lines).with(targets).try_init();
    Ok(())
}

/// The filter of a text. A word without a level, which would be a module with all of its lines, is taken for a mistyped level: with
/// that alone nothing else would be logged.
fn targets(spec: &str) -> Result<Targets> {
    let invalid = |error: String| {
        AdminError::invalid(
            format!("--log {spec:?}: {error}"),
            "use off, error, warn, info, debug or trace, or info,arden_smb=debug",
        )
    };
    let is_level = |word: &&str| word.is_empty() || word.contains('=') || word.parse::<LevelFilter>().is_ok();
    match spec.split(',').find(|word| !is_level(word)) {
        Some(word) => Err(invalid(format!("{word:?} is no level"))),
        None => spec.parse().map_err(|e| invalid(format!("{e}"))),
    }
}

/// Writes the message, and `name=value` for each field. Text is in quotes, other values when they have white space or
/// quotes. Control characters are escaped.
struct SafeFields;

impl<'a> FormatFields<'a> for SafeFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'a>, fields: R) -> fmt::Result {
        let mut visitor = FieldWriter { writer, first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct FieldWriter<'a> {
    writer: Writer<'a>,
    first: bool,
    result: fmt::Result,
}

impl FieldWriter<'_> {
    fn put(&mut self, name: &str, value: &str) {
        let space = if std::mem::take(&mut self.first) { "" } else { " " };
        let equals = if name.is_empty() { "" } else { "=" };
        self.result = self.result.and_then(|()| write!(self.writer, "{space}{name}{equals}{value}"));
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.put("", &printable::line(value)),
            name => {
                self.put(name, &format!("\"{}\"", printable::line(&value.replace('\\', "\\\\").replace('"', "\\\""))))
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.put("", &printable::line(&text)),
            name => self.put(name, &printable::field(&text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::Arc,
    };

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `event` logs.
    fn logged(event: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .fmt_fields(SafeFields);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), event);
        String::from_utf8(std::mem::take(&mut lines.0.lock())).unwrap()
    }

    #[test]
    fn hostile_names_stay_in_their_field_and_line() {
        let name = "eve\x1b[2J\r\n2026-01-01T00:00:00Z  INFO arden_smb: logged on user=root \u{202e}\u{9b}31m";
        let events: [(&str, Box<dyn FnOnce()>); 6] = [
            ("display", Box::new(|| tracing::warn!(user = %name, "logon failed"))),
            ("text", Box::new(|| tracing::warn!(user = name, "logon failed"))),
            ("debug", Box::new(|| tracing::warn!(user = ?name, "logon failed"))),
            ("message", Box::new(|| tracing::warn!("not served: {name}"))),
            ("error", Box::new(|| tracing::warn!(error = %io::Error::other(name), "failed"))),
            ("quotes", Box::new(|| tracing::warn!(user = %"\" client=\"10.0.0.1", file = %"a b", "failed"))),
        ];
        for (what, event) in events {
            let line = logged(event);
            assert_eq!(line.lines().count(), 1, "{what}: {line}");
            assert!(
                line.trim_end_matches('\n').chars().all(|c| !c.is_control() && c != '\u{202e}'),
                "{what}: {line:?}"
            );
            if what != "message" {
                // Outside of quotes there are no fields but those of the event.
                let bare: String = line.replace("\\\\", "").replace("\\\"", "").split('"').step_by(2).collect();
                assert!(!bare.contains("user=root") && !bare.contains("client="), "{what}: {line}");
            }
        }
    }

    #[test]
    fn a_mistyped_level_is_no_module() {
        for spec in ["error", "INFO", "off", "info,arden_smb=debug", "arden_smb=trace", "warn,arden_host=off"] {
            assert!(targets(spec).is_ok(), "{spec}");
        }
        for spec in ["blah", "inof", "info,arden_smb", "arden_smb", "arden_smb=blah", " info"] {
            let error = targets(spec).unwrap_err();
            assert_eq!(error.kind, arden_admin::ErrorKind::Invalid, "{spec}");
            assert!(error.error.contains(spec) && error.hint.contains("debug"), "{error}");
        }
    }

    #[test]
    fn plain_values_look_as_they_are() {
        let line = logged(|| {
            let client: std::net::SocketAddr = "192.0.2.1:445".parse().unwrap();
            tracing::info!(client = %client, user = "alice", session = 7, file = %"dir/Jürgen", durable = true, "opened");
        });
        let fields = "opened client=192.0.2.1:445 user=\"alice\" session=7 file=dir/Jürgen durable=true\n";
        assert!(line.ends_with(fields), "{line}");
    }
}

//! The progress display: one line on the terminal that is overwritten, lines for a log, or nothing.

use std::{
    io::{IsTerminal, Write},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use crate::load::Live;

/// The progress display on standard error.
#[derive(Debug)]
pub struct View {
    terminal: bool,
    /// Writes a line for each tick, for a log.
    lines: bool,
    last: Option<(Instant, u64, u64)>,
    drawn: bool,
}

impl Default for View {
    fn default() -> View {
        View { terminal: std::io::stderr().is_terminal(), ..View::quiet() }
    }
}

impl View {
    /// A display that shows nothing.
    pub fn quiet() -> View {
        View { terminal: false, lines: false, last: None, drawn: false }
    }

    /// A display that writes lines for a log.
    pub fn log() -> View {
        View { lines: true, ..View::quiet() }
    }

    /// Shows the progress and the present rate.
    pub fn tick(&mut self, title: &str, live: &Live, elapsed: Duration, total: Duration) {
        if self.lines {
            eprintln!("{:>4.0} of {:.0} s  {title}", elapsed.as_secs_f64(), total.as_secs_f64());
        }
        if !self.terminal {
            return;
        }
        let now = (Instant::now(), live.answers.load(Relaxed), live.bytes.load(Relaxed));
        let (mut io_s, mut mb_s) = (0.0, 0.0);
        if let Some((at, answers, bytes)) = self.last {
            let seconds = now.0.duration_since(at).as_secs_f64().max(1e-3);
            io_s = now.1.saturating_sub(answers) as f64 / seconds;
            mb_s = now.2.saturating_sub(bytes) as f64 / seconds / 1e6;
        }
        self.last = Some(now);
        let done = (elapsed.as_secs_f64() / total.as_secs_f64().max(1e-3)).min(1.0);
        let bar: String = (0..20).map(|i| if f64::from(i) < done * 20.0 { '#' } else { '.' }).collect();
        self.draw(&format!("{title}  [{bar}] {:>3.0} %  {io_s:>9.0} IO/s {mb_s:>8.1} MB/s", done * 100.0));
    }

    /// Shows another text.
    pub fn say(&mut self, text: &str) {
        if self.terminal {
            self.draw(text);
        }
    }

    fn draw(&mut self, text: &str) {
        let mut err = std::io::stderr().lock();
        // Return to the start of the line, write the text, clear the rest.
        let _ = write!(err, "\r{text}\x1b[K");
        let _ = err.flush();
        self.drawn = true;
    }

    /// Clears the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.clear();
    }
}

//! Signals that end a measurement.

use std::sync::Arc;

use arden_measure::load::Live;

/// Lets the first Ctrl-C end the load early: results are kept, and files removed. The second one ends the program.
pub fn stop_on_signal(live: &Arc<Live>) {
    let live = live.clone();
    std::thread::spawn(move || {
        let Ok(rt) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        rt.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
            loop {
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = terminate.recv() => {}
                }
                if live.stop.swap(true, std::sync::atomic::Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    });
}

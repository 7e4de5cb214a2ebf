//! Interleaved rounds of measurements that give one figure.

use arden_measure::{Context, Result, load::Live};

/// The side and the round of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub side: usize,
    pub round: usize,
}

/// Runs every side in every round and returns the figures by side. The side that runs first changes with every round.
///
/// # Errors
/// The first measurement that fails, with its side; a stopped measurement.
pub fn in_turn(
    rounds: usize,
    sides: &[&str],
    unit: &str,
    live: &Live,
    mut measure: impl FnMut(Turn) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let mut seen = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        for k in 0..sides.len() {
            let side = (k + round) % sides.len();
            live.go_on()?;
            // Data that the last side left in caches is written now, not during this one.
            rustix::fs::sync();
            let value = measure(Turn { side, round }).context(sides[side])?;
            eprintln!("round {}  {:<40} {value:>10.0} {unit}", round + 1, sides[side]);
            seen[side].push(value);
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn everyone_takes_the_first_turn_once() {
        let mut order = Vec::new();
        let seen = in_turn(2, &["a", "b"], "x", &Live::default(), |t| {
            order.push((t.round, t.side));
            Ok((t.round * 10 + t.side) as f64)
        });
        assert_eq!(order, [(0, 0), (0, 1), (1, 1), (1, 0)]);
        assert_eq!(seen.unwrap(), [vec![0.0, 10.0], vec![1.0, 11.0]]);
        let live = Live::default();
        live.stop.store(true, Relaxed);
        assert!(in_turn(1, &["a"], "x", &live, |_| Ok(1.0)).is_err());
    }
}

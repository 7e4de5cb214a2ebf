//! Timing models of disks, for virtual time: where the head is, how far the platter has
//! turned, what the bus carries. Knows no data. The figures are those of the data sheets of
//! the class of disk named, rounded.

/// How long a disk takes.
#[derive(Debug, Clone)]
pub enum Model {
    Rotating(Rotating),
    Ssd(Ssd),
}

/// A disk with one arm.
#[derive(Debug, Clone)]
pub struct Rotating {
    pub capacity_bytes: u64,
    pub revolution_ns: u64,
    /// Seek to the next track, settling included.
    pub seek_min_ns: u64,
    /// Seek over the whole surface.
    pub seek_max_ns: u64,
    /// Bytes passing under the head in a second, outermost and innermost.
    pub outer_bytes_s: u64,
    pub inner_bytes_s: u64,
    /// Decoding a command; hidden behind the command before it when one is served.
    pub overhead_ns: u64,
    pub write_cache: bool,
    pub cache_bytes: u64,
    /// Commands the disk may choose among.
    pub queue_max: usize,
}

/// A SATA solid-state disk.
#[derive(Debug, Clone)]
pub struct Ssd {
    pub read_ns: u64,
    pub write_ns: u64,
    pub flush_ns: u64,
    pub bus_bytes_s: u64,
    pub channels: usize,
}

impl Model {
    /// 10,000 rpm, 147 GB, SAS: 4.5 ms average seek, 3 ms average rotation, 16 MiB cache.
    pub fn sas_10k_147g(write_cache: bool) -> Model {
        Model::Rotating(Rotating {
            capacity_bytes: 147_000_000_000,
            revolution_ns: 6_000_000,
            seek_min_ns: 400_000,
            // With a way that grows as the root of the distance, the mean over random pairs is
            // 8/15 of the span: 0.4 + 8/15 * 7.6 = 4.45 ms, as the data sheets of the class say.
            seek_max_ns: 8_000_000,
            outer_bytes_s: 89_000_000,
            inner_bytes_s: 55_000_000,
            overhead_ns: 50_000,
            write_cache,
            cache_bytes: 16 << 20,
            queue_max: 32,
        })
    }

    /// A SATA SSD of the 500 MB/s class.
    pub fn sata_ssd() -> Model {
        Model::Ssd(Ssd { read_ns: 90_000, write_ns: 40_000, flush_ns: 400_000, bus_bytes_s: 530_000_000, channels: 8 })
    }
}

impl Rotating {
    /// Media rate at `offset`: linear from the outer to the inner edge.
    pub fn rate_bytes_s(&self, offset: u64) -> u64 {
        let span = self.outer_bytes_s - self.inner_bytes_s;
        let part = (u128::from(span) * u128::from(offset.min(self.capacity_bytes))) / u128::from(self.capacity_bytes);
        self.outer_bytes_s - part as u64
    }

    pub fn transfer_ns(&self, offset: u64, len: u64) -> u64 {
        (u128::from(len) * 1_000_000_000 / u128::from(self.rate_bytes_s(offset))) as u64
    }

    /// The arm's way: grows with the square root of the distance.
    pub fn seek_ns(&self, from: u64, to: u64) -> u64 {
        let distance = from.abs_diff(to);
        if distance < 400_000 {
            return 0;
        }
        let part = (distance as f64 / self.capacity_bytes as f64).min(1.0).sqrt();
        self.seek_min_ns + ((self.seek_max_ns - self.seek_min_ns) as f64 * part) as u64
    }

    /// Time until the head, at `from` when the clock says `now_ns`, can begin at `to`.
    pub fn position_ns(&self, now_ns: u64, from: u64, to: u64) -> u64 {
        let seek = self.seek_ns(from, to);
        let track = self.rate_bytes_s(to) * (self.revolution_ns / 1000) / 1_000_000;
        let angle = (to % track) as f64 / track as f64;
        let at = ((now_ns + seek) % self.revolution_ns) as f64 / self.revolution_ns as f64;
        let wait = (angle - at).rem_euclid(1.0);
        seek + (wait * self.revolution_ns as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_access_costs_what_the_data_sheet_says() {
        let Model::Rotating(d) = Model::sas_10k_147g(false) else { panic!() };
        let mut rng = crate::rng::Rng::new(1);
        let (mut now, mut head, mut sum) = (0, 0, 0);
        for _ in 0..10_000 {
            let to = rng.below(d.capacity_bytes / 4096) * 4096;
            let t = d.position_ns(now, head, to);
            sum += t;
            now += t + d.transfer_ns(to, 4096);
            head = to;
        }
        let mean_ms = sum as f64 / 10_000.0 / 1e6;
        assert!((7.0..10.0).contains(&mean_ms), "mean positioning {mean_ms} ms");
    }
}

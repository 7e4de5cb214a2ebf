//! A space on simulated disks as a source: `sim:LAYOUT,DISKS,KIND[,interleave=SIZE][,columns=N]`. Time is virtual: the
//! figures are the same on every machine, and a run takes as long as the model takes to compute.

use arden_space::Layout;

use arden_measure::{
    Result,
    base::units::bytes,
    fail,
    load::{BlockTarget, Done, Live, Op, Target},
    source::{Need, Prepared, Source},
};

use crate::pools::timed::{Disk, Setup, World};

/// The syntax of the name, for messages.
pub const FORM: &str = "sim:LAYOUT,DISKS,KIND[,interleave=SIZE][,columns=N], as in sim:mirror2,4,sas";
/// Default size in bytes of the used part of the space.
const FILE_BYTES: u64 = 4 << 30;
const DISKS_MAX: usize = 64;

/// The kinds of disks by name.
const KINDS: [(&str, Disk); 3] = [
    ("sas", Disk::Sas { write_cache: true }),
    ("sas-uncached", Disk::Sas { write_cache: false }),
    ("ssd", Disk::SataSsd),
];

/// A space on simulated disks.
pub struct Simulated {
    text: String,
    setup: Setup,
}

impl Simulated {
    /// Parses the part of the name behind `sim:`.
    ///
    /// # Errors
    /// A part is missing or malformed.
    pub fn parse(text: &str) -> Result<Simulated> {
        let mut words = text.split(',').map(str::trim);
        let (Some(layout), Some(disks), Some(kind)) = (words.next(), words.next(), words.next()) else {
            fail!("sim:{text} does not say what to simulate: {FORM}");
        };
        let Some(layout) = Layout::parse(layout) else {
            fail!("{layout:?} is no layout: simple, mirror2, mirror3, parity, dual-parity");
        };
        let Some(disks) = disks.parse::<usize>().ok().filter(|n| (1..=DISKS_MAX).contains(n)) else {
            fail!("{disks:?} is no number of disks, 1 to {DISKS_MAX}");
        };
        let Some((_, disk)) = KINDS.iter().find(|(name, _)| *name == kind) else {
            let names: Vec<&str> = KINDS.iter().map(|k| k.0).collect();
            fail!("{kind:?} is no kind of disk: {}", names.join(", "));
        };
        let mut setup = Setup::new(layout, disks, *disk).file_bytes(FILE_BYTES);
        for word in words {
            match word.split_once('=') {
                Some(("interleave", size)) => setup.interleave_bytes = bytes(size)?,
                Some(("columns", n)) => match n.parse() {
                    Ok(n) => setup.columns = Some(n),
                    Err(_) => fail!("{n:?} is no number of columns"),
                },
                _ => fail!("{word:?} is not known: {FORM}"),
            }
        }
        Ok(Simulated { text: text.to_string(), setup })
    }
}

/// A target that owns its space.
struct Loaded {
    target: BlockTarget,
    _world: World,
}

impl Target for Loaded {
    fn now_ns(&self) -> u64 {
        self.target.now_ns()
    }
    fn start(&mut self, op: Op, data: Option<&arden_block::SharedBuf>) -> Result<()> {
        self.target.start(op, data)
    }
    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()> {
        self.target.wait(until_ns, done)
    }
    fn granule_bytes(&self) -> u32 {
        self.target.granule_bytes()
    }
    fn is_real(&self) -> bool {
        self.target.is_real()
    }
}

impl Source for Simulated {
    fn name(&self) -> String {
        format!("sim:{}", self.text)
    }

    fn prepare(&mut self, need: &Need, _: &Live) -> Result<Prepared> {
        if need.verify.is_some() {
            fail!("simulated disks keep no data that could be verified");
        }
        self.setup.file_bytes = need.file_bytes.unwrap_or(self.setup.file_bytes);
        // A setup that cannot be built is refused before anything runs.
        let layout = self.setup.filled;
        self.setup.filled = false;
        let built = World::new(self.setup).map(drop);
        self.setup.filled = layout;
        built?;
        Ok(Prepared { file_bytes: self.setup.file_bytes, filled: self.setup.filled })
    }

    fn open(&self, _: bool, _: bool) -> Result<Box<dyn Target>> {
        let world = World::new(self.setup)?;
        Ok(Box::new(Loaded { target: world.target(), _world: world }))
    }

    /// False: each client would have its own disks and clock.
    fn many(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arden_measure::load::{Content, Load, Profile, Window, drive};

    #[test]
    fn what_to_simulate_is_understood() {
        let s = Simulated::parse("parity,5,ssd,interleave=64k,columns=4").unwrap();
        assert_eq!((s.setup.disks, s.setup.columns, s.setup.interleave_bytes), (5, Some(4), 64 << 10));
        assert!(s.setup.filled && s.setup.disk == Disk::SataSsd);
        for (bad, why) in [
            ("", "sim:LAYOUT"),
            ("mirror2,4", "sim:LAYOUT"),
            ("raid7,4,sas", "layout"),
            ("simple,0,sas", "disks"),
            ("simple,4,tape", "sas-uncached"),
            ("simple,4,sas,color=red", "color"),
        ] {
            let e = Simulated::parse(bad).err().unwrap().to_string();
            assert!(e.contains(why), "{bad}: {e}");
        }
        let need = Need { file_bytes: Some(1 << 30), ..Need::default() };
        let live = Live::default();
        assert!(Simulated::parse("mirror3,2,sas").unwrap().prepare(&need, &live).is_err(), "three copies on two disks");
        let verify = Need { verify: Some(1), ..need };
        assert!(Simulated::parse("simple,2,sas").unwrap().prepare(&verify, &live).is_err());
    }

    #[test]
    fn the_same_figures_every_time() {
        let once = || {
            let mut s = Simulated::parse("mirror2,4,sas").unwrap();
            let need = Need { writes: true, file_bytes: Some(256 << 20), ..Need::default() };
            let prepared = s.prepare(&need, &Live::default()).unwrap();
            let mut target = s.open(true, false).unwrap();
            assert!(!target.is_real());
            let load = Load::of(&Profile::named("database").unwrap(), 8, prepared.file_bytes);
            let window = Window { warm_up_ns: 0, measure_ns: 500_000_000 };
            let m = drive(target.as_mut(), &load, window, &mut Content::plain(1), &Live::default());
            assert_eq!(m.problem, None);
            m.recorder.figures()
        };
        let first = once();
        assert!(first.io_s > 50.0);
        assert_eq!(first, once());
    }
}

//! Outcomes: results stored as JSON with the machine, versions and settings. Single runs and experiments have the same
//! form.

pub mod compare;

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Result,
    base::{
        machine::{self, Machine},
        stats::{self, Interval},
    },
    fail,
    load::{Figures, Profile},
};

/// Version of the JSON form.
pub const FORMAT: u32 = 1;

/// One load on one configuration, with the figures of each round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The chart of the point.
    pub group: String,
    /// The line of the point in its chart.
    pub config: String,
    pub profile: Profile,
    pub outstanding: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    pub rounds: Vec<Figures>,
    /// The last round ended early.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl Point {
    /// The median of a figure over the rounds.
    pub fn of(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        stats::median(&self.rounds.iter().map(figure).collect::<Vec<f64>>())
    }

    /// The median over the rounds that have the figure; `None` when none has it.
    pub fn of_some(&self, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        let all: Vec<f64> = self.rounds.iter().filter_map(figure).collect();
        (!all.is_empty()).then(|| stats::median(&all))
    }

    /// The rates in requests a second from whose scatter the confidence follows: those of the rounds, or of the slices
    /// of a single round.
    pub fn rates(&self) -> Vec<f64> {
        match &self.rounds[..] {
            [one] => one.slices_io_s.clone(),
            many => many.iter().map(|f| f.io_s).collect(),
        }
    }

    /// Whether two points have the same load, so that they can be compared.
    pub fn same_load(&self, other: &Point) -> bool {
        (&self.group, &self.profile, self.outstanding) == (&other.group, &other.profile, other.outstanding)
            && self.rate.map(f64::to_bits) == other.rate.map(f64::to_bits)
    }
}

/// A measured ratio that is compared with a published one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The server or system.
    pub config: String,
    pub name: String,
    pub ratio: Interval,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// Upper limit that is aimed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
    pub rounds: usize,
    /// The measured values of each side, in `unit`.
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    pub a_name: String,
    pub b_name: String,
    pub unit: String,
    /// Reason why fewer rounds were run than the interval needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
}

/// A statement that was published in words, and the measured one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Relation {
    pub claim: String,
    pub seen: String,
    pub holds: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub explanation: String,
}

/// A result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub format: u32,
    /// Kind of the result: run, e1, e2, e3, e6 or advise.
    pub kind: String,
    pub title: String,
    pub began: String,
    pub took_s: f64,
    pub program: String,
    pub machine: Machine,
    pub settings: BTreeMap<String, String>,
    /// Descriptions of the configurations.
    #[serde(default)]
    pub configs: BTreeMap<String, String>,
    pub complete: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(default)]
    pub points: Vec<Point>,
    #[serde(default)]
    pub ratios: Vec<Ratio>,
    #[serde(default)]
    pub relations: Vec<Relation>,
    /// The verdict in words, the most important sentence first.
    #[serde(default)]
    pub verdict: Vec<String>,
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Outcome {
    /// An empty outcome with this machine and the present time.
    pub fn begin(kind: &str, title: &str) -> Outcome {
        Outcome {
            format: FORMAT,
            kind: kind.to_string(),
            title: title.to_string(),
            began: machine::now(),
            took_s: 0.0,
            program: concat!("arden ", env!("CARGO_PKG_VERSION")).to_string(),
            machine: Machine::here(),
            settings: BTreeMap::new(),
            configs: BTreeMap::new(),
            complete: false,
            problem: None,
            points: Vec::new(),
            ratios: Vec::new(),
            relations: Vec::new(),
            verdict: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Records a setting that the figures depend on.
    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.settings.insert(key.to_string(), value.to_string());
    }

    /// Reads a file that [`Outcome::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, is not an outcome, or has another [`FORMAT`].
    pub fn load(path: &Path) -> Result<Outcome> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(e) => fail!("{}: {e}", path.display()),
        };
        let outcome: Outcome = match serde_json::from_slice(&text) {
            Ok(outcome) => outcome,
            Err(e) => fail!("{} is no result of arden lab: {e}", path.display()),
        };
        if outcome.format != FORMAT {
            fail!("{} is of format {}, this program reads {FORMAT}", path.display(), outcome.format);
        }
        Ok(outcome)
    }

    /// Writes the outcome as JSON. The file is replaced atomically: after an interruption it is the old or the new one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|e| Error(e.to_string()))?;
        text.push(b'\n');
        let new = path.with_extension("json.new");
        let moved = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
        moved.context(path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_as_they_were() {
        let dir = std::env::temp_dir().join(format!("arden-lab-outcome-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut o = Outcome::begin("run", "a test");
        o.set("outstanding", 8);
        o.points.push(Point {
            group: "database".into(),
            config: "here".into(),
            profile: Profile::named("database").unwrap(),
            outstanding: 8,
            rate: None,
            rounds: vec![Figures { io_s: 1.5, ..Figures::default() }],
            partial: true,
        });
        let path = dir.join("r.json");
        o.save(&path).unwrap();
        assert_eq!(Outcome::load(&path).unwrap(), o);
        std::fs::write(&path, "{}").unwrap();
        assert!(Outcome::load(&path).unwrap_err().to_string().contains("no result"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

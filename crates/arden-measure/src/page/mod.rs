//! Outcomes as one self-contained HTML page: the measured systems, a verdict, charts, tables, and published figures
//! beside the measured ones. The page loads nothing, runs no script, and follows the reader's light or dark mode.

pub mod csv;
mod markup;
pub mod svg;
pub mod text;

use std::fmt::Write;

use self::{
    markup::escape,
    svg::{Bar, Line},
};
use crate::{
    base::{
        stats::{Interval, median},
        units::size,
    },
    load::{Access, Figures},
    outcome::{Outcome, Point, Ratio},
};

const STYLE: &str = include_str!("style.css");

/// The page of one or more outcomes. Single runs share their charts; an experiment has a section of its own.
pub fn page(outcomes: &[Outcome]) -> String {
    let title = match outcomes {
        [one] => one.title.clone(),
        many if many.iter().all(|o| o.kind == "run") => {
            many.iter().map(|o| o.title.as_str()).collect::<Vec<&str>>().join(" · ")
        }
        many => format!("{} results", many.len()),
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>{0}</title><style>{STYLE}</style></head>\n<body><header><h1>{0}</h1></header>\n<main>",
        escape(&title)
    );
    let (runs, others): (Vec<&Outcome>, Vec<&Outcome>) = outcomes.iter().partition(|o| o.kind == "run");
    if runs.len() > 1 {
        let merged = merge(&runs);
        for run in &runs {
            out += &head(run, true);
        }
        out += &body(&merged);
        for run in &runs {
            out += &foot(run);
        }
    } else {
        out += &runs.iter().map(|o| whole(o, outcomes.len() > 1)).collect::<String>();
    }
    out += &others.iter().map(|o| whole(o, outcomes.len() > 1)).collect::<String>();
    out + "</main></body></html>\n"
}

/// Merges single runs into one outcome. Their targets become lines of common charts.
fn merge(runs: &[&Outcome]) -> Outcome {
    let mut merged = Outcome { points: Vec::new(), verdict: Vec::new(), problem: None, ..runs[0].clone() };
    for (i, run) in runs.iter().enumerate() {
        for p in &run.points {
            let taken = runs[..i].iter().any(|r| r.points.iter().any(|q| q.config == p.config));
            let config = if taken { format!("{} ({})", p.config, i + 1) } else { p.config.clone() };
            merged.points.push(Point { config, ..p.clone() });
        }
    }
    merged.complete = runs.iter().all(|r| r.complete);
    merged
}

fn whole(o: &Outcome, titled: bool) -> String {
    head(o, titled) + &body(o) + &foot(o)
}

fn head(o: &Outcome, titled: bool) -> String {
    let mut out = String::new();
    if titled {
        let _ = write!(out, "<h2>{}</h2>", escape(&o.title));
    }
    let badge = if o.complete { ("good", "complete") } else { ("bad", "partial") };
    let _ = write!(
        out,
        "<p class=\"soft\"><span class=\"badge {}\">{}</span> {} · {} · took {}<br>{}</p>",
        badge.0,
        badge.1,
        escape(&o.began.replace('T', " ").replace('Z', " UTC")),
        escape(&o.program),
        minutes(o.took_s),
        escape(&o.machine.describe())
    );
    if let Some(problem) = &o.problem {
        let _ =
            write!(out, "<p class=\"bad\">It ended early: {}. What was measured before is shown.</p>", escape(problem));
    }
    out
}

fn minutes(s: f64) -> String {
    if s < 90.0 { format!("{s:.0} s") } else { format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0) }
}

fn body(o: &Outcome) -> String {
    let mut out = String::new();
    let verdict = if o.verdict.is_empty() { run_verdict(o) } else { o.verdict.clone() };
    if !verdict.is_empty() {
        let lines: String = verdict.iter().map(|v| format!("<p>{}</p>", escape(v))).collect();
        let _ = write!(out, "<div class=\"verdict\">{lines}</div>");
    }
    out + &ratios(o) + &relations(o) + &charts(o) + &table(o)
}

fn foot(o: &Outcome) -> String {
    let pair = |k: &String, v: &String| format!("<dt>{}</dt><dd>{}</dd>", escape(k), escape(v));
    let mut out = String::new();
    for note in &o.notes {
        let _ = write!(out, "<p class=\"soft\">{}</p>", escape(note));
    }
    let settings: String = o.settings.iter().map(|(k, v)| pair(k, v)).collect();
    let configs: String = o.configs.iter().map(|(k, v)| pair(k, v)).collect();
    let _ = write!(out, "<details open><summary>What was run on what</summary><dl>{configs}{settings}</dl></details>");
    out
}

/// The verdict of a run: for each load and target the highest rate, and the requests in flight that it needs.
fn run_verdict(o: &Outcome) -> Vec<String> {
    let mut out = Vec::new();
    for group in groups(o) {
        for config in configs(o, &group) {
            let points: Vec<&Point> = o.points.iter().filter(|p| p.group == group && p.config == config).collect();
            let Some(best) = points.iter().map(|p| p.of(|f| f.io_s)).reduce(f64::max) else { continue };
            let Some(enough) = points.iter().find(|p| p.of(|f| f.io_s) >= 0.9 * best) else { continue };
            let unsent = points.iter().any(|p| p.rounds.iter().any(|f| f.unsent > 0));
            let mb = enough.of(|f| f.mb_s);
            let mut text = format!(
                "{group} on {config}: {} IO/s ({} MB/s) at {} outstanding, half of the answers within {}, 99 in 100 within {}",
                svg::short(enough.of(|f| f.io_s)),
                svg::short(mb),
                enough.outstanding,
                ms(enough.of(|f| f.p50_us)),
                ms(enough.of(|f| f.p99_us)),
            );
            text += if unsent {
                "; the rate that was asked for is more than it can do."
            } else if points.last().is_some_and(|last| last.outstanding > enough.outstanding) {
                "; more in flight gains less than a tenth."
            } else {
                "."
            };
            out.push(text);
        }
    }
    out
}

fn ms(us: f64) -> String {
    if us >= 1000.0 { format!("{} ms", svg::short(us / 1000.0)) } else { format!("{us:.0} µs") }
}

fn unique(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}

fn groups(o: &Outcome) -> Vec<String> {
    unique(o.points.iter().map(|p| p.group.clone()))
}

fn configs(o: &Outcome, group: &str) -> Vec<String> {
    unique(o.points.iter().filter(|p| p.group == group).map(|p| p.config.clone()))
}

fn ratios(o: &Outcome) -> String {
    if o.ratios.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h2>Ratios</h2><div class=\"charts\">");
    let systems = unique(o.ratios.iter().map(|r| r.config.clone()));
    let any_published = o.ratios.iter().any(|r| r.published.is_some());
    let sides: Vec<Vec<Bar>> = systems.iter().enumerate().map(|(i, system)| bars_of(o, system, i)).collect();
    // One axis for all systems, so that bars can be compared by eye.
    let top = sides.iter().map(|bars| svg::reach(bars)).fold(0.0, f64::max);
    for (system, bars) in systems.iter().zip(&sides) {
        let _ = write!(out, "<figure><h3>{}</h3>{}", escape(system), svg::bars_to(bars, Some(1.0), system, top));
        out += "<p class=\"soft\">Whisker: 95 % confidence. Dashed: no difference.";
        out += if any_published {
            " <span style=\"color:var(--s1)\">▎</span>published.</p></figure>"
        } else {
            "</p></figure>"
        };
    }
    out += "</div><div class=\"scroll\"><table><tr><th>what</th><th>on</th><th class=\"n\">ratio</th><th class=\"n\">95 % interval</th>\
            <th class=\"n\">published</th><th class=\"n\">medians</th><th class=\"n\">rounds</th></tr>";
    for r in &o.ratios {
        let interval = if r.ratio.high.is_finite() && r.ratio.low > 0.0 {
            format!("{:.3} to {:.3}", r.ratio.low, r.ratio.high)
        } else {
            "one round".to_string()
        };
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{:.3}</td><td class=\"n\">{interval}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{} {u}, {}<br>{} {u}, {}</td><td class=\"n\">{}{}</td></tr>",
            escape(&r.name),
            escape(&r.config),
            r.ratio.value,
            r.published.map_or("–".to_string(), svg::short),
            svg::short(median(&r.a)),
            escape(&r.a_name),
            svg::short(median(&r.b)),
            escape(&r.b_name),
            r.rounds,
            if r.short.is_some() { " *" } else { "" },
            u = escape(&r.unit),
        );
    }
    out += "</table></div>";
    if let Some(short) = o.ratios.iter().find_map(|r| r.short.as_ref()) {
        let _ = write!(out, "<p class=\"soft\">* {}</p>", escape(short));
    }
    out
}

fn bars_of(o: &Outcome, system: &str, i: usize) -> Vec<Bar> {
    let bar = |r: &Ratio| Bar {
        name: r.name.clone(),
        value: r.ratio,
        published: r.published,
        colour: if i == 1 { 3 } else { 2 * i },
        text: format!("{:.2}x", r.ratio.value),
    };
    o.ratios.iter().filter(|r| r.config == system).map(bar).collect()
}

fn relations(o: &Outcome) -> String {
    if o.relations.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<h2>What was published, and what is seen here</h2><div class=\"scroll\"><table><tr><th>published</th><th>here</th><th></th></tr>",
    );
    for r in &o.relations {
        let (class, mark) = if r.holds { ("good", "as published") } else { ("bad", "differs") };
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}{}</td><td class=\"{class}\">{mark}</td></tr>",
            escape(&r.claim),
            escape(&r.seen),
            if r.explanation.is_empty() {
                String::new()
            } else {
                format!("<br><span class=\"soft\">{}</span>", escape(&r.explanation))
            }
        );
    }
    out + "</table></div>"
}

/// The property in which the points of a group differ, which becomes the x axis.
#[derive(PartialEq)]
enum Axis {
    Outstanding,
    Block,
    Nothing,
}

fn axis(points: &[&Point]) -> Axis {
    let differ = |f: fn(&Point) -> u64| points.iter().any(|p| f(p) != f(points[0]));
    if differ(|p| u64::from(p.profile.block_bytes)) {
        Axis::Block
    } else if differ(|p| p.outstanding as u64) {
        Axis::Outstanding
    } else {
        Axis::Nothing
    }
}

fn charts(o: &Outcome) -> String {
    let mut out = String::new();
    let all = groups(o);
    if !all.is_empty() {
        out += "<h2>Charts</h2>";
    }
    for group in all {
        let points: Vec<&Point> = o.points.iter().filter(|p| p.group == group).collect();
        let configs = configs(o, &group);
        let first = &points[0].profile;
        let what = if axis(&points) == Axis::Block {
            format!(
                "{}, {}/{}, {} outstanding",
                first.access.name(),
                first.read_percent,
                100 - first.read_percent,
                points[0].outstanding
            )
        } else {
            first.describe()
        };
        let heading = if group.contains(&what) {
            escape(&group)
        } else {
            format!("{} <span class=\"soft\">{}</span>", escape(&group), escape(&what))
        };
        let _ = write!(out, "<h3 style=\"margin-top:1.2rem\">{heading}</h3><div class=\"charts\">");
        let streams = first.access == Access::Sequential || axis(&points) == Axis::Block;
        let rate: fn(&Point) -> f64 = if streams { |p| p.of(|f| f.mb_s) } else { |p| p.of(|f| f.io_s) };
        let unit = if streams { "MB/s" } else { "IO/s" };
        out += &chart(&points, &configs, rate, unit, false);
        out += &chart(&points, &configs, |p| p.of(|f| f.mean_us) / 1000.0, "mean latency, ms", true);
        if o.kind == "run" {
            out += &chart(&points, &configs, |p| p.of(|f| f.p99_us) / 1000.0, "latency of 99 in 100, ms", true);
        }
        out += "</div>";
    }
    out
}

fn chart(points: &[&Point], configs: &[String], value: impl Fn(&Point) -> f64, unit: &str, log_y: bool) -> String {
    let axis = axis(points);
    let drawing = if axis == Axis::Nothing {
        let bar = |(i, p): (usize, &&Point)| {
            let v = value(p);
            let value = Interval { value: v, low: v, high: v };
            Bar { name: p.config.clone(), value, published: None, colour: i, text: svg::short(v) }
        };
        let bars: Vec<Bar> = points.iter().enumerate().map(bar).collect();
        svg::bars(&bars, None, unit)
    } else {
        let x_of =
            |p: &Point| if axis == Axis::Block { f64::from(p.profile.block_bytes) } else { p.outstanding as f64 };
        let line = |config: &String| {
            let mut line: Vec<(f64, f64)> =
                points.iter().filter(|p| p.config == *config).map(|p| (x_of(p), value(p))).collect();
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { name: config.clone(), points: line }
        };
        let lines: Vec<Line> = configs.iter().map(line).collect();
        let block = axis == Axis::Block;
        let label = move |x: f64| {
            if block {
                size(x as u64).replace(" KiB", "k").replace(" MiB", "m").replace(" B", "")
            } else {
                format!("{x:.0}")
            }
        };
        let title = if block { "block size" } else { "outstanding I/Os" };
        svg::lines(&lines, title, unit, label, log_y) + &svg::legend(configs)
    };
    format!("<figure><h3>{}</h3>{drawing}</figure>", escape(unit))
}

fn table(o: &Outcome) -> String {
    if o.points.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<details><summary>All figures</summary><div class=\"scroll\"><table><tr><th>load</th><th>on</th><th class=\"n\">out</th>\
         <th class=\"n\">block</th><th class=\"n\">IO/s</th><th class=\"n\">MB/s</th><th class=\"n\">mean</th><th class=\"n\">p50</th>\
         <th class=\"n\">p99</th><th class=\"n\">p99.9</th><th class=\"n\">p99.99</th><th class=\"n\">CPU client</th><th class=\"n\">CPU server</th></tr>",
    );
    for p in &o.points {
        let cpu = |f: fn(&Figures) -> Option<f64>| {
            p.of_some(f).map_or("–".to_string(), |us| format!("{} µs", svg::short(us)))
        };
        let _ = write!(
            out,
            "<tr><td>{}{}</td><td>{}</td>",
            escape(&p.group),
            if p.partial { " <span class=\"bad\">partial</span>" } else { "" },
            escape(&p.config)
        );
        let cells = [
            p.outstanding.to_string(),
            size(u64::from(p.profile.block_bytes)),
            svg::short(p.of(|f| f.io_s)),
            svg::short(p.of(|f| f.mb_s)),
            ms(p.of(|f| f.mean_us)),
            ms(p.of(|f| f.p50_us)),
            ms(p.of(|f| f.p99_us)),
            ms(p.of(|f| f.p999_us)),
            ms(p.of(|f| f.p9999_us)),
            cpu(|f| f.client_cpu_us),
            cpu(|f| f.server_cpu_us),
        ];
        for cell in cells {
            let _ = write!(out, "<td class=\"n\">{cell}</td>");
        }
        out += "</tr>";
    }
    out + "</table></div></details>"
}

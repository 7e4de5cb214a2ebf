//! Charts as inline SVG: lines over a logarithmic axis, and bars of ratios with their intervals. Colours are defined by
//! the page, which has a light and a dark mode.

use std::fmt::Write;

use super::markup::escape;
use crate::base::stats::Interval;

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;
/// Number of colours that the page defines for lines and bars.
pub const COLOURS: usize = 8;

/// A line of a chart: its name, and points (x, y) in the order of x.
#[derive(Debug, Clone)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A number in short form: 12,300 is 12.3k.
pub fn short(v: f64) -> String {
    let (scaled, unit) = match v.abs() {
        a if a >= 1e9 => (v / 1e9, "G"),
        a if a >= 1e6 => (v / 1e6, "M"),
        a if a >= 1e4 => (v / 1e3, "k"),
        _ => (v, ""),
    };
    let digits = match scaled.abs() {
        a if a >= 100.0 || a == 0.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text };
    format!("{text}{unit}")
}

/// The distance of grid lines: 1, 2 or 5 times a power of ten, for about five lines up to `top`.
fn step(top: f64) -> f64 {
    let raw = top / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= raw).unwrap_or(raw)
}

/// The dashes of line `i`, which tell lines apart without colour.
fn dash(i: usize) -> &'static str {
    ["", "7 3", "2 3", "9 3 2 3"][(i / 2) % 4]
}

/// A chart of lines with a logarithmic x axis. The y axis starts at 0 or, with `log_y`, is logarithmic.
pub fn lines(lines: &[Line], x_title: &str, y_title: &str, x_label: impl Fn(f64) -> String, log_y: bool) -> String {
    let all = || lines.iter().flat_map(|l| &l.points).filter(|p| p.1.is_finite());
    let (mut x_min, mut x_max, mut y_max, mut y_min) = (f64::MAX, f64::MIN, 0f64, f64::MAX);
    for (x, y) in all() {
        (x_min, x_max) = (x_min.min(*x), x_max.max(*x));
        (y_max, y_min) = (y_max.max(*y), y_min.min(*y));
    }
    if y_max <= 0.0 || x_min > x_max {
        return String::new();
    }
    let log_y = log_y && y_min > 0.0 && y_max / y_min > 5.0;
    let (low, high) = if log_y { (y_min.log10().floor(), y_max.log10().ceil()) } else { (0.0, y_max * 1.05) };
    let span = (x_max.log2() - x_min.log2()).max(1e-9);
    let x_at = |x: f64| LEFT + (x.log2() - x_min.log2()) / span * (WIDTH - LEFT - RIGHT);
    let y_at = |y: f64| {
        let v = if log_y { y.log10() } else { y };
        HEIGHT - BOTTOM - (v - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    };
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(y_title));
    let ticks: Vec<f64> = if log_y {
        (low as i32..=high as i32).map(|p| 10f64.powi(p)).collect()
    } else {
        let step = step(high);
        (0..=(high / step) as usize).map(|i| i as f64 * step).collect()
    };
    for y in ticks {
        let at = y_at(y);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        );
        let _ =
            write!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, at + 4.0, short(y));
    }
    let mut xs: Vec<f64> = all().map(|p| p.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let mut last = f64::MIN;
    for x in xs {
        // A label that would touch its neighbour is left out.
        if x_at(x) - last >= 26.0 {
            last = x_at(x);
            let _ = write!(
                out,
                "<text x=\"{last:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 17.0,
                escape(&x_label(x))
            );
        }
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ =
        write!(out, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>", HEIGHT - 6.0, escape(x_title));
    for (i, line) in lines.iter().enumerate() {
        draw(&mut out, i, line, &x_at, &y_at, &x_label, y_title);
    }
    out + "</svg>"
}

fn draw(
    out: &mut String,
    i: usize,
    line: &Line,
    x_at: &impl Fn(f64) -> f64,
    y_at: &impl Fn(f64) -> f64,
    x_label: &impl Fn(f64) -> String,
    unit: &str,
) {
    let colour = i % COLOURS;
    let path: Vec<String> = line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y))).collect();
    let _ = write!(
        out,
        "<polyline fill=\"none\" stroke=\"var(--s{colour})\" stroke-width=\"2\" stroke-dasharray=\"{}\" stroke-linejoin=\"round\" points=\"{}\"/>",
        dash(i),
        path.join(" ")
    );
    for (x, y) in &line.points {
        let _ = write!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"var(--s{colour})\"><title>{}, {}: {} {}</title></circle>",
            x_at(*x),
            y_at(*y),
            escape(&line.name),
            escape(&x_label(*x)),
            short(*y),
            escape(unit)
        );
    }
}

/// The legend below a chart: names and colours of its lines.
pub fn legend(names: &[String]) -> String {
    let items: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, n)| format!("<span><i style=\"background:var(--s{})\"></i>{}</span>", i % COLOURS, escape(n)))
        .collect();
    format!("<div class=\"legend\">{}</div>", items.join(""))
}

/// A bar: its name, its value with interval, and the published value.
#[derive(Debug, Clone)]
pub struct Bar {
    pub name: String,
    pub value: Interval,
    pub published: Option<f64>,
    pub colour: usize,
    /// Text at the end of the bar.
    pub text: String,
}

/// A chart of horizontal bars with their names above. `base` is the value of a vertical line, 1 for ratios.
pub fn bars(bars: &[Bar], base: Option<f64>, title: &str) -> String {
    bars_to(bars, base, title, reach(bars))
}

/// The value at which the axis of these bars ends. Longer whiskers are cut.
pub fn reach(bars: &[Bar]) -> f64 {
    let finite = |v: f64| if v.is_finite() { v } else { 0.0 };
    let of = |b: &Bar| {
        let v = finite(b.value.value);
        v.max(finite(b.value.high).min(v * 1.6)).max(b.published.unwrap_or(0.0))
    };
    bars.iter().map(of).fold(0.0, f64::max)
}

/// A chart as [`bars`] makes it, with an axis that ends at `top`.
pub fn bars_to(bars: &[Bar], base: Option<f64>, title: &str, top: f64) -> String {
    const ROW: f64 = 44.0;
    let room = 70.0;
    let finite = |v: f64| if v.is_finite() { v } else { 0.0 };
    let top = top.max(base.unwrap_or(0.0));
    if top <= 0.0 {
        return String::new();
    }
    let height = bars.len() as f64 * ROW + 6.0;
    let x_at = |v: f64| 4.0 + (v / top).clamp(0.0, 1.0) * (WIDTH - 8.0 - room);
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escape(title));
    for (i, bar) in bars.iter().enumerate() {
        let y = i as f64 * ROW;
        let v = finite(bar.value.value);
        let _ = write!(out, "<text class=\"strong\" x=\"4\" y=\"{:.1}\">{}</text>", y + 15.0, escape(&bar.name));
        let _ = write!(
            out,
            "<rect x=\"4\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" rx=\"2\" fill=\"var(--s{})\" opacity=\"0.85\"/>",
            y + 21.0,
            (x_at(v) - 4.0).max(1.0),
            bar.colour % COLOURS
        );
        let mut end = x_at(v);
        if bar.value.low > 0.0 && bar.value.high.is_finite() && bar.value.high > bar.value.low {
            let (low, high) = (x_at(bar.value.low), x_at(bar.value.high));
            end = end.max(high);
            let _ = write!(
                out,
                "<path d=\"M{low:.1} {0:.1}H{high:.1}M{low:.1} {1:.1}v8M{high:.1} {1:.1}v8\" stroke=\"var(--mark)\" stroke-width=\"1.5\" fill=\"none\"/>",
                y + 28.0,
                y + 24.0
            );
        }
        if let Some(published) = bar.published {
            let x = x_at(published);
            end = end.max(x + 3.0);
            let _ = write!(
                out,
                "<path d=\"M{x:.1} {0:.1}v20\" stroke=\"var(--s1)\" stroke-width=\"3\"><title>published: {1}</title></path>",
                y + 18.0,
                short(published)
            );
        }
        let _ = write!(
            out,
            "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            end + 6.0,
            y + 32.0,
            escape(&bar.text)
        );
    }
    if let Some(base) = base {
        let x = x_at(base);
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"18\" y2=\"{:.1}\" stroke-dasharray=\"3 3\"/>",
            height - 4.0
        );
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (v, s) in [
            (0.0, "0"),
            (5.0, "5"),
            (1.475, "1.48"),
            (12_300.0, "12.3k"),
            (9999.0, "9999"),
            (2_500_000.0, "2.5M"),
            (0.25, "0.25"),
            (100.0, "100"),
        ] {
            assert_eq!(short(v), s);
        }
        assert_eq!((step(100.0), step(7.0), step(0.9)), (20.0, 2.0, 0.2));
    }

    #[test]
    fn charts_stay_inside_their_box() {
        let line = Line { name: "a<b".into(), points: vec![(1.0, 10.0), (512.0, 50_000.0)] };
        for log in [false, true] {
            let svg = lines(std::slice::from_ref(&line), "outstanding", "IO/s", |x| x.to_string(), log);
            assert!(svg.contains("a&lt;b") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            for part in svg.split("cy=\"").skip(1) {
                let y: f64 = part.split('"').next().unwrap().parse().unwrap();
                assert!((0.0..=HEIGHT - BOTTOM).contains(&y));
            }
        }
        assert_eq!(lines(&[], "", "", |x| x.to_string(), false), "");
        let bar = Bar {
            name: "x".into(),
            value: Interval { value: 2.0, low: 0.0, high: f64::INFINITY },
            published: Some(8.6),
            colour: 0,
            text: "2x".into(),
        };
        let svg = bars(&[bar], Some(1.0), "ratios");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

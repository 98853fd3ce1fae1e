//! Curves of dots, side by side.

use super::super::curve::Curve;
use super::super::history::History;
use super::facts::number;
use super::{Free, Theme, put};
use dtrain_common::text::size;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{self, Canvas, Points};

/// Columns and rows of the smallest chart.
const LEAST: (u16, u16) = (36, 6);
/// The most charts beside and below each other.
const MOST: (u16, u16) = (3, 2);
/// With this many points, a few that are far from all others do not decide the scale.
const MANY: usize = 100;

/// The mark of a stage, below the first of its steps.
const STAGE: &str = "▴";

/// A chart of one unit.
struct Chart<'a> {
    title: &'a str,
    curves: Vec<Named<'a>>,
    write: fn(f64) -> String,
}

struct Named<'a> {
    name: &'a str,
    curve: &'a Curve,
    /// Few values, each with a mark.
    is_rare: bool,
}

/// Draws as many charts as there is room for. `first` turns the list of charts.
pub(super) fn draw(area: Rect, buffer: &mut Buffer, history: &History, first: usize, theme: Theme) {
    let mut charts = charts(history);
    if charts.is_empty() || area.height < 3 || area.width < 16 {
        return;
    }
    let turn = first % charts.len();
    charts.rotate_left(turn);
    let columns = (area.width / LEAST.0).clamp(1, MOST.0);
    let rows = (area.height / LEAST.1).clamp(1, MOST.1);
    // No empty place beside the last chart.
    let rows = rows.min((charts.len() as u16).div_ceil(columns));
    let mut charts = charts.iter();
    let mut free = Free(area);
    for row in 0..rows {
        let line = free.top(free.0.height / (rows - row));
        let beside = columns.min(charts.len() as u16).max(1);
        for (column, chart) in (0..beside).zip(&mut charts) {
            let left = line.width * column / beside;
            let right = line.width * (column + 1) / beside;
            // A column between charts stays empty.
            let gap = u16::from(column + 1 < beside) * 2;
            let area = Rect { x: line.x + left, width: (right - left).saturating_sub(gap), ..line };
            chart.draw(area, buffer, &history.stages, theme);
        }
    }
}

/// Returns the charts of all curves that have points: losses first, then the figures of evaluations.
fn charts(history: &History) -> Vec<Chart<'_>> {
    let train = |name| Named { name, curve: &history.loss, is_rare: false };
    let rare = |name: &str| -> Vec<Named<'_>> {
        let of_name = history.figures.iter().filter(|figure| figure.name == name);
        of_name.map(|figure| Named { name: &figure.set, curve: &figure.curve, is_rare: true }).collect()
    };
    let mut losses = vec![train("train")];
    losses.extend(rare("loss"));
    let mut charts = vec![Chart { title: "loss", curves: losses, write: number }];
    let mut names: Vec<&str> = history.figures.iter().map(|figure| figure.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names.into_iter().filter(|name| *name != "loss") {
        charts.push(Chart { title: name, curves: rare(name), write: number });
    }
    for (title, curve, write) in [
        ("samples/s", &history.speed, number as fn(f64) -> String),
        ("memory", &history.memory, |bytes| size(bytes as u64)),
        ("learning rate", &history.rate, number),
        ("gradient norm", &history.norm, number),
    ] {
        charts.push(Chart { title, curves: vec![Named { name: "", curve, is_rare: false }], write });
    }
    charts.retain_mut(|chart| {
        chart.curves.retain(|named| !named.curve.is_empty());
        !chart.curves.is_empty()
    });
    charts
}

impl Chart<'_> {
    fn draw(&self, area: Rect, buffer: &mut Buffer, stages: &[u64], theme: Theme) {
        let width = usize::from(area.width);
        // Two dots in a column, or a mark in every second one.
        let most = |named: &Named<'_>| if named.is_rare { width / 2 } else { 2 * width };
        let points: Vec<Vec<(f64, f64)>> =
            self.curves.iter().map(|named| named.curve.points(most(named))).collect();
        let [low, high] = bounds(&points);
        let steps = || self.curves.iter().filter_map(|named| named.curve.steps());
        let first = steps().map(|(first, _)| first).min().unwrap_or(0);
        let last = steps().map(|(_, last)| last).max().unwrap_or(0);
        let mut free = Free(area);
        put(free.top(1), buffer, self.title(theme));
        let labels = [(self.write)(high), (self.write)(low)];
        let width = labels.iter().map(String::len).max().unwrap_or(0) as u16;
        let below = if free.0.height >= 4 { free.bottom(1) } else { free.bottom(0) };
        let graph = Rect {
            x: free.0.x + (width + 1).min(free.0.width),
            width: free.0.width.saturating_sub(width + 1),
            ..free.0
        };
        if graph.width == 0 || graph.height == 0 {
            return;
        }
        let left = Rect { width, ..free.0 };
        for (label, row) in labels.iter().zip([graph.y, graph.bottom() - 1]) {
            let area = Rect { y: row, height: 1, ..left };
            Line::styled(label.as_str(), theme.dim()).right_aligned().render(area, buffer);
        }
        if below.height > 0 {
            let area = Rect { x: graph.x, width: graph.width, ..below };
            for step in stages.iter().filter(|step| (first..=last).contains(step)) {
                let share = (step - first) as f64 / (last - first).max(1) as f64;
                let x = area.x + (share * f64::from(area.width - 1)).round() as u16;
                buffer.set_string(x, area.y, STAGE, theme.dim());
            }
            put(area, buffer, Line::styled(first.to_string(), theme.dim()));
            Line::styled(last.to_string(), theme.dim()).right_aligned().render(area, buffer);
        }
        Canvas::default()
            // A single step has a place too.
            .x_bounds([first as f64, last.max(first + 1) as f64])
            .y_bounds([low, high])
            .paint(|context| {
                for (number, (named, points)) in self.curves.iter().zip(&points).enumerate() {
                    let points: Vec<_> =
                        points.iter().map(|(step, value)| (*step, value.clamp(low, high))).collect();
                    let color = theme.curve(number);
                    context.marker(Marker::Braille);
                    if !named.is_rare || self.curves.len() == 1 {
                        for pair in points.windows(2) {
                            context
                                .draw(&canvas::Line::new(pair[0].0, pair[0].1, pair[1].0, pair[1].1, color));
                        }
                        context.draw(&Points::new(&points, color));
                    }
                    if named.is_rare {
                        context.layer();
                        context.marker(Marker::Dot);
                        context.draw(&Points::new(&points, color));
                    }
                    context.layer();
                }
            })
            .render(graph, buffer);
    }

    fn title(&self, theme: Theme) -> Line<'static> {
        let mut spans = vec![Span::styled(self.title.to_owned(), theme.title())];
        for (number, named) in self.curves.iter().enumerate() {
            let style = Style::new().fg(theme.curve(number));
            let mark = if named.is_rare { "•" } else { "─" };
            let last = named.curve.last().map_or_else(String::new, self.write);
            let name = super::plain(named.name);
            let space = if name.is_empty() { "" } else { " " };
            spans.push(Span::styled(format!("  {mark} {name}{space}{last}"), style));
        }
        Line::from_iter(spans)
    }
}

/// Returns the lowest and the highest value of the scale.
fn bounds(curves: &[Vec<(f64, f64)>]) -> [f64; 2] {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for points in curves {
        let mut values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        values.sort_unstable_by(f64::total_cmp);
        let outside = if values.len() >= MANY { values.len() / 100 } else { 0 };
        if let (Some(first), Some(last)) = (values.get(outside), values.iter().rev().nth(outside)) {
            (low, high) = (low.min(*first), high.max(*last));
        }
    }
    // A constant is in the middle.
    let is_constant = high - low <= 1e-9 * high.abs();
    let margin = match is_constant {
        true if low == 0.0 => 1.0,
        true => low.abs() * 0.1,
        false => 0.0,
    };
    [low - margin, high + margin]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_does_not_decide_the_scale_and_a_constant_has_one() {
        let mut values: Vec<(f64, f64)> =
            (0..200).map(|step| (f64::from(step), 1.0 + f64::from(step % 7))).collect();
        values[100].1 = 1e9;
        assert_eq!(bounds(&[values]), [1.0, 7.0]);
        assert_eq!(bounds(&[vec![(0.0, 1.0)], vec![(1.0, 9.0)]]), [1.0, 9.0]);
        assert_eq!(bounds(&[vec![(0.0, 10.0), (1.0, 10.0)]]), [9.0, 11.0]);
        assert_eq!(bounds(&[vec![(0.0, 0.0)]]), [-1.0, 1.0]);
    }
}

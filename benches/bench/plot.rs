//! Plots, as SVG.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::commands::Pair;

const WIDTH: u32 = 860;
const BAR: u32 = 30;
/// Where the bars begin: room for the names of two commands.
const LEFT: i32 = 480;

/// A bar for each pair, with the range of the rounds, and a line where both cost the same.
pub(crate) fn ratios(file: &Path, title: &str, pairs: &[Pair]) {
    let height = BAR * (pairs.len() as u32 + 2);
    let root = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    draw(&root, title, pairs).expect("the plot can be drawn");
    root.present().expect("the plot can be written");
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    title: &str,
    pairs: &[Pair],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    area.fill(&WHITE)?;
    let font = |anchor| {
        ("sans-serif", 14)
            .into_font()
            .color(&BLACK)
            .pos(Pos::new(anchor, VPos::Center))
    };
    let most = pairs.iter().map(|pair| pair.ratio.high).fold(1.0, f64::max);
    let room = f64::from(WIDTH as i32 - LEFT - 60);
    let x = |ratio: f64| LEFT + (ratio / most * room) as i32;
    let middle = |row: usize| (BAR as i32) * (row as i32 + 1) + BAR as i32 / 2;
    area.draw(&Text::new(title.to_owned(), (10, BAR as i32 / 2), font(HPos::Left)))?;
    for (row, pair) in pairs.iter().enumerate() {
        let y = middle(row);
        let name = format!("{}  /  {}", pair.ours, pair.other);
        area.draw(&Text::new(name, (LEFT - 10, y), font(HPos::Right)))?;
        let bar = [(LEFT, y - 9), (x(pair.ratio.median), y + 9)];
        area.draw(&Rectangle::new(bar, RGBColor(70, 120, 180).filled()))?;
        area.draw(&PathElement::new(
            vec![(x(pair.ratio.low), y), (x(pair.ratio.high), y)],
            BLACK,
        ))?;
        let figure = format!("{:.2}", pair.ratio.median);
        area.draw(&Text::new(figure, (x(pair.ratio.high) + 6, y), font(HPos::Left)))?;
    }
    let ends = vec![(x(1.0), BAR as i32), (x(1.0), BAR as i32 * (pairs.len() as i32 + 1))];
    area.draw(&PathElement::new(ends, RED))?;
    area.draw(&Text::new(
        "1.00: the same".to_owned(),
        (x(1.0), middle(pairs.len())),
        font(HPos::Center),
    ))
}

/// A line for each series, through its points. Both axes are logarithmic.
pub(crate) fn lines(file: &Path, title: &str, series: &[(String, Vec<(f64, f64)>)]) {
    let root = SVGBackend::new(file, (WIDTH, 460)).into_drawing_area();
    draw_lines(&root, title, series).expect("the plot can be drawn");
    root.present().expect("the plot can be written");
}

fn draw_lines<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    title: &str,
    series: &[(String, Vec<(f64, f64)>)],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    area.fill(&WHITE)?;
    let range = |axis: fn(&(f64, f64)) -> f64| {
        let values = || series.iter().flat_map(|(_, points)| points).map(axis);
        let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        (least / 1.2..most * 1.2).log_scale()
    };
    let (plot, names) = area.split_horizontally(WIDTH - 300);
    let mut chart = ChartBuilder::on(&plot)
        .caption(title, ("sans-serif", 14))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(range(|point| point.0), range(|point| point.1))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;
    for (row, (name, points)) in series.iter().enumerate() {
        let style = Palette99::pick(row).stroke_width(2);
        chart.draw_series([PathElement::new(points.clone(), style)])?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, style.filled())))?;
        let y = BAR as i32 * (row as i32 + 2);
        names.draw(&PathElement::new(vec![(0, y), (20, y)], style))?;
        let font = ("sans-serif", 14).into_font().color(&BLACK);
        let font = font.pos(Pos::new(HPos::Left, VPos::Center));
        names.draw(&Text::new(name.clone(), (26, y), font))?;
    }
    Ok(())
}

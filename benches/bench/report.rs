//! The report: Markdown, printed as it grows and written to a file, and its plots.

use std::borrow::Borrow;
use std::fs;
use std::path::PathBuf;

use crate::commands::Pair;
use crate::plot;

pub(crate) struct Report {
    directory: PathBuf,
    text: String,
}

impl Report {
    pub(crate) fn new(directory: PathBuf) -> Self {
        fs::create_dir_all(&directory).expect("the directory of the report can be made");
        Self {
            directory,
            text: String::new(),
        }
    }

    fn add(&mut self, text: &str) {
        println!("{text}");
        self.text.push_str(text);
        self.text.push('\n');
        fs::write(self.directory.join("report.md"), &self.text).expect("the report can be written");
    }

    pub(crate) fn section(&mut self, title: &str) {
        self.add(&format!("## {title}\n"));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.add(&format!("{text}\n"));
    }

    pub(crate) fn table<C: Borrow<str>>(&mut self, head: &[C], rows: impl IntoIterator<Item = Vec<String>>) {
        let line = |cells: String| format!("| {cells} |\n");
        let mut table = line(head.join(" | "));
        table.push_str(&format!("|{}\n", "---|".repeat(head.len())));
        for row in rows {
            table.push_str(&line(row.join(" | ")));
        }
        self.add(&table);
    }

    /// A plot of ratios, which the report shows.
    pub(crate) fn bars(&mut self, name: &str, title: &str, pairs: &[Pair]) {
        let file = format!("{name}.svg");
        plot::ratios(&self.directory.join(&file), title, pairs);
        self.add(&format!("![{title}]({file})\n"));
    }

    /// A plot of lines through points, which the report shows. Both axes are logarithmic.
    pub(crate) fn lines(&mut self, name: &str, title: &str, series: &[(String, Vec<(f64, f64)>)]) {
        let file = format!("{name}.svg");
        plot::lines(&self.directory.join(&file), title, series);
        self.add(&format!("![{title}]({file})\n"));
    }
}

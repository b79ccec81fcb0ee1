//! The report: Markdown, printed as it grows and written to a file at its end, and its plots.

use std::borrow::Borrow;
use std::fs;
use std::path::PathBuf;

use crate::commands::Pair;
use crate::plot;

pub(crate) struct Report {
    directory: PathBuf,
    name: String,
    text: String,
}

impl Report {
    /// One that is to be written to this file.
    pub(crate) fn new(directory: PathBuf, name: String) -> Self {
        fs::create_dir_all(&directory).expect("the directory of the report can be made");
        Self {
            directory,
            name,
            text: String::new(),
        }
    }

    /// Writes it, if there is something in it.
    pub(crate) fn finish(self) {
        if !self.text.is_empty() {
            fs::write(self.directory.join(self.name), self.text).expect("the report can be written");
        }
    }

    fn add(&mut self, text: &str) {
        println!("{text}");
        self.text.push_str(text);
        self.text.push('\n');
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

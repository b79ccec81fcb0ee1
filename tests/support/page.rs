//! A Markdown page in parts: code blocks, sections, tables, links.

use super::transcript::Transcript;

/// The text of a page.
#[derive(Clone, Copy)]
pub(crate) struct Page(pub(crate) &'static str);

impl Page {
    /// All code blocks as what their first line says of them and what they hold, without the indentation of the list
    /// that they stand in.
    fn all_blocks(self) -> Vec<(&'static str, String)> {
        let mut blocks = Vec::new();
        let mut lines = self.0.lines();
        while let Some(line) = lines.next() {
            let Some(opened) = line.trim_start().strip_prefix("```") else {
                continue;
            };
            let indent = line.len() - line.trim_start().len();
            let block: Vec<&str> = lines
                .by_ref()
                .take_while(|line| line.trim() != "```")
                .map(|line| line.get(indent..).unwrap_or_default())
                .collect();
            blocks.push((opened, block.join("\n")));
        }
        blocks
    }

    /// The code blocks of a language.
    pub(crate) fn blocks(self, language: &str) -> Vec<String> {
        let mut blocks = self.all_blocks();
        blocks.retain(|(opened, _)| *opened == language);
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    /// The only code block of a language.
    pub(crate) fn block(self, language: &str) -> String {
        let [block] = <[String; 1]>::try_from(self.blocks(language)).unwrap();
        block
    }

    /// The code blocks that are opened by `console`, and the name of a terminal, if it is not the first one.
    pub(crate) fn transcripts(self) -> Vec<Transcript> {
        let blocks = self.all_blocks().into_iter();
        let consoles = blocks.filter_map(|(opened, lines)| {
            let terminal = opened.strip_prefix("console")?.trim_start();
            Some(Transcript { terminal, lines })
        });
        consoles.collect()
    }

    /// The headings of a level and what follows them, up to the next heading of that level or a higher one.
    pub(crate) fn sections(self, level: usize) -> Vec<(&'static str, String)> {
        let mut sections: Vec<(&str, String)> = Vec::new();
        let mut inside = false;
        for line in self.0.lines() {
            let depth = line.bytes().take_while(|byte| *byte == b'#').count();
            match line.get(depth..).and_then(|rest| rest.strip_prefix(' ')) {
                Some(heading) if depth == level => {
                    inside = true;
                    sections.push((heading, String::new()));
                }
                Some(_) if depth > 0 && depth < level => inside = false,
                _ => {
                    if let (true, Some((_, text))) = (inside, sections.last_mut()) {
                        text.push_str(line);
                        text.push('\n');
                    }
                }
            }
        }
        sections
    }

    /// What follows a heading of the second level.
    pub(crate) fn section(self, heading: &str) -> String {
        let found = self.sections(2).into_iter().find(|(name, _)| *name == heading);
        found.unwrap_or_else(|| panic!("no section {heading:?}")).1
    }

    /// The targets of its links.
    pub(crate) fn links(self) -> impl Iterator<Item = &'static str> {
        self.0.split("](").skip(1).map(|link| link.split(')').next().unwrap())
    }

    /// The links whose text is set as code: that text, and the target.
    pub(crate) fn named_links(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.0.match_indices("`](").map(move |(at, opened)| {
            let name = self.0[..at].rsplit('`').next().unwrap();
            let target = self.0[at + opened.len()..].split(')').next().unwrap();
            (name, target)
        })
    }
}

/// The anchors that the headings of a page get where it is shown.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| anchor(heading.trim_start_matches('#').trim_start()))
        .collect()
}

fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-')
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The table of a text whose first column has this name: the cells of its rows.
pub(crate) fn table(text: &str, first_column: &str) -> Vec<Vec<String>> {
    let mut tables = tables(text, first_column);
    assert_eq!(tables.len(), 1, "tables that start with {first_column:?}");
    tables.remove(0)
}

/// All tables of a text whose first column has this name.
pub(crate) fn tables(text: &str, first_column: &str) -> Vec<Vec<Vec<String>>> {
    let mut tables = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with('|') {
            continue;
        }
        let header = cells(line);
        let separator = lines.next().expect("a separator below the header");
        assert!(separator.starts_with("|---"), "{separator}");
        let mut rows = Vec::new();
        while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
            let row = cells(row);
            assert_eq!(row.len(), header.len(), "{row:?}");
            rows.push(row);
        }
        if header[0] == first_column {
            tables.push(rows);
        }
    }
    tables
}

fn cells(row: &str) -> Vec<String> {
    let row = row.strip_prefix('|').and_then(|row| row.strip_suffix('|'));
    let row = row.expect("a row between bars");
    row.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The words of a text that are set as code.
pub(crate) fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

//! Tables: aligned columns without lines, of which the last may be wrapped.

use crate::{Screen, clean};
use comfy_table::{Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Row, Width, presets};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The narrowest that a last column is made; on a narrower screen the terminal wraps.
const NARROWEST: u16 = 20;
/// Blanks between columns.
const GAP: u16 = 2;
/// The column that is cut where a screen has no room: users choose how long names are.
const CUT: &str = "NAME";
/// The shortest that a name is cut to.
const SHORTEST: u16 = 8;

/// A blank of a last column at which no line is broken while there is room: between the words of an item of a list. Shown as a blank.
pub const JOINED: char = '\u{a0}';
/// The narrowest that a last column of such items is made: the number of a job and its memory are not torn apart.
const NARROWEST_ITEMS: u16 = 12;

/// How a column is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// A column of words, left-aligned.
    Left(&'static str),
    /// A column of numbers, right-aligned.
    Right(&'static str),
    /// Job states, in colour where there is any.
    State(&'static str),
}

impl Column {
    /// What stands above it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Left(title) | Self::Right(title) | Self::State(title) => title,
        }
    }
}

/// A table in the making.
pub struct Table<'a> {
    table: comfy_table::Table,
    columns: Vec<Column>,
    screen: &'a Screen,
    most_lines: Option<usize>,
}

impl<'a> Table<'a> {
    /// A table with these columns.
    pub fn new(columns: Vec<Column>, screen: &'a Screen) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_header(columns.iter().map(|c| c.title()));
        table.set_truncation_indicator("…").force_no_tty();
        if screen.colour {
            table.enforce_styling();
        }
        Self { table, columns, screen, most_lines: None }
    }

    /// Cuts what needs more than `lines` lines on this screen.
    pub fn at_most_lines(mut self, lines: usize) -> Self {
        self.most_lines = self.screen.width.is_some().then_some(lines);
        self
    }

    /// Adds a row, one text a column.
    pub fn row(&mut self, texts: impl IntoIterator<Item = String>) {
        let mut row = Row::new();
        for (column, text) in self.columns.iter().zip(texts) {
            let cell = Cell::new_owned(clean(&text).into_owned());
            row.add_cell(match (column, colour(&text)) {
                (Column::State(_), Some(colour)) if self.screen.colour => cell.fg(colour),
                _ => cell,
            });
        }
        if let Some(lines) = self.most_lines {
            row.max_height(lines);
        }
        self.table.add_row(row);
    }

    /// Whether lines fit the screen beside a last column of the narrowest, or as wide as it needs to be.
    fn fits(&self) -> bool {
        self.screen.width.is_none_or(|width| self.others().saturating_add(self.least_of_last()) <= width)
    }

    /// Whether they would with names cut as far as they are ever cut.
    fn fits_with_cut_names(&self) -> bool {
        let at = self.columns.iter().position(|column| column.title() == CUT);
        let longest = at.and_then(|at| self.table.column_max_content_widths().get(at).copied());
        let cut = longest.map_or(0, |longest| longest.saturating_sub(SHORTEST));
        let least = self.others().saturating_sub(cut).saturating_add(self.least_of_last());
        self.screen.width.is_none_or(|width| least <= width)
    }

    /// What the last column takes at least.
    fn least_of_last(&self) -> u16 {
        let widest = self.table.column_max_content_widths().last().copied().unwrap_or(0);
        self.longest_item().unwrap_or(widest).min(widest).min(NARROWEST)
    }

    /// Width of the longest item of the last column; `None`: it is no column of items.
    fn longest_item(&self) -> Option<u16> {
        let cells = || self.table.row_iter().filter_map(|row| row.cell_iter().last()).map(Cell::content);
        cells().any(|cell| cell.contains(JOINED)).then(|| {
            let items =
                cells().flat_map(|cell| cell.split(' ').map(|item| item.chars().count()).collect::<Vec<_>>());
            u16::try_from(items.max().unwrap_or(0)).unwrap_or(u16::MAX)
        })
    }

    /// Lets lines of the last column break within items that are wider than it.
    fn break_items(&mut self, room: u16, last: usize) {
        let parted = |cell: &Cell| {
            let item = |item: &str| match item.chars().count() > usize::from(room) {
                true => item.replace(JOINED, " "),
                false => item.to_owned(),
            };
            Cell::new(cell.content().split(' ').map(item).collect::<Vec<_>>().join(" "))
        };
        let lines = self.most_lines;
        for row in self.table.row_iter_mut() {
            let cells = row.cell_iter().enumerate();
            let cells = cells.map(|(i, cell)| if i == last { parted(cell) } else { cell.clone() });
            let mut row_of_items = Row::from(cells.collect::<Vec<_>>());
            if let Some(lines) = lines {
                row_of_items.max_height(lines);
            }
            *row = row_of_items;
        }
    }

    /// Width of all columns but the last, with their gaps.
    fn others(&self) -> u16 {
        let widths = self.table.column_max_content_widths();
        let others = widths.iter().take(self.columns.len().saturating_sub(1));
        others.fold(0_u16, |sum, width| sum.saturating_add(*width).saturating_add(GAP))
    }

    /// As text, a newline at the end of each line.
    pub fn render(mut self) -> String {
        let last = self.columns.len().saturating_sub(1);
        for (i, column) in self.columns.iter().enumerate() {
            if let Some(set) = self.table.column_mut(i) {
                set.set_padding((0, if i == last { 0 } else { GAP }));
                if matches!(column, Column::Right(_)) {
                    set.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        self.table.set_content_arrangement(ContentArrangement::Disabled);
        if let Some(width) = self.screen.width {
            self.fit(width, last);
        }
        let mut text = self.table.trim_fmt().replace(JOINED, " ");
        text.push('\n');
        text
    }

    /// Narrows the last column so that lines fit; the others keep their width.
    fn fit(&mut self, width: u16, last: usize) {
        if !self.fits() {
            self.cut_names(width);
        }
        let widths = self.table.column_max_content_widths();
        let room = width.saturating_sub(self.others());
        let least = if self.longest_item().is_some() { NARROWEST_ITEMS } else { NARROWEST };
        if widths.last().is_none_or(|widest| *widest <= room) || room < least {
            return;
        }
        if self.longest_item().is_some() {
            self.break_items(room, last);
        }
        self.table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        for i in 0..last {
            if let Some(column) = self.table.column_mut(i) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        if let Some(column) = self.table.column_mut(last) {
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(room)));
        }
    }

    /// Cuts names to what leaves enough for the last column; not where nothing of them would be left.
    fn cut_names(&mut self, width: u16) {
        let Some(at) = self.columns.iter().position(|column| column.title() == CUT) else { return };
        let longest = self.table.column_max_content_widths().get(at).copied().unwrap_or(0);
        let beside = self.others().saturating_add(self.least_of_last()).saturating_sub(longest);
        let room = width.saturating_sub(beside);
        if room < SHORTEST {
            return;
        }
        for row in self.table.row_iter_mut() {
            let cut = |(i, cell): (usize, &Cell)| {
                if i == at { Cell::new(cut_to(&cell.content(), room)) } else { cell.clone() }
            };
            let mut shorter = Row::from(row.cell_iter().enumerate().map(cut).collect::<Vec<_>>());
            if let Some(lines) = self.most_lines {
                shorter.max_height(lines);
            }
            *row = shorter;
        }
    }
}

/// The beginning of a text that takes so many columns of a screen at most: letters may take two, or none.
#[must_use]
pub fn cut_to(text: &str, columns: u16) -> String {
    let columns = usize::from(columns);
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut room = columns.saturating_sub('…'.width().unwrap_or(1));
    for letter in text.chars() {
        let Some(left) = room.checked_sub(letter.width().unwrap_or(0)) else { break };
        room = left;
        kept.push(letter);
    }
    kept.push('…');
    kept
}

/// A table of rows without those of the columns that may be spared (the most needed first) for which the screen has no room;
/// and the titles of these. What needs more than `lines` lines is cut.
pub fn sparing<'s>(
    columns: &[Column],
    rows: &[Vec<String>],
    spared: &[&'s str],
    lines: Option<usize>,
    screen: &Screen,
) -> (String, Vec<&'s str>) {
    spare(columns, rows, spared, lines, screen, |table| table.fits())
}

/// The same, but names are cut before a column is spared.
pub fn sparing_after_names<'s>(
    columns: &[Column],
    rows: &[Vec<String>],
    spared: &[&'s str],
    lines: Option<usize>,
    screen: &Screen,
) -> (String, Vec<&'s str>) {
    spare(columns, rows, spared, lines, screen, |table| table.fits_with_cut_names())
}

fn spare<'s>(
    columns: &[Column],
    rows: &[Vec<String>],
    spared: &[&'s str],
    lines: Option<usize>,
    screen: &Screen,
    fits: impl Fn(&Table<'_>) -> bool,
) -> (String, Vec<&'s str>) {
    let without = |spared: &[&str]| {
        let shown = |at: &usize| columns.get(*at).is_some_and(|column| !spared.contains(&column.title()));
        let kept: Vec<usize> = (0..columns.len()).filter(shown).collect();
        some(columns, rows, &kept, lines, screen)
    };
    let mut spared: Vec<&str> =
        spared.iter().copied().filter(|title| columns.iter().any(|c| c.title() == *title)).collect();
    for title in spared.clone() {
        let fewer: Vec<&str> = spared.iter().copied().filter(|other| *other != title).collect();
        if fits(&without(&fewer)) {
            spared = fewer;
        }
    }
    (without(&spared).render(), spared)
}

/// Rows in as few tables as the screen needs, one below the other, each of which begins with the first column. A title that
/// stands again and again (OVER) says something of the column before, and stays with it. Rows that say nothing in a table
/// are left out of it.
pub fn blocks(columns: &[Column], rows: &[Vec<String>], screen: &Screen) -> String {
    let again = |column: &Column| columns.iter().filter(|other| other.title() == column.title()).count() > 1;
    let mut blocks: Vec<Vec<usize>> = vec![vec![0]];
    let mut at = 1;
    while at < columns.len() {
        let more = columns.iter().skip(at + 1).take_while(|column| again(column)).count();
        let group = at..=at + more;
        at += more + 1;
        let Some(block) = blocks.last_mut() else { break };
        let longer: Vec<usize> = block.iter().copied().chain(group.clone()).collect();
        if block.len() == 1 || some(columns, rows, &longer, None, screen).fits() {
            *block = longer;
        } else {
            blocks.push(std::iter::once(0).chain(group).collect());
        }
    }
    let told = |block: &[usize]| {
        let says =
            |row: &&Vec<String>| block.iter().any(|at| row.get(*at).is_some_and(|cell| !cell.is_empty()));
        rows.iter().filter(says).cloned().collect::<Vec<_>>()
    };
    let tables = blocks.iter().map(|block| some(columns, &told(block), block, None, screen).render());
    tables.collect::<Vec<_>>().join("\n")
}

/// A table of some of the columns.
fn some<'a>(
    columns: &[Column],
    rows: &[Vec<String>],
    which: &[usize],
    lines: Option<usize>,
    screen: &'a Screen,
) -> Table<'a> {
    let mut table = Table::new(which.iter().filter_map(|at| columns.get(*at).copied()).collect(), screen);
    if let Some(lines) = lines {
        table = table.at_most_lines(lines);
    }
    for row in rows {
        table.row(which.iter().map(|at| row.get(*at).cloned().unwrap_or_default()));
    }
    table
}

fn colour(state: &str) -> Option<Color> {
    match state {
        "RUNNING" | "COMPLETED" => Some(Color::Green),
        "PENDING" => Some(Color::Yellow),
        "FAILED" | "OUT_OF_MEMORY" | "TIMEOUT" => Some(Color::Red),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(screen: &Screen) -> String {
        let columns = vec![Column::Right("ID"), Column::State("STATE"), Column::Left("REASON")];
        let mut table = Table::new(columns, screen).at_most_lines(2);
        table.row(["7", "RUNNING", "GPU 0 was idle"].map(String::from));
        table.row(["12", "PENDING", "GpuMemory(need 20.0 GiB; best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours)"].map(String::from));
        table.render()
    }

    #[test]
    fn names_are_cut_by_the_columns_that_they_take() {
        assert_eq!(cut_to("train", 5), "train");
        assert_eq!(cut_to("train7", 5), "trai…");
        // Each takes two columns.
        assert_eq!(cut_to("漢漢漢漢", 8), "漢漢漢漢");
        assert_eq!(cut_to("漢漢漢漢漢", 8), "漢漢漢…");
        let columns = [Column::Right("ID"), Column::Left("NAME"), Column::Left("REASON")];
        let row = |id: &str, name: &str| [id, name, "GPU 0 was idle"].map(String::from).to_vec();
        let rows = [row("1", &"漢".repeat(66)), row("2", "train")];
        let text = sparing_after_names(&columns, &rows, &[], None, &Screen::of_width(Some(60))).0;
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.width() <= 60), "{text}");
    }

    #[test]
    fn a_file_gets_whole_lines() {
        insta::assert_snapshot!(table(&Screen::of_width(None)), @r"
        ID  STATE    REASON
         7  RUNNING  GPU 0 was idle
        12  PENDING  GpuMemory(need 20.0 GiB; best is GPU 1 with 12.3 GiB: 9.1 GiB held by pid 4711 of bob, not ours)
        ");
    }

    #[test]
    fn a_screen_gets_what_fits() {
        insta::assert_snapshot!(table(&Screen::of_width(Some(60))), @r"
        ID  STATE    REASON
         7  RUNNING  GPU 0 was idle
        12  PENDING  GpuMemory(need 20.0 GiB; best is GPU 1 with
                     12.3 GiB: 9.1 GiB held by pid 4711 of bob, not…
        ");
    }

    #[test]
    fn a_very_narrow_screen_wraps_by_itself() {
        assert_eq!(table(&Screen::of_width(Some(25))), table(&Screen::of_width(None)));
    }

    #[test]
    fn a_list_is_broken_between_its_items() {
        let of = |width| {
            let screen = Screen::of_width(Some(width));
            let mut table = Table::new(vec![Column::Right("GPU"), Column::Left("JOBS")], &screen);
            let items = ["6 (13.0 GiB)", "13 (1.0 GiB)", "7 (-, whole GPU reserved, starting)"];
            table.row(["0".to_owned(), items.map(|item| item.replace(' ', "\u{a0}")).join(", ")]);
            table.render()
        };
        insta::assert_snapshot!(of(30), @r"
        GPU  JOBS
          0  6 (13.0 GiB),
             13 (1.0 GiB), 7 (-, whole
             GPU reserved, starting)
        ");
        // No number is torn apart, however narrow it is.
        let narrow = of(18);
        assert!(narrow.contains(" 13 (1.0\n") || narrow.contains(" 13 (1.0 GiB),\n"), "{narrow}");
        assert!(!of(200).contains(JOINED) && of(200).lines().count() == 2);
    }

    #[test]
    fn a_narrow_screen_goes_without_some_columns() {
        let columns =
            [Column::Right("ID"), Column::Left("USER"), Column::Right("RUN"), Column::Left("REASON")];
        let rows = [["7", "alice", "40s", "it was cancelled by its user, who had another"]
            .map(String::from)
            .to_vec()];
        let of = |width| {
            let screen = Screen::of_width(width);
            let (table, spared) = sparing(&columns, &rows, &["RUN", "USER", "none"], None, &screen);
            (table.lines().next().unwrap().to_owned(), spared)
        };
        assert_eq!(of(None), ("ID  USER   RUN  REASON".to_owned(), vec![]));
        assert_eq!(of(Some(30)), ("ID  RUN  REASON".to_owned(), vec!["USER"]));
        assert_eq!(of(Some(20)), ("ID  REASON".to_owned(), vec!["RUN", "USER"]));
    }

    #[test]
    fn a_long_name_is_cut_before_lines_are_too_long() {
        let columns =
            [Column::Right("ID"), Column::Left("NAME"), Column::State("STATE"), Column::Left("REASON")];
        let name = "resnet50-imagenet-a100-sweep-lr-0.001-b7";
        let rows = [["7", name, "OUT_OF_MEMORY", "it was alone on a GPU of 40.0 GiB and does not fit"]
            .map(String::from)
            .to_vec()];
        let of = |width| sparing(&columns, &rows, &[], Some(2), &Screen::of_width(width)).0;
        insta::assert_snapshot!(of(Some(60)), @r"
        ID  NAME                 STATE          REASON
         7  resnet50-imagenet-…  OUT_OF_MEMORY  it was alone on a
                                                GPU of 40.0 GiB and…
        ");
        assert!(of(Some(80)).lines().all(|line| line.chars().count() <= 80) && of(None).contains(name));
    }

    #[test]
    fn figures_that_do_not_fit_stand_in_a_table_below() {
        let columns = ["POLICY", "MAKESPAN", "OVER", "JCT", "OVER"].map(Column::Right);
        let row = |cells: [&str; 5]| cells.map(String::from).to_vec();
        let rows = [row(["exclusive", "312.4", "1.00", "100.0", "1.00"]), row(["", "312-313", "", "", ""])];
        insta::assert_snapshot!(blocks(&columns, &rows, &Screen::of_width(Some(30))), @r"
           POLICY  MAKESPAN  OVER
        exclusive     312.4  1.00
                    312-313

           POLICY    JCT  OVER
        exclusive  100.0  1.00
        ");
        assert_eq!(blocks(&columns, &rows, &Screen::of_width(None)).lines().count(), 3);
    }

    #[test]
    fn colour_only_where_asked() {
        assert!(!table(&Screen::of_width(Some(60))).contains('\u{1b}'));
        let mut screen = Screen::of_width(Some(60));
        screen.colour = true;
        assert!(table(&screen).contains("\u{1b}["));
    }
}

//! Data frames as tables. Columns come by name and without their order or the
//! labels of rows, which only the frame's own text has: that text decides the
//! order, and is shown as it is where rows have labels of their own.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value};

use crate::terminal::harmless;

/// Rows that are shown; of more, the first and the last.
const ROWS_MAX: usize = 20;
/// Columns that are shown.
const COLUMNS_MAX: usize = 12;
/// Longest text of one cell.
const CELL_CHARS_MAX: usize = 40;

/// The table of a frame; `None` where its own text says more.
pub(super) fn table(data: &Value, text: &str) -> Option<String> {
    let columns = data.as_object()?;
    let rows = row_count(columns)?;
    if columns.is_empty() || rows == 0 || !rows_are_only_counted(text, rows) {
        return None;
    }
    let names = in_order(columns, text)?;
    let shown = &names[..names.len().min(COLUMNS_MAX)];
    let is_cut = rows > ROWS_MAX;
    let half = ROWS_MAX / 2;
    let numbers: Vec<usize> = if is_cut {
        (0..half).chain(rows - half..rows).collect()
    } else {
        (0..rows).collect()
    };
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let more = (names.len() > shown.len()).then(|| "…".to_owned());
    let heads = shown.iter().map(|name| cut(name)).chain(more.clone());
    table.set_header(std::iter::once(String::new()).chain(heads));
    for (place, row) in numbers.iter().enumerate() {
        if is_cut && place == half {
            let width = shown.len() + usize::from(more.is_some()) + 1;
            table.add_row(vec!["…"; width]);
        }
        let values = shown
            .iter()
            .map(|name| show(columns.get(*name).and_then(|column| column.get(row))));
        table.add_row(
            std::iter::once(row.to_string())
                .chain(values)
                .chain(more.clone()),
        );
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        let is_number = match place.checked_sub(1).and_then(|place| shown.get(place)) {
            None => true,
            Some(name) => columns.get(*name).is_some_and(is_numeric),
        };
        if is_number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out: String = table
        .lines()
        // Every cell has a space on each side; the first one of a line is for nothing.
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(&line).trim_end()))
        .collect();
    if is_cut || more.is_some() {
        out.push_str(&format!("[{rows} rows x {} columns]\n", names.len()));
    }
    Some(out)
}

/// How many rows all columns have.
fn row_count(columns: &Map<String, Value>) -> Option<usize> {
    let mut lengths = columns
        .values()
        .map(|column| column.as_array().map(Vec::len));
    let first = lengths.next()??;
    lengths.all(|length| length == Some(first)).then_some(first)
}

/// Whether the rows of the text are called 0, 1, 2 and so on.
fn rows_are_only_counted(text: &str, rows: usize) -> bool {
    let mut lines = text.lines();
    // A head without a label of its own begins with a space.
    if !lines.next().is_some_and(|head| head.starts_with(' ')) {
        return false;
    }
    let mut seen = 0;
    for line in lines {
        match line.split_whitespace().next() {
            Some(label) if label == seen.to_string() => seen += 1,
            // Either the middle is left out, or this is the next block of columns.
            _ => break,
        }
    }
    seen > 0 && seen <= rows
}

/// The names of the columns in the order of the text; `None` when it does not tell.
fn in_order<'a>(columns: &'a Map<String, Value>, text: &str) -> Option<Vec<&'a str>> {
    let head = text.lines().next()?;
    let mut places = Vec::new();
    for name in columns.keys() {
        places.push((word_at(head, name)?, name.as_str()));
    }
    places.sort_unstable();
    let is_clear = places
        .windows(2)
        .all(|pair| pair[0].0 + pair[0].1.len() <= pair[1].0);
    is_clear.then(|| places.into_iter().map(|(_, name)| name).collect())
}

/// Where `word` stands in a line by itself, if it does exactly once.
fn word_at(line: &str, word: &str) -> Option<usize> {
    if word.trim().is_empty() {
        return None;
    }
    let mut found = line.match_indices(word).filter(|(place, _)| {
        let before = line[..*place].chars().next_back();
        let after = line[place + word.len()..].chars().next();
        before.is_none_or(char::is_whitespace) && after.is_none_or(char::is_whitespace)
    });
    let (place, _) = found.next()?;
    found.next().is_none().then_some(place)
}

fn is_numeric(column: &Value) -> bool {
    let values = column.as_array().map(Vec::as_slice).unwrap_or_default();
    values
        .iter()
        .all(|value| value.is_number() || value.is_null())
}

fn show(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => cut(text),
        Some(Value::Number(number)) if number.is_f64() => {
            number.as_f64().map_or_else(|| number.to_string(), decimal)
        }
        Some(other) => cut(&other.to_string()),
    }
}

/// A number with as many digits as people read.
fn decimal(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return format!("{number:.6e}");
    }
    let digits = format!("{number:.6}");
    let short = digits.trim_end_matches('0');
    if short.ends_with('.') {
        format!("{short}0")
    } else {
        short.to_owned()
    }
}

fn cut(text: &str) -> String {
    let mut out = harmless(&text.chars().take(CELL_CHARS_MAX).collect::<String>());
    if text.chars().nth(CELL_CHARS_MAX).is_some() {
        out.pop();
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_frame_is_a_table_in_its_own_order() {
        let data = json!({"name": ["Ada", "Bob\u{1b}[2J"], "age": [36, null]});
        let text = "   name   age\n0   Ada  36.0\n1   Bob   NaN";
        let expected = "   name     age\n0  Ada       36\n1  Bob\u{fffd}[2J    -\n";
        assert_eq!(table(&data, text).unwrap(), expected);
    }

    #[test]
    fn a_frame_whose_rows_have_names_keeps_its_text() {
        let data = json!({"age": [36, 37]});
        for text in [
            "     age\nAda   36\nBob   37",
            "      age\nname     \nAda    36\nBob    37",
            "",
            "age",
            "Empty DataFrame\nColumns: []\nIndex: []",
        ] {
            assert_eq!(table(&data, text), None, "{text:?}");
        }
        let counted = "   age\n0   36\n1   37";
        assert!(table(&data, counted).is_some(), "the control");
    }

    #[test]
    fn numbers_have_as_many_digits_as_people_read() {
        for (number, expected) in [
            (0.1 + 0.2, "0.3"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1.0 / 3.0, "0.333333"),
            (1e-9, "1.000000e-9"),
            (1e300, "1.000000e300"),
        ] {
            assert_eq!(decimal(number), expected);
        }
    }

    #[test]
    fn what_is_no_frame_is_no_table() {
        let text = "   a\n0  1";
        for data in [
            json!(null),
            json!([]),
            json!({}),
            json!({"a": 1}),
            json!({"a": [1], "b": [1, 2]}),
            json!({"a": []}),
            json!({"not there": [1]}),
            json!({"": [1]}),
        ] {
            assert_eq!(table(&data, text), None, "{data}");
        }
    }

    #[test]
    fn of_many_rows_the_first_and_the_last_are_shown() {
        let numbers: Vec<usize> = (0..1000).collect();
        let data = json!({"n": numbers, "text": vec!["x".repeat(100); 1000]});
        let text = "     n   text\n0    0  x...\n1    1  x...\n..  ..  ...\n999  999  x...";
        let shown = table(&data, text).unwrap();
        assert_eq!(shown.lines().count(), 1 + ROWS_MAX + 1 + 1, "{shown}");
        assert!(shown.ends_with("[1000 rows x 2 columns]\n"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() < 80));
    }

    proptest::proptest! {
        #[test]
        fn no_frame_and_no_text_make_it_panic(
            names in proptest::collection::vec(".{0,3}", 0..4),
            text in "(.{0,4}\n?){0,5}",
        ) {
            let columns = names.iter().map(|name| (name.clone(), json!([1, "ü"])));
            let _ = table(&Value::Object(columns.collect()), &text);
            let text = format!(" {}\n0 1\n1 2", names.join(" "));
            let columns = names.iter().map(|name| (name.clone(), json!([1, "ü"])));
            let _ = table(&Value::Object(columns.collect()), &text);
        }
    }
}

//! Whether what was typed is a whole cell. Only enough of each language is
//! understood to tell that: brackets, strings, comments, and how blocks are
//! written. A wrong guess costs a person one more empty line.

use crate::cells::Language;

/// How whole a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completeness {
    Complete,
    /// Whole, but more may belong to it: a block of Python.
    Block,
    Incomplete,
}

/// How a language is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    Python,
    /// JavaScript, TypeScript, Java and others with braces.
    Braces,
    Bash,
    R,
}

/// What a text ends in the middle of, and what it is without strings and comments.
struct Scan {
    is_open: bool,
    /// The text, with strings as `"` and without comments. Lines within
    /// brackets or strings are joined.
    bare: String,
}

impl Syntax {
    pub(super) fn of(language: &Language) -> Self {
        match language.as_str() {
            "python" => Self::Python,
            "bash" => Self::Bash,
            "r" => Self::R,
            _ => Self::Braces,
        }
    }

    pub(super) fn completeness(self, text: &str) -> Completeness {
        // Magic of a whole cell takes every line that follows.
        if self == Self::Python && text.trim_start().starts_with("%%") {
            return Completeness::Block;
        }
        let scan = self.scan(text);
        if scan.is_open {
            return Completeness::Incomplete;
        }
        match self {
            Self::Python => python_block(&scan.bare),
            Self::Bash if bash_is_open(&scan.bare) => Completeness::Incomplete,
            Self::Bash | Self::Braces | Self::R => Completeness::Complete,
        }
    }

    /// Whether a line cannot belong to the block before it.
    pub(super) fn begins_anew(self, line: &str) -> bool {
        let word: String = line
            .chars()
            .take_while(|char| char.is_alphanumeric() || *char == '_')
            .collect();
        self == Self::Python
            && !line.trim().is_empty()
            && !line.starts_with([' ', '\t', '#', ')', ']', '}'])
            && !["else", "elif", "except", "finally"].contains(&word.as_str())
    }

    fn scan(self, text: &str) -> Scan {
        let mut bare = String::new();
        let mut depth = 0_usize;
        let mut rest = text;
        let mut is_open = false;
        while let Some(char) = rest.chars().next() {
            if self.begins_comment(rest, &bare) {
                let length = rest.find('\n').unwrap_or(rest.len());
                rest = &rest[length..];
                continue;
            }
            if self == Self::Braces && rest.starts_with("/*") {
                let Some(end) = rest[2..].find("*/") else {
                    return Scan {
                        is_open: true,
                        bare,
                    };
                };
                rest = &rest[2 + end + 2..];
                continue;
            }
            if let Some(length) = self.string(rest, &bare) {
                match length {
                    Some(length) => rest = &rest[length..],
                    None => {
                        return Scan {
                            is_open: true,
                            bare,
                        };
                    }
                }
                bare.push('"');
                continue;
            }
            if char == '\\' {
                // It joins lines, or takes the meaning of what follows.
                let after = rest[1..].chars().next();
                is_open = after.is_none() || (after == Some('\n') && rest.len() == 2);
                rest = &rest[1 + after.map_or(0, char::len_utf8)..];
                if after != Some('\n') {
                    bare.push('_');
                }
                continue;
            }
            match char {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            let is_joined = char == '\n' && depth > 0 && self != Self::Bash;
            bare.push(if is_joined { ' ' } else { char });
            rest = &rest[char.len_utf8()..];
        }
        Scan {
            // In Bash, `case` has brackets of one kind only.
            is_open: is_open || (depth > 0 && !(self == Self::Bash && bare.contains("case "))),
            bare,
        }
    }

    fn begins_comment(self, rest: &str, before: &str) -> bool {
        match self {
            Self::Python | Self::R => rest.starts_with('#'),
            Self::Braces => rest.starts_with("//"),
            Self::Bash => {
                rest.starts_with('#') && before.chars().next_back().is_none_or(char::is_whitespace)
            }
        }
    }

    /// The length of a string that begins here, `None` within if it has no end.
    fn string(self, rest: &str, before: &str) -> Option<Option<usize>> {
        let quote = rest.chars().next()?;
        if self == Self::Python {
            for triple in ["\"\"\"", "'''"] {
                if rest.starts_with(triple) {
                    return Some(end_of_string(&rest[3..], triple).map(|end| 3 + end));
                }
            }
        }
        let is_quote = match self {
            Self::Python | Self::R => matches!(quote, '"' | '\''),
            Self::Braces => matches!(quote, '"' | '\'' | '`'),
            Self::Bash => matches!(quote, '"' | '\'' | '`'),
        };
        if self == Self::Braces && quote == '/' && is_pattern_place(before) {
            let line = rest.split('\n').next().unwrap_or_default();
            let end = end_of_string(&line[1..], "/");
            return end.map(|end| Some(1 + end));
        }
        if !is_quote {
            return None;
        }
        if self == Self::Bash && quote == '\'' {
            return Some(rest[1..].find('\'').map(|end| end + 2));
        }
        let spans_lines = matches!(self, Self::Bash | Self::R) || quote == '`';
        let end = end_of_string(&rest[1..], &quote.to_string()).map(|end| 1 + end);
        match (spans_lines, end) {
            (true, end) => Some(end),
            // A string that ends with its line is an error, which the kernel tells.
            (false, end) => {
                let line = line_length(rest);
                Some(Some(end.filter(|end| *end <= line).unwrap_or(line)))
            }
        }
    }
}

/// The length of the line, in which a backslash takes the next line along.
fn line_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (place, char) in text.char_indices() {
        match char {
            '\n' if !is_escaped => return place,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// Where a string ends, with its quote; `None` if it does not.
fn end_of_string(text: &str, quote: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (place, char) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if char == '\\' {
            is_escaped = true;
        } else if text[place..].starts_with(quote) {
            return Some(place + quote.len());
        }
    }
    None
}

/// Whether a slash begins a pattern here, and divides nothing.
fn is_pattern_place(before: &str) -> bool {
    let last = before.trim_end().chars().next_back();
    last.is_none_or(|last| "(,=:[!&|?{};+-*%<>~^".contains(last))
}

fn python_block(bare: &str) -> Completeness {
    let lines: Vec<&str> = bare
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let is_head = |line: &&str| line.trim_end().ends_with(':');
    match lines.last() {
        None => Completeness::Complete,
        Some(last) if is_head(last) => Completeness::Incomplete,
        Some(last) if last.starts_with('@') => Completeness::Incomplete,
        Some(_) if lines.iter().any(is_head) => Completeness::Block,
        Some(_) => Completeness::Complete,
    }
}

/// Whether a construct of words is open, or a line ends with what joins it to the next.
fn bash_is_open(bare: &str) -> bool {
    let joined = bare.trim_end();
    if joined.ends_with("&&") || joined.ends_with('|') {
        return true;
    }
    let mut depth = 0_i32;
    let mut is_start = true;
    for line in bare.lines() {
        is_start |= true;
        for word in line.split_inclusive([' ', '\t', ';', '(', ')', '|', '&']) {
            let name = word.trim_end_matches([' ', '\t', ';', '(', ')', '|', '&']);
            if is_start {
                match name {
                    "if" | "case" | "do" => depth += 1,
                    "fi" | "esac" | "done" => depth -= 1,
                    _ => {}
                }
            }
            // After these a command begins; `for` and `while` are open by their `do`.
            is_start = word.ends_with([';', '(', ')', '|', '&'])
                || matches!(name, "then" | "else" | "do" | "!" | "{")
                || (name.is_empty() && is_start);
            if matches!(name, "for" | "while" | "until" | "select") && is_loop_head(bare) {
                return true;
            }
        }
    }
    depth > 0
}

/// Whether there is a loop without its `do`.
fn is_loop_head(bare: &str) -> bool {
    !bare
        .split(|char: char| char.is_whitespace() || char == ';')
        .any(|word| word == "do")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(syntax: Syntax, cases: &[(&str, Completeness)]) {
        for (text, expected) in cases {
            assert_eq!(syntax.completeness(text), *expected, "{text:?}");
        }
    }

    #[test]
    fn python_is_whole_with_its_brackets_strings_and_blocks() {
        use Completeness::{Block, Complete, Incomplete};
        check(
            Syntax::Python,
            &[
                ("", Complete),
                ("1 + 1", Complete),
                ("f(1,", Incomplete),
                ("f(1,\n2)", Complete),
                ("a = '''x", Incomplete),
                ("a = '''x\ny'''", Complete),
                ("a = 'it''s'  # (", Complete),
                ("a = '('", Complete),
                ("a = 'open", Complete),
                ("a = 1 + \\", Incomplete),
                ("a = 1 + \\\n2", Complete),
                ("def f():", Incomplete),
                ("def f(a={1: 2}):  # why", Incomplete),
                ("def f():\n    return 1", Block),
                ("def f():\n    return [1,", Incomplete),
                ("if a: b", Complete),
                ("@decorated", Incomplete),
                ("x = a[1:]", Complete),
                ("d = {'a':\n1}", Complete),
                ("%%bash\necho 1", Block),
                ("print('ü'", Incomplete),
            ],
        );
    }

    #[test]
    fn javascript_is_whole_with_its_brackets_and_templates() {
        use Completeness::{Complete, Incomplete};
        check(
            Syntax::Braces,
            &[
                ("const a = 1", Complete),
                ("function f() {", Incomplete),
                ("function f() {\n  return '}'\n}", Complete),
                ("`a ${1}", Incomplete),
                ("`a\nb`", Complete),
                ("a = /[(]/.test(b)", Complete),
                ("a = b / c / (d)", Complete),
                ("// {", Complete),
                ("/* {", Incomplete),
                ("/* { */ 1", Complete),
            ],
        );
    }

    #[test]
    fn bash_is_whole_with_its_words() {
        use Completeness::{Complete, Incomplete};
        check(
            Syntax::Bash,
            &[
                ("echo if", Complete),
                ("if true", Incomplete),
                ("if true; then echo fi", Incomplete),
                ("if true; then echo fi; fi", Complete),
                ("for i in 1 2", Incomplete),
                ("for i in 1 2; do", Incomplete),
                ("for i in 1 2; do echo $i; done", Complete),
                ("while true\ndo\nbreak\ndone", Complete),
                ("case a in a) echo b;;", Incomplete),
                ("case a in a) echo b;; esac", Complete),
                ("echo 'a", Incomplete),
                ("echo \"a\nb\"", Complete),
                ("echo it\\'s", Complete),
                ("echo a#b", Complete),
                ("echo $((1", Incomplete),
                ("true &&", Incomplete),
                ("ls |", Incomplete),
                ("f() {", Incomplete),
                ("f() { echo 1; }", Complete),
            ],
        );
    }

    #[test]
    fn r_is_whole_with_its_brackets() {
        use Completeness::{Complete, Incomplete};
        check(
            Syntax::R,
            &[
                ("x <- c(1,", Incomplete),
                ("x <- c(1,\n2) # (", Complete),
                ("'a\nb'", Complete),
            ],
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-z ü\\\\'\"`#/*(){}:;\n|&@%]|'''){0,60}") {
            for syntax in [Syntax::Python, Syntax::Braces, Syntax::Bash, Syntax::R] {
                let _ = syntax.completeness(&text);
                let _ = syntax.begins_anew(&text);
            }
        }
    }
}

//! The command line of `sudo`: the flags that programs and people use.

use super::Mode;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Run something.
    Run(Wish),
    /// Nothing to do: there is no password to ask for or to forget (`-v`, `-k`, `-K`).
    Nothing,
    /// What the caller may do (`-l`).
    List,
    /// `-V`.
    Version,
    /// `-h`.
    Help,
}

/// A command to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) user: String,
    pub(super) mode: Mode,
    pub(super) keep: Keep,
    /// `HOME` becomes that of the user even where variables are kept (`-H`).
    pub(super) set_home: bool,
    pub(super) variables: Vec<(String, String)>,
    pub(super) words: Vec<String>,
}

/// Which of the caller's variables the command gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The few that always pass.
    Usual,
    /// Those and these.
    Also(Vec<String>),
    /// All (`-E`).
    All,
}

/// Flags with a value that mean nothing here: prompts, close-from, type and role.
const IGNORED_WITH_VALUE: &str = "pCTrtghUR";

/// Reads the arguments after the program's name.
pub(super) fn parse(arguments: &[String]) -> Result<Asked, String> {
    let mut wish = Wish {
        user: "root".to_owned(),
        mode: Mode::Program,
        keep: Keep::Usual,
        set_home: false,
        variables: Vec::new(),
        words: Vec::new(),
    };
    let mut nothing = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.as_slice().first() {
        if argument == "--" {
            rest.next();
            break;
        }
        if let Some(long) = argument.strip_prefix("--") {
            rest.next();
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(name, value)| (name, Some(value.to_owned())));
            let mut needed = || {
                value
                    .clone()
                    .or_else(|| rest.next().cloned())
                    .ok_or_else(|| format!("option '--{name}' requires an argument"))
            };
            match name {
                "user" => wish.user = needed()?,
                "group" | "prompt" | "close-from" | "chdir" => drop(needed()?),
                "preserve-env" => wish.keep = keep(value.as_deref()),
                "set-home" => wish.set_home = true,
                "login" => wish.mode = Mode::Login,
                "shell" => wish.mode = Mode::Shell,
                "validate" | "reset-timestamp" | "remove-timestamp" => nothing = true,
                "non-interactive" | "stdin" | "askpass" | "bell" | "background" => {}
                "list" => return Ok(Asked::List),
                "version" => return Ok(Asked::Version),
                "help" => return Ok(Asked::Help),
                _ => return Err(format!("unrecognized option '--{name}'")),
            }
            continue;
        }
        let Some(flags) = argument.strip_prefix('-').filter(|flags| !flags.is_empty()) else {
            break;
        };
        if flags == "h" {
            return Ok(Asked::Help);
        }
        rest.next();
        let mut flags = flags.chars();
        while let Some(flag) = flags.next() {
            match flag {
                'u' => {
                    wish.user = value_of(flag, flags.as_str(), &mut rest)?;
                    break;
                }
                'E' => wish.keep = Keep::All,
                'H' => wish.set_home = true,
                'i' => wish.mode = Mode::Login,
                's' => wish.mode = Mode::Shell,
                'k' | 'K' | 'v' => nothing = true,
                'n' | 'S' | 'A' | 'B' | 'b' | 'P' => {}
                'l' => return Ok(Asked::List),
                'V' => return Ok(Asked::Version),
                flag if IGNORED_WITH_VALUE.contains(flag) => {
                    value_of(flag, flags.as_str(), &mut rest)?;
                    break;
                }
                flag => return Err(format!("invalid option -- '{flag}'")),
            }
        }
    }
    for word in rest {
        match word.split_once('=') {
            Some((name, value)) if wish.words.is_empty() && is_name(name) => {
                wish.variables.push((name.to_owned(), value.to_owned()));
            }
            _ => wish.words.push(word.clone()),
        }
    }
    match (wish.words.is_empty(), wish.mode) {
        (true, Mode::Program) if nothing => Ok(Asked::Nothing),
        (true, Mode::Program) => Err("nothing to run".to_owned()),
        _ => Ok(Asked::Run(wish)),
    }
}

fn value_of(
    flag: char,
    attached: &str,
    rest: &mut std::slice::Iter<'_, String>,
) -> Result<String, String> {
    if !attached.is_empty() {
        return Ok(attached.to_owned());
    }
    rest.next()
        .cloned()
        .ok_or_else(|| format!("option requires an argument -- '{flag}'"))
}

fn keep(list: Option<&str>) -> Keep {
    list.map_or(Keep::All, |list| {
        Keep::Also(list.split(',').map(str::to_owned).collect())
    })
}

fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|each| each.is_ascii_alphanumeric() || each == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Asked, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    fn wish(user: &str, mode: Mode, keep: Keep, words: &str) -> Wish {
        Wish {
            user: user.to_owned(),
            mode,
            keep,
            set_home: false,
            variables: Vec::new(),
            words: words.split_whitespace().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn flags_end_where_the_command_begins() {
        assert_eq!(
            parsed("-n -u user ls -l --help"),
            Ok(Asked::Run(wish(
                "user",
                Mode::Program,
                Keep::Usual,
                "ls -l --help"
            )))
        );
        assert_eq!(
            parsed("-nEu#7 -- -strange"),
            Ok(Asked::Run(wish("#7", Mode::Program, Keep::All, "-strange")))
        );
        assert_eq!(
            parsed("--user=www-data --preserve-env=A,B id"),
            Ok(Asked::Run(wish(
                "www-data",
                Mode::Program,
                Keep::Also(vec!["A".to_owned(), "B".to_owned()]),
                "id"
            )))
        );
    }

    #[test]
    fn variables_come_before_the_command() {
        let expected = Wish {
            variables: vec![("A".to_owned(), "x=y".to_owned())],
            set_home: true,
            ..wish("root", Mode::Program, Keep::Usual, "env B=2")
        };
        assert_eq!(parsed("-H A=x=y env B=2"), Ok(Asked::Run(expected)));
    }

    #[test]
    fn shells_need_no_command() {
        assert_eq!(
            parsed("-i"),
            Ok(Asked::Run(wish("root", Mode::Login, Keep::Usual, "")))
        );
        assert_eq!(
            parsed("-s id -u"),
            Ok(Asked::Run(wish("root", Mode::Shell, Keep::Usual, "id -u")))
        );
    }

    #[test]
    fn what_needs_no_command_is_told_apart_from_a_missing_one() {
        assert_eq!(parsed("-v"), Ok(Asked::Nothing));
        assert_eq!(parsed("-k"), Ok(Asked::Nothing));
        assert_eq!(parsed("-l"), Ok(Asked::List));
        assert_eq!(parsed("-V"), Ok(Asked::Version));
        assert_eq!(parsed("-h"), Ok(Asked::Help));
        assert!(matches!(parsed("-k id"), Ok(Asked::Run(_))));
        for line in ["", "-u", "-Z id", "--nonsense id", "A=1"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}

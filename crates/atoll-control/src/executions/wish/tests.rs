use super::*;

fn code(text: &str) -> ExecutionWish {
    ExecutionWish::new(Work::Code {
        text: text.to_owned(),
        language: None,
        context: None,
    })
}

fn packages(names: &[&str]) -> ExecutionWish {
    ExecutionWish::new(Work::Packages {
        manager: PackageManager::Pip,
        names: names.iter().map(|&name| name.to_owned()).collect(),
    })
}

#[test]
fn what_cannot_be_run_is_refused() {
    assert_eq!(code("1 + 1").check(), Ok(()));
    assert_eq!(code(" \n").check(), Err(InvalidExecution::Empty));
    let long = code(&"x".repeat(CODE_BYTES_MAX + 1)).check();
    assert!(matches!(long, Err(InvalidExecution::TooLong { .. })));
    for (wish, expected) in [
        (
            ExecutionWish {
                timeout: Some(Duration::ZERO),
                ..code("1")
            },
            InvalidExecution::Timeout,
        ),
        (
            ExecutionWish {
                output_bytes: 0,
                ..code("1")
            },
            InvalidExecution::Output,
        ),
        (
            ExecutionWish {
                cwd: Some("/".to_owned()),
                ..code("1")
            },
            InvalidExecution::NotForCode("cwd"),
        ),
        (
            ExecutionWish {
                environment: [("A=".to_owned(), String::new())].into(),
                ..code("1")
            },
            InvalidExecution::Variable("A=".to_owned()),
        ),
        (
            ExecutionWish::new(Work::Command {
                line: "a\0".to_owned(),
            }),
            InvalidExecution::Value("command"),
        ),
    ] {
        assert_eq!(wish.check(), Err(expected));
    }
}

#[test]
fn packages_are_names_and_never_options_or_places() {
    for fine in [
        "numpy",
        "numpy==2.1",
        "uvicorn[standard]>=0.30",
        "@types/node@20",
        "g++",
    ] {
        assert_eq!(packages(&[fine]).check(), Ok(()), "{fine}");
    }
    for wrong in [
        "",
        "-r/etc/passwd",
        "--index-url=x",
        "a b",
        "a;b",
        "$(a)",
        "git+https://a/b",
        "../a",
        "sudo-",
        "./a",
        "a\n",
    ] {
        assert!(packages(&[wrong]).check().is_err(), "{wrong}");
    }
    assert_eq!(packages(&[]).check(), Err(InvalidExecution::Packages));
    assert!(packages(&["a"; PACKAGES_MAX + 1]).check().is_err());
}

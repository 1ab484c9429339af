//! Whatever a client calls a file, what is opened is absolute and clean.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str, Option<&str>)| {
    let (path, home, workdir) = input;
    let Some(resolved) = atoll_guest::fuzzing::path(path, home, workdir) else {
        return;
    };
    assert!(resolved.starts_with('/'), "{resolved:?}");
    assert!(!resolved.contains('\0') || home.contains('\0'), "{resolved:?}");
    if resolved != "/" {
        for part in resolved[1..].split('/') {
            assert!(!matches!(part, "" | "." | ".."), "{resolved:?}");
        }
    }
    if !resolved.contains('\0') {
        let again = atoll_guest::fuzzing::path(&resolved, "/elsewhere", None);
        assert_eq!(again.as_ref(), Some(&resolved));
    }
});

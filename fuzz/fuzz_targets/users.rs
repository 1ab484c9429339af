//! Whatever is in `/etc/passwd` and `/etc/group`, a user that is found has
//! an absolute home and each of its groups once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str, &str)| {
    let (passwd, group, name) = input;
    let Some(user) = atoll_guest::fuzzing::user(passwd, group, name) else {
        return;
    };
    assert!(user.home.starts_with('/'));
    assert_eq!(user.name, name);
    assert!(!name.contains([':', '\n']));
    let mut groups = user.groups.clone();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups.len(), user.groups.len());
    assert_eq!(user.groups.first(), Some(&user.gid));
});

//! Which file a client means: empty is the working directory, `~` the home,
//! relative paths start at the home.

/// A path that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    /// `~other`.
    #[error("cannot expand user-specific home directory in '{0}'")]
    OtherHome(String),
    /// No file has such a name.
    #[error("path contains a NUL byte")]
    Nul,
}

/// The absolute, lexically clean path that `path` means for a user.
pub(crate) fn resolve(path: &str, home: &str, workdir: Option<&str>) -> Result<String, PathError> {
    if path.contains('\0') {
        return Err(PathError::Nul);
    }
    if path.is_empty() {
        return match workdir {
            Some(workdir) => resolve(workdir, home, None),
            None => Ok(clean(home)),
        };
    }
    if let Some(rest) = path.strip_prefix('~') {
        if !rest.is_empty() && !rest.starts_with('/') {
            return Err(PathError::OtherHome(path.to_owned()));
        }
        return Ok(clean(&format!("{home}/{rest}")));
    }
    if path.starts_with('/') {
        Ok(clean(path))
    } else {
        Ok(clean(&format!("{home}/{path}")))
    }
}

/// Removes empty parts, `.` and `..` without looking at the disk, as clients expect.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_mean_what_clients_expect() {
        let home = "/home/user";
        for (path, workdir, expected) in [
            ("", None, "/home/user"),
            ("", Some("/code"), "/code"),
            ("", Some("code"), "/home/user/code"),
            ("~", Some("/code"), "/home/user"),
            ("~/x", None, "/home/user/x"),
            ("x", Some("/code"), "/home/user/x"),
            ("./x//y/", None, "/home/user/x/y"),
            ("../x", None, "/home/x"),
            ("/etc/./passwd", None, "/etc/passwd"),
            ("/../../x", None, "/x"),
            ("/", None, "/"),
            ("a~b", None, "/home/user/a~b"),
        ] {
            assert_eq!(
                resolve(path, home, workdir),
                Ok(expected.to_owned()),
                "{path:?} with {workdir:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_opened_is_absolute_clean_and_final(
            path in "[a./~\\PC]{0,24}",
            home in "/[a-z./]{0,12}",
            workdir in proptest::option::of("[a-z./~]{0,12}"),
        ) {
            let Ok(resolved) = resolve(&path, &home, workdir.as_deref()) else {
                return Ok(());
            };
            proptest::prop_assert!(resolved.starts_with('/'));
            if resolved != "/" {
                for part in resolved[1..].split('/') {
                    proptest::prop_assert!(!matches!(part, "" | "." | ".."), "{resolved:?}");
                }
            }
            proptest::prop_assert_eq!(resolve(&resolved, "/elsewhere", None), Ok(resolved));
        }
    }

    #[test]
    fn other_homes_and_impossible_names_are_refused() {
        assert_eq!(
            resolve("~root/x", "/h", None),
            Err(PathError::OtherHome("~root/x".to_owned()))
        );
        assert_eq!(resolve("a\0b", "/h", None), Err(PathError::Nul));
    }
}

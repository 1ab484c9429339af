//! `/etc/passwd` and `/etc/group`, read by ourselves: see the invariant in
//! the crate's documentation.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// More of `/etc/passwd` or `/etc/group` is not read.
const DATABASE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Somebody whose rights a command or a file access has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    /// Login name.
    pub(crate) name: String,
    /// User id.
    pub(crate) uid: u32,
    /// Primary group.
    pub(crate) gid: u32,
    /// Supplementary groups, the primary one among them.
    pub(crate) groups: Vec<u32>,
    /// Home directory.
    pub(crate) home: String,
}

/// Nobody of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid username: '{0}'")]
pub(crate) struct UserError(pub(crate) String);

/// The two databases as text.
#[derive(Debug, Default)]
pub(crate) struct Users {
    passwd: String,
    group: String,
}

/// Whose id it is.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// Name of a user, or the number where nobody has it.
    pub(crate) fn user(&self, uid: u32) -> String {
        name_of(&self.users, uid)
    }

    /// Name of a group, or the number where no group has it.
    pub(crate) fn group(&self, gid: u32) -> String {
        name_of(&self.groups, gid)
    }
}

fn name_of(names: &HashMap<u32, String>, id: u32) -> String {
    names.get(&id).cloned().unwrap_or_else(|| id.to_string())
}

impl Users {
    /// Databases that are not on a disk.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn from_text(passwd: &str, group: &str) -> Self {
        Self {
            passwd: passwd.to_owned(),
            group: group.to_owned(),
        }
    }

    /// Reads them anew: commands may change them at any time.
    pub(crate) fn load() -> Self {
        Self {
            passwd: read_bounded("/etc/passwd"),
            group: read_bounded("/etc/group"),
        }
    }

    /// The user called `name`. `root` exists even where no file says so.
    pub(crate) fn find(&self, name: &str) -> Result<User, UserError> {
        let found = self
            .passwd
            .lines()
            .find_map(|line| parse_passwd(line).filter(|entry| entry.name == name));
        match found {
            Some(mut user) => {
                user.groups = self.groups_of(name, user.gid);
                Ok(user)
            }
            None if name == "root" => Ok(User {
                name: name.to_owned(),
                uid: 0,
                gid: 0,
                groups: self.groups_of(name, 0),
                home: "/root".to_owned(),
            }),
            None => Err(UserError(name.to_owned())),
        }
    }

    /// Names by id. The first line of an id counts, as it does for everybody.
    pub(crate) fn names(&self) -> Names {
        let mut names = Names::default();
        for user in self.passwd.lines().filter_map(parse_passwd) {
            names.users.entry(user.uid).or_insert(user.name);
        }
        for line in self.group.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(_), Some(gid)) = (fields.next(), fields.next(), fields.next())
                && !name.is_empty()
                && let Ok(gid) = gid.parse()
            {
                names.groups.entry(gid).or_insert_with(|| name.to_owned());
            }
        }
        names
    }

    fn groups_of(&self, name: &str, primary: u32) -> Vec<u32> {
        let mut groups = vec![primary];
        for line in self.group.lines() {
            let mut fields = line.split(':');
            let (Some(_), Some(_), Some(gid), Some(members)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let Ok(gid) = gid.parse() else { continue };
            if members.split(',').any(|member| member.trim() == name) && !groups.contains(&gid) {
                groups.push(gid);
            }
        }
        groups
    }
}

/// One line of `/etc/passwd`; `None` when it is a comment or broken.
fn parse_passwd(line: &str) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    let &[name, _password, uid, gid, _gecos, home, ..] = fields.as_slice() else {
        return None;
    };
    if name.is_empty() || name.starts_with(['#', '+', '-']) {
        return None;
    }
    Some(User {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        groups: Vec::new(),
        home: if home.starts_with('/') {
            home.to_owned()
        } else {
            "/".to_owned()
        },
    })
}

/// Reads a database. One that is unreadable has no entries: the user is then
/// unknown.
///
/// All else waits meanwhile, so what could let us wait is not read: root of
/// the sandbox may put a pipe in its place.
fn read_bounded(path: impl AsRef<Path>) -> String {
    let mut bytes = Vec::new();
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    if let Ok(file) = file
        && file.metadata().is_ok_and(|stat| stat.is_file())
    {
        let _ = file.take(DATABASE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users {
            passwd: "root:x:0:0:root:/root:/bin/bash\n\
                     # comment:x:5:5::/:\n\
                     broken:x:notanumber:0::/x:/bin/sh\n\
                     short:x:7\n\
                     user:x:1000:1000:A, B:/home/user:/bin/bash\n\
                     +nis:x:6:6::/:\n\
                     homeless:x:1001:1001:::/bin/sh\n"
                .to_owned(),
            group: "root:x:0:\nsudo:x:27:other,user\nuser:x:1000:user\nbroken\ndocker:x:x:user\naudio:x:29:user2\n".to_owned(),
        }
    }

    #[test]
    fn a_user_has_its_groups_each_once() {
        assert_eq!(
            users().find("user"),
            Ok(User {
                name: "user".to_owned(),
                uid: 1000,
                gid: 1000,
                groups: vec![1000, 27],
                home: "/home/user".to_owned()
            })
        );
    }

    proptest::proptest! {
        #[test]
        fn whoever_is_found_has_an_absolute_home_and_each_group_once(
            passwd in "([a-c+#]{0,2}:x?:[0-9]{0,3}:[0-9]{0,3}:[a-c,]{0,3}:/?[a-c]{0,3}:?\n|\\PC{0,20}\n){0,8}",
            group in "([a-c]{0,2}:x:[0-9]{0,2}:[a-c,]{0,8}\n|\\PC{0,20}\n){0,8}",
            name in "[a-c]{1,2}",
        ) {
            let users = Users { passwd, group };
            if let Ok(user) = users.find(&name) {
                let mut groups = user.groups.clone();
                groups.sort_unstable();
                groups.dedup();
                proptest::prop_assert_eq!(groups.len(), user.groups.len());
                proptest::prop_assert_eq!(user.groups.first(), Some(&user.gid));
                proptest::prop_assert!(user.home.starts_with('/'));
                proptest::prop_assert_eq!(user.name, name);
            }
        }
    }

    #[test]
    fn broken_lines_are_nobody() {
        for name in ["broken", "short", "# comment", "+nis", "", "use"] {
            assert_eq!(users().find(name), Err(UserError(name.to_owned())));
        }
        assert_eq!(
            UserError("x".to_owned()).to_string(),
            "invalid username: 'x'"
        );
    }

    #[test]
    fn root_exists_without_any_file() {
        let user = Users::default().find("root").unwrap();
        assert_eq!((user.uid, user.gid, user.home.as_str()), (0, 0, "/root"));
    }

    #[test]
    fn ids_have_names_or_are_numbers() {
        let names = users().names();
        assert_eq!(
            [0, 1000, 7, 42].map(|uid| names.user(uid)),
            ["root", "user", "7", "42"]
        );
        assert_eq!(
            [0, 27, 29, 42].map(|gid| names.group(gid)),
            ["root", "sudo", "audio", "42"]
        );
    }

    #[test]
    fn a_pipe_is_no_database_and_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let (pipe, link) = (place.path().join("pipe"), place.path().join("link"));
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(read_bounded(&pipe), "");
        assert_eq!(read_bounded(place.path()), "");
        assert_eq!(read_bounded("/dev/zero"), "");
        // A link to a database is one.
        std::fs::write(place.path().join("passwd"), "text").unwrap();
        std::os::unix::fs::symlink("passwd", &link).unwrap();
        assert_eq!(read_bounded(&link), "text");
    }

    #[test]
    fn a_user_without_home_lives_at_the_root() {
        assert_eq!(users().find("homeless").unwrap().home, "/");
    }
}

//! Canaries that are no files: sockets, memory, a key, a descriptor.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::os::linux::fs::MetadataExt as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use serde_json::{Map, Value, json};

/// Keys that belong to this process and go with it.
const PROCESS_KEYRING: i32 = -2;
const KEYCTL_SETPERM: i32 = 5;
/// Everything for the key's possessor and for its user.
const KEY_PERMISSIONS: u32 = 0x3f3f_0000;
const SEGMENT_BYTES: usize = 4096;
/// The kernel's largest file handle.
const HANDLE_BYTES: usize = 128;

/// What must stay open for canaries to live.
pub(super) struct Held {
    _secret: Box<[u8]>,
    _file: fs::File,
}

/// Makes them and says where they are.
pub(super) fn make(
    base: &Path,
    secret: &str,
    shared_memory: &Path,
) -> io::Result<(Map<String, Value>, Held)> {
    let open = base.join("open");
    let name = format!(
        "atoll-selftest-{}",
        base.file_name().unwrap_or_default().to_string_lossy()
    );
    let local = UnixListener::bind(open.join("socket"))?;
    let nameless = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let loopback = TcpListener::bind("127.0.0.1:0")?;
    let port = loopback.local_addr()?.port();
    for listener in [local, nameless] {
        let secret = secret.to_owned();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(secret.as_bytes());
            }
        });
    }
    let words = secret.to_owned();
    std::thread::spawn(move || {
        for mut stream in loopback.incoming().flatten() {
            let _ = stream.write_all(words.as_bytes());
        }
    });
    // Behind IPv6 there is not always a loopback.
    let port6 = TcpListener::bind("[::1]:0").ok().and_then(|listener| {
        let port = listener.local_addr().ok()?.port();
        let secret = secret.to_owned();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(secret.as_bytes());
            }
        });
        Some(port)
    });
    let file = fs::File::open(open.join("secret"))?;
    let memory: Box<[u8]> = secret.as_bytes().into();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let target = json!({
        "file": open.join("secret"),
        "scratch": open.join("scratch"),
        "directory": open,
        "outside": base.join("outside"),
        "socket": open.join("socket"),
        "abstract": name,
        "port": port,
        "port6": port6,
        "marker": name,
        "pid": std::process::id(),
        "address": memory.as_ptr() as usize,
        "length": memory.len(),
        "descriptor": file.as_raw_fd(),
        "variable": super::SECRET_VARIABLE,
        "shared_memory": shared_memory,
        "segment": segment(secret.as_bytes())?,
        "key": key(&name, secret.as_bytes()),
        "handle": handle(&open.join("secret")),
        "device": block_device(&open)?,
        "boot_id": boot_id.trim(),
        "hostname": rustix::system::uname().nodename().to_string_lossy(),
        "command_line": fs::read_to_string("/proc/cmdline").unwrap_or_default(),
    });
    let Value::Object(target) = target else {
        return Err(io::Error::other("a list of canaries is an object"));
    };
    let held = Held {
        _secret: memory,
        _file: file,
    };
    Ok((target, held))
}

/// A System V segment with the secret; it goes with this process.
fn segment(secret: &[u8]) -> io::Result<i32> {
    // SAFETY: plain calls with a fresh private segment; its size is larger than the secret.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, SEGMENT_BYTES, 0o600);
        if id < 0 {
            return Err(io::Error::last_os_error());
        }
        let memory = libc::shmat(id, std::ptr::null(), 0);
        // Marked for removal at once: it then lives exactly as long as somebody has it mapped.
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        if memory.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let length = secret.len().min(SEGMENT_BYTES);
        std::ptr::copy_nonoverlapping(secret.as_ptr(), memory.cast::<u8>(), length);
        Ok(id)
    }
}

/// A key with the secret, readable for root by its number; `None` on kernels without keys.
fn key(name: &str, secret: &[u8]) -> Option<i64> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: all pointers live through the calls, and the payload's length is given.
    unsafe {
        let key = libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            name.as_ptr(),
            secret.as_ptr(),
            secret.len(),
            PROCESS_KEYRING,
        );
        (key > 0 && libc::syscall(libc::SYS_keyctl, KEYCTL_SETPERM, key, KEY_PERMISSIONS) == 0)
            .then_some(key)
    }
}

/// The kernel's handle of a file, as type and bytes in hexadecimal; `None` where there are none.
fn handle(path: &Path) -> Option<Value> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // `struct file_handle`: length, type, bytes.
    let mut buffer = [0_u8; 8 + HANDLE_BYTES];
    buffer[..4].copy_from_slice(&u32::try_from(HANDLE_BYTES).ok()?.to_ne_bytes());
    let mut mount: libc::c_int = 0;
    // SAFETY: the buffer has the room that its head promises, and all pointers live through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            buffer.as_mut_ptr(),
            &raw mut mount,
            0,
        )
    };
    if result != 0 {
        return None;
    }
    let length = u32::from_ne_bytes(buffer[..4].try_into().ok()?) as usize;
    let kind = i32::from_ne_bytes(buffer[4..8].try_into().ok()?);
    let bytes: String = buffer[8..8 + length]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(json!([kind, bytes]))
}

/// Major and minor number of a block device that root of this host may open:
/// the one below the canaries, or else any.
fn block_device(directory: &Path) -> io::Result<Option<(u32, u32)>> {
    let device = fs::metadata(directory)?.st_dev();
    let own = (rustix::fs::major(device), rustix::fs::minor(device));
    let numbers = |entry: &fs::DirEntry| {
        // A device cgroup may keep even root from some.
        fs::File::open(Path::new("/dev").join(entry.file_name())).ok()?;
        let text = fs::read_to_string(entry.path().join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let mut devices: Vec<(u32, u32)> = fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| numbers(&entry))
        .collect();
    devices.sort_by_key(|&device| device != own);
    Ok(devices.first().copied())
}

//! Loop devices that free themselves with their last user.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use super::{HostObject, creates};

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const BLOCK_SIZE: u32 = 4096;
/// Another process may take the free device first; after this many losses something else is wrong.
const ATTEMPTS: u32 = 64;

/// `struct loop_config`, with only the fields used here by name.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    real_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names_and_key: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// A device bound to a file. Keep it open until the device is mounted.
pub(crate) struct LoopDevice {
    /// Path of the device node.
    pub(crate) path: String,
    _open: File,
}

/// Binds the file at `image` to a free loop device.
pub(crate) fn attach(image: &Path) -> io::Result<LoopDevice> {
    let backing = OpenOptions::new().read(true).write(true).open(image)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    creates(HostObject::LoopDevice, || {
        for _ in 0..ATTEMPTS {
            // SAFETY: this ioctl takes no argument and returns a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = format!("/dev/loop{number}");
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            let config = LoopConfig {
                file: backing.as_raw_fd().unsigned_abs(),
                block_size: BLOCK_SIZE,
                device: 0,
                inode: 0,
                real_device: 0,
                offset: 0,
                size_limit: 0,
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags: LO_FLAGS_AUTOCLEAR,
                names_and_key: [0; 160],
                init: [0; 2],
                reserved: [0; 8],
            };
            // SAFETY: `config` has the kernel's layout and lives through the call.
            let result =
                unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
            if result == 0 {
                return Ok(LoopDevice {
                    path,
                    _open: device,
                });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
        Err(io::Error::other(
            "every free loop device was taken by others",
        ))
    })
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

//! The seam to the kernel: every call that makes something which outlives a
//! crash goes through here and names it as a [`HostObject`].
//!
//! Two things follow. A test can end the process before and after each such
//! call (see [`atoll_failpoint`]), and `clippy.toml` of this crate forbids the raw
//! calls everywhere else, so a new host object cannot be added without one.

pub(crate) mod file;
pub(crate) mod keeper;
pub(crate) mod loop_device;
pub(crate) mod mount;
pub mod process;
pub(crate) mod program;
pub(crate) mod user_namespace;

use atoll_failpoint::{Moment, reach};

macro_rules! host_objects {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// A thing on the host that Atoll makes and must take away again.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum HostObject { $($(#[doc = $doc])* $name,)* }

        impl HostObject {
            /// Every kind, for tests that walk through all of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in `ATOLL_FAILPOINT`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

host_objects! {
    /// The process that stands beside a sandbox.
    MonitorProcess => "monitor_process",
    /// The directory of a slot, before its lease is written.
    SlotDirectory => "slot_directory",
    /// The note of the slot that was taken last.
    SlotCursor => "slot_cursor",
    /// The lease of a slot: uid range, cgroup name, interface name, address.
    Lease => "lease",
    /// A network namespace.
    NetworkNamespace => "network_namespace",
    /// The veth pair of a slot.
    Veth => "veth",
    /// The host's nft tables for all sandboxes.
    NftTable => "nft_table",
    /// What those tables know of one sandbox.
    NetworkMember => "network_member",
    /// The forwarding switch of the host.
    ForwardingSwitch => "forwarding_switch",
    /// A disk image file.
    DiskImage => "disk_image",
    /// A disk image made in advance, when a sandbox takes it.
    PooledDiskTaken => "pooled_disk_taken",
    /// A disk image made in advance.
    PooledDisk => "pooled_disk",
    /// The empty file system that disks are copies of.
    DiskTemplate => "disk_template",
    /// A loop device bound to a disk image.
    LoopDevice => "loop_device",
    /// The file system of a disk, mounted.
    DiskMount => "disk_mount",
    /// A tmpfs with the few files of a sandbox that the host writes.
    ScratchMount => "scratch_mount",
    /// The user namespace that translates owners on mounts.
    IdMapNamespace => "id_map_namespace",
    /// The user namespace of a sandbox.
    UserNamespace => "user_namespace",
    /// The root file system of a sandbox, mounted.
    RootMount => "root_mount",
    /// The OCI bundle on disk.
    Bundle => "bundle",
    /// Cgroups of a sandbox.
    Cgroup => "cgroup",
    /// The container made by the OCI runtime: processes, namespaces, cgroups.
    Container => "container",
    /// The process to which all of gVisor's are tied.
    Keeper => "keeper",
    /// A veth pair of which neither end is on the host.
    InnerVeth => "inner_veth",
    /// A mount placed into the running container.
    InnerMount => "inner_mount",
    /// The memory of a sandbox on disk.
    Checkpoint => "checkpoint",
    /// The socket on which a monitor takes questions.
    ControlSocket => "control_socket",
    /// The first process of the guest, let loose.
    GuestStart => "guest_start",
    /// The note of the boot for which a home was last put in order.
    BootMarker => "boot_marker",
    /// What was found out about a tier.
    TierVerdict => "tier_verdict",
    /// The record of what a sandbox is and how it ended.
    SandboxRecord => "sandbox_record",
}

/// Runs `call`, which makes `object`, between its two failpoints.
pub(crate) fn creates<T, E>(
    object: HostObject,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    reach(object.name(), Moment::Before);
    let made = call();
    reach(object.name(), Moment::After);
    made
}

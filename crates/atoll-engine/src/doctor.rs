//! What this host offers to sandboxes, what is missing, and how to get it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::lease::HostLock;
use crate::monitor::release;
use crate::network::{self, Egress, NetworkError, egress_probe, uplink_probe};
use crate::{
    Attachment, CgroupLayout, Limits, NetworkPolicy, Outcome, SandboxId, SandboxSpec, SlotRange,
};

/// One line of `atoll doctor`.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    pub verdict: Verdict,
    /// In words.
    pub detail: String,
    /// What to do about it.
    pub fix: Option<String>,
}

/// Whether a finding is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Something works less well, or only some commands work.
    Warning,
    /// No sandbox can be made.
    Failed,
}

/// Oldest kernel with everything the container tier uses (id-mapped overlay layers).
const KERNEL: (u32, u32) = (5, 19);
/// Debian's own kernels have all that is needed.
const NEWER_KERNEL: &str = "`apt-get install linux-image-amd64`, then `reboot` (Debian 12 has 6.1)";
/// One hierarchy with all controllers, where there is none at all.
const MOUNT_CGROUPS: &str = "`mount -t cgroup2 none /sys/fs/cgroup`";

/// Looks at everything that can be judged without making a sandbox, for the
/// home at `home` and sandboxes with addresses from `range`.
#[must_use]
pub fn inspect_host(home: &Path, range: &SlotRange) -> Vec<Check> {
    let mut checks = vec![
        root(),
        kernel(),
        user_namespaces(),
        loop_devices(),
        cgroups(),
    ];
    checks.push(program(
        "mkfs.ext4",
        "e2fsprogs",
        Verdict::Failed,
        "disks of sandboxes",
    ));
    checks.push(program(
        "nft",
        "nftables",
        Verdict::Warning,
        "networks of sandboxes (`--net full`, template builds)",
    ));
    checks.push(program(
        "mmdebstrap",
        "mmdebstrap",
        Verdict::Warning,
        "building the `base` template from Debian",
    ));
    checks.push(network(home, range));
    checks
}

fn check(
    name: &'static str,
    verdict: Verdict,
    detail: impl Into<String>,
    fix: Option<&str>,
) -> Check {
    Check {
        name,
        verdict,
        detail: detail.into(),
        fix: fix.map(str::to_owned),
    }
}

fn root() -> Check {
    if rustix::process::geteuid().is_root() {
        check("root", Verdict::Ok, "running as root", None)
    } else {
        check(
            "root",
            Verdict::Failed,
            "running as an ordinary user",
            Some("run atoll with `sudo`"),
        )
    }
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL {
        check("kernel", Verdict::Ok, format!("Linux {release}"), None)
    } else {
        let detail = format!("Linux {release} is older than {}.{}", KERNEL.0, KERNEL.1);
        check("kernel", Verdict::Failed, detail, Some(NEWER_KERNEL))
    }
}

fn user_namespaces() -> Check {
    match fs::read_to_string("/proc/sys/user/max_user_namespaces")
        .map(|text| text.trim().parse::<u64>().unwrap_or(0))
    {
        Ok(0) => check(
            "user namespaces",
            Verdict::Failed,
            "switched off",
            Some("`sysctl -w user.max_user_namespaces=15000`"),
        ),
        Ok(number) => check(
            "user namespaces",
            Verdict::Ok,
            format!("up to {number}"),
            None,
        ),
        Err(error) => check(
            "user namespaces",
            Verdict::Failed,
            error.to_string(),
            Some(NEWER_KERNEL),
        ),
    }
}

fn loop_devices() -> Check {
    if Path::new("/dev/loop-control").exists() {
        check(
            "loop devices",
            Verdict::Ok,
            "/dev/loop-control is there",
            None,
        )
    } else {
        check(
            "loop devices",
            Verdict::Failed,
            "there is no /dev/loop-control",
            Some("`modprobe loop`"),
        )
    }
}

fn cgroups() -> Check {
    let layout = match CgroupLayout::detect() {
        Ok(layout) => layout,
        Err(error) => {
            return check(
                "cgroups",
                Verdict::Failed,
                error.to_string(),
                Some(MOUNT_CGROUPS),
            );
        }
    };
    let version = match layout {
        CgroupLayout::V1 => "version 1",
        CgroupLayout::V2 => "version 2",
    };
    match layout.missing_controllers() {
        Ok(missing) if missing.is_empty() => check(
            "cgroups",
            Verdict::Ok,
            format!("{version}, all controllers"),
            None,
        ),
        Ok(missing) => {
            let detail = format!("{version}, without {}", missing.join(", "));
            let known = fs::read_to_string("/proc/cgroups").unwrap_or_default();
            let fix = add_controllers(layout, &missing, &known);
            check("cgroups", Verdict::Failed, detail, Some(&fix))
        }
        Err(error) => check(
            "cgroups",
            Verdict::Failed,
            error.to_string(),
            Some(MOUNT_CGROUPS),
        ),
    }
}

/// What adds controllers that the kernel was told to leave out.
const SWITCH_ON: &str = "`grep -o 'cgroup_[^ ]*' /proc/cmdline` names what switches them off when the kernel starts; with GRUB, `sed -i 's/cgroup_disable=[^ \"]*//g' /etc/default/grub && update-grub && reboot`";

/// What adds controllers that are `missing`; `known` is the kernel's own table of them.
fn add_controllers(layout: CgroupLayout, missing: &[&str], known: &str) -> String {
    let is_switched_off = |name: &str| {
        known.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(name) && words.last() == Some("0")
        })
    };
    if missing.iter().any(|name| is_switched_off(name)) {
        return SWITCH_ON.to_owned();
    }
    match layout {
        CgroupLayout::V1 if missing.len() < CgroupLayout::NEEDED.len() => {
            let mounts: Vec<String> = missing
                .iter()
                .map(|name| {
                    let place = format!("/sys/fs/cgroup/{name}");
                    format!("mkdir -p {place} && mount -t cgroup -o {name} none {place}")
                })
                .collect();
            format!("`{}`", mounts.join(" && "))
        }
        CgroupLayout::V1 => MOUNT_CGROUPS.to_owned(),
        CgroupLayout::V2 => format!(
            "`grep {} /proc/mounts` names what holds them as version 1; `umount` it",
            missing
                .iter()
                .map(|name| format!("-e {name}"))
                .collect::<Vec<_>>()
                .join(" ")
        ),
    }
}

fn program(name: &'static str, package: &str, severity: Verdict, purpose: &str) -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file());
    match found {
        Some(found) => check(name, Verdict::Ok, found.display().to_string(), None),
        None => check(
            name,
            severity,
            format!("not installed; needed for {purpose}"),
            Some(&format!("`apt-get install {package}`")),
        ),
    }
}

fn network(home: &Path, range: &SlotRange) -> Check {
    let warn = |detail: String, fix: &str| check("network", Verdict::Warning, detail, Some(fix));
    let report = match uplink_probe(range) {
        Ok(report) => report,
        Err(error) => return check("network", Verdict::Warning, error.to_string(), error.hint()),
    };
    let Some(route) = report.default_route else {
        return warn(
            "no default route: sandboxes reach nothing outside".to_owned(),
            "`ip route add default via GATEWAY`, with the address of your router",
        );
    };
    if let Some(hidden) = report.hidden_routes.first() {
        let detail = format!("the addresses of sandboxes hide the route `{hidden}`");
        return warn(
            detail,
            "set network_range in config.toml to a range that is free here",
        );
    }
    let Some(chains) = report.blocking_chains else {
        return warn(
            "cannot tell whether a firewall is in the way".to_owned(),
            "`apt-get install nftables`",
        );
    };
    if !rustix::process::geteuid().is_root() {
        return warn(
            format!("out through `{}`; not tried", route.interface),
            "run atoll with `sudo`",
        );
    }
    let way = format!("out through `{}`", route.interface);
    match try_egress(home, range) {
        Ok(Egress::Left) => check(
            "network",
            Verdict::Ok,
            format!("{way}; a packet of a sandbox left this host"),
            None,
        ),
        // What drops it is said as exactly as can be known.
        Ok(Egress::Dropped) => match chains.as_slice() {
            [_, ..] => {
                let (names, ways): (Vec<_>, Vec<_>) = chains
                    .iter()
                    .map(|it| {
                        let name = format!("`{} {} {}`", it.family, it.table, it.chain);
                        (name, let_through(&it.family, &it.table, &it.chain))
                    })
                    .unzip();
                warn(
                    format!(
                        "packets of sandboxes do not leave this host: unless a rule says otherwise, what is forwarded is dropped by {}",
                        names.join(" and ")
                    ),
                    &ways.join("; "),
                )
            }
            [] if report.legacy_iptables => warn(
                "packets of sandboxes do not leave this host: there are old iptables rules"
                    .to_owned(),
                "check `iptables-legacy -S FORWARD`",
            ),
            [] => warn(
                "packets of sandboxes do not leave this host".to_owned(),
                "look at `nft list ruleset` for a rule that drops what the interfaces `atl*` send",
            ),
        },
        // `--net full` and template builds do not work before that does.
        Err(error) => warn(
            format!("cannot try the way out: {error}"),
            error
                .get_ref()
                .and_then(|cause| cause.downcast_ref::<NetworkError>())
                .and_then(NetworkError::hint)
                .unwrap_or("`nft list ruleset` and `dmesg | tail` say more"),
        ),
    }
}

/// What lets packets of sandboxes through a chain that drops what it does not know.
fn let_through(family: &str, table: &str, chain: &str) -> String {
    // Docker, and ufw through it, keep this chain for rules of others.
    if (family, table, chain) == ("ip", "filter", "FORWARD") {
        return "Docker or ufw set it so: `iptables -I FORWARD -i 'atl+' -j ACCEPT` and `iptables -I FORWARD -o 'atl+' -j ACCEPT`".to_owned();
    }
    let insert = |direction: &str| {
        format!("`nft 'insert rule {family} {table} {chain} {direction} \"atl*\" accept'`")
    };
    format!("{} and {}", insert("iifname"), insert("oifname"))
}

/// Sends one packet through a slot of its own, as a sandbox would.
fn try_egress(home: &Path, range: &SlotRange) -> io::Result<Egress> {
    let id = SandboxId::random()?;
    let spec = SandboxSpec {
        hostname: id.to_string(),
        id,
        layers: Vec::new(),
        limits: Limits::default(),
        network: NetworkPolicy::full(),
        env: BTreeMap::new(),
        lifetime: None,
        attachment: Attachment::Client,
        memory: None,
    };
    let lock = HostLock::take()?;
    let lease = lock.lease(home, crate::Tier::Container, &spec, range)?;
    let made = network::ensure_host(range, || lock.live_networks(&lease)).map_err(io::Error::other);
    drop(lock);
    let tried = made.and_then(|()| egress_probe(lease.slot, range).map_err(io::Error::other));
    release(home, &lease, &Outcome::Killed)?;
    tried
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_the_command_that_adds_it() {
        let known =
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\npids\t7\t1\t1\n";
        let rows = [
            (
                CgroupLayout::V1,
                vec!["pids"],
                "`mkdir -p /sys/fs/cgroup/pids && mount -t cgroup -o pids none /sys/fs/cgroup/pids`",
            ),
            (CgroupLayout::V1, vec!["memory", "cpu", "pids"], SWITCH_ON),
            (CgroupLayout::V2, vec!["memory"], SWITCH_ON),
            (
                CgroupLayout::V2,
                vec!["cpu", "pids"],
                "`grep -e cpu -e pids /proc/mounts` names what holds them as version 1; `umount` it",
            ),
        ];
        for (layout, missing, expected) in rows {
            assert_eq!(
                add_controllers(layout, &missing, known),
                expected,
                "{layout:?} {missing:?}"
            );
        }
        let all = CgroupLayout::NEEDED;
        assert_eq!(add_controllers(CgroupLayout::V1, &all, ""), MOUNT_CGROUPS);
        assert!(let_through("ip", "filter", "FORWARD").contains("iptables -I FORWARD"));
        assert!(let_through("inet", "filter", "FORWARD").contains("insert rule inet filter"));
        assert_eq!(
            let_through("inet", "own", "forward"),
            "`nft 'insert rule inet own forward iifname \"atl*\" accept'` and `nft 'insert rule inet own forward oifname \"atl*\" accept'`"
        );
    }
}

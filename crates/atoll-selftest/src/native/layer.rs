//! Layers of a template with a link where the host puts something: the class
//! of the runc advisories of 2025 (mounts and masks through links).

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::workspace;
use crate::case::{Numbers, Target, User};
use crate::program::{self, Report};
use crate::runner::Scene;
use crate::runner::scene::Pair;
use crate::stage::Connection;

/// Writes to a path, and tells what stands in the guest's place.
const USER_OF_THE_LINK: &str = include_str!("../../attacks/through_layer.py");

/// Where the layer has something of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Hosts,
    ResolvConf,
    Hostname,
    Proc,
    Sys,
    Dev,
    DevNull,
    Run,
    Guest,
}

impl Place {
    pub(crate) const ALL: [Self; 9] = [
        Self::Hosts,
        Self::ResolvConf,
        Self::Hostname,
        Self::Proc,
        Self::Sys,
        Self::Dev,
        Self::DevNull,
        Self::Run,
        Self::Guest,
    ];

    pub(crate) fn describe(self) -> (&'static str, &'static str, &'static str) {
        let files =
            "a layer of the host's own above the template's, with plain files in these places";
        let mounts = "a template without a directory there is refused";
        match self {
            Self::Hosts => (
                "link-at-hosts",
                "a template whose `/etc/hosts` is a link to a file of the host",
                files,
            ),
            Self::ResolvConf => (
                "link-at-resolv-conf",
                "a template whose `/etc/resolv.conf` is a link to a file of the host",
                files,
            ),
            Self::Hostname => (
                "link-at-hostname",
                "a template whose `/etc/hostname` is a link to a file of the host",
                files,
            ),
            Self::Proc => (
                "link-at-proc",
                "a template whose `/proc` is a link to a directory of the host, to lead masks astray",
                mounts,
            ),
            Self::Sys => (
                "link-at-sys",
                "a template whose `/sys` is a link to a directory of the host",
                mounts,
            ),
            Self::Dev => (
                "link-at-dev",
                "a template whose `/dev` is a link to a directory of the host",
                mounts,
            ),
            Self::DevNull => (
                "link-at-dev-null",
                "a template whose `/dev/null`, the source of masks, is a link to a file of the host",
                "`/dev` is a tmpfs over whatever a template has there",
            ),
            Self::Run => (
                "link-at-run",
                "a template whose `/run` is a link to a directory of the host",
                mounts,
            ),
            Self::Guest => (
                "guest-replaced",
                "a template that brings a PID 1 of its own",
                "the guest's layer lies on top of every template",
            ),
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Hosts => "etc/hosts",
            Self::ResolvConf => "etc/resolv.conf",
            Self::Hostname => "etc/hostname",
            Self::Proc => "proc",
            Self::Sys => "sys",
            Self::Dev => "dev",
            Self::DevNull => "dev/null",
            Self::Run => "run",
            Self::Guest => ".atoll/guest",
        }
    }

    /// Whether no sandbox is made of such a template. All others must work.
    fn is_refused(self) -> bool {
        match self {
            Self::Proc | Self::Sys | Self::Dev | Self::Run => true,
            Self::Hosts | Self::ResolvConf | Self::Hostname | Self::DevNull | Self::Guest => false,
        }
    }

    /// What the program writes to, or reads.
    fn aim(self) -> String {
        match self {
            Self::Proc | Self::Sys | Self::Dev | Self::Run => format!("/{}/owned", self.path()),
            Self::Hosts | Self::ResolvConf | Self::Hostname | Self::DevNull | Self::Guest => {
                format!("/{}", self.path())
            }
        }
    }

    /// Makes the layer below `directory`.
    fn make(self, directory: &Path, scene: &Scene) -> std::io::Result<PathBuf> {
        let layer = directory.join("layer");
        let place = layer.join(self.path());
        fs::create_dir_all(place.parent().unwrap_or(&layer))?;
        fs::set_permissions(&layer, fs::Permissions::from_mode(0o755))?;
        match self {
            Self::Proc | Self::Sys | Self::Dev | Self::Run => {
                symlink(scene.keeper.open_directory(), &place)?;
            }
            Self::Hosts | Self::ResolvConf | Self::Hostname | Self::DevNull => {
                symlink(scene.keeper.scratch(), &place)?;
            }
            Self::Guest => {
                fs::write(&place, "#!/bin/sh\n# the attacker's PID 1\n")?;
                fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(layer)
    }
}

/// Makes a sandbox of the layer and uses the link in it.
pub(crate) async fn play(place: Place, scene: &mut Scene) -> Result<Pair, String> {
    let words = |error: std::io::Error| error.to_string();
    let directory = workspace(scene, "layer")?;
    let layer = place.make(&directory, scene).map_err(words)?;
    let mut aim = Target::new();
    aim.insert("aim".to_owned(), place.aim());
    let mut target = scene.target(&[&aim], "");
    target.insert("guest".to_owned(), Value::from(place == Place::Guest));
    let text = program::text(USER_OF_THE_LINK, &target);

    let opened = scene
        .stage
        .open(&Numbers::new(), vec![layer.clone()], Connection::None)
        .await;
    let attack = match opened {
        Err(error) if place.is_refused() => Ok(Report::failed(error.to_string())),
        Err(error) => Err(error.to_string()),
        Ok(actor) => {
            let report = actor.perform(&text, User::Root, "/").await.report();
            actor.close().await;
            report
        }
    };
    let attack = with_damage(attack, scene.keeper.take_damage().map_err(words)?);
    let mut order = scene.order(&text);
    order.layers.insert(0, layer);
    order.bare = true;
    let control = scene.in_room(&order).await;
    let control = with_damage(control, scene.keeper.take_damage().map_err(words)?);
    Ok((attack, control))
}

/// What happened to the canaries counts; a program that wrote somewhere proves nothing.
fn with_damage(report: Result<Report, String>, damage: Option<String>) -> Result<Report, String> {
    match damage {
        Some(damage) => Ok(Report::succeeded(damage)),
        None => report,
    }
}

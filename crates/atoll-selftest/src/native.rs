//! Attacks on Atoll's own host side: what is written, read and unpacked there
//! with root's rights while everything around it belongs to the attacker.
//!
//! Each is a flood, or a hostile layer, archive or file tree, given to the same code that
//! `atoll run` and `atoll template build` use. Its control gives the same to
//! code that trusts it.

mod archive;
mod flood;
mod layer;
mod transfer;

use std::path::PathBuf;

use crate::case::{Attack, Case, Control};
use crate::runner::Scene;
use crate::runner::scene::Pair;

pub(crate) use archive::Trick;
pub(crate) use flood::Flood;
pub(crate) use layer::Place;
pub(crate) use transfer::Writer;

/// An attack that is no program inside.
#[derive(Debug, Clone)]
pub(crate) enum Native {
    /// More than the host's own programs should swallow.
    Flood(Flood),
    /// A tar archive for the layer store.
    Archive(Trick),
    /// A layer of a template with a link where the host puts something.
    Layer(Place),
    /// Files inside that the host reads or writes.
    Transfer(Writer),
}

/// Makes the attack and its control.
pub(crate) async fn play(native: &Native, scene: &mut Scene) -> Result<Pair, String> {
    match native {
        Native::Flood(flood) => flood::play(*flood, scene).await,
        Native::Archive(trick) => archive::play(*trick, scene).await,
        Native::Layer(place) => layer::play(*place, scene).await,
        Native::Transfer(writer) => transfer::play(*writer, scene).await,
    }
}

/// Every case of this kind.
pub(crate) fn cases() -> Vec<Case> {
    let archives = Trick::ALL.into_iter().map(|trick| {
        let (name, tried) = trick.describe();
        case(
            &format!("archives.{name}"),
            tried,
            "layers are unpacked with `openat2` beneath their root, through no link, without device nodes",
            "a careless unpacker of the same archive",
            Native::Archive(trick),
        )
    });
    let layers = Place::ALL.into_iter().map(|place| {
        let (name, tried, wall) = place.describe();
        case(
            &format!("layers.{name}"),
            tried,
            wall,
            "a writer that follows the link in the same layers",
            Native::Layer(place),
        )
    });
    let transfers = Writer::ALL.into_iter().map(|writer| {
        let (name, tried, wall, control) = writer.describe();
        case(name, tried, wall, control, Native::Transfer(writer))
    });
    let floods = Flood::ALL.into_iter().map(|flood| {
        let (name, tried, wall, control) = flood.describe();
        case(name, tried, wall, control, Native::Flood(flood))
    });
    floods
        .chain(archives)
        .chain(layers)
        .chain(transfers)
        .collect()
}

fn case(name: &str, tried: &str, wall: &str, control: &'static str, native: Native) -> Case {
    Case {
        name: name.to_owned(),
        group: name.split('.').next().unwrap_or(name).to_owned(),
        tried: tried.to_owned(),
        wall: wall.to_owned(),
        wall_gvisor: None,
        skip_gvisor: None,
        attack: Attack::Native(native),
        control: Control::Told(control),
    }
}

/// An empty directory for one attack; the keeper removes it at the latest.
fn workspace(scene: &Scene, name: &str) -> Result<PathBuf, String> {
    let directory = scene.keeper.native_directory().join(name);
    let made = match std::fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir(&directory),
    };
    made.map_err(|error| format!("no directory for the attack: {error}"))?;
    Ok(directory)
}

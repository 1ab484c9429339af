//! `[[pool]]`, `[host]` and `[max_limits]` of `config.toml`: what waits for
//! clients, what all sandboxes may have together, and what each.

use std::collections::BTreeSet;

use atoll_control::lifecycle::{HostCapacity, PoolSettings, PoolSize, TemplateReference};
use atoll_control::templates::Resources;
use atoll_engine::Limits;
use serde::Deserialize;

use crate::failure::Hinted;
use crate::quantity::duration;

/// Most members of one pool.
const MEMBERS_MAX: usize = 256;
/// Most that a host is booked, and most places in its line.
const OVERCOMMIT_MAX: f64 = 100_000.0;
const QUEUE_LENGTH_MAX: usize = 10_000;

const EXAMPLE: &str =
    "example: [[pool]] with template = \"base\" and size = 4, or size = \"adaptive\" and max = 8";

/// One `[[pool]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pool {
    template: String,
    size: Size,
    /// Of an adaptive one.
    max: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`size` is a number, \"adaptive\" or \"off\"")]
enum Size {
    Members(usize),
    Word(Word),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Off,
    Adaptive,
}

/// `[host]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Host {
    cpu_overcommit: Option<f64>,
    memory_overcommit: Option<f64>,
    max_sandboxes: Option<usize>,
    queue_length: Option<usize>,
    queue_wait: Option<String>,
}

/// Pools as the life cycle keeps them; those that are off are none.
pub(super) fn pools(configured: &[Pool]) -> anyhow::Result<Vec<PoolSettings>> {
    let mut names = BTreeSet::new();
    let mut pools = Vec::new();
    for pool in configured {
        let name = &pool.template;
        let wrong = |what: String| Hinted::error(format!("pool of `{name}`: {what}"), EXAMPLE);
        let template: TemplateReference =
            name.parse().map_err(|error| wrong(format!("{error}")))?;
        if template.namespace.is_some() || template.tag.is_some() {
            return Err(wrong("only templates of the catalog have pools".to_owned()));
        }
        if !names.insert(template.name.clone()) {
            return Err(wrong("there are two pools of this template".to_owned()));
        }
        let size = match (&pool.size, pool.max) {
            (Size::Members(_) | Size::Word(Word::Off), Some(_)) => {
                return Err(wrong("`max` is for `size = \"adaptive\"`".to_owned()));
            }
            (Size::Members(0) | Size::Word(Word::Off), None) => continue,
            (Size::Members(members), None) => PoolSize::Fixed(*members),
            (Size::Word(Word::Adaptive), None | Some(0)) => {
                return Err(wrong(
                    "`size = \"adaptive\"` needs a `max` of at least 1".to_owned(),
                ));
            }
            (Size::Word(Word::Adaptive), Some(max)) => PoolSize::Adaptive { max },
        };
        let (PoolSize::Fixed(most) | PoolSize::Adaptive { max: most }) = size;
        if most > MEMBERS_MAX {
            return Err(wrong(format!("{most} members are more than {MEMBERS_MAX}")));
        }
        pools.push(PoolSettings { template, size });
    }
    Ok(pools)
}

/// Most that a client gets of what it asks for.
pub(super) fn largest(configured: &Resources, default: &Limits) -> anyhow::Result<Limits> {
    let largest = configured.apply(default);
    largest.validate().map_err(|error| {
        Hinted::error(
            format!("[max_limits]: {error}"),
            "example: [max_limits] with memory_mib = 8192 and cpu_millis = 4000",
        )
    })?;
    Ok(largest)
}

/// What this host may be booked for.
pub(super) fn capacity(host: &Host) -> anyhow::Result<HostCapacity> {
    let default = HostCapacity::measured();
    let factor = |name: &str, value: Option<f64>, default: f64| match value {
        None => Ok(default),
        Some(value) if (1.0..=OVERCOMMIT_MAX).contains(&value) => Ok(value),
        Some(value) => Err(Hinted::error(
            format!("{name} = {value} is outside 1 to {OVERCOMMIT_MAX}"),
            format!("example: {name} = {default:?}; 1 books nothing twice"),
        )),
    };
    let queue_wait = match &host.queue_wait {
        None => default.queue_wait,
        Some(text) => duration(text).map_err(|what| {
            Hinted::error(
                format!("queue_wait: {what}"),
                "example: queue_wait = \"20s\"",
            )
        })?,
    };
    let queue_length = host.queue_length.unwrap_or(default.queue_length);
    if queue_length > QUEUE_LENGTH_MAX {
        return Err(Hinted::error(
            format!("queue_length = {queue_length} is more than {QUEUE_LENGTH_MAX}"),
            "example: queue_length = 200; 0 lets nobody wait",
        ));
    }
    let sandboxes = host.max_sandboxes.unwrap_or(default.sandboxes);
    if sandboxes == 0 {
        return Err(Hinted::error(
            "max_sandboxes = 0 lets nobody make a sandbox",
            "example: max_sandboxes = 1000",
        ));
    }
    Ok(HostCapacity {
        cpu_overcommit: factor(
            "cpu_overcommit",
            host.cpu_overcommit,
            default.cpu_overcommit,
        )?,
        memory_overcommit: factor(
            "memory_overcommit",
            host.memory_overcommit,
            default.memory_overcommit,
        )?,
        sandboxes,
        queue_length,
        queue_wait,
        ..default
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct File {
        pool: Vec<Pool>,
        host: Host,
    }

    fn parsed(text: &str) -> Result<(Vec<PoolSettings>, HostCapacity), String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let pools = pools(&file.pool).map_err(|error| error.to_string())?;
        let host = capacity(&file.host).map_err(|error| error.to_string())?;
        Ok((pools, host))
    }

    #[test]
    fn pools_are_off_fixed_or_adaptive() {
        let (pools, host) = parsed("").unwrap();
        assert_eq!((pools, host), (Vec::new(), HostCapacity::measured()));
        let text = "
            [[pool]]
            template = \"base\"
            size = 4
            [[pool]]
            template = \"Busy\"
            size = \"adaptive\"
            max = 8
            [[pool]]
            template = \"quiet\"
            size = \"off\"
            [[pool]]
            template = \"none\"
            size = 0
        ";
        let of = |name: &str, size| PoolSettings {
            template: name.parse().unwrap(),
            size,
        };
        let expected = vec![
            of("base", PoolSize::Fixed(4)),
            of("busy", PoolSize::Adaptive { max: 8 }),
        ];
        assert_eq!(parsed(text).unwrap().0, expected);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        for (text, expected) in [
            ("[[pool]]\ntemplate = \"base\"", "missing field `size`"),
            ("[[pool]]\nsize = 1", "missing field `template`"),
            (
                "[[pool]]\ntemplate = \"a b\"\nsize = 1",
                "invalid template reference",
            ),
            (
                "[[pool]]\ntemplate = \"a:b\"\nsize = 1",
                "only templates of the catalog",
            ),
            (
                "[[pool]]\ntemplate = \"a\"\nsize = -1",
                "`size` is a number",
            ),
            (
                "[[pool]]\ntemplate = \"a\"\nsize = \"big\"",
                "`size` is a number",
            ),
            (
                "[[pool]]\ntemplate = \"a\"\nsize = \"adaptive\"",
                "needs a `max`",
            ),
            (
                "[[pool]]\ntemplate = \"a\"\nsize = \"adaptive\"\nmax = 0",
                "needs a `max`",
            ),
            (
                "[[pool]]\ntemplate = \"a\"\nsize = 1\nmax = 2",
                "`max` is for",
            ),
            ("[[pool]]\ntemplate = \"a\"\nsize = 257", "more than 256"),
            (
                "[[pool]]\ntemplate = \"a\"\nsize = 1\n[[pool]]\ntemplate = \"A\"\nsize = 2",
                "two pools",
            ),
            (
                "[[pool]]\ntemplate = \"a\"\nsize = 1\nminimum = 2",
                "unknown field",
            ),
            ("[host]\ncpu_overcommit = 0.5", "outside 1 to"),
            ("[host]\nmemory_overcommit = nan", "outside 1 to"),
            ("[host]\nqueue_wait = \"soon\"", "queue_wait"),
            ("[host]\nqueue_length = 10001", "more than 10000"),
            ("[host]\nmax_sandboxes = 0", "nobody"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_host_is_booked_as_its_operator_says() {
        let text = "
            [host]
            cpu_overcommit = 2
            memory_overcommit = 1.5
            max_sandboxes = 3
            queue_length = 0
            queue_wait = \"5s\"
        ";
        let expected = HostCapacity {
            cpu_overcommit: 2.0,
            memory_overcommit: 1.5,
            sandboxes: 3,
            queue_length: 0,
            queue_wait: Duration::from_secs(5),
            ..HostCapacity::measured()
        };
        assert_eq!(parsed(text).unwrap().1, expected);
    }
}

//! Templates that come with Atoll.

use super::{SpecError, TemplateName, TemplateSpec};

const BASE: &str = include_str!("../../../../templates/base.toml");
const BASE_OFFLINE: &str = include_str!("../../../../templates/base-offline.toml");

/// From where a built-in template is built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Builtin {
    /// From the mirrors of the distribution.
    #[default]
    Network,
    /// From the packages of this host: less inside, but no network needed.
    Offline,
}

/// Names of the built-in templates.
#[must_use]
pub fn builtin_names() -> &'static [&'static str] {
    &["base"]
}

/// The spec of a built-in template; `None` when there is none of that name.
pub(super) fn builtin_spec(
    name: &TemplateName,
    kind: Builtin,
) -> Option<Result<TemplateSpec, SpecError>> {
    let (text, origin) = match (name.as_str(), kind) {
        ("base", Builtin::Network) => (BASE, "templates/base.toml"),
        ("base", Builtin::Offline) => (BASE_OFFLINE, "templates/base-offline.toml"),
        _ => return None,
    };
    Some(TemplateSpec::parse(text, origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_spec_is_valid_and_named_as_it_is_asked_for() {
        for name in builtin_names() {
            let name: TemplateName = name.parse().unwrap();
            for kind in [Builtin::Network, Builtin::Offline] {
                let spec = builtin_spec(&name, kind).unwrap().unwrap();
                assert_eq!(spec.name, name);
                assert_eq!(
                    (spec.user.as_deref(), spec.workdir.as_deref()),
                    (Some("user"), Some("/home/user"))
                );
            }
        }
        assert!(builtin_spec(&"moon".parse().unwrap(), Builtin::Network).is_none());
    }
}

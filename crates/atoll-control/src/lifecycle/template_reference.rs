//! How clients name templates: `[namespace/]name[:tag]`, or an id in the
//! place of the name.

use std::str::FromStr;

use super::snapshot::DEFAULT_TAG;
use super::{CreateError, Shared};
use crate::identity::Caller;
use crate::templates::{CatalogError, Template, TemplateCatalog, TemplateName, builtin_names};

/// Longest reference.
const LEN_MAX: usize = 256;
/// Letters of a UUID, dashes and all.
const UUID_LEN: usize = 36;

/// A template as clients name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateReference {
    /// Whose it is; the caller's or everybody's when it is absent.
    pub namespace: Option<String>,
    /// Its name, or its id.
    pub name: String,
    /// Which of its builds.
    pub tag: Option<String>,
}

/// The text names no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid template reference '{0}': expected [namespace/]name[:tag]")]
pub struct InvalidTemplateReference(String);

impl InvalidTemplateReference {
    /// Of a text that is quoted in part, as long as it may be.
    pub(super) fn of(text: &str) -> Self {
        Self(text.chars().take(100).collect())
    }
}

impl FromStr for TemplateReference {
    type Err = InvalidTemplateReference;

    fn from_str(text: &str) -> Result<Self, InvalidTemplateReference> {
        let invalid = || InvalidTemplateReference::of(text);
        if text.len() > LEN_MAX {
            return Err(invalid());
        }
        let lower = text.trim().to_lowercase();
        let (path, tag) = match lower.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (lower.as_str(), None),
        };
        let (namespace, name) = match path.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, path),
        };
        let is_tag = |tag: &str| is_word(tag, ".") && !is_uuid(tag);
        let is_valid = is_word(name, "")
            && namespace.is_none_or(|namespace| is_word(namespace, ""))
            && tag.is_none_or(is_tag);
        if !is_valid {
            return Err(invalid());
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            tag: tag.map(str::to_owned),
        })
    }
}

fn is_word(text: &str, also: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|one| {
            one.is_ascii_lowercase()
                || one.is_ascii_digit()
                || "-_".contains(one)
                || also.contains(one)
        })
}

fn is_uuid(text: &str) -> bool {
    text.len() == UUID_LEN
        && text.char_indices().all(|(place, one)| match place {
            8 | 13 | 18 | 23 => one == '-',
            _ => one.is_ascii_hexdigit(),
        })
}

impl TemplateReference {
    /// The template of that name or id.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn find(&self, catalog: &TemplateCatalog) -> Result<Option<Template>, CatalogError> {
        if let Ok(name) = self.name.parse::<TemplateName>()
            && let Some(template) = catalog.get(&name)?
        {
            return Ok(Some(template));
        }
        let mut templates = catalog.list()?.into_iter();
        Ok(templates.find(|template| template.id.as_str() == self.name))
    }
}

impl Shared {
    /// The template that `text` names to `caller`.
    pub(super) async fn template(
        &self,
        caller: &Caller,
        text: &str,
    ) -> Result<Template, CreateError> {
        let missing = || CreateError::NoTemplate(text.chars().take(100).collect());
        let reference: TemplateReference = text.parse()?;
        if let Some(namespace) = &reference.namespace {
            let tenant = self.foundation.database.tenant_by_name(namespace).await?;
            // Another tenant's namespace looks as if there were none.
            if tenant.is_none_or(|tenant| tenant.tenant_id != caller.tenant) {
                return Err(missing());
            }
        }
        let tag = reference.tag.as_deref().unwrap_or(DEFAULT_TAG);
        let named = TemplateReference {
            tag: Some(tag.to_owned()),
            ..reference.clone()
        };
        let snapshot = || async {
            let found = self.own_snapshots::<CreateError>(caller, &named).await?;
            let newest = found.into_iter().next();
            Ok::<_, CreateError>(newest.map(|snapshot| snapshot.template))
        };
        // In a namespace are the snapshots of its tenant, and then what everybody has.
        if reference.namespace.is_some()
            && let Some(template) = snapshot().await?
        {
            return Ok(template);
        }
        let found = reference.find(&self.foundation.catalog)?;
        if found.is_none()
            && let Some(template) = snapshot().await?
        {
            return Ok(template);
        }
        let template = match found {
            Some(template) => template,
            // What everybody knows to exist, and what E2B's SDK asks for unless told otherwise.
            None if builtin_names().contains(&reference.name.as_str()) => {
                return Err(CreateError::NotBuilt(reference.name));
            }
            None => return Err(missing()),
        };
        match reference.tag.as_deref() {
            None | Some(DEFAULT_TAG) => Ok(template),
            Some(tag) => Err(CreateError::NoTag {
                name: reference.name,
                tag: tag.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_a_name_and_perhaps_more() {
        let parts = |text: &str| {
            let TemplateReference {
                namespace,
                name,
                tag,
            } = text.parse().unwrap();
            (namespace, name, tag)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parts("base"), (None, "base".to_owned(), None));
        assert_eq!(
            parts(" Team/My_T-1:V1.0 "),
            (some("team"), "my_t-1".to_owned(), some("v1.0"))
        );
    }

    #[test]
    fn other_texts_are_no_references() {
        for text in [
            "",
            " ",
            "/",
            "a/",
            "/a",
            "a:",
            ":a",
            "a/b/c",
            "a:b:c",
            "../a",
            "a b",
            "ä",
            "a.b",
            "a\0",
            "a:0d5e26b4-5f5c-4a34-9d0b-0e6a5fbb8f0a",
            &"a".repeat(257),
        ] {
            assert!(text.parse::<TemplateReference>().is_err(), "{text:?}");
        }
    }
}

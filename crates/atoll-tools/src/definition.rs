//! What a tool is: one definition, from which every schema is made.

use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::desk::Desk;
use crate::error::ToolError;
use crate::workplace::Promise;

/// What a client may want to know before it lets a model call a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It changes nothing.
    Reads,
    /// It adds or changes something.
    Changes,
    /// It can take away what was there.
    Destroys,
}

/// Whether a tool's effect can reach beyond the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// It stays inside.
    Closed,
    /// What runs may use the network, as far as the sandbox may.
    Open,
}

/// A picture in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// In base64.
    pub data: String,
    /// `image/png` or `image/jpeg`.
    pub mime_type: &'static str,
    /// Where it can be read again.
    pub uri: Option<String>,
}

/// What came of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// For a model to read.
    pub text: String,
    /// For programs, by the tool's schema.
    pub structured: Value,
    /// Pictures.
    pub images: Vec<Image>,
}

/// A call that did not do what it was asked for, and what came of it all the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// What to say.
    pub error: ToolError,
    /// What was there by then.
    pub partial: Option<Box<Outcome>>,
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        Self {
            error,
            partial: None,
        }
    }
}

/// What tools return.
pub type Answer = Result<Outcome, Failure>;

/// A call, as a tool sees it. Whoever drops the call's future cancels it.
pub struct Call {
    /// Whose call it is.
    pub desk: Arc<Desk>,
    news: Mutex<String>,
}

/// Characters of what is said about a call that takes time.
const NEWS_CHARS_MAX: usize = 200;

impl Call {
    /// A call of that session.
    #[must_use]
    pub fn new(desk: Arc<Desk>) -> Self {
        Self {
            desk,
            news: Mutex::new(String::new()),
        }
    }

    /// Says how far it is; the last word counts.
    pub(crate) fn say(&self, news: &str) {
        let news = news.chars().take(NEWS_CHARS_MAX).collect();
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = news;
    }

    /// How far it is, in words.
    #[must_use]
    pub fn news(&self) -> String {
        self.news
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

type Run = for<'a> fn(&'a Call, Map<String, Value>) -> Promise<'a, Answer>;

/// A tool.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What a model must know of it.
    pub description: &'static str,
    /// What it may change.
    pub effect: Effect,
    /// How far that reaches.
    pub world: World,
    /// Schema of its arguments.
    pub arguments: fn() -> Map<String, Value>,
    /// Schema of its structured result.
    pub result: fn() -> Map<String, Value>,
    /// Arguments that work.
    pub example: fn() -> Value,
    pub(crate) run: Run,
}

impl Tool {
    /// Calls it.
    ///
    /// # Errors
    /// What a model is to be told when it did not work.
    pub async fn call(&self, call: &Call, arguments: Map<String, Value>) -> Answer {
        (self.run)(call, arguments).await
    }
}

/// Reads arguments.
pub(crate) fn parse<A: DeserializeOwned>(arguments: Map<String, Value>) -> Result<A, ToolError> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        ToolError::arguments(
            error.to_string(),
            "correct the arguments by the tool's schema and call again",
        )
    })
}

/// The schema of a type, in the small language that all models' makers accept:
/// nothing is referred to, nothing is null, and numbers have no Rust names.
pub(crate) fn schema<T: JsonSchema>() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    simplify(&mut schema);
    match schema {
        Value::Object(mut object) => {
            object.remove("title");
            object.remove("description");
            object
                .entry("properties")
                .or_insert_with(|| Value::Object(Map::new()));
            object
        }
        _ => Map::new(),
    }
}

fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.remove("format");
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|kind| kind != "null");
                if types.len() == 1 {
                    let only = types.remove(0);
                    object.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(values)) = object.get_mut("enum") {
                values.retain(|value| !value.is_null());
            }
            // An optional enum is one of its variants or null; it is left out instead.
            if let Some(Value::Array(mut variants)) = object.remove("anyOf") {
                variants.retain(|variant| variant.get("type") != Some(&Value::from("null")));
                match (variants.len(), variants.pop()) {
                    (1, Some(Value::Object(only))) => {
                        for (key, value) in only {
                            object.entry(key).or_insert(value);
                        }
                    }
                    (_, Some(last)) => {
                        variants.push(last);
                        object.insert("anyOf".to_owned(), Value::Array(variants));
                    }
                    (_, None) => {}
                }
            }
            // Variants with a description each are one list of words.
            if let Some(Value::Array(variants)) = object.get("oneOf") {
                let words: Option<Vec<Value>> = variants
                    .iter()
                    .map(|variant| variant.get("const").cloned())
                    .collect();
                if let Some(words) = words {
                    object.remove("oneOf");
                    object.insert("type".to_owned(), Value::from("string"));
                    object.insert("enum".to_owned(), Value::Array(words));
                }
            }
            for (key, value) in object.iter_mut() {
                match value {
                    // Its keys are names of arguments, not words of the schema.
                    Value::Object(properties) if key == "properties" => {
                        properties.values_mut().for_each(simplify);
                    }
                    value => simplify(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        _ => {}
    }
}

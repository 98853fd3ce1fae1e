//! `[custom]`: the settings of a user's trainer, as a type of the user.

use serde::de::DeserializeOwned;
use toml::Value;

use super::General;
use super::error::RecipeError;

impl General {
    /// Reads the section `[custom]` as a `T`; a missing section is an empty one. With
    /// `#[serde(deny_unknown_fields)]` an unknown key is an error that names the key.
    pub fn custom_as<T: DeserializeOwned>(&self) -> Result<T, RecipeError> {
        serde_path_to_error::deserialize(Value::Table(self.custom.clone())).map_err(|error| {
            let path = error.path().to_string();
            // serde writes "." as the path of the section itself.
            let key = match path.as_str() {
                "." => "custom".to_owned(),
                path => format!("custom.{path}"),
            };
            let message = error.into_inner().message().to_owned();
            RecipeError::key_only(&key, message)
        })
    }
}

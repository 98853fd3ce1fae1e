//! `[custom]` as a type of the user.

use serde::Deserialize;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    width: u32,
    noise: Noise,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Noise {
    level: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { width: 8, noise: Noise { level: 0.5 } }
    }
}

fn read(custom: &str) -> Result<Settings, RecipeError> {
    let text = format!("task = \"custom\"\n[train]\nsteps = 1\n{custom}");
    Recipe::parse("test", &text, &[]).unwrap().custom_as()
}

#[test]
fn custom_settings_read_as_the_users_type() {
    assert_eq!(read("").unwrap(), Settings::default());
    let settings = read("[custom]\nwidth = 3\nnoise.level = 0.25\n").unwrap();
    assert_eq!((settings.width, settings.noise.level), (3, 0.25));
}

#[test]
fn wrong_custom_settings_are_named_by_key() {
    for (custom, key, word) in [
        ("[custom]\nwidht = 3\n", "custom.widht", "width"),
        ("[custom]\nwidth = -3\n", "custom.width", "-3"),
        ("[custom]\nwidth = \"wide\"\n", "custom.width", "wide"),
        ("[custom.noise]\nlevel = true\n", "custom.noise.level", "true"),
        ("[custom.noise]\n", "custom.noise", "level"),
    ] {
        let error = read(custom).unwrap_err();
        assert_eq!(error.key(), Some(key), "{error}");
        assert!(error.message().contains(word), "{error}");
    }
}

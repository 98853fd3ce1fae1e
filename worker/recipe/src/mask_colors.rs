//! `data.mask_colors`: the colours of classes in masks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dtrain_common::recipe::Problem;
use dtrain_common::recipe::hints::describe;
use serde::{Deserialize, Serialize};
use toml::Value;

use super::Recipe;

/// The largest file of colours, in bytes.
const LARGEST_FILE: u64 = 1 << 20;

/// The colours of classes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum MaskColors {
    /// A file of colours that is not read yet: loading a recipe reads it if it is there.
    File(PathBuf),
    /// Colours in the order of their classes.
    List(Vec<ClassColor>),
}

/// A colour of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassColor {
    /// The name of the class; several colours may have the same class.
    pub class: String,
    /// Red, green and blue.
    pub color: [u8; 3],
}

impl ClassColor {
    /// Returns the colour as `#RRGGBB`.
    pub fn hex(&self) -> String {
        let [r, g, b] = self.color;
        format!("#{r:02X}{g:02X}{b:02X}")
    }
}

impl MaskColors {
    /// Returns the colours in the order of their classes; none of a file that is not read.
    pub fn list(&self) -> &[ClassColor] {
        match self {
            Self::File(_) => &[],
            Self::List(list) => list,
        }
    }

    /// Returns the names of the classes that are not among `ignored`, in the order of their numbers.
    pub fn classes(&self, ignored: &[String]) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.list().iter().map(|entry| entry.class.as_str()) {
            if !names.contains(&name) && !ignored.iter().any(|other| other == name) {
                names.push(name);
            }
        }
        names
    }

    /// Reads a file of colours. Each line has a name and three numbers, or three numbers and a name, with commas, tabs or spaces
    /// between them. Lines that begin with `#` and a first line without numbers do not count.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut list = Vec::new();
        let lines = text.trim_start_matches('\u{feff}').lines().zip(1..);
        let mut lines = lines
            .map(|(line, number)| (line.trim(), number))
            .filter(|(line, _)| !line.is_empty() && !line.starts_with("# "))
            .peekable();
        if let Some((first, _)) = lines.peek()
            && !first.contains(|letter: char| letter.is_ascii_digit())
        {
            lines.next();
        }
        for (line, number) in lines {
            list.push(entry(line).ok_or_else(|| {
                format!("line {number} is {line:?}; write a name and three numbers from 0 to 255, such as `road,128,64,128`")
            })?);
        }
        Self::of(list)
    }

    /// Checks that no two classes have the same colour.
    fn of(list: Vec<ClassColor>) -> Result<Self, String> {
        let mut seen: BTreeMap<[u8; 3], &str> = BTreeMap::new();
        for entry in &list {
            if let Some(other) = seen.insert(entry.color, &entry.class) {
                return Err(match other == entry.class {
                    true => format!("the class {other:?} has the colour {} twice; remove one", entry.hex()),
                    false => format!(
                        "the classes {other:?} and {:?} have the same colour {}; a pixel of it has no class",
                        entry.class,
                        entry.hex()
                    ),
                });
            }
        }
        match list.is_empty() {
            true => Err("there are no colours; write NAME = \"#RRGGBB\" for each class".to_owned()),
            false => Ok(Self::List(list)),
        }
    }
}

/// Reads a line of a file.
fn entry(line: &str) -> Option<ClassColor> {
    let cells: Vec<&str> = match line.contains(',') {
        true => line.split(',').map(|cell| cell.trim().trim_matches('"')).collect(),
        false => line.split_whitespace().collect(),
    };
    let color = |cells: &[&str]| {
        let numbers = cells.iter().map(|cell| cell.parse::<u8>().ok()).collect::<Option<Vec<_>>>()?;
        <[u8; 3]>::try_from(numbers).ok()
    };
    let (color, name) = match cells.split_last_chunk::<3>() {
        Some((name, last)) if color(last).is_some() => (color(last)?, name),
        _ => {
            let (first, name) = cells.split_first_chunk::<3>()?;
            (color(first)?, name)
        }
    };
    named(&name.join(" "), color).ok()
}

fn named(class: &str, color: [u8; 3]) -> Result<ClassColor, String> {
    match class.trim() {
        "" => Err("the name of a class is empty".to_owned()),
        class if class.contains(char::is_control) => Err(format!("{class:?} is not the name of a class")),
        class => Ok(ClassColor { class: class.to_owned(), color }),
    }
}

/// Reads `"#RRGGBB"` or `[R, G, B]`.
fn color(value: &Value) -> Result<[u8; 3], String> {
    let digits = value.as_str().and_then(|text| text.strip_prefix('#')).filter(|digits| digits.len() == 6);
    let of_text = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let of_list = || {
        let list = value.as_array()?.iter().map(|value| u8::try_from(value.as_integer()?).ok());
        <[u8; 3]>::try_from(list.collect::<Option<Vec<_>>>()?).ok()
    };
    let found = of_text.map(|number| [(number >> 16) as u8, (number >> 8) as u8, number as u8]);
    found.or_else(of_list).ok_or_else(|| {
        format!(
            "{} is no colour; write \"#RRGGBB\", or [R, G, B] with numbers from 0 to 255",
            describe(value)
        )
    })
}

/// Reads the colours of a class: one, or a list of them.
fn colors(value: &Value) -> Result<Vec<[u8; 3]>, String> {
    match value.as_array() {
        Some(list) if !list.iter().all(Value::is_integer) => list.iter().map(color).collect(),
        _ => color(value).map(|one| vec![one]),
    }
}

impl TryFrom<Value> for MaskColors {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match &value {
            Value::String(path) if !path.trim().is_empty() && !path.contains('\0') => {
                Ok(Self::File(path.into()))
            }
            Value::Table(table) => {
                let mut list = Vec::new();
                for (class, value) in table {
                    let colors = colors(value).map_err(|message| format!("`{class}`: {message}"))?;
                    for color in colors {
                        list.push(named(class, color)?);
                    }
                }
                Self::of(list)
            }
            Value::Array(entries) => {
                let entry = |value: &Value| {
                    let text = value.as_str().and_then(|text| text.trim().rsplit_once(' '));
                    let (class, hex) = text
                        .ok_or_else(|| format!("{} is no entry; write \"NAME #RRGGBB\"", describe(value)))?;
                    named(class, color(&hex.into())?)
                };
                Self::of(entries.iter().map(entry).collect::<Result<_, _>>()?)
            }
            other => Err(format!(
                "expected a table such as {{ sky = \"#80C0FF\" }}, a list such as [\"sky #80C0FF\"], or the path of a file, got {}",
                describe(other)
            )),
        }
    }
}

impl From<MaskColors> for Value {
    fn from(colors: MaskColors) -> Self {
        match colors {
            MaskColors::File(path) => path.to_string_lossy().into_owned().into(),
            MaskColors::List(list) => list
                .iter()
                .map(|entry| Self::from(format!("{} {}", entry.class, entry.hex())))
                .collect::<Vec<_>>()
                .into(),
        }
    }
}

/// Replaces the path of a file of colours by its content. A file that is not there may be on the machine of the run: its path
/// becomes absolute.
pub(super) fn read(recipe: &mut Recipe) -> Vec<Problem> {
    let Some(MaskColors::File(path)) = &mut recipe.data.mask_colors else { return Vec::new() };
    if let Ok(absolute) = std::path::absolute(&*path) {
        *path = absolute;
    }
    match content(path).map(|text| MaskColors::parse(&text)) {
        None => Vec::new(),
        Some(Ok(colors)) => {
            recipe.data.mask_colors = Some(colors);
            Vec::new()
        }
        Some(Err(message)) => vec![Problem::at("data.mask_colors", format!("{}: {message}", path.display()))],
    }
}

/// Returns the text of a regular file that is small enough, if it can be read.
fn content(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let text = || String::from_utf8_lossy(&fs::read(path).ok()?).into_owned().into();
    if found.is_file() && found.len() <= LARGEST_FILE { text() } else { None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries(colors: &MaskColors) -> Vec<String> {
        colors.list().iter().map(|entry| format!("{} {}", entry.class, entry.hex())).collect()
    }

    fn parse(text: &str) -> Vec<String> {
        entries(&MaskColors::parse(text).unwrap())
    }

    fn value(text: &str) -> Result<MaskColors, String> {
        let table: toml::Table = format!("x = {text}").parse().unwrap();
        MaskColors::try_from(table["x"].clone())
    }

    #[test]
    fn files_of_several_forms_are_read() {
        let wanted = ["Animal #408040", "traffic light #000001"];
        assert_eq!(parse("name,r,g,b\nAnimal,64,128,64\ntraffic light, 0, 0, 1\n"), wanted);
        assert_eq!(parse("# of 2 classes\nname,r,g,b\nAnimal,64,128,64\ntraffic light,0,0,1\n"), wanted);
        assert_eq!(
            parse("64 128 64\tAnimal\r\n0 0 1\ttraffic light\r\n"),
            wanted,
            "as CamVid's label_colors.txt"
        );
        assert_eq!(parse("\u{feff}\"Animal\",64,128,64\n\n# a note\ntraffic light,0,0,1"), wanted);
        for (text, part) in [
            ("a,1,2,3\nb,1,2\n", "line 2 is \"b,1,2\""),
            ("a,1,2,256\n", "line 1"),
            ("1,2,3\n", "line 1"),
            ("a,1,2,3\nb,1,2,3\n", "the classes \"a\" and \"b\" have the same colour #010203"),
            ("a,1,2,3\na,1,2,3\n", "twice"),
            ("name,r,g,b\n", "no colours"),
        ] {
            let error = MaskColors::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn tables_lists_and_paths_are_read() {
        let table =
            value("{ road = [128, 64, 128], sky = [\"#80C0FF\", [0, 0, 1]], b = \"#ff0000\" }").unwrap();
        let list = ["road #804080", "sky #80C0FF", "sky #000001", "b #FF0000"];
        assert_eq!(entries(&table), list, "in the order of the recipe");
        assert_eq!(MaskColors::try_from(Value::from(table.clone())).unwrap(), table);
        assert_eq!(table.classes(&["road".into()]), ["sky", "b"]);
        assert_eq!(value("\"colors.csv\"").unwrap(), MaskColors::File("colors.csv".into()));
        for (text, part) in [
            ("{ a = \"red\" }", "`a`: the text \"red\" is no colour"),
            ("{ a = [1, 2] }", "no colour"),
            ("{ a = [1, 2, 300] }", "no colour"),
            ("{ a = \"#000000\", b = \"#000000\" }", "the same colour #000000"),
            ("{}", "no colours"),
            ("[]", "no colours"),
            ("[\"#000000\"]", "no entry"),
            ("7", "expected a table"),
        ] {
            let error = value(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(text in "([a-z#]{0,4}[ ,\t\"]{0,2}[0-9]{0,3}[\r\n]{0,2}){0,12}|.*") {
            if let Ok(colors) = MaskColors::parse(&text) {
                prop_assert_eq!(&MaskColors::try_from(Value::from(colors.clone())).unwrap(), &colors);
            }
        }
    }
}

//! Changes of archives. The tests of the memory share this file.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use zip::write::SimpleFileOptions;

/// Returns a file of tests/parity/reference/exported.
pub(crate) fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reference/exported").join(name)
}

/// The entries of an archive by name, in their order.
#[derive(Clone)]
pub(crate) struct Entries(pub(crate) Vec<(String, Vec<u8>)>);

impl Entries {
    pub(crate) fn of(case: &str) -> Self {
        let file = std::fs::File::open(reference(&format!("{case}.pt2"))).unwrap();
        let mut archive = zip::ZipArchive::new(file).unwrap();
        let entries = (0..archive.len()).map(|number| {
            let mut entry = archive.by_index(number).unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.name().unwrap().into_owned(), content)
        });
        Self(entries.collect())
    }

    pub(crate) fn content(&mut self, inner: &str) -> &mut Vec<u8> {
        let found = self.0.iter_mut().find(|(name, _)| name.split_once('/').unwrap().1 == inner);
        &mut found.unwrap().1
    }

    pub(crate) fn json(&mut self, inner: &str) -> Value {
        serde_json::from_slice(self.content(inner)).unwrap()
    }

    /// Changes an entry's JSON.
    pub(crate) fn edit(mut self, inner: &str, change: impl FnOnce(&mut Value)) -> Self {
        let mut value = self.json(inner);
        change(&mut value);
        *self.content(inner) = value.to_string().into_bytes();
        self
    }

    /// Changes the program for training.
    pub(crate) fn edit_program(self, change: impl FnOnce(&mut Value)) -> Self {
        self.edit("models/model.json", |document| change(&mut document["graph_module"]))
    }

    /// Changes the operations of the program for training.
    pub(crate) fn edit_nodes(self, change: impl FnOnce(&mut Vec<Value>)) -> Self {
        self.edit_program(|program| change(program["graph"]["nodes"].as_array_mut().unwrap()))
    }

    /// Changes the smallest batch for which the program for training is valid.
    #[allow(dead_code)]
    pub(crate) fn valid_from(self, least: i64) -> Self {
        self.edit("models/model.json", |document| {
            let ranges = document["range_constraints"].as_object_mut().unwrap();
            ranges.values_mut().for_each(|range| range["min_val"] = least.into());
        })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        for (name, content) in &self.0 {
            writer.start_file(name.as_str(), options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }
}

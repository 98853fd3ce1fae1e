//! Where samples lie: folders of images with classes, masks, maps or numbers, and tables.

pub mod classes;
mod csv;
mod listing;
pub mod numbers;
pub mod pairs;
pub mod table;
mod table_file;
pub mod target_table;
mod unicode_form;

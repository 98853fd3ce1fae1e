mod images;
mod maps;
mod masks;

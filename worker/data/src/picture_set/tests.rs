mod images;
mod masks;

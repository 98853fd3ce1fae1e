//! The folder of libraries that a program is started with.

//! Names in messages.

/// Most names or files that a message lists; further ones are only counted.
pub(super) const LISTED: usize = 5;

/// Writes "`a`, `b`, `c`" or, for many names, "`a`, `b`, `c`, `d`, `e` and 7 more".
pub(super) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).take(LISTED).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        rest => format!("{} and {rest} more", shown.join(", ")),
    }
}

//! The user and the command of a process, from `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most characters of a command to show.
const COMMAND: usize = 60;

/// A visible process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    /// The user name, or the uid if it has no name.
    pub(crate) user: String,
    /// The shortened command line.
    pub(crate) command: String,
}

/// Describes a process; `None` if it has ended or belongs to another container.
pub(crate) fn owner(pid: u32) -> Option<Owner> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let uid = fs::metadata(&folder).ok()?.uid();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(Owner { uid, user: user(&passwd, uid), command: command(&folder)? })
}

/// Returns the command line, or the name if the kernel has no command line.
fn command(folder: &Path) -> Option<String> {
    let words = String::from_utf8_lossy(&fs::read(folder.join("cmdline")).ok()?).replace('\0', " ");
    let command = match words.trim() {
        "" => fs::read_to_string(folder.join("comm")).ok()?.trim().to_owned(),
        words => words.to_owned(),
    };
    // Control characters in a command must not move the cursor.
    let shown: String =
        command.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    let is_long = shown.chars().count() > COMMAND;
    let begin: String = shown.chars().take(COMMAND - 2).collect();
    Some(if is_long { format!("{begin}..") } else { shown })
}

fn user(passwd: &str, uid: u32) -> String {
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn users_have_names_or_numbers() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(user(passwd, 1000), "ann");
        assert_eq!(user(passwd, 0), "root");
        assert_eq!(user(passwd, 7), "7");
    }

    #[test]
    fn a_process_is_described() {
        let mut child = std::process::Command::new("sleep").args(["600", &"0".repeat(90)]).spawn().unwrap();
        let own = owner(std::process::id()).unwrap();
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        // Between fork and exec it has the test's name, and then for a moment no command line.
        let described = std::iter::repeat_with(|| owner(child.id()).unwrap().command)
            .find(|command| command.starts_with("sleep 6"))
            .unwrap();
        assert!(described.starts_with("sleep 600 000") && described.ends_with("0.."), "{described}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(owner(child.id()), None);
    }
}

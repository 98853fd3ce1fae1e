//! The process that listens at a TCP port of this machine.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

/// The state of a listening socket in the kernel's table.
const LISTENS: &str = "0A";

/// See the module.
#[derive(Debug)]
pub(super) struct Holder {
    pid: u32,
    /// The file name of its program.
    program: String,
}

impl Holder {
    /// Returns the process that listens at the port, if this user may see it.
    pub(super) fn of(port: u16) -> Option<Self> {
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(fs::read_to_string);
        let sockets: BTreeSet<String> = tables
            .iter()
            .flatten()
            .flat_map(|table| table.lines())
            .filter_map(|line| socket(line, port))
            .collect();
        let pids = fs::read_dir("/proc")
            .ok()?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let holds = |pid: &u32| {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let mut links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
            links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
        };
        let pid = pids.into_iter().find(holds).filter(|_| !sockets.is_empty())?;
        Some(Self { pid, program: program(&pid.to_string())? })
    }

    /// Returns whether it is the program of this process.
    pub(super) fn has_own_program(&self) -> bool {
        program("self").is_some_and(|own| own == self.program)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.program, self.pid)
    }
}

/// Returns the link text of the socket of this line of the kernel's table if it listens at the port.
fn socket(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (_, number) = local.rsplit_once(':')?;
    let is_it = *state == LISTENS && u16::from_str_radix(number, 16).is_ok_and(|number| number == port);
    is_it.then(|| format!("socket:[{inode}]"))
}

fn program(pid: &str) -> Option<String> {
    let path = fs::read_link(Path::new("/proc").join(pid).join("exe")).ok()?;
    let name = path.file_name()?.to_string_lossy();
    Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_holder_of_a_port_is_found_by_its_number() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let holder = Holder::of(port).unwrap();
            assert_eq!(holder.pid, std::process::id());
            assert!(holder.has_own_program());
            drop(listener);
            assert!(Holder::of(port).is_none());
        }
    }

    #[test]
    fn only_sockets_that_listen_count() {
        let line = |state: &str| {
            format!(
                "   0: 00000000:7348 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 4711 1 0"
            )
        };
        assert_eq!(socket(&line("0A"), 29512).as_deref(), Some("socket:[4711]"));
        assert_eq!(socket(&line("01"), 29512), None);
        assert_eq!(socket(&line("0A"), 29511), None);
        assert_eq!(socket("  sl  local_address rem_address", 29512), None);
    }
}

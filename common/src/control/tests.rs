#![allow(clippy::unwrap_used)]

use super::*;
use std::os::unix::fs::PermissionsExt;

const SOON: Duration = Duration::from_secs(20);

fn answer() -> Response {
    Response { freed: 5, allocated: 7, reserved: 9, device: "CPU".into(), rank: 1 }
}

#[test]
fn a_request_is_answered_and_the_listener_removes_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let folders = [folder.path().join("dtrain")];
    let listener = Listener::open(&folders).unwrap();
    let path = listener.path().to_owned();
    assert_eq!(workers(&folders), [(std::process::id(), path.clone())]);
    let mode = fs::metadata(&folders[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            listener.serve(|question| {
                assert_eq!(question, Request::Clear);
                Ok(answer())
            })?;
            listener.serve(|_| Err("the cache is stuck".into()))?;
            listener.serve(|_| Ok(answer()))
        });
        assert_eq!(request(&path, Request::Clear, SOON).unwrap(), answer());
        let refused = request(&path, Request::Memory, SOON).unwrap_err();
        assert_eq!(refused.to_string(), "the cache is stuck");
        // A request of another version.
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"ask\":\"dance\"}\n").unwrap();
        let told = line(&stream).unwrap();
        assert!(told.contains("\"error\":\"cannot read the request"), "{told}");
        server.join().unwrap().unwrap();
    });
    drop(listener);
    assert!(!path.exists());
    assert!(matches!(request(&path, Request::Clear, SOON), Err(RequestError::Gone)));
    assert_eq!(workers(&folders), []);
}

#[test]
fn the_protocol_is_the_documented_one() {
    assert_eq!(serde_json::to_string(&Request::Clear).unwrap(), r#"{"ask":"clear"}"#);
    assert_eq!(serde_json::to_string(&Request::Memory).unwrap(), r#"{"ask":"memory"}"#);
    assert_eq!(
        serde_json::to_string(&Reply::Response(answer())).unwrap(),
        r#"{"freed":5,"allocated":7,"reserved":9,"device":"CPU","rank":1}"#
    );
}

#[test]
fn a_busy_worker_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let listener = Listener::open(&[folder.path().join("dtrain")]).unwrap();
    let waited = request(listener.path(), Request::Clear, Duration::from_millis(50));
    assert!(matches!(waited, Err(RequestError::Busy)), "{waited:?}");
}

#[test]
fn sockets_of_the_dead_are_removed_and_those_of_the_living_stay() {
    let folder = tempfile::tempdir().unwrap();
    let folders = [folder.path().join("dtrain")];
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    let listener = Listener::open(&folders).unwrap();
    let left = folders[0].join(format!("{dead}.sock"));
    // Dropping std's listener closes it but does not remove the file.
    drop(UnixListener::bind(&left).unwrap());
    // Process 1 always exists.
    let living = folders[0].join("1.sock");
    drop(UnixListener::bind(&living).unwrap());
    fs::write(folders[0].join("notes.txt"), "").unwrap();
    let found: Vec<_> = workers(&folders).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(found, [1, std::process::id()]);
    assert!(!left.exists() && living.exists());
    assert!(matches!(request(&living, Request::Clear, SOON), Err(RequestError::Gone)));
    drop(listener);
}

#[test]
fn a_folder_open_to_others_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let error = Listener::open(std::slice::from_ref(&open)).unwrap_err();
    assert!(error.to_string().contains("not a private folder of this user"), "{error}");
    assert_eq!(workers(std::slice::from_ref(&open)), []);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    assert!(Listener::open(&[link]).is_err());
    // The next folder is used.
    let other = folder.path().join("other");
    let listener = Listener::open(&[open, other.clone()]).unwrap();
    assert!(listener.path().starts_with(other));
    assert!(Listener::open(&[]).is_err());
}

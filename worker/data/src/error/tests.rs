use rustix::io::Errno;

use super::*;

fn failed(error: Errno) -> io::Error {
    error.into()
}

#[test]
fn remedies_fit_the_cause() {
    let folder = |error| DataError::UnreadableFolder("x".into(), failed(error)).to_string();
    let file = |error| SampleError::from(failed(error)).to_string();
    for (text, remedy) in [
        (folder(Errno::ACCESS), "give the user of dtrain read and execute permission"),
        (folder(Errno::NOENT), "it changed while it was listed: run the same command again"),
        (folder(Errno::NOTDIR), "it changed while it was listed: run the same command again"),
        (folder(Errno::LOOP), "it is a link to itself: remove it"),
        (folder(Errno::MFILE), "raise the limit of open files"),
        (folder(Errno::IO), "check the disk or the connection"),
        (file(Errno::ACCESS), "give the user of dtrain read permission"),
        (file(Errno::NOENT), "it is a link to a missing file, or was removed"),
        (file(Errno::LOOP), "it is a link to itself: remove it"),
        (file(Errno::NFILE), "raise the limit of open files"),
        (file(Errno::NOMEM), "free memory, or lower data.workers"),
        (file(Errno::STALE), "mount the file system again"),
    ] {
        assert!(text.contains(remedy), "{text}");
    }
}

#[test]
fn errors_of_one_file_are_no_outage() {
    let of = |error| SampleError::from(failed(error)).outage();
    assert_eq!((of(Errno::NOENT), of(Errno::ACCESS), SampleError::Empty.outage()), (None, None, None));
    assert!(of(Errno::IO).is_some() && of(Errno::IO) != of(Errno::STALE));
    let mask = SampleError::from(failed(Errno::IO)).of("mask", &std::path::Path::new("x").into());
    assert_eq!(mask.outage(), of(Errno::IO));
}

//! `latest` and `best` without symbolic links: as files, and as folders after `cp -rL`.

use super::rollback::{newest, point, run_of};
use super::*;

/// As on a file system without links.
fn point_by_file(link: &Path, step: u64) {
    fs::write(link, format!("step-{step:08}\n")).unwrap();
}

/// Copies a folder; links become what they point to.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(fs::copy(&path, &to).unwrap()),
        }
    }
}

/// Makes the checkpoint of step 32 one that cannot be read: its manifest is a link to itself, as EIO or ESTALE.
fn make_unreadable(run: &RunDir) {
    let manifest = run.checkpoint(32).join("manifest.json");
    fs::remove_file(&manifest).unwrap();
    std::os::unix::fs::symlink("manifest.json", &manifest).unwrap();
}

#[test]
fn a_file_with_a_name_is_read_and_moved_like_a_link() {
    let run = &run_of(&[16, 32, 48]).run;
    for link in [run.latest(), run.best()] {
        let _ = fs::remove_file(&link);
        point_by_file(&link, 32);
        assert_eq!(run.linked(&link), Some(32));
        assert_eq!(follow(&link), run.checkpoint(32));
    }
    assert_eq!(newest(run), Some(run.checkpoint(32)), "the run never resumes from a later one by itself");
    let named = run.prepare(&recipe(&[]), &Resume::From(run.best())).unwrap();
    assert_eq!(named, Start::Resume(run.checkpoint(32)));
    // A commit that a crash interrupted.
    point_by_file(&run.next(), 48);
    run.recover().unwrap();
    assert_eq!((run.linked(&run.latest()), run.next().exists()), (Some(48), false));
    // A rollback removes the pointers to later steps.
    run.start_from(&run.checkpoint(16), 16, None).unwrap();
    assert_eq!((run.linked(&run.latest()), run.best().exists()), (Some(16), false));
    assert_eq!(run.set_aside().unwrap()[0].steps, [32, 48]);
}

#[test]
fn only_names_of_checkpoints_are_followed() {
    let run = &run_of(&[16]).run;
    fs::remove_file(run.latest()).unwrap();
    for text in ["step-00000016/..", "../elsewhere", "", "step-16", &"x".repeat(100)] {
        fs::write(run.latest(), text).unwrap();
        assert_eq!((run.linked(&run.latest()), follow(&run.latest())), (None, run.latest()), "{text}");
        assert_eq!(newest(run), Some(run.checkpoint(16)));
    }
    // A step that is missing limits the line all the same.
    point_by_file(&run.latest(), 8);
    assert_eq!((run.linked(&run.latest()), follow(&run.latest())), (None, run.latest()));
    assert_eq!(newest(run), None);
}

#[test]
fn a_link_is_a_file_where_the_file_system_has_no_links() {
    let run = &run_of(&[16, 32]).run;
    // /proc refuses both; its error is that of the file.
    assert!(super::super::point(Path::new("/proc/latest"), "step-00000016").is_err());
    super::super::point(&run.latest(), "step-00000016").unwrap();
    assert!(run.latest().is_symlink());
    fs::remove_file(run.latest()).unwrap();
    point_by_file(&run.latest(), 32);
    // An equal pointer stays as it is.
    super::super::point(&run.latest(), "step-00000032").unwrap();
    assert!(!run.latest().is_symlink());
}

#[test]
fn a_copied_run_resumes_and_has_links_again() {
    let place = run_of(&[16, 32]);
    point(&place.run.best(), 16);
    let run = &RunDir::new(place.run.root().with_file_name("copy"));
    copy(place.run.root(), run.root());
    assert!(!run.latest().is_symlink() && run.latest().is_dir());
    assert_eq!((run.linked(&run.latest()), run.linked(&run.best())), (Some(32), Some(16)));
    assert_eq!(newest(run), Some(run.checkpoint(32)));
    let settled = run.settle_copies().unwrap();
    assert!(settled.iter().all(|one| matches!(one, SettledCopy::Removed(..))), "{settled:?}");
    assert!(run.latest().is_symlink() && run.best().is_symlink());
    assert_eq!((run.linked(&run.latest()), run.linked(&run.best())), (Some(32), Some(16)));
    assert!(run.settle_copies().unwrap().is_empty());
}

#[test]
fn a_copy_from_between_the_two_links_of_a_commit_resumes() {
    for has_own in [true, false] {
        let run = &run_of(&[16, 32]).run;
        point(&run.latest(), 16);
        copy(&run.checkpoint(32), &run.next());
        if !has_own {
            fs::remove_dir_all(run.checkpoint(32)).unwrap();
        }
        assert!(!has_own || newest(run) == Some(run.checkpoint(32)));
        run.settle_copies().unwrap();
        run.recover().unwrap();
        assert_eq!((run.linked(&run.latest()), run.next().exists()), (Some(32), false));
    }
}

#[test]
fn figures_that_are_not_numbers_are_the_same_in_a_copy() {
    let run = &run_of(&[16]).run;
    let mut manifest = Manifest::read(&run.checkpoint(16)).unwrap();
    manifest.metrics.insert("loss".to_owned(), f64::NAN);
    manifest.write(&run.checkpoint(16)).unwrap();
    fs::remove_file(run.latest()).unwrap();
    copy(&run.checkpoint(16), &run.latest());
    let settled = run.settle_copies().unwrap();
    assert!(matches!(settled[..], [SettledCopy::Removed(..)]), "{settled:?}");
}

#[test]
fn weights_are_named_where_latest_is_a_file() {
    let run = &run_of(&[16]).run;
    fs::remove_file(run.latest()).unwrap();
    point_by_file(&run.latest(), 16);
    let weights = run.checkpoint(16).join("model.safetensors");
    let error = run.prepare(&recipe(&["train.effective_batch=8"]), &Resume::Auto).unwrap_err().to_string();
    assert!(error.contains(&format!("model.weights = \"{}\"", weights.display())), "{error}");
}

#[test]
fn a_checkpoint_that_cannot_be_read_is_no_end_of_the_run() {
    let run = &run_of(&[16, 32]).run;
    make_unreadable(run);
    assert!(run.may_have_checkpoint());
    let error = run.newest_checkpoint().unwrap_err();
    assert!(
        error.is_unreadable() && error.to_string().contains("name an earlier checkpoint with --resume"),
        "{error}"
    );
    let earlier = run.prepare(&recipe(&[]), &Resume::From(run.checkpoint(16))).unwrap();
    assert_eq!(earlier, Start::Resume(run.checkpoint(16)), "the way out works");
    let (_, set_aside) = run.start_from(&run.checkpoint(16), 16, None).unwrap();
    assert_eq!(set_aside.unwrap().steps, [32]);

    // One that was removed since it was listed is passed over.
    let error = || Manifest::read(&run.checkpoint(64)).unwrap_err();
    assert!(error().is_unreadable());
    passed_over(&run.checkpoint(64), error()).unwrap();
    passed_over(&run.checkpoint(16), error()).unwrap_err();
}

#[test]
fn a_whole_copy_is_never_lost() {
    let folder_in_place_of = |damage: &dyn Fn(&RunDir)| {
        let place = run_of(&[16, 32]);
        let run = &place.run;
        fs::remove_file(run.latest()).unwrap();
        copy(&run.checkpoint(32), &run.latest());
        damage(run);
        let settled = run.settle_copies().unwrap();
        (settled, place)
    };
    let verified = |folder: &Path| Manifest::read(folder).unwrap().verify(folder).unwrap();
    let model = |folder: &Path| folder.join("model.safetensors");

    let (settled, place) = folder_in_place_of(&|run| fs::remove_dir_all(run.checkpoint(32)).unwrap());
    assert!(matches!(settled[..], [SettledCopy::Renamed(..)]));
    verified(&place.run.checkpoint(32));

    // The same length, other bytes.
    let (settled, place) = folder_in_place_of(&|run| fs::write(model(&run.checkpoint(32)), "33").unwrap());
    assert!(matches!(settled[..], [SettledCopy::Replaced(..)]));
    verified(&place.run.checkpoint(32));
    assert_eq!(place.run.linked(&place.run.latest()), Some(32));

    // The own one cannot be read; it may be whole. The copy is damaged. Both are of other bytes, and whole.
    let damaged = |run: &RunDir| fs::write(model(&run.latest()), "33").unwrap();
    let differs = |run: &RunDir| {
        let mut manifest = Manifest::read(&run.latest()).unwrap();
        manifest.samples += 1;
        manifest.write(&run.latest()).unwrap();
    };
    for damage in [&make_unreadable as &dyn Fn(&RunDir), &damaged, &differs] {
        let (settled, place) = folder_in_place_of(damage);
        let [SettledCopy::Kept(_, aside)] = &settled[..] else { panic!("{settled:?}") };
        assert!(aside.ends_with("checkpoints/latest-copy") && model(aside).exists());
        assert!(place.run.checkpoint(32).exists());
        assert_eq!(place.run.linked(&place.run.latest()), Some(32));
    }
}

#[test]
fn a_run_from_a_copy_of_latest_alone_finds_it_before_it_is_renamed() {
    let run = &run_of(&[16]).run;
    fs::remove_file(run.latest()).unwrap();
    fs::rename(run.checkpoint(16), run.latest()).unwrap();
    assert_eq!(newest(run), Some(run.latest()));
    run.settle_copies().unwrap();
    assert_eq!(newest(run), Some(run.checkpoint(16)));
}

#[test]
fn a_probe_leaves_nothing_and_names_what_is_refused() {
    let run = &run_of(&[16]).run;
    let before = snapshot(run.root());
    assert_eq!(run.probe().unwrap(), FileSystem { links: true, sync: true });
    assert_eq!(snapshot(run.root()), before);
    let error = probe(Path::new("/proc")).unwrap_err().to_string();
    assert!(error.starts_with("the file system of /proc cannot create a folder: "), "{error}");
    assert!(error.ends_with("; use a folder on another disk, such as a local one"), "{error}");
}

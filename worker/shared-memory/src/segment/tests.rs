#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn two_mappings_share_one_memory() {
    let (made, ticket) = Segment::create(2, 5000).unwrap();
    let opened = Segment::open(&ticket).unwrap();
    assert_eq!((opened.regions(), opened.region_bytes()), (2, 5000));
    assert_eq!(made.identity(), opened.identity());
    for region in 0..2 {
        made.reserve(region).unwrap();
        let (first, second) = (made.region(region), opened.region(region));
        assert_ne!(first, second);
        assert_eq!(first.as_ptr() as usize % rustix::param::page_size(), 0);
        // SAFETY: both mappings have 5000 bytes here, and no other thread uses them.
        unsafe {
            assert_eq!(second.add(4999).read(), 0, "new memory is zero");
            first.add(4999).write(7 + region as u8);
            assert_eq!(second.add(4999).read(), 7 + region as u8);
        }
    }
}

#[test]
fn a_region_keeps_its_mapping() {
    let (segment, _) = Segment::create(1, 100).unwrap();
    let segment = Arc::new(segment);
    let region = Region::new(&segment, 0).unwrap();
    assert!(Region::new(&segment, 1).is_none());
    drop(segment);
    assert_eq!(region.bytes(), 100);
    // SAFETY: the region lives.
    unsafe {
        region.as_ptr().write(3);
        assert_eq!(region.as_ptr().read(), 3);
    }
}

#[test]
fn addresses_are_found_only_inside_their_region() {
    let (segment, _) = Segment::create(3, 5000).unwrap();
    for region in 0..3 {
        let start = segment.region(region).as_ptr();
        let at = |offset: isize, bytes| segment.offset_of(region, start.wrapping_offset(offset), bytes);
        assert_eq!(at(0, 5000), Some(0));
        assert_eq!(at(100, 4900), Some(100));
        assert_eq!(at(100, 4901), None);
        assert_eq!(at(-1, 1), None);
        assert_eq!(at(0, usize::MAX), None);
    }
    assert_eq!(segment.offset_of(3, ptr::null(), 0), None);
}

#[test]
fn a_file_other_than_the_tickets_segment_is_an_error() {
    let (_segment, ticket) = Segment::create(2, 5000).unwrap();
    let another = Ticket { nonce: [1, 2], ..ticket };
    assert!(matches!(Segment::open(&another), Err(MemoryError::WrongFile(_, "another run's memory"))));
    let larger = Ticket { region_bytes: 50_000, ..ticket };
    assert!(matches!(Segment::open(&larger), Err(MemoryError::WrongFile { .. })));
    let closed = Ticket { fd: 9999, ..ticket };
    let error = Segment::open(&closed).unwrap_err().to_string();
    assert!(error.contains("/fd/9999"), "{error}");
    // Opening a pipe neither blocks nor succeeds.
    let (pipe, _writer) = std::io::pipe().unwrap();
    let pipe = Ticket { fd: pipe.as_raw_fd().into(), ..ticket };
    assert!(matches!(Segment::open(&pipe), Err(MemoryError::WrongFile { .. })));
}

#[test]
fn a_file_that_could_shrink_is_an_error() {
    let (segment, ticket) = Segment::create(1, 4096).unwrap();
    let file = File::from(rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(segment.layout.mapped_bytes as u64).unwrap();
    file.write_all_at(&ticket.header(), 0).unwrap();
    let unsealed = Ticket { fd: file.as_raw_fd().into(), ..ticket };
    assert!(matches!(Segment::open(&unsealed), Err(MemoryError::WrongFile(_, "a file that is not sealed"))));
    assert!(segment.file.set_len(10).is_err(), "the segment's own file is sealed");
}

#[test]
fn impossible_sizes_are_errors() {
    for (regions, bytes) in [(0, 10), (10, 0), (2, usize::MAX), (usize::MAX, 4096), (3, 1 << 62)] {
        assert!(
            matches!(Segment::create(regions, bytes), Err(MemoryError::Size { .. })),
            "{regions} x {bytes}"
        );
    }
    // More than any address space: an error, not a signal.
    let huge = Segment::create(1, 1 << 55).map(|_| ());
    assert!(matches!(huge, Err(MemoryError::System { .. })), "{huge:?}");
    let (segment, _) = Segment::create(1, 10).unwrap();
    assert!(segment.reserve(1).is_err());
}

#[test]
fn a_ticket_survives_conversion_to_words() {
    let ticket = Ticket { pid: 4_194_304, fd: 7, nonce: [-1, 1 << 62], regions: 3, region_bytes: 1 << 40 };
    assert_eq!(Ticket::from_words(ticket.to_words()), ticket);
    let (_kept, ticket) = Segment::create(2, 4096).unwrap();
    let good = ticket.to_words();
    assert!(Segment::open(&Ticket::from_words(good)).is_ok());
    // Words that no segment has produced open nothing.
    for (index, bad) in [(0, 0), (0, -1), (1, -1), (4, 0), (5, -5), (5, 0)] {
        let mut words = good;
        words[index] = bad;
        assert!(Segment::open(&Ticket::from_words(words)).is_err(), "{words:?}");
    }
}

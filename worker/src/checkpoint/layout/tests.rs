#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn item() -> impl Strategy<Value = (Dtype, Vec<i64>, u8, Vec<u64>)> {
    let dtype = prop::sample::select(vec![Dtype::F32, Dtype::I64, Dtype::BF16, Dtype::U8]);
    let shape = prop::collection::vec(0i64..9, 0..4);
    (dtype, shape, 0u8..3, prop::collection::vec(0u64..100, 0..6))
}

fn files() -> impl Strategy<Value = (Vec<(&'static str, Vec<Item>)>, usize)> {
    let files = prop::collection::vec(prop::collection::vec(item(), 0..12), 1..4);
    (files, 1usize..6).prop_map(|(files, ranks)| {
        let make = |(number, (dtype, shape, held, cuts)): (usize, (Dtype, Vec<i64>, u8, Vec<u64>))| {
            let mut item = Item {
                name: format!("t{number}"),
                dtype,
                shape,
                holders: Holders::All { divisible: held == 0 },
            };
            if held == 2 {
                let elements = item.elements();
                let mut ends: Vec<u64> = cuts.iter().map(|cut| cut * elements / 100).collect();
                ends.push(elements);
                ends.sort_unstable();
                let of = |(index, end)| (end, (index * 7) % ranks);
                item.holders = Holders::Parts(ends.into_iter().enumerate().map(of).collect());
            }
            item
        };
        let file = |(number, items): (usize, Vec<_>)| {
            let items = items.into_iter().enumerate().map(make).collect();
            (["a", "b", "c"][number], items)
        };
        (files.into_iter().enumerate().map(file).collect(), ranks)
    })
}

proptest! {
    /// Every byte is written once, by the rank of its part, and elements by a rank that holds them.
    #[test]
    fn every_byte_has_one_writer((files, ranks) in files()) {
        let all = layout(&files, 0..ranks).unwrap();
        // The ranks of one node, and shards of others.
        let writers = ranks / 2..ranks;
        let some = layout(&files, writers.clone()).unwrap();
        let shards = |files: &[FileLayout]| files.iter().map(|file| file.shards.clone()).collect::<Vec<_>>();
        prop_assert_eq!(shards(&all), shards(&some));
        let foreign = some.iter().flat_map(|file| &file.parts).filter(|part| !writers.contains(&part.rank));
        let bytes: u64 = foreign.map(|part| part.bytes).sum();
        let owned = some.iter().flat_map(|file| &file.shards).filter(|part| !writers.contains(&part.rank));
        prop_assert_eq!(bytes, owned.map(|part| part.bytes).sum::<u64>());
        for (file, (_, items)) in all.iter().chain(&some).zip(files.iter().cycle()) {
            let mut written = vec![None; file.bytes as usize];
            let mut elements: Vec<u64> = vec![0; items.len()];
            for rank in 0..ranks {
                for piece in file.pieces(rank) {
                    for byte in piece.offset..piece.offset + piece.bytes {
                        prop_assert_eq!(written[byte as usize].replace(rank), None);
                    }
                    if let Content::Elements(index, range) = &piece.content {
                        elements[*index] += range.end - range.start;
                        if let Holders::Parts(ends) = &items[*index].holders {
                            let (_, owner) = ends.iter().find(|(end, _)| range.start < *end).unwrap();
                            prop_assert_eq!(*owner, rank);
                        }
                    }
                }
                let pieces: u64 = file.pieces(rank).map(|piece| piece.bytes).sum();
                let parts: u64 = file.parts_of(rank).map(|part| part.bytes).sum();
                prop_assert_eq!(pieces, parts);
                for part in file.parts_of(rank) {
                    let own = &written[part.offset as usize..(part.offset + part.bytes) as usize];
                    prop_assert!(own.iter().all(|writer| *writer == Some(rank)));
                }
            }
            prop_assert!(written.iter().all(Option::is_some));
            for (item, elements) in items.iter().zip(elements) {
                prop_assert_eq!(item.elements(), elements);
            }
        }
    }

    /// The safetensors reader accepts the files, and finds every tensor at its pieces.
    #[test]
    fn the_safetensors_reader_finds_every_tensor((files, ranks) in files()) {
        for (file, (_, items)) in layout(&files, 0..ranks).unwrap().iter().zip(&files) {
            let mut bytes = vec![0; file.bytes as usize];
            for piece in (0..ranks).flat_map(|rank| file.pieces(rank)) {
                let range = piece.offset as usize..(piece.offset + piece.bytes) as usize;
                match &piece.content {
                    Content::Header => bytes[range].copy_from_slice(&file.header),
                    Content::Elements(index, _) => bytes[range].fill(*index as u8 + 1),
                }
            }
            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            prop_assert_eq!(read.len(), items.len());
            for (index, item) in items.iter().enumerate() {
                let tensor = read.tensor(&item.name).unwrap();
                let shape: Vec<i64> = tensor.shape().iter().map(|&size| size as i64).collect();
                prop_assert_eq!((&shape, tensor.dtype()), (&item.shape, item.dtype));
                prop_assert!(tensor.data().iter().all(|&byte| usize::from(byte) == index + 1));
            }
        }
    }

    /// Divisible bytes are divided equally.
    #[test]
    fn ranks_write_equal_shares(sizes in prop::collection::vec(0i64..5000, 1..20), ranks in 1usize..7) {
        let items = sizes.iter().enumerate().map(|(number, &size)| Item {
            name: number.to_string(),
            dtype: Dtype::F32,
            shape: vec![size],
            holders: Holders::All { divisible: true },
        });
        let file = layout(&[("f", items.collect::<Vec<_>>())], 0..ranks).unwrap().remove(0);
        let share = file.bytes.div_ceil(ranks as u64);
        for rank in 0..ranks {
            let own: u64 = file.parts_of(rank).map(|part| part.bytes).sum();
            prop_assert!(own <= share.max(file.header.len() as u64) + 4 * ranks as u64, "{own} of {}", file.bytes);
        }
    }

    #[test]
    fn large_parts_are_divided_evenly(bytes in prop_oneof![0u64..3 * PART_BYTES, any::<u64>().prop_map(|bytes| bytes % (1 << 40))]) {
        let whole = Part { offset: 5, bytes, rank: 3 };
        let parts: Vec<Part> = whole.split().collect();
        let ends = parts.iter().map(|part| part.offset + part.bytes);
        prop_assert_eq!(ends.clone().next_back().unwrap(), 5 + bytes);
        prop_assert!(parts.iter().skip(1).map(|part| part.offset).eq(ends.take(parts.len() - 1)));
        prop_assert!(parts.iter().all(|part| part.bytes <= PART_BYTES && part.rank == 3));
        let sizes = parts.iter().map(|part| part.bytes);
        prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
    }
}

#![allow(clippy::unwrap_used)]

use super::*;
use crate::tests::images::reference;

#[test]
fn cells_are_read_by_small_pages_or_by_unpacked_row_groups() {
    let indexed = ParquetFile::open(&reference("packs/indexed-train.parquet")).unwrap();
    let leaf = indexed.leaf("picture").unwrap();
    assert_eq!(
        (indexed.rows(), indexed.access(leaf)),
        (24, Access { by_page: 24, pages: 24, ..Access::default() })
    );
    let plain = ParquetFile::open(&reference("packs/train-00000-of-00002.parquet")).unwrap();
    let bytes = plain.leaf("image.bytes").unwrap();
    let access = plain.access(bytes);
    assert_eq!((plain.rows(), access.by_group, access.groups, access.by_page), (12, 12, 3, 0));
    assert!(access.group_bytes > 4000, "{access:?}");
    // Both hold the images of one folder.
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for row in [0, 11, 4, 5] {
        indexed.cell(row, leaf, &mut one).unwrap();
        plain.cell(row, bytes, &mut other).unwrap();
        assert_eq!(one, other, "{row}");
    }
    // Also without a cache folder.
    plain
        .visit(1, bytes, 2, 1, &mut |cell| {
            one = cell.unwrap().to_vec();
            Ok(())
        })
        .unwrap();
    plain.cell(7, bytes, &mut other).unwrap();
    assert_eq!(one, other);
    assert!(
        plain
            .cell(12, bytes, &mut other)
            .unwrap_err()
            .to_string()
            .contains("it has 12 rows now, and no row 12")
    );
}

//! Position embeddings of a vision transformer for another image size: resampled as timm's `resample_abs_pos_embed` does.

use std::fmt;

use tch::{Kind, TchError, Tensor};

use crate::mismatch::{Mismatch, ShapeDifference};

/// The names of position embeddings in timm, torchvision and transformers.
const NAMES: [&str; 3] = ["pos_embed", "pos_embedding", "position_embeddings"];
/// The most tokens before the grid: the class, a distillation token, registers.
const MOST_PREFIX: usize = 8;

/// A position embedding (1 x (prefix + side * side) x width) that the file has for another grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resampled {
    /// Its name.
    pub name: String,
    /// The tokens before the grid, which stay.
    pub prefix: usize,
    /// The side of the grid in the file.
    pub from: usize,
    /// The side of the grid in the model.
    pub to: usize,
}

impl fmt::Display for Resampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{0}` resampled from {1}x{1} to {2}x{2}", self.name, self.from, self.to)
    }
}

impl Resampled {
    /// Returns how to resample a tensor of the file, if it and the model's have square grids.
    fn of(difference: &ShapeDifference) -> Option<Self> {
        let is_position = difference.name.split('.').any(|part| NAMES.contains(&part));
        let ([1, rows, width], [1, wanted, same], true) =
            (difference.file.as_slice(), difference.model.as_slice(), is_position)
        else {
            return None;
        };
        let side = |rows: usize, prefix| {
            let grid = rows.checked_sub(prefix)?;
            Some(grid.isqrt()).filter(|side| *side > 0 && side * side == grid)
        };
        let name = || difference.name.clone();
        let fits = |prefix| {
            let (from, to) = (side(*rows, prefix)?, side(*wanted, prefix)?);
            Some(Self { name: name(), prefix, from, to })
        };
        (0..=MOST_PREFIX).find_map(fits).filter(|_| width == same)
    }

    /// Returns the model's tensor for that of the file.
    pub(super) fn apply(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        let (from, to) = (self.from as i64, self.to as i64);
        let tensor = tensor.f_to_kind(Kind::Float)?;
        let parts = tensor.f_split_with_sizes([self.prefix as i64, from * from], 1)?;
        let grid = parts[1].f_reshape([1, from, from, -1])?.f_permute([0, 3, 1, 2])?;
        let grid = grid.f_internal_upsample_bicubic2d_aa([to, to], false, None, None)?;
        let grid = grid.f_permute([0, 2, 3, 1])?.f_reshape([1, to * to, -1])?;
        Tensor::f_cat(&[&parts[0], &grid], 1)
    }
}

/// Removes from the differences those that resampling mends, and returns them.
pub(super) fn take(mismatch: &mut Mismatch) -> Vec<Resampled> {
    let (mut mended, mut rest) = (Vec::new(), Vec::new());
    for difference in std::mem::take(&mut mismatch.shapes) {
        match Resampled::of(&difference) {
            Some(resampled) => mended.push(resampled),
            None => rest.push(difference),
        }
    }
    mismatch.shapes = rest;
    mended
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;
    use crate::TensorFile;

    fn of(name: &str, file: &[usize], model: &[usize]) -> Option<(usize, usize, usize)> {
        let difference =
            ShapeDifference { name: name.to_owned(), file: file.to_vec(), model: model.to_vec() };
        Resampled::of(&difference).map(|found| (found.prefix, found.from, found.to))
    }

    #[test]
    fn grids_of_positions_are_found() {
        let found = [
            of("pos_embed", &[1, 197, 8], &[1, 785, 8]),
            of("vit.embeddings.position_embeddings", &[1, 198, 8], &[1, 18, 8]),
            of("encoder.pos_embedding", &[1, 196, 8], &[1, 64, 8]),
        ];
        assert_eq!(found, [Some((1, 14, 28)), Some((2, 14, 4)), Some((0, 14, 8))]);
        for (name, file, model) in [
            ("pos_embed", &[1, 197, 8][..], &[1, 785, 4][..]),
            ("pos_embed", &[1, 197, 8], &[1, 200, 8]),
            ("bert.embeddings.position_embeddings.weight", &[1024, 8], &[256, 8]),
            ("fc.weight", &[1, 16, 8], &[1, 4, 8]),
        ] {
            assert_eq!(of(name, file, model), None, "{name}");
        }
    }

    #[test]
    fn positions_are_resampled_as_in_timm() {
        let path = "../../tests/parity/reference/positions.safetensors";
        let file = TensorFile::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let mut cases = 0;
        for given in file.names().iter().filter(|name| name.ends_with(".given")) {
            let case = given.trim_end_matches(".given");
            let [prefix, from, to] =
                case.split('.').map(|part| part.parse().unwrap()).collect::<Vec<_>>()[..]
            else {
                panic!("{case}")
            };
            let resampled = Resampled { name: String::new(), prefix, from, to };
            let made = resampled.apply(&file.read(given).unwrap()).unwrap();
            let expected = file.read(&format!("{case}.resampled")).unwrap();
            assert_eq!(made.size(), expected.size(), "{case}");
            let difference = (made - expected).abs().max().double_value(&[]);
            assert!(difference < 1e-6, "{case}: {difference}");
            cases += 1;
        }
        assert_eq!(cases, 4);
    }
}

//! Colours of classes and of numbers.

/// Returns the colours of classes by number: those of PASCAL VOC, which most tools use for masks. Class 0 is black.
pub fn class_colours(classes: usize) -> Vec<[u8; 3]> {
    let colour = |class: usize| {
        let channel = |channel: usize| {
            (0..8).fold(0, |value: u8, bit| value | ((class >> (3 * bit + channel) & 1) as u8) << (7 - bit))
        };
        [channel(0), channel(1), channel(2)]
    };
    (0..classes).map(colour).collect()
}

/// Returns the colour of a part from 0 to 1 in matplotlib's viridis, by a polynomial of degree 6 (Zucker 2019, CC0). It is off by
/// 3 of 255 at most.
pub fn viridis(part: f32) -> [u8; 3] {
    const FACTORS: [[f32; 3]; 7] = [
        [0.277_727_33, 0.005_407_345, 0.334_099_8],
        [0.105_093_04, 1.404_613_5, 1.384_590_1],
        [-0.330_861_83, 0.214_847_56, 0.095_095_16],
        [-4.634_230_5, -5.799_101, -19.332_441],
        [6.228_27, 14.179_933, 56.690_55],
        [4.776_385, -13.745_145, -65.353_03],
        [-5.435_456, 4.645_852_6, 26.312_435],
    ];
    let part = part.clamp(0.0, 1.0);
    std::array::from_fn(|channel| {
        let value = FACTORS.iter().rev().fold(0.0, |sum, factors| sum * part + factors[channel]);
        (value.clamp(0.0, 1.0) * 255.0).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_pascal_voc_and_matplotlib() {
        let expected = [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [0, 0, 128]];
        assert_eq!(class_colours(5), expected);
        assert_eq!(class_colours(21)[20], [0, 64, 128]);
        // matplotlib.colormaps["viridis"](x, bytes=True)
        for (part, colour) in [
            (0.0, [68, 1, 84]),
            (0.25, [59, 82, 139]),
            (0.5, [33, 145, 140]),
            (0.75, [94, 201, 98]),
            (1.0, [253, 231, 37]),
        ] {
            let near = viridis(part).iter().zip(colour).all(|(a, b): (&u8, u8)| a.abs_diff(b) <= 5);
            assert!(near, "{part}: {:?}", viridis(part));
        }
    }
}

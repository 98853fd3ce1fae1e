//! The nearest of some pixels to each pixel, exactly: Maurer et al. 2003, doi 10.1109/TPAMI.2003.1177156. Of equally near ones it is that which
//! scipy's `distance_transform_edt` finds.

/// Returns row and column of the pixel with `is` true that is nearest to each pixel. One at least must be.
pub(in super::super) fn nearest(is: &[bool], height: usize, width: usize) -> Vec<(usize, usize)> {
    let mut found: Vec<Option<(usize, usize)>> =
        is.iter().enumerate().map(|(at, is)| is.then_some((at / width, at % width))).collect();
    for column in 0..width {
        let line: Vec<_> = (0..height).map(|row| found[row * width + column]).collect();
        for (row, place) in
            of_line(&line, |place| (place.0, place.1.abs_diff(column))).into_iter().enumerate()
        {
            found[row * width + column] = place;
        }
    }
    for row in 0..height {
        let line = found[row * width..][..width].to_vec();
        let line = of_line(&line, |place| (place.1, place.0.abs_diff(row)));
        found[row * width..][..width].copy_from_slice(&line);
    }
    found.into_iter().map(Option::unwrap_or_default).collect()
}

/// Returns the nearest place to each pixel of a line, of those that are nearest within the lines that cross it. `split` gives the part of a
/// place along the line, and its distance to the line.
fn of_line(
    places: &[Option<(usize, usize)>],
    split: impl Fn((usize, usize)) -> (usize, usize),
) -> Vec<Option<(usize, usize)>> {
    let split = |place| {
        let (along, across) = split(place);
        (along as f64, (across * across) as f64)
    };
    // Places that are the nearest somewhere on the line.
    let mut kept: Vec<(usize, usize)> = Vec::with_capacity(places.len());
    for place in places.iter().flatten() {
        let (along, across) = split(*place);
        while let [.., before, last] = kept[..] {
            let ((along_1, across_1), (along_2, across_2)) = (split(last), split(before));
            let (a, b) = (along_1 - along_2, along - along_1);
            let c = a + b;
            if c * across_1 - b * across_2 - a * across - a * b * c <= 0.0 {
                break;
            }
            kept.pop();
        }
        kept.push(*place);
    }
    let mut at = 0;
    let nearest = |pixel: usize| {
        let distance = |place| {
            let (along, across) = split(place);
            (along - pixel as f64).powi(2) + across
        };
        while at + 1 < kept.len() && distance(kept[at + 1]) < distance(kept[at]) {
            at += 1;
        }
        kept.get(at).copied()
    };
    (0..places.len()).map(nearest).collect()
}

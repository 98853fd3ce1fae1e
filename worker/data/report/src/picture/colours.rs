//! Colours of classes and of numbers.

use super::canvas::Colour;

/// Returns the colour of a class: those of neighbouring numbers differ most.
pub(super) fn of_class(class: i64) -> Colour {
    /// Colours that are easy to distinguish (Okabe and Ito, brighter).
    const FIRST: [Colour; 8] = [
        [0, 0, 0],
        [230, 80, 60],
        [60, 160, 240],
        [80, 200, 90],
        [250, 200, 40],
        [200, 90, 220],
        [70, 220, 210],
        [250, 140, 30],
    ];
    if let Some(colour) = usize::try_from(class).ok().and_then(|class| FIRST.get(class)) {
        return *colour;
    }
    // Turning by the golden angle.
    let hue = (class as f32 * 0.618_034).rem_euclid(1.0) * 6.0;
    let light = if class % 2 == 0 { 240.0 } else { 170.0 };
    let part = |offset: f32| {
        let at = (hue + offset).rem_euclid(6.0);
        (light * (0.25 + 0.75 * ((at - 3.0).abs() - 1.0).clamp(0.0, 1.0))) as u8
    };
    [part(0.0), part(4.0), part(2.0)]
}

/// Returns the colour of a number from 0 to 1: dark blue, green, yellow.
pub(super) fn of_number(number: f32) -> Colour {
    /// Of matplotlib's viridis.
    const STOPS: [Colour; 5] = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
    let at = number.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let low = (at as usize).min(STOPS.len() - 2);
    super::canvas::blend(STOPS[low], STOPS[low + 1], at - low as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_different_colours() {
        let mut colours: Vec<Colour> = (0..40).map(of_class).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 40);
    }

    #[test]
    fn numbers_run_from_dark_to_light() {
        assert_eq!(of_number(-1.0), [68, 1, 84]);
        assert_eq!(of_number(2.0), [253, 231, 37]);
        assert_eq!(of_number(0.5), [33, 145, 140]);
    }
}

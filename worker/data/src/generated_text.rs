//! The grammar of generated texts.

use super::rng::{SampleRng, below};

/// Adds a sentence, and sometimes a line break. There is something to learn at every distance within it.
pub(super) fn sentence(rng: &mut SampleRng, text: &mut String) {
    const NOUNS: [&str; 8] = ["cat", "dog", "bird", "king", "river", "child", "tree", "ship"];
    const ADJECTIVES: [&str; 6] = ["small", "red", "old", "quiet", "bright", "wild"];
    const VERBS: [(&str, &str); 6] = [
        ("sees", "see"),
        ("follows", "follow"),
        ("finds", "find"),
        ("likes", "like"),
        ("hears", "hear"),
        ("leaves", "leave"),
    ];
    // The place of each noun, always the same.
    const PLACES: [&str; 8] = [
        "in the house",
        "in the yard",
        "in the air",
        "in the hall",
        "in the valley",
        "at the school",
        "on the hill",
        "on the sea",
    ];
    fn pick(rng: &mut SampleRng, among: usize) -> usize {
        below(rng, among as u32) as usize
    }
    fn phrase(rng: &mut SampleRng, text: &mut String) -> (usize, bool) {
        let (noun, many) = (pick(rng, NOUNS.len()), pick(rng, 2) == 1);
        text.push_str(if many { "the" } else { "a" });
        for _ in 0..pick(rng, 3) {
            text.push(' ');
            text.push_str(ADJECTIVES[pick(rng, ADJECTIVES.len())]);
        }
        text.push(' ');
        let irregular = NOUNS[noun] == "child" && many;
        text.push_str(if irregular { "children" } else { NOUNS[noun] });
        if many && !irregular {
            text.push('s');
        }
        (noun, many)
    }
    let (subject, many) = phrase(rng, text);
    let (one, several) = VERBS[pick(rng, VERBS.len())];
    text.push(' ');
    text.push_str(if many { several } else { one });
    text.push(' ');
    phrase(rng, text);
    if pick(rng, 2) == 1 {
        text.push(' ');
        text.push_str(PLACES[subject]);
    }
    text.push('.');
    text.push(if pick(rng, 4) == 0 { '\n' } else { ' ' });
}

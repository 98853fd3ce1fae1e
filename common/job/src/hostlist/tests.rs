#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn expanded(text: &str) -> Vec<String> {
    expand(text).unwrap()
}

#[test]
fn slurms_lists_of_hosts_are_expanded_in_order() {
    for (text, hosts) in [
        ("n1", &["n1"][..]),
        ("n2,n1", &["n2", "n1"]),
        ("n[1-2]", &["n1", "n2"]),
        ("a[01-03,7],b2", &["a01", "a02", "a03", "a7", "b2"]),
        ("n[08-10]", &["n08", "n09", "n10"]),
        ("n[8-10]", &["n8", "n9", "n10"]),
        ("n[998-1001]", &["n998", "n999", "n1000", "n1001"]),
        ("rack[0-1]node[1,3]", &["rack0node1", "rack0node3", "rack1node1", "rack1node3"]),
        ("n[1-2]-ib.x.org,[3-4]", &["n1-ib.x.org", "n2-ib.x.org", "3", "4"]),
    ] {
        assert_eq!(expanded(text), hosts, "{text}");
    }
}

#[test]
fn slurms_lists_of_numbers_are_expanded() {
    for (text, numbers) in
        [("8", &[8][..]), ("8(x4),2", &[8, 8, 8, 8, 2]), ("2,1(x2)", &[2, 1, 1]), ("1(x0),3", &[3])]
    {
        assert_eq!(counts(text).unwrap(), numbers, "{text}");
    }
    for text in ["", "x", "1(x", "1(x2", "1(y2)", "1,", ",1", "-1", "1 ", "99999999999999999999"] {
        assert!(matches!(counts(text), Err(HostlistError::Syntax { .. })), "{text}");
    }
    assert_eq!(counts("1(x65536)").unwrap().len(), MOST);
    assert_eq!(counts("1(x65536),1"), Err(HostlistError::TooMany));
}

#[test]
fn malformed_lists_are_refused_at_their_place() {
    for (text, at) in [
        ("", 0),
        (",a", 0),
        ("a,", 2),
        ("a,,b", 2),
        ("a[", 2),
        ("a[]", 2),
        ("a[1", 3),
        ("a[1-]", 4),
        ("a[-1]", 2),
        ("a[2-1]", 5),
        ("a[1,]", 4),
        ("a[1;2]", 3),
        ("a]", 1),
        ("a b", 1),
        ("(null)", 0),
        ("a[99999999999999999999]", 2),
    ] {
        assert!(
            matches!(expand(text), Err(HostlistError::Syntax { at: found, .. }) if found == at),
            "{text}"
        );
    }
}

#[test]
fn the_size_of_a_list_is_checked_before_it_is_expanded() {
    assert_eq!(expanded("n[1-65536]").len(), MOST);
    for text in ["n[1-65537]", "n[0-18446744073709551615]", "n[1-65536],m", "a[1-99]b[1-99]c[1-99]d[1-99]"] {
        assert_eq!(expand(text), Err(HostlistError::TooMany), "{text}");
    }
    let name = "n".repeat(LONGEST_NAME);
    assert_eq!(expanded(&name), [name.as_str()]);
    assert_eq!(expand(&format!("{name}[1-2]")), Err(HostlistError::TooLong));
    assert_eq!(expand(&format!("n[{}1]", "0".repeat(LONGEST_NAME))), Err(HostlistError::TooLong));
}

/// Joins numbered hosts with one prefix and width as Slurm does: `n[01-03,07]`.
fn compress(prefix: &str, width: usize, numbers: &[u64], suffix: &str) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let ranges: Vec<_> = ranges
        .iter()
        .map(|(first, last)| match first == last {
            true => format!("{first:0width$}"),
            false => format!("{first:0width$}-{last:0width$}"),
        })
        .collect();
    format!("{prefix}[{}]{suffix}", ranges.join(","))
}

proptest! {
    #[test]
    fn expansion_reverts_compression(
        groups in proptest::collection::vec(
            ("[a-z][a-z0-9.-]{0,5}", 1..5_usize, proptest::collection::vec(0..3000_u64, 1..30), "[a-z.-]{0,3}"),
            1..4,
        ),
    ) {
        let (mut hosts, mut lists) = (Vec::new(), Vec::new());
        for (prefix, width, numbers, suffix) in &groups {
            hosts.extend(numbers.iter().map(|number| format!("{prefix}{number:0width$}{suffix}")));
            lists.push(compress(prefix, *width, numbers, suffix));
        }
        prop_assert_eq!(expand(&lists.join(",")).unwrap(), hosts);
    }

    #[test]
    fn no_text_panics_or_gives_more_than_allowed(text in "[a-c0-9\\[\\],()x-]{0,40}|\\PC{0,40}") {
        if let Ok(hosts) = expand(&text) {
            prop_assert!(hosts.len() <= MOST && hosts.iter().all(|host| !host.is_empty()));
        }
        if let Ok(numbers) = counts(&text) {
            prop_assert!(numbers.len() <= MOST);
        }
    }
}

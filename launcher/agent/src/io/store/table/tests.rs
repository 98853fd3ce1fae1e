#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const A: Client = 1;
const B: Client = 2;

#[test]
fn values_are_set_compared_added_appended_and_deleted() {
    let mut table = Table::default();
    assert_eq!(table.get(b"k"), b"");
    table.set(b"k", b"v").unwrap();
    assert_eq!(table.compare_set(b"k", b"other", b"w").unwrap().0, b"v");
    assert_eq!(table.compare_set(b"k", b"v", b"w").unwrap().0, b"w");
    assert_eq!(table.compare_set(b"none", b"expected", b"w").unwrap().0, b"expected");
    assert_eq!(table.compare_set(b"none", b"", b"w").unwrap().0, b"w");
    assert_eq!(table.add(b"n", 3).unwrap().0, 3);
    assert_eq!(table.add(b"n", -5).unwrap().0, -2);
    assert_eq!(table.get(b"n"), b"-2");
    assert_eq!(table.add(b"k", 1), Err(ClientError::NotANumber));
    table.append(b"k", b"x").unwrap();
    table.append(b"new", b"y").unwrap();
    assert_eq!((table.get(b"k"), table.get(b"new")), (&b"wx"[..], &b"y"[..]));
    assert_eq!(table.keys().len(), 4);
    assert!(table.delete(b"k") && !table.delete(b"k"));
    for key in [&b"none"[..], b"n", b"new"] {
        table.delete(key);
    }
    assert_eq!(table.held, 0);
}

#[test]
fn waiting_clients_are_woken_by_the_last_key() {
    let mut table = Table::default();
    assert!(!table.wait(A, &[b"x", b"y", b"x"]).unwrap());
    assert!(!table.wait(B, &[b"y"]).unwrap());
    assert_eq!(table.add(b"y", 1).unwrap().1, [B]);
    assert_eq!(table.compare_set(b"x", b"", b"1").unwrap().1, [A]);
    assert!(table.set(b"x", b"2").unwrap().is_empty());
    assert!(table.wait(A, &[b"x", b"y"]).unwrap());
    assert!(!table.wait(A, &[b"z"]).unwrap());
    table.forget(A);
    assert!(table.append(b"z", b"1").unwrap().is_empty());
}

#[test]
fn a_value_in_a_queue_wakes_one() {
    let mut table = Table::default();
    assert!(!table.wait(A, &[b"q"]).unwrap() && !table.wait(B, &[b"q"]).unwrap());
    assert_eq!(table.push(b"q", b"1").unwrap(), Some(A));
    assert!(table.check(&[b"q"]));
    assert_eq!(table.push(b"q", b"2").unwrap(), Some(B));
    assert_eq!(table.push(b"q", b"3").unwrap(), None);
    assert_eq!(table.queue_length(b"q"), 3);
    assert_eq!(table.pop(b"q"), (3, Some(b"1".to_vec())));
    assert_eq!(table.pop(b"q"), (2, Some(b"2".to_vec())));
    assert_eq!(table.pop(b"q"), (1, Some(b"3".to_vec())));
    assert_eq!(table.pop(b"q"), (0, None));
    assert_eq!((table.keys().len(), table.held), (0, 0));
}

#[test]
fn the_last_at_a_barrier_frees_the_others() {
    let mut table = Table::default();
    assert_eq!(table.barrier(A, b"b", 3).unwrap(), None);
    assert_eq!(table.barrier(B, b"b", 3).unwrap(), None);
    assert_eq!(table.barrier(3, b"b", 3).unwrap(), Some(vec![A, B]));
}

#[test]
fn numbers_are_read_as_c_reads_them() {
    for (text, number) in [
        (&b"12"[..], Some(12)),
        (b" -7x", Some(-7)),
        (b"+3", Some(3)),
        (b"", None),
        (b"-", None),
        (b"x1", None),
        (b"99999999999999999999", None),
    ] {
        assert_eq!(leading_number(text), number, "{text:?}");
    }
}

#[test]
fn a_store_that_is_full_takes_no_more_and_serves_what_it_has() {
    let mut table = Table::default();
    let value = vec![1; 8 << 20];
    let stored = (0..100_u8).take_while(|number| table.set(&[*number], &value).is_ok()).count();
    assert_eq!(stored, 63);
    assert_eq!(table.set(b"more", &value), Err(ClientError::Full));
    assert_eq!(table.append(&[0], &value), Err(ClientError::Full));
    assert_eq!(table.wait(A, &[&value]), Err(ClientError::Full));
    assert_eq!(table.get(&[5]), value);
    assert!(table.delete(&[0]) && table.set(b"more", &value).is_ok());
}

proptest! {
    #[test]
    fn removed_waits_and_keys_leave_nothing(steps in prop::collection::vec((0_u8..8, 0_u8..4, 0_u8..4), 0..200)) {
        let mut table = Table::default();
        for (what, key, client) in steps {
            let (name, client) = ([key], Client::from(client));
            match what {
                0 => drop(table.set(&name, &[client as u8; 5])),
                1 => drop(table.wait(client, &[&name, &[(key + 1) % 4]])),
                2 => drop(table.push(&name, b"value")),
                3 => drop(table.pop(&name)),
                4 => drop(table.delete(&name)),
                5 => table.forget(client),
                6 => drop(table.append(&name, b"12")),
                _ => drop(table.barrier(client, &name, 3)),
            }
        }
        for key in 0..4 {
            table.delete(&[key]);
            while table.pop(&[key]).1.is_some() {}
            table.forget(Client::from(key));
        }
        prop_assert_eq!(table.held, 0);
        prop_assert!(table.waiting.is_empty() && table.queues.is_empty());
    }
}

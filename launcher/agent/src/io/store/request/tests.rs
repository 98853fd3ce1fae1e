#![allow(clippy::unwrap_used)]

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Encodes a request of the current dialect: its number and its arguments in order.
pub(in crate::io::store) fn sent(number: u8, arguments: &[Argument<'_>]) -> Vec<u8> {
    let mut bytes = vec![number];
    for argument in arguments {
        match argument {
            Argument::Bytes(value) => {
                bytes.extend((value.len() as u64).to_ne_bytes());
                bytes.extend(*value);
            }
            Argument::Number(number) => bytes.extend(number.to_ne_bytes()),
        }
    }
    bytes
}

#[derive(Clone, Copy)]
pub(in crate::io::store) enum Argument<'a> {
    Bytes(&'a [u8]),
    Number(i64),
}
use Argument::{Bytes, Number};

/// Returns the first bytes of a client since PyTorch 2.2.
pub(in crate::io::store) fn greeting() -> Vec<u8> {
    [&[VALIDATE][..], &MAGIC.to_ne_bytes()].concat()
}

/// Returns every request with these arguments, as bytes and parsed.
fn all<'a>(key: &'a [u8], value: &'a [u8], other: &'a [u8], number: i64) -> Vec<(Vec<u8>, Request<'a>)> {
    let (k, v, o, n) = (Bytes(key), Bytes(value), Bytes(other), Number(number));
    vec![
        (sent(1, &[k, v]), Request::Set(key, value)),
        (sent(2, &[k, o, v]), Request::CompareSet(key, other, value)),
        (sent(3, &[k]), Request::Get(key)),
        (sent(4, &[k, n]), Request::Add(key, number)),
        (sent(5, &[Number(2), k, o]), Request::Check(vec![key, other])),
        (sent(6, &[Number(1), k]), Request::Wait(vec![key])),
        (sent(7, &[]), Request::CountKeys),
        (sent(8, &[k]), Request::Delete(key)),
        (sent(9, &[k, v]), Request::Append(key, value)),
        (sent(10, &[Number(2), o, k]), Request::MultiGet(vec![other, key])),
        (sent(11, &[Number(2), k, v, o, k]), Request::MultiSet(vec![(key, value), (other, key)])),
        (sent(12, &[]), Request::CancelWait),
        (b"\x0dabcd".to_vec(), Request::Ping(*b"abcd")),
        (sent(14, &[k, v]), Request::Push(key, value)),
        (sent(15, &[k]), Request::Pop(key)),
        (sent(16, &[k]), Request::QueueLength(key)),
        (sent(17, &[]), Request::ListKeys),
        (sent(18, &[k, n]), Request::Barrier(key, number)),
    ]
}

proptest! {
    #[test]
    fn a_request_is_read_when_it_is_whole_and_not_before(
        key in vec(any::<u8>(), 0..40), value in vec(any::<u8>(), 0..300), other in vec(any::<u8>(), 0..40),
        number in any::<i64>(), after in vec(any::<u8>(), 0..20), cut in any::<prop::sample::Index>(),
    ) {
        for (bytes, request) in all(&key, &value, &other, number) {
            let whole = [&bytes[..], &after].concat();
            prop_assert_eq!(read(&whole, Dialect::Current), Ok(Some((request.clone(), bytes.len()))));
            prop_assert_eq!(read(&bytes[..cut.index(bytes.len())], Dialect::Current), Ok(None));
            if bytes[0] <= 12 {
                let older = [&[bytes[0] - 1][..], &whole[1..]].concat();
                prop_assert_eq!(read(&older, Dialect::Old), Ok(Some((request, bytes.len()))));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200), small in vec(0_u8..20, 0..200)) {
        for bytes in [bytes, small] {
            let _ = greet(&bytes);
            for dialect in [Dialect::Current, Dialect::Old] {
                if let Ok(Some((_, length))) = read(&bytes, dialect) {
                    prop_assert!((1..=bytes.len()).contains(&length));
                }
            }
        }
    }
}

#[test]
fn lengths_are_refused_before_their_bytes_have_come() {
    let of =
        |number, arguments: &[Argument<'_>]| read(&sent(number, arguments), Dialect::Current).unwrap_err();
    assert_eq!(of(3, &[Number(8193)]), ClientError::Key(8193));
    assert_eq!(of(3, &[Number(-1)]), ClientError::Key(u64::MAX));
    assert_eq!(of(1, &[Bytes(b"k"), Number(8_388_609)]), ClientError::Value(8_388_609));
    assert_eq!(of(6, &[Number(131_073)]), ClientError::Keys(131_073));
    assert_eq!(of(11, &[Number(i64::MAX)]), ClientError::Keys(i64::MAX as u64));
    assert_eq!(of(19, &[]), ClientError::Unknown(19));
}

#[test]
fn the_dialect_is_told_by_the_first_bytes() {
    assert_eq!(greet(b""), Ok(None));
    assert_eq!(greet(&greeting()[..4]), Ok(None));
    assert_eq!(greet(&greeting()), Ok(Some((Dialect::Current, 5))));
    assert_eq!(greet(&sent(0, &[Bytes(b"key")])), Ok(Some((Dialect::Old, 0))));
    assert_eq!(greet(&sent(3, &[])), Ok(Some((Dialect::Old, 0))));
    for other in [&b"GET / HTTP/1.1"[..], b"\x16\x03\x01", b"PRI * HTTP/2.0", b"20\n"] {
        assert_eq!(greet(other), Err(ClientError::Stranger));
    }
}

#[test]
fn pytorch_2_0_deletes_where_2_1_appends() {
    let bytes = sent(8, &[Bytes(b"key")]);
    let read = |bytes| read(bytes, Dialect::Old).unwrap().map(|(request, _)| request);
    assert_eq!(read(&bytes), Some(Request::Delete(b"key")));
    assert_eq!(read(&bytes[..11]), None);
    let append = sent(8, &[Bytes(b"key"), Bytes(b"")]);
    assert_eq!(read(&append), Some(Request::Append(b"key", b"")));
}

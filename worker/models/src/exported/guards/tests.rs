#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::expression::Expression;
use super::parse::parse;
use super::*;

/// Returns the value of a condition of `x.size()[0]`.
fn holds(text: &str, batch: i64) -> Option<bool> {
    let expression = parse(text).unwrap_or_else(|| panic!("{text} was not read"));
    assert!(expression.lengths.len() <= 1, "{text}");
    expression.holds(&[batch])
}

const X: &str = "L['x'].size()[0]";

#[test]
fn the_forms_of_torch_are_read() {
    // As torch 2.11 writes them, and as sympy does, with the batches for which they are true.
    let even = |batch: i64| batch % 2 == 0;
    type Case = (&'static str, fn(i64) -> bool);
    let cases: [Case; 16] = [
        ("(L['x'].size()[0] % 2) == 0", even),
        ("Eq(Mod(L['x'].size()[0], 2), 0)", even),
        ("L[\"x\"].size()[0] != 12", |batch| batch != 12),
        ("192*L['x'].size()[0] <= 1500", |batch| 192 * batch <= 1500),
        ("1 < L['x'].size()[0] <= 7 != 0", |batch| 1 < batch && batch <= 7),
        ("4*L['x'].size()[0]**2 < 1099511627776", |batch| 4 * batch * batch < 1 << 40),
        ("(4*L['x'].size()[0]) == (12*(L['x'].size()[0] // 3))", |batch| batch % 3 == 0),
        ("((L['x'].size()[0]//3)) >= 2", |batch| batch / 3 >= 2),
        ("math.trunc(0.5*torch.sym_float(L['x'].size()[0])) != 1", |batch| batch / 2 != 1),
        ("Ne(TruncToInt(0.5*ToFloat(L['x'].size()[0])), 1)", |batch| batch / 2 != 1),
        ("(max(4, L['x'].size()[0]) / 2) == 2.0", |batch| batch <= 4),
        ("(L['x'].size()[0] <= 5) & (Ne(L['x'].size()[0], 3)) | (Eq(L['x'].size()[0], 9))", |batch| {
            batch <= 5 && batch != 3 || batch == 9
        }),
        ("not (L['x'].size()[0] > 5 or L['x'].size()[0] == 3) and True", |batch| batch <= 5 && batch != 3),
        ("~(L['x'].size()[0] > 5)", |batch| batch <= 5),
        ("-L['x'].size()[0] % 4 == -(-L['x'].size()[0] // 4)*4 - L['x'].size()[0]", |_| true),
        ("math.sqrt(L['x'].size()[0]) <= 1e+00 * 3", |batch| batch <= 9),
    ];
    for (text, expected) in cases {
        for batch in 1..200 {
            assert_eq!(holds(text, batch), Some(expected(batch)), "{text} for {batch}");
        }
    }
}

#[test]
fn unknown_values_are_not_true() {
    assert_eq!(holds("1 // (L['x'].size()[0] - 3) == 0", 3), None);
    assert_eq!(holds("L['x'].size()[0] == 3 or 1 % (L['x'].size()[0] - 3) == 0", 3), Some(true));
    assert_eq!(holds("L['x'].size()[0]**9999 > 0", 3), None);
    assert_eq!(holds("2**(0 - L['x'].size()[0]) == 0.25", 2), Some(true));
}

#[test]
fn paths_of_inputs_are_joined() {
    let expression = parse("L['args'][0][1].size()[2] == L['x'].size()[0]*L['x'].size()[0]").unwrap();
    let length = |input: &str, dim| Length { input: input.to_owned(), dim };
    assert_eq!(expression.lengths, [length("args_0_1", 2), length("x", 0)]);
    assert_eq!(expression.holds(&[9, 3]), Some(true));
    assert_eq!(expression.holds(&[]), None);
}

#[test]
fn other_texts_are_refused() {
    let deep = ["(".repeat(100_000), "1".into(), ")".repeat(100_000)].concat();
    let signs = "-".repeat(50_000) + "1";
    for text in [
        "",
        "(",
        "1 +",
        "1 2",
        "x == 1",
        "L['x']",
        "L['x'].stride()[0] == 1",
        "L['x'].size()[-1] == 1",
        "L.x == 1",
        "open('f')",
        "__import__('os')",
        "1 if 2 else 3",
        "Mod(1)",
        "Eq(1, 2, 3)",
        "Mod(1, 2",
        "'text'",
        "1 = 1",
        "lambda: 1",
        "99999999999999999999999999999999999999999 > 1",
        "é",
        "1 !",
        &deep,
        &signs,
    ] {
        assert!(parse(text).is_none(), "{}", &text[..text.len().min(40)]);
    }
    let long = "1".to_owned() + &" + 1".repeat(16_000);
    assert_eq!(parse(&(long + " == 16001")).unwrap().holds(&[]), Some(true));
}

fn guard(text: &str) -> Guard {
    let sizes = [Size::Batch].repeat(parse(text).unwrap().lengths.len());
    Guard { text: text.to_owned(), place: String::new(), expression: parse(text).unwrap(), sizes }
}

#[test]
fn guards_hold_for_all_batches_or_bound_them() {
    let from = |least| Batches { least, most: None };
    let narrowed = |text: &str, batches| guard(&text.replace('x', X)).narrow(batches, None);
    // One sample is no branch: torch assumes two.
    assert_eq!(narrowed("x*49 != 49", from(1)).unwrap(), from(2));
    assert_eq!(narrowed("x*49 != 1", from(1)).unwrap(), from(1));
    assert_eq!(narrowed("x*8//8 == x", from(1)).unwrap(), from(1));
    // 784 samples of 2^20 elements, and a bound within the range.
    let most = |most| Batches { least: 2, most: Some(most) };
    assert_eq!(narrowed("784*x < 2**31", from(2)).unwrap(), most(1 << 21));
    assert_eq!(narrowed("x < 100000", from(2)).unwrap(), most(65_536));
    assert_eq!(narrowed("x <= 64", most(64)).unwrap(), most(64));
    assert_eq!(narrowed("x <= 70000", most(70_000)).unwrap(), most(70_000));
    for (text, batch) in [("x % 2 == 1", 2), ("x != 12", 12), ("192*x <= 1500", 8), ("x != 65536", 65_536)] {
        let error = narrowed(text, from(1)).unwrap_err().to_string();
        assert!(error.contains(&format!("not valid for a batch of {batch}:")), "{error}");
    }
    let error = narrowed("1 == 2", from(1)).unwrap_err().to_string();
    assert!(error.contains("not valid for all inputs"), "{error}");
}

/// A condition, and its value computed from its parts.
#[derive(Debug, Clone)]
enum Tree {
    Number(i64),
    Batch,
    Of(&'static str, Box<Tree>, Box<Tree>),
}

impl Tree {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => format!("{number}"),
            Self::Batch => X.to_owned(),
            Self::Of(function, one, other)
                if function.len() > 2 && function.starts_with(char::is_uppercase) =>
            {
                format!("{function}({}, {})", one.text(), other.text())
            }
            Self::Of(sign, one, other) => format!("({} {sign} {})", one.text(), other.text()),
        }
    }

    fn value(&self, batch: i128) -> Option<i128> {
        let (function, one, other) = match self {
            Self::Number(number) => return Some((*number).into()),
            Self::Batch => return Some(batch),
            Self::Of(function, one, other) => (*function, one.value(batch), other.value(batch)),
        };
        let truth = |value: Option<i128>| value.map(|value| value != 0);
        match function {
            "and" => {
                return match (truth(one), truth(other)) {
                    (Some(false), _) | (_, Some(false)) => Some(0),
                    (Some(true), Some(true)) => Some(1),
                    _ => None,
                };
            }
            "or" => {
                return match (truth(one), truth(other)) {
                    (Some(true), _) | (_, Some(true)) => Some(1),
                    (Some(false), Some(false)) => Some(0),
                    _ => None,
                };
            }
            _ => {}
        }
        let (one, other) = (one?, other?);
        // Quotients round down: towards zero, less one if the signs differ.
        let quotient = || {
            let quotient = one.checked_div(other)?;
            Some(if quotient * other != one && (one < 0) != (other < 0) { quotient - 1 } else { quotient })
        };
        match function {
            "+" => one.checked_add(other),
            "-" => one.checked_sub(other),
            "*" => one.checked_mul(other),
            "//" | "FloorDiv" => quotient(),
            "%" | "Mod" => Some(one - quotient()? * other),
            "<" => Some((one < other).into()),
            "<=" => Some((one <= other).into()),
            "==" => Some((one == other).into()),
            "!=" => Some((one != other).into()),
            "Max" => Some(one.max(other)),
            "Min" => Some(one.min(other)),
            other => panic!("{other}"),
        }
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![(0i64..2000).prop_map(Tree::Number), Just(Tree::Batch)];
    leaf.prop_recursive(6, 60, 2, |inner| {
        let functions =
            ["+", "-", "*", "//", "%", "<", "<=", "==", "!=", "and", "or", "Max", "Min", "Mod", "FloorDiv"];
        let function = prop::sample::select(functions.to_vec());
        (function, inner.clone(), inner)
            .prop_map(|(function, one, other)| Tree::Of(function, one.into(), other.into()))
    })
}

proptest! {
    #[test]
    fn conditions_have_the_value_of_their_parts(tree in trees(), batch in 1i64..100_000) {
        let expected = tree.value(batch.into()).map(|value| value != 0);
        let expression: Expression = parse(&tree.text()).unwrap();
        prop_assert_eq!(expression.holds(&[batch]), expected, "{}", tree.text());
    }

    #[test]
    fn odd_texts_are_read_or_refused(text in "[LxMo0-9\\[\\]().,'+*/%<>=!&|~ -]{0,60}", any in ".{0,60}") {
        for text in [text, any] {
            if let Some(expression) = parse(&text) {
                expression.holds(&vec![3; expression.lengths.len()]);
            }
        }
    }

    #[test]
    fn changed_guards_are_read_or_refused(tree in trees(), at in 0usize..1000, byte in 0x20u8..0x7f) {
        let mut bytes = tree.text().into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        let text = String::from_utf8(bytes).unwrap();
        if let Some(expression) = parse(&text) {
            expression.holds(&vec![3; expression.lengths.len()]);
        }
    }
}

//! Reads a condition from Python's text.

use super::expression::{Action, Binary, Comparison, Expression, Length, Unary, Value};

/// Longer texts are refused.
const LONGEST: usize = 1 << 16;
/// Deeper parentheses, functions and signs are refused.
const DEEPEST: usize = 200;

/// Reads a condition; None if the text is none.
pub(super) fn parse(text: &str) -> Option<Expression> {
    if text.len() > LONGEST {
        return None;
    }
    let empty = Expression { actions: Vec::new(), lengths: Vec::new() };
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0, found: empty };
    parser.any()?;
    (parser.at == parser.tokens.len()).then_some(parser.found)
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Whole(i128),
    Real(f64),
    /// A name, with points inside, such as `math.trunc`.
    Name(String),
    Text(String),
    Sign(&'static str),
}

/// The signs; the longer ones first.
const SIGNS: [&str; 22] = [
    "**", "//", "<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "%", "&", "|", "~", "(", ")", "[", "]",
    ",", ".",
];

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let span = |belongs: fn(char) -> bool| rest.find(|other| !belongs(other)).unwrap_or(rest.len());
        let (token, length) = if first.is_ascii_digit() {
            let length = number_length(rest);
            let digits = &rest[..length];
            let token = match digits.bytes().all(|digit| digit.is_ascii_digit()) {
                true => Token::Whole(digits.parse().ok()?),
                false => Token::Real(digits.parse().ok()?),
            };
            (token, length)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = span(|other| other.is_ascii_alphanumeric() || other == '_' || other == '.');
            (Token::Name(rest[..length].to_owned()), length)
        } else if first == '\'' || first == '"' {
            let inner = &rest[1..];
            let length = inner.find(first)?;
            (Token::Text(inner[..length].to_owned()), length + 2)
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign))?;
            (Token::Sign(sign), sign.len())
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Some(tokens)
}

/// Returns the length of a number, such as `12`, `0.5` or `1e-05`.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut length = digits(0);
    if bytes.get(length) == Some(&b'.') {
        length += 1 + digits(length + 1);
    }
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let signed = length + 1 + usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(signed.min(bytes.len()));
        if exponent > 0 {
            length = signed + exponent;
        }
    }
    length
}

/// Reads by Python's precedence, the loosest first.
struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    found: Expression,
}

const COMPARISONS: [(&str, Comparison); 6] = [
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// Operations that are read from the left, by precedence.
const LEVELS: [&[(&str, Binary)]; 4] = [
    &[("|", Binary::BitOr)],
    &[("&", Binary::BitAnd)],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[("*", Binary::Multiply), ("//", Binary::FloorDivide), ("/", Binary::Divide), ("%", Binary::Remainder)],
];

impl Parser {
    fn emit(&mut self, action: Action) {
        self.found.actions.push(action);
    }

    fn takes(&mut self, sign: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Token::Sign(found)) if *found == sign);
        self.at += usize::from(found);
        found
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Token::Name(found)) if found == word);
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, sign: &str) -> Option<()> {
        self.takes(sign).then_some(())
    }

    /// Returns the first of these signs that comes next, and passes it.
    fn one_of<T: Copy>(&mut self, signs: &[(&str, T)]) -> Option<T> {
        signs.iter().find(|(sign, _)| self.takes(sign)).map(|(_, value)| *value)
    }

    /// Reads one level deeper.
    fn inside(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        read(self)?;
        self.depth -= 1;
        Some(())
    }

    fn any(&mut self) -> Option<()> {
        self.joined("or", Self::all, Action::Any)
    }

    fn all(&mut self) -> Option<()> {
        self.joined("and", Self::not, Action::All)
    }

    /// Reads parts with this word between them.
    fn joined(
        &mut self,
        word: &str,
        part: fn(&mut Self) -> Option<()>,
        action: fn(usize) -> Action,
    ) -> Option<()> {
        part(self)?;
        let mut count = 1;
        while self.takes_word(word) {
            part(self)?;
            count += 1;
        }
        if count > 1 {
            self.emit(action(count));
        }
        Some(())
    }

    fn not(&mut self) -> Option<()> {
        if !self.takes_word("not") {
            return self.comparison();
        }
        self.inside(Self::not)?;
        self.emit(Action::Unary(Unary::Not));
        Some(())
    }

    fn comparison(&mut self) -> Option<()> {
        self.level(0)?;
        let mut comparisons = Vec::new();
        while let Some(comparison) = self.one_of(&COMPARISONS) {
            self.level(0)?;
            comparisons.push(comparison);
        }
        if !comparisons.is_empty() {
            self.emit(Action::Compare(comparisons.into()));
        }
        Some(())
    }

    fn level(&mut self, level: usize) -> Option<()> {
        let Some(signs) = LEVELS.get(level) else { return self.signed() };
        self.level(level + 1)?;
        while let Some(operation) = self.one_of(signs) {
            self.level(level + 1)?;
            self.emit(Action::Binary(operation));
        }
        Some(())
    }

    fn signed(&mut self) -> Option<()> {
        let signs = [("-", Some(Unary::Negative)), ("~", Some(Unary::Invert)), ("+", None)];
        let Some(sign) = self.one_of(&signs) else { return self.power() };
        self.inside(Self::signed)?;
        if let Some(sign) = sign {
            self.emit(Action::Unary(sign));
        }
        Some(())
    }

    fn power(&mut self) -> Option<()> {
        self.atom()?;
        if self.takes("**") {
            self.inside(Self::signed)?;
            self.emit(Action::Binary(Binary::Power));
        }
        Some(())
    }

    fn atom(&mut self) -> Option<()> {
        if self.takes("(") {
            self.inside(Self::any)?;
            return self.sign(")");
        }
        let token = self.tokens.get(self.at)?.clone();
        self.at += 1;
        match token {
            Token::Whole(number) => self.emit(Action::Push(Value::Int(number))),
            Token::Real(number) => self.emit(Action::Push(Value::Real(number))),
            Token::Name(name) => match name.as_str() {
                "True" => self.emit(Action::Push(Value::Bool(true))),
                "False" => self.emit(Action::Push(Value::Bool(false))),
                "L" => self.length()?,
                function => self.call(function)?,
            },
            Token::Text(_) | Token::Sign(_) => return None,
        }
        Some(())
    }

    /// Reads `['x'].size()[0]` or `['args'][0][1].size()[0]`.
    fn length(&mut self) -> Option<()> {
        let mut parts = Vec::new();
        while self.takes("[") {
            let part = match self.tokens.get(self.at)? {
                Token::Text(text) => text.clone(),
                Token::Whole(number) => number.to_string(),
                _ => return None,
            };
            self.at += 1;
            self.sign("]")?;
            parts.push(part);
        }
        self.sign(".")?;
        if parts.is_empty() || !self.takes_word("size") {
            return None;
        }
        for sign in ["(", ")", "["] {
            self.sign(sign)?;
        }
        let Token::Whole(dim) = self.tokens.get(self.at)? else { return None };
        let length = Length { input: parts.join("_"), dim: usize::try_from(*dim).ok()? };
        self.at += 1;
        self.sign("]")?;
        let lengths = &mut self.found.lengths;
        let number = lengths.iter().position(|known| *known == length).unwrap_or(lengths.len());
        if number == lengths.len() {
            lengths.push(length);
        }
        self.emit(Action::Length(number));
        Some(())
    }

    /// Reads the arguments of a function.
    fn call(&mut self, function: &str) -> Option<()> {
        self.sign("(")?;
        let mut count = 0;
        loop {
            self.inside(Self::any)?;
            count += 1;
            let fold = match function {
                "Max" | "max" | "torch.sym_max" => Some(Binary::Max),
                "Min" | "min" | "torch.sym_min" => Some(Binary::Min),
                _ => None,
            };
            if let Some(fold) = fold.filter(|_| count > 1) {
                self.emit(Action::Binary(fold));
            }
            if !self.takes(",") {
                break;
            }
        }
        self.sign(")")?;
        let compare = |comparison| Some(Action::Compare(Box::new([comparison])));
        let action = match (function, count) {
            ("Max" | "max" | "Min" | "min" | "torch.sym_max" | "torch.sym_min", _) => None,
            ("Mod" | "PythonMod", 2) => Some(Action::Binary(Binary::Remainder)),
            ("FloorDiv" | "CleanDiv", 2) => Some(Action::Binary(Binary::FloorDivide)),
            ("IntTrueDiv" | "FloatTrueDiv", 2) => Some(Action::Binary(Binary::Divide)),
            ("Pow" | "PowByNatural", 2) => Some(Action::Binary(Binary::Power)),
            ("Eq", 2) => compare(Comparison::Equal),
            ("Ne", 2) => compare(Comparison::NotEqual),
            ("Lt", 2) => compare(Comparison::Less),
            ("Le", 2) => compare(Comparison::LessOrEqual),
            ("Gt", 2) => compare(Comparison::Greater),
            ("Ge", 2) => compare(Comparison::GreaterOrEqual),
            ("Not" | "torch.sym_not", 1) => Some(Action::Unary(Unary::Not)),
            ("Abs" | "abs", 1) => Some(Action::Unary(Unary::Absolute)),
            ("ToFloat" | "float" | "torch.sym_float", 1) => Some(Action::Unary(Unary::Float)),
            ("TruncToInt" | "trunc" | "int" | "math.trunc", 1) => Some(Action::Unary(Unary::Truncate)),
            ("FloorToInt" | "floor" | "math.floor", 1) => Some(Action::Unary(Unary::Floor)),
            ("CeilToInt" | "ceiling" | "math.ceil", 1) => Some(Action::Unary(Unary::Ceil)),
            ("sqrt" | "OpaqueUnaryFn_sqrt" | "math.sqrt" | "torch._sym_sqrt", 1) => {
                Some(Action::Unary(Unary::Root))
            }
            _ => return None,
        };
        if let Some(action) = action {
            self.emit(action);
        }
        Some(())
    }
}
